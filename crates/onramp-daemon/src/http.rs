//! Metrics, the web page and an interface for programs, over HTTP.
//!
//! All of it is read-only unless the server was started with control (the permission to execute
//! commands). Web pages of other sites that a browser shows at the same time can neither read
//! answers nor send commands: see `http/guard.rs`.

mod events;
mod fleet;
mod guard;
mod patience;
pub(crate) mod reply;
mod sampler;
mod web;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use onramp_host::Reply;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

pub use self::fleet::FleetTable;
use self::patience::Patient;
use self::reply::Response;
pub use self::sampler::Sampler;
use crate::accept::Accepting;
use crate::metrics::{self, Detail};
use crate::snapshot::{Device, Query, Sort};

/// Where the HTTP server gets the devices that it shows, and what executes the commands from the
/// web page. `devices` and `exec` may block, so the server calls them only on blocking threads.
pub trait Source: Send + Sync + 'static {
    /// Returns all devices in their present state.
    fn devices(&self) -> Vec<Device>;

    /// Executes a command from the web page, for example the words `tc`, `qdisc`, `show`.
    fn exec(&self, words: &[String]) -> Reply;

    /// Waits until no other caller may call `devices` or `exec`, and returns the permission to do
    /// so. The caller keeps the permission until its call has returned.
    fn turn(&self) -> Pin<Box<dyn Future<Output = Turn> + Send>> {
        Box::pin(std::future::ready(Box::new(()) as Turn))
    }
}

/// The permission to call `devices` or `exec` of a [`Source`], which only one caller has at a time.
/// Dropping it passes the permission to the next caller.
pub type Turn = Box<dyn Send>;

/// Limits for HTTP clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of connections that are open at a time.
    pub connections: usize,
    /// Maximum number of connections that listen to the event stream at the same time.
    pub listeners: usize,
    /// How long a request may take to arrive, and how long the server waits for a client to read
    /// any byte of an answer.
    pub patience: Duration,
    /// Maximum size of a request's head, in bytes.
    pub head_bytes: usize,
    /// Maximum size of a command, in bytes.
    pub body_bytes: usize,
}

impl Limits {
    /// Returns these limits for a process that may open `files` files (`None`: any number).
    ///
    /// Each connection is an open file, and a client can keep one open that sends nothing. So that
    /// clients leave most files for the control socket and the devices, at most a quarter of the
    /// files are connections, and at most a quarter of the connections listen to the event stream.
    #[must_use]
    pub fn within(self, files: Option<u64>) -> Self {
        let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
        let connections = self.connections.min(files / 4).max(1);
        let listeners = self.listeners.min(connections.div_ceil(4));
        Self { connections, listeners, ..self }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            listeners: 256,
            patience: Duration::from_secs(20),
            head_bytes: 16 * 1024,
            body_bytes: 64 * 1024,
        }
    }
}

/// What the server needs to answer requests.
#[derive(Debug)]
struct Site {
    sampler: Arc<Sampler>,
    limits: Limits,
    control: bool,
    listeners: Arc<Semaphore>,
    /// Makes commands run one after another: the holder of this lock may execute a command.
    commands: Arc<Semaphore>,
    /// Limits how many long documents are written at the same time, because each document needs
    /// memory while it is being written.
    writers: Arc<Semaphore>,
    page: web::Page,
    /// The fleet that the daemon belongs to; `None`: none.
    fleet: Option<Arc<FleetTable>>,
}

/// Serves HTTP clients until `stop` is ready, then ends the connections cleanly and returns.
///
/// If `control` is true, the server executes commands that the web page sends. If there is a
/// `fleet`, the page shows its limits and hosts. An error on one client's connection ends only that
/// connection.
pub async fn serve(
    listener: TcpListener,
    sampler: Arc<Sampler>,
    fleet: Option<Arc<FleetTable>>,
    control: bool,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let site = Arc::new(Site {
        sampler,
        limits,
        control,
        listeners: Arc::new(Semaphore::new(limits.listeners)),
        commands: Arc::new(Semaphore::new(1)),
        writers: Arc::new(Semaphore::new(4)),
        page: web::Page::new(control, fleet.is_some()),
        fleet,
    });
    let room = Arc::new(Semaphore::new(limits.connections));
    let (stopping, stopped) = watch::channel(false);
    let mut clients = JoinSet::new();
    let mut stop = pin!(stop);
    let mut accepting = Accepting::new("clients of the metrics and the web page");
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = clients.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    accepting.succeeded();
                    // If the maximum number of connections is reached, the stream is dropped here,
                    // which closes the connection.
                    if let Ok(place) = Arc::clone(&room).try_acquire_owned() {
                        let (site, stopped) = (Arc::clone(&site), stopped.clone());
                        clients.spawn(async move {
                            client(stream, site, stopped).await;
                            drop(place);
                        });
                    }
                }
                // `accept` most likely failed because no file descriptor is left. Until other
                // connections end, another attempt would fail, too.
                Err(error) => {
                    accepting.failed(&error);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
    stopping.send_replace(true);
    let goodbye = async { while clients.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_secs(1), goodbye).await;
}

