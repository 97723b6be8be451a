//! Computes rates from two snapshots, with one row for each device, queue, qdisc and class.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::histogram::as_f64;
use super::{
    Class, Counts, Device, Histogram, Name, Qdisc, Queue, Relay, Share, Snapshot, Traffic,
};

/// The current traffic on all devices: counts and rates, with one row for each object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Type of the document: `onramp.stats`.
    pub schema: Name,
    /// Version of the document format; it increases with each incompatible change.
    pub version: u32,
    /// Time of the newer snapshot, in milliseconds since 1970 (UTC).
    pub unix_ms: u64,
    /// Time between the two snapshots from which the rates are computed, in seconds; `None` for the
    /// first snapshot, which has no rates.
    pub seconds: Option<f64>,
    /// All objects as a tree: a row is followed by the rows below it, whose depth is greater by
    /// one.
    pub rows: Vec<Row>,
    /// Number of rows that the client's query excluded.
    pub omitted: usize,
}

/// The traffic of a device, a queue, a qdisc or a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The type of the object.
    pub what: What,
    /// Identifier of the object, which is the same in every document.
    pub id: String,
    /// Depth in the tree; devices have depth 0.
    pub depth: usize,
    /// Name of the device.
    pub device: String,
    /// Index of the transmit queue; `None` for a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<usize>,
    /// Number of queues; `None` unless the row is a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<usize>,
    /// Kind of the device or qdisc; for a class, the kind of its qdisc.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Name>,
    /// Handle of the qdisc or class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// Handle of the class or qdisc directly above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Whether the device is up; `None` unless the row is a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
    /// Counters of the device's relay; `None` unless the row is a device with a relay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<Relay>,
    /// The shares of a fleet's limits that are the rate of this qdisc or class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<Share>,
    /// Number of bytes in packets that left.
    pub sent_bytes: u64,
    /// Number of packets that left.
    pub sent_packets: u64,
    /// Number of packets dropped.
    pub dropped_packets: u64,
    /// Bytes that leave per second.
    pub bytes_per_second: Option<f64>,
    /// Packets that leave per second.
    pub packets_per_second: Option<f64>,
    /// Packets dropped per second.
    pub drops_per_second: Option<f64>,
    /// Number of packets that wait at present.
    pub backlog_packets: u64,
    /// Number of bytes that wait at present; `None` for objects that do not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog_bytes: Option<u64>,
    /// Median of the sojourn time, in nanoseconds.
    pub sojourn_p50_ns: Option<f64>,
    /// 99th percentile of the sojourn time, in nanoseconds.
    pub sojourn_p99_ns: Option<f64>,
    /// Packets dropped, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<Name, Reason>,
}

/// The type of object that a row describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// A device.
    #[default]
    Device,
    /// A transmit queue of a device.
    Queue,
    /// A qdisc.
    Qdisc,
    /// A class of a qdisc.
    Class,
}

/// The number and the rate of packets that were dropped for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// Number of packets dropped since counting began.
    pub packets: u64,
    /// Packets dropped per second at present.
    pub per_second: Option<f64>,
}

impl Row {
    /// Returns the name of the object for people: `d0`, `queue 3`, `fq 8001:`, `class 1:10`.
    #[must_use]
    pub fn label(&self) -> String {
        let handle = self.handle.as_deref().unwrap_or_default();
        let kind = self.kind.as_deref().unwrap_or_default();
        match self.what {
            What::Device => self.device.clone(),
            What::Queue => format!("queue {}", self.queue.unwrap_or_default()),
            What::Qdisc => format!("{kind} {handle}"),
            What::Class => format!("class {handle}"),
        }
    }
}

/// Computes the rates between successive snapshots.
#[derive(Debug, Default)]
pub struct RateMeter {
    before: Option<(u64, HashMap<String, Past>)>,
}

/// The counts of a row in the previous snapshot.
#[derive(Debug)]
struct Past {
    device: u32,
    kind: Option<Name>,
    counts: [u64; 3],
    drops: Counts,
    sojourn: Option<Histogram>,
}

impl RateMeter {
    /// Computes the traffic between the previous snapshot and `now`.
    pub fn update(&mut self, now: &Snapshot) -> Stats {
        let elapsed = self.before.as_ref().map(|(at, _)| now.at_ns.saturating_sub(*at));
        let seconds = elapsed.filter(|&ns| ns > 0).map(|ns| as_f64(ns) / 1e9);
        let mut rows = Rows::default();
        for device in &now.devices {
            rows.device(device);
        }
        let past = self.before.take().map(|(_, past)| past).unwrap_or_default();
        if let Some(seconds) = seconds {
            for (row, counted) in rows.rows.iter_mut().zip(&rows.counted) {
                rate(row, counted, past.get(&row.id), seconds);
            }
        }
        let ids = rows.rows.iter().map(|row| row.id.clone());
        self.before = Some((now.at_ns, ids.zip(rows.counted).collect()));
        Stats {
            schema: "onramp.stats".into(),
            version: 1,
            unix_ms: now.unix_ms,
            seconds: seconds.map(six_digits),
            rows: rows.rows,
            omitted: 0,
        }
    }
}

