//! The receive side of a packet socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use onramp_core::frame::{self, SuperFrame, VnetHeader};
use onramp_queue::{Layer, PAYLOAD_MAX, Packet, PacketList};

use super::{PacketOptions, PacketStats};
use crate::claim::Claim;
use crate::receive::Receive;
use crate::sys::{Inbox, MESSAGES_MAX, PacketFd, Received};

/// Room for a VLAN tag or two, in bytes, in the buffer for a frame of the MTU.
const TAGS: usize = 8;
/// Length of the two addresses at the beginning of a frame, behind which a VLAN tag stands.
const ADDRESSES: usize = 12;

/// What a receiver knows of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    /// Nothing says that it is not up.
    Up,
    /// It went down. Frames that came before may wait.
    Falling,
    /// It went down, and no frame waits. A frame that comes says that it is up again.
    Down,
}

/// Receives the frames that come in through the interface of a
/// [`PacketSocket`](super::PacketSocket).
///
/// The kernel takes the outermost VLAN tag out of a frame; the receiver puts it back. While the
/// interface is down, nothing is received, which is no error; if it is removed, or moved to another
/// network namespace, the next call that finds no frame returns an error. The descriptor
/// ([`AsFd`]) becomes readable when the interface goes down or is removed, but not if it is removed
/// while it is down.
///
/// Without [`offload`](PacketOptions::offload), the receiver cuts super-frames. Segments of a
/// super-frame may wait in the receiver when a call has returned `most` packets, so call again
/// before you wait for the descriptor. The receiver keeps up to 32 empty packets from `make` for
/// the next call.
#[derive(Debug)]
pub struct PacketReceiver {
    fd: PacketFd,
    name: String,
    options: PacketOptions,
    /// Bytes of a frame that is not a super-frame.
    usual: usize,
    inbox: Inbox,
    /// Frames that were received, and not given to the caller yet.
    waiting: PacketList,
    /// The super-frame that is being cut, and the index of its next segment.
    cutting: Option<(Packet, SuperFrame, usize)>,
    /// Buffer for a segment.
    segment: Vec<u8>,
    carrier: Carrier,
    stats: Arc<PacketStats>,
    /// Keeps other bridges from the interface.
    claim: Option<Claim>,
}

impl PacketReceiver {
    pub(super) fn new(
        fd: PacketFd,
        name: String,
        options: PacketOptions,
        mtu: u32,
        stats: Arc<PacketStats>,
    ) -> Self {
        Self {
            fd,
            name,
            options,
            usual: (mtu as usize + TAGS).min(PAYLOAD_MAX),
            inbox: Inbox::new(),
            waiting: PacketList::new(),
            cutting: None,
            segment: Vec::new(),
            carrier: Carrier::Up,
            stats,
            claim: None,
        }
    }

    /// Keeps a claim to the interface as long as the receiver exists.
    pub(super) fn holding(mut self, claim: Claim) -> Self {
        self.claim = Some(claim);
        self
    }

