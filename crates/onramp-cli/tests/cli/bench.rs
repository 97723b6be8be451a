//! Tests of `onramp bench udp`.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::{
    assert_documented_keys, assert_fails, onramp, read_json, root, run, skip, skip_kernel, stderr,
};

/// A benchmark with two threads and four methods. It lasts long enough for every thread to get a
/// processor on a busy machine.
const SHORT: &str = "bench udp --threads 2 --seconds 0.2 --rounds 1";

/// Runs the command `line` until its threads get a processor while it measures: on a busy machine,
/// all threads of a method may get none, and the command fails.
fn run_with_turns(line: &str) -> Output {
    with_turns(|| run(line))
}

fn with_turns(run: impl Fn() -> Output) -> Output {
    let has_turns = |output: &Output| {
        output.status.success() || !stderr(output).contains("its threads got no processor")
    };
    let mut runs = (0..50).map(|_| run());
    runs.find(has_turns).expect("a processor in one of fifty runs")
}

/// Runs the command `line` with the option `--json`, asserts that it succeeds, and returns the JSON
/// object that it writes.
fn results(line: &str) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("out.json");
    let output = run_with_turns(&format!("{line} --json {}", file.display()));
    assert_eq!(output.status.code(), Some(0), "{line}: {}", stderr(&output));
    // On a busy machine, a method may get no processor while it is measured. The program then
    // prints a message with the words "measure longer".
    let told = stderr(&output);
    assert!(told.lines().all(|line| line.contains("measure longer")), "{line}: {told}");
    let left: Vec<_> = fs::read_dir(folder.path()).expect("the folder").collect();
    assert_eq!(left.len(), 1, "nothing but the report is left");
    read_json(&file)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

fn sum(drops: &Value) -> u64 {
    drops.as_object().expect("reasons").values().map(count).sum()
}

#[test]
fn every_method_is_measured() {
    // On a busy machine, a method may get no processor while it is measured. Therefore the
    // benchmark runs up to five times, until every method delivers datagrams in the same run.
    let line = format!("{SHORT} --flows-per-thread 2");
    let busy = |method: &Value| number(&method["delivered_per_second"]) > 0.0;
    let mut runs = (0..5).map(|_| results(&line));
    let results =
        runs.find(|results| results["methods"].as_array().expect("methods").iter().all(busy));
    let results = results.expect("each method delivers in one of five runs");
    assert_eq!(results["schema"], "onramp.bench.udp");
    assert_eq!(results["version"], 1);
    let methods = results["methods"].as_array().expect("methods");
    let names: Vec<_> = methods.iter().map(|method| method["name"].as_str()).collect();
    assert_eq!(names, ["send", "sendmmsg", "gso", "onramp"].map(Some));
    for method in methods {
        assert!(number(&method["packets_per_second"]) > 0.0, "{method}");
        assert!(number(&method["delivered_per_second"]) > 0.0, "{method}");
        assert!(number(&method["cpu_ns_per_packet"]) > 0.0, "{method}");
        let jain = number(&method["jain"]);
        assert!((0.25..=1.0).contains(&jain), "four flows: {jain}");
        for times in [&method["send_ns"], &method["accept_ns"]] {
            let order = ["p50", "p99", "p999", "max"].map(|key| count(&times[key]));
            assert!(order.is_sorted() && order[0] > 0, "{times}");
        }
        assert_eq!(sum(&method["drops"]), 0, "loopback drops nothing: {method}");
    }
    // The program counts a datagram and the system call that sends it at slightly different
    // moments, so the number of datagrams per system call may be off a little.
    let per_call = |at: usize| number(&methods[at]["datagrams_per_system_call"]);
    assert!((0.9..1.1).contains(&per_call(0)) && per_call(1) > 28.0, "{methods:?}");
    assert!(number(&methods[2]["datagrams_per_message"]) > 28.0, "{methods:?}");
    let ratios = results["ratios_to_send"].as_object().expect("ratios");
    assert_eq!(ratios.keys().collect::<Vec<_>>(), ["sendmmsg", "gso", "onramp"]);
    assert!(number(&ratios["gso"]["delivered_per_second"]) > 0.0);
}