/// Fills in the rates of a row: what the object has counted since the previous snapshot, divided by
/// `seconds`. If the previous snapshot did not contain the object, this is all that it has counted.
fn rate(row: &mut Row, now: &Past, past: Option<&Past>, seconds: f64) {
    let past = past.filter(|past| past.device == now.device && past.kind == now.kind);
    let per_second = |now: u64, then: u64| {
        // If a counter has decreased, it was reset, so everything that it shows has been counted
        // since.
        Some(six_digits(as_f64(now.checked_sub(then).unwrap_or(now)) / seconds))
    };
    let then = past.map_or([0; 3], |past| past.counts);
    row.bytes_per_second = per_second(now.counts[0], then[0]);
    row.packets_per_second = per_second(now.counts[1], then[1]);
    row.drops_per_second = per_second(now.counts[2], then[2]);
    for (name, reason) in &mut row.drops {
        let then = past.and_then(|past| past.drops.get(name).copied());
        reason.per_second = per_second(reason.packets, then.unwrap_or(0));
    }
    let Some(sojourn) = &now.sojourn else { return };
    let since = match past.and_then(|past| past.sojourn.as_ref()) {
        Some(then) => sojourn.since(then),
        None => sojourn.clone(),
    };
    row.sojourn_p50_ns = since.quantile(0.5).map(six_digits);
    row.sojourn_p99_ns = since.quantile(0.99).map(six_digits);
}

/// Rounds to six significant digits.
pub(crate) fn six_digits(figure: f64) -> f64 {
    if figure == 0.0 || !figure.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powf(5.0 - figure.abs().log10().floor());
    (figure * scale).round() / scale
}

/// The rows of the document, collected in the order of the tree.
#[derive(Default)]
struct Rows {
    rows: Vec<Row>,
    counted: Vec<Past>,
}

/// The qdiscs of a queue, with an index from each parent's handle to the qdiscs below it.
struct Below<'a> {
    queue: &'a Queue,
    qdiscs: HashMap<&'a str, Vec<usize>>,
    done: Vec<bool>,
}

impl Rows {
    fn device(&mut self, device: &Device) {
        let mut row = Row {
            what: What::Device,
            id: device.name.clone(),
            device: device.name.clone(),
            queues: Some(device.queues.len()),
            kind: Some(device.kind.clone()),
            up: Some(device.up),
            relay: device.relay.clone(),
            ..Row::default()
        };
        let mut sum = Past {
            device: device.index,
            kind: row.kind.clone(),
            counts: [0; 3],
            drops: Counts::new(),
            sojourn: Some(Histogram::default()),
        };
        for queue in &device.queues {
            row.backlog_packets += queue.held_packets;
            for (sum, count) in sum.counts.iter_mut().zip(counts(queue)) {
                *sum += count;
            }
            for (name, count) in &queue.drops {
                *sum.drops.entry(name.clone()).or_default() += count;
            }
            if let Some(sojourn) = &mut sum.sojourn {
                sojourn.add(&queue.sojourn_ns);
            }
        }
        self.push(row, sum);
        for queue in &device.queues {
            self.queue(device, queue);
        }
    }

