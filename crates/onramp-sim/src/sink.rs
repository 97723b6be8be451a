//! The receiving end: counts what became of packets, in total and by flow.

use std::collections::BTreeMap;

use onramp_core::Instant;
use onramp_queue::DropReason;

use crate::Histogram;
use crate::fate::Fate;

/// Number of flows that a [`Sink`] counts separately by default.
const FLOWS: usize = 1 << 16;

/// Counts of the packets of one flow, or of several flows together.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Number of packets that came to the tree of qdiscs and have left it, either sent or dropped,
    /// and of those that [`Sink::note_held`] has counted. Copies are not counted.
    pub packets: u64,
    /// Number of bytes in the packets that `packets` counts.
    pub bytes: u64,
    /// Number of packets sent, copies included.
    pub sent_packets: u64,
    /// Bytes of the packets sent.
    pub sent_bytes: u64,
    /// Number of packets dropped.
    pub dropped_packets: u64,
    /// Bytes of the packets dropped.
    pub dropped_bytes: u64,
    /// Number of packets that a qdisc marked with CE, whether they were sent or dropped afterwards.
    pub marked: u64,
    /// Number of copies of packets that a qdisc made.
    pub copies: u64,
    /// Sum of the sojourn times of the packets sent, in nanoseconds.
    pub sojourn_ns: u128,
    /// The longest sojourn time of a packet sent, in nanoseconds.
    pub sojourn_most_ns: u64,
    /// The time at which the first of the counted packets came to the tree.
    pub first: Option<Instant>,
    /// The time at which the last bit of the last packet sent arrived.
    pub last: Option<Instant>,
}

impl Counts {
    fn came(&mut self, bytes: u32, at: Instant) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
    }

    fn note(&mut self, fate: &Fate) {
        let bytes = u64::from(fate.packet.len);
        if fate.copy {
            self.copies += 1;
            self.first = Some(self.first.map_or(fate.came, |first| first.min(fate.came)));
        } else {
            self.came(fate.packet.len, fate.came);
        }
        self.marked += u64::from(fate.marked);
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

    /// Returns the mean sojourn time of the packets sent, in nanoseconds; `None` if no packet was
    /// sent.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub fn sojourn_mean_ns(&self) -> Option<f64> {
        (self.sent_packets > 0).then(|| self.sojourn_ns as f64 / self.sent_packets as f64)
    }

    /// Returns the rate in bits per second, from the time at which the first packet came until the
    /// last bit arrived. `None` if fewer than two packets were sent, because they define no rate.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn sent_bits_per_second(&self) -> Option<f64> {
        let ns = self.last?.since(self.first?);
        (ns > 0 && self.sent_packets > 1).then(|| self.sent_bytes as f64 * 8e9 / ns as f64)
    }
}

/// Counts what became of packets, by flow and in total, in a limited amount of memory.
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
    /// Creates a sink that counts 65,536 flows separately.
    #[must_use]
    pub fn new() -> Self {
        Self::with_flows(FLOWS)
    }

    /// Creates a sink that counts up to `most` flows separately, those that come first. All later
    /// flows are counted together.
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

    /// Counts one packet by its fate.
    pub fn note(&mut self, fate: &Fate) {
        self.total.note(fate);
        match fate.packet.drop_reason {
            Some(reason) if fate.arrives.is_none() => self.drops[reason as usize] += 1,
            _ => self.sojourns.note(fate.sojourn_ns()),
        }
        self.flow(fate.packet.flow).note(fate);
    }

    /// Counts a packet of `bytes` bytes that came to the tree at `came` and is still there at the
    /// end: its flow wanted to send it.
    pub fn note_held(&mut self, flow: u64, bytes: u32, came: Instant) {
        self.total.came(bytes, came);
        self.flow(flow).came(bytes, came);
    }

    fn flow(&mut self, key: u64) -> &mut Counts {
        if self.flows.len() >= self.flows_most && !self.flows.contains_key(&key) {
            return &mut self.others;
        }
        self.flows.entry(key).or_default()
    }

    /// Returns the counts of all flows together.
    #[must_use]
    pub fn total(&self) -> &Counts {
        &self.total
    }

    /// Returns the histogram of the sojourn times of the packets sent, in nanoseconds.
    #[must_use]
    pub fn sojourns(&self) -> &Histogram {
        &self.sojourns
    }

    /// Returns each drop reason that occurred, with the number of packets dropped for that reason.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        let drops = DropReason::ALL.iter().map(|&reason| (reason, self.drops[reason as usize]));
        drops.filter(|(_, count)| *count > 0)
    }

    /// Returns the counts of each flow that is counted separately, by flow key.
    #[must_use]
    pub fn flows(&self) -> &BTreeMap<u64, Counts> {
        &self.flows
    }

    /// Returns the counts of the flows that are not counted separately, all of them together. These
    /// flows came when the sink already counted its largest number of flows.
    #[must_use]
    pub fn others(&self) -> &Counts {
        &self.others
    }

    /// Returns how evenly the flows were served, measured by the bytes sent: Jain's index, see
    /// [`jain`].
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "shares")]
    pub fn jain(&self) -> Option<f64> {
        jain(self.flows.values().map(|flow| flow.sent_bytes as f64))
    }

    /// Returns how fairly the flows were served, measured by the bytes sent and by the bytes that
    /// each flow wanted to send: see [`max_min_fairness`].
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "shares")]
    pub fn max_min_fairness(&self) -> Option<f64> {
        // Copies are sent too, so a flow may get more than came of it.
        let flow = |flow: &Counts| (flow.bytes.max(flow.sent_bytes) as f64, flow.sent_bytes as f64);
        max_min_fairness(&self.flows.values().map(flow).collect::<Vec<_>>())
    }
}

