//! Tests of `onramp send`.

use std::fs;
use std::io::Write;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use etherparse::PacketBuilder;
use rustix::fs::{CWD, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{
    assert_documented_keys, assert_fails, onramp, run, stderr, wait_until, wait_until_open,
};

/// Returns the socket of a receiver, and the URL by which `onramp send` reaches it.
fn receiver() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let to = format!("udp://{}", socket.local_addr().expect("bound"));
    (socket, to)
}

/// Returns the datagrams that have arrived at the socket so far.
fn received(socket: &UdpSocket) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; 70_000];
    let next = || socket.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec());
    std::iter::from_fn(next).collect()
}

/// Runs the command `line` with `input` as its standard input.
fn run_with(line: &str, input: &[u8]) -> Output {
    let mut child = onramp(line.split(' '))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    // The program may have failed and stopped reading, so an error of this write is ignored.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("the program ends")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stdout)))
}

/// Returns an Ethernet frame with a UDP datagram.
fn frame(source_port: u16, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64)
        .udp(source_port, 53);
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).expect("a vector takes everything");
    frame
}

/// Returns a pcap file (the classic format) with these frames. For each frame, `frames` has the
/// captured bytes and the length on the wire.
fn pcap(link: u32, frames: &[(&[u8], usize)]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, link] {
        file.extend(word.to_le_bytes());
    }
    for (bytes, original) in frames {
        for word in [1, 2, bytes.len(), *original] {
            file.extend(u32::try_from(word).expect("small").to_le_bytes());
        }
        file.extend(*bytes);
    }
    file
}

/// Returns a pcapng file with one Ethernet interface.
fn pcapng(frames: &[&[u8]]) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let padded = body.len().next_multiple_of(4);
        let length = u32::try_from(padded + 12).expect("small").to_le_bytes();
        let mut block = [&kind.to_le_bytes()[..], &length, body].concat();
        block.resize(padded + 8, 0);
        block.extend(length);
        block
    };
    let mut section = 0x1a2b_3c4d_u32.to_le_bytes().to_vec();
    section.extend([1, 0, 0, 0]);
    section.extend([0xff; 8]);
    let mut file = block(0x0a0d_0d0a, &section);
    file.extend(block(1, &[1, 0, 0, 0, 0, 0, 4, 0]));
    for frame in frames {
        let length = u32::try_from(frame.len()).expect("small").to_le_bytes();
        let body = [&[0; 12][..], &length, &length, frame].concat();
        file.extend(block(6, &body));
    }
    file
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    fs::write(&path, bytes).expect("a file");
    path.display().to_string()
}

#[test]
fn lines_arrive_as_datagrams_in_order() {
    let (socket, to) = receiver();
    let output = run_with(&format!("send {to} --from - --json -"), b"one\n\nthree \nlast");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(received(&socket), [&b"one"[..], b"", b"three ", b"last"]);
    let summary = json(&output);
    assert_eq!(summary["schema"], "onramp.send");
    assert_eq!((&summary["packets_read"], &summary["sent"]), (&4.into(), &4.into()));
    assert_eq!(summary["error"], Value::Null);
    assert_eq!(summary["payload_bytes"], 13);
    assert_eq!(summary["wire_bytes"], 13 + 4 * 42);
    assert!(assert_documented_keys("## `onramp.send`, version 1", &summary) > 15);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let document = fs::read_to_string(path).expect("docs/json.md");
    for key in summary.as_object().expect("an object").keys() {
        assert!(document.contains(&format!("`{key}`")), "docs/json.md does not tell of {key}");
    }
}

#[test]
fn a_line_too_long_for_udp_fails_after_those_before_it() {
    let (socket, to) = receiver();
    let input = [&b"first\n"[..], &[b'x'; 65_508], b"\n"].concat();
    let output = run_with(&format!("send {to} --from -"), &input);
    assert_fails(&output, 1, &["line 2", "65507"]);
    assert_eq!(received(&socket), [b"first"]);
}

