//! The task that carries a host's messages.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::time::Duration;

use onramp_core::{Clock as _, Instant};
use onramp_fleet::{Act, Answer, Bursts, Definitions, Host, Joined, Place, Refusal, TICK, Traffic};
use tokio::sync::watch;

use crate::clock::{Alarm, BootClock};
use crate::engine::{Engine, EngineError, random};
use crate::limits::Entry;

/// A host's membership in a limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Name of the limit.
    pub limit: String,
    /// Name of the host, another one for each host of the limit.
    pub host: String,
    /// The host's weight among the limit's hosts.
    pub weight: u32,
    /// The rate at which the host sends while it has never heard of the limit, in bytes per second.
    /// It must not be more than what the limit guarantees to each host.
    pub floor: u64,
}

/// What a host knows of its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The host has never heard of it, so it sends at [`Member::floor`].
    #[default]
    Unknown,
    /// The limit is there.
    Set,
    /// An operator deleted the limit or lets it have no hosts of its own. The host may not send.
    Gone,
}

/// How fast a host may send, and what it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The rate at which the host may send until [`until`](Self::until), in bytes per second.
    pub rate: u64,
    /// The rate at which the host may send after that, in bytes per second.
    pub floor: u64,
    /// How many bytes the host may send at once beyond its rate: see [`burst_at`](Self::burst_at).
    pub bursts: Bursts,
    /// When the host's lease ends, by the [`BootClock`]. A sender that looks at it keeps the limit
    /// even if the task that renews the lease does not come to run.
    pub until: Instant,
    /// What the host knows of the limit.
    pub limit: Limit,
    /// When the engine last answered, by the [`BootClock`].
    pub answered: Option<Instant>,
    /// Why the ledger refused the last report, if it did.
    pub refused: Option<Refusal>,
    /// Why there was no answer to the last message, if there was none.
    pub error: Option<EngineError>,
}

impl Share {
    /// Returns the rate at which the host may send at `now`, by the [`BootClock`].
    #[must_use]
    pub const fn rate_at(&self, now: Instant) -> u64 {
        if now.0 < self.until.0 { self.rate } else { self.floor }
    }

    /// Returns how many bytes the host may send at once at `now`, by the [`BootClock`], beyond
    /// [`rate_at`](Self::rate_at); `None`: as many as its own qdisc says. The sender keeps the
    /// bytes that it may still send, up to this number.
    #[must_use]
    pub fn burst_at(&self, now: Instant) -> Option<u64> {
        self.bursts.of(self.rate_at(now))
    }

    /// Returns for how long [`rate_at`](Self::rate_at) stays as it is at `now`, and the rate and
    /// the burst afterwards; `None`: until the share changes. A sender that changes to them by
    /// itself keeps the limit however late the task is that renews the lease.
    #[must_use]
    pub fn ends_after(&self, now: Instant) -> Option<(Duration, u64, Option<u64>)> {
        let lasts = Duration::from_nanos(self.until.since(now));
        (now < self.until).then(|| (lasts, self.floor, self.bursts.of(self.floor)))
    }
}

type Asked = Pin<Box<dyn Future<Output = Result<News, EngineError>> + Send>>;

/// Keeps a host in a limit: reports to the engine, follows the operators' changes of the limit, and
/// says how fast the host may send. Goes on until nobody holds the sender of `traffic`: what the
/// host sends and wants to send, for which a [`Meter`](onramp_fleet::Meter) is one way to find out.
///
/// `set` gets the host's share each time that it changes. When `set` returns, the host must be
/// sending no faster than the share allows: only then this function tells the engine, which may
/// give the difference to others.
///
/// # Errors
///
/// An error of the system if it has no timer. Then, and if the task ends in another way, the host's
/// last share runs out at its [`until`](Share::until).
pub async fn drive(
    engine: Engine,
    member: Member,
    mut traffic: watch::Receiver<Traffic>,
    set: impl FnMut(&Share) + Send,
) -> io::Result<()> {
    let share = Share { floor: member.floor, ..Share::default() };
    let look = Look { engine, member, known: BTreeMap::new() };
    let mut task = Task { look, share, error: None, set, alarm: Alarm::new()? };
    (task.set)(&task.share);
    loop {
        let found = tokio::select! {
            found = task.look.clone().find(BTreeMap::new()) => found,
            () = closed(&mut traffic) => return Ok(()),
        };
        if let Some(joined) = task.note(found) {
            if task.follow(joined, &mut traffic).await?.is_break() {
                return Ok(());
            }
        } else {
            tokio::select! {
                rung = task.alarm.until(BootClock.now() + TICK) => rung?,
                () = closed(&mut traffic) => return Ok(()),
            }
        }
    }
}

