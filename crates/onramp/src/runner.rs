//! The runners ("softirq"): threads that look after packets nobody else is about to send.
//!
//! A runner sleeps until the earliest time that any of its ports asked for, visits the ports that
//! are due, and goes on at once, a bounded number of times and for a bounded time, while a visit
//! ends at its quota. A port that asks for a visit wakes it only when that is earlier than what it
//! sleeps to. With several runners each port has one that is its home; another comes by when that
//! one is late, because it lost its processor or a device blocks it.
//!
//! Source: Linux `kernel/softirq.c` (restart in place a bounded number of times, for at most 2 ms;
//! wake only when needed).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use onramp_core::{Clock, Device, Instant, Keeper, Port, TICK_NS};
use onramp_queue::{Alarm, Counter, Due, Marks, NEVER};

use crate::slots::Slots;

/// Rounds in a row with a visit that ends at its quota before a runner gives way to other threads.
const RESTARTS: u32 = 10;
/// How long it goes on like that at most, nanoseconds.
const RESTART_NS: u64 = 2_000_000;
/// When a port was due so long ago, any runner takes it, nanoseconds.
const LATE_NS: u64 = 1_000_000;

/// A port, and when it wants to be visited.
pub(crate) struct Slot<D> {
    pub(crate) port: Port<D>,
    /// Largest packet of its device, bytes.
    pub(crate) mtu: u32,
    /// The runner it belongs to.
    home: usize,
    due: Due,
    /// Tells the runners that something is noted there.
    pub(crate) mark: Option<(Arc<Marks>, usize)>,
    /// Times it asked for a visit, and times that took a wake-up.
    asked: AtomicU64,
    woke: AtomicU64,
    state: AtomicU8,
    /// Its tree is not what the link says it is: it could not be told. Who has the plan writes it.
    stale: AtomicBool,
    heirs: OnceLock<Heirs>,
}

/// The ports that took over the flows of one that is gone.
struct Heirs {
    ports: Box<[usize]>,
    /// How long they wait for packets that were on their way into that one.
    patience: Instant,
}

impl<D> Slot<D> {
    const OPEN: u8 = 0;
    const LEAVING: u8 = 1;
    const GONE: u8 = 2;

    pub(crate) fn new(port: Port<D>, mtu: u32, home: usize) -> Self {
        Self {
            port,
            mtu,
            home,
            due: Due::default(),
            mark: None,
            asked: AtomicU64::new(0),
            woke: AtomicU64::new(0),
            state: AtomicU8::new(Self::OPEN),
            stale: AtomicBool::new(false),
            heirs: OnceLock::new(),
        }
    }

    /// Whether it has missed a change of its tree.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed) // Relaxed: the lock on the plan guards it.
    }

    pub(crate) fn set_stale(&self, stale: bool) {
        self.stale.store(stale, Ordering::Relaxed); // Relaxed: as above.
    }

    /// It takes packets, and new flows.
    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) == Self::OPEN // Relaxed: as in `Gate::is_open`.
    }

    /// It takes no packets, and still has some.
    pub(crate) fn is_leaving(&self) -> bool {
        self.state.load(Ordering::Relaxed) == Self::LEAVING // Relaxed: as in `Gate::is_open`.
    }

    /// The next round looks at it.
    fn mark(&self) {
        if let Some((marks, port)) = &self.mark {
            marks.set(*port);
        }
    }

    /// The look has come.
    fn unmark(&self) {
        if let Some((marks, port)) = &self.mark {
            marks.clear(*port);
        }
    }

    /// Its flows are those of its heirs.
    pub(crate) fn is_gone(&self) -> bool {
        self.heirs.get().is_some()
    }

    pub(crate) fn leave(&self) {
        self.state.store(Self::LEAVING, Ordering::Relaxed); // Relaxed: as in `Gate::is_open`.
    }

    /// Its flows are those of the `ports` from now on, which wait until `patience` for packets that
    /// were on their way into it.
    pub(crate) fn go(&self, ports: Box<[usize]>, patience: Instant) {
        let _ = self.heirs.set(Heirs { ports, patience }); // It goes once.
        self.state.store(Self::GONE, Ordering::Relaxed); // Relaxed: `heirs` is what counts.
    }

    /// Who has the flow `key` now; `None`: this one.
    pub(crate) fn heir(&self, key: u64) -> Option<usize> {
        let ports = &self.heirs.get()?.ports;
        // Mixed: the flows of one port have keys that are alike.
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let index = (mixed as usize) % ports.len();
        Some(ports[index])
    }

    /// Until when its heirs wait for what came late; `None`: it has none.
    pub(crate) fn patience(&self) -> Option<Instant> {
        self.heirs.get().map(|heirs| heirs.patience)
    }

    /// Times it asked for a visit, and times that took a wake-up.
    pub(crate) fn calls(&self) -> (u64, u64) {
        // Relaxed: numbers for people.
        (self.asked.load(Ordering::Relaxed), self.woke.load(Ordering::Relaxed))
    }
}

