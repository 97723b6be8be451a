//! The queue of a simulated network card: charges what the driver costs, and counts what is sent.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_machine::hook;
use onramp_queue::PacketList;

/// The number of packets that a card has sent: all of them, and those of the measured time.
#[derive(Debug)]
pub(crate) struct Sent {
    measured_ns: Range<u64>,
    all: AtomicU64,
    measured: AtomicU64,
}

impl Sent {
    /// Begins to count. `measured_ns` is the measured time, nanoseconds of simulated time.
    pub(crate) fn new(measured_ns: Range<u64>) -> Self {
        Self { measured_ns, all: AtomicU64::new(0), measured: AtomicU64::new(0) }
    }

    fn add(&self, packets: u64) {
        let is_measured =
            hook::time_ps().is_some_and(|ps| self.measured_ns.contains(&(ps / 1_000)));
        // Relaxed: the numbers publish no other data.
        self.all.fetch_add(packets, Relaxed);
        self.measured.fetch_add(if is_measured { packets } else { 0 }, Relaxed);
    }

    /// Returns the number of all packets that were sent.
    pub(crate) fn all(&self) -> u64 {
        self.all.load(Relaxed) // Relaxed: the number publishes no other data.
    }

    /// Returns the number of packets that were sent in the measured time.
    pub(crate) fn measured(&self) -> u64 {
        self.measured.load(Relaxed) // Relaxed: the number publishes no other data.
    }
}

/// A transmit queue. Its counter is read by the simulation, not by the simulated program, so it
/// costs nothing.
#[derive(Debug)]
pub(crate) struct Card {
    info: DeviceInfo,
    packet_ps: u64,
    doorbell_ps: u64,
    sent: Arc<Sent>,
}

impl Card {
    /// Makes a queue that charges `packet_ps` picoseconds for each packet and `doorbell_ps` for
    /// each burst, and adds the packets that it sends to `sent`.
    pub(crate) fn new(packet_ps: u64, doorbell_ps: u64, sent: &Arc<Sent>) -> Self {
        let info = DeviceInfo::new("card".to_owned(), 1_514).never_blocks();
        Self { info, packet_ps, doorbell_ps, sent: sent.clone() }
    }
}

impl Device for Card {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        let mut sent = Transmitted::default();
        while let Some(pkt) = burst.pop_front() {
            hook::work_ps(self.packet_ps);
            // The driver reads the headers, which lie in the first line of the payload; the card
            // itself fetches the rest.
            let headers = pkt.payload().first();
            std::hint::black_box(headers);
            sent.messages += 1;
            done.push_back(pkt);
        }
        hook::work_ps(self.doorbell_ps);
        sent.calls = 1;
        self.sent.add(sent.messages.into());
        sent
    }
}
