//! `hfsc`: the virtual time that a class begins with when it becomes active, and what becomes of it
//! when a limit or an idle parent comes between.
//!
//! Source: Stoica, Zhang, Ng, "A Hierarchical Fair Service Curve Algorithm for Link-Sharing,
//! Real-Time and Priority Services", 1997, section IV.C: the system's virtual time is the mean of
//! the least and the greatest of the active children; and `tc-hfsc(7)`, "Link-sharing criterion"
//! and "Upper limit". Virtual time here is service by the rate of the curve, in seconds.

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Handle, Instant, Setup, Tree};
use onramp_queue::Packet;

const MS: u64 = 1_000_000;
const START_NS: u64 = 20_000 * MS;
/// A packet of 1,000 bytes on a link of 10 Mbit/s.
const PACKET_NS: u64 = 800_000;

/// A tree on a link of 10 Mbit/s, and what the link does with it.
struct World {
    tree: Tree,
    now_ns: u64,
}

impl World {
    fn new(classes: &[&str]) -> Self {
        let mut setup = Setup::default();
        setup.apply("qdisc add dev e root handle 1: hfsc").expect("a correct line");
        for class in classes {
            setup.apply(&format!("class add dev e parent {class}")).expect(class);
        }
        Self { tree: Tree::of(&setup, 1514, 1).expect("there is a root"), now_ns: START_NS }
    }

    fn push(&mut self, minor: u16, packets: u32) {
        for _ in 0..packets {
            let mut pkt = Packet::new(1000);
            pkt.priority = 0x1_0000 + u32::from(minor);
            assert_eq!(self.tree.enqueue(Instant(self.now_ns), pkt), Verdict::Queued);
        }
    }

    /// Lets the link send for so many milliseconds, or until nothing is held; gives the classes of
    /// the packets, in order.
    fn send(&mut self, ms: u64) -> Vec<u16> {
        let (end_ns, mut out) = (self.now_ns + ms * MS, Vec::new());
        while self.now_ns < end_ns {
            match self.tree.dequeue(Instant(self.now_ns)) {
                Dequeue::Ready(pkt) => {
                    out.push(Handle::from_priority(pkt.priority).minor);
                    self.now_ns += PACKET_NS;
                }
                Dequeue::NotBefore(then) => self.now_ns = then.0.min(end_ns),
                Dequeue::Empty => break,
            }
        }
        out
    }

    /// Lets the link send until nothing is held.
    fn empty(&mut self) {
        let _ = self.send(10_000);
        assert_eq!(self.tree.backlog().packets, 0);
    }
}

fn count(out: &[u16], minor: u16) -> usize {
    out.iter().filter(|class| **class == minor).count()
}

/// Packets of `minor` that leave before the first of `other`.
fn before(out: &[u16], minor: u16, other: u16) -> usize {
    let first = out.iter().position(|class| *class == other).expect("it sends");
    count(&out[..first], minor)
}

fn assert_near(found: usize, expected: usize) {
    assert!(found.abs_diff(expected) <= 3, "{found}, expected {expected}");
}

/// A guarantee takes 10 far ahead: with 80 and 20 of 100 packets, at 125 packets a second of
/// virtual time, it is at 0.64 s, and 11 at 0.16 s. The newcomer begins in the middle, at 0.4 s, so
/// that 11 sends 0.24 s, which are 30 packets, before it is the newcomer's turn.
#[test]
fn a_newcomer_begins_midway_between_the_first_and_the_last() {
    let mut world = World::new(&[
        "1: classid 1:10 hfsc rt rate 8mbit ls rate 1mbit",
        "1: classid 1:11 hfsc ls rate 1mbit",
        "1: classid 1:12 hfsc ls rate 1mbit",
    ]);
    world.push(0x10, 300);
    world.push(0x11, 300);
    let out = world.send(80);
    assert_near(count(&out, 0x10), 80);
    assert_near(count(&out, 0x11), 20);
    world.push(0x12, 100);
    assert_near(before(&world.send(400), 0x11, 0x12), 30);
}

