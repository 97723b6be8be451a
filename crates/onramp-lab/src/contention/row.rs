//! Turns trials (single runs) into figures: medians with their extremes, and ratios.

use std::collections::BTreeMap;

use super::trial::Trial;
use super::{Design, Manners, Measurement};
use crate::lockstat::LockRow;
use crate::measure::{Latency, Octaves, Percentiles, Spread, jain};
use crate::memory::{Memory, MemoryNotes};

/// The results of one design with one number of threads, over all rounds.
#[derive(Clone, Debug)]
pub struct Row {
    /// The design that was measured.
    pub design: Design,
    /// Whether the design behaved as it originally did, or like Onramp.
    pub manners: Manners,
    /// Number of sending threads in each round.
    pub threads: usize,
    /// Largest number of packets that each sender may have in flight; `None` means the design's own
    /// default.
    pub credits: Option<u32>,
    /// The allocator that packets came from.
    pub memory: Memory,
    /// Figures of the runs that do not time locks and send calls, one per round, in order.
    rounds: Vec<Figures>,
    /// Time to accept a packet in the runs that time locks and send calls, one entry per round, in
    /// order.
    accepts: Vec<Option<Percentiles>>,
    /// Number of packets dropped in all runs, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Duration of a send call that took its packet, nanoseconds. One packet in 16 is measured.
    pub send: Latency,
    /// Time to accept a packet, nanoseconds, measured for one packet in 16: from the first call for
    /// the packet until its thread may go on to the next packet. This time includes send calls that
    /// found no credit, waits for credit and yielding.
    pub accept: Latency,
    /// Duration of each wait for credit or for room in the queue, nanoseconds.
    pub wait: Latency,
    /// Time from before the first packet of a burst until all of the burst has left, nanoseconds;
    /// empty for a stream.
    pub transaction: Latency,
    /// Time from the send call until the packet enters the qdisc, nanoseconds.
    staging: Latency,
    staging_octaves: Option<Octaves>,
    /// Time from the send call until the packet reaches the device, nanoseconds.
    pub delay: Latency,
    /// Number of packets that entered the qdisc together; empty if the path does not report it.
    pub batches: Octaves,
    /// Number of packets per call of the device.
    pub bursts: Octaves,
    /// Statistics of each lock that the design uses, over all rounds.
    pub locks: Vec<LockRow>,
    /// The cost of allocating and freeing packets, over all rounds.
    pub packets: MemoryNotes,
}

/// The figures of one round, from the run that does not time locks and send calls.
#[derive(Clone, Copy, Debug)]
struct Figures {
    packets_per_second: f64,
    cpu_ns_per_packet: Option<f64>,
    cpus: f64,
    switches_per_second: f64,
    waits_per_second: f64,
    transactions_per_second: Option<f64>,
    jain: f64,
}

impl Row {
    pub(crate) fn new(cell: Measurement) -> Self {
        Self {
            design: cell.design,
            manners: cell.manners,
            threads: cell.threads,
            credits: cell.credits,
            memory: cell.memory,
            rounds: Vec::new(),
            accepts: Vec::new(),
            drops: BTreeMap::new(),
            send: Latency::default(),
            accept: Latency::default(),
            wait: Latency::default(),
            transaction: Latency::default(),
            staging: Latency::default(),
            staging_octaves: None,
            delay: Latency::default(),
            batches: Octaves::default(),
            bursts: Octaves::default(),
            locks: Vec::new(),
            packets: MemoryNotes::default(),
        }
    }

    pub(crate) fn cell(&self) -> Measurement {
        let Self { design, manners, threads, credits, memory, .. } = *self;
        Measurement { design, manners, threads, credits, memory }
    }

    /// Whether at least one run was measured.
    pub(crate) fn is_measured(&self) -> bool {
        !self.rounds.is_empty()
    }

