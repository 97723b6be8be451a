//! Tests of `onramp wire`, with real clients and servers. If root runs the tests, the program runs
//! as an ordinary user.

#[path = "wire/asked.rs"]
mod asked;
#[path = "wire/impair.rs"]
mod impair;
#[path = "wire/rate.rs"]
mod rate;
#[path = "wire/relay.rs"]
mod relay;
#[path = "wire/running.rs"]
mod running;

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use super::{assert_fails, install, root, run, skip, stderr};

/// The name of the folder with the copy of the program, without the number of the test's process.
const COPIES: &str = "onramp-test-wire-";

/// Returns a copy of the program that every user may run.
fn program() -> &'static PathBuf {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| {
        let temporary = std::env::temp_dir();
        // A test program ends without dropping its statics, so the next one removes the copy.
        for entry in fs::read_dir(&temporary).expect("a folder").flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.strip_prefix(COPIES));
            if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let folder = temporary.join(format!("{COPIES}{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let copy = folder.join("onramp");
        // A link to the file would keep the permissions of the folders above it.
        install(Path::new(env!("CARGO_BIN_EXE_onramp")), &copy);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("it is ours");
        copy
    })
}

/// What an ordinary user finds at `/dev/net/tun`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tun {
    /// A device that every user may open, as on most machines.
    Open,
    /// A device that only root may open.
    Closed,
    /// Nothing.
    Missing,
}

/// Runs `onramp wire` with these words, as an ordinary user. Returns `None`, and prints why, if
/// this machine has no user namespaces, or a TUN that only root may open.
fn wire<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<Output> {
    wire_with(Tun::Open, words)
}

/// Does the same as [`wire`], with this `/dev/net/tun`.
fn wire_with<'a>(tun: Tun, words: impl IntoIterator<Item = &'a str>) -> Option<Output> {
    let words: Vec<&str> = words.into_iter().collect();
    let is_open = || OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok();
    if tun == Tun::Open && !root() && !is_open() {
        skip("onramp wire: this user may not open /dev/net/tun");
        return None;
    }
    let Some(mut command) = ordinary(tun, words) else {
        skip(&format!("onramp wire: only root can test a /dev/net/tun that is {tun:?}"));
        return None;
    };
    let output = command.output().expect("the program runs");
    if output.status.success() {
        return Some(output);
    }
    let mut unshare = Command::new("unshare");
    let tried = unshare.args(["--user", "--map-root-user", "--net", "true"]).output();
    let allowed = tried.is_ok_and(|output| output.status.success());
    if !allowed {
        skip(&format!("onramp wire: {}", stderr(&output)));
        return None;
    }
    Some(output)
}

/// The network in which a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Net {
    Machine,
    /// One of its own, with a loopback interface.
    Own,
}

/// Returns the command `onramp wire` with these words, run by an ordinary user. If root runs the
/// tests, the user gets a view of the file system with this `/dev/net/tun`; otherwise, it can only
/// be hidden, in a user namespace. Returns `None` if this is not possible.
fn ordinary<'a>(tun: Tun, words: impl IntoIterator<Item = &'a str>) -> Option<Command> {
    let onramp = program().to_str().expect("UTF-8");
    as_ordinary(tun, [onramp, "wire"].into_iter().chain(words), Net::Machine)
}

/// Returns this command, run by an ordinary user: see [`ordinary`].
fn as_ordinary<'a>(
    tun: Tun,
    words: impl IntoIterator<Item = &'a str>,
    net: Net,
) -> Option<Command> {
    const LO: &str = "ip link set lo up && exec \"$@\"";
    let hide = "mount -t tmpfs none /dev/net && ";
    let user = "exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";
    let mut command = Command::new("/usr/bin/env");
    command.arg("--default-signal=HUP,INT,TERM");
    let make = match tun {
        Tun::Open => "mknod -m 666 /dev/net/tun c 10 200 && ",
        Tun::Closed => "mknod -m 600 /dev/net/tun c 10 200 && ",
        Tun::Missing => "",
    };
    let is_root = root();
    if net == Net::Own {
        command.args(["unshare", if is_root { "-n" } else { "-rn" }, "sh", "-c", LO, "sh"]);
    }
    match (is_root, tun) {
        (true, _) => {
            let script = format!("{hide}{make}{user}");
            command.args(["unshare", "--mount", "sh", "-c", &script, "sh"]);
        }
        (false, Tun::Open) => {}
        (false, Tun::Closed) => return None,
        (false, Tun::Missing) => {
            let script = format!("{hide}exec \"$@\"");
            command.args(["unshare", "-r", "--mount", "sh", "-c", &script, "sh"]);
        }
    }
    command.args(words).stdin(Stdio::null()).current_dir("/");
    Some(command)
}

