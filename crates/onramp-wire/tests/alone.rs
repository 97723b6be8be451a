//! Tests with a wire of their own, as programs that use the crate would have them.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use onramp_wire::{Options, Wire, alone, series};

/// Environment variable that lets the tests fail that are there to fail.
const FAIL: &str = "ONRAMP_WIRE_FAIL";

/// Pings the far end of a wire once. Returns what `ping` printed.
fn ping(qdisc: &str) -> String {
    let link = series(&[qdisc]).expect("a qdisc");
    let options = Options { up: link.clone(), down: link, seed: 1, ..Options::default() };
    let wire = Wire::lay(options).expect("a wire");
    let mut ping = Command::new("ping");
    ping.args(["-c1", "-W20", "192.0.2.2"]).stdout(Stdio::piped());
    let output = wire.client().spawn(ping).expect("ping runs").wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_wire_has_the_delay_of_its_qdiscs() {
    if !may() {
        return;
    }
    alone(|| {
        let text = ping("netem delay 20ms");
        let (_, time) = text.split_once("time=").expect("a time");
        let ms: f64 = time.split(' ').next().expect("a number").parse().expect("a number");
        assert!(ms >= 40.0, "{text}");
    });
}

/// Whether this machine lets a test have namespaces of its own. If not, reports that the test is
/// skipped; a test that another one runs to see it fail goes on.
fn may() -> bool {
    let tried = |flags: &str| Command::new("unshare").args([flags, "true"]).output();
    let works = |flags: &str| tried(flags).is_ok_and(|output| output.status.success());
    if std::env::var_os(FAIL).is_some() || works("-n") || works("-rn") {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "CI allows what tests need");
    let why = "`unshare -n` needs root, `unshare -rn` user namespaces";
    writeln!(std::io::stderr(), "SKIP: {why}").expect("it is open");
    false
}

/// Runs this file's test of that name in another process, as an ordinary user if that is possible.
fn run(name: &str) -> std::process::Output {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("tests");
    // An ordinary user may not reach the file itself.
    // A process of its own writes the copy. If this process wrote it, a child that another test
    // starts at that moment would keep the file open for writing until the child runs its own
    // program, and until then Linux would refuse to run the copy (`ETXTBSY`).
    let mut install = Command::new("install");
    install.arg("--mode=755").arg(std::env::current_exe().expect("a file")).arg(&copy);
    assert!(install.status().expect("there is `install`").success());
    let everybody = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), everybody).expect("it is ours");
    let mut command = if nix::unistd::Uid::effective().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
        command
    } else {
        Command::new(&copy)
    };
    command.args(["--exact", name]).env(FAIL, "1").current_dir("/").output().expect("it runs")
}

/// Whether an ordinary user may make namespaces on this machine.
fn allowed() -> bool {
    let output = run("nothing_is_wrong");
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() && text.contains("does not let ordinary users make namespaces") {
        assert!(std::env::var_os("CI").is_none(), "CI allows what tests need: {text}");
        // The test harness hides what passing tests print.
        let why = "this machine has no user namespaces for ordinary users";
        writeln!(std::io::stderr(), "SKIP: {why}").expect("it is open");
        return false;
    }
    true
}

#[test]
fn nothing_is_wrong() {
    if !may() {
        return;
    }
    alone(|| {});
}

#[test]
fn an_ordinary_user_runs_tests() {
    if !allowed() {
        return;
    }
    let output = run("a_wire_has_the_delay_of_its_qdiscs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

/// Fails if it is asked to.
#[test]
fn a_failure() {
    if !may() {
        return;
    }
    alone(|| assert!(std::env::var_os(FAIL).is_none(), "as it was asked to"));
}

fn not_in_the_test() {
    alone(|| {});
}

/// Fails if it is asked to.
#[test]
fn a_closure_elsewhere() {
    if std::env::var_os(FAIL).is_some() {
        not_in_the_test();
    }
}

#[test]
fn failures_are_failures() {
    if !allowed() {
        return;
    }
    for (name, why) in [
        ("a_failure", "a_failure failed in its process"),
        ("a_closure_elsewhere", "not_in_the_test is no test"),
    ] {
        let output = run(name);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && text.contains(why), "{name}: {output:?}");
    }
}
