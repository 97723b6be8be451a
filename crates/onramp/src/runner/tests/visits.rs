//! Tests of one visit of a runner to a port.

use std::sync::{Mutex, OnceLock, Weak};

use onramp_core::{DeviceInfo, Transmitted};

use super::*;

/// A link with one port. The port's device takes all packets. During a call, the device can let
/// another thread take over the runner's role, as happens when a device blocks a runner for too
/// long.
struct World {
    rig: Rig,
    slots: Slots<Relieves>,
    has_room: Mutex<bool>,
    rings: Mutex<u32>,
}

struct Relieves {
    info: DeviceInfo,
    world: Arc<OnceLock<Weak<World>>>,
}

impl Device for Relieves {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        if let Some(world) = self.world.get().and_then(Weak::upgrade) {
            let post = &world.rig.runners[0].post;
            let out = post.is_out().expect("the runner is with its device");
            assert!(post.relieve(out, 5));
        }
        done.append(burst);
        Transmitted::default()
    }
}

impl Serves<Relieves> for Arc<World> {
    fn rig(&self) -> &Rig {
        &self.rig
    }
    fn slots(&self) -> &Slots<Relieves> {
        &self.slots
    }
    fn has_room(&self, _slot: &Slot<Relieves>) -> bool {
        *self.has_room.lock().expect("no panic")
    }
    fn ring(&self) {
        *self.rings.lock().expect("no panic") += 1;
    }
    fn recall(&self) {}
}

impl World {
    /// Makes the link. If `may_block` is true, another thread takes over the runner's role during
    /// each call of the device.
    fn new(may_block: bool) -> Arc<Self> {
        let world = Arc::new(OnceLock::new());
        let info = DeviceInfo::new("relieves".to_owned(), 1_514);
        let device = Relieves { info, world: world.clone() };
        let spec: Spec = "fq timer_slack 0".parse().expect("a qdisc");
        let slots = Slots::with_capacity(1);
        let port = Port::new(spec.build(1_514), device, 10_000);
        assert_eq!(slots.add(Slot::new(port, 1_514, may_block, 0)), Some(0));
        let (has_room, rings) = (Mutex::new(false), Mutex::new(0));
        let this = Arc::new(Self { rig: Rig::new(1, None), slots, has_room, rings });
        if may_block {
            world.set(Arc::downgrade(&this)).expect("it is set once");
        }
        this
    }

    fn waker(&self) -> SlotWaker<'_, Relieves> {
        SlotWaker {
            rig: &self.rig,
            slot: self.slots.get(0).expect("a port"),
            clock: &MonotonicClock,
        }
    }

    /// Pushes a packet that may not leave before the time `at`.
    fn push(&self, at: Instant) {
        let mut packet = Packet::new(100);
        (packet.txtime_ns, packet.enqueued_ns) = (at.0, NOW.0);
        let waker = self.waker();
        let _ = waker.slot.port.xmit(PacketList::from_iter([packet]), NOW, &waker).expect("room");
    }

    fn round(self: &Arc<Self>, now: Instant) -> Option<(u32, u64)> {
        self.rig.runners[0].alarm.rise();
        round(self, Seat { me: 0, number: 0 }, &now)
    }
}

/// If a sender waits for room in a port, the runner checks the port every millisecond, and tells
/// the sender as soon as there is room.
#[test]
fn a_wish_is_looked_after_until_it_is_fulfilled() {
    let world = World::new(false);
    let slot = world.slots.get(0).expect("a port");
    slot.want_room();
    world.waker().visit_by(NOW);
    assert_eq!(world.round(NOW), Some((1, NOW.after(1_000_000).0)));
    assert_eq!(world.round(NOW.after(999_999)), Some((0, NOW.after(1_000_000).0)));
    let later = NOW.after(1_000_000);
    assert_eq!(world.round(later), Some((1, NOW.after(2_000_000).0)));
    assert_eq!(*world.rings.lock().expect("no panic"), 0, "there is no room");
    *world.has_room.lock().expect("no panic") = true;
    assert_eq!(world.round(NOW.after(2_000_000)), Some((1, NEVER)));
    assert_eq!(*world.rings.lock().expect("no panic"), 1);
    // The sender has been told once that there is room, so a further visit does not tell the sender
    // again.
    world.waker().visit_by(NOW);
    assert_eq!(world.round(NOW.after(3_000_000)), Some((1, NEVER)));
    assert_eq!(*world.rings.lock().expect("no panic"), 1);
}

/// If another thread takes over the role of a runner while a device blocks that runner's thread,
/// requests that the port made during the visit are not lost.
#[test]
fn who_was_relieved_passes_on_what_the_port_asked_for() {
    let world = World::new(true);
    let (first, second) = (NOW.after(1), NOW.after(5_000_000));
    world.push(first);
    world.push(second);
    assert_eq!(world.round(first), None, "another has the role");
    assert_eq!(world.rig.runners[0].post.holder(), 5);
    assert_eq!(world.slots.marked().count(), 1, "who has it now looks at the port");
    assert_eq!(world.rig.runners[0].alarm.at(), second.0, "and is awake in time");
}

