//! What changes, watches and reaches a wire that runs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{
    Net, Tun, as_ordinary, assert_conserved, document, has, ordinary, program, shared, wire,
};
use crate::{assert_fails, read_json, run, stderr};

/// A link that is down loses everything, and a step sets it up again.
#[test]
fn a_trace_cuts_the_link() {
    if !has("ping") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let down = shared(&folder, "down", "0 up link down\n");
    let ping = ["ping", "-c2", "-i0.2", "-W10", "192.0.2.2"];
    let words = ["--trace", &down, "--json", "-", "--"];
    let Some(output) = wire(words.into_iter().chain(ping)) else { return };
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let document = document(&output);
    assert_conserved(&document);
    assert!(document["up"]["lost"].as_u64().is_some_and(|lost| lost > 0), "{document}");
    assert_eq!(document["down"]["lost"], 0);
    let until = "until ping -c1 -W1 192.0.2.2; do :; done";
    // If the client begins late, the link is up already.
    let lost = [0.5, 2.0, 8.0, 30.0].into_iter().any(|seconds| {
        let again = shared(&folder, "again", &format!("0 link down\n{seconds} link up\n"));
        let words = ["--trace", &again, "--json", "-", "--", "timeout", "120", "sh", "-c", until];
        let output = wire(words).expect("it was possible before");
        assert!(output.status.success(), "{}", stderr(&output));
        let document = self::document(&output);
        assert_conserved(&document);
        document["up"]["lost"].as_u64().is_some_and(|lost| lost > 0)
    });
    assert!(lost, "a link that is down loses packets");
}

/// The client's script changes its own wire, and other commands find it.
#[test]
fn a_wire_is_changed_while_it_runs() {
    if !has("ping") {
        return;
    }
    let onramp = program().display();
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let temporary = folder.path().display();
    let script = format!(
        "set -e; test -S \"$ONRAMP_WIRE\"; {onramp} wire list
         {onramp} wire set --qdisc 'netem delay 30ms'
         ping -c2 -i0.2 $ONRAMP_PEER
         {onramp} wire set up delay 60ms link up; {onramp} wire list
         {onramp} wire set up link down
         ping -c1 -W1 $ONRAMP_PEER && exit 9
         ! {onramp} wire set --wire 0 rate 1mbit
         {onramp} wire set --wire $(basename $ONRAMP_WIRE .sock) link up; ping -c1 $ONRAMP_PEER"
    );
    let words = ["--qdisc", "pfifo limit 77", "--json", "-", "--", "sh", "-c", &script];
    let run = || {
        let mut command = ordinary(Tun::Open, words).expect("an open TUN is always possible");
        command.env("TMPDIR", folder.path()).env_remove("XDG_RUNTIME_DIR");
        command.output().expect("the program runs")
    };
    if wire(["--", "true"]).is_none() {
        return;
    }
    let output = run();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    assert!(stderr(&output).contains("no wire 0 runs"), "{}", stderr(&output));
    let (before, after) = text.split_once("rtt min/avg/max/mdev = ").expect("a summary");
    assert!(before.contains("up    qdisc add") && before.contains("down  qdisc add"), "{text}");
    assert_eq!(before.matches("pfifo limit 77").count(), 2, "{text}");
    let least = |after: &str| -> f64 {
        after.split('/').next().and_then(|n| n.parse().ok()).expect("a number")
    };
    assert!(least(after) >= 60.0, "{text}");
    // 60 ms to the server, and still 30 ms from it.
    let (_, last) = after.rsplit_once("rtt min/avg/max/mdev = ").expect("another summary");
    assert!(least(last) >= 90.0, "{text}");
    assert!(after.contains("netem delay 60ms") && after.contains("netem delay 30ms"), "{text}");
    let document = document(&output);
    assert_conserved(&document);
    assert!(document["up"]["lost"].as_u64().is_some_and(|lost| lost > 0), "{document}");
    // The socket is gone, in a folder that is its user's alone.
    let sockets: Vec<_> = fs::read_dir(&folder).expect("a folder").flatten().collect();
    assert_eq!(sockets.len(), 1, "{sockets:?}");
    let left = fs::metadata(sockets[0].path()).expect("a folder").permissions().mode();
    assert_eq!(left & 0o777, 0o700);
    assert_eq!(fs::read_dir(sockets[0].path()).expect("a folder").count(), 0, "{temporary}");
}

/// What a killed wire leaves behind does not block later ones.
#[test]
fn a_socket_that_is_left_behind_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let in_folder = |words: &[&str]| {
        let mut command =
            ordinary(Tun::Open, words.iter().copied()).expect("an open TUN is always possible");
        command.env("TMPDIR", folder.path()).env_remove("XDG_RUNTIME_DIR");
        command.output().expect("the program runs")
    };
    if wire(["--", "true"]).is_none() {
        return;
    }
    let killed = in_folder(&["--", "sh", "-c", "kill -9 $PPID; sleep 1"]);
    assert!(!killed.status.success());
    let sockets = || {
        let folders = fs::read_dir(&folder).expect("a folder").flatten();
        let files = folders.flat_map(|folder| fs::read_dir(folder.path()).expect("a folder"));
        files.count()
    };
    assert_eq!(sockets(), 1);
    let listed = in_folder(&["list"]);
    assert!(listed.status.success() && listed.stdout.is_empty(), "{}", stderr(&listed));
    assert_eq!(sockets(), 0);
    let alone = in_folder(&["set", "rate", "1mbit"]);
    assert_fails(&alone, 1, &["no wire runs"]);
}

