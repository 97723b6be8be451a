//! All fields of all rows, and the order and selection of rows.

use serde_json::{Value, json};

use super::rates::six_digits;
use super::*;

/// Returns the counters of an object after `step` steps, each with the same traffic. The numbers
/// depend on `first`, so that no two objects have equal numbers.
fn traffic(first: u64, step: u64) -> Traffic {
    Traffic {
        sent_bytes: (first + 1) * 1000 * step,
        sent_packets: (first + 2) * 10 * step,
        dropped_packets: (first + 3) * step,
        overlimits: 1,
        requeues: 1,
        backlog_bytes: first + 4,
        backlog_packets: first + 5,
    }
}

/// Returns a histogram after `step` steps: a hundred values per step, all in bucket `bucket`.
fn waits(bucket: usize, step: u64) -> Histogram {
    let mut counts = vec![0; bucket + 1];
    counts[bucket] = 100 * step;
    Histogram::new(&counts)
}

/// A device with two queues; the second queue has a `tbf` qdisc with its class, and a leaf qdisc
/// below that class.
fn device(step: u64) -> Device {
    let queue = |queue: usize, first: u64, bucket, qdiscs| Queue {
        queue,
        sent_packets: first * step,
        sent_bytes: first * 100 * step,
        drops: [("late".into(), 2 * step), ("overlimit".into(), first)].into(),
        held_packets: first + 1,
        sojourn_ns: waits(bucket, step),
        qdiscs,
        ..Queue::default()
    };
    let class = Class {
        handle: "1:1".into(),
        parent: None,
        leaf: Some("2:".into()),
        traffic: traffic(300, step),
        statistics: BTreeMap::new(),
    };
    let root = Qdisc {
        handle: "1:".into(),
        parent: None,
        kind: "tbf".into(),
        traffic: traffic(100, step),
        drops: [("overlimit".into(), 7 * step)].into(),
        sojourn_ns: Some(waits(11, step)),
        statistics: BTreeMap::new(),
        classes: vec![class],
    };
    let leaf = Qdisc {
        handle: "2:".into(),
        parent: Some("1:1".into()),
        kind: "pfifo".into(),
        traffic: traffic(200, step),
        ..Qdisc::default()
    };
    Device {
        shares: Vec::new(),
        name: "d0".into(),
        index: 3,
        kind: "veth".into(),
        up: false,
        mtu: 1500,
        txqueuelen: 1000,
        peer: None,
        relay: None,
        queues: vec![queue(0, 50, 11, vec![]), queue(1, 70, 21, vec![root, leaf])],
    }
}

/// Returns the rows that are computed from two snapshots, taken two seconds apart.
fn rows() -> Value {
    let mut meter = RateMeter::default();
    meter.update(&Snapshot::of(vec![device(1)], 1_000_000_000, 4000));
    let stats = meter.update(&Snapshot::of(vec![device(3)], 3_000_000_000, 6000));
    let head = (&*stats.schema, stats.version, stats.unix_ms, stats.seconds, stats.omitted);
    assert_eq!(head, ("onramp.stats", 1, 6000, Some(2.0), 0));
    serde_json::to_value(&stats.rows).expect("JSON")
}

