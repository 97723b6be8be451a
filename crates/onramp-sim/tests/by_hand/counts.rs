//! Tests of what a sink counts, with fates of packets that are written by hand.

use onramp_core::qdisc::Backlog;
use onramp_queue::{DropReason, Packet};
use onramp_sim::{Counts, Fate, Histogram, Sink};

use super::at;

/// Returns the fate of a packet of `flow` that came to a tree of qdiscs at `came`, was sent at
/// `left`, and arrived 50 ns later. Times are in nanoseconds since the beginning.
fn fate(flow: u64, len: u32, came: u64, left: u64) -> Fate {
    let mut packet = Packet::new(len);
    packet.flow = flow;
    let (came, left) = (at(came), at(left));
    let arrives = Some(left.after(50));
    let met = Backlog::default();
    Fate { packet, source: 0, came, met, at: left, arrives, ecn: 0, marked: false, copy: false }
}

fn died(flow: u64, len: u32, came: u64, left: u64, reason: DropReason) -> Fate {
    let mut fate = Fate { arrives: None, ..fate(flow, len, came, left) };
    fate.packet.drop_reason = Some(reason);
    fate
}

/// A sink counts packets and bytes that came, were sent and were dropped, marks and copies, and the
/// sum and the greatest of the sojourn times.
fn figures(counts: &Counts) -> [u64; 10] {
    let sojourn_ns = u64::try_from(counts.sojourn_ns).expect("a small sum");
    [
        counts.packets,
        counts.bytes,
        counts.sent_packets,
        counts.sent_bytes,
        counts.dropped_packets,
        counts.dropped_bytes,
        counts.marked,
        counts.copies,
        sojourn_ns,
        counts.sojourn_most_ns,
    ]
}

#[test]
fn every_count_has_its_packets() {
    let mut sink = Sink::default();
    let none = sink.total();
    assert_eq!((figures(none), none.first, none.last), ([0; 10], None, None));
    assert_eq!((none.sojourn_mean_ns(), none.sent_bits_per_second()), (None, None));
    assert_eq!((sink.jain(), sink.drops().next()), (None, None));
    sink.note(&fate(1, 100, 20, 27));
    sink.note(&fate(1, 200, 10, 13));
    sink.note(&Fate { marked: true, ..fate(2, 400, 30, 30) });
    sink.note(&Fate { copy: true, ..fate(2, 800, 30, 31) });
    sink.note(&Fate { marked: true, ..died(1, 1600, 5, 6, DropReason::Congested) });
    sink.note(&died(3, 3200, 40, 90, DropReason::Overlimit));
    sink.note(&died(3, 6400, 41, 91, DropReason::Overlimit));
    sink.note(&Fate { copy: true, ..died(3, 12_800, 42, 92, DropReason::Overlimit) });
    let total = sink.total();
    // A copy (made by a qdisc that duplicates packets) does not count as a packet that came, but it
    // counts as sent or dropped. The sojourn times of the four sent packets are 7, 3, 0 and 1 ns.
    let bytes = [100 + 200 + 400 + 1600 + 3200 + 6400, 1500, 1600 + 3200 + 6400 + 12_800];
    assert_eq!(figures(total), [6, bytes[0], 4, bytes[1], 4, bytes[2], 2, 2, 11, 7]);
    assert_eq!((total.first, total.last), (Some(at(5)), Some(at(31 + 50))));
    assert_eq!(total.sojourn_mean_ns(), Some(2.75));
    // 1,500 bytes, which are 12,000 bits, arrived in the 76 ns from 5 ns (the first packet came) to
    // 81 ns (the last packet arrived).
    assert_eq!(total.sent_bits_per_second(), Some(12_000.0 * 1e9 / 76.0));
    let flows: Vec<u64> = sink.flows().keys().copied().collect();
    assert_eq!(flows, [1, 2, 3]);
    assert_eq!(figures(&sink.flows()[&1]), [3, 1900, 2, 300, 1, 1600, 1, 0, 10, 7]);
    assert_eq!(figures(&sink.flows()[&2]), [1, 400, 2, 1200, 0, 0, 1, 1, 1, 1]);
    assert_eq!(figures(&sink.flows()[&3]), [2, 9600, 0, 0, 3, 22_400, 0, 1, 0, 0]);
    assert_eq!(sink.flows()[&2].first, Some(at(30)));
    assert_eq!(sink.flows()[&3].last, None);
    assert_eq!(figures(sink.others()), [0; 10]);
    let drops: Vec<_> = sink.drops().collect();
    let place = |wanted| DropReason::ALL.iter().position(|reason| *reason == wanted);
    let mut expected = vec![(DropReason::Congested, 1), (DropReason::Overlimit, 3)];
    expected.sort_by_key(|(reason, _)| place(*reason));
    assert_eq!(drops, expected);
    // Only the sojourn times of packets that were sent are in the histogram.
    let sojourns = sink.sojourns();
    assert_eq!((sojourns.count(), sojourns.least(), sojourns.most()), (4, Some(0), Some(7)));
    // The flows sent 300, 1,200 and 0 bytes, so Jain's index is 1,500² divided by 3 times the sum
    // of 300² and 1,200².
    assert_eq!(sink.jain(), Some(2_250_000.0 / (3.0 * 1_530_000.0)));
}

