//! Tests of `onramp top` and `onramp monitor`, with a daemon and without.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{assert_fails, onramp, run, stderr, wait_until};

/// A daemon whose socket is in `folder`. The daemon is killed when this value is dropped.
pub(super) struct Daemon(Child);

impl Daemon {
    pub(super) fn start(folder: &Path) -> Self {
        let socket = folder.join("socket");
        let mut daemon = onramp(["daemon", "--socket"]);
        let child = daemon.arg(&socket).stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let started = Self(child.expect("the program runs"));
        // The file of the socket is there a moment before the daemon listens.
        wait_until("the daemon listens", || UnixStream::connect(&socket).is_ok());
        started
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the command `line` of the program, which will use the daemon in `folder`.
pub(super) fn asking(folder: &Path, line: &str) -> Command {
    let mut command = onramp(line.split(' '));
    command.env("ONRAMP_SOCKET", folder.join("socket")).stdin(Stdio::null());
    command
}

#[test]
fn what_happens_is_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let _daemon = Daemon::start(folder.path());
    let mut monitor =
        asking(folder.path(), "monitor -j dev d1").stdout(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(monitor.stdout.take().expect("it is piped")).lines();
    let listening = std::thread::scope(|scope| {
        let first = scope.spawn(|| lines.next().expect("a line").expect("text"));
        // The test adds and deletes a device until the monitor prints an event, because nothing
        // tells when the monitor has begun to listen.
        for round in 0..600 {
            let line = if round % 2 == 0 { "add dev d1 type dummy" } else { "del dev d1" };
            let done = asking(folder.path(), &format!("ip link {line}")).output();
            assert!(done.expect("it runs").status.success(), "{line}");
            if first.is_finished() {
                break;
            }
        }
        first.join().expect("a line")
    });
    let event: Value = serde_json::from_str(&listening).expect("JSON");
    assert_eq!(event["device"], "d1", "{event}");
    monitor.kill().expect("it runs");
    let _ = monitor.wait();
    let add = asking(folder.path(), "ip link add dev d2 numtxqueues 2 type dummy").output();
    let add = add.expect("it runs");
    assert!(add.status.success(), "{}", stderr(&add));
    let output = asking(folder.path(), "top --once -d 0.1 d2 queue").output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    let has = |start: &str| text.lines().any(|line| line.starts_with(start));
    assert!(has("NAME ") && has("d2 ") && has("  queue 0 ") && has("  queue 1 "), "{text}");
    assert!(!has("d1 "), "{text}");
    let output = asking(folder.path(), "top -j -n 2 -d 0.1").output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let read: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((read.len(), &read[1]["schema"]), (2, &"onramp.stats".into()));
}

#[test]
fn what_is_in_the_way_is_told() {
    let nowhere = "/nonexistent/socket";
    let absent = [nowhere, "onramp daemon", "ONRAMP_SOCKET"];
    assert_fails(&run(&format!("top --once --socket {nowhere}")), 1, &absent);
    assert_fails(&run(&format!("monitor --socket {nowhere}")), 1, &absent);
    assert_fails(&run("top"), 2, &["is not a terminal", "--once"]);
    assert_fails(&run("top --once --delay 0.01"), 2, &["--delay 0.01", "0.1 to 86400"]);
    assert_fails(&run("top --once --sort size"), 2, &["size", "backlog"]);
    assert_fails(&run("top -n 0"), 2, &["-n <N>", "give a whole number, 1 to"]);
    assert_fails(&run("monitor dev"), 2, &["dev: the name"]);
    assert_fails(&run("monitor dev d0 dev d1"), 2, &["dev: name one device"]);
    assert_fails(&run("monitor everything"), 2, &["everything: expected dev NAME", "dropped"]);
}

/// Listens at the socket in `folder` as a daemon would, and answers the next client with `answer`.
fn answers_once(folder: &Path, answer: &'static str) -> std::thread::JoinHandle<()> {
    let socket = folder.join("socket");
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(socket).expect("a socket");
    std::thread::Builder::new()
        .spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            let mut request = String::new();
            BufReader::new(&client).read_line(&mut request).expect("a request");
            client.write_all(answer.as_bytes()).expect("it reads");
        })
        .expect("a thread")
}

/// A message has the program's name in front once, even if the daemon put it there, too.
#[test]
fn a_daemon_that_refuses_or_goes_is_told_of_plainly() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("batch"), "qdisc show\n").expect("a file");
    let refusal = "{\"v\":1,\"id\":null,\"code\":2,\"out\":\"\",\"err\":\"onramp: too many\\n\"}\n";
    let half = "{\"v\":1,\"id\":null,\"watching\":\"events\"}\n{\"v\":1,\"id\":nu";
    let gone = "onramp: the daemon has ended\n";
    for (line, answer, code, told) in [
        ("monitor", refusal, 1, "onramp: too many\n"),
        ("top --once", refusal, 1, "onramp: too many\n"),
        ("tc -batch batch", refusal, 2, "onramp: too many\n"),
        ("tc qdisc show", refusal, 2, "onramp: too many\n"),
        ("save", refusal, 1, "onramp: too many\n"),
        ("monitor", half, 1, gone),
        ("top --once", half, 1, gone),
    ] {
        let daemon = answers_once(folder.path(), answer);
        let output = asking(folder.path(), line).current_dir(folder.path()).output();
        let output = output.expect("it runs");
        assert_eq!((output.status.code(), &*stderr(&output)), (Some(code), told), "{line}");
        daemon.join().expect("it was asked");
    }
}
