//! The runner ("softirq"): the thread that looks after packets nobody else is about to send.
//!
//! It sleeps until the earliest time that any port asked for, visits the ports that are due, and
//! goes on at once, a bounded number of times, while a visit ends at its quota. A port owner that
//! asks for a visit wakes it only when that is earlier than what it sleeps to.
//!
//! Source: Linux `kernel/softirq.c` (restart in place a bounded number of times; wake only when
//! needed).

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use onramp_core::{Clock, Instant, Keeper, Port, TICK_NS};
use onramp_queue::Counter;

/// Visits in a row that end at their quota before the runner gives way to other threads.
const RESTARTS: u32 = 10;

/// A port, and when it wants to be visited.
pub(crate) struct Slot<D> {
    pub(crate) port: Port<D>,
    /// Nanoseconds; `u64::MAX`: not at all.
    due: AtomicU64,
}

impl<D> Slot<D> {
    pub(crate) fn new(port: Port<D>) -> Self {
        Self { port, due: AtomicU64::new(u64::MAX) }
    }

    /// Notes that the port wants a visit at `at`; false: an earlier one is noted already.
    fn note(&self, at: Instant) -> bool {
        // Relaxed: only the port's owner lowers it, and the runner raises it before it tries to
        // own the port. If the runner comes too early for us, it finds the port owned and comes
        // again after a tick.
        if self.due.load(Ordering::Relaxed) <= at.0 {
            return false;
        }
        // Release: ordered before the `fetch_min` on `wake_at` that follows.
        self.due.fetch_min(at.0, Ordering::Release);
        true
    }
}

/// What the runner and those who wake it share.
#[derive(Debug)]
pub(crate) struct Runner {
    /// When the runner wakes by itself, nanoseconds.
    wake_at: AtomicU64,
    thread: OnceLock<Thread>,
    stop: AtomicBool,
    pub(crate) stats: RunnerStats,
}

/// What the runner counts. Written by it alone.
#[derive(Debug, Default)]
pub(crate) struct RunnerStats {
    pub(crate) wakeups: Counter,
    pub(crate) visits: Counter,
    pub(crate) restarts: Counter,
}

impl Runner {
    pub(crate) fn new() -> Self {
        Self {
            wake_at: AtomicU64::new(u64::MAX),
            thread: OnceLock::new(),
            stop: AtomicBool::new(false),
            stats: RunnerStats::default(),
        }
    }

    /// Starts the thread. `slots` and `clock` are what it serves.
    pub(crate) fn start<S, D, C>(shared: S, clock: C) -> std::io::Result<JoinHandle<()>>
    where
        S: Serves<D> + Send + Sync + Clone + 'static,
        D: onramp_core::Device + 'static,
        C: Clock + Send + 'static,
    {
        let theirs = shared.clone();
        let handle = thread::Builder::new()
            .name("onramp-runner".into())
            .spawn(move || run(&theirs, &clock))?;
        // The port owners that come before this find no thread to wake; hence the wake-up here.
        let _ = shared.runner().thread.set(handle.thread().clone());
        handle.thread().unpark();
        Ok(handle)
    }

    /// Ends the thread after its present round.
    pub(crate) fn stop(&self) {
        // Release: pairs with the acquire in `run`.
        self.stop.store(true, Ordering::Release);
        // AcqRel: as in `wake_by`; no sleep, even if somebody took the wake-up.
        self.wake_at.fetch_min(0, Ordering::AcqRel);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Makes the runner wake at `at` or before.
    fn wake_by(&self, at: Instant) {
        // AcqRel: publishes the slot's `due`; pairs with the swap in `run`. Whoever lowers it
        // wakes the runner, which otherwise sleeps to the old time.
        if at.0 < self.wake_at.fetch_min(at.0, Ordering::AcqRel) {
            self.wake();
        }
    }
}

/// What the runner needs of a link.
pub(crate) trait Serves<D> {
    fn runner(&self) -> &Runner;
    fn slots(&self) -> &[Slot<D>];
}

/// Asks the runner for visits to one port.
pub(crate) struct Keep<'a, D> {
    pub(crate) runner: &'a Runner,
    pub(crate) slot: &'a Slot<D>,
}

impl<D> Keeper for Keep<'_, D> {
    fn keep(&self, at: Instant) {
        if self.slot.note(at) {
            self.runner.wake_by(at);
        }
    }
}

/// The runner's own notes: it is awake.
struct Note<'a, D>(&'a Slot<D>);

impl<D> Keeper for Note<'_, D> {
    fn keep(&self, at: Instant) {
        self.0.note(at);
    }
}

fn run<S: Serves<D>, D: onramp_core::Device>(shared: &S, clock: &impl Clock) {
    onramp_dev::exact_timers();
    let runner = shared.runner();
    let mut restarts = 0;
    // Acquire: pairs with the release in `stop`.
    while !runner.stop.load(Ordering::Acquire) {
        // AcqRel: from here on whoever asks for a visit wakes us; pairs with `wake_by`.
        runner.wake_at.swap(u64::MAX, Ordering::AcqRel);
        // Acquire: as above; the swap may have taken what `stop` wrote.
        if runner.stop.load(Ordering::Acquire) {
            return;
        }
        let next = round(shared, clock);
        if next == 0 && restarts < RESTARTS {
            restarts += 1;
            runner.stats.restarts.add(1);
            continue;
        }
        restarts = 0;
        sleep(runner, next, clock);
        runner.stats.wakeups.add(1);
    }
}

/// Visits all ports that are due. Gives the next time, 0 for "at once".
fn round<S: Serves<D>, D: onramp_core::Device>(shared: &S, clock: &impl Clock) -> u64 {
    let mut next = u64::MAX;
    for slot in shared.slots() {
        let now = clock.now();
        // Acquire: pairs with the release in `note`.
        if slot.due.load(Ordering::Acquire) <= now.0 {
            // Before the visit, so that what the owners ask for from here on is kept.
            slot.due.swap(u64::MAX, Ordering::AcqRel); // AcqRel: as above.
            shared.runner().stats.visits.add(1);
            match slot.port.visit(now, &Note(slot)) {
                Some(ran) if ran.again => {
                    slot.note(now);
                }
                Some(_) => {}
                None => {
                    slot.note(now.after(TICK_NS));
                }
            }
        }
        // Relaxed: who lowers it after this wakes us.
        let due = slot.due.load(Ordering::Relaxed);
        next = next.min(if due <= now.0 { 0 } else { due });
    }
    next
}

/// Sleeps until `next`, or until somebody wants us earlier.
fn sleep(runner: &Runner, next: u64, clock: &impl Clock) {
    // AcqRel: as the swap in `run`.
    let wake_at = runner.wake_at.fetch_min(next, Ordering::AcqRel).min(next);
    let now = clock.now().0;
    if wake_at == u64::MAX {
        thread::park();
    } else if wake_at > now {
        thread::park_timeout(Duration::from_nanos(wake_at - now));
    } else {
        thread::yield_now();
    }
}

impl<D> fmt::Debug for Slot<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("port", &self.port).finish_non_exhaustive()
    }
}
