//! The device behind the qdiscs of the experiments. It takes every packet, can spend processor time
//! on each packet, and can record measurements.

use std::sync::{Arc, Mutex, PoisonError};

use onramp_core::{Clock, Device, DeviceInfo, Instant, Transmitted};
use onramp_dev::{MonotonicClock, Null};
use onramp_queue::PacketList;

use crate::measure::{Latency, Octaves, Phase, PhaseCell};
use crate::memory::{self, MemoryNotes};

/// Sampling period of delays: the packets of one device call out of every 8 are measured.
const PERIOD: u64 = 8;

/// Measurements that a device recorded while the phase of the experiment was `Measure`.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceNotes {
    /// Number of packets in each call of the device.
    pub(crate) bursts: Octaves,
    /// Time from the send call, at which a packet is stamped, until the packet reaches the device;
    /// nanoseconds.
    pub(crate) delay: Latency,
    /// Counts of the packets that the device was given and that the calling thread will free.
    pub(crate) memory: MemoryNotes,
    calls: u64,
}

/// Measurements of a device, shared with the thread that evaluates them.
pub(crate) type SharedNotes = Arc<Mutex<DeviceNotes>>;

/// A [`Null`] device that keeps its processor busy and records measurements.
#[derive(Debug)]
pub(crate) struct Card {
    null: Null,
    packet_ns: u64,
    notes: Option<(SharedNotes, Arc<PhaseCell>)>,
}

impl Card {
    /// Makes a device that takes `packet_ns` nanoseconds of processor time per packet. With
    /// `notes`, the device records measurements while the given phase is `Measure`.
    pub(crate) fn new(
        null: Null,
        packet_ns: u64,
        notes: Option<(SharedNotes, Arc<PhaseCell>)>,
    ) -> Self {
        Self { null, packet_ns, notes }
    }
}

impl Device for Card {
    fn info(&self) -> &DeviceInfo {
        self.null.info()
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        if let Some((notes, phase)) = &self.notes
            && phase.get() == Phase::Measure
        {
            notes.lock().unwrap_or_else(PoisonError::into_inner).take(burst);
        }
        if self.packet_ns > 0 {
            let clock = MonotonicClock;
            let until = clock.now().after(self.packet_ns * u64::from(burst.len()));
            while clock.now() < until {
                std::hint::spin_loop();
            }
        }
        let transmitted = self.null.transmit(burst, done, now);
        Transmitted { calls: u32::from(self.packet_ns > 0), ..transmitted }
    }
}

impl DeviceNotes {
    fn take(&mut self, burst: &PacketList) {
        self.bursts.record(burst.len().into());
        self.memory.count(burst, memory::flow());
        self.calls += 1;
        if self.calls.is_multiple_of(PERIOD) {
            let now = MonotonicClock.now();
            for meta in burst.metas() {
                self.delay.record(now.since(Instant(meta.enqueued_ns)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use onramp_queue::Packet;

    use super::*;

    #[test]
    fn notes_only_while_measuring_and_passes_everything_on() {
        let (notes, phase) = (SharedNotes::default(), Arc::new(PhaseCell::default()));
        let null = Null::default();
        let stats = null.stats();
        let mut card = Card::new(null, 10, Some((notes.clone(), phase.clone())));
        let mut transmit = |count| {
            let mut burst: PacketList = (0..count).map(|_| Packet::new(60)).collect();
            let mut done = PacketList::new();
            let _ = card.transmit(&mut burst, &mut done, Instant(0));
            assert_eq!((burst.len(), done.len()), (0, count));
        };
        transmit(3);
        phase.set(Phase::Measure);
        (0..PERIOD).for_each(|_| transmit(5));
        phase.set(Phase::Stop);
        transmit(3);
        assert_eq!(stats.packets.get(), 6 + 5 * PERIOD);
        let notes = notes.lock().expect("nobody panicked").clone();
        assert_eq!(notes.bursts.total(), PERIOD);
        assert_eq!(notes.delay.samples(), 5);
    }
}
