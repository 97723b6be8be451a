//! How `tc` shows qdiscs. Each case has a line that was typed, and what iproute2 6.1 printed for it
//! on Linux.
//!
//! A case begins with `> KIND OPTIONS`. The lines after it are marked by their first word: the
//! options as text (`t`), with `-d` (`d`), as JSON (`j`), and as JSON with `-d` (`dj`). A `|` marks
//! the end of a text, because its last character may be a space. Statistics are given as numbers by
//! name, followed by the lines below the common ones (`s`), or by JSON (`sj`).

use onramp_core::Spec;
use onramp_core::qdisc::KINDS;
use onramp_core::show::{Out, Style};
use onramp_core::view::Extra;
use onramp_core::{Errno, Fault};

const MTU: u32 = 1514;

/// These options are shown for a device with the default queue length.
const OPTIONS: &str = include_str!("shown/options.txt");
const STATISTICS: &str = include_str!("shown/statistics.txt");

/// Returns the text that `write` writes in a style (plain text or JSON, with or without details).
fn written(style: Style, write: impl FnOnce(&mut Out)) -> String {
    let mut out = Out::new(style);
    out.open(None);
    write(&mut out);
    out.close();
    let text = out.finish();
    if !style.json {
        return text.replace('\n', "\\n") + "|";
    }
    // JSON output is a list with one object per qdisc, here one.
    let object = text.trim().strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    object.expect("a list").to_owned()
}

/// Returns the output style that a mark (such as `d` or `j`) stands for.
fn style(mark: &str) -> Style {
    let details = mark.starts_with('d');
    Style { details, json: mark.ends_with('j'), stats: mark.starts_with('s'), ..Style::default() }
}

/// Returns a row for each printed text of each case: the line that was typed, the mark, and the
/// text.
fn cases(text: &'static str) -> impl Iterator<Item = [&'static str; 3]> {
    let mut typed = "";
    text.lines().filter(|line| !line.is_empty()).filter_map(move |line| {
        let (mark, rest) = line.split_once(' ').expect(line);
        if mark == ">" {
            typed = rest;
            return None;
        }
        Some([typed, mark, rest])
    })
}

#[test]
fn options_look_as_tc_writes_them() {
    let mut count = 0;
    for [typed, mark, printed] in cases(OPTIONS) {
        let spec: Spec = typed.parse().expect(typed);
        let shown = written(style(mark), |out| {
            (spec.kind().shown.options)(&spec.values(MTU), &Extra::default(), out);
        });
        assert_eq!(shown, printed, "{typed} ({mark})");
        count += 1;
    }
    assert!(count > 150, "{count} cases");
}

