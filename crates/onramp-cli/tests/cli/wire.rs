//! Tests of `onramp wire`, with real clients and servers. If root runs the tests, the program runs
//! as an ordinary user.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use super::{assert_fails, run, skip, stderr};

/// Returns a copy of the program that every user may run.
fn program() -> &'static PathBuf {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("onramp-wire-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let copy = folder.join("onramp");
        // A link to the file would keep the permissions of the folders above it.
        fs::copy(env!("CARGO_BIN_EXE_onramp"), &copy).expect("a copy");
        for path in [&folder, &copy] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        copy
    })
}

/// Runs `onramp wire` with these words, as an ordinary user. Returns `None`, and prints why, if
/// this machine has no namespaces for ordinary users or no TUN.
fn wire<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<Output> {
    let words: Vec<&str> = words.into_iter().collect();
    let output = ordinary(words).output().expect("the program runs");
    let said = stderr(&output);
    if said.contains("cannot make a user namespace") || said.contains("there is no /dev/net/tun") {
        skip(&format!("onramp wire: {said}"));
        return None;
    }
    Some(output)
}

/// Returns the command `onramp wire` with these words, run by an ordinary user. If root runs the
/// tests, the user gets a view of the file system in which every user may open `/dev/net/tun`, as
/// on most machines.
fn ordinary<'a>(words: impl IntoIterator<Item = &'a str>) -> Command {
    const DROP: &str = "mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 10 200 && \
                        exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";
    let mut command = Command::new("/usr/bin/env");
    command.arg("--default-signal=HUP,INT,TERM");
    if rustix::process::getuid().is_root() {
        command.args(["unshare", "--mount", "sh", "-c", DROP, "sh"]);
    }
    command.arg(program()).arg("wire").args(words).stdin(Stdio::null()).current_dir("/");
    command
}

fn has(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(OsStr::new(tool)).is_file());
    if !found {
        skip(&format!("no {tool}"));
    }
    found
}

/// Returns the program's JSON, which it wrote to standard output before or after the client's text.
fn document(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let begin = text.find("{\n").expect("a JSON document");
    serde_json::from_str(&text[begin..]).expect("JSON")
}

/// Every packet was carried, dropped for a reason, or is still there.
fn assert_conserved(document: &Value) {
    for way in ["up", "down"] {
        let way = &document[way];
        let number = |key: &str| way[key].as_u64().expect("a number");
        let drops = way["drops"].as_object().expect("an object").values();
        let dropped: u64 = drops.map(|count| count.as_u64().expect("a number")).sum();
        assert_eq!(number("packets"), number("sent") + dropped + number("queued"), "{way}");
    }
}

#[test]
fn ping_takes_both_delays() {
    if !has("ping") {
        return;
    }
    for peer in ["192.0.2.2", "2001:db8::2"] {
        let words = ["--qdisc", "netem delay 20ms", "--", "ping", "-c3", "-i0.2", peer];
        let Some(output) = wire(words) else { return };
        assert!(output.status.success(), "{}", stderr(&output));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(" 0% packet loss"), "{text}");
        let (_, times) = text.split_once("rtt min/avg/max/mdev = ").expect("a summary");
        let least: f64 = times.split('/').next().expect("a number").parse().expect("a number");
        // The longest time depends on the machine; the shortest cannot be less than the delays.
        assert!(least >= 40.0, "{text}");
    }
}

