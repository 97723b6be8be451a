//! Runs one method in one round: starts the threads, waits until the warm-up is over, and reads the
//! counters at the beginning and at the end of the measurement.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use onramp_core::{Clock, Instant};

use super::kind::Kind;
use super::method::{
    Closing, Latency, Measurement, PathCounts, Session, ThreadCx, ThreadRecord, latency,
};
use super::plan::Plan;
use super::sink::Sinks;
use super::usage::Usage;
use super::verify::{self, Checked, Gone, OVERFLOW, Receivers, WIRE_OVERFLOW};
use onramp_dev::MonotonicClock;
use onramp_lab::measure::{Finally, Gate, Phase, PhaseCell, is_stopped, jain, pause};

/// Stack size of a sending thread in bytes; it is small because there may be thousands of threads.
const STACK: usize = 256 << 10;
/// How long a method may take, at the end of a round, to send the datagrams that it has accepted.
/// `PATIENCE_VERIFIED` is the longer time for rounds in which every datagram is verified.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_VERIFIED: Duration = Duration::from_secs(30);
/// How long all senders together may take to make their first calls.
const BEGIN_PATIENCE: Duration = Duration::from_secs(30);
/// If no datagram arrives for this time, the datagrams that have not arrived count as lost.
const SETTLE_PATIENCE: Duration = Duration::from_secs(15);
/// Pause between two looks at the counters, for a thread that waits until all senders have begun,
/// or until datagrams have arrived.
const LOOK: Duration = Duration::from_millis(1);

/// The measurements of one method in one round.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) kind: Kind,
    /// Length of the measurement in seconds. The counts below that say "in the window" cover this
    /// time only, without the warm-up.
    pub(crate) seconds: f64,
    /// Number of datagrams that the senders submitted in the window.
    pub(crate) submitted: u64,
    /// Number of datagrams that arrived in the window; `None` if that is not known.
    pub(crate) delivered: Option<u64>,
    pub(crate) usage: Usage,
    pub(crate) send: Latency,
    pub(crate) accept: Latency,
    pub(crate) wait: Latency,
    /// Number of calls in the window that were refused because there was no room.
    pub(crate) refused: u64,
    /// Mean number of datagrams in a message to the kernel; `per_call`: in a system call.
    pub(crate) per_message: f64,
    pub(crate) per_call: f64,
    /// Number of datagrams dropped over the whole round, by reason.
    pub(crate) drops: BTreeMap<&'static str, u64>,
    /// Jain's index of fairness of the flows in the window: 1 if all flows had equal shares.
    pub(crate) jain: f64,
    pub(crate) checked: Option<Checked>,
    /// The ports of the link that died, each with the message of its panic.
    pub(crate) deaths: Vec<(usize, String)>,
}

