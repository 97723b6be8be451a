//! How to split packets that carry several datagrams or TCP segments (GSO).
//!
//! Source: behaviour of Linux 7.2 `net/core/gso.c` (`skb_gso_segment`).

use onramp_queue::{Packet, PacketList};

use crate::base::frame::SuperFrame;
pub(crate) use crate::base::segments::{count, is_several, longest, sizes};
use crate::sched::call::{Cx, Verdict};

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
