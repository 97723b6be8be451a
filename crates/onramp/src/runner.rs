//! The runners ("softirq" in Linux): threads that serve ports whose packets no other thread is
//! about to send.
//!
//! Each port asks for a visit (one turn in which a thread serves the port) at a certain time. A
//! runner sleeps until the earliest of these times. It then makes a round: it visits all ports
//! whose time has come. If a visit ends because the port has sent as many packets as one visit may
//! (its quota), the runner makes another round at once, a bounded number of times and for a bounded
//! time. A port that asks for a visit wakes the runner only if the runner would otherwise wake too
//! late. With several runners, each port belongs to one of them; another runner visits the port
//! when its own runner is late, because that runner lost its processor or a device blocks it.
//!
//! A runner is a role that a thread has: while a device blocks the thread that has the role,
//! another thread takes the role over ([`thread_group`]). In a link without threads, the program
//! has the role ([`by_hand`]).
//!
//! Source: Linux `kernel/softirq.c` (restart in place a bounded number of times, for at most 2 ms;
//! wake only when needed).

mod by_hand;
mod room_call;
mod thread_group;

use std::sync::Arc;
use std::time::Duration;

use onramp_core::{Clock, Device, HeadStart, Instant, PortWaker, Ran, TICK_NS, WakeCost};
use onramp_dev::{Priority, Timer, thread_cpu_ns};
use onramp_queue::{Alarm, Counter, Due, Gate, NEVER, Post};

use crate::slots::{Slot, Slots, Visits};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread;

pub(crate) use by_hand::turn;
pub(crate) use room_call::RoomCall;
pub(crate) use thread_group::{StartError, ThreadGroup};

/// Greatest number of further rounds that a runner makes at once, without sleeping, because a port
/// is due again already, for example after a visit that ended at the quota. Then the runner yields.
const RESTARTS: u32 = 10;
/// When this time has passed since the runner's last sleep, nanoseconds, the runner makes no
/// further round at once, but yields.
const RESTART_NS: u64 = 2_000_000;
/// If a port's own runner is late for a visit by this time, nanoseconds, any other runner may visit
/// the port.
const LATE_NS: u64 = 1_000_000;
/// Longest delay, in ticks, until a runner visits a port again that another thread owned at the
/// last visit. The delay is one tick at first and doubles each time: that other thread is either
/// about to leave the port, or calls a device that blocks.
const VAIN_TICKS: u64 = 64;
/// A runner reads the cost of one sleep in so many.
const MEASURED: u32 = 16;
/// While a sender waits until a port accepts packets again, a runner checks the port at this
/// interval, nanoseconds.
pub(crate) const WISH_NS: u64 = 1_000_000;

/// State of a runner that it shares with the threads that wake it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Runner {
    alarm: Alarm,
    /// Which thread has the role of this runner at present.
    post: Post,
    stop: AtomicBool,
    /// Whether something happened (such as the death of a port) because of which all waiting
    /// senders have to check their condition again.
    rings: AtomicBool,
    /// How long the ports may leave the runner alone while packets wait for instants, nanoseconds;
    /// 0 until the runner knows what a wake-up costs.
    rest_ns: AtomicU64,
    pub(crate) stats: RunnerStats,
}

/// Counters of a runner. Only the thread that has the role of the runner writes them.
#[derive(Debug, Default)]
pub(crate) struct RunnerStats {
    pub(crate) wakeups: Counter,
    /// Number of wake-ups after which the runner found nothing to do.
    pub(crate) idle: Counter,
    pub(crate) visits: Counter,
    pub(crate) restarts: Counter,
    /// Number of times that another thread took over the role, because a device blocked the
    /// runner's thread; and how often no thread was left after that to watch the runners.
    pub(crate) stand_ins: Counter,
    pub(crate) unwatched: Counter,
}

impl Runner {
    /// Makes a runner. The thread with this number is the first to have the role.
    pub(crate) fn new(number: u16) -> Self {
        Self {
            alarm: Alarm::default(),
            post: Post::new(number),
            stop: AtomicBool::new(false),
            rings: AtomicBool::new(false),
            rest_ns: AtomicU64::new(0),
            stats: RunnerStats::default(),
        }
    }

    /// Makes the runner end after its present round.
    pub(crate) fn stop(&self, threads: &ThreadGroup) {
        // Release: publishes what this thread did before it stops the runner; pairs with the
        // acquire in `run`.
        self.stop.store(true, Ordering::Release);
        self.call(threads);
    }

