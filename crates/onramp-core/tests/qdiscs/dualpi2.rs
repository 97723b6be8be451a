//! `dualpi2`: its counters, its credits, and how its drop probability behaves when its options
//! change.
//!
//! Source: RFC 9332, appendix A: the base probability moves by alpha times the distance of the
//! delay from its target, plus beta times the growth of the delay, in Hertz and seconds.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};

const MS: u64 = 1_000_000;
/// The time at which the tests begin, a multiple of all update periods used in these tests.
const START: Instant = Instant(20_000_000_000);

fn tree(lines: &[&str]) -> Tree {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    Tree::of(&setup, 1_514, 7).expect("a root")
}

fn plain(options: &str) -> Tree {
    tree(&[&format!("qdisc add dev e root handle 1: dualpi2 {options}")])
}

fn push(tree: &mut Tree, now: Instant, ecn: u8) {
    let mut pkt = Packet::new(1_000);
    (pkt.ecn, pkt.enqueued_ns) = (ecn, now.0);
    let _ = tree.enqueue(now, pkt);
}

/// Returns the ECN bits of the next packet, or `None` if no packet may leave.
fn pop(tree: &mut Tree, now: Instant) -> Option<u8> {
    match tree.dequeue(now) {
        Dequeue::Ready(pkt) => Some(pkt.ecn),
        _ => None,
    }
}

fn stat(tree: &Tree, wanted: &str) -> u64 {
    let mut found = None;
    tree.stats(&mut |name, value| found = if name == wanted { Some(value) } else { found });
    found.unwrap_or_else(|| panic!("{wanted} is not counted"))
}

#[test]
fn packets_are_counted_by_their_queue() {
    let mut tree = plain("");
    for (n, ecn) in [0, 1, 2, 3, 1].into_iter().enumerate() {
        push(&mut tree, START, ecn);
        // As in Linux, `maxq` is the largest number of packets that an arriving packet has found in
        // the queue. The packet itself does not count.
        assert_eq!(stat(&tree, "maxq"), n as u64);
    }
    assert_eq!((stat(&tree, "packets_in_c"), stat(&tree, "packets_in_l")), (2, 3));
    while pop(&mut tree, START).is_some() {}
    assert_eq!((stat(&tree, "packets_in_c"), stat(&tree, "packets_in_l")), (2, 3));
    assert_eq!((stat(&tree, "maxq"), stat(&tree, "memory_used")), (4, 0));
    assert!(stat(&tree, "max_memory_used") > 5_000);
}

#[test]
fn each_queue_tells_how_long_its_first_packet_has_waited() {
    let mut tree = plain("");
    assert_eq!((stat(&tree, "delay_c_ns"), stat(&tree, "delay_l_ns")), (0, 0));
    push(&mut tree, START, 0);
    push(&mut tree, START.after(MS), 1);
    assert_eq!((stat(&tree, "delay_c_ns"), stat(&tree, "delay_l_ns")), (MS, 0));
    push(&mut tree, START.after(5 * MS), 0);
    assert_eq!((stat(&tree, "delay_c_ns"), stat(&tree, "delay_l_ns")), (5 * MS, 4 * MS));
    // The packet in the L-queue (for low latency) leaves first, marked.
    assert_eq!(pop(&mut tree, START.after(7 * MS)), Some(3));
    assert_eq!((stat(&tree, "delay_c_ns"), stat(&tree, "delay_l_ns")), (7 * MS, 0));
}