    pub(crate) fn add(&mut self, trial: Trial) {
        for (reason, count) in &trial.drops {
            *self.drops.entry(reason).or_default() += count;
        }
        if !trial.timed {
            self.rounds.push(Figures::of(&trial));
            return;
        }
        self.send.merge(&trial.send);
        self.accept.merge(&trial.accept);
        self.accepts.push(trial.accept.percentiles());
        self.wait.merge(&trial.wait);
        self.transaction.merge(&trial.transaction);
        self.staging.merge(&trial.staging);
        if let Some(octaves) = &trial.staging_octaves {
            self.staging_octaves.get_or_insert_default().merge(octaves);
        }
        self.delay.merge(&trial.device.delay);
        self.bursts.merge(&trial.device.bursts);
        self.batches.merge(&trial.batches);
        self.packets.merge(&trial.packets);
        for lock in trial.locks {
            match self.locks.iter_mut().find(|row| row.name == lock.name) {
                Some(row) => {
                    row.counts.merge(&lock.counts);
                    row.window_ns += lock.window_ns;
                }
                None => self.locks.push(lock),
            }
        }
    }

    fn spread(&self, figure: impl Fn(&Figures) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(figure))
    }

    /// Returns the number of packets that left the device, per second.
    #[must_use]
    pub fn packets_per_second(&self) -> Option<Spread> {
        self.spread(|round| Some(round.packets_per_second))
    }

    /// Returns the user and system time of the process per packet that left the device,
    /// nanoseconds. `None` if no packet left.
    #[must_use]
    pub fn cpu_ns_per_packet(&self) -> Option<Spread> {
        self.spread(|round| round.cpu_ns_per_packet)
    }

    /// Returns the number of processors that the process kept busy.
    #[must_use]
    pub fn cpus(&self) -> Option<Spread> {
        self.spread(|round| Some(round.cpus))
    }

    /// Returns the number of context switches of the process, per second.
    #[must_use]
    pub fn context_switches_per_second(&self) -> Option<Spread> {
        self.spread(|round| Some(round.switches_per_second))
    }

    /// Returns how many times per second senders waited for credit or for room in the queue.
    #[must_use]
    pub fn waits_per_second(&self) -> Option<Spread> {
        self.spread(|round| Some(round.waits_per_second))
    }

    /// Returns the number of bursts that left completely, per second; `None` for a stream, which
    /// has no bursts.
    #[must_use]
    pub fn transactions_per_second(&self) -> Option<Spread> {
        self.spread(|round| round.transactions_per_second)
    }

    /// Returns Jain's fairness index of the numbers of packets that the threads sent.
    #[must_use]
    pub fn jain(&self) -> Option<Spread> {
        self.spread(|round| Some(round.jain))
    }

    /// Returns a percentile of the time to accept a packet, computed for each round, nanoseconds.
    /// `None` if no packet was accepted.
    #[must_use]
    pub fn accept_by_round(&self, percentile: fn(&Percentiles) -> u64) -> Option<Spread> {
        Spread::of(self.accepts.iter().flatten().map(|ns| percentile(ns) as f64))
    }

    /// Returns the percentiles of the time from the send call to the qdisc, nanoseconds. For the
    /// design `onramp` the link itself measures: each time that an owner takes the waiting packets,
    /// it records the time of the oldest of them, rounded up to a power of two.
    #[must_use]
    pub fn staging(&self) -> Option<Percentiles> {
        let Some(octaves) = &self.staging_octaves else { return self.staging.percentiles() };
        Some(Percentiles {
            samples: octaves.total(),
            p50: octaves.bound(0.5)?,
            p99: octaves.bound(0.99)?,
            p999: octaves.bound(0.999)?,
            max: octaves.bound(1.0)?,
        })
    }
}

impl Figures {
    fn of(trial: &Trial) -> Self {
        let cpu = trial.usage.process_ns as f64;
        Self {
            packets_per_second: trial.sent as f64 / trial.seconds,
            cpu_ns_per_packet: (trial.sent > 0).then(|| cpu / trial.sent as f64),
            cpus: cpu / 1e9 / trial.seconds,
            switches_per_second: trial.usage.switches() as f64 / trial.seconds,
            waits_per_second: trial.waits as f64 / trial.seconds,
            transactions_per_second: trial.transactions.map(|n| n as f64 / trial.seconds),
            jain: jain(&trial.shares),
        }
    }
}

