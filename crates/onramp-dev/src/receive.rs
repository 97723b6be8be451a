//! The receive side of a device.

use std::fmt::Debug;
use std::io;
use std::os::fd::AsFd;

use onramp_queue::{Packet, PacketList};

/// The receive side of a device: packets that come in from outside, the counterpart of
/// [`Device`](onramp_core::Device).
///
/// The descriptor ([`AsFd`]) is readable, for `poll` and its kin, while packets wait.
pub trait Receive: AsFd + Debug + Send {
    /// Receives up to `most` packets that wait, and appends them to `into`, with their length,
    /// flow, ECN field and priority filled in ([`frame::describe`](onramp_core::frame::describe)).
    /// Returns the number of packets appended. Does not block. If it returns `most`, call it again
    /// before waiting for the descriptor: packets may wait in the receiver itself.
    ///
    /// `make` returns an empty packet with room for this many bytes, from a pool or from the heap.
    /// If it returns `None`, no further packets are received now; they stay in the kernel. A
    /// receiver whose packets lie in memory that it shares with the kernel may not call `make`.
    ///
    /// # Errors
    ///
    /// The error of the kernel, if there is one before the first packet: for example if the
    /// interface is gone.
    fn receive(
        &mut self,
        most: usize,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
        into: &mut PacketList,
    ) -> io::Result<usize>;

    /// Returns how many packets were received and discarded, because they contradict themselves or
    /// because there was no packet with room for them.
    fn discarded(&self) -> u64;

    /// Returns how many packets the kernel has dropped because they were not received in time, or 0
    /// if the kernel does not tell.
    fn missed(&self) -> u64 {
        0
    }
}
