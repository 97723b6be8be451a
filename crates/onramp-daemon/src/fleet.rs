//! The daemon in a fleet: rates of its qdiscs and classes follow their shares of limits that many
//! hosts have in common.
//!
//! A thread of its own reports to the engine and sets the rates, because it must not tell the
//! engine of a lower rate before the rate is set, and setting a rate may wait for the host.

mod view;

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, io};

use onramp_core::view::Counted;
use onramp_core::{Clock as _, Instant, Rate};
use onramp_fleet::{Meter, Refusal, TICK, Traffic};
use onramp_redis::{BootClock, Engine, Limit, Member, Share, drive};
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

pub use self::view::{LimitView, MemberView, read};
use crate::board::{Key, ShareRow, Standing};
use crate::hub::Hub;

/// How long the daemon waits before it logs that nobody has set a limit.
const EARLY: Duration = Duration::from_secs(2);
/// How long a task that failed waits before it is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// How the daemon belongs to a fleet.
#[derive(Clone, Debug)]
pub struct Options {
    /// The engine.
    pub engine: Engine,
    /// The name by which the fleet knows this host. No two hosts have the same name.
    pub name: String,
    /// The rate of qdiscs and classes that follow a limit of which the daemon has never heard,
    /// because the engine has not answered yet, in bytes per second.
    pub floor: u64,
}

/// The thread that keeps the daemon in the fleet. It ends when this is dropped. The rates then stay
/// as they are, so the devices must be closed before.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// Dropped to end the thread.
    _end: oneshot::Sender<()>,
    _thread: JoinHandle<()>,
}

impl Fleet {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// An error of the system if it has no thread to give.
    pub(crate) fn start(options: Options, hub: Hub) -> io::Result<Self> {
        let (end, ended) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = follow(options, hub) => {}
                    _ = ended => {}
                }
            });
        };
        let thread = thread::Builder::new().name("fleet".to_owned()).spawn(run)?;
        Ok(Self { _end: end, _thread: thread })
    }
}

/// Looks at each tick which qdiscs and classes follow limits and what they have counted.
async fn follow(options: Options, hub: Hub) {
    info!("in a fleet as {:?}", options.name);
    let mut followers: BTreeMap<Key, Follower> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let shares = hub.host().lock().unwrap_or_else(PoisonError::into_inner).shares();
        let now = BootClock.now();
        let mut before = std::mem::take(&mut followers);
        for share in shares {
            let key = (share.device, share.place, share.limit);
            // A task that has ended (by a panic or without a timer, as the log says) is started
            // again.
            let same = before
                .remove(&key)
                .filter(|follower| follower.weight == share.weight && !follower.task.is_finished());
            let mut follower = same
                .unwrap_or_else(|| Follower::start(&options, &hub, &key, share.weight, &mut tasks));
            let rate = share.share.as_bytes_per_second();
            if let Some(counted) = share.counted {
                hub.board().note(&key, follower.count(now, counted, rate));
            }
            if let Some(row) = hub.board().get(&key) {
                // A command has set the rate or the burst back since the share was last set.
                if row.share.max(1) != rate || row.burst != share.burst {
                    set_rate(&hub, &key, row.share, row.burst);
                }
                if row.burst.is_some() && !share.has_burst && !follower.is_told {
                    let (device, place, limit) = &key;
                    warn!(
                        "fleet: {device} {place} in {limit}: the limit has a burst, but the qdisc \
                         has no option for it, so it sends no more than its rate in any interval"
                    );
                    follower.is_told = true;
                }
                if row.standing == Standing::Unknown && now >= follower.early {
                    let (device, place, limit) = &key;
                    warn!("fleet: {device} {place} in {limit}: {}", no_limit(row.floor));
                    follower.early = Instant::MAX;
                }
            }
            followers.insert(key, follower);
        }
        // What is left has no rate that follows a limit any more; dropping it ends its task.
        before.into_keys().for_each(|key| hub.board().remove(&key));
        while tasks.try_join_next().is_some() {}
    }
}

/// One qdisc or class in one limit.
struct Follower {
    weight: u32,
    /// Until when it is no news that nobody has set the limit.
    early: Instant,
    /// Whether the log has said that the qdisc has no burst.
    is_told: bool,
    meter: Meter,
    /// The task ends when nobody holds this any more.
    traffic: watch::Sender<Traffic>,
    task: AbortHandle,
}

impl Follower {
    fn start(
        options: &Options,
        hub: &Hub,
        key: &Key,
        weight: u32,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        // What a task before this one has left is no share of this one.
        hub.board().remove(key);
        let (device, place, limit) = key.clone();
        let host = format!("{}/{device}/{place}", options.name);
        let member = Member { limit, host, weight, floor: options.floor };
        let (traffic, seen) = watch::channel(Traffic::default());
        let setter =
            Setter { hub: hub.clone(), key: key.clone(), weight, seen: seen.clone(), told: None };
        let task = tasks.spawn(member_task(options.engine.clone(), member, seen, setter));
        let early = BootClock.now() + EARLY;
        Self { weight, early, is_told: false, meter: Meter::new(), traffic, task }
    }

