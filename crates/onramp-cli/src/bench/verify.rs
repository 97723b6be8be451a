//! Checks that every datagram that was submitted has arrived once and in order, or has a reason for
//! not arriving.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::thread::{self, Scope, ScopedJoinHandle};

use anyhow::{Context, Result, anyhow};

use super::gaps::Gaps;
use super::method::Measurement;
use super::plan::{Plan, header_bytes};
use super::receive::{Arrivals, Lane, Order, OrderCell};

/// The drop reason of a datagram that arrived when the receiver's buffer was full.
pub(crate) const OVERFLOW: &str = "receiver_overflow";
/// The drop reason of a datagram that the wire to the receiver dropped.
pub(crate) const WIRE_OVERFLOW: &str = "wire_overflow";

/// Largest number of datagrams in a message with `UDP_SEGMENT` (`UDP_MAX_SEGMENTS`, Linux 6.9).
const SEGMENTS_MAX: u64 = 128;
/// Largest number of receiving threads. It is small, because the processors are needed by the
/// senders.
const LANES_MAX: usize = 4;
/// Number of failures that are reported one by one. Further failures are only counted.
const TOLD_MAX: usize = 8;

type Handle<'scope> = ScopedJoinHandle<'scope, Result<(Vec<Arrivals>, Gaps)>>;

/// The receiving threads of a verified round.
#[derive(Debug)]
pub(crate) struct Receivers {
    order: OrderCell,
    delivered: Vec<Measurement>,
}

impl Receivers {
    pub(crate) fn new(plan: &Plan) -> Self {
        let delivered = (0..plan.flows()).map(|_| Measurement::default()).collect();
        Self { order: OrderCell::new(), delivered }
    }

    /// Starts the receiving threads.
    pub(crate) fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        sockets: &'scope [UdpSocket],
        plan: &Plan,
    ) -> Result<Vec<Handle<'scope>>> {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let lanes = cpus.min(LANES_MAX).min(sockets.len());
        let mut started = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let lane = Lane {
                sockets,
                lane,
                lanes,
                size: plan.size,
                order: &self.order,
                delivered: &self.delivered,
            };
            let builder = thread::Builder::new().name("receive".into());
            match builder.spawn_scoped(scope, move || lane.run()) {
                Ok(thread) => started.push(thread),
                Err(error) => {
                    self.order.set(Order::Stop);
                    return Err(error).context("cannot start a receiving thread");
                }
            }
        }
        Ok(started)
    }

    /// Makes the receiving threads stop reading, so that all datagrams stay in the sockets.
    pub(crate) fn pause(&self) {
        self.order.set(Order::Pause);
    }

    /// Makes the receiving threads read again.
    pub(crate) fn resume(&self) {
        self.order.set(Order::Read);
    }

    /// Returns the number of datagrams delivered so far, for each flow.
    pub(crate) fn delivered(&self) -> Vec<u64> {
        self.delivered.iter().map(|cell| cell.0.get()).collect()
    }

    /// Makes the receiving threads stop. If `drain` is true, they first read all datagrams that are
    /// left. Call this when no thread sends any more.
    pub(crate) fn finish(&self, drain: bool) {
        self.order.set(if drain { Order::Drain } else { Order::Stop });
    }
}

/// Waits for the receiving threads to end, and collects their results.
pub(crate) fn join(lanes: Vec<Handle<'_>>) -> Result<(Vec<Arrivals>, Gaps)> {
    let joined: Vec<_> = lanes.into_iter().map(ScopedJoinHandle::join).collect();
    let (mut arrivals, mut gaps) = (Vec::new(), Gaps::default());
    for lane in joined {
        let lane = lane.map_err(|_| anyhow!("a receiving thread panicked; please report this"))?;
        let (flows, lane_gaps) = lane?;
        arrivals.extend(flows);
        gaps.merge(&lane_gaps);
    }
    arrivals.sort_by_key(|flow| flow.flow);
    Ok((arrivals, gaps))
}

/// The result of checking a round, and what the receiving threads measured in it.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    /// Number of datagrams submitted over the whole round; `delivered`: number of those delivered.
    pub(crate) submitted: u64,
    pub(crate) delivered: u64,
    /// Number of datagrams in the messages that the wire dropped.
    pub(crate) lost_on_wire: u64,
    /// Number of datagrams from other programs, which are ignored.
    pub(crate) foreign: u64,
    /// The first few errors; empty if there was no error.
    pub(crate) failures: Vec<String>,
    pub(crate) pace: Pace,
}

