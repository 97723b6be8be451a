//! Pacing through a port: packets leave at their times, exact to the nanosecond, and only the
//! visits of the runner drive them.

use onramp_core::Instant;
use onramp_queue::PacketList;

use crate::world::{START, World, packet};

/// The time that 100 bytes take at 8 Mbit/s, in nanoseconds.
const GAP_NS: u64 = 100_000;

#[test]
fn nothing_leaves_before_its_time() {
    // Options with which `fq` paces every packet separately: the initial quantum is 0, and each
    // packet uses up a quantum.
    let mut world =
        World::new("fq maxrate 800kbit initial_quantum 0 quantum 256 timer_slack 0", 99);
    let _ = world.push(3);
    let mut last = world.wire().sent.len();
    while let Some(due) = world.waker.due() {
        // A nanosecond before the second packet is due, no packet leaves.
        world.now = Instant(due.0 - 1);
        let _ = world.help();
        assert_eq!(world.wire().sent.len(), last, "early at {}", world.now.since(START));
        world.now = due;
        let _ = world.visit();
        last = world.wire().sent.len();
        world.check();
    }
    assert_eq!(world.sent(), [0, 1, 2]);
}

/// Over 2 s, each packet of a flow at 8 Mbit/s leaves exactly at its time, and the rate is exact.
#[test]
fn a_paced_flow_keeps_its_rate_to_the_nanosecond() {
    let line = "fq maxrate 8mbit initial_quantum 0 quantum 256 flow_limit 100000 limit 100000 \
                low_rate_threshold 1gbit timer_slack 0";
    let mut world = World::new(line, 30_000);
    let count = 20_000;
    world.enqueue(count);
    world.settle();
    let sent = world.wire().sent.clone();
    assert_eq!(sent.len() as u64, count);
    for (index, (cookie, at)) in sent.iter().enumerate() {
        assert_eq!(*cookie, index as u64);
        assert_eq!(at.since(START), index as u64 * GAP_NS, "packet {index}");
    }
    let span_ns = sent.last().unwrap().1.since(sent[0].1);
    assert_eq!((count - 1) * 100 * 8 * 1_000_000_000 / span_ns, 8_000_000);
    world.check();
}

/// With Linux's default options, a flow may send a quantum at once. Over any span of time, the flow
/// sends no more than its rate allows plus that quantum.
#[test]
fn a_paced_flow_never_exceeds_its_rate_by_more_than_a_quantum() {
    let mut world = World::new("fq maxrate 8mbit flow_limit 100000 timer_slack 0", 30_000);
    let count = 9_000;
    world.enqueue(count);
    world.settle();
    let sent = world.wire().sent.clone();
    assert_eq!(sent.len() as u64, count);
    // The flow sends its initial quantum, ten times the largest packet, at the start, and never
    // gets it again. So check only the packets after it.
    let free = sent.iter().take_while(|(_, at)| *at == START).count();
    assert!(free * 100 >= 10_000 && free * 100 <= 10_000 + 2_000, "{free}");
    let paced = &sent[free..];
    for (first, last) in (0..paced.len()).step_by(97).zip((0..paced.len()).step_by(211)) {
        let (first, last) = (first.min(last), first.max(last));
        let bytes = (last - first + 1) as u64 * 100;
        let span_ns = paced[last].1.since(paced[first].1);
        assert!(bytes <= span_ns / 1_000 + 2_100, "{bytes} bytes in {span_ns} ns");
    }
    let (bytes, span_ns) = (paced.len() as u64 * 100, paced.last().unwrap().1.since(START));
    let rate = bytes * 8 * 1_000_000_000 / span_ns;
    assert!((7_900_000..=8_100_000).contains(&rate), "{rate} bit/s");
}

/// If the runner visits late by less than half a gap, the flow catches up in the next gap. A flow
/// never sends early.
#[test]
fn a_late_keeper_makes_nobody_early() {
    let line = "fq maxrate 8mbit initial_quantum 0 quantum 256 flow_limit 100000 limit 100000 \
                low_rate_threshold 1gbit timer_slack 0";
    let mut world = World::new(line, 30_000);
    world.enqueue(2_000);
    let mut turn = 0_u64;
    while let Some(due) = world.waker.due() {
        turn += 1;
        world.now = world.now.max(due.after(turn * 7_919 % (GAP_NS / 2)));
        let _ = world.visit();
    }
    let sent = world.wire().sent.clone();
    assert_eq!(sent.len(), 2_000);
    for (index, (_, at)) in sent.iter().enumerate() {
        let schedule = index as u64 * GAP_NS;
        assert!(at.since(START) >= schedule, "packet {index} at {}", at.since(START));
        assert!(at.since(START) <= schedule + GAP_NS, "packet {index} at {}", at.since(START));
    }
}

