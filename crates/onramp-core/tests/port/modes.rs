//! The modes of a port, which determine the thread that sends, and the replacement of a port's
//! qdisc by another.

use onramp_core::Spec;
use onramp_core::{Mode, QUOTA, Rate, SharedRate};
use onramp_queue::DropReason;

use crate::world::{MTU, World};

fn world(qdisc: &str, mode: Mode) -> World {
    World::with(qdisc, 1_000, mode, None)
}

fn replace(world: &World, qdisc: &str) {
    let spec: Spec = qdisc.parse().expect("a qdisc");
    let done = world.port.replace(spec.build(MTU), world.now, &world.waker).expect("few jobs");
    assert!(done, "nobody is inside");
}

/// In dedicated mode, only the runner sends. A push only stages packets, and wakes the runner if no
/// packets were waiting.
#[test]
fn dedicated_leaves_all_to_the_keeper() {
    let mut world = world("pfifo", Mode::Dedicated);
    assert_eq!(world.waker.due(), None);
    assert_eq!(world.push(3), None);
    assert_eq!(world.waker.due(), Some(world.now), "at once");
    world.pass(10);
    let due = world.waker.due();
    assert_eq!(world.push(100), None, "also when a batch is full");
    assert_eq!(world.waker.due(), due, "it knows");
    assert_eq!(world.help(), None);
    assert!(world.sent().is_empty());
    world.check();
    let ran = world.visit();
    assert_eq!((ran.done, ran.again), (QUOTA, true));
    let ran = world.visit();
    assert_eq!((ran.done, ran.again), (103 - QUOTA, false));
    assert_eq!(world.waker.due(), None, "nothing is left to look after");
    assert_eq!(world.push(1), None);
    assert_eq!(world.waker.due(), Some(world.now), "called again");
    world.settle();
    assert_eq!(world.sent(), (0..104).collect::<Vec<_>>());
    let _ = world.port.close(world.now, &world.waker).expect("nobody is inside");
    let _ = world.push(2);
    assert_eq!(world.dropped(DropReason::Purged), 2);
    world.check();
}

/// In inline mode, an owner sends one quota and asks the runner to send the rest. If nothing is
/// left, the runner is not needed.
#[test]
fn inline_hands_over_after_a_quota() {
    let mut world = world("pfifo", Mode::Inline);
    for _ in 0..200 {
        assert_eq!(world.push(1).map(|ran| ran.done), Some(1), "each by itself");
    }
    assert!(!world.port.is_busy());
    let ran = world.push(100).expect("it was idle");
    assert_eq!((ran.done, ran.again), (QUOTA, true));
    assert_eq!(world.waker.due(), Some(world.now));
    assert!(!world.visit().again);
    assert!(!world.port.is_busy(), "a quota is no reason to collect");
    world.check();
}

/// When the qdisc is replaced, all packets of the port move to the new qdisc: first those of the
/// burst that the device did not take, then those of the old qdisc, then those of the intake.
#[test]
fn what_is_held_moves_over() {
    for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
        let mut world = world("fq maxrate 1mbit initial_quantum 0 flow_limit 500", mode);
        world.wire().room = Some(0);
        world.enqueue(300);
        // The device is offered the first packets, but takes none of them.
        world.pass(5_000_000);
        let _ = world.visit();
        let _ = world.push(40);
        replace(&world, "pfifo");
        world.check();
        world.wire().room = None;
        world.settle();
        assert_eq!(world.sent(), (0..340).collect::<Vec<_>>(), "{mode:?}");
        assert_eq!(world.stats().dropped, []);
    }
}

/// When the qdisc is replaced, packets keep their departure times.
#[test]
fn a_new_fq_keeps_departure_times() {
    let mut world = world("fq timer_slack 0", Mode::Hybrid);
    let then = world.now.after(3_000_000);
    let mut list = world.packets(2);
    list.metas_mut().for_each(|meta| meta.txtime_ns = then.0);
    let _ = world.port.xmit(list, world.now, &world.waker).expect("there is room");
    replace(&world, "fq timer_slack 0");
    assert!(world.sent().is_empty());
    world.settle();
    assert_eq!(world.wire().sent, [(0, then), (1, then)]);
}

#[test]
fn a_smaller_qdisc_drops_and_says_so() {
    let mut world = world("pfifo", Mode::Hybrid);
    world.wire().room = Some(0);
    world.enqueue(200);
    replace(&world, "pfifo limit 10");
    assert_eq!(world.dropped(DropReason::Overlimit), 200 - 64 - 10);
    world.wire().room = None;
    world.settle();
    world.check();
    assert_eq!(world.sent(), (0..74).collect::<Vec<_>>());
}

/// The port shares a rate of 1,000 bytes per millisecond. Its packets have 100 bytes, so one packet
/// leaves every 100 us, and the runner is asked to visit at these times.
#[test]
fn a_share_of_a_rate_holds_packets_back() {
    let share = SharedRate::new(Rate::bytes_per_second(1_000_000), 1).share(0);
    let mut world = World::with("pfifo", 1_000, Mode::Hybrid, Some(share));
    let start = world.now;
    let ran = world.push(30).expect("it was idle");
    assert_eq!((ran.done, ran.again), (1, false), "then it has to be paid for");
    world.check();
    world.settle();
    let sent = &world.wire().sent;
    assert_eq!(sent.len(), 30);
    for (i, (_, at)) in sent.iter().enumerate() {
        let due = start.after(100_000 * i as u64);
        assert!(*at >= due && at.since(due) < 100_000, "packet {i} at {}", at.since(start));
    }
}

/// If the device gave a retry time, the runner visits at that time, and not earlier, even if more
/// packets wait in front of the qdisc than one run enqueues.
#[test]
fn a_full_device_is_asked_when_it_said() {
    let mut world = World::new("pfifo limit 10000", 4_000);
    world.wire().room = Some(0);
    world.wire().retry_ns = 20_000;
    assert_eq!(world.push(600).map(|ran| ran.again), Some(true), "more waits than was taken in");
    assert_eq!(world.waker.due(), Some(world.now.after(20_000)));
    world.wire().room = None;
    world.settle();
    world.check();
    assert_eq!(world.sent(), (0..600).collect::<Vec<_>>());
}

/// If too many packets wait in front of the qdisc, a run takes no more packets from the intake. The
/// runner is then asked to visit again for those packets.
#[test]
fn what_was_not_taken_is_not_forgotten() {
    let mut world = World::with("pfifo limit 10", 400, Mode::Dedicated, None);
    world.wire().room = Some(0);
    let more = u64::from(QUOTA) + 1;
    let _ = world.push(256 + more);
    let ran = world.visit();
    let (burst, qdisc) = (10, 10);
    let held = burst + qdisc + more;
    assert_eq!((world.stats().held, ran.again), (held, true), "more than is enqueued at once");
    let _ = world.push(2);
    let ran = world.visit();
    assert_eq!((world.stats().held, ran.again), (burst + qdisc + 2, false));
    assert_eq!(world.waker.due(), Some(world.now));
    world.wire().room = None;
    world.settle();
    world.check();
    assert_eq!(world.stats().held, 0);
}
