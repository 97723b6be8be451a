//! The counters of a host's devices in the format that Prometheus reads.
//!
//! All series are made from a snapshot of the devices. So no object has to be registered, and the
//! series of a deleted object disappear with it.

mod tables;
mod text;

use std::borrow::Borrow;
use std::time::Duration;

use onramp::DropReason;

use self::tables::{CLASSES, DEVICES, QDISCS, QUEUES, RELAYS, SHARES, Table};
use self::text::{Labels, Text, Type};
use crate::snapshot::{Class, Counts, Device, Histogram, Qdisc, Queue, Relay, Share, Snapshot};

/// Content type of the document of metrics.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Level of detail: for which objects the document has series. Each level includes the levels
/// before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Series for devices.
    Device,
    /// Series for transmit queues.
    Queue,
    /// Series for qdiscs.
    Qdisc,
    /// Series for classes.
    #[default]
    Class,
    /// Series for the statistics that only some kinds of qdisc or class have.
    Statistic,
}

impl Detail {
    /// All levels, with their names.
    pub const ALL: [(&str, Self); 5] = [
        ("device", Self::Device),
        ("queue", Self::Queue),
        ("qdisc", Self::Qdisc),
        ("class", Self::Class),
        ("statistic", Self::Statistic),
    ];

    /// Returns the level with this name; `None` if there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, detail)| *detail)
    }
}

/// Writes the document of metrics for all devices in `snapshot`, or only for the device called
/// `device`.
#[must_use]
pub fn write(snapshot: &Snapshot, device: Option<&str>, detail: Detail) -> String {
    let all = Things::new(snapshot, device, detail);
    let mut text = Text::default();
    text.family(
        "onramp_build_info",
        Type::Gauge,
        "The version of the program, as a label; always 1.",
    );
    let version = Labels::default().with("version", &snapshot.onramp);
    text.sample("onramp_build_info", &version, 1);
    devices(&mut text, &all.devices);
    relays(&mut text, &all.relays);
    shares(&mut text, &all.shares);
    table(&mut text, QUEUES, &all.queues);
    if detail >= Detail::Queue {
        let about = "Packets dropped in front of the device or by it, by reason.";
        drops(&mut text, "onramp_drops_total", about, &all.queues, |queue| &queue.drops);
    }
    qdiscs(&mut text, &all.qdiscs);
    table(&mut text, CLASSES, &all.classes);
    if detail >= Detail::Statistic {
        let about = "Statistics that only some kinds of qdisc have, named as in tc -s qdisc show.";
        let of = |qdisc: &&Qdisc| qdisc.statistics.clone();
        statistics(&mut text, "onramp_qdisc_statistic", about, &all.qdiscs, of);
        let about = "Statistics that only some kinds of class have, named as in tc -s class show.";
        let of = |class: &&Class| class.statistics.clone();
        statistics(&mut text, "onramp_class_statistic", about, &all.classes, of);
    }
    text.finish()
}

