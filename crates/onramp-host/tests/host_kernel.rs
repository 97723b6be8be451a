//! Gives the same `tc` commands to the real `tc`, on a device of the kernel, and to a host with a
//! device of its own. After each command, both must have the same exit status, print the same text,
//! and list the same tree.
//!
//! Needs root, `ip` and `tc` (`apt-get install iproute2`), and a kernel with `htb` and `tbf`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use onramp_host::Host;

/// The `tc` commands by which the test compares the kernel's tree with the host's after each
/// command.
const LISTINGS: &[&str] = &[
    "qdisc show dev v0",
    "-d qdisc show dev v0",
    "-j qdisc show dev v0",
    "-s qdisc show dev v0",
    "class show dev v0",
    "-d class show dev v0",
    "-s class show dev v0",
];

/// A network namespace of the kernel with a pair of devices. Dropping the value deletes the
/// namespace.
struct Namespace(String);

impl Namespace {
    fn new() -> Result<Self, String> {
        let space = Self(format!("onramp-tc-{}", std::process::id()));
        let name = space.0.as_str();
        space.run("ip", &["netns", "add", name])?;
        let link = ["-n", name, "link"];
        let ip = |words: &[&str]| space.run("ip", &[&link[..], words].concat());
        // Disable IPv6, so that the kernel sends no packets on its own.
        for quiet in ["all", "default"] {
            let file = format!("/proc/sys/net/ipv6/conf/{quiet}/disable_ipv6");
            let script = format!("test ! -e {file} || echo 1 > {file}");
            space.run("ip", &["netns", "exec", name, "sh", "-c", &script])?;
        }
        ip(&["add", "v0", "numtxqueues", "1", "type", "veth", "peer", "name", "v1"])?;
        ip(&["set", "v0", "up"])?;
        ip(&["set", "v1", "up"])?;
        for kind in ["htb", "tbf rate 1mbit burst 3kb limit 9kb"] {
            let words = format!("qdisc add dev v0 root {kind}");
            let done = space.tc(&words);
            if !done.status.success() {
                return Err(format!("no {kind}: {}", String::from_utf8_lossy(&done.stderr)));
            }
            space.tc("qdisc del dev v0 root");
        }
        Ok(space)
    }

    fn run(&self, program: &str, words: &[&str]) -> Result<(), String> {
        let done = Command::new(program)
            .args(words)
            .output()
            .map_err(|error| format!("{program}: {error}"))?;
        if done.status.success() {
            return Ok(());
        }
        Err(format!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&done.stderr)))
    }

    fn tc(&self, words: &str) -> Output {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, "tc"]).args(words.split_whitespace());
        command.output().expect("ip is there")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// Replaces by `OWN:` each handle in `text` that the kernel or the host chose (8000: to fffe:). The
/// kernel takes these handles from one counter for all devices, so they differ from run to run.
fn without_own_handles(text: &str) -> String {
    let own = |word: &str| {
        let digits = word.strip_suffix(':').filter(|digits| digits.len() == 4);
        let number = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        number.is_some_and(|number| (0x8000..0xffff).contains(&number))
    };
    let words = text.split_inclusive([' ', '"']).map(|word| {
        let name = word.trim_end_matches([' ', '"']);
        if own(name) { word.replace(name, "OWN:") } else { word.to_owned() }
    });
    words.collect()
}

/// Returns the `tc` commands of the test, in groups. Each group begins when the device has only its
/// default qdisc.
fn turns() -> Vec<Vec<String>> {
    let mut turns: Vec<Vec<String>> = Vec::new();
    let mut turn = |lines: Vec<String>| turns.push(lines);
    let rates = ["1mbit", "20kbit", "1234567bit", "100mbps", "2gbit", "64kbps", "1.5mbit", "8000"];
    let bursts = ["1500", "3kb", "15k", "1mb", "1600b/8", "5000"];
    turn(fifos());
    turn(mistakes());
    turn(handles());
    turn(tbfs(&rates, &bursts));
    turn(classes(&rates, &bursts));
    turn(trees());
    turns
}

fn root(options: &str) -> String {
    format!("qdisc replace dev v0 root handle 1: {options}")
}

