//! Packets, the lists that hold them, and the lock-free ways to hand them over.
//!
//! Everything `unsafe` about packets lives in this crate. It has no dependencies, reads no clock
//! and starts no threads.

mod alarm;
mod counter;
mod drop_reason;
mod intake;
mod list;
mod mailbox;
mod mutant;
mod packet;
mod pool;
mod sync;
mod word;

pub use alarm::{Alarm, Due, Marks, NEVER};
pub use counter::Counter;
pub use drop_reason::DropReason;
pub use intake::{Full, Intake, Owner, Pushed};
pub use list::PacketList;
pub use mailbox::{Mailbox, Reader, Undelivered};
pub use packet::{Layer, Meta, PAYLOAD_MAX, Packet};
pub use pool::{Armed, Completion, Credits, Pool};

/// Asks the processor for the cache line in which `place` begins.
#[inline]
pub fn prefetch<T: ?Sized>(place: &T) {
    sync::prefetch((&raw const *place).cast::<u8>());
}
