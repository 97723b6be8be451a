//! Measures the cost of a qdisc: nanoseconds per enqueue and dequeue, in one thread and without a
//! device.
//!
//! The qdisc holds a standing backlog of constant size: again and again, a burst of 32 packets is
//! dequeued, and is enqueued again for flows in random order. So the size of the backlog decides
//! whether a packet is still in the caches when it leaves, and no memory is allocated meanwhile.
//! Time is virtual and advances by 100 ns per packet.
//!
//! The qdiscs are compared with simple replacements for a qdisc: departure times in a `HashMap`,
//! and packets ordered by departure time in a `BinaryHeap` or a `BTreeMap`.

mod peer;
mod subject;

use onramp_core::qdisc::KINDS;
use onramp_core::{Instant, Tree};
use onramp_queue::{Packet, PacketList};
use std::time::Duration;

use self::peer::{Heap, Sorted};
pub use self::subject::Subject;
use crate::Error;
use crate::measure::{Rounds, Steps, is_stopped, rotated, thread_cpu_ns};

/// Number of packets that leave at once and are enqueued at once.
pub const BURST: u32 = 32;
/// Virtual time from one packet to the next, nanoseconds.
pub const PACKET_NS: u64 = 100;
/// Length of a packet, bytes.
pub const LEN: u32 = 1500;

/// Handle of the root qdisc.
const ROOT: u32 = 1;
/// Approximate time to set up a qdisc with its classes, to fill it and to warm it up, nanoseconds
/// per packet of the backlog.
const FILL_NS: u64 = 1_000;
/// Smallest standing backlog if the plan gives none, packets.
const BACKLOG_MIN: u32 = 256;
/// Number of bursts between two readings of the clock.
const BURSTS_PER_LOOK: u32 = 64;

/// A scheduler that the experiment measures: a qdisc tree or a replacement for it.
pub(crate) trait Scheduler {
    /// Enqueues packets.
    fn put(&mut self, now: Instant, packets: PacketList);

    /// Dequeues up to a burst of packets into `out`, and moves the packets dropped since the last
    /// call into `drops`.
    fn take(&mut self, now: Instant, out: &mut PacketList, drops: &mut PacketList);
}

impl Scheduler for Tree {
    fn put(&mut self, now: Instant, packets: PacketList) {
        self.enqueue_list(now, packets);
    }

    fn take(&mut self, now: Instant, out: &mut PacketList, drops: &mut PacketList) {
        let _ = self.dequeue_list(now, BURST, out);
        drops.append(&mut self.drops());
    }
}

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The subjects (qdiscs and replacements) to measure, in the order of the table.
    pub subjects: Vec<Subject>,
    /// Numbers of flows to measure with, one after another.
    pub flows: Vec<u32>,
    /// Sizes of the standing backlog to measure with, packets. If empty, the backlog has one packet
    /// per flow, but at least 256 packets.
    pub backlogs: Vec<u32>,
    /// Processor time for which each subject is measured in a round.
    pub window: Duration,
    /// Number of rounds. Each round starts with another subject.
    pub rounds: usize,
}

impl Plan {
    /// Returns approximately how long the experiment will take.
    #[must_use]
    pub fn expected(&self) -> Duration {
        let group = |(flows, backlog): (u32, u32)| {
            let filled = Duration::from_nanos(FILL_NS * u64::from(backlog));
            let steps = self.subjects_for(flows, backlog).count() * self.rounds;
            (self.window + filled).saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX))
        };
        self.groups().map(group).fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Returns the number of measurements that the experiment takes.
    #[must_use]
    pub fn steps(&self) -> usize {
        let group = |(flows, backlog)| self.subjects_for(flows, backlog).count() * self.rounds;
        self.groups().map(group).sum()
    }

    /// Returns the subjects that the experiment leaves out with some numbers of flows and backlogs,
    /// because they cannot hold so many packets: one element for each subject and bound.
    #[must_use]
    pub fn left_out(&self) -> Vec<LeftOut> {
        let mut all = Vec::<LeftOut>::new();
        for &subject in &self.subjects {
            for (flows, backlog) in self.groups() {
                let most = subject.backlog_max(flows);
                if backlog > most {
                    LeftOut::at(&mut all, subject, most).add(flows, backlog);
                }
            }
        }
        all
    }

    /// Returns the subjects that can hold a backlog of this size of so many flows.
    fn subjects_for(&self, flows: u32, backlog: u32) -> impl Iterator<Item = Subject> + '_ {
        let holds = move |subject: &Subject| subject.backlog_max(flows) >= backlog;
        self.subjects.iter().copied().filter(holds)
    }

    /// Returns the combinations of a number of flows and a backlog to measure with.
    fn groups(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.flows.iter().flat_map(|&flows| {
            let backlogs = match &*self.backlogs {
                [] => vec![flows.max(BACKLOG_MIN)],
                given => given.to_vec(),
            };
            backlogs.into_iter().map(move |backlog| (flows, backlog))
        })
    }
}

