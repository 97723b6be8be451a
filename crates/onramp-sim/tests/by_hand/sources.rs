//! Tests of when sources send, and of the packets that they send.

use onramp_core::{Instant, Rate};
use onramp_queue::Packet;
use onramp_sim::Chance;
use onramp_sim::source::{Cbr, OnOff, Poisson, Records, RowError, Source, Traffic, rows};

use super::{MS, at};

/// Returns the times at which the source sends its first packets, up to `most` of them. Asserts
/// that the cookie of each packet is the packet's number, counted from 0.
fn times(mut source: impl Source, most: u64) -> Vec<Instant> {
    let mut times = Vec::new();
    for number in 0..most {
        let Some(due) = source.due() else { break };
        assert_eq!(source.due(), Some(due), "asking changes nothing");
        assert_eq!(source.packet(due).expect("it is due").cookie, number);
        times.push(due);
    }
    times
}

/// Asserts that a source sends the packets that are due before its end, but not a packet that is
/// due exactly at its end. The end is set to each of the times of the source's packets in turn.
fn ends_before<S: Source>(source: impl Fn(Traffic) -> S, traffic: &Traffic) {
    let all = times(source(traffic.clone()), 20);
    assert_eq!(all.len(), 20);
    for end in 1..20 {
        let until = |until| Traffic { until, ..traffic.clone() };
        let before = all.iter().filter(|due| **due < all[end]).count();
        assert_eq!(times(source(until(all[end])), 20), all[..before], "{end}");
        let with = all.iter().filter(|due| **due <= all[end]).count();
        let there = times(source(until(all[end].after(1))), with as u64);
        assert_eq!(there, all[..with], "{end}");
    }
}

#[test]
fn packets_are_what_the_traffic_says() {
    let traffic = Traffic { priority: 9, ..Traffic::of(7).size(333).ect().between(5, 10) };
    assert_eq!((traffic.from, traffic.until), (at(5), at(10)));
    let mut source = Cbr::new(traffic, Rate::bytes_per_second(1));
    assert_eq!(source.due(), Some(at(5)));
    let pkt = source.packet(at(5)).expect("it is due");
    assert_eq!((pkt.flow, pkt.len, pkt.priority, pkt.ecn, pkt.cookie), (7, 333, 9, 2, 0));
    assert_eq!(source.back_ns(), None);
    let plain = Traffic::of(3);
    assert_eq!((plain.flow, plain.size, plain.priority, plain.ecn), (3, 1514, 0, 0));
    assert_eq!((plain.from, plain.until), (at(0), Instant::MAX));
}

/// At 3,000 bytes per second, sending a packet of 100 bytes takes 33,333,333.3 ns.
#[test]
fn a_constant_rate() {
    let source =
        || Cbr::new(Traffic::of(1).size(100).between(7, 200 * MS), Rate::bytes_per_second(3_000));
    let due = [0, 33_333_333, 66_666_666, 100_000_000, 133_333_333, 166_666_666];
    assert_eq!(times(source(), 9), due.map(|ns| at(7 + ns)));
    let at_rate = |traffic| Cbr::new(traffic, Rate::bytes_per_second(3_000));
    ends_before(at_rate, &Traffic::of(1).size(100).between(7, u64::MAX));
    assert_eq!(times(Cbr::new(Traffic::of(1), Rate::bytes_per_second(0)), 1), []);
}

/// A Poisson source draws the time before its first packet and then each gap between packets from
/// the same generator, one after another.
#[test]
fn a_poisson_process() {
    let (rate, size) = (Rate::bytes_per_second(50_000), 500);
    for seed in 0..5 {
        let traffic = Traffic::of(1).size(size).between(3, u64::MAX);
        let mut chance = Chance::new(seed);
        let mut due = at(3);
        let drawn: Vec<Instant> = (0..50)
            .map(|_| {
                // Sending 500 bytes takes 10 ms at 50,000 bytes per second.
                due = due.after(chance.exponential(10 * MS));
                due
            })
            .collect();
        assert_eq!(times(Poisson::new(traffic.clone(), rate, seed), 50), drawn);
        ends_before(|traffic| Poisson::new(traffic, rate, seed), &traffic);
        assert_eq!(times(Poisson::new(traffic, Rate::bytes_per_second(0), seed), 1), []);
    }
}

/// Computes the times of an on-off source in another way than the source does: a silent period,
/// then packets with equal gaps until the sending period ends, then the next silent period. That
/// silent period begins when the first packet after the end of the sending period would have been
/// due.
fn on_off(gap_ns: u64, on_ns: u64, off_ns: u64, seed: u64, count: usize) -> Vec<Instant> {
    let mut chance = Chance::new(seed);
    let mut times = Vec::new();
    let mut next = at(0);
    while times.len() < count {
        next = next.after(chance.exponential(off_ns));
        let off = next.after(chance.exponential(on_ns));
        // The source sends at least one packet in its first sending period, however short that
        // period is.
        while next < off || times.is_empty() {
            times.push(next);
            next = next.after(gap_ns);
        }
    }
    times.truncate(count);
    times
}

