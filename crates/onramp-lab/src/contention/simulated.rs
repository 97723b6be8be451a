//! One run of a design on the simulated machine.
//!
//! [`run`] is called by a thread of the simulated machine. It starts the senders, which run the
//! same loop as in the laboratory's own experiment, lets them warm up and be measured, and checks
//! that no packet was lost. What the experiment itself does costs no simulated time: the clock of
//! measurements, the phases, and the counts of the device.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onramp_core::{Device, DeviceInfo, Instant, Setup, Spec, Transmitted};
use onramp_dev::Null;
use onramp_machine::{Report, hook, thread};
use onramp_queue::PacketList;

use super::design::Visit;
use super::drive::{Tally, Times, drive};
use super::{Design, Load, Manners};
use crate::Error;
use crate::lock::{Lock, Spin};
use crate::lockstat::{LockCounts, LockRow};
use crate::measure::{Departed, Gate, Latency, PhaseCell};
use crate::memory::Memory;
use crate::path::{Account, Behind, LOCKS, Notes, Path, ROOT, Seat, Sent, Worker};

/// The fewest bytes of a payload: the numbers of the sender and of the packet.
const PAYLOAD_MIN: usize = 16;
/// The senders begin at different times within this span, nanoseconds, as the seed says.
const STAGGER_NS: u64 = 2_000;
/// How long a sender that is ready waits at least before it looks again whether all are,
/// nanoseconds.
const TICK_NS: u64 = 10_000;

/// What to run.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The design.
    pub design: Design,
    /// Whether the design behaves as it did in Linux, or like Onramp.
    pub manners: Manners,
    /// The processor of each sender; `None` if the scheduler decides.
    pub senders: Vec<Option<u16>>,
    /// What the senders do: a stream, or bursts whose end they wait for.
    pub load: Load,
    /// Number of queues of the device, each with its own qdisc. Sender after sender uses the next
    /// queue.
    pub queues: usize,
    /// The qdisc in front of each queue.
    pub qdisc: Spec,
    /// Most packets of a sender in flight; `None` means the design's own default.
    pub credits: Option<u32>,
    /// Number of payload bytes of a packet; at least 16 are sent.
    pub payload: usize,
    /// Local work of the sender before each packet: what the software above the qdisc does.
    pub local_ns: u64,
    /// Work of the device for each packet.
    pub packet_ns: u64,
    /// Work of the device for each call.
    pub burst_ns: u64,
    /// How long the senders send before they are measured.
    pub warm_up_ns: u64,
    /// How long they are measured.
    pub window_ns: u64,
    /// Decides when each sender begins, within a few microseconds. Runs with different seeds show
    /// how much depends on that.
    pub seed: u64,
}

/// What happened in a run.
#[derive(Debug)]
pub struct Outcome {
    /// Number of packets that left in the measured time.
    pub sent: u64,
    /// Length of the measured time, nanoseconds.
    pub window_ns: u64,
    /// Number of packets that each sender submitted in the whole run.
    pub submitted: Vec<u64>,
    /// Number of packets dropped in the whole run, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// How often senders found no credit in the whole run.
    pub waits: u64,
    /// Durations of the send calls in the measured time that took their packet.
    pub send: Latency,
    /// Times from the first send call for a packet until its sender could go on.
    pub accept: Latency,
    /// Each lock that the design uses, in the measured time: how often threads waited for it, and
    /// for how long. A row sums up the locks of all queues, and the time to which it refers is that
    /// of all of them.
    pub locks: Vec<LockRow>,
    /// What the machine did in the measured time.
    pub report: Report,
}

impl Outcome {
    /// Returns the number of packets that left per second.
    #[must_use]
    pub fn packets_per_second(&self) -> f64 {
        if self.window_ns == 0 { 0.0 } else { self.sent as f64 * 1e9 / self.window_ns as f64 }
    }
}

/// Runs `cell` on the simulated machine to which the calling thread belongs.
///
/// # Errors
///
/// [`Error::Absent`] if the design needs a queue of another crate, [`Error::Conservation`] if
/// packets were lost, [`Error::Thread`] outside a simulation.
///
/// # Panics
///
/// Panics if there are no queues.
pub fn run(cell: &Cell) -> Result<Outcome, Error> {
    assert!(cell.queues > 0, "at least one queue");
    let threads = cell.senders.len();
    let outside = || Error::Thread(0, threads, std::io::Error::other("not inside a simulation"));
    let processors = hook::processors().ok_or_else(outside)?;
    let phase = Arc::new(PhaseCell::new());
    let departed = Departed::new(phase.clone());
    let device = |_| -> Box<dyn Device> {
        let (packet, burst) =
            (Duration::from_nanos(cell.packet_ns), Duration::from_nanos(cell.burst_ns));
        let null = Null::default().costing(packet, burst);
        Box::new(Counted { null, departed: departed.clone() })
    };
    let devices = (0..cell.queues).map(device).collect();
    let gives_way = cell.manners == Manners::Equal && threads > usize::from(processors);
    let tallies = (0..threads).map(|_| Tally::default()).collect();
    let gate = Gate::default();
    gate.open();
    let stage = Stage {
        cell: cell.clone(),
        phase,
        departed: departed.clone(),
        tallies,
        gives_way,
        gate,
        first: AtomicU64::new(u64::MAX),
        arrived: AtomicUsize::new(0),
        opens: AtomicU64::new(u64::MAX),
        watch: Watch::default(),
    };
    let tree = Setup::of(cell.qdisc.clone());
    let (credits, manners) = (cell.credits, cell.manners);
    let behind = Behind {
        tree: &tree,
        devices,
        credits,
        memory: Memory::Pool,
        manners,
        timed: false,
        departed,
    };
    cell.design.open(threads, behind, None, Arc::new(stage))?
}

