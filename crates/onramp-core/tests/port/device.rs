//! How a port works with devices that are full, and with devices that drop packets.

use onramp_core::{Ran, TICK_NS};
use onramp_queue::DropReason;

use crate::world::{START, World};

#[test]
fn a_full_device_is_asked_again_when_it_said() {
    let mut world = World::new("pfifo", 1000);
    world.wire().room = Some(3);
    assert_eq!(world.push(10), Some(Ran { done: 3, again: false }));
    assert_eq!(world.waker.due(), Some(START.after(50_000)));
    assert_eq!(world.stats().held, 7);
    world.check();
    // Until its retry time, a full device is not called, whatever arrives.
    world.wire().room = None;
    for _ in 0..9 {
        world.pass(5_000);
        assert_eq!(world.push(1), Some(Ran { done: 0, again: false }));
        assert_eq!(world.help(), Some(Ran { done: 0, again: false }));
        assert_eq!(world.wire().offered.len(), 1);
        assert_eq!(world.waker.due(), Some(START.after(50_000)));
        world.check();
    }
    assert_eq!(world.next_visit(), Ran { done: 16, again: false });
    assert_eq!(world.now, START.after(50_000));
    assert_eq!(world.sent(), (0..19).collect::<Vec<_>>(), "nothing overtakes what it left");
    assert!(world.port.is_quiet());
    world.check();
}

#[test]
fn a_device_that_stays_full_is_asked_once_each_time() {
    let mut world = World::new("pfifo", 1000);
    world.wire().room = Some(0);
    let _ = world.push(10);
    for turn in 1..=20 {
        assert_eq!(world.wire().offered.len(), turn);
        assert_eq!(world.next_visit(), Ran { done: 0, again: false });
        assert_eq!(world.now, START.after(turn as u64 * 50_000));
        assert_eq!(world.stats().held, 10);
        world.check();
    }
    world.wire().room = None;
    let _ = world.next_visit();
    assert_eq!(world.sent(), (0..10).collect::<Vec<_>>());
}

/// A device that does not take all packets, but gives no retry time, breaks its contract, but no
/// packet is lost.
#[test]
fn a_device_that_does_not_say_when_is_asked_after_a_tick() {
    let mut world = World::new("pfifo", 1000);
    (world.wire().room, world.wire().sulks) = (Some(3), true);
    assert_eq!(world.push(10), Some(Ran { done: 3, again: false }));
    assert_eq!(world.waker.due(), Some(START.after(TICK_NS)));
    world.check();
    world.wire().room = None;
    world.settle();
    assert_eq!(world.sent(), (0..10).collect::<Vec<_>>());
    world.check();
}

/// The packets that a full device did not take are offered again, together with further packets, in
/// a burst of up to 64 packets.
#[test]
fn what_a_full_device_left_goes_first_and_counts() {
    let mut world = World::new("pfifo", 1000);
    world.wire().room = Some(1);
    let _ = world.push(300);
    assert_eq!(world.wire().offered, [64]);
    world.wire().room = None;
    world.settle();
    assert_eq!(world.sent(), (0..300).collect::<Vec<_>>());
    assert!(world.wire().offered.iter().all(|&burst| burst <= 64));
    world.check();
}

#[test]
fn paced_packets_wait_for_a_full_device_too() {
    let mut world = World::new("fq maxrate 8mbit initial_quantum 0 quantum 256", 1000);
    world.wire().room = Some(2);
    let _ = world.push(20);
    while world.stats().sent < 2 {
        let _ = world.next_visit();
        world.check();
    }
    let full_at = loop {
        let before = world.wire().offered.len();
        let _ = world.next_visit();
        if world.wire().offered.len() > before {
            break world.now;
        }
    };
    world.wire().room = None;
    assert_eq!(world.waker.due(), Some(full_at.after(50_000)));
    world.settle();
    assert_eq!(world.sent(), (0..20).collect::<Vec<_>>());
    world.check();
}

#[test]
fn packets_that_the_device_fails_are_drops() {
    let mut world = World::new("pfifo", 1000);
    world.wire().fails = Some(DropReason::Refused);
    assert_eq!(world.push(30), Some(Ran { done: 30, again: false }));
    assert_eq!(world.dropped(DropReason::Refused), 10);
    let stats = world.stats();
    assert_eq!((stats.sent, stats.sent_bytes), (20, 2_000));
    world.check();
}

/// The number of packets in front of the qdisc (in the intake, and taken from it but not yet
/// enqueued) is bounded by the port's cap, even if packets arrive faster than they are enqueued.
#[test]
fn the_inbox_is_bounded_by_the_cap() {
    let mut world = World::new("pfifo limit 100000", 1000);
    world.wire().room = Some(0);
    let mut refused = 0;
    for _ in 0..50 {
        let list = world.packets(1000);
        if world.port.xmit(list, world.now, &world.waker).is_err() {
            world.pushed -= 1000;
            refused += 1;
        }
        let stats = world.stats();
        let before_qdisc = world.pushed - stats.enqueued;
        assert!(before_qdisc <= 2_000, "a cap in the intake, a cap in the inbox: {before_qdisc}");
        world.check();
    }
    assert!(refused > 10, "who comes faster than the qdisc takes is told: {refused}");
    world.wire().room = None;
    world.settle();
    assert_eq!(world.stats().sent, world.pushed);
}

/// A thread reads the clock before it owns the port, so its time may be older than the time of the
/// previous owner. In that case, the port keeps the newer time: its time stands still instead of
/// going back.
#[test]
fn time_never_goes_back() {
    let mut world = World::new("fq", 1000);
    let _ = world.push(1);
    world.pass(10_000_000);
    let fresh = world.packets(8);
    assert!(world.port.xmit(fresh, world.now, &world.waker).unwrap().is_some());
    // Now a thread pushes that read the clock 10 ms ago.
    let fresh = world.packets(8);
    let ran = world.port.xmit(fresh, START, &world.waker).unwrap();
    assert_eq!(ran, Some(Ran { done: 8, again: false }));
    assert_eq!(world.waker.due(), None);
    assert_eq!(world.stats().held, 0);
    let times: Vec<_> = world.wire().sent.iter().map(|(_, at)| *at).collect();
    assert!(times.is_sorted(), "the device sees no time go back either");
    world.check();
}

/// If a device hands packets on to another device, which finishes them later, the port counts these
/// packets as sent.
#[test]
fn what_a_device_hands_on_is_sent() {
    let mut world = World::new("pfifo", 1000);
    (world.wire().hands_on, world.wire().room) = (true, Some(6));
    world.wire().fails = Some(DropReason::NoBuffers);
    assert_eq!(world.push(10), Some(Ran { done: 6, again: false }));
    let stats = world.stats();
    assert_eq!((stats.sent, stats.held), (4, 4), "of 0 to 5, 0 and 3 failed");
    assert_eq!(stats.dropped, [(DropReason::NoBuffers, 2)]);
    assert_eq!(stats.sojourn_ns.iter().sum::<u64>(), 1);
    assert_eq!(world.wire().elsewhere.len(), 4);
    world.wire().room = None;
    assert_eq!(world.next_visit(), Ran { done: 4, again: false });
    let bytes = world.wire().elsewhere.bytes();
    assert_eq!((world.stats().sent, world.stats().sent_bytes), (6, bytes));
    // Packets that a device hands on count towards the quota of a run like others.
    assert_eq!(world.push(200), Some(Ran { done: 64, again: true }));
    world.settle();
    assert!(world.port.is_quiet());
}