    /// Makes the runner wake all waiting senders, so that they check their condition again.
    fn announce(&self, threads: &ThreadGroup) {
        // Release: publishes the event that the senders have to learn of, such as the death of a
        // port; pairs with the acquire in `run`.
        self.rings.store(true, Ordering::Release);
        self.call(threads);
    }

    /// Makes sure that the runner makes another round, even if it has just been woken for another
    /// reason.
    fn call(&self, threads: &ThreadGroup) {
        self.alarm.set(0);
        threads.wake(self.post.holder());
    }
}

/// The runners and the threads of a link, and the gate (flags that say whether the link is open,
/// closing or closed).
#[derive(Debug)]
pub(crate) struct Rig {
    /// Whether the link is open, closing or closed, and whether its ports have changed.
    pub(crate) gate: Gate,
    pub(crate) runners: Arc<[Runner]>,
    pub(crate) threads: Arc<ThreadGroup>,
    /// How long a runner spins before the instant for which it waits, nanoseconds, besides what is
    /// left of its head start.
    pub(crate) spin_ns: u64,
    /// When the first runner wakes the tasks that have asked for a recall (a wake-up at a certain
    /// time).
    recalls: Due,
}

impl Rig {
    /// Makes `runners` runners, whose threads are not started yet, and will have this priority.
    pub(crate) fn new(runners: usize, priority: Option<Priority>) -> Self {
        let (gate, threads) = (Gate::default(), ThreadGroup::new(runners, priority));
        let runners = (0..).map(Runner::new).take(runners).collect();
        let recalls = Due::default();
        Self { gate, runners, threads: Arc::new(threads), spin_ns: 0, recalls }
    }

    /// Makes the rig of a link without threads, whose program makes the runner's rounds and waits
    /// for `timer`.
    pub(crate) fn by_hand(timer: Timer) -> Self {
        let (gate, threads) = (Gate::default(), ThreadGroup::by_hand(timer));
        let (runners, recalls) = ([Runner::new(0)].into(), Due::default());
        Self { gate, runners, threads: Arc::new(threads), spin_ns: 0, recalls }
    }

    /// Returns the rig with runners that spin for `spin_ns` nanoseconds before each instant.
    pub(crate) fn spinning(self, spin_ns: u64) -> Self {
        Self { spin_ns, ..self }
    }

    /// Makes the first runner wake the tasks that have asked for a recall, at `at` or before.
    pub(crate) fn recall_by(&self, at: Instant) {
        self.recalls.note(at.0);
        if self.runners[0].alarm.set(at.0) {
            self.threads.wake(self.runners[0].post.holder());
        }
    }

    /// For the first runner, which looks for the next recall at the end of its round: notes that
    /// tasks want one at `at` (nanoseconds).
    pub(crate) fn recall_later(&self, at: u64) {
        self.recalls.note(at);
    }
}

/// A link, as far as its runners need to know it.
pub(crate) trait Serves<D> {
    fn rig(&self) -> &Rig;
    fn slots(&self) -> &Slots<D>;
    /// Whether a port accepts packets at present.
    fn has_room(&self, slot: &Slot<D>) -> bool;
    /// Wakes all waiting senders, so that they check their condition again.
    fn ring(&self);
    /// Wakes the tasks that have asked for a recall.
    fn recall(&self);
}

impl<D: Device, S: Serves<D>> Serves<D> for Arc<S> {
    fn rig(&self) -> &Rig {
        (**self).rig()
    }
    fn slots(&self) -> &Slots<D> {
        (**self).slots()
    }
    fn has_room(&self, slot: &Slot<D>) -> bool {
        (**self).has_room(slot)
    }
    fn ring(&self) {
        (**self).ring();
    }
    fn recall(&self) {
        (**self).recall();
    }
}

/// The waker of one port: requests that a runner visit the port.
pub(crate) struct SlotWaker<'a, D> {
    pub(crate) rig: &'a Rig,
    pub(crate) slot: &'a Slot<D>,
    pub(crate) clock: &'a dyn Clock,
}

impl<D: Device> SlotWaker<'_, D> {
    fn wake_by(&self, runner: usize, at: Instant) {
        let Rig { runners, threads, .. } = self.rig;
        wake_by(runners, threads, self.slot.visits(), runner, at);
    }
}