    fn count(&mut self, now: Instant, counted: Counted, share: u64) -> Traffic {
        let traffic = self.meter.read(now, counted, share);
        // Nobody listens if the task has ended, which it has logged.
        let _ = self.traffic.send(traffic);
        traffic
    }
}

async fn member_task(
    engine: Engine,
    member: Member,
    seen: watch::Receiver<Traffic>,
    mut setter: Setter,
) {
    // However the task ends, its lease is not renewed any more.
    let _end = Silence(setter.clone());
    let name = setter.to_string();
    if let Err(error) = drive(engine, member, seen, |share| setter.set(share)).await {
        setter.set(&Share::default());
        warn!("fleet: {name}: {error}; it sends nothing and tries again");
        sleep(PAUSE).await;
    }
}

/// When dropped, sets the rate of a qdisc or class to nothing, unless nobody wants its task any
/// more.
struct Silence(Setter);

impl Drop for Silence {
    fn drop(&mut self) {
        self.0.set(&Share::default());
    }
}

/// Sets the rate of a qdisc or class.
#[derive(Clone)]
struct Setter {
    hub: Hub,
    key: Key,
    weight: u32,
    seen: watch::Receiver<Traffic>,
    /// What the log has last said about the share.
    told: Option<Standing>,
}

impl Setter {
    fn set(&mut self, share: &Share) {
        // Nobody wants this task any more, and another one may set the rate.
        if self.seen.has_changed().is_err() {
            return;
        }
        let now = BootClock.now();
        let rate = share.rate_at(now);
        let burst = share.burst_at(now);
        set_rate(&self.hub, &self.key, rate, burst);
        let standing = standing(share, now);
        let Traffic { used, demand } = *self.seen.borrow();
        let row = ShareRow {
            weight: self.weight,
            used,
            demand,
            share: rate,
            burst,
            floor: share.floor,
            answered: share.answered,
            standing,
        };
        self.hub.board().set(&self.key, row);
        self.tell(standing, share);
    }

    /// Logs a change of the standing.
    fn tell(&mut self, standing: Standing, share: &Share) {
        // A task that has just begun has no answer yet, and a new ledger grants nothing for about a
        // second, which is no news.
        let is_early = self.told.is_none() && share.error.is_none();
        let waits = standing == Standing::Alone || share.limit == Limit::Unknown;
        if self.told == Some(standing) || waits && is_early {
            return;
        }
        let before = self.told.replace(standing);
        let why = share.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let floor = share.floor;
        match standing {
            Standing::Granted if before.is_none() => {}
            Standing::Granted => info!("fleet: {self}: it has its share again"),
            Standing::Alone => warn!(
                "fleet: {self}: no engine, so it sends at its guaranteed {floor} bytes/s{why}"
            ),
            Standing::Full => warn!(
                "fleet: {self}: the limit has as many followers as it may have, so it sends at \
                 {floor} bytes/s; `onramp fleet limit set --hosts` allows more"
            ),
            Standing::Unknown if share.error.is_some() => warn!(
                "fleet: {self}: the limit is not known yet, so it sends at {floor} bytes/s{why}"
            ),
            Standing::Unknown => warn!("fleet: {self}: {}", no_limit(floor)),
        }
    }
}

impl fmt::Display for Setter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, place, limit) = &self.key;
        write!(f, "{device} {place} in {limit}")
    }
}

/// Sets the rate of a qdisc or class, in bytes per second, and its burst, in bytes; `None`: the one
/// that its own options say.
fn set_rate(hub: &Hub, (device, place, limit): &Key, rate: u64, burst: Option<u64>) {
    let mut host = hub.host().lock().unwrap_or_else(PoisonError::into_inner);
    // No rate is zero: without a limit, as good as nothing passes.
    let rate_set = Rate::bytes_per_second(rate.max(1));
    let done = host.set_share(device, *place, limit, rate_set, burst);
    if let Err(error) = done {
        warn!("fleet: {device} {place} in {limit}: its rate cannot be {rate} bytes/s: {error}");
    }
}

fn no_limit(floor: u64) -> String {
    format!(
        "there is no such limit, or nothing may follow it (--hosts 0), so it sends at {floor} \
         bytes/s; `onramp fleet limit set` sets limits"
    )
}

/// Returns how a share came about.
fn standing(share: &Share, now: Instant) -> Standing {
    match share.refused {
        _ if share.limit != Limit::Set => Standing::Unknown,
        Some(Refusal::Full) => Standing::Full,
        _ if now < share.until => Standing::Granted,
        _ => Standing::Alone,
    }
}
