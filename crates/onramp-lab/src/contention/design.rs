//! The designs that the laboratory compares, and their names.

use onramp::Mode;

use crate::Error;
use crate::cell::words::{Format, Index, Pointer};
use crate::lock::{Adaptive, Handicap, Lock, Queued, Spin, StdMutex, Ticket};
#[cfg(any(feature = "full", sim))]
use crate::path::{BURST_CAP, RING_FULL};
use crate::path::{Behind, Linked, Llist, Locked, Path, PerCpu, RingPerSender};
use crate::peer::{Ahead, Bare, Batch, List, Peered, Seen, Shards, Shared, Variant};
#[cfg(feature = "full")]
use crate::peer::{Array, Channel, Floor, Rings, Things};

/// A function that is called with the path of a design, whatever type the path has.
pub(crate) trait Visit {
    type Out;

    /// Receives the path, and the kind of the path's root lock.
    fn path<P: Path>(self, path: P, kind: &'static str) -> Self::Out;
}

/// A design of the transmit path, or of the intake alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Design {
    /// Transmit path with one lock in front of the qdisc: a test-and-test-and-set spinlock.
    Spinlock,
    /// Transmit path with one lock in front of the qdisc: a ticket lock.
    Ticket,
    /// Transmit path with a root lock and a busylock: a thread that finds the root lock held takes
    /// the busylock before it waits for the root lock (Linux, 2011 to 2025).
    Busylock,
    /// Transmit path with a ticket lock at which the thread that dequeues goes first (proposed for
    /// Linux in 2009).
    Handicap,
    /// Transmit path with one lock whose waiters spin for a while and then sleep.
    Adaptive,
    /// Transmit path with one `std::sync::Mutex`.
    Mutex,
    /// Transmit path with one queue per processor, and one thread that drains all these queues
    /// (proposed for Linux in 2009).
    PercpuQueue,
    /// Transmit path with a lock-free list in front of the lock (Linux, since 2025).
    Llist,
    /// Transmit path with one lock in front of the qdisc: a queued spinlock, which is the spinlock
    /// of Linux on x86 since 2015.
    Queued,
    /// [`Busylock`](Self::Busylock) with queued spinlocks, as in Linux from 2015 to 2025.
    BusylockQueued,
    /// [`Llist`](Self::Llist) with queued spinlocks, as in Linux.
    LlistQueued,
    /// Transmit path with one ring per sender, over which one thread at a time walks round robin.
    RingPerSender,
    /// Onramp with its default mode (`Mode::Hybrid`).
    Onramp,
    /// Onramp with `Mode::Inline`: only senders transmit, and no port collects packets.
    OnrampInline,
    /// Onramp with `Mode::Dedicated`: only the runner transmits.
    OnrampDedicated,
    /// Bare queue (without qdisc and device): one array per sender; the thread that drains the
    /// arrays takes many packets at once.
    Floor,
    /// Bare queue: crossbeam's `ArrayQueue`.
    ArrayQueue,
    /// Bare queue: `thingbuf::ThingBuf`.
    Thingbuf,
    /// Bare queue: one ring of `rtrb` per sender.
    Rtrb,
    /// Bare queue: a deque behind `parking_lot::Mutex`.
    ParkingLot,
    /// Bare queue: `std::sync::mpsc`.
    StdMpsc,
    /// Bare queue: Onramp's intake.
    OnrampIntake,
    /// Bare queue: an intake with the word format of Onramp's own intake, but in the code that all
    /// designs named `Intake...` share.
    IntakePointer,
    /// Bare queue: an intake whose word holds the newest packet's index and a 24-bit count.
    IntakeIndex,
    /// Bare queue: an intake in which a packet that finds the intake idle goes through the list
    /// like all other packets.
    IntakeNoDirect,
    /// Bare queue: an intake whose owner prefetches no packet.
    IntakeNoPrefetch,
    /// Bare queue: an intake whose owner puts the packets into an array and prefetches the packet
    /// after the next one.
    IntakeAhead2,
    /// Bare queue: an intake with one list per cluster of processors.
    IntakeShards,
}

impl Design {
    /// The complete transmit paths, in the order in which they were invented.
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

    /// Transmit paths with queued spinlocks, as in Linux since 2015. With more threads than
    /// processors they are slow in a program, because there the kernel may take the processor away
    /// from the thread that is next.
    pub const QUEUED: &[Self] = &[Self::Queued, Self::BusylockQueued, Self::LlistQueued];

    /// Transmit paths that no version of Linux had, and that are no part of [`ALL`](Self::ALL).
    pub const OTHERS: &[Self] = &[Self::RingPerSender];

