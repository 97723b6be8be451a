//! The document of metrics, read back by a parser that is written independently of the writer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::*;
use crate::snapshot::tests::{at, nested, relay, steady};

/// Returns the samples of a document, keyed by name and labels. Panics if the document's format is
/// broken.
fn read(text: &str) -> BTreeMap<String, f64> {
    let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
    let mut family = String::new();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, _) = kind.split_once(' ').expect("a name and a type");
            assert!(families.insert(name.to_owned()), "{name} comes twice");
            name.clone_into(&mut family);
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            let bare = name.split('{').next().expect("something");
            assert!(bare.starts_with(&family), "{bare} does not belong to {family}");
            let value = value.parse().expect("a number");
            assert!(samples.insert(name.to_owned(), value).is_none(), "{name} comes twice");
        }
    }
    samples
}

#[test]
fn each_level_has_its_series() {
    let snapshot = at(1, vec![steady("d0", 1, 2, 3), nested("d1", 2)]);
    let samples = read(&write(&snapshot, None, Detail::Statistic));
    let version = env!("CARGO_PKG_VERSION");
    let fq = "device=\"d0\",queue=\"1\",qdisc=\"fq\",handle=\"8002:\",parent=\"root\"";
    let leaf = "device=\"d1\",queue=\"0\",qdisc=\"fq_codel\",handle=\"10:\",parent=\"1:10\"";
    let class = "device=\"d1\",queue=\"0\",qdisc=\"htb\",class=\"1:20\",parent=\"1:1\"";
    let expected = [
        (format!("onramp_build_info{{version=\"{version}\"}}"), 1.0),
        ("onramp_device_up{device=\"d0\"}".into(), 1.0),
        ("onramp_device_sent_packets_total{device=\"d0\"}".into(), 900.0),
        ("onramp_device_drops_total{device=\"d0\",reason=\"overlimit\"}".into(), 45.0),
        ("onramp_device_drops_total{device=\"d0\",reason=\"late\"}".into(), 0.0),
        ("onramp_drops_total{device=\"d0\",queue=\"1\",reason=\"overlimit\"}".into(), 30.0),
        ("onramp_backlog_packets{device=\"d0\",queue=\"0\"}".into(), 7.0),
        (format!("onramp_qdisc_sent_bytes_total{{{fq}}}"), 600_000.0),
        (format!("onramp_qdisc_drop_reasons_total{{{fq},reason=\"overlimit\"}}"), 30.0),
        (format!("onramp_qdisc_statistic{{{fq},statistic=\"throttled\"}}"), -1.0),
        (format!("onramp_qdisc_sent_bytes_total{{{leaf}}}"), 0.0),
        (format!("onramp_class_sent_bytes_total{{{class}}}"), 1.0),
        (format!("onramp_class_statistic{{{class},statistic=\"tokens\"}}"), -5.0),
    ];
    for (name, value) in expected {
        assert_eq!(samples.get(&name), Some(&value), "{name}");
    }
}

#[test]
fn less_detail_is_less() {
    let snapshot = at(1, vec![steady("d0", 1, 4, 3), nested("d1", 2)]);
    let mut before = 0;
    for (name, detail) in Detail::ALL {
        assert_eq!(Detail::named(name), Some(detail));
        let samples = read(&write(&snapshot, None, detail));
        assert!(samples.len() > before, "{name}");
        let has = |start: &str| samples.keys().any(|key| key.starts_with(start));
        assert_eq!(has("onramp_queue_"), detail >= Detail::Queue);
        assert_eq!(has("onramp_qdisc_"), detail >= Detail::Qdisc);
        assert_eq!(has("onramp_class_"), detail >= Detail::Class);
        before = samples.len();
    }
    assert_eq!(Detail::named("everything"), None);
    let one = write(&snapshot, Some("d1"), Detail::Class);
    assert!(one.contains("device=\"d1\"") && !one.contains("device=\"d0\""));
    assert!(!write(&snapshot, Some("d7"), Detail::Class).contains("device="));
}

