//! `fq_codel`: what it drops when it is above its limit, and what happens when its options change
//! or when it is reset.
//!
//! Source: RFC 8290, section 4.1: above the limit, packets are dropped from the head of the longest
//! flow, at most `drop_batch` packets or half of its bytes; `tc-fq_codel(8)`; Linux'
//! `fq_codel_drop`, which also adds these drops to the count that sets CoDel's drop rate.

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const NOW: Instant = Instant(20_000_000_000);

fn tree(options: &str) -> Tree {
    let mut setup = Setup::default();
    let line = format!("qdisc add dev e root handle 1: fq_codel {options}");
    setup.apply(&line).expect("a correct line");
    Tree::of(&setup, 1514, 1).expect("a root")
}

fn push(tree: &mut Tree, flow: u64, len: u32) -> Verdict {
    let mut pkt = Packet::new(len);
    (pkt.flow, pkt.enqueued_ns) = (flow, NOW.0);
    tree.enqueue(NOW, pkt)
}

/// Dequeues up to `packets` packets. Returns their flows in order.
fn next(tree: &mut Tree, packets: usize) -> Vec<u64> {
    let pop = || match tree.dequeue(NOW) {
        Dequeue::Ready(pkt) => Some(pkt.flow),
        _ => None,
    };
    std::iter::from_fn(pop).take(packets).collect()
}

fn stat(tree: &Tree, name: &str) -> u64 {
    let mut found = 0;
    tree.stats(&mut |key, value| found += if key == name { value } else { 0 });
    found
}

/// Returns CoDel's drop count of each flow that is in the list of new or old flows, in ascending
/// order.
fn counts(tree: &mut Tree) -> Vec<i64> {
    let classes = &tree.views()[0].classes;
    let mut counts: Vec<i64> = classes.iter().map(|class| class.extra.get("count")).collect();
    counts.sort_unstable();
    counts
}

/// Above the limit, `fq_codel` drops half of the longest flow or `drop_batch` packets, whichever is
/// less. CoDel's drop count of that flow counts these drops.
#[test]
fn a_batch_goes_from_the_fattest_flow() {
    for (options, packets, dropped) in [
        ("limit 100", 100, 50),
        ("limit 40", 40, 20),
        ("limit 200", 200, 64),
        ("limit 200 drop_batch 10", 200, 10),
        ("limit 200 drop_batch 300", 200, 100),
    ] {
        let mut tree = tree(options);
        assert_eq!(push(&mut tree, 1, 1000), Verdict::Queued);
        for _ in 1..packets {
            assert_eq!(push(&mut tree, 2, 1000), Verdict::Queued);
        }
        assert_eq!(push(&mut tree, 1, 1000), Verdict::Queued, "{options}: its own flow lost none");
        let drops: Vec<_> = tree.drops().map(|pkt| pkt.flow).collect();
        assert_eq!(drops, vec![2; dropped], "{options}");
        assert_eq!(stat(&tree, "drop_overlimit"), dropped as u64);
        assert_eq!(stat(&tree, "drop_overmemory"), 0);
        assert_eq!(counts(&mut tree), [0, i64::try_from(dropped).expect("few")]);
    }
}

/// Packets that are dropped because of the memory limit have their own counter.
#[test]
fn drops_for_memory_are_counted_apart() {
    let mut tree = tree("limit 1000 memory_limit 20000");
    while push(&mut tree, 1, 1000) == Verdict::Queued {}
    let dropped = u64::from(tree.drops().len());
    assert!(dropped > 1);
    assert_eq!((stat(&tree, "drop_overmemory"), stat(&tree, "drop_overlimit")), (dropped, dropped));
}

/// A changed quantum applies to all rounds of service after the change.
#[test]
fn a_change_of_the_quantum_counts() {
    let mut tree = tree("quantum 1000 limit 10000");
    for _ in 0..100 {
        for flow in [1, 2] {
            let _ = push(&mut tree, flow, 500);
        }
    }
    let row = |flows: &[u64]| flows.chunk_by(|a, b| a == b).map(<[u64]>::len).max();
    assert_eq!(row(&next(&mut tree, 40)), Some(2));
    let line = "qdisc change dev e root handle 1: fq_codel quantum 3000";
    tree.apply(NOW, line).expect(line);
    assert_eq!(row(&next(&mut tree, 60)), Some(6));
}

/// A reset clears CoDel's drop count of each flow.
#[test]
fn a_reset_forgets_the_pace() {
    let mut tree = tree("limit 39");
    (0..40).for_each(|_| _ = push(&mut tree, 1, 1000));
    assert_eq!(counts(&mut tree), [20]);
    tree.reset(NOW);
    let _ = push(&mut tree, 1, 1000);
    assert_eq!(counts(&mut tree), [0]);
}
