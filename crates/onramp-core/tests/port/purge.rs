//! A sender that comes to a closed or dead port works for others no longer than at any other port:
//! it drops a quota of packets and its own, and leaves the rest to the runner.

use std::sync::Barrier;
use std::thread;

use onramp_core::{Mode, Ran};
use onramp_queue::{Credits, DropReason, PacketList, Pool};

use crate::world::{Notes, START, World, packet};

/// The number of packets that a sender enqueues for others in one call, and that it drops for
/// others at a closed port.
const QUOTA: u64 = 256;
/// Many times the quota.
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
        // The list arrives while another thread is in the device. The owner enqueues at most a
        // quota of it.
        world.pass(1_000_000);
        let list = world.packets(waiting);
        world.wire().comes = Some(list);
        if world.push(1).is_none() {
            let _ = world.help(); // The busy port only staged the packet.
        }
        assert!(world.wire().comes.is_none(), "the device was asked");
    }
    world.check();
    world
}

/// Pushes `own` packets. Meanwhile another thread tries to close the port and finds that it has an
/// owner.
fn push_into_the_close(world: &mut World, own: u64) -> Ran {
    world.pass(1_000_000);
    world.wire().closes = Some(true);
    // A busy port only stages the packets. Then a waiting sender helps.
    let ran = world.push(own).or_else(|| world.help()).expect("nobody is inside");
    assert_eq!(world.wire().closes.take(), Some(false), "it was owned");
    ran
}

/// Checks the counts of a port of whose packets only a part was dropped.
#[track_caller]
fn tells_the_truth(world: &World, reason: DropReason) {
    let stats = world.stats();
    assert_eq!(world.pushed, stats.sent + world.dropped(reason) + stats.held);
    assert_eq!(world.port.is_quiet(), stats.held == 0);
    let comes = world.waker.due().is_some_and(|due| due <= world.now);
    assert!(stats.held == 0 || comes, "the runner comes at once");
}

/// A sender drops at most a quota and its own packets. The runner drops the rest of the packets in
/// the qdisc and in front of it.
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
            // Packets that arrive before the runner's visit do not increase the work of a sender.
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

/// One visit of the runner drops everything in the qdisc. The intake bounds the packets in front of
/// the qdisc.
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

/// Three threads push without pause into a closed port, and each of them owns it now and then. None
/// of them drops more than a quota of the packets of the others.
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
                    // The runner would visit now. Here, the thread that was asked to wake the
                    // runner visits itself.
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

/// A device panics in a sender's call while its port holds thousands of packets of others. The
/// runner's visit drops these packets, and the sender goes on.
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
        // Other senders come to the port before the runner does.
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
        // From now on, packets are dropped in the call that brings them.
        let ran = world.push(70).expect("the port is idle");
        assert_eq!((ran.done, ran.again), (70, false));
        tells_the_truth(&world, DropReason::PortDead);
    }
}

/// If few packets are held when a port dies, they are dropped at once, and no visit is needed.
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

/// A port that is closed after its death, or dies while it is closed, drops its packets only once.
#[test]
fn a_close_finds_a_dead_port() {
    for closes_first in [false, true] {
        let mut world = laden(Mode::Hybrid, MANY, 0);
        world.wire().panics = true;
        if closes_first {
            // The device had given a retry time, but is not called any more after the close.
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

/// A sender drops exactly up to 256 packets of others and its own, if that is everything. With one
/// more packet in the qdisc, the sender drops only the burst that the device left, and the runner
/// visits at once to drop the rest.
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
            // The retry time of the device no longer causes a visit.
            let at_once = world.waker.due().is_some_and(|due| due == world.now);
            assert_eq!(at_once, !all, "{what}");
            assert_eq!(world.stats().held, queued + own - dropped, "{what}");
            world.settle();
            assert_eq!(world.dropped(DropReason::Purged), queued + own, "{what}");
            assert!(world.port.is_quiet() && !world.port.is_busy(), "{what}");
        }
    }
}

/// When a port dies in a sender's call, the sender drops up to 256 packets of others and its own.
/// With one more packet, the runner drops everything.
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

/// Packets that a qdisc made are dropped when the port dies, too.
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
