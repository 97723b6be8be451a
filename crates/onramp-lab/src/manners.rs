//! What designs do beside keeping threads apart.

/// The behaviour of designs that does not belong to their way of keeping threads apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    /// Each design behaves as it originally did: the designs of Linux never yield by themselves,
    /// and each queue of another crate has its own thread that drains it.
    Linux,
    /// Each design behaves like Onramp. If there are more senders than processors, a sender that
    /// has sent for [`Sender::SLICE`](onramp::Sender::SLICE) yields. A sender prefetches the cache
    /// line of a lock-free list before it reads the clock. The senders of a queue drain the queue.
    Equal,
}

impl Manners {
    /// Both manners.
    pub const ALL: &[Self] = &[Self::Linux, Self::Equal];

    /// Returns the name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Equal => "equal",
        }
    }
}