#[test]
fn the_exit_code_is_the_clients() {
    for (client, code) in [("true", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        let Some(output) = wire(["--", "sh", "-c", client]) else { return };
        assert_eq!(output.status.code(), Some(code), "{client}: {}", stderr(&output));
        assert!(stderr(&output).starts_with("onramp: up: "), "{}", stderr(&output));
    }
    let Some(output) = wire(["--quiet", "--", "sh", "-c", "exit 3"]) else { return };
    assert_eq!((output.status.code(), &*stderr(&output)), (Some(3), ""));
    let Some(output) = wire(["--", "/no/such/program"]) else { return };
    assert_fails(&output, 1, &["the client", "/no/such/program", "No such file"]);
    let Some(output) = wire(["--", "true", "--", "/no/such/server"]) else { return };
    assert_fails(&output, 1, &["the server", "/no/such/server", "No such file"]);
}

#[test]
fn what_is_wrong_is_told_in_a_line() {
    assert_fails(&run("wire"), 2, &["COMMAND"]);
    assert_fails(&run("wire --qdisc fifo -- true"), 2, &["--qdisc: ", "fifo"]);
    assert_fails(&run("wire --qdisc 'netem delay 20' -- true"), 2, &["--qdisc: ", "20", "unit"]);
    assert_fails(&run("wire --up 'tbf' -- true"), 2, &["--up: "]);
    assert_fails(&run("wire --then 'netem loss many' -- true"), 2, &["--then: ", "many"]);
    assert_fails(&run("wire --profile 5g -- true"), 2, &["--profile", "5g", "lte, dsl"]);
    assert_fails(&run("wire --profile lte --qdisc fq -- true"), 2, &["--profile", "--qdisc"]);
    assert_fails(&run("wire --mtu 100 -- true"), 2, &["--mtu", "1280..=65521"]);
    assert_fails(&run("wire --setup /no/such/file -- true"), 1, &["/no/such/file"]);
    assert_fails(&run("wire --setup x --qdisc fq -- true"), 2, &["--setup", "--qdisc"]);
    assert_fails(&run("wire -- true --"), 2, &["the server's command is missing"]);
    assert_fails(&run("wire -- -- true"), 2, &["the client's command is missing"]);
}

/// The two ends know each other's addresses, and see only the wire and the loopback.
#[test]
fn each_end_has_a_network_of_its_own() {
    let script = "echo $ONRAMP_PEER $ONRAMP_PEER6; cat /proc/net/dev";
    for server in [false, true] {
        let words = if server {
            vec!["--", "sleep", "0.1", "--", "sh", "-c", script]
        } else {
            vec!["--", "sh", "-c", script]
        };
        let Some(output) = wire(words) else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        let peer = if server { "192.0.2.1 2001:db8::1\n" } else { "192.0.2.2 2001:db8::2\n" };
        assert!(text.starts_with(peer), "{text}");
        let devices: Vec<&str> = text
            .lines()
            .filter_map(|line| Some(line.split_once(':')?.0.trim()))
            .filter(|name| !name.contains(' '))
            .collect();
        assert!(devices.contains(&"lo") && devices.contains(&"wire0"), "{devices:?}");
    }
    let here = fs::read_to_string("/proc/net/dev").expect("Linux");
    assert!(!here.contains("wire0"), "nothing is left behind: {here}");
}

/// With a seed, the same packets are lost each time, and every packet is accounted for.
#[test]
fn losses_are_counted_and_repeatable() {
    if !has("ping") {
        return;
    }
    let ping = ["ping", "-q", "-c50", "-i0.002", "-W1", "192.0.2.2"];
    let mut words = vec!["--no-offload", "--seed", "7", "--up", "netem loss 30%", "--json", "-"];
    words.push("--");
    words.extend(ping);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let Some(output) = wire(words.iter().copied()) else { return };
        let document = document(&output);
        assert_eq!((&document["schema"], &document["version"]), (&"onramp.wire".into(), &1.into()));
        assert_conserved(&document);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let received = text.split(" received").next().and_then(|text| text.rsplit(' ').next());
        seen.push(received.expect("a summary").parse::<u32>().expect("a number"));
        let lost = document["up"]["drops"]["impaired"].as_u64().expect("some were lost");
        assert!((3..30).contains(&lost), "{lost} of about 50, at 30 %");
    }
    assert!(seen.iter().all(|received| (20..48).contains(received)), "{seen:?}");
}

/// A server is ready before the client starts, TCP passes at the rate, and the rate is kept.
#[test]
fn tcp_passes_at_the_rate() {
    if !has("iperf3") {
        return;
    }
    let iperf = |qdiscs: &[&str], bytes: &str| {
        let mut words = qdiscs.to_vec();
        words.extend(["--", "iperf3", "-c", "192.0.2.2", "-n", bytes, "-J"]);
        words.extend(["--", "iperf3", "-s", "-1"]);
        let output = wire(words)?;
        let text = String::from_utf8_lossy(&output.stdout);
        // The server's text stands before and behind the client's JSON.
        let (begin, end) = (text.find("\n{\n")?, text.rfind("\n}\n")?);
        let json: Value = serde_json::from_str(&text[begin..end + 2]).expect("JSON");
        assert!(output.status.success(), "{json}");
        let rate = json["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate");
        Some(rate / 1e6)
    };
    let link = ["--qdisc", "netem delay 20ms rate 10mbit"];
    let Some(rate) = iperf(&link, "1M") else { return };
    // 1,448 of each 1,514 bytes are data. How far the rate lies below depends on the machine.
    assert!((2.0..10.0).contains(&rate), "{rate} Mbit/s");
    let link = ["--qdisc", "cake bandwidth 100mbit", "--then", "netem delay 2ms"];
    let rate = iperf(&link, "5M").expect("it went a moment ago");
    assert!((10.0..100.0).contains(&rate), "{rate} Mbit/s");
}
