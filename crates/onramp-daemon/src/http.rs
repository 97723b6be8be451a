//! Metrics, the web page and an interface for programs, over HTTP.
//!
//! Everything is read-only, unless the server was told otherwise. Pages of others, which a browser
//! may show beside ours, can neither read nor command: see `http/guard.rs`.

mod events;
mod guard;
mod patience;
pub(crate) mod reply;
mod sampler;

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

use self::patience::Patient;
use self::reply::Response;
pub use self::sampler::Sampler;
use crate::metrics::{self, Detail};
use crate::snapshot::{Device, Query, Sort};
use crate::web;

/// What is looked at, and who does what is asked. Neither is called on a thread that others need.
pub trait Source: Send + Sync + 'static {
    /// All devices as they are now.
    fn devices(&self) -> Vec<Device>;

    /// Does what a command says, which came from the web page: `tc`, `qdisc`, `show`.
    fn exec(&self, words: &[String]) -> Reply;

    /// Waits until either may be called; what this gives is kept until it has returned.
    fn turn(&self) -> Pin<Box<dyn Future<Output = Turn> + Send>> {
        Box::pin(std::future::ready(Box::new(()) as Turn))
    }
}

/// The turn of one among those who come one after another.
pub type Turn = Box<dyn Send>;

/// What clients are granted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Of these, such that wait for events.
    pub listeners: usize,
    /// For a request to arrive, and for any byte of an answer to be taken.
    pub patience: Duration,
    /// Bytes of the head of a request.
    pub head_bytes: usize,
    /// Bytes of a command.
    pub body_bytes: usize,
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

/// What a server has to answer with.
#[derive(Debug)]
struct Site {
    sampler: Arc<Sampler>,
    limits: Limits,
    control: bool,
    listeners: Arc<Semaphore>,
    /// Commands go one after another.
    commands: Arc<Semaphore>,
    /// Long documents, a few at a time: each takes memory.
    writers: Arc<Semaphore>,
    page: web::Page,
}

/// Serves until `stop` is ready; then says goodbye to clients, and ends.
///
/// With `control`, commands are taken from the web page. What fails is a client's connection, and
/// ends that.
pub async fn serve(
    listener: TcpListener,
    sampler: Arc<Sampler>,
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
        page: web::Page::new(control),
    });
    let room = Arc::new(Semaphore::new(limits.connections));
    let (stopping, stopped) = watch::channel(false);
    let mut clients = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = clients.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Without room the stream is closed here.
                    if let Ok(place) = Arc::clone(&room).try_acquire_owned() {
                        let (site, stopped) = (Arc::clone(&site), stopped.clone());
                        clients.spawn(async move {
                            client(stream, site, stopped).await;
                            drop(place);
                        });
                    }
                }
                // No file descriptors, most likely: others have to go first.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
        }
    }
    stopping.send_replace(true);
    let goodbye = async { while clients.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_secs(1), goodbye).await;
}

/// Serves one connection.
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
        // What a client did wrong is its own affair.
        _ = connection.as_mut() => {}
        () = told(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Until it is time to stop.
async fn told(stopped: &mut watch::Receiver<bool>) {
    // Nobody left who could say so: that is the same.
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
        "/" | "/metrics" | "/api/v1/snapshot" => &[Method::GET, Method::HEAD],
        "/api/v1/events" => &[Method::GET],
        "/api/v1/exec" => &[Method::POST],
        _ => {
            let why = "there are /, /metrics, /api/v1/snapshot, /api/v1/events and /api/v1/exec";
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
        "/api/v1/events" => events::stream(&query, site, stopped),
        _ => exec(request, site, local).await,
    };
    done.unwrap_or_else(|(status, why)| reply::error(status, &why))
}

/// An answer, or why there is none.
type Answer = Result<Response, (StatusCode, String)>;

async fn metrics(query: &str, site: &Site) -> Answer {
    let (mut device, mut detail) = (None, Detail::default());
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "device" => device = Some(value.into_owned()),
            "detail" => {
                let names = Detail::ALL.map(|(name, _)| name).join(", ");
                detail = Detail::named(&value)
                    .ok_or_else(|| bad(format!("detail={value}: there are {names}")))?;
            }
            _ => return Err(bad(format!("{key}: there are device and detail"))),
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
            _ => return Err(bad(format!("{key}: there is device"))),
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

/// What a query of events asks for.
fn selection(query: &str) -> Result<Query, (StatusCode, String)> {
    let mut selection = Query::default();
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "device" => selection.device = Some(value.into_owned()),
            "filter" => selection.filter = Some(value.into_owned()),
            "keep" => selection.keep = Some(value.into_owned()),
            "limit" => {
                let limit = value.parse().map_err(|_| bad(format!("limit={value}: no number")))?;
                selection.limit = Some(limit);
            }
            "sort" => {
                let names = Sort::ALL.map(Sort::name).join(", ");
                selection.sort = Sort::named(&value)
                    .ok_or_else(|| bad(format!("sort={value}: there are {names}")))?;
            }
            _ => {
                let known = "device, filter, keep, limit and sort";
                return Err(bad(format!("{key}: there are {known}")));
            }
        }
    }
    Ok(selection)
}

/// A command from the web page.
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
    let body = body.map_err(|_| (StatusCode::REQUEST_TIMEOUT, "too slow".to_owned()))?;
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

/// Does what takes time on a thread of its own, where it keeps its place until it is done, whether
/// or not somebody still waits for it.
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
