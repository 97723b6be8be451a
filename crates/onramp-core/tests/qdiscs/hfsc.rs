//! Tests of `hfsc`: classes get their guaranteed rates, share the rest by their curves, and stay
//! below their upper limits.

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Handle, Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};
use proptest::prelude::*;

const START_NS: u64 = 20_000_000_000;
/// Rate of the link in bytes per second.
const LINK: u64 = 1_250_000;

fn setup(lines: &[&str]) -> Setup {
    let mut setup = Setup::default();
    for line in lines {
        let (object, rest) = line.split_once(' ').expect("an object");
        setup.apply(&format!("{object} add dev eth0 {rest}")).expect(line);
    }
    setup
}

fn tree(lines: &[&str]) -> Tree {
    Tree::of(&setup(lines), 1514, 1).expect("there is a root")
}

fn packet(minor: u16, len: u32) -> Packet {
    let mut pkt = Packet::new(len);
    pkt.priority = u32::from(minor) + 0x1_0000;
    pkt
}

fn class(pkt: &Packet) -> u16 {
    Handle::from_priority(pkt.priority).minor
}

/// Dequeues while `feed` adds packets, until `until_ns`. A packet keeps the link busy for as long
/// as it takes at `link` bytes per second, or no time if `link` is 0. Returns the time, class and
/// length of each packet that leaves.
fn run(
    tree: &mut Tree,
    link: u64,
    until_ns: u64,
    mut feed: impl FnMut(&mut Tree, u64),
) -> Vec<(u64, u16, u32)> {
    let (mut now_ns, mut out) = (START_NS, Vec::new());
    while now_ns < START_NS + until_ns {
        feed(tree, now_ns);
        match tree.dequeue(Instant(now_ns)) {
            Dequeue::Ready(pkt) => {
                out.push((now_ns - START_NS, class(&pkt), pkt.len));
                now_ns += (u64::from(pkt.len) * 1_000_000_000).checked_div(link).unwrap_or(0);
            }
            Dequeue::NotBefore(then) => now_ns = then.0,
            Dequeue::Empty => break,
        }
    }
    out
}

/// Returns a function for the parameter `feed` of [`run`], which keeps packets of 1,000 bytes in
/// each of these classes.
fn busy(minors: &[u16]) -> impl FnMut(&mut Tree, u64) {
    let mut held = std::collections::BTreeMap::<u16, u32>::new();
    let minors = minors.to_vec();
    move |tree, now_ns| {
        // One packet has left since the last call, but this function does not know of which class.
        // Add a packet to every class, so that the class that sent has a new one.
        for minor in &minors {
            let there = held.entry(*minor).or_default();
            if *there < 900 {
                *there += 1;
                assert_eq!(tree.enqueue(Instant(now_ns), packet(*minor, 1_000)), Verdict::Queued);
            }
        }
    }
}

fn bytes(out: &[(u64, u16, u32)], minor: u16) -> u64 {
    out.iter().filter(|(_, class, _)| *class == minor).map(|(_, _, len)| u64::from(*len)).sum()
}

#[test]
fn busy_classes_share_as_told_and_an_idle_one_gives_its_part_to_its_siblings() {
    let lines = [
        "qdisc root handle 1: hfsc",
        "class parent 1: classid 1:1 hfsc ls rate 6mbit",
        "class parent 1: classid 1:2 hfsc ls rate 4mbit",
        "class parent 1:1 classid 1:10 hfsc ls rate 4mbit",
        "class parent 1:1 classid 1:11 hfsc ls rate 2mbit",
    ];
    let parts = |minors: &[u16]| {
        let mut tree = tree(&lines);
        let out = run(&mut tree, LINK, 400_000_000, busy(minors));
        minors.iter().map(|minor| bytes(&out, *minor) / 1_000).collect::<Vec<_>>()
    };
    let near = |parts: Vec<u64>, expected: &[u64]| {
        let off = parts.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(off <= Some(4), "{parts:?}, expected {expected:?}");
    };
    near(parts(&[0x10, 0x11, 2]), &[200, 100, 200]);
    near(parts(&[0x10, 2]), &[300, 200]);
    near(parts(&[0x10, 0x11]), &[333, 167]);
}

#[test]
fn a_limit_holds_though_the_link_is_free() {
    let mut tree = tree(&[
        "qdisc root handle 1: hfsc",
        "class parent 1: classid 1:1 hfsc ls rate 8mbit ul rate 4mbit",
        "class parent 1:1 classid 1:10 hfsc ls rate 8mbit",
        "class parent 1:1 classid 1:11 hfsc ls rate 8mbit ul rate 800kbit",
    ]);
    let out = run(&mut tree, 0, 500_000_000, busy(&[0x10, 0x11]));
    // In half a second, both classes together may send 4 Mbit/s (250,000 bytes), class 11 alone may
    // send 800 kbit/s (50,000 bytes), and each class may send one more packet at the beginning.
    assert!((bytes(&out, 0x10) + bytes(&out, 0x11)).abs_diff(250_000) <= 2_000);
    assert!(bytes(&out, 0x11).abs_diff(50_000) <= 2_000);
}

