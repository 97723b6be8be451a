//! Tests of the simulation in virtual time: of the event loop, the wire, the sources and the sink.

use onramp_core::Spec;
use onramp_core::qdisc::KINDS;
use onramp_core::{Instant, Rate, Setup, Tree};
use onramp_queue::{DropReason, Packet};
use onramp_sim::source::{Cbr, OnOff, Poisson, Records, Source, Traffic, Window, rows};
use onramp_sim::{BEGIN, Fate, SEC, Sim, Sink, Wire};

const MSEC: u64 = 1_000_000;

fn rate(text: &str) -> Rate {
    text.parse().expect("a rate")
}

fn wire(qdisc: &str, rate: Option<&str>, delay_ns: u64) -> Wire {
    let setup = Setup::of(qdisc.parse().expect("a qdisc"));
    let tree = Tree::of(&setup, 1514, 1).expect("it has a root");
    Wire::new(tree, rate.map(self::rate), delay_ns)
}

/// Returns a source that sends packets of these lengths, in bytes, all at the beginning of the
/// simulation.
fn burst(lengths: &[u32]) -> impl Source + use<> {
    let packets: Vec<_> = lengths.iter().map(|len| (BEGIN, Packet::new(*len))).collect();
    Records::new(packets.into_iter())
}

fn since(at: Instant) -> u64 {
    at.since(BEGIN)
}

#[test]
fn packets_leave_one_after_the_other() {
    let mut sim = Sim::new(wire("pfifo limit 2", Some("8mbit"), 500));
    sim.add(burst(&[1000, 100, 7, 9]));
    let fates: Vec<Fate> = sim.by_ref().collect();
    // Sending a byte takes a microsecond. The first packet leaves at once, the next two wait in the
    // queue, and the last finds the queue full and is dropped.
    let told: Vec<_> = fates
        .iter()
        .map(|fate| (fate.packet.len, since(fate.at), fate.arrives.map(since), fate.met.packets))
        .collect();
    assert_eq!(
        told,
        [
            (1000, 0, Some(1_000_500), 0),
            (9, 0, None, 2),
            (100, 1_000_000, Some(1_100_500), 0),
            (7, 1_100_000, Some(1_107_500), 1),
        ]
    );
    assert_eq!(fates[1].packet.drop_reason, Some(DropReason::Overlimit));
    assert_eq!(fates[3].met.bytes, 100);
    assert_eq!((fates[3].packet.cookie, fates[3].sojourn_ns()), (2, 1_100_000));
    assert_eq!(sim.wire().tree().backlog().packets, 0);
}

#[test]
fn a_wire_without_a_rate_is_never_busy() {
    let mut sim = Sim::new(wire("pfifo limit 1", None, 3));
    sim.add(burst(&[1000; 5]));
    let told: Vec<_> = sim.map(|fate| (since(fate.at), fate.arrives.map(since))).collect();
    assert_eq!(told, [(0, Some(3)); 5]);
}

#[test]
fn a_rate_that_is_no_whole_number_of_nanoseconds_is_rounded_up() {
    let mut sim = Sim::new(wire("pfifo", Some("7mbit"), 0));
    sim.add(burst(&[100, 100]));
    // Sending a packet of 800 bits at 7 Mbit/s takes 114,285.7 ns.
    assert_eq!(sim.map(|fate| since(fate.at)).collect::<Vec<_>>(), [0, 114_286]);
}

#[test]
fn what_a_shaper_holds_back_leaves_at_its_time() {
    let mut sim = Sim::new(wire("fq maxrate 12mbit initial_quantum 3000 timer_slack 0", None, 0));
    sim.add(burst(&[1500; 3]));
    // The first two packets leave at once. The third has to wait as long as sending a quantum of
    // 3,028 bytes takes at this rate, because `fq` counts a smaller packet as one quantum.
    assert_eq!(sim.map(|fate| since(fate.at)).collect::<Vec<_>>(), [0, 0, 2_018_666]);
}

#[test]
fn time_ends_where_it_is_told_to() {
    let mut sim = Sim::new(wire("pfifo", Some("8mbit"), 0));
    sim.add(Cbr::new(Traffic::of(1).size(1000), rate("16mbit")));
    sim.stop_at(BEGIN.after(10 * MSEC));
    // The source sends a packet every half millisecond, 21 packets from 0 ms to 10 ms. The wire
    // sends a packet every millisecond, 11 packets in this time. So 10 packets wait in the queue.
    assert_eq!(sim.by_ref().count(), 11);
    assert_eq!(sim.wire().tree().backlog().packets, 10);
    assert_eq!(since(sim.now()), 10 * MSEC);
}

