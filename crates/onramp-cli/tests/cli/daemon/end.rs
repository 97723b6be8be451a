//! Tests of how signals end the daemon, and of what the daemon leaves behind.

use std::fs;
use std::os::unix::net::UnixDatagram;

use super::*;

#[test]
fn it_ends_in_good_order() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Daemon::start();
        daemon.out("ip link add v0 up type veth peer name v1 up");
        // A client that stays connected does not keep the daemon from ending.
        let idle = UnixStream::connect(daemon.path()).expect("it listens");
        daemon.signal(signal);
        assert_eq!(daemon.ended().code(), Some(0), "{signal:?}");
        daemon.logged(&["ended"]);
        drop(idle);
        let left = fs::read_dir(daemon.folder.path()).expect("the folder").count();
        assert_eq!(left, 0, "neither socket nor lock is left");
    }
}

#[test]
fn a_second_daemon_is_refused_and_a_dead_ones_place_is_taken() {
    let mut daemon = Daemon::start();
    let socket = daemon.path();
    let socket = socket.to_string_lossy();
    let output = daemon.run(&format!("daemon --socket {socket}"));
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains(&format!("(process {})", daemon.child.id())), "{err}");
    daemon.out("ip link");
    daemon.signal(Signal::KILL);
    daemon.ended();
    assert!(fs::exists(daemon.path()).expect("a folder"), "it was killed");
    let mut next = daemon.command(&format!("daemon --socket {socket}"));
    let child = next.stderr(Stdio::null()).spawn().expect("it runs");
    let folder = tempfile::tempdir().expect("a folder");
    let mut next = Daemon { folder, child, log: channel().1 };
    wait_until("it listens", || daemon.run("ip link").status.success());
    next.signal(Signal::TERM);
    assert!(next.ended().success());
}

#[test]
fn a_service_manager_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = UnixDatagram::bind(folder.path().join("manager")).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let heard = || {
        let mut buffer = [0; 256];
        let len = manager.recv(&mut buffer).expect("it says something");
        text(&buffer[..len])
    };
    fs::write(folder.path().join("config"), "").expect("a file");
    let notify = folder.path().join("manager");
    let config = folder.path().join("config");
    let mut daemon = Daemon::with(|command| {
        command.env("NOTIFY_SOCKET", notify).arg("--config").arg(config);
    });
    assert_eq!(heard(), "READY=1");
    daemon.signal(Signal::HUP);
    assert!(heard().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(heard(), "READY=1");
    daemon.signal(Signal::TERM);
    assert_eq!(heard(), "STOPPING=1");
    assert!(daemon.ended().success());
}

#[test]
fn without_a_configuration_sighup_says_so() {
    let mut daemon = Daemon::start();
    daemon.out("ip link add d0 type dummy");
    daemon.signal(Signal::HUP);
    daemon.logged(&["SIGHUP", "--config"]);
    assert!(daemon.out("ip -br link").starts_with("d0 "));
    daemon.signal(Signal::TERM);
    assert!(daemon.ended().success());
}

#[test]
fn what_cannot_begin_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    let socket = path.to_string_lossy().into_owned();
    let missing = ["daemon", "--socket", &socket, "--config", "/nonexistent/file"];
    let output = onramp(missing).output().expect("it runs");
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("onramp: cannot read /nonexistent/file: No such file"), "{err}");
    assert!(!path.exists(), "nothing is left");
    for (log, part) in [("info,loud", "loud"), ("", ""), ("info,", "")] {
        // The missing file ends the daemon if the wrong level does not.
        let output = onramp(missing).args(["--log", log]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2));
        let told = format!("{part:?} is not a level; expected off, error, warn, info, debug or ");
        assert!(text(&output.stderr).contains(&told), "{}", text(&output.stderr));
    }
}
