//! Configurations that are not regular files.

use super::*;

/// Returns whether a daemon starts with this configuration.
fn begins(config: PathBuf) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = Some(folder.path().join("onramp.sock"));
    let options = Options { socket, config: Some(config), ..Options::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let open = Daemon::open(options, Host::new());
    runtime.block_on(open).map(drop)
}

#[test]
fn a_configuration_is_a_file_that_is_not_too_long() {
    let folder = tempfile::tempdir().expect("a folder");
    let [pipe, long, good] = ["pipe", "long", "good"].map(|name| folder.path().join(name));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    std::fs::write(&long, vec![b'\n'; (16 << 20) + 1]).expect("a file");
    std::fs::write(&good, "ip link add d0 type dummy\n").expect("a file");
    // If the configuration file is a named pipe, the daemon does not wait until somebody writes to
    // the pipe.
    let (tell, told) = mpsc::channel();
    let thread = std::thread::Builder::new().spawn(move || {
        for path in [pipe, long, good] {
            tell.send(begins(path)).expect("somebody waits");
        }
    });
    let next = || told.recv_timeout(PATIENCE).expect("an answer");
    assert!(next().is_err_and(|why| why.contains("pipe: it is not a regular file")));
    assert!(next().is_err_and(|why| why.contains("long: it has more than 16777216 bytes")));
    assert_eq!(next(), Ok(()));
    thread.expect("a thread").join().expect("it ends");
}
