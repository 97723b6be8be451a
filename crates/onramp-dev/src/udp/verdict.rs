//! What the errors of a send mean.

use libc::c_int;
use onramp_queue::DropReason;

/// What an error says about the message that it was reported for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing: a signal came in between.
    Interrupted,
    /// The socket's send buffer is full.
    Full,
    /// The kernel has no memory for it, or the interface's queue no room.
    Starved,
    /// It cannot be sent, unless the error is that of an earlier packet.
    Condemned(DropReason),
}

/// Reads an error number of `sendmmsg`.
pub(super) fn verdict(errno: c_int) -> Verdict {
    match errno {
        libc::EINTR => Verdict::Interrupted,
        // EAGAIN and EWOULDBLOCK are one on Linux.
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

/// How an error looks that a segmented message got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segmented {
    /// The message may be the problem: its datagrams one by one may pass.
    TooLarge,
    /// Segmentation may be the problem.
    Unsupported,
    /// The error has nothing to do with segmentation.
    Unrelated,
}

/// Reads an error number of a segmented message.
///
/// A segment larger than the path's MTU is EMSGSIZE, in older kernels EINVAL. Checksums that the
/// socket or the route cannot leave to the device are EINVAL or EIO (behaviour of
/// `net/ipv4/udp.c`, `udp_send_skb`, Linux 4.18 to 7.2). Memory for 64 KiB in one piece may be
/// missing where that for 1,500 bytes is not.
pub(super) fn segmented(errno: c_int) -> Segmented {
    match errno {
        libc::EMSGSIZE | libc::ENOBUFS | libc::ENOMEM => Segmented::TooLarge,
        libc::EINVAL | libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT => Segmented::Unsupported,
        _ => Segmented::Unrelated,
    }
}
