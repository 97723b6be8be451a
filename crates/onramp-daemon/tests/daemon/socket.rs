//! The socket: who may use it, and when it is removed or replaced.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use super::*;

fn open(path: PathBuf) -> Result<Daemon, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let options = Options { socket: Some(path), ..Options::default() };
    runtime.expect("a runtime").block_on(Daemon::open(options, Host::new()))
}

fn refusal(path: PathBuf) -> String {
    open(path).expect_err("it is refused")
}

#[test]
fn the_socket_is_its_users_alone_and_goes_with_the_daemon() {
    let daemon = Running::start(Limits::default());
    let there = std::fs::metadata(daemon.path()).expect("there is a socket");
    assert!(there.file_type().is_socket());
    assert_eq!(there.permissions().mode() & 0o777, 0o600);
    let folder = daemon.folder.path().to_owned();
    let mut client = daemon.connect();
    assert_eq!(client.ask(&command("ip link"))["code"], 0);
    let (end, thread) = {
        let mut daemon = daemon;
        (daemon.end.take(), daemon.thread.take())
    };
    drop(end);
    thread.expect("it ran").join().expect("it ended well");
    assert!(client.has_ended());
    assert!(
        !folder.exists() || std::fs::read_dir(folder).is_ok_and(|mut rest| rest.next().is_none())
    );
}

#[test]
fn a_live_daemon_is_not_disturbed() {
    let daemon = Running::start(Limits::default());
    let why = refusal(daemon.path());
    let own = format!("(process {})", std::process::id());
    assert!(why.contains(&own) && why.contains("serves"), "{why}");
    assert_eq!(daemon.connect().ask(&command("ip link"))["code"], 0);
}

#[test]
fn the_socket_of_a_dead_daemon_is_taken_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("onramp.sock");
    // A daemon that has died may leave its socket and its lock file: a new daemon replaces them.
    drop(UnixListener::bind(&path).expect("it binds"));
    std::fs::write(folder.path().join("onramp.sock.lock"), "").expect("a lock");
    let daemon = open(path.clone()).expect("it takes over");
    assert_eq!(std::fs::metadata(&path).expect("one").permissions().mode() & 0o777, 0o600);
    drop(daemon);
    assert!(std::fs::read_dir(folder.path()).expect("the folder").next().is_none());
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("notes");
    std::fs::write(&file, "mine").expect("a file");
    assert!(refusal(file.clone()).contains("is not a socket"));
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "mine");
    assert!(!folder.path().join("notes.lock").exists(), "a refusal leaves nothing behind");
    // Another program listens at the path without holding the lock that daemons hold. The daemon
    // must refuse to start.
    let other = folder.path().join("other");
    let _listener = UnixListener::bind(&other).expect("it binds");
    assert!(refusal(other).contains("serves"));
    let nowhere = folder.path().join("no/folder/onramp.sock");
    let said = refusal(nowhere);
    assert!(said.contains("there is no folder") && said.contains("--socket"), "{said}");
    let long = folder.path().join("x".repeat(200));
    assert!(refusal(long).contains("cannot listen"));
}

/// If many daemons start at the same time with the same path, exactly one of them serves.
#[test]
fn only_one_of_many_gets_the_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("onramp.sock");
    drop(UnixListener::bind(&path).expect("a stale one"));
    let barrier = std::sync::Barrier::new(8);
    let opened: Vec<Option<Daemon>> = std::thread::scope(|scope| {
        let open = || {
            barrier.wait();
            open(path.clone()).ok()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(opened.iter().flatten().count(), 1);
}
