//! `cake`: the drop probability of BLUE (an algorithm that raises it when memory runs out and
//! lowers it when a queue runs empty), and the round robin among hosts with few flows.
//!
//! Source: Feng, Shin, Kandlur, Saha, "The BLUE Active Queue Management Algorithms", 2002: the
//! probability rises by d1 and falls by d2, at most once within `freeze_time`. Høiland-Jørgensen,
//! Täht, Morton, "Piece of CAKE", 2018: d1 is 1/256, d2 is 1/4,096, and the time is CoDel's target.

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};

const MS: u64 = 1_000_000;
const START_NS: u64 = 20_000 * MS;
/// By how much the probability rises and falls in one step, in units of 2^-32.
const UP: i64 = (1 << 32) / 256;
const DOWN: i64 = (1 << 32) / 4096;

fn tree(options: &str) -> Tree {
    let mut setup = Setup::default();
    let line = format!("qdisc add dev e root handle 1: cake {options}");
    setup.apply(&line).expect("a correct line");
    Tree::of(&setup, 1514, 1).expect("there is a root")
}

fn at(ms: u64) -> Instant {
    Instant(START_NS + ms * MS)
}

fn push(tree: &mut Tree, ms: u64, flow: u64) -> Verdict {
    let mut pkt = Packet::new(1000);
    (pkt.flow, pkt.enqueued_ns) = (flow, at(ms).0);
    tree.enqueue(at(ms), pkt)
}

fn empty(tree: &mut Tree, ms: u64) {
    while let Dequeue::Ready(_) = tree.dequeue(at(ms)) {}
    drop(tree.drops());
}

/// Returns the largest drop probability among the flows that `cake` knows.
fn chance(tree: &mut Tree) -> i64 {
    let views = tree.views();
    views[0].classes.iter().map(|class| class.extra.get("blue_prob")).max().unwrap_or(0)
}

/// Options with a memory limit of four packets, so that a fifth packet overflows.
const LITTLE: &str = "besteffort flows memlimit 10kb";

/// Enqueues `times` packets of flow 1 at `ms` milliseconds, and checks that a packet is dropped
/// exactly when the verdict of the enqueue is `Congested`.
fn overflow(tree: &mut Tree, ms: u64, times: u64) {
    for n in 0..times {
        let dropped = push(tree, ms, 1) == Verdict::Congested;
        assert_eq!(dropped, !tree.drops().is_empty(), "packet {n}");
    }
}

#[test]
fn memory_that_runs_out_adds_a_256th_once_in_a_target() {
    let mut tree = tree(LITTLE);
    overflow(&mut tree, 0, 5);
    assert_eq!(chance(&mut tree), UP);
    // The target is 5 ms. The probability does not rise again 5 ms after it last rose, but it does
    // 6 ms after.
    overflow(&mut tree, 0, 3);
    overflow(&mut tree, 5, 1);
    assert_eq!(chance(&mut tree), UP);
    overflow(&mut tree, 6, 3);
    assert_eq!(chance(&mut tree), 2 * UP);
    overflow(&mut tree, 11, 1);
    assert_eq!(chance(&mut tree), 2 * UP);
    overflow(&mut tree, 12, 1);
    assert_eq!(chance(&mut tree), 3 * UP);
}

/// Each time a packet of another flow is dequeued, `cake` also finds the queue of flow 1 empty,
/// which lowers the drop probability.
#[test]
fn an_empty_queue_takes_a_4096th_off_once_in_a_target() {
    let mut tree = tree(LITTLE);
    overflow(&mut tree, 0, 5);
    empty(&mut tree, 0);
    // Flow 1 has sent more than its quantum, so it leaves the round robin only after some dequeues.
    for ms in 1..5 {
        let _ = push(&mut tree, ms, 2);
        empty(&mut tree, ms);
    }
    assert_eq!(chance(&mut tree), UP);
    for looks in 1..=15_i64 {
        let ms = 6 * looks.unsigned_abs();
        let _ = push(&mut tree, ms, 2);
        empty(&mut tree, ms);
        assert_eq!(chance(&mut tree), UP - looks * DOWN, "look {looks}");
        // After it was lowered, the probability does not change again within the target time (5
        // ms).
        let _ = push(&mut tree, ms + 3, 2);
        empty(&mut tree, ms + 3);
        assert_eq!(chance(&mut tree), UP - looks * DOWN, "look {looks}, and 3 ms");
    }
    let _ = push(&mut tree, 96, 2);
    empty(&mut tree, 96);
    assert_eq!(chance(&mut tree), 0, "a 256th is 16 times a 4,096th");
}