#[test]
fn captures_of_both_formats_are_sent_as_often_as_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (frame(1, b"alpha"), frame(2, b"beta"));
    let classic = pcap(1, &[(&first, first.len()), (&second, second.len())]);
    let classic = write(folder.path(), "a.pcap", &classic);
    let next = write(folder.path(), "a.pcapng", &pcapng(&[&first, &second]));
    for file in [classic, next] {
        let (socket, to) = receiver();
        let output = run(&format!("send {to} --from {file} --loop 3 --json -"));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(received(&socket), [&b"alpha"[..], b"beta"].repeat(3), "{file}");
        let summary = json(&output);
        assert_eq!((&summary["flows"], &summary["sent"]), (&2.into(), &6.into()));
        assert_eq!(summary["loops"], 3);
    }
}

#[test]
fn what_is_no_whole_udp_payload_is_skipped_and_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = frame(1, b"good");
    let mut tcp = good.clone();
    tcp[14 + 9] = 6;
    let cut = &good[..good.len() - 2];
    let frames: [(&[u8], usize); 3] = [(&tcp, tcp.len()), (cut, good.len()), (&good, good.len())];
    let file = write(folder.path(), "mixed.pcap", &pcap(1, &frames));
    let (socket, to) = receiver();
    let output = run(&format!("send {to} --from {file} --json -"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(received(&socket), [b"good"]);
    let skipped = &json(&output)["skipped"];
    assert_eq!((&skipped["not_udp"], &skipped["truncated"]), (&1.into(), &1.into()));
}

#[test]
fn a_capture_that_is_cut_off_says_where_and_sends_what_came_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = frame(1, b"good");
    let whole = pcap(1, &[(&good, good.len()), (&good, good.len())]);
    let second = 24 + 16 + good.len();
    for missing in [1, good.len(), good.len() + 9] {
        let file = write(folder.path(), "cut.pcap", &whole[..whole.len() - missing]);
        let (socket, to) = receiver();
        let output = run(&format!("send {to} --from {file}"));
        assert_fails(&output, 1, &["cut.pcap", &format!("at byte {second}"), "cut off"]);
        assert_eq!(received(&socket), [b"good"]);
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("1 read from "));
    }
    let next = pcapng(&[&good, &good]);
    let file = write(folder.path(), "cut.pcapng", &next[..next.len() - 5]);
    let (socket, to) = receiver();
    assert_fails(&run(&format!("send {to} --from {file}")), 1, &["at byte ", "cut off"]);
    assert_eq!(received(&socket), [b"good"]);
}

#[test]
fn captures_that_cannot_be_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = receiver().1;
    let mut damaged = pcap(1, &[(&[0; 60], 60)]);
    damaged[24 + 8..24 + 12].copy_from_slice(&[0xff; 4]);
    let mut next = pcapng(&[&frame(1, b"good")]);
    next[32] = 0xff;
    let cases: [(&str, &[u8], &[&str]); 8] = [
        ("text", b"this is no capture, only text", &["text", "neither", "--from -"]),
        ("tiny", b"x\n", &["tiny", "neither"]),
        ("packed", b"\x1f\x8b\x08 and so on", &["packed", "compressed", "zcat"]),
        ("empty", b"", &["empty"]),
        ("short", &damaged[..20], &["short", "at byte 0"]),
        ("damaged", &damaged, &["damaged", "at byte 24"]),
        ("damaged-ng", &next, &["at byte "]),
        ("radio", &pcap(127, &[]), &["link type 127", "Ethernet"]),
    ];
    for (name, bytes, words) in cases {
        let file = write(folder.path(), name, bytes);
        let output = run(&format!("send {to} --from {file}"));
        assert_fails(&output, 1, words);
        assert!(output.stdout.is_empty(), "{name}: nothing was read");
    }
    let missing = format!("send {to} --from {}/missing", folder.path().display());
    assert_fails(&run(&missing), 1, &["cannot read", "missing", "No such file"]);
    let directory = format!("send {to} --from {}", folder.path().display());
    assert_fails(&run(&directory), 1, &["cannot read", "directory"]);
}

#[test]
fn destinations_that_cannot_be_reached() {
    let (socket, to) = receiver();
    drop(socket);
    let output = run_with(&format!("send {to} --from -"), b"anybody there?\n");
    let told =
        &["1 submitted, 1 sent", "no program listens there", "start a receiver", "check host"];
    assert_fails(&output, 1, told);
    let output = run_with("send udp://host.invalid:9 --from -", b"");
    assert_fails(&output, 1, &["cannot resolve", "host.invalid", "check the name"]);
}

