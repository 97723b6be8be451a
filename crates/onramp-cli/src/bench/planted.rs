//! Rounds and checks with values written by hand, for tests.

use std::collections::BTreeMap;
use std::time::Duration;

use super::gaps::Gaps;
use super::kind::Kind;
use super::method::latency;
use super::plan::{Plan, SinkKind};
use super::receive::Arrivals;
use super::round::Round;
use super::stamp::Content;
use super::usage::Usage;
use super::verify::{self, Checked, Gone};

/// A plan of two threads with one flow each.
pub(crate) fn plan() -> Plan {
    Plan {
        threads: 2,
        flows_per_thread: 1,
        size: 58,
        window: Duration::from_secs(1),
        rounds: 1,
        methods: vec![Kind::Onramp],
        queues: None,
        qdisc: "fq".into(),
        batch: 1,
        sink: SinkKind::Loopback,
        verify: true,
        stall: Duration::ZERO,
    }
}

/// Returns the counts of lost datagrams of two flows that lost none.
pub(crate) fn nothing_gone() -> Gone<'static> {
    Gone { overflow: &[0, 0], messages: 0, drops: const { &BTreeMap::new() }, held: 0 }
}

/// Returns the check of a round in which each flow submitted `submitted` datagrams, the datagrams
/// with the numbers in `sequences` arrived in that order, and none was dropped.
pub(crate) fn checked(submitted: [u64; 2], sequences: [&[u64]; 2]) -> Checked {
    let mut gaps = Gaps::default();
    let mut flows = Vec::new();
    for (flow, sequences) in sequences.iter().enumerate() {
        let mut arrivals = Arrivals { flow, ..Arrivals::default() };
        for (at_ns, sequence) in (1..).zip(*sequences) {
            arrivals.take(&Content::Sequence(*sequence), at_ns, &mut gaps);
        }
        flows.push(arrivals);
    }
    verify::check(&plan(), &submitted, (flows, gaps), nothing_gone())
}

/// Returns a round of two seconds in which `submitted` datagrams were submitted and half of them
/// delivered. The round took `process_ns` nanoseconds of CPU time of the process and twice as much
/// of the machine.
pub(crate) fn round(kind: Kind, submitted: u64, process_ns: u64) -> Round {
    Round {
        kind,
        seconds: 2.0,
        submitted,
        delivered: Some(submitted / 2),
        usage: Usage { process_ns, machine_ns: 2 * process_ns, ..Usage::default() },
        send: latency(),
        accept: latency(),
        wait: latency(),
        refused: 0,
        per_message: 1.0,
        per_call: 1.0,
        drops: BTreeMap::new(),
        jain: 1.0,
        checked: None,
        deaths: Vec::new(),
    }
}