#[test]
fn a_method_alone_has_no_ratios_and_rounds_are_listed() {
    let results =
        results("bench udp --threads 1 --seconds 0.1 --rounds 3 --methods gso,gso --size 1000");
    let methods = results["methods"].as_array().expect("methods");
    assert_eq!(methods.len(), 1);
    assert_eq!(methods[0]["rounds"].as_array().map(Vec::len), Some(3));
    assert_eq!(results["ratios_to_send"], Value::Object(serde_json::Map::new()));
    let [min, median, max] =
        ["delivered_per_second_min", "delivered_per_second", "delivered_per_second_max"]
            .map(|key| number(&methods[0][key]));
    assert!(min <= median && median <= max);
}

/// Appends all keys of the objects in `value` to `into`, except keys that are data, such as drop
/// reasons.
fn keys(value: &Value, path: &str, into: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if !matches!(path, "drops" | "skipped" | "ratios_to_send") {
                    into.push(key.clone());
                }
                keys(value, key, into);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| keys(value, path, into)),
        _ => {}
    }
}

#[test]
fn every_key_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let document = fs::read_to_string(path).expect("docs/json.md");
    let mut found = Vec::new();
    keys(&results(SHORT), "", &mut found);
    keys(&results(&format!("{SHORT} --verify")), "", &mut found);
    assert!(found.len() > 60, "{found:?}");
    for key in found {
        let plain = key.strip_suffix("_min").or_else(|| key.strip_suffix("_max")).unwrap_or(&key);
        let told =
            document.contains(&format!("`{plain}`")) || document.contains(&format!(".{plain}`"));
        assert!(told, "docs/json.md does not tell of {key}");
    }
}

#[test]
fn every_reason_of_a_drop_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let document = fs::read_to_string(path).expect("docs/json.md");
    let (_, table) = document.split_once("## Reasons of drops").expect("the table");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let told: Vec<_> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    let known = onramp_queue::DropReason::ALL.iter().map(|reason| reason.name());
    assert_eq!(told, known.chain(["receiver_overflow", "wire_overflow"]).collect::<Vec<_>>());
}

#[test]
fn every_documented_key_is_there() {
    let results = results(&format!("{SHORT} --verify --methods send,onramp"));
    let method = &results["methods"][1];
    let objects = [
        ("## `onramp.bench.udp`, version 1", &results),
        ("### `machine`", &results["machine"]),
        ("### `parameters`", &results["parameters"]),
        ("### Each of `methods`", method),
        ("### Each of `rounds`", &method["rounds"][0]),
        ("### `verify`", &method["verify"]),
    ];
    let mut checked = 0;
    for (heading, object) in objects {
        checked += assert_documented_keys(heading, object);
    }
    assert!(checked > 50, "{checked} keys were found in the tables");

    // docs/json.md documents these keys in its text, not in a table. Each list of keys stands here
    // beside the object that has these keys.
    let ratios = &results["ratios_to_send"]["onramp"];
    let in_text = [
        (ratios, "packets_per_second delivered_per_second cpu_ns_per_packet send_p50"),
        (ratios, "machine_cpu_ns_per_packet machine_cpu_ns_per_packet_min cpu_ns_per_packet_max"),
        (&method["send_ns"], "p50 p99 p999 max samples"),
        (&method["accept_ns"], "p50 p99 p999 max samples"),
        (&method["context_switches"], "voluntary_per_second involuntary_per_second"),
        (&method["verify"]["receiver"]["flow_wire_bits_per_second"], "min median max"),
        (&method["verify"]["receiver"]["gaps"][0], "from_ns below_ns count"),
    ];
    for (object, keys) in in_text {
        for key in keys.split(' ') {
            assert!(object.get(key).is_some(), "{key} is documented but not in {object}");
        }
    }
}

