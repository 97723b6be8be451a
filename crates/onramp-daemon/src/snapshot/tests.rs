//! Hand-made snapshots, and the statistics computed from them.

use super::*;

/// A device with `queues` queues, each with an `fq` qdisc, whose traffic is steady; `step` is the
/// moment at which its counters were read.
pub(crate) fn steady(name: &str, index: u32, queues: usize, step: u64) -> Device {
    let queue = |number: usize| {
        let weight = number as u64 + 1;
        let mut sojourn = [0; 40];
        sojourn[11] = 99 * step * weight;
        sojourn[21] = step * weight;
        let drops = Counts::from([("overlimit".into(), 5 * step * weight)]);
        Queue {
            queue: number,
            sent_packets: 100 * step * weight,
            sent_bytes: 100_000 * step * weight,
            enqueued_packets: 105 * step * weight + 7,
            held_packets: 7,
            drops: drops.clone(),
            sojourn_ns: Histogram::new(&sojourn),
            bursts: step * weight,
            burst_packets: Histogram::new(&[0, step]),
            staging_ns: Histogram::new(&[0, step]),
            late_ns: Histogram::new(&[0, step]),
            lost_ns: step,
            qdiscs: vec![Qdisc {
                handle: format!("{:x}:", 0x8001 + number),
                kind: "fq".into(),
                traffic: Traffic {
                    sent_bytes: 100_000 * step * weight,
                    sent_packets: 100 * step * weight,
                    dropped_packets: 5 * step * weight,
                    backlog_bytes: 7000,
                    backlog_packets: 7,
                    ..Traffic::default()
                },
                drops,
                sojourn_ns: Some(Histogram::new(&sojourn)),
                statistics: BTreeMap::from([("flows".into(), 3), ("throttled".into(), -1)]),
                ..Qdisc::default()
            }],
            ..Queue::default()
        }
    };
    Device {
        shares: Vec::new(),
        name: name.to_owned(),
        index,
        kind: "dummy".into(),
        up: true,
        mtu: 1500,
        txqueuelen: 1000,
        peer: None,
        relay: None,
        queues: (0..queues).map(queue).collect(),
    }
}

/// A device with `htb 1:`: below it 1:1, and below 1:1 the classes 1:10 (with `fq_codel 10:`) and
/// 1:20 (with a default `pfifo`).
pub(crate) fn nested(name: &str, index: u32) -> Device {
    let class = |handle: &str, parent: Option<&str>, leaf: Option<&str>| Class {
        handle: handle.to_owned(),
        parent: parent.map(str::to_owned),
        leaf: leaf.map(str::to_owned),
        traffic: Traffic { sent_bytes: 1, ..Traffic::default() },
        statistics: BTreeMap::from([("tokens".into(), -5)]),
    };
    let qdisc = |handle: &str, parent: Option<&str>, kind: &'static str| Qdisc {
        handle: handle.to_owned(),
        parent: parent.map(str::to_owned),
        kind: kind.into(),
        ..Qdisc::default()
    };
    let mut htb = qdisc("1:", None, "htb");
    htb.classes = vec![
        class("1:10", Some("1:1"), Some("10:")),
        class("1:1", None, None),
        class("1:20", Some("1:1"), None),
    ];
    let below = [qdisc("0:", Some("1:20"), "pfifo"), qdisc("10:", Some("1:10"), "fq_codel")];
    let qdiscs = std::iter::once(htb).chain(below).collect();
    let mut device = steady(name, index, 1, 0);
    device.queues[0].qdiscs = qdiscs;
    device
}

/// The counters of a relay, no two of which are equal.
pub(crate) fn relay() -> Relay {
    Relay {
        clients: 501,
        clients_max: 502,
        forgotten: 503,
        errors: 504,
        refused: [("full".into(), 507)].into(),
        answers: Answers { packets: 505, bytes: 506, refused: [("late".into(), 508)].into() },
    }
}

pub(crate) fn at(second: u64, devices: Vec<Device>) -> Snapshot {
    Snapshot::of(devices, second * 1_000_000_000, 1_700_000_000_000 + second * 1000)
}

fn ids(stats: &Stats) -> Vec<(&str, usize)> {
    stats.rows.iter().map(|row| (row.id.as_str(), row.depth)).collect()
}

#[test]
fn rates_are_differences_by_time() {
    let mut meter = RateMeter::default();
    let first = meter.update(&at(1, vec![steady("d0", 1, 2, 1)]));
    assert_eq!((first.seconds, first.rows[0].bytes_per_second), (None, None));
    assert_eq!((first.rows[0].sent_bytes, first.rows[0].sojourn_p99_ns), (300_000, None));
    let stats = meter.update(&at(3, vec![steady("d0", 1, 2, 5)]));
    assert_eq!(stats.seconds, Some(2.0));
    let names = ["d0", "d0/0", "d0/0/8001:", "d0/1", "d0/1/8002:"];
    assert_eq!(ids(&stats).iter().map(|(id, _)| *id).collect::<Vec<_>>(), names);
    for (row, weight) in stats.rows.iter().zip([3.0, 1.0, 1.0, 2.0, 2.0]) {
        assert_eq!(row.bytes_per_second, Some(200_000.0 * weight), "{}", row.id);
        assert_eq!(row.packets_per_second, Some(200.0 * weight), "{}", row.id);
        assert_eq!(row.drops_per_second, Some(10.0 * weight), "{}", row.id);
        assert_eq!(row.drops["overlimit"].per_second, Some(10.0 * weight), "{}", row.id);
        let p50 = row.sojourn_p50_ns.expect("packets passed");
        assert!((1024.0..2048.0).contains(&p50), "{}: {p50}", row.id);
        assert_eq!(row.sojourn_p99_ns, Some(2048.0), "{}", row.id);
    }
    assert_eq!((stats.rows[0].queues, stats.rows[0].backlog_packets), (Some(2), 14));
    assert_eq!(stats.rows[2].backlog_bytes, Some(7000));
}

