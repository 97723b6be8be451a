//! Reads arbitrary bytes as a virtio header and a frame, as a TAP or a packet socket receives them:
//! describes the frame, cuts it, marks it, completes its checksum, and sends it through a qdisc
//! that cuts. Used for fuzzing, and to replay the corpus that fuzzing produced.

use std::ops::Range;

use onramp_core::dissect::Dissected;
use onramp_core::frame::{Datagram, SuperFrame, VnetHeader, complete_checksum, describe, write_ce};
use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{Layer, Packet};

/// Burst of the qdisc that cuts, bytes: what is larger it cuts or drops.
const BURST: u32 = 2_048;

/// Reads the bytes: the first says what kind of frame they are, ten are the virtio header, and the
/// rest is the frame.
///
/// # Panics
///
/// Panics if a step changes what it must not change, or if a segment is not a part of the frame.
pub(crate) fn run(bytes: &[u8]) {
    let Some((&[kind], rest)) = bytes.split_first_chunk() else { return };
    let Some((&header, frame)) = rest.split_first_chunk() else { return };
    let mut pkt = Packet::with_payload(frame);
    pkt.set_layer(if kind & 1 == 0 { Layer::Ethernet } else { Layer::Ip });
    let accepted = VnetHeader::from_bytes(header).apply(&mut pkt).is_ok();
    assert!(accepted || (pkt.gso_size, pkt.partial_checksum()) == (0, None), "unchanged");
    describe(&mut pkt, kind.into());
    assert!(pkt.len as usize >= frame.len(), "{} of {}", pkt.len, frame.len());
    assert_eq!(pkt.payload(), frame);
    assert_header(&pkt);
    assert_datagram(&pkt);
    if let Some(whole) = SuperFrame::of(&pkt) {
        assert_segments(&pkt, whole);
    }
    assert_cut(&pkt);
    assert_marks(&mut pkt);
    if SuperFrame::of(&pkt).is_none() {
        let (before, partial) = (pkt.payload().to_vec(), pkt.partial_checksum());
        complete_checksum(&mut pkt);
        assert_eq!(pkt.partial_checksum(), None);
        let start = partial.map_or(0, |partial| usize::from(partial.start));
        let at = start + partial.map_or(0, |partial| usize::from(partial.offset));
        let field = at..at + if partial.is_some() { 2 } else { 0 };
        if partial.is_some() {
            // What stood in the field is part of the sum.
            let right = match !sum(&before[start..]) {
                0 => u16::MAX,
                other => other,
            };
            assert_eq!(word(pkt.payload(), at), right);
        }
        assert_same_beside(&before, pkt.payload(), &[field]);
    }
}

/// The header that the packet would be sent with says the same as the one it came with.
fn assert_header(pkt: &Packet) {
    let mut again = Packet::with_payload(pkt.payload());
    again.set_layer(pkt.layer());
    VnetHeader::of(pkt).apply(&mut again).expect("we made the header");
    assert_eq!(again.partial_checksum(), pkt.partial_checksum());
    let whole = SuperFrame::of(pkt);
    assert_eq!(SuperFrame::of(&again), whole);
    assert!(whole.is_none() || again.gso_size == pkt.gso_size);
}

/// A datagram that is found lies in the frame, has the frame's addresses, and is as long as its
/// header says.
fn assert_datagram(pkt: &Packet) {
    let Some(datagram) = Datagram::of(pkt) else { return };
    let keys = Dissected::of(pkt).keys().clone();
    let (from, to) = (datagram.source, datagram.destination);
    assert_eq!(keys.addresses, Some((from.ip(), to.ip())));
    assert_eq!(keys.ports, Some((from.port(), to.port())));
    assert_eq!((keys.protocol, datagram.ecn), (17, keys.tos & 3));
    // Offsets count from where an Ethernet header begins, or would begin.
    let missing = if pkt.layer() == Layer::Ethernet { 0 } else { 14 };
    let udp = keys.transport.expect("it has ports") - missing;
    let end = udp + usize::from(word(pkt.payload(), udp + 4));
    assert_eq!(datagram.data, &pkt.payload()[udp + 8..end]);
    assert_eq!(datagram.datagrams().collect::<Vec<_>>().concat(), datagram.data);
    assert!(datagram.segment.is_none() || datagram.datagrams().count() > 1);
}