#[test]
fn histograms_add_up() {
    let snapshot = at(1, vec![steady("d0", 1, 1, 1)]);
    let samples = read(&write(&snapshot, None, Detail::Device));
    let get = |name: &str| samples[&format!("onramp_sojourn_seconds{name}")];
    let bucket = |le: &str| get(&format!("_bucket{{device=\"d0\",le=\"{le}\"}}"));
    // The sojourn times: 99 values lie between 1.024 and 2.048 µs, and one lies between 1.05 and
    // 2.1 ms.
    let expected = [("0.000001023", 0.0), ("0.000004095", 99.0), ("0.001048575", 99.0)];
    for (le, count) in expected {
        assert_eq!(bucket(le), count, "{le}");
    }
    assert_eq!((bucket("0.004194303"), bucket("+Inf")), (100.0, 100.0));
    assert_eq!(get("_count{device=\"d0\"}"), 100.0);
    let sum = get("_sum{device=\"d0\"}");
    assert!((sum - (99.0 * 1.536e-6 + 1.572_864e-3)).abs() < 1e-9, "{sum}");
    let mut idle = steady("d0", 1, 1, 0);
    idle.queues[0].sojourn_ns = Histogram::default();
    let text = write(&at(1, vec![idle]), None, Detail::Device);
    assert!(!text.contains("onramp_sojourn_seconds_"), "{text}");
}

proptest! {
    /// Whatever a label contains, each sample takes one line, and the label can be read back.
    #[test]
    fn labels_are_escaped(name in any::<String>()) {
        let text = write(&at(1, vec![steady(&name, 1, 1, 1)]), None, Detail::Device);
        // Split at `\n` only: `str::lines` would also remove a `\r`, which is an ordinary character
        // in this format.
        let start = "onramp_device_up{device=\"";
        let found: Vec<_> = text.split('\n').filter_map(|line| line.strip_prefix(start)).collect();
        prop_assert_eq!(found.len(), 1);
        let value = found[0].strip_suffix("\"} 1").expect("a value");
        let mut read = String::new();
        let mut chars = value.chars();
        while let Some(c) = chars.next() {
            prop_assert!(c != '"');
            match c {
                '\\' => match chars.next() {
                    Some('n') => read.push('\n'),
                    Some(c @ ('"' | '\\')) => read.push(c),
                    other => prop_assert!(false, "{other:?}"),
                },
                c => read.push(c),
            }
        }
        prop_assert_eq!(read, name);
    }
}

/// `promtool`, Prometheus' own checker, accepts the document.
#[test]
fn promtool_is_content() {
    let spawned = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else {
        assert!(std::env::var_os("CI").is_none(), "no promtool: install the package prometheus");
        writeln!(std::io::stderr(), "SKIP: no promtool").expect("it is open");
        return;
    };
    let snapshot = at(1, vec![steady("d\"0\\", 1, 3, 3), nested("d1", 2), with_relay()]);
    let text = write(&snapshot, None, Detail::Statistic);
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(text.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty() && output.stdout.is_empty(), "{said}");
}

/// A document for a device with ten thousand queues is written.
#[test]
fn ten_thousand_qdiscs() {
    let snapshot = at(1, vec![steady("d0", 1, 10_000, 3)]);
    let text = write(&snapshot, None, Detail::Class);
    assert_eq!(text.matches("\nonramp_qdisc_sent_bytes_total{").count(), 10_000);
    assert_eq!(text.matches("\nonramp_qdisc_sojourn_seconds_count{").count(), 10_000);
    let brief = write(&snapshot, None, Detail::Device);
    assert!(brief.len() < 20_000, "{}", brief.len());
}

/// docs/metrics.md documents each family, and each documented family exists.
#[test]
fn the_series_are_documented() {
    let document = include_str!("../../../../docs/metrics.md");
    let snapshot = at(1, vec![steady("d0", 1, 1, 3), nested("d1", 2), with_relay()]);
    let text = write(&snapshot, None, Detail::Statistic);
    let told: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let documented: BTreeSet<_> =
        document.split('`').skip(1).step_by(2).filter(|word| word.starts_with("onramp_")).collect();
    assert_eq!(told, documented);
}

