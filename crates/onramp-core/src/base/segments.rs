//! How many datagrams or TCP segments a packet carries (GSO), and how long each of them is.
//!
//! Source: behaviour of Linux 7.2 `net/core/gso.c` and `net/core/dev.c`
//! (`qdisc_pkt_len_segs_init`): on the wire, each of the parts has headers of its own.

use onramp_queue::{Layer, Packet};

use super::frame::SuperFrame;

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
    let full = size.saturating_add(pkt.len.saturating_sub(data) / count);
    (count, full, pkt.len.saturating_sub(full.saturating_mul(count - 1)))
}

/// Returns the size of the longest part of a packet, bytes on the wire. If the packet cannot be
/// split, this is its own length.
pub(crate) fn longest(pkt: &Packet) -> u32 {
    if !is_several(pkt) {
        return pkt.len;
    }
    let (_, full, last) = sizes(pkt);
    full.max(last)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// The length that a sender states may be any number, also for a packet of one part.
    #[test]
    fn no_length_is_too_large() {
        let sizes_of = |payload: usize, size: u16| {
            let mut pkt = Packet::with_payload(&vec![0; payload]);
            (pkt.gso_size, pkt.len) = (size, u32::MAX);
            sizes(&pkt)
        };
        assert_eq!(sizes_of(0, 1_000), (1, u32::MAX, u32::MAX));
        assert_eq!(sizes_of(500, u16::MAX), (1, u32::MAX, u32::MAX));
        let half = 1_000 + (u32::MAX - 1_500) / 2;
        assert_eq!(sizes_of(1_500, 1_000), (2, half, u32::MAX - half));
    }

    #[test]
    fn the_longest_part_has_headers_of_its_own() {
        let longest_of = |payload: usize, size: u16, len: u32| {
            let mut pkt = Packet::with_payload(&vec![0; payload]);
            (pkt.gso_size, pkt.len) = (size, len);
            longest(&pkt)
        };
        // Five datagrams of 1,400 bytes with 42 bytes of headers each.
        assert_eq!(longest_of(7_000, 1_400, 7_210), 1_442);
        // The last is shorter.
        assert_eq!(longest_of(7_000, 1_500, 7_210), 1_542);
        // The packet is one datagram.
        assert_eq!(longest_of(1_400, 1_400, 1_442), 1_442);
        assert_eq!(longest_of(7_000, 0, 7_042), 7_042);
    }
}
