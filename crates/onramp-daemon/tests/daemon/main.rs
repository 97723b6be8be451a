//! A daemon, and clients of all kinds.

mod client;
mod crowd;
mod files;
mod limits;
mod looks;
mod places;
mod process;
mod protocol;
mod socket;
mod traffic;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use onramp_daemon::serve::{Daemon, Limits, Options};
use onramp_host::Host;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// Time limit for waits, longer than any expected event takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A daemon in its own thread. Dropping it shuts the daemon down cleanly.
struct Running {
    folder: tempfile::TempDir,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(limits: Limits) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = Some(folder.path().join("onramp.sock"));
        let options = Options { socket, limits, ..Options::default() };
        let (end, ended) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new().spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let daemon = Daemon::open(options, Host::new()).await.expect("it opens");
                tell.send(()).expect("somebody waits");
                let until = |_, _| async {
                    let _ = ended.await;
                };
                daemon.serve(until).await;
            });
        });
        told.recv_timeout(PATIENCE).expect("it serves");
        Self { folder, end: Some(end), thread: Some(thread.expect("a thread")) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("onramp.sock")
    }

    fn connect(&self) -> Conversation {
        let stream = UnixStream::connect(self.path()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Conversation(BufReader::new(stream))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the daemon panicked");
        }
    }
}

/// A connection to the daemon.
struct Conversation(BufReader<UnixStream>);

impl Conversation {
    fn write(&mut self, bytes: &[u8]) {
        self.0.get_ref().write_all(bytes).expect("it is taken");
    }

    /// Reads the next reply; returns `Null` if the daemon has closed the connection.
    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer, or the end");
        if line.is_empty() { Value::Null } else { serde_json::from_str(&line).expect("JSON") }
    }

    /// Sends `request` and reads the reply. A daemon that refuses a client writes its reason and
    /// closes without reading, so a failed write counts only if there is no reply.
    fn ask(&mut self, request: &Value) -> Value {
        let sent = self.0.get_ref().write_all(format!("{request}\n").as_bytes());
        let reply = self.read();
        if reply.is_null() {
            sent.expect("the daemon reads the request, or says why it does not");
        }
        reply
    }

    /// Returns whether the daemon has closed the connection.
    fn has_ended(&mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).is_ok() && rest.is_empty()
    }
}

fn command(line: &str) -> Value {
    let words: Vec<&str> = line.split(' ').collect();
    json!({ "v": 1, "argv": words })
}