fn fifos() -> Vec<String> {
    let mut lines = Vec::new();
    for kind in ["pfifo", "bfifo", "pfifo_head_drop"] {
        lines.push(format!("qdisc add dev v0 root handle 1: {kind}"));
        for limit in ["0", "1", "1000", "3000b", "1k", "0x10", "many", "-1", ""] {
            lines.push(root(&format!("{kind} limit {limit}")));
        }
        lines.push(root(&format!("{kind} foo")));
        lines.push("qdisc del dev v0 root".into());
    }
    lines.extend(["pfifo_fast", "pfifo_fast bands 3"].map(root));
    lines.push("qdisc del dev v0 root".into());
    lines
}

fn mistakes() -> Vec<String> {
    [
        "qdisc add dev v0 pfifo",
        "qdisc add dev v0 root",
        "qdisc add dev v0 root nix",
        "qdisc add dev v0 root nix foo",
        "qdisc add dev v0 root pfifo limit",
        "qdisc add dev nix root pfifo",
        "qdisc add dev v0 handle 1: handle 2: root pfifo",
        "qdisc add dev v0 root parent 1:1 pfifo",
        "qdisc add dev v0 parent 1:1 root pfifo",
        "qdisc add dev v0 root handle 10000: pfifo",
        "qdisc add dev v0 root handle 123^ pfifo",
        "qdisc add dev v0 parent zz pfifo",
        "qdisc add dev v0 parent 5:1 pfifo",
        "qdisc change dev v0 root pfifo",
        "qdisc link dev v0 root handle 7:",
        "qdisc best dev v0",
        "best",
        "-x qdisc show",
        "qdisc show dev",
        "qdisc show dev nix",
        "qdisc show foo",
        "qdisc del dev v0",
        "qdisc del dev v0 root",
        "qdisc del dev v0 root handle 5:",
        "qdisc del dev v0 handle 7:",
        "qdisc del dev v0 parent 5:1",
        "qdisc del dev v0 ingress",
        "qdisc add dev v0 ingress",
        "qdisc add dev v0 ingress",
        "qdisc add dev v0 clsact",
        "qdisc show dev v0 ingress",
        "qdisc del dev v0 parent ffff:fff1",
        "class add dev v0 parent 1: classid 1:1 htb rate 1mbit",
        "class add dev v0 parent 1: classid zz htb rate 1mbit",
        "class add dev v0 parent 1: classid 1:1 pfifo limit 5",
        "class add dev v0 parent 1: classid 1:1 htb",
        "class show dev nix",
        "class show dev v0 foo",
        "class best",
        "filter best",
        "q sh dev v0",
    ]
    .map(str::to_owned)
    .into()
}

fn handles() -> Vec<String> {
    [
        "qdisc add dev v0 root pfifo",
        "qdisc add dev v0 root handle 2: pfifo",
        "qdisc replace dev v0 root handle 2: pfifo limit 7",
        "qdisc add dev v0 root handle 2: pfifo",
        "qdisc replace dev v0 root handle 2: bfifo",
        "qdisc change dev v0 root handle 3: pfifo",
        "qdisc change dev v0 root pfifo limit 9",
        "qdisc change dev v0 root bfifo",
        "qdisc replace dev v0 root handle 3: pfifo limit 9",
        "qdisc del dev v0 root handle 5:",
        "qdisc del dev v0 root bfifo",
        "qdisc del dev v0 root nix",
        "qdisc del dev v0 handle 3:",
        "qdisc add dev v0 parent 3:1 pfifo",
        "qdisc replace dev v0 root handle ffff: pfifo",
        "qdisc change dev v0 handle ffff: pfifo limit 3",
        "qdisc show dev v0 handle ffff:",
        "qdisc show dev v0 handle 5:",
        "qdisc show dev v0 root",
        "qdisc show dev v0 parent 1:1",
        "qdisc del dev v0 root",
    ]
    .map(str::to_owned)
    .into()
}