/// Wakes a runner, if it would otherwise wake after `at`, because of the port with these `visits`.
fn wake_by(runners: &[Runner], threads: &ThreadGroup, visits: &Visits, runner: usize, at: Instant) {
    let runner = &runners[runner % runners.len()];
    if runner.alarm.set(at.0) {
        visits.woke.fetch_add(1, Ordering::Relaxed); // Relaxed: `woke` is only a statistic.
        threads.wake(runner.post.holder());
    }
}

impl<D: Device> PortWaker for SlotWaker<'_, D> {
    fn visit_by(&self, at: Instant) {
        if self.slot.visits().ask(at) {
            self.slot.mark();
            self.wake_by(self.slot.known.home, at);
        }
    }

    #[inline]
    fn check_overdue(&self, now: Instant) {
        let slot = self.slot;
        if self.rig.runners.len() > 1 && slot.visits().due.at().saturating_add(LATE_NS) <= now.0 {
            // The port's own runner should have come long ago, so wake the next runner instead.
            self.wake_by(slot.known.home + 1, now);
        }
    }

    fn elapsed(&self, now: Instant) -> u64 {
        self.clock.now().since(now)
    }

    fn rest_ns(&self) -> u64 {
        if self.rig.spin_ns > 0 {
            // A program that lets its runners spin wants the instants kept.
            return 0;
        }
        let runners = &self.rig.runners;
        // Relaxed: the number stands for itself, and an older one does as well.
        runners[self.slot.known.home % runners.len()].rest_ns.load(Ordering::Relaxed)
    }

    fn dies(&self) {
        self.rig.gate.note_change();
    }

    fn died(&self) {
        // Senders that wait for the dead port have to check their condition again. The first runner
        // wakes them, because the calling thread may be a sender, and waking many waiting threads
        // takes time.
        self.rig.runners[0].announce(&self.rig.threads);
    }
}

/// The number of a runner, and the number of the thread that has the role of this runner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub(crate) me: usize,
    pub(crate) number: u16,
}

/// The waker of a port while the runner with this number visits it. If the port belongs to this
/// runner, the request wakes no thread: the runner is awake, and reads the request before it
/// sleeps.
struct OwnWaker<'a, D>(SlotWaker<'a, D>, usize);

impl<D: Device> PortWaker for OwnWaker<'_, D> {
    fn visit_by(&self, at: Instant) {
        let Self(waker, me) = self;
        if waker.slot.known.home == *me {
            waker.slot.visits().due.note(at.0);
        } else {
            waker.visit_by(at);
        }
    }

    fn elapsed(&self, now: Instant) -> u64 {
        self.0.elapsed(now)
    }

    fn rest_ns(&self) -> u64 {
        self.0.rest_ns()
    }

    fn dies(&self) {
        self.0.dies();
    }

    fn died(&self) {
        self.0.died();
    }
}

/// Makes rounds as a runner, until the runner is stopped or another thread has taken the role over.
fn run<S: Serves<D>, D: Device>(shared: &S, seat: Seat, clock: &impl Clock) {
    let runner = &shared.rig().runners[seat.me];
    let (mut restarts, mut began) = (0, clock.now());
    let (mut slept, mut sleeps) = (false, Sleeps::default());
    // Acquire: makes visible what the thread that called `Runner::stop` did before; pairs with the
    // release there.
    while !runner.stop.load(Ordering::Acquire) {
        runner.alarm.rise();
        // Acquire: pairs with the release in `Runner::stop`. Read `stop` again: if another thread
        // has stopped the runner since the loop read `stop`, `rise` may have cleared the alarm that
        // the other thread had set, so the runner would sleep and not end.
        if runner.stop.load(Ordering::Acquire) {
            return;
        }
        // Acquire: makes visible the event that `announce` published, such as the death of a port;
        // pairs with the release there.
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
        sleep(&runner.alarm, next, shared.rig().spin_ns, &mut sleeps, clock);
        // Relaxed: the number stands for itself, and an older one does as well.
        runner.rest_ns.store(sleeps.cost.rest_ns(), Ordering::Relaxed);
        runner.stats.wakeups.add(1);
        (restarts, began, slept) = (0, clock.now(), true);
    }
}

