//! What a link counts, as one value.

use std::collections::BTreeMap;

use onramp_core::stats::PortSnapshot as Port;
use onramp_queue::{Bell, Counter, DropReason};

use crate::runner::RunnerStats;

pub use onramp_core::stats::PortSnapshot;

/// What one sender counts. Written by its thread alone.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct SenderCounters {
    pub(crate) submitted: Counter,
    pub(crate) refused: Counter,
    /// Packets that a cork held back when the link was closed.
    pub(crate) purged: Counter,
    pub(crate) waits: Counter,
    pub(crate) parks: Counter,
}

/// What a link knows of a sender.
#[derive(Debug)]
pub(crate) struct SenderEnd {
    pub(crate) counters: SenderCounters,
    /// Wakes it, wherever its packets lie.
    pub(crate) bell: Bell,
}

/// Sums over senders.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    submitted: u64,
    refused: u64,
    purged: u64,
    waits: u64,
    parks: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, sender: &SenderCounters) {
        self.submitted += sender.submitted.get();
        self.refused += sender.refused.get();
        self.purged += sender.purged.get();
        self.waits += sender.waits.get();
        self.parks += sender.parks.get();
    }
}

/// What a link did so far.
///
/// At rest, `submitted + made = sent + dropped (all reasons) + held`. While packets move, `held` is
/// what makes it so, for the cells are read one after another.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkStats {
    /// Packets accepted from senders.
    pub submitted: u64,
    /// Packets that qdiscs made: the duplicates of `netem`. Nobody is told of their fate.
    pub made: u64,
    /// Packets given back to senders because the intake was at its cap.
    pub refused: u64,
    /// Packets the devices took.
    pub sent: u64,
    /// Their bytes on the wire.
    pub sent_bytes: u64,
    /// Packets dropped, by reason; reasons that occurred.
    pub dropped: BTreeMap<DropReason, u64>,
    /// Packets staged or queued now.
    pub held: u64,
    /// Times a sender had to wait for room, and times it slept for that.
    pub waits: u64,
    /// See `waits`.
    pub parks: u64,
    /// Times a runner woke.
    pub runner_wakeups: u64,
    /// Of these, those that found nothing to do: others had done it.
    pub runner_idle_wakeups: u64,
    /// Ports that runners visited.
    pub runner_visits: u64,
    /// Rounds that a runner went on without sleeping.
    pub runner_restarts: u64,
    /// Times another thread took over a runner that a device kept.
    pub runner_stand_ins: u64,
    /// Of these, times no thread could be had to watch from then on: too many devices block, or the
    /// system has no more threads. Until one is back, the timers of other ports may wait.
    pub runner_unwatched: u64,
    /// Times a port asked for a runner.
    pub runner_calls: u64,
    /// Of these, those that had to wake one. The rest found it awake, or about to come in time.
    pub runner_notifies: u64,
    /// By port.
    pub ports: Vec<PortSnapshot>,
}

impl LinkStats {
    pub(crate) fn new(ports: Vec<Port>, totals: Totals) -> Self {
        let mut dropped = BTreeMap::new();
        for (reason, n) in ports.iter().flat_map(|port| &port.dropped) {
            *dropped.entry(*reason).or_default() += n;
        }
        if totals.purged > 0 {
            *dropped.entry(DropReason::Purged).or_default() += totals.purged;
        }
        let sent = ports.iter().map(|port| port.sent).sum();
        let out: u64 = sent + dropped.values().sum::<u64>();
        let made: u64 = ports.iter().map(|port| port.made).sum();
        Self {
            // A sender counts after its push, when the packet may be out already.
            submitted: totals.submitted.max(out.saturating_sub(made)),
            made,
            refused: totals.refused,
            sent,
            sent_bytes: ports.iter().map(|port| port.sent_bytes).sum(),
            dropped,
            held: ports.iter().map(|port| port.held).sum(),
            waits: totals.waits,
            parks: totals.parks,
            runner_wakeups: 0,
            runner_idle_wakeups: 0,
            runner_visits: 0,
            runner_restarts: 0,
            runner_stand_ins: 0,
            runner_unwatched: 0,
            runner_calls: 0,
            runner_notifies: 0,
            ports,
        }
    }