/// Runs the method `kind` once, sending to `sinks`.
pub(crate) fn run(plan: &Plan, kind: Kind, sinks: &mut Sinks) -> Result<Round> {
    let session = kind.open(plan, sinks.targets())?;
    let cells = Cells::new(plan);
    let (before, lost_before) = (sinks.dropped()?, sinks.lost_on_wire()?);
    let receivers = plan.verify.then(|| Receivers::new(plan));
    // The receiving threads get descriptors of their own for the sockets, because the counters of
    // the sinks are read at the same time.
    let sockets = sockets_for(receivers.is_some(), sinks)?;
    thread::scope(|scope| {
        let lanes = match &receivers {
            Some(receivers) => receivers.start(scope, &sockets, plan)?,
            None => Vec::new(),
        };
        // The receivers read until they are told to stop, also if this thread panics.
        let _stops = Finally::new(|| receivers.iter().for_each(|it| it.finish(false)));
        let stage =
            Stage { plan, session: &*session, cells: &cells, receivers: receivers.as_ref() };
        let measured = stage.measure(sinks);
        let patience = match (&measured, plan.verify) {
            (Err(_), _) => Duration::ZERO,
            (Ok(_), true) => PATIENCE_VERIFIED,
            (Ok(_), false) => PATIENCE,
        };
        let closing = session.finish(patience);
        let settled = match (&receivers, &measured) {
            (Some(receivers), Ok((_, records))) => {
                let lost = records.iter().flat_map(|record| record.lost.values());
                let gone = closing.held + lost.chain(closing.drops.values()).sum::<u64>();
                let due = cells.submitted().iter().sum::<u64>().saturating_sub(gone);
                settle(receivers, sinks, before.iter().sum::<u64>() + due)
            }
            _ => Ok(()),
        };
        if let Some(receivers) = &receivers {
            receivers.finish(measured.is_ok() && settled.is_ok());
        }
        let arrivals = verify::join(lanes);
        let (window, records) = measured?;
        settled?;
        let mut round = window.into_round(kind, records, &closing)?;
        if receivers.is_some() {
            let overflow = difference(&before, &sinks.dropped()?);
            let submitted = cells.submitted();
            let gone = Gone {
                overflow: &overflow,
                messages: sinks.lost_on_wire()? - lost_before,
                drops: &round.drops,
                held: closing.held,
            };
            let checked = verify::check(plan, &submitted, arrivals?, gone);
            let reasons =
                [(OVERFLOW, overflow.iter().sum()), (WIRE_OVERFLOW, checked.lost_on_wire)];
            round.drops.extend(reasons.into_iter().filter(|(_, count)| *count > 0));
            round.checked = Some(checked);
        }
        Ok(round)
    })
}

/// Waits until `due` datagrams have arrived at the sinks, whether receiving threads have read them
/// or not. On a busy machine, the kernel may deliver datagrams over veth a moment after the system
/// call that sent them.
fn settle(receivers: &Receivers, sinks: &mut Sinks, due: u64) -> Result<()> {
    let (mut arrived, mut give_up) = (0, MonotonicClock.now() + SETTLE_PATIENCE);
    loop {
        let read: u64 = receivers.delivered().iter().sum();
        let now = read + sinks.dropped()?.iter().sum::<u64>();
        if now > arrived {
            (arrived, give_up) = (now, MonotonicClock.now() + SETTLE_PATIENCE);
        }
        if arrived >= due || MonotonicClock.now() > give_up {
            return Ok(());
        }
        pause(LOOK)?;
    }
}

fn sockets_for(reading: bool, sinks: &Sinks) -> Result<Vec<UdpSocket>> {
    let sockets = if reading { sinks.sockets() } else { &[] };
    let clones = sockets.iter().map(UdpSocket::try_clone);
    clones.collect::<std::io::Result<_>>().context("cannot duplicate a sink's descriptor")
}

/// Counters that the sending threads write, and that the thread that runs the round reads.
struct Cells {
    submitted: Vec<Measurement>,
    calls: Vec<Measurement>,
}

impl Cells {
    fn new(plan: &Plan) -> Self {
        let cells = |count| (0..count).map(|_| Measurement::default()).collect();
        Self { submitted: cells(plan.flows()), calls: cells(plan.threads) }
    }

    fn submitted(&self) -> Vec<u64> {
        self.submitted.iter().map(|cell| cell.0.get()).collect()
    }
}

/// The values of all counters at one moment.
struct Snapshot {
    at: Instant,
    usage: Usage,
    submitted: Vec<u64>,
    delivered: Option<Vec<u64>>,
    calls: u64,
    path: Option<PathCounts>,
}

struct Stage<'a> {
    plan: &'a Plan,
    session: &'a dyn Session,
    cells: &'a Cells,
    receivers: Option<&'a Receivers>,
}