/// A runner looks only at marked ports. A port is marked from its request for a visit until a
/// runner has visited the port.
#[test]
fn a_port_that_wants_nothing_is_not_looked_at() {
    let world = World::new(false);
    assert_eq!(world.slots.marked().count(), 0);
    world.push(NOW.after(10));
    assert_eq!(world.slots.marked().count(), 1);
    assert_eq!(world.round(NOW), Some((0, NOW.after(10).0)));
    assert_eq!(world.slots.marked().count(), 1, "it is not due yet");
    assert_eq!(world.round(NOW.after(10)), Some((1, NEVER)));
    assert_eq!(world.slots.marked().count(), 0);
}

/// If each visit finds that another thread owns the port, the runner visits the port less and less
/// often: after 1, 2, 4 ticks, and so on up to 64 ticks of 100 µs.
#[test]
fn visits_in_vain_become_rare() {
    let world = World::new(false);
    let (waker, slot) = (world.waker(), world.slots.get(0).expect("a port"));
    let due_after = |ran: Option<Ran>| {
        again(&waker, slot, ran, NOW);
        let due = slot.visits().due.at();
        slot.visits().due.take(NEVER - 1);
        due.wrapping_sub(NOW.0)
    };
    for _ in 0..2 {
        // The port counts, in 8 bits, the visits in a row that found another owner. 300 of them
        // would overflow this counter if it did not stop at 255.
        for time in 0..300 {
            let ticks = if time < 6 { 1 << time } else { 64 };
            assert_eq!(due_after(None), ticks * 100_000, "time {time}");
        }
        // A visit that finds the port without an owner resets the delay.
        assert_eq!(due_after(Some(Ran { done: 3, again: true })), 0, "at once");
    }
    again(&waker, slot, Some(Ran { done: 3, again: false }), NOW);
    assert_eq!(slot.visits().due.at(), NEVER, "there is nothing more to do");
}

/// If a link has only one runner, a late visit sets no alarm: there is no other runner that could
/// make the visit instead.
#[test]
fn an_only_runner_is_not_reminded() {
    let ports = Ports::new(&["pfifo"]);
    let waker = ports.waker(0);
    waker.visit_by(NOW);
    ports.rig.runners[0].alarm.rise();
    waker.check_overdue(NOW.after(10 * LATE_NS));
    assert_eq!(ports.wake_at(), NEVER);
}

/// The number of rounds that a runner makes without a pause is bounded even before its first sleep:
/// after the first round, it makes at most ten further rounds.
#[test]
fn the_first_rounds_are_as_many_as_later_ones() {
    let ports = Ports::new(&["pfifo limit 10000"]);
    ports.push(0, 64 + 64 * 10 + 1, Instant(0));
    start(&ports, NOW.after(2 * TICK_NS));
    while ports.sent() != [64 + 64 * 10 + 1] {
        thread::yield_now();
    }
    end(&ports);
    assert_eq!(ports.rig.runners[0].stats.restarts.get(), 10);
}

/// A clock that advances by a fixed time for each packet that a device has taken.
#[derive(Clone)]
struct Taken(Arc<NullStats>, u64);

impl Clock for Taken {
    fn now(&self) -> Instant {
        NOW.after(2 * TICK_NS + self.0.packets.get() * self.1)
    }
}

/// A runner makes rounds without a pause for less than 2 ms, and then yields.
#[test]
fn the_time_without_a_pause_is_two_milliseconds() {
    // Each case has the time that a round of 64 packets takes (1 ms, slightly less than 1 ms, 2 ms,
    // slightly less than 2 ms), and the expected number of rounds that the runner starts without a
    // pause after the round before.
    for (round_ns, restarts) in [(1_000_000, 2), (999_936, 3), (2_000_000, 0), (1_999_936, 2)] {
        let ports = Ports::new(&["pfifo limit 10000"]);
        let count = 64 + 64 * 4 + 1;
        ports.push(0, count, Instant(0));
        start(&ports, Taken(ports.sent[0].clone(), round_ns / 64));
        while ports.sent() != [u64::from(count)] {
            thread::yield_now();
        }
        end(&ports);
        let counted = ports.rig.runners[0].stats.restarts.get();
        assert_eq!(counted, restarts, "four rounds of {round_ns} ns");
    }
}

/// A runner sleeps while no port wants a visit.
#[test]
fn a_runner_without_work_sleeps() {
    let ports = Ports::new(&["pfifo"]);
    start(&ports, NOW);
    // In this time, a runner that does not sleep would make thousands of rounds.
    thread::sleep(Duration::from_millis(5));
    end(&ports);
    let wakeups = ports.rig.runners[0].stats.wakeups.get();
    assert!(wakeups < 100, "{wakeups} wake-ups, and one had a reason: to end");
}

/// Besides the threads of its runners, a group has places for 63 threads that devices block, and
/// for the watch (the thread that watches the runners).
#[test]
fn a_crew_has_sixty_four_stand_ins() {
    for runners in [1, 2, 64] {
        assert_eq!(ThreadGroup::new(runners, None).places(), runners + 64);
    }
}
