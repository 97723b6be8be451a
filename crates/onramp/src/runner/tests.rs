//! Tests of a runner (a thread that visits ports when their time has come) with a clock that stands
//! still.

mod spin;
mod visits;

use std::cell::Cell;
use std::sync::Arc;

use onramp_core::Port;
use onramp_core::Spec;
use onramp_dev::{MonotonicClock, Null, NullStats};
use onramp_queue::{Counter, Packet, PacketList};

use super::*;

struct Ports {
    rig: Rig,
    slots: Slots<Null>,
    sent: Vec<Arc<NullStats>>,
    recalls: Counter,
}

impl Serves<Null> for Arc<Ports> {
    fn rig(&self) -> &Rig {
        &self.rig
    }
    fn slots(&self) -> &Slots<Null> {
        &self.slots
    }
    fn has_room(&self, _slot: &Slot<Null>) -> bool {
        true
    }
    fn ring(&self) {}
    fn recall(&self) {
        self.recalls.add(1);
    }
}

const NOW: Instant = Instant(1_000_000_000);

impl Ports {
    /// Makes a link with one runner, and with one port for each qdisc.
    fn new(qdiscs: &[&str]) -> Arc<Self> {
        Self::with_runners(1, qdiscs)
    }

    fn with_runners(runners: usize, qdiscs: &[&str]) -> Arc<Self> {
        let mut sent = Vec::new();
        let slots = Slots::with_capacity(qdiscs.len());
        for (i, qdisc) in qdiscs.iter().enumerate() {
            let null = Null::default();
            sent.push(null.stats());
            let spec: Spec = qdisc.parse().expect("a qdisc");
            let port = Port::new(spec.build(1_514), null, 10_000);
            assert!(slots.add(Slot::new(port, 1_514, false, i % runners)) == Some(i));
        }
        let (rig, recalls) = (Rig::new(runners, None), Counter::default());
        Arc::new(Self { rig, slots, sent, recalls })
    }

    /// Makes a link with one port, whose runner spins for `spin_ns` nanoseconds.
    fn spinning(spin_ns: u64, qdisc: &str) -> Arc<Self> {
        let mut ports = Arc::into_inner(Self::new(&[qdisc])).expect("nobody else has it");
        ports.rig = ports.rig.spinning(spin_ns);
        Arc::new(ports)
    }

    fn waker(&self, port: usize) -> SlotWaker<'_, Null> {
        let slot = self.slots.get(port).expect("a port");
        SlotWaker { rig: &self.rig, slot, clock: &MonotonicClock }
    }

    /// Pushes `count` packets into a port. The packets may not leave before the time `at`.
    fn push(&self, port: usize, count: u32, at: Instant) {
        let packet = |_| {
            let mut packet = Packet::new(100);
            (packet.txtime_ns, packet.enqueued_ns) = (at.0, NOW.0);
            packet
        };
        let list: PacketList = (0..count).map(packet).collect();
        let waker = self.waker(port);
        let _ = waker.slot.port.xmit(list, NOW, &waker).expect("there is room");
    }

    fn sent(&self) -> Vec<u64> {
        self.sent.iter().map(|stats| stats.packets.get()).collect()
    }

    fn wake_at(&self) -> u64 {
        self.rig.runners[0].alarm.at()
    }
}

/// Makes one round of runner `me`: visits all ports that are due. No other thread takes over the
/// runner's role.
fn rounds(ports: &Arc<Ports>, me: usize, clock: &impl Clock) -> (u32, u64) {
    let seat = Seat { me, number: u16::try_from(me).expect("few") };
    round(ports, seat, clock).expect("nobody takes its place")
}

/// Starts the thread of the first runner.
fn start(ports: &Arc<Ports>, clock: impl Clock + Send + Clone + 'static) {
    ThreadGroup::start(ports, 0, None, clock).expect("a thread can be had");
}

/// Ends all threads of the link.
fn end(ports: &Arc<Ports>) {
    ports.rig.runners.iter().for_each(|runner| runner.stop(&ports.rig.threads));
    ports.rig.threads.stop();
    ports.rig.threads.join(&MonotonicClock, Instant::MAX);
}

/// Makes one round of the first runner, and returns the time of its next round.
fn next(ports: &Arc<Ports>, clock: &Instant) -> u64 {
    rounds(ports, 0, clock).1
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
    // The runner visits each port when that port is due, and not before.
    assert_eq!(next(&ports, &NOW.after(299)), NOW.after(300).0);
    assert_eq!(ports.sent(), [0, 0, 0]);
    assert_eq!(next(&ports, &NOW.after(300)), NOW.after(500).0);
    assert_eq!(ports.sent(), [1, 0, 0]);
    assert_eq!(next(&ports, &NOW.after(900)), u64::MAX);
    assert_eq!(ports.sent(), [1, 1, 1]);
}