/// Returns Jain's index (see [`jain`]) of what each flow got, divided by its max-min fair share.
/// `flows` has what each flow wanted and what it got. In the max-min fair division of what all
/// flows got together, a flow that wants little gets all that it wants, and the other flows share
/// the rest equally. The index is 1 if the flows were served like that; a flow that got everything
/// it wanted because it wanted little does not make it smaller. `None` if no flow got anything.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a number of flows")]
pub fn max_min_fairness(flows: &[(f64, f64)]) -> Option<f64> {
    let mut wanted: Vec<f64> = flows.iter().map(|(wanted, _)| *wanted).collect();
    wanted.sort_by(f64::total_cmp);
    let mut left: f64 = flows.iter().map(|(_, got)| got).sum();
    let mut equal = f64::INFINITY;
    for (served, wanted) in wanted.iter().enumerate() {
        let share = left / (flows.len() - served) as f64;
        if *wanted > share {
            equal = share;
            break;
        }
        left -= wanted;
    }
    let wanting = flows.iter().filter(|(wanted, _)| *wanted > 0.0);
    jain(wanting.map(|(wanted, got)| got / wanted.min(equal)).filter(|share| share.is_finite()))
}

/// Returns Jain's index of fairness of `shares`: 1 if all shares are the same, 1/n if one of n has
/// everything; `None` if all shares are zero. (Jain, Chiu and Hawe, "A Quantitative Measure of
/// Fairness", 1984.)
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
    fn a_flow_that_wanted_little_and_got_it_is_not_treated_unfairly() {
        let near = |flows: &[(f64, f64)], want: f64| {
            let got = max_min_fairness(flows).expect("something was sent");
            assert!((got - want).abs() < 1e-9, "{flows:?}: {got}, not {want}");
        };
        let control = [(1.0, 1.0); 6];
        let bulk = [(500.0, 100.0); 4];
        near(&[&control[..], &bulk].concat(), 1.0);
        // Of 400 bytes, 100 were due to each flow; the first wanted more and took all.
        near(&[(1_000.0, 400.0), (100.0, 0.0), (100.0, 0.0), (100.0, 0.0)], 0.25);
        // Two flows wanted more than they got, and one got three times as much as the other.
        near(&[(500.0, 300.0), (500.0, 100.0), (2.0, 2.0)], 9.0 / (3.0 * (1.0 + 2.25 + 0.25)));
        near(&[(5.0, 5.0), (70.0, 70.0)], 1.0);
        near(&[(5.0, 5.0), (0.0, 0.0)], 1.0);
        assert_eq!(max_min_fairness(&[(5.0, 0.0), (0.0, 0.0)]), None);
        assert_eq!(max_min_fairness(&[]), None);
    }

    #[test]
    fn jain_of_known_shares() {
        assert_eq!(jain([3.0, 3.0, 3.0].into_iter()), Some(1.0));
        assert_eq!(jain([1.0, 0.0, 0.0, 0.0].into_iter()), Some(0.25));
        assert_eq!(jain([1.0, 2.0].into_iter()), Some(0.9));
        assert_eq!(jain([0.0].into_iter()), None);
        assert_eq!(jain([].into_iter()), None);
    }
}