/// A device that works like [`Null`], reads the headers of its packets, and counts them.
struct Counted {
    null: Null,
    departed: Departed,
}

impl Device for Counted {
    fn info(&self) -> &DeviceInfo {
        self.null.info()
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let offered = burst.len();
        // A driver reads the headers, which lie in the first line of the payload.
        let mut read = PacketList::new();
        while let Some(packet) = burst.pop_front() {
            black_box(packet.payload().first());
            read.push_back(packet);
        }
        burst.append(&mut read);
        let transmitted = self.null.transmit(burst, done, now);
        let taken = u64::from(offered - burst.len());
        self.departed.add(taken);
        transmitted
    }
}

/// The report of the machine, from the first sender that notices a change of phase.
#[derive(Debug, Default)]
struct Watch {
    began: AtomicBool,
    report: Mutex<Option<Report>>,
}

impl Watch {
    fn begins(&self) {
        // Relaxed: all simulated threads run in one real thread.
        if !self.began.swap(true, Ordering::Relaxed) {
            hook::measure();
        }
    }

    fn ends(&self) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.get_or_insert_with(hook::report);
    }
}

/// Everything that a run needs besides the path.
struct Stage {
    cell: Cell,
    phase: Arc<PhaseCell>,
    departed: Departed,
    tallies: Vec<Tally>,
    gives_way: bool,
    /// The gate of the laboratory's own experiment, which is always open here.
    gate: Gate,
    /// When the first sender was ready, picoseconds; how many are; and when they begin to send.
    first: AtomicU64,
    arrived: AtomicUsize,
    opens: AtomicU64,
    watch: Watch,
}

/// A sender with the software above the qdisc, whose work is charged before each packet.
struct Loaded<'a, W> {
    worker: W,
    stage: &'a Stage,
}

impl<W: Worker> Worker for Loaded<'_, W> {
    fn prepare(&mut self) {
        hook::work(self.stage.cell.local_ns);
    }

    fn send(&mut self, payload: &[u8]) -> Sent {
        self.worker.send(payload)
    }

    fn wait(&mut self) {
        self.worker.wait();
    }

    fn flush(&mut self) {
        self.worker.flush();
    }

    fn give_way(&mut self) {
        self.worker.give_way();
    }

    fn begin_notes(&mut self) {
        self.stage.watch.begins();
        self.worker.begin_notes();
    }

    fn end_notes(&mut self) -> Option<Notes> {
        self.worker.end_notes()
    }
}

type Record = (Times, Option<Notes>);

impl Visit for Arc<Stage> {
    type Out = Result<Outcome, Error>;

    fn path<P: Path>(self, path: P, kind: &'static str) -> Self::Out {
        let (path, threads) = (Arc::new(path), self.cell.senders.len());
        let drainer = path.consumes().then(|| {
            let (path, stage) = (path.clone(), self.clone());
            let body = move || path.consume(&stage.phase, false);
            thread::Builder::new().name("drain".to_owned()).spawn(body)
        });
        let fails = |number: usize| move |error| Error::Thread(number, threads, error);
        let drainer = drainer.transpose().map_err(fails(0))?;
        let mut senders = Vec::with_capacity(threads);
        for (number, processor) in self.cell.senders.iter().enumerate() {
            let builder = thread::Builder::new().name(format!("send-{number}"));
            let builder = processor.iter().fold(builder, |builder, at| builder.on(*at));
            let (path, stage) = (path.clone(), self.clone());
            let sender = builder.spawn(move || stage.send(&*path, number));
            senders.push(sender.map_err(fails(number + 1))?);
        }
        let records = senders.into_iter().map(thread::JoinHandle::join);
        let records = records.collect::<thread::Result<Vec<Record>>>();
        let records = records.map_err(|_| Error::Panicked)?;
        drainer.map_or(Ok(()), thread::JoinHandle::join).map_err(|_| Error::Panicked)?;
        let mut path = Arc::into_inner(path).expect("all senders have ended");
        let account = path.finish();
        self.check(&account)?;
        Ok(self.outcome(records, account, kind))
    }
}