/// All objects for which the document of metrics has series, each with the labels of its series.
#[derive(Default)]
struct Things<'a> {
    devices: Vec<(Labels, Sum)>,
    relays: Vec<(Labels, &'a Relay)>,
    shares: Vec<(Labels, &'a Share)>,
    queues: Vec<(Labels, &'a Queue)>,
    qdiscs: Vec<(Labels, &'a Qdisc)>,
    classes: Vec<(Labels, &'a Class)>,
}

/// What the document of metrics shows of a device. `all` is the sum over all queues of the device.
struct Sum {
    /// Labels of the device's information series (a series that carries facts about the device as
    /// labels).
    info: Labels,
    up: bool,
    mtu: u32,
    queues: usize,
    all: Queue,
}

impl<'a> Things<'a> {
    fn new(snapshot: &'a Snapshot, only: Option<&str>, detail: Detail) -> Self {
        let mut things = Self::default();
        let wanted = |device: &&Device| only.is_none_or(|name| device.name == name);
        for device in snapshot.devices.iter().filter(wanted) {
            let labels = Labels::default().with("device", &device.name);
            for queue in &device.queues {
                let labels = labels.clone().with("queue", &queue.queue.to_string());
                if detail >= Detail::Qdisc {
                    things.below(&labels, queue, detail);
                }
                if detail >= Detail::Queue {
                    things.queues.push((labels, queue));
                }
            }
            things.relays.extend(device.relay.iter().map(|relay| (labels.clone(), relay)));
            for share in &device.shares {
                let labels = labels.clone().with("place", &share.place);
                things.shares.push((labels.with("limit", &share.limit), share));
            }
            let sum = Sum::new(device, &labels);
            things.devices.push((labels, sum));
        }
        things
    }

    fn below(&mut self, labels: &Labels, queue: &'a Queue, detail: Detail) {
        for qdisc in &queue.qdiscs {
            let labels = labels.clone().with("qdisc", &qdisc.kind);
            let parent = qdisc.parent.as_deref().unwrap_or("root");
            let own = labels.clone().with("handle", &qdisc.handle).with("parent", parent);
            self.qdiscs.push((own, qdisc));
            if detail < Detail::Class {
                continue;
            }
            for class in &qdisc.classes {
                let parent = class.parent.as_deref().unwrap_or(&qdisc.handle);
                let own = labels.clone().with("class", &class.handle).with("parent", parent);
                self.classes.push((own, class));
            }
        }
    }
}

impl Sum {
    fn new(device: &Device, labels: &Labels) -> Self {
        let mut all = Queue::default();
        for queue in &device.queues {
            all.enqueued_packets += queue.enqueued_packets;
            all.made_packets += queue.made_packets;
            all.sent_packets += queue.sent_packets;
            all.sent_bytes += queue.sent_bytes;
            all.held_packets += queue.held_packets;
            all.runs += queue.runs;
            all.helped += queue.helped;
            all.busy += queue.busy;
            all.bursts += queue.bursts;
            all.burst_packets.add(&queue.burst_packets);
            all.staging_ns.add(&queue.staging_ns);
            all.sojourn_ns.add(&queue.sojourn_ns);
            all.late_ns.add(&queue.late_ns);
            all.lost_ns += queue.lost_ns;
            for (reason, count) in &queue.drops {
                *all.drops.entry(reason.clone()).or_default() += count;
            }
        }
        // Each reason for drops has a series from the start, with the value 0, so that the first
        // drop shows as an increase.
        for reason in DropReason::ALL {
            all.drops.entry(reason.name().into()).or_default();
        }
        let info = labels.clone().with("kind", &device.kind);
        let info = info.with("index", &device.index.to_string());
        let info = info.with("peer", device.peer.as_deref().unwrap_or_default());
        Self { info, up: device.up, mtu: device.mtu, queues: device.queues.len(), all }
    }
}

fn devices(text: &mut Text, devices: &[(Labels, Sum)]) {
    text.family(
        "onramp_device_info",
        Type::Gauge,
        "Kind, index and peer of a device, as labels; always 1.",
    );
    for (_, sum) in devices {
        text.sample("onramp_device_info", &sum.info, 1);
    }
    table(text, DEVICES, devices);
    let about = "Packets dropped in front of the device or by it, by reason, over all queues.";
    drops(text, "onramp_device_drops_total", about, devices, |sum| &sum.all.drops);
    let lost = "onramp_lost_seconds_total";
    let about = "Time by which owners came later than a queue can catch up on, over all queues.";
    text.family(lost, Type::Counter, about);
    for (labels, sum) in devices {
        text.sample(lost, labels, Duration::from_nanos(sum.all.lost_ns).as_secs_f64());
    }
    histogram(text, &LATE, devices, |sum| Some(&sum.all.late_ns));
    histogram(text, &SOJOURN, devices, |sum| Some(&sum.all.sojourn_ns));
    histogram(text, &STAGING, devices, |sum| Some(&sum.all.staging_ns));
    histogram(text, &BURSTS, devices, |sum| Some(&sum.all.burst_packets));
}

fn relays(text: &mut Text, relays: &[(Labels, &Relay)]) {
    if relays.is_empty() {
        return;
    }
    table(text, RELAYS, relays);
    let about = "Datagrams of clients that the relay refused, by reason.";
    drops(text, "onramp_relay_refused_total", about, relays, |relay| &relay.refused);
    let about = "Answers of the server that the relay refused, by reason.";
    let name = "onramp_relay_answers_refused_total";
    drops(text, name, about, relays, |relay| &relay.answers.refused);
}

fn shares(text: &mut Text, shares: &[(Labels, &Share)]) {
    table(text, SHARES, shares);
    let about = "Time since the last answer of the fleet's engine.";
    let name = "onramp_fleet_answer_age_seconds";
    let answered = shares.iter().filter_map(|(labels, share)| Some((labels, share.answer_age_ms?)));
    for (at, (labels, age_ms)) in answered.enumerate() {
        if at == 0 {
            text.family(name, Type::Gauge, about);
        }
        text.sample(name, labels, Duration::from_millis(age_ms).as_secs_f64());
    }
}

fn qdiscs(text: &mut Text, qdiscs: &[(Labels, &Qdisc)]) {
    table(text, QDISCS, qdiscs);
    let about = "Packets dropped in the qdisc or below it, by reason.";
    drops(text, "onramp_qdisc_drop_reasons_total", about, qdiscs, |qdisc| &qdisc.drops);
    histogram(text, &QDISC_SOJOURN, qdiscs, |qdisc| qdisc.sojourn_ns.as_ref());
}

/// Appends to the document `text` a metric family for each entry of `rows`, with one sample for
/// each object in `things`.
fn table<T>(text: &mut Text, rows: &[Table<T>], things: &[(Labels, impl Borrow<T>)]) {
    if things.is_empty() {
        return;
    }
    for row in rows {
        text.family(row.name, row.is, row.about);
        for (labels, thing) in things {
            text.sample(row.name, labels, (row.value)(thing.borrow()));
        }
    }
}

fn drops<T>(
    text: &mut Text,
    name: &str,
    about: &str,
    things: &[(Labels, T)],
    of: impl Fn(&T) -> &Counts,
) {
    text.family(name, Type::Counter, about);
    for (labels, thing) in things {
        for (reason, &count) in of(thing) {
            text.labelled(name, labels, ("reason", reason), count);
        }
    }
}

fn statistics<T, V: IntoIterator<Item = (crate::snapshot::Name, i64)>>(
    text: &mut Text,
    name: &str,
    about: &str,
    things: &[(Labels, T)],
    of: impl Fn(&T) -> V,
) {
    text.family(name, Type::Gauge, about);
    for (labels, thing) in things {
        for (statistic, value) in of(thing) {
            text.labelled(name, labels, ("statistic", &statistic), value);
        }
    }
}

/// How the document of metrics shows a histogram whose buckets are bounded by powers of two.
struct Buckets {
    name: &'static str,
    about: &'static str,
    /// The exponents of the powers of two that are the upper bounds of the buckets.
    powers: &'static [u8],
    /// Divisor that converts a measured value to the unit of the series.
    unit: f64,
}

/// Exponents of two for the upper bounds of a time histogram's buckets, from 2^10 ns (a
/// microsecond) to 2^34 ns (17 s); each bound is four times the bound before it.
const TIMES: &[u8] = &[10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34];

const SOJOURN: Buckets = Buckets {
    name: "onramp_sojourn_seconds",
    about: "Time from push to device, of the oldest packet of each burst. The sum is estimated.",
    powers: TIMES,
    unit: 1e9,
};

const STAGING: Buckets = Buckets {
    name: "onramp_staging_seconds",
    about: "Time that the oldest packet of each take waited in the intake. The sum is estimated.",
    powers: TIMES,
    unit: 1e9,
};

const LATE: Buckets = Buckets {
    name: "onramp_late_seconds",
    about: "How late an owner came for a packet that a qdisc had held back. The sum is estimated.",
    powers: TIMES,
    unit: 1e9,
};

const BURSTS: Buckets = Buckets {
    name: "onramp_burst_packets",
    about: "Packets in each call of the device. The sum is estimated.",
    powers: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    unit: 1.0,
};

const QDISC_SOJOURN: Buckets = Buckets {
    name: "onramp_qdisc_sojourn_seconds",
    about: "Time from push to dequeue, if the qdisc measures it. The sum is estimated.",
    powers: TIMES,
    unit: 1e9,
};

/// Appends to the document `text` a histogram for each object in `things` that has counted at least
/// one value. Objects that never counted a value get no histogram, because there are many such
/// objects.
fn histogram<'a, T>(
    text: &mut Text,
    buckets: &Buckets,
    things: &'a [(Labels, T)],
    of: impl Fn(&'a T) -> Option<&'a Histogram>,
) {
    let bounds: Vec<(usize, String)> = buckets
        .powers
        .iter()
        .map(|&power| {
            // The document gives the upper bound of a bucket in the label `le` (less than or
            // equal). A bucket does not contain the power of two that ends it, so the label gives
            // the largest whole number below that power.
            let greatest = 2f64.powi(power.into()) - 1.0;
            (power.into(), (greatest / buckets.unit).to_string())
        })
        .collect();
    let [bucket, sum, count] =
        ["_bucket", "_sum", "_count"].map(|end| buckets.name.to_owned() + end);
    text.family(buckets.name, Type::Histogram, buckets.about);
    for (labels, thing) in things {
        let Some(histogram) = of(thing) else { continue };
        let total = histogram.total();
        if total == 0 {
            continue;
        }
        for (power, bound) in &bounds {
            text.labelled(&bucket, labels, ("le", bound), histogram.below(*power));
        }
        text.labelled(&bucket, labels, ("le", "+Inf"), total);
        text.sample(&sum, labels, histogram.sum() / buckets.unit);
        text.sample(&count, labels, total);
    }
}

#[cfg(test)]
mod tests;
