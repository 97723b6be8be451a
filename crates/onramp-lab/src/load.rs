//! What the threads of an experiment do.

use onramp_queue::Credits;

/// Packets of a transaction, at most: what a sender may ever have on its way.
pub const BURST_MAX: u32 = Credits::PACKETS_MAX;

/// What threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Each sends as fast as its credits come back.
    Stream,
    /// Each sends so many packets, waits for all of them, and sends the next: a transaction.
    Rr(u32),
}

impl Load {
    /// Its name, as of the tests of netperf.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Rr(_) => "rr",
        }
    }

    /// Packets of a transaction; `None`: there are no transactions.
    #[must_use]
    pub const fn burst(self) -> Option<u32> {
        match self {
            Self::Stream => None,
            Self::Rr(burst) => Some(burst),
        }
    }
}
