//! Links whose rates follow limits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, io};

use onramp::cmd::Operand as _;
use onramp::view::Counted;
use onramp::{Handle, Instant, Lease, Link, PortError, Rate, Setup};
use onramp_core::{BurstOption, Clock as _};
use onramp_fleet::{Meter, TICK, Traffic, is_name};
use tokio::runtime;
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::clock::BootClock;
use crate::drive::{Member, Share, drive};
use crate::engine::Engine;

/// The options that are the rate of everything that passes a qdisc or class: of `htb` and `tbf`,
/// and of `cake`. (`maxrate` of `fq` is the rate of each flow.)
const RATES: [&str; 3] = ["rate", "ceil", "bandwidth"];

/// For how often, and how long after one another, the end of a membership tries to set the rate.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Error: a qdisc or class of a link cannot follow a limit.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// The link has no such qdisc or class, or no longer, or it has no `rate`, `ceil` or
    /// `bandwidth` that can be changed.
    NoRate(Handle),
    /// No limit can have this name.
    Name(String),
    /// Packets could pass the qdisc or class faster than its rate says: why.
    Escapes(Handle, &'static str),
    /// The link has several ports, and each of them would send at the whole share.
    Ports(usize),
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
            Self::Name(name) => {
                write!(f, "limit name {name:?}: expected 1 to 64 letters, digits, '.', '_' or '-'")
            }
            Self::Escapes(place, why) => write!(f, "{place}: {why}"),
            Self::Ports(ports) => write!(
                f,
                "the link has {ports} ports, and each would send at the whole share: give it one"
            ),
            Self::Link(error) => write!(f, "the link did not take a rate: {error}"),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for JoinError {}

/// A qdisc or class of a link that follows its share of a limit, until this is dropped.
///
/// From then on nobody renews the host's lease, so a thread sets the rate to one byte per second.
/// Call [`leave`](Self::leave) to wait for that, before the qdisc or class gets another rate or
/// joins again. A membership keeps its link open. Two memberships of one qdisc or class take turns
/// at setting its rate, so make one at a time.
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

    /// Leaves the limit, and waits until the rate is set to one byte per second. A device that
    /// blocks delays this by at most a few seconds.
    ///
    /// # Errors
    ///
    /// The [`JoinError`] for which the qdisc or class had stopped following the limit before, or
    /// for which its rate could not be set at the end.
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
/// (`bandwidth`). Until the engine answers, it is [`Member::floor`]: the limit has that much set
/// aside for each host that it may have. A thread of its own speaks to the engine and sets the
/// rate; threads that send through the link wait for neither. If the limit has a burst, the qdisc
/// or class gets its part of it in place of its own `burst` (a `cake` has none), and its own again
/// when the membership or the limit's burst ends. Another rate that the program gives to the qdisc
/// or class lasts for a tenth of a second. The link has one port; if it gets another one, the
/// membership ends within a tenth of a second.
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
    let (is_stale, own, lent) = Default::default();
    let follower = Follower { link: link.clone(), place, is_stale, own, lent };
    if !is_name(&member.limit) {
        return Err(JoinError::Name(member.limit));
    }
    // Tasks of the connection run in the worker, so that they go on while this thread waits for the
    // link.
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(JoinError::System)?;
    // A program that asks for something impossible hears of it here.
    follower.follow_share(&Share::default())?;
    let (told, share) = watch::channel(Share { floor: member.floor, ..Share::default() });
    let (end, ended) = oneshot::channel::<()>();
    let run = move || {
        // However the thread ends, nobody renews the lease any more.
        let silence = Silence(follower.clone());
        let over = runtime.block_on(async {
            tokio::select! {
                over = follower.follow(engine, member, told) => over,
                _ = ended => Ok(()),
            }
        });
        // It would wait for a name that is being looked up.
        runtime.shutdown_background();
        let silenced = silence.now();
        over.and(silenced)
    };
    let thread = thread::Builder::new().name("onramp-fleet".to_owned()).spawn(run);
    Ok(Membership { share, end, thread: thread.map_err(JoinError::System)? })
}

#[derive(Clone)]
struct Follower {
    link: Link,
    place: Handle,
    /// Whether the port may have another rate than the link's description says.
    is_stale: Arc<AtomicBool>,
    /// While the burst is a part of the limit's: the options that are the burst, and their values
    /// before.
    own: Arc<Mutex<Option<Vec<BurstOption>>>>,
    /// For how long the link has the present rate, and what it has afterwards; `None`: it keeps it.
    lent: Arc<Mutex<Option<(Lease, Part)>>>,
}

impl Follower {
    async fn follow(
        &self,
        engine: Engine,
        member: Member,
        told: watch::Sender<Share>,
    ) -> Result<(), JoinError> {
        let (traffic, seen) = watch::channel(Traffic::default());
        let told = Arc::new(told);
        let tell = Arc::clone(&told);
        let set = move |share: &Share| {
            // An error comes again when the rate is looked at in the next tick.
            let _ = self.follow_share(share);
            tell.send_replace(share.clone());
        };
        tokio::select! {
            // The end of a lease comes first.
            biased;
            over = drive(engine, member, seen, set) => over.map_err(JoinError::System),
            error = self.look(&traffic, &told) => Err(error),
        }
    }