/// While the queue holds less than two packets of the largest size, no packet is marked by chance.
/// So the packets of this test are marked only by the step: a packet that has waited longer than
/// `step_thresh` is marked.
#[test]
fn a_packet_that_waits_longer_than_the_step_is_marked() {
    for (wait, after, marks) in [(2 * MS, 1, 0), (2 * MS + 1, 3, 1)] {
        let mut tree = plain("step_thresh 2ms");
        push(&mut tree, START, 1);
        assert_eq!(pop(&mut tree, START.after(wait)), Some(after));
        assert_eq!((stat(&tree, "step_marks"), stat(&tree, "ecn_mark")), (marks, marks));
    }
    // If `step_thresh` is a number of packets, `dualpi2` marks a departing packet that leaves more
    // than this number of packets behind in its queue.
    let mut tree = plain("step_thresh 1packet");
    (0..3).for_each(|_| push(&mut tree, START, 1));
    let left: Vec<_> = std::iter::from_fn(|| pop(&mut tree, START)).collect();
    assert_eq!(left, [3, 1, 1]);
    assert_eq!(stat(&tree, "step_marks"), 1);
    // The step marks only packets that, on arrival, find at least `min_qlen_step` packets in the
    // queue.
    let mut tree = plain("step_thresh 2ms min_qlen_step 2");
    (0..3).for_each(|_| push(&mut tree, START, 1));
    let left: Vec<_> = std::iter::from_fn(|| pop(&mut tree, START.after(3 * MS))).collect();
    assert_eq!(left, [1, 1, 3]);
}

/// The option `classic_protection` gives the share of the classic queue in percent, and the L-queue
/// (low latency) has the rest. At the beginning, the queue with the larger share is served first,
/// because it has credit: the difference of both shares in percent, times the largest packet size.
#[test]
fn the_queue_with_the_greater_part_begins() {
    for (percent, c, l) in [(10, 0, 80 * 1_514), (50, 0, 0), (90, 80 * 1_514, 0)] {
        let mut tree = plain(&format!("classic_protection {percent}%"));
        assert_eq!((stat(&tree, "credit_c"), stat(&tree, "credit_l")), (c, l), "{percent}");
        // If a packet leaves one queue while the other queue has packets, the credit moves in
        // favour of that other queue, by the packet's size times the other queue's share in
        // percent.
        push(&mut tree, START, 1);
        push(&mut tree, START, 0);
        let first = pop(&mut tree, START);
        let credit = (stat(&tree, "credit_c"), stat(&tree, "credit_l"));
        match percent {
            10 => assert_eq!((first, credit), (Some(1), (0, 80 * 1_514 - 10_000))),
            50 => assert_eq!((first, credit), (Some(1), (50_000, 0))),
            _ => assert_eq!((first, credit), (Some(0), (80 * 1_514 - 10_000, 0))),
        }
        // While only one queue has packets, the credit does not change. When both queues are empty,
        // the credit is reset.
        assert!(pop(&mut tree, START).is_some());
        assert_eq!((stat(&tree, "credit_c"), stat(&tree, "credit_l")), credit);
        assert_eq!(pop(&mut tree, START), None);
        assert_eq!((stat(&tree, "credit_c"), stat(&tree, "credit_l")), (c, l), "{percent}");
    }
}

/// The drop probability after packets have waited for one period of 16 ms, with a target of 15 ms:
/// 0.16 Hz times 1 ms (the distance from the target), plus 3.2 Hz times 16 ms (the growth of the
/// delay).
const AFTER_16_MS: f64 = 41.0 / 256.0 * 0.001 + 819.0 / 256.0 * 0.016;

fn is_about(tree: &Tree, probability: f64) {
    let (raw, ppm) = (stat(tree, "prob"), stat(tree, "prob_ppm"));
    // `dualpi2` rounds the gains alpha and beta down to multiples of 2^-38 per nanosecond, which
    // makes the probability at most a third of a percent too small here.
    let near = |number: f64| (0.997..=1.0).contains(&(number / probability));
    #[expect(clippy::cast_precision_loss, reason = "32 bits fit")]
    let (raw, ppm) = (raw as f64 / f64::from(u32::MAX), ppm as f64 / 1e6);
    assert!(near(raw) && near(ppm), "{raw} {ppm}, not {probability}");
}

#[test]
fn the_probability_follows_the_wait() {
    let mut tree = plain("");
    push(&mut tree, START, 0);
    push(&mut tree, START.after(15 * MS), 0);
    assert_eq!((stat(&tree, "prob"), stat(&tree, "prob_ppm")), (0, 0));
    push(&mut tree, START.after(16 * MS), 0);
    is_about(&tree, AFTER_16_MS);
    // The probability is updated only once in a period of 16 ms.
    push(&mut tree, START.after(31 * MS), 0);
    is_about(&tree, AFTER_16_MS);
    push(&mut tree, START.after(32 * MS), 0);
    is_about(&tree, 2.0 * AFTER_16_MS + 41.0 / 256.0 * 0.016);
}