/// How fast and how evenly datagrams arrived in a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// Sum of the payload rates of all flows, in bits per second. `wire_bits_per_second` counts the
    /// Ethernet, IP and UDP headers, too, as a Linux qdisc does.
    pub(crate) payload_bits_per_second: f64,
    pub(crate) wire_bits_per_second: f64,
    /// The rates on the wire of the slowest, the median and the fastest flow, in bits per second.
    pub(crate) flow_wire_bits_per_second: [f64; 3],
    pub(crate) gaps: Gaps,
}

/// What became of the datagrams that were not delivered, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone<'a> {
    /// Number of datagrams that the receiver had no room for, for each flow.
    pub(crate) overflow: &'a [u64],
    /// Number of messages that the wire dropped. Each message may have contained many datagrams.
    pub(crate) messages: u64,
    /// Number of datagrams that the sending side dropped, by reason.
    pub(crate) drops: &'a BTreeMap<&'static str, u64>,
    /// Number of datagrams that the sending side still held when its time to finish was over.
    pub(crate) held: u64,
}

/// Checks a round: compares the datagrams that each flow submitted with those that arrived.
pub(crate) fn check(
    plan: &Plan,
    submitted: &[u64],
    (arrivals, gaps): (Vec<Arrivals>, Gaps),
    gone: Gone<'_>,
) -> Checked {
    let Gone { overflow, messages, drops, held } = gone;
    let mut failures = Failures::default();
    if held > 0 {
        failures.add(|| format!("{held} datagrams had not left when the time limit was reached"));
    }
    for ((flow, submitted), overflow) in arrivals.iter().zip(submitted).zip(overflow) {
        let name = || format!("flow {} (thread {})", flow.flow, flow.flow / plan.flows_per_thread);
        if let Some(failure) = &flow.failure {
            let times = flow.failures;
            failures.add(|| format!("{}: {failure} (errors of this flow: {times})", name()));
        }
        if flow.last.is_some_and(|last| last >= *submitted) {
            failures.add(|| format!("{}: a datagram arrived that was never submitted", name()));
        }
        if flow.delivered + overflow > submitted + flow.foreign {
            failures.add(|| {
                let arrived = flow.delivered + overflow;
                format!("{}: {submitted} submitted, {arrived} arrived", name())
            });
        }
    }
    let total: u64 = submitted.iter().sum();
    let delivered: u64 = arrivals.iter().map(|flow| flow.delivered).sum();
    let dropped = drops.values().sum::<u64>() + overflow.iter().sum::<u64>();
    let missing = total.saturating_sub(delivered + dropped + held);
    let explained = messages <= missing && missing <= messages * SEGMENTS_MAX;
    if total < delivered + dropped + held || !explained {
        failures.add(|| {
            let worst = arrivals
                .iter()
                .max_by_key(|f| submitted[f.flow].saturating_sub(f.delivered + overflow[f.flow]))
                .map_or(0, |f| f.flow);
            format!(
                "{total} submitted, but {delivered} delivered and {dropped} dropped with a reason, \
                 and {messages} messages lost on the wire; flow {worst} (thread {}) lacks the most",
                worst / plan.flows_per_thread
            )
        });
    }
    Checked {
        submitted: total,
        delivered,
        lost_on_wire: if explained { missing } else { 0 },
        foreign: arrivals.iter().map(|flow| flow.foreign).sum(),
        failures: failures.told(),
        pace: pace(plan, &arrivals, gaps),
    }
}

/// The errors that a check found. The first [`TOLD_MAX`] messages are kept; the others are only
/// counted.
#[derive(Debug, Default)]
struct Failures {
    told: Vec<String>,
    more: usize,
}

impl Failures {
    fn add(&mut self, failure: impl FnOnce() -> String) {
        if self.told.len() < TOLD_MAX { self.told.push(failure()) } else { self.more += 1 }
    }

    fn told(mut self) -> Vec<String> {
        if self.more > 0 {
            self.told.push(format!("and {} more", self.more));
        }
        self.told
    }
}

