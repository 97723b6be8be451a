//! Interprets the errors that a send or a receive can return.

use std::io;

use libc::c_int;
use onramp_queue::DropReason;

/// What an error says about the message for which the kernel reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The message is not at fault: a signal interrupted the call.
    Interrupted,
    /// The socket's send buffer is full.
    Full,
    /// The kernel has no memory for the message, or the network interface's queue has no room.
    Starved,
    /// The message cannot be sent, unless the error was caused by an earlier packet.
    Condemned(DropReason),
}

/// Interprets an error number of `sendmmsg`.
pub(super) fn verdict(errno: c_int) -> Verdict {
    match errno {
        libc::EINTR => Verdict::Interrupted,
        // EAGAIN and EWOULDBLOCK are the same number on Linux.
        libc::EAGAIN => Verdict::Full,
        libc::ENOBUFS | libc::ENOMEM => Verdict::Starved,
        libc::EMSGSIZE => Verdict::Condemned(DropReason::MessageSize),
        libc::ECONNREFUSED => Verdict::Condemned(DropReason::Refused),
        libc::ENETUNREACH
        | libc::EHOSTUNREACH
        | libc::ENETDOWN
        | libc::EHOSTDOWN
        | libc::ENONET
        | libc::EADDRNOTAVAIL => Verdict::Condemned(DropReason::Unreachable),
        libc::EPERM | libc::EACCES => Verdict::Condemned(DropReason::NoPermission),
        _ => Verdict::Condemned(DropReason::DeviceError),
    }
}

/// What an error means for a segmented message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segmented {
    /// The message may be too large; its datagrams may be accepted one by one.
    TooLarge,
    /// The kernel or the network interface may be unable to segment.
    Unsupported,
    /// The error has nothing to do with segmentation.
    Unrelated,
}

/// Interprets an error number that a segmented message got.
///
/// If a segment is larger than the path's MTU, the error is EMSGSIZE (EINVAL in older kernels). If
/// the socket or the route cannot leave checksums to the device, the error is EINVAL or EIO
/// (behaviour of `net/ipv4/udp.c`, `udp_send_skb`, Linux 4.18 to 7.2). If the kernel has no 64 KiB
/// of memory in one piece, it may still have 1,500 bytes for a single datagram.
pub(super) fn segmented(errno: c_int) -> Segmented {
    match errno {
        libc::EMSGSIZE | libc::ENOBUFS | libc::ENOMEM => Segmented::TooLarge,
        libc::EINVAL | libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT => Segmented::Unsupported,
        _ => Segmented::Unrelated,
    }
}

/// Whether an error that a receive got is the report of an ICMP message: the fate of a packet that
/// was sent earlier through the socket.
///
/// Source: behaviour of `net/ipv4/icmp.c` (`icmp_err_convert`) and `net/ipv6/icmp.c`
/// (`icmpv6_err_convert`), Linux 6.18.
pub(super) fn is_from_icmp(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
                | libc::EACCES
                | libc::EMSGSIZE
                | libc::EPROTO
        )
    )
}
