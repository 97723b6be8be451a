//! The receive side of an AF_XDP socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use onramp_core::frame;
use onramp_queue::{Layer, Packet, PacketList};

use super::{Program, XdpStats, told};
use crate::receive::Receive;
use crate::sys::{Maker, RxSide};

/// Receives the frames that arrive at a queue of an [`Xdp`](super::Xdp).
///
/// A packet lies where the kernel, or the card, has put the frame, and is not copied. While packets
/// lie in half of the frames, further frames are copied into packets that the caller makes, so that
/// the kernel always has frames to receive into.
///
/// A sender in the same kernel, such as the other end of a veth pair, may have left the checksum of
/// TCP or UDP to a card. Such a frame is told by its checksum field, which holds the sum of the
/// pseudo-header, and its packet has a [partial checksum](Packet::partial_checksum).
///
/// If the interface is removed, or moved to another network namespace, calls that find no frame
/// return an error. The descriptor does not become readable then, so wait with a time limit.
///
/// When it is dropped, the frames that wait are lost ([`XdpStats::unread`]), and further ones go to
/// the kernel's own stack.
#[derive(Debug)]
pub struct XdpReceiver {
    side: RxSide,
    queue: u32,
    seed: u64,
    stats: Arc<XdpStats>,
    /// Why the kernel gives no frames to the receiver.
    refused: Option<io::Error>,
    // The program is attached as long as somebody receives.
    program: Arc<Program>,
    maker: Maker,
}

impl XdpReceiver {
    /// Makes the receiver, and lets the queue's frames come to it.
    pub(super) fn new(
        side: RxSide,
        queue: u32,
        program: Arc<Program>,
        stats: Arc<XdpStats>,
        seed: u64,
    ) -> Self {
        let set = program.redirect.as_ref().map(|all| all.set(queue, side.descriptor()));
        let refused = set.and_then(Result::err).map(|error| {
            told(&error, &format!("cannot receive from queue {queue} of {}", program.name))
        });
        Self { side, queue, seed, stats, refused, program, maker: Maker::this_process() }
    }
}

impl Receive for XdpReceiver {
    fn receive(
        &mut self,
        most: usize,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
        into: &mut PacketList,
    ) -> io::Result<usize> {
        if let Some(error) = &self.refused {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        let (mut count, seed, stats) = (0, self.seed, &self.stats);
        // A frame that is discarded counts as well, so that the call ends.
        for _ in 0..most {
            let received = self.side.receive(Some, |bytes| {
                let mut packet = make(bytes.len())?;
                if packet.capacity() < bytes.len() {
                    stats.no_room.add(1);
                    return Some(None);
                }
                packet.set_payload(bytes);
                stats.received_copied.add(1);
                Some(Some(packet))
            });
            let Some(received) = received else { break };
            if let Some(mut packet) = received {
                packet.set_layer(Layer::Ethernet);
                frame::find_partial_checksum(&mut packet);
                frame::describe(&mut packet, seed);
                stats.received.add(1);
                stats.received_bytes.add(packet.payload().len() as u64);
                into.push_back(packet);
                count += 1;
            }
        }
        match self.side.release(count == 0) {
            // Other errors, such as that of an interface that is down, may pass.
            Err(error) if count == 0 && error.raw_os_error() == Some(libc::ENXIO) => {
                let name = &self.program.name;
                let why = format!(
                    "the interface {name} was removed, or moved to another network namespace"
                );
                Err(io::Error::new(io::ErrorKind::NotFound, why))
            }
            _ => Ok(count),
        }
    }

    fn discarded(&self) -> u64 {
        self.stats.no_room.get()
    }

    fn missed(&self) -> u64 {
        self.side.missed()
    }
}

impl Drop for XdpReceiver {
    fn drop(&mut self) {
        if !self.maker.is_here() {
            // The parent of this process still receives, and shares the rings.
            return;
        }
        if let Some(redirect) = &self.program.redirect {
            // An error would mean that the queue has no entry.
            let _ = redirect.clear(self.queue);
        }
        while self.side.discard() {
            self.stats.unread.add(1);
        }
    }
}

impl AsFd for XdpReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.side.as_fd()
    }
}
