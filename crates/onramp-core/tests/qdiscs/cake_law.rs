//! `cake`: its rate, its fairness, and corner cases, compared with numbers measured on Linux.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use onramp_core::Spec;
use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};
use proptest::prelude::*;

const MTU: u32 = 1514;
const MS: u64 = 1_000_000;
/// The time at which the tests begin, like that of a machine that has been up for a while.
const START: Instant = Instant(20_000 * MS);

fn tree(options: &str) -> Tree {
    let mut setup = Setup::default();
    let line = format!("qdisc add dev e root handle 1: cake {options}");
    setup.apply(&line).expect("a correct line");
    Tree::of(&setup, MTU, 1).expect("there is a root")
}

fn packet(cookie: u64, flow: u64, len: u32, now: Instant) -> Packet {
    let mut pkt = Packet::new(len);
    (pkt.cookie, pkt.flow, pkt.enqueued_ns) = (cookie, flow, now.0);
    pkt
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

fn pop(tree: &mut Tree, now: Instant) -> Packet {
    match tree.dequeue(now) {
        Dequeue::Ready(pkt) => pkt,
        other => panic!("{other:?}"),
    }
}

/// The packets that left and the cookies of the dropped packets, each with the time at which it
/// left or was dropped, in milliseconds.
type Course = (Vec<(u64, Packet)>, Vec<(u64, u64)>);

/// Enqueues `count` packets of 1,000 bytes into a `cake` of 8 Mbit/s. The first packet leaves
/// before the others arrive. Returns which packets left, which were dropped, and when.
fn drained(options: &str, count: u64, dress: impl Fn(&mut Packet)) -> (Tree, Course) {
    let mut tree = tree(options);
    let (mut left, mut dropped) = (Vec::new(), Vec::new());
    for cookie in 0..count {
        let mut pkt = packet(cookie, 0, 1000, START);
        dress(&mut pkt);
        assert_eq!(tree.enqueue(START, pkt), Verdict::Queued);
        if cookie == 0 {
            left.push((0, pop(&mut tree, START)));
        }
    }
    let mut now = START;
    loop {
        match tree.dequeue(now) {
            Dequeue::Ready(pkt) => left.push(((now.0 - START.0) / MS, pkt)),
            Dequeue::NotBefore(then) => now = then,
            Dequeue::Empty => break,
        }
        dropped.extend(tree.drops().map(|pkt| {
            assert_eq!(pkt.drop_reason, Some(DropReason::Congested));
            (pkt.cookie, (now.0 - START.0) / MS)
        }));
    }
    (tree, (left, dropped))
}

/// The times, in milliseconds, at which Linux marks packets of a queue that has been long from the
/// beginning.
const PACE_MS: [u64; 16] =
    [8, 78, 136, 186, 231, 271, 309, 345, 378, 410, 440, 469, 496, 523, 549, 574];

#[test]
fn a_standing_queue_is_marked_at_the_pace_of_linux() {
    let (tree, (left, dropped)) =
        drained("bandwidth 8mbit besteffort flowblind", 600, |pkt| pkt.ecn = 1);
    let marked: Vec<u64> = left.iter().filter(|(_, pkt)| pkt.ecn == 3).map(|(ms, _)| *ms).collect();
    assert_eq!((&marked[..16], marked[16], marked.len()), (&PACE_MS[..], 598, 17));
    assert_eq!((left.len(), dropped.len(), stat(&tree, "tin0_marks")), (600, 0, 17));
}

#[test]
fn a_standing_queue_is_dropped_from_at_the_pace_of_linux() {
    let (tree, (left, dropped)) = drained("bandwidth 8mbit besteffort flowblind", 600, |_| {});
    // Each drop makes all later packets leave a millisecond earlier.
    let expected: Vec<_> = PACE_MS.iter().enumerate().map(|(n, ms)| (n as u64 + ms, *ms)).collect();
    assert_eq!(dropped, expected);
    let (last_ms, last) = left.last().expect("not empty");
    assert_eq!((*last_ms, last.cookie), (583, 599));
    assert_eq!(stat(&tree, "tin0_drops"), 16);
}

#[test]
fn behind_the_bottleneck_drops_take_their_time() {
    let (_, (_, dropped)) = drained("bandwidth 8mbit besteffort flowblind ingress", 600, |_| {});
    let expected: Vec<_> = PACE_MS.iter().map(|ms| (*ms, *ms)).collect();
    assert_eq!(dropped[..12], expected[..12]);
}

/// The digits give the tin (priority queue of `cake`) of each departing packet in order. Each tin
/// holds 10 or 20 packets at the beginning. Tin 1 is the least important.
#[test]
fn tins_are_served_as_in_linux() {
    let cases = [
        (
            "bandwidth 8mbit diffserv4 flowblind",
            4,
            "14334332433243324331433243324332433143224222422241224222444441111111111111111",
        ),
        (
            "bandwidth 8mbit diffserv3 flowblind",
            3,
            "1322322232223222312232223222331333333333311111111111111111",
        ),
        (
            "bandwidth 8mbit diffserv8 flowblind",
            8,
            "187877878768787687876866666655555555544444444433333333322222222211111111",
        ),
    ];
    for (options, tins, expected) in cases {
        let count = if tins == 8 { 80 } else { 20 * tins };
        let next = std::cell::Cell::new(0);
        let (_, (left, _)) = drained(options, count, |pkt| {
            let tin = next.replace((next.get() + 1) % tins);
            pkt.priority = u32::try_from(0x1_0001 + tin).expect("small");
        });
        let order: String = left.iter().map(|(_, p)| (p.cookie % tins + 1).to_string()).collect();
        assert_eq!(order, expected, "{options}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for (options, why) in [
        ("overhead -65", "\"overhead\": expected a whole number, -64 to 256 bytes"),
        ("overhead 257", "\"overhead\": expected a whole number, -64 to 256 bytes"),
        ("mpu 257", "0 to 256"),
        ("rtt 5000s", "1us to "),
        ("memlimit 4g", "0 to "),
    ] {
        let error = format!("cake {options}").parse::<Spec>().expect_err(options).to_string();
        assert!(error.contains(why), "{options}: {error}");
    }
    for (options, last, why) in [
        ("bandwidth 1mbit unlimited", "unlimited", "already has bandwidth 1mbit"),
        ("lan rtt 3ms", "rtt 3ms", "already has rtt 1ms"),
        ("flows hosts", "hosts", "already has flows"),
    ] {
        let line = format!("cake {options}");
        let error = Spec::with_units(&line).expect_err(options).to_string();
        assert!(error.contains(&format!("given twice: the line {why}")), "{options}: {error}");
        assert_eq!(line.parse::<Spec>(), format!("cake {last}").parse(), "{options}");
    }
}

#[test]
fn presets_are_times() {
    let spec: Spec = "cake satellite overhead -4 ethernet ether-vlan".parse().expect("right");
    assert_eq!(spec.to_string(), "cake rtt 1s overhead 38 mpu 84");
    let shown = Spec::new(spec.kind()).show(MTU);
    let expected = "cake bandwidth unlimited diffserv3 triple-isolate nonat nowash no-ack-filter \
                    split-gso rtt 100ms raw overhead 0";
    assert_eq!(shown, expected);
}

#[test]
fn the_mark_names_a_tin_under_its_mask() {
    let mut tree = tree("diffserv8 fwmark 0xf0");
    for (mark, tin) in [(0x10, 0), (0x8f, 7), (0x9f, 2), (0x0f, 2)] {
        let name = format!("tin{tin}_pkts");
        let before = stat(&tree, &name);
        let mut pkt = packet(0, 0, 100, START);
        pkt.mark = mark;
        let _ = tree.enqueue(START, pkt);
        assert_eq!(stat(&tree, &name), before + 1, "{mark:#x}");
    }
}

#[test]
fn what_does_not_fit_memory_is_taken_from_the_head_of_the_fattest() {
    let mut tree = tree("bandwidth 8mbit besteffort flows memlimit 10kb");
    let mut push = |cookie, flow| tree.enqueue(START, packet(cookie, flow, 1000, START));
    // A packet counts as 2,304 bytes of memory, so four packets fit.
    for cookie in 0..3 {
        assert_eq!(push(cookie, 1), Verdict::Queued);
    }
    assert_eq!(push(3, 2), Verdict::Queued);
    assert_eq!(push(4, 2), Verdict::Queued, "one of another flow is dropped");
    assert_eq!(push(5, 3), Verdict::Queued);
    let dropped: Vec<_> = tree.drops().map(|pkt| (pkt.cookie, pkt.drop_reason)).collect();
    let reason = Some(DropReason::Overlimit);
    assert_eq!(dropped[0], (0, reason), "of the longest");
    assert!([1, 3].contains(&dropped[1].0), "of two that are as fat: {}", dropped[1].0);
    assert_eq!(stat(&tree, "memory_used"), 5 * 2304);
}

/// A flow that exceeded the memory limit loses packets by chance, with a probability that falls
/// each time its queue is found empty, until the probability is zero.
#[test]
fn blue_comes_and_goes() {
    let mut tree = tree("besteffort flows memlimit 10kb");
    let mut now = START;
    for cookie in 0..5 {
        let _ = tree.enqueue(now, packet(cookie, 1, 1000, now));
    }
    assert_eq!((tree.drops().len(), stat(&tree, "tin0_un_flows")), (1, 1));
    while let Dequeue::Ready(_) = tree.dequeue(now) {}
    // The flow's drop probability is 1/256. Each time a packet of another flow is dequeued, `cake`
    // finds the flow's queue empty, and lowers the probability by 1/4,096.
    let mut rounds = 0;
    while stat(&tree, "tin0_un_flows") == 1 {
        rounds += 1;
        assert!(rounds < 40, "it stays");
        now = now.after(10 * MS);
        let _ = tree.enqueue(now, packet(0, 2, 1000, now));
        while let Dequeue::Ready(_) = tree.dequeue(now) {}
    }
    assert!(rounds >= 15, "{rounds}");
}

#[test]
fn a_looked_at_packet_leaves_next() {
    let spec: Spec = "cake flows".parse().expect("a correct line");
    let mut qdisc = spec.build(MTU);
    let mut drops = onramp_queue::PacketList::new();
    let mut cx = onramp_core::qdisc::Cx::new(START, &mut drops);
    let _ = qdisc.enqueue(packet(0, 1, 700, START), &mut cx);
    assert_eq!(qdisc.peek(&mut cx), onramp_core::qdisc::Peek::Ready(700));
    let _ = qdisc.enqueue(packet(1, 2, 60, START), &mut cx);
    assert_eq!(qdisc.backlog().packets, 2);
    let Dequeue::Ready(pkt) = qdisc.dequeue(&mut cx) else { panic!("it holds two") };
    assert_eq!(pkt.cookie, 0);
}

/// Makes an Ethernet frame of `len` bytes from host 10.0.0.`source` to host 10.0.1.`destination`.
fn frame(source: u8, destination: u8, len: usize) -> Packet {
    let mut bytes = vec![0; len];
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14] = 0x45;
    bytes[26..34].copy_from_slice(&[10, 0, 0, source, 10, 0, 1, destination]);
    let mut pkt = Packet::with_payload(&bytes);
    pkt.set_layer(onramp_queue::Layer::Ethernet);
    pkt
}

/// Host 1 has one flow, and host 2 has nine flows. All flows always have packets. Returns the share
/// of the packets that host 1 sends.
fn share_of_the_lone_flow(options: &str, dress: impl Fn(u8, u64) -> Packet) -> f64 {
    let mut tree = tree(options);
    for n in 0..6_000_u64 {
        let flow = n % 10;
        let mut pkt = dress(if flow == 0 { 1 } else { 2 }, n / 10);
        pkt.flow = flow;
        let _ = tree.enqueue(START, pkt);
    }
    let mut lone = 0;
    for _ in 0..1100 {
        lone += u32::from(pop(&mut tree, START).flow == 0);
    }
    assert_eq!(tree.drops().len(), 0);
    f64::from(lone) / 1100.0
}

#[test]
fn hosts_share_before_flows_do() {
    let from = |host, _| frame(host, 9, 1000);
    let to = |host: u8, _| {
        let mut pkt = packet(0, 0, 1000, START);
        pkt.set_dest(Some(SocketAddr::from(([10, 0, 0, host], 9))));
        pkt
    };
    let near = |share: f64, expected: f64| (share - expected).abs() < 0.03;
    let table: [(&str, f64, f64); 5] = [
        ("besteffort dual-srchost", 0.5, 0.1),
        ("besteffort dual-dsthost", 0.1, 0.5),
        ("besteffort flows", 0.1, 0.1),
        ("besteffort srchost", 0.5, 0.1),
        ("besteffort dsthost", 0.1, 0.5),
    ];
    for (options, by_source, by_destination) in table {
        let share = share_of_the_lone_flow(options, from);
        assert!(near(share, by_source), "{options}, by source: {share}");
        let share = share_of_the_lone_flow(options, to);
        assert!(near(share, by_destination), "{options}, by destination: {share}");
    }
    // `triple-isolate` also shares by destination. If all ten flows go to one host, each of them
    // gets a tenth, and so does host 1, which has one flow.
    let share = share_of_the_lone_flow("besteffort triple-isolate", from);
    assert!(near(share, 0.1), "triple-isolate: {share}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A packet leaves neither before nor after its time: the time that the rate needs for all
    /// packets sent since the queue was last empty.
    #[test]
    fn the_rate_is_kept(
        steps in prop::collection::vec(
            (0_u64..3_000_000, 60_u32..1515, 0_u64..6, 0_u32..4),
            1..300,
        ),
    ) {
        const OVERHEAD: u32 = 30;
        const RATE: u64 = 1_000_000;
        let mut tree = tree("bandwidth 8mbit diffserv4 overhead 30");
        let (mut now, mut allowed, mut sent) = (START, START.0, 0);
        for (n, (wait, len, flow, tin)) in steps.into_iter().enumerate() {
            let mut pkt = packet(n as u64, flow, len, now);
            pkt.priority = 0x1_0001 + tin;
            if tree.backlog().packets == 0 {
                allowed = allowed.max(now.0);
            }
            let _ = tree.enqueue(now, pkt);
            now = now.after(wait);
            loop {
                match tree.dequeue(now) {
                    Dequeue::Ready(pkt) => {
                        // Rounding may make each packet leave up to a nanosecond early.
                        sent += 1;
                        prop_assert!(now.0 + sent >= allowed);
                        allowed += u64::from(pkt.len - 14 + OVERHEAD) * 1_000_000_000 / RATE;
                    }
                    Dequeue::NotBefore(then) => {
                        prop_assert!(then.0 <= allowed && then.0 + sent >= allowed && then > now);
                        break;
                    }
                    Dequeue::Empty => break,
                }
            }
            drop(tree.drops());
        }
    }

    /// Flows that always have packets send the same number of bytes, to within one quantum and one
    /// packet.
    #[test]
    fn flows_are_even(
        lens in prop::collection::vec(prop::collection::vec(60_u32..1515, 120), 2..8),
        seed in any::<u64>(),
    ) {
        let mut tree = {
            let mut setup = Setup::default();
            setup.apply("qdisc add dev e root cake besteffort flows").expect("a correct line");
            Tree::of(&setup, MTU, seed).expect("there is a root")
        };
        for (flow, lens) in lens.iter().enumerate() {
            for (n, len) in lens.iter().enumerate() {
                let _ = tree.enqueue(START, packet(n as u64, flow as u64, *len, START));
            }
        }
        let mut bytes = BTreeMap::new();
        let mut counts = BTreeMap::new();
        while counts.values().all(|count| *count < 119) {
            let pkt = pop(&mut tree, START);
            *bytes.entry(pkt.flow).or_insert(0_u32) += pkt.len;
            *counts.entry(pkt.flow).or_insert(0) += 1;
            if bytes.len() == lens.len() {
                let (min, max) = (bytes.values().min(), bytes.values().max());
                prop_assert!(max.zip(min).is_some_and(|(max, min)| max - min <= 2 * 1514));
            }
        }
        prop_assert_eq!(tree.drops().len(), 0);
    }
}
