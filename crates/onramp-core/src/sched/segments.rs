//! Packets that carry several datagrams or TCP segments (GSO), and how to split them.
//!
//! Source: behaviour of Linux 7.2 `net/core/gso.c` (`skb_gso_segment`) and `net/core/dev.c`
//! (`qdisc_pkt_len_segs_init`): on the wire, each of the parts has headers of its own.

use onramp_queue::{Layer, Packet, PacketList};

use crate::base::frame::SuperFrame;
use crate::sched::call::{Cx, Verdict};

/// Whether a packet carries several parts and can be split into them. A packet whose stated length
/// is less than the number of its payload bytes cannot be split, because the parts would be longer
/// than the whole.
#[inline]
pub(crate) fn is_several(pkt: &Packet) -> bool {
    pkt.gso_size > 0 && pkt.payload().len() <= pkt.len as usize && is_divisible(pkt)
}

fn is_divisible(pkt: &Packet) -> bool {
    match pkt.layer() {
        Layer::Datagram => pkt.payload().len() > usize::from(pkt.gso_size),
        Layer::Ip | Layer::Ethernet => SuperFrame::of(pkt).is_some(),
    }
}

/// Returns the number of parts that a packet carries, or 1 if it cannot be split.
#[inline]
pub(crate) fn count(pkt: &Packet) -> u32 {
    if is_several(pkt) { sizes(pkt).0 } else { 1 }
}

/// Returns the number of parts that a packet carries, the size of each but the last, and the size
/// of the last. The sizes are bytes on the wire.
pub(crate) fn sizes(pkt: &Packet) -> (u32, u32, u32) {
    let headers = match pkt.layer() {
        Layer::Datagram => 0,
        // Each segment of a frame repeats the headers of the frame.
        Layer::Ip | Layer::Ethernet => match SuperFrame::of(pkt) {
            Some(frame) => frame.headers(),
            None => return (1, pkt.len, pkt.len),
        },
    };
    let data = u32::try_from(pkt.payload().len() - headers).unwrap_or(u32::MAX);
    let size = u32::from(pkt.gso_size).max(1);
    let count = data.div_ceil(size).max(1);
    let full = size + pkt.len.saturating_sub(data) / count;
    (count, full, pkt.len.saturating_sub(full.saturating_mul(count - 1)))
}

/// Splits a packet into its parts. Each part gets the metadata of the packet. The last part is the
/// packet itself, so its sender learns whether that part was sent or dropped. The other parts count
/// as packets that the qdisc made.
pub(crate) fn split(mut pkt: Packet, cx: &mut Cx<'_>) -> PacketList {
    debug_assert!(is_several(&pkt), "a packet of one part is not split");
    let (count, full, last) = sizes(&pkt);
    let frame = SuperFrame::of(&pkt);
    let (mut parts, mut bytes) = (PacketList::new(), Vec::new());
    for index in 0..count - 1 {
        let payload = part(&pkt, frame.as_ref(), index, &mut bytes);
        let mut part = cx.duplicate_with(&pkt, payload);
        (part.len, part.gso_size) = (full, 0);
        parts.push_back(part);
    }
    let tail = part(&pkt, frame.as_ref(), count - 1, &mut bytes).to_vec();
    pkt.set_payload(&tail);
    (pkt.len, pkt.gso_size) = (last, 0);
    parts.push_back(pkt);
    parts
}

/// Returns the payload of the part with this index: a datagram as it stands in the packet, or a
/// segment, which is written into `bytes`.
fn part<'p>(
    pkt: &'p Packet,
    frame: Option<&SuperFrame>,
    index: u32,
    bytes: &'p mut Vec<u8>,
) -> &'p [u8] {
    let (whole, index) = (pkt.payload(), index as usize);
    if let Some(frame) = frame {
        frame.write_segment(whole, index, bytes);
        return bytes;
    }
    let size = usize::from(pkt.gso_size);
    &whole[index * size..whole.len().min((index + 1) * size)]
}

