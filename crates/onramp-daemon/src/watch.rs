//! The streams of clients that watch the devices: statistics at regular intervals, and events.
//!
//! The daemon never waits for these clients. A client that reads too slowly misses old statistics,
//! which are worthless anyway. It also misses the oldest events, and is told how many it missed.

mod drops;
mod lines;

use std::io::Write as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use onramp_host::{Event, Reply};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{Mutex as AsyncMutex, broadcast};
use tokio::task::spawn_blocking;
use tokio::time::{Interval, MissedTickBehavior, interval};

use self::drops::Drops;
use self::lines::EventLines;
use crate::http::{Sampler, Source, Turn};
use crate::hub::{Died, Hub};
use crate::snapshot::{Device, Query, RateMeter, Share};
use crate::wire;

/// Maximum memory, in bytes, for events that slow clients have not read yet. `KEPT` is the number
/// of events that fit into that memory.
const KEPT_BYTES: usize = 16 << 20;
const KEPT: usize = KEPT_BYTES / Event::LINE_MAX;
/// How often the daemon looks for new drops, and checks whether any client still listens to events.
const PERIOD: Duration = Duration::from_secs(1);

/// The streams of a host that clients can watch: statistics and events. A `Watched` is cheap to
/// clone.
#[derive(Clone, Debug)]
pub struct Watched {
    sampler: Arc<Sampler>,
    hub: Hub,
    events: Arc<Events>,
}

/// The source of all events. Each event is written as JSON once, for all clients together.
#[derive(Debug)]
struct Events {
    told: broadcast::Sender<Arc<str>>,
    /// Whether the listener that passes the host's events on to the clients is registered at the
    /// host.
    telling: Mutex<bool>,
    /// The drop counts that clients have been told of.
    drops: AsyncMutex<Drops>,
}

impl Source for Hub {
    fn devices(&self) -> Vec<Device> {
        let views = self.host().lock().unwrap_or_else(PoisonError::into_inner).devices();
        let shares = |device: &Device| {
            let rows = self.board().of(&device.name);
            rows.iter().map(|(key, row)| Share::of(key, row)).collect()
        };
        let device = |view| {
            let device = Device::from(view);
            Device { shares: shares(&device), ..device }
        };
        views.iter().map(device).collect()
    }

    fn exec(&self, words: &[String]) -> Reply {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut host = self.host().lock().unwrap_or_else(PoisonError::into_inner);
        host.exec_alone(&words)
    }

    fn turn(&self) -> Pin<Box<dyn Future<Output = Turn> + Send>> {
        let turn = self.turn();
        Box::pin(async { Box::new(turn.await) as Turn })
    }
}

impl Watched {
    /// Makes the streams of the host that `hub` shares.
    #[must_use]
    pub fn new(hub: Hub) -> Self {
        let (told, telling) = (broadcast::Sender::new(KEPT), Mutex::new(false));
        Self {
            sampler: Sampler::new(Arc::new(hub.clone()), PERIOD),
            hub,
            events: Arc::new(Events { told, telling, drops: AsyncMutex::default() }),
        }
    }

    /// Returns the sampler that reads the devices.
    #[must_use]
    pub const fn sampler(&self) -> &Arc<Sampler> {
        &self.sampler
    }

    /// Lets a client watch the stream called `what` with these options, and returns the stream.
    ///
    /// # Errors
    ///
    /// A message for people that says which part of the request cannot be understood.
    pub(crate) async fn watch(
        &self,
        what: &str,
        options: Map<String, Value>,
    ) -> Result<Watch, String> {
        match what {
            "stats" => {
                let options: Looking = read(options)?;
                let least = Looking::LEAST_MS;
                if options.interval_ms < least {
                    return Err(format!("\"interval_ms\" has to be {least} or more"));
                }
                let mut ticks = interval(Duration::from_millis(options.interval_ms));
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                let query = options.query();
                let sampler = Arc::clone(&self.sampler);
                Ok(Watch::Stats { sampler, ticks, meter: Box::default(), query })
            }
            "events" => {
                let Nothing {} = read(options)?;
                Ok(Watch::Events(EventLines::new(self.listen().await?)))
            }
            _ => Err(format!("cannot watch {what:?}; expected stats or events")),
        }
    }

    async fn listen(&self) -> Result<broadcast::Receiver<Arc<str>>, String> {
        let receiver = self.events.told.subscribe();
        let first = {
            let mut telling = self.events.telling.lock().unwrap_or_else(PoisonError::into_inner);
            !std::mem::replace(&mut *telling, true)
        };
        if first {
            // The registration at the host runs as a task of its own, so that it continues even if
            // the first client leaves: other clients may have come in the meantime.
            let begun = tokio::spawn(self.clone().begin());
            begun.await.unwrap_or(Err(Died)).map_err(|died| died.to_string())?;
        }
        // The client is told of all drops from now on.
        let mut drops = self.events.drops.lock().await;
        if !drops.has_begun()
            && let Ok(snapshot) = self.sampler.snapshot().await
        {
            drops.since(&snapshot);
        }
        Ok(receiver)
    }

