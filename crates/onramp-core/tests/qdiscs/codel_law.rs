//! `codel`: what RFC 8289 promises, and corner cases with exact numbers.

use onramp_core::Spec;
use onramp_core::qdisc::{Cx, Dequeue, Peek, Qdisc, Verdict};
use onramp_core::{Instant, Tree};
use onramp_queue::{DropReason, Packet, PacketList};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
/// The time at which the tests begin, like that of a machine that has been up for a while.
const START_NS: u64 = 20_000 * MS;

fn tree(line: &str) -> Tree {
    Tree::new(&line.parse::<Spec>().expect(line), 1514)
}

fn at(ms: u64) -> Instant {
    Instant(START_NS + ms * MS)
}

fn push(tree: &mut Tree, ms: u64, cookie: u64, ecn: u8) -> Verdict {
    let mut pkt = Packet::new(1000);
    (pkt.cookie, pkt.ecn, pkt.enqueued_ns) = (cookie, ecn, at(ms).0);
    tree.enqueue(at(ms), pkt)
}

fn pop(tree: &mut Tree, ms: u64) -> Option<(u64, u8)> {
    match tree.dequeue(at(ms)) {
        Dequeue::Ready(pkt) => Some((pkt.cookie, pkt.ecn)),
        Dequeue::Empty => None,
        Dequeue::NotBefore(_) => panic!("codel does not wait"),
    }
}

fn drops(tree: &mut Tree) -> Vec<u64> {
    tree.drops()
        .inspect(|pkt| assert_eq!(pkt.drop_reason, Some(DropReason::Congested)))
        .map(|pkt| pkt.cookie)
        .collect()
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

/// Each entry has the number of a millisecond in which packets were dropped, and the cookies of
/// these packets.
type Drops = Vec<(u64, Vec<u64>)>;

/// Runs a standing queue of 300 packets, of which one leaves each millisecond. Returns when packets
/// were dropped, and which packets were marked.
fn standing(line: &str, ecn: u8) -> (Tree, Drops, Vec<u64>) {
    let mut tree = tree(line);
    for cookie in 0..300 {
        assert_eq!(push(&mut tree, 0, cookie, ecn), Verdict::Queued);
    }
    let (mut dropped, mut marked) = (Vec::new(), Vec::new());
    for ms in 1..=254 {
        let (_, mark) = pop(&mut tree, ms).expect("there is more");
        if mark == 3 {
            marked.push(ms);
        }
        let drops = drops(&mut tree);
        if !drops.is_empty() {
            dropped.push((ms, drops));
        }
    }
    (tree, dropped, marked)
}

#[test]
fn the_first_drop_comes_an_interval_after_the_wait_was_too_long() {
    let (tree, dropped, _) = standing("codel", 0);
    // From 5 ms on, packets wait longer than the target. The first drop comes 100 ms after that.
    // The second drop comes 100 ms later, rounded to units of 1.024 us. The third drop is due only
    // 50 ms after the second, because one step of Newton's method gives 0.5 for 1 / sqrt(2).
    assert_eq!(dropped, [(105, vec![104]), (205, vec![205])]);
    assert_eq!((stat(&tree, "count"), stat(&tree, "dropping")), (2, 1));
}

#[test]
fn a_shorter_interval_drops_faster_and_faster() {
    let (tree, dropped, _) = standing("codel target 1ms interval 20ms", 0);
    let times: Vec<u64> = dropped.iter().map(|(ms, _)| *ms).collect();
    assert_eq!(times[0], 22);
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps[0] == 20 && gaps.last() <= Some(&6), "{gaps:?}");
    assert_eq!(stat(&tree, "count"), times.len() as u64);
}

#[test]
fn marks_stand_in_for_drops_where_the_sender_understands() {
    for ecn in [1, 2] {
        let (tree, dropped, marked) = standing("codel ecn", ecn);
        assert_eq!((dropped.len(), marked), (0, vec![105, 205]));
        assert_eq!(stat(&tree, "ecn_mark"), 2);
    }
    let (tree, dropped, marked) = standing("codel ecn", 0);
    assert_eq!((dropped.len(), marked.len(), stat(&tree, "ecn_mark")), (2, 0, 0));
}

#[test]
fn every_packet_above_the_threshold_is_marked() {
    let (tree, dropped, marked) = standing("codel ce_threshold 2ms", 2);
    // A packet that waits for exactly 2 ms is not marked.
    assert_eq!(marked, (3..=254).collect::<Vec<_>>());
    assert_eq!((stat(&tree, "ce_mark"), dropped.len()), (252, 2));
}

#[test]
fn the_last_packets_stay_however_old_they_are() {
    let mut tree = tree("codel target 1ms interval 10ms");
    for cookie in 0..3 {
        let _ = push(&mut tree, 0, cookie, 0);
    }
    for (ms, cookie) in [(1_000, 0), (2_000, 1), (3_000, 2)] {
        // When the first packet leaves, two packets of 1,000 bytes are left, and CoDel starts to
        // count the interval. When the second packet leaves, one packet is left. That is less than
        // a packet of 1,514 bytes, so CoDel stops counting.
        assert_eq!(pop(&mut tree, ms), Some((cookie, 0)));
    }
    assert!(drops(&mut tree).is_empty());
    assert_eq!(pop(&mut tree, 3_000), None);
}

