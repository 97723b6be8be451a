//! Tests of `onramp daemon`, `onramp tc` and `onramp ip`.

#[path = "daemon/batch.rs"]
mod batch;
#[path = "daemon/end.rs"]
mod end;
#[path = "daemon/late.rs"]
mod late;
#[path = "daemon/names.rs"]
mod names;
#[path = "daemon/reload.rs"]
mod reload;

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{onramp, skip, wait_until};

/// How long a test waits for an event that it expects. This is long enough even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a test waits for a line in the daemon's log.
const LOG_PATIENCE: Duration = Duration::from_secs(120);

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "tests give up some time")]
    Instant::now()
}

#[test]
fn help_needs_no_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |line: &str| {
        let mut command = onramp(line.split(' '));
        command.env("ONRAMP_SOCKET", folder.path().join("s")).output().expect("the program runs")
    };
    for (line, code, told) in [
        ("tc --help", 0, "Usage:\ttc"),
        ("tc -V", 0, "tc utility, onramp-"),
        ("tc qdisc help", 0, " htb | "),
        ("tc qdisc add htb help", 1, "htb: "),
        ("ip --help", 255, "Usage: ip"),
        ("ip -V", 0, "ip utility, onramp-"),
    ] {
        let output = run(line);
        let text = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {text}");
        assert!(text.contains(told) && !text.contains("no daemon"), "{line}: {text}");
    }
    let output = run("tc qdisc show");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no daemon runs at "), "{}", text(&output.stderr));
}

/// A daemon in a folder of its own. The daemon is killed when this value is dropped.
struct Daemon {
    folder: tempfile::TempDir,
    child: Child,
    /// The lines that the daemon logs.
    log: Receiver<String>,
}

impl Daemon {
    fn start() -> Self {
        Self::with(|_| {})
    }

    /// Starts a daemon. The function `more` adds further arguments to its command line.
    fn with(more: impl FnOnce(&mut Command)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::within(folder, more)
    }

    fn within(folder: tempfile::TempDir, more: impl FnOnce(&mut Command)) -> Self {
        let mut command = onramp(["daemon", "--log", "info"]);
        command.arg("--socket").arg(folder.path().join("s")).current_dir(folder.path());
        command.stderr(Stdio::piped()).env_remove("NOTIFY_SOCKET");
        more(&mut command);
        let mut child = command.spawn().expect("the program runs");
        let errors = BufReader::new(child.stderr.take().expect("it is piped"));
        let (tell, log) = channel();
        let read =
            move || errors.lines().map_while(Result::ok).try_for_each(|line| tell.send(line));
        std::thread::Builder::new().spawn(read).expect("a thread");
        let daemon = Self { folder, child, log };
        wait_until("it listens", || UnixStream::connect(daemon.path()).is_ok());
        daemon
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    fn command(&self, line: &str) -> Command {
        let mut command = onramp(line.split(' '));
        command.env("ONRAMP_SOCKET", self.path()).current_dir(self.folder.path());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().expect("the program runs")
    }

    /// Runs a command that must succeed, and returns what it prints.
    fn out(&self, line: &str) -> String {
        let output = self.run(line);
        let err = text(&output.stderr);
        assert_eq!((output.status.code(), &*err), (Some(0), ""), "{line}");
        text(&output.stdout)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it lives");
    }

    /// Waits until the daemon logs a line that contains all of `words`, and returns that line.
    /// Panics with the lines that the daemon logged meanwhile if the line does not come in time.
    fn logged(&self, words: &[&str]) -> String {
        let end = now() + LOG_PATIENCE;
        let mut before = String::new();
        loop {
            let left = end.saturating_duration_since(now());
            match self.log.recv_timeout(left) {
                Ok(line) if words.iter().all(|word| line.contains(word)) => return line,
                Ok(line) if !left.is_zero() => before = before + &line + "\n",
                _ => panic!("never logged: {words:?}; instead:\n{before}"),
            }
        }
    }

    /// Waits until the daemon has ended by itself, and returns its exit status.
    fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("it ends", || {
            status = self.child.try_wait().expect("it is ours");
            status.is_some()
        });
        status.expect("it ended")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Killing the daemon may fail because it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_owned()).expect("it is UTF-8")
}

/// Asserts that a command ended with the exit code `code` and wrote the text `err` to standard
/// error.
fn assert_said(output: &Output, code: i32, err: &str) {
    assert_eq!((output.status.code(), &*text(&output.stderr)), (Some(code), err));
}