fn pace(plan: &Plan, arrivals: &[Arrivals], gaps: Gaps) -> Pace {
    let payload = plan.size as f64 * 8.0;
    let wire = (plan.size as u64 + header_bytes(std::net::Ipv4Addr::LOCALHOST.into())) as f64 * 8.0;
    // A flow's time is measured from the arrival of its first datagram, so this datagram itself
    // does not count in the rate.
    let mut rates: Vec<f64> = arrivals
        .iter()
        .filter(|flow| flow.delivered > 1 && flow.last_ns > flow.first_ns)
        .map(|flow| (flow.delivered - 1) as f64 * 1e9 / (flow.last_ns - flow.first_ns) as f64)
        .collect();
    rates.sort_by(f64::total_cmp);
    // `fold` and not `sum`, because `sum` returns -0 if there are no rates.
    let sum = rates.iter().fold(0.0, |sum, rate| sum + rate);
    let at = |index: usize| rates.get(index).map_or(0.0, |rate| rate * wire);
    Pace {
        payload_bits_per_second: sum * payload,
        wire_bits_per_second: sum * wire,
        flow_wire_bits_per_second: [at(0), at(rates.len() / 2), at(rates.len().wrapping_sub(1))],
        gaps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::planted::{self, plan};

    fn arrivals(flow: usize, delivered: u64) -> Arrivals {
        let last = delivered.checked_sub(1);
        Arrivals {
            flow,
            delivered,
            last,
            first_ns: 1_000,
            last_ns: 1_000_001_000,
            ..Default::default()
        }
    }

    fn failures(submitted: [u64; 2], overflow: [u64; 2], dropped: u64, held: u64) -> Vec<String> {
        let arrived = (vec![arrivals(0, 5), arrivals(1, 9)], Gaps::default());
        let drops = BTreeMap::from([("overlimit", dropped)]);
        let gone = Gone { overflow: &overflow, messages: 0, drops: &drops, held };
        check(&plan(), &submitted, arrived, gone).failures
    }

    #[test]
    fn what_arrived_or_has_a_reason_passes() {
        assert_eq!(failures([5, 9], [0, 0], 0, 0), [""; 0]);
        assert_eq!(failures([7, 10], [1, 0], 2, 0), [""; 0]);
    }

    #[test]
    fn what_is_missing_fails_and_names_the_flow() {
        let told = failures([5, 12], [0, 1], 1, 0);
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("17 submitted, but 14 delivered and 2 dropped"), "{told:?}");
        assert!(told[0].contains("flow 1 (thread 1)"), "{told:?}");
    }

    #[test]
    fn more_than_was_submitted_fails() {
        let told = failures([5, 8], [0, 0], 0, 0);
        assert!(told.iter().any(|f| f.contains("flow 1") && f.contains("never submitted")));
        assert!(told.iter().any(|f| f.contains("flow 1") && f.contains("8 submitted, 9 arrived")));
    }

    #[test]
    fn what_is_still_held_fails() {
        let told = failures([6, 9], [0, 0], 0, 1);
        assert_eq!(told, ["1 datagrams had not left when the time limit was reached"]);
    }

    #[test]
    fn what_the_wire_lost_is_at_most_what_its_messages_carried() {
        let check = |submitted: [u64; 2], messages| {
            let arrived = (vec![arrivals(0, 5), arrivals(1, 9)], Gaps::default());
            let checked =
                check(&plan(), &submitted, arrived, Gone { messages, ..planted::nothing_gone() });
            (checked.lost_on_wire, checked.failures.len())
        };
        assert_eq!(check([5, 9], 0), (0, 0));
        assert_eq!(check([8, 9], 3), (3, 0));
        assert_eq!(check([5, 265], 2), (256, 0));
        assert_eq!(check([5, 266], 2), (0, 1), "more is missing than two messages carry");
        assert_eq!(check([7, 9], 3), (0, 1), "three messages were at least three datagrams");
    }

    #[test]
    fn rates_leave_the_first_datagram_out() {
        let arrived = (vec![arrivals(0, 11), arrivals(1, 1)], Gaps::default());
        let pace = check(&plan(), &[11, 1], arrived, planted::nothing_gone()).pace;
        // Flow 0: ten datagrams, of 100 bytes on the wire each, arrive in a second after the first
        // one. Flow 1 has only one datagram, and therefore no rate.
        assert!((pace.wire_bits_per_second - 8_000.0).abs() < 1e-6, "{pace:?}");
        assert!((pace.payload_bits_per_second - 4_640.0).abs() < 1e-6, "{pace:?}");
    }
}