#[test]
fn statistics_look_as_tc_writes_them() {
    for [numbers, mark, printed] in cases(STATISTICS) {
        let mut words = numbers.split(' ');
        let id = words.next().expect(numbers);
        let numbers: Vec<(&'static str, i64)> = words
            .map(|word| {
                let (name, number) = word.split_once('=').expect(word);
                (name, number.parse().expect(word))
            })
            .collect();
        let kind = KINDS.iter().find(|kind| kind.id == id).expect(id);
        let shown = written(style(mark), |out| (kind.shown.extra)(&Extra(numbers.clone()), out));
        assert_eq!(shown, printed, "{id} ({mark})");
    }
}

/// Each kind that prints statistics of its own has a counter for every name that it prints.
#[test]
fn what_is_shown_is_counted() {
    for (id, names) in [
        ("fq", &["flows", "inactive", "throttled_flows", "gc", "throttled", "latency_ns"][..]),
        ("codel", &["count", "lastcount", "ldelay_ns", "dropping", "drop_next_ns", "maxpacket"]),
        ("fq_codel", &["maxpacket", "drop_overlimit", "new_flow_count", "new_flows_len"]),
        ("htb", &["direct_packets_stat"]),
    ] {
        let spec: Spec = id.parse().expect(id);
        let mut found = Vec::new();
        spec.build(MTU).stats(&mut |name, _| found.push(name));
        for name in names {
            assert!(found.contains(name), "{id}: {name}");
        }
    }
}

const INVALID: Fault = Fault::Kernel(Errno::Invalid, None);

/// Lines that are refused, with the part of Linux that refuses each: the client (`tc`) or the
/// kernel.
const REFUSED: &[(&str, Fault)] = &[
    ("pfifo limit", Fault::Argument),
    ("pfifo limit -1", Fault::Usage),
    ("plug foo", Fault::Usage),
    ("pfifo_fast limit 3", Fault::Argument),
    ("mqprio num_tc 1 queues 1@0 hw 0 mode dcb", Fault::Argument),
    ("fq initial_quantum 0x80000000", Fault::Kernel(Errno::Range, None)),
    ("fq buckets 262145", INVALID),
    ("fq quantum 2k", Fault::Usage),
    ("fq timer_slack 5s", Fault::Usage),
    ("prio bands 1", INVALID),
    ("prio bands 2", INVALID),
    ("prio bands 17", INVALID),
    ("prio bands 4 priomap 1 1 2 2 7 5", Fault::Usage),
    ("prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0", Fault::Usage),
    ("codel target x", Fault::Usage),
    ("fq_codel flows 65537", INVALID),
    ("fq_codel quantum 1048577", Fault::Kernel(Errno::Invalid, Some("Invalid quantum"))),
    ("fq_codel ce_threshold_selector 5", Fault::Usage),
    ("tbf rate 1mbit burst 1500", Fault::Usage),
    ("tbf rate 1mbit limit 1000", Fault::Usage),
    ("tbf burst 1500 limit 1000", Fault::Usage),
    ("tbf rate 0 burst 1500 limit 1000", Fault::Usage),
    ("tbf rate 1mbit burst 1500 latency 0", Fault::Usage),
    ("tbf rate 1mbit burst 1500 limit 1000 latency 10ms", Fault::Usage),
    ("tbf rate 1mbit burst 1500 limit 1000 peakrate 2mbit", Fault::Usage),
    ("tbf rate 2mbit burst 1500 limit 1000 peakrate 1mbit mtu 1510", INVALID),
    ("tbf rate 1mbit burst 1500/7 limit 1000", Fault::Usage),
    ("tbf rate 1mbit burst 1500/0 limit 1000", Fault::Usage),
    ("tbf rate 1mbit burst 1500 limit 1000 overhead 65536", Fault::Usage),
    ("tbf rate 1mbit burst 1500 limit 1000 linklayer wifi", Fault::Usage),
    ("tbf rat 1mbit burst 1500 limit 1000", Fault::Usage),
    ("htb r2q -1", Fault::Usage),
    (
        "htb offload",
        Fault::Kernel(Errno::NotSupported, Some("hw-tc-offload ethtool feature flag must be on")),
    ),
    ("cbs hicredit 2147483648", Fault::Usage),
    (
        "cbs offload 1",
        Fault::Kernel(Errno::NotSupported, Some("Specified device does not support cbs offload")),
    ),
    (
        "etf clockid CLOCK_REALTIME",
        Fault::Kernel(Errno::Invalid, Some("Invalid clockid. CLOCK_TAI must be used")),
    ),
    ("etf clockid FOO", Fault::Usage),
    ("etf clockid TAI delta -5", Fault::Kernel(Errno::Invalid, Some("Delta must be positive"))),
    (
        "etf clockid TAI offload",
        Fault::Kernel(Errno::NotSupported, Some("Specified device does not support ETF offload")),
    ),
    ("netem delay 275s", Fault::Usage),
    ("netem reorder 5%", Fault::Usage),
    ("netem gap 5", Fault::Usage),
    ("netem ecn", Fault::Usage),
    ("netem loss 101%", Fault::Usage),
    ("netem loss state", Fault::Argument),
    ("netem slot distribution normal 1ms", Fault::Argument),
    ("netem slot distribution normal 1ms 0", Fault::Usage),
    ("netem distribution normal", Fault::Usage),
    (
        "mqprio num_tc 2 map 0 1 queues 2@0 2@2",
        Fault::Kernel(Errno::NotSupported, Some("Device does not support hardware offload")),
    ),
    (
        "mqprio num_tc 2 map 0 2 queues 2@0 2@2 hw 0",
        Fault::Kernel(
            Errno::Invalid,
            Some("Invalid traffic class in priority to traffic class mapping"),
        ),
    ),
    ("mqprio num_tc 2 map 0 1 hw 0", INVALID),
    ("mqprio num_tc 2 map 0 1 queues 2@0 1@2 1@3 hw 0", Fault::Usage),
    ("mqprio num_tc 1 queues 2-0 hw 0", Fault::Argument),
];

#[test]
fn the_same_one_says_no() {
    for (line, fault) in REFUSED {
        let error = line.parse::<Spec>().expect_err(line);
        assert_eq!(error.fault, *fault, "{line}: {error}");
    }
}