/// The second snapshot is two seconds and two steps of traffic later than the first, so each rate
/// (per second) equals the traffic of one step.
#[test]
fn every_field_of_a_row() {
    let late = |packets, per_second: f64| json!({"packets": packets, "per_second": per_second});
    let device = json!({
        "what": "device", "id": "d0", "depth": 0, "device": "d0", "queues": 2, "kind": "veth",
        "up": false, "sent_bytes": 36_000, "sent_packets": 360, "dropped_packets": 132,
        "bytes_per_second": 12_000.0, "packets_per_second": 120.0, "drops_per_second": 4.0,
        "backlog_packets": 122,
        // Half of the 400 sojourn times lie in the lower of two buckets, so the median is the
        // border between the buckets. 196 of the 200 values in the upper bucket do not exceed the
        // 99th percentile.
        "sojourn_p50_ns": 2048.0, "sojourn_p99_ns": 2_076_180.0,
        "drops": {"late": late(12, 4.0), "overlimit": late(120, 0.0)},
    });
    let queue = |number: u64, first: u64, quantiles: [f64; 2]| {
        let sent = first as f64;
        json!({
            "what": "queue", "id": format!("d0/{number}"), "depth": 1, "device": "d0",
            "queue": number, "sent_bytes": first * 300, "sent_packets": first * 3,
            "dropped_packets": 6 + first, "bytes_per_second": sent * 100.0,
            "packets_per_second": sent, "drops_per_second": 2.0, "backlog_packets": first + 1,
            "sojourn_p50_ns": quantiles[0], "sojourn_p99_ns": quantiles[1],
            "drops": {"late": late(6, 2.0), "overlimit": late(first, 0.0)},
        })
    };
    let below = |what: &str, id: &str, depth: u64, first: u64| {
        let rates = [(first + 1) * 1000, (first + 2) * 10, first + 3].map(|count| count as f64);
        json!({
            "what": what, "id": format!("d0/1/{id}"), "depth": depth, "device": "d0", "queue": 1,
            "handle": id, "sent_bytes": (first + 1) * 3000, "sent_packets": (first + 2) * 30,
            "dropped_packets": (first + 3) * 3, "bytes_per_second": rates[0],
            "packets_per_second": rates[1], "drops_per_second": rates[2],
            "backlog_packets": first + 5, "backlog_bytes": first + 4,
            "sojourn_p50_ns": null, "sojourn_p99_ns": null,
        })
    };
    let with = |mut row: Value, more: Value| {
        for (key, value) in more.as_object().expect("an object") {
            row[key] = value.clone();
        }
        row
    };
    // All values lie in the bucket from 1024 to 2048 ns, so the 99th percentile is 1024 plus 99
    // hundredths of 1024.
    let tbf = with(
        below("qdisc", "1:", 2, 100),
        json!({
            "kind": "tbf", "drops": {"overlimit": late(21, 7.0)},
            "sojourn_p50_ns": 1536.0, "sojourn_p99_ns": 2037.76,
        }),
    );
    let class = with(below("class", "1:1", 3, 300), json!({"kind": "tbf", "parent": "1:"}));
    let leaf = with(below("qdisc", "2:", 4, 200), json!({"kind": "pfifo", "parent": "1:1"}));
    // The sojourn times of the second queue lie in the bucket that begins at 2^20 ns.
    let second = queue(1, 70, [1_572_860.0, 2_086_670.0]);
    let expected = [device, queue(0, 50, [1536.0, 2037.76]), second, tbf, class, leaf];
    let rows = rows();
    for (row, expected) in rows.as_array().expect("rows").iter().zip(&expected) {
        assert_eq!(row, expected);
    }
    assert_eq!(rows.as_array().map(Vec::len), Some(expected.len()));
}

#[test]
fn figures_have_six_digits() {
    for (figure, short) in [
        (0.0, 0.0),
        (-0.0, 0.0),
        (f64::NAN, 0.0),
        (f64::INFINITY, 0.0),
        (1.0, 1.0),
        (-2.5, -2.5),
        (999_999.0, 999_999.0),
        (123_456.7, 123_457.0),
        (1_234_567.0, 1_234_570.0),
        (0.000_123_456_78, 0.000_123_457),
        (2f64.powi(60), 1_152_920e12),
    ] {
        let (shown, short): (f64, f64) = (six_digits(figure), short);
        assert!((shown - short).abs() <= short.abs() * 1e-12, "{figure}: {shown}");
    }
}

/// If the clock does not advance between two snapshots, or goes back, no rates are computed.
#[test]
fn rates_take_time() {
    let mut meter = RateMeter::default();
    for (at_ns, seconds) in [(5, None), (5, None), (4, None), (6, Some(2e-9))] {
        let stats = meter.update(&Snapshot::of(vec![device(1)], at_ns, 0));
        assert_eq!(stats.seconds, seconds);
        assert_eq!(stats.rows[0].bytes_per_second.is_some(), seconds.is_some());
    }
}

#[test]
fn rows_are_called_by_their_kind_and_handle() {
    let row = |what, queue, kind: &'static str, handle: &str| Row {
        what,
        device: "d0".into(),
        queue,
        kind: Some(kind.into()),
        handle: Some(handle.into()),
        ..Row::default()
    };
    for (row, label) in [
        (row(What::Device, None, "dummy", "x"), "d0"),
        (row(What::Queue, Some(3), "y", "x"), "queue 3"),
        (row(What::Qdisc, Some(3), "fq", "8001:"), "fq 8001:"),
        (row(What::Class, Some(3), "htb", "1:10"), "class 1:10"),
    ] {
        assert_eq!(row.label(), label);
    }
}