/// Tasks ask for a recall. The first runner wakes them at the earliest of the times, once, and no
/// other runner does.
#[test]
fn the_first_runner_recalls() {
    let ports = Ports::with_runners(2, &["pfifo"; 2]);
    assert_eq!(next(&ports, &NOW), u64::MAX, "nobody asked");
    ports.rig.recall_by(NOW.after(900));
    ports.rig.recall_by(NOW.after(500));
    ports.rig.recall_by(NOW.after(700));
    assert_eq!(ports.wake_at(), NOW.after(500).0);
    assert_eq!(next(&ports, &NOW.after(499)), NOW.after(500).0);
    assert_eq!(rounds(&ports, 1, &NOW.after(900)), (0, u64::MAX));
    assert_eq!(ports.recalls.get(), 0, "it is too early for the one, and not for the other");
    assert_eq!(next(&ports, &NOW.after(500)), u64::MAX);
    assert_eq!(next(&ports, &NOW.after(900)), u64::MAX);
    assert_eq!(ports.recalls.get(), 1);
}

#[test]
fn an_earlier_wish_of_the_same_port_counts() {
    let ports = Ports::new(&["fq timer_slack 0"]);
    ports.push(0, 1, NOW.after(900));
    ports.push(0, 1, NOW.after(200));
    ports.push(0, 1, NOW.after(600));
    assert_eq!(ports.wake_at(), NOW.after(200).0);
    assert_eq!(next(&ports, &NOW.after(200)), NOW.after(600).0, "the next of what is left");
    assert_eq!(next(&ports, &NOW.after(600)), NOW.after(900).0);
    assert_eq!(next(&ports, &NOW.after(900)), u64::MAX);
    assert_eq!(ports.sent(), [3]);
}

#[test]
fn a_visit_that_ends_at_its_quota_goes_on_at_once() {
    let ports = Ports::new(&["pfifo"]);
    ports.push(0, 150, Instant(0));
    assert_eq!(ports.sent(), [64]);
    assert_eq!(next(&ports, &NOW), NOW.after(2 * TICK_NS).0, "senders may yet do it");
    let now = NOW.after(2 * TICK_NS);
    assert_eq!(next(&ports, &now), 0, "there is more to do");
    assert_eq!(ports.sent(), [128]);
    assert_eq!(next(&ports, &now), now.after(TICK_NS).0, "the port is still busy");
    assert_eq!(ports.sent(), [150]);
}

/// A request for a visit wakes the runner only if the visit is earlier than the time at which the
/// runner wakes by itself.
#[test]
fn only_an_earlier_wish_wakes() {
    let ports = Ports::new(&["pfifo"]);
    let waker = ports.waker(0);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            thread::park();
            ports.wake_at()
        });
        ports.rig.threads.seat(0, sleeper.thread().clone());
        waker.visit_by(NOW.after(700));
        assert!(sleeper.join().expect("it only sleeps") <= NOW.after(700).0);
    });
    // The runner now sleeps until 700 ns after `NOW` at most. A request for the same time or a
    // later one wakes no thread.
    waker.visit_by(NOW.after(700));
    waker.visit_by(NOW.after(800));
    assert_eq!(ports.wake_at(), NOW.after(700).0);
    assert_eq!(waker.slot.calls(), (3, 1));
}

/// A port rests as long as its own runner has learned, whichever runner visits it.
#[test]
fn a_port_rests_as_its_own_runner_wants() {
    let ports = Ports::with_runners(2, &["pfifo"; 2]);
    assert_eq!(ports.waker(1).rest_ns(), 0, "nothing is known yet");
    // Relaxed: one thread.
    ports.rig.runners[1].rest_ns.store(300_000, Ordering::Relaxed);
    assert_eq!([0, 1].map(|port| ports.waker(port).rest_ns()), [0, 300_000]);
    assert_eq!(OwnWaker(ports.waker(1), 0).rest_ns(), 300_000);
    // A runner that spins is to keep the instants.
    let ports = Ports::spinning(50_000, "pfifo");
    ports.rig.runners[0].rest_ns.store(300_000, Ordering::Relaxed); // Relaxed: as above.
    assert_eq!(ports.waker(0).rest_ns(), 0);
}

