//! Closing a port: the packets that the port holds are dropped and counted, and so are the packets
//! that arrive later.

use onramp_core::qdisc::Cx;
use onramp_core::{Mode, RootQdisc};
use onramp_queue::{DropReason, Packet};

use crate::world::{Notes, World};

#[test]
fn everything_held_is_purged() {
    // The port holds packets in three places: a burst that the device did not take, packets in the
    // qdisc, and the latest packets in the intake.
    let mut world = World::new("pfifo", 1000);
    world.make_stuck();
    let _ = world.push(69);
    assert_eq!(world.push(5), None);
    assert_eq!(world.stats().held, 105);
    let ran = world.port.close(world.now, &world.waker).expect("nobody is inside");
    assert_eq!((ran.done, ran.again), (105, false));
    assert_eq!(world.dropped(DropReason::Purged), 105);
    assert_eq!(world.stats().held, 0);
    assert!(world.port.is_quiet() && !world.port.is_busy());
    world.check();
}

#[test]
fn the_inbox_is_purged_too() {
    let mut world = World::new("pfifo limit 5000", 2000);
    world.wire().room = Some(0);
    let _ = world.push(2000);
    let queued = world.stats().enqueued;
    assert!(queued < 2000, "the rest waits before the qdisc");
    let _ = world.port.close(world.now, &world.waker).expect("nobody is inside");
    assert_eq!(world.dropped(DropReason::Purged), 2000);
    world.check();
}

#[test]
fn paced_packets_are_purged() {
    let mut world = World::new("fq maxrate 1mbit initial_quantum 0", 1000);
    let _ = world.push(60);
    let _ = world.push(40);
    let held = world.stats().held;
    assert!(held > 0);
    let _ = world.port.close(world.now, &world.waker).expect("nobody is inside");
    assert_eq!(world.dropped(DropReason::Purged), held);
    world.check();
    let visits = world.settle();
    assert!(visits <= 1, "the visit that was asked for finds nothing");
}

#[test]
fn what_comes_afterwards_is_purged() {
    let mut world = World::new("pfifo", 100);
    let _ = world.push(3);
    let _ = world.port.close(world.now, &world.waker).expect("nobody is inside");
    for count in [1, 40, 1, 100] {
        let ran = world.push(count).expect("the port is idle");
        assert_eq!((u64::from(ran.done), ran.again), (count, false));
        world.check();
    }
    assert_eq!(world.dropped(DropReason::Purged), 142);
    assert_eq!(world.stats().sent, 3);
    assert_eq!(world.waker.due(), None);
    assert!(world.port.is_quiet());
}

#[test]
fn closing_twice_is_closing_once() {
    let mut world = World::new("pfifo", 100);
    world.wire().room = Some(0);
    let _ = world.push(9);
    let first = world.port.close(world.now, &world.waker).expect("nobody is inside");
    let again = world.port.close(world.now, &world.waker).expect("nobody is inside");
    assert_eq!((first.done, again.done), (9, 0));
    world.check();
}

/// Closing a port fails while the port has an owner, and then changes nothing. The caller must try
/// again.
#[test]
fn an_owned_port_is_not_closed() {
    let mut world = World::new("pfifo", 100);
    world.wire().closes = Some(true);
    let _ = world.push(1);
    assert_eq!(world.wire().closes, Some(false));
    assert_eq!(world.stats().sent, 1);
    world.check();
}

/// A packet that arrives while a job runs on a closed port is dropped as purged. The port is left
/// idle, because its runner may have gone.
#[test]
fn what_comes_during_a_job_is_purged() {
    for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
        let mut world = World::with("pfifo", 1_000, mode, None);
        let _ = world.push(3);
        let _ = world.port.close(world.now, &world.waker).expect("nobody is inside");
        let (port, now) = (world.port.clone(), world.now);
        let job = Box::new(move |_: &mut RootQdisc, _: &mut Cx<'_>| {
            let list = [Packet::new(60)].into_iter().collect();
            let staged = port.xmit(list, now, &Notes::default()).expect("there is room");
            assert_eq!(staged, None, "the job's thread owns the port");
        });
        assert!(world.port.with(job, world.now, &world.waker).expect("few jobs wait"));
        let stats = world.stats();
        let purged = world.dropped(DropReason::Purged);
        assert_eq!((stats.held, stats.sent + purged), (0, 4), "{mode:?}");
        assert!(world.port.is_quiet() && !world.port.is_busy(), "{mode:?}");
    }
}
