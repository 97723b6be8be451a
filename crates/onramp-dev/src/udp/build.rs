//! Packets become messages: neighbours of a flow one message, super-packets one or several.

use std::net::SocketAddr;

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
    /// Most packets to build; the rest waits.
    pub(super) packets_max: u32,
}

impl Builder {
    /// Builds from the front of `burst` until `messages` is full.
    #[inline]
    pub(super) fn build(&self, burst: &mut PacketList, now: Instant, messages: &mut Messages) {
        let keep = burst.len().saturating_sub(self.packets_max);
        while burst.len() > keep
            && !messages.is_full()
            && let Some(pkt) = burst.pop_front()
        {
            if is_super(&pkt) {
                self.cut(pkt, now, messages);
            } else {
                self.run(pkt, burst, now, messages);
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
        // An empty datagram has no bytes by which the kernel could tell it from none.
        let alone = size == 0 || txtime_ns.is_some();
        let most =
            if alone { 1 } else { usize::from(self.segments_max).min(MESSAGE_MAX / size).max(1) };
        let (mut count, mut len) = (1, size);
        messages.gather(first);
        while count < most
            && len == size
            && !messages.is_full()
            && let Some(next) = burst.front()
        {
            len = next.payload().len();
            let joins = next.flow == flow
                && next.ecn == ecn
                && (1..=size).contains(&len)
                && self.txtime(next, now).is_none()
                && !is_super(next)
                && next.dest() == dest;
            if !joins {
                break;
            }
            count += 1;
            if let Some(next) = burst.pop_front() {
                messages.gather(next);
            }
        }
        let segment = if count > 1 { u16::try_from(size).ok() } else { None };
        messages.close(&self.close(dest, ecn, segment, txtime_ns));
    }

    /// As few messages as can be of a packet that is several datagrams already.
    fn cut(&self, pkt: Packet, now: Instant, messages: &mut Messages) {
        let (dest, ecn, gso_size) = (pkt.dest(), pkt.ecn, pkt.gso_size);
        let txtime_ns = self.txtime(&pkt, now);
        let size = usize::from(gso_size);
        let chunk = size * usize::from(self.segments_max).min(MESSAGE_MAX / size).max(1);
        let mut left = pkt.payload().len();
        messages.hold(pkt);
        while left > 0 && !messages.is_full() {
            let bytes = chunk.min(left);
            messages.take(bytes);
            left -= bytes;
            let segment = (bytes > size).then_some(gso_size);
            messages.close(&self.close(dest, ecn, segment, txtime_ns));
        }
    }

    #[inline]
    fn close(
        &self,
        dest: Option<SocketAddr>,
        ecn: u8,
        segment: Option<u16>,
        txtime_ns: Option<u64>,
    ) -> Close {
        let name = self.route.name(dest);
        Close { name, segment, class: self.route.class(name, ecn), txtime_ns }
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