#[test]
fn on_and_off() {
    // In the first two cases sending a byte takes a nanosecond, so packets are often due exactly at
    // the end of a period. In the last case they hardly ever are.
    for (rate, size, gap_ns, on_ns, off_ns) in [
        (1_000_000_000, 1, 1, 5, 7),
        (1_000_000_000, 3, 3, 2, 1),
        (125_000, 1_250, 10 * MS, 100 * MS, 300 * MS),
    ] {
        for seed in 0..5 {
            let source = |traffic: Traffic| {
                OnOff::new(traffic.size(size), Rate::bytes_per_second(rate), (on_ns, off_ns), seed)
            };
            let model = on_off(gap_ns, on_ns, off_ns, seed, 400);
            assert_eq!(times(source(Traffic::of(1)), 400), model, "{gap_ns}, seed {seed}");
            ends_before(source, &Traffic::of(1));
        }
    }
    for seed in 0..5 {
        assert_eq!(
            times(OnOff::new(Traffic::of(1), Rate::bytes_per_second(0), (MS, MS), seed), 1),
            []
        );
        assert_eq!(
            times(OnOff::new(Traffic::of(1), Rate::bytes_per_second(1_000), (0, MS), seed), 1),
            []
        );
    }
    // At a rate of more than one byte per nanosecond, the source sends a packet of one byte every
    // nanosecond.
    let fast =
        OnOff::new(Traffic::of(1).size(1), Rate::bytes_per_second(u64::MAX), (1_000_000, 1), 1);
    let fast = times(fast, 100);
    assert!(fast.windows(2).all(|pair| pair[1].since(pair[0]) == 1), "{fast:?}");
}

#[test]
fn records_are_numbered_and_keep_what_they_are() {
    let record = |ns, len, cookie| {
        let mut pkt = Packet::new(len);
        pkt.cookie = cookie;
        (at(ns), pkt)
    };
    let mut source = Records::new([record(4, 60, 77), record(9, 61, 77)].into_iter());
    for (ns, len, number) in [(4, 60, 0), (9, 61, 1)] {
        assert_eq!(source.due(), Some(at(ns)));
        let pkt = source.packet(at(ns)).expect("it is due");
        assert_eq!((pkt.len, pkt.cookie), (len, number));
    }
    assert_eq!(source.due(), None);
    assert!(source.packet(at(9)).is_none());
}

/// What a row of a table of packets says about its packet: the time, the length in bytes, the flow,
/// the priority, the ECN code point and the departure time.
type Read = (u64, u32, u64, u32, u8, u64);

fn read(text: &str) -> Result<Vec<Read>, RowError> {
    let figures = |(time, pkt): (Instant, Packet)| {
        (time.since(at(0)), pkt.len, pkt.flow, pkt.priority, pkt.ecn, pkt.txtime_ns)
    };
    rows(text)?.map(|row| row.map(figures)).collect()
}

#[test]
fn rows_have_columns_in_any_order() {
    let all = "size_bytes , ecn,time_ns,flow_id, priority,txtime_ns\n\
               60,3,5,18446744073709551615,4294967295,-1\n   \n 0x10 ,0x2, 0xa,1,0x1f,7\n";
    let begin = at(0).0;
    let expected = vec![(5, 60, u64::MAX, u32::MAX, 3, 0), (10, 16, 1, 31, 2, begin + 7)];
    assert_eq!(read(all), Ok(expected));
    assert_eq!(read("time_ns,flow_id,size_bytes\n7,8,1\n"), Ok(vec![(7, 1, 8, 0, 0, 0)]));
}

#[test]
fn what_is_wrong_with_rows() {
    let told = |text: &str| read(text).expect_err(text).to_string();
    let missing = |column: &str, head: &str| {
        format!("line 1: {column}: the column is missing; there are {head}")
    };
    for column in ["time_ns", "flow_id", "size_bytes"] {
        let others = ["time_ns", "flow_id", "size_bytes"].into_iter().filter(|it| *it != column);
        let others: Vec<&str> = others.collect();
        assert_eq!(told(&others.join(",")), missing(column, &others.join(", ")));
    }
    assert_eq!(told(""), missing("time_ns", ""));
    let head = "time_ns,flow_id,size_bytes,priority,ecn,txtime_ns";
    for (row, column, why) in [
        ("-1,1,60,0,0,-1", "time_ns", "\"-1\": expected nanoseconds since the beginning"),
        ("0,x,60,0,0,-1", "flow_id", "\"x\": expected a whole number"),
        ("0,1,4294967296,0,0,-1", "size_bytes", "\"4294967296\": expected 1 to 4294967295 bytes"),
        ("0,1,0x0,0,0,-1", "size_bytes", "\"0x0\": expected 1 to 4294967295 bytes"),
        ("0,1,60,0xg,0,-1", "priority", "\"0xg\": expected 0 to 4294967295"),
        ("0,1,60,0,256,-1", "ecn", "\"256\": expected 0 to 3"),
        ("0,1,60,0,4,-1", "ecn", "\"4\": expected 0 to 3"),
        ("0,1,60,0,0", "txtime_ns", "\"\": expected nanoseconds, or -1"),
    ] {
        let error = read(&format!("{head}\n{row}\n")).expect_err(row);
        assert_eq!((error.line, error.column, error.why.as_str()), (2, column, why));
    }
}