    /// Returns the counters of the receiver's socket, which any thread may read at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<PacketStats> {
        Arc::clone(&self.stats)
    }

    /// Reads up to `most` frames, and lets them wait. Returns how many were read, a discarded frame
    /// included; 0 means that there are no more, or no packets for them.
    fn read(
        &mut self,
        most: usize,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
    ) -> io::Result<usize> {
        let most = most.min(MESSAGES_MAX);
        while self.inbox.empty.len() < most
            && let Some(packet) = make(self.usual)
        {
            self.inbox.empty.push(packet);
        }
        if self.inbox.empty.is_empty() {
            return Ok(0);
        }
        let (stats, waiting) = (&self.stats, &mut self.waiting);
        let take = |frame: Received<'_>| match whole(frame, make) {
            Ok(packet) => waiting.push_back(packet),
            Err(Discard::NoRoom) => stats.no_room.add(1),
            Err(Discard::Malformed) => stats.malformed.add(1),
        };
        match self.inbox.receive(&self.fd, most, take) {
            Ok(count) => {
                if self.carrier == Carrier::Down {
                    self.carrier = Carrier::Up;
                }
                Ok(count)
            }
            Err(error) => self.react(error),
        }
    }

    fn react(&mut self, error: io::Error) -> io::Result<usize> {
        match error.raw_os_error() {
            Some(libc::EAGAIN) if self.carrier == Carrier::Up => Ok(0),
            // The kernel reports only once that the interface went down, and not that it was
            // removed afterwards.
            Some(libc::EAGAIN) => {
                self.carrier = Carrier::Down;
                self.check().map(|()| 0)
            }
            Some(libc::ENETDOWN) => {
                self.carrier = Carrier::Falling;
                self.check().map(|()| 1)
            }
            Some(libc::EINTR) => Ok(1),
            // The kernel has no virtio header for the way in which a frame is to be segmented, and
            // has dropped the frame.
            Some(libc::EINVAL) => {
                self.stats.malformed.add(1);
                Ok(1)
            }
            _ => Err(error),
        }
    }

    /// Returns an error if the interface is gone.
    fn check(&self) -> io::Result<()> {
        self.fd.check(&self.name)
    }

    /// Returns the next packet for the caller, of those that have been read.
    fn next(&mut self, make: &mut dyn FnMut(usize) -> Option<Packet>) -> Option<Packet> {
        loop {
            if let Some((packet, whole, index)) = &mut self.cutting {
                whole.write_segment(packet.payload(), *index, &mut self.segment);
                frame::write_checksum(whole.partial_checksum(), &mut self.segment);
                *index += 1;
                if *index == whole.count() {
                    self.cutting = None;
                }
                match make(self.segment.len()) {
                    Some(mut packet) => {
                        packet.set_payload(&self.segment);
                        packet.set_layer(Layer::Ethernet);
                        return Some(packet);
                    }
                    // The descriptor is not readable because of this segment, so it may not wait.
                    None => self.stats.no_room.add(1),
                }
                continue;
            }
            let mut packet = self.waiting.pop_front()?;
            if self.options.offload {
                return Some(packet);
            }
            let Some(whole) = SuperFrame::of(&packet) else {
                frame::complete_checksum(&mut packet);
                packet.gso_size = 0;
                return Some(packet);
            };
            self.stats.cut.add(1);
            self.cutting = Some((packet, whole, 0));
        }
    }
}

impl Receive for PacketReceiver {
    fn receive(
        &mut self,
        most: usize,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
        into: &mut PacketList,
    ) -> io::Result<usize> {
        // A frame that is discarded counts as well, so that the call ends.
        let (mut count, mut frames) = (0, 0);
        loop {
            while count < most
                && let Some(mut packet) = self.next(make)
            {
                frame::describe(&mut packet, self.options.seed);
                self.stats.received.add(1);
                self.stats.received_bytes.add(packet.payload().len() as u64);
                into.push_back(packet);
                count += 1;
            }
            let room = most - count.max(frames);
            if room == 0 {
                return Ok(count);
            }
            match self.read(room, make) {
                Ok(0) => return Ok(count),
                Ok(read) => frames += read,
                Err(error) if count == 0 => return Err(error),
                // An error that lasts is returned by the next call.
                Err(_) => return Ok(count),
            }
        }
    }

    fn discarded(&self) -> u64 {
        self.stats.malformed.get() + self.stats.no_room.get()
    }

    fn missed(&self) -> u64 {
        // The kernel counts from 0 again after each call. An error would mean that there is no such
        // counter, but all packet sockets have it.
        self.stats.missed.add(self.fd.drops().unwrap_or(0).into());
        self.stats.missed.get()
    }
}

impl AsFd for PacketReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Why a frame was discarded.
enum Discard {
    NoRoom,
    Malformed,
}

/// Makes a packet of a frame that was received: with all its bytes, its virtio header applied, and
/// its VLAN tag put back.
fn whole(
    frame: Received<'_>,
    make: &mut dyn FnMut(usize) -> Option<Packet>,
) -> Result<Packet, Discard> {
    let Received { mut packet, rest, truncated, vnet, tag } = frame;
    let len = packet.payload().len() + rest.len();
    let tagged = len + tag.map_or(0, |tag| tag.len());
    if truncated || tagged > PAYLOAD_MAX {
        return Err(Discard::NoRoom);
    }
    if tagged > packet.capacity() {
        let mut larger =
            make(tagged).filter(|larger| larger.capacity() >= tagged).ok_or(Discard::NoRoom)?;
        larger.set_payload(packet.payload());
        larger.append_payload(rest);
        packet = larger;
    }
    packet.set_layer(Layer::Ethernet);
    // The header counts from the beginning of the frame without its tag.
    VnetHeader::from_bytes(vnet).apply(&mut packet).map_err(|_| Discard::Malformed)?;
    if let Some(tag) = tag {
        put_back(tag, &mut packet)?;
    }
    Ok(packet)
}