#[test]
fn a_rate_paces() {
    let (socket, to) = receiver();
    let line = [&[b'x'; 500][..], b"\n"].concat();
    let output = run_with(&format!("send {to} --from - --rate 1mbit --json -"), &line.repeat(100));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(received(&socket).len(), 100);
    let summary = json(&output);
    assert_eq!(summary["qdisc"], "fq maxrate 1mbit low_rate_threshold 1mbit");
    // Each packet waits for the one before it, from the first on. Linux's `fq` would send ten long
    // frames at once in the beginning.
    let paced = 99.0 * 542.0 * 8.0 / 1e6 * 0.999;
    let seconds = summary["seconds"].as_f64().expect("seconds");
    assert!(seconds >= paced, "{seconds} s");
}

#[test]
fn a_capture_on_standard_input_is_read_as_one() {
    let frames = [frame(1, b"one\ntwo"), frame(2, &[0; 300])];
    let whole = pcap(1, &[(&frames[0], frames[0].len()), (&frames[1], frames[1].len())]);
    for capture in [&whole, &pcapng(&[&frames[0], &frames[1]])] {
        let (socket, to) = receiver();
        let output = run_with(&format!("send {to} --from - --json -"), capture);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(received(&socket), [&b"one\ntwo"[..], &[0; 300]]);
        let summary = json(&output);
        assert_eq!((&summary["from"], &summary["flows"]), (&"standard input".into(), &2.into()));
    }
    let (socket, to) = receiver();
    let output = run_with(&format!("send {to} --from -"), &whole[..whole.len() - 1]);
    assert_fails(&output, 1, &["standard input: at byte ", "cut off"]);
    assert_eq!(received(&socket).len(), 1);
}

/// Compressed data and other bytes that are no text are not taken for lines.
#[test]
fn what_is_neither_a_capture_nor_text_is_refused() {
    let (socket, to) = receiver();
    for (bytes, words) in [
        (&b"\x1f\x8b\x08\0\n\n"[..], &["standard input is compressed", "`zcat FILE |"][..]),
        (b"\x28\xb5\x2f\xfd\n", &["standard input is compressed", "`zstdcat FILE |"]),
        (b"\xfd7zXZ\0\n", &["standard input is compressed", "`xzcat FILE |"]),
        (b"BZh91AY&SY\n", &["standard input is compressed", "`bzcat FILE |"]),
        (b"\x7fELF\x02\x01\x01\0\n", &["line 1 of standard input is no text", "capture"]),
    ] {
        assert_fails(&run_with(&format!("send {to} --from -"), bytes), 1, words);
    }
    assert_eq!(received(&socket).len(), 0);
}

