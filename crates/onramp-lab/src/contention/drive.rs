//! What a sending thread does.

use std::thread;

use onramp_core::Clock;
use onramp_dev::MonotonicClock;
use onramp_queue::Counter;

use super::Load;
use crate::measure::{Gate, Latency, Phase, Sampler};
use crate::path::{Notes, Seat, Sent, Worker};

/// Bytes that a thread writes into each packet.
pub(crate) const PAYLOAD: usize = 64;
/// One call in so many is timed.
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
}

/// What a thread timed, if it was told to.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) send: Latency,
    pub(crate) wait: Latency,
}

/// Sends until it is time to stop; gives what was timed while the phase was to measure.
pub(crate) fn drive<W: Worker>(
    worker: &mut W,
    seat: &Seat<'_>,
    load: Load,
    tally: &Tally,
    gate: &Gate,
) -> Times {
    let (mut times, mut sampler) = (Times::default(), Sampler::one_in(CALL_PERIOD, seat.thread));
    let (mut measuring, mut sequence, mut in_burst) = (false, 0_u64, 0);
    let mut payload = [0; PAYLOAD];
    payload[..8].copy_from_slice(&(seat.thread as u64).to_le_bytes());
    gate.wait();
    loop {
        match seat.phase.get() {
            Phase::Measure if !measuring => {
                measuring = true;
                worker.notes().into_iter().for_each(Notes::clear);
                times = Times::default();
            }
            Phase::Stop => return times,
            Phase::WarmUp | Phase::Measure => {}
        }
        payload[8..16].copy_from_slice(&sequence.to_le_bytes());
        let sent = if seat.timed && sampler.picks() {
            timed(&mut times.send, |sent| *sent != Sent::Full, || worker.send(&payload))
        } else {
            worker.send(&payload)
        };
        match sent {
            Sent::Staged => {
                sequence += 1;
                tally.submitted.add(1);
                worker.give_way();
                in_burst += 1;
                if let Load::Rr(burst) = load
                    && in_burst >= burst
                {
                    worker.flush();
                    in_burst = 0;
                }
            }
            Sent::Congested | Sent::Dropped => {
                sequence += 1;
                tally.submitted.add(1);
                tally.dropped.add(u64::from(sent == Sent::Dropped));
                // A drop tells a sender to slow down. One that did not would only keep the thread
                // that empties the list from its processor.
                thread::yield_now();
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
