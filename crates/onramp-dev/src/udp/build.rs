//! Packets become messages: neighbours of a flow one message, super-packets one or several.

use onramp_core::Instant;
use onramp_queue::{Packet, PacketList};

use super::route::Route;
use crate::sys::{Close, Messages};

/// Most payload of one message, bytes: what is left of IPv4's 16-bit length behind its own header
/// and UDP's. IPv6 would allow 20 more.
pub(super) const MESSAGE_MAX: usize = 65_535 - 20 - 8;

/// How to build.
#[derive(Clone, Copy, Debug)]
pub(super) struct Builder {
    pub(super) route: Route,
    /// Transmit times are passed on.
    pub(super) txtime: bool,
    /// Most datagrams in a message; 1 = no segmentation.
    pub(super) segments_max: u16,
}

impl Builder {
    /// Builds from the front of `burst` until `messages` is full.
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

    /// The same, for the first `packets` of it, with every datagram a message of its own.
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

    /// One message of `first` and of those neighbours that go the same way, are of the same size
    /// and may leave now; the last may be shorter.
    #[inline]
    fn run(&self, first: Packet, burst: &mut PacketList, now: Instant, messages: &mut Messages) {
        let (flow, dest, ecn) = (first.flow, first.dest(), first.ecn);
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
            // An empty datagram has no bytes by which the kernel could tell it from none.
            let joins = next.flow == flow
                && next.ecn == ecn
                && (1..=size).contains(&len)
                && bytes <= MESSAGE_MAX
                && self.txtime(next, now).is_none()
                && !is_super(next)
                && next.dest() == dest;
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
        let class = self.route.class(name, ecn);
        messages.close(&Close { name, segment, segments, class, txtime_ns });
    }

    /// As few messages as can be of a packet that is several datagrams already.
    fn cut(&self, pkt: Packet, segments_max: u16, now: Instant, messages: &mut Messages) {
        let name = self.route.name(pkt.dest());
        let (class, txtime_ns) = (self.route.class(name, pkt.ecn), self.txtime(&pkt, now));
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
            messages.close(&Close { name, segment, segments, class, txtime_ns });
        }
    }

    /// The transmit time to pass on: one that has not come yet.
    #[inline]
    fn txtime(&self, pkt: &Packet, now: Instant) -> Option<u64> {
        (self.txtime && pkt.txtime_ns > now.0).then_some(pkt.txtime_ns)
    }
}

/// True for a packet that is several datagrams.
#[inline]
fn is_super(pkt: &Packet) -> bool {
    pkt.gso_size != 0 && pkt.payload().len() > usize::from(pkt.gso_size)
}
