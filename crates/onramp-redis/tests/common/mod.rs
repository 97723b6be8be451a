//! A Redis of the tests' own.

#![allow(dead_code, reason = "each test program uses a part")]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

/// How often to look whether something that must come true has come true, and how long to wait
/// between two looks. The sum is far above what a slow machine needs.
pub(crate) const LOOKS: u32 = 6_000;
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// The longest wait for something that must end, which takes milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server in a folder of its own, which listens on the Unix socket `socket` there. It ends with
/// this value.
pub(crate) struct Server {
    child: Child,
    arguments: Vec<String>,
    pub(crate) folder: TempDir,
}

impl Server {
    /// Starts a server with these further arguments; `None` if the machine has no Redis.
    pub(crate) fn start(arguments: &[&str]) -> Option<Self> {
        Self::start_in(tempfile::tempdir().expect("a folder"), arguments)
    }

    /// Starts a server whose clock [`set_ahead`](Self::set_ahead) can set; `None` if the machine
    /// has no Redis or no C compiler.
    pub(crate) fn start_with_clock() -> Option<Self> {
        if !have("cc") {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/clock.c");
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-o"]).arg(folder.path().join(CLOCK)).arg(source);
        assert!(compile.status().expect("it is in the path").success());
        std::fs::write(folder.path().join("ahead"), "0").expect("the folder is ours");
        Self::start_in(folder, &[])
    }

    fn start_in(folder: TempDir, arguments: &[&str]) -> Option<Self> {
        if !have("redis-server") {
            return None;
        }
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        let child = spawn(folder.path(), &arguments);
        let mut server = Self { child, arguments, folder };
        server.wait();
        Some(server)
    }

    /// Sets the server's clock ahead of the true time by so many seconds.
    pub(crate) fn set_ahead(&self, seconds: i64) {
        // The server may read the file at any moment, so the new text is written at once, over all
        // of the old one.
        let file = File::options().write(true).open(self.folder.path().join("ahead"));
        let text = format!("{seconds:<15}");
        file.expect("it is there").write_all(text.as_bytes()).expect("the folder is ours");
    }

    /// Returns the server's URL. Use it if `start` had no other address among its arguments.
    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.folder.path().join("socket").display())
    }

    /// Kills the server at once, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ended");
    }

    /// Starts a server that was killed again.
    pub(crate) fn again(&mut self) {
        self.child = spawn(self.folder.path(), &self.arguments);
        self.wait();
    }

    /// Starts another server at the same address, and returns the one that was there. Connections
    /// to that one stay.
    pub(crate) fn replace(&mut self) -> Process {
        let other = spawn(self.folder.path(), &self.arguments);
        let old = Process(std::mem::replace(&mut self.child, other));
        self.wait();
        old
    }

    /// Stops the server's process, or lets it go on.
    pub(crate) fn pause(&self, is_paused: bool) {
        let signal = if is_paused { "-STOP" } else { "-CONT" };
        let id = self.child.id().to_string();
        let done = Command::new("kill").args([signal, &id]).status().expect("there is `kill`");
        assert!(done.success());
    }

    /// Waits until the server says in its log that it is ready. It listens before it has read its
    /// file, and refuses most commands until then.
    fn wait(&mut self) {
        let log = self.folder.path().join("log");
        eventually("the server is ready", || {
            assert_eq!(self.child.try_wait().expect("a child"), None, "redis-server ended");
            let log = std::fs::read_to_string(&log).expect("the log was created before");
            log.contains("eady to accept connections")
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A stopped process dies of SIGKILL too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server's process, which ends with this value.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Threads of this program that do not run while this value is there.
pub(crate) struct Frozen(Child);

impl Frozen {
    /// Stops the threads whose names begin with `name`. Returns `None` if the machine has no
    /// Python, or does not let a program stop another one's threads.
    pub(crate) fn threads(name: &str) -> Option<Self> {
        if !have("python3") {
            return None;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/freeze.py");
        let mut python = Command::new("python3");
        python.arg(script).args([&std::process::id().to_string(), name]);
        let mut child =
            python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python");
        let mut number = String::new();
        let output = child.stdout.as_mut().expect("it has a pipe");
        BufReader::new(output).read_line(&mut number).expect("text");
        if number.is_empty() {
            child.wait().expect("it ended");
            skip("redis: no permission to stop a thread by ptrace");
            return None;
        }
        assert_ne!(number, "0\n", "there are threads with this name");
        Some(Self(child))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // The end of its input.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Whether a program is in the path; if not, says that the test is skipped.
fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !is_there {
        skip(&format!("redis: no {program}"));
    }
    is_there
}

/// The library that sets a server's clock, if there is one in the server's folder.
const CLOCK: &str = "clock.so";

fn spawn(folder: &Path, arguments: &[String]) -> Child {
    let log = File::create(folder.join("log")).expect("the folder is ours");
    let mut command = Command::new("redis-server");
    let clock = folder.join(CLOCK);
    if clock.exists() {
        command.env("LD_PRELOAD", clock).env("CLOCK_AHEAD", folder.join("ahead"));
    }
    command
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket", "socket"])
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log)
        .spawn()
        .expect("it is in the path")
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let seen = (0..LOOKS).any(|_| {
        is() || {
            thread::sleep(LOOK);
            false
        }
    });
    assert!(seen, "never: {what}");
}

/// Prints that a test is skipped because the machine lacks something. In CI nothing may be missing,
/// so there this function panics and the test fails.
pub(crate) fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI has all that tests need: {why}");
    // The line goes directly to standard error, because the test harness hides what passing tests
    // print.
    writeln!(std::io::stderr(), "SKIP: {why}").expect("it is open");
}