fn tbfs(rates: &[&str], bursts: &[&str]) -> Vec<String> {
    let mut lines: Vec<String> = [
        "qdisc add dev v0 root handle 1: tbf",
        "qdisc add dev v0 root handle 1: tbf rate 1mbit",
        "qdisc add dev v0 root handle 1: tbf rate 1mbit burst 3k",
        "qdisc add dev v0 root handle 1: tbf rate 1mbit burst 3k limit 9k latency 1ms",
        "qdisc add dev v0 root handle 1: tbf rate 1mbit burst 3k limit 9k foo",
        "qdisc add dev v0 root handle 1: tbf rate 1mbit burst 3k limit 9k",
    ]
    .map(str::to_owned)
    .into();
    lines.extend(rates.iter().map(|rate| root(&format!("tbf rate {rate} burst 5k limit 9k"))));
    lines
        .extend(bursts.iter().map(|burst| root(&format!("tbf rate 1mbit burst {burst} limit 9k"))));
    for more in [
        "latency 50ms",
        "latency 100us",
        "limit 9k mtu 2000",
        "limit 9k overhead 30",
        "limit 9k linklayer atm",
        "limit 9k mpu 64",
        "limit 9k peakrate 2mbit mtu 1600",
        "limit 9k peakrate 2mbit minburst 1600",
        "limit 9k peakrate 2mbit",
        "latency 50ms peakrate 2mbit mtu 1600",
    ] {
        lines.push(root(&format!("tbf rate 1mbit burst 5k {more}")));
    }
    lines.push("qdisc add dev v0 parent 1:1 handle 2: pfifo".into());
    lines.push("qdisc add dev v0 parent 1:7 handle 3: pfifo".into());
    lines.push("qdisc del dev v0 root".into());
    lines
}

fn classes(rates: &[&str], bursts: &[&str]) -> Vec<String> {
    let mut lines = vec!["qdisc add dev v0 root handle 1: htb".to_owned()];
    let class = |options: &str| format!("class replace dev v0 parent 1: classid 1:1 htb {options}");
    lines.extend(rates.iter().map(|rate| class(&format!("rate {rate}"))));
    lines.extend(rates.iter().map(|ceil| class(&format!("rate 20kbit ceil {ceil}"))));
    lines.extend(bursts.iter().map(|burst| class(&format!("rate 1mbit burst {burst}"))));
    lines.extend(bursts.iter().map(|burst| class(&format!("rate 1mbit cburst {burst}"))));
    for more in [
        "prio 3",
        "prio 9",
        "quantum 3000",
        "quantum 20",
        "mtu 3000",
        "mpu 64",
        "overhead 20",
        "linklayer atm",
        "linklayer ethernet",
        "foo",
    ] {
        lines.push(class(&format!("rate 1mbit {more}")));
    }
    lines.push(class(""));
    for options in ["default 10", "r2q 5", "default 0x20 r2q 7", "direct_qlen 5", "foo"] {
        lines.push("qdisc del dev v0 root".into());
        lines.push(format!("qdisc add dev v0 root handle 1: htb {options}"));
    }
    lines.push("qdisc del dev v0 root".into());
    lines
}