#[test]
fn records_out_of_order_come_as_late_as_the_one_before() {
    let at = |ms: u64| (BEGIN.after(ms * MSEC), Packet::new(60));
    let mut sim = Sim::new(wire("pfifo", None, 0));
    sim.add(Records::new([at(5), at(3), at(6)].into_iter()));
    let told: Vec<_> = sim.map(|fate| (fate.packet.cookie, since(fate.came) / MSEC)).collect();
    assert_eq!(told, [(0, 5), (1, 5), (2, 6)]);
}

#[test]
fn constant_rates_do_not_drift() {
    let mut cbr = Cbr::new(Traffic::of(1).size(1514).between(0, SEC), rate("7mbit"));
    let mut times = Vec::new();
    while let Some(due) = cbr.due() {
        times.push(since(due));
        cbr.packet(due).expect("one is due");
    }
    // The source sends 875,000 bytes per second in packets of 1514 bytes.
    assert_eq!(times.len(), 578);
    assert_eq!((times[1], times[577]), (1_730_285, 998_374_857));
    let mut never = Cbr::new(Traffic::of(1), Rate::bytes_per_second(0));
    assert_eq!(never.due(), None);
}

/// Returns the number of packets that a source sends in each of the first `count` seconds.
fn seconds(mut source: impl Source, count: usize) -> Vec<u64> {
    let mut seconds = vec![0; count];
    while let Some(due) = source.due() {
        let Some(second) = seconds.get_mut(usize::try_from(since(due) / SEC).expect("small"))
        else {
            break;
        };
        *second += 1;
        source.packet(due).expect("one is due");
    }
    seconds
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "counts")]
fn poisson_counts_have_the_variance_of_their_mean() {
    let source = Poisson::new(Traffic::of(1).size(125), rate("100kbit"), 3);
    let counts = seconds(source, 2_000);
    let mean = counts.iter().sum::<u64>() as f64 / 2_000.0;
    let variance = counts.iter().map(|n| (*n as f64 - mean).powi(2)).sum::<f64>() / 2_000.0;
    assert!((mean - 100.0).abs() < 1.0, "{mean}");
    assert!((variance / mean - 1.0).abs() < 0.15, "{variance}");
}

#[test]
fn on_and_off_take_turns() {
    let source =
        || OnOff::new(Traffic::of(1).size(125), rate("1mbit"), (100 * MSEC, 300 * MSEC), 5);
    let counts = seconds(source(), 1_000);
    // While the source is on, which is a quarter of the time, it sends 1,000 packets per second.
    let sum: u64 = counts.iter().sum();
    assert!(sum.abs_diff(250_000) < 15_000, "{sum}");
    let mut gaps = Vec::new();
    let (mut source, mut before) = (source(), None);
    for _ in 0..10_000 {
        let due = source.due().expect("it goes on");
        gaps.extend(before.map(|before| due.since(before)));
        before = Some(due);
        source.packet(due).expect("one is due");
    }
    assert!(gaps.iter().all(|gap| *gap >= MSEC), "never faster than its rate");
    assert!(gaps.iter().filter(|gap| **gap > MSEC).count() > 50);
}

/// Runs sources with a congestion window, each given by its traffic and the time after which it
/// hears of arrivals, over a wire of 10 Mbit/s for 30 s. Returns the counts without the first 5 s.
fn windows(qdisc: &str, traffic: &[(Traffic, u64)]) -> Sink {
    let mut sim = Sim::new(wire(qdisc, Some("10mbit"), MSEC));
    for (traffic, back_ns) in traffic {
        sim.add(Window::new(traffic.clone(), *back_ns));
    }
    sim.stop_at(BEGIN.after(30 * SEC));
    let mut sink = Sink::new();
    sim.filter(|fate| since(fate.at) > 5 * SEC).for_each(|fate| sink.note(&fate));
    sink
}

#[test]
fn a_window_fills_the_wire_and_no_more_than_the_queue() {
    // In one round trip of 50 ms, a wire of 10 Mbit/s sends about 40 packets, and the queue holds
    // about as many. So the source keeps the wire busy even when it halves its window.
    let sink = windows("pfifo limit 45", &[(Traffic::of(1), 48 * MSEC)]);
    let sent = sink.total().sent_bits_per_second().expect("it sent");
    assert!(sent > 9.5e6, "{sent}");
    let drops: Vec<_> = sink.drops().collect();
    assert!(matches!(drops[..], [(DropReason::Overlimit, 1..40)]), "{drops:?}");
    assert_eq!(sink.total().marked, 0);
}

