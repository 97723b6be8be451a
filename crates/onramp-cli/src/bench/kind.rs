//! The names of the methods of sending.

use clap::ValueEnum;

/// A method of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// Each thread has its own connected socket per flow, and calls `send` for each datagram.
    Send,
    /// Each thread has one socket for all its flows, connected to none of them, as a server has,
    /// and calls `sendto` for each datagram. The kernel looks up the route each time, as it does
    /// for the socket of a link.
    Sendto,
    /// Sockets as for `send`; each call of `sendmmsg` sends 32 datagrams of one flow.
    Sendmmsg,
    /// Sockets as for `send`; each call, with `UDP_SEGMENT`, sends up to 32 datagrams of one flow.
    Gso,
    /// One link for all threads; each thread calls `try_send` for each datagram.
    Onramp,
    /// One link in mode `inline`: a sender that pushes a packet transmits at once, up to its quota;
    /// the runners send the packets that are left.
    OnrampInline,
    /// One link in mode `dedicated`: only the runners transmit.
    OnrampDedicated,
}

impl Kind {
    /// The method that reports highlight and describe in words.
    pub(crate) const OURS: Self = Self::Onramp;

    /// The methods that are compared if the user names none.
    pub(crate) const DEFAULT: [Self; 4] = [Self::Send, Self::Sendmmsg, Self::Gso, Self::Onramp];

    /// Whether the method sends through a link of Onramp.
    pub(crate) fn has_link(self) -> bool {
        matches!(self, Self::Onramp | Self::OnrampInline | Self::OnrampDedicated)
    }

    /// Returns what the method does, for readers of a report.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Send => {
                "Each thread has a socket for each flow and calls send for each datagram."
            }
            Self::Sendto => {
                "Each thread has one socket for all its flows, connected to none, and calls sendto \
                 for each datagram."
            }
            Self::Sendmmsg => {
                "Sockets as for send; each call of sendmmsg sends 32 datagrams of one flow."
            }
            Self::Gso => {
                "Sockets as for send; each call hands a buffer of up to 32 datagrams of one flow \
                 to the kernel, which cuts it into datagrams (UDP_SEGMENT)."
            }
            Self::Onramp => {
                "One link for all threads; each thread calls try_send for each datagram, and \
                 Onramp makes the batches."
            }
            Self::OnrampInline => "As onramp, but each sender transmits at once what it can.",
            Self::OnrampDedicated => "As onramp, but only threads of the link transmit.",
        }
    }

    /// Returns the name of the method on the command line and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Sendto => "sendto",
            Self::Sendmmsg => "sendmmsg",
            Self::Gso => "gso",
            Self::Onramp => "onramp",
            Self::OnrampInline => "onramp-inline",
            Self::OnrampDedicated => "onramp-dedicated",
        }
    }
}
