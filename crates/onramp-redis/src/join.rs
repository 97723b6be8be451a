//! Links whose rates follow limits.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::{fmt, io};

use onramp::view::Counted;
use onramp::{Handle, Link, PortError};
use onramp_core::Clock as _;
use onramp_fleet::{Meter, TICK, Traffic};
use tokio::runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::clock::BootClock;
use crate::drive::{Member, Share, drive};
use crate::engine::Engine;

/// The options that are the rate of everything that passes a qdisc or class: of `htb` and `tbf`,
/// and of `cake`. (`maxrate` of `fq` is the rate of each flow.)
const RATES: [&str; 3] = ["rate", "ceil", "bandwidth"];

/// Error: a qdisc or class of a link cannot follow a limit.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// The link has no such qdisc or class, or no longer, or it has no `rate`, `ceil` or
    /// `bandwidth` that can be changed.
    NoRate(Handle),
    /// The link did not take a rate: the reason.
    Link(PortError),
    /// The system has no thread or no timer to give.
    System(io::Error),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRate(place) => {
                write!(f, "{place}: no such qdisc or class, or it has no rate that can be changed")
            }
            Self::Link(error) => write!(f, "the link did not take a rate: {error}"),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for JoinError {}

/// A qdisc or class of a link that follows its share of a limit, until this is dropped.
///
/// From then on nobody renews the host's lease, so the rate is set to one byte per second; give the
/// qdisc or class another rate to go on without the limit.
#[derive(Debug)]
pub struct Membership {
    share: watch::Receiver<Share>,
    /// Dropped to end the thread.
    end: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), JoinError>>,
}

impl Membership {
    /// Returns the present share. It says, too, whether the engine answers.
    #[must_use]
    pub fn share(&self) -> Share {
        self.share.borrow().clone()
    }

    /// Whether the qdisc or class does not follow the limit any more, because of an error that
    /// [`leave`](Self::leave) returns.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Leaves the limit, and waits until the rate is set to one byte per second.
    ///
    /// # Errors
    ///
    /// The [`JoinError`] for which the qdisc or class had stopped following the limit before.
    ///
    /// # Panics
    ///
    /// If the thread that followed the limit has panicked.
    pub fn leave(self) -> Result<(), JoinError> {
        drop(self.end);
        self.thread.join().expect("the thread does not panic")
    }
}

/// Lets the rate of a qdisc (`M:0`) or class of a link follow the host's share of a limit. What it
/// wants to send is found out from its counters, ten times a second, as the daemon does.
///
/// The rate is that of `htb` (`rate`, and `ceil` if it is given), `tbf` (`rate`) or `cake`
/// (`bandwidth`). It is one byte per second until the engine answers. A thread of its own speaks to
/// the engine and sets the rate; threads that send through the link wait for neither.
///
/// ```no_run
/// use onramp::{Handle, Link};
/// use onramp_redis::{Engine, Member, join};
///
/// # fn example(link: Link) -> Result<(), Box<dyn std::error::Error>> {
/// link.change("qdisc replace root handle 1: tbf rate 1mbit burst 15kb latency 50ms")?;
/// let engine = Engine::new("redis://engine.example", None)?;
/// let (limit, host) = ("tenant-a".to_owned(), "media-7".to_owned());
/// let member = Member { limit, host, weight: 1, floor: 125_000 };
/// let membership = join(&link, Handle::new(1, 0), engine, member)?;
/// println!("{} bytes/s", membership.share().rate);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`JoinError`]. Whether the engine answers is not found out here; the share says it.
pub fn join(
    link: &Link,
    place: Handle,
    engine: Engine,
    member: Member,
) -> Result<Membership, JoinError> {
    let follower = Follower { link: link.clone(), place };
    // A program that asks for something impossible hears of it here.
    follower.set(0)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(JoinError::System)?;
    let (told, share) = watch::channel(Share { floor: member.floor, ..Share::default() });
    let (end, ended) = oneshot::channel::<()>();
    let run = move || {
        // However the thread ends, nobody renews the lease any more.
        let _silence = Silence(follower.clone());
        runtime.block_on(async {
            tokio::select! {
                over = follower.follow(engine, member, told) => over,
                _ = ended => Ok(()),
            }
        })
    };
    let thread = thread::Builder::new().name("onramp-fleet".to_owned()).spawn(run);
    Ok(Membership { share, end, thread: thread.map_err(JoinError::System)? })
}

#[derive(Clone)]
struct Follower {
    link: Link,
    place: Handle,
}

impl Follower {
    async fn follow(
        &self,
        engine: Engine,
        member: Member,
        told: watch::Sender<Share>,
    ) -> Result<(), JoinError> {
        let (traffic, seen) = watch::channel(Traffic::default());
        let (failed, mut failure) = mpsc::unbounded_channel();
        let told = Arc::new(told);
        let tell = Arc::clone(&told);
        let set = move |share: &Share| {
            if let Err(error) = self.set(share.rate_at(BootClock.now())) {
                // Nobody listens if another error has come before.
                let _ = failed.send(error);
            }
            tell.send_replace(share.clone());
        };
        tokio::select! {
            over = drive(engine, member, seen, set) => over.map_err(JoinError::System),
            error = failure.recv() => error.map_or(Ok(()), Err),
            error = self.measure(&traffic, &told) => Err(error),
        }
    }

    /// Finds out again and again what the qdisc or class wants to send. Returns when it is gone.
    async fn measure(
        &self,
        traffic: &watch::Sender<Traffic>,
        share: &watch::Sender<Share>,
    ) -> JoinError {
        let mut meter = Meter::new();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Some(counted) = Counted::at(&self.link.tree_views(), self.place) else {
                return JoinError::NoRate(self.place);
            };
            let now = BootClock.now();
            let rate = share.borrow().rate_at(now);
            traffic.send_replace(meter.read(now, counted, rate));
        }
    }

    /// Sets the rate, in bytes per second. No rate is zero: for zero, as good as nothing passes.
    fn set(&self, rate: u64) -> Result<(), JoinError> {
        let text = format!("{}bps", rate.max(1));
        let setup = self.link.setup();
        let keys = RATES.iter().filter_map(|word| setup.rate_option(self.place, word));
        let edits: Vec<(&str, &str)> = keys.map(|key| (key, text.as_str())).collect();
        let line = setup.line("adjust", self.place, &edits).filter(|_| !edits.is_empty());
        let line = line.ok_or(JoinError::NoRate(self.place))?;
        match self.link.change(line.as_str()) {
            // The port makes the change when its device lets it go on.
            Ok(_) | Err(PortError::Late(_)) => Ok(()),
            Err(error) => Err(JoinError::Link(error)),
        }
    }
}

/// When dropped, sets the rate of a qdisc or class to nothing.
struct Silence(Follower);

impl Drop for Silence {
    fn drop(&mut self) {
        // A link that takes no rate, or that has no such class, has ended or was changed by hand.
        let _ = self.0.set(0);
    }
}