#[test]
fn what_is_new_or_began_anew_has_done_it_all_since() {
    let mut meter = RateMeter::default();
    meter.update(&at(0, vec![steady("d0", 1, 1, 10)]));
    // In the second snapshot, both devices are new: `d0`, because its index has changed, and `d1`.
    // So all that they have counted belongs to the time between the two snapshots.
    let stats = meter.update(&at(2, vec![steady("d0", 2, 1, 20), steady("d1", 3, 1, 4)]));
    assert_eq!(stats.rows[0].packets_per_second, Some(1000.0));
    assert_eq!(stats.rows[3].packets_per_second, Some(200.0));
    // Counters that have decreased were reset, so all that they show belongs to the last interval.
    let stats = meter.update(&at(3, vec![steady("d0", 2, 1, 3)]));
    assert_eq!(stats.rows[0].packets_per_second, Some(300.0));
    assert!(stats.rows[0].sojourn_p50_ns.is_some());
    // A second snapshot at the same time yields no rates.
    let stats = meter.update(&at(3, vec![steady("d0", 2, 1, 3)]));
    assert_eq!(stats.seconds, None);
    // A qdisc of another kind with the same handle is a new qdisc.
    let mut other = steady("d0", 2, 1, 4);
    other.queues[0].qdiscs[0].kind = "pfifo".into();
    let stats = meter.update(&at(4, vec![other]));
    assert_eq!(stats.rows[1].packets_per_second, Some(100.0));
    assert_eq!(stats.rows[2].packets_per_second, Some(400.0));
}

#[test]
fn classes_stand_below_classes_and_qdiscs_below_them() {
    let stats = RateMeter::default().update(&at(0, vec![nested("d0", 1)]));
    let expected = [
        ("d0", 0),
        ("d0/0", 1),
        ("d0/0/1:", 2),
        ("d0/0/1:1", 3),
        ("d0/0/1:10", 4),
        ("d0/0/10:", 5),
        ("d0/0/1:20", 4),
        ("d0/0/0:@1:20", 5),
    ];
    assert_eq!(ids(&stats), expected);
    let labels: Vec<_> = stats.rows.iter().map(Row::label).collect();
    let named = ["d0", "queue 0", "htb 1:", "class 1:1", "class 1:10", "fq_codel 10:"];
    assert_eq!(labels[..6], named);
}

/// A `tbf` that lists no classes: its inner qdisc stands directly below it in the tree.
#[test]
fn a_qdisc_stands_below_a_qdisc() {
    let mut device = nested("d0", 1);
    device.queues[0].qdiscs.truncate(2);
    device.queues[0].qdiscs[0].classes.clear();
    device.queues[0].qdiscs[1].parent = Some("1:".to_owned());
    let stats = RateMeter::default().update(&at(0, vec![device]));
    assert_eq!(ids(&stats)[2..], [("d0/0/1:", 2), ("d0/0/0:@1:", 3)]);
}

