//! Tests of `onramp replay`.

#[path = "replay/files.rs"]
pub(super) mod files;
#[path = "replay/golden.rs"]
mod golden;
#[path = "replay/odd.rs"]
mod odd;

use std::fs;
use std::io::{Read as _, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, mkfifoat, open};
use serde_json::Value;

use self::files::{BEGIN, Frames, MSEC, block, frame, interface, packet, packets, pcap, section};
use super::{
    assert_documented_keys, assert_fails, onramp, read_json, run, stderr, wait_until,
    wait_until_open,
};

fn write(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    fs::write(&path, bytes).expect("a file");
    path.display().to_string()
}

/// Asserts that the program succeeded, and returns what it wrote to standard output.
fn succeeded(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Without a packet that was sent there are no sojourn times, as docs/json.md says.
#[test]
fn without_a_sent_packet_no_sojourn_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = write(folder.path(), "in.pcap", &pcap(1_000, 1, &vec![(0, frame(1_000, 1, 0))]));
    let told = succeeded(&run(&format!("replay {file} --qdisc blackhole --json -")));
    let summary: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((&summary["sent_packets"], &summary["sojourn_ns"]), (&0.into(), &Value::Null));
}

const HEAD: &str = "packet,interface,flow,bytes,priority,ecn_in,in_ns,out_ns,drop,sojourn_ns,\
                    ecn_out,queue_packets,queue_bytes,copy\n";

#[test]
fn a_packet_leaves_behind_those_before_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let tos = [0, 0x10, 0x08, 0];
    let mut frames: Frames =
        tos.iter().map(|tos| (0, frame(1_000, 1 + u16::from(*tos), *tos))).collect();
    frames.push((10 * MSEC, frame(100, 1, 0)));
    let file = write(folder.path(), "in.pcap", &pcap(1_000, 1, &frames));
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (out, csv, json) = (at("out.pcapng"), at("out.csv"), at("out.json"));
    let output = run(&format!(
        "replay {file} --qdisc 'pfifo_fast' --rate 8mbit --out {out} --csv {csv} --json {json}"
    ));
    let text = succeeded(&output);
    // At 8 Mbit/s, sending a byte takes a microsecond. Of the packets that have to wait, the
    // interactive packet (number 2) leaves first, and the bulk packet (number 3) leaves last,
    // although packet 4 came after it.
    let rows = fs::read_to_string(&csv).expect("rows");
    let expected = [
        "1,0,1,1000,0,0,0,0,,0,0,0,0,0",
        "2,0,2,1000,6,0,0,1000000,,1000000,0,0,0,0",
        "4,0,1,1000,0,0,0,2000000,,2000000,0,2,2000,0",
        "3,0,3,1000,2,0,0,3000000,,3000000,0,1,1000,0",
        "5,0,1,100,0,0,10000000,10000000,,0,0,0,0,0",
    ];
    assert_eq!(rows, format!("{HEAD}{}\n", expected.join("\n")));

    let columns: Vec<Value> = HEAD.trim().split(',').map(Value::from).collect();
    let columns = columns.iter().map(|name| (name.as_str().expect("text").to_owned(), Value::Null));
    let columns = Value::Object(columns.collect());
    assert_documented_keys("### Rows of `onramp replay --csv`", &columns);

    let (links, left) = packets(&fs::read(&out).expect("a capture"));
    assert_eq!(links, [1]);
    let order = [(0, 0), (1, MSEC), (3, 2 * MSEC), (2, 3 * MSEC), (4, 10 * MSEC)];
    for ((place, ns), (interface, since, data, original)) in order.iter().zip(&left) {
        assert_eq!((interface, since, data), (&0, ns, &frames[*place].1));
        assert_eq!(*original as usize, data.len());
    }

    let summary = read_json(Path::new(&json));
    assert_documented_keys("## `onramp.replay`, version 1", &summary);
    assert_documented_keys("### Each of `flows`", &summary["flows"][0]);
    assert_documented_keys("### `series`", &summary["series"]);
    assert_documented_keys("### Each of `series.flows`", &summary["series"]["flows"][0]);
    assert_eq!(summary["tree"][0], "qdisc add dev link root handle 1: pfifo_fast");
    assert_eq!((&summary["packets"], &summary["sent_packets"]), (&5.into(), &5.into()));
    assert_eq!(summary["rate_bits_per_second"], 8_000_000);
    assert_eq!(summary["first_unix_ns"], BEGIN * 1_000_000_000);
    // Sending the 4,100 bytes of all packets ends 10.1 ms after the first packet came.
    assert_eq!((&summary["seconds"], &summary["offered_seconds"]), (&0.0101.into(), &0.01.into()));
    assert_eq!(summary["sent_bits_per_second"], 3_247_520.0);
    assert_eq!(summary["sojourn_ns"]["max"], 3_000_000);
    assert_eq!(summary["sojourn_ns"]["mean"], 1_200_000.0);
    assert_eq!(summary["queue_packets"]["max"], 2);
    let flow = &summary["flows"][0];
    assert_eq!(
        (&flow["source"], &flow["destination"]),
        (&"192.0.2.1:1".into(), &"192.0.2.2:53".into())
    );
    assert_eq!((&flow["sent_bytes"], &flow["share"]), (&2_100.into(), &0.512_195.into()));
    // Jain's index is (2100 + 1000 + 1000)^2 / (3 * (2100^2 + 1000^2 + 1000^2)).
    assert_eq!(summary["jain"], 0.874_155);
    assert_eq!(summary["max_min_fairness"], 1.0, "each flow got all that it asked for");
    assert_eq!(summary["series"]["sojourn_max_ns"][2], 2_000_000);
    assert_eq!(summary["series"]["queue_packets_max"][1], Value::Null);
    assert_eq!(summary["series"]["sent_bits_per_second"][3], 8_000_000.0);
    for words in [
        "5 packets of 3 flows in 0.010 s",
        "3.2475 Mbit/s",
        "max 3.0 ms",
        "nothing",
        "1 udp 192.0.2.1:1 > 192.0.2.2:53",
    ] {
        assert!(text.contains(words), "{words} is missing: {text}");
    }
}

