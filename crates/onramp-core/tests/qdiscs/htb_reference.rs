//! Compares the rates at which the classes of `htb` send with the rates that they are promised.

use std::collections::BTreeMap;

use onramp_core::qdisc::{Dequeue, Qdisc};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};
use proptest::prelude::*;

const MTU: u32 = 1514;
const START: Instant = Instant(5_000_000_000);
const MS: u64 = 1_000_000;

fn setup(lines: &[&str]) -> Setup {
    let mut setup = Setup::default();
    for line in lines {
        setup.apply(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    setup
}

fn tree(lines: &[&str]) -> Tree {
    Tree::of(&setup(lines), MTU, 0).expect("a root")
}

fn packet(minor: u32, len: u32) -> Packet {
    let mut pkt = Packet::new(len);
    pkt.priority = 0x1_0000 | minor;
    pkt
}

/// Keeps packets in these classes for `ms` milliseconds. Returns the bytes that each class sent.
fn busy(tree: &mut Tree, minors: &[u32], ms: u64) -> BTreeMap<u32, u64> {
    let (mut now, mut sent) = (START, BTreeMap::new());
    for minor in minors {
        for _ in 0..20 {
            let _ = tree.enqueue(now, packet(*minor, 1000));
        }
    }
    while now < START.after(ms * MS) {
        match tree.dequeue(now) {
            Dequeue::Ready(pkt) => {
                *sent.entry(pkt.priority & 0xffff).or_default() += u64::from(pkt.len);
                let _ = tree.enqueue(now, packet(pkt.priority & 0xffff, 1000));
            }
            Dequeue::NotBefore(then) => {
                assert!(then > now);
                now = then;
            }
            Dequeue::Empty => panic!("all are busy"),
        }
    }
    sent
}

/// The whole tree has 8 Mbit/s, which is 1,000 bytes per millisecond. Its leaf classes have rates
/// of 2 and 4 Mbit/s.
const SHARED: [&str; 4] = [
    "tc qdisc add dev x root handle 1: htb default 20",
    "tc class add dev x parent 1: classid 1:1 htb rate 8mbit burst 2kb cburst 2kb",
    "tc class add dev x parent 1:1 classid 1:10 htb rate 2mbit ceil 8mbit burst 2kb cburst 2kb \
     quantum 1000",
    "tc class add dev x parent 1:1 classid 1:20 htb rate 4mbit ceil 6mbit burst 2kb cburst 2kb \
     quantum 1000",
];

fn about(bytes: u64, expected: u64) -> bool {
    bytes.abs_diff(expected) <= 4_000
}

#[test]
fn classes_get_their_rates_and_share_the_rest() {
    // The two leaf classes need 6 of 8 Mbit/s. Each gets half of the 2 Mbit/s that are left over.
    let sent = busy(&mut tree(&SHARED), &[0x10, 0x20], 1_000);
    assert!(about(sent[&0x10], 375_000) && about(sent[&0x20], 625_000), "{sent:?}");
    // A class that is active alone gets what its `ceil` allows.
    let sent = busy(&mut tree(&SHARED), &[0x20], 1_000);
    assert!(about(sent[&0x20], 750_000), "{sent:?}");
    let sent = busy(&mut tree(&SHARED), &[0x10], 1_000);
    assert!(about(sent[&0x10], 1_000_000), "{sent:?}");
}

#[test]
fn the_rest_goes_to_the_smaller_priority() {
    let mut lines = SHARED.map(str::to_owned);
    lines[2].push_str(" prio 1");
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let sent = busy(&mut tree(&lines), &[0x10, 0x20], 1_000);
    assert!(about(sent[&0x10], 250_000) && about(sent[&0x20], 750_000), "{sent:?}");
}

#[test]
fn a_burst_comes_in_ticks() {
    // By default, a burst holds 1,600 bytes. At 7 Mbit/s, they take 1,828 us, or 28,562 ticks of 64
    // ns. Rounding to ticks loses less than half a byte.
    let mut tree = tree(&[
        "tc qdisc add dev x root handle 1: htb",
        "tc class add dev x parent 1: classid 1:1 htb rate 7mbit",
    ]);
    for _ in 0..3 {
        let _ = tree.enqueue(START, packet(1, 1600));
    }
    assert!(matches!(tree.dequeue(START), Dequeue::Ready(_)));
    // A packet of 1,600 bytes takes 1,828,571 ns, but the burst, which is a whole number of ticks,
    // has only 1,827,968 ns.
    let Dequeue::NotBefore(then) = tree.dequeue(START) else { panic!("it has to wait") };
    assert_eq!(then.since(START), 1_828_571 - 28_562 * 64);
}

#[test]
fn who_has_no_class_passes_the_classes_by() {
    let mut tree = tree(&[
        "tc qdisc add dev x root handle 1: htb direct_qlen 2",
        "tc class add dev x parent 1: classid 1:1 htb rate 8kbit burst 100 cburst 100",
    ]);
    for cookie in 0..4 {
        let mut pkt = packet(if cookie == 0 { 1 } else { 9 }, 1000);
        pkt.cookie = cookie;
        let _ = tree.enqueue(START, pkt);
    }
    let dropped: Vec<_> = tree.drops().map(|pkt| (pkt.cookie, pkt.drop_reason)).collect();
    assert_eq!(dropped, [(3, Some(DropReason::Overlimit))]);
    let mut order = Vec::new();
    while let Dequeue::Ready(pkt) = tree.dequeue(START) {
        order.push(pkt.cookie);
    }
    assert_eq!(order, [1, 2, 0]);
    let mut stats = BTreeMap::new();
    tree.stats(&mut |name, value| {
        stats.insert(name, value);
    });
    assert_eq!((stats["direct_packets_stat"], stats["overlimits"]), (2, 1));
}

#[test]
fn filters_are_asked_at_the_qdisc_and_at_inner_classes() {
    let mut lines = SHARED.to_vec();
    lines.extend([
        "tc filter add dev x parent 1: handle 7 fw classid 1:1",
        "tc filter add dev x parent 1:1 handle 7 fw classid 1:10",
        "tc filter add dev x parent 1: pref 50000 handle 8 fw classid 1:0",
        "tc filter add dev x parent 1: pref 50001 handle 9 fw classid 1:99",
    ]);
    let mut qdisc = setup(&lines).build(MTU, 0).expect("a root");
    let mut drops = onramp_queue::PacketList::new();
    for (priority, mark, class) in [
        (0, 7, 0x10),
        (0x1_0001, 7, 0x10),
        (0x1_0001, 3, 0x20),
        (0, 3, 0x20),
        (0, 9, 0x20),
        (0, 8, 0),
        (0x1_0000, 7, 0),
        (0x2_0010, 3, 0x20),
    ] {
        let mut cx = onramp_core::qdisc::Cx::new(START, &mut drops);
        let mut pkt = Packet::new(100);
        (pkt.priority, pkt.mark) = (priority, mark);
        let _ = qdisc.enqueue(pkt, &mut cx);
        let mut at = 0;
        for minor in [0x10, 0x20] {
            let child = qdisc.classes().and_then(|classes| classes.child(minor));
            if child.expect("a leaf").held().packets > 0 {
                at = minor;
            }
        }
        assert_eq!(at, class, "priority {priority:x}, mark {mark}");
        qdisc.reset(&mut cx);
    }
}

#[test]
fn classes_count_what_they_lend_and_borrow() {
    let mut qdisc = setup(&SHARED).build(MTU, 0).expect("a root");
    let mut drops = onramp_queue::PacketList::new();
    let mut cx = onramp_core::qdisc::Cx::new(START, &mut drops);
    for _ in 0..4 {
        let _ = qdisc.enqueue(packet(0x10, 1000), &mut cx);
    }
    // The three packets use up the class's own tokens (2,048 bytes). After them, its parent has no
    // tokens left, either.
    for _ in 0..3 {
        assert!(matches!(qdisc.dequeue(&mut cx), Dequeue::Ready(_)));
    }
    assert!(matches!(qdisc.dequeue(&mut cx), Dequeue::NotBefore(_)));
    cx.now = START.after(MS);
    assert!(matches!(qdisc.dequeue(&mut cx), Dequeue::Ready(_)));
    let stats = |qdisc: &mut dyn Qdisc, minor| {
        let mut stats = BTreeMap::new();
        let classes = qdisc.classes().expect("classes");
        classes.stats(minor, &mut |name, value| {
            stats.insert(name, value);
        });
        ["sent_packets", "sent_bytes", "lended", "borrowed", "giants", "tokens", "ctokens"]
            .map(|name| stats[name])
    };
    // Tokens are counted in units of 64 ns. The class's bucket of 2,048 bytes holds tokens for
    // 8,192 us at 2 Mbit/s. The first three packets cost 12,000 us, and the class earns 1,000 us in
    // the millisecond that passes. The fourth packet uses tokens of the parent.
    let own = (8_192 - 12_000 + 1_000) * 1_000 / 64;
    let ceil = (2_048 - 3_000 + 1_000 - 1_000) * 1_000 / 64;
    assert_eq!(stats(&mut *qdisc, 0x10), [4, 4_000, 3, 1, 0, own, ceil]);
    assert_eq!(stats(&mut *qdisc, 1), [4, 4_000, 1, 0, 0, ceil, ceil]);
}

#[test]
fn errors_name_what_is_wrong() {
    let mut setup = setup(&SHARED);
    for (line, key, word) in [
        ("class add dev x parent 1:1 classid 1:30 htb ceil 1mbit", "rate", "missing"),
        ("class add dev x parent 1:1 classid 1:30 htb rate 0", "rate", "8bit"),
        ("class add dev x parent 1:1 classid 1:30 htb rate 1mbit prio -1", "prio", "0 to"),
        ("class add dev x parent 2: classid 1:30 htb rate 1mbit", "parent", "1:"),
        ("class add dev x parent 1: classid 1:30 prio", "", "htb"),
        ("qdisc add dev x parent 1:1 pfifo", "parent", "has child classes"),
        ("qdisc replace dev x root handle 1: htb default xyz", "default", "hexadecimal"),
    ] {
        let error = setup.apply(line).expect_err(line);
        assert_eq!(error.key, key, "{line}: {error}");
        assert!(error.to_string().contains(word), "{line}: {error}");
    }
    for below in 2..=8 {
        let above = if below == 2 { 1 } else { below - 1 };
        let line = format!("class add dev x parent 1:{above} classid 1:{below} htb rate 1mbit");
        setup.apply(&line).expect("eight classes below one another");
    }
    let error = setup.apply("class add dev x parent 1:8 classid 1:9 htb rate 1mbit");
    assert!(error.expect_err("nine").to_string().contains("at most 8"));
}

/// Dequeues each packet at the time that the tree announces, until the tree is empty. Returns the
/// number of packets.
fn drain(tree: &mut Tree, mut now: Instant) -> u64 {
    let mut packets = 0;
    for _ in 0..10_000 {
        match tree.dequeue(now) {
            Dequeue::Ready(_) => packets += 1,
            Dequeue::NotBefore(then) => {
                assert!(then > now);
                now = then;
            }
            Dequeue::Empty => return packets,
        }
    }
    panic!("{} packets are stuck", tree.backlog().packets)
}

#[test]
fn classes_come_and_go() {
    let mut tree = tree(&SHARED);
    let say = |tree: &mut Tree, line: &str| tree.apply(START, line).expect("a correct line");
    for minor in [0x10, 0x10, 0x10, 0x20] {
        let _ = tree.enqueue(START, packet(minor, 1000));
    }
    // When a leaf class gets a child class, the packets that the leaf holds are dropped, at the
    // latest in the next call of the qdisc.
    say(&mut tree, "class add dev x parent 1:10 classid 1:11 htb rate 1mbit ceil 8mbit");
    assert_eq!(drain(&mut tree, START), 1);
    assert_eq!(tree.drops().filter(|pkt| pkt.drop_reason == Some(DropReason::Purged)).count(), 3);
    for minor in [0x10, 0x11, 0x11, 0x11, 0x11, 0x20] {
        let _ = tree.enqueue(START, packet(minor, 1000));
    }
    // When its only child class is removed, the class is a leaf again.
    say(&mut tree, "class del dev x classid 1:11");
    assert_eq!(tree.drops().count(), 4);
    assert_eq!(drain(&mut tree, START), 2);
    for minor in [0x10, 0x11, 0x20] {
        let _ = tree.enqueue(START, packet(minor, 1000));
    }
    // When a class gets another rate, it keeps its packets.
    say(&mut tree, "class change dev x classid 1:10 htb rate 1kbit");
    say(&mut tree, "qdisc add dev x parent 1:20 handle 20: prio");
    assert_eq!(tree.drops().count(), 2, "another qdisc stands where there were two");
    assert_eq!(tree.backlog().packets, 1);
    assert_eq!(drain(&mut tree, START), 1);
    say(&mut tree, "class del dev x classid 1:10");
    for minor in [0x10, 0x20] {
        let _ = tree.enqueue(START, packet(minor, 1000));
    }
    assert_eq!(drain(&mut tree, START), 2);
    tree.reset(START);
    assert_eq!(tree.totals().enqueued_packets, 15);
    assert_eq!(tree.totals().sent_packets + tree.totals().dropped_packets(), 15);
}

/// A class of a random tree.
#[derive(Clone, Debug)]
struct Class {
    parent: usize,
    rate: u64,
    more: u64,
    prio: u8,
    quantum: u32,
}

fn classes() -> impl Strategy<Value = Vec<Class>> {
    let class = (any::<usize>(), 100_u64..3_000, 0_u64..3_000, 0_u8..8, 1_000_u32..4_000);
    let class = class.prop_map(|(parent, rate, more, prio, quantum)| Class {
        parent,
        rate,
        more,
        prio,
        quantum,
    });
    prop::collection::vec(class, 1..14)
}

const BURST: u64 = 3_000;

/// Returns the `tc` lines of a tree. The tree of up to fourteen classes stays within the depth that
/// Linux allows, because every second class is a child of the qdisc or of its first class.
fn lines(classes: &[Class]) -> Vec<String> {
    let mut lines = vec!["qdisc add dev x root handle 1: htb default 1".to_owned()];
    for (i, class) in classes.iter().enumerate() {
        let parent = match i {
            0 => 0,
            i if i % 2 == 0 => class.parent % 2,
            i => class.parent % (i + 1),
        };
        let Class { rate, more, prio, quantum, .. } = class;
        lines.push(format!(
            "class add dev x parent 1:{parent:x} classid 1:{:x} htb rate {rate}kbit ceil {}kbit \
             burst {BURST} cburst {BURST} prio {prio} quantum {quantum}",
            i + 1,
            rate + more,
        ));
    }
    lines
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Between any two packets of a class, the class sends no more than its `ceil` allows plus a
    /// burst. No packet is lost, and all packets that are held leave in the end.
    #[test]
    fn no_class_exceeds_its_ceiling(
        classes in classes(),
        arrivals in prop::collection::vec((0_u32..16, 60_u32..1515, 0_u64..4_000), 1..120),
    ) {
        let lines = lines(&classes);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let mut tree = tree(&lines);
        let (mut now, mut sent, mut direct) = (START, BTreeMap::<u32, Vec<_>>::new(), 0);
        let mut ask = |tree: &mut Tree, now| {
            match tree.dequeue(now) {
                Dequeue::Ready(pkt) => {
                    let minor = pkt.priority & 0xffff;
                    direct += u32::from(minor == 0);
                    sent.entry(minor).or_default().push((now, u64::from(pkt.len)));
                    Some(now)
                }
                Dequeue::NotBefore(then) => Some(then),
                Dequeue::Empty => None,
            }
        };
        for (minor, len, pause_us) in &arrivals {
            let _ = tree.enqueue(now, packet(*minor, *len));
            let end = now.after(pause_us * 1_000);
            while let Some(then) = ask(&mut tree, now) && then <= end {
                now = then;
            }
            now = end;
        }
        let mut waits = 0;
        while let Some(then) = ask(&mut tree, now) {
            waits = if then > now { waits + 1 } else { 0 };
            prop_assert!(waits < 200, "it goes on waiting");
            now = then;
        }
        prop_assert_eq!(tree.backlog().packets, 0);
        prop_assert_eq!(tree.totals().sent_packets + tree.totals().dropped_packets(),
            arrivals.len() as u64);
        for (i, class) in classes.iter().enumerate() {
            // Skip the first class: it is the default class, which also sends the packets that name
            // no leaf class. `sent` counts these packets for the class that they name. Packets that
            // name another leaf class go to that class.
            let minor = u32::try_from(i + 1).expect("few");
            let sent = match sent.get(&minor) {
                Some(sent) if i > 0 => sent,
                _ => continue,
            };
            let leaf = !lines.iter().any(|line| line.contains(&format!("parent 1:{:x} ", i + 1)));
            for from in 0..if leaf { sent.len() } else { 0 } {
                let mut bytes = 0;
                for (then, len) in &sent[from..] {
                    let share = then.since(sent[from].0) * (class.rate + class.more) / 8_000_000;
                    // A packet may leave as soon as its class has any tokens. So the bytes of the
                    // last packet are not counted.
                    prop_assert!(bytes <= BURST + share + 1, "{bytes} of {share}, {lines:?}");
                    bytes += len;
                }
            }
        }
    }
}
