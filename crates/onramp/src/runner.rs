//! The runners ("softirq"): threads that look after packets nobody else is about to send.
//!
//! A runner sleeps until the earliest time that any of its ports asked for, visits the ports that
//! are due, and goes on at once, a bounded number of times and for a bounded time, while a visit
//! ends at its quota. A port that asks for a visit wakes it only when that is earlier than what it
//! sleeps to. With several runners each port has one that is its home; another comes by when that
//! one is late, because it lost its processor or a device blocks it.
//!
//! A runner is a role, not a thread: while a device wakers the thread that has it, another takes it
//! over ([`thread_group`]).
//!
//! Source: Linux `kernel/softirq.c` (restart in place a bounded number of times, for at most 2 ms;
//! wake only when needed).

mod thread_group;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use onramp_core::{Clock, Device, Instant, PortWaker, Ran, TICK_NS};
use onramp_queue::{Alarm, Counter, Gate, NEVER, Post};

use crate::slots::{Slot, Slots};

pub(crate) use thread_group::{StartError, ThreadGroup};

/// Rounds in a row with a visit that ends at its quota before a runner gives way to other threads.
const RESTARTS: u32 = 10;
/// How long it goes on like that at most, nanoseconds.
const RESTART_NS: u64 = 2_000_000;
/// When a port was due so long ago, any runner takes it, nanoseconds.
const LATE_NS: u64 = 1_000_000;
/// A port that is owned is visited again after a tick, after two, four, and so on up to so many:
/// whoever owns it is about to leave it, or is with a device that blocks.
const VAIN_TICKS: u64 = 64;
/// How often a runner looks whether a port takes packets again, if somebody waits for it.
pub(crate) const WISH_NS: u64 = 1_000_000;

/// What a runner and those who wake it share.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Runner {
    alarm: Alarm,
    /// The thread that has the role.
    post: Post,
    stop: AtomicBool,
    /// Something happened that all who wait have to learn of.
    rings: AtomicBool,
    pub(crate) stats: RunnerStats,
}

/// What a runner counts. Written by who has the role.
#[derive(Debug, Default)]
pub(crate) struct RunnerStats {
    pub(crate) wakeups: Counter,
    /// Of these, those that found nothing to do.
    pub(crate) idle: Counter,
    pub(crate) visits: Counter,
    pub(crate) restarts: Counter,
    /// Times the role was taken over, and of these, times nobody could be had to watch then.
    pub(crate) stand_ins: Counter,
    pub(crate) unwatched: Counter,
}

impl Runner {
    /// The role that the thread `number` has first.
    pub(crate) fn new(number: u16) -> Self {
        Self {
            alarm: Alarm::default(),
            post: Post::new(number),
            stop: AtomicBool::new(false),
            rings: AtomicBool::new(false),
            stats: RunnerStats::default(),
        }
    }

    /// Ends it after its present round.
    pub(crate) fn stop(&self, threads: &ThreadGroup) {
        // Release: pairs with the acquire in `run`.
        self.stop.store(true, Ordering::Release);
        self.call(threads);
    }

    /// Has it tell all who wait to look again.
    fn announce(&self, threads: &ThreadGroup) {
        // Release: what happened; pairs with the acquire in `run`.
        self.rings.store(true, Ordering::Release);
        self.call(threads);
    }

    /// It does not sleep, even if somebody took the wake-up.
    fn call(&self, threads: &ThreadGroup) {
        self.alarm.set(0);
        threads.wake(self.post.holder());
    }
}

/// Who serves a link, and whether it is open.
#[derive(Debug)]
pub(crate) struct Rig {
    /// Why new packets may be refused.
    pub(crate) gate: Gate,
    pub(crate) runners: Box<[Runner]>,
    pub(crate) threads: Box<ThreadGroup>,
}

impl Rig {
    /// So many runners, without threads yet.
    pub(crate) fn new(runners: usize) -> Self {
        let (gate, threads) = (Gate::default(), Box::new(ThreadGroup::new(runners)));
        Self { gate, runners: (0..).map(Runner::new).take(runners).collect(), threads }
    }
}