/// The kinds of ends, and a `/dev/net/tun` for each.
const ENDS: [(&str, Tun); 2] = [("--device=tap", Tun::Open), ("--device=packet", Tun::Missing)];

/// The addresses of the server.
const PEERS: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

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
        let known =
            number("sent") + dropped + number("refused") + number("lost") + number("queued");
        assert_eq!(number("packets"), known, "{way}");
    }
}

#[test]
fn ping_takes_both_delays() {
    if !has("ping") {
        return;
    }
    for (device, tun, peer) in
        ENDS.iter().flat_map(|&(device, tun)| PEERS.map(|peer| (device, tun, peer)))
    {
        let words =
            [device, "--qdisc", "netem delay 20ms", "--", "ping", "-c3", "-w60", "-i0.2", peer];
        let Some(output) = wire_with(tun, words) else { return };
        // With -w, success means that three answers have come.
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).starts_with("onramp: up: "), "{}", stderr(&output));
        let text = String::from_utf8_lossy(&output.stdout);
        let (_, times) = text.split_once("rtt min/avg/max/mdev = ").expect("a summary");
        let least: f64 = times.split('/').next().expect("a number").parse().expect("a number");
        // The longest time depends on the machine; the shortest cannot be less than the delays.
        assert!(least >= 40.0, "{text}");
    }
}