/// A runner reads what one in some of its sleeps costs.
#[test]
fn a_runner_reads_the_cost_of_some_sleeps() {
    let mut sleeps = Sleeps::default();
    (0..100).for_each(|_| sleeps.cost.note(16_000));
    let before = sleeps.cost.clone();
    (1..MEASURED).for_each(|_| sleeps.sleep(1));
    assert_eq!(sleeps.cost, before);
    sleeps.sleep(1);
    assert_ne!(sleeps.cost, before);
}

/// Sleeps for `limit`. Returns false if another thread woke this thread before that time.
fn sleeps(limit: Duration) -> bool {
    let start = MonotonicClock.now();
    thread::park_timeout(limit);
    MonotonicClock.now() >= start + limit
}

/// A request for a later visit wakes no thread. The test's own thread plays the runner: the test
/// checks that a short sleep of this thread takes its full time.
#[test]
fn a_later_wish_wakes_nobody() {
    let ports = Ports::new(&["pfifo"; 3]);
    let wakers = [0, 1, 2].map(|port| ports.waker(port));
    ports.rig.threads.seat(0, thread::current());
    let (long, short) = (Duration::from_secs(60), Duration::from_millis(5));
    wakers[1].visit_by(NOW.after(500));
    assert!(!sleeps(long), "the first wish");
    wakers[1].visit_by(NOW.after(500));
    wakers[1].visit_by(NOW.after(501));
    assert!(sleeps(short), "the port wants no more than it did");
    wakers[0].visit_by(NOW.after(500));
    wakers[2].visit_by(NOW.after(501));
    wakers[2].visit_by(NOW.after(500));
    assert!(sleeps(short), "other ports do not want it earlier");
    wakers[2].visit_by(NOW.after(499));
    assert!(!sleeps(long), "a nanosecond earlier");
    assert_eq!(ports.wake_at(), NOW.after(499).0);
    // A request that a port makes while its runner visits it wakes no thread: the runner reads the
    // request before it sleeps.
    OwnWaker(ports.waker(0), 0).visit_by(NOW.after(9));
    assert!(sleeps(short));
    assert_eq!(ports.wake_at(), NOW.after(499).0);
}

/// A runner makes up to ten further rounds without a pause, then yields to other threads once, and
/// so on.
#[test]
fn rounds_without_a_pause_are_bounded() {
    for (rounds, restarts) in [(0, 0), (1, 1), (10, 10), (11, 10), (12, 11), (21, 20), (22, 20)] {
        let ports = Ports::new(&["pfifo limit 10000"]);
        // The push sends one quota (64 packets), and each round sends one quota. The last round
        // sends the single packet that is left.
        let count = 64 + 64 * rounds + 1;
        ports.push(0, count, Instant(0));
        start(&ports, NOW.after(2 * TICK_NS));
        while ports.sent() != [u64::from(count)] {
            thread::yield_now();
        }
        end(&ports);
        assert_eq!(ports.rig.runners[0].stats.restarts.get(), restarts, "of {rounds} rounds");
        assert_eq!(ports.rig.runners[0].stats.visits.get(), u64::from(rounds) + 1);
    }
}

/// A wake-up of a runner counts as idle if no port was due. The wake-up that ends the runner does
/// not count as idle, and rounds before the first sleep are not wake-ups at all.
#[test]
fn wake_ups_that_find_nothing_are_counted() {
    let ports = Ports::new(&["pfifo"; 2]);
    let runner = &ports.rig.runners[0];
    let until = |counter: &Counter, count| {
        while counter.get() < count {
            thread::yield_now();
        }
    };
    // The first port is due before the runner starts. After that visit, the runner sleeps.
    ports.waker(0).visit_by(NOW);
    start(&ports, NOW);
    let mut visits = 1;
    until(&runner.stats.visits, visits);
    for turn in 1..=4 {
        // Wake the runner although no port is due, as if another thread had done the work already.
        // A thread may also wake for no reason, so wait for at least one more idle wake-up.
        let idle = runner.stats.idle.get();
        runner.call(&ports.rig.threads);
        until(&runner.stats.idle, idle + 1);
        // Make the first port due. In every second turn, make the second port due after that.
        ports.waker(0).visit_by(NOW);
        visits += 1;
        until(&runner.stats.visits, visits);
        if turn % 2 == 0 {
            ports.waker(1).visit_by(NOW);
            visits += 1;
            until(&runner.stats.visits, visits);
        }
    }
    end(&ports);
    let stats = &runner.stats;
    assert_eq!((stats.visits.get(), stats.restarts.get()), (1 + 6, 0));
    assert!(stats.idle.get() >= 4);
    // Each of the six visits after the first one took one wake-up, and one more wake-up ended the
    // runner.
    assert_eq!(stats.wakeups.get(), stats.idle.get() + 6 + 1);
}

