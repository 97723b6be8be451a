//! Checks that `tbf` sends packets exactly when a token bucket allows it, and tests its options.

use onramp_core::Spec;
use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};
use proptest::prelude::*;

const MTU: u32 = 1514;
const START: Instant = Instant(5_000_000_000);

fn spec(line: &str) -> Spec {
    line.parse().expect("a correct line")
}

/// Enqueues packets of the lengths `lens`, all at the time `START`. Returns when each packet
/// leaves, in nanoseconds after `START`.
fn departures(line: &str, lens: &[u32]) -> Vec<u64> {
    let mut tree = Tree::new(&spec(line), MTU);
    for len in lens {
        let _ = tree.enqueue(START, Packet::new(*len));
    }
    let (mut now, mut times) = (START, Vec::new());
    loop {
        match tree.dequeue(now) {
            Dequeue::Ready(_) => times.push(now.since(START)),
            Dequeue::NotBefore(then) => {
                assert!(then > now);
                now = then;
            }
            Dequeue::Empty => return times,
        }
    }
}

#[test]
fn a_burst_leaves_at_once_and_the_rest_at_the_rate() {
    let times = departures("tbf rate 8mbit burst 3000 limit 10k", &[1000; 6]);
    assert_eq!(times, [0, 0, 0, 1_000_000, 2_000_000, 3_000_000]);
}

#[test]
fn the_link_adds_to_every_packet_and_to_the_burst() {
    // With 24 bytes of overhead, a packet of 1,000 bytes counts as 1,024 bytes, and the burst of
    // 2,000 bytes as 2,024.
    let times = departures("tbf rate 8mbit burst 2000 limit 10k overhead 24", &[1000; 3]);
    assert_eq!(times, [0, 24_000, 1_048_000]);
    // With a minimum size (`mpu`) of 100 bytes, a packet of 60 bytes counts as 100 bytes. The
    // bucket holds 200 bytes, so two packets leave at once.
    let times = departures("tbf rate 8mbit burst 200 limit 10k mpu 100", &[60; 3]);
    assert_eq!(times, [0, 0, 100_000]);
    // On an ADSL link, a packet of 100 bytes takes three cells, because a cell of 53 bytes carries
    // 48. The burst of 144 bytes is three cells, too, so one packet leaves at once.
    let times = departures("tbf rate 8mbit burst 144 limit 10k linklayer adsl", &[100; 3]);
    assert_eq!(times, [0, 159_000, 318_000]);
}

#[test]
fn the_peak_rate_spreads_a_burst() {
    let line = "tbf rate 8mbit burst 3000 limit 10k peakrate 16mbit mtu 1000";
    // In the first t ms, tokens for 3,000 + 1,000 t bytes are available. So five packets of 1,000
    // bytes leave at the peak rate, one every 0.5 ms, and later packets at the rate, one per ms.
    let times = departures(line, &[1000; 7]);
    assert_eq!(times, [0, 500_000, 1_000_000, 1_500_000, 2_000_000, 3_000_000, 4_000_000]);
}

#[test]
fn nothing_leaves_a_nanosecond_early() {
    let mut tree = Tree::new(&spec("tbf rate 8mbit burst 1000 limit 10k"), MTU);
    for _ in 0..2 {
        let _ = tree.enqueue(START, Packet::new(1000));
    }
    assert!(matches!(tree.dequeue(START), Dequeue::Ready(_)));
    let due = START.after(1_000_000);
    for ns in [0, 1, 999_000, 999_999] {
        let answer = tree.dequeue(START.after(ns));
        assert!(matches!(answer, Dequeue::NotBefore(then) if then == due), "{ns}: {answer:?}");
    }
    assert!(matches!(tree.dequeue(due), Dequeue::Ready(_)));
}

#[test]
fn a_reset_fills_the_buckets() {
    for line in [
        "tbf rate 8mbit burst 1000 limit 10k",
        "tbf rate 8mbit burst 1000 limit 10k peakrate 16mbit mtu 1000",
    ] {
        let mut tree = Tree::new(&spec(line), MTU);
        for _ in 0..2 {
            let _ = tree.enqueue(START, Packet::new(1000));
            assert!(matches!(tree.dequeue(START), Dequeue::Ready(_)), "{line}");
            tree.reset(START);
        }
    }
}

