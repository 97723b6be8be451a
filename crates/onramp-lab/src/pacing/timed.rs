//! A qdisc around a shaper, which writes into each packet the instant at which the shaper released
//! it, and a device that compares this instant with the clock.

use std::sync::{Arc, Mutex, PoisonError};

use onramp_core::params::{Default, Param, Unit, Values};
use onramp_core::qdisc::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Verdict};
use onramp_core::{Clock, Device, DeviceInfo, Instant, Setup, Transmitted};
use onramp_dev::MonotonicClock;
use onramp_queue::{Packet, PacketList};

use super::{PACKET, RATES, Shaper};
use crate::measure::{Latency, Phase, PhaseCell};

/// The number of the kind that is measured, in [`Shaper::ALL`].
const SHAPER: Param =
    Param::new("shaper", Unit::Packets, Default::Needed, "number of the shaper").within(0, 3);
const RATE: Param =
    Param::new("rate", Unit::Packets, Default::Needed, "packets per second of the shaper")
        .within(*RATES.start(), *RATES.end());

/// The kind of the qdisc around a shaper.
pub(super) static TIMED: Kind =
    Kind::new("timed", "notes when a shaper releases its packets", &[SHAPER, RATE], build);

/// Returns the text of the qdisc around `shaper`, for `rate` packets per second.
pub(super) fn text(shaper: Shaper, rate: u64) -> String {
    format!("timed shaper {} rate {rate}", shaper as usize)
}

fn build(values: &Values<'_>) -> Box<dyn Qdisc> {
    let number = usize::try_from(values.number("shaper")).unwrap_or(usize::MAX);
    let shaper = Shaper::ALL.get(number).copied().unwrap_or(Shaper::Tbf);
    let mut setup = Setup::default();
    for line in shaper.lines("lab", values.number("rate")) {
        setup.apply(&line).expect("a line of tc that a test has tried");
    }
    Box::new(Timed(setup.build(PACKET, 1).expect("the lines have a root")))
}

#[derive(Debug)]
struct Timed(Box<dyn Qdisc>);

impl Qdisc for Timed {
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.0.enqueue(pkt, cx)
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        match self.0.dequeue(cx) {
            Dequeue::Ready(mut pkt) => {
                pkt.txtime_ns = cx.now.0;
                Dequeue::Ready(pkt)
            }
            other => other,
        }
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        self.0.peek(cx)
    }

    fn backlog(&self) -> Backlog {
        self.0.backlog()
    }

    fn accepts(&self, pkt: &Packet) -> bool {
        self.0.accepts(pkt)
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.0.reset(cx);
    }
}

/// What a [`Recorder`] has seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    /// Time from the instant in each packet to the clock, while the phase was `Measure`.
    pub(super) error: Latency,
    /// Number of packets that the device took in all.
    pub(super) taken: u64,
    /// Number of packets that the device got before the instant in them.
    pub(super) early: u64,
}

pub(super) type SharedNotes = Arc<Mutex<Notes>>;

/// A device that takes all packets, and notes how long after the instants in them it got them.
#[derive(Debug)]
pub(super) struct Recorder {
    info: DeviceInfo,
    notes: SharedNotes,
    phase: Arc<PhaseCell>,
}

impl Recorder {
    pub(super) fn new(notes: SharedNotes, phase: Arc<PhaseCell>) -> Self {
        let info = DeviceInfo::new("recorder".to_owned(), PACKET).never_blocks();
        Self { info, notes, phase }
    }
}

impl Device for Recorder {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        let now = MonotonicClock.now();
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.taken += u64::from(burst.len());
        let early = burst.metas().filter(|meta| meta.txtime_ns > now.0).count();
        notes.early += early as u64;
        if self.phase.get() == Phase::Measure {
            for meta in burst.metas() {
                notes.error.record(now.since(Instant(meta.txtime_ns)));
            }
        }
        drop(notes);
        let messages = burst.len();
        done.append(burst);
        // Like a socket, to which one call gives a burst.
        Transmitted { calls: 1, messages, ..Transmitted::default() }
    }
}

#[cfg(test)]
mod tests {
    use onramp_core::Kinds;

    use super::*;

    const START: Instant = Instant(1_000_000_000);

    /// Each shaper releases one packet per millisecond after its burst, and writes the instant into
    /// the packet, not the time at which it was asked.
    #[test]
    fn the_instant_of_the_release_is_in_the_packet() {
        for shaper in Shaper::ALL {
            let kinds = Kinds::new([&TIMED]).expect("a good kind");
            let spec = kinds.spec(&text(shaper, 1_000)).expect("a good text");
            let mut qdisc = spec.build(PACKET);
            let mut drops = PacketList::new();
            let mut cx = Cx::new(START, &mut drops);
            for _ in 0..10 {
                let mut pkt = Packet::new(PACKET);
                (pkt.len, pkt.enqueued_ns) = (PACKET, START.0);
                assert_eq!(qdisc.enqueue(pkt, &mut cx), Verdict::Queued, "{shaper:?}");
            }
            let mut released = Vec::new();
            while qdisc.backlog().packets > 0 {
                match qdisc.dequeue(&mut cx) {
                    Dequeue::Ready(pkt) => {
                        assert_eq!(pkt.txtime_ns, cx.now.0, "{shaper:?}");
                        released.push(pkt.txtime_ns);
                    }
                    Dequeue::NotBefore(at) => cx.now = at.max(cx.now.after(1)),
                    Dequeue::Empty => panic!("{shaper:?} holds packets"),
                }
            }
            let gaps: Vec<u64> = released.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let even = |gap: &u64| (990_000..1_011_000).contains(gap);
            assert!(gaps[2..].iter().all(even), "{shaper:?}: {gaps:?}");
        }
    }

    #[test]
    fn a_recorder_notes_only_while_it_measures() {
        let (notes, phase) = (SharedNotes::default(), Arc::new(PhaseCell::default()));
        let mut recorder = Recorder::new(notes.clone(), phase.clone());
        let mut transmit = |count| {
            let mut burst: PacketList = (0..count).map(|_| Packet::new(60)).collect();
            let mut done = PacketList::new();
            let answer = recorder.transmit(&mut burst, &mut done, START);
            assert_eq!((burst.len(), done.len(), answer.messages), (0, count, count));
        };
        transmit(3);
        phase.set(Phase::Measure);
        transmit(4);
        phase.set(Phase::Stop);
        transmit(5);
        let mut early = Packet::new(60);
        early.txtime_ns = u64::MAX;
        let (mut burst, mut done) = (PacketList::from_iter([early]), PacketList::new());
        let _ = recorder.transmit(&mut burst, &mut done, START);
        let notes = notes.lock().expect("nobody panicked");
        assert_eq!((notes.taken, notes.error.samples(), notes.early), (13, 4, 1));
    }
}
