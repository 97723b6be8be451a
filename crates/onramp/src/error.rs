//! Errors of sending: why a link did not accept a packet.

use std::fmt;

use onramp_queue::Packet;

/// Error of calls that never block, such as [`Sender::try_send`](crate::Sender::try_send): why the
/// link did not accept a packet now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrySendError {
    /// The sender has no credit left, or the port's intake is at its cap. Wait for room
    /// ([`Sender::wait_room`](crate::Sender::wait_room), [`Sender::ready`](crate::Sender::ready))
    /// and try again.
    Full,
    /// The payload is larger than the payload of any UDP datagram (65,507 bytes over IPv4).
    TooLarge,
    /// The link is closed, so it will never accept a packet again.
    Closed,
    /// The flow's port is dead because its qdisc or device panicked: see
    /// [`Link::deaths`](crate::Link::deaths). Flows on other ports can still send.
    PortDead,
}

impl fmt::Display for TrySendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "no room: wait for packets below to be sent",
            Self::TooLarge => "the payload is larger than a UDP datagram can be (65507 bytes)",
            Self::Closed => "the link is closed",
            Self::PortDead => "the flow's port is dead: its qdisc or device panicked",
        })
    }
}

impl std::error::Error for TrySendError {}

/// Error of calls that wait for room, such as [`Sender::send`](crate::Sender::send): why the link
/// will never accept the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The payload is larger than the payload of any UDP datagram (65,507 bytes over IPv4).
    TooLarge,
    /// The link is closed, so it will never accept a packet again.
    Closed,
    /// The flow's port is dead because its qdisc or device panicked: see
    /// [`Link::deaths`](crate::Link::deaths). Flows on other ports can still send.
    PortDead,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => TrySendError::TooLarge.fmt(f),
            Self::Closed => TrySendError::Closed.fmt(f),
            Self::PortDead => TrySendError::PortDead.fmt(f),
        }
    }
}

impl std::error::Error for SendError {}

/// A packet that [`Sender::submit`](crate::Sender::submit) gave back, and the reason.
#[derive(Debug)]
pub struct Rejected {
    /// The packet, unchanged. Submit it again later, or drop it to return its credit.
    pub packet: Packet,
    /// Why the link did not accept the packet.
    pub why: TrySendError,
}
