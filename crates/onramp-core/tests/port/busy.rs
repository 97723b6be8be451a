//! Busy ports: senders only stage packets, which are collected and sent as a batch.

use onramp_core::{COLLECT, QUOTA, Ran, TICK_NS};

use crate::world::{START, World};

/// Pushes packets one by one, without letting time pass, until the port is busy. Returns the number
/// of packets.
pub(crate) fn make_busy(world: &mut World) -> u64 {
    for count in 1.. {
        assert!(world.push(1).is_some(), "nobody collects yet");
        if world.port.is_busy() {
            assert_eq!(world.stats().held, 0, "all were sent");
            return count;
        }
        assert!(count < 1_000, "many packets at one time make a port busy");
    }
    unreachable!()
}

/// Pushes enough packets in this tick for the port to be still busy when the tick ends.
fn fill_tick(world: &mut World) {
    assert_eq!(world.push(u64::from(QUOTA)), None);
    assert_eq!(world.help(), Some(Ran { done: QUOTA, again: false }));
}

#[test]
fn many_packets_in_a_tick_make_it_busy() {
    let mut world = World::new("pfifo", 1000);
    let count = make_busy(&mut world);
    assert!((2..=u64::from(QUOTA)).contains(&count), "{count}");
    assert_eq!(world.stats().busy, 1);
    assert_eq!(world.waker.due(), Some(START.after(2 * TICK_NS)));
    world.check();
}

#[test]
fn the_same_packets_over_several_ticks_do_not() {
    let mut world = World::new("pfifo", 1000);
    for _ in 0..1_000 {
        assert_eq!(world.push(1), Some(Ran { done: 1, again: false }));
        world.pass(TICK_NS / 10);
    }
    assert_eq!((world.stats().busy, world.waker.due()), (0, None));
    assert!(world.wire().offered.iter().all(|&burst| burst == 1));
    world.check();
}

/// Packets of a tick that ended long ago do not help to make the port busy.
#[test]
fn many_packets_long_ago_do_not() {
    let mut world = World::new("pfifo", 1000);
    let enough = make_busy(&mut world);
    world.settle();
    assert!(!world.port.is_busy());
    world.pass(10 * TICK_NS);
    for _ in 1..enough {
        assert!(world.push(1).is_some());
    }
    assert!(!world.port.is_busy(), "one too few");
    world.pass(10 * TICK_NS);
    assert!(world.push(1).is_some());
    assert!(!world.port.is_busy());
    assert_eq!(world.stats().busy, 1);
}

/// At a busy port, only the push that fills the list of staged packets sends. All other pushes only
/// stage.
#[test]
fn a_busy_port_collects_what_comes() {
    let mut world = World::new("pfifo limit 10000", 4_000);
    let before = make_busy(&mut world);
    for round in 1..=3 {
        for staged in 1..u64::from(COLLECT) {
            assert_eq!(world.push(1), None);
            assert_eq!(world.stats().held, staged);
            world.check();
        }
        assert_eq!(world.push(1), Some(Ran { done: QUOTA, again: true }));
        assert_eq!(world.wire().offered.last(), Some(&QUOTA));
        while world.stats().held > 0 {
            let ran = world.help().expect("nobody is inside");
            assert_eq!(ran.done, QUOTA, "batches, as long as there are any");
            world.check();
        }
        assert_eq!(world.wire().sent.len() as u64, before + round * u64::from(COLLECT));
        assert!(world.port.is_busy(), "until the runner says otherwise");
    }
    assert_eq!(world.sent(), (0..world.pushed).collect::<Vec<_>>());
}

#[test]
fn a_visit_ends_it_when_little_came() {
    let mut world = World::new("pfifo", 1000);
    make_busy(&mut world);
    fill_tick(&mut world);
    world.pass(TICK_NS);
    // The tick that has just ended had many packets. In the next tick, few packets arrive.
    let _ = world.visit();
    assert_eq!(world.push(1), None);
    world.pass(TICK_NS);
    assert_eq!(world.visit(), Ran { done: 1, again: false });
    assert!(!world.port.is_busy());
    assert_eq!(world.waker.due(), None, "nobody has to look after it any more");
    world.check();
    assert_eq!(world.push(1), Some(Ran { done: 1, again: false }), "sent at once, as before");
    world.check();
}

#[test]
fn a_visit_keeps_it_when_much_came() {
    let mut world = World::new("pfifo", 1000);
    make_busy(&mut world);
    fill_tick(&mut world);
    for _ in 0..10 {
        world.pass(TICK_NS);
        let _ = world.visit();
        (0..QUOTA).for_each(|_| assert_eq!(world.push(1), None));
        assert!(world.port.is_busy());
        world.check();
    }
    assert_eq!(world.stats().busy, 1, "one period");
    assert_eq!(world.stats().held, u64::from(QUOTA));
    world.settle();
    assert_eq!(world.stats().held, 0);
    assert!(!world.port.is_busy());
}

/// The runner may visit before the tick is over, because a packet in the qdisc is due. Such a visit
/// does not decide whether the port stays busy.
#[test]
fn a_visit_before_the_tick_is_over_changes_nothing() {
    let mut world = World::new("pfifo", 1000);
    make_busy(&mut world);
    fill_tick(&mut world);
    world.pass(TICK_NS);
    let _ = world.visit();
    for _ in 0..5 {
        world.pass(TICK_NS / 10);
        let _ = world.visit();
        assert!(world.port.is_busy());
        assert_eq!(world.waker.due(), Some(world.now.after(TICK_NS)));
        world.check();
    }
}

/// At a busy port, no packet stays staged longer than two ticks.
#[test]
fn packets_lie_two_ticks_at_most() {
    let mut world = World::new("pfifo", 1000);
    make_busy(&mut world);
    assert_eq!(world.push(1), None);
    let staged = world.now;
    let _ = world.next_visit();
    let (cookie, sent) = *world.wire().sent.last().unwrap();
    assert_eq!(cookie, world.pushed - 1);
    assert!(sent.since(staged) <= 2 * TICK_NS);
    world.check();
}

#[test]
fn who_is_out_of_credit_sends_what_waits() {
    let mut world = World::new("pfifo", 1000);
    make_busy(&mut world);
    for _ in 0..7 {
        assert_eq!(world.push(1), None);
    }
    assert_eq!(world.help(), Some(Ran { done: 7, again: false }));
    assert_eq!(world.wire().offered.last(), Some(&7));
    assert_eq!(world.stats().helped, 1);
    assert!(world.port.is_busy());
    world.check();
    // A thread that runs the port because it waits for credit does not end the busy period, however
    // much time passes: only the runner knows that it has watched the port for a whole tick.
    for _ in 0..3 {
        world.pass(TICK_NS);
        assert_eq!(world.help(), Some(Ran { done: 0, again: false }));
        assert!(world.port.is_busy(), "a helper does not end it");
    }
    assert_eq!(world.help(), Some(Ran { done: 0, again: false }), "nothing is left");
    world.check();
}

#[test]
fn a_cap_below_the_batch_is_the_batch() {
    let mut world = World::new("pfifo", 8);
    make_busy(&mut world);
    for _ in 0..7 {
        assert_eq!(world.push(1), None);
    }
    assert!(!world.port.is_full());
    assert_eq!(world.push(1), Some(Ran { done: 8, again: false }));
    world.check();

    let mut world = World::new("pfifo", 1);
    make_busy(&mut world);
    assert_eq!(world.push(1), Some(Ran { done: 1, again: false }), "every push is a batch");
    world.check();
}