impl Stage<'_> {
    /// Runs the senders through the warm-up and the measurement.
    fn measure(&self, sinks: &mut Sinks) -> Result<(Window, Vec<ThreadRecord>)> {
        let (gate, phase) = (Gate::default(), PhaseCell::new());
        thread::scope(|scope| {
            let stops = Finally::new(|| {
                phase.set(Phase::Stop);
                gate.open();
            });
            let mut senders = Vec::with_capacity(self.plan.threads);
            for number in 0..self.plan.threads {
                let first_flow = number * self.plan.flows_per_thread;
                let cx = ThreadCx {
                    plan: self.plan,
                    gate: &gate,
                    phase: &phase,
                    thread: number,
                    first_flow,
                    submitted: &self.cells.submitted[first_flow..][..self.plan.flows_per_thread],
                    calls: &self.cells.calls[number],
                };
                let builder = thread::Builder::new().name(format!("send-{number}"));
                let session = self.session;
                match builder.stack_size(STACK).spawn_scoped(scope, move || session.run(&cx)) {
                    Ok(sender) => senders.push(sender),
                    Err(error) => {
                        bail!(
                            "cannot start thread {} of {}: {error}; lower --threads, or raise \
                             `ulimit -u`, kernel.threads-max or the control group's pids.max",
                            number + 1,
                            self.plan.threads
                        );
                    }
                }
            }
            gate.gathered(senders.len());
            gate.open();
            let window = self.window(&phase, sinks);
            drop(stops);
            let records = join(senders);
            Ok((window?, records?))
        })
    }

    fn window(&self, phase: &PhaseCell, sinks: &mut Sinks) -> Result<Window> {
        pause(self.plan.warm_up())?;
        self.all_began();
        let start = self.snapshot(sinks)?;
        phase.set(Phase::Measure);
        match self.receivers {
            Some(receivers) if !self.plan.stall.is_zero() => {
                let around = (self.plan.window - self.plan.stall) / 2;
                pause(around)?;
                receivers.pause();
                let stalled = pause(self.plan.stall);
                receivers.resume();
                stalled?;
                pause(around)?;
            }
            _ => pause(self.plan.window)?,
        }
        let end = self.snapshot(sinks)?;
        Ok(Window { start, end, segmented: self.session.segmented() })
    }

    /// Waits until each sender has made a call. On a busy machine that may take longer than the
    /// warm-up, and a measurement in which some senders have not begun would mean nothing.
    fn all_began(&self) {
        let give_up = MonotonicClock.now() + BEGIN_PATIENCE;
        let waiting = || self.cells.calls.iter().any(|cell| cell.0.get() == 0);
        while waiting() && MonotonicClock.now() < give_up && !is_stopped() {
            thread::sleep(LOOK);
        }
    }

    fn snapshot(&self, sinks: &mut Sinks) -> Result<Snapshot> {
        let at = MonotonicClock.now();
        let usage = Usage::now()?;
        let delivered = match self.receivers {
            Some(receivers) => Some(receivers.delivered()),
            None if sinks.sockets().is_empty() => None,
            None => Some(sinks.dropped()?),
        };
        Ok(Snapshot {
            at,
            usage,
            submitted: self.cells.submitted(),
            delivered,
            calls: self.cells.calls.iter().map(|cell| cell.0.get()).sum(),
            path: self.session.counts(),
        })
    }
}

fn join(threads: Vec<ScopedJoinHandle<'_, ThreadRecord>>) -> Result<Vec<ThreadRecord>> {
    // All threads are joined before the failure of any of them is reported.
    let joined: Vec<_> = threads.into_iter().map(ScopedJoinHandle::join).collect();
    let records = joined.into_iter().collect::<thread::Result<Vec<_>>>();
    records.map_err(|_| anyhow!("a sending thread panicked; please report this"))
}

/// The values of all counters at the beginning and at the end of the measurement.
struct Window {
    start: Snapshot,
    end: Snapshot,
    segmented: bool,
}

