//! A sender that pushes to a closed or dead port drops packets that the port holds: at most its own
//! and 256 of other senders. The runner drops the rest.

use std::sync::Barrier;
use std::thread;

use onramp_core::{Mode, Ran};
use onramp_queue::{Credits, DropReason, PacketList, Pool};

use crate::world::{Notes, START, World, packet};

/// The most packets of other senders that a sender enqueues in one call, or drops at a closed port.
const QUOTA: u64 = 256;
/// A number of packets that is many times 256, the most that a sender drops for others.
const MANY: u64 = 9_000;

const MODES: [Mode; 2] = [Mode::Hybrid, Mode::Inline];

/// Makes a port whose device takes nothing, with `queued` packets in the qdisc and `waiting`
/// packets in front of it.
fn laden(mode: Mode, queued: u64, waiting: u64) -> World {
    let mut world = World::with("pfifo limit 100000", 20_000, mode, None);
    world.wire().room = Some(0);
    if queued > 0 {
        world.enqueue(queued);
    }
    if waiting > 0 {
        // A list of `waiting` packets arrives while the owner is in the device. The owner enqueues
        // at most 256 of them.
        world.pass(1_000_000);
        let list = world.packets(waiting);
        world.wire().comes = Some(list);
        if world.push(1).is_none() {
            let _ = world.help(); // The busy port only staged the packet, so make a run.
        }
        assert!(world.wire().comes.is_none(), "the device was asked");
    }
    world.check();
    world
}

/// Pushes `own` packets. While the device transmits, another thread tries to close the port, and
/// cannot, because the port has an owner. The owner must then close the port.
fn push_into_the_close(world: &mut World, own: u64) -> Ran {
    world.pass(1_000_000);
    world.wire().closes = Some(true);
    // If the port is busy, the push only stages the packets. Then a thread that waits for credit
    // makes the run.
    let ran = world.push(own).or_else(|| world.help()).expect("nobody is inside");
    assert_eq!(world.wire().closes.take(), Some(false), "it was owned");
    ran
}

/// Checks that the counts of a port balance while only a part of its packets has been dropped, and
/// that the runner is asked to drop the rest.
#[track_caller]
fn tells_the_truth(world: &World, reason: DropReason) {
    let stats = world.stats();
    assert_eq!(world.pushed, stats.sent + world.dropped(reason) + stats.held);
    assert_eq!(world.port.is_quiet(), stats.held == 0);
    let comes = world.waker.due().is_some_and(|due| due <= world.now);
    assert!(stats.held == 0 || comes, "the runner comes at once");
}

/// A sender that finds that its port was closed meanwhile drops its own packets and at most 256 of
/// other senders. The runner drops the rest.
#[test]
fn a_sender_that_meets_a_close_drops_a_quota() {
    for mode in MODES {
        for (queued, waiting) in [(MANY, 0), (0, MANY), (MANY, MANY), (QUOTA / 2, MANY)] {
            let mut world = laden(mode, queued, waiting);
            let held = world.stats().held;
            let own = 3;
            let ran = push_into_the_close(&mut world, own);
            let dropped = world.dropped(DropReason::Purged);
            let what = format!("{mode:?}, {queued} queued, {waiting} waiting: {ran:?}");
            assert!(dropped <= QUOTA + own, "{what}: {dropped} dropped");
            assert!(ran.again && u64::from(ran.done) == dropped, "{what}");
            assert_eq!(world.stats().held, held + own - dropped, "{what}");
            tells_the_truth(&world, DropReason::Purged);
            world.check();
            // More senders push before the runner visits. Each of them drops no more than its own
            // packets and 256 of others.
            for own in [1, 64, 500] {
                let before = world.dropped(DropReason::Purged);
                let _ = world.push(own);
                let dropped = world.dropped(DropReason::Purged) - before;
                assert!(dropped <= QUOTA + own, "{what}: {dropped} dropped for {own}");
                tells_the_truth(&world, DropReason::Purged);
            }
            assert!(world.settle() <= 3, "{what}: the runner has time");
            assert_eq!((world.stats().held, world.port.is_quiet()), (0, true), "{what}");
            assert!(!world.port.is_busy(), "{what}");
            world.check();
        }
    }
}

