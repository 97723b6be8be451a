//! The runners ("softirq"): threads that serve ports whose packets no other thread is about to
//! send.
//!
//! A runner sleeps until the earliest time for which any of its ports asked. It then visits the
//! ports that are due. While a visit ends at its quota, the runner starts another round at once, a
//! bounded number of times and for a bounded time. A port that asks for a visit wakes the runner
//! only if the visit is due before the runner wakes by itself. With several runners, each port has
//! one runner as its home; another runner visits the port when its home runner is late, because
//! that runner lost its processor or a device blocks it.
//!
//! A runner is a role, not a thread: while a device keeps the thread that has the role, another
//! thread takes the role over ([`thread_group`]).
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

/// Number of consecutive rounds with a visit that ends at its quota before a runner yields to other
/// threads.
const RESTARTS: u32 = 10;
/// Longest time for which a runner goes on with such rounds, nanoseconds.
const RESTART_NS: u64 = 2_000_000;
/// A port that has been due for this long is served by any runner, nanoseconds.
const LATE_NS: u64 = 1_000_000;
/// Limit of the delay, in ticks, before a port that was found owned is visited again. The delay is
/// one tick, then two, four, and so on. The port's owner is about to leave the port, or is with a
/// device that blocks.
const VAIN_TICKS: u64 = 64;
/// How often a runner checks whether a port accepts packets again while a sender waits for that,
/// nanoseconds.
pub(crate) const WISH_NS: u64 = 1_000_000;

/// State that a runner shares with the threads that wake it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Runner {
    alarm: Alarm,
    /// The thread that has the role of this runner.
    post: Post,
    stop: AtomicBool,
    /// Whether something happened of which all waiting threads have to learn.
    rings: AtomicBool,
    pub(crate) stats: RunnerStats,
}

/// Counters of a runner. Only the thread that has the role writes them.
#[derive(Debug, Default)]
pub(crate) struct RunnerStats {
    pub(crate) wakeups: Counter,
    /// Number of wake-ups after which the runner found nothing to do.
    pub(crate) idle: Counter,
    pub(crate) visits: Counter,
    pub(crate) restarts: Counter,
    /// Number of times another thread took the role over, and number of these takeovers after which
    /// no thread was available as watch.
    pub(crate) stand_ins: Counter,
    pub(crate) unwatched: Counter,
}

impl Runner {
    /// Makes the role of a runner, which the thread with this number has at first.
    pub(crate) fn new(number: u16) -> Self {
        Self {
            alarm: Alarm::default(),
            post: Post::new(number),
            stop: AtomicBool::new(false),
            rings: AtomicBool::new(false),
            stats: RunnerStats::default(),
        }
    }

    /// Ends the runner after its present round.
    pub(crate) fn stop(&self, threads: &ThreadGroup) {
        // Release: pairs with the acquire in `run`.
        self.stop.store(true, Ordering::Release);
        self.call(threads);
    }

    /// Makes the runner tell all waiting threads to look again.
    fn announce(&self, threads: &ThreadGroup) {
        // Release: publishes what happened; pairs with the acquire in `run`.
        self.rings.store(true, Ordering::Release);
        self.call(threads);
    }

    /// Makes sure that the runner does another round, even if another caller already used up its
    /// wake-up.
    fn call(&self, threads: &ThreadGroup) {
        self.alarm.set(0);
        threads.wake(self.post.holder());
    }
}

/// The runners and threads that serve a link, and the gate that says whether the link is open.
#[derive(Debug)]
pub(crate) struct Rig {
    /// Whether new packets may be refused, and why.
    pub(crate) gate: Gate,
    pub(crate) runners: Box<[Runner]>,
    pub(crate) threads: Box<ThreadGroup>,
}

impl Rig {
    /// Makes this number of runners, without threads yet.
    pub(crate) fn new(runners: usize) -> Self {
        let (gate, threads) = (Gate::default(), Box::new(ThreadGroup::new(runners)));
        Self { gate, runners: (0..).map(Runner::new).take(runners).collect(), threads }
    }
}

