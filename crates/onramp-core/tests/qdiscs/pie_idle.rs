//! `pie`: how the drop probability falls while the queue is empty.
//!
//! Source: RFC 8033, section 4.2 (the controller, and how its gains follow the probability) and
//! section 4.2, step 5 (`drop_prob_ *= 0.98` when both delays are zero). Linux uses 63/64 instead:
//! `net/sched/sch_pie.c`.

use onramp_core::Spec;
use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Tree};
use onramp_queue::Packet;

const MS: u64 = 1_000_000;
const START_NS: u64 = 20_000 * MS;
/// The target delay in seconds.
const TARGET: f64 = 0.015;
/// The gains of the controller (alpha and beta) in Hertz: 2 and 20 sixteenths, the default values.
const ALPHA: f64 = 2.0 / 16.0;
const BETA: f64 = 20.0 / 16.0;

#[expect(clippy::cast_precision_loss, reason = "compared within a millionth")]
fn probability(tree: &Tree) -> f64 {
    let mut found = 0;
    tree.stats(&mut |key, value| {
        if key == "prob" {
            found = value;
        }
    });
    found as f64 / 2_f64.powi(56)
}

/// Returns the number by which RFC 8033 divides the gains when the drop probability is this small.
fn divided_by(probability: f64) -> f64 {
    match probability {
        p if p < 0.000_001 => 2048.0,
        p if p < 0.000_01 => 512.0,
        p if p < 0.000_1 => 128.0,
        p if p < 0.001 => 32.0,
        p if p < 0.01 => 8.0,
        p if p < 0.1 => 2.0,
        _ => 1.0,
    }
}

/// Returns the drop probability after an update, if the delay has changed from `before` to `delay`
/// seconds.
fn moved(old: f64, delay: f64, before: f64) -> f64 {
    let step = ALPHA * (delay - TARGET) + BETA * (delay - before);
    (old + step / divided_by(old)).max(0.0)
}

/// Returns the sequence of drop probabilities from 1.2 s on, looked up each millisecond.
fn course(tree: &mut Tree, count: usize, mut each_ms: impl FnMut(&mut Tree, Instant)) -> Vec<f64> {
    let mut seen = vec![probability(tree)];
    for ms in 1_200..10_000 {
        each_ms(tree, Instant(START_NS + ms * MS));
        let now = probability(tree);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
        if seen.len() > count {
            break;
        }
    }
    seen
}

fn push(tree: &mut Tree, now: Instant, came_ns: u64) {
    let mut pkt = Packet::new(1000);
    pkt.enqueued_ns = came_ns;
    let _ = tree.enqueue(now, pkt);
}

/// Makes a tree that is empty at 1.2 s. Up to then, each departing packet has waited for 200 ms.
fn emptied() -> Tree {
    let spec: Spec = "pie limit 5000 tupdate 20ms".parse().expect("a correct line");
    let mut tree = Tree::new(&spec, 1514);
    for ms in 0..1_200 {
        push(&mut tree, Instant(START_NS), START_NS + ms * MS - 200 * MS);
    }
    for ms in 0..1_200 {
        assert!(matches!(tree.dequeue(Instant(START_NS + ms * MS)), Dequeue::Ready(_)));
    }
    assert_eq!(tree.backlog().packets, 0);
    assert!((0.5..0.99).contains(&probability(&tree)), "{}", probability(&tree));
    tree
}

fn near(found: f64, expected: f64, which: usize) {
    assert!((found - expected).abs() < 1e-6, "update {which}: {found}, expected {expected}");
}

/// While the queue is idle, the probability decays by 1/64 per update. The first update does not
/// decay the probability yet, because its previous delay is 200 ms. From the second update on, both
/// delays are zero.
#[test]
fn an_idle_queue_forgets_a_64th_at_a_time() {
    let mut tree = emptied();
    let seen = course(&mut tree, 1000, |tree, now| {
        assert!(matches!(tree.dequeue(now), Dequeue::Empty));
    });
    near(seen[1], moved(seen[0], 0.0, 0.2), 0);
    for (which, pair) in seen.windows(2).enumerate().skip(1) {
        near(pair[1], moved(pair[0], 0.0, 0.0) * 63.0 / 64.0, which);
    }
    assert!(seen.len() > 50, "{} updates", seen.len());
    assert_eq!(seen.last(), Some(&0.0));
}

/// If packets have arrived, but none of them has left yet, `pie` does not know their delay. The
/// queue is not idle, so the probability does not decay.
#[test]
fn a_queue_that_holds_packets_does_not_forget() {
    let mut tree = emptied();
    let seen = course(&mut tree, 20, |tree, now| push(tree, now, now.0));
    near(seen[1], moved(seen[0], 0.0, 0.2), 0);
    for (which, pair) in seen.windows(2).enumerate().skip(1) {
        near(pair[1], moved(pair[0], 0.0, 0.0), which);
    }
    assert_eq!(seen.len(), 21);
}