/// One visit of the runner drops everything that a closed port holds. The visit is bounded
/// nevertheless, because the intake limits the packets in front of the qdisc.
#[test]
fn the_keeper_drops_all() {
    for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
        let mut world = World::with("pfifo limit 100000", 20_000, mode, None);
        world.wire().room = Some(0);
        world.enqueue(3 * MANY / 2);
        let _ = world.push(MANY);
        let held = world.stats().held;
        let ran = world.port.close(world.now, &world.waker).expect("nobody is inside");
        assert_eq!((u64::from(ran.done), ran.again), (held, false), "{mode:?}");
        assert!(world.port.is_quiet());
        world.check();
    }
}

/// Three threads push without pause into a closed port, so that each of them owns the port now and
/// then. In one call, a thread drops no more than 256 packets of the other threads.
#[test]
fn nobody_works_for_all_at_a_closed_port() {
    const LIST: u32 = 64;
    let world = World::new("pfifo", 20_000);
    let _ = world.port.close(world.now, &world.waker).expect("nobody is inside");
    let barrier = Barrier::new(3);
    let (port, barrier) = (&world.port, &barrier);
    let pushed: u64 = thread::scope(|scope| {
        let push = move || {
            let notes = Notes::default();
            let mut pushed = 0;
            barrier.wait();
            for _ in 0..3_000 {
                let list: PacketList = (0..LIST).map(|n| packet(n.into(), 7, START)).collect();
                match port.xmit(list, START, &notes) {
                    Ok(Some(ran)) => {
                        let most = u32::try_from(QUOTA).unwrap() + LIST;
                        assert!(ran.done <= most, "{} in one call", ran.done);
                        pushed += u64::from(LIST);
                    }
                    Ok(None) => pushed += u64::from(LIST),
                    Err(_full) => {}
                }
                if notes.due().is_some() {
                    // A runner would visit now. This test has no runner, so the thread that was
                    // asked to wake it makes the visit.
                    let _ = port.visit(START, &notes);
                }
            }
            pushed
        };
        let threads = [(); 3].map(|()| scope.spawn(push));
        threads.into_iter().map(|thread| thread.join().expect("it is bounded")).sum()
    });
    while !port.is_quiet() {
        let _ = port.visit(START, &world.waker).expect("nobody is inside");
    }
    assert_eq!(world.dropped(DropReason::Purged), pushed);
    assert_eq!(world.stats().held, 0);
}

/// A device panics in a sender's call while the port holds thousands of packets of other senders.
/// The sender returns without dropping them, and the runner's next visit drops them.
#[test]
fn the_sender_that_meets_a_panic_buries_nobody() {
    for mode in MODES {
        let mut world = laden(mode, 0, 0);
        let mut pool = Pool::new(Credits { packets: 5_000, bytes: 1 << 20 });
        let mut list: PacketList = (0..5_000).map(|_| pool.take(9).expect("a credit")).collect();
        list.stamp(world.now.0, true);
        world.pushed += 5_000;
        let _ = world.port.xmit(list, world.now, &world.waker).expect("there is room");
        while world.stats().enqueued < 5_000 {
            let _ = world.visit();
        }
        world.pass(1_000_000);
        world.wire().panics = true;
        let _ = world.push(2);
        let _ = world.help();
        assert_eq!(world.port.death(), Some("as the script says"), "{mode:?}");
        assert_eq!(pool.returned(), 0, "{mode:?}: nobody has buried them yet");
        assert_eq!(world.stats().held, 5_002, "{mode:?}");
        tells_the_truth(&world, DropReason::PortDead);
        // Other senders push before the runner visits, and drop nothing either.
        for own in [1, 64, 500] {
            let _ = world.push(own);
            let _ = world.help();
            assert_eq!(pool.returned(), 0, "{mode:?}");
            tells_the_truth(&world, DropReason::PortDead);
        }
        let held = world.stats().held;
        assert_eq!(held, world.pushed, "{mode:?}");
        let ran = world.visit();
        assert!(!ran.again, "{mode:?}");
        assert_eq!(world.dropped(DropReason::PortDead), held);
        assert_eq!((world.stats().held, world.port.is_quiet()), (0, true), "{mode:?}");
        let mut dead = 0;
        pool.reclaim(|fate| dead += u32::from(fate.drop_reason == Some(DropReason::PortDead)));
        assert_eq!(dead, 5_000, "{mode:?}: each is told");
        // After the runner's visit, the call that pushes packets to the dead port drops them.
        let ran = world.push(70).expect("the port is idle");
        assert_eq!((ran.done, ran.again), (70, false));
        tells_the_truth(&world, DropReason::PortDead);
    }
}