#[test]
fn drops_have_their_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let frames: Frames = (0..4).map(|_| (0, frame(1_000, 1, 0))).collect();
    let file = write(folder.path(), "in.pcap", &pcap(1, 1, &frames));
    let line = format!("replay {file} --qdisc 'pfifo limit 1' --rate 8mbit");
    let rows = succeeded(&run(&format!("{line} --csv -")));
    let expected = [
        "1,0,1,1000,0,0,0,0,,0,0,0,0,0",
        "3,0,1,1000,0,0,0,,overlimit,0,0,1,1000,0",
        "4,0,1,1000,0,0,0,,overlimit,0,0,1,1000,0",
        "2,0,1,1000,0,0,0,1000000,,1000000,0,0,0,0",
    ];
    assert_eq!(rows, format!("{HEAD}{}\n", expected.join("\n")));
    let summary: Value = serde_json::from_str(&succeeded(&run(&format!("{line} --json -"))))
        .expect("JSON, and nothing else");
    assert_eq!(summary["drops"], serde_json::json!({"overlimit": 2}));
    assert_eq!((&summary["dropped_bytes"], &summary["held"]), (&2_000.into(), &0.into()));
    assert!(succeeded(&run(&line)).contains("2 packets, 50.00 % (overlimit 2)"));
    assert_eq!(packets(&run(&format!("{line} --out -")).stdout).1.len(), 2);
}

