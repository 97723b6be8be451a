//! The designs by name.

/// A design of the transmit path, or of its intake alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Design {
    /// One test-and-test-and-set lock.
    Spinlock,
    /// One ticket lock.
    Ticket,
    /// A second lock for those who would have to wait (Linux, 2011 to 2025).
    Busylock,
    /// A ticket lock at which the owner goes first (2009).
    Handicap,
    /// One lock that spins for a while, then sleeps.
    Adaptive,
    /// One `std::sync::Mutex`.
    Mutex,
    /// A queue for each processor, and one drainer (2009).
    PercpuQueue,
    /// A lock-free list in front of the lock (Linux, since 2025).
    Llist,
    /// The product.
    Onramp,
}

impl Design {
    /// The transmit paths, oldest first.
    pub const ALL: &[Self] = &[
        Self::Spinlock,
        Self::Ticket,
        Self::Busylock,
        Self::Handicap,
        Self::Adaptive,
        Self::Mutex,
        Self::PercpuQueue,
        Self::Llist,
        Self::Onramp,
    ];

    /// What others are compared to.
    pub const BASE: Self = Self::Busylock;

    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Spinlock => "spinlock",
            Self::Ticket => "ticket",
            Self::Busylock => "busylock",
            Self::Handicap => "handicap",
            Self::Adaptive => "adaptive",
            Self::Mutex => "mutex",
            Self::PercpuQueue => "percpu-queue",
            Self::Llist => "llist",
            Self::Onramp => "onramp",
        }
    }

    /// The design of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|design| design.name() == name).copied()
    }
}