#[test]
fn a_window_answers_to_marks_without_loss() {
    let ect = Traffic::of(1).ect();
    let sink = windows("fq ce_threshold 5ms flow_limit 1000", &[(ect, 20 * MSEC)]);
    assert_eq!(sink.total().dropped_packets, 0);
    assert!((100..3_000).contains(&sink.total().marked), "{:?}", sink.total());
    assert!(sink.total().sent_bits_per_second() > Some(9e6), "{:?}", sink.total());
    let marked = sink.sojourns().most();
    // If the packets of the source are not ECN-capable, `fq` cannot mark them, so nothing tells the
    // source to slow down.
    let sink = windows("fq ce_threshold 5ms flow_limit 1000", &[(Traffic::of(1), 20 * MSEC)]);
    assert_eq!(sink.total().marked, 0);
    assert!(marked < Some(20 * MSEC) && sink.sojourns().most() > Some(200 * MSEC), "{marked:?}");
}

#[test]
fn codel_keeps_the_queue_of_windows_short_and_the_wire_busy() {
    // Four sources with congestion windows send over a path with a round trip of 40 ms. A queue
    // without active management fills up, however large it is.
    let plain = |flow| (Traffic::of(flow), 38 * MSEC);
    let ect = |flow| (Traffic::of(flow).ect(), 38 * MSEC);
    let deep = windows("pfifo limit 1000", &[1, 2, 3, 4].map(plain));
    let deep = deep.sojourns().per_mille(500);
    assert!(deep > Some(100 * MSEC), "{deep:?}");
    for kind in ["codel", "fq_codel"] {
        let dropped = windows(kind, &[1, 2, 3, 4].map(plain));
        let marked = windows(&format!("{kind} ecn"), &[1, 2, 3, 4].map(ect));
        for sink in [&dropped, &marked] {
            let median = sink.sojourns().per_mille(500);
            assert!(median < Some(12 * MSEC), "{kind}: {median:?}");
            let sent = sink.total().sent_bits_per_second();
            // The flows have equal round trips and a queue each, so they halve their windows at the
            // same time, and the wire is not busy all the time.
            assert!(sent > Some(9e6), "{kind}: {sent:?}");
            assert!(sink.jain() > Some(0.9), "{kind}: {:?}", sink.jain());
        }
        assert!(dropped.total().dropped_packets > 20 && dropped.total().marked == 0, "{kind}");
        assert!(marked.total().marked > 20 && marked.total().dropped_packets == 0, "{kind}");
    }
}

#[test]
fn windows_share_and_longer_trips_get_less() {
    let flows = |back: [u64; 2]| {
        [(1, back[0]), (2, back[1])].map(|(flow, back)| (Traffic::of(flow), back * MSEC))
    };
    let alike = windows("fq", &flows([20, 20]));
    assert!(alike.jain() > Some(0.99), "{alike:?}");
    let unlike = windows("pfifo limit 30", &flows([10, 100]));
    let [short, long] = [1, 2].map(|flow| unlike.flows()[&flow].sent_bytes);
    assert!(short > 2 * long && long > 0, "{short} and {long}");
}

#[test]
fn a_window_that_hears_nothing_tries_less_and_less() {
    let mut sim = Sim::new(wire("pfifo limit 0", Some("1mbit"), 0));
    // A packet would bypass an empty `pfifo`, even with a limit of 0. To prevent that, another
    // source keeps the wire busy.
    sim.add(Cbr::new(Traffic::of(2), rate("2mbit")));
    sim.add(Window::new(Traffic::of(1).size(1514).between(MSEC, 60 * SEC), 10 * MSEC));
    sim.stop_at(BEGIN.after(60 * SEC));
    let tries: Vec<_> =
        sim.filter(|fate| fate.packet.flow == 1).map(|fate| since(fate.came)).collect();
    // The source sends ten packets at first. Then it sends one packet after each timeout, and the
    // timeouts take 1, 2, 4, ... seconds, until a packet comes while the wire happens to be free,
    // and is delivered and acknowledged.
    assert!((12..60).contains(&tries.len()), "{tries:?}");
    assert_eq!(tries[..10], [MSEC; 10]);
}

