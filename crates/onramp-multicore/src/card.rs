//! The queue of a simulated network card: charges what the driver costs, and counts what is sent.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use hdrhistogram::Histogram;
use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_machine::hook;
use onramp_queue::PacketList;

/// The number of packets that a card has sent: all of them, and those of the measured time.
#[derive(Debug)]
pub(crate) struct Sent {
    measured_ns: Range<u64>,
    all: AtomicU64,
    measured: AtomicU64,
    /// `None` if nobody asked for the gaps.
    gaps: Option<Mutex<Gaps>>,
}

/// The gaps between the packets of each flow, as they leave.
#[derive(Debug)]
struct Gaps {
    /// When the last packet of each flow left, nanoseconds of simulated time.
    left_ns: BTreeMap<u64, u64>,
    gaps_ns: Histogram<u64>,
}

impl Sent {
    /// Begins to count. `measured_ns` is the measured time, nanoseconds of simulated time.
    pub(crate) fn new(measured_ns: Range<u64>) -> Self {
        Self { measured_ns, all: AtomicU64::new(0), measured: AtomicU64::new(0), gaps: None }
    }

    /// Measures also the gaps between the packets of each flow.
    pub(crate) fn with_gaps(self) -> Self {
        let gaps_ns = Histogram::new_with_bounds(1, GAP_MAX_NS, 3).expect("bounds in order");
        Self { gaps: Some(Mutex::new(Gaps { left_ns: BTreeMap::new(), gaps_ns })), ..self }
    }

    /// Returns the gaps that ended in the measured time, nanoseconds; `None` if nobody asked for
    /// them.
    pub(crate) fn gaps(&self) -> Option<Histogram<u64>> {
        let gaps = self.gaps.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(gaps.gaps_ns.clone())
    }

    /// Notes that a packet of a flow leaves now.
    fn leaves(&self, gaps: &Mutex<Gaps>, flow: u64) {
        let Some(now_ns) = hook::time_ps().map(|ps| ps / 1_000) else { return };
        let mut gaps = gaps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left_ns) = gaps.left_ns.insert(flow, now_ns)
            && self.measured_ns.contains(&now_ns)
        {
            gaps.gaps_ns.saturating_record(now_ns - left_ns);
        }
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

/// Gaps longer than this are counted as this long, nanoseconds.
const GAP_MAX_NS: u64 = 10_000_000_000;

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
            if let Some(gaps) = &self.sent.gaps {
                self.sent.leaves(gaps, pkt.flow);
            }
            sent.messages += 1;
            done.push_back(pkt);
        }
        hook::work_ps(self.doorbell_ps);
        sent.calls = 1;
        self.sent.add(sent.messages.into());
        sent
    }
}

#[cfg(test)]
mod tests {
    use onramp_machine::{Setup, simulate};
    use onramp_queue::Packet;

    use super::*;
    use crate::{Description, Draw};

    /// A gap lies between two packets of one flow, whatever other flows send in between; it counts
    /// if it ends in the measured time.
    #[test]
    fn gaps_are_those_of_each_flow() {
        let machine = Description::named("desktop-amd").unwrap().draw(&mut Draw::new(0));
        let setup = Setup { machine, limit_ns: 10_000_000, measure_ns: 0..0 };
        let (gaps, _) = simulate(&setup, || {
            let sent = Arc::new(Sent::new(50_000..1_000_000).with_gaps());
            let mut card = Card::new(0, 0, &sent);
            let mut send = |flow: u64, at_us: u64| {
                let now_ns = hook::time_ps().expect("inside") / 1_000;
                hook::work(at_us * 1_000 - now_ns);
                let (mut burst, mut done) = (PacketList::new(), PacketList::new());
                let mut packet = Packet::new(100);
                packet.flow = flow;
                burst.push_back(packet);
                let _ = card.transmit(&mut burst, &mut done, Instant(0));
            };
            for (flow, at_us) in [(1, 10), (2, 20), (1, 40), (2, 220), (1, 440), (2, 2_000)] {
                send(flow, at_us);
            }
            sent.gaps().expect("asked for")
        })
        .unwrap();
        let us = gaps.iter_recorded().map(|gap| (gap.value_iterated_to() + 500) / 1_000);
        assert_eq!(
            (gaps.len(), us.collect::<Vec<_>>()),
            (2, vec![200, 400]),
            "30 us came before, 1,780 after"
        );
        assert!(Sent::new(0..1).gaps().is_none());
    }
}