#[test]
fn marks_are_written_into_the_header_and_its_checksum_is_right() {
    let folder = tempfile::tempdir().expect("a folder");
    // Every other frame is ECT(0), with a DSCP; the others are not-ECT. Qdiscs can mark only the
    // former.
    let frames: Frames = (0..20).map(|n| (0, frame(1_000, 1, [0x2a, 0x28][n % 2]))).collect();
    let file = write(folder.path(), "in.pcap", &pcap(1, 1, &frames));
    let out = folder.path().join("out.pcapng").display().to_string();
    let line = format!("replay {file} --qdisc 'fq ce_threshold 4500us' --rate 8mbit");
    let output = run(&format!("{line} --out {out} --json -"));
    let summary: Value = serde_json::from_str(&succeeded(&output)).expect("JSON");
    let (_, left) = packets(&fs::read(out).expect("a capture"));
    assert_eq!(left.len(), 20);
    // With `ce_threshold 4500us`, `fq` may mark a packet only if the packet is ECT(0) and has
    // waited longer than 4.5 ms. It need not mark all such packets.
    let rows = succeeded(&run(&format!("{line} --csv -")));
    let number = |row: &str, place: usize| -> u64 {
        row.split(',').nth(place).and_then(|field| field.parse().ok()).expect("a number")
    };
    for (row, (_, since, data, _)) in rows.lines().skip(1).zip(&left) {
        let n = usize::try_from(number(row, 0) - 1).expect("small");
        assert_eq!((number(row, 5), number(row, 7)), ([2, 0][n % 2], *since), "{row}");
        let marked = number(row, 10) == 3;
        assert!(!marked || (n % 2 == 0 && *since > 4_500_000), "{row}");
        assert_eq!(data[15], if marked { 0x2b } else { frames[n].1[15] }, "{row}");
        let sum: u32 = data[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{row}");
    }
    let marked = rows.lines().skip(1).filter(|row| number(row, 10) == 3).count();
    assert_eq!(summary["marked"], marked);
    assert!((3..=7).contains(&marked), "{rows}");
}

#[test]
fn every_format_gives_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let times = [0, 3_000, 1_000_000_000, 2_500_000_000];
    let frames: Frames = times.map(|ns| (ns, frame(500, 1, 0))).into();
    let swapped = |mut file: Vec<u8>| {
        let mut at = 0;
        let mut reverse = |range: std::ops::Range<usize>| file[range].reverse();
        [0..4, 4..6, 6..8, 8..12, 12..16, 16..20, 20..24].into_iter().for_each(&mut reverse);
        for _ in &times {
            (0..4).for_each(|word| reverse(24 + at + word * 4..28 + at + word * 4));
            at += 516;
        }
        file
    };
    // The first interface of the capture counts time in units of 2^-20 s, and adds a second to each
    // time; the second interface counts milliseconds.
    let next = |big: bool| {
        let mut file = [section(big), interface(big, 0x80 | 20, 1), interface(big, 3, 0)].concat();
        let seconds = BEGIN - 1;
        // The second frame was captured 3 us after the first, that is 3.15 units of the first
        // interface. The test writes 4 units into the capture, which the program must read as 3,814
        // ns (rounded down).
        file.extend(packet(big, 0, seconds << 20, &frames[0].1));
        file.extend(packet(big, 0, seconds << 20 | 4, &frames[1].1));
        file.extend(packet(big, 1, (BEGIN + 1) * 1_000, &frames[2].1));
        // In a new section of a capture, interfaces are again numbered from 0.
        file.extend([section(!big), interface(!big, 9, 0)].concat());
        file.extend(packet(!big, 0, BEGIN * 1_000_000_000 + times[3], &frames[3].1));
        file
    };
    let files = [
        ("micro", pcap(1_000, 1, &frames)),
        ("nano", pcap(1, 1, &frames)),
        ("swapped", swapped(pcap(1_000, 1, &frames))),
        ("swapped-nano", swapped(pcap(1, 1, &frames))),
        ("next", next(false)),
        ("next-big", next(true)),
    ];
    for (name, bytes) in files {
        let file = write(folder.path(), name, &bytes);
        let out = folder.path().join("out.pcapng");
        let line = format!("replay {file} --qdisc pfifo --csv - --out {}", out.display());
        let rows = succeeded(&run(&line));
        let column = |place: usize| -> Vec<u64> {
            let rows = rows.lines().skip(1).map(|row| row.split(',').nth(place).expect("columns"));
            rows.map(|field| field.parse().expect("a number")).collect()
        };
        let next = name.starts_with("next");
        let second = if next { 3_814 } else { times[1] };
        assert_eq!(column(6), [0, second, times[2], times[3]], "{name}");
        assert_eq!(column(1), if next { [0, 0, 1, 2] } else { [0; 4] }, "{name}");
        let (links, left) = packets(&fs::read(out).expect("a capture"));
        assert_eq!(links, vec![1; if next { 3 } else { 1 }], "{name}");
        let left: Vec<_> = left.into_iter().map(|(interface, ns, ..)| (interface, ns)).collect();
        let interfaces = column(1).into_iter().map(|n| u32::try_from(n).expect("small"));
        assert_eq!(left, interfaces.zip(column(6)).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn link_headers_count_as_the_qdisc_sees_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = frame(500, 1, 2);
    let behind = |head: &[u8]| [head, &whole[14..]].concat();
    let cooked = [&[0; 14][..], &[8, 0]].concat();
    let cooked2 = [&[8, 0][..], &[0; 18]].concat();
    let cases = [
        (1, whole.clone(), 500),
        (101, behind(&[]), 486),
        (113, behind(&cooked), 500),
        (276, behind(&cooked2), 500),
        (0, behind(&[2, 0, 0, 0]), 486),
    ];
    for (link, bytes, counted) in cases {
        let file = write(folder.path(), "in", &pcap(1, link, &vec![(0, bytes.clone())]));
        let line = format!("replay {file} --qdisc pfifo");
        let rows = succeeded(&run(&format!("{line} --csv -")));
        assert!(rows.contains(&format!("\n1,0,1,{counted},0,2,0,0,")), "{link}: {rows}");
        let (links, left) = packets(&run(&format!("{line} --out -")).stdout);
        assert_eq!(links, [i32::try_from(link).expect("small")]);
        assert_eq!((&left[0].2, left[0].3 as usize), (&bytes, bytes.len()), "{link}");
    }
    let radio = write(folder.path(), "radio", &pcap(1, 127, &vec![(0, vec![0; 60])]));
    let words = ["radio: at byte 0", "link type 127", "Ethernet, Linux cooked, raw IP"];
    assert_fails(&run(&format!("replay {radio} --qdisc pfifo")), 1, &words);
}

#[test]
fn trees_filters_and_setups() {
    let folder = tempfile::tempdir().expect("a folder");
    let frames: Frames = (0..3).map(|n| (0, frame(1_000, 1 + n, 0))).collect();
    let file = write(folder.path(), "in.pcap", &pcap(1, 1, &frames));
    let setup = write(
        folder.path(),
        "tree.tc",
        b"# a tree\ntc qdisc add dev eth0 root handle 1: prio\n\nqdisc add dev eth0 parent 1:3 \
          handle 30: pfifo limit 1 # small\n",
    );
    let json = |line: &str| -> Value {
        serde_json::from_str(&succeeded(&run(&format!("{line} --rate 8mbit --json -"))))
            .expect("JSON")
    };
    let base = format!("replay {file}");
    let all = json(&format!("{base} --setup {setup}"));
    assert_eq!(
        (&all["sent_packets"], &all["tree"][1]),
        (&3.into(), &"qdisc add dev eth0 parent 1:3 handle 30: pfifo limit 1".into())
    );
    // The filter sends all packets to class 1:3, whose qdisc has room for one packet. The first
    // packet may bypass the qdisc, and the second waits in it, so at least one further packet must
    // be dropped.
    let filter = "--filter 'matchall classid 1:3'";
    let one = json(&format!("{base} --setup {setup} {filter}"));
    assert!(one["drops"]["overlimit"].as_u64() >= Some(1), "{one}");
    assert_eq!(one["tree"][2], "filter add dev eth0 matchall classid 1:3");
    let own = json(&format!(
        "{base} --qdisc 'prio bands 5' {filter} --filter 'parent 1: pref 7 \
                             matchall classid 1:4'"
    ));
    assert_eq!((&own["sent_packets"], &own["drops"]), (&3.into(), &serde_json::json!({})));

    let broken = write(
        folder.path(),
        "broken.tc",
        b"qdisc add dev eth0 root fq\n\nqdisc add dev \
                                                     eth0 root fq limit x\n",
    );
    assert_fails(&run(&format!("{base} --setup {broken}")), 1, &["broken.tc: line 3: ", "limit"]);
    let none = write(folder.path(), "none.tc", b"# nothing\n");
    assert_fails(&run(&format!("{base} --setup {none}")), 1, &["none.tc: the tree has no root"]);
    let missing = format!("{base} --setup {}/missing", folder.path().display());
    assert_fails(&run(&missing), 1, &["cannot read", "/missing", "lines of tc"]);
}

#[test]
fn filters_find_the_headers_behind_every_link_header() {
    let folder = tempfile::tempdir().expect("a folder");
    let frames = [7, 8, 9].map(|port| frame(500, port, 0));
    let cooked = [&[0; 14][..], &[8, 0]].concat();
    let links = [(1, &frames[0][..14]), (101, &[][..]), (113, &cooked), (0, &[2, 0, 0, 0])];
    for (link, head) in links {
        let frames = frames.iter().map(|frame| (0, [head, &frame[14..]].concat())).collect();
        let file = write(folder.path(), "in", &pcap(1, link, &frames));
        for filter in [
            "protocol ip u32 match ip sport 9 0xffff classid 1:1",
            "protocol ip flower ip_proto udp src_port 9 classid 1:1",
        ] {
            let line = format!("replay {file} --qdisc prio --filter '{filter}' --rate 1mbit");
            let rows = succeeded(&run(&format!("{line} --csv -")));
            let order: Vec<_> = rows.lines().skip(1).map(|row| &row[..1]).collect();
            assert_eq!(order, ["1", "3", "2"], "{link}, {filter}: {rows}");
        }
    }
}

#[test]
fn filters_take_programs_from_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let frames: Frames = [7, 8, 9].iter().map(|port| (0, frame(500, *port, 0))).collect();
    let file = write(folder.path(), "in", &pcap(1, 1, &frames));
    // The first filter is a program in the form that `tcpdump -ddd` writes. It puts packets from
    // port 8 into class 1:2. The second is an eBPF program. It puts packets to port 53 into class
    // 1:1, and all packets here go to port 53. So packet 2, from port 8, leaves last.
    let code = write(folder.path(), "8", b"4\n40 0 0 34\n21 0 1 8\n6 0 0 65538\n6 0 0 0\n");
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../onramp-core/tests/ebpf/ports.o");
    let lines = format!(
        "qdisc add dev e root handle 1: prio\nfilter add dev e pref 1 bpf bytecode-file {code}\n\
         filter add dev e pref 2 bpf object-file {object} section classifier # DNS\n"
    );
    let setup = write(folder.path(), "tree.tc", lines.as_bytes());
    let rows = succeeded(&run(&format!("replay {file} --setup {setup} --rate 1mbit --csv -")));
    let order: Vec<_> = rows.lines().skip(1).map(|row| &row[..1]).collect();
    assert_eq!(order, ["1", "3", "2"], "{rows}");

    for (filter, says) in [
        (format!("bpf obj {object} sec map"), "maps, data or other functions"),
        (format!("bpf obj {object} sec other"), "expected one of classifier, act, map"),
        (format!("bpf obj {file} sec act"), "clang -target bpf -c"),
        (format!("bpf bcf {file}.none"), "No such file"),
        ("bpf bcf /dev/zero".into(), "more than 64 MiB"),
    ] {
        let line = format!("replay {file} --qdisc prio --filter '{filter}'");
        assert_fails(&run(&line), 2, &["--filter: filter bpf: ", says]);
    }
}

#[test]
fn copies_leave_as_their_originals_did() {
    let folder = tempfile::tempdir().expect("a folder");
    let cooked = [&[7; 14][..], &[8, 0]].concat();
    let bytes = [&cooked, &frame(500, 1, 0)[14..]].concat();
    let file = write(folder.path(), "in", &pcap(1, 113, &vec![(0, bytes.clone())]));
    let line = format!("replay {file} --qdisc 'netem delay 5ms duplicate 100%'");
    let summary: Value =
        serde_json::from_str(&succeeded(&run(&format!("{line} --json -")))).expect("JSON");
    assert_eq!((&summary["packets"], &summary["sent_packets"]), (&1.into(), &2.into()));
    assert_eq!(summary["copies"], 1);
    let (_, left) = packets(&run(&format!("{line} --out -")).stdout);
    assert_eq!(left.len(), 2);
    for (_, since, data, _) in left {
        assert_eq!((since, &data[14..]), (5 * MSEC, &bytes[14..]));
    }
}

#[test]
fn the_same_command_writes_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let frames: Frames = (0_u16..2_000)
        .map(|n| (u64::from(n) * 300_000, frame(60 + usize::from(n % 1_400), n % 9, 2)))
        .collect();
    let file = write(folder.path(), "in.pcap", &pcap(1, 1, &frames));
    let kinds = ["out.pcapng", "out.csv", "out.json", "out.html"];
    let all = |run_number: usize| {
        let at = |name: &str| folder.path().join(format!("{run_number}-{name}"));
        let [out, csv, json, html] = kinds.map(|name| at(name).display().to_string());
        let text = succeeded(&run(&format!(
            "replay {file} --qdisc 'fq limit 50' --rate 10mbit --out {out} --csv {csv} --json \
             {json} --html {html} --seed 7"
        )));
        (text, kinds.map(|name| fs::read(at(name)).expect("it was written")))
    };
    let (one, other) = (all(1), all(2));
    assert!(one == other, "the same seed gives the same bytes");
    let html = String::from_utf8(one.1[3].clone()).expect("text");
    let opened = html.matches("<svg ").count();
    assert_eq!((opened, html.matches("<h2>").count()), (3, 3), "{html}");
    for words in ["Sojourn, milliseconds", "Sent, Mbit/s", "udp 192.0.2.1:", "flows_plimit"] {
        assert!(html.contains(words), "{words}");
    }
    let chart = html.find("<svg ").expect("a chart");
    let before = &html[..chart];
    assert!(before.contains("what would have become of the packets of a capture"), "{before}");
    assert!(before.contains("A capture does not answer to drops"), "{before}");
    assert!(html[chart..].contains("Packets in the queue over time"), "the queue comes first");
    assert!(!html.contains("http://") && !html.contains("<script"), "one file, alone");
}

