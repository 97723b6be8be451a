//! The daemon in a fleet: rates of its qdiscs and classes follow their shares of limits that many
//! hosts have in common.
//!
//! # Why no host sends more than its share
//!
//! The ledger counts on this: when a lease ends, and before the engine hears of a lower rate, the
//! qdisc or class has the lower rate. So setting a rate waits for nothing but the device itself:
//!
//! - Not for a command. A command, or a batch of them, may use the host for minutes, because each
//!   device that hangs costs it a second. [`Following`] sets rates without the host. The lock that
//!   it shares with commands about the device is never held while anything waits for a device.
//! - Not for another device. Each follower has a task, and a task that waits for its device leaves
//!   its thread to the other tasks ([`block_in_place`]). A device that hangs sends nothing, and
//!   when it goes on, it first takes its new rate. (Only if 1,024 changes and listings wait for it,
//!   it takes the rate at the next tick.)
//!
//! And a share goes to the device together with its end: if the task comes late, the device changes
//! to the floor by itself before its qdiscs release the next packet ([`Following::lend_share`]). If
//! the device gets its whole tree anew, the next tick gives it an end again.
//!
//! Which followers there are, the host says, and what they want, their counters say. No lease
//! depends on either, so both may come late: a new follower begins when the command is done, and
//! the others go on with the demands that they had. If a command changes the rate of a follower,
//! the next tick puts it right.

mod view;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, io};

use onramp_core::view::Counted;
use onramp_core::{Clock as _, Instant, Rate};
use onramp_fleet::{Meter, Refusal, TICK, Traffic};
use onramp_host::{Following, Part};
use onramp_redis::{BootClock, Engine, Limit, Member, Share, drive};
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet, block_in_place, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

pub use self::view::{LimitView, MemberView, read};
use crate::board::{Board, Key, ShareRow, Standing};
use crate::hub::Hub;

/// How long the daemon waits before it logs that nobody has set a limit, or that a limit has as
/// many followers as it may have: after a change of a limit, this may be so for a second.
const EARLY: Duration = Duration::from_secs(2);
/// What the log says of a follower that is one too many.
const FULL: &str = "the limit has as many followers as it may have, so it sends nothing; \
                    `onramp fleet limit set --hosts` allows more";
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

/// The thread that keeps the daemon in the fleet. It ends when this is dropped. Shares then run out
/// by themselves, and other rates stay as they are, so the devices must be closed before.
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
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("fleet-share").enable_all().build()?;
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = follow(options, hub) => {}
                    _ = ended => {}
                }
            });
            // A task may wait for the host, which a command may use for long.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("fleet".to_owned()).spawn(run)?;
        Ok(Self { _end: end, _thread: thread })
    }
}

