//! Tests of `onramp traffic`, and of the lines in README.md and docs/tc.md that use it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use onramp_queue::DropReason;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::watch::{Daemon, asking};
use super::{assert_fails, run, skip, stderr, wait_until};

/// Ctrl-C ends the traffic, and the command prints what was sent and exits with 130.
#[test]
fn an_interrupted_traffic_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let _daemon = Daemon::start(folder.path());
    let add = asking(folder.path(), "ip link add d0 up type dummy").output().expect("it runs");
    assert!(add.status.success(), "{}", stderr(&add));
    let mut traffic = asking(folder.path(), "traffic d0 --seconds 3600 --json -");
    let mut child = traffic.stdout(Stdio::piped()).spawn().expect("it runs");
    let sent = || {
        let shown = asking(folder.path(), "ip -s -j link show d0").output().expect("it runs");
        let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        shown[0]["stats64"]["tx"]["packets"].as_u64().expect("a number")
    };
    while sent() == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a number");
    kill_process(pid, Signal::INT).expect("it lives");
    let mut text = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut text).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (&report["schema"], &report["ended"]),
        (&"onramp.traffic".into(), &"stopped".into())
    );
    assert_eq!(report["sent"].as_u64(), Some(sent()));
}

/// Until the report is there, further signals have no effect.
#[test]
fn a_second_signal_does_not_lose_the_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let _daemon = Daemon::start(folder.path());
    make(folder.path(), &["tc qdisc add dev d0 root netem delay 100s limit 1000000"]);
    let mut traffic = asking(folder.path(), "traffic d0 --seconds 3600");
    let traffic = traffic.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = traffic.spawn().expect("it runs");
    wait_until("packets", || {
        let shown = asking(folder.path(), "tc -s -j qdisc show dev d0").output().expect("it runs");
        let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        shown[0]["qlen"].as_u64().is_some_and(|packets| packets > 0)
    });
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a number");
    kill_process(pid, Signal::TERM).expect("it lives");
    let mut told = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut line = String::new();
    told.read_line(&mut line).expect("text");
    assert!(line.starts_with("onramp: SIGTERM: ends the traffic; "), "{line}");
    kill_process(pid, Signal::TERM).expect("it waits for packets in the device");
    let mut rest = String::new();
    told.read_to_string(&mut rest).expect("text");
    let start = "onramp: interrupted by SIGTERM; also: nothing left d0: all ";
    assert!(rest.starts_with(start) && rest.ends_with(" are still in the device\n"), "{rest}");
    let output = child.wait_with_output().expect("it ends");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(143), "{shown}");
    assert!(shown.contains("\n0 sent, ") && shown.contains(" still in the device\n"), "{shown}");
}

/// If no packet leaves the device, that is a failure, which the command explains.
#[test]
fn traffic_that_does_not_leave_is_a_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let _daemon = Daemon::start(folder.path());
    make(folder.path(), &["tc qdisc add dev d0 root tbf rate 1mbit burst 10 latency 50ms"]);
    let output = asking(folder.path(), "traffic d0 --seconds 0.1").output().expect("it runs");
    assert_eq!((output.status.code(), &*stderr(&output)), (Some(1), &*told(&output, "too_big")));
    make(folder.path(), &["tc qdisc replace dev d0 root blackhole"]);
    let output = asking(folder.path(), "traffic d0 --seconds 0.1").output().expect("it runs");
    assert_eq!((output.status.code(), &*stderr(&output)), (Some(1), &*told(&output, "blackhole")));
}

/// Returns what the command says if the qdisc drops all packets that its report counts as `reason`.
fn told(output: &Output, reason: &str) -> String {
    let shown = String::from_utf8_lossy(&output.stdout);
    let packets = shown.split(' ').next().unwrap_or_default();
    let reason = DropReason::ALL.iter().find(|it| it.name() == reason).expect("a reason");
    let (name, about) = (reason.name(), reason.about());
    format!(
        "onramp: nothing left d0: of {packets} packets {packets} were dropped as {name}: {about}\n"
    )
}

/// Makes the device `d0`, if it is not there yet, and carries out `lines`.
fn make(folder: &Path, lines: &[&str]) {
    let add = asking(folder, "ip link add d0 up type dummy").output().expect("it runs");
    assert!(add.status.success() || stderr(&add).contains("exists already"), "{}", stderr(&add));
    for line in lines {
        let done = asking(folder, line).output().expect("it runs");
        assert!(done.status.success(), "{line}: {}", stderr(&done));
    }
}