#[test]
fn what_was_read_of_a_broken_capture_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let frames: Frames = (0..3).map(|n| (n * MSEC, frame(100, 1, 0))).collect();
    let whole = pcap(1, 1, &frames);
    let third = 24 + 2 * 116;
    let mut damaged = whole.clone();
    damaged[third + 8..third + 12].copy_from_slice(&[0xff; 4]);
    let mut long = whole.clone();
    long[third + 12..third + 16].copy_from_slice(&[0xff; 4]);
    let next = [section(false), interface(false, 9, 0)].concat();
    let at = next.len() + packet(false, 0, 0, &frames[0].1).len();
    let next = |bad: &[u8]| [&next, &packet(false, 0, 5, &frames[0].1), bad].concat();
    let odd = [section(false), interface(false, 99, 0), packet(false, 0, 5, &frames[0].1)].concat();
    let early = [section(false), interface(false, 9, -9), packet(false, 0, 5, &[0; 60])].concat();
    let simple = next(&packet(false, 3, 0, &frames[0].1));
    let cases: [(&str, &[u8], usize, u64, &str); 8] = [
        ("cut.pcap", &whole[..whole.len() - 1], third, 2, "cut off"),
        ("damaged.pcap", &damaged, third, 2, "damaged"),
        ("long.pcap", &long, third, 2, "a packet has 4294967295 bytes"),
        ("cut.pcapng", &next(&packet(false, 0, 0, &frames[0].1)[..40]), at, 1, "cut off"),
        ("other.pcapng", &simple, at, 1, "no description of interface 3"),
        ("kind.pcapng", &next(&block(false, 1, &[147, 0], &[])), 0, 1, ""),
        ("odd.pcapng", &odd, section(false).len() + 44, 0, "an invalid unit of time"),
        ("early.pcapng", &early, section(false).len() + 44, 0, "before 1970"),
    ];
    for (name, bytes, place, packets_read, words) in cases {
        let file = write(folder.path(), name, bytes);
        let [csv, json] = ["csv", "json"].map(|end| folder.path().join(format!("{name}.{end}")));
        let output = run(&format!(
            "replay {file} --qdisc fq --csv {} --json {}",
            csv.display(),
            json.display()
        ));
        if words.is_empty() {
            // A capture may describe an interface of an unknown type, as long as no packet belongs
            // to that interface.
            succeeded(&output);
        } else {
            assert_fails(&output, 1, &[name, &format!("at byte {place}: "), words]);
        }
        if packets_read == 0 {
            assert!(output.stdout.is_empty() && !json.exists(), "{name}");
            continue;
        }
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.contains(&format!("{packets_read} packets of 1 flow ")), "{name}: {text}");
        let summary = read_json(&json);
        assert_eq!(summary["packets"], packets_read, "{name}");
        let told = summary["error"].as_str().unwrap_or_default();
        assert!(told.contains(words) && text.contains(told), "{name}: {told}");
        let rows = fs::read_to_string(csv).expect("rows");
        assert_eq!(rows.lines().count() as u64, packets_read + 1, "{name}");
    }
}

