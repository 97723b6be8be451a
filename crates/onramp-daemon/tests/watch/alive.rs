//! Runs a daemon with its socket and its web page, in a thread of the test.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;

use onramp_daemon::client::Client;
use onramp_daemon::feed;
use onramp_daemon::fleet;
use onramp_daemon::hub::Hub;
use onramp_daemon::serve::{Daemon, Options};
use onramp_host::Host;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// A daemon on its own socket, which runs until this value is dropped.
pub(crate) struct Alive {
    folder: tempfile::TempDir,
    pub(crate) web: SocketAddr,
    pub(crate) hub: Hub,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Alive {
    pub(crate) fn start() -> Self {
        Self::with(Host::new())
    }

    /// Starts a daemon for a host that already has devices.
    pub(crate) fn with(host: Host) -> Self {
        Self::open(host, None)
    }

    /// Starts a daemon that belongs to a fleet.
    pub(crate) fn in_fleet(fleet: fleet::Options) -> Self {
        Self::open(Host::new(), Some(fleet))
    }

    #[expect(clippy::disallowed_methods, reason = "a thread of the test's own")]
    fn open(host: Host, fleet: Option<fleet::Options>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options {
            socket: Some(folder.path().join("socket")),
            metrics: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            web_control: true,
            fleet,
            ..Options::default()
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let daemon = Daemon::open(options, host).await.expect("it opens");
                let web = daemon.web_address().expect("it has a page");
                ready.send((web, daemon.hub().clone())).expect("we wait");
                daemon.serve(|_, _| async { stopped.await.unwrap_or_default() }).await;
            });
        });
        let (web, hub) = is_ready.recv().expect("it is ready");
        Self { folder, web, hub, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Executes a command that must succeed, and returns what it prints.
    pub(crate) fn exec(&self, line: &str) -> String {
        let mut client = Client::connect(&self.socket()).expect("it listens");
        let words: Vec<&str> = line.split(' ').collect();
        let reply = client.exec(&words, "/").expect("it answers");
        assert_eq!(reply.code, 0, "{line}: {reply:?}");
        reply.out
    }

    /// Asks the daemon to stream `what`, and returns the stream after the daemon has confirmed the
    /// request.
    pub(crate) fn watch(&self, what: &str, options: &Value) -> BufReader<UnixStream> {
        let stream = feed::watch(&self.socket(), what, options).expect("it listens");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).expect("an answer");
        let heard: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(heard, json!({"v": 1, "id": null, "watching": what}));
        stream
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}