/// The comparison of one design with another design that has as many threads: the figures of each
/// round, divided by the other design's figures of the same round.
#[derive(Clone, Debug)]
pub struct Ratio {
    /// The design that was measured.
    pub design: Design,
    /// Whether the two compared designs behaved as they originally did, or like Onramp.
    pub manners: Manners,
    /// Number of sending threads.
    pub threads: usize,
    /// Largest number of packets that each sender may have in flight, as in [`Row`].
    pub credits: Option<u32>,
    /// The allocator of packets, as in [`Row`].
    pub memory: Memory,
    /// Packets per second, divided by those of the design compared with.
    pub packets_per_second: Option<Spread>,
    /// CPU time per packet, divided by that of the design compared with.
    pub cpu_ns_per_packet: Option<Spread>,
    /// The 99.9th percentile of the time to accept a packet, divided by that of the design compared
    /// with.
    pub accept_p999: Option<Spread>,
}

impl Ratio {
    /// Returns the ratios of all `rows` to the corresponding rows of [`Design::BASE`]. Rows without
    /// a corresponding row are left out.
    #[must_use]
    pub fn to_base(rows: &[Row]) -> Vec<Self> {
        Self::of(rows, |_| Design::BASE)
    }

    /// Returns the ratios of all `rows` to the corresponding rows of Onramp; bare queues are
    /// compared with Onramp's bare intake. Rows without a corresponding row are left out.
    #[must_use]
    pub fn to_onramp(rows: &[Row]) -> Vec<Self> {
        let own = |row: &Row| {
            if row.design.is_peer() { Design::OnrampIntake } else { Design::Onramp }
        };
        Self::of(rows, own)
    }

    fn of(rows: &[Row], base: impl Fn(&Row) -> Design) -> Vec<Self> {
        let to = |row: &Row| {
            let design = base(row);
            let other = Measurement { design, ..row.cell() };
            let other = rows.iter().find(|row| row.cell() == other)?;
            (row.design != design).then(|| Self::between(row, other))
        };
        rows.iter().filter_map(to).collect()
    }

    /// Whether this ratio was computed from the figures of `row`, divided by another row's figures.
    #[must_use]
    pub fn is_of(&self, row: &Row) -> bool {
        let Self { design, manners, threads, credits, memory, .. } = *self;
        row.cell() == Measurement { design, manners, threads, credits, memory }
    }