#[test]
fn captures_that_cannot_be_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases: [(&str, &[u8], &[&str]); 4] = [
        ("text", b"this is no capture, only text", &["text is neither a pcap nor a pcapng"]),
        ("packed", b"\x1f\x8b\x08 and so on", &["compressed", "zcat", "name the capture -"]),
        ("empty", b"", &["is empty"]),
        ("short", &pcap(1, 1, &Vec::new())[..20], &["at byte 0", "cut off"]),
    ];
    for (name, bytes, words) in cases {
        let file = write(folder.path(), name, bytes);
        let out = folder.path().join("out");
        let output = run(&format!("replay {file} --qdisc fq --out {}", out.display()));
        assert_fails(&output, 1, words);
        assert!(output.stdout.is_empty() && !out.exists(), "{name}: nothing was read");
    }
    let missing = format!("replay {}/missing --qdisc fq", folder.path().display());
    assert_fails(&run(&missing), 1, &["cannot read", "missing", "No such file"]);
    // A capture without packets is valid, and the replay succeeds.
    let none = write(folder.path(), "none", &pcap(1, 1, &Vec::new()));
    let page = folder.path().join("none.html");
    let output = run(&format!("replay {none} --qdisc fq --html {}", page.display()));
    assert!(succeeded(&output).contains("0 packets of 0 flows"));
    assert_eq!(stderr(&output), format!("onramp: {none} holds no packets\n"));
    assert!(!fs::read_to_string(page).expect("a page").contains("<svg "), "nothing to draw");
}

