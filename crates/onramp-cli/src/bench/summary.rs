//! Turns the measurements of rounds into figures: medians with the least and greatest values, and
//! ratios to the method `send`.

use std::collections::BTreeMap;

use super::kind::Kind;
use super::method::{Latency, latency};
use super::round::Round;
use super::verify::Checked;
pub(crate) use onramp_lab::measure::Spread;

/// Percentiles of the durations of calls or waits, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percentiles {
    /// Number of calls or waits that were timed.
    pub(crate) samples: u64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

impl Percentiles {
    /// Returns the percentiles of `latency`; `None` if nothing was timed.
    fn of(latency: &Latency) -> Option<Self> {
        (!latency.is_empty()).then(|| Self {
            samples: latency.len(),
            p50: latency.value_at_quantile(0.5),
            p99: latency.value_at_quantile(0.99),
            p999: latency.value_at_quantile(0.999),
            max: latency.max(),
        })
    }
}

/// The figures of one method over all its rounds.
#[derive(Debug)]
pub(crate) struct MethodSummary<'a> {
    pub(crate) kind: Kind,
    /// The rounds in which this method ran, in order.
    pub(crate) rounds: Vec<&'a Round>,
    pub(crate) packets_per_second: Spread,
    pub(crate) delivered_per_second: Option<Spread>,
    /// CPU time in nanoseconds for each datagram delivered, or for each datagram submitted if the
    /// number delivered is not known.
    pub(crate) cpu_ns_per_packet: Option<Spread>,
    pub(crate) machine_cpu_ns_per_packet: Option<Spread>,
    pub(crate) jain: Spread,
    /// Percentiles, over all rounds together. `send_ns`: the durations of sending calls;
    /// `accept_ns`: the times from the first call for a batch until its thread may go on to the
    /// next batch; `wait_ns`: the waits for room.
    pub(crate) send_ns: Option<Percentiles>,
    pub(crate) accept_ns: Option<Percentiles>,
    pub(crate) wait_ns: Option<Percentiles>,
    pub(crate) drops: BTreeMap<&'static str, u64>,
}

impl<'a> MethodSummary<'a> {
    fn of(kind: Kind, rounds: &'a [Round]) -> Option<Self> {
        let rounds: Vec<&Round> = rounds.iter().filter(|round| round.kind == kind).collect();
        let spread = |figure: &dyn Fn(&Round) -> Option<f64>| {
            Spread::of(rounds.iter().filter_map(|round| figure(round)))
        };
        let (mut send, mut accept, mut wait) = (latency(), latency(), latency());
        let mut drops = BTreeMap::new();
        for round in &rounds {
            // Adding histograms cannot fail here, because all have the same bounds.
            let _ = send.add(&round.send);
            let _ = accept.add(&round.accept);
            let _ = wait.add(&round.wait);
            for (reason, count) in &round.drops {
                *drops.entry(*reason).or_default() += count;
            }
        }
        Some(Self {
            kind,
            packets_per_second: spread(&|round| Some(round.packets_per_second()))?,
            delivered_per_second: spread(&Round::delivered_per_second),
            cpu_ns_per_packet: spread(&Round::cpu_ns_per_packet),
            machine_cpu_ns_per_packet: spread(&Round::machine_cpu_ns_per_packet),
            jain: spread(&|round| Some(round.jain))?,
            send_ns: Percentiles::of(&send),
            accept_ns: Percentiles::of(&accept),
            wait_ns: Percentiles::of(&wait),
            drops,
            rounds,
        })
    }

    /// Returns the check of this method's first round whose check failed; if none failed, the check
    /// of the last round. `None` if no round was checked.
    pub(crate) fn checked(&self) -> Option<&'a Checked> {
        let mut checks = self.rounds.iter().filter_map(|round| round.checked.as_ref());
        checks.clone().find(|checked| !checked.failures.is_empty()).or_else(|| checks.next_back())
    }

    /// Returns the median of a figure that every round has.
    pub(crate) fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        Spread::of(self.rounds.iter().map(|round| figure(round))).map_or(0.0, |s| s.median)
    }
}

/// A method compared with `send`: the figures of each round divided by those of `send` in the same
/// round.
#[derive(Debug)]
pub(crate) struct Ratios {
    pub(crate) kind: Kind,
    pub(crate) packets_per_second: Option<Spread>,
    pub(crate) delivered_per_second: Option<Spread>,
    pub(crate) cpu_ns_per_packet: Option<Spread>,
    pub(crate) machine_cpu_ns_per_packet: Option<Spread>,
    /// The median duration of a sending call, over all rounds together, divided by that of `send`.
    pub(crate) send_p50: Option<f64>,
}

/// Returns the figures of every method, in the order of `kinds`, and the ratios of all other
/// methods to `send`.
pub(crate) fn summarize<'a>(
    kinds: &[Kind],
    rounds: &'a [Round],
) -> (Vec<MethodSummary<'a>>, Vec<Ratios>) {
    let methods: Vec<_> =
        kinds.iter().filter_map(|kind| MethodSummary::of(*kind, rounds)).collect();
    let base = methods.iter().find(|method| method.kind == Kind::Send);
    let others = methods.iter().filter(|method| method.kind != Kind::Send);
    let ratios = match base {
        Some(base) => others.map(|method| ratios(method, base)).collect(),
        None => Vec::new(),
    };
    (methods, ratios)
}

