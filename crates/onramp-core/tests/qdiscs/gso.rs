//! Packets of several datagrams (GSO): how they are counted, which qdiscs split them, and that no
//! part of them is lost. The expected numbers were measured on Linux 7.2.

use etherparse::PacketBuilder;
use onramp_core::Spec;
use onramp_core::frame;
use onramp_core::qdisc::{Dequeue, KINDS};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Layer, Packet, PartialChecksum};
use proptest::prelude::*;

const MTU: u32 = 1514;
const HEADERS: u32 = 42;
const START: Instant = Instant(5_000_000_000);

/// Makes a frame of a TCP packet with `payload` bytes of data, which its sender has left to the
/// device to cut into segments of `size` bytes and to compute the checksum.
fn super_frame(payload: usize, size: u16) -> Packet {
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let tcp = builder.tcp(1000, 2000, 3, 77);
    tcp.write(&mut bytes, &vec![7; payload]).expect("a vector takes everything");
    let mut pkt = Packet::with_payload(&bytes);
    pkt.set_layer(Layer::Ethernet);
    pkt.set_partial_checksum(Some(PartialChecksum { start: 34, offset: 16 }));
    pkt.gso_size = size;
    frame::describe(&mut pkt, 1);
    pkt
}

/// Frames are split like packets of datagrams: each segment has the headers of 54 bytes, and its
/// checksum is still missing.
#[test]
fn frames_are_taken_apart_into_segments() {
    for (line, lengths) in [
        ("tbf rate 1mbit burst 3000 limit 100000", &[1054, 1054, 1054, 554][..]),
        ("cake bandwidth 10mbit", &[1054, 1054, 1054, 554]),
        ("cake bandwidth 10mbit no-split-gso", &[3716]),
        ("netem delay 1ms", &[3716]),
        ("netem corrupt 100%", &[1054, 1054, 1054, 554]),
        ("pfifo", &[3716]),
    ] {
        let mut tree = tree(line);
        let whole = super_frame(3_500, 1_000);
        assert_eq!(whole.len, 3_500 + 4 * 54);
        let _ = tree.enqueue(START, whole);
        let out = drain(&mut tree);
        assert_eq!(lens(&out), lengths, "{line}");
        for (_, part) in &out {
            let damaged = line.contains("corrupt");
            assert_eq!(part.partial_checksum().is_none(), damaged, "{line}");
            assert_eq!(part.gso_size, if lengths.len() > 1 { 0 } else { 1_000 }, "{line}");
        }
        let totals = tree.totals();
        assert_eq!(totals.made_packets, lengths.len() as u64 - 1, "{line}");
        assert_eq!(totals.enqueued_packets, totals.sent_packets, "{line}");
    }
}

/// The checksum of a frame that is damaged is computed before, so that the far end notices.
#[test]
fn a_damaged_frame_has_a_checksum_that_does_not_fit() {
    let mut right = super_frame(500, 1_000);
    frame::complete_checksum(&mut right);
    let mut tree = tree("netem corrupt 100%");
    let _ = tree.enqueue(START, super_frame(500, 1_000));
    let out = drain(&mut tree);
    let different = out[0].1.payload().iter().zip(right.payload()).filter(|(a, b)| a != b).count();
    assert_eq!((different, out[0].1.partial_checksum()), (1, None));
}

/// Makes a packet that consists of datagrams with `size` bytes of payload each. The payload bytes
/// count upwards from `from`.
fn packet(from: usize, payload: usize, size: u16) -> Packet {
    let bytes: Vec<u8> = (from..from + payload).map(|n| n.to_le_bytes()[0]).collect();
    let mut pkt = Packet::with_payload(&bytes);
    let datagrams = u32::try_from(payload.div_ceil(usize::from(size).max(1))).expect("few");
    pkt.gso_size = size;
    pkt.len += HEADERS * datagrams.max(1);
    pkt
}

fn tree(line: &str) -> Tree {
    Tree::new(&line.parse::<Spec>().expect(line), MTU)
}

/// Dequeues each packet at the earliest time at which it may leave. Returns the times, in
/// nanoseconds after the start, and the packets.
fn drain(tree: &mut Tree) -> Vec<(u64, Packet)> {
    let (mut now, mut out) = (START, Vec::new());
    loop {
        match tree.dequeue(now) {
            Dequeue::Ready(pkt) => out.push((now.since(START), pkt)),
            Dequeue::NotBefore(then) if then < START.after(10_000_000_000) => now = then,
            _ => return out,
        }
    }
}