    /// Registers a listener for the events of the host. If that fails, the next client that watches
    /// tries again.
    async fn begin(self) -> Result<(), Died> {
        let events = Arc::downgrade(&self.events);
        let theirs = events.clone();
        let heard = self.hub.with(move |host| host.listen(move |event| tell(&theirs, event))).await;
        if heard.is_err() {
            *self.events.telling.lock().unwrap_or_else(PoisonError::into_inner) = false;
        } else {
            tokio::spawn(tell_drops(Arc::clone(&self.sampler), events));
        }
        heard
    }
}

fn read<'de, T: Deserialize<'de>>(options: Map<String, Value>) -> Result<T, String> {
    T::deserialize(Value::Object(options)).map_err(|error| error.to_string())
}

/// Options that a client may give when it watches statistics.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Looking {
    interval_ms: u64,
    device: Option<String>,
    filter: Option<String>,
    sort: crate::snapshot::Sort,
    limit: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl Default for Looking {
    fn default() -> Self {
        let (device, filter, limit) = (None, None, None);
        Self { interval_ms: 1000, device, filter, sort: crate::snapshot::Sort::Tree, limit }
    }
}

impl Looking {
    const LEAST_MS: u64 = 100;

    fn query(self) -> Query {
        let Self { device, filter, sort, limit, .. } = self;
        Query { device, filter, sort, limit, keep: None }
    }
}

/// The stream that one client watches.
#[derive(Debug)]
pub(crate) enum Watch {
    Stats { sampler: Arc<Sampler>, ticks: Interval, meter: Box<RateMeter>, query: Query },
    Events(EventLines),
}

impl Watch {
    /// Waits for the next lines to send. `None`: the stream has ended.
    pub(crate) async fn next(&mut self, id: Option<u64>) -> Option<Vec<u8>> {
        match self {
            Self::Stats { sampler, ticks, meter, query } => {
                ticks.tick().await;
                let snapshot = sampler.snapshot().await.ok()?;
                let (mut own, query) = (std::mem::take(meter), query.clone());
                let told = spawn_blocking(move || {
                    let mut stats = own.update(&snapshot);
                    stats.select(&query);
                    (serde_json::to_string(&stats), own)
                });
                let (stats, own) = told.await.ok()?;
                *meter = own;
                let mut line = Vec::new();
                push_line(&mut line, id, "stats", &stats.ok()?);
                Some(line)
            }
            Self::Events(events) => events.next(id).await,
        }
    }

    /// Returns the lines of the events that have happened and were not sent yet.
    pub(crate) fn rest(&mut self, id: Option<u64>) -> Vec<u8> {
        let mut lines = Vec::new();
        if let Self::Events(events) = self {
            events.happened(&mut lines, id, usize::MAX);
        }
        lines
    }
}

/// Appends a line of a stream to `lines`: the JSON text `what` under the name `key`.
fn push_line(lines: &mut Vec<u8>, id: Option<u64>, key: &str, what: &str) {
    let id = id.map_or_else(|| "null".to_owned(), |id| id.to_string());
    let version = wire::VERSION;
    // Writing to memory cannot fail.
    let _ = writeln!(lines, "{{\"v\":{version},\"id\":{id},\"{key}\":{what}}}");
}

/// Passes an event of the host on to all clients that watch events. Returns false if the streams no
/// longer exist, so that the host stops calling.
fn tell(events: &Weak<Events>, event: &Event) -> bool {
    let Some(events) = events.upgrade() else { return false };
    if events.told.receiver_count() > 0 {
        // An error means that the last client has left in the meantime.
        let _ = events.told.send(document(event).into());
    }
    true
}

/// Returns an event as JSON.
fn document(event: &Event) -> String {
    #[derive(Serialize)]
    struct Document<'a> {
        unix_us: u64,
        what: &'static str,
        device: &'a str,
        line: &'a str,
    }
    let since = event.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let unix_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    let Event { device, what, line, .. } = event;
    let document = serde_json::to_string(&Document { unix_us, what: what.name(), device, line });
    debug_assert!(document.is_ok(), "words and numbers are JSON");
    document.unwrap_or_default()
}

/// Reports dropped packets as events while any client watches events.
async fn tell_drops(sampler: Arc<Sampler>, events: Weak<Events>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(events) = events.upgrade() else { return };
        // A snapshot is taken with the lock, so that each is newer than the one before.
        let mut drops = events.drops.lock().await;
        if events.told.receiver_count() == 0 {
            *drops = Drops::default();
            continue;
        }
        // If taking the snapshot panicked, the panic is already logged, and the next snapshot may
        // succeed.
        let Ok(snapshot) = sampler.snapshot().await else { continue };
        for event in drops.since(&snapshot) {
            let _ = events.told.send(event.to_string().into());
        }
    }
}

#[cfg(test)]
mod tests;
