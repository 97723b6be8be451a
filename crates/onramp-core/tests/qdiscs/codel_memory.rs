//! `codel`: how fast it drops when a queue becomes bad again (packets wait too long), and how short
//! a queue must be for CoDel to leave it alone.
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
/// The time at which the tests begin, in nanoseconds, like that of a machine that has been up for a
/// while.
const START_NS: u64 = 20_000 * MS;
/// The interval of CoDel in these tests, in nanoseconds, rounded to the units of 1,024 ns in which
/// Linux counts.
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

/// Dequeues one packet and returns how many packets that dequeue drops.
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

/// Makes the queue bad (its packets wait too long): a burst arrives at `from_ns`, and one packet
/// leaves each millisecond until `drops` packets have been dropped. Then all packets leave at once.
/// Returns the time at which the next drop would have been due.
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

/// Makes the queue bad again at `then_ns`: packets wait too long at a first dequeue, and still do
/// at a second dequeue one interval later, which drops a packet. Returns CoDel's drop count after
/// that drop, which sets the rate of drops, and the time until the next drop in nanoseconds.
fn bad_again(tree: &mut Tree, then_ns: u64) -> (u64, u64) {
    let from_ns = then_ns - INTERVAL_NS - 3 * MS;
    (0..10).for_each(|_| push(tree, from_ns, 1000));
    assert_eq!(dropped_by_pop(tree, from_ns + 2 * MS), 0);
    assert_eq!(dropped_by_pop(tree, then_ns), 1, "the queue is bad");
    let state = (stat(tree, "count"), stat(tree, "drop_next_ns"));
    empty(tree, then_ns);
    state
}

/// CoDel's drop count starts at one. Seven drops raise the count by six. If the queue is bad again
/// soon, CoDel continues at the rate that belongs to a count of six.
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
        // The expected gap is `interval / sqrt(count)`. One step of Newton's method gives it to
        // within 3 %.
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let (pace, gap) = (INTERVAL_NS as f64 / (count as f64).sqrt(), gap_ns as f64);
        assert!((gap - pace).abs() <= pace * 0.03, "{gap} of {pace} ns");
    }
}

/// A bad phase starts with the number by which the phase before it raised CoDel's drop count, not
/// with the whole count. Here the second phase raises the count from six to ten, so the third phase
/// starts with a count of four.
#[test]
fn only_drops_since_it_turned_bad_count() {
    let mut tree = tree();
    let due_ns = bad(&mut tree, START_NS, 7);
    // In the second phase, the count begins at six, which includes the first drop. Four more drops
    // make ten.
    let due_ns = bad(&mut tree, due_ns + INTERVAL_NS, 5);
    assert_eq!(stat(&tree, "count"), 10);
    assert_eq!(stat(&tree, "lastcount"), 6);
    assert_eq!(bad_again(&mut tree, due_ns + 4 * INTERVAL_NS).0, 4);
}

/// If a bad phase raised the drop count by only one, the next phase begins anew at the full
/// interval. If the phase raised the count by two, the next phase begins with a count of two.
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

/// A queue is a standing one only if, when a packet leaves, more bytes are left than one packet of
/// the largest size has.
#[test]
fn as_much_as_a_largest_packet_may_stay() {
    for (left, drops) in [(MTU, 0), (MTU + 1, 1)] {
        let mut tree = tree();
        push(&mut tree, START_NS, 1000);
        push(&mut tree, START_NS, left);
        // The first dequeue starts CoDel's interval only if enough bytes are left. Then more
        // packets arrive, so that the second dequeue finds a standing queue. It drops a packet if
        // the interval was started.
        assert_eq!(dropped_by_pop(&mut tree, START_NS + 5 * MS), 0);
        (0..3).for_each(|_| push(&mut tree, START_NS + 5 * MS, 1000));
        assert_eq!(dropped_by_pop(&mut tree, START_NS + 16 * MS), drops, "{left} bytes left");
    }
}

/// RFC 8289, section 5.4: a queue that runs empty is a good one, from which nothing is dropped.
/// `fq_codel` counts the bytes of all flows, so flow 2 could lose its only packet if `fq_codel` did
/// not notice that the queue of the flow ran empty.
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
        // The packets of `flow` wait for two milliseconds. Then six packets leave, enough for
        // `flow` to get its turn.
        let now = Instant(START_NS + (ms + 2) * MS);
        let mut lost = 0;
        for _ in 0..6 {
            assert!(matches!(tree.dequeue(now), Dequeue::Ready(_)));
            lost += tree.drops().filter(|pkt| pkt.flow == flow).count();
        }
        lost
    };
    assert_eq!(send(1, 0, 400), 0);
    // Flow 2 sends one packet every 20 ms, and each of its packets waits longer than the target.
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

/// A change of parameters keeps the counters of `codel`.
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
