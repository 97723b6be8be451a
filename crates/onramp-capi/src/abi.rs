//! The structures and constants that cross the border between C and the library. The comments are
//! written for the reader of `onramp.h`.

use std::ffi::{c_char, c_void};

/// Version of the interface for which this header was written. `onramp_abi` returns the version of
/// the library that was loaded; a program whose library has another version should not go on.
pub const ONRAMP_ABI: u32 = 1;

/// Layer of a packet whose headers are not given.
pub const ONRAMP_LAYER_NONE: u8 = 0;
/// Layer of a packet whose bytes begin with an IPv4 or IPv6 header.
pub const ONRAMP_LAYER_IP: u8 = 1;
/// Layer of a packet whose bytes begin with an Ethernet header.
pub const ONRAMP_LAYER_ETHERNET: u8 = 2;

/// Most bytes of a packet's headers (`head`) that a tree copies.
pub const ONRAMP_HEAD_MAX: u32 = 128;

/// Flag of `onramp_options`: the kernel is not to segment messages (UDP GSO).
pub const ONRAMP_NO_GSO: u32 = 1;
/// Flag of `onramp_options`: pass transmit times to the kernel (`SO_TXTIME`), whose qdisc has to be
/// fq or etf.
pub const ONRAMP_TXTIME: u32 = 2;
/// Flag of `onramp_options`: the link has no threads. The program calls `onramp_link_run` when the
/// descriptor of `onramp_link_fd` is readable.
pub const ONRAMP_MANUAL: u32 = 4;

/// Flag of `onramp_device`: `transmit` returns within about 2 ms. A link with several devices then
/// needs no extra thread that watches for blocked ones.
pub const ONRAMP_NEVER_BLOCKS: u32 = 1;

/// Flag of `onramp_sender_new`: the sender reports what became of each packet:
/// `onramp_sender_completions`.
pub const ONRAMP_COMPLETIONS: u32 = 1;

/// A packet of a tree, or of a device of the caller's. Set to zero what is not known.
///
/// A tree never touches the caller's buffers. The caller stores in `cookie` which buffer a packet
/// has, and finds the buffer again by the cookie when the packet leaves. Each cookie comes back
/// exactly once: from `onramp_tree_dequeue` or from `onramp_tree_drops`. Besides, netem with
/// `duplicate` makes packets (`made`) with the cookie of the original.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pkt {
    /// A number of the caller's, which the library never reads.
    pub cookie: u64,
    /// Key of the packet's flow: equal numbers are one flow. `onramp_pkt_of_frame` computes it.
    pub flow: u64,
    /// Earliest departure time, ns (`SO_TXTIME`); 0: none. Only fq and etf heed it.
    pub txtime_ns: u64,
    /// Pacing rate of the flow, bytes a second; 0: none (`SO_MAX_PACING_RATE`). Only fq heeds it.
    pub pacing_rate: u64,
    /// Out: when the packet was enqueued, ns.
    pub enqueued_ns: u64,
    /// In: the packet's headers, for filters (u32, flower, bpf) and for qdiscs that read headers
    /// (cake); NULL: not given. `onramp_tree_enqueue` copies the first `ONRAMP_HEAD_MAX` bytes.
    /// Out: NULL.
    pub head: *const c_void,
    /// Length on the wire, link header included, bytes.
    pub len: u32,
    /// Priority (`SO_PRIORITY`): qdiscs such as prio choose a band or class by it.
    pub priority: u32,
    /// Mark (`SO_MARK`), which the filter fw reads.
    pub mark: u32,
    /// Bytes of payload in each segment, if the packet is to be segmented later; 0: it is not.
    pub gso_size: u16,
    /// In: number of bytes at `head`. Out: 0.
    pub head_len: u16,
    /// In: `ONRAMP_LAYER_IP` or `ONRAMP_LAYER_ETHERNET`, if `head` is given. Out: unchanged.
    pub layer: u8,
    /// ECN code point: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE. If it was 1 or 2 and is 3 when the
    /// packet leaves, a qdisc has marked the packet, and the caller has to mark the frame:
    /// `onramp_frame_mark_ce`.
    pub ecn: u8,
    /// Out: why the packet was dropped, one of `ONRAMP_DROP_...`; 0: it was not.
    pub drop_reason: u8,
    /// Out, for a tree: 1 if netem made the packet as a duplicate, else 0. For a device: 0, also
    /// for duplicates, which have the cookie of their original.
    pub made: u8,
    /// Set to 0.
    pub reserved: u32,
}