#[test]
fn times_that_go_back_or_are_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let frames: Frames = [5, 3, 6].map(|ms| (ms * MSEC, frame(100, 1, 0))).into();
    let file = write(folder.path(), "back.pcap", &pcap(1, 1, &frames));
    let rows = |line: &str| succeeded(&run(&format!("{line} --csv -")));
    let came = |rows: &str| -> Vec<String> {
        let field = |row: &str| row.split(',').nth(6).expect("columns").to_owned();
        rows.lines().skip(1).map(field).collect()
    };
    let line = format!("replay {file} --qdisc pfifo");
    assert_eq!(came(&rows(&line)), ["0", "0", "1000000"]);
    assert!(succeeded(&run(&line)).contains("1 out of order"));

    let simple = block(false, 3, &[100], &frames[0].1);
    let time = BEGIN * 1_000_000_000;
    let parts = [section(false), interface(false, 9, 0), packet(false, 0, time, &frames[0].1)];
    let file = write(folder.path(), "simple.pcapng", &[parts.concat(), simple.clone()].concat());
    let line = format!("replay {file} --qdisc pfifo");
    assert_eq!(came(&rows(&line)), ["0", "0"]);
    assert!(succeeded(&run(&line)).contains("1 without a time"));

    // Packets in front of the first one that has a time come with it.
    let late = packet(false, 0, time + 7, &frames[0].1);
    let parts = [section(false), interface(false, 9, 0), simple, parts[2].clone(), late];
    let file = write(folder.path(), "first.pcapng", &parts.concat());
    let line = format!("replay {file} --qdisc pfifo");
    assert_eq!(came(&rows(&line)), ["0", "0", "7"]);
    let summary: Value =
        serde_json::from_str(&succeeded(&run(&format!("{line} --json -")))).expect("JSON");
    assert_eq!(summary["first_unix_ns"], time);
}