/// A capture has every frame twice, as it enters and as it leaves, and other programs read it.
#[test]
fn a_capture_has_every_frame() {
    if !has("ping") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let file = folder.path().join("pcap").display().to_string();
    let three = "for n in 1 2 3; do ping -q -c1 -W60 192.0.2.2 || exit 1; done";
    let ping = ["sh", "-c", three];
    let words = ["--no-offload", "--json", "-", "--pcap", &file, "--"];
    let Some(output) = wire(words.into_iter().chain(ping)) else { return };
    assert!(output.status.success(), "{}", stderr(&output));
    let carried = document(&output);
    let replayed = run(&format!("replay {file} --qdisc 'pfifo limit 1000' --json -"));
    assert!(replayed.status.success(), "{}", stderr(&replayed));
    let read = document(&replayed)["packets"].as_u64().expect("a number");
    let counts = ["up", "down"].map(|way| {
        let number = |key: &str| carried[way][key].as_u64().expect("a number");
        number("packets") + number("sent")
    });
    // Frames that the kernel sent before the capture began are not in it.
    assert!((12..=counts.iter().sum()).contains(&read), "{read} of {counts:?}");
    if has("tcpdump") {
        let output = Command::new("tcpdump").args(["-nr", &file, "icmp"]).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let text = text.expect("it runs");
        assert_eq!(text.lines().count(), 12, "{text}");
    }
    let line = format!("wire --json {file} --pcap {file} -- true");
    assert_fails(&run(&line), 2, &["--json and --pcap name the same file"]);
    assert_fails(&run("wire --pcap /no/such/x -- true"), 1, &["/no/such"]);
    let Some(output) = wire(["--quiet", "--pcap", "/dev/full", "--", "true"]) else { return };
    assert_fails(&output, 1, &["/dev/full"]);
}

/// The reader of a capture may never read: then a signal ends the program, when the client has
/// ended.
#[test]
fn a_signal_ends_a_capture_that_nobody_reads() {
    if !has("ping") || wire(["--", "true"]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let done = folder.path().join("done");
    // Four times as many bytes as a pipe holds: each of 100 requests and answers comes and goes.
    let client = format!(
        "exec > {done} 2>&1; ping -q -c100 -w110 -i0.002 -s1400 $ONRAMP_PEER
         mv {done} {done}.done",
        done = done.display()
    );
    let words = ["--quiet", "--pcap", "-", "--", "sh", "-c", &client];
    let mut command = ordinary(Tun::Open, words).expect("an open TUN is always possible");
    let mut running = command.stdout(Stdio::piped()).spawn().expect("the program runs");
    let pause = || std::thread::sleep(Duration::from_millis(20));
    while !folder.path().join("done.done").exists() {
        assert!(
            running.try_wait().expect("it is ours").is_none(),
            "it has ended before its client"
        );
        pause();
    }
    // A signal that comes before the client has ended is for the client alone.
    let pid = rustix::process::Pid::from_child(&running);
    let mut status = None;
    for _ in 0..1_500 {
        status = running.try_wait().expect("it is ours");
        if status.is_some() {
            break;
        }
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is ours");
        pause();
    }
    if status.is_none() {
        running.kill().expect("it is ours");
    }
    assert_eq!(status.and_then(|status| status.signal()), Some(15), "it does not end");
}

/// A port of the loopback leads through the wire: TCP in both directions, and UDP.
#[test]
fn a_port_is_forwarded() {
    if !has("iperf3") || wire(["--", "true"]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let (onramp, files) = (program().display(), folder.path().display());
    // The client starts when the server listens. A server is for one try, which succeeds.
    let script = format!(
        "try() {{ name={files}/$1; shift
             {onramp} wire --forward 5300:5201 --forward 5300:5201/udp --qdisc 'netem rate 20mbit' \
                 --json $name -- sh -c \"touch $name.begun; until test -e $name.done; \
                 do sleep 0.1; done\" -- iperf3 -s -1 &
             until test -e $name.begun; do kill -0 $! || return 1; sleep 0.1; done
             timeout 60 iperf3 -c 127.0.0.1 -p 5300 -t 1 \"$@\"
             code=$?; touch $name.done; wait $! && return $code; }}
         try up && try down -R && try udp -u -b 1M"
    );
    let output = as_ordinary(Tun::Open, ["sh", "-c", &script], Net::Own)
        .expect("an open TUN is always possible")
        .output()
        .expect("the programs run");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    // The server saw the client's end of the wire.
    assert_eq!(text.matches("Accepted connection from 192.0.2.1").count(), 3, "{text}");
    for (name, way) in [("up", "up"), ("down", "down"), ("udp", "up")] {
        let document = read_json(&folder.path().join(name));
        assert_conserved(&document);
        let bytes = document[way]["sent_bytes"].as_u64().expect("a number");
        assert!(bytes > 50_000, "{name}: {document}");
    }
    assert_fails(&run("wire --forward 0 -- true"), 2, &["--forward", "1 to 65535"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let line = format!("wire --forward {port}:80 -- true");
    assert_fails(&run(&line), 1, &["--forward: cannot listen at 127.0.0.1", "in use"]);
}
