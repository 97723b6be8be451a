//! The counters of a host's devices as plain values. All listings, metrics and streams of the
//! daemon are made from them.

pub(crate) mod histogram;
mod rates;
mod select;

use std::borrow::Cow;
use std::collections::BTreeMap;

use onramp::DropReason;
use onramp_core::stats::PortSnapshot;
use onramp_core::view::{ClassView, Extra, QdiscView};
use onramp_core::{Clock as _, Handle};
use onramp_host::{DeviceView, RelayView};
use onramp_redis::BootClock;
use serde::{Deserialize, Serialize};

use crate::board::{Key, ShareRow};

pub use self::histogram::Histogram;
pub use self::rates::{RateMeter, Reason, Row, Stats, What};
pub use self::select::{Query, Sort};

/// A name that is either a constant of this program or was read from JSON.
pub type Name = Cow<'static, str>;

/// Counts, keyed by name.
pub type Counts = BTreeMap<Name, u64>;

/// A snapshot: the state of all devices at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Type of the document: `onramp.snapshot`.
    pub schema: Name,
    /// Version of the document format; it increases with each incompatible change.
    pub version: u32,
    /// Version of the program.
    pub onramp: Name,
    /// Time of the snapshot, in milliseconds since 1970 (UTC).
    pub unix_ms: u64,
    /// Time of the snapshot, in nanoseconds of a monotonic clock.
    pub at_ns: u64,
    /// The devices, ordered by their index.
    pub devices: Vec<Device>,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Name of the device.
    pub name: String,
    /// Index of the device (as `ip link` shows it).
    pub index: u32,
    /// Kind of the device.
    pub kind: Name,
    /// Whether the device is up and accepts packets.
    pub up: bool,
    /// Largest packet without the link header, in bytes.
    pub mtu: u32,
    /// Default `limit` of `pfifo` and similar qdiscs, in packets.
    pub txqueuelen: u32,
    /// Name of the device at the other end of a `veth`; `None` for other devices.
    pub peer: Option<String>,
    /// Counters of the relay of a `udp` device with `listen`; `None` for other devices.
    #[serde(default)]
    pub relay: Option<Relay>,
    /// The device's shares of limits that a fleet of hosts has in common.
    #[serde(default)]
    pub shares: Vec<Share>,
    /// Transmit queues of the device.
    pub queues: Vec<Queue>,
}

/// A share of a limit that a fleet of hosts has in common: the rate of a qdisc or class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The qdisc or class.
    pub place: String,
    /// Name of the limit.
    pub limit: String,
    /// Weight among the members of the limit.
    pub weight: u32,
    /// What the qdisc or class sends, in bytes per second.
    #[serde(default)]
    pub used_bytes_per_second: u64,
    /// What the qdisc or class wants to send, in bytes per second.
    pub demand_bytes_per_second: u64,
    /// The share, in bytes per second.
    pub share_bytes_per_second: u64,
    /// What is guaranteed while the engine does not answer, in bytes per second.
    pub floor_bytes_per_second: u64,
    /// How the share came about: `granted` (by the ledger), `alone` (the engine does not answer),
    /// `full` (the limit has all the hosts it may have), `unknown` (no such limit is known).
    pub standing: Name,
    /// Milliseconds since the engine's last answer; `None`: it has not answered yet.
    pub answer_age_ms: Option<u64>,
}

impl Share {
    pub(crate) fn of((_, place, limit): &Key, row: &ShareRow) -> Self {
        let age_ms = |answered| BootClock.now().since(answered) / 1_000_000;
        Self {
            place: place.to_string(),
            limit: limit.clone(),
            weight: row.weight,
            used_bytes_per_second: row.used,
            demand_bytes_per_second: row.demand,
            share_bytes_per_second: row.share,
            floor_bytes_per_second: row.floor,
            standing: row.standing.word().into(),
            answer_age_ms: row.answered.map(age_ms),
        }
    }
}

/// What the relay of a `udp` device has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relay {
    /// Number of clients at present.
    pub clients: u64,
    /// Largest number of clients at a time.
    pub clients_max: u64,
    /// Number of clients that were forgotten because they were idle.
    pub forgotten: u64,
    /// Number of errors that the relay's sockets reported.
    pub errors: u64,
    /// Number of datagrams of clients that were refused, by reason.
    pub refused: Counts,
    /// The server's answers.
    pub answers: Answers,
}

/// What a relay did with the server's answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// Number of answers that went to clients, or to the device that sends them to clients.
    pub packets: u64,
    /// Number of bytes in these answers.
    pub bytes: u64,
    /// Number of answers that were refused, by reason.
    pub refused: Counts,
}

