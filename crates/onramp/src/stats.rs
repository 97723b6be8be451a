//! The counters of a link as one plain value.

use std::collections::BTreeMap;
use std::sync::Arc;

use onramp_core::stats::PortSnapshot as Port;
use onramp_queue::{Bell, Counter, DropReason};

use crate::runner::RunnerStats;
use crate::sync::atomic::{AtomicU32, AtomicU64};

pub use onramp_core::stats::PortSnapshot;

/// Counters of one sender. Only the sender's own thread writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct SenderCounters {
    pub(crate) submitted: Counter,
    pub(crate) refused: Counter,
    /// Number of packets that a cork still held back when the link was closed, and that were
    /// dropped for this reason.
    pub(crate) purged: Counter,
    /// Number of packets that a cork held back when the sender cancelled them.
    pub(crate) cancelled: Counter,
    pub(crate) waits: Counter,
    pub(crate) parks: Counter,
}

/// The part of a sender that its link keeps: its counters, and the means to wake it.
#[derive(Debug)]
pub(crate) struct SenderEnd {
    pub(crate) counters: SenderCounters,
    /// The bell of the sender (a flag and a waker), by which other threads wake the sender even if
    /// no packet of it is in the link.
    pub(crate) bell: Arc<Bell>,
    /// Number of packets that the sender had out when it last looked for a credit.
    pub(crate) lacks_with: AtomicU32,
    /// When the sender's task wants to be woken to look whether packets have come home, nanoseconds
    /// on the link's clock; `u64::MAX`: it does not.
    pub(crate) looks_at: AtomicU64,
}

/// Sums of the counters of several senders.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    submitted: u64,
    refused: u64,
    purged: u64,
    cancelled: u64,
    waits: u64,
    parks: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, sender: &SenderCounters) {
        self.submitted += sender.submitted.get();
        self.refused += sender.refused.get();
        self.purged += sender.purged.get();
        self.cancelled += sender.cancelled.get();
        self.waits += sender.waits.get();
        self.parks += sender.parks.get();
    }
}

/// Counters of what a link has done since it was made. [`Link::stats`](crate::Link::stats) returns
/// them.
///
/// While no packet moves, `submitted + made = sent + dropped (all reasons) + held`. The counters
/// are read one after another, so while packets move, `submitted` may be read too low; it is then
/// raised to the number of packets that left.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkStats {
    /// Number of packets that the link accepted from senders.
    pub submitted: u64,
    /// Number of packets that qdiscs created (the duplicates of `netem`). No sender is told what
    /// became of such a packet.
    pub made: u64,
    /// Number of packets that were given back to senders because a port's intake was at its cap.
    pub refused: u64,
    /// Number of packets that the devices took.
    pub sent: u64,
    /// Number of bytes on the wire of the packets that the devices took.
    pub sent_bytes: u64,
    /// Number of packets dropped, by drop reason. Reasons that never occurred are left out.
    pub dropped: BTreeMap<DropReason, u64>,
    /// Number of packets that are staged in an intake or wait in a qdisc at present.
    pub held: u64,
    /// Number of senders at present.
    pub senders: u32,
    /// Number of packets that each sender may have in flight at present, unless it was made with
    /// [other credits](crate::Link::sender_with): the link's
    /// [credits](crate::LinkBuilder::credits), or the sender's part of the
    /// [credits of the ports](crate::LinkBuilder::credits_per_port) if that is less.
    pub credits: u32,
    /// Number of times that a sender had to wait for room. Each poll of a task that finds none
    /// counts.
    pub waits: u64,
    /// Number of times that a sender slept while it waited for room.
    pub parks: u64,
    /// Number of times that a runner woke.
    pub runner_wakeups: u64,
    /// Number of times that a runner woke and found nothing to do, because another thread had done
    /// the work.
    pub runner_idle_wakeups: u64,
    /// Number of visits of runners to ports.
    pub runner_visits: u64,
    /// Number of times that a runner started another round of visits without sleeping first.
    pub runner_restarts: u64,
    /// Number of times that another thread took over the role of a runner, because a device blocked
    /// the runner's thread.
    pub runner_stand_ins: u64,
    /// Number of takeovers of a runner's role after which no thread was left to watch the runners,
    /// because too many devices block or the system has no more threads. Until a thread is
    /// available again, the timers of other ports may be late.
    pub runner_unwatched: u64,
    /// Number of times that a port asked for a visit of a runner.
    pub runner_calls: u64,
    /// Number of requests for a visit that had to wake a runner. For the other requests, the runner
    /// was awake, or about to wake in time.
    pub runner_notifies: u64,
    /// Counters of each port, in the order of the port numbers.
    pub ports: Vec<PortSnapshot>,
}

impl LinkStats {
    pub(crate) fn new(ports: Vec<Port>, totals: Totals) -> Self {
        let mut dropped = BTreeMap::new();
        for (reason, n) in ports.iter().flat_map(|port| &port.dropped) {
            *dropped.entry(*reason).or_default() += n;
        }
        let corked =
            [(DropReason::Purged, totals.purged), (DropReason::Cancelled, totals.cancelled)];
        for (reason, n) in corked.into_iter().filter(|(_, n)| *n > 0) {
            *dropped.entry(reason).or_default() += n;
        }
        let sent = ports.iter().map(|port| port.sent).sum();
        let out: u64 = sent + dropped.values().sum::<u64>();
        let made: u64 = ports.iter().map(|port| port.made).sum();
        Self {
            // A sender counts a packet only after its push, when the packet may already have left.
            // So raise the number if more packets have left.
            submitted: totals.submitted.max(out.saturating_sub(made)),
            made,
            refused: totals.refused,
            sent,
            sent_bytes: ports.iter().map(|port| port.sent_bytes).sum(),
            dropped,
            held: ports.iter().map(|port| port.held).sum(),
            senders: 0,
            credits: 0,
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

    /// Returns the number of packets dropped for any reason.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use onramp_core::Spec;

    use super::*;

    /// Returns the counters of a port that has counted nothing yet.
    fn port() -> Port {
        let spec: Spec = "pfifo".parse().expect("a qdisc");
        onramp_core::Port::new(spec.build(1_514), onramp_dev::Null::default(), 9).snapshot()
    }

    /// Each counter gets a value that no other has, so that the test notices if two counters are
    /// swapped.
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
            sender.cancelled.add(23 * times);
            totals.add(&sender);
        }
        let stats = LinkStats::new(vec![first, second], totals);
        assert_eq!((stats.submitted, stats.made, stats.refused), (150_000, 3, 33));
        assert_eq!((stats.sent, stats.sent_bytes, stats.held), (60, 800, 10_000));
        assert_eq!((stats.waits, stats.parks), (39, 51));
        let dropped = [
            (DropReason::Overlimit, 12),
            (DropReason::Congested, 6),
            (DropReason::Purged, 57),
            (DropReason::Cancelled, 69),
        ];
        assert_eq!(stats.dropped, dropped.into());
        assert_eq!(stats.dropped_total(), 144);
        assert_eq!(stats.ports.iter().map(|port| port.sent).collect::<Vec<_>>(), [20, 40]);
        // If no packets were corked when the link closed, `dropped` has no entry for the drop
        // reason `Purged`.
        let stats = LinkStats::new(vec![port()], Totals::default());
        assert!(stats.dropped.is_empty());
    }

    /// Packets that have left count as submitted, even if their sender has not counted them yet.
    /// Packets that a qdisc created do not count as submitted.
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