#[test]
fn the_table_goes_to_standard_output_unless_json_does() {
    let output = run_with_turns(&format!("{SHORT} --methods send"));
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(table.contains("\nmethod ") && table.contains("\nsend "), "{table}");
    let output = run_with_turns(&format!("{SHORT} --methods send --json -"));
    let only: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    assert_eq!(only["schema"], "onramp.bench.udp");
    let by_name = run_with_turns(&format!("{SHORT} --methods send --json /dev/stdout"));
    let only: Value = serde_json::from_slice(&by_name.stdout).expect("JSON and nothing else");
    assert_eq!(only["schema"], "onramp.bench.udp");
    // If a user writes `>(...)` in a shell, the shell gives the program a path such as /dev/fd/3,
    // which leads to a pipe.
    let line = format!("'{}' {SHORT} --methods send --json /dev/fd/3 3>&1 >&2", onramp_path());
    let piped = Command::new("sh").args(["-c", &line]).output().expect("a shell");
    let only: Value = serde_json::from_slice(&piped.stdout).expect("JSON and nothing else");
    assert_eq!(only["schema"], "onramp.bench.udp");
}

#[test]
fn the_page_needs_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.html");
    let line = format!("{SHORT} --qdisc 'pfifo  limit 100' --html {}", file.display());
    assert_eq!(run_with_turns(&line).status.code(), Some(0));
    let page = fs::read_to_string(&file).expect("the page");
    for part in ["<!DOCTYPE html>", "<svg ", "prefers-color-scheme:dark", "onramp", "sendmmsg"] {
        assert!(page.contains(part), "{part} is missing");
    }
    for outside in ["http:", "https:", "src=", "href=", "<script", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside} is there");
    }
}

/// Runs a verified benchmark, and asserts that the program's check passed and that the report's
/// numbers of datagrams delivered and dropped add up to those submitted.
fn verified(line: &str) -> Value {
    let results = results(line);
    let method = results["methods"][0].clone();
    let verify = &method["verify"];
    assert_eq!(verify["passed"], true, "{verify}");
    let (submitted, delivered) = (count(&verify["submitted"]), count(&verify["delivered"]));
    assert!(submitted > 0);
    assert_eq!(submitted, delivered + sum(&method["drops"]), "{method}");
    method
}

#[test]
fn verified_runs_account_for_everything() {
    let method = verified("bench udp --verify --threads 8 --seconds 0.3 --flows-per-thread 2");
    assert_eq!(method["name"], "onramp");
    verified("bench udp --verify --threads 8 --seconds 0.2 --batch 32 --queues 3");
    for kernel in ["send", "sendto", "sendmmsg", "gso"] {
        let line = "bench udp --verify --threads 4 --flows-per-thread 2 --seconds 0.1 --methods";
        verified(&format!("{line} {kernel}"));
    }
}

#[test]
fn drops_of_the_qdisc_are_counted_by_reason() {
    let line = "bench udp --verify --threads 8 --seconds 0.2 --batch 32 --queues 1";
    // The senders are faster than a flow's rate, 8 Mbit/s. So the flow's queue reaches its limit of
    // five packets, however fast the device is.
    let method = verified(&format!("{line} --qdisc 'fq maxrate 8mbit flow_limit 5'"));
    assert!(count(&method["drops"]["fq_flow_limit"]) > 0, "{method}");
}

#[test]
fn receivers_may_stop_and_go_on() {
    verified("bench udp --verify --threads 4 --seconds 0.6 --stall 0.3");
}

#[test]
fn a_stall_is_seen_by_the_receiver() {
    // The receiver does not read for 0.2 s (`--stall`). Its buffer has room for only a few dozen of
    // these large datagrams, and the rest are lost. So between two datagrams that arrive there must
    // be a gap about as long as the stall. On a busy machine the buffer may fill too late, so it is
    // enough if one of five runs shows the gap and the losses.
    let stall_ns = 200_000_000;
    let line = "bench udp --verify --threads 1 --size 60000 --seconds 0.4 --stall 0.2";
    let shown = (0..5).any(|_| {
        let method = verified(line);
        let gaps = method["verify"]["receiver"]["gaps"].as_array().expect("gaps");
        // The last bucket, for gaps of many seconds, has no upper end.
        gaps.iter().any(|gap| gap["below_ns"].as_u64().is_none_or(|below| below > stall_ns))
            && count(&method["drops"]["receiver_overflow"]) > 0
    });
    assert!(shown, "no run shows a gap of the stall's length and the drops in it");
}

