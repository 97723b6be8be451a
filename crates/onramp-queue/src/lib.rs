//! Packets, the lists that hold them, and the lock-free ways to hand them over.
//!
//! Everything `unsafe` about packets lives in this crate. It has no dependencies, reads no clock
//! and starts no threads.

mod alarm;
mod counter;
mod drop_reason;
mod gate;
mod intake;
mod list;
mod mailbox;
mod mutant;
mod packet;
mod pool;
mod post;
mod succession;
mod sync;
mod wakes;
mod word;

pub use alarm::{Alarm, Due, Marks, NEVER};
pub use counter::Counter;
pub use drop_reason::DropReason;
pub use gate::Gate;
pub use intake::{Full, Intake, Owner, Pushed};
pub use list::PacketList;
pub use mailbox::{Mailbox, Reader, Undelivered};
pub use packet::{Layer, Meta, PAYLOAD_MAX, Packet};
pub use pool::{Armed, Bell, Completion, Credits, Pool};
pub use post::{Out, Post};
pub use succession::Succession;
pub use wakes::{HeldWakes, hold_wakes, is_in_waker};

/// Asks the processor for the cache line in which `place` begins, to write it: the line comes at
/// once as one that no other processor has.
#[inline]
pub fn prefetch_write<T: ?Sized>(place: &T) {
    sync::prefetch_write((&raw const *place).cast::<u8>());
}

/// Asks the processor for the cache line in which `place` begins.
#[inline]
pub fn prefetch<T: ?Sized>(place: &T) {
    sync::prefetch((&raw const *place).cast::<u8>());
}