#[test]
fn usage_errors_name_the_option_and_what_would_be_right() {
    let wrong: &[(&str, &[&str])] = &[
        ("replay", &["<CAPTURE>", "--qdisc"]),
        ("replay x.pcap", &["--qdisc", "--setup"]),
        ("replay x.pcap --qdisc fq --setup y", &["--qdisc", "--setup"]),
        ("replay x.pcap --qdisc 'fq limit -1'", &["--qdisc", "limit", "0 to 4294967295"]),
        ("replay x.pcap --qdisc 'fq maxrate 8'", &["--qdisc", "maxrate", "unit is missing"]),
        ("replay x.pcap --qdisc 'best'", &["--qdisc", "best", "pfifo"]),
        ("replay x.pcap --qdisc fq --rate 10", &["--rate", "10mbit", "8bit to 8000tbit"]),
        ("replay x.pcap --qdisc fq --rate -5mbit", &["-5", "negative number"]),
        ("replay x.pcap --qdisc fq --rate 0mbit", &["--rate", "8bit to 8000tbit"]),
        ("replay x.pcap --qdisc fq --filter foo", &["--filter", "\"foo\": fq does not use"]),
        ("replay x.pcap --qdisc prio --filter all", &["--filter", "all", "matchall"]),
        ("replay x.pcap --qdisc prio --filter 'parent 2: matchall'", &["--filter", "no qdisc 2:"]),
        ("replay x.pcap --qdisc fq --seed many", &["--seed", "many"]),
    ];
    for (line, words) in wrong {
        let output = run(line);
        assert_fails(&output, 2, words);
        assert!(output.stdout.is_empty(), "{line}");
    }
}

#[test]
fn outputs_that_would_replace_each_other_or_what_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = write(folder.path(), "in.pcap", &pcap(1, 1, &vec![(0, frame(100, 1, 0))]));
    let line = format!("replay {file} --qdisc fq");
    assert_fails(&run(&format!("{line} --out {file}")), 2, &["--out and the capture", "same"]);
    assert_fails(&run(&format!("{line} --csv - --json -")), 2, &["--csv and --json", "same"]);
    let both = folder.path().join("x").display().to_string();
    let output = run(&format!("{line} --out {both} --html {both}"));
    assert_fails(&output, 2, &["--out and --html name the same file"]);
    let setup = write(folder.path(), "tree.tc", b"qdisc add dev eth0 root fq\n");
    let output = run(&format!("replay {file} --setup {setup} --json {setup}"));
    assert_fails(&output, 2, &["--json and --setup", "replaced"]);
    let endless = format!("replay {file} --setup /dev/zero");
    assert_fails(&run(&endless), 1, &["/dev/zero", "more than 64 MiB", "lines of tc"]);
    let missing = format!("{line} --csv {both}/missing/file");
    assert_fails(&run(&missing), 1, &["cannot write", "make it"]);
}

/// Returns the command `line`, with pipes for its standard input, standard output and standard
/// error.
fn piped(line: &str) -> Command {
    let mut command = onramp(line.split(' '));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_signal_ends_it_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.pcapng");
    // The first run gets the signal while it still waits for the header of the capture, the second
    // run after the first packet. In both cases the signal must end the program, and no file may
    // remain.
    let capture = pcap(1, 1, &vec![(0, frame(100, 1, 0))]);
    for begun in [&[][..], &capture] {
        let mut child = piped(&format!("replay - --qdisc fq --out {}", out.display()))
            .spawn()
            .expect("the program runs");
        let mut pipe = child.stdin.take().expect("a pipe");
        pipe.write_all(begun).expect("it reads");
        std::thread::sleep(Duration::from_millis(300));
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
        let status = child.wait().expect("it ends");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);
    }
}

