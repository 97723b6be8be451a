//! A trial: one run of one design with one number of threads.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use onramp_core::{Clock, Device, Instant};
use onramp_dev::{MonotonicClock, Null, NullStats};

use super::design::Visit;
use super::drive::{PAYLOAD, Tally, Times, drive};
use super::{Manners, Measurement, Plan};
use crate::device::{Card, DeviceNotes, SharedNotes};
use crate::lock::{Lock, Spin};
use crate::lockstat::LockRow;
use crate::measure::{Finally, Gate, Latency, Octaves, Phase, PhaseCell, Usage, pause};
use crate::memory::MemoryNotes;
use crate::path::{Account, Behind, LOCKS, Notes, Path, ROOT, Seat, Worker};
use crate::{Error, pin};

/// How much longer the measured window may last if no packet has left in it: a busy machine may
/// keep all senders off their processors for a while.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Stack size of a sending thread, bytes. The stack is small, because there may be hundreds of
/// threads.
const STACK: usize = 256 << 10;

/// Results of a trial.
#[derive(Debug)]
pub(crate) struct Trial {
    /// Whether locks and send calls were timed in this trial.
    pub(crate) timed: bool,
    /// Length of the measured window, seconds.
    pub(crate) seconds: f64,
    /// Number of packets that left in the measured window.
    pub(crate) sent: u64,
    pub(crate) usage: Usage,
    /// Number of packets that each thread sent in the measured window.
    pub(crate) shares: Vec<u64>,
    pub(crate) waits: u64,
    /// Number of bursts that left completely in the measured window; `None` for a stream.
    pub(crate) transactions: Option<u64>,
    /// Number of packets dropped over the whole trial, by reason.
    pub(crate) drops: BTreeMap<&'static str, u64>,
    pub(crate) send: Latency,
    pub(crate) accept: Latency,
    pub(crate) wait: Latency,
    pub(crate) transaction: Latency,
    pub(crate) staging: Latency,
    /// Staging times (from push until the owner takes the packet) as Onramp itself counts them:
    /// over the whole trial, by powers of two. `None` for other designs.
    pub(crate) staging_octaves: Option<Octaves>,
    pub(crate) batches: Octaves,
    pub(crate) device: DeviceNotes,
    pub(crate) locks: Vec<LockRow>,
    pub(crate) packets: MemoryNotes,
}

/// Everything that a trial needs besides the path.
struct Stage<'a> {
    plan: &'a Plan,
    cell: Measurement,
    timed: bool,
    phase: Arc<PhaseCell>,
    counts: Vec<Arc<NullStats>>,
    notes: SharedNotes,
    tallies: Vec<Tally>,
    cpus: Vec<usize>,
    gives_way: bool,
    patience: Duration,
}

/// Values of the counters at one moment of a trial.
struct Snapshot {
    at: Instant,
    usage: Usage,
    sent: u64,
    shares: Vec<u64>,
    waits: u64,
    transactions: u64,
}

/// Runs the design with the settings in `cell` once, and measures this run. If `timed` is true,
/// also times locks and send calls.
pub(crate) fn run(plan: &Plan, cell: Measurement, timed: bool) -> Result<Trial, Error> {
    let Measurement { design, manners, threads, credits, memory } = cell;
    let (phase, notes) = (Arc::new(PhaseCell::new()), SharedNotes::default());
    let mut counts = Vec::new();
    let device = |_| -> Box<dyn Device> {
        let null = Null::default();
        counts.push(null.stats());
        if plan.device_ns == 0 && !timed {
            return Box::new(null);
        }
        let noted = timed.then(|| (notes.clone(), phase.clone()));
        Box::new(Card::new(null, plan.device_ns, noted))
    };
    let devices = (0..plan.queues).map(device).collect();
    let tallies = (0..threads).map(|_| Tally::default()).collect();
    let allowed = pin::allowed()?;
    let gives_way = manners == Manners::Equal && threads > allowed.len();
    let cpus = if plan.pin { allowed } else { Vec::new() };
    let patience = PATIENCE;
    let stage =
        Stage { plan, cell, timed, phase, counts, notes, tallies, cpus, gives_way, patience };
    let tree = onramp_core::Setup::of(plan.qdisc.clone());
    let behind = Behind { tree: &tree, devices, credits, memory, manners, timed };
    design.open(threads, behind, None, &stage)?
}

