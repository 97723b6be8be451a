//! A thread that pushes to an idle port becomes its owner and sends, up to a quota of packets.

use onramp_core::{QUOTA, QUOTA_NS, Ran, TICK_NS};
use onramp_queue::{DropReason, Full};

use crate::world::{START, World};

#[test]
fn the_pusher_sends() {
    let mut world = World::new("pfifo", 100);
    assert_eq!(world.push(1), Some(Ran { done: 1, again: false }));
    assert_eq!(world.wire().sent, [(0, START)]);
    assert_eq!(world.waker.due(), None, "there is nothing to look after");
    assert!(world.port.is_quiet() && !world.port.is_busy());
    world.check();
}

#[test]
fn a_batch_is_one_burst() {
    let mut world = World::new("pfifo", 100);
    assert_eq!(world.push(20), Some(Ran { done: 20, again: false }));
    assert_eq!(world.wire().offered, [20]);
    assert_eq!(world.sent(), (0..20).collect::<Vec<_>>());
    world.check();
}

#[test]
fn a_push_of_nothing_does_nothing() {
    let mut world = World::new("pfifo", 100);
    assert_eq!(world.push(0), None);
    assert_eq!(world.stats().runs, 0);
    world.check();
}

#[test]
fn a_quota_leaves_the_rest_to_the_keeper() {
    let mut world = World::new("pfifo", 1000);
    assert_eq!(world.push(200), Some(Ran { done: QUOTA, again: true }));
    assert_eq!(world.wire().offered, [QUOTA]);
    assert!(world.port.is_busy());
    assert_eq!(world.stats().held, 136);
    // The owner asks the runner to visit in two ticks, which only makes sure that the runner knows
    // of the busy port. The runner then visits the port at every tick.
    assert_eq!(world.waker.due(), Some(START.after(2 * TICK_NS)));
    world.check();
    assert_eq!(world.next_visit(), Ran { done: QUOTA, again: true });
    assert_eq!(world.waker.due(), Some(world.now), "there is more to do at once");
    assert_eq!(world.next_visit(), Ran { done: QUOTA, again: true });
    assert_eq!(world.next_visit(), Ran { done: 8, again: false });
    assert_eq!(world.sent(), (0..200).collect::<Vec<_>>());
    world.check();
}

#[test]
fn a_quota_that_ends_with_the_last_packet_leaves_nothing() {
    let mut world = World::new("pfifo", 1000);
    let quota = u64::from(QUOTA);
    assert_eq!(world.push(quota), Some(Ran { done: QUOTA, again: false }));
    world.check();
    assert_eq!(world.stats().held, 0);
}

/// Packets that another thread pushes while the owner works are sent by the owner, not by the
/// pushing thread.
#[test]
fn the_owner_looks_again_before_it_leaves() {
    let mut world = World::new("pfifo", 100);
    let late = world.packets(5);
    world.wire().comes = Some(late);
    let ran = world.push(1);
    assert_eq!(ran, Some(Ran { done: 6, again: false }));
    assert_eq!(world.sent(), [5, 0, 1, 2, 3, 4]);
    assert!(!world.port.is_busy());
    assert_eq!(world.waker.due(), None);
    world.check();
}

/// In one run, an owner sends at most one quota, however many packets other threads push meanwhile.
#[test]
fn a_run_is_bounded_also_when_packets_keep_coming() {
    let mut world = World::new("pfifo limit 10000", 1000);
    let late = world.packets(900);
    world.wire().comes = Some(late);
    assert_eq!(world.push(10), Some(Ran { done: QUOTA, again: true }));
    assert_eq!(world.stats().held, 910 - u64::from(QUOTA));
    world.check();
    world.settle();
    assert_eq!(world.stats().held, 0);
    assert_eq!(world.stats().sent, 910);
}

