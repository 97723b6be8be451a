//! Tests of the names that the program can be called by, and of how a client finds its daemon.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;

use super::*;

/// Copies the program to `place`. Another process writes the copy: if this process did, children
/// that other tests fork at that moment would inherit the open file, and a file that is open for
/// writing cannot be executed.
fn copied(place: &Path) {
    let status = Command::new("cp").arg(env!("CARGO_BIN_EXE_onramp")).arg(place).status();
    assert!(status.is_ok_and(|status| status.success()), "a copy at {}", place.display());
}

#[test]
fn a_link_or_a_copy_called_tc_or_ip_is_tc_or_ip() {
    let daemon = Daemon::start();
    let own = env!("CARGO_BIN_EXE_onramp");
    let (ip, tc) = (daemon.folder.path().join("ip"), daemon.folder.path().join("tc"));
    symlink(own, &ip).expect("a link");
    // If a hard link is not possible, a copy serves as well; but it needs more space.
    if fs::hard_link(own, &tc).is_err() {
        copied(&tc);
    }
    let run = |program: &PathBuf, line: &str| {
        let mut command = Command::new(program);
        command.args(line.split(' ')).env("ONRAMP_SOCKET", daemon.path());
        command.output().expect("it runs")
    };
    assert_said(&run(&ip, "link add d0 up type dummy"), 0, "");
    assert_said(&run(&tc, "qdisc replace dev d0 root handle 1: pfifo limit 7"), 0, "");
    let shown = run(&tc, "qdisc show dev d0");
    assert!(text(&shown.stdout).starts_with("qdisc pfifo 1: root refcnt 2 limit 7p"), "{shown:?}");
    assert_eq!(daemon.out("tc qdisc show dev d0"), text(&shown.stdout));
    assert!(daemon.out("ip link").contains(" qdisc pfifo state UNKNOWN "));
}

/// Options in a `tc` or `ip` command reach the daemon unchanged; the program's own parser does not
/// interpret them.
#[test]
fn options_go_to_the_daemon_as_they_are() {
    let daemon = Daemon::start();
    assert_eq!(daemon.out("ip --json link"), "[]\n");
    assert!(daemon.out("ip -V").starts_with("ip utility, "));
    for line in ["ip --help", "ip help", "ip link help"] {
        let output = daemon.run(line);
        assert_eq!(output.status.code(), Some(255), "{line}");
        assert!(text(&output.stderr).starts_with("Usage: ip "), "{line}");
    }
    let strange = text(&daemon.run("tc --frobnicate").stderr);
    assert!(strange.contains("Option") && strange.contains("frobnicate"), "{strange}");
}

#[test]
fn without_a_daemon_it_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    for line in ["tc qdisc show", "ip link", "tc -b -"] {
        let mut command = onramp(line.split(' '));
        let output = command.env("ONRAMP_SOCKET", &path).output().expect("it runs");
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains(&*path.to_string_lossy()) && err.contains("`onramp daemon`"), "{err}");
    }
}

#[test]
fn the_runtime_folder_is_where_it_listens_if_nobody_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = onramp(["daemon"]);
    command.env_remove("ONRAMP_SOCKET").env("XDG_RUNTIME_DIR", folder.path());
    let child = command.stderr(Stdio::null()).spawn().expect("it runs");
    let mut daemon = Daemon { folder, child, log: channel().1 };
    let path = daemon.folder.path().join("onramp.sock");
    wait_until("it listens", || UnixStream::connect(&path).is_ok());
    let mut command = onramp(["ip", "link"]);
    command.env_remove("ONRAMP_SOCKET").env("XDG_RUNTIME_DIR", daemon.folder.path());
    assert_said(&command.output().expect("it runs"), 0, "");
    daemon.signal(Signal::TERM);
    assert!(daemon.ended().success());
}

/// The daemon refuses the requests of other users, even if the mode of its socket would let them
/// connect.
#[test]
fn other_users_are_refused() {
    let daemon = Daemon::start();
    let (folder, nobody) = (daemon.folder.path(), 65_534);
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("ours");
    fs::set_permissions(daemon.path(), fs::Permissions::from_mode(0o666)).expect("ours");
    let copy = folder.join("ip");
    copied(&copy);
    let mut command = Command::new(copy);
    command.arg("link").env("ONRAMP_SOCKET", daemon.path()).uid(nobody).gid(nobody);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            assert!(!rustix::process::geteuid().is_root(), "root may be another: {error}");
            return skip(&format!("another user's client: {error}"));
        }
    };
    assert_eq!(output.status.code(), Some(2));
    let told = text(&output.stderr);
    assert!(told.contains("user 65534 may not use this daemon"), "{told}");
    assert!(told.contains("`onramp daemon --socket PATH`"), "{told}");
    assert_eq!(daemon.out("ip link"), "");
}