/// Each packet leaves exactly at its departure time, even if packets arrive in another order.
#[test]
fn departure_times_are_kept_to_the_nanosecond() {
    let mut world = World::new("fq timer_slack 0", 100);
    let after = [700_000, 300_000, 300_001, 900_000, 100_000];
    let list: PacketList = after
        .iter()
        .zip(0..)
        .map(|(ns, cookie)| {
            let mut pkt = packet(cookie, cookie, START);
            pkt.txtime_ns = START.after(*ns).0;
            pkt
        })
        .collect();
    world.pushed = 5;
    let ran = world.port.xmit(list, world.now, &world.waker).unwrap();
    assert_eq!(ran.map(|ran| ran.done), Some(0));
    assert_eq!(world.waker.due(), Some(START.after(100_000)), "the earliest");
    world.settle();
    let sent: Vec<_> = world.wire().sent.iter().map(|(c, at)| (*c, at.since(START))).collect();
    assert_eq!(sent, [(4, 100_000), (1, 300_000), (2, 300_001), (0, 700_000), (3, 900_000)]);
    world.check();
}

/// When a packet arrives that may leave before the waiting packets, the runner is asked for an
/// earlier visit.
#[test]
fn an_earlier_packet_asks_for_an_earlier_visit() {
    let mut world = World::new("fq timer_slack 0", 100);
    for (cookie, after) in [(0, 900_000), (1, 400_000), (2, 500_000)] {
        let mut pkt = packet(cookie, cookie, START);
        pkt.txtime_ns = START.after(after).0;
        world.pushed += 1;
        let list = [pkt].into_iter().collect();
        let _ = world.port.xmit(list, world.now, &world.waker).unwrap();
        world.check();
    }
    assert_eq!(world.waker.due(), Some(START.after(400_000)));
    world.settle();
    assert_eq!(world.sent(), [1, 2, 0]);
}

/// A packet without a pacing rate may overtake packets of its flow that wait for their time. As in
/// Linux, `fq` has a fast path: if no other packet is about to leave, a new packet leaves at once,
/// and `fq` does not look up its flow. Packets may also be overtaken in this way if the sender
/// removes the flow's pacing rate, or if two flows have the same hash.
#[test]
fn packets_without_a_rate_overtake_paced_ones_of_their_flow() {
    let mut world = World::new("fq initial_quantum 0 quantum 100 timer_slack 0", 100);
    let push = |world: &mut World, rate| {
        for mut pkt in world.packets(3) {
            pkt.pacing_rate = rate;
            let list = PacketList::from_iter([pkt]);
            let _ = world.port.xmit(list, world.now, &world.waker).expect("there is room");
        }
    };
    // At 1,000 bytes per second, 100 bytes take 100 ms. The first packet leaves at once, the second
    // after 100 ms and the third after 200 ms.
    push(&mut world, 1_000);
    assert_eq!(world.sent(), [0]);
    push(&mut world, 0);
    assert_eq!(world.sent(), [0, 3, 4, 5], "on the fast path");
    world.settle();
    assert_eq!(world.sent(), [0, 3, 4, 5, 1, 2]);
    let at: Vec<_> = world.wire().sent.iter().map(|(_, at)| at.since(START) / 1_000_000).collect();
    assert_eq!(at, [0, 0, 0, 0, 100, 200], "paced ones keep their time");
    world.check();
}

/// While packets of other flows are about to leave, `fq` does not use its fast path (by which a
/// packet may leave at once). Then each packet waits behind the earlier packets of its flow, paced
/// or not.
#[test]
fn beside_other_flows_a_flow_keeps_its_order() {
    let mut world = World::new("fq initial_quantum 0 quantum 100 timer_slack 0", 100);
    world.wire().room = Some(0);
    // One burst waits for the device, which takes nothing, and the packets of the other flows wait
    // in the qdisc.
    for flow in [1, 2, 3] {
        let list = (0..64).map(|n| packet(1_000 * flow + n, flow, START)).collect();
        world.pushed += 64;
        let _ = world.port.xmit(list, world.now, &world.waker).expect("there is room");
    }
    for rate in [1_000, 0] {
        for mut pkt in world.packets(3) {
            pkt.pacing_rate = rate;
            let list = PacketList::from_iter([pkt]);
            let _ = world.port.xmit(list, world.now, &world.waker).expect("there is room");
        }
    }
    world.wire().room = None;
    world.settle();
    let ours: Vec<_> = world.sent().into_iter().filter(|cookie| *cookie < 1_000).collect();
    assert_eq!(ours, (192..198).collect::<Vec<_>>());
    world.check();
}
