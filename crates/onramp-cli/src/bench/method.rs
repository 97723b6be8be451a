//! Ways of sending: the table, what each must do, and the loop that drives them all alike.

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

/// Datagrams in one `sendmmsg`, and segments in one message of the `gso` method.
pub(crate) const BATCH: usize = 32;

impl Kind {
    /// Descriptors it opens beside the sinks.
    pub(crate) fn files(self, plan: &Plan) -> usize {
        match self {
            Self::Send | Self::Sendmmsg | Self::Gso => plan.flows(),
            Self::Onramp | Self::OnrampInline | Self::OnrampDedicated => onramp::files(plan),
        }
    }

    /// Opens it towards `targets`, one for each flow.
    pub(crate) fn open(self, plan: &Plan, targets: &[SocketAddr]) -> Result<Box<dyn Session>> {
        match self {
            Self::Send | Self::Sendmmsg | Self::Gso => kernel::open(self, plan, targets),
            Self::Onramp => onramp::open(plan, Mode::Hybrid, targets),
            Self::OnrampInline => onramp::open(plan, Mode::Inline, targets),
            Self::OnrampDedicated => onramp::open(plan, Mode::Dedicated, targets),
        }
    }
}

/// Sockets or a link, opened for one round.
pub(crate) trait Session: Sync {
    /// Sends as `cx` says until its phase is [`Phase::Stop`].
    fn run(&self, cx: &ThreadCx<'_>) -> ThreadRecord;

    /// What the path under the senders did up to now; `None`: each call was a system
    /// call.
    fn counts(&self) -> Option<PathCounts> {
        None
    }

    /// All datagrams of a call are one message to the kernel, rather than a message each.
    fn segmented(&self) -> bool {
        false
    }

    /// Waits for what is still under way, at most `patience`, and closes.
    fn finish(self: Box<Self>, patience: Duration) -> Closing;
}

/// What a path did with the datagrams it accepted.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathCounts {
    /// Datagrams handed to the kernel.
    pub(crate) sent: u64,
    /// Messages they were in.
    pub(crate) messages: u64,
    /// System calls.
    pub(crate) calls: u64,
}

/// How a session ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closing {
    /// Datagrams that it accepted and then dropped, by reason, over the whole round.
    pub(crate) drops: BTreeMap<&'static str, u64>,
    /// Datagrams that it still held when patience ran out.
    pub(crate) held: u64,
    /// Ports that died, and of what.
    pub(crate) deaths: Vec<(usize, String)>,
}

/// A number that one sender writes and the observer reads, on lines of its own: two, because
/// processors prefetch pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Measurement(pub(crate) Counter);

/// What one sending thread gets.
#[derive(Debug)]
pub(crate) struct ThreadCx<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) gate: &'a Gate,
    pub(crate) phase: &'a PhaseCell,
    /// Number of the thread.
    pub(crate) thread: usize,
    /// Number of its first flow.
    pub(crate) first_flow: usize,
    /// Datagrams submitted, for each of its flows.
    pub(crate) submitted: &'a [Measurement],
    /// Calls made.
    pub(crate) calls: &'a Measurement,
}

/// What became of a call.
#[derive(Debug)]
pub(crate) enum Taken {
    /// So many datagrams, from the front, are on their way. At least one.
    Datagrams(usize),
    /// There is no room, nothing was taken: wait.
    Full,
    /// So many datagrams, from the front, are lost.
    Lost(usize, io::Error),
}

/// One thread's way of sending.
pub(crate) trait Worker {
    /// Datagrams in a call.
    fn batch(&self) -> usize;

    /// Makes one call, with datagrams of the thread's flow number `flow`, each `size` bytes, back
    /// to back in `payload`.
    fn send(&mut self, flow: usize, payload: &[u8], size: usize) -> Taken;

    /// Waits for room for `size` bytes of the thread's flow number `flow`, not much longer than
    /// 100 ms: so that a round ends.
    fn wait(&mut self, flow: usize, size: usize);

    /// Lets other threads run, if it is time for that; says for how long.
    fn give_way(&mut self) -> Duration {
        Duration::ZERO
    }
}

/// A histogram of nanoseconds: 1 % precise, and small enough to stay in the cache of its thread.
pub(crate) type Latency = Histogram<u64>;

/// An empty one, up to a minute.
pub(crate) fn latency() -> Latency {
    Histogram::new_with_bounds(1, 60_000_000_000, 2).expect("bounds that the crate accepts")
}

/// What one sending thread recorded during [`Phase::Measure`].
#[derive(Debug)]
pub(crate) struct ThreadRecord {
    /// Durations of calls that send, or stage and refuse.
    pub(crate) send: Latency,
    /// From the first call for a batch of datagrams, of which some were taken in the end, until the
    /// thread may go on to the next: refused calls, waits for room and giving way included.
    pub(crate) accept: Latency,
    /// Durations of waits for room.
    pub(crate) wait: Latency,
    /// Calls that found no room.
    pub(crate) refused: u64,
    /// Datagrams lost in calls, by reason: over the whole round.
    pub(crate) lost: BTreeMap<&'static str, u64>,
    /// The first error of a call.
    pub(crate) error: Option<io::Error>,
}

/// Sends with `worker`, flow after flow, until told to stop.
pub(crate) fn drive<W: Worker>(worker: &mut W, cx: &ThreadCx<'_>) -> ThreadRecord {
    let (size, batch) = (cx.plan.size, worker.batch());
    // Unless they are checked, all flows send the same bytes.
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
    // When the datagrams in hand were tried first, if that is timed; and whether they were.
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
                let away = worker.give_way().as_nanos();
                if away > 0 && phase == Phase::Measure {
                    record.wait.saturating_record(u64::try_from(away).unwrap_or(u64::MAX));
                }
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

/// The reason that an error of a send stands for.
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

/// Picks one call in sixteen, at random: a fixed stride could beat in time with batches.
#[derive(Debug)]
struct Sampler {
    state: u64,
    left: u32,
}

impl Sampler {
    fn new(thread: usize) -> Self {
        // Splitting a counter by a large odd number gives every thread its own, non-zero seed.
        let seed = (thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { state: seed, left: 0 }
    }

    #[inline]
    fn take(&mut self) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        // xorshift64 (Marsaglia 2003): gaps of 0 to 30 calls, 15 on average.
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

    /// What each refused call costs at least, nanoseconds.
    const STEP_NS: u64 = 20_000;

    /// Refuses each datagram twice.
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
        // The histogram is precise to 1 %.
        assert!(record.accept.min() * 100 >= 2 * STEP_NS * 99, "{}", record.accept.min());
    }

    #[test]
    fn one_call_in_sixteen_is_sampled() {
        let mut sampler = Sampler::new(7);
        let taken = (0..160_000).filter(|_| sampler.take()).count();
        assert!((9_700..10_300).contains(&taken), "{taken}");
    }
}