    /// Looks again and again whether the rate is the share, and what the qdisc or class wants to
    /// send. Returns when it cannot follow the limit any more.
    async fn look(
        &self,
        traffic: &watch::Sender<Traffic>,
        share: &watch::Sender<Share>,
    ) -> JoinError {
        let mut meter = Meter::new();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = BootClock.now();
            let present = share.borrow().clone();
            let rate = present.rate_at(now);
            // The program may have given it another rate, or an earlier attempt may have failed.
            match self.follow_share(&present) {
                Ok(()) | Err(JoinError::Link(PortError::Blocked(_))) => {}
                Err(error) => return error,
            }
            // A port that does not answer now may answer at the next tick.
            let Ok(views) = self.link.whole_tree_views() else { continue };
            if let Some(counted) = Counted::at(&views, self.place) {
                traffic.send_replace(meter.read(now, counted, rate));
            }
        }
    }

    /// Sets the rate and the burst to a share, until it ends, if the share would be kept.
    fn follow_share(&self, share: &Share) -> Result<(), JoinError> {
        let ports = self.link.ports();
        if ports > 1 {
            return Err(JoinError::Ports(ports));
        }
        if let Some(why) = self.link.setup().escapes(self.place, &self.keys()) {
            return Err(JoinError::Escapes(self.place, why));
        }
        // Read first: whatever passes until the next line makes the end an earlier one.
        let at = self.link.now();
        let now = BootClock.now();
        let ends = share.ends_after(now);
        let ends = ends.map(|(lasts, rate, burst)| (at + lasts, (rate, burst)));
        self.set((share.rate_at(now), share.burst_at(now)), ends)
    }

    /// Returns the names of the rates.
    fn keys(&self) -> Vec<&'static str> {
        let setup = self.link.setup();
        RATES.iter().filter_map(|word| setup.rate_option(self.place, word)).collect()
    }

    /// Sets the rate, in bytes per second, and the burst, in bytes, if they are others; if the link
    /// has them for a time already, moves only the end. No rate is zero: for zero, as good as
    /// nothing passes.
    fn set(&self, part: Part, ends: Option<(Instant, Part)>) -> Result<(), JoinError> {
        let setup = self.link.setup();
        let keys = self.keys();
        if keys.is_empty() {
            return Err(JoinError::NoRate(self.place));
        }
        let after = ends.map(|(_, after)| self.edits(&setup, &keys, after));
        let edits = self.edits(&setup, &keys, part);
        let edits = borrowed(&edits);
        let has_it = setup.line("add", self.place, &edits) == setup.line("add", self.place, &[]);
        let line = setup.line("adjust", self.place, &edits).unwrap_or_default();
        // The link would copy a description that somebody holds.
        drop(setup);
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let lasts = match (ends, &*lent) {
            (None, None) => true,
            (Some((end, after)), Some((lease, then))) => after == *then && lease.renew(end),
            _ => false,
        };
        // Relaxed: only this membership's thread uses it after `join` has returned.
        if !self.is_stale.swap(false, Ordering::Relaxed) && has_it && lasts {
            return Ok(());
        }
        *lent = None;
        let done = if let (Some((end, then)), Some(after)) = (ends, after) {
            let begun = self.link.begin_lease(self.place, &edits, end, &borrowed(&after));
            begun.and_then(|begun| {
                let Some((lease, changing)) = begun else { return Ok(()) };
                *lent = Some((lease, then));
                changing.wait()
            })
        } else {
            self.link.change(line.as_str()).map(|_| ())
        };
        match done {
            // The port makes the change when its device lets it go on.
            Ok(()) | Err(PortError::Late(_)) => {
                if part.1.is_none() {
                    *self.own.lock().unwrap_or_else(PoisonError::into_inner) = None;
                }
                Ok(())
            }
            Err(error) => {
                // Relaxed: as above.
                self.is_stale.store(true, Ordering::Relaxed);
                Err(JoinError::Link(error))
            }
        }
    }

    /// Returns the options that are a part, with the values that they must have.
    fn edits(&self, setup: &Setup, keys: &[&'static str], (rate, burst): Part) -> Edits {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = Rate::bytes_per_second(rate.max(1)).write(&mut text);
        let rates = keys.iter().map(|key| (*key, text.clone()));
        rates.chain(self.bursts(setup, keys, burst)).collect()
    }
}

/// A rate, in bytes per second, and a burst, in bytes (`None`: what it was before).
type Part = (u64, Option<u64>);
/// The names and values of options.
type Edits = Vec<(&'static str, String)>;

fn borrowed(edits: &Edits) -> Vec<(&str, &str)> {
    edits.iter().map(|(key, text)| (*key, text.as_str())).collect()
}

impl Follower {
    /// Returns the options that are the burst, with the values that they must have.
    fn bursts(&self, setup: &Setup, rates: &[&str], burst: Option<u64>) -> Edits {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        match burst {
            None => {
                let own = own.iter().flatten();
                own.map(|option| (option.key, option.given.clone())).collect()
            }
            Some(bytes) => {
                let options = setup.burst_options(self.place, rates);
                let texts = options.iter().map(|it| (it.key, it.text(bytes))).collect();
                own.get_or_insert(options);
                texts
            }
        }
    }
}

/// When dropped, sets the rate of a qdisc or class to nothing.
struct Silence(Follower);

impl Silence {
    fn now(&self) -> Result<(), JoinError> {
        for _ in 1..TRIES {
            match self.0.set((0, None), None) {
                Err(JoinError::Link(PortError::Blocked(_))) => thread::sleep(PAUSE),
                done => return done,
            }
        }
        self.0.set((0, None), None)
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // A link that takes no rate, or that has no such class, has ended or was changed by hand.
        let _ = self.now();
    }
}