    pub(crate) fn add_runner(&mut self, runner: &RunnerStats) {
        self.runner_wakeups += runner.wakeups.get();
        self.runner_idle_wakeups += runner.idle.get();
        self.runner_visits += runner.visits.get();
        self.runner_restarts += runner.restarts.get();
        self.runner_stand_ins += runner.stand_ins.get();
        self.runner_unwatched += runner.unwatched.get();
    }

    pub(crate) fn add_calls(&mut self, (calls, notifies): (u64, u64)) {
        self.runner_calls += calls;
        self.runner_notifies += notifies;
    }

    /// Packets dropped, for any reason.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use onramp_core::Spec;

    use super::*;

    /// A port that counted nothing, and what it says then.
    fn port() -> Port {
        let spec: Spec = "pfifo".parse().expect("a qdisc");
        onramp_core::Port::new(spec.build(1_514), onramp_dev::Null::default(), 9).snapshot()
    }

    /// Each field has a number of its own, so that none can stand for another.
    #[test]
    fn a_link_sums_up_its_ports_and_senders() {
        let (mut first, mut second) = (port(), port());
        (first.made, first.sent, first.sent_bytes, first.held) = (1, 20, 300, 4_000);
        first.dropped = vec![(DropReason::Overlimit, 5), (DropReason::Congested, 6)];
        (second.made, second.sent, second.sent_bytes, second.held) = (2, 40, 500, 6_000);
        second.dropped = vec![(DropReason::Overlimit, 7)];
        let mut totals = Totals::default();
        for times in [1, 2] {
            let sender = SenderCounters::default();
            sender.submitted.add(50_000 * times);
            sender.refused.add(11 * times);
            sender.waits.add(13 * times);
            sender.parks.add(17 * times);
            sender.purged.add(19 * times);
            totals.add(&sender);
        }
        let stats = LinkStats::new(vec![first, second], totals);
        assert_eq!((stats.submitted, stats.made, stats.refused), (150_000, 3, 33));
        assert_eq!((stats.sent, stats.sent_bytes, stats.held), (60, 800, 10_000));
        assert_eq!((stats.waits, stats.parks), (39, 51));
        let dropped =
            [(DropReason::Overlimit, 12), (DropReason::Congested, 6), (DropReason::Purged, 57)];
        assert_eq!(stats.dropped, dropped.into());
        assert_eq!(stats.dropped_total(), 75);
        assert_eq!(stats.ports.iter().map(|port| port.sent).collect::<Vec<_>>(), [20, 40]);
        // Nobody but a cork purges before a port has the packet; without, it is not named.
        let stats = LinkStats::new(vec![port()], Totals::default());
        assert!(stats.dropped.is_empty());
    }

    /// What left was submitted before, though its sender has not counted it yet; what a qdisc made
    /// was not.
    #[test]
    fn what_is_out_was_submitted() {
        let mut out = port();
        (out.made, out.sent) = (10, 70);
        out.dropped = vec![(DropReason::Overlimit, 5)];
        assert_eq!(LinkStats::new(vec![out], Totals::default()).submitted, 65);
    }

    #[test]
    fn a_link_sums_up_its_runners_and_calls() {
        let mut stats = LinkStats::new(vec![port()], Totals::default());
        for times in [1, 2] {
            let runner = RunnerStats::default();
            runner.wakeups.add(7 * times);
            runner.idle.add(11 * times);
            runner.visits.add(13 * times);
            runner.restarts.add(17 * times);
            runner.stand_ins.add(19 * times);
            runner.unwatched.add(23 * times);
            stats.add_runner(&runner);
            stats.add_calls((29 * times, 31 * times));
        }
        let runners = [
            stats.runner_wakeups,
            stats.runner_idle_wakeups,
            stats.runner_visits,
            stats.runner_restarts,
            stats.runner_stand_ins,
            stats.runner_unwatched,
        ];
        assert_eq!(runners, [21, 33, 39, 51, 57, 69]);
        assert_eq!((stats.runner_calls, stats.runner_notifies), (87, 93));
    }
}