    fn between(row: &Row, base: &Row) -> Self {
        let spread = |figure: fn(&Figures) -> Option<f64>| {
            let pairs = row.rounds.iter().zip(&base.rounds);
            Spread::of(pairs.filter_map(|(ours, theirs)| {
                let theirs = figure(theirs).filter(|theirs| *theirs > 0.0)?;
                Some(figure(ours)? / theirs)
            }))
        };
        Self {
            design: row.design,
            manners: row.manners,
            threads: row.threads,
            credits: row.credits,
            memory: row.memory,
            packets_per_second: spread(|round| Some(round.packets_per_second)),
            cpu_ns_per_packet: spread(|round| round.cpu_ns_per_packet),
            accept_p999: Spread::of(row.accepts.iter().zip(&base.accepts).filter_map(
                |(ours, theirs)| Some((*ours)?.p999 as f64 / (*theirs)?.p999.max(1) as f64),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceNotes;
    use crate::lockstat::LockCounts;
    use crate::measure::Usage;

    /// Returns a trial of two seconds, in which `sent` packets took `cpu_us` microseconds of CPU
    /// time.
    fn trial(timed: bool, sent: u64, cpu_us: u64) -> Trial {
        let usage = Usage { process_ns: cpu_us * 1_000, voluntary: 30, involuntary: 10 };
        let counts = LockCounts { acquired: sent, contended: 2, ..LockCounts::default() };
        let lock = LockRow { name: "root".to_owned(), kind: "spinlock", counts, window_ns: 7 };
        let mut trial = Trial {
            timed,
            seconds: 2.0,
            sent,
            usage,
            shares: vec![1, 2],
            waits: 6,
            transactions: Some(8),
            drops: BTreeMap::from([("overlimit", 1)]),
            send: Latency::default(),
            accept: Latency::default(),
            wait: Latency::default(),
            transaction: Latency::default(),
            staging: Latency::default(),
            staging_octaves: None,
            batches: Octaves::default(),
            device: DeviceNotes::default(),
            locks: vec![lock],
            packets: MemoryNotes { taken: 4, repeated: Some(1), ..MemoryNotes::default() },
        };
        trial.send.record(100);
        trial.accept.record(300);
        trial.staging.record(50);
        trial
    }

    fn row(design: Design, trials: Vec<Trial>) -> Row {
        let (manners, memory) = (Manners::Equal, Memory::Pool);
        let mut row = Row::new(Measurement { design, manners, threads: 4, credits: None, memory });
        trials.into_iter().for_each(|trial| row.add(trial));
        row
    }

    #[test]
    fn figures_come_from_rounds_without_clocks() {
        let trials = [(false, 1_000, 2), (true, 10, 10_000), (false, 500, 2)];
        let row = row(Design::Llist, trials.map(|(timed, sent, us)| trial(timed, sent, us)).into());
        let median = |spread: Option<Spread>| spread.expect("two rounds").median;
        let same = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got} is not {want}");
        same(median(row.packets_per_second()), 375.0);
        same(median(row.cpu_ns_per_packet()), 3.0);
        same(median(row.cpus()), 1e-6);
        same(median(row.context_switches_per_second()), 20.0);
        same(median(row.waits_per_second()), 3.0);
        same(median(row.transactions_per_second()), 4.0);
        same(median(row.jain()), 0.9);
        assert_eq!(row.drops["overlimit"], 3, "all trials");
    }

    #[test]
    fn tables_come_from_rounds_with_clocks() {
        let row =
            row(Design::Llist, vec![trial(true, 10, 1), trial(false, 9, 1), trial(true, 5, 1)]);
        assert_eq!(row.send.samples(), 2);
        assert_eq!(
            row.accept.percentiles().map(|ns| (ns.samples, ns.p50)),
            Some((2, 301)),
            "precise to 1 %"
        );
        assert_eq!(row.staging().expect("two").samples, 2);
        assert_eq!(row.locks.len(), 1);
        assert_eq!((row.packets.taken, row.packets.repeated), (8, Some(2)));
        let counts = row.locks[0].counts;
        assert_eq!((counts.acquired, counts.contended, row.locks[0].window_ns), (15, 4, 14));
    }

    #[test]
    fn staging_of_the_product_is_its_own_count() {
        let mut timed = trial(true, 10, 1);
        timed.staging_octaves = Some(Octaves::from_counts(&[0, 0, 0, 0, 0, 0, 0, 99, 0, 1]));
        let staging = row(Design::Onramp, vec![timed]).staging().expect("a hundred");
        let found = (staging.samples, staging.p50, staging.p99, staging.p999, staging.max);
        assert_eq!(found, (100, 128, 128, 512, 512));
    }

    #[test]
    fn a_round_without_packets_costs_nothing_per_packet() {
        let row = row(Design::Ticket, vec![trial(false, 0, 2)]);
        assert_eq!(row.cpu_ns_per_packet(), None);
        assert_eq!(row.packets_per_second().expect("a round").max, 0.0);
    }

    #[test]
    fn ratios_are_round_by_round() {
        let base = vec![trial(false, 100, 20), trial(false, 200, 20)];
        let ours = vec![trial(false, 200, 10), trial(false, 800, 16)];
        let rows = [row(Design::Busylock, base), row(Design::Onramp, ours)];
        let ratios = Ratio::to_base(&rows);
        assert_eq!(ratios.len(), 1, "the base is not compared to itself");
        let rates = ratios[0].packets_per_second.expect("two rounds");
        assert_eq!((rates.min, rates.max), (2.0, 4.0));
        let costs = ratios[0].cpu_ns_per_packet.expect("two rounds");
        assert!((costs.min - 0.2).abs() < 1e-9 && (costs.max - 0.25).abs() < 1e-9, "{costs:?}");
        let mut alone = rows[1].clone();
        alone.threads = 5;
        assert!(Ratio::to_base(&[rows[0].clone(), alone]).is_empty(), "no base with 5");
    }
}