/// Puts a VLAN tag into a frame, between its addresses and its protocol number.
fn put_back(tag: [u8; 4], packet: &mut Packet) -> Result<(), Discard> {
    let len = packet.payload().len();
    if len < ADDRESSES {
        return Err(Discard::Malformed);
    }
    packet.append_payload(&tag);
    let bytes = packet.payload_mut();
    bytes.copy_within(ADDRESSES..len, ADDRESSES + tag.len());
    bytes[ADDRESSES..ADDRESSES + tag.len()].copy_from_slice(&tag);
    if let Some(mut partial) = packet.partial_checksum() {
        partial.start = partial.start.checked_add(4).ok_or(Discard::Malformed)?;
        packet.set_partial_checksum(Some(partial));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use onramp_queue::PartialChecksum;

    use super::*;

    fn received(bytes: usize, capacity: u16, tag: Option<[u8; 4]>) -> (Packet, Vec<u8>) {
        let all: Vec<u8> = (0..bytes).map(|n| (n % 251).to_le_bytes()[0]).collect();
        let mut packet = Packet::with_capacity(capacity);
        packet.set_payload(&all[..bytes.min(capacity.into())]);
        let mut expected = all;
        if let Some(tag) = tag {
            let at = bytes.min(12);
            expected.splice(at..at, tag);
        }
        (packet, expected)
    }

    fn take(
        bytes: usize,
        capacity: u16,
        tag: Option<[u8; 4]>,
        vnet: [u8; 10],
        most: usize,
    ) -> Result<(Packet, Vec<u8>), bool> {
        let (packet, expected) = received(bytes, capacity, tag);
        let all: Vec<u8> = (0..bytes).map(|n| (n % 251).to_le_bytes()[0]).collect();
        let rest = &all[packet.payload().len()..];
        let frame = Received { packet, rest, truncated: false, vnet, tag };
        let mut make = |size: usize| {
            (size <= most).then(|| Packet::with_capacity(size.try_into().expect("a frame")))
        };
        match whole(frame, &mut make) {
            Ok(packet) => Ok((packet, expected)),
            Err(discard) => Err(matches!(discard, Discard::NoRoom)),
        }
    }

    #[test]
    fn a_tag_is_put_back_wherever_the_bytes_lie() {
        let tag = Some([0x81, 0, 0x60, 5]);
        for (bytes, capacity) in [(60, 100), (60, 64), (60, 63), (60, 60), (60, 20), (14, 0)] {
            for tag in [tag, None] {
                let (packet, expected) = take(bytes, capacity, tag, [0; 10], 100).expect("room");
                assert_eq!(packet.payload(), expected, "{bytes} bytes in {capacity}");
                assert_eq!(packet.layer(), Layer::Ethernet);
            }
        }
        // A checksum from byte 34 on, at byte 50.
        let vnet = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0];
        for (tag, start) in [(None, 34), (tag, 38)] {
            let (packet, _) = take(60, 100, tag, vnet, 100).expect("room");
            assert_eq!(packet.partial_checksum(), Some(PartialChecksum { start, offset: 16 }));
        }
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let tag = Some([0x81, 0, 0, 5]);
        assert_eq!(take(60, 60, tag, [0; 10], 63).err(), Some(true), "no larger packet");
        assert_eq!(take(PAYLOAD_MAX, 60, None, [0; 10], PAYLOAD_MAX).err(), None);
        assert_eq!(take(PAYLOAD_MAX - 3, 60, tag, [0; 10], PAYLOAD_MAX).err(), Some(true));
        assert_eq!(take(11, 60, tag, [0; 10], 100).err(), Some(false), "no addresses");
        let behind = [1, 0, 0, 0, 0, 0, 60, 0, 16, 0];
        assert_eq!(take(60, 60, None, behind, 100).err(), Some(false), "behind the end");
    }
}
