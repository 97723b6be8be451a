//! The daemon starts at a path where other files are in the place of the socket or of its lock
//! file.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;

use super::*;

fn open(path: PathBuf) -> Result<Daemon, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let options = Options { socket: Some(path), ..Options::default() };
    runtime.expect("a runtime").block_on(Daemon::open(options, Host::new()))
}

/// Only the daemon's user can open the lock file. If there is already a file in its place, the
/// daemon uses that file without changing its contents.
#[test]
fn a_lock_is_private_and_keeps_what_it_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let [path, lock] = ["onramp.sock", "onramp.sock.lock"].map(|name| folder.path().join(name));
    let daemon = open(path.clone()).expect("it opens");
    assert_eq!(fs::metadata(&lock).expect("a lock").permissions().mode() & 0o777, 0o600);
    drop(daemon);
    assert!(!lock.exists() && !path.exists());
    fs::write(&lock, "of somebody").expect("a file");
    let daemon = open(path).expect("it opens");
    assert_eq!(fs::read_to_string(&lock).expect("it is there"), "of somebody");
    drop(daemon);
}

#[test]
fn what_is_no_stale_socket_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let refusal = |path: PathBuf| open(path).expect_err("it is refused");
    // A datagram socket is at the socket's path. The daemon refuses to start, because it cannot
    // tell whether that socket is stale.
    let datagram = folder.path().join("datagram");
    let _socket = UnixDatagram::bind(&datagram).expect("it binds");
    let told = refusal(datagram.clone());
    let head = format!("cannot tell whether {} is stale: ", datagram.display());
    assert!(told.starts_with(&head), "{told}");
    // A symbolic link is at the socket's path. The daemon refuses to start, wherever the link
    // leads.
    let link = folder.path().join("link");
    symlink(folder.path().join("nowhere"), &link).expect("a link");
    let told = format!("{} is not a socket; give another --socket", link.display());
    assert_eq!(refusal(link.clone()), told);
    assert!(datagram.exists() && fs::symlink_metadata(&link).is_ok());
    // The socket cannot be opened if there is a directory in the place of its lock file, or if its
    // own directory does not exist.
    let path = folder.path().join("other");
    let lock = folder.path().join("other.lock");
    fs::create_dir(&lock).expect("a folder");
    let told = refusal(path);
    assert!(told.starts_with(&format!("cannot lock {}: ", lock.display())), "{told}");
    let nowhere = folder.path().join("none/onramp.sock");
    let told = format!(
        "there is no folder {} for the socket; make it, or give another --socket",
        folder.path().join("none").display()
    );
    assert_eq!(refusal(nowhere), told);
}

/// If the path is already in use by a daemon, the error message names the process that uses it, and
/// the path.
#[test]
fn a_place_that_is_taken_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("onramp.sock");
    let _daemon = open(path.clone()).expect("it opens");
    let told = format!(
        "a daemon (process {}) serves {} already; end it, or give another --socket",
        std::process::id(),
        path.display()
    );
    assert_eq!(open(path).expect_err("it is refused"), told);
}

/// The error message about a wrong configuration names the line. A configuration file that does not
/// exist is an error, too.
#[test]
fn a_configuration_is_wrong_in_a_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let begins = |config: &std::path::Path| {
        let socket = Some(folder.path().join("onramp.sock"));
        let options = Options { socket, config: Some(config.to_owned()), ..Options::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(Daemon::open(options, Host::new())).map(drop)
    };
    let config = folder.path().join("config");
    fs::write(&config, "# devices\nip link add d0 type dummy\nip link add d0 type dummy\n")
        .expect("a file");
    let told = begins(&config).expect_err("twice the same");
    assert!(told.starts_with(&format!("{}:3: ", config.display())), "{told}");
    assert!(!told.contains('\n'), "{told:?}");
    let nothing = folder.path().join("nothing");
    let told = begins(&nothing).expect_err("there is none");
    assert!(told.starts_with(&format!("cannot read {}: ", nothing.display())), "{told}");
    fs::write(&config, b"ip link add \xff type dummy\n").expect("a file");
    let told = begins(&config).expect_err("that is no text");
    assert!(
        told.starts_with(&format!("cannot read {}: invalid utf-8", config.display())),
        "{told}"
    );
}
