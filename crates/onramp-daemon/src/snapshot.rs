//! What a host's devices did, as plain values: what is shown, scraped and streamed is made of it.

pub(crate) mod histogram;
mod rates;
mod select;

use std::borrow::Cow;
use std::collections::BTreeMap;

use onramp::DropReason;
use onramp_core::Handle;
use onramp_core::stats::PortSnapshot;
use onramp_core::view::{ClassView, Extra, QdiscView};
use onramp_host::DeviceView;
use serde::{Deserialize, Serialize};

pub use self::histogram::Histogram;
pub use self::rates::{RateMeter, Reason, Row, Stats, What};
pub use self::select::{Query, Sort};

/// A name that is one of ours, or was read.
pub type Name = Cow<'static, str>;

/// Counts by name.
pub type Counts = BTreeMap<Name, u64>;

/// All devices at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// What the document is: `onramp.snapshot`.
    pub schema: Name,
    /// Counts incompatible changes of the document.
    pub version: u32,
    /// Version of the program.
    pub onramp: Name,
    /// When, milliseconds since 1970 (UTC).
    pub unix_ms: u64,
    /// When, nanoseconds of a clock that never jumps.
    pub at_ns: u64,
    /// The devices, by their numbers.
    pub devices: Vec<Device>,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// What it is.
    pub kind: Name,
    /// Whether it takes packets.
    pub up: bool,
    /// Largest packet without its link header, bytes.
    pub mtu: u32,
    /// Packets that `pfifo` and its like hold by default.
    pub txqueuelen: u32,
    /// The other end of a `veth`.
    pub peer: Option<String>,
    /// Its transmit queues.
    pub queues: Vec<Queue>,
}

/// A transmit queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Its number.
    pub queue: usize,
    /// Packets given to the qdisc, and those that it made.
    pub enqueued_packets: u64,
    /// Of these, packets that it made.
    pub made_packets: u64,
    /// Packets the device took.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets dropped, by reason.
    pub drops: Counts,
    /// Packets that wait: staged, queued, or taken and not yet with the device.
    pub held_packets: u64,
    /// Times somebody became owner.
    pub runs: u64,
    /// Times a sender without credit became owner.
    pub helped: u64,
    /// Times it became busy.
    pub busy: u64,
    /// Calls of the device.
    pub bursts: u64,
    /// Packets per call of the device.
    pub burst_packets: Histogram,
    /// Nanoseconds that the oldest packet of a take had waited in the intake.
    pub staging_ns: Histogram,
    /// Nanoseconds from push to device, for the oldest packet of a burst.
    pub sojourn_ns: Histogram,
    /// Its qdiscs, parents first.
    pub qdiscs: Vec<Qdisc>,
}

/// A qdisc.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qdisc {
    /// Its handle.
    pub handle: String,
    /// The class it stands below; none: it is the root.
    pub parent: Option<String>,
    /// Its kind.
    pub kind: Name,
    /// What passed, and what waits.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Packets dropped, by reason.
    pub drops: Counts,
    /// Nanoseconds from push to dequeue; none if nobody measures.
    pub sojourn_ns: Option<Histogram>,
    /// Statistics of its kind.
    pub statistics: BTreeMap<Name, i64>,
    /// Its classes.
    pub classes: Vec<Class>,
}

/// A class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Its handle.
    pub handle: String,
    /// The class above; none: the qdisc.
    pub parent: Option<String>,
    /// The qdisc below.
    pub leaf: Option<String>,
    /// What passed, and what waits.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Statistics of its kind.
    pub statistics: BTreeMap<Name, i64>,
}

/// What passed a qdisc or a class, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes that left.
    pub sent_bytes: u64,
    /// Packets that left.
    pub sent_packets: u64,
    /// Packets dropped.
    pub dropped_packets: u64,
    /// How often it held packets back, or met its limit.
    pub overlimits: u64,
    /// Packets that the device did not take at once.
    pub requeues: u64,
    /// Bytes that wait.
    pub backlog_bytes: u64,
    /// Packets that wait.
    pub backlog_packets: u64,
}

impl Snapshot {
    /// Counts incompatible changes.
    pub const VERSION: u32 = 1;

    /// What `views` say, at a time on two clocks.
    #[must_use]
    pub fn new(views: &[DeviceView], at_ns: u64, unix_ms: u64) -> Self {
        let devices = views.iter().map(Device::from).collect();
        Self::of(devices, at_ns, unix_ms)
    }

    /// A snapshot of `devices`.
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
            queues,
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