/// Splits a packet and passes each part to `enqueue`. Returns [`Verdict::Dropped`] only if all
/// parts were dropped.
pub(crate) fn each(
    pkt: Packet,
    cx: &mut Cx<'_>,
    mut enqueue: impl FnMut(Packet, &mut Cx<'_>) -> Verdict,
) -> Verdict {
    let mut verdict = Verdict::Dropped;
    for part in split(pkt, cx) {
        match enqueue(part, cx) {
            Verdict::Queued if verdict == Verdict::Dropped => verdict = Verdict::Queued,
            Verdict::Congested => verdict = Verdict::Congested,
            Verdict::Queued | Verdict::Dropped => {}
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Instant;

    #[test]
    fn parts_are_the_whole() {
        let payload: Vec<u8> = (0..2500_u32).map(|i| i.to_le_bytes()[0]).collect();
        for (size, counts) in [(1000_u16, [1042, 1042, 542].as_slice()), (1250, &[1292, 1292])] {
            let mut pkt = Packet::with_payload(&payload);
            (pkt.gso_size, pkt.flow, pkt.ecn, pkt.cookie) = (size, 9, 2, 77);
            pkt.set_queue(3);
            pkt.len = counts.iter().sum();
            assert!(is_several(&pkt));
            let mut drops = PacketList::new();
            let mut cx = Cx::new(Instant(0), &mut drops);
            let parts: Vec<Packet> = split(pkt, &mut cx).collect();
            assert_eq!(cx.made as usize, counts.len() - 1);
            assert_eq!(parts.iter().map(|part| part.len).collect::<Vec<_>>(), counts);
            assert_eq!(parts.iter().map(Packet::payload).collect::<Vec<_>>().concat(), payload);
            for part in &parts {
                let known = (part.gso_size, part.flow, part.ecn, part.cookie, part.queue());
                assert_eq!(known, (0, 9, 2, 77, 3));
            }
        }
    }

    #[test]
    fn one_datagram_is_not_taken_apart() {
        let mut pkt = Packet::with_payload(&[0; 1000]);
        assert!(!is_several(&pkt));
        pkt.gso_size = 1000;
        assert!(!is_several(&pkt));
        pkt.gso_size = 999;
        assert!(is_several(&pkt));
        pkt.set_layer(Layer::Ethernet);
        assert!(!is_several(&pkt));
        // A packet of which only the length is known, but no payload bytes, is not split.
        let mut bare = Packet::new(3000);
        bare.gso_size = 1000;
        assert!(!is_several(&bare));
    }

    #[test]
    fn datagrams_are_counted() {
        let count_of = |payload: usize, size: u16| {
            let mut pkt = Packet::with_payload(&vec![0; payload]);
            pkt.gso_size = size;
            count(&pkt)
        };
        for (payload, size, datagrams) in
            [(5_000, 1_000, 5), (5_001, 1_000, 6), (2, 1, 2), (1, 1, 1), (1_000, 0, 1), (0, 9, 1)]
        {
            assert_eq!(count_of(payload, size), datagrams, "{payload} by {size}");
        }
    }

    #[test]
    fn parts_go_where_the_whole_went() {
        let dest = "[::1]:4433".parse().expect("an address");
        let mut pkt = Packet::with_payload(&[0; 3_000]);
        pkt.gso_size = 1_000;
        pkt.set_dest(Some(dest));
        let mut drops = PacketList::new();
        let parts: Vec<_> = split(pkt, &mut Cx::new(Instant(0), &mut drops)).collect();
        assert_eq!(parts.iter().map(Packet::dest).collect::<Vec<_>>(), [Some(dest); 3]);
    }

    /// The verdict on the whole packet is `Congested` if that is the verdict on at least one part,
    /// otherwise `Queued` if that is the verdict on at least one part, and otherwise `Dropped`.
    #[test]
    fn the_verdict_is_that_of_all_parts() {
        use Verdict::{Congested, Dropped, Queued};
        for (parts, whole) in [
            ([Dropped, Dropped, Dropped], Dropped),
            ([Dropped, Dropped, Queued], Queued),
            ([Queued, Dropped, Dropped], Queued),
            ([Queued, Queued, Queued], Queued),
            ([Congested, Queued, Queued], Congested),
            ([Queued, Congested, Dropped], Congested),
            ([Dropped, Queued, Congested], Congested),
            ([Congested, Dropped, Dropped], Congested),
        ] {
            let mut pkt = Packet::with_payload(&[0; 3_000]);
            pkt.gso_size = 1_000;
            let mut drops = PacketList::new();
            let mut verdicts = parts.into_iter();
            let verdict = each(pkt, &mut Cx::new(Instant(0), &mut drops), |_, _| {
                verdicts.next().expect("three parts")
            });
            assert_eq!((verdict, verdicts.next()), (whole, None), "{parts:?}");
        }
    }
}