/// Makes a tree of rows from ids and depths. `figure` returns the value by which a row is sorted;
/// `None` if it is unknown.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is small and whole"
)]
fn tree(rows: &[(&str, usize)], figure: impl Fn(&str) -> Option<f64>) -> Stats {
    let row = |(id, depth): &(&str, usize)| Row {
        id: (*id).into(),
        device: id.split('/').next().unwrap_or_default().into(),
        depth: *depth,
        bytes_per_second: figure(id),
        packets_per_second: figure(id).map(|figure| figure + 1000.0),
        sojourn_p99_ns: figure(id),
        drops_per_second: figure(id),
        backlog_packets: figure(id).map_or(0, |figure| figure as u64),
        ..Row::default()
    };
    Stats { rows: rows.iter().map(row).collect(), ..Stats::default() }
}

fn ids(stats: &Stats) -> Vec<&str> {
    stats.rows.iter().map(|row| row.id.as_str()).collect()
}

/// Siblings are sorted with the largest value first and unknown values last; equal values keep
/// their order.
#[test]
fn what_stands_side_by_side_is_sorted() {
    let rows = [
        ("a", 0),
        ("a/1", 1),
        ("a/1/x", 2),
        ("a/2", 1),
        ("a/2/x", 2),
        ("a/2/y", 2),
        ("a/3", 1),
        ("b", 0),
        ("c", 0),
        ("c/1", 1),
        ("d", 0),
    ];
    let figure = |id: &str| match id {
        "a/1" | "c" | "c/1" => Some(5.0),
        "a/2" | "a/2/x" => Some(7.0),
        "a/2/y" => Some(8.0),
        "a/3" | "b" => None,
        _ => Some(0.0),
    };
    let sorted = ["c", "c/1", "a", "a/2", "a/2/y", "a/2/x", "a/1", "a/1/x", "a/3", "d", "b"];
    for sort in [Sort::Rate, Sort::Packets, Sort::P99, Sort::Drops] {
        let mut stats = tree(&rows, figure);
        stats.select(&Query { sort, ..Query::default() });
        assert_eq!(ids(&stats), sorted, "{sort:?}");
        assert_eq!(stats.omitted, 0);
    }
    // A backlog is never unknown: `b`, for which `figure` returns `None`, has the backlog 0, like
    // `d`. So `b` and `d` keep the order that they have in the tree.
    let mut stats = tree(&rows, figure);
    stats.select(&Query { sort: Sort::Backlog, ..Query::default() });
    let sorted = ["c", "c/1", "a", "a/2", "a/2/y", "a/2/x", "a/1", "a/1/x", "a/3", "b", "d"];
    assert_eq!(ids(&stats), sorted);
    let mut stats = tree(&rows, figure);
    stats.select(&Query::default());
    assert_eq!(ids(&stats), rows.map(|(id, _)| id));
    // Rows whose parent rows are missing are not lost when the rows are sorted.
    let mut stats = tree(&[("a/1/x", 2), ("a/1", 1), ("a", 0), ("b", 0)], figure);
    stats.select(&Query { sort: Sort::Rate, ..Query::default() });
    assert_eq!(ids(&stats), ["a/1", "a/1/x", "a", "b"]);
}