/// Waits until nobody holds the sender.
async fn closed(traffic: &mut watch::Receiver<Traffic>) {
    while traffic.changed().await.is_ok() {}
}

/// What the engine has of a limit.
enum Found {
    /// What a host has to know about the limit, and the entries of it and of the limits above.
    Set(Joined, BTreeMap<String, String>),
    Gone,
    Unknown,
}

/// What a message has brought.
enum News {
    Answer(Result<Answer, Refusal>),
    /// An operator has changed limits on the way.
    Change(Found),
}

/// What is needed to find a limit.
#[derive(Clone)]
struct Look {
    engine: Engine,
    member: Member,
    /// The entries of the limits on the way, by name.
    known: BTreeMap<String, String>,
}

impl Look {
    /// Finds the limit and those above it. Asks the engine only for entries that are not among
    /// those just `read`: a message and its answer may need so long that the host gives up before a
    /// chain of them is through.
    async fn find(self, read: BTreeMap<String, String>) -> Result<Found, EngineError> {
        let (mut known, mut chain) = (BTreeMap::new(), Vec::new());
        let mut next = Some(self.member.limit.clone());
        while let Some(name) = next {
            let text = match read.get(&name) {
                Some(text) => Some(text.clone()),
                None => self.engine.entry(&name).await?,
            };
            let Some(text) = text else { return Ok(Found::Unknown) };
            let Some(entry) = Entry::from_text(&text) else { return Ok(Found::Gone) };
            next = entry.definition.parent.clone();
            if known.insert(name.clone(), text).is_some() {
                return Err(EngineError::Damaged(name));
            }
            chain.push((name, entry));
        }
        let mut all = Definitions::new();
        for (name, entry) in chain.iter().rev() {
            all.set(name, entry.definition.clone())?;
        }
        let Member { limit, host, weight, .. } = &self.member;
        let Some(mut joined) = all.joined(limit, host, *weight) else { return Ok(Found::Gone) };
        // What is set aside for the other parts of the limits above stands in their entries.
        let limits = joined.way.iter_mut().filter(|place| place.is_limit);
        for (place, (_, entry)) in limits.zip(&chain) {
            place.remembered.reserve = entry.reserve;
        }
        Ok(Found::Set(joined, known))
    }

    /// Carries a message to the engine and the answer back.
    async fn carry(self, way: Vec<Place>, act: Act) -> Result<News, EngineError> {
        let reply = self.engine.ask(&way, &act).await?;
        let limits = way.iter().filter(|place| place.is_limit);
        let read = limits.zip(reply.entries);
        let read = read.filter_map(|(place, entry)| Some((place.name.clone(), entry?)));
        let read: BTreeMap<_, _> = read.collect();
        if read.iter().all(|(name, entry)| self.known.get(name) == Some(entry)) {
            return Ok(News::Answer(reply.result));
        }
        // The answer may be a grant of ledgers that the host is about to leave, so nobody gets it.
        self.engine.note(&read);
        self.find(read).await.map(News::Change)
    }
}

struct Task<S> {
    look: Look,
    share: Share,
    /// Why there was no answer to the last message.
    error: Option<EngineError>,
    set: S,
    alarm: Alarm,
}

impl<S: FnMut(&Share) + Send> Task<S> {
    /// Keeps the host in the limit until the limit is gone, or until nobody holds the sender of
    /// `traffic` any more (`Break`).
    async fn follow(
        &mut self,
        joined: Joined,
        traffic: &mut watch::Receiver<Traffic>,
    ) -> io::Result<ControlFlow<()>> {
        let name = self.look.member.host.clone();
        let mut host = Host::new(&name, random(), joined, BootClock.now());
        let mut asked: Option<(bool, Asked)> = None;
        loop {
            let Traffic { used, demand } = *traffic.borrow_and_update();
            let now = BootClock.now();
            host.set_demand(now, demand);
            host.set_used(used);
            let act = host.poll(now);
            // The host lowers its rate first, and then says so.
            self.publish(&host);
            if let Some(act) = act {
                let is_report = matches!(act, Act::Report(_));
                let carried = self.look.clone().carry(host.joined().way.clone(), act);
                asked = Some((is_report, Box::pin(carried)));
            }
            let wake = host.next(BootClock.now());
            tokio::select! {
                biased;
                news = answered(&mut asked) => {
                    let is_report = asked.take().is_some_and(|(is_report, _)| is_report);
                    if !self.take(&mut host, is_report, news) {
                        return Ok(ControlFlow::Continue(()));
                    }
                }
                changed = traffic.changed() => if changed.is_err() {
                    return Ok(ControlFlow::Break(()));
                },
                rung = self.alarm.until(wake) => rung?,
            }
        }
    }

