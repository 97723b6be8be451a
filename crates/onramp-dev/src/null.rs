//! A device that sends nothing. It takes packets at once, or simulates the processor time and the
//! packet rate of a network card.

use std::sync::Arc;
use std::time::Duration;

use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::{Counter, PacketList};

use crate::spin::{calibrate, spin};

/// A device that takes packets, counts them and sends nothing.
///
/// By default it takes all packets at once. To imitate a network card, it can keep the calling
/// thread busy as a driver does ([`costing`](Self::costing)), and it can have a ring that the
/// simulated wire empties ([`with_ring`](Self::with_ring)).
#[derive(Debug)]
pub struct Null {
    info: DeviceInfo,
    packet_ns: u64,
    burst_ns: u64,
    ring: Option<Ring>,
    stats: Arc<NullStats>,
}

/// The transmit ring: the packets that the device has taken and that have not yet left on the wire.
#[derive(Clone, Copy, Debug)]
struct Ring {
    size: u32,
    /// Time between two packets that leave, nanoseconds.
    interval_ns: u64,
    /// Time at which the last packet in the ring will have left.
    empty_at: Instant,
}

/// Counters of a [`Null`] device.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct NullStats {
    /// Number of packets that the device took.
    pub packets: Counter,
    /// Number of bytes of the packets that the device took. The bytes of a packet are those that it
    /// takes on the wire.
    pub bytes: Counter,
    /// Number of bursts offered to the device.
    pub calls: Counter,
    /// Number of bursts that did not fit into the ring completely.
    pub full: Counter,
}

impl Null {
    /// Makes a device whose largest packet is `mtu` bytes, link header included.
    #[must_use]
    pub fn new(mtu: u32) -> Self {
        let info = DeviceInfo::new("null".to_owned(), mtu).never_blocks();
        Self { info, packet_ns: 0, burst_ns: 0, ring: None, stats: Arc::default() }
    }

    /// Makes `count` transmit queues of one card. Each has the costs of `self`, but its own ring
    /// and its own statistics.
    #[must_use]
    pub fn queues(self, count: usize) -> Vec<Self> {
        let queue = |number| Self {
            info: DeviceInfo::new(format!("{} {number}", self.info.name), self.info.mtu)
                .never_blocks(),
            stats: Arc::default(),
            ..self
        };
        (0..count).map(queue).collect()
    }

    /// Makes each `transmit` keep the calling thread busy: for `burst` per call, plus `packet` for
    /// each packet that the device takes. The wait is never shorter and, unless the thread is
    /// interrupted, longer by at most about one clock read. This method calibrates the wait, which
    /// takes 200 µs the first time in a process.
    #[must_use]
    pub fn costing(mut self, packet: Duration, burst: Duration) -> Self {
        (self.packet_ns, self.burst_ns) = (nanoseconds(packet), nanoseconds(burst));
        calibrate();
        self
    }

    /// Gives the device a ring with room for `size` packets, from which one packet leaves every
    /// `interval`. As the current time, the ring uses the `now` that callers pass to `transmit`.
    /// When the ring is full, the device asks its caller to try again when half of the ring is
    /// free, or as many places as the rest of the burst needs, if that is less.
    ///
    /// # Panics
    ///
    /// Panics if `size` is zero, because such a device could never send a packet.
    #[must_use]
    pub fn with_ring(mut self, size: u32, interval: Duration) -> Self {
        assert!(size > 0, "a ring holds at least one packet");
        let interval_ns = nanoseconds(interval);
        self.ring = Some(Ring { size, interval_ns, empty_at: Instant(0) });
        self
    }

    /// Returns the device's counters, which any thread may read at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<NullStats> {
        Arc::clone(&self.stats)
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Ring {
    /// Returns the number of free places in the ring.
    fn room(&self, now: Instant) -> u32 {
        let taken = match self.interval_ns {
            0 => 0,
            interval => self.empty_at.since(now).div_ceil(interval),
        };
        self.size.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX))
    }

    fn take(&mut self, packets: u32, now: Instant) {
        let busy_ns = u64::from(packets).saturating_mul(self.interval_ns);
        self.empty_at = self.empty_at.max(now).after(busy_ns);
    }

    /// Returns the time at which the ring has room for `rest` packets or is half empty, whichever
    /// is earlier.
    fn retry_at(&self, rest: u32) -> Instant {
        let places = rest.min(self.size.div_ceil(2));
        let stays = u64::from(self.size - places).saturating_mul(self.interval_ns);
        Instant(self.empty_at.0.saturating_sub(stays))
    }
}