/// What runners need to know of a link.
pub(crate) trait Serves<D> {
    fn rig(&self) -> &Rig;
    fn slots(&self) -> &Slots<D>;
    /// Whether a port accepts packets now.
    fn has_room(&self, slot: &Slot<D>) -> bool;
    /// Tells all waiting threads to look again.
    fn ring(&self);
}

/// Requests visits of a runner to one port.
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
            // Relaxed: the number is only a statistic.
            self.slot.visits.woke.fetch_add(1, Ordering::Relaxed);
            threads.wake(runner.post.holder());
        }
    }
}

impl<D: Device> PortWaker for SlotWaker<'_, D> {
    fn visit_by(&self, at: Instant) {
        let visits = &self.slot.visits;
        visits.asked.fetch_add(1, Ordering::Relaxed); // Relaxed: the number is only a statistic.
        if at.0 < visits.due.note(at.0) {
            self.slot.mark();
            self.wake_by(self.slot.known.home, at);
        }
    }

    #[inline]
    fn check_overdue(&self, now: Instant) {
        let slot = self.slot;
        if self.rig.runners.len() > 1 && slot.visits.due.at().saturating_add(LATE_NS) <= now.0 {
            // The port's own runner should have come long ago, so call the next runner.
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
        // Waiting threads have to look again. The runner tells them, because the calling thread may
        // be a sender, and there may be many waiting threads.
        self.rig.runners[0].announce(&self.rig.threads);
    }
}

/// The number of a runner, and the number of the thread that has its role.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub(crate) me: usize,
    pub(crate) number: u16,
}

/// Receives the requests of a port while the runner itself visits it. The runner is awake, so its
/// own requests need no wake-up.
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

/// Serves as a runner until the runner is stopped or another thread has taken the role over.
fn run<S: Serves<D>, D: Device>(shared: &S, seat: Seat, clock: &impl Clock) {
    let runner = &shared.rig().runners[seat.me];
    let (mut restarts, mut began) = (0, clock.now());
    let mut slept = false;
    // Acquire: pairs with the release in `stop`.
    while !runner.stop.load(Ordering::Acquire) {
        runner.alarm.rise();
        // Acquire: as above. `stop` may have set the alarm from which this runner rose.
        if runner.stop.load(Ordering::Acquire) {
            return;
        }
        // Acquire: sees what happened before; pairs with the release in `announce`.
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

/// Visits all ports that are due. Returns the number of visits, and the time of the next round,
/// where 0 means at once. Returns `None` if another thread has taken the role over.
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

/// Visits one port. Returns `None` if the visit took so long that another thread has the role now.
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
        // Do this even if there is no watch yet: a watch that starts meanwhile then sees that this
        // thread is out.
        runners[seat.me].post.go_out(seat.number, now.0);
        threads.look_after(now);
    }
    let ran = slot.port.visit(now, &waker);
    let is_ours = !may_block || runners[seat.me].post.come_back(seat.number, now.0);
    if !is_ours {
        waker.1 = usize::MAX; // From here on, this thread requests visits like any other thread.
    }
    again(&waker, slot, ran, now);
    if ran.is_some_and(|ran| ran.again) && rig.gate.is_shut() {
        // A device had kept this thread for so long that the close no longer waits for it, so this
        // thread has to purge the port.
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
    // Requests of the port during the visit were noted for a runner that is awake. This thread is
    // no longer a runner, so it wakes the thread that is.
    let due = slot.visits.due.at();
    if due != NEVER {
        slot.mark();
        waker.0.wake_by(slot.known.home, Instant(due));
    }
    None
}

/// Requests another visit, if the result of the last one calls for it.
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

/// Sleeps until `next`, or until another thread sets the alarm to an earlier time.
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