/// A subject that is left out where it cannot hold the backlog.
#[derive(Clone, Debug)]
pub struct LeftOut {
    /// The subject.
    pub subject: Subject,
    /// Number of packets that it holds at most.
    pub most: u32,
    /// Numbers of flows with which it is left out.
    pub flows: Vec<u32>,
    /// Backlogs with which it is left out, packets.
    pub backlogs: Vec<u32>,
}

impl LeftOut {
    /// Returns the element of `all` for this subject and bound, after adding it if it is missing.
    fn at(all: &mut Vec<Self>, subject: Subject, most: u32) -> &mut Self {
        let is_same = |known: &Self| (known.subject.name(), known.most) == (subject.name(), most);
        let place = all.iter().position(is_same).unwrap_or_else(|| {
            all.push(Self { subject, most, flows: Vec::new(), backlogs: Vec::new() });
            all.len() - 1
        });
        &mut all[place]
    }

    fn add(&mut self, flows: u32, backlog: u32) {
        for (list, number) in [(&mut self.flows, flows), (&mut self.backlogs, backlog)] {
            if !list.contains(&number) {
                list.push(number);
            }
        }
    }
}

/// Results of one subject in one round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Processor time of the measuring thread per packet (one enqueue and one dequeue),
    /// nanoseconds.
    pub ns_per_packet: f64,
    /// Share of the packets that were dropped.
    pub dropped_share: f64,
}

/// The measurements of one subject with one number of flows and one backlog.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Name of the subject (a qdisc or a replacement).
    pub name: &'static str,
    /// Number of flows to which the packets belong.
    pub flows: u32,
    /// Number of classes among which the packets are divided; `None` if the subject has no classes.
    pub classes: Option<u32>,
    /// Number of packets that the subject holds all the time.
    pub backlog: u32,
    /// Results of the rounds, in order.
    pub rounds: Vec<Round>,
}

impl Rounds for Measurement {
    type Round = Round;

    fn rounds(&self) -> &[Round] {
        &self.rounds
    }
}

/// Runs the experiment. Returns the measurements that have at least one round. A measurement fails
/// if its qdisc cannot be set up, holds packets back, or drops packets while it is filled. Subjects
/// are left out where they cannot hold the backlog: see [`Plan::left_out`].
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Vec<Measurement> {
    let mut cells = Vec::new();
    for (flows, backlog) in plan.groups() {
        let subjects: Vec<Subject> = plan.subjects_for(flows, backlog).collect();
        let cell = |subject: &Subject| Measurement {
            name: subject.name(),
            flows,
            classes: subject.classes(flows),
            backlog,
            rounds: Vec::new(),
        };
        let mut row: Vec<Measurement> = subjects.iter().map(cell).collect();
        let order: Vec<usize> = (0..row.len()).collect();
        for round in 0..plan.rounds {
            for &place in rotated(&order, round) {
                let cell = &mut row[place];
                let name = format!("{}, {flows} flows, backlog {backlog}", cell.name);
                let part = format!("round {}", round + 1);
                let measure = || measure(subjects[place], flows, backlog, plan.window);
                cell.rounds.extend(steps.step(name, part, measure));
            }
        }
        cells.extend(row);
    }
    cells.retain(|cell| !cell.rounds.is_empty());
    cells
}

fn measure(subject: Subject, flows: u32, backlog: u32, window: Duration) -> Result<Round, Error> {
    let mut heap = Heap::new(flows);
    let mut sorted = Sorted::new(flows);
    let mut tree;
    let scheduler: &mut dyn Scheduler = match subject {
        Subject::BinaryHeap => &mut heap,
        Subject::BTreeMap => &mut sorted,
        Subject::Kind(_) | Subject::PacedFq => {
            tree = subject.tree(flows, backlog)?;
            &mut tree
        }
    };
    turn_over(scheduler, subject, flows, backlog, window)
}

