//! The daemon: opens its socket, serves clients, handles signals, and shuts down cleanly.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use onramp_host::Host;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use crate::accept::Accepting;
use crate::config::Unloaded;
use crate::fleet::{self, Fleet};
use crate::http;
use crate::hub::Hub;
use crate::session::{self, Session};

pub use crate::session::Limits;
use crate::socket::{Socket, find_path};
use crate::traffic::Traffic;
use crate::watch::Watched;
use crate::{config, interfaces, lateness, notify, socket};

/// How long the daemon, when it ends, waits for clients to receive the replies to their requests.
const GRACE: Duration = Duration::from_secs(1);
/// How long the daemon, when it ends, waits for devices to send the packets that they hold.
const FLUSH: Duration = Duration::from_millis(500);
/// How long the daemon waits after `accept` failed, before it accepts clients again.
const PAUSE: Duration = Duration::from_millis(100);

/// Settings of a daemon.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Path of the socket; `None`: `$ONRAMP_SOCKET`, or [`default_path`](crate::default_path).
    pub socket: Option<PathBuf>,
    /// File of commands that the daemon executes at start, and follows again after SIGHUP.
    pub config: Option<PathBuf>,
    /// Address at which the daemon serves the metrics and the web page; with `None` it serves
    /// neither.
    pub metrics: Option<SocketAddr>,
    /// Whether the web page may change the configuration.
    pub web_control: bool,
    /// How much lateness devices catch up on; `None`: the default of
    /// [`LinkBuilder::catch_up`](onramp::LinkBuilder::catch_up).
    pub catch_up: Option<Duration>,
    /// How long after the instant at which a qdisc may release a packet devices wake their threads;
    /// `None`: the default of [`LinkBuilder::slack`](onramp::LinkBuilder::slack).
    pub slack: Option<Duration>,
    /// Limits for clients of the socket.
    pub limits: Limits,
    /// The fleet that the daemon belongs to; `None`: none.
    pub fleet: Option<fleet::Options>,
}

/// A daemon that has opened its socket but does not serve clients yet.
#[derive(Debug)]
pub struct Daemon {
    options: Options,
    hub: Hub,
    socket: Socket,
    listener: UnixListener,
    web: Option<TcpListener>,
}

/// Runs a daemon until SIGTERM or SIGINT.
///
/// # Errors
///
/// The reason why the daemon could not start, as text for people.
pub fn run(options: Options) -> Result<(), String> {
    raise_limits();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the daemon: {error}"))?;
    let done = runtime.block_on(async {
        let mut signals =
            Signals::listen().map_err(|error| format!("cannot handle signals: {error}"))?;
        let daemon = tokio::select! {
            daemon = Daemon::open(options, Host::new()) => daemon?,
            () = signals.end() => return Ok(()),
        };
        daemon.serve(|hub, config| signals.wait(hub, config)).await;
        Ok(())
    });
    // If a command still runs on a blocking thread, the daemon waits for it, but at most for
    // `GRACE`.
    runtime.shutdown_timeout(GRACE);
    done
}

/// Raises the limit of open files, because each client is an open file.
fn raise_limits() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!("cannot raise the limit of open files: {error}; too many clients will be refused");
    }
}

