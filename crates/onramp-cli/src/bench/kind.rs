//! The names of the methods of sending.

use clap::ValueEnum;

/// A method of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// Each thread its own connected socket per flow, and `send` for each datagram.
    Send,
    /// The same sockets, 32 datagrams of one flow in each `sendmmsg`.
    Sendmmsg,
    /// The same sockets with `UDP_SEGMENT`: 32 datagrams of one flow in each `send`.
    Gso,
    /// One link for all threads, and `try_send` for each datagram.
    Onramp,
    /// The same in mode `inline`: ports never collect, runners take over after a quota.
    OnrampInline,
    /// The same in mode `dedicated`: runners alone send.
    OnrampDedicated,
}

impl Kind {
    /// The method that the others are compared with.
    pub(crate) const OURS: Self = Self::Onramp;

    /// The methods that are compared if the user names none.
    pub(crate) const DEFAULT: [Self; 4] = [Self::Send, Self::Sendmmsg, Self::Gso, Self::Onramp];

    /// Returns the name of the method on the command line and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Sendmmsg => "sendmmsg",
            Self::Gso => "gso",
            Self::Onramp => "onramp",
            Self::OnrampInline => "onramp-inline",
            Self::OnrampDedicated => "onramp-dedicated",
        }
    }
}