    /// Bare queues, without qdisc and device: Onramp's intake, `Floor` (the queue with the least
    /// possible cost), and queues of other crates.
    pub const PEERS: &[Self] = &[
        Self::Floor,
        Self::ArrayQueue,
        Self::Thingbuf,
        Self::Rtrb,
        Self::ParkingLot,
        Self::StdMpsc,
        Self::OnrampIntake,
    ];

    /// Bare queues, without qdisc and device: Onramp's intake and variants of it.
    pub const INTAKES: &[Self] = &[
        Self::OnrampIntake,
        Self::IntakePointer,
        Self::IntakeIndex,
        Self::IntakeNoDirect,
        Self::IntakeNoPrefetch,
        Self::IntakeAhead2,
        Self::IntakeShards,
    ];

    /// The design by whose figures those of the other designs are divided.
    pub const BASE: Self = Self::Busylock;

    /// Returns the name on the command line and in reports.
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
            Self::Queued => "queued",
            Self::BusylockQueued => "busylock-queued",
            Self::LlistQueued => "llist-queued",
            Self::RingPerSender => "ring-per-sender",
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

    /// Returns all designs, each once.
    pub fn every() -> impl Iterator<Item = Self> {
        let intakes = Self::INTAKES.iter().filter(|design| !Self::PEERS.contains(design));
        let paths = Self::ALL.iter().chain(Self::QUEUED).chain(Self::OTHERS);
        paths.chain(Self::PEERS).chain(intakes).copied()
    }

    /// Returns the design called `name`; `None` if there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::every().find(|design| design.name() == name)
    }

    /// Whether the design is a bare queue, without qdisc and device.
    #[must_use]
    pub fn is_peer(self) -> bool {
        Self::PEERS.contains(&self) || Self::INTAKES.contains(&self)
    }

    /// Returns the drop reason of packets that are dropped before they reach the qdisc.
    #[cfg(any(feature = "full", sim))]
    pub(crate) fn door(self) -> &'static str {
        if self == Self::RingPerSender { RING_FULL } else { BURST_CAP }
    }

    /// Whether the design is Onramp's own transmit path, in any mode.
    pub(crate) fn is_product(self) -> bool {
        matches!(self, Self::Onramp | Self::OnrampInline | Self::OnrampDedicated)
    }

    /// Makes the path of this design for `threads` senders and passes the path to `visit`. Bare
    /// queues ignore the qdisc and the device in `behind`. With `seen`, a bare queue records which
    /// packets left it.
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
            Self::Llist => visit.path(Llist::<Spin>::new(behind), Spin::KIND),
            Self::Queued => visit.path(Locked::<Queued, false>::new(behind), Queued::KIND),
            Self::BusylockQueued => visit.path(Locked::<Queued, true>::new(behind), Queued::KIND),
            Self::LlistQueued => visit.path(Llist::<Queued>::new(behind), Queued::KIND),
            Self::RingPerSender => visit.path(RingPerSender::new(threads, behind), Spin::KIND),
            Self::Onramp => visit.path(Linked::new(behind, Mode::Hybrid)?, "none"),
            Self::OnrampInline => visit.path(Linked::new(behind, Mode::Inline)?, "none"),
            Self::OnrampDedicated => visit.path(Linked::new(behind, Mode::Dedicated)?, "none"),
            #[cfg(feature = "full")]
            Self::Floor => visit.path(Peered::<Floor>::new(threads, seen, &behind), "none"),
            #[cfg(feature = "full")]
            Self::ArrayQueue => visit.path(Peered::<Array>::new(threads, seen, &behind), "none"),
            #[cfg(feature = "full")]
            Self::Thingbuf => visit.path(Peered::<Things>::new(threads, seen, &behind), "none"),
            #[cfg(feature = "full")]
            Self::Rtrb => visit.path(Peered::<Rings>::new(threads, seen, &behind), "none"),
            Self::ParkingLot => visit.path(Peered::<Shared>::new(threads, seen, &behind), "none"),
            #[cfg(feature = "full")]
            Self::StdMpsc => visit.path(Peered::<Channel>::new(threads, seen, &behind), "none"),
            #[cfg(not(feature = "full"))]
            Self::Floor | Self::ArrayQueue | Self::Thingbuf | Self::Rtrb | Self::StdMpsc => {
                return Err(Error::Absent(self.name()));
            }
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

/// Makes a variant of Onramp's intake for `threads` senders and passes it to `visit`.
fn variant<F: Format, B: Batch, const DIRECT: bool, V: Visit>(
    threads: usize,
    seen: Option<Seen>,
    behind: &Behind<'_>,
    visit: V,
) -> V::Out {
    visit.path(Peered::<Variant<F, B, DIRECT>>::new(threads, seen, behind), "none")
}