/// Looks at each tick which qdiscs and classes follow limits and what they have counted. It runs on
/// the fleet's thread and may wait there; the followers' tasks run on others.
async fn follow(options: Options, hub: Hub) {
    info!("in a fleet as {:?}", options.name);
    let mut tasks = JoinSet::new();
    // Dropped before the tasks: those without a follower set no rate any more.
    let mut followers: BTreeMap<Key, Follower> = BTreeMap::new();
    let (mut devices, mut listing) = (Vec::new(), None);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // While a command uses the host, the devices are those of the last tick.
        let host = Arc::clone(hub.host());
        let list = move || host.lock().unwrap_or_else(PoisonError::into_inner).following();
        let list = listing.get_or_insert_with(|| spawn_blocking(list));
        if let Ok(listed) = timeout(TICK / 2, list).await {
            listing = None;
            devices = listed.unwrap_or(devices);
        }
        // A command may have set a rate or a burst since the share was last set.
        for (key, follower) in &followers {
            follower.keep(hub.board(), key);
        }
        let mut shares = BTreeMap::new();
        for device in &devices {
            for share in device.shares() {
                let key = (share.device.clone(), share.place, share.limit.clone());
                shares.insert(key, (device, share, BootClock.now()));
            }
        }
        followers.retain(|key, follower| {
            // A task that has ended (by a panic or without a timer, as the log says) is started
            // again.
            let share = shares.get(key).map(|(_, share, _)| share);
            let stays = share.is_some_and(|share| share.weight == follower.weight)
                && !follower.task.is_finished();
            if !stays {
                follower.end();
                hub.board().remove(key);
            }
            stays
        });
        for (key, (device, share, now)) in shares {
            let follower = followers.entry(key.clone()).or_insert_with(|| {
                Follower::start(&options, hub.board(), &key, device, share.weight, &mut tasks)
            });
            // A device may have been deleted, and another one have its name.
            *lock(&follower.seat) = Some(device.clone());
            if let Some(counted) = share.counted {
                let rate = share.share.as_bytes_per_second();
                hub.board().note(&key, follower.count(now, counted, rate));
            }
            if let Some(row) = hub.board().get(&key) {
                if row.burst.is_some() && !share.has_burst && !follower.is_told {
                    let (device, place, limit) = &key;
                    warn!(
                        "fleet: {device} {place} in {limit}: the limit has a burst, but the qdisc \
                         has no option for it, so it sends no more than its rate in any interval"
                    );
                    follower.is_told = true;
                }
                if let Some(what) = follower.lasting.news(now, &row) {
                    let (device, place, limit) = &key;
                    warn!("fleet: {device} {place} in {limit}: {what}");
                }
            }
        }
        while tasks.try_join_next().is_some() {}
    }
}

/// One qdisc or class in one limit.
struct Follower {
    weight: u32,
    lasting: Lasting,
    /// Whether the log has said that the qdisc has no burst.
    is_told: bool,
    meter: Meter,
    seat: Seat,
    /// The task ends when nobody holds this any more.
    traffic: watch::Sender<Traffic>,
    task: AbortHandle,
}

/// How long the standing has been the same, of which the log tells only if it lasts.
struct Lasting {
    standing: Standing,
    since: Instant,
    is_told: bool,
}

impl Lasting {
    const fn new(now: Instant) -> Self {
        Self { standing: Standing::Unknown, since: now, is_told: false }
    }

    /// Returns what the log has to say of a standing that has lasted, the first time.
    fn news(&mut self, now: Instant, row: &ShareRow) -> Option<String> {
        if self.standing != row.standing {
            let was_full = self.is_told && self.standing == Standing::Full;
            *self = Self { standing: row.standing, since: now, is_told: false };
            if was_full && row.standing == Standing::Granted {
                return Some("it has its share again".to_owned());
            }
        }
        let what = match row.standing {
            Standing::Full => FULL.to_owned(),
            // Without an answer, the limit may be there.
            Standing::Unknown if row.answered.is_some() => no_limit(row.floor),
            _ => return None,
        };
        let is_news = !self.is_told && now >= self.since + EARLY;
        self.is_told |= is_news;
        is_news.then_some(what)
    }
}

/// The device on which a follower's task sets the rate; `None`: nobody wants the task any more. The
/// thread that sets the rate holds the lock meanwhile, so that an older share never replaces a
/// newer one.
type Seat = Arc<Mutex<Option<Following>>>;

