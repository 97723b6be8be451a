//! A device that takes everything, at once.

use std::sync::Arc;

use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::{Counter, PacketList};

/// Takes every packet, sends nothing, and counts.
#[derive(Debug)]
pub struct Null {
    info: DeviceInfo,
    stats: Arc<NullStats>,
}

/// What a [`Null`] took.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct NullStats {
    /// Packets.
    pub packets: Counter,
    /// Bytes on the wire.
    pub bytes: Counter,
    /// Bursts.
    pub calls: Counter,
}

impl Null {
    /// Makes one whose largest packet is `mtu` bytes, link header included.
    #[must_use]
    pub fn new(mtu: u32) -> Self {
        Self { info: DeviceInfo::new("null".to_owned(), mtu), stats: Arc::default() }
    }

    /// What it took, to be read by anyone at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<NullStats> {
        Arc::clone(&self.stats)
    }
}

impl Default for Null {
    /// Ethernet's largest packet.
    fn default() -> Self {
        Self::new(1_514)
    }
}

impl Device for Null {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    #[inline]
    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        let packets = burst.len();
        self.stats.packets.add(packets.into());
        self.stats.bytes.add(burst.bytes());
        self.stats.calls.add(1);
        done.append(burst);
        Transmitted { calls: 1, messages: packets, retry_at: None }
    }
}

#[cfg(test)]
mod tests {
    use onramp_queue::Packet;

    use super::*;

    #[test]
    fn takes_everything_in_order_and_counts() {
        let mut null = Null::default();
        let packet = |len| {
            let mut pkt = Packet::new(len);
            pkt.cookie = len.into();
            pkt
        };
        let mut burst: PacketList = (60..70).map(packet).collect();
        let mut done: PacketList = [packet(59)].into_iter().collect();
        let out = null.transmit(&mut burst, &mut done, Instant(0));
        assert_eq!(out, Transmitted { calls: 1, messages: 10, retry_at: None });
        assert!(burst.is_empty());
        let cookies: Vec<_> = done.map(|pkt| (pkt.cookie, pkt.drop_reason)).collect();
        assert_eq!(cookies, (59..70).map(|cookie| (cookie, None)).collect::<Vec<_>>());
        let stats = null.stats();
        assert_eq!((stats.packets.get(), stats.bytes.get()), (10, (60..70).sum()));
        assert_eq!(null.info().mtu, 1_514);
    }
}
