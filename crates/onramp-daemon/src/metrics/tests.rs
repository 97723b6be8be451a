//! The document, read again by a reader of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::*;
use crate::snapshot::tests::{at, nested, steady};

/// Samples by name and labels. Panics where the format is broken.
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
    // 99 between 1.024 and 2.048 µs, one between 1.05 and 2.1 ms.
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
    /// Whatever a label contains: one line a sample, and the label can be read again.
    #[test]
    fn labels_are_escaped(name in any::<String>()) {
        let text = write(&at(1, vec![steady(&name, 1, 1, 1)]), None, Detail::Device);
        // Not `lines`: `\r` is an ordinary character.
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

/// Prometheus' own checker has nothing to say.
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
    let snapshot = at(1, vec![steady("d\"0\\", 1, 3, 3), nested("d1", 2)]);
    let text = write(&snapshot, None, Detail::Statistic);
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(text.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty() && output.stdout.is_empty(), "{said}");
}

/// A device of many queues is no reason to wait.
#[test]
fn ten_thousand_qdiscs() {
    let snapshot = at(1, vec![steady("d0", 1, 10_000, 3)]);
    let text = write(&snapshot, None, Detail::Class);
    assert_eq!(text.matches("\nonramp_qdisc_sent_bytes_total{").count(), 10_000);
    assert_eq!(text.matches("\nonramp_qdisc_sojourn_seconds_count{").count(), 10_000);
    let brief = write(&snapshot, None, Detail::Device);
    assert!(brief.len() < 20_000, "{}", brief.len());
}

/// Each family is documented, and each that is documented is there.
#[test]
fn the_series_are_documented() {
    let document = include_str!("../../../../docs/metrics.md");
    let snapshot = at(1, vec![steady("d0", 1, 1, 3), nested("d1", 2)]);
    let text = write(&snapshot, None, Detail::Statistic);
    let told: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let documented: BTreeSet<_> =
        document.split('`').skip(1).step_by(2).filter(|word| word.starts_with("onramp_")).collect();
    assert_eq!(told, documented);
}