#[test]
fn the_exit_code_is_the_clients() {
    let clients = [
        ("true", 0),
        ("exit 7", 7),
        ("kill -9 $$", 137),
        // Signals are not blocked in the client.
        ("kill -INT $$; exit 3", 130),
        ("kill -TERM $$; exit 3", 143),
    ];
    for (client, code) in clients {
        let Some(output) = wire(["--", "sh", "-c", client]) else { return };
        assert_eq!(output.status.code(), Some(code), "{client}: {}", stderr(&output));
        assert!(stderr(&output).starts_with("onramp: up: "), "{}", stderr(&output));
    }
    let Some(output) = wire(["--quiet", "--", "sh", "-c", "exit 3"]) else { return };
    assert_eq!((output.status.code(), &*stderr(&output)), (Some(3), ""));
    let Some(output) = wire(["--", "/no/such/program"]) else { return };
    assert_fails(&output, 127, &["the client", "/no/such/program", "No such file"]);
    let Some(output) = wire(["--", "true", "--", "/no/such/server"]) else { return };
    assert_fails(&output, 127, &["the server", "/no/such/server", "No such file"]);
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
    let unused = "wire --qdisc fq --up fq --down fq -- true";
    assert_fails(&run(unused), 2, &["--qdisc has no effect"]);
    assert_fails(&run("wire --device tun -- true"), 2, &["--device", "tun", "tap, packet"]);
    assert_fails(&run("wire --mtu 100 -- true"), 2, &["--mtu", "1280 to 65521"]);
    assert_fails(&run("wire --setup /no/such/file -- true"), 1, &["/no/such/file"]);
    assert_fails(&run("wire --setup x --qdisc fq -- true"), 2, &["--setup", "--qdisc"]);
    assert_fails(&run("wire --trace /no/such/file -- true"), 1, &["/no/such/file", "steps"]);
    assert_fails(&run("wire --trace a --trace-up b -- true"), 2, &["--trace", "--trace-up"]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace").display().to_string();
    for (options, text, why) in [
        ("--trace", "0 rate 1mbit\n2 rate 1\n", "line 2: rate 1: "),
        ("--trace", "# none\n", "line 1: the trace is empty"),
        ("--trace-up", "1\n2\n0\n", "line 3: 0 ms comes after 2 ms"),
        ("--trace-down", "0 up link down", "line 1: `up`: the trace is for the other direction"),
    ] {
        fs::write(&file, text).expect("it is ours");
        assert_fails(&run(&format!("wire {options} {file} -- true")), 1, &[&file, why]);
    }
    fs::write(&file, "0 rate 1mbit\n0 delay 5ms").expect("it is ours");
    let tree = folder.path().join("tree").display().to_string();
    let lines = "qdisc add dev d root handle 1: htb default 1\n\
                 class add dev d parent 1: classid 1:1 htb rate 1mbit\n";
    fs::write(&tree, lines).expect("it is ours");
    let line = format!("wire --setup {tree} --trace {file} -- true");
    assert_fails(&run(&line), 1, &[&file, "line 1: rate 1mbit: the tree has no tbf"]);
    assert_fails(&run("wire --set 'rate 1' -- true"), 2, &["--set: rate 1", "unit"]);
    assert_fails(&run("wire set"), 2, &["what changes"]);
    assert_fails(&run("wire set rate 1"), 2, &["set: rate 1", "unit"]);
    assert_fails(&run("wire set --qdisc fifo"), 2, &["--qdisc: ", "fifo"]);
    assert_fails(&run("wire set --wire /no/such link up"), 1, &["no wire runs at /no/such"]);
    assert_fails(&run("wire --qdisc fq set link up"), 2, &["'set' found; try"]);
    assert_fails(&run("wire -- true --"), 2, &["the server's command is missing"]);
    assert_fails(&run("wire -- -- true"), 2, &["the client's command is missing"]);
}

/// What fails beside the client is told, and decides the exit code only if the client succeeded.
#[test]
fn the_clients_failure_decides_the_exit_code() {
    for options in [["--pcap", "/dev/full"], ["--json", "/dev/full"]] {
        for (client, code) in [("exit 0", 1), ("exit 5", 5), ("kill -9 $$", 137)] {
            let client = ["--quiet", "--", "sh", "-c", client];
            let Some(output) = wire(options.into_iter().chain(client)) else { return };
            assert_fails(&output, code, &["/dev/full", "space"]);
        }
    }
}

/// The two ends know each other's addresses, and are in two networks that are not the machine's.
#[test]
fn each_end_has_a_network_of_its_own() {
    for (device, tun) in ENDS {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
        let file = folder.path().join("server").display().to_string();
        let script =
            "readlink /proc/self/ns/net; echo $ONRAMP_PEER $ONRAMP_PEER6; cat /proc/net/dev";
        // The client starts when the server has ended.
        let server = format!("({script}) > {file}");
        let words = [device, "--", "sh", "-c", script, "--", "sh", "-c", &server];
        let Some(output) = wire_with(tun, words) else { return };
        let here = fs::read_link("/proc/self/ns/net").expect("Linux").display().to_string();
        let mut spaces = vec![here];
        let texts = [
            (String::from_utf8_lossy(&output.stdout).into_owned(), "192.0.2.2 2001:db8::2"),
            (fs::read_to_string(file).expect("the server has written"), "192.0.2.1 2001:db8::1"),
        ];
        for (text, peer) in texts {
            let mut lines = text.lines();
            let space = lines.next().expect("a link").to_owned();
            assert!(!spaces.contains(&space), "{space} in {spaces:?}");
            spaces.push(space);
            assert_eq!(lines.next(), Some(peer));
            assert!(text.contains("wire0:") && text.contains("lo:"), "{text}");
            assert!(!text.contains("client:") && !text.contains("server:"), "{text}");
        }
        let here = fs::read_to_string("/proc/net/dev").expect("Linux");
        assert!(!here.contains("wire0"), "nothing is left behind: {here}");
    }
}

/// Where `/dev/net/tun` is closed, the ends are veth pairs, which is told once; a TAP that is asked
/// for is an error.
#[test]
fn a_closed_tun_has_a_substitute() {
    for (tun, why) in [
        (Tun::Missing, "cannot open /dev/net/tun: No such file or directory"),
        (Tun::Closed, "cannot open /dev/net/tun: Permission denied"),
    ] {
        let told = "; the ends are veth pairs with packet sockets instead of TAPs\nonramp: up: ";
        let client = ["--", "sh", "-c", "read _ < /proc/net/dev; exit 3"];
        let Some(output) = wire_with(tun, client) else { continue };
        let said = stderr(&output);
        assert!(said.starts_with(&format!("onramp: {why}")) && said.contains(told), "{said}");
        assert_eq!(output.status.code(), Some(3));
        let Some(output) = wire_with(tun, ["--quiet"].into_iter().chain(client)) else { return };
        assert_eq!((output.status.code(), &*stderr(&output)), (Some(3), ""));
        let asked = ["--device", "tap"].into_iter().chain(client);
        let Some(output) = wire_with(tun, asked) else { return };
        assert_fails(&output, 1, &["cannot make the network interface", "/dev/net/tun"]);
    }
    // Nothing is told where the user has asked for it, or where it is not needed.
    let asked = ["--device", "packet", "--", "true"];
    for (tun, words) in [(Tun::Missing, &asked[..]), (Tun::Open, &asked), (Tun::Open, &asked[2..])]
    {
        let Some(output) = wire_with(tun, words.iter().copied()) else { return };
        assert!(stderr(&output).starts_with("onramp: up: "), "{}", stderr(&output));
    }
}

/// What ends `onramp` or its client also ends the server and the programs that it has started.
#[test]
fn the_server_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let file = folder.path().join("pids");
    // Standard error, which is a pipe here, ends only when all programs that hold it have ended.
    let group = format!("sleep 1000 & echo $$ > {}; wait", file.display());
    let alone = format!("echo $$ > {}; exec sleep 1000", file.display());
    let client = format!("while ! test -s {}; do sleep 0.01; done", file.display());
    for (server, end, code) in [(&group, "exit 4", 4), (&alone, "kill -9 $PPID", 137)] {
        drop(fs::remove_file(&file));
        let client = format!("{client}; {end}");
        let words = ["--quiet", "--", "sh", "-c", &client, "--", "sh", "-c", server];
        let Some(output) = wire(words) else { return };
        // If the client kills `onramp`, a signal has ended `onramp`.
        let status = output.status.code().unwrap_or(137);
        assert_eq!(status, code, "{end}: {}", stderr(&output));
        let pid = fs::read_to_string(&file).expect("the server has begun");
        // If `onramp` was killed, the machine's first process may not have asked yet how the server
        // ended.
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{end}: {stat}");
    }
    let words = ["--", "/no/such/program", "--", "sleep", "1000"];
    let Some(output) = wire(words) else { return };
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).contains("the client: cannot run /no/such/program"));
}

