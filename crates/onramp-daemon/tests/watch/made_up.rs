//! Simulated devices with simulated traffic, in place of a host.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use onramp_daemon::http::Source;
use onramp_daemon::snapshot::{Class, Counts, Device, Histogram, Qdisc, Queue, Share, Traffic};
use onramp_host::Reply;

/// A source of snapshots with these simulated devices: one with an `htb` tree, a `veth` with eight
/// queues, one that is down, and, on request, one with many queues and one whose names are as long
/// as names can be. Each snapshot shows the devices
/// one second later than the snapshot before it.
#[derive(Debug, Default)]
pub(crate) struct MadeUp {
    pub(crate) many: usize,
    pub(crate) empty: bool,
    pub(crate) long: bool,
    pub(crate) looks: AtomicU64,
}

impl Source for MadeUp {
    fn devices(&self) -> Vec<Device> {
        // Relaxed: the number is only a count, and no other memory depends on it.
        let step = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        if self.empty {
            return Vec::new();
        }
        let mut all = vec![uplink(step), pair(step), idle()];
        if self.long {
            all.insert(0, long(step));
        }
        if self.many > 0 {
            all.push(wide(self.many, step));
        }
        all
    }

    fn exec(&self, words: &[String]) -> Reply {
        match words.first().map(String::as_str) {
            Some("tc") => {
                Reply { code: 0, out: format!("{}\n", words.join(" ")), ..Reply::default() }
            }
            _ => Reply { code: 1, err: "what is it?\n".to_owned(), ..Reply::default() },
        }
    }
}

/// Returns the sum, from the first second to second `step`, of a value that rises and falls
/// periodically.
fn grown(step: u64, mean: u64, swing: u64, phase: u64) -> u64 {
    (1..=step).map(|at| mean + wave(at + phase, swing)).sum()
}

/// Returns the value at second `at` of a curve that rises and falls with a period of 30 seconds,
/// with some noise.
fn wave(at: u64, swing: u64) -> u64 {
    let triangle = (at % 30).min(30 - at % 30);
    let noise = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
    swing * (triangle * 4 + noise) / 128
}

fn waits(packets: u64, bucket: usize) -> Histogram {
    let mut counts = [0; 40];
    counts[bucket] = packets * 90 / 100;
    counts[bucket + 2] = packets * 9 / 100;
    counts[bucket + 5] = packets / 100;
    Histogram::new(&counts)
}

fn traffic(packets: u64, drops: u64, backlog: u64) -> Traffic {
    Traffic {
        sent_bytes: packets * 1200,
        sent_packets: packets,
        dropped_packets: drops,
        overlimits: drops * 3,
        requeues: packets / 1000,
        backlog_bytes: backlog * 1200,
        backlog_packets: backlog,
    }
}

