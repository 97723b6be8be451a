//! Runs an HTTP server on a port of its own, and is a minimal client of it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use onramp_daemon::http::{FleetTable, Limits, Sampler, serve};
use onramp_redis::Engine;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::made_up::MadeUp;

/// A server that runs until this value is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<()>>,
    runtime: Runtime,
}

impl Server {
    pub(crate) fn start(source: MadeUp, control: bool) -> Self {
        Self::with(source, control, Limits::default())
    }

    pub(crate) fn with(source: MadeUp, control: bool, limits: Limits) -> Self {
        Self::make(source, None, control, limits)
    }

    /// Starts the server of a daemon that belongs to a fleet.
    pub(crate) fn in_fleet(engine: &Engine) -> Self {
        let fleet = Some(FleetTable::new(engine));
        Self::make(MadeUp::default(), fleet, false, Limits::default())
    }

    fn make(source: MadeUp, fleet: Option<Arc<FleetTable>>, control: bool, limits: Limits) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let (stop, stopped) = oneshot::channel();
        let sampler = Sampler::new(Arc::new(source), Duration::from_millis(200));
        let stopped = async { stopped.await.unwrap_or_default() };
        let task = runtime.spawn(serve(listener, sampler, fleet, control, limits, stopped));
        Self { address, stop: Some(stop), task: Some(task), runtime }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a time");
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let Some(task) = self.task.take() else { return };
        let ended = async { tokio::time::timeout(Duration::from_secs(120), task).await };
        let ended = self.runtime.block_on(ended);
        if !std::thread::panicking() {
            ended.expect("it ends in time").expect("it does not panic");
        }
    }
}

/// Sends a request, and returns status, head and body of the response.
pub(crate) fn request(
    server: &Server,
    line: &str,
    headers: &[&str],
    body: &str,
) -> (u16, String, String) {
    let mut stream = server.connect();
    let mut text = format!("{line}\r\nHost: {}\r\nConnection: close\r\n", server.address);
    for header in headers {
        text += &format!("{header}\r\n");
    }
    text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    // The server may answer before it has read the whole request, so an error of this write is
    // ignored.
    let _ = stream.write_all(text.as_bytes());
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
    (status, head.to_owned(), body.to_owned())
}

pub(crate) fn get(server: &Server, path: &str) -> (u16, String, String) {
    request(server, &format!("GET {path} HTTP/1.1"), &[], "")
}

pub(crate) fn json(server: &Server, path: &str) -> Value {
    let (status, head, body) = get(server, path);
    assert_eq!(status, 200, "{head}\n{body}");
    serde_json::from_str(&body).expect("JSON")
}
