//! What a datagram that waits costs its socket, of the room that `SO_SNDBUF` gives it.

/// What the kernel has beside the bytes of a datagram: a `struct sk_buff`, and a
/// `struct skb_shared_info` at the end of the memory that has the bytes.
const BUFFER: u64 = 256;
const SHARED: u64 = 320;
/// The kernel aligns the bytes of a datagram to lines of the cache.
const LINE: u64 = 64;
/// Memory of the smallest datagrams, whose blocks are of a size of their own (since Linux 6.3; it
/// depends a little on what the kernel was built with).
const SMALL: u64 = 576;
/// From so many bytes on, the payload lies in pages of its own (`SKB_MAX_ALLOC`).
const PAGED: u64 = 16_384 - SHARED;

/// Returns what Linux charges for a datagram with so many bytes of payload (its `truesize`): not
/// the payload, but the memory that is taken for it, whose blocks have sizes of powers of two. So a
/// socket holds as many datagrams before a qdisc here as before one of the kernel.
///
/// As on loopback, no datagram is cut into fragments.
pub(crate) fn cost(payload: usize, is_v6: bool) -> u64 {
    // Headers of IP and UDP, 16 bytes for that of Ethernet, and 15 that IPv4 may lose to alignment,
    // or the 8 of a header of fragments that IPv6 may need.
    let headers = if is_v6 { 40 + 8 + 16 + 8 } else { 20 + 8 + 16 + 15 };
    let payload = payload as u64;
    let bytes = payload + headers;
    if bytes >= PAGED {
        return BUFFER + SMALL + payload;
    }
    let whole = bytes.next_multiple_of(LINE) + SHARED;
    BUFFER + if whole <= SMALL { SMALL } else { whole.next_power_of_two() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measured on Linux 6.18: `SIOCOUTQ` of a socket after it sent one datagram of so many bytes
    /// to loopback, where a `tbf` held it.
    #[test]
    fn costs_are_those_of_linux() {
        let steps = |is_v6| {
            let costs = (0..16_100).map(move |payload| (payload, cost(payload, is_v6)));
            let mut steps: Vec<(usize, u64)> = costs.collect();
            steps.dedup_by_key(|(_, cost)| *cost);
            steps.truncate(8);
            steps
        };
        let of = |costs: [usize; 8], last| {
            let all = [832, 1_280, 2_304, 4_352, 8_448, 16_640, last, last + 1];
            costs.into_iter().zip(all).collect::<Vec<_>>()
        };
        let four = [0, 198, 646, 1_670, 3_718, 7_814, 16_005, 16_006];
        assert_eq!(steps(false), of(four, 16_837));
        let six = [0, 185, 633, 1_657, 3_705, 7_801, 15_992, 15_993];
        assert_eq!(steps(true), of(six, 16_824));
        assert_eq!([false, true].map(|is_v6| cost(65_000, is_v6)), [65_832; 2]);
    }
}