#[test]
fn a_stopped_runner_ends() {
    let ports = Ports::new(&["pfifo", "fq"]);
    start(&ports, NOW);
    end(&ports);
    assert_eq!(Arc::strong_count(&ports), 1);
}

/// A clock that advances by a fixed number of nanoseconds each time it is read.
#[derive(Clone)]
struct Ticking(Cell<u64>, u64);

impl Clock for Ticking {
    fn now(&self) -> Instant {
        Instant(self.0.replace(self.0.get() + self.1))
    }
}

#[test]
fn time_without_a_pause_is_bounded() {
    let ports = Ports::new(&["pfifo limit 10000"]);
    ports.push(0, 64 * 5, Instant(0));
    // Each round reads the clock at least twice, and the clock advances by 0.6 ms each time. So
    // after two rounds, the 2 ms have passed in which a runner may make rounds without a pause.
    let clock = Ticking(Cell::new(NOW.after(2 * TICK_NS).0), 600_000);
    start(&ports, clock);
    while ports.sent() != [64 * 5] {
        thread::yield_now();
    }
    end(&ports);
    let restarts = ports.rig.runners[0].stats.restarts.get();
    assert!(restarts < 4, "{restarts} of 4 rounds: it never gave way");
}

/// Each runner serves its own ports. If another runner is late, it also serves the ports of that
/// runner.
#[test]
fn runners_share_ports() {
    let ports = Ports::with_runners(2, &["fq timer_slack 0"; 4]);
    for port in 0..4 {
        ports.push(port, 1, NOW.after(500));
    }
    let due = NOW.after(500);
    assert_eq!(ports.rig.runners[1].alarm.at(), due.0);
    assert_eq!(rounds(&ports, 0, &due), (2, NEVER));
    assert_eq!(ports.sent(), [1, 0, 1, 0]);
    // The other runner does not make its round, so its ports are late.
    let late = due.after(LATE_NS);
    assert_eq!(rounds(&ports, 0, &Instant(late.0 - 1)), (0, NEVER));
    assert_eq!(rounds(&ports, 0, &late), (2, NEVER));
    assert_eq!(ports.sent(), [1, 1, 1, 1]);
    assert_eq!(rounds(&ports, 1, &late), (0, NEVER), "done already");
}

/// If the runner of a port is late for a visit by `LATE_NS` (1 ms), the port wakes another runner.
/// While that runner has not come yet, the port does not wake it again.
#[test]
fn a_late_runner_is_noticed() {
    let ports = Ports::with_runners(2, &["pfifo"; 2]);
    let waker = ports.waker(0);
    waker.visit_by(NOW);
    assert_eq!((ports.rig.runners[0].alarm.at(), ports.rig.runners[1].alarm.at()), (NOW.0, NEVER));
    waker.visit_by(NOW.after(10 * LATE_NS));
    assert_eq!(ports.rig.runners[1].alarm.at(), NEVER, "a wish for later says nothing of now");
    waker.check_overdue(NOW.after(LATE_NS - 1));
    assert_eq!(ports.rig.runners[1].alarm.at(), NEVER, "not late yet");
    waker.check_overdue(NOW.after(LATE_NS));
    assert_eq!(ports.rig.runners[1].alarm.at(), NOW.after(LATE_NS).0);
    waker.check_overdue(NOW.after(LATE_NS + 1));
    assert_eq!(waker.slot.calls(), (2, 2), "it comes in time");
}

/// A runner that visits a port of another runner sets the alarm of that runner for the work that is
/// left in the port.
#[test]
fn a_stand_in_tells_the_runner_at_home() {
    let ports = Ports::with_runners(2, &["fq timer_slack 0"; 2]);
    ports.push(1, 1, NOW.after(1));
    ports.push(1, 1, NOW.after(5_000_000));
    let late = NOW.after(1 + LATE_NS);
    ports.rig.runners[1].alarm.rise();
    assert_eq!(rounds(&ports, 0, &late).1, NEVER, "not its own");
    assert_eq!(ports.rig.runners[1].alarm.at(), NOW.after(5_000_000).0);
}

#[test]
fn a_runner_stays_on_its_processor() {
    let ports = Ports::new(&["pfifo"]);
    let error = ThreadGroup::start(&ports, 0, Some(1_000_000), NOW).err();
    assert!(matches!(error, Some(StartError::Pin(1_000_000, _))), "{error:?}");
    let cpu = onramp_dev::current_cpu().expect("Linux says");
    ThreadGroup::start(&ports, 0, Some(cpu), NOW).expect("we are on it");
    end(&ports);
}
