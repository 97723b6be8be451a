//! `red`, `choke` and the RED of `sfq`: how the average queue length, which RED computes, falls
//! while the queue is idle.
//!
//! Source: Floyd and Jacobson, "Random Early Detection Gateways", 1993, section 4: the average of
//! an idle queue falls as if m small packets had left meanwhile: it is multiplied by `(1 - w)^m`,
//! where w is the weight of the average. The options `avpkt` and `bandwidth` of `tc-red(8)` give
//! the size of such a packet and the rate at which they leave. `tc` turns these options into a
//! table of 256 cells, as in iproute2's `tc/tc_red.c` and Linux' `include/net/red.h`. Each cell
//! covers 2^`Scell_log` microseconds. After an idle time of t microseconds, rounded down to whole
//! cells, the average is halved `-ln(1 - w) * t / T` times, rounded down, where T is the time that
//! such a packet takes in ticks of 64 ns. As long as this number is zero, the average falls along a
//! straight line that would reach zero at the end of the first cell, but only down to its half.

use onramp_core::Spec;
use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Tree};
use onramp_queue::Packet;

const START_NS: u64 = 20_000_000_000;
/// The length of a table cell in microseconds. For the parameters below, `tc -d` shows `ewma 3` and
/// `Scell_log 13`.
const CELL_US: u64 = 1 << 13;

fn tree(line: &str) -> Tree {
    Tree::new(&line.parse::<Spec>().expect(line), 1514)
}

/// Enqueues a packet of 1,000 bytes of flow `flow`, `us` microseconds after the start.
fn push(tree: &mut Tree, us: u64, flow: u64) {
    let mut pkt = Packet::new(1000);
    (pkt.flow, pkt.ecn) = (flow, 1);
    let _ = tree.enqueue(Instant(START_NS + us * 1_000), pkt);
}

/// Dequeues a packet. Returns whether it is marked, or `None` if no packet may leave.
fn pop(tree: &mut Tree, us: u64) -> Option<bool> {
    match tree.dequeue(Instant(START_NS + us * 1_000)) {
        Dequeue::Ready(pkt) => Some(pkt.ecn == 3),
        _ => None,
    }
}

/// Fills the queue to `packets` packets, and then enqueues and dequeues one packet at a time, until
/// the average queue length has become `packets`, because each arriving packet finds that many.
fn hold(tree: &mut Tree, packets: u64, flow: impl Fn(u64) -> u64) {
    (0..packets).for_each(|n| push(tree, 0, flow(n)));
    for n in packets..packets + 200 {
        push(tree, 0, flow(n));
        assert!(pop(tree, 0).is_some());
    }
    assert_eq!(u64::from(tree.backlog().packets), packets);
}

/// Makes a queue with an average length of `packets` packets and empties it. Returns whether a
/// packet that arrives `idle_us` microseconds later is marked.
fn is_marked_after(line: &str, packets: u64, idle_us: u64) -> bool {
    let mut tree = tree(line);
    hold(&mut tree, packets, |n| n);
    while pop(&mut tree, 0).is_some() {}
    push(&mut tree, idle_us, u64::MAX);
    pop(&mut tree, idle_us).expect("it came")
}

/// Options with which every packet is marked if the average is above `max`, and the first packet is
/// not marked if the average is below `max`.
const LINES: [&str; 2] = [
    "red limit 1000000 min 8333 max 25000 burst 13 avpkt 1000 bandwidth 10mbit ecn",
    "choke limit 1000 min 8 max 25 burst 13 avpkt 1000 bandwidth 10mbit ecn",
];

/// Packets are marked above `max`, which is 25 packets. An average of 40 packets falls to 25 when
/// 15/40 of the first table cell are over.
#[test]
fn an_idle_average_falls_along_a_line_at_first() {
    let bound_us = CELL_US * 15 / 40;
    for line in LINES {
        assert!(is_marked_after(line, 40, 0), "{line}");
        assert!(is_marked_after(line, 40, bound_us - 25), "{line}");
        assert!(!is_marked_after(line, 40, bound_us + 25), "{line}");
    }
}

/// `max` is 25 packets. An average of 76 packets falls below 25 after two halvings, and an average
/// of 152 after three.
#[test]
fn an_idle_average_is_halved_by_the_table() {
    // The weight w of the average is 1/8. At 10 Mbit/s, 1,000 bytes take 800 us, which are 12,500
    // ticks of 64 ns.
    let bits_per_cell = -(1.0_f64 - 1.0 / 8.0).ln() * 8192.0 / 12_500.0;
    for (packets, halvings) in [(76_u64, 2), (152, 3)] {
        let cells = (1..256_u32).find(|cells| f64::from(*cells) * bits_per_cell >= halvings.into());
        let bound_us = u64::from(cells.expect("in the table")) * CELL_US;
        for line in LINES {
            assert!(is_marked_after(line, packets, bound_us - 1), "{line}, {packets}");
            assert!(!is_marked_after(line, packets, bound_us), "{line}, {packets}");
        }
    }
}

