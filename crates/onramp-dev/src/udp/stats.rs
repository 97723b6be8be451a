//! Counters of a UDP device.

use onramp_queue::Counter;

/// Counters that a UDP device writes and any thread may read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct UdpStats {
    /// Number of messages that the kernel took. A segmented message of many datagrams counts once.
    pub messages: Counter,
    /// Number of datagrams in the messages that the kernel took.
    pub segments: Counter,
    /// Number of payload bytes in the messages that the kernel took.
    pub bytes: Counter,
    /// Number of system calls that offered messages to the kernel.
    pub calls: Counter,
    /// Number of messages that held more than one datagram.
    pub gso_messages: Counter,
    /// Number of messages by size: cell `i` counts messages of 2^i to 2^(i+1) - 1 datagrams.
    pub segments_per_message: [Counter; Self::BUCKETS],
    /// Number of calls that found the socket's send buffer full (EAGAIN).
    pub eagain: Counter,
    /// Number of calls that failed because the kernel had no memory or the network interface's
    /// queue had no room (ENOBUFS, ENOMEM).
    pub enobufs: Counter,
    /// Number of errors that belonged to an earlier packet. Errors such as ECONNREFUSED come back
    /// by ICMP, and the kernel reports them on the next send. The packet of that next send is
    /// offered again, and sent.
    pub earlier_errors: Counter,
    /// Number of calls in which the kernel took some messages, but not the next one. Such a call
    /// does not report an error. If the reason persists, the next call reports it. If the reason
    /// was the ICMP error of an earlier packet, no call reports it.
    pub cut_short: Counter,
    /// Number of segmented messages that the kernel refused and that the device then sent as single
    /// datagrams.
    pub gso_fallbacks: Counter,
    /// Is 1 if the device does not segment: [`UdpOptions::gso`](super::UdpOptions::gso) is false,
    /// the kernel cannot segment, or the device gave up after refusals.
    pub gso_off: Counter,
}

impl UdpStats {
    /// Number of cells of [`UdpStats::segments_per_message`], enough for 128 datagrams, the largest
    /// number that a kernel takes.
    pub const BUCKETS: usize = 8;

    /// Returns the index of the cell for a message of `segments` datagrams.
    #[inline]
    pub(crate) fn bucket(segments: u16) -> usize {
        (segments.max(1).ilog2() as usize).min(Self::BUCKETS - 1)
    }
}
