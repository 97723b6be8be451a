//! Methods of sending: the table of methods, the interface that each method implements, and the
//! loop that drives all methods in the same way.

mod kernel;
mod onramp;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ::onramp::{Mode, TrySendError};
use anyhow::Result;
use hdrhistogram::Histogram;
use onramp_core::Clock;
use onramp_lab::measure::{Gate, Phase, PhaseCell};
use onramp_queue::{Counter, DropReason};

use super::kind::Kind;
use super::plan::Plan;
use super::stamp;
use onramp_dev::MonotonicClock;

/// Number of datagrams in one `sendmmsg` call, and of segments in one message of the `gso` method.
pub(crate) const BATCH: usize = 32;

impl Kind {
    /// Returns the number of file descriptors that the method opens; those of the sinks (the
    /// sockets that datagrams go to) are not included.
    pub(crate) fn files(self, plan: &Plan) -> usize {
        match self {
            Self::Send | Self::Sendmmsg | Self::Gso => plan.flows(),
            Self::Sendto => plan.threads,
            Self::Onramp | Self::OnrampInline | Self::OnrampDedicated => onramp::files(plan),
        }
    }

    /// Opens the sockets or the link of this method. `targets` has one destination for each flow.
    pub(crate) fn open(self, plan: &Plan, targets: &[SocketAddr]) -> Result<Box<dyn Session>> {
        match self {
            Self::Send | Self::Sendmmsg | Self::Gso => kernel::open(self, plan, targets),
            Self::Sendto => kernel::open_unconnected(plan, targets),
            Self::Onramp => onramp::open(plan, Mode::Hybrid, targets),
            Self::OnrampInline => onramp::open(plan, Mode::Inline, targets),
            Self::OnrampDedicated => onramp::open(plan, Mode::Dedicated, targets),
        }
    }
}

/// One opened method: the sockets, or the link, with which a method sends in one round.
pub(crate) trait Session: Sync {
    /// Sends datagrams from the calling thread until the phase is [`Phase::Stop`]. `cx` says which
    /// flows the thread has.
    fn run(&self, cx: &ThreadCx<'_>) -> ThreadRecord;

    /// Returns what the link has handed to the kernel so far; `None` for methods without a link, in
    /// which each call of a sender is one system call.
    fn counts(&self) -> Option<PathCounts> {
        None
    }

    /// Whether all datagrams of a call reach the kernel as a single message. Otherwise each
    /// datagram is a message of its own.
    fn segmented(&self) -> bool {
        false
    }

    /// Waits until all accepted datagrams are sent, but no longer than `patience`, and then closes
    /// the sockets or the link.
    fn finish(self: Box<Self>, patience: Duration) -> Closing;
}

/// Counts of what a link has handed to the kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathCounts {
    /// Number of datagrams handed to the kernel.
    pub(crate) sent: u64,
    /// Number of messages handed to the kernel; one message may hold several datagrams.
    pub(crate) messages: u64,
    /// Number of system calls that handed messages to the kernel.
    pub(crate) calls: u64,
}

/// What a method reports when its sockets or its link are closed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closing {
    /// Number of datagrams that the method accepted and then dropped, by reason, over the whole
    /// round.
    pub(crate) drops: BTreeMap<&'static str, u64>,
    /// Number of datagrams that the method had accepted but not sent when its time to finish was
    /// over.
    pub(crate) held: u64,
    /// The ports that died, each with the message of its panic.
    pub(crate) deaths: Vec<(usize, String)>,
}

/// A number that one sending thread writes and another thread reads. It has two cache lines of its
/// own, because processors prefetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Measurement(pub(crate) Counter);

/// What one sending thread needs for a round.
#[derive(Debug)]
pub(crate) struct ThreadCx<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) gate: &'a Gate,
    pub(crate) phase: &'a PhaseCell,
    /// The number of the thread, counted from 0.
    pub(crate) thread: usize,
    /// The number of the thread's first flow.
    pub(crate) first_flow: usize,
    /// For each flow of the thread, the number of datagrams submitted so far.
    pub(crate) submitted: &'a [Measurement],
    /// Number of calls of [`Worker::send`] that the thread has made.
    pub(crate) calls: &'a Measurement,
}

/// The outcome of one call of [`Worker::send`].
#[derive(Debug)]
pub(crate) enum Taken {
    /// The method accepted this number of datagrams, at least one, from the front of the batch.
    Datagrams(usize),
    /// No datagram was accepted, because there is no room. The caller must wait.
    Full,
    /// The method failed to send this number of datagrams at the front of the batch, and they are
    /// lost.
    Lost(usize, io::Error),
}