/// Serves one client's connection until the client leaves or the server stops.
async fn client(stream: TcpStream, site: Arc<Site>, mut stopped: watch::Receiver<bool>) {
    let Ok(local) = stream.local_addr() else { return };
    let limits = site.limits;
    let listening = stopped.clone();
    let service = service_fn(move |request| {
        let (site, stopped) = (Arc::clone(&site), listening.clone());
        async move { Ok::<_, Infallible>(answer(request, &site, local, stopped).await) }
    });
    let stream = TokioIo::new(Patient::new(stream, limits.patience));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.patience);
    let connection = builder.max_buf_size(limits.head_bytes).serve_connection(stream, service);
    let mut connection = pin!(connection);
    tokio::select! {
        // An error on this connection is ignored, because it concerns no other client.
        _ = connection.as_mut() => {}
        () = told(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Waits until the server is told to stop.
async fn told(stopped: &mut watch::Receiver<bool>) {
    // An error means that the task that would tell the server to stop is gone, so the server stops,
    // too.
    let _ = stopped.wait_for(|stop| *stop).await;
}

async fn answer(
    request: Request<Incoming>,
    site: &Arc<Site>,
    local: SocketAddr,
    stopped: watch::Receiver<bool>,
) -> Response {
    if let Err(why) = guard::host(request.headers(), local) {
        return reply::error(StatusCode::MISDIRECTED_REQUEST, why);
    }
    let path = request.uri().path().to_owned();
    let methods: &[Method] = match path.as_str() {
        "/" | "/metrics" | "/api/v1/snapshot" | "/api/v1/fleet" => &[Method::GET, Method::HEAD],
        "/api/v1/events" => &[Method::GET],
        "/api/v1/exec" => &[Method::POST],
        _ => {
            let why = "expected /, /metrics, /api/v1/snapshot, /api/v1/events, /api/v1/fleet or \
                       /api/v1/exec";
            return reply::error(StatusCode::NOT_FOUND, why);
        }
    };
    if !methods.contains(request.method()) {
        return reply::not_allowed(methods);
    }
    let query = request.uri().query().unwrap_or_default().to_owned();
    let done = match path.as_str() {
        "/" => Ok(site.page.response()),
        "/metrics" => metrics(&query, site).await,
        "/api/v1/snapshot" => snapshot(&query, site).await,
        "/api/v1/fleet" => fleet_table(&query, site).await,
        "/api/v1/events" => events::stream(&query, site, stopped),
        _ => exec(request, site, local).await,
    };
    done.unwrap_or_else(|(status, why)| reply::error(status, &why))
}

/// Either a response, or the status code and the message of an error response.
type Answer = Result<Response, (StatusCode, String)>;

async fn metrics(query: &str, site: &Site) -> Answer {
    let (mut device, mut detail) = (None, Detail::default());
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "device" => device = Some(value.into_owned()),
            "detail" => {
                let names = Detail::ALL.map(|(name, _)| name).join(", ");
                detail = Detail::named(&value)
                    .ok_or_else(|| bad(format!("detail={value}: expected one of {names}")))?;
            }
            _ => return Err(bad(format!("unknown parameter {key:?}; expected device or detail"))),
        }
    }
    let place = Arc::clone(&site.writers).acquire_owned().await.map_err(broken)?;
    let snapshot = site.sampler.snapshot().await.map_err(broken)?;
    let text = in_place(place, move || metrics::write(&snapshot, device.as_deref(), detail));
    let text = text.await.map_err(broken)?;
    Ok(reply::whole(StatusCode::OK, metrics::CONTENT_TYPE, text))
}