#[test]
fn what_is_larger_than_a_bucket_is_dropped() {
    for line in [
        "tbf rate 8mbit burst 999 limit 10k",
        "tbf rate 8mbit burst 3000 limit 10k peakrate 16mbit mtu 999",
    ] {
        let mut tree = Tree::new(&spec(line), MTU);
        let _ = tree.enqueue(START, Packet::new(1000));
        let _ = tree.enqueue(START, Packet::new(999));
        let dropped: Vec<_> = tree.drops().map(|pkt| (pkt.len, pkt.drop_reason)).collect();
        assert_eq!(dropped, [(1000, Some(DropReason::TooBig))], "{line}");
        assert_eq!(tree.backlog().packets, 1);
    }
}

/// With the option `latency`, `tbf` holds at most the bytes of the burst plus what `rate` sends
/// during the latency. With a `peakrate`, it also holds at most `mtu` bytes plus what `peakrate`
/// sends during the latency.
#[test]
fn latency_limits_what_is_held() {
    for (line, packets) in [
        ("tbf rate 8mbit burst 2000 latency 10ms", 12),
        ("tbf rate 8mbit burst 9000 latency 1ms peakrate 16mbit mtu 1500", 3),
    ] {
        let mut tree = Tree::new(&spec(line), MTU);
        for _ in 0..20 {
            let _ = tree.enqueue(START, Packet::new(1000));
        }
        assert_eq!(tree.backlog().packets, packets, "{line}");
        assert!(tree.drops().all(|pkt| pkt.drop_reason == Some(DropReason::Overlimit)));
    }
}

#[test]
fn another_qdisc_may_stand_below_it() {
    let mut setup = Setup::default();
    for line in [
        "tc qdisc add dev x root handle 1: tbf rate 8mbit burst 1000 limit 10k",
        "tc qdisc add dev x parent 1:1 handle 2: prio",
    ] {
        setup.apply(line).expect("a correct line");
    }
    let error = setup.apply("tc qdisc add dev x parent 1:2 prio").expect_err("one class");
    assert!(error.to_string().contains("1:1"), "{error}");

    let mut tree = Tree::of(&setup, MTU, 0).expect("a root");
    for (cookie, priority) in [(0, 2), (1, 0), (2, 6)] {
        let mut pkt = Packet::new(1000);
        (pkt.cookie, pkt.priority) = (cookie, priority);
        let _ = tree.enqueue(START, pkt);
    }
    let mut leaves = |ms: u64| match tree.dequeue(START.after(ms * 1_000_000)) {
        Dequeue::Ready(pkt) => Some(pkt.cookie),
        _ => None,
    };
    assert_eq!([leaves(0), leaves(0), leaves(1), leaves(2)], [Some(2), None, Some(1), Some(0)]);
}

#[test]
fn errors_name_what_is_missing_or_contradicts() {
    for (line, key, word) in [
        ("tbf burst 2k limit 3k", "rate", "missing"),
        ("tbf rate 0 burst 2k limit 3k", "rate", "8bit"),
        ("tbf rate 8mbit limit 3k", "burst", "missing"),
        ("tbf rate 8mbit burst 0 limit 3k", "burst", "1 to"),
        ("tbf rate 8mbit burst 2k", "limit", "latency"),
        ("tbf rate 8mbit burst 2k limit 3k latency 1ms", "latency", "one of them"),
        ("tbf rate 8mbit burst 2k limit 3k peakrate 9mbit", "mtu", "missing"),
        ("tbf rate 8mbit burst 2k limit 3k peakrate 8mbit mtu 2k", "peakrate", "more than"),
        ("tbf rate 8mbit burst 2k limit 3k linklayer fddi", "linklayer", "ethernet or atm"),
        ("tbf rate 8mbit burst 2k limit 3k overhead 70000", "overhead", "0 to 65535"),
    ] {
        let error = line.parse::<Spec>().expect_err(line);
        assert_eq!(error.key, key, "{line}: {error}");
        assert!(error.to_string().contains(word), "{line}: {error}");
    }
    let names = ["burst", "buffer", "maxburst"].map(|burst| {
        spec(&format!(
            "tbf rate 8mbit {burst} 2000 limit 3k peakrate 9mbit minburst 2k linklayer atm"
        ))
    });
    assert!(names.iter().all(|spec| *spec == names[0]));
    assert_eq!(
        names[0].to_string(),
        "tbf rate 8mbit burst 2000b limit 3kb peakrate 9mbit mtu 2kb linklayer atm"
    );
}