impl Default for Null {
    /// Makes a device for Ethernet's largest packet, 1,514 bytes.
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
        now: Instant,
    ) -> Transmitted {
        let room = self.ring.map_or(u32::MAX, |ring| ring.room(now));
        let (offered, bytes) = (burst.len(), burst.bytes());
        let packets = offered.min(room);
        if packets == offered {
            done.append(burst);
        } else {
            done.extend(burst.by_ref().take(packets as usize));
            self.stats.full.add(1);
        }
        let mut retry_at = None;
        if let Some(ring) = &mut self.ring {
            ring.take(packets, now);
            retry_at = (!burst.is_empty()).then(|| ring.retry_at(burst.len()));
        }
        let busy_ns = u64::from(packets).saturating_mul(self.packet_ns);
        let busy_ns = busy_ns.saturating_add(self.burst_ns);
        let costs = busy_ns > 0;
        if costs {
            spin(busy_ns);
        }
        self.stats.packets.add(packets.into());
        self.stats.bytes.add(bytes - burst.bytes());
        self.stats.calls.add(1);
        // If a call takes time, report it like a system call, so that the caller gathers packets
        // and calls less often.
        Transmitted { calls: costs.into(), messages: packets, retry_at }
    }
}

#[cfg(test)]
mod tests {
    use onramp_core::Clock;
    use onramp_queue::Packet;

    use super::*;
    use crate::MonotonicClock;

    fn packets(lens: impl IntoIterator<Item = u32>) -> PacketList {
        let packet = |len: u32| {
            let mut pkt = Packet::new(len);
            pkt.cookie = len.into();
            pkt
        };
        lens.into_iter().map(packet).collect()
    }

    #[test]
    fn takes_everything_in_order_and_counts() {
        let mut null = Null::default();
        let mut burst = packets(60..70);
        let mut done = packets([59]);
        let out = null.transmit(&mut burst, &mut done, Instant(0));
        assert_eq!(out, Transmitted { calls: 0, messages: 10, retry_at: None });
        assert!(burst.is_empty());
        let cookies: Vec<_> = done.map(|pkt| (pkt.cookie, pkt.drop_reason)).collect();
        assert_eq!(cookies, (59..70).map(|cookie| (cookie, None)).collect::<Vec<_>>());
        let stats = null.stats();
        assert_eq!((stats.packets.get(), stats.bytes.get()), (10, (60..70).sum()));
        assert_eq!((stats.calls.get(), stats.full.get()), (1, 0));
        assert_eq!(null.info().mtu, 1_514);
    }

    /// A ring of 8 places, from which a packet leaves every 100 ns, takes the current time only
    /// from the argument of each call.
    #[test]
    fn a_ring_fills_and_empties_by_the_time_given() {
        let mut null = Null::default().with_ring(8, Duration::from_nanos(100));
        let mut burst = packets(0..30);
        let mut at = |now: u64, burst: &mut PacketList| {
            let mut done = PacketList::new();
            let out = null.transmit(burst, &mut done, Instant(now));
            assert_eq!(out.messages, done.len());
            let cookies: Vec<_> = done.map(|pkt| pkt.cookie).collect();
            (cookies, out.retry_at)
        };
        // At 1,000 ns, the first 8 packets fill the ring. It is half empty at 1,400 ns, when the
        // device asks to be called again, and empty at 1,800 ns.
        assert_eq!(at(1_000, &mut burst), ((0..8).collect(), Some(Instant(1_400))));
        assert_eq!(at(1_099, &mut burst), (vec![], Some(Instant(1_400))));
        assert_eq!(at(1_100, &mut burst), (vec![8], Some(Instant(1_500))));
        assert_eq!(at(1_500, &mut burst), ((9..13).collect(), Some(Instant(1_900))));
        // The ring has been empty since 2,300 ns. At 9,000 ns, it still takes only 8 packets: the
        // time in which it was empty gives it no extra room.
        assert_eq!(at(9_000, &mut burst), ((13..21).collect(), Some(Instant(9_400))));
        let mut last = packets(21..25);
        burst = PacketList::new();
        // At 9,200 ns, the ring takes two of four packets. The other two need only two free places,
        // so the device asks to be called again when two places are free, and not when half of the
        // ring is.
        assert_eq!(at(9_200, &mut last), (vec![21, 22], Some(Instant(9_400))));
        assert_eq!(at(9_400, &mut last), (vec![23, 24], None));
        assert_eq!(at(9_400, &mut burst), (vec![], None));
        // In this test, each packet's length is its number.
        let stats = null.stats();
        assert_eq!((stats.packets.get(), stats.bytes.get()), (25, (0..25).sum()));
        assert_eq!((stats.calls.get(), stats.full.get()), (8, 6));
    }

    #[test]
    fn a_ring_of_one_and_a_wire_that_takes_no_time() {
        let mut one = Null::default().with_ring(1, Duration::from_nanos(10));
        let mut burst = packets(0..3);
        let mut now = Instant(5);
        while let Some(next) = one.transmit(&mut burst, &mut PacketList::new(), now).retry_at {
            assert_eq!(next, now.after(10));
            now = next;
        }
        assert_eq!((now, one.stats().full.get(), one.stats().calls.get()), (Instant(25), 2, 3));
        let mut endless = Null::default().with_ring(1, Duration::ZERO);
        // If the simulated wire takes no time per packet, the ring of one place takes one packet
        // per call, and the device may be called again at once.
        let out = endless.transmit(&mut packets(0..2), &mut PacketList::new(), Instant(7));
        assert_eq!((out.messages, out.retry_at), (1, Some(Instant(7))));
    }