fn lens(out: &[(u64, Packet)]) -> Vec<u32> {
    out.iter().map(|(_, pkt)| pkt.len).collect()
}

fn stat(tree: &Tree, wanted: &str) -> u64 {
    let mut found = None;
    tree.stats(&mut |name, value| {
        if name == wanted {
            found = Some(value);
        }
    });
    found.expect(wanted)
}

/// `tbf` splits a packet that is larger than its bucket: here 5,210 bytes, in five datagrams of
/// 1,042 bytes. At 1 Mbit/s, a datagram takes 8.336 ms.
#[test]
fn tbf_takes_apart_what_its_bucket_does_not_hold() {
    let mut tree = tree("tbf rate 1mbit burst 3000 limit 100000");
    let _ = tree.enqueue(START, packet(0, 5000, 1000));
    assert_eq!((tree.backlog().packets, tree.backlog().bytes), (5, 5210));
    let out = drain(&mut tree);
    assert_eq!(lens(&out), [1042; 5]);
    // The bucket of 3,000 bytes lets two datagrams leave at once. Then each datagram waits for the
    // tokens that it lacks.
    let times: Vec<u64> = out.iter().map(|(at, _)| at / 1000).collect();
    assert_eq!(times, [0, 0, 1_008, 9_344, 17_680]);
    let payload: Vec<u8> = out.iter().flat_map(|(_, pkt)| pkt.payload().to_vec()).collect();
    assert_eq!(payload, packet(0, 5000, 1000).payload());
    assert_eq!((tree.totals().enqueued_packets, tree.totals().made_packets), (5, 4));
}

#[test]
fn tbf_keeps_whole_what_fits_and_drops_what_never_will() {
    let outcome = |burst: u32, limit: u32| {
        let mut tree = tree(&format!("tbf rate 1mbit burst {burst} limit {limit}"));
        let _ = tree.enqueue(START, packet(0, 5000, 1000));
        let sent = lens(&drain(&mut tree));
        let dropped = |reason| tree.totals().dropped(reason);
        (sent, dropped(DropReason::TooBig), dropped(DropReason::Overlimit))
    };
    assert_eq!(outcome(6000, 100_000), (vec![5210], 0, 0));
    assert_eq!(outcome(1100, 100_000), (vec![1042; 5], 0, 0));
    assert_eq!(outcome(1041, 100_000), (vec![], 1, 0));
    // If `tbf` splits a packet, it keeps as many datagrams as fit its limit and drops the others.
    assert_eq!(outcome(3000, 3200), (vec![1042; 3], 0, 2));
    // This packet has no payload bytes, so `tbf` cannot split it and drops it.
    let mut tree = tree("tbf rate 1mbit burst 3000 limit 100000");
    let mut bare = Packet::new(5210);
    bare.gso_size = 1000;
    let _ = tree.enqueue(START, bare);
    assert_eq!(tree.totals().dropped(DropReason::TooBig), 1);
}

#[test]
fn cake_takes_all_apart_unless_told_not_to() {
    for (option, parts) in [("split-gso", 10), ("no-split-gso", 2)] {
        let mut tree = tree(&format!("cake bandwidth 2mbit besteffort flowblind {option}"));
        for _ in 0..2 {
            // `cake`'s AQM (COBALT) marks one of the packets. Without ECN, it would drop that
            // packet.
            let mut pkt = packet(0, 4500, 1000);
            pkt.ecn = 1;
            let _ = tree.enqueue(START, pkt);
        }
        assert_eq!((tree.backlog().packets, tree.backlog().bytes), (parts, 9420), "{option}");
        let told = ["tin0_pkts", "tin0_bytes", "tin0_max_len"].map(|name| stat(&tree, name));
        assert_eq!(told, [parts.into(), 9420, 4710], "{option}");
        let sizes = ["min_adj_size", "max_adj_size"].map(|name| stat(&tree, name));
        assert_eq!(sizes, [542, 1042], "{option}");
        assert_eq!(drain(&mut tree).len(), parts as usize, "{option}");
    }
}

#[test]
fn netem_damages_one_datagram_of_several() {
    for (options, parts) in [("delay 1ms", 1), ("delay 1ms corrupt 100%", 5)] {
        let mut tree = tree(&format!("netem {options}"));
        let pkt = packet(0, 4500, 1000);
        let before = pkt.payload().to_vec();
        let _ = tree.enqueue(START, pkt);
        assert_eq!((tree.backlog().packets, tree.backlog().bytes), (parts, 4710), "{options}");
        let out = drain(&mut tree);
        let after: Vec<u8> = out.iter().flat_map(|(_, pkt)| pkt.payload().to_vec()).collect();
        let bits: u32 = before.iter().zip(&after).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!((after.len(), bits), (before.len(), if parts > 1 { 5 } else { 0 }));
    }
}