/// Runs a trial of a path that a test has made. If no packet leaves in the measured window, the
/// window is extended by up to `patience`.
#[cfg(test)]
pub(crate) fn of_path<P: Path>(
    plan: &Plan,
    cell: Measurement,
    patience: Duration,
    path: P,
) -> Result<Trial, Error> {
    let stage = Stage {
        plan,
        cell,
        timed: false,
        phase: Arc::default(),
        counts: Vec::new(),
        notes: SharedNotes::default(),
        tallies: (0..cell.threads).map(|_| Tally::default()).collect(),
        cpus: Vec::new(),
        gives_way: false,
        patience,
    };
    (&stage).path(path, "none")
}

impl Visit for &Stage<'_> {
    type Out = Result<Trial, Error>;

    fn path<P: Path>(self, mut path: P, kind: &'static str) -> Self::Out {
        let gate = Gate::default();
        let measured = thread::scope(|scope| {
            let stops = Finally::new(|| {
                self.phase.set(Phase::Stop);
                gate.open();
            });
            if path.consumes() {
                let (path, phase, timed) = (&path, &*self.phase, self.timed);
                let builder = thread::Builder::new().name("drain".to_owned());
                builder
                    .spawn_scoped(scope, move || path.consume(phase, timed))
                    .map_err(|error| Error::Thread(0, self.cell.threads, error))?;
            }
            let mut senders = Vec::with_capacity(self.cell.threads);
            for number in 0..self.cell.threads {
                let (path, gate) = (&path, &gate);
                let builder = thread::Builder::new().name(format!("send-{number}"));
                let body = move || self.send(path, number, gate);
                match builder.stack_size(STACK).spawn_scoped(scope, body) {
                    Ok(sender) => senders.push(sender),
                    Err(error) => {
                        return Err(Error::Thread(number + 1, self.cell.threads, error));
                    }
                }
            }
            gate.gathered(self.cell.threads);
            gate.open();
            let window = self.window(&path);
            drop(stops);
            // Join all threads before returning an error: the scope itself panics if a thread that
            // was not joined has panicked.
            let joined: Vec<_> = senders.into_iter().map(thread::ScopedJoinHandle::join).collect();
            let records = joined.into_iter().collect::<thread::Result<Vec<_>>>();
            let records = records.map_err(|_| Error::Panicked)?;
            Ok((window?, records.into_iter().collect::<Result<Vec<_>, _>>()?))
        });
        let (window, records) = measured?;
        let account = path.finish();
        self.check(&account)?;
        Ok(self.trial(window, records, account, kind))
    }
}

