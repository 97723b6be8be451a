//! The limits and hosts of the whole fleet, for the web page.

use std::sync::Arc;
use std::time::Duration;

use onramp_redis::Engine;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::fleet::{LimitView, MemberView, read};

/// The engine is asked no more often than this, however many clients ask.
const PERIOD: Duration = Duration::from_secs(1);
/// How long the engine may take to tell of all limits.
const PATIENCE: Duration = Duration::from_secs(3);
/// How many limits, and how many members of each, a document has at most.
const LIMITS_MAX: usize = 200;
const MEMBERS_MAX: usize = 50;

/// What the engine's ledgers say of all limits, read when a client asks.
///
/// The table has a connection of its own, so that the daemon's reports to the engine wait for no
/// answer to a viewer, and it does not use the daemon's devices.
#[derive(Debug)]
pub struct FleetTable {
    engine: Engine,
    latest: Mutex<Latest>,
}

#[derive(Debug, Default)]
struct Latest {
    /// When the engine was last asked.
    asked: Option<Instant>,
    /// When the engine last answered, and what.
    read: Option<(Instant, Vec<LimitView>)>,
    /// Why there was no answer to the last question.
    error: Option<String>,
}

impl FleetTable {
    /// Makes the table of the fleet whose engine this is. The engine is not asked here.
    #[must_use]
    pub fn new(engine: &Engine) -> Arc<Self> {
        Arc::new(Self { engine: engine.apart(), latest: Mutex::default() })
    }

    /// Returns the document `onramp.fleet-table`. If the engine does not answer, the document says
    /// why, and has the limits as they were when it last answered.
    pub(super) async fn document(self: &Arc<Self>) -> Value {
        let this = Arc::clone(self);
        // A client that leaves does not end the question: others wait for the answer.
        let asked = tokio::spawn(async move { this.ask().await });
        asked.await.unwrap_or_else(|error| document(&[], None, Some(&error.to_string())))
    }

    /// Asks the engine if that is due, and returns the document.
    async fn ask(&self) -> Value {
        // Clients that ask meanwhile wait here, and then get the same answer.
        let mut latest = self.latest.lock().await;
        if is_due(latest.asked, Instant::now()) {
            match timeout(PATIENCE, read(&self.engine, None)).await {
                Ok(Ok(limits)) => {
                    latest.read = Some((Instant::now(), limits));
                    latest.error = None;
                }
                Ok(Err(error)) => latest.error = Some(error.to_string()),
                Err(_) => {
                    let seconds = PATIENCE.as_secs();
                    latest.error = Some(format!(
                        "the engine needs more than {seconds} s to tell of all limits; `onramp \
                         fleet show LIMIT` asks for one"
                    ));
                }
            }
            // From the answer on, so that the clients that have waited meanwhile get this one.
            latest.asked = Some(Instant::now());
        }
        let age = latest.read.as_ref().map(|(at, _)| at.elapsed());
        let limits = latest.read.as_ref().map_or(&[][..], |(_, limits)| limits);
        document(limits, age, latest.error.as_deref())
    }
}

/// Whether the engine may be asked again at `now`.
fn is_due(asked: Option<Instant>, now: Instant) -> bool {
    asked.is_none_or(|asked| now.duration_since(asked) >= PERIOD)
}

fn document(limits: &[LimitView], age: Option<Duration>, error: Option<&str>) -> Value {
    let shown: Vec<Value> = limits.iter().take(LIMITS_MAX).map(limit).collect();
    json!({
        "schema": "onramp.fleet-table",
        "version": 1,
        "age_seconds": age.map(seconds),
        "error": error,
        "limits_omitted": limits.len() - shown.len(),
        "limits": shown,
    })
}

fn limit(limit: &LimitView) -> Value {
    let mut members: Vec<&MemberView> = limit.members.iter().collect();
    members.sort_by(|a, b| {
        let wants = |it: &MemberView| it.held.claim.demand();
        wants(b).cmp(&wants(a)).then_with(|| a.held.name.cmp(&b.held.name))
    });
    let shown: Vec<Value> =
        members.iter().take(MEMBERS_MAX).map(|member| self::member(member)).collect();
    json!({
        "name": limit.name,
        "parent": limit.parent,
        "bytes_per_second": limit.rate,
        "burst_bytes": limit.burst,
        "hosts_max": limit.hosts_max,
        "members_count": limit.members.len(),
        "demand_bytes_per_second": limit.sum(|member| member.held.claim.demand()),
        "share_bytes_per_second": limit.sum(|member| member.held.held),
        "used_bytes_per_second": limit.sum(|member| member.used),
        "report_age_seconds": limit.members.iter().map(|it| it.held.age).max().map(seconds),
        "members_omitted": limit.members.len() - shown.len(),
        "members": shown,
    })
}

fn member(MemberView { held, used }: &MemberView) -> Value {
    json!({
        "name": held.name,
        "weight": held.claim.weight(),
        "demand_bytes_per_second": held.claim.demand(),
        "floor_bytes_per_second": held.claim.floor(),
        "share_bytes_per_second": held.held,
        "used_bytes_per_second": used,
        "report_age_seconds": seconds(held.age),
    })
}

/// Returns seconds, with three digits behind the point.
fn seconds(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_asked_once_a_second() {
        let now = Instant::now();
        assert!(is_due(None, now));
        let asked = Some(now);
        assert!(!is_due(asked, now) && !is_due(asked, now + Duration::from_millis(999)));
        assert!(is_due(asked, now + PERIOD));
    }

    /// The engine takes connections and never answers. All who ask at the same time wait for one
    /// question.
    #[tokio::test(start_paused = true)]
    async fn those_who_wait_get_the_same_answer() {
        let engine = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
        let url = format!("redis://{}", engine.local_addr().expect("an address"));
        let table = FleetTable::new(&Engine::new(&url, None).expect("a URL"));
        let begun = Instant::now();
        let (one, two, three) = tokio::join!(table.document(), table.document(), table.document());
        assert!(begun.elapsed() < PATIENCE + PERIOD, "{:?}", begun.elapsed());
        assert!(one["error"].is_string() && one == two && two == three, "{one}");
    }

    #[test]
    fn what_was_never_read_has_no_age() {
        let document = document(&[], None, Some("why"));
        assert_eq!((&document["age_seconds"], &document["error"]), (&Value::Null, &"why".into()));
        assert_eq!(document["limits"], json!([]));
    }

    #[test]
    fn a_long_list_is_cut() {
        let limit = |at: usize| LimitView {
            name: format!("limit-{at}"),
            parent: None,
            rate: 9,
            burst: None,
            hosts_max: 1,
            members: Vec::new(),
        };
        let limits: Vec<LimitView> = (0..LIMITS_MAX + 7).map(limit).collect();
        let document = document(&limits, Some(Duration::from_micros(1_234_567)), None);
        assert_eq!(document["limits_omitted"], 7);
        assert_eq!(document["limits"].as_array().map(Vec::len), Some(LIMITS_MAX));
        assert_eq!(document["age_seconds"], 1.235);
        assert_eq!(document["limits"][0]["report_age_seconds"], Value::Null);
    }
}