/// Dequeues packets and enqueues them again, so that the backlog keeps its length: first once for
/// each packet, to warm up, then for `window`, while it measures.
fn turn_over(
    scheduler: &mut dyn Scheduler,
    subject: Subject,
    flows: u32,
    backlog: u32,
    window: Duration,
) -> Result<Round, Error> {
    let mut keys = Keys::new(subject, flows);
    let mut now = Instant(1_000_000_000);
    let held = fill(scheduler, &mut keys, backlog, now)?;
    if held < backlog {
        let name = subject.name();
        return Err(Error::Room(format!("{name} with {flows} flows held {held} of {backlog}")));
    }
    let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
    let (mut passed, mut dropped, mut start_ns) = (0_u64, 0_u64, None);
    // `left` counts the bursts until the clock is read again, and `warming` the bursts of the
    // warm-up. `patience` counts how many further empty bursts are tolerated before the run fails.
    let (mut left, mut warming) = (BURSTS_PER_LOOK, backlog.div_ceil(BURST));
    let mut patience = backlog + 1_000;
    loop {
        now = now.after(PACKET_NS * u64::from(BURST));
        let (mut burst, mut drops) = (PacketList::new(), PacketList::new());
        scheduler.take(now, &mut burst, &mut drops);
        patience = if burst.is_empty() { patience - 1 } else { backlog + 1_000 };
        if patience == 0 {
            return Err(Error::Stalled(format!("{}, {flows} flows", subject.name())));
        }
        passed += u64::from(burst.len());
        dropped += u64::from(drops.len());
        burst.append(&mut drops);
        scheduler.put(now, keys.rename_all(burst, now));
        left -= 1;
        warming = warming.saturating_sub(1);
        if left == 0 {
            check_stop()?;
            left = BURSTS_PER_LOOK;
            if warming > 0 {
                continue;
            }
            let ran_ns = thread_cpu_ns();
            let started_ns = *start_ns.get_or_insert_with(|| {
                (passed, dropped) = (0, 0);
                ran_ns
            });
            let took_ns = ran_ns - started_ns;
            if took_ns >= window_ns && passed > 0 {
                let packets = (passed + dropped) as f64;
                let ns_per_packet = took_ns as f64 / packets;
                return Ok(Round { ns_per_packet, dropped_share: dropped as f64 / packets });
            }
        }
    }
}

/// Enqueues `backlog` packets, and enqueues a first burst again. Returns how many of the packets
/// the subject holds; it has dropped the others.
fn fill(
    scheduler: &mut dyn Scheduler,
    keys: &mut Keys,
    backlog: u32,
    now: Instant,
) -> Result<u32, Error> {
    for number in 0..backlog {
        if number.is_multiple_of(BURST * BURSTS_PER_LOOK) {
            check_stop()?;
        }
        let mut pkt = Packet::new(LEN);
        keys.rename(&mut pkt, now);
        scheduler.put(now, PacketList::from_iter([pkt]));
    }
    // A tree reports its drops with the packets that leave it.
    let (mut burst, mut drops) = (PacketList::new(), PacketList::new());
    scheduler.take(now, &mut burst, &mut drops);
    scheduler.put(now, keys.rename_all(burst, now));
    Ok(backlog - drops.len())
}

/// Fails if the run was asked to end early.
fn check_stop() -> Result<(), Error> {
    if is_stopped() { Err(Error::Stopped) } else { Ok(()) }
}

/// Chooses the flow and the priority of each packet. They are computed when needed: a prepared list
/// would fill the caches, or would contain too few of the flows.
struct Keys {
    flows: u32,
    /// Number of classes; a packet's priority selects one of them.
    classes: Option<u32>,
    random: Random,
}

impl Keys {
    fn new(subject: Subject, flows: u32) -> Self {
        Self { flows, classes: subject.classes(flows), random: Random(0x1234_5678_9ABC_DEF1) }
    }

    /// Gives a packet a random flow and a priority, and resets those fields that qdiscs change.
    #[inline]
    fn rename(&mut self, pkt: &mut Packet, now: Instant) {
        let flow = self.random.below(self.flows);
        pkt.flow = u64::from(flow + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        pkt.priority = match self.classes {
            Some(classes) => ROOT << 16 | (flow % classes + 1),
            None => flow % 3,
        };
        (pkt.enqueued_ns, pkt.drop_reason, pkt.ecn, pkt.txtime_ns) = (now.0, None, 0, 0);
    }

    #[inline]
    fn rename_all(&mut self, packets: PacketList, now: Instant) -> PacketList {
        let renamed = packets.map(|mut pkt| {
            self.rename(&mut pkt, now);
            pkt
        });
        renamed.collect()
    }
}

/// A generator of random numbers (xorshift: Marsaglia 2003).
struct Random(u64);

impl Random {
    /// Returns a random number from 0 to `below` - 1.
    #[inline]
    fn below(&mut self, below: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper half of the product of two 32-bit numbers has at most 32 bits, so the
        // conversion does not fail.
        u32::try_from(((self.0 >> 32) * u64::from(below)) >> 32).unwrap_or(0)
    }
}

/// Returns all subjects of the experiment: each kind of qdisc that keeps packets and sends them by
/// itself (unlike `plug`, which waits for a command, and `etf`, which needs departure times), and
/// the replacements to compare with.
#[must_use]
pub fn subjects() -> Vec<Subject> {
    let kinds = KINDS.iter().filter(|kind| Subject::is_measured(kind)).map(Subject::Kind);
    kinds.chain([Subject::PacedFq, Subject::BinaryHeap, Subject::BTreeMap]).collect()
}