/// What a sender looks at before each packet: whether there may be a reason to refuse it.
#[derive(Debug, Default)]
pub(crate) struct Gate(AtomicU8);

impl Gate {
    const CHANGE: u8 = 1;
    const CLOSED: u8 = 2;
    const ONE: u8 = 4;

    /// A port has died, or goes.
    pub(crate) fn note_change(&self) {
        self.0.fetch_or(Self::CHANGE, Ordering::Relaxed); // Relaxed: see `is_open`.
    }

    /// The link closes.
    pub(crate) fn close(&self) {
        self.0.fetch_or(Self::CLOSED, Ordering::Relaxed); // Relaxed: see `is_open`.
    }

    /// From now on the first port serves all flows, or no longer.
    pub(crate) fn set_one(&self, one: bool) {
        // Relaxed: see `is_open`.
        if one {
            self.0.fetch_or(Self::ONE, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!Self::ONE, Ordering::Relaxed);
        }
    }

    /// The first port serves all flows.
    pub(crate) fn is_one(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::ONE != 0 // Relaxed: see `is_open`.
    }

    /// Every port lives and stays, and serves its own flows, and the link is not closed.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: what a send that comes too late brings, the port itself drops.
        self.0.load(Ordering::Relaxed) == 0
    }

    /// A port has died, or went or goes, or the link closes.
    pub(crate) fn has_changed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & !Self::ONE != 0 // Relaxed: see `is_open`.
    }

    /// The link closes, or is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::CLOSED != 0 // Relaxed: as above.
    }
}

/// What a runner and those who wake it share.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Runner {
    alarm: Alarm,
    thread: OnceLock<Thread>,
    stop: AtomicBool,
    pub(crate) stats: RunnerStats,
}

/// What a runner counts. Written by it alone.
#[derive(Debug, Default)]
pub(crate) struct RunnerStats {
    pub(crate) wakeups: Counter,
    /// Of these, those that found nothing to do.
    pub(crate) idle: Counter,
    pub(crate) visits: Counter,
    pub(crate) restarts: Counter,
}

/// Why a runner could not be started.
#[derive(Debug)]
pub(crate) enum StartError {
    Spawn(std::io::Error),
    Pin(usize, std::io::Error),
}

impl Runner {
    /// Starts the thread of the runner `me` of `shared`, on the processor `cpu` if one is given.
    pub(crate) fn start<S, D, C>(
        shared: S,
        me: usize,
        cpu: Option<usize>,
        clock: C,
    ) -> Result<JoinHandle<()>, StartError>
    where
        S: Serves<D> + Send + Sync + Clone + 'static,
        D: Device + 'static,
        C: Clock + Send + 'static,
    {
        let theirs = shared.clone();
        let (pinned, is_pinned) = mpsc::sync_channel(1);
        let handle = thread::Builder::new()
            .name(format!("onramp-run-{me}"))
            .spawn(move || {
                let pin = cpu.map_or(Ok(()), onramp_dev::pin_thread);
                let failed = pin.is_err();
                let _ = pinned.send(pin); // The one who starts us waits for it.
                if !failed {
                    run(&theirs, me, &clock);
                }
            })
            .map_err(StartError::Spawn)?;
        if let (Ok(Err(error)), Some(cpu)) = (is_pinned.recv(), cpu) {
            return Err(StartError::Pin(cpu, error));
        }
        // The port owners that come before this find no thread to wake; hence the wake-up here.
        let _ = shared.runners()[me].thread.set(handle.thread().clone());
        handle.thread().unpark();
        Ok(handle)
    }