/// Nobody writes into the pipe that the command reads.
#[test]
fn a_signal_ends_the_wait_for_a_pipe() {
    let folder = tempfile::tempdir().expect("a folder");
    let named = folder.path().join("pipe").display().to_string();
    mkfifoat(CWD, &named, 0o600.into()).expect("room");
    let mut child = piped(&format!("replay {named} --qdisc fq")).spawn().expect("it runs");
    wait_until_open(&child, &named);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    let status = child.wait().expect("it ends");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
}

/// Nobody reads what the command writes: a named pipe that no program opens, a named pipe whose
/// reader does not read, and standard output. The first signal ends the command, and it says why.
#[test]
fn a_signal_ends_the_wait_for_a_reader() {
    let folder = tempfile::tempdir().expect("a folder");
    let named = folder.path().join("pipe").display().to_string();
    mkfifoat(CWD, &named, 0o600.into()).expect("room");
    // More than a pipe holds, in packets and in rows.
    let frames = (0..4_000).map(|n| (n * MSEC, frame(1_000, 1, 0))).collect();
    let file = write(folder.path(), "in.pcap", &pcap(1, 1, &frames));
    let line = format!("replay {file} --qdisc pfifo");
    let unread = |what: &str| {
        let why = "nobody reads what is written there";
        format!("onramp: interrupted by SIGINT: cannot write {what}: {why}")
    };
    let advice = "; start a program that reads it, or name a file";
    let pipe = unread(&named) + advice;
    let stdout = unread("to standard output");
    for (options, has_reader, says) in [
        (format!("--out {named}"), false, &pipe),
        (format!("--csv {named} --json -"), false, &pipe),
        (format!("--out {named} --csv {named}2"), true, &pipe),
        (format!("--csv {named}"), true, &pipe),
        ("--csv -".to_owned(), false, &stdout),
        ("--out -".to_owned(), false, &stdout),
    ] {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let reader = has_reader.then(|| open(&named, flags, Mode::empty()).expect("it is there"));
        let mut child = piped(&format!("{line} {options}")).spawn().expect("it runs");
        wait_until("the command waits", || waits(&child));
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
        let status = child.wait().expect("it ends");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2), "{options}");
        let mut said = String::new();
        child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("text");
        assert_eq!(said.trim_end(), says, "{options}");
        drop(reader);
        let left = fs::read_dir(folder.path()).expect("the folder").count();
        assert_eq!(left, 2, "{options}: the capture and the pipe");
    }
}

/// Whether a process has blocked SIGHUP, SIGINT and SIGTERM and waits for something else than a
/// disk.
fn waits(child: &std::process::Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let has = |key: &str, value: &str| {
        status.lines().any(|line| line.starts_with(key) && line.contains(value))
    };
    has("SigBlk:", "4003") && has("State:", "S (sleeping)")
}

#[test]
fn memory_is_bounded_however_long_the_capture() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = format!(
        "ulimit -v 150000; exec {} replay - --qdisc 'fq limit 100' --rate 100mbit --out {1}/out \
         --csv {1}/csv --json {1}/json --html {1}/html",
        env!("CARGO_BIN_EXE_onramp"),
        folder.path().display()
    );
    let mut child = Command::new("sh")
        .args(["-c", &line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut pipe = child.stdin.take().expect("a pipe");
    // The process may use only 150,000 KiB of address space, about 154 MB. The capture has 325 MB
    // of large packets of one flow, and then 100,000 small packets, each of a flow of its own. The
    // replay must succeed, so it must not keep the whole capture in memory.
    pipe.write_all(&pcap(1, 1, &Vec::new())).expect("it reads");
    let record = |n: u64, bytes: &[u8]| pcap(1, 1, &vec![(n * MSEC, bytes.to_vec())]).split_off(24);
    let large = frame(65_000, 1, 0);
    let chunk: Vec<u8> = (0..50).flat_map(|n| record(n, &large)).collect();
    for _ in 0..100 {
        pipe.write_all(&chunk).expect("it reads");
    }
    let mut small = frame(64, 1, 0);
    for many in 0..100_u32 {
        let records = (0..1_000_u32).flat_map(|n| {
            small[26..30].copy_from_slice(&(many * 1_000 + n).to_be_bytes());
            record(u64::from(many * 1_000 + n), &small)
        });
        pipe.write_all(&records.collect::<Vec<_>>()).expect("it reads");
    }
    drop(pipe);
    let output = child.wait_with_output().expect("it ends");
    succeeded(&output);
    let summary = read_json(&folder.path().join("json"));
    assert_eq!(summary["packets"], 105_000);
    assert_eq!(summary["flows_known"], 65_536);
    assert_eq!(summary["flows"].as_array().map(Vec::len), Some(100));
    let series = summary["series"]["queue_packets_max"].as_array().expect("points");
    assert!(series.len() <= 512, "{}", series.len());
}