/// As in a shell, and as `onramp exec` does.
#[test]
fn a_program_that_cannot_be_run_has_an_exit_code_of_its_own() {
    for (program, code) in [("/no/such/program", 127), ("/etc/passwd", 126)] {
        let relay = ["--relay", "127.0.0.1:0=127.0.0.1:9", "--", program];
        let cases = [vec!["--", program], vec!["--", "true", "--", program], relay.to_vec()];
        for words in cases {
            let Some(output) = wire(words.iter().copied()) else { return };
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
            assert!(said.contains(&format!("cannot run {program}: ")), "{words:?}: {said}");
        }
    }
}

/// A server that does not begin is reported.
#[test]
fn a_server_that_fails_is_reported() {
    let Some(output) = wire(["--quiet", "--", "true", "--", "sh", "-c", "exit 6"]) else { return };
    let said = stderr(&output);
    assert!(said.contains("the server ended with exit code 6 before the client"), "{said}");
}

/// Losses are those of single packets, and every packet is accounted for.
#[test]
fn losses_are_counted() {
    if !has("ping") {
        return;
    }
    for (device, tun) in ENDS {
        let options =
            [device, "--no-offload", "--seed", "7", "--up", "netem loss 30%", "--json", "-"];
        // An answer to the last ping means that all before it have passed.
        let pings = "ping -q -i0.002 -c100 -W1 192.0.2.2; ping -q -c1 -w60 192.0.2.2";
        let client = ["--", "sh", "-c", pings];
        let Some(output) = wire_with(tun, options.into_iter().chain(client)) else { return };
        let document = document(&output);
        let head = (&document["schema"], &document["version"]);
        assert_eq!(head, (&"onramp.wire".into(), &1.into()));
        assert_conserved(&document);
        assert_eq!(document["up"]["missed"], 0);
        let lost = document["up"]["drops"]["impaired"].as_u64().expect("some were lost");
        assert!((10..60).contains(&lost), "{lost} of about 100, at 30 %");
    }
}

/// Writes a file that every user may read.
fn shared(folder: &tempfile::TempDir, name: &str, text: &str) -> String {
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = folder.path().join(name);
    fs::write(&path, text).expect("it is ours");
    path.display().to_string()
}

#[test]
fn profiles_are_listed_by_a_command_and_an_option() {
    let [one, other] = ["wire profiles", "wire --profiles"].map(run);
    assert!(one.status.success() && one.stdout == other.stdout, "{}", stderr(&one));
    assert!(String::from_utf8_lossy(&one.stdout).contains("\n3g-chrome "));
}

/// A step that the tree cannot make after `--set` is an error before the client starts.
#[test]
fn a_trace_is_checked_after_the_changes_of_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = shared(&folder, "steps", "0.5 rate 5mbit\n");
    let tbf = "qdisc tbf rate 1mbit burst 5kb peakrate 2mbit mtu 1514 latency 50ms";
    let refused = run(&format!("wire --trace {trace} --set '{tbf}' -- echo started"));
    assert_fails(&refused, 1, &["steps: line 1: ", "peakrate"]);
    assert!(refused.stdout.is_empty());
}