fn ratios(method: &MethodSummary<'_>, base: &MethodSummary<'_>) -> Ratios {
    let spread = |figure: &dyn Fn(&Round) -> Option<f64>| {
        let pairs = method.rounds.iter().zip(&base.rounds);
        Spread::of(pairs.filter_map(|(ours, theirs)| {
            let theirs = figure(theirs).filter(|theirs| *theirs > 0.0)?;
            Some(figure(ours)? / theirs)
        }))
    };
    let p50 = |method: &MethodSummary<'_>| method.send_ns.map(|ns| ns.p50 as f64);
    Ratios {
        kind: method.kind,
        packets_per_second: spread(&|round| Some(round.packets_per_second())),
        delivered_per_second: spread(&Round::delivered_per_second),
        cpu_ns_per_packet: spread(&Round::cpu_ns_per_packet),
        machine_cpu_ns_per_packet: spread(&Round::machine_cpu_ns_per_packet),
        send_p50: p50(method).zip(p50(base)).map(|(ours, theirs)| ours / theirs),
    }
}

impl Round {
    /// Returns the number of datagrams submitted per second.
    pub(crate) fn packets_per_second(&self) -> f64 {
        self.submitted as f64 / self.seconds
    }

    /// Returns the number of datagrams that arrived per second; `None` if that is not known.
    pub(crate) fn delivered_per_second(&self) -> Option<f64> {
        self.delivered.map(|delivered| delivered as f64 / self.seconds)
    }

    /// Returns the user and system time of the process for each datagram, in nanoseconds.
    pub(crate) fn cpu_ns_per_packet(&self) -> Option<f64> {
        self.per_packet(self.usage.process_ns)
    }

    /// Returns the time for which the machine's processors were busy, for each datagram, in
    /// nanoseconds.
    pub(crate) fn machine_cpu_ns_per_packet(&self) -> Option<f64> {
        self.per_packet(self.usage.machine_ns)
    }

    fn per_packet(&self, ns: u64) -> Option<f64> {
        let packets = self.delivered.unwrap_or(self.submitted);
        (packets > 0).then(|| ns as f64 / packets as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::planted;

    fn same(value: f64) -> Option<Spread> {
        Some(Spread { median: value, min: value, max: value })
    }

    #[test]
    fn figures_of_known_rounds() {
        // In the round, which lasts two seconds, 800 datagrams are submitted and half of them
        // delivered.
        let rounds = [planted::round(Kind::Onramp, 800, 100_000)];
        let (methods, ratios) = summarize(&[Kind::Onramp], &rounds);
        assert_eq!(Some(methods[0].packets_per_second), same(400.0));
        assert_eq!(methods[0].delivered_per_second, same(200.0));
        assert_eq!(methods[0].cpu_ns_per_packet, same(250.0));
        assert_eq!(methods[0].machine_cpu_ns_per_packet, same(500.0));
        assert!(ratios.is_empty(), "there is no send");
    }

    #[test]
    fn cpu_is_per_datagram_offered_where_nobody_knows_what_arrived() {
        let mut round = planted::round(Kind::Send, 800, 100_000);
        round.delivered = None;
        assert_eq!(round.cpu_ns_per_packet(), Some(125.0));
        round.delivered = Some(0);
        assert_eq!(round.cpu_ns_per_packet(), None);
    }

    #[test]
    fn ratios_are_the_method_over_send_round_by_round() {
        let mut rounds = vec![
            planted::round(Kind::Send, 100, 1_000),
            planted::round(Kind::Onramp, 800, 2_000),
            // In the second round, the methods run in another order. Each must still be compared
            // with `send` of its own round.
            planted::round(Kind::Onramp, 400, 1_000),
            planted::round(Kind::Send, 200, 4_000),
        ];
        for round in &mut rounds {
            round.send += if round.kind == Kind::Send { 100 } else { 25 };
        }
        let (_, ratios) = summarize(&[Kind::Send, Kind::Onramp], &rounds);
        assert_eq!(ratios.len(), 1);
        assert_eq!(ratios[0].kind, Kind::Onramp);
        let rates = Some(Spread { median: 5.0, min: 2.0, max: 8.0 });
        assert_eq!(ratios[0].packets_per_second, rates);
        assert_eq!(ratios[0].delivered_per_second, rates);
        // Onramp's costs are 5 nanoseconds for each datagram in both rounds; those of `send` are 20
        // and 40.
        let costs = Some(Spread { median: 0.1875, min: 0.125, max: 0.25 });
        assert_eq!(ratios[0].cpu_ns_per_packet, costs);
        assert_eq!(ratios[0].machine_cpu_ns_per_packet, costs);
        assert_eq!(ratios[0].send_p50, Some(0.25));
    }
}