#[test]
fn a_steep_beginning_is_for_those_who_were_idle() {
    let lines = [
        "qdisc root handle 1: hfsc",
        "class parent 1: classid 1:10 hfsc rt umax 1500 dmax 2ms rate 100kbit ls rate 100kbit",
        "class parent 1: classid 1:11 hfsc ls rate 9900kbit",
    ];
    let mut tree = tree(&lines);
    let mut fill = busy(&[0x11]);
    let mut sent = false;
    let out = run(&mut tree, LINK, 200_000_000, |tree, now_ns| {
        fill(tree, now_ns);
        if !sent && now_ns > START_NS + 100_000_000 {
            sent = true;
            let _ = tree.enqueue(Instant(now_ns), packet(0x10, 1_500));
        }
    });
    let (at, _, _) = out.iter().find(|(_, class, _)| *class == 0x10).expect("it left");
    // The packet arrives when the link has just begun another packet, which takes 0.8 ms. The
    // packet must leave within 2 ms (`dmax`) of its arrival, or when that other packet is over.
    assert!((100_000_000..103_000_000).contains(at), "{at}");
}

#[test]
fn what_no_class_takes_is_dropped_with_a_reason() {
    let mut tree = tree(&[
        "qdisc root handle 1: hfsc default 2",
        "class parent 1: classid 1:1 hfsc sc rate 1mbit",
        "class parent 1: classid 1:2 hfsc sc rate 1mbit",
        "class parent 1:2 classid 1:3 hfsc sc rate 1mbit",
    ]);
    // Packets for class 2, the default class, are dropped because it has a child class and so is
    // not a leaf. Class 7 does not exist.
    for minor in [2, 7] {
        assert_eq!(tree.enqueue(Instant(START_NS), packet(minor, 100)), Verdict::Dropped);
    }
    assert_eq!(tree.totals().dropped(DropReason::Unclassified), 2);
    assert_eq!(tree.enqueue(Instant(START_NS), packet(3, 100)), Verdict::Queued);
}

/// A `hfsc` without classes acts as a single class that takes all packets.
#[test]
fn without_classes_it_is_a_fifo() {
    let mut tree = tree(&["qdisc root handle 1: hfsc"]);
    for minor in [7, 0, 9] {
        assert_eq!(tree.enqueue(Instant(START_NS), packet(minor, 100)), Verdict::Queued);
    }
    let out = run(&mut tree, LINK, 1_000_000, |_, _| {});
    assert_eq!(out.iter().map(|(_, class, _)| *class).collect::<Vec<_>>(), [7, 0, 9]);
}

#[test]
fn curves_are_checked() {
    let mistake = |line: &str| {
        let mut setup = setup(&["qdisc root handle 1: hfsc"]);
        let line = format!("class add dev eth0 parent 1: classid 1:1 hfsc {line}");
        setup.apply(&line).expect_err(&line).to_string()
    };
    for (line, answer) in [
        ("", "\"sc\": the class needs a curve: rt, ls or sc, with a rate above zero"),
        ("ls m2 0", "\"sc\": the class needs a curve: rt, ls or sc, with a rate above zero"),
        ("rt rate 1mbit ul rate 2mbit", "\"ul\": it needs ls or sc"),
        ("sc rate 40gbit", "\"sc\": a rate is at most 34359738360bit"),
        ("sc umax 1500 rate 1mbit", "illegal \"sc\" \"umax\": expected `dmax TIME` after it"),
        (
            "sc m1 1mbit d 3ms",
            "[m1 RATE d TIME] m2 RATE, rate RATE, or umax BYTES dmax TIME rate RATE",
        ),
        ("sc rate 0", "expected [m1 RATE d TIME] m2 RATE"),
        ("sc rate 1mbit m2 5mbit", "unexpected \"m2\":"),
    ] {
        assert!(mistake(line).contains(answer), "{line}: {}", mistake(line));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// At any time, a class that always has packets has received at least what its curve promises,
    /// less two packets: the packet on the link and the class's own last packet.
    #[test]
    fn guarantees_are_kept(
        first in 1_u64..5,
        second in 1_u64..5,
        steep in 0_u64..4,
        begin_ms in 1_u64..80,
    ) {
        // The rates in the options are in tenths of the link's rate. The steep part of a curve
        // lasts 10 ms.
        let slow = second.min(steep + 1);
        let lines = [
            "qdisc root handle 1: hfsc".to_owned(),
            format!("class parent 1: classid 1:10 hfsc rt rate {first}mbit ls rate 1kbit"),
            format!("class parent 1: classid 1:11 hfsc rt m1 {slow}mbit d 10ms m2 {second}mbit"),
            "class parent 1: classid 1:12 hfsc ls rate 10mbit".to_owned(),
        ];
        let mut tree = tree(&lines.each_ref().map(|line| &**line));
        let (mut others, mut late) = (busy(&[0x10, 0x12]), busy(&[0x11]));
        let begin_ns = begin_ms * 1_000_000;
        let out = run(&mut tree, LINK, 300_000_000, |tree, now_ns| {
            others(tree, now_ns);
            if now_ns >= START_NS + begin_ns {
                late(tree, now_ns);
            }
        });
        let (mut sent, mut sent_late) = (0, 0);
        for (at_ns, class, len) in out {
            let promised = first * at_ns / 8_000;
            prop_assert!(sent + 2_000 >= promised, "{at_ns}: {sent} of {promised}");
            if let Some(ns) = at_ns.checked_sub(begin_ns + 1_000_000) {
                let promised = slow * ns.min(10_000_000) / 8_000
                    + second * ns.saturating_sub(10_000_000) / 8_000;
                prop_assert!(sent_late + 2_000 >= promised, "{at_ns}: {sent_late} of {promised}");
            }
            sent += if class == 0x10 { u64::from(len) } else { 0 };
            sent_late += if class == 0x11 { u64::from(len) } else { 0 };
        }
    }
}