proptest! {
    /// From any packet to any later packet, `tbf` sends no more bytes than the burst plus what the
    /// rate allows in the time between these packets.
    #[test]
    fn no_span_has_more_than_rate_and_burst(
        lens in prop::collection::vec((60_u32..1515, 0_u64..3_000), 1..120),
        kbit in 500_u64..20_000,
        burst in 1_514_u64..9_000,
    ) {
        let line = format!("tbf rate {kbit}kbit burst {burst} limit 60k");
        let mut tree = Tree::new(&spec(&line), MTU);
        let (mut now, mut sent) = (START, Vec::new());
        for (len, pause_us) in lens {
            let _ = tree.enqueue(now, Packet::new(len));
            now = now.after(pause_us * 1_000);
            while let Dequeue::Ready(pkt) = tree.dequeue(now) {
                sent.push((now, u64::from(pkt.len)));
            }
        }
        for from in 0..sent.len() {
            let mut bytes = 0;
            for (then, len) in &sent[from..] {
                bytes += len;
                let share = then.since(sent[from].0) * kbit / 8_000_000;
                prop_assert!(bytes <= burst + share + 1, "{bytes} bytes of {}", burst + share);
            }
        }
    }
}

/// A change may make the bucket so small that packets could never leave. These packets are dropped,
/// and the packets behind them leave.
#[test]
fn what_a_change_makes_too_large_is_dropped() {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev x root handle 1: tbf rate 8mbit burst 2000 limit 20k").unwrap();
    let mut tree = Tree::of(&setup, MTU, 0).expect("a tree");
    for len in [1442, 1442, 1442, 400] {
        let _ = tree.enqueue(START, Packet::new(len));
    }
    tree.apply(START, "qdisc change dev x root tbf rate 8mbit burst 500 limit 20k").unwrap();
    let Dequeue::Ready(pkt) = tree.dequeue(START) else { panic!("it fits") };
    assert_eq!(pkt.len, 400);
    assert_eq!(tree.totals().dropped(DropReason::TooBig), 3);
    assert!(matches!(tree.dequeue(START), Dequeue::Empty));
}

/// A change of `tbf`'s limit also sets the limit of its child if the child is a FIFO, in packets or
/// bytes, but not of any other child.
#[test]
fn a_change_limits_the_fifo_below() {
    let held = |child: &str| {
        let mut setup = Setup::default();
        for line in [
            "tc qdisc add dev d root handle 1: tbf rate 8mbit burst 2000 limit 9000",
            &format!("tc qdisc add dev d parent 1:1 handle 2: {child}"),
        ] {
            setup.apply(line).expect(line);
        }
        let mut tree = Tree::of(&setup, MTU, 1).expect("a root");
        let change = "tc qdisc change dev d root handle 1: tbf rate 8mbit burst 2000 limit 5";
        let of_bytes = change.replace("limit 5", "limit 5000");
        let line = if child.starts_with("bfifo") { &of_bytes } else { change };
        tree.apply(START, line).expect("a change");
        for _ in 0..12 {
            let _ = tree.enqueue(START, Packet::new(1000));
        }
        tree.backlog().packets
    };
    assert_eq!(held("bfifo limit 9000"), 5);
    assert_eq!(held("pfifo limit 9"), 5);
    assert_eq!(held("pfifo_head_drop limit 9"), 5);
    assert_eq!(held("codel limit 9"), 9);
}