/// For 100 ms, the limit holds 10 back to a tenth of the link, and 11 has the rest. Then there is
/// no limit any more: 10 is not to make up for it, and both share the link.
#[test]
fn a_limited_class_does_not_catch_up() {
    let mut world = World::new(&[
        "1: classid 1:10 hfsc ls rate 5mbit ul m1 1mbit d 100ms m2 10mbit",
        "1: classid 1:11 hfsc ls rate 5mbit",
    ]);
    world.push(0x10, 400);
    world.push(0x11, 400);
    let out = world.send(100);
    assert_near(count(&out, 0x10), 13);
    let out = world.send(80);
    assert_near(count(&out, 0x10), 50);
    assert_near(count(&out, 0x11), 50);
}

/// What was put right for a limit ends with the activity: when 10 comes back, it has the tenth of
/// the link again that its limit leaves it, and does not wait until 11 is where it was put.
#[test]
fn what_a_limit_took_is_not_taken_again() {
    let mut world = World::new(&[
        "1: classid 1:10 hfsc ls rate 5mbit ul rate 1mbit",
        "1: classid 1:11 hfsc ls rate 5mbit",
    ]);
    world.push(0x10, 12);
    world.push(0x11, 500);
    assert_near(count(&world.send(120), 0x10), 12);
    world.push(0x10, 100);
    assert_near(count(&world.send(80), 0x10), 10);
}

/// 10 is ahead of 11 by its guarantee when all have sent all. Who comes first then begins at the
/// greatest virtual time there was, and the next one where the first one is: they share alike.
#[test]
fn after_an_idle_time_nobody_is_ahead() {
    for order in [[0x11, 0x10], [0x10, 0x11]] {
        let mut world = World::new(&[
            "1: classid 1:10 hfsc rt m1 8mbit d 80ms m2 8kbit ls rate 1mbit",
            "1: classid 1:11 hfsc ls rate 1mbit",
        ]);
        world.push(0x10, 80);
        world.push(0x11, 20);
        world.empty();
        order.into_iter().for_each(|minor| world.push(minor, 100));
        // The guarantee is over; what is left of it does not matter.
        let out = world.send(80);
        assert_near(count(&out, 0x10), 50);
        assert_near(count(&out, 0x11), 50);
    }
}

/// Below a parent that 11 keeps active, 10 is still ahead when it comes back, and waits until 11 is
/// where it is: by 0.64 s less 0.16 s, or 60 packets. Then they share alike.
#[test]
fn in_the_same_busy_time_who_was_ahead_stays_ahead() {
    let mut world = World::new(&[
        "1: classid 1:1 hfsc ls rate 10mbit",
        "1:1 classid 1:10 hfsc rt m1 8mbit d 80ms m2 8kbit ls rate 1mbit",
        "1:1 classid 1:11 hfsc ls rate 1mbit",
    ]);
    world.push(0x10, 80);
    world.push(0x11, 300);
    assert_near(count(&world.send(80), 0x10), 80);
    // It holds nothing, and comes back.
    assert_eq!(count(&world.send(4), 0x10), 0);
    world.push(0x10, 100);
    assert_near(count(&world.send(44), 0x10), 0);
    assert_near(count(&world.send(80), 0x10), 50);
}

/// A steep beginning is for a class whose virtual time has gone on without it. 11 has used up its
/// own; when all was idle, it begins where 10 has come to meanwhile, and has it again: 9 of 10
/// parts for 50 ms of virtual time, which are 56 packets, while 10 sends 6.
#[test]
fn a_steep_beginning_comes_back_after_an_idle_time() {
    let mut world = World::new(&[
        "1: classid 1:10 hfsc ls rate 1mbit",
        "1: classid 1:11 hfsc ls m1 9mbit d 50ms m2 1mbit",
    ]);
    world.push(0x11, 80);
    world.empty();
    world.push(0x10, 400);
    world.empty();
    world.push(0x11, 100);
    world.push(0x10, 100);
    let out = world.send(50);
    assert_near(count(&out, 0x11), 56);
    assert_near(count(&out, 0x10), 6);
}