    /// Ends the thread after its present round.
    pub(crate) fn stop(&self) {
        // Release: pairs with the acquire in `run`.
        self.stop.store(true, Ordering::Release);
        self.alarm.set(0); // No sleep, even if somebody took the wake-up.
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// What runners need of a link.
pub(crate) trait Serves<D> {
    fn runners(&self) -> &[Runner];
    fn gate(&self) -> &Gate;
    fn slots(&self) -> &Slots<D>;
}

/// Asks for visits to one port.
pub(crate) struct Keep<'a, D> {
    pub(crate) runners: &'a [Runner],
    pub(crate) gate: &'a Gate,
    pub(crate) slot: &'a Slot<D>,
    pub(crate) clock: &'a dyn Clock,
}

impl<D> Keep<'_, D> {
    fn wake_by(&self, runner: usize, at: Instant) {
        let runner = &self.runners[runner % self.runners.len()];
        if runner.alarm.set(at.0) {
            self.slot.woke.fetch_add(1, Ordering::Relaxed); // Relaxed: a number for people.
            runner.wake();
        }
    }
}

impl<D> Keeper for Keep<'_, D> {
    fn keep(&self, at: Instant) {
        let slot = self.slot;
        slot.asked.fetch_add(1, Ordering::Relaxed); // Relaxed: a number for people.
        if at.0 < slot.due.note(at.0) {
            slot.mark();
            self.wake_by(slot.home, at);
        }
    }

    #[inline]
    fn remind(&self, now: Instant) {
        let slot = self.slot;
        if self.runners.len() > 1 && slot.due.at().saturating_add(LATE_NS) <= now.0 {
            // Its own runner should have come long ago.
            self.wake_by(slot.home + 1, now);
        }
    }

    fn elapsed(&self, now: Instant) -> u64 {
        self.clock.now().since(now)
    }

    fn died(&self) {
        self.gate.note_change();
    }
}

/// A runner's own notes: it is awake.
struct Note<'a, D>(Keep<'a, D>, usize);

impl<D> Keeper for Note<'_, D> {
    fn keep(&self, at: Instant) {
        let Self(keep, me) = self;
        if keep.slot.home == *me {
            keep.slot.due.note(at.0);
        } else {
            keep.keep(at);
        }
    }

    fn elapsed(&self, now: Instant) -> u64 {
        self.0.elapsed(now)
    }

    fn died(&self) {
        self.0.died();
    }
}

fn run<S: Serves<D>, D: Device>(shared: &S, me: usize, clock: &impl Clock) {
    onramp_dev::exact_timers();
    let runner = &shared.runners()[me];
    let (mut restarts, mut began) = (0, clock.now());
    let mut slept = false;
    // Acquire: pairs with the release in `stop`.
    while !runner.stop.load(Ordering::Acquire) {
        runner.alarm.rise();
        // Acquire: as above; the alarm that rose may have been that of `stop`.
        if runner.stop.load(Ordering::Acquire) {
            return;
        }
        let (visits, next) = round(shared, me, clock);
        runner.stats.visits.add(u64::from(visits));
        runner.stats.idle.add(u64::from(slept && visits == 0));
        slept = false;
        if next == 0 && restarts < RESTARTS && clock.now().since(began) < RESTART_NS {
            restarts += 1;
            runner.stats.restarts.add(1);
            continue;
        }
        sleep(runner, next, clock);
        runner.stats.wakeups.add(1);
        (restarts, began, slept) = (0, clock.now(), true);
    }
}

/// Visits all ports that are due. Gives their number, and the next time, 0 for "at once".
fn round<S: Serves<D>, D: Device>(shared: &S, me: usize, clock: &impl Clock) -> (u32, u64) {
    let (mut visits, mut next) = (0, NEVER);
    for slot in shared.slots().marked() {
        let now = clock.now();
        if slot.home == me {
            slot.unmark();
        } else if slot.due.at().saturating_add(LATE_NS) > now.0 {
            continue;
        }
        if slot.due.take(now.0) {
            visits += 1;
            let keep = Keep { runners: shared.runners(), gate: shared.gate(), slot, clock };
            let note = Note(keep, me);
            match slot.port.visit(now, &note) {
                Some(ran) if ran.again => note.keep(now),
                Some(_) => {}
                None => note.keep(now.after(TICK_NS)),
            }
        }
        if slot.home == me {
            let due = slot.due.at();
            next = next.min(if due <= now.0 { 0 } else { due });
            if due != NEVER {
                slot.mark();
            }
        }
    }
    (visits, next)
}

/// Sleeps until `next`, or until somebody wants us earlier.
fn sleep(runner: &Runner, next: u64, clock: &impl Clock) {
    let wake_at = runner.alarm.rest(next);
    let now = clock.now().0;
    if wake_at == NEVER {
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

#[cfg(test)]
mod tests;