#[test]
fn a_paced_flow_is_never_faster_than_its_rate() {
    let method = verified("bench udp --verify --threads 1 --seconds 3 --qdisc 'fq maxrate 8mbit'");
    // The first datagram starts the time that the receiver measures, so the receiver does not count
    // its bits, and neither does this test.
    let bits = (count(&method["verify"]["delivered"]) - 1) as f64 * 162.0 * 8.0;
    let rates = &method["verify"]["receiver"]["flow_wire_bits_per_second"];
    let span = bits / number(&rates["max"]);
    assert!(span > 0.4, "there was time to exceed the rate: {method}");
    // The initial quantum of `fq`, which it sends without delay, is ten packets of the MTU, link
    // header included.
    let initial_quantum = 10.0 * 1_514.0 * 8.0;
    assert!(bits <= 8e6 * span + initial_quantum, "{bits} bits in {span} s: {method}");
    let gaps = method["verify"]["receiver"]["gaps"].as_array().expect("gaps");
    assert!(gaps.iter().any(|gap| count(&gap["from_ns"]) >= 1_000_000), "{gaps:?}");
}

#[test]
fn an_address_of_somebody_else() {
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let to = receiver.local_addr().expect("bound");
    let methods = || {
        let results = results(&format!("{SHORT} --to {to}"));
        results["methods"].as_array().expect("methods").clone()
    };
    let sends = |methods: &Vec<Value>| {
        assert!(methods.iter().all(|method| method["delivered_per_second"] == Value::Null));
        methods.iter().all(|method| number(&method["packets_per_second"]) > 0.0)
    };
    assert!((0..20).any(|_| sends(&methods())), "all methods have a turn in one of twenty runs");
    let by_name = format!("{SHORT} --methods send --to localhost:{}", to.port());
    let message = stderr(&run(&by_name));
    // If `localhost` resolves first to ::1, the program reports that nobody listens there, because
    // the receiver listens at 127.0.0.1.
    assert!(message.is_empty() || message.contains("--to [::1]:"), "{message}");
    drop(receiver);
    let refused = &["--to", "Connection refused", "start a receiver first"];
    assert_fails(&run(&format!("{SHORT} --to {to}")), 1, refused);
    let unknown = format!("{SHORT} --to host.invalid");
    assert_fails(&run(&unknown), 1, &["--to: cannot resolve", "host.invalid", "check the name"]);
}

#[test]
fn more_than_the_limits_allow() {
    let mut shell = Command::new("sh");
    let line = format!("ulimit -n 60; exec '{}' bench udp --threads 100", onramp_path());
    let output = shell.args(["-c", &line]).output().expect("a shell");
    assert_fails(&output, 1, &["open files", "hard limit is 60", "ulimit"]);
    let line = format!("ulimit -v 400000; exec '{}' bench udp --threads 3000", onramp_path());
    let output = Command::new("sh").args(["-c", &line]).output().expect("a shell");
    assert_fails(&output, 1, &["address space", "ulimit -v"]);
    let soft = format!("ulimit -S -n 60; exec '{}' {SHORT} --threads 40", onramp_path());
    let soft = soft.replace("--threads 2 ", "");
    let output = with_turns(|| Command::new("sh").args(["-c", &soft]).output().expect("a shell"));
    assert_eq!(output.status.code(), Some(0), "the soft limit is raised: {}", stderr(&output));
}

fn onramp_path() -> &'static str {
    env!("CARGO_BIN_EXE_onramp")
}