impl Daemon {
    /// Opens the socket and reads the configuration.
    ///
    /// # Errors
    ///
    /// The reason why the daemon could not open the socket or follow the configuration, as text for
    /// people.
    pub async fn open(options: Options, mut host: Host) -> Result<Self, String> {
        if let Some(catch_up) = options.catch_up {
            host.set_catch_up(catch_up);
        }
        if let Some(slack) = options.slack {
            host.set_slack(slack);
        }
        host.set_in_fleet(options.fleet.is_some());
        let path = options.socket.clone().unwrap_or_else(find_path);
        let (socket, listener) = Socket::open(&path)?;
        let listener = UnixListener::from_std(listener)
            .map_err(|error| format!("cannot listen at {}: {error}", path.display()))?;
        let web = match options.metrics {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let hub = Hub::new(host);
        if let Some(file) = &options.config {
            let steps = config::load(&hub, file).await.map_err(|failed| failed.why)?;
            info!("{}: carried out all of it, in {}", file.display(), counted(steps.len()));
        }
        info!("listening at {}", path.display());
        Ok(Self { options, hub, socket, listener, web })
    }

    /// Returns the hub through which the daemon's tasks use the host.
    #[must_use]
    pub const fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Returns the address at which the daemon serves metrics and web page; `None` if it serves
    /// neither.
    #[must_use]
    pub fn web_address(&self) -> Option<SocketAddr> {
        self.web.as_ref().and_then(|web| web.local_addr().ok())
    }

    /// Serves clients until the future that `until` returns is ready (for example because of a
    /// signal), then shuts down cleanly.
    pub async fn serve<F: Future<Output = ()>>(
        self,
        until: impl FnOnce(Hub, Option<PathBuf>) -> F,
    ) {
        let Self { options, hub, socket, listener, web } = self;
        let watched = Watched::new(hub.clone());
        let mut until = pin!(until(hub.clone(), options.config.clone()));
        let (end, ending) = watch::channel(false);
        let mut clients = Clients {
            hub: hub.clone(),
            watched: watched.clone(),
            traffic: Traffic::new(hub.clone()),
            limits: options.limits,
            places: Arc::new(Semaphore::new(options.limits.clients)),
            ending: ending.clone(),
            sessions: JoinSet::new(),
        };
        clients.sessions.spawn(lateness::watch(hub.clone(), ending.clone()));
        clients.sessions.spawn(interfaces::watch(hub.clone(), ending.clone()));
        if let Some(web) = web {
            let limits = http::Limits::default().within(getrlimit(Resource::Nofile).current);
            let end = async move { drop(ending.clone().wait_for(|ending| *ending).await) };
            let sampler = Arc::clone(watched.sampler());
            let fleet = options.fleet.as_ref().map(|fleet| http::FleetTable::new(&fleet.engine));
            let control = options.web_control;
            clients.sessions.spawn(http::serve(web, sampler, fleet, control, limits, end));
        }
        // The thread goes on until the devices are closed: their rates stay as they are when it has
        // ended.
        let _fleet = options.fleet.and_then(|fleet| {
            Fleet::start(fleet, hub.clone())
                .inspect_err(|error| error!("cannot start the fleet's thread: {error}"))
                .ok()
        });
        notify::tell(notify::READY);
        let mut accepting = Accepting::new("clients of the control socket");
        loop {
            tokio::select! {
                () = &mut until => break,
                client = listener.accept() => match client {
                    Ok((stream, _)) => {
                        accepting.succeeded();
                        clients.welcome(stream);
                    }
                    Err(error) => {
                        accepting.failed(&error);
                        sleep(PAUSE).await;
                    }
                },
                Some(_) = clients.sessions.join_next() => {}
            }
        }
        notify::tell(notify::STOPPING);
        drop(listener);
        drop(socket);
        let _ = end.send(true); // Cannot fail, because `clients` holds a receiver.
        let rest = async { while clients.sessions.join_next().await.is_some() {} };
        if timeout(GRACE, rest).await.is_err() {
            warn!("some clients did not read their replies in time");
        }
        // A command may still be using the host and may never end, so the daemon waits only a
        // limited time for its turn to close the host.
        let closed = timeout(FLUSH + GRACE, hub.with(|host| host.close(FLUSH))).await;
        if !matches!(closed, Ok(Ok(()))) {
            error!("cannot close the devices properly");
        }
        info!("ended");
    }
}

/// The clients that the daemon serves at present, and what it needs to serve more.
struct Clients {
    hub: Hub,
    watched: Watched,
    traffic: Traffic,
    limits: Limits,
    places: Arc<Semaphore>,
    ending: watch::Receiver<bool>,
    sessions: JoinSet<()>,
}

impl Clients {
    fn welcome(&mut self, stream: UnixStream) {
        let refusal = is_ours(&stream).err();
        let place = self.places.clone().try_acquire_owned().ok();
        let patience = self.limits.patience;
        match (refusal, place) {
            (None, Some(place)) => {
                let (hub, watched) = (self.hub.clone(), self.watched.clone());
                let session = Session::new(stream, hub, watched, self.traffic.clone(), self.limits);
                let ending = self.ending.clone();
                self.sessions.spawn(async move {
                    session.run(ending).await;
                    drop(place);
                });
            }
            (Some(why), _) => {
                warn!("refused a client: {why}");
                session::refuse(stream, &why, patience);
            }
            (None, None) => {
                let clients = self.limits.clients;
                warn!("refused a client: there are {clients} clients already");
                let why = format!("{clients} clients are served already; try again later");
                session::refuse(stream, &why, patience);
            }
        }
    }
}

/// Opens the address at which the daemon serves the metrics and the web page.
async fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    let listening = TcpListener::bind(address).await;
    let listener = listening
        .map_err(|error| format!("cannot listen at {address}: {error}; give another --metrics"))?;
    let address = listener.local_addr().unwrap_or(address);
    info!("metrics at http://{address}/metrics, the web page at http://{address}/");
    Ok(listener)
}