#[test]
fn what_is_wrong_is_told_in_a_line() {
    assert_fails(&run("traffic"), 2, &["<DEV>"]);
    assert_fails(&run("traffic d0 --rate 10"), 2, &["--rate 10: expected a rate with its unit"]);
    assert_fails(&run("traffic d0 --rate fast"), 2, &["--rate", "fast", "or max"]);
    assert_fails(&run("traffic d0 --rate 0mbit"), 2, &["--rate 0mbit: expected a rate"]);
    assert_fails(&run("traffic d0 --flows 0"), 2, &["--flows", "a whole number, 1 to 65536"]);
    assert_fails(&run("traffic d0 --seconds -1"), 2, &["negative"]);
    assert_fails(&run("traffic d0 --seconds 1e9"), 2, &["--seconds 1000000000", "86400"]);
    let nowhere = "/nonexistent/socket";
    let absent = [nowhere, "onramp daemon", "ONRAMP_SOCKET"];
    assert_fails(&run(&format!("traffic d0 --socket {nowhere}")), 1, &absent);
}

/// Returns the shell blocks below the heading that contain `word`.
fn blocks(page: &str, heading: &str, word: &str) -> Vec<String> {
    let (_, part) = page.split_once(&format!("\n{heading}\n")).expect("the heading");
    let part = part.split("\n## ").next().unwrap_or_default();
    let blocks = part.split("```sh\n").skip(1).filter_map(|it| it.split("```").next());
    blocks.filter(|block| block.contains(word)).map(str::to_owned).collect()
}

/// Runs a block in a fresh shell, with free ports in place of its own, and returns what it printed.
fn paste(block: &str) -> String {
    let wait = "; until [ -S $ONRAMP_SOCKET ]; do sleep 0.05; done; sleep 0.2";
    let mut block = block.replace("& sleep 1\n", &format!("&{}\n", &wait[1..]));
    for port in ["8000", "9000"] {
        let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        block = block.replace(port, &free.expect("a port").port().to_string());
    }
    let program = Path::new(env!("CARGO_BIN_EXE_onramp")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("bash")
        .args(["-ec", &block])
        .env("PATH", format!("{}:{path}", program.display()))
        .stdin(Stdio::null())
        .output()
        .expect("bash runs");
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    assert!(output.status.success(), "{block}\n{text}\n{}", stderr(&output));
    text
}

/// The filters that the guide shows for packets that come in or leave are understood.
#[test]
fn the_filters_of_the_guide_are_read() {
    let guide = include_str!("../../../../docs/tc.md").replace("\\\n", " ");
    let mut tree = onramp::Setup::default();
    tree.apply("qdisc add dev lan clsact").expect("a place for filters");
    let lines = guide.lines().filter_map(|line| line.strip_prefix("onramp tc "));
    let lines: Vec<_> = lines.filter(|line| line.starts_with("filter add dev lan ")).collect();
    assert_eq!(lines.len(), 3);
    for line in lines {
        tree.apply(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

/// The blocks of README.md and docs/tc.md work when they are pasted whole, and move packets.
#[test]
fn the_blocks_of_the_pages_work() {
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|output| output.status.success()) {
        return skip("python3 is not installed");
    }
    let readme = include_str!("../../../../README.md");
    let guide = include_str!("../../../../docs/tc.md");
    let tutorials = [
        blocks(readme, "## tc without root", "onramp traffic"),
        blocks(guide, "## To begin", "onramp traffic"),
    ];
    for block in tutorials.iter().flatten() {
        let shown = paste(block);
        assert!(shown.contains(" sent, ") && shown.contains("qdisc htb 1: root "), "{shown}");
        assert!(!shown.contains(" Sent 0 bytes 0 pkt"), "{shown}");
    }
    let relays = [
        blocks(readme, "## tc without root", "netem"),
        blocks(guide, "## A relay between a client and a server", "netem"),
    ];
    for block in relays.iter().flatten() {
        let shown = paste(block);
        let (answered, rest) = shown.split_once(" of 100 answered, ").expect("what it measured");
        let answered: u32 =
            answered.lines().last().and_then(|it| it.parse().ok()).expect("a number");
        let least: u32 = rest.split(' ').next().and_then(|it| it.parse().ok()).expect("a number");
        assert!((1..=100).contains(&answered) && least >= 40, "{shown}");
        assert!(shown.contains("qdisc netem ") && shown.contains("answers: packets "), "{shown}");
    }
    assert_eq!((tutorials.map(|it| it.len()), relays.map(|it| it.len())), ([1, 1], [1, 1]));
}