#[test]
fn a_full_disk_fails_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html");
    let both = format!("{SHORT} --methods send --json /dev/full --html {}", page.display());
    let full = run(&both);
    assert_fails(&full, 1, &["cannot write /dev/full", "No space left", "free some space"]);
    let table = String::from_utf8_lossy(&full.stdout);
    assert!(table.contains("\nmethod "), "the table is printed all the same: {table}");
    assert!(page.exists(), "the other report is written all the same");
    assert!(fs::metadata("/dev/full").is_ok_and(|m| !m.is_file()), "the device is still there");

    let full = onramp(SHORT.split(' '))
        .stdout(fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full"))
        .output()
        .expect("the program runs");
    assert_fails(&full, 1, &["cannot write to standard output", "No space left"]);

    let script = "mount -t tmpfs -o size=4k tmpfs \"$1\" && { $2 --json \"$1/out.json\"; \
                  echo code $?; ls -A \"$1\"; }";
    let folder = tempfile::tempdir().expect("a folder");
    let command = format!("{} {SHORT}", onramp_path());
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .args([folder.path().as_os_str(), command.as_ref()])
        .output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        return skip_kernel("a full tmpfs needs user namespaces");
    };
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("\nmethod ") && shown.ends_with("\ncode 1\n"), "{shown}");
    assert!(stderr(&output).contains("cannot write"), "{}", stderr(&output));
}

#[test]
fn a_reader_that_left_is_no_failure() {
    let output = with_turns(|| {
        let mut child = onramp(SHORT.split(' '))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        drop(child.stdout.take());
        child.wait_with_output().expect("the program ends")
    });
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn a_report_replaces_the_old_one_and_keeps_a_link() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, "old").expect("a file");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    let output = run_with_turns(&format!("{SHORT} --methods send --json {}", link.display()));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(fs::symlink_metadata(&link).is_ok_and(|link| link.is_symlink()));
    assert_eq!(read_json(&file)["version"], 1);
}

#[test]
fn a_wire_of_its_own() {
    if !root() {
        return skip("--sink veth needs root");
    }
    // This test counts the datagrams of the whole round. The number that arrives while a method is
    // measured would depend on how busy the machine is.
    for kind in ["send", "sendto", "sendmmsg", "gso", "onramp"] {
        let line = "bench udp --verify --threads 2 --seconds 0.1 --sink veth --methods";
        let method = verified(&format!("{line} {kind}"));
        assert!(count(&method["verify"]["delivered"]) > 0, "{method}");
    }
    let counted = run_with_turns(&format!("{SHORT} --sink veth"));
    assert_eq!(counted.status.code(), Some(0), "{}", stderr(&counted));
    let interfaces = fs::read_to_string("/proc/net/dev").expect("interfaces");
    assert!(!interfaces.contains(" near:"), "nothing is left: {interfaces}");
    assert_fails(&run(&format!("{SHORT} --sink veth --size 1473")), 1, &["--size 1473", "1472"]);
}

#[test]
fn that_nothing_was_delivered_is_told() {
    let line = "bench udp --threads 2 --seconds 0.1 --rounds 1 --methods onramp";
    for verify in ["", " --verify"] {
        let output = run_with_turns(&format!("{line}{verify} --qdisc 'pfifo limit 0'"));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(!output.stdout.is_empty(), "the table is printed all the same");
        for word in ["method onramp: nothing was delivered", "dropped as overlimit", "`limit`"] {
            assert!(message.contains(word), "{word:?} is missing: {message}");
        }
    }
}

#[test]
fn a_verified_run_compares_nothing() {
    let output = run_with_turns(&format!("{SHORT} --verify --methods send,onramp"));
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(table.contains(" read ") && table.contains("\nread: "), "{table}");
    assert!(!table.contains("delivered kpps") && !table.contains("times what"), "{table}");
    assert!(table.contains(", in order"), "{table}");
}

#[test]
fn options_of_a_link_are_refused_where_no_method_has_one() {
    for (methods, option, value) in
        [("send", "--qdisc", "pfifo"), ("send,gso", "--queues", "2"), ("sendmmsg", "--batch", "1")]
    {
        let output = run(&format!("bench udp --methods {methods} {option} {value}"));
        assert_fails(&output, 2, &[option, "belongs to a link", "add the method onramp"]);
    }
}
