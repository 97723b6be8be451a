//! Experiments in which many threads send through one queue. The designs of the transmit path are
//! measured one after another.
//!
//! Each combination of a design, a number of threads and the other settings runs twice in each
//! round. The first run measures only the resources of the process and the packets sent, for rates
//! and CPU time. The second run also times locks and send calls, for tables and histograms. Each
//! round runs all designs, starting with another one each time, so that other load on the machine
//! affects all designs alike.
//!
//! All designs, whatever their [`Manners`] (what a design does besides handing packets over, such
//! as yielding the processor), have in common: packets, credits and their sizes, the pools that
//! packets come from, the batches in which packets return to their pools, prefetching where packets
//! are taken and dequeued, and the quota (the most packets that a thread dequeues in one run of the
//! qdisc). With every design, a sender without credit sleeps until half of its packets have
//! returned.
//!
//! These differences between the designs remain in the comparison:
//!
//! * The kernel does not preempt the holder of a spinlock. Threads of a program can be preempted
//!   anywhere. If there are more threads than processors, the designs with locks lose time when a
//!   lock's holder is preempted. Threads that often yield while they hold no lock are preempted
//!   less often while they hold one.
//! * A sender whose packet is dropped within the sender's own call yields, with every design that
//!   tells the sender about the drop. Otherwise the sender would keep the lock's holder off the
//!   processor for a whole time slice.
//! * The design `onramp` counts and times everything that a `Link` counts and times; the other
//!   designs count only what they must.

#[cfg(all(test, feature = "full"))]
mod conformance;
mod design;
mod drive;
#[cfg(feature = "full")]
mod plan;
#[cfg(feature = "full")]
mod rounds;
#[cfg(feature = "full")]
mod row;
#[cfg(sim)]
pub mod simulated;
#[cfg(feature = "full")]
mod trial;

pub use crate::Load;
pub use crate::manners::Manners;
pub use design::Design;
#[cfg(feature = "full")]
pub use plan::{Measurement, Plan, warm_up};
#[cfg(feature = "full")]
pub(crate) use rounds::rounds;
#[cfg(feature = "full")]
pub use rounds::run;
#[cfg(feature = "full")]
pub use row::{Ratio, Row};
