//! Detours of a host, in a network namespace. Only root outside of user namespaces may lay them.

use std::env;
use std::io::Write as _;
use std::process::{Command, ExitStatus};

use super::*;

/// Environment variable that is set in the process inside the namespace.
const INSIDE: &str = "ONRAMP_TEST_NAMESPACE";

/// Runs a program, and returns whether it succeeded.
fn run(line: &str) -> bool {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("a command has a name"));
    command.args(words).status().as_ref().is_ok_and(ExitStatus::success)
}

/// Returns whether the test called `name` runs in a network namespace with the interfaces `k0`
/// to `k3`. If not, runs it again in one, or reports that it cannot.
fn is_inside(name: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return ["k0 type veth peer name k1", "k2 type veth peer name k3"]
            .iter()
            .all(|pair| run(&format!("ip link add {pair}")));
    }
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_root =
        rustix::process::geteuid().is_root() && map.split_whitespace().nth(2) == Some("4294967295");
    if !is_root || !run("unshare -n true") {
        // The test harness hides what passing tests print.
        let mut stderr = std::io::stderr();
        writeln!(stderr, "SKIP: {name}: the test needs root").expect("it is open");
        return false;
    }
    let mut command = Command::new("unshare");
    command.arg("-n").arg(env::current_exe().expect("a running test has a file"));
    let status = command.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").status();
    assert!(status.is_ok_and(|it| it.success()), "{name} failed inside the namespace");
    false
}

fn numbers(host: &Host) -> Vec<(String, u32)> {
    host.devices().into_iter().map(|device| (device.name, device.index)).collect()
}

/// Waits until a device has lost its carrier.
fn wait_until_gone(host: &mut Host, device: &str) {
    for _ in 0..6_000 {
        if out(host, &format!("ip link show {device}")).contains("NO-CARRIER") {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{device} never loses its carrier");
}

/// Devices have the mtu that their interface had when they were made. Another mtu of the interface
/// changes nothing about them, and hinders neither `save` nor a configuration.
#[test]
fn an_interface_may_get_another_mtu() {
    if !is_inside("detour::an_interface_may_get_another_mtu") {
        return;
    }
    let (mut host, folder) = (Host::new(), Path::new("/"));
    let text = "ip link add out up type detour interface k0 peer name in up\n\
                ip link add d0 type dummy\n";
    if let Err(failed) = host.configure(text, folder) {
        return writeln!(std::io::stderr(), "SKIP: kernel: detour: {failed:?}").expect("open");
    }
    let before = numbers(&host);
    assert!(run("ip link set k0 mtu 1400"));
    assert_eq!(host.configure(text, folder), Ok(Vec::new()));
    let saved = host.save(None).expect("it can be saved").join("\n");
    assert!(saved.contains("type detour interface k0 peer name in"), "{saved}");
    assert!(!saved.contains("mtu"), "{saved}");
    assert_eq!(host.configure(&saved, folder), Ok(Vec::new()));
    assert_eq!(numbers(&host), before);
    for device in ["out", "in"] {
        let reply = exec(&mut host, &format!("ip link set {device} mtu 1300"));
        assert!(reply.err.contains("that of the kernel's interface"), "{device}: {reply:?}");
    }
    // A device that is made now has the mtu of now, and no other.
    exec(&mut host, "ip link del out");
    let wrong = text.replace("add out ", "add out mtu 1500 ");
    let failed = host.configure(&wrong, folder).expect_err("the interface has another");
    assert!(format!("{failed:?}").contains("an mtu of 1400"), "{failed:?}");
    host.configure(&text.replace("add out ", "add out mtu 1400 "), folder).expect("it is that");
    assert!(out(&mut host, "ip link show in").contains(" mtu 1400 "));
}

/// A device whose interface is gone stays without carrier until the interface is there again; then
/// a configuration makes the device again. Other devices stay in any case.
#[test]
fn an_interface_may_go_and_come() {
    if !is_inside("detour::an_interface_may_go_and_come") {
        return;
    }
    let (mut host, folder) = (Host::new(), Path::new("/"));
    let text = "ip link add d0 type dummy\n\
                ip link add out up type detour interface k0 peer name in up\n\
                ip link add p0 up type packet interface k1 to k2 peer name p1 up\n\
                ip link add d1 type dummy\n";
    if let Err(failed) = host.configure(text, folder) {
        return writeln!(std::io::stderr(), "SKIP: kernel: detour: {failed:?}").expect("open");
    }
    let before = numbers(&host);
    assert!(run("ip link del k0"));
    wait_until_gone(&mut host, "out");
    wait_until_gone(&mut host, "p0");
    let saved = host.save(None).expect("it can be saved").join("\n");
    assert!(saved.contains("type detour interface k0 peer name in") && !saved.contains(" gone"));
    assert_eq!(host.configure(text, folder), Ok(Vec::new()), "it cannot be made again yet");
    assert_eq!(numbers(&host), before);
    assert!(run("ip link add k0 type veth peer name k1"));
    let steps = host.configure(text, folder).expect("it can be made again");
    assert!(steps.iter().any(|step| step.starts_with("ip link add dev out ")), "{steps:?}");
    assert!(!out(&mut host, "ip link show out").contains("NO-CARRIER"));
    let index = |host: &Host, name: &str| host.device(name).expect("it is there").index;
    for (name, number) in before {
        assert_eq!(index(&host, &name) == number, name.starts_with('d'), "{name}");
    }
    assert_eq!(host.configure(text, folder), Ok(Vec::new()));
}
