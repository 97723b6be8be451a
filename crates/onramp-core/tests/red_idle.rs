//! `red`, `choke` and the RED of `sfq`: how the average falls while the queue is idle.
//!
//! Source: Floyd and Jacobson, "Random Early Detection Gateways", 1993, section 4: the average of
//! an idle queue falls as if small packets had left meanwhile, by `(1 - w)^m`. `tc-red(8)` names
//! the packet (`avpkt`) and the rate (`bandwidth`). `tc` turns them into a table of 256 cells, as
//! in iproute2's `tc/tc_red.c` and Linux' `include/net/red.h`. Each cell covers 2^`Scell_log`
//! microseconds. From the first cell on, the average is halved as often as `-ln(1 - w) * ticks /
//! ticks of a packet` says, rounded to a whole number, where the time of the cell is taken for
//! ticks of 64 ns. Before that, it falls along a straight line to its half.

use onramp_core::Spec;
use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Tree};
use onramp_queue::Packet;

const START_NS: u64 = 20_000_000_000;
/// The length of a cell in microseconds. With the parameters below, `tc -d` shows `ewma 3` and
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

/// Whether the packet that leaves next is marked. `None` if no packet may leave.
fn pop(tree: &mut Tree, us: u64) -> Option<bool> {
    match tree.dequeue(Instant(START_NS + us * 1_000)) {
        Dequeue::Ready(pkt) => Some(pkt.ecn == 3),
        _ => None,
    }
}

/// Holds `packets` packets for so long that their number becomes the average, because each arriving
/// packet finds this number.
fn hold(tree: &mut Tree, packets: u64, flow: impl Fn(u64) -> u64) {
    (0..packets).for_each(|n| push(tree, 0, flow(n)));
    for n in packets..packets + 200 {
        push(tree, 0, flow(n));
        assert!(pop(tree, 0).is_some());
    }
    assert_eq!(u64::from(tree.backlog().packets), packets);
}

/// Whether a packet is marked that arrives `idle_us` microseconds after a queue with an average of
/// `packets` packets became idle.
fn is_marked_after(line: &str, packets: u64, idle_us: u64) -> bool {
    let mut tree = tree(line);
    hold(&mut tree, packets, |n| n);
    while pop(&mut tree, 0).is_some() {}
    push(&mut tree, idle_us, u64::MAX);
    pop(&mut tree, idle_us).expect("it came")
}

/// Above `max`, every packet is marked. Below `max`, the first packet is not.
const LINES: [&str; 2] = [
    "red limit 1000000 min 8333 max 25000 burst 13 avpkt 1000 bandwidth 10mbit ecn",
    "choke limit 1000 min 8 max 25 burst 13 avpkt 1000 bandwidth 10mbit ecn",
];

/// An average of 40 packets falls to 25 when 15/40 of the first cell are over.
#[test]
fn an_idle_average_falls_along_a_line_at_first() {
    let bound_us = CELL_US * 15 / 40;
    for line in LINES {
        assert!(is_marked_after(line, 40, 0), "{line}");
        assert!(is_marked_after(line, 40, bound_us - 25), "{line}");
        assert!(!is_marked_after(line, 40, bound_us + 25), "{line}");
    }
}

/// An average of 40 packets falls below 25 after one halving, an average of 76 after two halvings,
/// and an average of 152 after three.
#[test]
fn an_idle_average_is_halved_by_the_table() {
    // w = 1/8. At 10 Mbit/s, 1,000 bytes take 800 us, which are 12,500 ticks.
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

/// After more time than the table covers, the average is zero. A second idle time begins with the
/// average at the end of the first one.
#[test]
fn a_day_is_as_good_as_never() {
    for line in LINES {
        assert!(!is_marked_after(line, 800, 86_400_000_000), "{line}");
        let mut tree = tree(line);
        hold(&mut tree, 76, |n| n);
        while pop(&mut tree, 0).is_some() {}
        // Two idle times of one halving each take the average to 38 and then to 19.
        let idle_us = 13 * CELL_US;
        push(&mut tree, idle_us, u64::MAX);
        assert_eq!(pop(&mut tree, idle_us), Some(true), "{line}");
        assert_eq!(pop(&mut tree, idle_us), None);
        push(&mut tree, 2 * idle_us, u64::MAX);
        assert_eq!(pop(&mut tree, 2 * idle_us), Some(false), "{line}");
    }
}

const SFQ: &str = "sfq redflowlimit 100000 min 8333 max 25000 burst 13 avpkt 1000 ecn";

/// `sfq` gives the slot of a flow that has gone to the next flow, which begins with a new average.
/// The same flow also begins with a new average when it comes back.
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

/// After a change of the hash, a flow has a new average. It is learned from the flow's packets as
/// they are enqueued again one after another, as if they had arrived at once.
#[test]
fn a_flow_of_sfq_has_the_average_of_its_packets_behind_a_perturbation() {
    const SECOND_US: u64 = 1_000_000;
    for packets in [25, 40_u32] {
        let mut tree = tree(&format!("{SFQ} perturb 1"));
        (0..packets).for_each(|_| push(&mut tree, 0, 1));
        let average = (0..packets).fold(0.0, |sum, held| sum * 7.0 / 8.0 + f64::from(held) / 8.0);
        // The packet that arrives now is counted, too.
        let average = average * 7.0 / 8.0 + f64::from(packets) / 8.0;
        push(&mut tree, SECOND_US, 1);
        let marks = std::iter::from_fn(|| pop(&mut tree, SECOND_US)).last();
        assert_eq!(marks, Some(average >= 25.0), "{average} packets on average");
    }
}

/// A change drops the packets that are held, and resets the average (`net/sched/sch_red.c`,
/// `red_change`).
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
        // After an idle time of zero, the average has not changed.
        assert_eq!(is_marked_after(&line, 40, 0), marked, "{line}");
    }
}
