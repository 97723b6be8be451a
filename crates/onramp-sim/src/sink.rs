//! The other end: counts what became of packets, and of which flow they were.

use std::collections::BTreeMap;

use onramp_core::Instant;
use onramp_queue::DropReason;

use crate::Histogram;
use crate::sim::Fate;

/// Flows that a [`Sink`] tells apart, unless it is told otherwise.
const FLOWS: usize = 1 << 16;

/// What became of the packets of a flow.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Packets that came; those still in the tree are not known yet.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets sent, copies included.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets dropped.
    pub dropped_packets: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
    /// Packets marked with CE on their way; some may have been dropped after that.
    pub marked: u64,
    /// Copies that a qdisc made.
    pub copies: u64,
    /// Sum of the sojourns of the packets sent.
    pub sojourn_ns: u128,
    /// The longest of them.
    pub sojourn_most_ns: u64,
    /// When the first packet came, of those that are counted.
    pub first: Option<Instant>,
    /// When the last bit that was sent arrived.
    pub last: Option<Instant>,
}

impl Counts {
    fn note(&mut self, fate: &Fate) {
        let bytes = u64::from(fate.packet.len);
        if fate.copy {
            self.copies += 1;
        } else {
            self.packets += 1;
            self.bytes += bytes;
        }
        self.marked += u64::from(fate.marked);
        self.first = Some(self.first.map_or(fate.came, |first| first.min(fate.came)));
        match fate.arrives {
            None => {
                self.dropped_packets += 1;
                self.dropped_bytes += bytes;
            }
            Some(arrives) => {
                self.sent_packets += 1;
                self.sent_bytes += bytes;
                self.sojourn_ns += u128::from(fate.sojourn_ns());
                self.sojourn_most_ns = self.sojourn_most_ns.max(fate.sojourn_ns());
                self.last = self.last.max(Some(arrives));
            }
        }
    }

    /// The mean sojourn of the packets sent.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub fn sojourn_mean_ns(&self) -> Option<f64> {
        (self.sent_packets > 0).then(|| self.sojourn_ns as f64 / self.sent_packets as f64)
    }

    /// Bits sent a second, from when the first packet came until the last bit arrived; none, of
    /// fewer than two packets, which have no rate.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn sent_bits_per_second(&self) -> Option<f64> {
        let ns = self.last?.since(self.first?);
        (ns > 0 && self.sent_packets > 1).then(|| self.sent_bytes as f64 * 8e9 / ns as f64)
    }
}

/// Counts by flow, and of all together, in bounded memory.
#[derive(Debug)]
pub struct Sink {
    total: Counts,
    sojourns: Histogram,
    drops: [u64; DropReason::ALL.len()],
    flows: BTreeMap<u64, Counts>,
    flows_most: usize,
    others: Counts,
}

impl Default for Sink {
    fn default() -> Self {
        Self::new()
    }
}

impl Sink {
    /// A sink that tells 65,536 flows apart.
    #[must_use]
    pub fn new() -> Self {
        Self::with_flows(FLOWS)
    }

    /// A sink that tells the first `most` flows apart.
    #[must_use]
    pub fn with_flows(most: usize) -> Self {
        Self {
            total: Counts::default(),
            sojourns: Histogram::default(),
            drops: [0; DropReason::ALL.len()],
            flows: BTreeMap::new(),
            flows_most: most,
            others: Counts::default(),
        }
    }

    /// Counts a packet.
    pub fn note(&mut self, fate: &Fate) {
        self.total.note(fate);
        match fate.packet.drop_reason {
            Some(reason) if fate.arrives.is_none() => self.drops[reason as usize] += 1,
            _ => self.sojourns.note(fate.sojourn_ns()),
        }
        let room = self.flows.len() < self.flows_most;
        let flow = match self.flows.get_mut(&fate.packet.flow) {
            Some(flow) => flow,
            None if room => self.flows.entry(fate.packet.flow).or_default(),
            None => &mut self.others,
        };
        flow.note(fate);
    }

    /// All flows together.
    #[must_use]
    pub fn total(&self) -> &Counts {
        &self.total
    }

    /// How long packets that were sent had been in the tree, nanoseconds.
    #[must_use]
    pub fn sojourns(&self) -> &Histogram {
        &self.sojourns
    }

    /// Drops by reason, those that occurred.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        let drops = DropReason::ALL.iter().map(|&reason| (reason, self.drops[reason as usize]));
        drops.filter(|(_, count)| *count > 0)
    }

    /// The flows, by their keys.
    #[must_use]
    pub fn flows(&self) -> &BTreeMap<u64, Counts> {
        &self.flows
    }

    /// The flows that came when there were too many.
    #[must_use]
    pub fn others(&self) -> &Counts {
        &self.others
    }

    /// How evenly the flows were served, by the bytes sent: see [`jain`].
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "shares")]
    pub fn jain(&self) -> Option<f64> {
        jain(self.flows.values().map(|flow| flow.sent_bytes as f64))
    }
}

/// Jain's index of fairness: 1 when all shares are the same, 1/n when one has it all; none, if
/// nobody has anything. (Jain, Chiu and Hawe, "A Quantitative Measure of Fairness", 1984.)
#[must_use]
pub fn jain(shares: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for share in shares {
        count += 1.0;
        sum += share;
        squares += share * share;
    }
    (squares > 0.0).then(|| sum * sum / (count * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_of_known_shares() {
        assert_eq!(jain([3.0, 3.0, 3.0].into_iter()), Some(1.0));
        assert_eq!(jain([1.0, 0.0, 0.0, 0.0].into_iter()), Some(0.25));
        assert_eq!(jain([1.0, 2.0].into_iter()), Some(0.9));
        assert_eq!(jain([0.0].into_iter()), None);
        assert_eq!(jain([].into_iter()), None);
    }
}
