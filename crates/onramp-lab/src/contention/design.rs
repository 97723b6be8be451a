//! The designs by name.

use onramp::Mode;

use crate::Error;
use crate::cell::words::{Format, Index, Pointer};
use crate::lock::{Adaptive, Handicap, Lock, Spin, StdMutex, Ticket};
use crate::path::{Behind, Linked, Llist, Locked, Path, PerCpu};
use crate::peer::{Ahead, Batch, List, Shards, Variant};
use crate::peer::{Array, Bare, Channel, Floor, Peered, Rings, Seen, Shared, Things};

/// What is done with a path, of whatever type.
pub(crate) trait Visit {
    type Out;

    /// Gets the path, and what kind of lock is its root lock.
    fn path<P: Path>(self, path: P, kind: &'static str) -> Self::Out;
}

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
    /// The product, as it is by default (`Mode::Hybrid`).
    Onramp,
    /// The product with `Mode::Inline`: senders alone send, and never collect.
    OnrampInline,
    /// The product with `Mode::Dedicated`: its runner alone sends.
    OnrampDedicated,
    /// Intake alone: an array for each sender, emptied many packets at once.
    Floor,
    /// Intake alone: crossbeam's `ArrayQueue`.
    ArrayQueue,
    /// Intake alone: `thingbuf::ThingBuf`.
    Thingbuf,
    /// Intake alone: a ring of `rtrb` for each sender.
    Rtrb,
    /// Intake alone: a deque behind `parking_lot::Mutex`.
    ParkingLot,
    /// Intake alone: `std::sync::mpsc`.
    StdMpsc,
    /// Intake alone: the product's.
    OnrampIntake,
    /// Intake alone: the product's word, by the code that the following share.
    IntakePointer,
    /// Intake alone: an index and a count of 24 bits in the word.
    IntakeIndex,
    /// Intake alone: the packet that finds it idle goes the way of all others.
    IntakeNoDirect,
    /// Intake alone: nothing is asked for before it is needed.
    IntakeNoPrefetch,
    /// Intake alone: an array that asks for the packet after the next.
    IntakeAhead2,
    /// Intake alone: a list for each cluster of processors.
    IntakeShards,
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
        Self::OnrampInline,
        Self::OnrampDedicated,
    ];

    /// Queues alone, without qdisc and device: Onramp's intake, its floor, and other crates'.
    pub const PEERS: &[Self] = &[
        Self::Floor,
        Self::ArrayQueue,
        Self::Thingbuf,
        Self::Rtrb,
        Self::ParkingLot,
        Self::StdMpsc,
        Self::OnrampIntake,
    ];

    /// The product's intake and what it might have been, alone.
    pub const INTAKES: &[Self] = &[
        Self::OnrampIntake,
        Self::IntakePointer,
        Self::IntakeIndex,
        Self::IntakeNoDirect,
        Self::IntakeNoPrefetch,
        Self::IntakeAhead2,
        Self::IntakeShards,
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
            Self::OnrampInline => "onramp-inline",
            Self::OnrampDedicated => "onramp-dedicated",
            Self::Floor => "floor",
            Self::ArrayQueue => "array-queue",
            Self::Thingbuf => "thingbuf",
            Self::Rtrb => "rtrb",
            Self::ParkingLot => "parking-lot",
            Self::StdMpsc => "std-mpsc",
            Self::OnrampIntake => "onramp-intake",
            Self::IntakePointer => "intake-pointer",
            Self::IntakeIndex => "intake-index",
            Self::IntakeNoDirect => "intake-no-direct",
            Self::IntakeNoPrefetch => "intake-no-prefetch",
            Self::IntakeAhead2 => "intake-ahead-2",
            Self::IntakeShards => "intake-shards",
        }
    }

    /// All of them, each once.
    pub fn every() -> impl Iterator<Item = Self> {
        let intakes = Self::INTAKES.iter().filter(|design| !Self::PEERS.contains(design));
        Self::ALL.iter().chain(Self::PEERS).chain(intakes).copied()
    }

    /// The design of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::every().find(|design| design.name() == name)
    }

    /// Whether it is a queue alone.
    #[must_use]
    pub fn is_peer(self) -> bool {
        Self::PEERS.contains(&self) || Self::INTAKES.contains(&self)
    }

    /// Whether it is the product's own path, in whatever mode.
    pub(crate) fn is_product(self) -> bool {
        matches!(self, Self::Onramp | Self::OnrampInline | Self::OnrampDedicated)
    }

    /// Opens it for `threads` senders, and gives it to `visit`. Queues alone leave what is behind
    /// them; where they shall show what came out of them, `seen` says.
    pub(crate) fn open<V: Visit>(
        self,
        threads: usize,
        behind: Behind<'_>,
        seen: Option<Seen>,
        visit: V,
    ) -> Result<V::Out, Error> {
        Ok(match self {
            Self::Spinlock => visit.path(Locked::<Spin, false>::new(behind), Spin::KIND),
            Self::Ticket => visit.path(Locked::<Ticket, false>::new(behind), Ticket::KIND),
            Self::Busylock => visit.path(Locked::<Spin, true>::new(behind), Spin::KIND),
            Self::Handicap => visit.path(Locked::<Handicap, false>::new(behind), Handicap::KIND),
            Self::Adaptive => visit.path(Locked::<Adaptive, false>::new(behind), Adaptive::KIND),
            Self::Mutex => visit.path(Locked::<StdMutex, false>::new(behind), StdMutex::KIND),
            Self::PercpuQueue => visit.path(PerCpu::new(behind), Spin::KIND),
            Self::Llist => visit.path(Llist::new(behind), Spin::KIND),
            Self::Onramp => visit.path(Linked::new(behind, Mode::Hybrid)?, "none"),
            Self::OnrampInline => visit.path(Linked::new(behind, Mode::Inline)?, "none"),
            Self::OnrampDedicated => visit.path(Linked::new(behind, Mode::Dedicated)?, "none"),
            Self::Floor => visit.path(Peered::<Floor>::new(threads, seen, &behind), "none"),
            Self::ArrayQueue => visit.path(Peered::<Array>::new(threads, seen, &behind), "none"),
            Self::Thingbuf => visit.path(Peered::<Things>::new(threads, seen, &behind), "none"),
            Self::Rtrb => visit.path(Peered::<Rings>::new(threads, seen, &behind), "none"),
            Self::ParkingLot => visit.path(Peered::<Shared>::new(threads, seen, &behind), "none"),
            Self::StdMpsc => visit.path(Peered::<Channel>::new(threads, seen, &behind), "none"),
            Self::OnrampIntake => visit.path(Peered::<Bare>::new(threads, seen, &behind), "none"),
            Self::IntakePointer => {
                variant::<Pointer, List<true>, true, V>(threads, seen, &behind, visit)
            }
            Self::IntakeIndex => {
                variant::<Index, List<true>, true, V>(threads, seen, &behind, visit)
            }
            Self::IntakeNoDirect => {
                variant::<Pointer, List<true>, false, V>(threads, seen, &behind, visit)
            }
            Self::IntakeNoPrefetch => {
                variant::<Pointer, List<false>, true, V>(threads, seen, &behind, visit)
            }
            Self::IntakeAhead2 => variant::<Pointer, Ahead, true, V>(threads, seen, &behind, visit),
            Self::IntakeShards => visit.path(Peered::<Shards>::new(threads, seen, &behind), "none"),
        })
    }
}

/// Opens a make of the one-word intake, and gives it to `visit`.
fn variant<F: Format, B: Batch, const DIRECT: bool, V: Visit>(
    threads: usize,
    seen: Option<Seen>,
    behind: &Behind<'_>,
    visit: V,
) -> V::Out {
    visit.path(Peered::<Variant<F, B, DIRECT>>::new(threads, seen, behind), "none")
}
