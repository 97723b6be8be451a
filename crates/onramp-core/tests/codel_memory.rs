//! `codel`: how a queue that turns bad again goes on, and how little it leaves alone.
//!
//! Source: RFC 8289, section 5.5: `delta = count - lastcount; count = 1; if (delta > 1 && now -
//! drop_next < 16 * interval) count = delta`, and section 5.4: a queue that holds no more than a
//! packet of the largest size is a good one.

use onramp_core::Spec;
use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Tree};
use onramp_queue::Packet;

const MS: u64 = 1_000_000;
const MTU: u32 = 1514;
/// Like a machine that has been up for a while.
const START_NS: u64 = 20_000 * MS;
/// Of [`bad`], in the units of 1,024 ns in which Linux counts.
const INTERVAL_NS: u64 = 10 * MS / 1_024 * 1_024;

fn stat(tree: &Tree, name: &str) -> u64 {
    let mut found = None;
    tree.stats(&mut |key, value| {
        if key == name {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("{name} is a statistic"))
}

fn push(tree: &mut Tree, now_ns: u64, len: u32) {
    let mut pkt = Packet::new(len);
    pkt.enqueued_ns = now_ns;
    let _ = tree.enqueue(Instant(now_ns), pkt);
}

/// How many packets are dropped as one leaves.
fn dropped_by_pop(tree: &mut Tree, now_ns: u64) -> u32 {
    assert!(matches!(tree.dequeue(Instant(now_ns)), Dequeue::Ready(_)));
    tree.drops().len()
}

fn empty(tree: &mut Tree, now_ns: u64) {
    while let Dequeue::Ready(_) = tree.dequeue(Instant(now_ns)) {}
    assert_eq!(tree.drops().len(), 0, "it drops nothing that is not due");
}

fn tree() -> Tree {
    Tree::new(&"codel target 1ms interval 10ms".parse::<Spec>().expect("a correct line"), MTU)
}

/// A burst stands from `from_ns` on, and a packet leaves each millisecond until the queue has
/// turned bad and `drops` packets are gone; then all leave at once. Gives when the next drop was
/// due then.
fn bad(tree: &mut Tree, from_ns: u64, drops: u32) -> u64 {
    (0..200).for_each(|_| push(tree, from_ns, 1000));
    let (mut now_ns, mut dropped) = (from_ns, 0);
    while dropped < drops {
        now_ns += MS;
        dropped += dropped_by_pop(tree, now_ns);
    }
    assert_eq!((dropped, stat(tree, "dropping")), (drops, 1));
    let due_ns = (now_ns >> 10 << 10) + stat(tree, "drop_next_ns");
    empty(tree, now_ns);
    due_ns
}

/// A queue turns bad `then_ns`: packets wait too long at the first of two looks, and an interval
/// later still. Gives the count that it begins with, and when it drops next, in nanoseconds.
fn bad_again(tree: &mut Tree, then_ns: u64) -> (u64, u64) {
    let from_ns = then_ns - INTERVAL_NS - 3 * MS;
    (0..10).for_each(|_| push(tree, from_ns, 1000));
    assert_eq!(dropped_by_pop(tree, from_ns + 2 * MS), 0);
    assert_eq!(dropped_by_pop(tree, then_ns), 1, "the queue is bad");
    let state = (stat(tree, "count"), stat(tree, "drop_next_ns"));
    empty(tree, then_ns);
    state
}

/// Seven drops are six more than the one it began with: so the pace is that of six.
#[test]
fn a_queue_that_is_bad_again_soon_goes_on_at_its_pace() {
    for (wait_ns, count) in [
        (2 * INTERVAL_NS, 6),
        (16 * INTERVAL_NS - MS, 6),
        (16 * INTERVAL_NS + MS, 1),
        (100 * INTERVAL_NS, 1),
    ] {
        let mut tree = tree();
        let due_ns = bad(&mut tree, START_NS, 7);
        let (again, gap_ns) = bad_again(&mut tree, due_ns + wait_ns);
        assert_eq!(again, count, "{wait_ns} ns after the last drop was due");
        // interval / sqrt(count), of which one step of Newton's method makes within 3 %.
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let (pace, gap) = (INTERVAL_NS as f64 / (count as f64).sqrt(), gap_ns as f64);
        assert!((gap - pace).abs() <= pace * 0.03, "{gap} of {pace} ns");
    }
}

/// What it went on from does not count again: ten drops, of which six were there before, are four.
#[test]
fn only_drops_since_it_turned_bad_count() {
    let mut tree = tree();
    let due_ns = bad(&mut tree, START_NS, 7);
    // It begins with six, which the first drop belongs to; four more make ten.
    let due_ns = bad(&mut tree, due_ns + INTERVAL_NS, 5);
    assert_eq!(stat(&tree, "count"), 10);
    assert_eq!(stat(&tree, "lastcount"), 6);
    assert_eq!(bad_again(&mut tree, due_ns + 4 * INTERVAL_NS).0, 4);
}

/// A difference of one is none: the queue begins anew, at the full interval. A difference of two is
/// one.
#[test]
fn one_drop_more_is_no_pace() {
    for (drops, count) in [(2, 1), (3, 2)] {
        let mut tree = tree();
        let due_ns = bad(&mut tree, START_NS, drops);
        let (again, gap_ns) = bad_again(&mut tree, due_ns + 2 * INTERVAL_NS);
        assert_eq!(again, count);
        if count == 1 {
            assert!(INTERVAL_NS - gap_ns <= 1_024, "{gap_ns}");
        }
    }
}

/// What is left behind the packet that leaves decides: as much as the largest packet is no queue,
/// and a byte more is one.
#[test]
fn as_much_as_a_largest_packet_may_stay() {
    for (left, drops) in [(MTU, 0), (MTU + 1, 1)] {
        let mut tree = tree();
        push(&mut tree, START_NS, 1000);
        push(&mut tree, START_NS, left);
        // The first look starts the clock, or not; what comes now makes a queue at the second one.
        assert_eq!(dropped_by_pop(&mut tree, START_NS + 5 * MS), 0);
        (0..3).for_each(|_| push(&mut tree, START_NS + 5 * MS, 1000));
        assert_eq!(dropped_by_pop(&mut tree, START_NS + 16 * MS), drops, "{left} bytes left");
    }
}

/// RFC 8289, section 5.4: a queue that runs empty is a good one. In `fq_codel`, the others' bytes
/// count, too, so that the last packet of a flow may have been one of a bad queue.
#[test]
fn an_empty_queue_forgets_that_it_was_bad() {
    let spec: Spec = "fq_codel target 1ms interval 10ms noecn".parse().expect("a correct line");
    let mut tree = Tree::new(&spec, MTU);
    let mut send = |flow: u64, ms: u64, packets: u32| {
        for _ in 0..packets {
            let mut pkt = Packet::new(1000);
            (pkt.flow, pkt.enqueued_ns) = (flow, START_NS + ms * MS);
            let _ = tree.enqueue(Instant(START_NS + ms * MS), pkt);
        }
        // It waits for two milliseconds, and then as many leave as it takes to come to it.
        let now = Instant(START_NS + (ms + 2) * MS);
        let mut lost = 0;
        for _ in 0..6 {
            assert!(matches!(tree.dequeue(now), Dequeue::Ready(_)));
            lost += tree.drops().filter(|pkt| pkt.flow == flow).count();
        }
        lost
    };
    assert_eq!(send(1, 0, 400), 0);
    // Flow 2 has a packet now and then, each of which waited too long.
    for turn in 1..=5 {
        assert_eq!(send(2, 20 * turn, 1), 0, "packet {turn}");
    }
}

#[test]
fn a_queue_that_ran_empty_is_not_dropping() {
    let mut tree = tree();
    let _ = bad(&mut tree, START_NS, 3);
    assert_eq!((stat(&tree, "dropping"), stat(&tree, "drop_next_ns")), (0, 0));
}

/// Other parameters leave what was counted.
#[test]
fn a_change_keeps_the_counts() {
    let spec = |line: &str| line.parse::<Spec>().expect("a correct line");
    let line = "codel target 1ms interval 10ms ecn ce_threshold 4ms";
    let mut tree = Tree::new(&spec(line), MTU);
    for n in 0..60 {
        let mut pkt = Packet::new(1000 + n);
        (pkt.ecn, pkt.enqueued_ns) = (2, START_NS);
        let _ = tree.enqueue(Instant(START_NS), pkt);
    }
    (0..55).for_each(|ms| drop(tree.dequeue(Instant(START_NS + ms * MS))));
    let counts = |tree: &Tree| ["maxpacket", "ecn_mark", "ce_mark"].map(|name| stat(tree, name));
    let before = counts(&tree);
    assert!(before[0] == 1054 && before[1] > 2 && before[2] > 40, "{before:?}");
    let mut drops = onramp_queue::PacketList::new();
    let mut cx = onramp_core::qdisc::Cx::new(Instant(START_NS + 60 * MS), &mut drops);
    let other = spec("codel target 2ms interval 30ms");
    assert!(tree.root().change(&other.values(MTU), &mut cx));
    assert_eq!(counts(&tree), before);
}
