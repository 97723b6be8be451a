//! Errors of sending: why a link did not accept a packet.

use std::fmt;

use onramp_core::ConfigError;
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
            Self::Full => "no room: wait until queued packets have been sent",
            Self::TooLarge => "the payload is larger than a UDP datagram can be (65507 bytes)",
            Self::Closed => "the link is closed",
            Self::PortDead => "the flow's port is dead: its qdisc or device panicked",
        })
    }
}

impl std::error::Error for TrySendError {}

impl TrySendError {
    /// Returns the error of a call that waits for room; `None` if it helps to wait.
    pub(crate) fn lasting(self) -> Option<SendError> {
        match self {
            Self::Full => None,
            Self::TooLarge => Some(SendError::TooLarge),
            Self::Closed => Some(SendError::Closed),
            Self::PortDead => Some(SendError::PortDead),
        }
    }
}

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
    /// The packet as it was before the call. Only the length ([`Meta::len`]) may have changed: that
    /// of a packet which holds several datagrams now includes the headers of each. Submit the
    /// packet again later, or drop it to return its credit.
    ///
    /// [`Meta::len`]: onramp_queue::Meta::len
    pub packet: Packet,
    /// Why the link did not accept the packet.
    pub why: TrySendError,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the packet was not accepted: {}", self.why)
    }
}

impl std::error::Error for Rejected {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}

/// Error of calls that add, remove, change or list ports or their qdiscs: why the call failed, or
/// why it failed for one of the ports.
#[derive(Debug)]
#[non_exhaustive]
pub enum PortError {
    /// The link is closed.
    Closed,
    /// The link has had as many ports as it was made for
    /// ([`LinkBuilder::ports_max`](crate::LinkBuilder::ports_max)). The field is that number.
    TooMany(usize),
    /// There is no port with this number any more, or there never was one.
    Unknown(usize),
    /// The port with this number cannot be removed, because it is the link's last port, or because
    /// it is the first port and one qdisc at the root serves all flows through it. Close the link
    /// instead.
    Last(usize),
    /// The description of the qdisc or tree is wrong, or the line of `tc` asks for a change that is
    /// not possible.
    Config(ConfigError),
    /// The owner of the port with this number has been calling its device for too long. The port
    /// makes the change when the owner returns from the device. All other ports have made the
    /// change.
    Late(usize),
    /// The device of the port with this number blocks, and so many changes already wait for the
    /// port that it accepts no more. That port stays as it is. All other ports make the change.
    Blocked(usize),
    /// The port with this number is dead: see [`Link::deaths`](crate::Link::deaths).
    Dead(usize),
    /// The link has no rate of its own ([`LinkBuilder::rate`](crate::LinkBuilder::rate)).
    NoRate,
    /// A waker made this call while another thread was adding or removing a port of the link, or
    /// while its own thread was; or a device made this call while its own thread was doing so.
    /// Waiting could deadlock, so let a task or another thread make the call instead.
    Nested,
    /// The thread that watches devices which may block could not be started.
    Thread(std::io::Error),
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "the link is closed"),
            Self::TooMany(max) => {
                write!(f, "the link can have at most {max} ports; raise `ports_max`")
            }
            Self::Unknown(port) => write!(f, "there is no port {port}, or it was removed"),
            Self::Last(port) => {
                write!(f, "port {port} is the last port; close the link instead")
            }
            Self::Config(error) => error.fmt(f),
            Self::Late(port) => {
                write!(f, "port {port} is still in its device, and changes when the device returns")
            }
            Self::Blocked(port) => {
                write!(
                    f,
                    "the device of port {port} blocks and too many changes wait; try again later"
                )
            }
            Self::Dead(port) => write!(f, "port {port} is dead; `Link::deaths` says why"),
            Self::Nested => {
                write!(
                    f,
                    "a waker or device cannot change ports during another change; make the call in \
                     a task or another thread"
                )
            }
            Self::Thread(error) => write!(
                f,
                "cannot start the thread that watches devices: {error}; look at the limits on \
                 threads (`ulimit -u`)"
            ),
            Self::NoRate => write!(f, "the link was made without a rate; give one to the builder"),
        }
    }
}

impl std::error::Error for PortError {}
