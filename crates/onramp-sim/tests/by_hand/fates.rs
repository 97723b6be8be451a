//! Tests of what a wire reports about packets: when they came, left and arrived, and what happened
//! to them.

use onramp_core::{Instant, Rate, Setup, Tree};
use onramp_queue::{DropReason, Packet};
use onramp_sim::source::Records;
use onramp_sim::{Fate, Sim, Wire};

use super::{MS, at};

/// Returns the fates of packets that come to a wire. Each packet is given by its time in
/// nanoseconds, its length in bytes, and its ECN code point.
fn fates(qdisc: &str, rate: Option<u64>, delay_ns: u64, packets: &[(u64, u32, u8)]) -> Vec<Fate> {
    let setup = Setup::of(qdisc.parse().expect("a qdisc"));
    let tree = Tree::of(&setup, 1514, 1).expect("it has a root");
    let mut sim = Sim::new(Wire::new(tree, rate.map(Rate::bytes_per_second), delay_ns));
    let packets: Vec<(Instant, Packet)> = packets
        .iter()
        .map(|&(ns, len, ecn)| {
            let mut pkt = Packet::new(len);
            (pkt.ecn, pkt.flow) = (ecn, 4);
            (at(ns), pkt)
        })
        .collect();
    sim.add(Records::new(packets.into_iter()));
    sim.collect()
}

fn times(fates: &[Fate]) -> Vec<(u64, u64, Option<u64>)> {
    let since = |then: Instant| then.since(at(0));
    fates.iter().map(|it| (since(it.came), since(it.at), it.arrives.map(since))).collect()
}

/// The slowest wire sends one byte per second. A wire without a rate, or with a rate of zero, is
/// infinitely fast.
#[test]
fn the_slowest_wire_and_the_fastest() {
    let packets = [(0, 3, 0), (1, 2, 0)];
    let slow = times(&fates("pfifo", Some(1), 7, &packets));
    let second = 1_000_000_000;
    assert_eq!(slow, [(0, 0, Some(3 * second + 7)), (1, 3 * second, Some(5 * second + 7))]);
    for rate in [None, Some(0)] {
        assert_eq!(times(&fates("pfifo", rate, 7, &packets)), [(0, 0, Some(7)), (1, 1, Some(8))]);
    }
}

/// A packet that comes at the very instant at which the wire becomes free leaves at once.
#[test]
fn a_wire_is_free_when_the_last_bit_is_sent() {
    // Sending a byte takes a nanosecond.
    let told = times(&fates("pfifo limit 1", Some(1_000_000_000), 0, &[(0, 5, 0), (5, 5, 0)]));
    assert_eq!(told, [(0, 0, Some(5)), (5, 5, Some(10))]);
}

/// If `netem` duplicates a packet, the copy has a fate of its own, with the same arrival time as
/// the original. The fate of a copy always reports an empty backlog at the time when the copy came.
#[test]
fn copies_are_told_apart() {
    let told = fates("netem delay 1ms duplicate 100%", None, 3, &[(5, 60, 2), (9, 61, 1)]);
    let expected = [(5, MS + 5), (5, MS + 5), (9, MS + 9), (9, MS + 9)]
        .map(|(came, left)| (came, left, Some(left + 3)));
    assert_eq!(times(&told), expected);
    let rest = told.iter().map(|it| (it.packet.len, it.copy, it.ecn, it.marked, it.met.packets));
    // A copy stays in the tree as long as the original, so the second packet finds two packets in
    // the tree.
    let expected = [
        (60, false, 2, false, 0),
        (60, true, 2, false, 0),
        (61, false, 1, false, 2),
        (61, true, 1, false, 0),
    ];
    assert_eq!(rest.collect::<Vec<_>>(), expected);
    assert!(told.iter().all(|it| it.source == 0 && it.packet.flow == 4));
    assert_eq!(told[2].met.bytes, 120);
}

/// A packet counts as marked only if a qdisc has marked it. A packet that already came with CE does
/// not count as marked.
#[test]
fn marks_are_made_on_the_way() {
    // Sending a byte takes a microsecond, so each packet after the first waits for at least a
    // millisecond.
    let all = [0, 1, 2, 3].map(|ecn| (1, 1_000, ecn));
    let told =
        fates("codel ce_threshold 1us", Some(1_000_000), 0, &[&[(0, 1_000, 0)], &all[..]].concat());
    let told: Vec<_> = told.iter().map(|it| (it.ecn, it.packet.ecn, it.marked)).collect();
    assert_eq!(told, [(0, 0, false), (0, 0, false), (1, 3, true), (2, 3, true), (3, 3, false)]);
}

/// A packet that is dropped at dequeue is reported at the time of that dequeue, even if no further
/// packet comes.
#[test]
fn drops_at_the_exit_are_told_too() {
    // Sending a packet takes 10 ms, which is a hundred times the target delay of `codel`.
    let told = fates("codel target 100us interval 10ms", Some(100_000), 0, &[(0, 1_000, 0); 50]);
    assert_eq!(told.len(), 50);
    let dead: Vec<&Fate> = told.iter().filter(|fate| fate.arrives.is_none()).collect();
    assert!(dead.len() > 5, "{}", dead.len());
    for fate in dead {
        assert_eq!(fate.packet.drop_reason, Some(DropReason::Congested));
        assert_eq!(fate.at.since(at(0)) % (10 * MS), 0, "when the wire was free");
        assert!(told.iter().any(|sent| sent.arrives.is_some() && sent.at == fate.at));
    }
}

/// A packet that is dropped at enqueue is reported at once, and the packets in the queue stay
/// there.
#[test]
fn drops_are_told_when_they_happen() {
    let told = fates(
        "pfifo limit 1",
        Some(1_000_000),
        0,
        &[(0, 10, 0), (1, 11, 0), (2, 12, 0), (10_001, 13, 0)],
    );
    // Sending 10 bytes takes 10 µs, sending 11 bytes takes 11 µs.
    let expected = [
        (0, 0, Some(10_000)),
        (2, 2, None),
        (1, 10_000, Some(21_000)),
        (10_001, 21_000, Some(34_000)),
    ];
    assert_eq!(times(&told), expected);
    assert_eq!(told[1].packet.drop_reason, Some(DropReason::Overlimit));
    let met: Vec<_> = told.iter().map(|it| (it.met.packets, it.met.bytes)).collect();
    assert_eq!(met, [(0, 0), (1, 11), (0, 0), (0, 0)]);
    assert_eq!(told[2].sojourn_ns(), 9_999);
}