    #[test]
    fn queues_share_nothing() {
        let null = Null::new(900).with_ring(2, Duration::from_secs(1));
        let mut queues = null.queues(3);
        assert_eq!(queues.len(), 3);
        for (number, queue) in queues.iter_mut().enumerate() {
            assert_eq!((queue.info().mtu, &*queue.info().name), (900, &*format!("null {number}")));
            let mut burst = packets(0..3);
            let _ = queue.transmit(&mut burst, &mut PacketList::new(), Instant(1));
            assert_eq!(burst.len(), 1, "a ring of its own");
            assert_eq!(queue.stats().packets.get(), 2, "statistics of its own");
        }
    }

    /// `transmit` of `Null` reports that it made a system call only if a call is simulated to take
    /// time. The report makes the link gather packets, so that it transmits less often.
    #[test]
    fn a_call_counts_if_it_costs() {
        let one = Duration::from_nanos(1);
        for (packet, burst, count, calls) in [
            (Duration::ZERO, Duration::ZERO, 3, 0),
            (one, Duration::ZERO, 3, 1),
            (one, Duration::ZERO, 0, 0),
            (Duration::ZERO, one, 0, 1),
            (Duration::ZERO, one, 3, 1),
        ] {
            let mut null = Null::default().costing(packet, burst);
            let out = null.transmit(&mut packets(0..count), &mut PacketList::new(), Instant(0));
            assert_eq!(out, Transmitted { calls, messages: count, retry_at: None });
        }
    }

    #[test]
    fn times_up_to_the_end_of_time() {
        assert_eq!(nanoseconds(Duration::from_micros(3)), 3_000);
        assert_eq!(nanoseconds(Duration::from_nanos(u64::MAX)), u64::MAX);
        assert_eq!(nanoseconds(Duration::MAX), u64::MAX);
        // The ring's interval between packets is the longest time that fits into 64 bits. A sum of
        // intervals stays at that maximum instead of overflowing.
        let mut slow = Null::default().with_ring(2, Duration::MAX);
        let mut burst = packets(0..3);
        let out = slow.transmit(&mut burst, &mut PacketList::new(), Instant(5));
        assert_eq!((out.messages, burst.len()), (2, 1));
    }

    #[test]
    #[should_panic(expected = "a ring holds at least one packet")]
    fn a_ring_of_none() {
        let _ = Null::default().with_ring(0, Duration::ZERO);
    }

    /// A place in the ring becomes free exactly when its packet leaves, not a nanosecond earlier.
    #[test]
    fn a_place_is_free_when_its_packet_has_left() {
        let mut null = Null::default().with_ring(3, Duration::from_nanos(100));
        let _ = null.transmit(&mut packets(0..3), &mut PacketList::new(), Instant(1_000));
        let ring = null.ring.expect("it has one");
        assert_eq!(ring.empty_at, Instant(1_300));
        for (now, room) in
            [(1_000, 0), (1_099, 0), (1_100, 1), (1_199, 1), (1_200, 2), (1_300, 3), (9_000, 3)]
        {
            assert_eq!(ring.room(Instant(now)), room, "at {now}");
        }
        // A new ring is empty, even at time 0.
        let mut fresh = Null::default().with_ring(3, Duration::from_nanos(100));
        let out = fresh.transmit(&mut packets(0..4), &mut PacketList::new(), Instant(0));
        assert_eq!((out.messages, out.retry_at), (3, Some(Instant(100))));
        // All three places of the ring are taken. The device asks to be called again when `rest`
        // places are free or when two (half of the ring, rounded up) are free, whichever is
        // earlier.
        for (rest, at) in [(1, 1_100), (2, 1_200), (3, 1_200), (30, 1_200)] {
            assert_eq!(ring.retry_at(rest), Instant(at), "for {rest}");
        }
    }

    #[test]
    fn queues_cost_what_the_first_did() {
        let null = Null::new(900).costing(Duration::ZERO, Duration::from_nanos(1));
        let queues = null.queues(2);
        assert_eq!(queues.len(), 2);
        for mut queue in queues {
            let out = queue.transmit(&mut packets(0..1), &mut PacketList::new(), Instant(0));
            assert_eq!((out.calls, queue.info().may_block), (1, false));
        }
        assert!(!Null::default().info().may_block);
    }

    #[test]
    fn keeps_the_thread_busy_for_each_burst_and_packet() {
        let (packet, burst_cost) = (Duration::from_micros(3), Duration::from_micros(50));
        let mut null = Null::default().costing(packet, burst_cost);
        let mut spent = |count| {
            let start = MonotonicClock.now();
            let _ = null.transmit(&mut packets(0..count), &mut PacketList::new(), Instant(0));
            MonotonicClock.now().since(start)
        };
        assert!(spent(0) >= 50_000);
        assert!(spent(40) >= 170_000);
        let full = Null::default().costing(packet, Duration::ZERO);
        let mut full = full.with_ring(10, Duration::from_secs(1));
        let start = MonotonicClock.now();
        let _ = full.transmit(&mut packets(0..64), &mut PacketList::new(), Instant(0));
        assert!(MonotonicClock.now().since(start) >= 30_000, "what it took costs");
    }
}