    fn queue(&mut self, device: &Device, queue: &Queue) {
        let row = Row {
            what: What::Queue,
            id: format!("{}/{}", device.name, queue.queue),
            depth: 1,
            device: device.name.clone(),
            queue: Some(queue.queue),
            backlog_packets: queue.held_packets,
            ..Row::default()
        };
        let counted = Past {
            device: device.index,
            kind: None,
            counts: counts(queue),
            drops: queue.drops.clone(),
            sojourn: Some(queue.sojourn_ns.clone()),
        };
        self.push(row, counted);
        let mut qdiscs: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, qdisc) in queue.qdiscs.iter().enumerate() {
            qdiscs.entry(qdisc.parent.as_deref().unwrap_or_default()).or_default().push(at);
        }
        let mut below = Below { queue, qdiscs, done: vec![false; queue.qdiscs.len()] };
        for at in 0..queue.qdiscs.len() {
            // `qdisc` also writes all qdiscs below the qdisc, and a parent is listed before its
            // children. So this call writes only a qdisc whose parent is not in this queue, at
            // depth 2.
            self.qdisc(device, &mut below, at, 2);
        }
    }

    fn qdisc(&mut self, device: &Device, below: &mut Below<'_>, at: usize, depth: usize) {
        if std::mem::replace(&mut below.done[at], true) {
            return;
        }
        let queue = below.queue;
        let qdisc = &queue.qdiscs[at];
        let mut id = format!("{}/{}/{}", device.name, queue.queue, qdisc.handle);
        if let Some(parent) = qdisc.parent.as_deref().filter(|_| qdisc.handle == "0:") {
            id.push('@');
            id.push_str(parent);
        }
        let row = Row {
            what: What::Qdisc,
            id,
            depth,
            handle: Some(qdisc.handle.clone()),
            parent: qdisc.parent.clone(),
            shares: shares(device, &qdisc.handle),
            ..Row::of(device, queue, qdisc, &qdisc.traffic)
        };
        let drops = qdisc.drops.clone();
        let counted = Past::of(device, qdisc, &qdisc.traffic, drops, qdisc.sojourn_ns.clone());
        self.push(row, counted);
        let mut classes: HashMap<&str, Vec<&Class>> = HashMap::new();
        let known: std::collections::HashSet<&str> =
            qdisc.classes.iter().map(|class| class.handle.as_str()).collect();
        for class in &qdisc.classes {
            let parent = class.parent.as_deref().filter(|parent| known.contains(parent));
            classes.entry(parent.unwrap_or_default()).or_default().push(class);
        }
        self.classes(device, below, qdisc, &mut classes, "", depth + 1);
        self.leaves(device, below, &qdisc.handle, depth + 1);
    }

    /// Writes the qdiscs directly below `parent`, which is a class, or a qdisc without classes.
    fn leaves(&mut self, device: &Device, below: &mut Below<'_>, parent: &str, depth: usize) {
        for leaf in below.qdiscs.get(parent).cloned().unwrap_or_default() {
            self.qdisc(device, below, leaf, depth);
        }
    }

    /// Writes the classes directly below the class `parent` (if empty: directly below the qdisc).
    /// Each class is followed by everything below it.
    fn classes(
        &mut self,
        device: &Device,
        below: &mut Below<'_>,
        qdisc: &Qdisc,
        classes: &mut HashMap<&str, Vec<&Class>>,
        parent: &str,
        depth: usize,
    ) {
        for class in classes.remove(parent).unwrap_or_default() {
            let row = Row {
                what: What::Class,
                id: format!("{}/{}/{}", device.name, below.queue.queue, class.handle),
                depth,
                handle: Some(class.handle.clone()),
                parent: class.parent.clone().or_else(|| Some(qdisc.handle.clone())),
                shares: shares(device, &class.handle),
                ..Row::of(device, below.queue, qdisc, &class.traffic)
            };
            self.push(row, Past::of(device, qdisc, &class.traffic, Counts::new(), None));
            self.classes(device, below, qdisc, classes, &class.handle, depth + 1);
            self.leaves(device, below, &class.handle, depth + 1);
        }
    }

    fn push(&mut self, mut row: Row, counted: Past) {
        [row.sent_bytes, row.sent_packets, row.dropped_packets] = counted.counts;
        let reason = |packets| Reason { packets, per_second: None };
        row.drops =
            counted.drops.iter().map(|(name, &count)| (name.clone(), reason(count))).collect();
        self.rows.push(row);
        self.counted.push(counted);
    }
}

impl Row {
    fn of(device: &Device, queue: &Queue, qdisc: &Qdisc, traffic: &Traffic) -> Self {
        Self {
            device: device.name.clone(),
            queue: Some(queue.queue),
            kind: Some(qdisc.kind.clone()),
            backlog_packets: traffic.backlog_packets,
            backlog_bytes: Some(traffic.backlog_bytes),
            ..Self::default()
        }
    }
}

impl Past {
    fn of(
        device: &Device,
        qdisc: &Qdisc,
        traffic: &Traffic,
        drops: Counts,
        sojourn: Option<Histogram>,
    ) -> Self {
        Self {
            device: device.index,
            kind: Some(qdisc.kind.clone()),
            counts: [traffic.sent_bytes, traffic.sent_packets, traffic.dropped_packets],
            drops,
            sojourn,
        }
    }
}

/// Returns the shares that are the rate of the qdisc or class `handle`.
fn shares(device: &Device, handle: &str) -> Vec<Share> {
    device.shares.iter().filter(|share| share.place == handle).cloned().collect()
}

fn counts(queue: &Queue) -> [u64; 3] {
    [queue.sent_bytes, queue.sent_packets, queue.drops.values().sum()]
}