/// A transmit queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Index of the transmit queue.
    pub queue: usize,
    /// Number of packets that were given to the qdisc, plus packets that the qdisc made.
    pub enqueued_packets: u64,
    /// Number of packets, out of `enqueued_packets`, that the qdisc itself made.
    pub made_packets: u64,
    /// Number of packets that the device accepted.
    pub sent_packets: u64,
    /// Number of bytes that the device accepted.
    pub sent_bytes: u64,
    /// Number of packets dropped, by reason.
    pub drops: Counts,
    /// Number of packets that wait in this queue: staged, in the qdisc, or dequeued but not yet
    /// accepted by the device.
    pub held_packets: u64,
    /// Number of times that a thread became the owner of the queue.
    pub runs: u64,
    /// Number of times that a sender that had no credit left became the owner of the queue.
    pub helped: u64,
    /// Number of times that the queue became busy (senders then only stage packets; another thread
    /// sends them).
    pub busy: u64,
    /// Number of calls to the device with packets to send.
    pub bursts: u64,
    /// Distribution of the number of packets per call of the device.
    pub burst_packets: Histogram,
    /// Distribution, in nanoseconds, of the time that packets waited in the intake; each time that
    /// the owner takes packets from the intake, the oldest one is counted.
    pub staging_ns: Histogram,
    /// Distribution, in nanoseconds, of the time from push to device; of each burst that the device
    /// is given, the oldest packet is counted.
    pub sojourn_ns: Histogram,
    /// Distribution, in nanoseconds, of how late an owner came for a packet that the qdisc had held
    /// back until an instant.
    #[serde(default)]
    pub late_ns: Histogram,
    /// Nanoseconds in all by which owners came later than the queue can catch up on.
    #[serde(default)]
    pub lost_ns: u64,
    /// Qdiscs of the queue; each qdisc stands after its parent.
    pub qdiscs: Vec<Qdisc>,
}

/// A qdisc.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qdisc {
    /// Handle of the qdisc.
    pub handle: String,
    /// Handle of the class or qdisc directly above this qdisc; `None` for the root qdisc.
    pub parent: Option<String>,
    /// Kind of the qdisc.
    pub kind: Name,
    /// Counts of the packets that left the qdisc, of those that were dropped, and of those that
    /// wait.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Number of packets dropped, by reason.
    pub drops: Counts,
    /// Distribution of the time from push to dequeue, in nanoseconds; `None` if the qdisc does not
    /// measure it.
    pub sojourn_ns: Option<Histogram>,
    /// Statistics that only this kind of qdisc has.
    pub statistics: BTreeMap<Name, i64>,
    /// Classes of the qdisc.
    pub classes: Vec<Class>,
}

/// A class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Handle of the class.
    pub handle: String,
    /// Handle of the class directly above this class; `None` if the class stands directly below its
    /// qdisc.
    pub parent: Option<String>,
    /// Handle of the qdisc attached below the class; `None` if there is none.
    pub leaf: Option<String>,
    /// Counts of the packets that left the class, of those that were dropped, and of those that
    /// wait.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Statistics that only this kind of class has.
    pub statistics: BTreeMap<Name, i64>,
}

/// The packet counts that qdiscs and classes have in common: packets that left, were dropped or
/// wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Number of bytes in packets that left the qdisc or class.
    pub sent_bytes: u64,
    /// Number of packets that left the qdisc or class.
    pub sent_packets: u64,
    /// Number of packets dropped.
    pub dropped_packets: u64,
    /// Number of times that the qdisc or class held packets back, or reached its limit.
    pub overlimits: u64,
    /// Number of packets that the device did not accept at the first attempt.
    pub requeues: u64,
    /// Number of bytes in packets that wait.
    pub backlog_bytes: u64,
    /// Number of packets that wait.
    pub backlog_packets: u64,
}

impl Snapshot {
    /// Version of the document format; it increases with each incompatible change.
    pub const VERSION: u32 = 1;

    /// Makes a snapshot of `views`, taken at `at_ns` (monotonic nanoseconds) and `unix_ms`
    /// (milliseconds since 1970).
    #[must_use]
    pub fn new(views: &[DeviceView], at_ns: u64, unix_ms: u64) -> Self {
        let devices = views.iter().map(Device::from).collect();
        Self::of(devices, at_ns, unix_ms)
    }