/// If the drop probability of a flow is 40/256, that share of its packets is dropped, although no
/// other rule would drop them.
#[test]
fn the_chance_drops_its_share() {
    let mut tree = tree("besteffort flows memlimit 10kb rtt 1ms");
    let mut ms = 0;
    while chance(&mut tree) < 40 * UP {
        overflow(&mut tree, ms, 6);
        ms += 1;
    }
    empty(&mut tree, ms);
    let before = chance(&mut tree);
    let (mut flood, mut sent) = (0, 0);
    // Because the round-trip time is so short, the target is only 50 us. The queue of flow 1 always
    // holds a packet, so `cake` never finds it empty.
    let _ = push(&mut tree, ms, 1);
    for _ in 0..2_000 {
        let _ = push(&mut tree, ms, 1);
        sent += u32::from(matches!(tree.dequeue(at(ms)), Dequeue::Ready(_)));
        for pkt in tree.drops() {
            assert_eq!(pkt.drop_reason, Some(DropReason::FloodProtection));
            flood += 1;
            let _ = push(&mut tree, ms, 1);
        }
    }
    assert!(chance(&mut tree) <= before);
    let share = f64::from(flood) / f64::from(flood + sent);
    // The tolerance is five standard deviations for 2,000 draws.
    assert!((share - 40.0 / 256.0).abs() < 0.045, "{share}");
}

/// Returns the flows in the order in which their packets leave. `flows` flows to one destination
/// always have packets. With `lone`, so does one flow to another destination.
fn order(flows: u64, lone: bool) -> Vec<u64> {
    let mut tree = tree("besteffort dual-dsthost");
    for n in 0..300 {
        for flow in 1..=flows + u64::from(lone) {
            if flow <= flows && n >= 60 {
                continue;
            }
            let mut pkt = Packet::new(1000);
            (pkt.flow, pkt.enqueued_ns) = (flow, START_NS);
            let host = if flow > flows { 2 } else { 1 };
            pkt.set_dest(Some(([10, 0, 0, host], 9).into()));
            let _ = tree.enqueue(at(0), pkt);
        }
    }
    let next = || match tree.dequeue(at(0)) {
        Dequeue::Ready(pkt) => Some(pkt.flow),
        _ => None,
    };
    std::iter::from_fn(next).skip(100).take(300).collect()
}

/// Whether some flow to the first destination sends two packets in a row.
fn has_pairs(order: &[u64]) -> bool {
    order.windows(2).any(|pair| pair[0] == pair[1] && pair[0] <= 9)
}

/// The flows to one host share that host's quantum of 1,514 bytes per round, so a flow that has
/// sent a packet of 1,000 bytes must wait for several rounds before its next packet. However many
/// flows a host has, no flow sends two packets in a row. With 40 flows and no other host, the test
/// covers a shortcut: if a single host has more than 32 flows, `cake` gives all of them their
/// quanta at once.
#[test]
fn flows_of_a_host_share_its_rounds() {
    for (flows, lone) in [(8, false), (9, false), (9, true), (40, false), (40, true)] {
        assert!(!has_pairs(&order(flows, lone)), "{flows} {lone}");
    }
    // Each flow also sends its fair share of the packets.
    for (flows, lone) in [(8, false), (9, false), (9, true)] {
        let order = order(flows, lone);
        let sent = |flow| order.iter().filter(|other| **other == flow).count();
        let expected = usize::try_from(300 / (1 + u64::from(lone)) / flows).expect("small");
        for flow in 1..=flows {
            assert!(sent(flow).abs_diff(expected) <= 3, "{flow} of {flows}: {}", sent(flow));
        }
    }
}