/// Options of a link. Set `size` to `sizeof(onramp_options)`, and all that is not used to 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `sizeof(onramp_options)`: later versions add fields at the end.
    pub size: u32,
    /// `ONRAMP_MANUAL`; for links over sockets also `ONRAMP_NO_GSO` and `ONRAMP_TXTIME`.
    pub flags: u32,
    /// Lines of tc that describe the tree in front of each port, such as `qdisc add root handle 1:
    /// htb default 1`. NULL: fq, in which a flow with a rate of up to 100 Mbit/s pauses after each
    /// packet. With `fq` here it sends a quantum before it pauses, as in Linux.
    pub tc: *const c_char,
    /// Most packets of a sender in flight (accepted, neither sent nor dropped), up to 32,768; 0:
    /// the default, 96 packets and 1 MiB, and fewer if there are many senders and `credit_bytes` is
    /// 0, too.
    pub credit_packets: u32,
    /// Most bytes of payload of a sender in flight; 0: 1 MiB.
    pub credit_bytes: u32,
    /// Largest packet on the wire, link header included, bytes, 68 or more; 0: as the device says.
    /// Qdiscs derive their quantum from it. It does not bound the length of messages.
    pub mtu: u32,
    /// Most time that packets of a sender wait in the link, microseconds: the sender may have as
    /// many bytes in flight as leave in this time at their present rate, but two packets in any
    /// case, and never more than its credits. 1,000 to 10,000 are good values; less than the delay
    /// of a netem costs rate. 0: the credits alone bound the queue.
    pub credit_time_us: u32,
    /// Seed of the random numbers of qdiscs, for tests that have to repeat exactly; 0: random.
    pub seed: u64,
}

/// Where packets go, and how qdiscs schedule them. A value: copy it freely, there is nothing to
/// free. `onramp_flow_init` fills it; every sender of the same link may use it. The caller may
/// change `pacing_rate`, `priority`, `mark` and `ecn` at any time, and `source` with
/// `onramp_flow_from`; they hold for later packets.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FlowValue {
    /// The link of the flow.
    pub link: u64,
    /// Key by which qdiscs tell the flow from others.
    pub key: u64,
    /// Rate at which fq sends the flow's packets, bytes on the wire a second, headers included; 0:
    /// none.
    pub pacing_rate: u64,
    /// Number of the port (socket or device) of the flow.
    pub port: u32,
    /// Priority (`SO_PRIORITY`).
    pub priority: u32,
    /// Mark (`SO_MARK`).
    pub mark: u32,
    /// The destination, as bytes of a `sockaddr_in` or `sockaddr_in6`; all 0: the peer to which the
    /// socket is connected.
    pub address: [u8; 28],
    /// ECN code point: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    pub ecn: u8,
    /// Set to 0.
    pub reserved: u8,
    /// Number of the local address from which packets leave, which `onramp_flow_from` sets; 0: the
    /// system chooses the address.
    pub source: u16,
    /// Set to 0.
    pub reserved2: [u8; 4],
}

const _: () = assert!(size_of::<FlowValue>() == 72, "programs have flows of this size");

/// A message for `onramp_send`: one datagram, or several of `segment` bytes each.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Msg {
    /// The parts of the payload. The library copies the bytes before the call returns.
    pub iov: *const libc::iovec,
    /// Number of parts.
    pub iovlen: usize,
    /// Earliest departure time, ns of CLOCK_MONOTONIC; 0: none.
    pub txtime_ns: u64,
    /// A number that the message's completion reports.
    pub cookie: u64,
    /// Bytes in each datagram but the last (`UDP_SEGMENT`); 0: the payload is one datagram.
    pub segment: u16,
    /// ECN code point of this message; 0: that of the flow.
    pub ecn: u8,
    /// Set to 0.
    pub reserved: [u8; 5],
}

/// What became of a packet of a sender.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CompletionValue {
    /// The cookie of the message.
    pub cookie: u64,
    /// Key of the flow.
    pub flow: u64,
    /// When the packet was accepted, ns of CLOCK_MONOTONIC. Behind `series`, or `netem` with a
    /// qdisc below it: when it came to the last qdisc.
    pub pushed_ns: u64,
    /// When the packet left or was dropped, ns of CLOCK_MONOTONIC; `UINT64_MAX`: unknown.
    pub left_ns: u64,
    /// Length on the wire, bytes.
    pub len: u32,
    /// Why the packet was dropped, one of `ONRAMP_DROP_...`; 0: it was sent.
    pub drop_reason: u8,
    /// 0.
    pub reserved: [u8; 3],
}