/// If the fate of a packet has an arrival time, the sink counts the packet as sent and not as
/// dropped, even if a drop reason is set in the packet.
#[test]
fn a_reason_of_before_is_no_drop() {
    let mut sink = Sink::new();
    let mut sent = fate(1, 100, 0, 9);
    sent.packet.drop_reason = Some(DropReason::Congested);
    sink.note(&sent);
    assert_eq!((sink.drops().count(), sink.sojourns().count()), (0, 1));
}

/// `sent_bits_per_second` returns a rate only if the sink has counted at least two sent packets,
/// and the last of them arrived later than the first came.
#[test]
fn rates_take_time_and_two_packets() {
    let rate = |fates: &[Fate]| {
        let mut sink = Sink::new();
        fates.iter().for_each(|fate| sink.note(fate));
        sink.total().sent_bits_per_second()
    };
    let at_once = |left| Fate { arrives: Some(at(left)), ..fate(1, 10, 5, left) };
    assert_eq!(rate(&[at_once(6)]), None);
    assert_eq!(rate(&[at_once(5), at_once(5)]), None);
    assert_eq!(rate(&[at_once(5), at_once(6)]), Some(160e9));
    assert_eq!(rate(&[died(1, 10, 5, 6, DropReason::Congested)]), None);
    let mut mean = Sink::new();
    mean.note(&at_once(8));
    assert_eq!(mean.total().sojourn_mean_ns(), Some(3.0));
}

#[test]
fn flows_beyond_the_most_are_others() {
    for (most, mut sink) in [(2, Sink::with_flows(2)), (65_536, Sink::new())] {
        for flow in 0..=most {
            sink.note(&fate(flow, 100, 0, 1));
        }
        // The sink counts up to `most` flows separately, and the packets of all further flows
        // together. Another packet of a flow that is counted separately is still counted with that
        // flow.
        sink.note(&fate(most - 1, 100, 0, 1));
        assert_eq!(sink.flows().len() as u64, most);
        assert_eq!(sink.flows()[&(most - 1)].packets, 2);
        assert_eq!((sink.others().packets, sink.total().packets), (1, most + 2));
    }
}

/// `per_mille(part)` finds a value by its rank without rounding errors: the rank is exactly `part`
/// thousandths of the number of values, rounded up. No result exceeds the greatest value counted.
#[test]
fn ranks_are_exact() {
    let mut all = Histogram::default();
    all.note(0);
    assert_eq!((all.most(), all.per_mille(1_000)), (Some(0), Some(0)));
    let mut all = Histogram::default();
    for number in 0..10_000 {
        all.note(if number < 5_009 { 1 } else { 2 });
    }
    // Of the 10,000 values, the lowest 5,009 are 1 and the others are 2. So 500 thousandths (rank
    // 5,000) give 1, and 501 thousandths (rank 5,010, the first 2) give 2.
    assert_eq!([500, 501].map(|part| all.per_mille(part)), [Some(1), Some(2)]);
}

#[test]
fn one_figure_and_two() {
    let mut all = Histogram::default();
    assert_eq!((all.count(), all.most(), all.per_mille(0)), (0, None, None));
    all.note(1_000);
    assert_eq!((all.count(), all.least(), all.most()), (1, Some(1_000), Some(1_000)));
    assert_eq!(all.mean(), Some(1_000.0));
    assert_eq!([0, 500, 1_000].map(|part| all.per_mille(part)), [Some(1_000); 3]);
    all.note(3_000);
    // A histogram counts values in cells: a cell spans four values from 512 on, and sixteen from
    // 2,048 on. 1,000 is in the cell of 1,000 to 1,003, and 3,000 in that of 2,992 to 3,007.
    // `per_mille` returns the last value of a cell, but never more than the greatest value counted.
    assert_eq!((all.count(), all.mean()), (2, Some(2_000.0)));
    assert_eq!([500, 501].map(|part| all.per_mille(part)), [Some(1_003), Some(3_000)]);
}