/// Returns an error unless the client runs as the daemon's user or as root.
fn is_ours(stream: &UnixStream) -> Result<(), String> {
    let peer = stream
        .peer_cred()
        .map_err(|error| format!("cannot find out the user of the client: {error}"))?;
    may_ask(peer.uid(), rustix::process::geteuid().as_raw())
}

/// Returns an error unless a client with the user ID `peer` may use a daemon that runs with the
/// user ID `own`.
fn may_ask(peer: u32, own: u32) -> Result<(), String> {
    if peer == own || peer == 0 {
        return Ok(());
    }
    Err(format!(
        "user {peer} may not use this daemon; only user {own} and root may: {}",
        socket::OWN_DAEMON
    ))
}

/// The signals that a daemon handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Follows the configuration again at each SIGHUP; returns when SIGTERM or SIGINT arrives.
    async fn wait(&mut self, hub: Hub, config: Option<PathBuf>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return info!("SIGTERM"),
                _ = self.interrupt.recv() => return info!("SIGINT"),
                _ = self.hangup.recv() => {}
            }
            tokio::select! {
                () = self.end() => return,
                () = reload(&hub, config.as_ref()) => {}
            }
        }
    }

    /// Waits for SIGTERM or SIGINT.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => info!("SIGTERM"),
            _ = self.interrupt.recv() => info!("SIGINT"),
        }
    }
}

fn counted(steps: usize) -> String {
    format!("{steps} step{}", if steps == 1 { "" } else { "s" })
}

async fn reload(hub: &Hub, config: Option<&PathBuf>) {
    let Some(file) = config else {
        return info!("SIGHUP: nothing to read, because the daemon was started without --config");
    };
    notify::tell(&notify::reloading());
    match config::load(hub, file).await {
        Ok(steps) if steps.is_empty() => {
            info!("SIGHUP: {}: nothing has changed", file.display());
        }
        Ok(steps) => {
            info!("SIGHUP: {}: carried out all of it, in {}", file.display(), counted(steps.len()));
            for step in steps {
                info!("SIGHUP: {step}");
            }
        }
        Err(Unloaded { why, is_as_before: true }) => {
            error!("SIGHUP: the devices stay as they were: {why}");
        }
        Err(Unloaded { why, is_as_before: false }) => {
            error!("SIGHUP: not all devices are as they were: {why}");
        }
    }
    notify::tell(notify::READY);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_step_is_no_steps() {
        assert_eq!([0, 1, 2].map(counted), ["0 steps", "1 step", "2 steps"]);
    }

    #[test]
    fn only_the_user_and_root_may_ask() {
        for (peer, own, may) in
            [(7, 7, true), (0, 7, true), (0, 0, true), (7, 0, false), (7, 8, false)]
        {
            assert_eq!(may_ask(peer, own).is_ok(), may, "{peer} asks {own}");
        }
        // A daemon that runs with user ID 1 does not accept clients with other user IDs, except
        // root's.
        let why = may_ask(1, 5).expect_err("it is another user");
        let start =
            "user 1 may not use this daemon; only user 5 and root may: start one of your own";
        assert!(why.starts_with(start) && why.ends_with(" ONRAMP_SOCKET=PATH"), "{why}");
    }

    /// The default limits are those that docs/json.md documents.
    #[test]
    fn limits_are_those_that_are_documented() {
        let Limits { clients, line, rate, patience } = Limits::default();
        assert_eq!((clients, line, rate, patience.as_secs()), (2_048, 1 << 20, 5_000, 10));
    }
}