/// If a port holds few packets when it dies, they are dropped in the same call, and the runner need
/// not visit.
#[test]
fn a_port_with_few_packets_is_buried_at_once() {
    for mode in MODES {
        let mut world = laden(mode, QUOTA - 10, 0);
        world.pass(1_000_000);
        world.wire().panics = true;
        let _ = world.push(2);
        let _ = world.help();
        assert!(world.port.death().is_some());
        assert_eq!(world.dropped(DropReason::PortDead), QUOTA - 8, "{mode:?}");
        assert!(world.port.is_quiet() && world.stats().held == 0, "{mode:?}");
    }
}

/// If a port is closed after its death, its packets are dropped only once. A port that is closed
/// first calls its device no more, so the device cannot panic.
#[test]
fn a_close_finds_a_dead_port() {
    for closes_first in [false, true] {
        let mut world = laden(Mode::Hybrid, MANY, 0);
        world.wire().panics = true;
        if closes_first {
            // The device has given a retry time. After the close, the device is not called at that
            // time any more.
            let _ = world.port.close(world.now, &world.waker).expect("nobody is inside");
        }
        world.pass(1_000_000);
        let _ = world.push(2);
        let _ = world.help();
        assert_eq!(world.port.death().is_some(), !closes_first);
        let _ = world.port.close(world.now, &world.waker).expect("nobody is inside");
        let reason = if closes_first { DropReason::Purged } else { DropReason::PortDead };
        assert_eq!(world.dropped(reason), world.pushed, "{reason:?}");
        assert!(world.port.is_quiet() && world.stats().held == 0);
    }
}

/// A sender at a port that is closed in its call drops everything if that is at most 256 packets of
/// others and its own. If the qdisc holds one packet more, the sender drops only the burst that the
/// device did not take, and the runner is asked to visit at once and drop the rest.
#[test]
fn a_sender_has_time_for_a_quota_and_its_own() {
    for (mode, own) in [(Mode::Inline, 3), (Mode::Inline, 200), (Mode::Hybrid, 0)] {
        for (queued, all) in [(QUOTA, true), (QUOTA + 1, false)] {
            let mut world = laden(mode, queued, 0);
            world.pass(1_000_000);
            world.waker.forget();
            world.wire().closes = Some(true);
            let ran = if own > 0 { world.push(own) } else { world.help() };
            let ran = ran.expect("nobody is inside");
            let what = format!("{mode:?}, {queued} and {own}");
            let dropped = if all { queued + own } else { 64 };
            assert_eq!((u64::from(ran.done), ran.again), (dropped, !all), "{what}");
            // After the close, a visit is due at once or not at all. The device's retry time no
            // longer counts.
            let at_once = world.waker.due().is_some_and(|due| due == world.now);
            assert_eq!(at_once, !all, "{what}");
            assert_eq!(world.stats().held, queued + own - dropped, "{what}");
            world.settle();
            assert_eq!(world.dropped(DropReason::Purged), queued + own, "{what}");
            assert!(world.port.is_quiet() && !world.port.is_busy(), "{what}");
        }
    }
}

/// When a port dies in a sender's call, the sender drops everything if that is at most 256 packets
/// of others and its own. If the port holds one packet more, the sender drops nothing and the
/// runner drops everything.
#[test]
fn a_sender_buries_a_quota_and_its_own() {
    for own in [2, 100] {
        for (queued, all) in [(QUOTA, true), (QUOTA + 1, false)] {
            let mut world = laden(Mode::Inline, queued, 0);
            world.pass(1_000_000);
            world.waker.forget();
            world.wire().panics = true;
            let ran = world.push(own).expect("nobody is inside");
            assert_eq!(ran.again, !all, "{queued}");
            let dropped = if all { queued + own } else { 0 };
            assert_eq!(world.dropped(DropReason::PortDead), dropped, "{queued}");
            assert_eq!(world.stats().held, queued + own - dropped, "{queued}");
            assert_eq!(world.waker.due(), (!all).then_some(world.now), "{queued}");
            world.settle();
            assert_eq!(world.dropped(DropReason::PortDead), queued + own, "{queued}");
            assert!(world.port.is_quiet(), "{queued}");
        }
    }
}

/// When a port dies, packets that its qdisc made are dropped, too.
#[test]
fn what_was_made_dies_with_its_port() {
    let mut world = World::new("netem delay 1ms duplicate 100%", 100);
    let _ = world.push(10);
    world.wire().panics = true;
    world.pass(1_000_000);
    let _ = world.visit();
    assert_eq!(world.stats().dropped, [(DropReason::PortDead, 20)]);
    assert_eq!((world.stats().held, world.port.is_quiet()), (0, true));
}
