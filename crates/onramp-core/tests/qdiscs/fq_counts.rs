//! Tests each counter of `fq`.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const NOW: Instant = Instant(20_000_000_000);
const SEC: u64 = 1_000_000_000;

fn tree(options: &str) -> Tree {
    let mut setup = Setup::default();
    setup.apply(&format!("qdisc add dev e root fq {options}")).expect(options);
    Tree::of(&setup, 1_514, 7).expect("a root")
}

/// Returns all counters of `fq` with their names.
fn stats(tree: &Tree) -> Vec<(&'static str, u64)> {
    let mut all = Vec::new();
    tree.stats(&mut |name, value| all.push((name, value)));
    all
}

fn stat(tree: &Tree, wanted: &str) -> u64 {
    let found = stats(tree).into_iter().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("{wanted} is not counted")).1
}

fn push(tree: &mut Tree, flow: u64, change: impl Fn(&mut Packet)) {
    let mut pkt = Packet::new(500);
    (pkt.flow, pkt.enqueued_ns) = (flow, NOW.0);
    change(&mut pkt);
    let _ = tree.enqueue(NOW, pkt);
}

#[test]
fn what_comes_too_late_for_its_horizon() {
    for (options, caps, drops) in [("horizon_cap", 1, 0), ("horizon_drop", 0, 1)] {
        let mut tree = tree(&format!("horizon 2s {options}"));
        push(&mut tree, 1, |pkt| pkt.txtime_ns = NOW.0 + 2 * SEC);
        push(&mut tree, 1, |pkt| pkt.txtime_ns = NOW.0 + 2 * SEC + 1);
        let counted = (stat(&tree, "horizon_caps"), stat(&tree, "horizon_drops"));
        assert_eq!(counted, (caps, drops), "{options}");
    }
}

#[test]
fn what_its_flow_or_its_band_has_no_room_for() {
    // The number of packets that `fq` accepts whatever its limits are: see the test file
    // `accepts.rs`.
    const FREE: usize = 8;
    let mut tree = tree("limit 3 flow_limit 2");
    (0..FREE).for_each(|_| push(&mut tree, 99, |_| ()));
    (0..4).for_each(|_| push(&mut tree, 1, |_| ()));
    assert_eq!(stat(&tree, "flows_plimit"), 2);
    // Priority 6 is in band 0, priority 0 in band 1, and priority 1 in band 2. Each band has its
    // own limit.
    let drops =
        |tree: &Tree| ["band0_drops", "band1_drops", "band2_drops"].map(|name| stat(tree, name));
    let before = drops(&tree);
    for flow in 10..16 {
        push(&mut tree, flow, |pkt| pkt.priority = 6);
    }
    for flow in 20..25 {
        push(&mut tree, flow, |pkt| pkt.priority = 1);
    }
    let after = drops(&tree);
    assert_eq!([0, 1, 2].map(|band| after[band] - before[band]), [3, 0, 2]);
}

#[test]
fn flows_that_wait_and_flows_that_rest() {
    let mut tree = tree("maxrate 8mbit quantum 500 initial_quantum 500");
    for flow in 0..20 {
        (0..2).for_each(|_| push(&mut tree, flow, |_| ()));
    }
    let mut sent = 0;
    while let Dequeue::Ready(_) = tree.dequeue(NOW) {
        sent += 1;
    }
    // Each flow has sent its first quantum, and must now wait for the time that those bytes take at
    // the rate.
    assert!(sent >= 20, "{sent}");
    assert!(stat(&tree, "throttled") > 0 && stat(&tree, "throttled_flows") > 0);
    let then = NOW.after(SEC);
    while let Dequeue::Ready(_) = tree.dequeue(then) {
        sent += 1;
    }
    assert_eq!((sent, stat(&tree, "throttled_flows")), (40, 0));
    assert_eq!(stat(&tree, "flows"), stat(&tree, "inactive"));
}