/// The segments have the headers' addresses and ports, fit, and together contain the data.
fn assert_segments(pkt: &Packet, whole: SuperFrame) {
    let (mut segment, mut data) = (Vec::new(), Vec::new());
    let keys = Dissected::of(pkt).keys().clone();
    assert!(whole.count() >= 2);
    let again = (whole.count() - 1) * whole.headers();
    assert_eq!(pkt.len as usize, pkt.payload().len() + again);
    for index in 0..whole.count() {
        whole.write_segment(pkt.payload(), index, &mut segment);
        assert!(segment.len() > whole.headers(), "no segment is empty");
        assert!(segment.len() <= whole.headers() + usize::from(pkt.gso_size));
        data.extend_from_slice(&segment[whole.headers()..]);
        let part = pkt.duplicate_with(&segment);
        let found = Dissected::of(&part).keys().clone();
        assert_eq!((found.addresses, found.ports), (keys.addresses, keys.ports));
        assert_eq!((found.vlan, found.protocol), (keys.vlan, keys.protocol));
    }
    assert_eq!(data, pkt.payload()[whole.headers()..]);
}

/// A qdisc that cuts super-frames loses nothing: what enters or is made leaves or is dropped.
fn assert_cut(pkt: &Packet) {
    let mut setup = Setup::default();
    let line = format!("qdisc add dev x root tbf rate 1gbit burst {BURST} limit 1mb");
    setup.apply(&line).expect("a line of tc");
    let mut tree = Tree::of(&setup, 1_514, 1).expect("it has a root");
    let copy = pkt.duplicate_with(pkt.payload());
    let _ = tree.enqueue(Instant(1), copy);
    let (mut now, mut sent) = (Instant(1), Vec::new());
    loop {
        match tree.dequeue(now) {
            Dequeue::Ready(packet) => sent.push(packet.payload().to_vec()),
            Dequeue::NotBefore(at) => now = at.max(now.after(1)),
            Dequeue::Empty => break,
        }
    }
    drop(tree.drops());
    let totals = tree.totals();
    assert_eq!(totals.enqueued_packets, sent.len() as u64 + totals.dropped_packets());
    // What fits the burst is not dropped: the whole frame, or each of its segments.
    match SuperFrame::of(pkt) {
        _ if pkt.len <= BURST => assert_eq!(sent, [pkt.payload()]),
        Some(whole) if whole.headers() + usize::from(pkt.gso_size) <= BURST as usize => {
            let mut segment = Vec::new();
            assert_eq!(sent.len(), whole.count());
            for (index, sent) in sent.iter().enumerate() {
                whole.write_segment(pkt.payload(), index, &mut segment);
                // The tree may have completed the checksum.
                assert_eq!(sent[whole.headers()..], segment[whole.headers()..]);
            }
        }
        _ => {}
    }
}

/// A mark changes the ECN bits and the checksum of the IP header, and nothing else; it is read back
/// as written.
fn assert_marks(pkt: &mut Packet) {
    let before = pkt.payload().to_vec();
    let frame = Dissected::of(pkt);
    let (network, tos) = (frame.keys().network, frame.keys().tos);
    // Offsets count from where an Ethernet header begins, or would begin.
    let at = if pkt.layer() == Layer::Ethernet { network } else { network - 14 };
    let is_ip = frame.keys().addresses.is_some();
    let is_v4 = frame.keys().addresses.is_some_and(|(from, _)| from.is_ipv4());
    let marked = write_ce(pkt);
    assert_eq!(marked, is_ip && tos & 3 != 0);
    let mark = if marked { at + 1..at + 2 } else { 0..0 };
    let check = if marked && is_v4 { at + 10..at + 12 } else { 0..0 };
    assert_same_beside(&before, pkt.payload(), &[mark, check]);
    if marked {
        assert_eq!(Dissected::of(pkt).keys().tos, tos | 3);
    }
    if marked && is_v4 {
        // The checksum is as right, or as wrong, as before.
        let header = at..at + 4 * usize::from(before[at] & 15);
        let sums = [&before, pkt.payload()].map(|frame| frame.get(header.clone()).map(sum));
        assert_eq!(sums[0], sums[1]);
    }
}

/// Returns the ones' complement sum of the words in `bytes` (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|two| [two[0], *two.get(1).unwrap_or(&0)]);
    let sum = words.fold(0_u32, |sum, word| sum + u32::from(u16::from_be_bytes(word)));
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded")
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn assert_same_beside(before: &[u8], after: &[u8], but: &[Range<usize>]) {
    assert_eq!(before.len(), after.len());
    let changed = (0..before.len()).filter(|at| before[*at] != after[*at]);
    for at in changed {
        assert!(but.iter().any(|range| range.contains(&at)), "byte {at} has changed");
    }
}