/// Makes one round: visits all ports that are due. Returns the number of visits, and the time of
/// the next round, where 0 means at once. Returns `None` if another thread has taken the role over.
fn round<S: Serves<D>, D: Device>(
    shared: &S,
    seat: Seat,
    clock: &impl Clock,
) -> Option<(u32, u64)> {
    let (mut visits, mut next) = (0, NEVER);
    let recalls = (seat.me == 0).then_some(&shared.rig().recalls);
    if recalls.is_some_and(|recalls| recalls.take(clock.now().0)) {
        shared.recall();
    }
    for slot in shared.slots().marked() {
        let (now, due) = (clock.now(), &slot.visits().due);
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
    Some((visits, recalls.map_or(next, |recalls| next.min(recalls.at()))))
}

/// Visits one port. Returns `None` if the visit took so long that another thread has taken the role
/// over.
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
        // Record that this thread is out (with a device that may block), even if no thread watches
        // the runners yet: if the watch starts in the meantime, it sees that this thread is out.
        runners[seat.me].post.go_out(seat.number, now.0);
        threads.look_after(now);
    }
    let ran = slot.port.visit(now, &waker);
    let is_ours = !may_block || runners[seat.me].post.come_back(seat.number, now.0);
    if !is_ours {
        waker.1 = usize::MAX; // Requests must wake the thread that is the runner now.
    }
    again(&waker, slot, ran, now);
    if ran.is_some_and(|ran| slot.may_hold_packets(ran)) && rig.gate.is_shut() {
        // The device blocked this thread, or the system suspended it, for so long that the close of
        // the link no longer waits for this thread. So this thread has to purge (drop and count)
        // the packets that are left in the port.
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
    // During the visit, requests of the port woke no thread, because a runner reads them before it
    // sleeps. But this thread is no longer a runner, so it wakes the thread that has the role now.
    let due = slot.visits().due.at();
    if due != NEVER {
        slot.mark();
        waker.0.wake_by(slot.known.home, Instant(due));
    }
    None
}

/// Requests another visit to the port at once if the result `ran` of the last visit has `again`
/// set. If `ran` is `None`, because another thread owned the port, requests a visit some ticks
/// later.
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

/// What a thread learns from its sleeps.
#[derive(Debug, Default)]
struct Sleeps {
    head_start: HeadStart,
    cost: WakeCost,
    /// Number of sleeps with an end.
    count: u32,
}

impl Sleeps {
    /// Sleeps for `asleep` nanoseconds, or until another thread wakes this one. Reads what one
    /// sleep in [`MEASURED`] costs, because to read it takes two system calls.
    fn sleep(&mut self, asleep: u64) {
        self.count = self.count.wrapping_add(1);
        let before = if self.count.is_multiple_of(MEASURED) { thread_cpu_ns() } else { None };
        thread::park_timeout(Duration::from_nanos(asleep));
        if let Some(before) = before
            && let Some(after) = thread_cpu_ns()
        {
            self.cost.note(after.saturating_sub(before));
        }
    }
}

/// Sleeps until the time `next`, or until another thread sets the alarm to an earlier time and
/// wakes this thread. The last `spin_ns` nanoseconds before `next` are not slept, but spun, and so
/// is what is left of the head start that the sleep gets because sleeps end late.
fn sleep(alarm: &Alarm, next: u64, spin_ns: u64, sleeps: &mut Sleeps, clock: &impl Clock) {
    let wake_at = alarm.rest(next);
    let mut now = clock.now();
    if wake_at == NEVER {
        thread::park();
    } else if wake_at > now.0 {
        let budget = spin_ns.saturating_add(sleeps.head_start.ns());
        let until = Instant(wake_at.saturating_sub(spin_ns));
        let asleep = sleeps.head_start.sleep_ns(until, now);
        if asleep > 0 {
            sleeps.sleep(asleep);
            now = clock.now();
            sleeps.head_start.woke(now);
        }
        if wake_at.saturating_sub(now.0) <= budget {
            spin(alarm, wake_at, now.0, clock);
        }
        // Otherwise, another thread has woken this one.
    } else {
        thread::yield_now();
    }
}

/// Spins from `now` until the time `wake_at`, or until another thread sets the alarm to an earlier
/// time.
///
/// A thread that sets the alarm also wakes this thread (`unpark`), as if it slept. So the next
/// sleep ends at once, and one round finds nothing to do. A thread that [stops](Runner::stop) the
/// runner sets its alarm to 0, so this thread notices that, too.
fn spin(alarm: &Alarm, wake_at: u64, mut now: u64, clock: &impl Clock) {
    while now < wake_at && alarm.at() >= wake_at {
        std::hint::spin_loop();
        now = clock.now().0;
    }
}

#[cfg(test)]
mod tests;
