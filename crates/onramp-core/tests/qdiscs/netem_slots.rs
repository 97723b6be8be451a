//! `netem`: slots that are limited by packets or bytes, the rate when some packets overtake others,
//! and the delay distribution that mixes a normal distribution and a Pareto distribution.
//!
//! Source: `tc-netem(8)`: "slot: defer delivering accumulated packets to within a slot, limited by
//! packets and bytes"; "rate"; "reorder" with "gap"; "distribution"; and iproute2's
//! `netem/paretonormal.c`, which mixes quantiles: a quarter of the normal distribution's, and three
//! quarters of Pareto's.

use std::collections::BTreeMap;

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, Query};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const MS: u64 = 1_000_000;
const START_NS: u64 = 20_000 * MS;

fn tree(options: &str) -> Tree {
    let mut setup = Setup::default();
    setup.apply(&format!("qdisc add dev e root netem {options}")).expect("a correct line");
    Tree::of(&setup, 1514, 1).expect("there is a root")
}

fn push(tree: &mut Tree, now_ns: u64, len: u32) {
    assert_eq!(tree.enqueue(Instant(now_ns), Packet::new(len)), Verdict::Queued);
}

/// Enqueues `packets` packets at the same time, and dequeues all of them. Returns the number of
/// packets that left at each departure time, in order.
fn bursts(options: &str, packets: u32, len: u32) -> Vec<u32> {
    let mut tree = tree(options);
    (0..packets).for_each(|_| push(&mut tree, START_NS, len));
    let (mut now, mut bursts) = (Instant(START_NS), BTreeMap::new());
    loop {
        match tree.dequeue(now) {
            Dequeue::Ready(_) => *bursts.entry(now.0).or_insert(0) += 1,
            Dequeue::NotBefore(then) => {
                assert_eq!(then.since(now), 10 * MS, "a slot comes after 10 ms");
                now = then;
            }
            Dequeue::Empty => return bursts.into_values().collect(),
        }
    }
}

#[test]
fn a_slot_ends_with_its_packets_or_its_bytes() {
    for (limits, expected) in [
        ("packets 3", &[3, 3, 3, 1][..]),
        ("packets 1", &[1; 10]),
        // A slot ends with the packet that uses up the slot's bytes, even if that packet is larger
        // than the bytes that were left.
        ("bytes 3000", &[3, 3, 3, 1]),
        ("bytes 3001", &[4, 4, 2]),
        ("bytes 2999", &[3, 3, 3, 1]),
        ("bytes 1", &[1; 10]),
        ("packets 2 bytes 9000", &[2; 5]),
        ("packets 9 bytes 4000", &[4, 4, 2]),
        ("", &[10]),
    ] {
        assert_eq!(bursts(&format!("slot 10ms {limits}"), 10, 1000), expected, "{limits}");
    }
}

/// A packet that is not delayed overtakes delayed packets, but still occupies the link. The link
/// sends packets in the order in which `netem` handles them on arrival. So even a packet with a
/// negative delay must wait until the link has sent the packets that arrived before it.
#[test]
fn the_wire_is_busy_behind_a_packet_that_overtook() {
    // With these options, every second packet overtakes, if there are packets to overtake. The
    // delay is 1 ms, plus or minus up to 4 ms.
    let options = "delay 1ms 4ms rate 8mbit reorder 100% gap 2";
    let mut early = 0;
    for seed in 0..60 {
        let mut tree = tree(&format!("{options} seed {seed}"));
        push(&mut tree, START_NS, 1000);
        // After 50 ms, the delay of the first packet is over, so it leaves.
        let late = Instant(START_NS + 50 * MS);
        assert!(matches!(tree.dequeue(late), Dequeue::Ready(_)));
        push(&mut tree, late.0, 1000);
        push(&mut tree, late.0, 1000);
        assert!(matches!(tree.dequeue(late), Dequeue::Ready(_)), "it overtakes");
        let Dequeue::NotBefore(then) = tree.dequeue(late) else { panic!("it is on the wire") };
        let took_ns = then.since(late);
        // On the link, 1,000 bytes take a millisecond. The random delay adds to that, unless it is
        // negative.
        assert!((MS..=6 * MS).contains(&took_ns), "{took_ns}");
        early += u32::from(took_ns == MS);
    }
    // Three of eight random delays are negative. Those packets leave after exactly a millisecond.
    assert!((10..40).contains(&early), "{early}");
}

