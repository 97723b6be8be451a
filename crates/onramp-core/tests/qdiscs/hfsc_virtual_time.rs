//! `hfsc`: the virtual time (service received, divided by the class's rate) at which a class begins
//! when it becomes active, and how an upper limit or an idle parent changes that virtual time.
//!
//! Source: Stoica, Zhang, Ng, "A Hierarchical Fair Service Curve Algorithm for Link-Sharing,
//! Real-Time and Priority Services", 1997, section IV.C: the system's virtual time is the mean of
//! the smallest and the largest virtual time of the active children; and `tc-hfsc(7)`,
//! "Link-sharing criterion" and "Upper limit". Virtual time here is service divided by the rate of
//! the curve, in seconds.

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Handle, Instant, Setup, Tree};
use onramp_queue::Packet;

const MS: u64 = 1_000_000;
const START_NS: u64 = 20_000 * MS;
/// The time that a packet of 1,000 bytes takes on a link of 10 Mbit/s.
const PACKET_NS: u64 = 800_000;

/// A tree on a link of 10 Mbit/s, and the current time.
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

    /// Lets the link send for `ms` milliseconds, or until the tree is empty. Returns the classes of
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

    /// Lets the link send until the tree is empty.
    fn empty(&mut self) {
        let _ = self.send(10_000);
        assert_eq!(self.tree.backlog().packets, 0);
    }
}

fn count(out: &[u16], minor: u16) -> usize {
    out.iter().filter(|class| **class == minor).count()
}

/// Returns how many packets of class `minor` leave before the first packet of class `other`.
fn before(out: &[u16], minor: u16, other: u16) -> usize {
    let first = out.iter().position(|class| *class == other).expect("it sends");
    count(&out[..first], minor)
}

fn assert_near(found: usize, expected: usize) {
    assert!(found.abs_diff(expected) <= 3, "{found}, expected {expected}");
}

/// Because of its guarantee, class 10 has received far more than its share. After 80 packets of
/// class 10 and 20 of class 11, at 125 packets per second of virtual time, class 10 is at 0.64 s of
/// virtual time and class 11 at 0.16 s. The new class 12 begins in the middle, at 0.4 s, so class
/// 11 first sends for 0.24 s of virtual time, which are 30 packets.
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

/// For 100 ms, the upper limit holds class 10 to a tenth of the link, and class 11 gets the rest.
/// Then the limit ends. Class 10 does not make up for the lost time, and both classes share the
/// link.
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

/// `hfsc` corrects the virtual time of a class that its upper limit has held back. The correction
/// ends when the class becomes idle. When class 10 becomes active again, it gets the tenth of the
/// link that its limit allows, and does not wait until class 11 has reached the corrected virtual
/// time.
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

/// When all packets have been sent, class 10 is ahead of class 11 in virtual time because of its
/// guarantee. The class that becomes active first after that begins at the largest virtual time so
/// far, and the other class begins at the same virtual time, so both share the link equally.
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
        // The steep part of class 10's guarantee is over. What its guarantee still promises after
        // that is too little to matter.
        let out = world.send(80);
        assert_near(count(&out, 0x10), 50);
        assert_near(count(&out, 0x11), 50);
    }
}

/// Classes 10 and 11 have the same parent, and class 11 keeps the parent active. When class 10
/// becomes active again, it is still ahead in virtual time, at 0.64 s. So it waits until class 11,
/// at 0.16 s, has caught up by sending 60 packets. Then both classes share the link equally.
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
    // Class 10 sends its last packet, and then becomes active again.
    assert_eq!(count(&world.send(4), 0x10), 0);
    world.push(0x10, 100);
    assert_near(count(&world.send(44), 0x10), 0);
    assert_near(count(&world.send(80), 0x10), 50);
}

/// A class may use the steep first part of its curve again if virtual time went on without it.
/// Class 11 uses up its steep part and becomes idle. Then class 10 sends, and becomes idle too.
/// When both have packets again, class 11 begins at the virtual time that class 10 has reached, and
/// has its steep part again: for 50 ms of virtual time, class 11 sends at 9 Mbit/s (56 packets) and
/// class 10 at 1 Mbit/s (6 packets).
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
