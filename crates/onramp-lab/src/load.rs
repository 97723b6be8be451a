//! The work of the threads of an experiment.

use onramp_queue::Credits;

/// Largest number of packets in a transaction (a burst that the thread waits for). It is the
/// largest number of packets that a sender may ever have in flight.
pub const BURST_MAX: u32 = Credits::PACKETS_MAX;

/// The work of each sending thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Each thread sends packets as fast as its credits return.
    Stream,
    /// Each thread repeats transactions: it sends this number of packets and waits until all of
    /// them have left or, in some experiments, are answered.
    Rr(u32),
}

impl Load {
    /// Returns the name of the load in reports, which is the name of a test of netperf.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Rr(_) => "rr",
        }
    }

    /// Returns the number of packets in a transaction (a burst that the thread waits for); `None`
    /// for a stream, which has no transactions.
    #[must_use]
    pub const fn burst(self) -> Option<u32> {
        match self {
            Self::Stream => None,
            Self::Rr(burst) => Some(burst),
        }
    }
}
