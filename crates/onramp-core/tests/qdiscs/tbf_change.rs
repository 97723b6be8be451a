//! `tbf` when its options change: a change fills both buckets (`net/sched/sch_tbf.c`, `tbf_change`)
//! and keeps the packets that `tbf` holds.

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const NOW: Instant = Instant(20_000_000_000);

fn tree(options: &str) -> Tree {
    let mut setup = Setup::default();
    setup.apply(&format!("qdisc add dev e root handle 1: tbf {options}")).expect(options);
    Tree::of(&setup, 1514, 0).expect("a root")
}

fn change(tree: &mut Tree, options: &str) {
    let line = format!("qdisc change dev e root handle 1: tbf {options}");
    tree.apply(NOW, &line).expect(options);
}

fn push(tree: &mut Tree, packets: u32) {
    for _ in 0..packets {
        assert_eq!(tree.enqueue(NOW, Packet::new(1000)), Verdict::Queued);
    }
}

/// Dequeues without letting time pass. Returns how many packets leave, and after how many
/// nanoseconds the next one may leave.
fn burst(tree: &mut Tree) -> (u32, u64) {
    let mut sent = 0;
    loop {
        match tree.dequeue(NOW) {
            Dequeue::Ready(_) => sent += 1,
            Dequeue::NotBefore(then) => return (sent, then.since(NOW)),
            Dequeue::Empty => panic!("it holds more"),
        }
    }
}

#[test]
fn a_change_fills_the_bucket() {
    let mut tree = tree("rate 8mbit burst 5000 limit 100000");
    push(&mut tree, 40);
    assert_eq!(burst(&mut tree), (5, 1_000_000));
    // At twice the rate, a packet takes half a millisecond. The bucket now holds tokens for six
    // packets.
    change(&mut tree, "rate 16mbit burst 6000 limit 100000");
    assert_eq!(burst(&mut tree), (6, 500_000));
    // A change to the same options fills the bucket again.
    change(&mut tree, "rate 16mbit burst 6000 limit 100000");
    assert_eq!(burst(&mut tree), (6, 500_000));
    assert_eq!(tree.backlog().packets, 40 - 17);
}

#[test]
fn a_change_fills_the_bucket_of_the_peak() {
    let mut tree = tree("rate 8mbit burst 9000 limit 100000 peakrate 16mbit mtu 2000");
    push(&mut tree, 40);
    assert_eq!(burst(&mut tree), (2, 500_000));
    change(&mut tree, "rate 8mbit burst 9000 limit 100000 peakrate 32mbit mtu 3000");
    assert_eq!(burst(&mut tree), (3, 250_000));
    // A change removes the peak rate, so only the bucket of 9,000 bytes limits the burst.
    change(&mut tree, "rate 8mbit burst 9000 limit 100000");
    assert_eq!(burst(&mut tree), (9, 1_000_000));
    change(&mut tree, "rate 8mbit burst 9000 limit 100000 peakrate 16mbit mtu 1000");
    assert_eq!(burst(&mut tree), (1, 500_000));
}

/// After a change, packets that fit the new buckets are accepted, and larger packets are not.
#[test]
fn a_change_says_what_fits() {
    let mut tree = tree("rate 8mbit burst 3000 limit 100000");
    for (options, fits) in [
        ("rate 8mbit burst 1200 limit 100000", 1200),
        ("rate 8mbit burst 4000 limit 100000", 4000),
        ("rate 8mbit burst 4000 limit 100000 peakrate 16mbit mtu 1400", 1400),
    ] {
        change(&mut tree, options);
        assert_eq!(tree.enqueue(NOW, Packet::new(fits)), Verdict::Queued, "{options}");
        assert_eq!(tree.enqueue(NOW, Packet::new(fits + 1)), Verdict::Dropped, "{options}");
        while let Dequeue::Ready(_) = tree.dequeue(NOW) {}
    }
}

/// After a reset, too, both buckets are full.
#[test]
fn a_reset_fills_the_bucket() {
    let mut tree = tree("rate 8mbit burst 5000 limit 100000");
    push(&mut tree, 20);
    let _ = burst(&mut tree);
    tree.reset(NOW);
    push(&mut tree, 20);
    assert_eq!(burst(&mut tree), (5, 1_000_000));
}

/// Linux applies `tbf`'s limit to the child qdisc if that is a FIFO, in bytes or packets, and lists
/// the limit there. A child that is not a FIFO keeps its own limit.
#[test]
fn the_limit_is_listed_at_the_fifo_below() {
    for (below, listed) in [
        ("pfifo limit 5", "pfifo limit 4000"),
        ("bfifo limit 5", "bfifo limit 4000b"),
        ("pfifo_head_drop", "pfifo_head_drop limit 4000"),
        ("codel limit 5", "codel limit 5"),
    ] {
        let mut setup = Setup::default();
        for line in [
            "add dev e root handle 1: tbf rate 8mbit burst 2000 limit 3000",
            &format!("add dev e parent 1:1 handle 2: {below}"),
            "change dev e root handle 1: tbf rate 8mbit burst 2000 limit 4000",
        ] {
            setup.apply(&format!("qdisc {line}")).expect(line);
        }
        assert_eq!(setup.lines()[1], format!("qdisc add dev e parent 1:1 handle 2: {listed}"));
    }
}
