//! How a device knows a packet again that it has left in the burst with its work half done.

use onramp_queue::{Packet, PartialChecksum};

/// What a device remembers of a packet that it gives back to the port although a part of the packet
/// has left, or lies in a ring of the kernel.
///
/// The port may drop such a packet before it calls again, because the packet was cancelled, and the
/// next packet may lie in the same memory. So the packet is known by its bytes. A packet with the
/// same bytes may take the place of the one that was cancelled: the same frames leave, once.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    set: bool,
    payload: Vec<u8>,
    gso_size: u16,
    partial: Option<PartialChecksum>,
}

impl Kept {
    /// Remembers a packet, and forgets the one before.
    pub(crate) fn keep(&mut self, packet: &Packet) {
        self.set = true;
        self.payload.clear();
        self.payload.extend_from_slice(packet.payload());
        self.gso_size = packet.gso_size;
        self.partial = packet.partial_checksum();
    }

    /// Forgets the packet.
    pub(crate) const fn forget(&mut self) {
        self.set = false;
    }

    /// Whether this is the packet, or one with the same bytes.
    pub(crate) fn is(&self, packet: &Packet) -> bool {
        self.set
            && self.gso_size == packet.gso_size
            && self.partial == packet.partial_checksum()
            && self.payload == packet.payload()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_known_by_its_bytes() {
        let packet = Packet::with_payload(b"one");
        let mut kept = Kept::default();
        assert!(!kept.is(&Packet::with_payload(b"")), "nothing is kept");
        kept.keep(&packet);
        assert!(kept.is(&packet) && kept.is(&Packet::with_payload(b"one")));
        assert!(!kept.is(&Packet::with_payload(b"two")));
        let mut cut = Packet::with_payload(b"one");
        cut.gso_size = 1;
        assert!(!kept.is(&cut), "it becomes other frames");
        let mut open = Packet::with_payload(b"one");
        open.set_partial_checksum(Some(PartialChecksum { start: 0, offset: 1 }));
        assert!(!kept.is(&open), "its checksum is open");
        kept.forget();
        assert!(!kept.is(&packet));
    }
}
