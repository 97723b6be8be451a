//! Many staged packets, which one owner after another puts in order, because it takes long.

use onramp_core::{QUOTA, QUOTA_NS, Ran};
use onramp_queue::DropReason;

use crate::busy::make_busy;
use crate::world::World;

/// Stages `count` packets, one by one, in a port whose owners are all slow.
fn staged(count: u64) -> World {
    let mut world = World::new("pfifo", 2_000);
    make_busy(&mut world);
    for _ in 0..count {
        assert_eq!(world.push(1), None, "the port is busy");
    }
    world.waker.takes(QUOTA_NS / 2);
    world
}

#[test]
fn slow_owners_share_the_work() {
    let mut world = staged(300);
    let sent = world.sent().len();
    // Four owners put 64 packets in order each, and can send none yet.
    for _ in 0..4 {
        assert_eq!(world.help(), Some(Ran { done: 0, again: true }));
        assert_eq!((world.stats().held, world.sent().len()), (300, sent));
        world.check();
    }
    // The fifth comes to the oldest packet, and sends a burst.
    assert_eq!(world.help(), Some(Ran { done: QUOTA, again: true }));
    world.settle();
    assert_eq!(world.sent(), (0..world.pushed).collect::<Vec<_>>(), "in order");
    world.check();
}

/// Packets that come while owners are at work on older ones stay behind them.
#[test]
fn newer_packets_wait_for_the_older_ones() {
    let mut world = staged(100);
    assert_eq!(world.help(), Some(Ran { done: 0, again: true }));
    assert_eq!(world.push(5), None);
    assert_eq!(world.help(), Some(Ran { done: QUOTA, again: true }));
    assert_eq!(world.push(5), None);
    world.settle();
    assert_eq!(world.sent(), (0..world.pushed).collect::<Vec<_>>(), "in order");
    world.check();
}

/// Packets that are not in order yet count as held, and not as enqueued.
#[test]
fn packets_out_of_order_are_counted() {
    let mut world = staged(200);
    let _ = world.help();
    let stats = world.stats();
    assert_eq!((stats.held, stats.enqueued), (200, world.pushed - 200));
    world.waker.takes(0);
    world.settle();
    assert_eq!(world.stats().enqueued, world.pushed);
    world.check();
}

/// The thread that closes a port drops all packets at once, however long it takes: nobody may come
/// after it.
#[test]
fn a_close_drops_all() {
    for helps in 0..3 {
        let world = staged(300);
        (0..helps).for_each(|_| _ = world.help());
        let ran = world.port.close(world.now, &world.waker).expect("nobody is inside");
        assert_eq!(ran, Ran { done: 300, again: false });
        assert_eq!(world.dropped(DropReason::Purged), 300);
        world.check();
    }
}

#[test]
fn a_port_that_dies_drops_all() {
    let mut world = staged(300);
    let _ = world.help();
    world.wire().panics = true;
    while world.port.death().is_none() {
        let _ = world.help();
    }
    world.settle();
    assert_eq!((world.dropped(DropReason::PortDead), world.stats().held), (300, 0));
}