async fn snapshot(query: &str, site: &Site) -> Answer {
    let mut device = None;
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "device" => device = Some(value.into_owned()),
            _ => return Err(bad(format!("unknown parameter {key:?}; expected device"))),
        }
    }
    let place = Arc::clone(&site.writers).acquire_owned().await.map_err(broken)?;
    let mut snapshot = site.sampler.snapshot().await.map_err(broken)?;
    let text = move || {
        if let Some(device) = device {
            Arc::make_mut(&mut snapshot).devices.retain(|known| known.name == device);
        }
        serde_json::to_string(&*snapshot)
    };
    let text = in_place(place, text).await.map_err(broken)?.map_err(broken)?;
    Ok(reply::whole(StatusCode::OK, reply::JSON, text))
}

async fn fleet_table(query: &str, site: &Site) -> Answer {
    if let Some((key, _)) = form_urlencoded::parse(query.as_bytes()).next() {
        return Err(bad(format!("unknown parameter {key:?}; expected none")));
    }
    let Some(fleet) = &site.fleet else {
        let why = "this daemon belongs to no fleet; `onramp daemon --fleet URL` joins one";
        return Err((StatusCode::NOT_FOUND, why.to_owned()));
    };
    Ok(reply::whole(StatusCode::OK, reply::JSON, fleet.document().await.to_string()))
}

/// Parses the query part of the URL of an event stream: which rows to show.
fn selection(query: &str) -> Result<Query, (StatusCode, String)> {
    let mut selection = Query::default();
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "device" => selection.device = Some(value.into_owned()),
            "filter" => selection.filter = Some(value.into_owned()),
            "keep" => selection.keep = Some(value.into_owned()),
            "limit" => {
                let limit =
                    value.parse().map_err(|_| bad(format!("limit={value}: expected a number")))?;
                selection.limit = Some(limit);
            }
            "sort" => {
                let names = Sort::ALL.map(Sort::name).join(", ");
                selection.sort = Sort::named(&value)
                    .ok_or_else(|| bad(format!("sort={value}: expected one of {names}")))?;
            }
            _ => {
                let known = "device, filter, keep, limit or sort";
                return Err(bad(format!("unknown parameter {key:?}; expected {known}")));
            }
        }
    }
    Ok(selection)
}

/// A command from the web page, as the body of an HTTP request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    argv: Vec<String>,
}

async fn exec(request: Request<Incoming>, site: &Arc<Site>, local: SocketAddr) -> Answer {
    if !site.control {
        let why = "read-only: the daemon was started without --web-control";
        return Err((StatusCode::FORBIDDEN, why.to_owned()));
    }
    guard::command(request.headers(), local)?;
    let body = Limited::new(request.into_body(), site.limits.body_bytes).collect();
    let body = tokio::time::timeout(site.limits.patience, body).await;
    let body =
        body.map_err(|_| (StatusCode::REQUEST_TIMEOUT, "the request took too long".to_owned()))?;
    let body = body.map_err(|error| (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()))?;
    let command: Command = serde_json::from_slice(&body.to_bytes())
        .map_err(|error| bad(format!("expected {{\"argv\":[\"tc\", …]}}: {error}")))?;
    let place = Arc::clone(&site.commands).acquire_owned().await.map_err(broken)?;
    let source = site.sampler.source();
    let turn = source.turn().await;
    let done = in_place(place, move || {
        let reply = source.exec(&command.argv);
        drop(turn);
        reply
    });
    let Reply { code, out, err } = done.await.map_err(broken)?;
    let document = serde_json::json!({"code": code, "out": out, "err": err});
    Ok(reply::whole(StatusCode::OK, reply::JSON, document.to_string()))
}

/// Runs `act` on a blocking thread. That thread holds `place` (one of a limited number of permits)
/// until `act` has returned, even if nobody waits for the result any more.
async fn in_place<T: Send + 'static>(
    place: OwnedSemaphorePermit,
    act: impl FnOnce() -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    let done = tokio::task::spawn_blocking(move || {
        let done = act();
        drop(place);
        done
    });
    done.await
}

fn bad(why: String) -> (StatusCode, String) {
    (StatusCode::BAD_REQUEST, why)
}

fn broken(error: impl std::fmt::Display) -> (StatusCode, String) {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

#[cfg(test)]
mod tests;
