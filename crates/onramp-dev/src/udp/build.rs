//! Builds messages from packets: one message from consecutive packets of a flow, and one or several
//! from a super-packet (a packet of several datagrams).

use onramp_core::Instant;
use onramp_queue::{Packet, PacketList};

use super::route::Route;
use crate::sys::{Close, Messages};

/// Largest payload of one message, bytes: IPv4's 16-bit length minus IPv4's own header and UDP's.
/// IPv6 would allow 20 bytes more.
pub(super) const MESSAGE_MAX: usize = 65_535 - 20 - 8;

/// Builds messages from packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Builder {
    pub(super) route: Route,
    /// Whether to pass transmit times to the kernel.
    pub(super) txtime: bool,
    /// Largest number of datagrams in a message; 1 means no segmentation.
    pub(super) segments_max: u16,
}

impl Builder {
    /// Builds messages from the front of `burst` until `messages` is full or `burst` is empty.
    #[inline]
    pub(super) fn build(&self, burst: &mut PacketList, now: Instant, messages: &mut Messages) {
        while !messages.is_full()
            && let Some(pkt) = burst.pop_front()
        {
            if is_super(&pkt) {
                self.cut(pkt, self.segments_max, now, messages);
            } else {
                self.run(pkt, burst, now, messages);
            }
        }
    }

    /// Builds messages from the first `packets` packets of `burst`, with one datagram per message.
    #[cold]
    pub(super) fn build_singly(
        &self,
        packets: u32,
        burst: &mut PacketList,
        now: Instant,
        messages: &mut Messages,
    ) {
        for _ in 0..packets {
            if messages.is_full() {
                return;
            }
            let Some(pkt) = burst.pop_front() else { return };
            if is_super(&pkt) {
                self.cut(pkt, 1, now, messages);
            } else {
                self.run(pkt, &mut PacketList::new(), now, messages);
            }
        }
    }

    /// Builds one message from `first` and the packets behind it with the same flow, destination,
    /// source, ECN code point and size. Only the last packet of a message may be shorter. A packet
    /// whose transmit time is passed to the kernel is a message by itself.
    #[inline]
    fn run(&self, first: Packet, burst: &mut PacketList, now: Instant, messages: &mut Messages) {
        let (flow, dest, source, ecn) = (first.flow, first.dest(), first.source(), first.ecn);
        let size = first.payload().len();
        let txtime_ns = self.txtime(&first, now);
        let (mut segments, mut len, mut bytes) = (1, size, size);
        messages.gather(first);
        while segments < self.segments_max
            && len == size
            && txtime_ns.is_none()
            && !messages.is_full()
            && let Some(next) = burst.front()
        {
            len = next.payload().len();
            bytes += len;
            // An empty datagram never joins a message: it adds no bytes, so the kernel would not
            // send it.
            let joins = next.flow == flow
                && next.ecn == ecn
                && (1..=size).contains(&len)
                && bytes <= MESSAGE_MAX
                && self.txtime(next, now).is_none()
                && !is_super(next)
                && next.dest() == dest
                && next.source() == source;
            if !joins {
                break;
            }
            segments += 1;
            if let Some(next) = burst.pop_front() {
                messages.gather(next);
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "with a second segment, below 65,507")]
        let segment = (segments > 1).then_some(size as u16);
        let name = self.route.name(dest);
        let (class, from) = (self.route.class(name, ecn), self.route.from(name, source));
        messages.close(&Close { name, segment, segments, class, from, txtime_ns });
    }

    /// Builds as few messages as possible from a packet that already holds several datagrams.
    fn cut(&self, pkt: Packet, segments_max: u16, now: Instant, messages: &mut Messages) {
        let name = self.route.name(pkt.dest());
        let (class, from) = (self.route.class(name, pkt.ecn), self.route.from(name, pkt.source()));
        let txtime_ns = self.txtime(&pkt, now);
        let (gso_size, mut left) = (pkt.gso_size, pkt.payload().len());
        let size = usize::from(gso_size);
        let most = (MESSAGE_MAX / size).clamp(1, segments_max.into());
        messages.hold(pkt);
        while left > 0 && !messages.is_full() {
            let bytes = left.min(most * size);
            left -= bytes;
            messages.take(bytes);
            #[expect(clippy::cast_possible_truncation, reason = "at most `segments_max`")]
            let segments = bytes.div_ceil(size) as u16;
            let segment = (segments > 1).then_some(gso_size);
            messages.close(&Close { name, segment, segments, class, from, txtime_ns });
        }
    }

    /// Returns how to close the one message in which `pkt` leaves, if its payload has `len` bytes
    /// and lies elsewhere. Returns `None` if the packet does not fit one message.
    pub(super) fn whole(&self, pkt: &Packet, len: usize, now: Instant) -> Option<Close> {
        let segments = u16::try_from(pkt.datagrams_in(len)).ok();
        let segments = segments.filter(|segments| *segments <= self.segments_max)?;
        let name = self.route.name(pkt.dest());
        (len <= MESSAGE_MAX).then(|| Close {
            name,
            segment: (segments > 1).then_some(pkt.gso_size),
            segments,
            class: self.route.class(name, pkt.ecn),
            from: self.route.from(name, pkt.source()),
            txtime_ns: self.txtime(pkt, now),
        })
    }

    /// Returns the packet's transmit time if it is to be passed to the kernel; `None` for a time
    /// that is not in the future.
    #[inline]
    fn txtime(&self, pkt: &Packet, now: Instant) -> Option<u64> {
        (self.txtime && pkt.txtime_ns > now.0).then_some(pkt.txtime_ns)
    }
}

/// Whether the packet holds several datagrams.
#[inline]
fn is_super(pkt: &Packet) -> bool {
    pkt.gso_size != 0 && pkt.payload().len() > usize::from(pkt.gso_size)
}
