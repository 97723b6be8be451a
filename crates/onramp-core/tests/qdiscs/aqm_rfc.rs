//! Checks CoDel, FQ-CoDel and PIE against the numbers in RFC 8289 (CoDel), RFC 8290 (FQ-CoDel) and
//! RFC 8033 (PIE). All options have Linux's default values, which are those of the RFCs.

use std::collections::VecDeque;

use onramp_core::Spec;
use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Tree};
use onramp_queue::{DropReason, Packet};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// PIE updates its drop probability when the clock reaches a multiple of 30 ms. `START` is such a
/// time.
const START: Instant = Instant(21_000 * MS);
const LEN: u32 = 1_000;

fn tree(line: &str) -> Tree {
    Tree::new(&line.parse::<Spec>().expect(line), 1514)
}

fn push(tree: &mut Tree, now: Instant, flow: u64, ecn: u8) -> Verdict {
    let mut pkt = Packet::new(LEN);
    (pkt.flow, pkt.ecn, pkt.enqueued_ns) = (flow, ecn, now.0);
    tree.enqueue(now, pkt)
}

fn pop(tree: &mut Tree, now: Instant) -> Option<Packet> {
    match tree.dequeue(now) {
        Dequeue::Ready(pkt) => Some(pkt),
        _ => None,
    }
}

