//! Reads messages as the kernel would read them, for tests.

use std::net::SocketAddr;

use onramp_queue::{Packet, PacketList};

use super::{Close, Control, Messages};

/// One message, copied out of the arrays of [`Messages`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) payload: Vec<u8>,
    /// Number of parts (`iovec` entries) that hold the payload.
    pub(crate) parts: usize,
    pub(crate) name: Option<SocketAddr>,
    pub(crate) segment: Option<u16>,
    pub(crate) class_v4: Option<i32>,
    pub(crate) class_v6: Option<i32>,
    pub(crate) txtime_ns: Option<u64>,
}

impl View {
    /// Returns the datagrams that the kernel would cut from the message.
    pub(crate) fn datagrams(&self) -> Vec<Vec<u8>> {
        match self.segment {
            Some(size) => self.payload.chunks(size.into()).map(<[u8]>::to_vec).collect(),
            None => vec![self.payload.clone()],
        }
    }
}

impl Messages {
    /// Returns the messages that were built and that the kernel has not taken yet.
    pub(crate) fn views(&self) -> Vec<View> {
        (self.next..self.built).map(|at| self.view(at)).collect()
    }

    fn view(&self, at: usize) -> View {
        let header = &self.headers[at].msg_hdr;
        let first = usize::from(self.shapes[at].first_part);
        let (mut payload, parts) = (Vec::new(), header.msg_iovlen);
        for part in &self.parts[first..first + parts] {
            // SAFETY: the same as for the kernel: the part points to written bytes, in the payload
            // of a packet in `flight` or in `copies`.
            let bytes =
                unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
            payload.extend_from_slice(bytes);
        }
        let name = self.names[at].get(header.msg_namelen);
        let count = header.msg_controllen / size_of::<Control>();
        assert_eq!(header.msg_controllen % size_of::<Control>(), 0);
        let controls = &self.controls[at][..count];
        View {
            payload,
            parts,
            name,
            segment: value(controls, libc::SOL_UDP, libc::UDP_SEGMENT).map(u16::from_ne_bytes),
            class_v4: value(controls, libc::IPPROTO_IP, libc::IP_TOS).map(i32::from_ne_bytes),
            class_v6: value(controls, libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
                .map(i32::from_ne_bytes),
            txtime_ns: value(controls, libc::SOL_SOCKET, libc::SCM_TXTIME).map(u64::from_ne_bytes),
        }
    }
}

fn value<const N: usize>(controls: &[Control], level: i32, kind: i32) -> Option<[u8; N]> {
    let control = controls.iter().find(|control| (control.level, control.kind) == (level, kind))?;
    assert_eq!(control.len, 16 + N, "the length of a cmsghdr and its value");
    control.data.first_chunk().copied()
}

/// `take` adds as many bytes of the packet given to `hold` as asked for, or all that are left.
#[test]
fn a_held_packet_is_taken_to_its_end() {
    let close = Close { name: None, segment: None, segments: 1, class: None, txtime_ns: None };
    let mut messages = Messages::new();
    messages.hold(Packet::with_payload(b"0123456789"));
    for asked in [4, 4, 4] {
        messages.take(asked);
        messages.close(&close);
    }
    let payloads: Vec<_> = messages.views().into_iter().map(|view| view.payload).collect();
    assert_eq!(payloads, [&b"0123"[..], b"4567", b"89"]);
    let packets: Vec<_> = messages.pending().iter().map(|shape| shape.packets()).collect();
    assert_eq!(packets, [1, 1, 1], "each is of one packet");
    let mut done = PacketList::new();
    messages.sent(2, &mut done);
    assert!(done.is_empty(), "with the last it is done");
    messages.sent(1, &mut done);
    assert_eq!((done.len(), messages.pending().len()), (1, 0));
}
