//! What a program does with Onramp: one link for all threads, a sender for each.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use onramp::{BuildError, Flow, Link, Sender, TrySendError};

use super::{Closing, PathCounts, Session, Taken, ThreadCx, ThreadRecord, Worker, drive};
use crate::bench::plan::Plan;
use crate::error::usage;

/// How long a wait for room may last, so that a round ends.
const WAIT: Duration = Duration::from_millis(100);
/// Ports that a link has by default, at most.
const PORTS_DEFAULT_MAX: usize = 8;

/// Descriptors of a link.
pub(super) fn files(plan: &Plan) -> usize {
    plan.queues.unwrap_or(PORTS_DEFAULT_MAX)
}

/// Opens a link as `plan` says.
pub(super) fn open(plan: &Plan, targets: &[SocketAddr]) -> Result<Box<dyn Session>> {
    let ipv4 = targets.first().is_none_or(SocketAddr::is_ipv4);
    let any: IpAddr = if ipv4 { [0; 4].into() } else { [0u16; 8].into() };
    let mut builder = Link::udp((any, 0)).qdisc(&plan.qdisc);
    if let Some(ports) = plan.queues {
        builder = builder.ports(ports);
    }
    let link = builder.build().map_err(|error| match error {
        BuildError::Qdisc(error) => usage(format!("--qdisc {}: {error}", plan.qdisc)),
        error => anyhow::Error::new(error).context("cannot make a link"),
    })?;
    Ok(Box::new(Linked { link, targets: targets.to_vec() }))
}

struct Linked {
    link: Link,
    targets: Vec<SocketAddr>,
}

impl Session for Linked {
    fn run(&self, cx: &ThreadCx<'_>) -> ThreadRecord {
        let sender = self.link.sender();
        let targets = &self.targets[cx.first_flow..][..cx.submitted.len()];
        let flows = targets.iter().map(|target| sender.flow(*target)).collect();
        drive(&mut Staging { sender, flows, batch: cx.plan.batch }, cx)
    }

    fn counts(&self) -> Option<PathCounts> {
        let mut counts = PathCounts::default();
        for port in self.link.udp_stats() {
            counts.sent += port.segments.get();
            counts.messages += port.messages.get();
            counts.calls += port.calls.get();
        }
        Some(counts)
    }

    fn finish(self: Box<Self>, patience: Duration) -> Closing {
        self.link.close(patience);
        let stats = self.link.stats();
        let drops: BTreeMap<_, _> =
            stats.dropped.iter().map(|(reason, count)| (reason.name(), *count)).collect();
        Closing { drops, held: stats.held }
    }
}

/// A thread's sender, and its flows.
struct Staging {
    sender: Sender,
    flows: Vec<Flow>,
    batch: usize,
}

impl Worker for Staging {
    fn batch(&self) -> usize {
        self.batch
    }

    fn send(&mut self, flow: usize, payload: &[u8], size: usize) -> Taken {
        let flow = &self.flows[flow];
        let taken = if self.batch == 1 {
            self.sender.try_send(flow, payload).map(|()| 1)
        } else {
            self.sender.try_send_batch(flow, payload.chunks_exact(size))
        };
        match taken {
            Ok(count) => Taken::Datagrams(count),
            Err(TrySendError::Full) => Taken::Full,
            Err(error) => Taken::Lost(1, io::Error::other(error)),
        }
    }

    fn give_way(&mut self) -> Duration {
        self.sender.give_way()
    }

    fn wait(&mut self, flow: usize, size: usize) {
        self.sender.wait_room_timeout(&self.flows[flow], size, WAIT);
    }
}
