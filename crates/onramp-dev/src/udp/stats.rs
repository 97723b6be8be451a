//! What a UDP device did.

use onramp_queue::Counter;

/// Cells that the device writes and anyone reads.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct UdpStats {
    /// Messages the kernel took: a segmented one of many datagrams counts once.
    pub messages: Counter,
    /// Datagrams in them.
    pub segments: Counter,
    /// Bytes of payload in them.
    pub bytes: Counter,
    /// System calls.
    pub calls: Counter,
    /// Messages of more than one datagram.
    pub gso_messages: Counter,
    /// Messages by their datagrams: cell `i` counts those of 2^i to 2^(i+1) - 1.
    pub segments_per_message: [Counter; Self::BUCKETS],
    /// Calls that found the socket's send buffer full (EAGAIN).
    pub eagain: Counter,
    /// Calls for which the kernel had no memory, or that the network interface's queue refused
    /// (ENOBUFS, ENOMEM).
    pub enobufs: Counter,
    /// Errors that were those of an earlier packet: ECONNREFUSED and its kin, which come back by
    /// ICMP and are reported on the next send. The packet at hand was sent.
    pub earlier_errors: Counter,
    /// Calls that took some messages and not the next. The kernel says why only if the next call
    /// finds the same; an error of an earlier packet it does not say.
    pub cut_short: Counter,
    /// Segmented messages that the kernel did not take, and that were sent datagram by datagram.
    pub gso_fallbacks: Counter,
    /// 1 when segmentation was given up, or never available, or not wanted.
    pub gso_off: Counter,
}

impl UdpStats {
    /// Cells of [`UdpStats::segments_per_message`]: up to 128 datagrams, the most a kernel takes.
    pub const BUCKETS: usize = 8;

    /// The cell for a message of `segments` datagrams.
    #[inline]
    pub(crate) fn bucket(segments: u16) -> usize {
        (segments.max(1).ilog2() as usize).min(Self::BUCKETS - 1)
    }
}