/// After an idle time longer than the table covers, the average is zero. If a queue is idle twice,
/// the second idle time begins with the average at the end of the first one.
#[test]
fn a_day_is_as_good_as_never() {
    for line in LINES {
        assert!(!is_marked_after(line, 800, 86_400_000_000), "{line}");
        let mut tree = tree(line);
        hold(&mut tree, 76, |n| n);
        while pop(&mut tree, 0).is_some() {}
        // The average of 76 is halved twice, once in each idle time: to 38, at which the packet is
        // marked, and to 19, at which it is not.
        let idle_us = 13 * CELL_US;
        push(&mut tree, idle_us, u64::MAX);
        assert_eq!(pop(&mut tree, idle_us), Some(true), "{line}");
        assert_eq!(pop(&mut tree, idle_us), None);
        push(&mut tree, 2 * idle_us, u64::MAX);
        assert_eq!(pop(&mut tree, 2 * idle_us), Some(false), "{line}");
    }
}

const SFQ: &str = "sfq redflowlimit 100000 min 8333 max 25000 burst 13 avpkt 1000 ecn";

/// When a flow of `sfq` has no packets, `sfq` may give its slot to another flow. That flow begins
/// with a new average, and so does the same flow when it comes back.
#[test]
fn a_flow_of_sfq_begins_without_an_average() {
    for next in [1, 2] {
        let mut tree = tree(SFQ);
        hold(&mut tree, 40, |_| 1);
        push(&mut tree, 0, 1);
        let marks = std::iter::from_fn(|| pop(&mut tree, 0)).last();
        assert_eq!(marks, Some(true), "the flow is too long");
        push(&mut tree, 0, next);
        assert_eq!(pop(&mut tree, 0), Some(false), "flow {next}");
    }
}

/// When `sfq` changes its hash, each flow begins with a new average. The flow's packets are
/// enqueued again one after another, which gives the average that they would have if they had
/// arrived at once.
#[test]
fn a_flow_of_sfq_has_the_average_of_its_packets_behind_a_perturbation() {
    const SECOND_US: u64 = 1_000_000;
    for packets in [25, 40_u32] {
        let mut tree = tree(&format!("{SFQ} perturb 1"));
        (0..packets).for_each(|_| push(&mut tree, 0, 1));
        let average = (0..packets).fold(0.0, |sum, held| sum * 7.0 / 8.0 + f64::from(held) / 8.0);
        // The packet that the test pushes next also counts for the average.
        let average = average * 7.0 / 8.0 + f64::from(packets) / 8.0;
        push(&mut tree, SECOND_US, 1);
        let marks = std::iter::from_fn(|| pop(&mut tree, SECOND_US)).last();
        assert_eq!(marks, Some(average >= 25.0), "{average} packets on average");
    }
}

/// A change of `red` drops the packets that it holds, and resets the average
/// (`net/sched/sch_red.c`, `red_change`).
#[test]
fn a_change_begins_a_new_average() {
    let line = LINES[0];
    let mut setup = onramp_core::Setup::default();
    setup.apply(&format!("qdisc add dev e root handle 1: {line}")).expect(line);
    let mut tree = Tree::of(&setup, 1514, 0).expect("a root");
    hold(&mut tree, 40, |n| n);
    let change = format!("qdisc change dev e root handle 1: {line}");
    tree.apply(Instant(START_NS), &change).expect(line);
    assert_eq!((tree.backlog().packets, tree.drops().len()), (0, 40));
    push(&mut tree, 0, 1);
    assert_eq!(pop(&mut tree, 0), Some(false));
}

/// `red` always marks at an average of exactly `max`. `choke` does not, because it compares
/// differently (`red_action` and `choke_enqueue` in Linux).
#[test]
fn an_average_of_the_maximum_is_too_long() {
    let red = "red limit 1000000 min 8333 burst 13 avpkt 1000 bandwidth 10mbit ecn max";
    let choke = "choke limit 1000 min 8 burst 13 avpkt 1000 bandwidth 10mbit ecn max";
    for (line, marked) in [
        (format!("{red} 40000"), true),
        (format!("{red} 40001"), false),
        (format!("{choke} 39"), true),
        (format!("{choke} 40"), false),
    ] {
        // The packet arrives without any idle time, so the average has not changed.
        assert_eq!(is_marked_after(&line, 40, 0), marked, "{line}");
    }
}