#[test]
fn a_line_is_sent_before_the_next_one_comes() {
    let (socket, to) = receiver();
    let mut child = onramp(["send", &to, "--from", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut pipe = child.stdin.take().expect("a pipe");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    for line in ["a", "b"] {
        writeln!(pipe, "{line}").expect("the program reads");
        let mut buffer = [0; 9];
        let length = socket.recv(&mut buffer).expect("it arrives while the pipe is open");
        assert_eq!(&buffer[..length], line.as_bytes());
    }
    drop(pipe);
    assert!(child.wait().expect("the program ends").success());
}

/// A signal ends the sending, whether the command waits for the qdisc or for more input, from
/// standard input or from a named pipe. It says how many datagrams have left.
#[test]
fn an_interrupted_command_says_what_it_sent() {
    let folder = tempfile::tempdir().expect("a folder");
    let frame = frame(1, &[7; 1_000]);
    let capture = pcap(1, &vec![(&frame[..], frame.len()); 50]);
    let capture = write(folder.path(), "slow.pcap", &capture);
    let slow = "tbf rate 8kbit burst 2kb limit 1mb";
    let named = folder.path().join("pipe").display().to_string();
    mkfifoat(CWD, &named, 0o600.into()).expect("room");
    for (from, loops) in [(&*capture, "1"), (&capture, "1000000"), ("-", "1"), (&named, "1")] {
        let (socket, to) = receiver();
        let words = ["send", &to, "--from", from, "--qdisc", slow, "--loop", loops, "--json", "-"];
        let mut child = onramp(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let mut pipe = child.stdin.take().expect("a pipe");
        writeln!(pipe, "a line").expect("the program reads");
        // The writer stays, as a tcpdump that captures does.
        let writer = (from == named).then(|| {
            let mut writer = fs::File::create(&named).expect("the program reads");
            writer.write_all(&pcap(1, &[(&frame, frame.len())])).expect("the program reads");
            writer
        });
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        socket.recv(&mut [0; 2_000]).expect("the first datagram leaves at once");
        kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
        let output = child.wait_with_output().expect("the program ends");
        drop((pipe, writer));
        let what = format!("{from}, {loops} loops");
        assert_eq!(output.status.code(), Some(130), "{what}: {}", stderr(&output));
        assert_eq!(stderr(&output), "onramp: interrupted by SIGINT\n", "{what}");
        let summary = json(&output);
        assert_eq!(summary["error"], "interrupted by SIGINT", "{what}");
        let count = |value: &Value| value.as_u64().expect("a count");
        let dropped: u64 = summary["drops"].as_object().expect("drops").values().map(count).sum();
        let (submitted, sent) = (count(&summary["submitted"]), count(&summary["sent"]));
        assert!(sent > 0 && sent + dropped == submitted, "{what}: {summary}");
        assert_eq!(from != capture, dropped == 0, "{what}: {summary}");
    }
}

/// A signal also ends a command that finds nothing to send.
#[test]
fn a_capture_without_datagrams_does_not_hold_the_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut tcp = frame(1, b"x");
    tcp[14 + 9] = 6;
    let file = write(folder.path(), "tcp.pcap", &pcap(1, &vec![(&tcp[..], tcp.len()); 1_000]));
    let (_socket, to) = receiver();
    let line = ["send", &to, "--from", &file, "--loop", "4000000000"];
    let child = onramp(line).stderr(Stdio::piped()).spawn().expect("the program runs");
    // The mask of SIGHUP, SIGINT and SIGTERM.
    let blocks_signals = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
        status.lines().any(|line| line.starts_with("SigBlk:") && line.ends_with("4003"))
    };
    wait_until("the program heeds signals", blocks_signals);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(143), "{}", stderr(&output));
}

/// A signal also ends a command that waits for a program that would write into a named pipe.
#[test]
fn a_pipe_without_a_writer_does_not_hold_the_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let named = folder.path().join("pipe").display().to_string();
    mkfifoat(CWD, &named, 0o600.into()).expect("room");
    let (_socket, to) = receiver();
    let child = onramp(["send", &to, "--from", &named]).stderr(Stdio::piped()).spawn();
    let child = child.expect("the program runs");
    wait_until_open(&child, &named);
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert_eq!(stderr(&output), "onramp: interrupted by SIGINT\n");
}

#[test]
fn that_nothing_was_sent_is_a_failure() {
    let told = |line: &str, input: &[u8], words: &[&str]| {
        let output = run_with(line, input);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        for word in words {
            assert!(message.contains(word), "{word:?} is missing: {message}");
        }
    };
    let (socket, to) = receiver();
    let line = format!("send {to} --from -");
    told(&line, b"", &["nothing was sent", "standard input"]);
    let mut tcp = frame(1, b"x");
    tcp[14 + 9] = 6;
    told(&line, &pcap(1, &[(&tcp, tcp.len())]), &["nothing was sent", "not_udp 1"]);
    let folder = tempfile::tempdir().expect("a folder");
    let good = frame(1, b"x");
    let file = write(folder.path(), "good.pcap", &pcap(1, &[(&good, good.len())]));
    let output = run(&format!("send {to} --from {file} --qdisc 'pfifo limit 0'"));
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    for word in ["nothing was sent", "(pfifo limit 0)", "dropped 1 as overlimit", "`limit`"] {
        assert!(message.contains(word), "{word:?} is missing: {message}");
    }
    assert!(received(&socket).is_empty());
    let output = run_with(&format!("{line} --json -"), b"");
    let error = "nothing was sent: standard input holds nothing to send";
    assert_eq!((output.status.code(), &json(&output)["error"]), (Some(1), &error.into()));
}