/// If a qdisc's parent is not in its queue, or if the parents form a circle, each row still appears
/// exactly once.
#[test]
fn odd_trees_lose_nothing() {
    let mut device = nested("d0", 1);
    let queue = &mut device.queues[0];
    queue.qdiscs[2].parent = Some("7:7".to_owned());
    queue.qdiscs[0].parent = Some("1:20".to_owned());
    let stats = RateMeter::default().update(&at(0, vec![device]));
    let mut seen: Vec<_> = stats.rows.iter().map(|row| row.id.as_str()).collect();
    seen.sort_unstable();
    let mut expected = ["d0", "d0/0", "d0/0/1:", "d0/0/1:1", "d0/0/1:10", "d0/0/10:"].to_vec();
    expected.extend(["d0/0/1:20", "d0/0/0:@1:20"]);
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

fn selected(query: Query) -> Stats {
    let mut meter = RateMeter::default();
    let devices = |step| vec![steady("d0", 1, 3, step), nested("eth1", 2)];
    meter.update(&at(0, devices(1)));
    let mut stats = meter.update(&at(1, devices(2)));
    stats.select(&query);
    stats
}

#[test]
fn rows_are_selected() {
    let all = selected(Query::default());
    assert_eq!((all.rows.len(), all.omitted), (15, 0));
    let one = selected(Query { device: Some("eth1".into()), ..Query::default() });
    assert_eq!((one.rows.len(), one.omitted), (8, 7));
    let filter = |text: &str| selected(Query { filter: Some(text.into()), ..Query::default() });
    assert_eq!(ids(&filter("FQ 8002")), [("d0", 0), ("d0/1", 1), ("d0/1/8002:", 2)]);
    let class = [("eth1", 0), ("eth1/0", 1), ("eth1/0/1:", 2), ("eth1/0/1:1", 3)];
    assert_eq!(ids(&filter("class 1:20"))[..4], class);
    assert_eq!(filter("class 1:20").rows.len(), 5);
    assert_eq!(filter("nothing of this").rows, []);
    assert_eq!(filter("overlimit").rows.len(), 7);
    assert_eq!(filter("").rows.len(), 15);
}

#[test]
fn rows_are_sorted_and_cut() {
    let query = Query { sort: Sort::Rate, ..Query::default() };
    let sorted: Vec<_> = selected(query).rows.into_iter().map(|row| row.id).take(5).collect();
    assert_eq!(sorted, ["d0", "d0/2", "d0/2/8003:", "d0/1", "d0/1/8002:"]);
    for sort in Sort::ALL {
        assert_eq!(selected(Query { sort, ..Query::default() }).rows.len(), 15, "{sort:?}");
        assert_eq!(Sort::named(sort.name()), Some(sort));
    }
    let names = |stats: &Stats| stats.rows.iter().map(|row| row.id.clone()).collect::<Vec<_>>();
    let cut = selected(Query { limit: Some(4), ..Query::default() });
    assert_eq!((names(&cut).join(" "), cut.omitted), ("d0 d0/0 eth1 eth1/0".into(), 11));
    // Two devices share a limit of fourteen rows, seven each. `d0` has seven rows and keeps all;
    // `eth1` has eight and loses one.
    let cut = selected(Query { limit: Some(14), ..Query::default() });
    assert_eq!((names(&cut).len(), cut.rows[6].id.as_str()), (14, "d0/2/8003:"));
    let keep = Some("eth1/0/10:".to_owned());
    let kept = selected(Query { limit: Some(2), keep, ..Query::default() });
    let path = ["d0", "eth1", "eth1/0", "eth1/0/1:", "eth1/0/1:1", "eth1/0/1:10", "eth1/0/10:"];
    assert_eq!(names(&kept), path);
    let kept = selected(Query { limit: Some(2), keep: Some("d0".into()), ..Query::default() });
    assert_eq!(names(&kept), ["d0", "eth1"]);
    assert_eq!(selected(Query { limit: Some(0), ..Query::default() }).omitted, 15);
}

#[test]
fn documents_can_be_read_again() {
    let snapshot = at(1, vec![steady("d0", 1, 2, 3), nested("d1", 2)]);
    let text = serde_json::to_string(&snapshot).expect("it can be written");
    assert_eq!(serde_json::from_str::<Snapshot>(&text).expect("it can be read"), snapshot);
    let stats = selected(Query::default());
    let text = serde_json::to_string(&stats).expect("it can be written");
    assert_eq!(serde_json::from_str::<Stats>(&text).expect("it can be read"), stats);
}

/// Returns the keys that a section of docs/json.md documents, and the keys that a JSON object has,
/// both sorted.
fn keys(heading: &str, object: &serde_json::Value) -> [Vec<String>; 2] {
    let document = include_str!("../../../../docs/json.md");
    let section = document.lines().skip_while(|line| *line != heading).skip(1);
    let rows = section.take_while(|line| !line.starts_with('#'));
    let firsts = rows.filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let mut documented: Vec<_> =
        firsts.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned)).collect();
    documented.sort();
    let mut there: Vec<_> = object.as_object().into_iter().flatten().collect();
    there.sort_by_key(|(key, _)| key.as_str());
    [documented, there.into_iter().map(|(key, _)| key.clone()).collect()]
}

#[test]
fn all_keys_are_documented() {
    let document = |value| serde_json::to_value(value).expect("it can be written");
    let snapshot = document(&at(1, vec![steady("d0", 1, 2, 3)]));
    let parts = [
        ("## `onramp.snapshot`, version 1", ""),
        ("### Each of `devices`", "/devices/0"),
        ("### Each of `queues`", "/devices/0/queues/0"),
        ("### Each of `qdiscs`", "/devices/0/queues/0/qdiscs/0"),
    ];
    for (heading, at) in parts {
        let [documented, there] = keys(heading, snapshot.pointer(at).expect("it is there"));
        assert_eq!(documented, there, "{heading}");
    }
    let stats = serde_json::to_value(selected(Query::default())).expect("it can be written");
    let [documented, there] = keys("## `onramp.stats`, version 1", &stats);
    assert_eq!(documented, there);
    // The section's table lists the keys that every row has; other keys are documented below the
    // table.
    let [documented, _] = keys("### Each of `rows` of `onramp.stats`", &stats);
    for row in stats["rows"].as_array().expect("rows") {
        let lacking = documented.iter().find(|key| row.get(key).is_none());
        assert_eq!(lacking, None, "{row}");
    }
}
