//! Manners: what a design does besides handing packets over, such as yielding the processor.

/// What a design does besides handing packets over: whether threads yield the processor and
/// prefetch, and which thread drains a queue.
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
    /// Both kinds of behaviour (`Linux` and `Equal`), in the order in which they are measured.
    pub const ALL: &[Self] = &[Self::Linux, Self::Equal];

    /// Returns the name of this behaviour on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Equal => "equal",
        }
    }
}