/// If the number of rows is limited, a device with few rows keeps all of them. The other devices
/// share the rest of the limit equally.
#[test]
fn devices_share_what_room_there_is() {
    let of = |device: &str, count: usize| {
        (0..count).map(|number| (format!("{device}/{number}"), usize::from(number > 0))).collect()
    };
    let all: Vec<(String, usize)> = [("a", 10), ("b", 3), ("c", 10)]
        .iter()
        .flat_map(|(device, count)| -> Vec<(String, usize)> { of(device, *count) })
        .collect();
    let all: Vec<(&str, usize)> = all.iter().map(|(id, depth)| (id.as_str(), *depth)).collect();
    for (limit, counts) in [
        (0, [0, 0, 0]),
        (1, [0, 0, 1]),
        (2, [1, 0, 1]),
        (3, [1, 1, 1]),
        (12, [4, 3, 5]),
        (13, [5, 3, 5]),
        (22, [9, 3, 10]),
        (23, [10, 3, 10]),
        (99, [10, 3, 10]),
    ] {
        let mut stats = tree(&all, |_| None);
        stats.select(&Query { limit: Some(limit), ..Query::default() });
        let count = |device: &str| stats.rows.iter().filter(|row| row.device == device).count();
        assert_eq!(["a", "b", "c"].map(count), counts, "{limit}");
        assert_eq!(stats.omitted, 23 - counts.iter().sum::<usize>());
        // Of each device, the first rows are kept.
        let first = |(at, row): (usize, &Row)| row.id.ends_with(&format!("/{at}"));
        for device in ["a", "b", "c"] {
            let rows = stats.rows.iter().filter(|row| row.device == device);
            assert!(rows.enumerate().all(first), "{limit}");
        }
    }
}

/// The row that a query names as `keep` is shown together with the rows above it in the tree, but
/// without the siblings of those rows.
#[test]
fn a_row_is_kept_with_what_is_above_it() {
    let rows = [
        ("a", 0),
        ("a/1", 1),
        ("a/1/x", 2),
        ("a/2", 1),
        ("a/2/x", 2),
        ("a/2/y", 2),
        ("b", 0),
        ("b/1", 1),
    ];
    for (keep, kept) in [
        ("a/2/y", &["a", "a/2", "a/2/y", "b"][..]),
        ("a/2", &["a", "a/2", "b"]),
        ("b/1", &["a", "b", "b/1"]),
        ("b", &["a", "b"]),
        ("c", &["a", "b"]),
    ] {
        let mut stats = tree(&rows, |_| None);
        let keep = Some(keep.to_owned());
        stats.select(&Query { limit: Some(2), keep, ..Query::default() });
        assert_eq!(ids(&stats), kept);
        assert_eq!(stats.omitted, 8 - kept.len());
    }
}

/// A filter word may match any part of a row's description, but not across two of its words.
#[test]
fn filters_find_words() {
    let plain = || Row { device: "Uplink".into(), ..Row::default() };
    let reason = |packets| Reason { packets, per_second: None };
    let all = [
        Row { id: "device".into(), kind: Some("veth".into()), up: Some(false), ..plain() },
        Row {
            id: "other".into(),
            up: Some(true),
            drops: [("late".into(), reason(0)), ("no_buffers".into(), reason(1))].into(),
            ..plain()
        },
        Row { id: "queue".into(), what: What::Queue, queue: Some(31), ..plain() },
        Row {
            id: "qdisc".into(),
            what: What::Qdisc,
            queue: Some(7),
            kind: Some("htb".into()),
            handle: Some("1:".into()),
            ..plain()
        },
        Row {
            id: "class".into(),
            what: What::Class,
            queue: Some(7),
            kind: Some("htb".into()),
            handle: Some("1:a".into()),
            parent: Some("1:b".into()),
            drops: [("overlimit".into(), reason(2)), ("zero".into(), reason(1))].into(),
            ..plain()
        },
    ];
    for (filter, found) in [
        ("uplink", &["device", "other", "queue", "qdisc", "class"][..]),
        ("UPLINK veth", &["device"]),
        ("down", &["device"]),
        ("vethdown", &[]),
        ("uplinkveth", &[]),
        ("queue 31", &["queue"]),
        ("queue", &["queue", "qdisc", "class"]),
        ("uplinkqueue", &[]),
        ("class", &["class"]),
        ("7class", &[]),
        ("classhtb", &[]),
        ("htb", &["qdisc", "class"]),
        ("1:A", &["class"]),
        ("htb1:", &[]),
        ("parent", &["class"]),
        ("1:aparent", &[]),
        ("parent1:b", &[]),
        ("1:b", &["class"]),
        ("late", &[]),
        ("no_buffers", &["other"]),
        ("overlimit zero", &["class"]),
        ("1:boverlimit", &[]),
        ("overlimitzero", &[]),
        ("overlimit no_buffers", &[]),
        ("  ", &["device", "other", "queue", "qdisc", "class"]),
    ] {
        let mut stats = Stats { rows: all.to_vec(), ..Stats::default() };
        stats.select(&Query { filter: Some(filter.into()), ..Query::default() });
        assert_eq!(ids(&stats), found, "{filter:?}");
    }
    let mut stats = Stats { rows: all.to_vec(), ..Stats::default() };
    stats.select(&Query { device: Some("Uplink".into()), ..Query::default() });
    assert_eq!(stats.rows.len(), 5);
    stats.select(&Query { device: Some("uplink".into()), ..Query::default() });
    assert_eq!((stats.rows.len(), stats.omitted), (0, 5));
}

