//! Why a packet was not accepted.

use std::fmt;

use onramp_queue::Packet;

/// Why a packet was not accepted just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrySendError {
    /// No credit is left, or the port's intake is at its cap. Wait for room.
    Full,
    /// The payload is larger than any UDP datagram (65,507 bytes over IPv4).
    TooLarge,
    /// The link is closed.
    Closed,
    /// The flow's port is dead, by a panic of its qdisc or device: see
    /// [`Link::deaths`](crate::Link::deaths).
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

/// Why a packet will never be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The payload is larger than any UDP datagram (65,507 bytes over IPv4).
    TooLarge,
    /// The link is closed.
    Closed,
    /// The flow's port is dead, by a panic of its qdisc or device: see
    /// [`Link::deaths`](crate::Link::deaths).
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

/// A packet given back, and why.
#[derive(Debug)]
pub struct Rejected {
    /// The packet, unchanged.
    pub packet: Packet,
    /// Why.
    pub why: TrySendError,
}