fn stat(tree: &Tree, name: &str) -> u64 {
    let mut found = None;
    tree.stats(&mut |key, value| {
        if key == name {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("{name} is a statistic"))
}

/// RFC 8289, 3.3 and 5.6: while a standing queue persists, the time from the n-th drop to the next
/// is `interval / sqrt(n)`. Linux approximates the root by steps of Newton's method. The first
/// steps are rough, so this test checks the times between drops from the tenth drop on.
#[test]
fn codel_drops_at_intervals_over_the_root_of_their_number() {
    let mut tree = tree("codel limit 100000");
    for _ in 0..60_000 {
        assert_eq!(push(&mut tree, START, 0, 0), Verdict::Queued);
    }
    // One packet leaves the queue every 100 us.
    let mut times = Vec::new();
    for step in 1..=50_000 {
        let now = START.after(step * 100 * US);
        assert!(pop(&mut tree, now).is_some());
        times.extend(tree.drops().map(|_| step / 10));
    }
    // From 5 ms on, packets wait longer than the target of 5 ms. CoDel drops the first packet one
    // interval (100 ms) later, and the second packet another interval later.
    assert_eq!(times[..2], [105, 205]);
    assert!(times.len() > 500, "{}", times.len());
    let mut since = times[9];
    let mut law = 0.0;
    for (number, time) in times.iter().enumerate().skip(10) {
        law += 100.0 / f64::from(u32::try_from(number).expect("few")).sqrt();
        let took = f64::from(u32::try_from(time - since).expect("short"));
        assert!((took - law).abs() < 2.0 + law / 50.0, "drop {number}: {took} ms, not {law}");
        if number % 50 == 0 {
            (since, law) = (*time, 0.0);
        }
    }
}

/// RFC 8289, 3.2 and 4.2: a queue that empties within an interval (100 ms) is a good queue, however
/// long it was, so CoDel drops nothing.
#[test]
fn codel_lets_a_burst_shorter_than_an_interval_pass() {
    for (burst, drops) in [(1_000, 0), (1_040, 0), (1_200, 1)] {
        let mut tree = tree("codel limit 10000");
        for _ in 0..burst {
            let _ = push(&mut tree, START, 0, 0);
        }
        let mut now = START;
        while tree.backlog().packets > 0 {
            now = now.after(100 * US);
            let _ = pop(&mut tree, now);
        }
        // The last packet waits for 104 ms. The delay is above the target for only 99 ms, just
        // under an interval.
        assert_eq!(tree.drops().len(), drops, "{burst}");
    }
}

/// RFC 8289, 3.1: what counts is the smallest sojourn time within an interval. If a single packet
/// has a short sojourn time, the interval starts anew.
#[test]
fn codel_begins_anew_after_one_short_wait() {
    // At the start of each period, a burst makes packets wait for about 20 ms. In the last 25 ms of
    // the period, the queue runs empty. With a period of 90 ms, the sojourn times stay above the
    // target (5 ms) for less than an interval (100 ms). With 120 ms, they stay above it for more
    // than an interval, so CoDel drops packets.
    for (period, drops) in [(90, false), (120, true)] {
        let mut tree = tree("codel");
        for ms in 0..2_000 {
            let now = START.after(ms * MS);
            // A burst first fills the queue to the wanted length. After that, one packet arrives
            // for each packet that leaves.
            let count = if ms % period == 0 { 20 } else { u64::from(ms % period < period - 25) };
            for _ in 0..count {
                let _ = push(&mut tree, now, 0, 0);
            }
            let _ = pop(&mut tree, now);
        }
        assert_eq!(!tree.drops().is_empty(), drops, "{period}");
    }
}

/// `fq_codel` without options behaves as with the defaults of RFC 8290, 5.2 for the limit (10240),
/// the quantum, the number of flows (1024), the target, the interval, and ECN.
#[test]
fn fq_codel_has_the_defaults() {
    let by_default = |line: &str| {
        let mut tree = tree(line);
        let (mut log, mut now) = (Vec::new(), START);
        for number in 0..12_000 {
            let verdict = push(&mut tree, START, number % 7, 2);
            log.push((number, u8::from(verdict == Verdict::Queued)));
        }
        for _ in 0..2_000 {
            now = now.after(500 * US);
            log.extend(pop(&mut tree, now).map(|pkt| (pkt.flow, pkt.ecn)));
        }
        (log, tree.drops().len())
    };
    let spelt =
        "fq_codel limit 10240 flows 1024 quantum 1514 target 5ms interval 100ms drop_batch 64 ecn";
    let (log, dropped) = by_default("fq_codel");
    assert!((&log, dropped) == (&by_default(spelt).0, by_default(spelt).1));
    assert!(dropped > 0 && log.iter().any(|(_, ecn)| *ecn == 3));
    for other in ["limit 10000", "quantum 300", "target 50ms", "interval 20ms", "noecn"] {
        assert!(log != by_default(&format!("fq_codel {other}")).0, "{other} makes a difference");
    }
}

/// RFC 8290, 1.3 and 4.2: a flow that builds no queue is served before all flows that do. A flow
/// that has used up its quantum counts as one of the flows that build a queue.
#[test]
fn fq_codel_serves_sparse_flows_first() {
    let mut tree = tree("fq_codel");
    for number in 0..300 {
        let _ = push(&mut tree, START, number % 3, 0);
    }
    for _ in 0..12 {
        assert!(pop(&mut tree, START).is_some_and(|pkt| pkt.flow < 3));
    }
    // Each packet has 1,000 bytes, so two packets use up a quantum of 1,514 bytes.
    for _ in 0..4 {
        let _ = push(&mut tree, START, 9, 0);
    }
    let flows: Vec<u64> = (0..12).filter_map(|_| pop(&mut tree, START)).map(|p| p.flow).collect();
    assert_eq!(flows[..2], [9, 9]);
    assert!(flows[2] < 3 && flows.iter().filter(|flow| **flow == 9).count() == 4, "{flows:?}");
    // The queue of flow 9 has run empty. Once flow 9 has had a turn among the flows that build
    // queues, it counts as a sparse flow again (one that builds no queue), and its next packet is
    // served first.
    for number in 0..20 {
        let now = START.after(number * MS);
        for _ in 0..8 {
            assert!(pop(&mut tree, now).is_some_and(|pkt| pkt.flow < 3));
        }
        let _ = push(&mut tree, now, 9, 0);
        assert_eq!(pop(&mut tree, now).map(|pkt| pkt.flow), Some(9));
    }
}

/// RFC 8290, 4.1: when the qdisc exceeds its limit, it drops packets from the head of the queue
/// with the largest backlog: half of that queue or 64 packets, whichever is less.
#[test]
fn fq_codel_drops_from_the_fattest_flow_in_batches() {
    for (fat, dropped) in [(1_000, 64), (128, 64), (100, 51), (21, 11)] {
        let mut tree = tree(&format!("fq_codel limit {}", fat + 30));
        for number in 0..30 {
            let _ = push(&mut tree, START, 1 + number % 3, 0);
        }
        // Enqueue one packet more than the limit allows.
        for number in 0..=fat {
            let mut pkt = Packet::new(LEN);
            (pkt.flow, pkt.cookie, pkt.enqueued_ns) = (0, number, START.0);
            let _ = tree.enqueue(START, pkt);
        }
        let drops: Vec<_> =
            tree.drops().map(|pkt| (pkt.flow, pkt.cookie, pkt.drop_reason)).collect();
        let head: Vec<_> = (0..dropped).map(|n| (0, n, Some(DropReason::Overlimit))).collect();
        assert_eq!(drops, head, "{fat}");
    }
}

/// RFC 8290, 4.2: each queue has its own CoDel state. A standing queue of one flow causes no drops
/// in another flow.
#[test]
fn fq_codel_judges_each_flow_by_itself() {
    let mut tree = tree("fq_codel");
    let mut dropped = [0, 0];
    for ms in 0..1_000 {
        let now = START.after(ms * MS);
        // In 20 ms the link takes 20 packets. In that time, flow 0 sends 24 packets and so builds a
        // queue, and flow 1 sends 5 packets.
        let count = if ms % 5 == 0 { 6 } else { 0 };
        (0..count).for_each(|_| assert_eq!(push(&mut tree, now, 0, 0), Verdict::Queued));
        if ms % 4 == 0 {
            let _ = push(&mut tree, now, 1, 0);
        }
        let _ = pop(&mut tree, now);
        tree.drops().for_each(|pkt| dropped[usize::from(pkt.flow == 1)] += 1);
    }
    assert!(dropped[0] > 5 && dropped[1] == 0, "{dropped:?}");
}

/// Returns PIE's drop probability after an update, by RFC 8033, 4.2 and 5.5, with alpha 1/8, beta 1
/// 1/4 and a target delay of 15 ms.
fn updated(p: f64, delay: f64, before: f64) -> f64 {
    let mut step = 0.125 * (delay - 0.015) + 1.25 * (delay - before);
    let divisors = [(1e-6, 2048.0), (1e-5, 512.0), (1e-4, 128.0), (1e-3, 32.0), (1e-2, 8.0)];
    let divisor = divisors.iter().find(|(below, _)| p < *below).map(|(_, divisor)| *divisor);
    step /= divisor.unwrap_or(if p < 0.1 { 2.0 } else { 1.0 });
    if p >= 0.1 && step > 0.02 {
        step = 0.02;
    }
    if delay > 0.25 {
        step += 0.02;
    }
    (p + step).clamp(0.0, 1.0)
}

/// Keeps a queue in which each packet waits for `delay_ms`, however many packets are dropped. One
/// packet arrives every 100 us. For each arrival, calls `watch` with the number of the arrival,
/// whether the packet was enqueued, and the drop probability.
fn waiting(tree: &mut Tree, delay_ms: u64, ms: u64, mut watch: impl FnMut(u64, bool, f64)) {
    let mut held = VecDeque::new();
    for step in 0..ms * 10 {
        let now = START.after(step * 100 * US);
        while held.front().is_some_and(|at: &Instant| at.after(delay_ms * MS) <= now) {
            held.pop_front();
            assert!(pop(tree, now).is_some());
        }
        let entered = push(tree, now, 0, 0) == Verdict::Queued;
        if entered {
            held.push_back(now);
        }
        #[expect(clippy::cast_precision_loss, reason = "a probability")]
        watch(step, entered, stat(tree, "prob_ppm") as f64 / 1e6);
    }
}

/// At each update, PIE's drop probability changes by as much as the RFC says. Linux's timer rounds
/// the period of 15 ms up to a multiple of its tick of 10 ms and adds a tick, so an update happens
/// every 30 ms.
#[test]
fn pie_moves_its_probability_as_the_law_says() {
    for delay_ms in [16, 20, 40, 100, 300] {
        let mut tree = tree("pie limit 100000");
        let delay = Instant(delay_ms * MS).0 as f64 / 1e9;
        let (mut p, mut before) = (0.0, 0.0);
        let mut compared = 0;
        waiting(&mut tree, delay_ms, 3_000, |step, _, ours| {
            if step > 0 && step % 300 == 0 {
                // PIE knows no delay before the first packet has left.
                let known = if step > delay_ms * 10 { delay } else { 0.0 };
                p = updated(p, known, before);
                before = known;
                compared += 1;
            }
            // The RFC limits the probability to 1. Linux lets it grow beyond 1.
            let ours = ours.min(1.0);
            assert!((ours - p).abs() < 3e-6 + p / 100.0, "{delay_ms} ms, {step}: {ours}, not {p}");
        });
        assert!(compared > 90 && p > 1e-5, "{delay_ms} ms: {p}");
    }
}

/// RFC 8033, 5.4: between two drops, the drop probabilities of the arriving packets add up to at
/// least 0.85 and at most 8.5.
#[test]
fn pie_drops_neither_too_early_nor_too_late() {
    let mut tree = tree("pie limit 100000");
    let (mut sum, mut gaps) = (0.0, Vec::new());
    waiting(&mut tree, 40, 3_000, |_, entered, p| {
        sum += p;
        if !entered {
            gaps.push(sum);
            sum = 0.0;
        }
    });
    // Skip the first drop, because PIE drops nothing until the burst allowance has ended.
    let (least, most) = gaps[1..]
        .iter()
        .fold((f64::MAX, 0.0_f64), |(least, most), gap| (least.min(*gap), most.max(*gap)));
    assert!(gaps.len() > 500 && least > 0.84 && most < 8.6, "{} {least} {most}", gaps.len());
    assert!(least < 1.2 && most > 2.5, "it is chance: {least} {most}");
}

/// RFC 8033, 4.4: PIE drops nothing for the first 150 ms (the burst allowance), whatever the delay.
/// After that, drops begin.
#[test]
fn pie_allows_a_burst_of_150_ms() {
    let mut tree = tree("pie limit 100000");
    let mut first = None;
    waiting(&mut tree, 100, 1_000, |step, entered, p| {
        if !entered && first.is_none() {
            first = Some((step / 10, p));
        }
    });
    // The burst allowance only counts down from the first dequeue on, and the first packet leaves
    // after 100 ms.
    assert!(matches!(first, Some((250..400, _))), "{first:?}");
}

/// RFC 8033, 4.1: no packet is dropped while the queueing delay is below half the target and the
/// drop probability is below 20 %, or while the queue holds less than two packets of the largest
/// size.
#[test]
fn pie_spares_short_queues() {
    for (until, spared) in [(0.15, true), (0.5, false)] {
        let mut ms = 0;
        waiting(&mut tree("pie limit 100000"), 60, 6_000, |step, _, p| {
            if p < until {
                ms = step / 10 + 1;
            }
        });
        // Repeat the run on a new tree, and stop it at the time `ms` at which the drop probability
        // of the first run reached `until` (15 % or 50 %).
        let mut tree = tree("pie limit 100000");
        waiting(&mut tree, 60, ms, |_, _, _| {});
        let end = START.after(ms * MS);
        while pop(&mut tree, end).is_some() {}
        tree.drops().for_each(drop);
        let refused = (0..200).filter(|_| push(&mut tree, end, 0, 0) != Verdict::Queued).count();
        assert_eq!(refused == 0, spared, "{until}: {refused} of 200");
        while pop(&mut tree, end).is_some() {}
        for _ in 0..200 {
            assert_eq!(push(&mut tree, end, 0, 0), Verdict::Queued);
            assert!(pop(&mut tree, end).is_some());
        }
    }
}

/// RFC 8033, 4.2: the drop probability of an idle queue decays by 2 % per update. In Linux, it
/// decays by one 64th per update.
#[test]
fn pie_forgets_while_idle() {
    let mut tree = tree("pie limit 100000");
    waiting(&mut tree, 60, 2_000, |_, _, _| {});
    let end = START.after(2_000 * MS);
    while pop(&mut tree, end).is_some() {}
    // After two updates of the empty queue, PIE's current delay and previous delay are both zero.
    let later = |tree: &mut Tree, ms: u64| {
        let _ = pop(tree, end.after(ms * MS));
        stat(tree, "prob_ppm")
    };
    let first = later(&mut tree, 90);
    assert!(first > 10_000, "{first}");
    let mut before = first;
    for update in 1..=20 {
        let now = later(&mut tree, 90 + update * 30);
        // Besides the decay, the update formula of PIE lowers the probability: the delay is 15 ms
        // (the target) too small, and the formula multiplies this difference by alpha, 1/8.
        assert!(now < before - before / 70, "{update}: {now} after {before}");
        before = now;
    }
}