impl Stage<'_> {
    /// Runs one sending thread.
    fn send<P: Path>(
        &self,
        path: &P,
        thread: usize,
        gate: &Gate,
    ) -> Result<(Times, Option<Notes>), Error> {
        let pinned = match self.cpus.get(thread % self.cpus.len().max(1)) {
            Some(cpu) => pin::to(*cpu),
            None => Ok(()),
        };
        let seat = Seat {
            thread,
            threads: self.cell.threads,
            queues: self.plan.queues,
            timed: self.timed,
            asked: self.cell.credits,
            manners: self.cell.manners,
            gives_way: self.gives_way,
            phase: &self.phase,
        };
        let mut worker = path.worker(&seat);
        let times =
            drive(&mut worker, [0; PAYLOAD], &seat, self.plan.load, &self.tallies[thread], gate);
        pinned?;
        Ok((times, worker.end_notes()))
    }

    fn window<P: Path>(&self, path: &P) -> Result<(Snapshot, Snapshot), Error> {
        pause(self.plan.warm_up())?;
        let start = self.snapshot(path)?;
        self.phase.set(Phase::Measure);
        loop {
            pause(self.plan.window)?;
            let end = self.snapshot(path)?;
            let ns = end.at.since(start.at);
            if end.sent > start.sent {
                return Ok((start, end));
            }
            if Duration::from_nanos(ns) >= self.plan.window + self.patience {
                let seconds = ns as f64 / 1e9;
                return Err(Error::Stalled(format!("{}, in {seconds:.1} s", self.cell)));
            }
        }
    }

    fn snapshot<P: Path>(&self, path: &P) -> Result<Snapshot, Error> {
        let share = |tally: &Tally| tally.submitted.get().saturating_sub(tally.dropped.get());
        Ok(Snapshot {
            at: MonotonicClock.now(),
            usage: Usage::now()?,
            sent: path.sent().unwrap_or_else(|| self.taken()),
            shares: self.tallies.iter().map(share).collect(),
            waits: self.tallies.iter().map(|tally| tally.waits.get()).sum(),
            transactions: self.tallies.iter().map(|tally| tally.transactions.get()).sum(),
        })
    }

    /// Returns the number of packets that the devices took, by their own count.
    fn taken(&self) -> u64 {
        self.counts.iter().map(|count| count.packets.get()).sum()
    }

    /// Checks that every submitted packet was either sent or counted as dropped, and that the
    /// device counted as many packets as the path sent.
    fn check(&self, account: &Account) -> Result<(), Error> {
        let sum = |figure: fn(&Tally) -> u64| self.tallies.iter().map(figure).sum::<u64>();
        let submitted = sum(|tally| tally.submitted.get());
        let at_the_door = sum(|tally| tally.dropped.get());
        let dropped = at_the_door + account.dropped.values().sum::<u64>();
        let Account { sent, held, .. } = account;
        let taken = if self.cell.design.is_peer() { *sent } else { self.taken() };
        if submitted == sent + dropped && *held == 0 && taken == *sent {
            return Ok(());
        }
        Err(Error::Conservation(format!(
            "{submitted} submitted, but {sent} sent ({taken} by the device's count), {dropped} \
             dropped, {held} held"
        )))
    }

    fn trial(
        &self,
        (start, end): (Snapshot, Snapshot),
        records: Vec<(Times, Option<Notes>)>,
        account: Account,
        kind: &'static str,
    ) -> Trial {
        let window_ns = end.at.since(start.at);
        let mut drops = account.dropped;
        let at_the_door = self.tallies.iter().map(|tally| tally.dropped.get()).sum();
        if at_the_door > 0 {
            drops.insert(self.cell.design.door(), at_the_door);
        }
        let mut trial = Trial {
            timed: self.timed,
            seconds: window_ns as f64 / 1e9,
            sent: end.sent - start.sent,
            usage: end.usage.since(start.usage),
            shares: end.shares.iter().zip(&start.shares).map(|(end, start)| end - start).collect(),
            waits: end.waits - start.waits,
            transactions: self.plan.load.burst().map(|_| end.transactions - start.transactions),
            drops,
            send: Latency::default(),
            accept: Latency::default(),
            wait: Latency::default(),
            transaction: Latency::default(),
            staging: Latency::default(),
            staging_octaves: account.staging,
            batches: Octaves::default(),
            device: self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            locks: Vec::new(),
            packets: account.memory,
        };
        if self.cell.design.is_product() {
            // Onramp frees packets inside its link, so the counts of freed packets come from the
            // device.
            trial.packets.merge(&trial.device.memory);
        }
        let row = |at: usize| LockRow {
            name: LOCKS[at].to_owned(),
            kind: if at == ROOT { kind } else { Spin::KIND },
            counts: crate::lockstat::LockCounts::default(),
            window_ns,
        };
        let mut locks: Vec<LockRow> = (0..LOCKS.len()).map(row).collect();
        for (times, notes) in records {
            trial.send.merge(&times.send);
            trial.accept.merge(&times.accept);
            trial.wait.merge(&times.wait);
            trial.transaction.merge(&times.transaction);
            let Some(notes) = notes else { continue };
            trial.staging.merge(&notes.staging);
            trial.batches.merge(&notes.batches);
            trial.packets.merge(&notes.memory);
            for (row, lock) in locks.iter_mut().zip(&notes.locks) {
                row.counts.merge(&lock.counts());
            }
        }
        locks.retain(|row| row.counts.acquired + row.counts.contended > 0);
        trial.locks = locks;
        trial
    }
}
