//! Totals of a run, by which runs with random outcomes are compared.

use std::collections::BTreeMap;

use super::{Case, Outcome};

/// Totals of a run, and percentiles of its sojourn times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Number of packets that were dropped.
    pub drops: f64,
    /// Number of packets that left with other ECN bits than they came with.
    pub marks: f64,
    /// Number of bytes sent, link headers included, by flow.
    pub flow_bytes: BTreeMap<u64, f64>,
    /// Number of packets that left after a packet that had come later than they.
    pub overtaken: f64,
    /// Mean sojourn time of the packets sent, in nanoseconds.
    pub mean_ns: f64,
    /// Median sojourn time of the packets sent, in nanoseconds.
    pub median_ns: f64,
    /// 95th percentile of the sojourn times of the packets sent, in nanoseconds.
    pub p95_ns: f64,
}

impl Totals {
    /// Returns the number of bytes that a flow sent, link headers included.
    #[must_use]
    pub fn bytes(&self, flow: u64) -> f64 {
        self.flow_bytes.get(&flow).copied().unwrap_or(0.0)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of a short run")]
    pub(super) fn of(case: &Case, outcome: &Outcome) -> Self {
        let mut totals = Self { drops: outcome.drops.len() as f64, ..Self::default() };
        let mut sojourns = Vec::with_capacity(outcome.dequeues.len());
        let mut last = 0;
        for event in &outcome.dequeues {
            let Some(arrival) = case.arrivals.get(event.packet) else { continue };
            totals.marks += f64::from(u8::from(event.ecn != arrival.ecn & 3));
            *totals.flow_bytes.entry(arrival.flow).or_default() += f64::from(arrival.len);
            totals.overtaken += f64::from(u8::from(event.packet < last));
            last = last.max(event.packet);
            sojourns.push(event.time_ns.saturating_sub(arrival.time_ns));
        }
        sojourns.sort_unstable();
        let at =
            |part: usize| sojourns.get(sojourns.len() * part / 100).map_or(0.0, |ns| *ns as f64);
        (totals.median_ns, totals.p95_ns) = (at(50), at(95));
        totals.mean_ns = sojourns.iter().sum::<u64>() as f64 / (sojourns.len().max(1)) as f64;
        totals
    }
}
