//! What a sending thread does.

use std::thread;

use onramp_core::{Clock, Instant};
use onramp_dev::MonotonicClock;
use onramp_queue::Counter;

use super::Load;
use crate::measure::{Gate, Latency, Phase, Sampler};
use crate::path::{Seat, Sent, Worker};

/// Bytes that a thread writes into each packet.
pub(crate) const PAYLOAD: usize = 64;
/// One packet in so many is timed.
pub(crate) const CALL_PERIOD: u64 = 16;

/// What a thread counts, for others to read while it runs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    /// Packets that the path took, those it dropped at the door included.
    pub(crate) submitted: Counter,
    /// Of these, dropped at the door.
    pub(crate) dropped: Counter,
    /// Waits for room.
    pub(crate) waits: Counter,
    /// Bursts that have left.
    pub(crate) transactions: Counter,
}

/// What a thread timed, if it was told to.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) send: Latency,
    /// From the first try to send a packet until the thread may go on to the next one.
    pub(crate) accept: Latency,
    pub(crate) wait: Latency,
    /// From before the first packet of a burst until all of it has left.
    pub(crate) transaction: Latency,
}

/// A packet's turn, which lasts over calls that found no credit.
struct Turn {
    sampler: Sampler,
    /// It was tried before.
    tried: bool,
    /// When it was tried first, of a packet that is timed.
    first: Option<Instant>,
}

impl Turn {
    fn new(seed: usize) -> Self {
        Self { sampler: Sampler::one_in(CALL_PERIOD, seed), tried: false, first: None }
    }

    /// Before each call; with `timed`, picks packets to time. True: this one is.
    #[inline]
    fn call(&mut self, timed: bool) -> bool {
        if timed && !self.tried && self.sampler.picks() {
            self.first = Some(MonotonicClock.now());
        }
        self.tried = true;
        self.first.is_some()
    }

    /// The packet is gone, and the thread has given way if it had to.
    #[inline]
    fn end(&mut self, into: &mut Latency) {
        self.tried = false;
        if let Some(first) = self.first.take() {
            into.record(MonotonicClock.now().since(first));
        }
    }
}

/// Sends until it is time to stop; gives what was timed while the phase was to measure.
pub(crate) fn drive<W: Worker>(
    worker: &mut W,
    seat: &Seat<'_>,
    load: Load,
    tally: &Tally,
    gate: &Gate,
) -> Times {
    let (mut times, mut turn) = (Times::default(), Turn::new(seat.thread));
    let (mut measuring, mut sequence, mut in_burst) = (false, 0_u64, 0);
    let mut began = None;
    let mut payload = [0; PAYLOAD];
    payload[..8].copy_from_slice(&(seat.thread as u64).to_le_bytes());
    gate.wait();
    loop {
        match seat.phase.get() {
            Phase::Measure if !measuring => {
                measuring = true;
                worker.begin_notes();
                (times, began, turn.first) = (Times::default(), None, None);
            }
            Phase::Stop => return times,
            Phase::WarmUp | Phase::Measure => {}
        }
        if seat.timed && in_burst == 0 && load != Load::Stream {
            began = began.or_else(|| Some(MonotonicClock.now()));
        }
        payload[8..16].copy_from_slice(&sequence.to_le_bytes());
        let sent = if turn.call(seat.timed) {
            timed(&mut times.send, |sent| *sent != Sent::Full, || worker.send(&payload))
        } else {
            worker.send(&payload)
        };
        match sent {
            Sent::Staged => {
                sequence += 1;
                tally.submitted.add(1);
                worker.give_way();
                turn.end(&mut times.accept);
                in_burst += 1;
                if let Load::Rr(burst) = load
                    && in_burst >= burst
                {
                    worker.flush();
                    in_burst = 0;
                    let began = began.take();
                    if !seat.phase.is_stop() {
                        tally.transactions.add(1);
                        began.inspect(|&b| times.transaction.record(MonotonicClock.now().since(b)));
                    }
                }
            }
            Sent::Congested | Sent::Dropped => {
                sequence += 1;
                tally.submitted.add(1);
                tally.dropped.add(u64::from(sent == Sent::Dropped));
                // A drop tells a sender to slow down. One that did not would only keep the thread
                // that empties the list from its processor.
                thread::yield_now();
                turn.end(&mut times.accept);
            }
            Sent::Full => {
                tally.waits.add(1);
                if seat.timed {
                    timed(&mut times.wait, |()| true, || worker.wait());
                } else {
                    worker.wait();
                }
            }
            Sent::Stopped => return times,
        }
    }
}

/// Calls `f`; records how long it took, if its result is of the kind that counts.
fn timed<R>(into: &mut Latency, counts: impl Fn(&R) -> bool, f: impl FnOnce() -> R) -> R {
    let from = MonotonicClock.now();
    let result = f();
    if counts(&result) {
        into.record(MonotonicClock.now().since(from));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contention::Manners;
    use crate::measure::PhaseCell;

    /// What each call of the worker but `send` takes at least, nanoseconds.
    const STEP_NS: u64 = 20_000;
    const PACKETS: u64 = 500;

    /// Refuses each packet twice.
    struct Refusing<'a> {
        phase: &'a PhaseCell,
        calls: u64,
    }

    fn step() {
        let until = MonotonicClock.now().after(STEP_NS);
        while MonotonicClock.now() < until {}
    }

    impl Worker for Refusing<'_> {
        fn send(&mut self, _payload: &[u8]) -> Sent {
            self.calls += 1;
            if self.calls == 3 * PACKETS {
                self.phase.set(Phase::Stop);
            }
            if self.calls.is_multiple_of(3) { Sent::Staged } else { Sent::Full }
        }

        fn wait(&mut self) {
            step();
        }

        fn flush(&mut self) {}

        fn give_way(&mut self) {
            step();
        }
    }

    #[test]
    fn acceptance_begins_with_the_first_try_and_ends_when_the_thread_goes_on() {
        let (phase, gate, tally) = (PhaseCell::default(), Gate::default(), Tally::default());
        phase.set(Phase::Measure);
        gate.open();
        let seat = Seat {
            thread: 0,
            threads: 1,
            queues: 1,
            timed: true,
            asked: None,
            manners: Manners::Equal,
            gives_way: false,
            phase: &phase,
        };
        let mut worker = Refusing { phase: &phase, calls: 0 };
        let times = drive(&mut worker, &seat, Load::Stream, &tally, &gate);
        assert_eq!((tally.submitted.get(), tally.waits.get()), (PACKETS, 2 * PACKETS));
        assert_eq!(times.wait.samples(), 2 * PACKETS);
        assert!((1..PACKETS).contains(&times.send.samples()), "{times:?}");
        assert_eq!(times.accept.samples(), times.send.samples(), "of the same packets");
        // Two waits and a step aside; the histogram is precise to 1 %.
        let accept = times.accept.percentiles().expect("some were picked");
        assert!(accept.p50 * 100 >= 3 * STEP_NS * 99, "{accept:?}");
    }
}