/// Makes the calls with which one thread sends, in the way of one method.
pub(crate) trait Worker {
    /// Returns the number of datagrams that one call of [`Worker::send`] sends.
    fn batch(&self) -> usize;

    /// Makes one call with datagrams of the thread's flow number `flow`. The datagrams are `size`
    /// bytes each and stand one after the other in `payload`.
    fn send(&mut self, flow: usize, payload: &[u8], size: usize) -> Taken;

    /// Waits for room for `size` bytes of the thread's flow number `flow`. It waits not much longer
    /// than 100 ms, so that a round can end.
    fn wait(&mut self, flow: usize, size: usize);

    /// Yields the processor if this thread has sent for longer than `Sender::SLICE` and there are
    /// more senders than processors. Methods of the kernel never yield.
    fn give_way(&mut self) {}
}

/// A histogram of nanoseconds. It is precise to 1 %, and small enough to stay in the cache of its
/// thread.
pub(crate) type Latency = Histogram<u64>;

/// Returns an empty histogram for values up to a minute.
pub(crate) fn latency() -> Latency {
    Histogram::new_with_bounds(1, 60_000_000_000, 2).expect("bounds that the crate accepts")
}

/// The measurements of one sending thread during [`Phase::Measure`].
#[derive(Debug)]
pub(crate) struct ThreadRecord {
    /// Durations of the calls of [`Worker::send`], also of those in which datagrams were only
    /// staged or were refused.
    pub(crate) send: Latency,
    /// For each timed batch: the time from the first call for the batch until the thread may go on
    /// to the next batch. This time includes calls that were refused, waits for room, and giving
    /// way to other threads. A batch of which no datagram was accepted is not included.
    pub(crate) accept: Latency,
    /// Durations of waits for room.
    pub(crate) wait: Latency,
    /// Number of calls that were refused because there was no room.
    pub(crate) refused: u64,
    /// Number of datagrams lost because a call failed, by reason, over the whole round.
    pub(crate) lost: BTreeMap<&'static str, u64>,
    /// The error of the first call that failed.
    pub(crate) error: Option<io::Error>,
}

/// Sends with `worker`, one flow after another, until the phase is [`Phase::Stop`].
pub(crate) fn drive<W: Worker>(worker: &mut W, cx: &ThreadCx<'_>) -> ThreadRecord {
    let (size, batch) = (cx.plan.size, worker.batch());
    // To verify datagrams, each flow needs bytes of its own; otherwise all flows send the same.
    let distinct = if cx.plan.verify { cx.submitted.len() } else { 1 };
    let mut payloads: Vec<Vec<u8>> = (0..distinct)
        .map(|flow| stamp::template(cx.first_flow + flow, size).repeat(batch))
        .collect();
    let mut record = ThreadRecord {
        send: latency(),
        accept: latency(),
        wait: latency(),
        refused: 0,
        lost: BTreeMap::new(),
        error: None,
    };
    let mut sampler = Sampler::new(cx.thread);
    let mut flow = 0;
    // `first` is the time of the first call for the current batch, or `None` if this batch is not
    // timed. `tried` says whether an earlier call for this batch was refused.
    let (mut first, mut tried) = (None, false);
    cx.gate.wait();
    loop {
        let phase = cx.phase.get();
        if phase == Phase::Stop {
            return record;
        }
        let payload = &mut payloads[flow.min(distinct - 1)];
        if cx.plan.verify {
            let next = cx.submitted[flow].0.get();
            for (datagram, sequence) in payload.chunks_exact_mut(size).zip(next..) {
                stamp::set_sequence(datagram, sequence);
            }
        }
        let started = sampler.take().then(|| MonotonicClock.now());
        if !tried {
            first = started.filter(|_| phase == Phase::Measure);
        }
        let taken = worker.send(flow, payload, size);
        if let Some(started) = started
            && phase == Phase::Measure
        {
            record.send.saturating_record(MonotonicClock.now().since(started));
        }
        cx.calls.0.add(1);
        tried = matches!(taken, Taken::Full);
        match taken {
            Taken::Datagrams(count) => {
                cx.submitted[flow].0.add(count as u64);
                flow = if flow + 1 == cx.submitted.len() { 0 } else { flow + 1 };
                worker.give_way();
                if let Some(first) = first {
                    record.accept.saturating_record(MonotonicClock.now().since(first));
                }
            }
            Taken::Full => {
                let started = MonotonicClock.now();
                worker.wait(flow, size);
                if phase == Phase::Measure {
                    record.refused += 1;
                    record.wait.saturating_record(MonotonicClock.now().since(started));
                }
            }
            Taken::Lost(count, error) => {
                cx.submitted[flow].0.add(count as u64);
                *record.lost.entry(reason(&error).name()).or_default() += count as u64;
                record.error.get_or_insert(error);
            }
        }
    }
}

