//! The loop of a sending thread.

use onramp_core::Instant;
use onramp_queue::Counter;

use super::Load;
use crate::measure::{Gate, Latency, Phase, Sampler, stopwatch};
use crate::path::{Seat, Sent, Worker};
use crate::sync::{is_simulated, thread};

/// Number of payload bytes that a thread writes into each packet.
pub(crate) const PAYLOAD: usize = 64;
/// Sampling period: one packet out of every 16 is timed. On the simulated machine, where timing
/// costs nothing, every packet is.
pub(crate) const CALL_PERIOD: u64 = 16;

/// Counters of one sending thread, which other threads read while it runs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    /// Number of packets that the path accepted, including those dropped before the qdisc.
    pub(crate) submitted: Counter,
    /// Number of packets dropped before the qdisc, because the list in front of it was full.
    pub(crate) dropped: Counter,
    /// Number of times that the thread waited for credit or for room in the queue.
    pub(crate) waits: Counter,
    /// Number of bursts whose packets have all left.
    pub(crate) transactions: Counter,
}

/// Latencies that a sending thread measured; empty if the thread was not told to measure.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) send: Latency,
    /// Time from the first attempt to send a packet until the thread may go on to the next packet.
    pub(crate) accept: Latency,
    pub(crate) wait: Latency,
    /// Time from before the first packet of a burst until all of the burst has left.
    pub(crate) transaction: Latency,
}

/// The progress of one packet, which may take several calls if no credit is left.
struct Turn {
    sampler: Sampler,
    /// Whether the thread has tried to send this packet before.
    tried: bool,
    /// Time of the first attempt to send this packet. `None` if the packet is not timed.
    first: Option<Instant>,
}

impl Turn {
    fn new(seed: usize) -> Self {
        let period = if is_simulated() { 1 } else { CALL_PERIOD };
        Self { sampler: Sampler::one_in(period, seed), tried: false, first: None }
    }

    /// Records an attempt to send the current packet. With `timed`, the first attempt decides at
    /// random whether the packet is timed. Returns whether the current packet is timed.
    #[inline]
    fn call(&mut self, timed: bool) -> bool {
        if timed && !self.tried && self.sampler.picks() {
            self.first = Some(stopwatch());
        }
        self.tried = true;
        self.first.is_some()
    }

    /// Records the time since the first attempt to send the current packet, if that packet is
    /// timed. The caller calls this when the path has taken or dropped the packet, and after
    /// yielding.
    #[inline]
    fn end(&mut self, into: &mut Latency) {
        self.tried = false;
        if let Some(first) = self.first.take() {
            into.record(stopwatch().since(first));
        }
    }
}

/// Sends packets until the phase is `Stop`. Returns the latencies measured in the phase `Measure`.
/// Each packet has the bytes of `payload`, which has at least 16 bytes, for the numbers of the
/// thread and of the packet.
pub(crate) fn drive<W: Worker>(
    worker: &mut W,
    mut payload: impl AsMut<[u8]>,
    seat: &Seat<'_>,
    load: Load,
    tally: &Tally,
    gate: &Gate,
) -> Times {
    let (mut times, mut turn) = (Times::default(), Turn::new(seat.thread));
    let (mut measuring, mut sequence, mut in_burst) = (false, 0_u64, 0);
    let mut began = None;
    let payload = payload.as_mut();
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
            began = began.or_else(|| Some(stopwatch()));
        }
        payload[8..16].copy_from_slice(&sequence.to_le_bytes());
        if !turn.tried {
            worker.prepare();
        }
        let sent = if turn.call(seat.timed) {
            timed(&mut times.send, |sent| *sent != Sent::Full, || worker.send(payload))
        } else {
            worker.send(payload)
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
                        began.inspect(|&b| times.transaction.record(stopwatch().since(b)));
                    }
                }
            }
            Sent::Congested | Sent::Dropped => {
                sequence += 1;
                tally.submitted.add(1);
                tally.dropped.add(u64::from(sent == Sent::Dropped));
                // A drop tells a sender to slow down. A sender that went on at once would only keep
                // the thread that empties the list off the processor.
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

/// Calls `f`. Records the duration of the call in `into` if `counts` returns true for the result.
fn timed<R>(into: &mut Latency, counts: impl Fn(&R) -> bool, f: impl FnOnce() -> R) -> R {
    let from = stopwatch();
    let result = f();
    if counts(&result) {
        into.record(stopwatch().since(from));
    }
    result
}

#[cfg(test)]
mod tests {
    use onramp_core::Clock;
    use onramp_dev::MonotonicClock;

    use super::*;
    use crate::contention::Manners;
    use crate::measure::PhaseCell;

    /// Least duration of each call of `wait` and of `give_way` of [`Refusing`], nanoseconds.
    const STEP_NS: u64 = 20_000;
    const PACKETS: u64 = 500;

    /// A sender's end of a path that refuses each packet twice, and takes it at the third call.
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
        let times = drive(&mut worker, [0; PAYLOAD], &seat, Load::Stream, &tally, &gate);
        assert_eq!((tally.submitted.get(), tally.waits.get()), (PACKETS, 2 * PACKETS));
        assert_eq!(times.wait.samples(), 2 * PACKETS);
        assert!((1..PACKETS).contains(&times.send.samples()), "{times:?}");
        assert_eq!(times.accept.samples(), times.send.samples(), "of the same packets");
        // Each packet takes two calls of `wait` and one of `give_way`, each at least `STEP_NS`
        // long. The median must be at least their sum, less the histogram's error of 1 %.
        let accept = times.accept.percentiles().expect("some were picked");
        assert!(accept.p50 * 100 >= 3 * STEP_NS * 99, "{accept:?}");
    }
}