#[test]
fn the_cap_gives_packets_back() {
    let mut world = World::new("pfifo", 40);
    let stuck = world.make_stuck();
    assert_eq!(world.push(31), None);
    assert!(!world.port.is_full());
    let list = world.packets(10);
    let Err(Full(list)) = world.port.xmit(list, world.now, &world.waker) else {
        panic!("31 wait, and 40 may");
    };
    let given_back: Vec<_> = list.map(|pkt| pkt.cookie).collect();
    assert_eq!(given_back, (stuck + 31..stuck + 41).collect::<Vec<_>>());
    world.pushed -= 10;
    world.check();
    assert_eq!(world.stats().held, stuck + 31);
    // There is room for nine more packets. They fill the list of staged packets, so the thread that
    // pushes them sends.
    assert!(world.push(9).is_some());
    assert_eq!(world.stats().held, stuck + 40);
    world.check();
}

/// A run asks for another run if packets still wait in front of the qdisc, even if the qdisc itself
/// is empty.
#[test]
fn what_waits_before_the_qdisc_is_more_to_do() {
    let mut world = World::new("pfifo limit 10", 1000);
    let ran = world.push(1000).expect("the port was idle");
    assert!(ran.again && ran.done < 1000);
    world.check();
    let at = world.waker.due().expect("the runner was asked");
    let _ = world.visit();
    while world.waker.due() == Some(world.now) {
        let _ = world.visit();
    }
    assert_eq!(world.stats().held, 0, "all at once, and not a tick later");
    assert!(world.now < at);
    world.check();
}

#[test]
fn drops_of_the_qdisc_are_counted_and_leave() {
    let mut world = World::new("pfifo limit 10", 100);
    world.wire().room = Some(0);
    let ran = world.push(30);
    // Of the 30 packets, ten were offered to the device (which is full), ten wait in the qdisc, and
    // ten were dropped.
    assert_eq!(ran, Some(Ran { done: 10, again: false }));
    assert_eq!(world.dropped(DropReason::Overlimit), 10);
    assert_eq!(world.stats().dropped, [(DropReason::Overlimit, 10)]);
    world.check();
    world.wire().room = None;
    world.settle();
    assert_eq!(world.sent(), (0..20).collect::<Vec<_>>());
    world.check();
}

/// If a sender pushes packets as one list and the device takes all of them, no packet is dropped,
/// however long the list and however small the qdisc's limit. Linux would drop none either, because
/// there the packets would arrive one by one.
#[test]
fn a_list_that_came_at_once_is_no_backlog() {
    for (qdisc, most) in [("pfifo limit 1", 1), ("pfifo limit 10", 10), ("bfifo limit 700", 7)] {
        let mut world = World::new(qdisc, 100);
        assert_eq!(world.push(30), Some(Ran { done: 30, again: false }), "{qdisc}");
        assert_eq!(world.sent(), (0..30).collect::<Vec<_>>());
        assert!(world.wire().offered.iter().all(|&burst| burst <= most), "{qdisc}");
        world.check();
    }
    let mut world = World::new("fq flow_limit 7", 100);
    assert_eq!(world.push(30), Some(Ran { done: 30, again: false }));
    assert_eq!(world.sent(), (0..30).collect::<Vec<_>>());
    // With a limit of 0, no packet fits, so all are dropped, as in Linux.
    let mut world = World::new("pfifo limit 0", 100);
    assert_eq!(world.push(30), Some(Ran { done: 30, again: false }));
    assert_eq!(world.dropped(DropReason::Overlimit), 30);
    world.check();
}

/// If a burst takes too long, the owner begins no further burst, and leaves the rest to the runner.
#[test]
fn a_quota_has_a_bound_in_time() {
    let mut world = World::new("pfifo limit 10", 100);
    world.waker.takes(QUOTA_NS - 1);
    assert_eq!(world.push(30), Some(Ran { done: 30, again: false }));
    world.waker.takes(QUOTA_NS);
    assert_eq!(world.push(30), Some(Ran { done: 10, again: true }), "one burst");
    world.check();
    world.settle();
    assert_eq!(world.sent(), (0..60).collect::<Vec<_>>());
}