/// Returns the drop reason that stands for the error of a call that sends.
fn reason(error: &io::Error) -> DropReason {
    use rustix::io::Errno;
    let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<TrySendError>());
    if let Some(TrySendError::PortDead) = refusal {
        return DropReason::PortDead;
    }
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOBUFS | Errno::NOMEM) => DropReason::NoBuffers,
        Some(Errno::CONNREFUSED) => DropReason::Refused,
        Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN) => DropReason::Unreachable,
        Some(Errno::MSGSIZE) => DropReason::MessageSize,
        Some(Errno::PERM | Errno::ACCESS) => DropReason::NoPermission,
        _ => DropReason::DeviceError,
    }
}

/// Picks one call in sixteen at random, to be timed. If every sixteenth call were timed, and the
/// link did work after every 64 calls, the timed calls would miss that work always or never.
#[derive(Debug)]
struct Sampler {
    state: u64,
    left: u32,
}

impl Sampler {
    fn new(thread: usize) -> Self {
        // Multiplying the counter by a large odd number gives every thread a different seed, which
        // is not zero.
        let seed = (thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { state: seed, left: 0 }
    }

    #[inline]
    fn take(&mut self) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        // xorshift64 (Marsaglia 2003) draws how many calls are skipped before the next timed call:
        // 0 to 30, 15 on average.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.left = u32::try_from(self.state % 31).unwrap_or(0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::planted;

    /// The time that each wait after a refused call lasts at least, in nanoseconds.
    const STEP_NS: u64 = 20_000;

    /// A worker that refuses each datagram twice and accepts it at the third call.
    struct Refusing<'a> {
        phase: &'a PhaseCell,
        calls: u64,
    }

    impl Worker for Refusing<'_> {
        fn batch(&self) -> usize {
            1
        }

        fn send(&mut self, _flow: usize, _payload: &[u8], _size: usize) -> Taken {
            self.calls += 1;
            if self.calls == 3_000 {
                self.phase.set(Phase::Stop);
            }
            if self.calls.is_multiple_of(3) { Taken::Datagrams(1) } else { Taken::Full }
        }

        fn wait(&mut self, _flow: usize, _size: usize) {
            let until = MonotonicClock.now().after(STEP_NS);
            while MonotonicClock.now() < until {}
        }

        /// Takes longer than some waits.
        fn give_way(&mut self) {
            self.wait(0, 0);
        }
    }

    #[test]
    fn acceptance_begins_with_the_first_try() {
        let (plan, gate, phase) = (planted::plan(), Gate::default(), PhaseCell::new());
        let (submitted, calls) = ([Measurement::default()], Measurement::default());
        let cx = ThreadCx {
            plan: &plan,
            gate: &gate,
            phase: &phase,
            thread: 0,
            first_flow: 0,
            submitted: &submitted,
            calls: &calls,
        };
        gate.open();
        phase.set(Phase::Measure);
        let record = drive(&mut Refusing { phase: &phase, calls: 0 }, &cx);
        assert_eq!((submitted[0].0.get(), record.refused), (1_000, 2_000));
        assert!((1..1_000).contains(&record.accept.len()), "{}", record.accept.len());
        // Each datagram was refused twice, and waited at least `STEP_NS` each time and once more
        // to give way. The limit is 99 % of the three, because the histogram is precise to 1 %.
        assert!(record.accept.min() * 100 >= 3 * STEP_NS * 99, "{}", record.accept.min());
        assert_eq!(record.wait.len(), record.refused, "to give way is no wait for room");
    }

    #[test]
    fn one_call_in_sixteen_is_sampled() {
        let mut sampler = Sampler::new(7);
        let taken = (0..160_000).filter(|_| sampler.take()).count();
        assert!((9_700..10_300).contains(&taken), "{taken}");
    }
}