fn trees() -> Vec<String> {
    let mut lines: Vec<String> = vec!["qdisc add dev v0 root handle 1: htb default 20".into()];
    let add = |parent: &str, minor: &str| {
        format!("class add dev v0 parent 1:{parent} classid 1:{minor} htb rate 1mbit ceil 2mbit")
    };
    lines.push(add("", "1"));
    for minor in ["10", "20", "30", "2", "3", "4", "5", "100", "345", "1000"] {
        lines.push(add("1", minor));
    }
    for minor in ["10", "20", "30", "2"] {
        lines.push(format!("qdisc add dev v0 parent 1:{minor} handle {minor}0: pfifo limit 5"));
    }
    lines.extend(
        [
            "class add dev v0 parent 1: classid 1:10 htb rate 1mbit",
            "class add dev v0 parent 1:77 classid 1:6 htb rate 1mbit",
            "class add dev v0 parent 2: classid 2:1 htb rate 1mbit",
            "class add dev v0 parent 1: classid 2:2 htb rate 1mbit",
            "class add dev v0 parent 1: classid 1:10",
            "class add dev v0 classid 1:7 htb rate 1mbit",
            "class add dev v0 root classid 1:8 htb rate 1mbit",
            "class add dev v0 parent 1: htb rate 1mbit",
            "class add dev v0 parent 1: classid ffff:ffff htb rate 1mbit",
            "class change dev v0 classid 1:77 htb rate 1mbit",
            "class del dev v0 classid 1:1",
            "class del dev v0 classid 1:77",
            "class del dev v0 classid 3:1",
            "class show dev v0 parent 1:1",
            "class show dev v0 classid 1:10",
            "class show dev v0 root",
            "qdisc show dev v0 parent 1:10",
            "qdisc show dev v0 handle 100:",
            "qdisc add dev v0 parent 1:1 handle 7: pfifo",
            "qdisc add dev v0 parent 1:99 handle 7: pfifo",
            "qdisc add dev v0 parent 100:1 handle 7: pfifo",
            "qdisc add dev v0 parent 5:1 handle 7: pfifo",
            "qdisc add dev v0 parent 1:10 handle 1: pfifo",
            "qdisc replace dev v0 parent 1:10 handle 1: htb",
            "qdisc replace dev v0 parent 1:10 handle 200: pfifo",
            "qdisc replace dev v0 parent 1:10 handle 300: pfifo limit 6",
            "qdisc replace dev v0 parent 1:3 handle 31: htb",
            "class add dev v0 parent 31: classid 31:1 htb rate 1mbit",
            "qdisc add dev v0 parent 31:1 handle 32: tbf rate 1mbit burst 3k limit 9k",
            "qdisc add dev v0 parent 32: handle 33: bfifo",
            "class del dev v0 classid 1:3",
            "qdisc del dev v0 parent 1:10",
            "qdisc del dev v0 parent 1:10",
            "qdisc del dev v0 parent 1:20 handle 9:",
            "class del dev v0 classid 1:20",
            "qdisc del dev v0 parent 1:20",
            "qdisc del dev v0 root",
        ]
        .map(str::to_owned),
    );
    lines
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Gives a command to the real `tc` and to the host. Returns both exit statuses and outputs if they
/// differ.
fn differs(space: &Namespace, host: &mut Host, words: &str) -> Option<String> {
    let theirs = space.tc(words);
    let line = format!("tc {words}");
    let ours = host.exec(&line.split_whitespace().collect::<Vec<_>>(), Path::new("/"));
    let out = without_own_handles(&String::from_utf8_lossy(&theirs.stdout));
    let err = String::from_utf8_lossy(&theirs.stderr);
    let code = theirs.status.code().expect("no signal ended it");
    let says = |code: i32, out: &str, err: &str| {
        let err = if code == 2 { first_line(err) } else { "" };
        format!("{code}\n{out}{err}")
    };
    let theirs = says(code, &out, &err);
    let ours = says(ours.code.into(), &without_own_handles(&ours.out), &ours.err);
    (theirs != ours).then(|| format!("tc {words}\n--- the kernel's\n{theirs}\n--- ours\n{ours}\n"))
}

#[test]
fn the_kernel_and_a_host_say_the_same() {
    let space = match Namespace::new() {
        Ok(space) => space,
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "CI has all that it needs: {why}");
            // Write to stderr directly, because the test harness hides what passing tests print.
            let mut stderr = std::io::stderr();
            return writeln!(stderr, "SKIP: tc beside the kernel's: {why}").expect("it is open");
        }
    };
    let mut host = Host::new();
    for line in ["ip link add v0 type veth peer name v1", "ip link set v0 up", "ip link set v1 up"]
    {
        let reply = host.exec(&line.split(' ').collect::<Vec<_>>(), Path::new("/"));
        assert_eq!(reply.code, 0, "{line}: {}", reply.err);
    }
    let (mut lines, mut wrong) = (0, Vec::new());
    for line in turns().concat() {
        lines += 1;
        wrong.extend(differs(&space, &mut host, &line));
        for listing in LISTINGS {
            let differs = differs(&space, &mut host, listing);
            wrong.extend(differs.map(|what| format!("after {line}\n{what}")));
        }
    }
    assert!(lines >= 200, "{lines} lines");
    assert!(wrong.is_empty(), "{} of {lines} lines:\n{}", wrong.len(), wrong.join("\n"));
}