/// Runs sources of all types over a wire with this qdisc, and returns the fates of all packets as
/// text.
fn everything(qdisc: &str, seed: u64) -> String {
    let mut sim = Sim::new(wire(qdisc, Some("10mbit"), MSEC));
    let times = (20 * MSEC, 50 * MSEC);
    sim.add(Cbr::new(Traffic::of(1).size(200), rate("1mbit")));
    sim.add(Poisson::new(Traffic::of(2).size(700), rate("3mbit"), seed));
    sim.add(OnOff::new(Traffic::of(3).ect(), rate("20mbit"), times, seed + 1));
    sim.add(Window::new(Traffic::of(4).ect(), 10 * MSEC));
    sim.add(Window::new(Traffic::of(5), 40 * MSEC));
    let text = "time_ns,flow_id,size_bytes,ecn\n1,6,60,0\n5000000,6,1514,2\n";
    sim.add(Records::new(rows(text).expect("a header").map(|row| row.expect("a row"))));
    sim.stop_at(BEGIN.after(SEC));
    let mut sink = Sink::new();
    let mut text = String::new();
    for fate in &mut sim {
        sink.note(&fate);
        text.push_str(&format!("{fate:?}\n"));
    }
    // Every packet that came to the tree has been sent or dropped, or is still in the tree.
    let (total, backlog) = (sink.total(), sim.wire().tree().backlog());
    let came = sim.wire().tree().totals().enqueued_packets;
    assert_eq!(total.packets + u64::from(backlog.packets), came, "{qdisc}");
    let flows: u64 = sink.flows().values().map(|flow| flow.packets).sum();
    assert_eq!((flows, sink.flows().len()), (total.packets, 6), "{qdisc}");
    text
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    // Kinds of qdiscs that cannot be made without parameters are left out.
    let kinds = KINDS.iter().filter(|kind| kind.id.parse::<Spec>().is_ok());
    let mut tried = 0;
    for kind in kinds.filter(|kind| !["plug", "noop", "blackhole"].contains(&kind.id)) {
        let first = everything(kind.id, 1);
        assert!(first == everything(kind.id, 1), "{}", kind.id);
        assert!(first != everything(kind.id, 2), "{}", kind.id);
        assert!(first.lines().count() > 500, "{}", kind.id);
        tried += 1;
    }
    assert!(tried >= 5, "{tried}");
}

#[test]
fn rows_say_what_is_wrong_with_them() {
    let told = |text: &str| match rows(text) {
        Err(error) => error.to_string(),
        Ok(rows) => {
            rows.filter_map(Result::err).map(|error| error.to_string()).next().expect("one")
        }
    };
    assert_eq!(
        told("time_ns,size_bytes\n"),
        "line 1: flow_id: the column is missing; there are time_ns, size_bytes"
    );
    let head = "time_ns,flow_id,size_bytes,priority,ecn,txtime_ns\n";
    let of = |row: &str| told(&format!("{head}0,1,60,0,0,-1\n\n{row}\n"));
    assert_eq!(
        of("x,1,60,0,0,-1"),
        "line 4: time_ns: \"x\": expected nanoseconds since the beginning"
    );
    assert_eq!(of("0,1,0,0,0,-1"), "line 4: size_bytes: \"0\": expected 1 to 4294967295 bytes");
    assert_eq!(of("0,1,60,0,4,-1"), "line 4: ecn: \"4\": expected 0 to 3");
    assert_eq!(of("0,1,60,0,0,-2"), "line 4: txtime_ns: \"-2\": expected nanoseconds, or -1");
    assert_eq!(of("0,1"), "line 4: size_bytes: \"\": expected 1 to 4294967295 bytes");
    let fine = rows(head).expect("columns").count();
    assert_eq!(fine, 0);
}

#[test]
fn flows_beyond_the_most_are_counted_together() {
    let mut sim = Sim::new(wire("pfifo", None, 0));
    for flow in 0..5 {
        sim.add(Cbr::new(Traffic::of(flow).between(0, 10 * MSEC), rate("8mbit")));
    }
    let mut sink = Sink::with_flows(2);
    sim.for_each(|fate| sink.note(&fate));
    assert_eq!(sink.flows().keys().copied().collect::<Vec<_>>(), [0, 1]);
    let known: u64 = sink.flows().values().map(|flow| flow.packets).sum();
    assert_eq!(known + sink.others().packets, sink.total().packets);
    assert!(sink.others().packets > known);
}
