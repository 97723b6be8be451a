//! What each count of a port's snapshot means, one by one, with the numbers that follow from what
//! was done.

use std::sync::{Arc, Mutex};

use onramp_core::qdisc::Spec;
use onramp_core::stats::PortSnapshot;
use onramp_core::{Job, Ran, Setup};
use onramp_queue::DropReason;

use crate::busy::make_busy;
use crate::world::World;

/// The counts that are no histograms: enqueued, made, sent, bytes, held, runs, helped, busy,
/// bursts.
fn counts(stats: &PortSnapshot) -> [u64; 9] {
    [
        stats.enqueued,
        stats.made,
        stats.sent,
        stats.sent_bytes,
        stats.held,
        stats.runs,
        stats.helped,
        stats.busy,
        stats.bursts,
    ]
}

#[test]
fn a_port_that_did_nothing_counted_nothing() {
    let stats = World::new("pfifo", 100).stats();
    assert_eq!(counts(&stats), [0; 9]);
    assert!(stats.dropped.is_empty());
    for histogram in [stats.burst_packets, stats.staging_ns, stats.sojourn_ns] {
        assert_eq!(histogram.iter().sum::<u64>(), 0);
    }
}

/// Packets of 100 bytes, a device that takes four, then three, then all; helped once.
#[test]
fn each_count_counts_its_own() {
    let mut world = World::new("pfifo limit 9", 100);
    world.wire().room = Some(4);
    // Of 20 that come, the device is offered 9, as many wait, and 2 find no room.
    assert_eq!(world.push(20), Some(Ran { done: 6, again: false }));
    let stats = world.stats();
    assert_eq!(counts(&stats), [20, 0, 4, 400, 14, 1, 0, 0, 1]);
    assert_eq!(stats.dropped, [(DropReason::Overlimit, 2)]);
    // The device is not asked before its time, but somebody looks.
    assert_eq!(world.help(), Some(Ran { done: 0, again: false }));
    assert_eq!(counts(&world.stats()), [20, 0, 4, 400, 14, 2, 1, 0, 1]);
    world.wire().room = Some(3);
    let _ = world.next_visit();
    assert_eq!(counts(&world.stats()), [20, 0, 7, 700, 11, 3, 1, 0, 2]);
    world.wire().room = None;
    let _ = world.next_visit();
    let stats = world.stats();
    assert_eq!(counts(&stats), [20, 0, 18, 1_800, 0, 4, 1, 0, 3]);
    assert_eq!(stats.dropped, [(DropReason::Overlimit, 2)]);
    world.check();
}

/// A sender that only stages is no owner: what it staged is held, and not enqueued.
#[test]
fn staged_packets_are_held_and_not_enqueued() {
    let mut world = World::new("pfifo", 1_000);
    let pushed = make_busy(&mut world);
    let before = world.stats();
    assert_eq!((before.busy, before.enqueued, before.held), (1, pushed, 0));
    assert_eq!(world.push(7), None);
    let stats = world.stats();
    assert_eq!((stats.enqueued, stats.runs), (before.enqueued, before.runs));
    assert_eq!(stats.held, 7);
    world.settle();
    let stats = world.stats();
    assert_eq!((stats.enqueued, stats.sent, stats.held), (world.pushed, world.pushed, 0));
    // It was busy once, and is not any more.
    assert_eq!(stats.busy, 1);
    let _ = make_busy(&mut world);
    assert_eq!(world.stats().busy, 2);
}

/// What a qdisc makes is counted among what was enqueued, and apart.
#[test]
fn packets_that_were_made_are_counted() {
    let mut world = World::new("netem duplicate 100%", 1_000);
    let _ = world.push(10);
    let stats = world.stats();
    assert_eq!((stats.enqueued, stats.made, stats.sent, stats.sent_bytes), (20, 10, 20, 2_000));
    assert_eq!(stats.held, 0);
}

/// Each reason has a count of its own, and those that never occurred are not named.
#[test]
fn drops_are_counted_by_reason() {
    let mut world = World::new("pfifo limit 15", 1_000);
    world.wire().fails = Some(DropReason::Refused);
    world.wire().room = Some(0);
    let _ = world.push(33);
    // As many are offered to the device as wait.
    assert_eq!(world.stats().dropped, [(DropReason::Overlimit, 3)]);
    world.wire().room = None;
    world.settle();
    let stats = world.stats();
    // Every third of the 30 that the device got.
    assert_eq!(stats.dropped.len(), 2);
    assert!(stats.dropped.contains(&(DropReason::Overlimit, 3)));
    assert!(stats.dropped.contains(&(DropReason::Refused, 10)));
    assert_eq!((stats.sent, stats.sent_bytes, stats.held), (20, 2_000, 0));
}

/// What `tc -s` shows of the root: a packet is requeued each time that the device leaves it
/// (`net/sched/sch_generic.c`, `dev_requeue_skb`, which counts each packet).
#[test]
fn a_packet_is_requeued_each_time_the_device_leaves_it() {
    let mut world = World::new("pfifo", 1000);
    let setup = Arc::new(Setup::of("pfifo".parse::<Spec>().expect("a qdisc")));
    let requeues = |world: &World| {
        let found = Arc::new(Mutex::new(None));
        let (setup, inside) = (setup.clone(), found.clone());
        let job: Job = Box::new(move |trunk, _| {
            *inside.lock().unwrap() = Some(trunk.views(&setup, None)[0].counters.requeues);
        });
        assert!(matches!(world.port.with(job, world.now, &world.keeper), Ok(true)));
        found.lock().unwrap().expect("the job was done")
    };
    assert_eq!(requeues(&world), 0);
    world.wire().room = Some(3);
    let _ = world.push(10);
    assert_eq!(requeues(&world), 7);
    world.wire().room = Some(5);
    while world.stats().bursts < 2 {
        let _ = world.next_visit();
    }
    assert_eq!(requeues(&world), 7 + 2);
    world.wire().room = None;
    world.settle();
    assert_eq!((requeues(&world), world.stats().held), (9, 0));
}
