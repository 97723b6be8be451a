//! Gives the same commands to iproute2's `ip`, on veth devices in a network namespace of the
//! kernel, and to a host, and compares the results.

use std::io::Write;
use std::process::{Command, Output};
use std::time::Duration;

use onramp::Clock as _;
use onramp::dev::MonotonicClock;

use super::*;

/// Longest wait for the kernel, which shows the change of a carrier some time after the command.
const PATIENCE: Duration = Duration::from_secs(120);

/// A network namespace of the kernel. Dropping the value deletes the namespace.
struct Namespace(String);

impl Namespace {
    fn new() -> Result<Self, String> {
        let space = Self(format!("onramp-ip-{}", std::process::id()));
        let made = Command::new("ip").args(["netns", "add", &space.0]).output();
        let made = made.map_err(|error| format!("no program `ip`: {error}"))?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).trim().to_owned());
        }
        // Disable IPv6, so that the kernel sends no packets on its own.
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            let quiet = format!("test ! -e {path} || echo 1 > {path}");
            let mut command = Command::new("ip");
            drop(command.args(["netns", "exec", &space.0, "sh", "-c", &quiet]).output());
        }
        Ok(space)
    }

    fn ip(&self, words: &str) -> Output {
        let mut command = Command::new("ip");
        command.args(["-n", &self.0]).args(words.split(' ').filter(|word| !word.is_empty()));
        command.output().expect("ip runs")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(Command::new("ip").args(["netns", "del", &self.0]).output());
    }
}

/// Commands of `ip` that the kernel and the host carry out. After each of them, the outputs of all
/// listings are compared.
const LINES: &[&str] = &[
    "link add v0 type veth peer name v1",
    "link set dev v0 up",
    "link set v1 up",
    "link set v1 down",
    "l s v1 up",
    "link set v0 mtu 1400 txqueuelen 17",
    "link set v0 mtu 0x500 qlen 0",
    "link set v0 txqlen -1",
    "link set v0 down",
    "link set v1 down",
    "link set v0 name w0",
    "link set w0 address 02:00:00:00:00:01",
    "link add dev a0 mtu 900 txqueuelen 5 address 2:0:0:0:0:7 up type veth peer name b0 mtu 901",
    "link add c0 type veth peer d0",
    "link add type veth",
    "link add v0 type veth peer type veth",
    "link add a0 type veth peer name e0",
    "link add e0 type veth peer name a0",
    "link add e0 type veth peer name e0",
    "link add e0 type nothing",
    "link add e0 mtu 5 type veth",
    "link add e0 numtxqueues 0 type veth",
    "link add e0 numtxqueues x type veth",
    "link add e0",
    "link add",
    "link add e0 type",
    "link add e/f type veth",
    "link add e0 name f0 type veth",
    "link add e0 name f0 name g0 type veth",
    "link set a0 mtu 5",
    "link set a0 mtu -5",
    "link set a0 mtu 70000",
    "link set a0 mtu many",
    "link set a0 mtu",
    "link set a0 mtu 1e3",
    "link set a0 txqueuelen many",
    "link set a0 name b0",
    "link set a0 name b/c",
    "link set a0 name abcdefghijklmnopqrs",
    "link set a0 speed",
    "link set a0",
    "link set",
    "link set up",
    "link set nothing up",
    "link del nothing",
    "link del",
    "link del a0 b0",
    "link show nothing",
    "link show a0 b0",
    "link show dev",
    "link show type",
    "link show type veth",
    "link show type nothing",
    "-j link show type nothing",
    "link show up dev a0",
    "link show group default dev a0",
    "link frobnicate",
    "frobnicate",
    "-x link",
    "link set a0 up down up",
    "link set a0 down",
    "link del dev c0",
    "link delete b0",
    "link d0 veth0",
];

const LISTINGS: &[&str] = &[
    "link",
    "link show up",
    "-br link",
    "-o link show",
    "-j link",
    "-p -j link show up",
    "-j -br link",
    "-s link",
    "-s -j link",
    "-s -o link",
];

/// Replaces the hardware addresses in an output that the kernel or the host chose at random.
fn plain(text: &str) -> String {
    let is_address = |word: &str| {
        let word = word.trim_matches(|c| c == '"' || c == ',');
        word.len() == 17
            && word.split(':').count() == 6
            && !word.starts_with("ff:")
            && !word.starts_with("02:00:00:00:00:")
            && !word.starts_with("00:00:")
    };
    let cuts = |c: char| matches!(c, ' ' | '"' | '\n' | ',' | '{' | '}' | '\\');
    text.split_inclusive(cuts)
        .map(|word| {
            let bare = word.trim_end_matches(cuts);
            if is_address(bare) { word.replace(bare, "ADDRESS") } else { word.to_owned() }
        })
        .collect()
}

fn says(code: i32, out: &str, err: &str) -> String {
    let err = match code {
        // Compare only the kernel's words, without the explanation that this library adds.
        2 => err.lines().next().unwrap_or_default(),
        _ if err.starts_with("Usage") => "Usage",
        _ => err,
    };
    format!("{code}\n{}{err}", plain(out))
}

/// Gives a command to the kernel and to the host. Returns both exit statuses and outputs if they
/// differ.
fn differs(space: &Namespace, host: &mut Host, words: &str) -> Option<String> {
    let theirs = space.ip(words);
    let ours = exec(host, &format!("ip {words}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = theirs.status.code().expect("no signal ended it");
    let theirs = says(code, &text(&theirs.stdout), &text(&theirs.stderr));
    let ours = says(ours.code.into(), &ours.out, &ours.err);
    let differ = || format!("ip {words}\n--- the kernel's\n{theirs}\n--- ours\n{ours}\n");
    (theirs != ours).then(differ)
}

#[test]
fn the_kernel_and_a_host_say_the_same_of_links() {
    let space = match Namespace::new() {
        Ok(space) => space,
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "CI has all that it needs: {why}");
            // Write to stderr directly, because the test harness hides what passing tests print.
            let mut stderr = std::io::stderr();
            return writeln!(stderr, "SKIP: ip beside the kernel's: {why}").expect("it is open");
        }
    };
    // The kernel's namespace already has a loopback device, so give the host one, too.
    let mut host = host(&["ip link add lo type loopback"]);
    let mut wrong = Vec::new();
    for line in LINES {
        wrong.extend(differs(&space, &mut host, line));
        for listing in LISTINGS {
            let deadline = MonotonicClock.now() + PATIENCE;
            let mut difference = differs(&space, &mut host, listing);
            while difference.is_some() && wrong.is_empty() && MonotonicClock.now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
                difference = differs(&space, &mut host, listing);
            }
            wrong.extend(difference.map(|difference| format!("behind {line}:\n{difference}")));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