#[test]
fn a_change_keeps_the_probability_and_what_went_before_it() {
    let mut tree = plain("");
    push(&mut tree, START, 0);
    push(&mut tree, START, 0);
    // If an update period ends before a change of alpha and beta, `dualpi2` still computes the
    // update of that period with the old alpha and beta.
    let change = |tree: &mut Tree, ms: u64, options: &str| {
        let line = format!("qdisc change dev e root handle 1: dualpi2 {options}");
        tree.apply(START.after(ms * MS), &line).expect(&line);
    };
    change(&mut tree, 16, "target 1s alpha 0.1 beta 0.5");
    is_about(&tree, AFTER_16_MS);
    change(&mut tree, 17, "target 15ms alpha 1 beta 2");
    is_about(&tree, AFTER_16_MS);
    push(&mut tree, START.after(32 * MS), 0);
    is_about(&tree, AFTER_16_MS + 0.017 + 2.0 * 0.016);
}

#[test]
fn a_change_of_the_protection_begins_with_its_credit() {
    let mut tree = plain("");
    push(&mut tree, START, 1);
    push(&mut tree, START, 0);
    assert_eq!(pop(&mut tree, START), Some(1));
    let change = |tree: &mut Tree, options: &str| {
        let line = format!("qdisc change dev e root handle 1: dualpi2 {options}");
        tree.apply(START, &line).expect(&line);
    };
    change(&mut tree, "limit 50");
    assert_eq!(stat(&tree, "credit_l"), 80 * 1_514 - 10_000, "another option leaves it");
    change(&mut tree, "classic_protection 10%");
    assert_eq!(stat(&tree, "credit_l"), 80 * 1_514);
}

#[test]
fn a_change_drops_the_oldest_classic_packets_first() {
    let mut tree = plain("");
    [0, 1, 0, 1, 0].into_iter().for_each(|ecn| push(&mut tree, START, ecn));
    let line = "qdisc change dev e root handle 1: dualpi2 limit 1";
    tree.apply(START, line).expect(line);
    let lost: Vec<_> = tree.drops().map(|pkt| (pkt.ecn, pkt.drop_reason)).collect();
    let over = Some(DropReason::Overlimit);
    assert_eq!(lost, [(0, over), (0, over), (0, over), (1, over)]);
    let left: Vec<_> = std::iter::from_fn(|| pop(&mut tree, START)).collect();
    assert_eq!(left, [1]);
}

#[test]
fn filters_and_priorities_choose_the_queue() {
    // A filter selects a class, and the class stands for a queue: class 1 is the L-queue (low
    // latency), class 2 is the L-queue for packets that are never marked, and all other classes are
    // the classic queue.
    for (class, l, ecn) in [("1:1", 1, 3), ("1:2", 1, 2), ("1:3", 0, 2), ("2:1", 1, 3)] {
        let filter = format!("filter add dev e parent 1: matchall classid {class}");
        let mut tree = tree(&["qdisc add dev e root handle 1: dualpi2", &filter]);
        push(&mut tree, START, 2);
        assert_eq!(stat(&tree, "packets_in_l"), l, "{class}");
        assert_eq!(pop(&mut tree, START.after(9 * MS)), Some(ecn), "{class}");
    }
    for (priority, l, ecn) in
        [(0x1_0001, 1, 3), (0x1_0002, 1, 2), (0x1_0003, 0, 2), (0x2_0001, 0, 2), (0, 0, 2)]
    {
        let mut tree = plain("");
        let mut pkt = Packet::new(1_000);
        (pkt.ecn, pkt.enqueued_ns, pkt.priority) = (2, START.0, priority);
        let _ = tree.enqueue(START, pkt);
        assert_eq!(stat(&tree, "packets_in_l"), l, "{priority:x}");
        assert_eq!(pop(&mut tree, START.after(9 * MS)), Some(ecn), "{priority:x}");
    }
}