/// A device with a relay and a share of a fleet's limit.
fn with_relay() -> Device {
    let share = Share { answer_age_ms: Some(1), ..Share::default() };
    Device { relay: Some(relay()), shares: vec![share], ..steady("u0", 3, 1, 1) }
}

/// Each counter of a relay has its series; a device without a relay has none of them.
#[test]
fn a_relay_has_its_series() {
    let snapshot = at(1, vec![steady("d0", 1, 1, 1), with_relay()]);
    let samples = read(&write(&snapshot, None, Detail::Device));
    let told = samples.iter().filter(|(name, _)| name.starts_with("onramp_relay_"));
    let expected = [
        ("answer_bytes_total", "", 506.0),
        ("answers_refused_total", ",reason=\"late\"", 508.0),
        ("answers_total", "", 505.0),
        ("clients", "", 501.0),
        ("clients_max", "", 502.0),
        ("errors_total", "", 504.0),
        ("forgotten_total", "", 503.0),
        ("refused_total", ",reason=\"full\"", 507.0),
    ];
    let expected = expected.map(|(name, reason, value)| {
        (format!("onramp_relay_{name}{{device=\"u0\"{reason}}}"), value)
    });
    let expected = BTreeMap::from(expected);
    assert_eq!(
        told.map(|(name, value)| (name.clone(), *value)).collect::<BTreeMap<_, _>>(),
        expected
    );
    let without = write(&at(1, vec![steady("d0", 1, 1, 1)]), None, Detail::Device);
    assert!(!without.contains("onramp_relay_"), "{without}");
}