impl Stage {
    /// Runs one sender.
    fn send<P: Path>(&self, path: &P, thread: usize) -> Record {
        let Cell { senders, queues, payload, load, credits, manners, .. } = &self.cell;
        let seat = Seat {
            thread,
            threads: senders.len(),
            queues: *queues,
            timed: true,
            asked: *credits,
            manners: *manners,
            gives_way: self.gives_way,
            phase: &self.phase,
        };
        let mut worker = Loaded { worker: path.worker(&seat), stage: self };
        self.begin(thread);
        let payload = vec![0; (*payload).max(PAYLOAD_MIN)];
        let times = drive(&mut worker, payload, &seat, *load, &self.tallies[thread], &self.gate);
        self.watch.ends();
        (times, worker.end_notes())
    }

    /// Waits until all senders are ready, and then until it is this sender's turn to begin. To open
    /// its end of a path may take a sender long, because it may wait for the others.
    ///
    /// The senders look by themselves whether it is time, because the last one would need long to
    /// wake hundreds of others.
    fn begin(&self, number: usize) {
        let now = || hook::time_ps().unwrap_or(0);
        let came = now();
        // Relaxed: all simulated threads run in one real thread.
        self.first.fetch_min(came, Ordering::Relaxed);
        // Relaxed, as above.
        if self.arrived.fetch_add(1, Ordering::Relaxed) + 1 == self.cell.senders.len() {
            // Relaxed, as above. No sender sleeps for longer than it has waited.
            let waited = came - self.first.load(Ordering::Relaxed);
            let opens = now() + waited + 2_000 * TICK_NS;
            let measure = opens + 1_000 * self.cell.warm_up_ns;
            self.phase.change_at(measure, measure + 1_000 * self.cell.window_ns);
            // Relaxed, as above.
            self.opens.store(opens, Ordering::Relaxed);
        }
        // Relaxed, as above.
        while self.opens.load(Ordering::Relaxed) == u64::MAX {
            // If all looked every tick, more threads than processors would keep those that are not
            // ready from a processor.
            let waited = (now() - came) / 1_000;
            thread::sleep(Duration::from_nanos(waited.max(TICK_NS)));
        }
        let opens = self.opens.load(Ordering::Relaxed); // Relaxed, as above.
        let begins = opens + 1_000 * stagger(self.cell.seed, number);
        thread::sleep(Duration::from_nanos(begins.saturating_sub(now()) / 1_000));
    }

    fn sum(&self, figure: fn(&Tally) -> u64) -> u64 {
        self.tallies.iter().map(figure).sum()
    }

    /// Checks that every submitted packet was either sent or counted as dropped.
    fn check(&self, account: &Account) -> Result<(), Error> {
        let (submitted, at_the_door) =
            (self.sum(|tally| tally.submitted.get()), self.sum(|tally| tally.dropped.get()));
        let dropped = at_the_door + account.dropped.values().sum::<u64>();
        let Account { sent, held, .. } = *account;
        let taken = self.departed.all();
        if submitted == sent + dropped && held == 0 && taken == sent {
            return Ok(());
        }
        Err(Error::Conservation(format!(
            "{}: {submitted} submitted, but {sent} sent ({taken} by the experiment's count), \
             {dropped} dropped, {held} held",
            self.cell.design.name()
        )))
    }

    fn outcome(&self, records: Vec<Record>, account: Account, kind: &'static str) -> Outcome {
        let mut dropped = account.dropped;
        let at_the_door = self.sum(|tally| tally.dropped.get());
        if at_the_door > 0 {
            dropped.insert(self.cell.design.door(), at_the_door);
        }
        let row = |at: usize| LockRow {
            name: LOCKS[at].to_owned(),
            kind: if at == ROOT { kind } else { Spin::KIND },
            counts: LockCounts::default(),
            window_ns: self.cell.window_ns * self.cell.queues as u64,
        };
        let mut locks: Vec<_> = (0..LOCKS.len()).map(row).collect();
        let (mut send, mut accept) = (Latency::default(), Latency::default());
        for (times, notes) in records {
            send.merge(&times.send);
            accept.merge(&times.accept);
            for (row, lock) in locks.iter_mut().zip(notes.iter().flat_map(|notes| &notes.locks)) {
                row.counts.merge(&lock.counts());
            }
        }
        locks.retain(|row| row.counts.acquired + row.counts.contended > 0);
        let report = self.watch.report.lock().unwrap_or_else(PoisonError::into_inner).take();
        Outcome {
            sent: self.departed.measured(),
            window_ns: self.cell.window_ns,
            submitted: self.tallies.iter().map(|tally| tally.submitted.get()).collect(),
            dropped,
            waits: self.sum(|tally| tally.waits.get()),
            send,
            accept,
            locks,
            report: report.unwrap_or_default(),
        }
    }
}

/// Returns when a sender begins, nanoseconds.
///
/// Source of the mixing: Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.
fn stagger(seed: u64, thread: usize) -> u64 {
    let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(thread as u64 + 1);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % STAGGER_NS
}
