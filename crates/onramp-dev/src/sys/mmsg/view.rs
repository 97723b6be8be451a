//! Reads messages as the kernel would read them, for tests.

use std::net::SocketAddr;

use onramp_queue::{Packet, PacketList};

use super::{Close, Control, From, Messages};

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
    pub(crate) from: Option<From>,
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
            // of a packet in `flight`, in `copies`, or in a payload that is lent.
            let bytes =
                unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
            payload.extend_from_slice(bytes);
        }
        let name = self.names[at].get(header.msg_namelen);
        let all = &self.controls[at];
        let source = all.iter().position(Control::is_source);
        let source = source.filter(|at| at * size_of::<Control>() < header.msg_controllen);
        let count = source.unwrap_or(header.msg_controllen / size_of::<Control>());
        let behind = header.msg_controllen - count * size_of::<Control>();
        assert_eq!(behind, source.map_or(0, |at| all[at].len.next_multiple_of(8)), "no gap");
        let from = source.map(|at| read_source(all[at], all[at + 1]));
        let controls = &all[..count];
        View {
            payload,
            parts,
            name,
            segment: value(controls, libc::SOL_UDP, libc::UDP_SEGMENT).map(u16::from_ne_bytes),
            class_v4: value(controls, libc::IPPROTO_IP, libc::IP_TOS).map(i32::from_ne_bytes),
            class_v6: value(controls, libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
                .map(i32::from_ne_bytes),
            txtime_ns: value(controls, libc::SOL_SOCKET, libc::SCM_TXTIME).map(u64::from_ne_bytes),
            from,
        }
    }
}

impl Control {
    fn is_source(&self) -> bool {
        let kind = (self.level, self.kind);
        kind == (libc::IPPROTO_IP, libc::IP_PKTINFO)
            || kind == (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
    }
}

/// Reads the source that lies in two places.
fn read_source(first: Control, second: Control) -> From {
    let mut data = first.data.to_vec();
    data.extend_from_slice(&second.len.to_ne_bytes());
    data.extend_from_slice(&second.level.to_ne_bytes());
    let word = |at: usize| data[at..at + 4].try_into().expect("four bytes");
    if first.level == libc::IPPROTO_IP {
        assert_eq!((first.len, &data[8..]), (16 + 12, &[0; 12][..]));
        From::V4(std::net::Ipv4Addr::from(word(4)), u32::from_ne_bytes(word(0)))
    } else {
        assert_eq!(first.len, 16 + 20);
        let addr: [u8; 16] = data[..16].try_into().expect("16 bytes");
        From::V6(addr.into(), u32::from_ne_bytes(word(16)))
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
    let close =
        Close { name: None, segment: None, segments: 1, class: None, from: None, txtime_ns: None };
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