/// The delays have the quantiles of the mixed distribution, with a mean delay of 100 ms and a
/// deviation of 10 ms.
#[test]
fn the_mixture_has_its_quantiles() {
    let mut tree = tree("limit 100000 delay 100ms 10ms distribution paretonormal seed 5");
    (0..20_000).for_each(|_| push(&mut tree, START_NS, 100));
    let (mut now, mut delays) = (Instant(START_NS), Vec::new());
    loop {
        match tree.dequeue(now) {
            Dequeue::Ready(_) => delays.push(now.0 - START_NS),
            Dequeue::NotBefore(then) => now = then,
            Dequeue::Empty => break,
        }
    }
    // The quantiles of the normal distribution, from any table.
    for (percent, bell) in [
        (2, -2.053_75),
        (10, -1.281_55),
        (25, -0.674_49),
        (50, 0.0),
        (75, 0.674_49),
        (90, 1.281_55),
        (98, 2.053_75),
    ] {
        let part = f64::from(percent) / 100.0;
        // The quantile of a Pareto distribution of shape 3, P(X < x) = 1 - x^-3, less its mean of
        // 3/2 and divided by its variance of 3/4.
        let tail = ((1.0 - part).powf(-1.0 / 3.0) - 1.5) * 4.0 / 3.0;
        let expected = 100.0 + 10.0 * (0.25 * bell + 0.75 * tail);
        let place = delays.len() * usize::try_from(percent).expect("small") / 100;
        #[expect(clippy::cast_precision_loss, reason = "a tenth of a second")]
        let found = delays[place] as f64 / 1e6;
        // Few of the delays are in the tail of the distribution, so allow a larger difference
        // there.
        let off = if percent < 98 { 0.2 } else { 0.7 };
        assert!((found - expected).abs() < off, "{percent} %: {found} ms, expected {expected} ms");
    }
}

/// A packet at 10 ms waits for the slot at 110 ms. As in Linux, a change that does not name `slot`
/// leaves this slot where it is, and a change that names it begins a slot at once.
#[test]
fn a_change_begins_a_slot_only_if_it_names_one() {
    for (line, left_ms) in
        [("limit 2000", 110), ("slot 100ms 100ms", 60), ("slot 30ms", 60), ("slot 0", 60)]
    {
        let mut tree = tree("slot 100ms 100ms");
        let at = |ms: u64| Instant(START_NS + ms * MS);
        push(&mut tree, at(10).0, 1000);
        assert!(matches!(tree.dequeue(at(10)), Dequeue::NotBefore(then) if then == at(110)));
        tree.apply(at(60), &format!("qdisc change dev e root netem {line}")).expect("a line");
        let left = match tree.dequeue(at(60)) {
            Dequeue::Ready(_) => at(60),
            Dequeue::NotBefore(then) => then,
            Dequeue::Empty => panic!("a packet waits"),
        };
        assert_eq!(left, at(left_ms), "{line}");
    }
}

/// The limits of a slot belong to the `slot` that a command names.
#[test]
fn a_new_slot_has_new_limits() {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev e root netem slot 100ms packets 5 bytes 1000").expect("a line");
    for (line, shown) in [
        ("netem delay 1ms", "delay 1ms slot 100ms 100ms packets 5 bytes 1000"),
        ("netem slot 50ms packets 7", "slot 50ms 50ms packets 7"),
        ("netem slot 50ms", "slot 50ms 50ms"),
    ] {
        setup.apply(&format!("qdisc change dev e root {line}")).expect("a line");
        let mut out = Out::new(Style::default());
        Listed::new(None, &setup, 1514, &[]).qdiscs(Query::default(), &mut out);
        let listed = out.finish();
        assert!(listed.trim_end().ends_with(&format!(" limit 1000 {shown}")), "{line}: {listed}");
    }
}

/// As in Linux, packets that overtake count as requeued: here, every fifth.
#[test]
fn packets_that_overtake_are_requeues() {
    let mut tree = tree("delay 10ms reorder 100% gap 5");
    (0..100).for_each(|_| push(&mut tree, START_NS, 1000));
    assert_eq!(tree.views()[0].counters.requeues, 20);
    tree.apply(Instant(START_NS), "qdisc change dev e root netem delay 5ms").expect("a line");
    assert_eq!(tree.views()[0].counters.requeues, 20);
}