fn drops(list: &[(&'static str, u64)]) -> Counts {
    let some = list.iter().filter(|(_, count)| *count > 0);
    some.map(|&(reason, count)| (reason.into(), count)).collect()
}

fn queue(number: usize, qdisc: &Qdisc, qdiscs: Vec<Qdisc>) -> Queue {
    let counts = qdisc.traffic;
    Queue {
        queue: number,
        enqueued_packets: counts.sent_packets + counts.dropped_packets + counts.backlog_packets,
        sent_packets: counts.sent_packets,
        sent_bytes: counts.sent_bytes,
        drops: qdisc.drops.clone(),
        held_packets: counts.backlog_packets,
        runs: counts.sent_packets / 40,
        bursts: counts.sent_packets / 16,
        burst_packets: Histogram::new(&[0, 0, 0, 0, 0, counts.sent_packets / 16]),
        staging_ns: waits(counts.sent_packets / 16, 10),
        sojourn_ns: qdisc.sojourn_ns.clone().unwrap_or_default(),
        late_ns: waits(counts.sent_packets / 64, 12),
        lost_ns: counts.sent_packets,
        qdiscs,
        ..Queue::default()
    }
}

fn device(name: &str, index: u32, kind: &'static str, queues: Vec<Queue>) -> Device {
    Device {
        name: name.to_owned(),
        index,
        kind: kind.into(),
        up: true,
        mtu: 1500,
        txqueuelen: 1000,
        peer: None,
        relay: None,
        shares: Vec::new(),
        queues,
    }
}

/// Makes a device whose `htb` has three classes, the first of which is always full.
fn uplink(step: u64) -> Device {
    let shares =
        [(0x10, "10:", "fq_codel", 9000), (0x20, "20:", "fq", 3000), (0x30, "30:", "pfifo", 400)];
    let mut classes = vec![class("1:1", None, None, Traffic::default())];
    let mut leaves = Vec::new();
    let (mut packets, mut lost, mut held, mut reasons) = (0, 0, 0, Counts::new());
    for (minor, handle, kind, mean) in shares {
        let sent = grown(step, mean, mean / 2, minor);
        let held_here = wave(step + minor, mean / 40);
        let (early, full) = match kind {
            "fq_codel" => (grown(step, 40, 120, 3), 0),
            "pfifo" => (0, grown(step, 0, 6, 9)),
            _ => (0, 0),
        };
        let own = traffic(sent, early + full, held_here);
        let name = format!("1:{minor:x}");
        classes.push(class(&name, Some("1:1"), Some(handle), own));
        let by_reason = drops(&[("congested", early), ("overlimit", full)]);
        for (reason, count) in &by_reason {
            *reasons.entry(reason.clone()).or_default() += count;
        }
        leaves.push(Qdisc {
            handle: handle.to_owned(),
            parent: Some(name),
            kind: kind.into(),
            traffic: own,
            drops: by_reason,
            sojourn_ns: Some(waits(sent, if kind == "fq_codel" { 21 } else { 14 })),
            statistics: BTreeMap::from([("flows".into(), 12), ("ecn_mark".into(), 3)]),
            classes: Vec::new(),
        });
        packets += sent;
        lost += early + full;
        held += held_here;
    }
    classes[0].traffic = traffic(packets, lost, held);
    let root = Qdisc {
        handle: "1:".to_owned(),
        parent: None,
        kind: "htb".into(),
        traffic: traffic(packets, lost, held),
        drops: reasons,
        sojourn_ns: Some(waits(packets, 20)),
        statistics: BTreeMap::from([("direct_packets_stat".into(), 0)]),
        classes,
    };
    let first = root.clone();
    let all = std::iter::once(root).chain(leaves).collect();
    let shares = vec![share("1:10", "tenant-a", "granted", Some(40))];
    Device { shares, ..device("uplink", 2, "udp", vec![queue(0, &first, all)]) }
}

/// Makes a device with long names and with classes below classes.
fn long(step: u64) -> Device {
    let below = ["ffff:a000", "ffff:b001", "ffff:c002", "ffff:d003"];
    let counts = traffic(grown(step, 90_000, 9_000, 1), grown(step, 1_000, 10, 2), 123_456);
    let parents = std::iter::once(None).chain(below.map(Some));
    let leaf = |handle: &str| (handle == below[3]).then_some("8001:");
    let classes = below
        .iter()
        .zip(parents)
        .map(|(handle, parent)| class(handle, parent, leaf(handle), counts));
    let root = Qdisc {
        handle: "ffff:".to_owned(),
        kind: "htb".into(),
        traffic: counts,
        classes: classes.collect(),
        ..Qdisc::default()
    };
    let leaf = Qdisc {
        handle: "8001:".to_owned(),
        parent: Some("ffff:d003".to_owned()),
        kind: "pfifo_head_drop".into(),
        traffic: counts,
        sojourn_ns: Some(waits(90_000, 30)),
        ..Qdisc::default()
    };
    let first = root.clone();
    let queues = vec![queue(0, &first, vec![root, leaf])];
    let limit = "tenant-with-a-name_of.sixty-four-letters-and-digits-and-a-dot-01";
    let shares = vec![share("ffff:d003", limit, "alone", None)];
    Device { up: false, shares, ..device("uplink-to-berl0", 7, "loopback", queues) }
}

fn share(place: &str, limit: &str, standing: &'static str, answer_age_ms: Option<u64>) -> Share {
    Share {
        place: place.to_owned(),
        limit: limit.to_owned(),
        weight: 3,
        used_bytes_per_second: 1_000_000,
        demand_bytes_per_second: 2_500_000,
        share_bytes_per_second: 1_250_000,
        floor_bytes_per_second: 125_000,
        standing: standing.into(),
        answer_age_ms,
    }
}

fn class(handle: &str, parent: Option<&str>, leaf: Option<&str>, traffic: Traffic) -> Class {
    Class {
        handle: handle.to_owned(),
        parent: parent.map(str::to_owned),
        leaf: leaf.map(str::to_owned),
        traffic,
        statistics: BTreeMap::from([("tokens".into(), -120), ("lended".into(), 7)]),
    }
}

fn plain(number: usize, mean: u64, step: u64) -> Queue {
    let phase = number as u64 * 7;
    let sent = grown(step, mean, mean, phase);
    let qdisc = Qdisc {
        handle: format!("{:x}:", 0x8001 + number % 0x7000),
        kind: "fq".into(),
        traffic: traffic(sent, 0, wave(step + phase, mean / 100)),
        sojourn_ns: Some(waits(sent, 12 + number % 4)),
        ..Qdisc::default()
    };
    let first = qdisc.clone();
    queue(number, &first, vec![qdisc])
}

fn pair(step: u64) -> Device {
    let queues = (0..8).map(|number| plain(number, 20_000 / (number as u64 + 1), step)).collect();
    Device { peer: Some("lan1".to_owned()), ..device("lan0", 3, "veth", queues) }
}

fn idle() -> Device {
    Device { up: false, ..device("spare0", 5, "dummy", vec![plain(0, 0, 0)]) }
}

fn wide(queues: usize, step: u64) -> Device {
    let queues = (0..queues).map(|number| plain(number, number as u64 % 50, step)).collect();
    device("wide0", 9, "dummy", queues)
}
