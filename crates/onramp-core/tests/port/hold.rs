//! If senders push a burst and then wait for its answers, collecting packets only delays the burst.
//! A port notices that and stops collecting.

use onramp_core::{QUOTA, TICK_NS};

use crate::busy::make_busy;
use crate::world::World;

/// Makes a world whose device needs no system call to send.
fn world() -> World {
    let world = World::new("pfifo limit 10000", 4_000);
    world.wire().calls = 0;
    world
}

/// Pushes a burst and lets the runner visit until all of it has left. Returns true if the port only
/// staged the burst, so that it waited for the runner's visit.
fn burst(world: &mut World) -> bool {
    for _ in 0..QUOTA {
        let _ = world.push(1);
    }
    let lay = world.stats().held > 0;
    while world.stats().held > 0 {
        let _ = world.next_visit();
    }
    world.pass(TICK_NS / 2);
    while world.waker.due().is_some_and(|due| due <= world.now) {
        let _ = world.visit();
    }
    world.check();
    lay
}

/// Senders push 10,000 bursts, one every half tick, and each waits until its burst has left. After
/// a while, the port stops collecting, and sends nearly all bursts at once. (The pauses in
/// collecting grow to 64 ms, which 10,000 bursts outlast several times.)
#[test]
#[cfg_attr(sim, ignore = "takes 8 to 74 seconds in a simulation")]
fn bursts_that_lay_in_vain_end_the_collecting() {
    let mut world = world();
    let _ = make_busy(&mut world);
    let lay = (0..10_000).filter(|_| burst(&mut world)).count();
    assert!((2..100).contains(&lay), "{lay}");
}

/// If each burst costs the device a system call, the port goes on collecting, because one call for
/// many packets is cheaper.
#[test]
fn a_device_that_makes_calls_goes_on_collecting() {
    let mut world = world();
    world.wire().calls = 1;
    let _ = make_busy(&mut world);
    assert!((0..1_000).all(|_| burst(&mut world)));
}

/// If senders pause only once, the port goes on collecting. A single pause may be an accident,
/// because a thread may lose its processor.
#[test]
fn a_single_pause_changes_nothing() {
    let mut world = world();
    let _ = make_busy(&mut world);
    for round in 0..100 {
        (0..QUOTA).for_each(|_| assert_eq!(world.push(1), None, "round {round}"));
        // In every other round, a sender also pushes just before the runner visits, so that there
        // is no pause.
        world.pass(TICK_NS);
        if round % 2 == 0 {
            assert_eq!(world.push(1), None);
        }
        let _ = world.visit();
        while world.stats().held > 0 {
            let _ = world.visit();
        }
        assert!(world.port.is_busy());
        world.check();
    }
}

/// When the port has stopped collecting because of bursts, and a steady stream of packets follows,
/// the port collects again after a while.
#[test]
#[cfg_attr(sim, ignore = "takes 8 to 74 seconds in a simulation")]
fn a_stream_is_collected_again() {
    let mut world = world();
    let _ = make_busy(&mut world);
    let _ = (0..1_000).filter(|_| burst(&mut world)).count();
    let mut staged = 0;
    for _ in 0..200_000 {
        staged += u32::from(world.push(1).is_none());
        world.pass(1_000);
        if world.waker.due().is_some_and(|due| due <= world.now) {
            let _ = world.visit();
        }
    }
    assert!(staged > 100_000, "{staged} of 200,000 in 200 ms");
    world.settle();
    world.check();
}

/// At a port that has stopped collecting, an owner sends up to four quotas, because packets that it
/// leaves only wait for the runner. If packets are still left, the owner asks the runner to visit
/// at once.
#[test]
fn an_owner_goes_on_for_four_quotas() {
    let mut world = world();
    let _ = make_busy(&mut world);
    let _ = (0..10).filter(|_| burst(&mut world)).count();
    assert!(!world.port.is_busy(), "nothing is collected");
    world.wire().offered.clear();
    let ran = world.push(1_000).expect("it was idle");
    assert_eq!((ran.done, ran.again), (4 * QUOTA, true));
    assert!(world.wire().offered.iter().all(|&burst| burst <= QUOTA), "no longer bursts");
    assert_eq!(world.waker.due(), Some(world.now));
}
