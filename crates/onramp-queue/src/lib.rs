//! Packets, the lists that hold packets, and the lock-free structures that hand packets from thread
//! to thread.
//!
//! All `unsafe` code that touches packets is in this crate. The crate has no dependencies, reads no
//! clock and starts no threads.

/// The attribute `#[test]` that runs a test in a simulation.
#[cfg(all(test, sim))]
#[macro_use]
extern crate onramp_simulated_test;

mod alarm;
mod cancel;
mod counter;
mod drop_reason;
mod gate;
mod hints;
mod intake;
mod list;
mod mailbox;
mod mapped;
mod meta;
mod mutant;
mod node;
mod packet;
mod pool;
mod post;
mod room;
mod succession;
mod sync;
mod taken;
mod turn;
mod wakes;

pub use alarm::{Alarm, Due, Marks, NEVER};
pub use cancel::Cancels;
pub use counter::Counter;
pub use drop_reason::DropReason;
pub use gate::Gate;
pub use intake::{Full, Intake, Owner, Pushed};
pub use list::{PacketList, Scout};
pub use mailbox::{Mailbox, Reader, Undelivered};
pub use mapped::MappedPool;
#[cfg(loom)]
pub use mapped::memory as mapped_memory;
pub use meta::{Layer, Meta, PartialChecksum};
pub use node::PAYLOAD_MAX;
pub use packet::Packet;
pub use pool::{Armed, Bell, Completion, Credits, Pool};
pub use post::{Out, Post};
pub use room::Room;
pub use succession::Succession;
pub use taken::Taken;
pub use turn::{HasTurn, Turn};
pub use wakes::{HeldWakes, call as call_waker, hold_wakes, is_in_waker};

/// Prefetches the cache line at the start of `place` for writing: the processor fetches the line
/// once, in exclusive state, so that the write needs no second transfer.
#[inline]
pub fn prefetch_write<T: ?Sized>(place: &T) {
    sync::prefetch_write((&raw const *place).cast::<u8>());
}

/// Prefetches the cache line at the start of `place` for reading.
#[inline]
pub fn prefetch<T: ?Sized>(place: &T) {
    sync::prefetch((&raw const *place).cast::<u8>());
}

/// Charges the simulated machine (`--cfg sim`) for code that reads and writes the value `place`.
/// Elsewhere, does nothing. Qdiscs call this where they reach the state of a flow that another
/// processor may have in its cache.
#[inline]
#[cfg_attr(sim, track_caller)]
pub fn charge<T>(place: &T) {
    sync::changes(place, size_of::<T>());
}