/// What runners need of a link.
pub(crate) trait Serves<D> {
    fn rig(&self) -> &Rig;
    fn slots(&self) -> &Slots<D>;
    /// Whether a port takes packets just now.
    fn has_room(&self, slot: &Slot<D>) -> bool;
    /// Tells all who wait to look again.
    fn ring(&self);
}

/// Asks for visits to one port.
pub(crate) struct SlotWaker<'a, D> {
    pub(crate) rig: &'a Rig,
    pub(crate) slot: &'a Slot<D>,
    pub(crate) clock: &'a dyn Clock,
}

impl<D: Device> SlotWaker<'_, D> {
    fn wake_by(&self, runner: usize, at: Instant) {
        let Rig { runners, threads, .. } = self.rig;
        let runner = &runners[runner % runners.len()];
        if runner.alarm.set(at.0) {
            self.slot.visits.woke.fetch_add(1, Ordering::Relaxed); // Relaxed: a number for people.
            threads.wake(runner.post.holder());
        }
    }
}

impl<D: Device> PortWaker for SlotWaker<'_, D> {
    fn visit_by(&self, at: Instant) {
        let visits = &self.slot.visits;
        visits.asked.fetch_add(1, Ordering::Relaxed); // Relaxed: a number for people.
        if at.0 < visits.due.note(at.0) {
            self.slot.mark();
            self.wake_by(self.slot.known.home, at);
        }
    }

    #[inline]
    fn check_overdue(&self, now: Instant) {
        let slot = self.slot;
        if self.rig.runners.len() > 1 && slot.visits.due.at().saturating_add(LATE_NS) <= now.0 {
            // Its own runner should have come long ago.
            self.wake_by(slot.known.home + 1, now);
        }
    }

    fn elapsed(&self, now: Instant) -> u64 {
        self.clock.now().since(now)
    }

    fn dies(&self) {
        self.rig.gate.note_change();
    }

    fn died(&self) {
        // Whoever waits has to look. Not here: this may be a sender, and they may be many.
        self.rig.runners[0].announce(&self.rig.threads);
    }
}

/// Who has the role of a runner: the number of that, and of the thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub(crate) me: usize,
    pub(crate) number: u16,
}

/// A runner's own notes: it is awake.
struct OwnWaker<'a, D>(SlotWaker<'a, D>, usize);

impl<D: Device> PortWaker for OwnWaker<'_, D> {
    fn visit_by(&self, at: Instant) {
        let Self(waker, me) = self;
        if waker.slot.known.home == *me {
            waker.slot.visits.due.note(at.0);
        } else {
            waker.visit_by(at);
        }
    }

    fn elapsed(&self, now: Instant) -> u64 {
        self.0.elapsed(now)
    }

    fn dies(&self) {
        self.0.dies();
    }

    fn died(&self) {
        self.0.died();
    }
}

/// Serves as a runner until it is to stop, or somebody else has taken the role.
fn run<S: Serves<D>, D: Device>(shared: &S, seat: Seat, clock: &impl Clock) {
    let runner = &shared.rig().runners[seat.me];
    let (mut restarts, mut began) = (0, clock.now());
    let mut slept = false;
    // Acquire: pairs with the release in `stop`.
    while !runner.stop.load(Ordering::Acquire) {
        runner.alarm.rise();
        // Acquire: as above; the alarm that rose may have been that of `stop`.
        if runner.stop.load(Ordering::Acquire) {
            return;
        }
        // Acquire: what happened; pairs with the release in `announce`.
        if runner.rings.swap(false, Ordering::Acquire) {
            shared.ring();
        }
        let Some((visits, next)) = round(shared, seat, clock) else { return };
        runner.stats.visits.add(u64::from(visits));
        runner.stats.idle.add(u64::from(slept && visits == 0));
        slept = false;
        if next == 0 && restarts < RESTARTS && clock.now().since(began) < RESTART_NS {
            restarts += 1;
            runner.stats.restarts.add(1);
            continue;
        }
        sleep(&runner.alarm, next, clock);
        runner.stats.wakeups.add(1);
        (restarts, began, slept) = (0, clock.now(), true);
    }
}

