//! The settings of a benchmark, after the command line has been parsed.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::Serialize;

use super::kind::Kind;

/// Approximate time to start a sending thread and to wait for its end.
const THREAD: Duration = Duration::from_micros(200);

/// The sinks that the datagrams go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SinkKind {
    /// Sockets on 127.0.0.1.
    Loopback,
    /// Sockets in a network namespace at the far end of a veth pair.
    Veth,
    /// A socket of another program. The benchmark cannot know how many datagrams arrive there.
    External(SocketAddr),
}

impl SinkKind {
    /// Returns the name of this kind of sink, for people and for JSON.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Loopback => "loopback".into(),
            Self::Veth => "veth".into(),
            Self::External(to) => to.to_string(),
        }
    }
}

/// The settings of a benchmark of UDP senders.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Number of sending threads, at least 1.
    pub(crate) threads: usize,
    /// Number of flows of each thread, at least 1.
    pub(crate) flows_per_thread: usize,
    /// Size of a datagram's payload in bytes.
    pub(crate) size: usize,
    /// Length of the measurement of each method in each round.
    pub(crate) window: Duration,
    /// Number of rounds.
    pub(crate) rounds: usize,
    /// The methods of sending, in the order of the first round.
    pub(crate) methods: Vec<Kind>,
    /// Number of ports of the link; `None` means the link's default.
    pub(crate) queues: Option<usize>,
    /// The qdisc of the link, in `tc` syntax.
    pub(crate) qdisc: String,
    /// Number of datagrams in each call of the `onramp` method.
    pub(crate) batch: usize,
    /// The sinks that the datagrams go to.
    pub(crate) sink: SinkKind,
    /// Whether the receivers read and check every datagram.
    pub(crate) verify: bool,
    /// How long the receivers stop reading in the middle of the measurement; zero if they never
    /// stop.
    pub(crate) stall: Duration,
}

impl Plan {
    /// Returns the number of flows of all threads together.
    pub(crate) fn flows(&self) -> usize {
        self.threads * self.flows_per_thread
    }

    /// Returns how long the senders send before the measurement begins.
    pub(crate) fn warm_up(&self) -> Duration {
        self.window / 5
    }

    /// Returns about how long the whole benchmark takes.
    pub(crate) fn expected(&self) -> Duration {
        let runs = u32::try_from(self.rounds * self.methods.len()).unwrap_or(u32::MAX);
        let threads = THREAD.saturating_mul(u32::try_from(self.threads).unwrap_or(u32::MAX));
        (self.window + self.warm_up() + threads).saturating_mul(runs)
    }

    /// Returns the settings in the form that reports show.
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

/// The settings of a benchmark, in the form that reports show.
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

/// Returns the size in bytes of the largest UDP payload that can be sent to `to`. The length field
/// of IP has 16 bits, and headers take a part of the length.
pub(crate) fn payload_max(to: IpAddr) -> usize {
    if to.is_ipv4() { 65_535 - 20 - 8 } else { 65_535 - 8 }
}

/// Returns the number of header bytes on the wire around a payload to `to`: Ethernet, IP and UDP.
pub(crate) fn header_bytes(to: IpAddr) -> u64 {
    if to.is_ipv4() { 14 + 20 + 8 } else { 14 + 40 + 8 }
}