impl Window {
    fn into_round(
        self,
        kind: Kind,
        records: Vec<ThreadRecord>,
        closing: &Closing,
    ) -> Result<Round> {
        let submitted = difference(&self.start.submitted, &self.end.submitted);
        let delivered = match (&self.start.delivered, &self.end.delivered) {
            (Some(start), Some(end)) => Some(difference(start, end)),
            _ => None,
        };
        let total: u64 = submitted.iter().sum();
        let (per_message, per_call) = self.batches(total);
        let mut round = Round {
            kind,
            seconds: Duration::from_nanos(self.end.at.since(self.start.at)).as_secs_f64(),
            submitted: total,
            delivered: delivered.as_ref().map(|flows| flows.iter().sum()),
            usage: self.end.usage.since(self.start.usage),
            send: latency(),
            accept: latency(),
            wait: latency(),
            refused: 0,
            per_message,
            per_call,
            drops: closing.drops.clone(),
            jain: jain(delivered.as_ref().unwrap_or(&submitted)),
            checked: None,
            deaths: closing.deaths.clone(),
        };
        let mut first_error = None;
        for record in records {
            round.send.add(&record.send).context("histograms of one shape")?;
            round.accept.add(&record.accept).context("histograms of one shape")?;
            round.wait.add(&record.wait).context("histograms of one shape")?;
            round.refused += record.refused;
            for (reason, count) in record.lost {
                *round.drops.entry(reason).or_default() += count;
            }
            first_error = first_error.or(record.error);
        }
        match first_error {
            Some(error) if round.deaths.is_empty() && round.all_lost(total) => {
                Err(error).with_context(|| format!("{}: every datagram was lost", kind.name()))
            }
            _ => Ok(round),
        }
    }

    /// Returns the mean numbers of datagrams in a message to the kernel, and in a system call.
    fn batches(&self, submitted: u64) -> (f64, f64) {
        let calls = self.end.calls - self.start.calls;
        match (&self.start.path, &self.end.path) {
            (Some(start), Some(end)) => {
                let sent = end.sent - start.sent;
                (per(sent, end.messages - start.messages), per(sent, end.calls - start.calls))
            }
            _ if self.segmented => (per(submitted, calls), per(submitted, calls)),
            _ => (1.0, per(submitted, calls)),
        }
    }
}

fn per(count: u64, groups: u64) -> f64 {
    if groups == 0 { 0.0 } else { count as f64 / groups as f64 }
}

impl Round {
    fn all_lost(&self, submitted: u64) -> bool {
        self.delivered.unwrap_or(0) == 0 && self.drops.values().sum::<u64>() >= submitted
    }
}

fn difference(earlier: &[u64], later: &[u64]) -> Vec<u64> {
    later.iter().zip(earlier).map(|(later, earlier)| later - earlier).collect()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::planted;
    use super::*;

    /// A method that panics when somebody wants to know what it has sent.
    struct Secretive;

    impl Session for Secretive {
        fn run(&self, cx: &ThreadCx<'_>) -> ThreadRecord {
            cx.gate.wait();
            cx.calls.0.add(1);
            while !cx.phase.is_stop() {
                thread::yield_now();
            }
            let [send, accept, wait] = [latency(), latency(), latency()];
            ThreadRecord { send, accept, wait, refused: 0, lost: BTreeMap::new(), error: None }
        }

        fn counts(&self) -> Option<PathCounts> {
            panic!("as planned");
        }

        fn finish(self: Box<Self>, _patience: Duration) -> Closing {
            Closing::default()
        }
    }

    /// If the senders did not end, this test would never end.
    #[test]
    fn the_senders_end_if_the_measurement_panics() {
        let plan = Plan { window: Duration::from_millis(10), ..planted::plan() };
        let mut sinks = Sinks::open(&plan, None).expect("sockets");
        let cells = Cells::new(&plan);
        let stage = Stage { plan: &plan, session: &Secretive, cells: &cells, receivers: None };
        let measure = || stage.measure(&mut sinks).map(drop);
        assert!(catch_unwind(AssertUnwindSafe(measure)).is_err());
    }
}