    /// Takes what the last message has brought. Returns whether the host is still in the limit.
    fn take(&mut self, host: &mut Host, is_report: bool, news: Result<News, EngineError>) -> bool {
        let now = BootClock.now();
        self.error = None;
        match news {
            Ok(News::Answer(result)) if is_report => host.reported(now, result),
            Ok(News::Answer(Ok(answer))) => host.climbed(now, answer),
            Ok(News::Answer(Err(_))) => host.failed(),
            Ok(News::Change(found)) => {
                // Before the way becomes another one, the host forgets what it wanted to send.
                host.failed();
                if let Some(joined) = self.note(Ok(found)) {
                    host.set_joined(joined);
                }
                return self.share.limit == Limit::Set;
            }
            Err(error) => {
                host.failed();
                self.error = Some(error);
            }
        }
        true
    }

    /// Notes what was found, and returns what the host has to know if there is a limit.
    fn note(&mut self, found: Result<Found, EngineError>) -> Option<Joined> {
        self.error = None;
        let mut share = self.share.clone();
        let mut set = None;
        match found {
            Ok(Found::Set(joined, known)) => {
                self.look.known = known;
                share.limit = Limit::Set;
                set = Some(joined);
            }
            Ok(Found::Gone) => {
                self.look.known.clear();
                share = Share { limit: Limit::Gone, ..Share::default() };
            }
            Ok(Found::Unknown) => share.answered = Some(BootClock.now()),
            Err(error) => self.error = Some(error),
        }
        self.update(share);
        set
    }

    fn publish(&mut self, host: &Host) {
        let now = BootClock.now();
        // What is set aside for guarantees covers as many hosts as the limit may have. So a host
        // that is one too many does not send, nor does a host that waits for its first answer.
        let is_full = host.refused() == Some(Refusal::Full) && now >= host.until();
        let is_unheard = host.answered().is_none() && self.error.is_none();
        let is_out = is_full || is_unheard;
        self.update(Share {
            rate: if is_out { 0 } else { host.rate(now) },
            floor: if is_out { 0 } else { host.floor() },
            bursts: host.joined().bursts.clone(),
            until: host.until(),
            limit: Limit::Set,
            answered: host.answered(),
            refused: host.refused(),
            error: None,
        });
    }

    fn update(&mut self, mut share: Share) {
        share.error.clone_from(&self.error);
        if share != self.share {
            self.share = share;
            (self.set)(&self.share);
        }
    }
}

/// Waits for the answer to the message; for ever if there is none.
async fn answered(asked: &mut Option<(bool, Asked)>) -> Result<News, EngineError> {
    match asked {
        Some((_, asked)) => asked.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use onramp_fleet::Definition;

    use super::*;

    /// Other hosts may not have heard yet that the guaranteed rate is higher.
    #[tokio::test]
    async fn a_raised_floor_waits_for_the_ledger() {
        let joined = |floor| {
            let (rate, weight, guaranteed, hosts, burst, parent) = (1_000, 1, 0, 10, None, None);
            let limit = Definition { rate, weight, guaranteed, hosts, floor, burst, parent };
            let mut all = Definitions::new();
            all.set("t", limit).expect("a sound limit");
            all.joined("t", "h", 1).expect("it has hosts")
        };
        let engine = Engine::new("redis://127.0.0.1:1", None).expect("a URL");
        let member = Member { limit: "t".into(), host: "h".into(), weight: 1, floor: 0 };
        let look = Look { engine, member, known: BTreeMap::new() };
        let alarm = Alarm::new().expect("a timer");
        let (share, error) = (Share::default(), Some(EngineError::Busy));
        let mut task = Task { look, share, error, set: |_: &Share| {}, alarm };
        let mut host = Host::new("h", 1, joined(1), BootClock.now());
        host.set_joined(joined(90));
        task.publish(&host);
        assert_eq!(task.share.rate_at(BootClock.now()), 1);
    }
}
