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
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
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

/// What a sender looks at before each packet: whether there may be a reason to refuse it.
#[derive(Debug, Default)]
pub(crate) struct Gate(AtomicU8);

impl Gate {
    const DEATH: u8 = 1;
    const CLOSED: u8 = 2;

    /// A port has died.
    pub(crate) fn note_death(&self) {
        self.0.fetch_or(Self::DEATH, Ordering::Relaxed); // Relaxed: see `is_open`.
    }

    /// The link closes.
    pub(crate) fn close(&self) {
        self.0.fetch_or(Self::CLOSED, Ordering::Relaxed); // Relaxed: see `is_open`.
    }

    /// Every port lives and the link is not closed.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: what a send that comes too late brings, the port itself drops.
        self.0.load(Ordering::Relaxed) == 0
    }

    /// The link closes, or is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::CLOSED != 0 // Relaxed: as above.
    }
}

/// What the runner and those who wake it share.
#[derive(Debug)]
pub(crate) struct Runner {
    /// When the runner wakes by itself, nanoseconds.
    wake_at: AtomicU64,
    thread: OnceLock<Thread>,
    stop: AtomicBool,
    pub(crate) gate: Gate,
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
            gate: Gate::default(),
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

    fn died(&self) {
        self.runner.gate.note_death();
    }
}

/// The runner's own notes: it is awake.
struct Note<'a, D>(Keep<'a, D>);