/// Visits all ports that are due. Gives their number, and the next time, 0 for "at once". `None`:
/// somebody else has taken the role.
fn round<S: Serves<D>, D: Device>(
    shared: &S,
    seat: Seat,
    clock: &impl Clock,
) -> Option<(u32, u64)> {
    let (mut visits, mut next) = (0, NEVER);
    for slot in shared.slots().marked() {
        let (now, due) = (clock.now(), &slot.visits.due);
        let is_home = slot.known.home == seat.me;
        if is_home {
            slot.unmark();
        } else if due.at().saturating_add(LATE_NS) > now.0 {
            continue;
        }
        if due.take(now.0) {
            visits += 1;
            visit(shared, seat, slot, now, clock)?;
        }
        if is_home {
            let due = due.at();
            next = next.min(if due <= now.0 { 0 } else { due });
            if due != NEVER {
                slot.mark();
            }
        }
    }
    Some((visits, next))
}

/// Visits one port. `None`: it took so long that somebody else has the role now.
fn visit<S: Serves<D>, D: Device>(
    shared: &S,
    seat: Seat,
    slot: &Slot<D>,
    now: Instant,
    clock: &impl Clock,
) -> Option<()> {
    let rig = shared.rig();
    let Rig { runners, threads, .. } = rig;
    let mut waker = OwnWaker(SlotWaker { rig, slot, clock }, seat.me);
    let may_block = slot.known.may_block;
    if may_block {
        // Also before there is a watch: one that starts meanwhile sees us out.
        runners[seat.me].post.go_out(seat.number, now.0);
        threads.look_after(now);
    }
    let ran = slot.port.visit(now, &waker);
    let is_ours = !may_block || runners[seat.me].post.come_back(seat.number, now.0);
    if !is_ours {
        waker.1 = usize::MAX; // From here on this thread asks as anybody does.
    }
    again(&waker, slot, ran, now);
    if ran.is_some_and(|ran| ran.again) && rig.gate.is_shut() {
        // A device had kept this thread for so long that nobody waits for it any more.
        while slot.port.close(clock.now(), &waker).is_some_and(|ran| ran.again) {}
    }
    if slot.take_wish() {
        if shared.has_room(slot) {
            shared.ring();
        } else {
            slot.want_room();
            waker.visit_by(now.after(WISH_NS));
        }
    }
    if is_ours {
        return Some(());
    }
    // What the port asked for during the visit was noted for a runner that is awake. This thread is
    // none any more, so it wakes the one that is.
    let due = slot.visits.due.at();
    if due != NEVER {
        slot.mark();
        waker.0.wake_by(slot.known.home, Instant(due));
    }
    None
}

/// Asks for another visit, if the last one calls for it.
fn again<D: Device>(waker: &impl PortWaker, slot: &Slot<D>, ran: Option<Ran>, now: Instant) {
    let vain = slot.visited(ran.is_none());
    match ran {
        Some(ran) if ran.again => waker.visit_by(now),
        Some(_) => {}
        None => {
            let ticks = 1_u64.checked_shl(u32::from(vain) - 1).unwrap_or(VAIN_TICKS);
            waker.visit_by(now.after(TICK_NS * ticks.min(VAIN_TICKS)));
        }
    }
}

/// Sleeps until `next`, or until somebody wants us earlier.
fn sleep(alarm: &Alarm, next: u64, clock: &impl Clock) {
    let wake_at = alarm.rest(next);
    let now = clock.now().0;
    if wake_at == NEVER {
        thread::park();
    } else if wake_at > now {
        thread::park_timeout(Duration::from_nanos(wake_at - now));
    } else {
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests;