    /// Makes a snapshot of `devices`, taken at `at_ns` (monotonic nanoseconds) and `unix_ms`
    /// (milliseconds since 1970).
    #[must_use]
    pub fn of(devices: Vec<Device>, at_ns: u64, unix_ms: u64) -> Self {
        Self {
            schema: "onramp.snapshot".into(),
            version: Self::VERSION,
            onramp: env!("CARGO_PKG_VERSION").into(),
            unix_ms,
            at_ns,
            devices,
        }
    }
}

impl From<&DeviceView> for Device {
    fn from(view: &DeviceView) -> Self {
        let mut queues: Vec<_> = view.queues.iter().map(Queue::from).collect();
        for (number, queue) in queues.iter_mut().enumerate() {
            queue.queue = number;
        }
        for (number, qdisc) in &view.qdiscs {
            if queues.len() <= *number {
                let more = queues.len()..=*number;
                queues.extend(more.map(|queue| Queue { queue, ..Queue::default() }));
            }
            queues[*number].qdiscs.push(qdisc.into());
        }
        Self {
            name: view.name.clone(),
            index: view.index,
            kind: view.kind.into(),
            up: view.up,
            mtu: view.mtu,
            txqueuelen: view.txqueuelen,
            peer: view.peer.clone(),
            relay: view.relay.as_ref().map(Relay::from),
            shares: Vec::new(),
            queues,
        }
    }
}

impl From<&RelayView> for Relay {
    fn from(view: &RelayView) -> Self {
        let counts = |refused: &[(&'static str, u64)]| {
            refused.iter().map(|&(reason, count)| (reason.into(), count)).collect()
        };
        Self {
            clients: view.clients,
            clients_max: view.clients_max,
            forgotten: view.forgotten,
            errors: view.errors,
            refused: counts(&view.refused),
            answers: Answers {
                packets: view.answers,
                bytes: view.answer_bytes,
                refused: counts(&view.answers_refused),
            },
        }
    }
}

impl From<&PortSnapshot> for Queue {
    fn from(port: &PortSnapshot) -> Self {
        Self {
            queue: 0,
            enqueued_packets: port.enqueued,
            made_packets: port.made,
            sent_packets: port.sent,
            sent_bytes: port.sent_bytes,
            drops: by_name(&port.dropped),
            held_packets: port.held,
            runs: port.runs,
            helped: port.helped,
            busy: port.busy,
            bursts: port.bursts,
            burst_packets: Histogram::new(&port.burst_packets),
            staging_ns: Histogram::new(&port.staging_ns),
            sojourn_ns: Histogram::new(&port.sojourn_ns),
            late_ns: Histogram::new(&port.late_ns),
            lost_ns: port.lost_ns,
            qdiscs: Vec::new(),
        }
    }
}

impl From<&QdiscView> for Qdisc {
    fn from(view: &QdiscView) -> Self {
        Self {
            handle: view.handle.to_string(),
            parent: view.parent.map(|parent| parent.to_string()),
            kind: view.kind.id.into(),
            traffic: traffic(&view.counters, view.backlog),
            drops: by_name(&view.drops),
            sojourn_ns: view.sojourn_ns.as_deref().map(|counts| Histogram::new(counts)),
            statistics: statistics(&view.extra),
            classes: view.classes.iter().map(Class::from).collect(),
        }
    }
}

impl From<&ClassView> for Class {
    fn from(view: &ClassView) -> Self {
        Self {
            handle: view.handle.to_string(),
            parent: view.parent.map(|parent| parent.to_string()),
            leaf: view.leaf.map(|major| Handle::new(major, 0).to_string()),
            traffic: traffic(&view.counters, view.backlog),
            statistics: statistics(&view.extra),
        }
    }
}

fn traffic(
    counters: &onramp_core::view::Counters,
    backlog: onramp_core::qdisc::Backlog,
) -> Traffic {
    Traffic {
        sent_bytes: counters.bytes,
        sent_packets: counters.packets,
        dropped_packets: counters.drops,
        overlimits: counters.overlimits,
        requeues: counters.requeues,
        backlog_bytes: backlog.bytes,
        backlog_packets: backlog.packets.into(),
    }
}

fn by_name(drops: &[(DropReason, u64)]) -> Counts {
    drops.iter().map(|&(reason, count)| (reason.name().into(), count)).collect()
}

fn statistics(extra: &Extra) -> BTreeMap<Name, i64> {
    extra.0.iter().map(|&(name, value)| (name.into(), value)).collect()
}

#[cfg(test)]
mod field_tests;
#[cfg(test)]
mod row_tests;
#[cfg(test)]
pub(crate) mod tests;
