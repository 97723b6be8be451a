//! Records how queues and rates developed over time, in a limited amount of memory.

use std::collections::HashMap;

use onramp_sim::Fate;

use super::since_first;

/// Largest number of parts into which the time of a replay is divided. If a replay takes longer,
/// each two neighbouring parts are merged, so that each part becomes twice as wide.
const CELLS: usize = 512;
/// Width of each part of the time at the beginning, in nanoseconds.
const WIDTH_NS: u64 = 1_000_000;
/// Number of flows whose rates over time are recorded: the first flows whose packets are sent.
const FLOWS: usize = 1_024;

/// What happened in one part of the time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    /// Number of packets that came to the tree of qdiscs in this part of the time; and the sum and
    /// the maximum of the queue lengths, in packets, that these packets met there.
    pub(crate) came: u64,
    pub(crate) queue_sum: u64,
    pub(crate) queue_most: u32,
    /// Number of packets that entered the tree of qdiscs in this part of the time, and number of
    /// those that left it, because they were sent or dropped. Copies that a qdisc makes count, too.
    /// Packets that are in the tree at the end count in neither.
    pub(crate) entered: u64,
    pub(crate) left: u64,
    /// Number of packets that were sent in this part of the time, their bytes, and the sum and the
    /// maximum of their sojourn times in nanoseconds.
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) sojourn_sum_ns: u128,
    pub(crate) sojourn_most_ns: u64,
}

impl Cell {
    fn add(&mut self, other: &Self) {
        self.came += other.came;
        self.queue_sum += other.queue_sum;
        self.queue_most = self.queue_most.max(other.queue_most);
        self.entered += other.entered;
        self.left += other.left;
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.sojourn_sum_ns += other.sojourn_sum_ns;
        self.sojourn_most_ns = self.sojourn_most_ns.max(other.sojourn_most_ns);
    }
}

/// What happened in each part of the time, from the first packet on.
#[derive(Debug)]
pub(crate) struct Timeline {
    width_ns: u64,
    cells: Vec<Cell>,
    /// Number of bytes sent in each part of the time, by flow key.
    flows: HashMap<u64, Vec<u64>>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { width_ns: WIDTH_NS, cells: Vec::new(), flows: HashMap::new() }
    }
}

impl Timeline {
    pub(super) fn note(&mut self, fate: &Fate) {
        let at = self.place(since_first(fate.at));
        // The time at which the packet came is no later than that at which it left, so this call of
        // `place` does not make the parts wider, and the index `at` stays valid.
        let came = self.place(since_first(fate.came));
        self.cells[at].left += 1;
        let cell = &mut self.cells[came];
        cell.entered += 1;
        if !fate.copy {
            cell.came += 1;
            cell.queue_sum += u64::from(fate.met.packets);
            cell.queue_most = cell.queue_most.max(fate.met.packets);
        }
        if fate.arrives.is_none() {
            return;
        }
        let bytes = u64::from(fate.packet.len);
        let cell = &mut self.cells[at];
        cell.sent += 1;
        cell.sent_bytes += bytes;
        cell.sojourn_sum_ns += u128::from(fate.sojourn_ns());
        cell.sojourn_most_ns = cell.sojourn_most_ns.max(fate.sojourn_ns());
        let room = self.flows.len() < FLOWS;
        let flow = match self.flows.get_mut(&fate.packet.flow) {
            Some(flow) => flow,
            None if room => self.flows.entry(fate.packet.flow).or_default(),
            None => return,
        };
        if flow.len() <= at {
            flow.resize(at + 1, 0);
        }
        flow[at] += bytes;
    }

    /// Returns the index of the part of the time that contains the time `ns`, in nanoseconds. If
    /// that index would be too large, makes the parts wider.
    fn place(&mut self, ns: u64) -> usize {
        while ns / self.width_ns >= CELLS as u64 {
            self.widen();
        }
        let place = usize::try_from(ns / self.width_ns).unwrap_or(CELLS - 1);
        if self.cells.len() <= place {
            self.cells.resize(place + 1, Cell::default());
        }
        place
    }

    fn widen(&mut self) {
        self.width_ns = self.width_ns.saturating_mul(2);
        let pairs = self.cells.chunks(2).map(|pair| {
            let mut sum = pair[0];
            pair[1..].iter().for_each(|cell| sum.add(cell));
            sum
        });
        self.cells = pairs.collect();
        for flow in self.flows.values_mut() {
            *flow = flow.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
    }

    /// Returns the width of a part of the time in nanoseconds.
    pub(crate) fn width_ns(&self) -> u64 {
        self.width_ns
    }

    /// Returns all parts of the time.
    pub(crate) fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Returns the number of bytes that a flow sent in each part of the time; `None` if the rate of
    /// this flow is not recorded.
    pub(crate) fn flow(&self, key: u64) -> Option<impl Iterator<Item = u64> + use<'_>> {
        let flow = self.flows.get(&key)?;
        let rest = self.cells.len().saturating_sub(flow.len());
        Some(flow.iter().copied().chain(std::iter::repeat_n(0, rest)))
    }
}

#[cfg(test)]
mod tests {
    use onramp_core::qdisc::Backlog;
    use onramp_queue::Packet;
    use onramp_sim::BEGIN;

    use super::*;

    fn fate(flow: u64, came: u64, at: u64) -> Fate {
        let mut packet = Packet::new(100);
        packet.flow = flow;
        let at = BEGIN.after(at);
        let met = Backlog { packets: 7, bytes: 700 };
        let (came, arrives) = (BEGIN.after(came), Some(at));
        Fate { packet, source: 0, came, met, at, arrives, ecn: 0, marked: false, copy: false }
    }

    #[test]
    fn however_long_it_takes_nothing_is_lost_and_memory_is_bounded() {
        let mut timeline = Timeline::default();
        for second in 0..100_000 {
            let at = second * 1_000_000_000;
            timeline.note(&fate(second % 3, at, at + 500));
        }
        assert!((CELLS / 2..=CELLS).contains(&timeline.cells().len()));
        let sum: u64 = timeline.cells().iter().map(|cell| cell.sent_bytes).sum();
        let flows: u64 = (0..3).filter_map(|flow| Some(timeline.flow(flow)?.sum::<u64>())).sum();
        assert_eq!((sum, flows), (10_000_000, 10_000_000));
        let came: u64 = timeline.cells().iter().map(|cell| cell.came).sum();
        assert_eq!(came, 100_000);
        let sum = |of: fn(&Cell) -> u64| timeline.cells().iter().map(of).sum::<u64>();
        assert_eq!((sum(|cell| cell.entered), sum(|cell| cell.left)), (100_000, 100_000));
        let cell = timeline.cells()[5];
        assert_eq!(
            (cell.queue_most, cell.queue_sum, cell.sojourn_most_ns),
            (7, cell.came * 7, 500)
        );
        assert_eq!(timeline.flow(0).expect("kept").count(), timeline.cells().len());
        // The last packet left more than 99,999 s after the first. All parts of the time together
        // must reach this far.
        assert!(timeline.width_ns() * timeline.cells().len() as u64 > 99_999_000_000_000);
    }

    #[test]
    fn of_very_many_flows_the_first_are_kept() {
        let mut timeline = Timeline::default();
        (0..100_000).for_each(|flow| timeline.note(&fate(flow, 0, 0)));
        assert_eq!(timeline.flows.len(), FLOWS);
        assert!(timeline.flow(0).is_some() && timeline.flow(99_999).is_none());
        assert_eq!(timeline.cells()[0].sent, 100_000);
    }
}
