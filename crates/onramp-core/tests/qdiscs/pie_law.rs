//! `pie` and `fq_pie`: the numbers that the formula for the drop probability gives, and the effect
//! of the drops on a queue.

use onramp_core::Spec;
use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Tree};
use onramp_queue::{DropReason, Packet};

const MS: u64 = 1_000_000;
const START_NS: u64 = 20_000 * MS;

fn tree(line: &str) -> Tree {
    Tree::new(&line.parse::<Spec>().expect(line), 1514)
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

fn push(tree: &mut Tree, now: Instant, flow: u64, ecn: u8) -> Verdict {
    let mut pkt = Packet::new(1000);
    (pkt.flow, pkt.ecn, pkt.enqueued_ns) = (flow, ecn, now.0);
    tree.enqueue(now, pkt)
}

/// 1,500 packets arrive at once, and one leaves every 8 ms, so the delay grows with time. Each
/// entry has options, a number of seconds, and the drop probability that Linux reached after these
/// seconds, in parts per million.
#[test]
fn the_probability_is_that_of_linux() {
    for (options, secs, ppm) in [
        ("tupdate 20ms alpha 2 beta 1", 2, 328_308),
        ("tupdate 20ms alpha 1 beta 32", 2, 471_926),
        ("tupdate 20ms alpha 32 beta 1", 2, 552_174),
        ("tupdate 20ms", 2, 432_338),
        ("tupdate 20ms", 3, 752_338),
        ("tupdate 10ms", 2, 625_676),
    ] {
        let mut tree = tree(&format!("pie limit 5000 {options}"));
        // This dequeue starts `pie`'s updates 60 ms before the packets arrive. As Linux's timer
        // does, `pie` updates every 30 ms with `tupdate 20ms`, and every 20 ms with `tupdate 10ms`.
        // In both cases, an update comes 10 ms after the packets arrive.
        let _ = tree.dequeue(Instant(START_NS - 60 * MS));
        for _ in 0..1500 {
            assert_eq!(push(&mut tree, Instant(START_NS), 0, 0), Verdict::Queued);
        }
        for ms in (0..=secs * 1000).step_by(8) {
            let _ = tree.dequeue(Instant(START_NS + ms * MS));
        }
        // `tc` rounds the probability and shows only its fractional part (the probability may
        // exceed 1).
        let ours = stat(&tree, "prob_ppm") % 1_000_000;
        assert!(ours.abs_diff(ppm) <= 1, "{options}: {ours}");
    }
}

/// Runs a queue in front of a link of 8 Mbit/s, which sends one packet of 1,000 bytes each
/// millisecond, for `secs` seconds. Per millisecond, `offered` packets arrive on average. Returns
/// the delays of the packets that left in the last third of the time, and the number of drops.
fn run(tree: &mut Tree, offered: f64, secs: u32, ecn: u8) -> (Vec<u64>, u32) {
    let (mut delays, mut dropped, mut owed) = (Vec::new(), 0, 0.0);
    for ms in 0..u64::from(secs) * 1000 {
        let now = Instant(START_NS + ms * MS);
        owed += offered;
        while owed >= 1.0 {
            let _ = push(tree, now, ms % 10, ecn);
            owed -= 1.0;
        }
        dropped += tree.drops().len();
        if let Dequeue::Ready(pkt) = tree.dequeue(now)
            && ms > u64::from(secs) * 2000 / 3
        {
            delays.push((now.0 - pkt.enqueued_ns) / MS);
        }
    }
    (delays, dropped)
}

#[test]
fn the_delay_comes_to_the_target() {
    for options in ["", "dq_rate_estimator", "bytemode", "target 30ms"] {
        let mut tree = tree(&format!("pie {options}"));
        let (delays, dropped) = run(&mut tree, 1.2, 60, 0);
        let mean = delays.iter().sum::<u64>() / delays.len() as u64;
        let target = if options.starts_with("target") { 30 } else { 15 };
        assert!((target / 2..target * 2).contains(&mean), "{options}: {mean} ms");
        // One sixth of the arriving packets does not fit the link and must be dropped.
        assert!((10_000..13_000).contains(&dropped), "{options}: {dropped}");
        assert_eq!(stat(&tree, "dropped"), u64::from(dropped));
    }
}

#[test]
fn nothing_is_dropped_where_everything_fits() {
    let mut tree = tree("pie");
    let (_, dropped) = run(&mut tree, 0.99, 20, 0);
    assert_eq!((dropped, stat(&tree, "prob_ppm")), (0, 0));
}

#[test]
fn a_burst_passes() {
    let mut tree = tree("pie");
    // For 150 ms, packets arrive at twice the rate of the link.
    let (_, dropped) = run(&mut tree, 2.0, 0, 0);
    assert_eq!(dropped, 0);
    for ms in 0..150 {
        let now = Instant(START_NS + ms * MS);
        for _ in 0..2 {
            assert_eq!(push(&mut tree, now, 0, 0), Verdict::Queued);
        }
        let _ = tree.dequeue(now);
    }
}

#[test]
fn marks_stand_in_while_few_are_needed() {
    let mut marked = tree("pie ecn");
    let (_, dropped) = run(&mut marked, 1.05, 30, 2);
    let marks = stat(&marked, "ecn_mark");
    // The senders in this test do not slow down when packets are marked, so the drop probability
    // rises above 10 %. Above that, `pie` drops instead of marking.
    assert!(marks > 50 && dropped > 1000, "{marks} marks, {dropped} drops");
    let mut plain = tree("pie ecn");
    let (_, dropped) = run(&mut plain, 1.05, 30, 0);
    assert!(stat(&plain, "ecn_mark") == 0 && dropped > 1000);
}

#[test]
fn the_limit_holds_and_says_so() {
    let mut tree = tree("pie limit 3");
    let fates = [(); 4].map(|()| push(&mut tree, Instant(START_NS), 0, 0));
    assert_eq!(fates[2..], [Verdict::Queued, Verdict::Dropped]);
    assert_eq!(tree.drops().next().and_then(|p| p.drop_reason), Some(DropReason::Overlimit));
    assert_eq!((stat(&tree, "overlimit"), stat(&tree, "maxq")), (1, 2));
}

/// `fq_pie` drops only packets of the flow that fills the link. A flow that needs little of the
/// link loses none.
#[test]
fn fq_pie_drops_where_the_queue_is() {
    let mut tree = tree("fq_pie");
    let mut lost = [0_u32; 2];
    for ms in 0..20_000 {
        let now = Instant(START_NS + ms * MS);
        for _ in 0..2 {
            let _ = push(&mut tree, now, 1, 0);
        }
        if ms % 10 == 0 {
            let _ = push(&mut tree, now, 2, 0);
        }
        tree.drops().for_each(|pkt| lost[usize::from(pkt.flow == 2)] += 1);
        if let Dequeue::Ready(pkt) = tree.dequeue(now)
            && pkt.flow == 2
        {
            assert!(now.0 - pkt.enqueued_ns <= 3 * MS);
        }
    }
    assert!(lost[0] > 15_000 && lost[1] == 0, "{lost:?}");
    assert_eq!(stat(&tree, "dropped"), u64::from(lost[0]));
}

#[test]
fn fq_pie_limits_memory() {
    let mut tree = tree("fq_pie memory_limit 10000");
    // Like Linux, `fq_pie` counts 2,304 bytes of memory for a datagram of 1,000 bytes, so four
    // datagrams fit into the memory limit of 10,000 bytes.
    let fates = [(); 5].map(|()| push(&mut tree, Instant(START_NS), 1, 0));
    assert_eq!(fates[3..], [Verdict::Queued, Verdict::Dropped]);
    assert_eq!((stat(&tree, "overmemory"), stat(&tree, "memory_used")), (1, 4 * 2304));
}

/// RFC 8033, 4.4: a burst passes without drops for 150 ms, even if the drop probability has become
/// high meanwhile.
#[test]
fn a_burst_passes_and_no_more() {
    let line = "pie limit 100000 target 1ms tupdate 1ms alpha 32 beta 32";
    let mut tree = Tree::new(&line.parse().expect("a correct line"), 1514);
    let begin = Instant(5_000_000_000);
    let first = (0_u64..10_000).find(|step| {
        let now = begin.after(step * 100_000);
        let _ = tree.enqueue(now, Packet::new(1000));
        if step % 5 == 0 {
            let _ = tree.dequeue(now);
        }
        tree.drops().count() > 0
    });
    let first_ms = first.expect("a drop") / 10;
    assert!((150..160).contains(&first_ms), "{first_ms} ms");
}