impl<D> Keeper for Note<'_, D> {
    fn keep(&self, at: Instant) {
        self.0.slot.note(at);
    }

    fn died(&self) {
        self.0.died();
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
            let runner = shared.runner();
            runner.stats.visits.add(1);
            match slot.port.visit(now, &Note(Keep { runner, slot })) {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onramp_core::qdisc::Spec;
    use onramp_dev::{MonotonicClock, Null, NullStats};
    use onramp_queue::{Packet, PacketList};

    use super::*;

    struct Ports {
        runner: Runner,
        slots: Vec<Slot<Null>>,
        sent: Vec<Arc<NullStats>>,
    }

    impl Serves<Null> for Arc<Ports> {
        fn runner(&self) -> &Runner {
            &self.runner
        }
        fn slots(&self) -> &[Slot<Null>] {
            &self.slots
        }
    }

    const NOW: Instant = Instant(1_000_000_000);

    impl Ports {
        fn new(qdiscs: &[&str]) -> Arc<Self> {
            let mut sent = Vec::new();
            let slots = qdiscs.iter().map(|qdisc| {
                let null = Null::default();
                sent.push(null.stats());
                let spec: Spec = qdisc.parse().expect("a qdisc");
                Slot::new(Port::new(spec.build(1_514), null, 10_000))
            });
            let slots = slots.collect();
            Arc::new(Self { runner: Runner::new(), slots, sent })
        }

        /// Pushes `count` packets that leave at `at`, at the earliest.
        fn push(&self, port: usize, count: u32, at: Instant) {
            let packet = |_| {
                let mut packet = Packet::new(100);
                (packet.txtime_ns, packet.enqueued_ns) = (at.0, NOW.0);
                packet
            };
            let list: PacketList = (0..count).map(packet).collect();
            let slot = &self.slots[port];
            let keep = Keep { runner: &self.runner, slot };
            let _ = slot.port.xmit(list, NOW, &keep).expect("there is room");
        }

        fn sent(&self) -> Vec<u64> {
            self.sent.iter().map(|stats| stats.packets.get()).collect()
        }

        fn wake_at(&self) -> u64 {
            self.runner.wake_at.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn the_earliest_port_decides_when_the_runner_wakes() {
        let ports = Ports::new(&["fq timer_slack 0"; 3]);
        assert_eq!(ports.wake_at(), u64::MAX, "nobody wants it");
        ports.push(1, 1, NOW.after(500));
        assert_eq!(ports.wake_at(), NOW.after(500).0);
        ports.push(2, 1, NOW.after(900));
        assert_eq!(ports.wake_at(), NOW.after(500).0, "earlier than asked for");
        ports.push(0, 1, NOW.after(300));
        assert_eq!(ports.wake_at(), NOW.after(300).0);
        // One port after another, each when it is due, and none before.
        assert_eq!(round(&ports, &NOW.after(299)), NOW.after(300).0);
        assert_eq!(ports.sent(), [0, 0, 0]);
        assert_eq!(round(&ports, &NOW.after(300)), NOW.after(500).0);
        assert_eq!(ports.sent(), [1, 0, 0]);
        assert_eq!(round(&ports, &NOW.after(900)), u64::MAX);
        assert_eq!(ports.sent(), [1, 1, 1]);
        assert_eq!(ports.runner.stats.visits.get(), 3);
    }

    #[test]
    fn an_earlier_wish_of_the_same_port_counts() {
        let ports = Ports::new(&["fq timer_slack 0"]);
        ports.push(0, 1, NOW.after(900));
        ports.push(0, 1, NOW.after(200));
        ports.push(0, 1, NOW.after(600));
        assert_eq!(ports.wake_at(), NOW.after(200).0);
        assert_eq!(round(&ports, &NOW.after(200)), NOW.after(600).0, "the next of what is left");
        assert_eq!(round(&ports, &NOW.after(600)), NOW.after(900).0);
        assert_eq!(round(&ports, &NOW.after(900)), u64::MAX);
        assert_eq!(ports.sent(), [3]);
    }

    #[test]
    fn a_visit_that_ends_at_its_quota_goes_on_at_once() {
        let ports = Ports::new(&["pfifo"]);
        ports.push(0, 150, Instant(0));
        assert_eq!(ports.sent(), [64]);
        assert_eq!(round(&ports, &NOW), NOW.after(2 * TICK_NS).0, "senders may yet do it");
        let now = NOW.after(2 * TICK_NS);
        assert_eq!(round(&ports, &now), 0, "there is more to do");
        assert_eq!(ports.sent(), [128]);
        assert_eq!(round(&ports, &now), now.after(TICK_NS).0, "the port is still busy");
        assert_eq!(ports.sent(), [150]);
    }

    /// Whoever wants it earlier wakes it, whoever wants it later does not.
    #[test]
    fn only_an_earlier_wish_wakes() {
        let ports = Ports::new(&["pfifo"]);
        let keep = Keep { runner: &ports.runner, slot: &ports.slots[0] };
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                thread::park();
                ports.wake_at()
            });
            assert!(ports.runner.thread.set(sleeper.thread().clone()).is_ok());
            keep.keep(NOW.after(700));
            assert!(sleeper.join().expect("it only sleeps") <= NOW.after(700).0);
        });
        // It sleeps no longer than to what it read; an equal or later wish changes nothing.
        keep.keep(NOW.after(700));
        keep.keep(NOW.after(800));
        assert_eq!(ports.wake_at(), NOW.after(700).0);
        assert!(!ports.slots[0].note(NOW.after(700)));
        assert!(ports.slots[0].note(NOW.after(699)));
    }

    /// Sleeps for `limit`; false: it was woken before.
    fn sleeps(limit: Duration) -> bool {
        let start = MonotonicClock.now();
        thread::park_timeout(limit);
        MonotonicClock.now() >= start + limit
    }

    /// The runner is this thread. A short sleep that is not cut short is as long as it should be on
    /// any machine.
    #[test]
    fn a_later_wish_wakes_nobody() {
        let ports = Ports::new(&["pfifo"; 3]);
        let keeps = [0, 1, 2].map(|port| Keep { runner: &ports.runner, slot: &ports.slots[port] });
        assert!(ports.runner.thread.set(thread::current()).is_ok());
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(5));
        keeps[1].keep(NOW.after(500));
        assert!(!sleeps(long), "the first wish");
        keeps[1].keep(NOW.after(500));
        keeps[1].keep(NOW.after(501));
        assert!(sleeps(short), "the port wants no more than it did");
        keeps[0].keep(NOW.after(500));
        keeps[2].keep(NOW.after(501));
        keeps[2].keep(NOW.after(500));
        assert!(sleeps(short), "other ports do not want it earlier");
        keeps[2].keep(NOW.after(499));
        assert!(!sleeps(long), "a nanosecond earlier");
        assert_eq!(ports.wake_at(), NOW.after(499).0);
        // The runner's own notes: it looks at them before it sleeps.
        Note(Keep { runner: &ports.runner, slot: &ports.slots[0] }).keep(NOW.after(9));
        assert!(sleeps(short));
        assert_eq!(ports.wake_at(), NOW.after(499).0);
    }

    /// Ten rounds at once, then one that lets other threads run first, and again.
    #[test]
    fn rounds_without_a_pause_are_bounded() {
        for (rounds, restarts) in [(0, 0), (1, 1), (10, 10), (11, 10), (12, 11), (21, 20), (22, 20)]
        {
            let ports = Ports::new(&["pfifo limit 10000"]);
            // The pusher sends a quota, and each round one; what the last sends is the rest.
            let count = 64 + 64 * rounds + 1;
            ports.push(0, count, Instant(0));
            let handle = Runner::start(ports.clone(), NOW.after(2 * TICK_NS)).expect("a thread");
            while ports.sent() != [u64::from(count)] {
                thread::yield_now();
            }
            ports.runner.stop();
            handle.join().expect("it does not panic");
            assert_eq!(ports.runner.stats.restarts.get(), restarts, "of {rounds} rounds");
            assert_eq!(ports.runner.stats.visits.get(), u64::from(rounds) + 1);
        }
    }

    #[test]
    fn a_stopped_runner_ends() {
        let ports = Ports::new(&["pfifo", "fq"]);
        let handle = Runner::start(ports.clone(), NOW).expect("a thread can be had");
        ports.runner.stop();
        handle.join().expect("it does not panic");
        assert_eq!(Arc::strong_count(&ports), 1);
    }
}