/// If a packet's stated length is shorter than its payload, no qdisc splits the packet. Its parts
/// would be longer than the whole: a qdisc would charge for bytes that are never sent, and a child
/// qdisc that accepted the whole packet could find the parts too large.
/// The qdisc and its classes count the datagrams of a packet.
#[test]
fn classes_count_datagrams() {
    let mut setup = Setup::default();
    for line in [
        "qdisc add dev x root handle 1: htb default 10",
        "class add dev x parent 1: classid 1:1 htb rate 1gbit",
        "class add dev x parent 1:1 classid 1:10 htb rate 1gbit",
    ] {
        setup.apply(line).expect(line);
    }
    let mut tree = Tree::of(&setup, MTU, 1).expect("there is a root");
    let _ = tree.enqueue(START, packet(0, 5_000, 500));
    assert_eq!(drain(&mut tree).len(), 1);
    let view = &tree.views()[0];
    let classes: Vec<u64> = view.classes.iter().map(|class| class.counters.packets).collect();
    assert_eq!((view.counters.packets, &classes[..]), (10, &[10, 10][..]));
}

#[test]
fn a_packet_shorter_than_its_payload_stays_whole() {
    let mut setup = Setup::default();
    for line in [
        "qdisc add dev x root handle 1: tbf rate 1mbit burst 950 limit 100kb",
        "qdisc add dev x parent 1:1 handle 2: cake",
    ] {
        setup.apply(line).expect(line);
    }
    let mut tree = Tree::of(&setup, MTU, 1).expect("a root");
    let mut pkt = packet(0, 2500, 1000);
    pkt.len = 900;
    let _ = tree.enqueue(START, pkt);
    assert_eq!((tree.backlog().packets, tree.backlog().bytes), (1, 900));
    assert_eq!(lens(&drain(&mut tree)), [900]);
}

/// Checks for one kind of qdisc that the bytes enqueued equal the bytes that left, were dropped or
/// are held, and that the same is true for the number of packets, including the packets that
/// splitting made.
fn nothing_is_lost(line: &str, packets: &[(u16, u16, bool)]) -> Result<(), TestCaseError> {
    let mut tree = tree(line);
    let (mut came, mut gone) = (0, 0);
    let mut now = START;
    for (payload, size, ask) in packets {
        let mut pkt = packet(0, (*payload).into(), *size);
        pkt.flow = u64::from(payload % 3);
        (pkt.ecn, pkt.priority) = ((payload % 4).to_le_bytes()[0], (payload % 3).into());
        came += u64::from(pkt.len);
        let _ = tree.enqueue(now, pkt);
        gone += tree.drops().map(|pkt| u64::from(pkt.len)).sum::<u64>();
        if *ask && let Dequeue::Ready(pkt) = tree.dequeue(now) {
            gone += u64::from(pkt.len);
        }
        gone += tree.drops().map(|pkt| u64::from(pkt.len)).sum::<u64>();
        now = now.after(3_000_000);
        let (totals, backlog) = (tree.totals(), tree.backlog());
        prop_assert_eq!(came, gone + backlog.bytes, "{}", line);
        let packets = totals.sent_packets + totals.dropped_packets() + u64::from(backlog.packets);
        prop_assert_eq!(totals.enqueued_packets, packets, "{}", line);
    }
    tree.reset(now);
    gone += tree.drops().map(|pkt| u64::from(pkt.len)).sum::<u64>();
    prop_assert_eq!(came, gone, "{}", line);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn no_kind_loses_a_datagram(
        packets in prop::collection::vec((1_u16..8000, 0_u16..2000, any::<bool>()), 0..60),
    ) {
        let bare = KINDS.iter().map(|kind| kind.id).filter(|id| id.parse::<Spec>().is_ok());
        let small = [
            "tbf rate 5mbit burst 1600 limit 9kb",
            "cake bandwidth 5mbit memlimit 20kb",
            "dualpi2 limit 9 target 1ms tupdate 1ms",
            "dualpi2 memlimit 20000 no_split_gso",
            "netem delay 2ms limit 9 corrupt 50%",
        ];
        for line in bare.chain(small) {
            nothing_is_lost(line, &packets)?;
        }
    }
}