/// The qdisc held its `limit` of packets or bytes.
pub const ONRAMP_DROP_OVERLIMIT: u8 = 1;
/// fq held `limit` packets in the packet's priority band.
pub const ONRAMP_DROP_FQ_BAND_LIMIT: u8 = 2;
/// fq held `flow_limit`, or sfq `depth`, packets of the packet's flow.
pub const ONRAMP_DROP_FQ_FLOW_LIMIT: u8 = 3;
/// The departure time asked for lies beyond fq's `horizon`, and `horizon_drop` is set.
pub const ONRAMP_DROP_FQ_HORIZON_LIMIT: u8 = 4;
/// A qdisc dropped the packet to signal congestion to the sender.
pub const ONRAMP_DROP_CONGESTED: u8 = 5;
/// A law against unresponsive flows dropped the packet (BLUE, PIE's cap).
pub const ONRAMP_DROP_FLOOD_PROTECTION: u8 = 6;
/// The packet waited too long in dualpi2's L-queue, and its sender does not understand ECN.
pub const ONRAMP_DROP_L4S_STEP_NON_ECN: u8 = 7;
/// The packet is larger than the token bucket of the qdisc.
pub const ONRAMP_DROP_TOO_BIG: u8 = 8;
/// The packet belongs to no class of the qdisc.
pub const ONRAMP_DROP_UNCLASSIFIED: u8 = 9;
/// The action of a filter dropped the packet.
pub const ONRAMP_DROP_FILTER: u8 = 10;
/// The packet's departure time had passed, or the packet had none and the qdisc needs one.
pub const ONRAMP_DROP_LATE: u8 = 11;
/// netem dropped the packet, as its option `loss` demands.
pub const ONRAMP_DROP_IMPAIRED: u8 = 12;
/// The qdisc is `blackhole` or `noop`, which drops all packets.
pub const ONRAMP_DROP_BLACKHOLE: u8 = 13;
/// The qdisc was reset or replaced, or the link closed, while the packet was in the qdisc.
pub const ONRAMP_DROP_PURGED: u8 = 14;
/// The packet is larger than the device or the path allows (EMSGSIZE).
pub const ONRAMP_DROP_MESSAGE_SIZE: u8 = 15;
/// No socket listens at the destination (ECONNREFUSED).
pub const ONRAMP_DROP_REFUSED: u8 = 16;
/// There is no route to the destination (ENETUNREACH, EHOSTUNREACH and similar errors).
pub const ONRAMP_DROP_UNREACHABLE: u8 = 17;
/// The kernel had no buffer for the packet, even after a retry (ENOBUFS, ENOMEM).
pub const ONRAMP_DROP_NO_BUFFERS: u8 = 18;
/// The kernel refused the packet: a firewall rule, or broadcast not enabled (EPERM, EACCES).
pub const ONRAMP_DROP_NO_PERMISSION: u8 = 19;
/// The qdisc or the device panicked, which ended the port that held the packet.
pub const ONRAMP_DROP_PORT_DEAD: u8 = 20;
/// The device reported an error for which there is no other reason in this list.
pub const ONRAMP_DROP_DEVICE_ERROR: u8 = 21;
/// The sender took the packet back before the device had it (`Sender::cancel`).
pub const ONRAMP_DROP_CANCELLED: u8 = 22;

/// The constants with the names of their reasons, to compare them with the list of reasons.
#[cfg(test)]
const DROPS: &[(u8, &str)] = &[
    (ONRAMP_DROP_OVERLIMIT, "overlimit"),
    (ONRAMP_DROP_FQ_BAND_LIMIT, "fq_band_limit"),
    (ONRAMP_DROP_FQ_FLOW_LIMIT, "fq_flow_limit"),
    (ONRAMP_DROP_FQ_HORIZON_LIMIT, "fq_horizon_limit"),
    (ONRAMP_DROP_CONGESTED, "congested"),
    (ONRAMP_DROP_FLOOD_PROTECTION, "flood_protection"),
    (ONRAMP_DROP_L4S_STEP_NON_ECN, "l4s_step_non_ecn"),
    (ONRAMP_DROP_TOO_BIG, "too_big"),
    (ONRAMP_DROP_UNCLASSIFIED, "unclassified"),
    (ONRAMP_DROP_FILTER, "filter"),
    (ONRAMP_DROP_LATE, "late"),
    (ONRAMP_DROP_IMPAIRED, "impaired"),
    (ONRAMP_DROP_BLACKHOLE, "blackhole"),
    (ONRAMP_DROP_PURGED, "purged"),
    (ONRAMP_DROP_MESSAGE_SIZE, "message_size"),
    (ONRAMP_DROP_REFUSED, "refused"),
    (ONRAMP_DROP_UNREACHABLE, "unreachable"),
    (ONRAMP_DROP_NO_BUFFERS, "no_buffers"),
    (ONRAMP_DROP_NO_PERMISSION, "no_permission"),
    (ONRAMP_DROP_PORT_DEAD, "port_dead"),
    (ONRAMP_DROP_DEVICE_ERROR, "device_error"),
    (ONRAMP_DROP_CANCELLED, "cancelled"),
];

#[cfg(test)]
mod tests {
    use onramp::DropReason;

    use super::*;

    #[test]
    fn every_drop_reason_has_a_constant() {
        let all = DropReason::ALL.iter().map(|reason| (*reason as u8 + 1, reason.name()));
        assert!(all.eq(DROPS.iter().copied()), "a reason is missing, or has another number");
    }
}