#[test]
fn the_packet_a_parent_saw_counts_against_the_limit() {
    let spec: Spec = "codel limit 2".parse().expect("a correct line");
    let (mut qdisc, mut drops) = (spec.build(1514), PacketList::new());
    let mut cx = Cx::new(at(0), &mut drops);
    let mut push = |qdisc: &mut dyn Qdisc| qdisc.enqueue(Packet::new(1000), &mut cx);
    assert_eq!(push(&mut *qdisc), Verdict::Queued);
    assert_eq!(qdisc.peek(&mut Cx::new(at(0), &mut PacketList::new())), Peek::Ready(1000));
    assert_eq!(push(&mut *qdisc), Verdict::Queued);
    assert_eq!(push(&mut *qdisc), Verdict::Dropped);
    assert_eq!((qdisc.backlog().packets, qdisc.backlog().bytes), (2, 2000));
    assert_eq!(drops.len(), 1);
}

#[test]
fn the_limit_counts_packets() {
    let mut tree = tree("codel limit 2");
    assert_eq!(push(&mut tree, 0, 0, 0), Verdict::Queued);
    assert_eq!(push(&mut tree, 0, 1, 0), Verdict::Queued);
    assert_eq!(push(&mut tree, 0, 2, 0), Verdict::Dropped);
    let reason = tree.drops().next().and_then(|pkt| pkt.drop_reason);
    assert_eq!(reason, Some(DropReason::Overlimit));
    assert_eq!(stat(&tree, "drop_overlimit"), 1);
}

proptest! {
    /// Packets leave in order of arrival. CoDel drops a packet only if, for a whole interval, every
    /// departing packet has waited for at least the target.
    #[test]
    fn nobody_dies_without_a_standing_queue(
        steps in prop::collection::vec((0_u64..4, 0_u64..12), 1..400),
    ) {
        let mut tree = tree("codel target 10ms interval 50ms");
        let (mut ms, mut cookie, mut last) = (0, 0, None);
        let mut sent_at = Vec::new();
        // The time since which every departing packet has waited too long. `None` if the packet
        // that departed last has not, or if the queue was empty.
        let mut bad_since = None;
        for (pushes, wait) in steps {
            for _ in 0..pushes {
                let _ = push(&mut tree, ms, cookie, 0);
                sent_at.push(ms);
                cookie += 1;
            }
            ms += wait;
            let out = pop(&mut tree, ms);
            let dropped = drops(&mut tree);
            for cookie in &dropped {
                let bad: u64 = bad_since.expect("no drop in a good queue");
                let sent: u64 = sent_at[usize::try_from(*cookie).expect("small")];
                prop_assert!(ms - bad >= 50, "dropped {} ms after it turned bad", ms - bad);
                prop_assert!(ms - sent >= 10);
                prop_assert!(last < Some(*cookie));
            }
            let Some((cookie, _)) = out else {
                bad_since = None;
                continue;
            };
            prop_assert!(last < Some(cookie) && dropped.iter().all(|dropped| *dropped < cookie));
            last = Some(cookie);
            // The wait is counted in whole milliseconds, so CoDel's units of 1.024 us, which are
            // rounded down, do not matter here.
            let waited = ms - sent_at[usize::try_from(cookie).expect("small")];
            bad_since = if waited < 10 { None } else { bad_since.or(Some(ms)) };
        }
    }
}

/// A dequeue drops at most 256 packets, however late it comes. With an interval of 10 us, drops of
/// all 900 packets would be due after 8 ms. A test of Linux 7.2 showed that a dequeue of Linux also
/// stops after 256 drops.
#[test]
fn a_dequeue_drops_256_packets_at_most() {
    for line in ["codel target 1us interval 10us", "fq_codel target 1us interval 10us"] {
        let mut tree = tree(line);
        for cookie in 0..900 {
            assert_eq!(push(&mut tree, 0, cookie, 0), Verdict::Queued);
        }
        let left: Vec<_> = (0..7)
            .map(|turn| {
                let left = pop(&mut tree, 8 * turn).map(|(cookie, _)| cookie);
                (left, drops(&mut tree).len())
            })
            .collect();
        // The first packet leaves at once. At the second dequeue, CoDel begins to drop, which it
        // always does with a single packet. Each later dequeue drops up to 256 packets and returns
        // the packet after them. The last two packets are not dropped, because no more than one MTU
        // of bytes is left.
        let expected = [(0, 0), (2, 1), (259, 256), (516, 256), (773, 256), (898, 124), (899, 0)];
        assert_eq!(left, expected.map(|(cookie, dropped)| (Some(cookie), dropped)), "{line}");
    }
}