/// A device whose two queues have different counts; no two of its numbers are equal.
fn counted() -> Device {
    let queue = |queue: usize, first: u64| Queue {
        queue,
        enqueued_packets: first + 1,
        made_packets: first + 2,
        sent_packets: first + 3,
        sent_bytes: first + 4,
        drops: [("late".into(), first + 5)].into(),
        held_packets: first + 6,
        runs: first + 7,
        helped: first + 8,
        busy: first + 9,
        bursts: first + 10,
        // The queues counted bursts of one packet, and a burst of 512 to 1,023 packets.
        burst_packets: Histogram::new(&[0, first + 11, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        // The queues counted times from 512 to 1,023 ns, and times from 2^34 ns on.
        staging_ns: Histogram::new(&[&[0; 10][..], &[first + 12], &[0; 24], &[2]].concat()),
        sojourn_ns: Histogram::new(&[first + 13]),
        // The queues counted owners that came 2,048 to 4,095 ns late.
        late_ns: Histogram::new(&[&[0; 12][..], &[first + 14]].concat()),
        lost_ns: (first + 15) * 1_000_000,
        qdiscs: Vec::new(),
    };
    Device {
        shares: Vec::new(),
        name: "d0".into(),
        index: 9,
        kind: "veth".into(),
        up: true,
        mtu: 1400,
        txqueuelen: 5,
        peer: Some("d1".into()),
        relay: None,
        queues: vec![queue(0, 100), queue(1, 1000)],
    }
}

/// The upper bounds, in seconds, of the buckets of a histogram of times: from 2^10 ns to 2^34 ns,
/// each four times the bound before it.
const TIMES: [&str; 13] = [
    "0.000001023",
    "0.000004095",
    "0.000016383",
    "0.000065535",
    "0.000262143",
    "0.001048575",
    "0.004194303",
    "0.016777215",
    "0.067108863",
    "0.268435455",
    "1.073741823",
    "4.294967295",
    "17.179869183",
];

/// The values of the device's series are the sums over both queues.
#[test]
fn a_device_is_the_sum_of_its_queues() {
    let mut samples = read(&write(&at(1, vec![counted()]), None, Detail::Device));
    let version = env!("CARGO_PKG_VERSION");
    let mut take = |name: &str| samples.remove(name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(take(&format!("onramp_build_info{{version=\"{version}\"}}")), 1.0);
    let info = "device=\"d0\",kind=\"veth\",index=\"9\",peer=\"d1\"";
    assert_eq!(take(&format!("onramp_device_info{{{info}}}")), 1.0);
    for (name, value) in [
        ("up", 1),
        ("mtu_bytes", 1400),
        ("queues", 2),
        ("enqueued_packets_total", 1102),
        ("sent_packets_total", 1106),
        ("sent_bytes_total", 1108),
        ("backlog_packets", 1112),
        ("runs_total", 1114),
        ("helped_total", 1116),
        ("busy_total", 1118),
        ("bursts_total", 1120),
    ] {
        assert_eq!(
            take(&format!("onramp_device_{name}{{device=\"d0\"}}")),
            f64::from(value),
            "{name}"
        );
    }
    assert_eq!(take("onramp_lost_seconds_total{device=\"d0\"}"), 1.13);
    for reason in DropReason::ALL {
        let name = reason.name();
        let count = if name == "late" { 1110.0 } else { 0.0 };
        let labels = format!("device=\"d0\",reason=\"{name}\"");
        assert_eq!(take(&format!("onramp_device_drops_total{{{labels}}}")), count, "{name}");
    }
    let mut histogram = |name: &str, bounds: &[(&str, u32)], count: u32, sum: f64| {
        let labels = "device=\"d0\"";
        for (bound, below) in bounds {
            let bucket = format!("onramp_{name}_bucket{{{labels},le=\"{bound}\"}}");
            assert_eq!(take(&bucket), f64::from(*below), "{name} {bound}");
        }
        assert_eq!(
            take(&format!("onramp_{name}_bucket{{{labels},le=\"+Inf\"}}")),
            f64::from(count)
        );
        assert_eq!(take(&format!("onramp_{name}_count{{{labels}}}")), f64::from(count));
        let told = take(&format!("onramp_{name}_sum{{{labels}}}"));
        assert!((told - sum).abs() <= sum * 1e-12, "{name}: {told}, not {sum}");
    };
    // The sum of a histogram is estimated from the middles of its buckets: 1,122 bursts of one
    // packet count as 1.5 packets each, and two bursts of 512 to 1,023 packets as 768 packets each.
    let powers = [1, 3, 7, 15, 31, 63, 127, 255, 511, 1023].map(|bound: u32| bound.to_string());
    let bounds =
        powers.each_ref().map(|bound| (&**bound, if bound == "1023" { 1124 } else { 1122 }));
    histogram("burst_packets", &bounds, 1124, 1122.0 * 1.5 + 2.0 * 768.0);
    let sum = 1124.0 * 768e-9 + 4.0 * 25.769_803_776;
    histogram("staging_seconds", &TIMES.map(|time| (time, 1124)), 1128, sum);
    let late = |time| if time == TIMES[0] { 0 } else { 1128 };
    histogram("late_seconds", &TIMES.map(|time| (time, late(time))), 1128, 1128.0 * 3072e-9);
    histogram("sojourn_seconds", &TIMES.map(|time| (time, 1126)), 1126, 0.0);
    assert_eq!(samples.into_keys().collect::<Vec<_>>(), [""; 0], "and nothing more");
}

/// Each counter of a queue, a qdisc and a class has its series.
#[test]
fn every_figure_has_its_series() {
    let mut device = counted();
    let traffic = |first: u64| crate::snapshot::Traffic {
        sent_bytes: first,
        sent_packets: first + 1,
        dropped_packets: first + 2,
        overlimits: first + 3,
        requeues: first + 4,
        backlog_bytes: first + 5,
        backlog_packets: first + 6,
    };
    let class = Class { handle: "1:2".into(), traffic: traffic(500), ..Class::default() };
    device.queues[1].qdiscs = vec![Qdisc {
        handle: "1:".into(),
        kind: "htb".into(),
        traffic: traffic(600),
        classes: vec![class],
        ..Qdisc::default()
    }];
    let samples = read(&write(&at(1, vec![device]), None, Detail::Statistic));
    let queue = "device=\"d0\",queue=\"1\"";
    for (name, value) in [
        ("onramp_queue_enqueued_packets_total", 1001.0),
        ("onramp_queue_sent_packets_total", 1003.0),
        ("onramp_queue_sent_bytes_total", 1004.0),
        ("onramp_backlog_packets", 1006.0),
    ] {
        assert_eq!(samples[&format!("{name}{{{queue}}}")], value, "{name}");
    }
    assert_eq!(samples[&format!("onramp_drops_total{{{queue},reason=\"late\"}}")], 1005.0);
    for (what, labels, first) in [
        ("qdisc", "handle=\"1:\",parent=\"root\"", 600),
        // The label `parent` of a class without a parent class names the qdisc.
        ("class", "class=\"1:2\",parent=\"1:\"", 500),
    ] {
        let names = [
            "sent_bytes_total",
            "sent_packets_total",
            "drops_total",
            "overlimits_total",
            "requeues_total",
            "backlog_bytes",
            "backlog_packets",
        ];
        for (more, name) in names.into_iter().enumerate() {
            let series = format!("onramp_{what}_{name}{{{queue},qdisc=\"htb\",{labels}}}");
            assert_eq!(samples.get(&series), Some(&((first + more) as f64)), "{series}");
        }
    }
}

/// A share of a fleet's limit has its series; an engine that has never answered has no age.
#[test]
fn a_share_has_its_series() {
    let share = Share {
        place: "1:10".into(),
        limit: "tenant".into(),
        weight: 3,
        used_bytes_per_second: 4,
        demand_bytes_per_second: 7,
        share_bytes_per_second: 5,
        floor_bytes_per_second: 2,
        standing: "granted".into(),
        answer_age_ms: Some(1_500),
    };
    let alone = Share {
        limit: "other".into(),
        standing: "alone".into(),
        answer_age_ms: None,
        ..share.clone()
    };
    let device = Device { shares: vec![share, alone], ..counted() };
    let samples = read(&write(&at(1, vec![device]), None, Detail::Device));
    let series = |name: &str, limit: &str| {
        let labels = format!("device=\"d0\",place=\"1:10\",limit=\"{limit}\"");
        samples.get(&format!("onramp_fleet_{name}{{{labels}}}")).copied()
    };
    for (name, granted, alone) in [
        ("share_bytes_per_second", Some(5.0), Some(5.0)),
        ("used_bytes_per_second", Some(4.0), Some(4.0)),
        ("demand_bytes_per_second", Some(7.0), Some(7.0)),
        ("floor_bytes_per_second", Some(2.0), Some(2.0)),
        ("granted", Some(1.0), Some(0.0)),
        ("answer_age_seconds", Some(1.5), None),
    ] {
        assert_eq!((series(name, "tenant"), series(name, "other")), (granted, alone), "{name}");
    }
}

/// The exact text of a document: the line with the type of a family stands before the family's
/// samples, and each sample takes one line.
#[test]
fn the_text_is_as_prometheus_has_it() {
    let mut text = Text::default();
    text.family("a", Type::Counter, "One \\ and\ntwo.");
    text.family("b", Type::Gauge, "x");
    text.sample("b", &Labels::default(), 1.5);
    text.family("c", Type::Histogram, "y");
    let labels = Labels::default().with("k", "\"q\"\\\n").with("l", "");
    text.sample("c", &labels, -3);
    text.labelled("c", &labels, ("le", "+Inf"), 7);
    let expected = r#"# HELP a One \\ and\ntwo.
# TYPE a counter
# HELP b x
# TYPE b gauge
b{} 1.5
# HELP c y
# TYPE c histogram
c{k="\"q\"\\\n",l=""} -3
c{k="\"q\"\\\n",l="",le="+Inf"} 7
"#;
    assert_eq!(text.finish(), expected);
}

/// The label `peer` of a device without a peer is empty, and the series `up` of a device that is
/// down has the value 0.
#[test]
fn a_device_alone() {
    let device = Device { peer: None, up: false, ..counted() };
    let samples = read(&write(&at(1, vec![device]), None, Detail::Device));
    let info = "device=\"d0\",kind=\"veth\",index=\"9\",peer=\"\"";
    assert_eq!(samples[&format!("onramp_device_info{{{info}}}")], 1.0);
    assert_eq!(samples["onramp_device_up{device=\"d0\"}"], 0.0);
}
