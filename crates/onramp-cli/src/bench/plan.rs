//! What a benchmark does, after the command line has been understood.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::Serialize;

use super::kind::Kind;

/// Where the datagrams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SinkKind {
    /// Sockets on 127.0.0.1.
    Loopback,
    /// Sockets in a network namespace at the far end of a veth pair.
    Veth,
    /// Somebody else's socket: what arrives there is unknown.
    External(SocketAddr),
}

impl SinkKind {
    /// For people and JSON.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Loopback => "loopback".into(),
            Self::Veth => "veth".into(),
            Self::External(to) => to.to_string(),
        }
    }
}

/// A benchmark of UDP senders.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Sending threads, at least 1.
    pub(crate) threads: usize,
    /// Flows of each thread, at least 1.
    pub(crate) flows_per_thread: usize,
    /// Payload of a datagram, bytes.
    pub(crate) size: usize,
    /// What is measured of each method in each round.
    pub(crate) window: Duration,
    /// Rounds.
    pub(crate) rounds: usize,
    /// Ways of sending, in the order of the first round.
    pub(crate) methods: Vec<Kind>,
    /// Ports of the link; `None`: its default.
    pub(crate) queues: Option<usize>,
    /// The link's qdisc, in `tc` syntax.
    pub(crate) qdisc: String,
    /// Datagrams per call of the `onramp` method.
    pub(crate) batch: usize,
    /// Where to.
    pub(crate) sink: SinkKind,
    /// Receivers read and check every datagram.
    pub(crate) verify: bool,
    /// How long receivers stop reading in the middle.
    pub(crate) stall: Duration,
}

impl Plan {
    /// Flows of all threads.
    pub(crate) fn flows(&self) -> usize {
        self.threads * self.flows_per_thread
    }

    /// What senders do before the window opens.
    pub(crate) fn warm_up(&self) -> Duration {
        self.window / 5
    }

    /// How long the whole benchmark takes, about.
    pub(crate) fn expected(&self) -> Duration {
        let runs = u32::try_from(self.rounds * self.methods.len()).unwrap_or(u32::MAX);
        (self.window + self.warm_up()).saturating_mul(runs)
    }

    /// For reports.
    pub(crate) fn parameters(&self) -> Parameters {
        Parameters {
            threads: self.threads,
            flows_per_thread: self.flows_per_thread,
            size: self.size,
            seconds: self.window.as_secs_f64(),
            warm_up_seconds: self.warm_up().as_secs_f64(),
            rounds: self.rounds,
            methods: self.methods.iter().map(|kind| kind.name()).collect(),
            queues: self.queues,
            qdisc: self.qdisc.clone(),
            batch: self.batch,
            sink: self.sink.name(),
            verify: self.verify,
            stall_seconds: self.stall.as_secs_f64(),
        }
    }
}

/// A plan, as reports show it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Parameters {
    pub(crate) threads: usize,
    pub(crate) flows_per_thread: usize,
    pub(crate) size: usize,
    pub(crate) seconds: f64,
    pub(crate) warm_up_seconds: f64,
    pub(crate) rounds: usize,
    pub(crate) methods: Vec<&'static str>,
    pub(crate) queues: Option<usize>,
    pub(crate) qdisc: String,
    pub(crate) batch: usize,
    pub(crate) sink: String,
    pub(crate) verify: bool,
    pub(crate) stall_seconds: f64,
}

/// Largest UDP payload to `to`, bytes: what 16 bits of IP length leave.
pub(crate) fn payload_max(to: IpAddr) -> usize {
    if to.is_ipv4() { 65_535 - 20 - 8 } else { 65_535 - 8 }
}

/// Bytes of headers on the wire around a payload to `to`: Ethernet, IP, UDP.
pub(crate) fn header_bytes(to: IpAddr) -> u64 {
    if to.is_ipv4() { 14 + 20 + 8 } else { 14 + 40 + 8 }
}