fn lock(seat: &Seat) -> MutexGuard<'_, Option<Following>> {
    seat.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Follower {
    fn start(
        options: &Options,
        board: &Board,
        key: &Key,
        on: &Following,
        weight: u32,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let (device, place, limit) = key.clone();
        let host = format!("{}/{device}/{place}", options.name);
        let member = Member { limit, host, weight, floor: options.floor };
        let (traffic, seen) = watch::channel(Traffic::default());
        let seat = Arc::new(Mutex::new(Some(on.clone())));
        let setter = Setter {
            board: board.clone(),
            key: key.clone(),
            weight,
            seat: Arc::clone(&seat),
            seen: seen.clone(),
            last: None,
            told: None,
        };
        let task = tasks.spawn(member_task(options.engine.clone(), member, seen, setter));
        let lasting = Lasting::new(BootClock.now());
        Self { weight, lasting, is_told: false, meter: Meter::new(), seat, traffic, task }
    }

    /// After this, the task sets no rate any more.
    fn end(&self) {
        *lock(&self.seat) = None;
    }

    /// Sets the present share again, if the qdisc or class does not have it.
    fn keep(&self, board: &Board, key: &Key) {
        let device = lock(&self.seat);
        if let (Some(device), Some(row)) = (&*device, board.get(key)) {
            let after = part(row.floor, row.burst_after);
            // Read first: whatever passes until the next line makes the end an earlier one.
            let at = device.now();
            match row.ends.map(|end| end.since(BootClock.now())) {
                None => set_rate(device, key, part(row.share, row.burst), None),
                Some(0) => set_rate(device, key, after, None),
                Some(lasts) => {
                    let ends = Some((at.after(lasts), after));
                    set_rate(device, key, part(row.share, row.burst), ends);
                }
            }
        }
    }

    fn count(&mut self, now: Instant, counted: Counted, share: u64) -> Traffic {
        let traffic = self.meter.read(now, counted, share);
        // Nobody listens if the task has ended, which it has logged.
        let _ = self.traffic.send(traffic);
        traffic
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.end();
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
    board: Board,
    key: Key,
    weight: u32,
    seat: Seat,
    seen: watch::Receiver<Traffic>,
    /// What was last set, if it was not for a time.
    last: Option<Part>,
    /// What the log has last said about the share.
    told: Option<Standing>,
}

impl Setter {
    fn set(&mut self, share: &Share) {
        let seat = Arc::clone(&self.seat);
        // The fleet's thread may hold the lock while it waits for the device.
        let free = seat.try_lock().ok();
        let seat = free.unwrap_or_else(|| block_in_place(|| lock(&seat)));
        // If nobody wants this task any more, another one may set the rate.
        let Some(device) = &*seat else { return };
        // Read first: whatever passes until the next line makes the end an earlier one.
        let at = device.now();
        let now = BootClock.now();
        let rate = share.rate_at(now);
        let burst = share.burst_at(now);
        let part = part(rate, burst);
        let ends = share.ends_after(now);
        let ends = ends.map(|(lasts, rate, burst)| (at + lasts, self::part(rate, burst)));
        let (_, place, limit) = &self.key;
        let has_it = match ends {
            // What is there already is looked at once a tick.
            None => self.last == Some(part),
            Some((end, after)) => device.renew_share(*place, limit, part, end, after),
        };
        if !has_it {
            block_in_place(|| set_rate(device, &self.key, part, ends));
        }
        self.last = ends.is_none().then_some(part);
        let standing = standing(share, now);
        let Traffic { used, demand } = *self.seen.borrow();
        let row = ShareRow {
            weight: self.weight,
            used,
            demand,
            share: rate,
            burst,
            floor: share.floor,
            ends: ends.is_some().then_some(share.until),
            burst_after: share.bursts.of(share.floor),
            answered: share.answered,
            standing,
        };
        self.board.set(&self.key, row);
        drop(seat);
        self.tell(standing, share);
    }

    /// Logs a change of the standing, unless the log waits whether it is [`Lasting`].
    fn tell(&mut self, standing: Standing, share: &Share) {
        let is_early = share.error.is_none() && waits(standing, share);
        if self.told == Some(standing) || is_early || standing == Standing::Full {
            return;
        }
        let before = self.told.replace(standing);
        let why = share.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let floor = share.floor;
        match standing {
            Standing::Granted if before.is_some() => {
                info!("fleet: {self}: it has its share again");
            }
            Standing::Granted | Standing::Full => {}
            Standing::Alone => warn!(
                "fleet: {self}: no engine, so it sends at its guaranteed {floor} bytes/s{why}"
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

/// Returns a rate, in bytes per second, and a burst, in bytes; `None`: the one that the options of
/// the qdisc or class say. No rate is zero: without a limit, as good as nothing passes.
fn part(rate: u64, burst: Option<u64>) -> Part {
    Part { rate: Rate::bytes_per_second(rate.max(1)), burst }
}

/// Sets the rate and the burst of a qdisc or class, and if it has them only for a time, those
/// afterwards.
fn set_rate(
    on: &Following,
    (device, place, limit): &Key,
    part: Part,
    ends: Option<(Instant, Part)>,
) {
    let done = match ends {
        None => on.set_share(*place, limit, part.rate, part.burst),
        Some((end, after)) => on.lend_share(*place, limit, part, end, after),
    };
    if let Err(error) = done {
        let rate = part.rate.as_bytes_per_second();
        warn!("fleet: {device} {place} in {limit}: its rate cannot be {rate} bytes/s: {error}");
    }
}

fn no_limit(floor: u64) -> String {
    format!(
        "there is no such limit, or nothing may follow it (--hosts 0), so it sends at {floor} \
         bytes/s; `onramp fleet limit set` sets limits"
    )
}

/// Whether a share without an error is no news: the first answer is on its way.
fn waits(standing: Standing, share: &Share) -> bool {
    match standing {
        Standing::Alone => share.answered.is_none(),
        Standing::Unknown => share.limit == Limit::Unknown,
        Standing::Granted | Standing::Full => false,
    }
}

/// Returns how a share came about.
fn standing(share: &Share, now: Instant) -> Standing {
    match share.refused {
        _ if share.limit != Limit::Set => Standing::Unknown,
        _ if now < share.until => Standing::Granted,
        Some(Refusal::Full) => Standing::Full,
        _ => Standing::Alone,
    }
}

#[cfg(test)]
mod tests {
    use onramp_redis::EngineError;

    use super::*;

    fn row(standing: Standing, answered: bool) -> ShareRow {
        let answered = answered.then_some(Instant(0));
        ShareRow {
            weight: 1,
            used: 0,
            demand: 0,
            share: 0,
            burst: None,
            ends: None,
            floor: 7,
            burst_after: None,
            answered,
            standing,
        }
    }

    /// Nobody can say that there is no such limit before the engine has answered, and a limit is
    /// full for a moment after its number of hosts has changed.
    #[test]
    fn what_does_not_last_is_no_news() {
        let mut lasting = Lasting::new(Instant(0));
        let mut at = |second: u64, standing, answered| {
            let told = lasting.news(Instant(second * 1_000_000_000), &row(standing, answered));
            told.unwrap_or_default()
        };
        assert_eq!(at(9, Standing::Unknown, false), "");
        assert!(at(9, Standing::Unknown, true).contains("there is no such limit"));
        assert_eq!(at(20, Standing::Unknown, true), "", "told once");
        assert_eq!(at(21, Standing::Full, true), "");
        assert_eq!(at(22, Standing::Granted, true), "");
        assert_eq!(at(30, Standing::Full, true), "");
        assert!(at(33, Standing::Full, true).contains("as many followers as it may have"));
        assert_eq!(at(34, Standing::Granted, true), "it has its share again");
    }

    /// "No engine" is said only of an engine that has answered before, or that gave an error.
    #[test]
    fn the_first_answer_is_waited_for() {
        let set = Share { limit: Limit::Set, ..Share::default() };
        assert!(waits(standing(&set, Instant(9)), &set));
        let answered = Share { answered: Some(Instant(1)), ..set.clone() };
        assert!(!waits(standing(&answered, Instant(9)), &answered));
        let refused = Share { refused: Some(Refusal::Full), until: Instant(5), ..answered };
        assert_eq!(standing(&refused, Instant(4)), Standing::Granted, "its lease still runs");
        assert_eq!(standing(&refused, Instant(5)), Standing::Full);
        let error = Some(EngineError::Busy);
        let unknown = Share { error, ..Share::default() };
        assert_eq!(standing(&unknown, Instant(9)), Standing::Unknown);
        let gone = Share { limit: Limit::Gone, ..Share::default() };
        assert!(!waits(standing(&gone, Instant(9)), &gone));
    }
}