#[test]
fn quantiles_of_nothing_and_beyond() {
    // The counts of a histogram that was read from JSON may end with empty buckets.
    let read: Histogram = serde_json::from_str("[0, 4, 0, 0]").expect("counts");
    let quantiles = [-1.0, 0.0, 0.5, 1.0, 2.0].map(|q| read.quantile(q));
    assert_eq!(quantiles, [1.0, 1.0, 1.5, 2.0, 2.0].map(Some));
    let none: Histogram = serde_json::from_str("[0, 0]").expect("counts");
    assert_eq!((none.quantile(0.5), none.total(), none.sum()), (None, 0, 0.0));
    // A quantile exactly on the border of two buckets is computed from the lower bucket.
    let two: Histogram = serde_json::from_str("[1, 1, 2]").expect("counts");
    assert_eq!([0.25, 0.5, 0.75, 1.0].map(|q| two.quantile(q)), [0.0, 2.0, 3.0, 4.0].map(Some));
    assert_eq!((two.total(), two.sum()), (4, 0.0 + 1.5 + 2.0 * 3.0));
    assert_eq!([0, 1, 2, 3].map(|power| two.below(power)), [1, 2, 4, 4]);
}

/// The rows of a qdisc and of a class that follow limits show their shares; no other row has such a
/// key.
#[test]
fn what_follows_a_limit_shows_its_share() {
    let share = |place: &str, limit: &str| Share {
        place: place.into(),
        limit: limit.into(),
        weight: 3,
        used_bytes_per_second: 601,
        demand_bytes_per_second: 602,
        share_bytes_per_second: 603,
        floor_bytes_per_second: 604,
        standing: "alone".into(),
        answer_age_ms: Some(605),
    };
    let shares = vec![share("1:", "a"), share("1:1", "b"), share("7:7", "gone")];
    let stats =
        RateMeter::default().update(&Snapshot::of(vec![Device { shares, ..device(1) }], 1, 1));
    let shown: Vec<_> = stats
        .rows
        .iter()
        .flat_map(|row| row.shares.iter().map(|share| (row.what, &*share.place, &*share.limit)))
        .collect();
    assert_eq!(shown, [(What::Qdisc, "1:", "a"), (What::Class, "1:1", "b")]);
    let json = serde_json::to_value(&stats.rows).expect("JSON");
    let with: Vec<&Value> =
        json.as_array().expect("rows").iter().filter_map(|row| row.get("shares")).collect();
    assert_eq!(
        *with[1],
        json!([{
            "place": "1:1", "limit": "b", "weight": 3, "used_bytes_per_second": 601,
            "demand_bytes_per_second": 602, "share_bytes_per_second": 603,
            "floor_bytes_per_second": 604, "standing": "alone", "answer_age_ms": 605,
        }])
    );
    assert_eq!(with.len(), 2);
}

/// The row of a device with a relay has the relay's counters; no other row has such a key.
#[test]
fn a_device_with_a_relay_shows_it() {
    let relay = tests::relay();
    let device = Device { relay: Some(relay.clone()), ..device(1) };
    let stats = RateMeter::default().update(&Snapshot::of(vec![device], 1, 1));
    let shown: Vec<_> = stats.rows.iter().filter(|row| row.relay.is_some()).collect();
    assert_eq!((shown.len(), shown[0].what, &shown[0].relay), (1, What::Device, &Some(relay)));
    let json = serde_json::to_value(&shown[0].relay).expect("JSON");
    let expected = json!({
        "clients": 501, "clients_max": 502, "forgotten": 503, "errors": 504,
        "refused": {"full": 507},
        "answers": {"packets": 505, "bytes": 506, "refused": {"late": 508}},
    });
    assert_eq!(json, expected);
}
