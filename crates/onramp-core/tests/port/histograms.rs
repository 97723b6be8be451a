//! Tests the histograms of a port. The histograms with an entry for each call of the device are
//! checked in every test of a port, by [`World::check`]. The tests here check the time in the
//! intake, and values of many sizes.

use crate::busy::make_busy;
use crate::world::{Buckets, World};

#[test]
fn staging_is_the_wait_of_the_oldest_once_a_take() {
    let mut world = World::new("pfifo", 1_000);
    let mut waits: Vec<u64> = (0..make_busy(&mut world)).map(|_| 0).collect();
    assert_eq!(world.stats().staging_ns, Buckets::of(&waits).0, "one by one, at once");
    for wait in [1, 2, 3, 1_000, 1_023, 1_024, 65_535, 65_536, 90_000] {
        (0..5).for_each(|_| assert_eq!(world.push(1), None));
        world.pass(wait);
        // When a run takes packets from the intake, the histogram counts only the wait of the
        // oldest packet. The packets that are pushed next are younger and do not change the entry.
        (0..5).for_each(|_| assert_eq!(world.push(1), None));
        let _ = world.visit();
        waits.push(wait);
        assert_eq!(world.stats().staging_ns, Buckets::of(&waits).0, "after {wait}");
        world.check();
    }
    // This run takes no packets from the intake, so it adds no entry.
    let _ = world.help();
    assert_eq!(world.stats().staging_ns, Buckets::of(&waits).0);
}

#[test]
fn a_batch_is_one_entry() {
    let mut world = World::new("pfifo", 1_000);
    let _ = world.push(60);
    let stats = world.stats();
    assert_eq!(stats.staging_ns, Buckets::of(&[0]).0);
    assert_eq!(stats.sojourn_ns, Buckets::of(&[0]).0);
    assert_eq!(stats.burst_packets, Buckets::of(&[60]).0);
    assert_eq!(stats.burst_packets[6], 1, "32 to 63");
}

/// The staging histogram covers only the time that packets spend in the intake, however long the
/// qdisc holds them after that. The sojourn histogram covers all of the time until the device takes
/// them.
#[test]
fn sojourn_is_the_time_to_the_device_and_staging_is_not() {
    let mut world = World::new("pfifo", 1_000);
    world.wire().room = Some(0);
    let _ = world.push(10);
    assert_eq!(world.stats().sojourn_ns, Buckets::default().0, "the device took none");
    let mut ages = Vec::new();
    for taken in [1, 3, 6] {
        world.wire().room = Some(taken);
        let due = world.waker.due().unwrap();
        ages.push(due.since(crate::world::START));
        let _ = world.next_visit();
        assert_eq!(world.stats().sojourn_ns, Buckets::of(&ages).0);
        world.check();
    }
    assert_eq!(ages, [50_000, 100_000, 150_000]);
    assert_eq!(world.stats().staging_ns, Buckets::of(&[0]).0);
    assert_eq!(world.stats().burst_packets, Buckets::of(&[10, 10, 9, 6]).0);
}

#[test]
fn bursts_of_every_size() {
    let mut world = World::new("pfifo", 1_000);
    for size in [1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64] {
        let _ = world.push(size);
        world.settle();
        world.check();
    }
}
