//! What a qdisc costs: one thread, no device, nanoseconds for an enqueue and a dequeue.
//!
//! A standing backlog is turned over in bursts: 32 packets leave, and come back for flows in random
//! order. So every packet finds caches as cold as the backlog makes them, and nothing is allocated.
//! Time is virtual and goes on by 100 ns a packet.
//!
//! Beside the kinds run what one writes without a qdisc: departure times in a `HashMap`, and
//! packets by departure time in a `BinaryHeap` or a `BTreeMap`.

mod peer;
mod subject;

use onramp_core::qdisc::KINDS;
use onramp_core::{Instant, Tree};
use onramp_queue::{Packet, PacketList};
use std::time::Duration;

use self::peer::{Heap, Sorted};
pub use self::subject::Subject;
use crate::Error;
use crate::measure::{Rounds, rotated, thread_cpu_ns};

/// Packets that leave, and come, at once.
pub const BURST: u32 = 32;
/// Virtual time between two packets, nanoseconds.
pub const PACKET_NS: u64 = 100;
/// Length of a packet, bytes.
pub const LEN: u32 = 1500;

/// The handle of the root.
const ROOT: u32 = 1;
/// Packets that stand at least.
const BACKLOG_MIN: u32 = 256;
/// Bursts between two looks at the clock.
const BURSTS_PER_LOOK: u32 = 64;

/// What is measured.
pub(crate) trait Scheduler {
    /// Takes packets in.
    fn put(&mut self, now: Instant, packets: PacketList);

    /// Gives up to a burst, and what it dropped since.
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

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is measured, in the order of the table.
    pub subjects: Vec<Subject>,
    /// Numbers of flows.
    pub flows: Vec<u32>,
    /// Packets that stand; none: one for each flow, and at least 256.
    pub backlogs: Vec<u32>,
    /// Time on the processor that each is measured in a round.
    pub window: Duration,
    /// Rounds; the subjects take turns in each.
    pub rounds: usize,
}

/// What one subject did in one round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Nanoseconds of this thread on the processor, for an enqueue and a dequeue.
    pub ns_per_packet: f64,
    /// Share of the packets that were dropped.
    pub dropped_share: f64,
}

/// A subject with so many flows and so large a backlog.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Its name.
    pub name: &'static str,
    /// Flows that packets were of.
    pub flows: u32,
    /// Classes they went to; none: it has no classes.
    pub classes: Option<u32>,
    /// Packets that stood.
    pub backlog: u32,
    /// Its rounds, in order.
    pub rounds: Vec<Round>,
}

impl Rounds for Measurement {
    type Round = Round;

    fn rounds(&self) -> &[Round] {
        &self.rounds
    }
}

/// Runs the experiment; tells `told` what it is about to do.
///
/// # Errors
///
/// [`Error`] when packets were lost, or a qdisc holds them back.
pub fn run(plan: &Plan, mut told: impl FnMut(&str)) -> Result<Vec<Measurement>, Error> {
    let mut cells = Vec::new();
    for &flows in &plan.flows {
        let backlogs = match &*plan.backlogs {
            [] => vec![flows.max(BACKLOG_MIN)],
            given => given.to_vec(),
        };
        for backlog in backlogs {
            let cell = |subject: &Subject| Measurement {
                name: subject.name(),
                flows,
                classes: subject.classes(flows),
                backlog,
                rounds: Vec::new(),
            };
            let mut row: Vec<Measurement> = plan.subjects.iter().map(cell).collect();
            let order: Vec<usize> = (0..row.len()).collect();
            for round in 0..plan.rounds {
                for &place in rotated(&order, round) {
                    let name = row[place].name;
                    told(&format!("{name}, {flows} flows, round {}", round + 1));
                    let round = measure(plan.subjects[place], flows, backlog, plan.window)?;
                    row[place].rounds.push(round);
                }
            }
            cells.extend(row);
        }
    }
    Ok(cells)
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

/// Turns the backlog over: once to warm up, and then for a window.
fn turn_over(
    scheduler: &mut dyn Scheduler,
    subject: Subject,
    flows: u32,
    backlog: u32,
    window: Duration,
) -> Result<Round, Error> {
    let mut keys = Keys::new(subject, flows);
    let mut now = Instant(1_000_000_000);
    for _ in 0..backlog {
        let mut pkt = Packet::new(LEN);
        keys.rename(&mut pkt, now);
        scheduler.put(now, PacketList::from_iter([pkt]));
    }
    let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
    let (mut passed, mut dropped, mut start_ns) = (0_u64, 0_u64, None);
    // So many more bursts to look at the clock after, and to go on without any packet.
    let (mut left, mut patience) = (backlog.div_ceil(BURST).max(BURSTS_PER_LOOK), backlog + 1_000);
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
        let renamed = burst.map(|mut pkt| {
            keys.rename(&mut pkt, now);
            pkt
        });
        let burst = renamed.collect();
        scheduler.put(now, burst);
        left -= 1;
        if left == 0 {
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
            left = BURSTS_PER_LOOK;
        }
    }
}

/// What the next packets are called. Made up as they come: a list of names would take up the
/// caches, or name too few of the flows.
struct Keys {
    flows: u32,
    /// Classes, which priorities name.
    classes: Option<u32>,
    random: Random,
}

impl Keys {
    fn new(subject: Subject, flows: u32) -> Self {
        Self { flows, classes: subject.classes(flows), random: Random(0x1234_5678_9ABC_DEF1) }
    }

    /// Makes a packet the next one.
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
}

/// Numbers without order (xorshift: Marsaglia 2003).
struct Random(u64);

impl Random {
    /// A number below another.
    #[inline]
    fn below(&mut self, below: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper half of the product with a number of 32 bits has no more than 32 bits.
        u32::try_from(((self.0 >> 32) * u64::from(below)) >> 32).unwrap_or(0)
    }
}

/// All that can be measured: each kind that lets packets out by itself, and what it is compared to.
#[must_use]
pub fn subjects() -> Vec<Subject> {
    let kinds = KINDS.iter().filter(|kind| Subject::is_measured(kind)).map(Subject::Kind);
    kinds.chain([Subject::PacedFq, Subject::BinaryHeap, Subject::BTreeMap]).collect()
}
