//! `pie`: when no packet is dropped although the drop probability is high, and when a packet is
//! certainly dropped.
//!
//! Source: RFC 8033, section 4.1: no drop while the queue holds less than two packets (in Linux,
//! two of the largest size), and none while the delay is below half of the target and the
//! probability is below 0.2; section 4.4, the burst allowance; section 5.3, the departure rate;
//! section 5.4, "De-randomization": no drop while the probabilities since the last drop add up to
//! less than 0.85, and a sure drop from 8.5 on.

use onramp_core::Spec;
use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Tree};
use onramp_queue::Packet;

const MS: u64 = 1_000_000;
const START_NS: u64 = 20_000 * MS;

fn stat(tree: &Tree, name: &str) -> u64 {
    let mut found = None;
    tree.stats(&mut |key, value| {
        if key == name {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("{name} is a statistic"))
}

fn ppm(tree: &Tree) -> u64 {
    stat(tree, "prob_ppm")
}

fn push(tree: &mut Tree, now: Instant, len: u32, came_ns: u64) -> Verdict {
    let mut pkt = Packet::new(len);
    pkt.enqueued_ns = came_ns;
    let verdict = tree.enqueue(now, pkt);
    drop(tree.drops());
    verdict
}

/// Lets packets wait for 200 ms each until the drop probability is above 0.6. Then removes all
/// packets and lets the probability fall below `target_ppm`.
fn fallen_to(target_ppm: u64) -> (Tree, Instant) {
    let spec: Spec = "pie limit 5000 tupdate 20ms".parse().expect("a correct line");
    let mut tree = Tree::new(&spec, 1514);
    for ms in 0..1_200 {
        let _ = push(&mut tree, Instant(START_NS), 1000, START_NS + ms * MS - 200 * MS);
    }
    let mut now = Instant(START_NS);
    while let Dequeue::Ready(_) = tree.dequeue(now) {
        now = now.after(MS);
    }
    while ppm(&tree) >= target_ppm {
        now = now.after(MS);
        assert!(matches!(tree.dequeue(now), Dequeue::Empty));
    }
    (tree, now)
}

/// Fills the queue to `held` packets of `len` bytes. Then enqueues 200 more packets, and dequeues
/// one packet after each. Returns how many packets were dropped.
fn dropped(tree: &mut Tree, now: Instant, held: u32, len: u32, waited_ns: u64) -> usize {
    let came_ns = now.0 - waited_ns;
    while tree.backlog().packets < held {
        let _ = push(tree, now, len, came_ns);
    }
    let offered = (0..200).map(|_| {
        let verdict = push(tree, now, len, came_ns);
        while tree.backlog().packets > held {
            assert!(matches!(tree.dequeue(now), Dequeue::Ready(_)));
        }
        verdict
    });
    offered.filter(|verdict| *verdict == Verdict::Dropped).count()
}

#[test]
fn two_largest_packets_are_no_queue() {
    // In the first case, the queue holds 3,027 bytes, less than two packets of 1,514 bytes. In the
    // second case, it holds 3,028 bytes, which is twice 1,514.
    let (mut tree, now) = fallen_to(600_000);
    assert_eq!(dropped(&mut tree, now, 3, 1009, 0), 0);
    let (mut tree, now) = fallen_to(600_000);
    let dropped = dropped(&mut tree, now, 4, 757, 0);
    assert!(dropped > 30, "{dropped}");
}

#[test]
fn a_low_probability_spares_a_short_delay() {
    for (ppm, waited_ms, drops) in [
        (230_000, 0, true),
        (200_000, 0, false),
        (200_000, 7, false),
        // Below a drop probability of 20 %, `pie` drops nothing while the delay is below 7.5 ms,
        // half of the target.
        (200_000, 8, true),
        (100_000, 20, true),
    ] {
        let (mut tree, now) = fallen_to(ppm);
        assert!(self::ppm(&tree) > ppm * 9 / 10, "it was just below");
        // `pie` learns the current delay from the departing packet.
        let _ = push(&mut tree, now, 1514, now.0 - waited_ms * MS);
        (0..3).for_each(|_| _ = push(&mut tree, now, 1514, now.0 - waited_ms * MS));
        let _ = tree.dequeue(now);
        let dropped = dropped(&mut tree, now, 3, 1514, waited_ms * MS);
        assert_eq!(dropped > 0, drops, "{ppm} ppm, {waited_ms} ms: {dropped} dropped");
    }
}

/// With a drop probability of `p`, the packet that is dropped comes after at least 0.85 / p packets
/// and after at most 8.5 / p packets since the last drop.
#[test]
fn drops_come_neither_too_early_nor_too_late() {
    let (mut tree, now) = fallen_to(300_000);
    let p = ppm(&tree);
    let (mut since, mut gaps) = (0_u64, Vec::new());
    for _ in 0..5_000 {
        while tree.backlog().packets < 10 {
            let before = tree.backlog().packets;
            let verdict = push(&mut tree, now, 1000, now.0);
            since += u64::from(before >= 4);
            if verdict == Verdict::Dropped {
                gaps.push(since);
                since = 0;
            }
        }
        let _ = tree.dequeue(now);
    }
    let (least, most) = (gaps[1..].iter().min(), gaps.iter().max());
    // The smallest gap between two drops is the number of packets without drops, plus one for the
    // dropped packet.
    assert_eq!(least.copied(), Some((850_000 / p) + 1), "at {p} ppm");
    assert!(most.is_some_and(|most| *most <= 8_500_000 / p + 1), "{most:?} at {p} ppm");
    // For the first 0.85 / p packets of a gap, `pie` drops nothing. After that, each packet is
    // dropped with probability p, which adds 1 / p packets on average. One packet belongs to both
    // parts.
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let (mean, p) = (gaps.iter().sum::<u64>() as f64 / gaps.len() as f64, p as f64 / 1e6);
    let expected = (0.85 / p).floor() + 1.0 / p;
    assert!((mean - expected).abs() < 0.5, "{mean}, expected {expected}");
}

/// With `bytemode`, the drop probability of a small packet is scaled by its size divided by the
/// largest packet size.
#[test]
fn in_byte_mode_a_packet_counts_by_its_length() {
    for (options, len, part) in [
        ("", 500, 1.0),
        ("bytemode", 500, 500.0 / 1514.0),
        ("bytemode", 1514, 1.0),
        ("bytemode", 1515, 1.0),
    ] {
        let (mut tree, now) = fallen_to(600_000);
        let line = format!("pie limit 5000 tupdate 20ms {options}");
        let spec: Spec = line.parse().expect("a correct line");
        // The options are changed in place, so the qdisc keeps its drop probability.
        let values = spec.values(1514);
        let mut drops = onramp_queue::PacketList::new();
        let mut cx = onramp_core::qdisc::Cx::new(now, &mut drops);
        assert!(tree.root().change(&values, &mut cx));
        let dropped = dropped(&mut tree, now, 20, len, 0);
        let p = f64::from(u32::try_from(ppm(&tree)).expect("small")) / 1e6 * part;
        // The expected number of drops among 200 packets is 200 divided by the mean gap between
        // drops: `pie` drops none of the first 0.85 / p packets, and then one of 1 / p packets.
        let expected = 200.0 / ((0.85 / p).floor() + 1.0 / p);
        let dropped = f64::from(u32::try_from(dropped).expect("small"));
        assert!((dropped - expected).abs() < 16.0, "{options} {len}: {dropped} of {expected}");
    }
}

/// RFC 8033, 4.4: when the drop probability and the delay have fallen to zero, the next burst may
/// last for 150 ms without drops, however short the target is. While the probability is higher,
/// drops begin earlier.
#[test]
fn a_queue_at_rest_lets_the_next_burst_pass() {
    let drops_in_a_burst = |mut tree: Tree, begin: Instant| {
        // A burst: in each millisecond, ten packets arrive and one leaves. Each packet has waited
        // for 300 ms.
        let mut first = None;
        for ms in 0..300 {
            let now = begin.after(ms * MS);
            for _ in 0..10 {
                if push(&mut tree, now, 1000, now.0 - 300 * MS) == Verdict::Dropped {
                    first = first.or(Some(ms));
                }
            }
            let _ = tree.dequeue(now);
        }
        first.expect("it lasts too long")
    };
    // While the drop probability is still 20 %, the burst suffers drops early.
    let (tree, now) = fallen_to(200_000);
    assert!(drops_in_a_burst(tree, now) < 60);
    let (tree, now) = fallen_to(1);
    let first_ms = drops_in_a_burst(tree, now.after(500 * MS));
    assert!((150..300).contains(&first_ms), "{first_ms} ms");
}

/// RFC 8033, 5.3: while the queue holds at least 16,384 bytes, `pie` measures how fast that number
/// of bytes departs. The average departure rate then moves by an eighth of its distance to the new
/// value.
#[test]
fn the_departure_rate_is_an_average_of_measurements() {
    let line = "pie limit 5000 tupdate 20ms dq_rate_estimator";
    let mut tree = Tree::new(&line.parse::<Spec>().expect(line), 1514);
    for _ in 0..200 {
        let _ = push(&mut tree, Instant(START_NS), 1000, START_NS);
    }
    let mut now = Instant(START_NS);
    let mut average = 0.0_f64;
    for gap_us in [10, 5, 5, 2, 20] {
        // The first packet begins a measurement and is counted in it. A measurement ends after 17
        // packets of 1,000 bytes, and the next measurement begins there.
        let gaps = if average == 0.0 { 16 } else { 17 };
        for n in 0..17 {
            now = now.after(if n < 17 - gaps { 0 } else { gap_us * 1_000 });
            assert!(matches!(tree.dequeue(now), Dequeue::Ready(_)));
        }
        let gaps = f64::from(gaps);
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let rate = 17_000.0 / (gaps * gap_us as f64 / 1e6);
        average = if average == 0.0 { rate } else { average * 7.0 / 8.0 + rate / 8.0 };
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let found = stat(&tree, "avg_dq_rate") as f64;
        assert!((found - average).abs() < average * 0.005, "{found}, expected {average}");
    }
}
