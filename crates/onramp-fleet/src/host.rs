//! A host's side: what the host tells the ledgers, and how fast it may send.

use onramp_core::Instant;

use crate::burst::Bursts;
use crate::ledger::{Answer, HOLD, MemberView, Place, Refusal, Report, TICK};
use crate::{Claim, divide};

/// A limit that a host has joined, with everything that the host has to know about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Joined {
    /// The ledgers from the limit (or the host's group in it) to the root of the tree.
    pub way: Vec<Place>,
    /// For each place on the way, the weight of its claim in the ledger above and the rate that is
    /// guaranteed to it there, in bytes per second. Only limits have them; a group's claim is the
    /// sum of its members' claims.
    pub claims: Vec<(u32, u64)>,
    /// The host's weight among the hosts of the limit.
    pub weight: u32,
    /// The host's guaranteed rate, in bytes per second: the rate at which it sends while it cannot
    /// reach the engine.
    pub floor: u64,
    /// How much all hosts of the limit, and of the limits above, may send at once.
    pub bursts: Bursts,
}

/// A message for the engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Call [`Book::report`](crate::Book::report) and hand the result to [`Host::reported`].
    Report(Report),
    /// Call [`Book::climb`](crate::Book::climb) and hand the answer to [`Host::climbed`].
    Climb {
        /// The place whose ledger is meant.
        at: usize,
        /// What the members of that ledger claim together.
        claim: Claim,
        /// The share that they should have together; `None` if the host has to see the ledger above
        /// first.
        want: Option<u64>,
    },
}

/// One host's part in one limit, without a clock or a socket: the caller carries messages to the
/// engine and answers back, in any way and as late as it likes, and asks for the rate.
///
/// Use: every time that [`next`](Self::next) says, call [`poll`](Self::poll), send what it returns,
/// and hand the answer to [`reported`](Self::reported) or [`climbed`](Self::climbed); call
/// [`failed`](Self::failed) if there will be no answer. After every call, and at the time that
/// `next` says, set the sender's rate to [`rate`](Self::rate).
///
/// The host computes its own share from the claims of all members of its ledger, and nobody tells
/// it. It lowers its rate at once and then says so; it raises its rate only after the ledger has
/// found room. Without an answer it keeps its share for [`HOLD`], counted from the moment it
/// *sent* the last report that was answered, and then sends at its guaranteed rate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    name: String,
    life: u64,
    joined: Joined,
    demand: u64,
    used: u64,
    turn: u64,
    /// The guaranteed rate, as far as the ledger knows of it.
    sure: u64,
    /// What the ledger granted, and until when.
    held: u64,
    until: Instant,
    /// What this host found to be its share.
    target: u64,
    asked: Option<Asked>,
    /// What is to be sent next, before the next tick.
    then: Option<Then>,
    /// Whether the last answer was that to a report. A climb then waits for no other report.
    has_reported: bool,
    /// When the last tick was, and when the next one is.
    ticked: Instant,
    next_tick: Instant,
    /// Whether a changed demand made the next tick an earlier one.
    is_early: bool,
    /// The members of the ledger at the place that is climbed from.
    beneath: Vec<MemberView>,
    due: Option<usize>,
    refused: Option<Refusal>,
    answered: Option<Instant>,
}

/// What to send next, before the next tick.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Then {
    /// The tick's second report, with the share found from the answer to the first.
    Report,
    Climb {
        at: usize,
        claim: Claim,
        want: Option<u64>,
    },
}

/// A message that has no answer yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asked {
    sent: Instant,
    /// Number and `want` of a report; `None` for a climb.
    report: Option<(u64, u64)>,
    /// Whether the report is the tick's second one.
    again: bool,
    climb: Option<(usize, Claim, bool)>,
}

impl Host {
    /// Makes the part of the host `name` in a limit. `life` is a random number, different each time
    /// that the host's program begins. The first report is due at `now`.
    #[must_use]
    pub fn new(name: &str, life: u64, joined: Joined, now: Instant) -> Self {
        let floor = joined.floor;
        Self {
            name: name.to_owned(),
            life,
            joined,
            demand: 0,
            used: 0,
            turn: 0,
            sure: floor,
            held: floor,
            until: now,
            target: floor,
            asked: None,
            then: None,
            has_reported: false,
            ticked: Instant(0),
            next_tick: now,
            is_early: false,
            beneath: Vec::new(),
            due: None,
            refused: None,
            answered: None,
        }
    }

    /// Returns the rate at which the host may send at `now`, in bytes per second.
    #[must_use]
    pub fn rate(&self, now: Instant) -> u64 {
        if now >= self.until {
            return self.sure;
        }
        let want = self.asked.as_ref().and_then(|asked| asked.report).map(|(_, want)| want);
        self.held.min(want.unwrap_or(u64::MAX))
    }

    /// Returns how many bytes the host may send at once at `now`, beyond [`rate`](Self::rate);
    /// `None`: as many as its own qdisc says. Set both at the same time, and let the sender keep
    /// the bytes that it may still send, up to the new burst: then the sum of all bursts is never
    /// above the limit's, whoever gives rate to whom.
    #[must_use]
    pub fn burst(&self, now: Instant) -> Option<u64> {
        self.joined.bursts.of(self.rate(now))
    }

    /// Sets what the host wants to send from `now` on, in bytes per second. A change of the claim
    /// by more than a sixteenth is reported at once, or a quarter of a tick after the last tick,
    /// and the ticks go on from there, a little later than the caller's: so a caller that calls
    /// this in each of its own ticks makes no more reports by it. A caller that calls this more
    /// often, with another demand each time, makes up to four reports in a tick.
    pub fn set_demand(&mut self, now: Instant, demand: u64) {
        let demand = rounded(demand);
        let floor = self.joined.floor;
        let (old, new) = (self.demand.max(floor), demand.max(floor));
        if new.abs_diff(old) > old / 16 {
            let early = now.max(self.ticked + TICK / 4);
            self.is_early |= early < self.next_tick;
            self.next_tick = self.next_tick.min(early);
        }
        self.demand = demand;
    }

    /// Sets the rate at which the host sends, in bytes per second. The ledger shows it to people;
    /// no share depends on it.
    pub const fn set_used(&mut self, used: u64) {
        self.used = used;
    }

    /// Replaces what the host knows about the limit, for example because an operator changed it.
    /// The host gives up waiting for an answer, because the answer may be about another way.
    pub fn set_joined(&mut self, joined: Joined) {
        if joined != self.joined {
            self.failed();
            self.lower(&joined);
            // Until the ledger has answered, other hosts may not have heard of a higher floor.
            self.sure = self.sure.min(joined.floor);
            self.joined = joined;
        }
    }

    /// Lowers the share in the proportion in which an operator has lowered a limit on the way. If
    /// that limit is above the host's own ledger, the ledgers between would say so only after some
    /// more messages.
    fn lower(&mut self, to: &Joined) {
        let (held, target) = (self.held, self.target);
        for place in to.way.iter().filter(|place| place.is_limit) {
            let same = |it: &&Place| it.is_limit && it.name == place.name;
            let Some(old) = self.joined.way.iter().find(same) else { continue };
            let (old, new) = (old.remembered.rate, place.remembered.rate);
            if new < old {
                let part = |share: u64| {
                    let part = u128::from(share) * u128::from(new) / u128::from(old);
                    u64::try_from(part).unwrap_or(u64::MAX)
                };
                self.held = self.held.min(part(held));
                self.target = self.target.min(part(target));
            }
        }
    }

    /// Returns what the host knows about the limit.
    #[must_use]
    pub const fn joined(&self) -> &Joined {
        &self.joined
    }

    /// Returns the demand that the host reports, in bytes per second: the one set, rounded up to
    /// nine binary digits so that a small change is no news.
    #[must_use]
    pub const fn demand(&self) -> u64 {
        self.demand
    }

    /// Returns when the host's lease ends. From then on, [`rate`](Self::rate) is the guaranteed
    /// rate, if no answer comes before.
    #[must_use]
    pub const fn until(&self) -> Instant {
        self.until
    }

    /// Returns the rate at which the host may send without a lease, in bytes per second: the
    /// guaranteed rate. A guaranteed rate that an operator has raised counts as it was before until
    /// the ledger has answered, because other hosts may not have heard of it.
    #[must_use]
    pub const fn floor(&self) -> u64 {
        self.sure
    }

    /// Returns why the ledger refused the last report, if it did.
    #[must_use]
    pub const fn refused(&self) -> Option<Refusal> {
        self.refused
    }

    /// Returns when the last answer came.
    #[must_use]
    pub const fn answered(&self) -> Option<Instant> {
        self.answered
    }

    /// Returns when to call [`poll`](Self::poll) or [`rate`](Self::rate) next, if no answer comes
    /// before.
    #[must_use]
    pub fn next(&self, now: Instant) -> Instant {
        let wait = match &self.asked {
            Some(asked) => asked.sent + HOLD,
            None if self.then.is_some() => now,
            None => self.next_tick,
        };
        if now < self.until { wait.min(self.until) } else { wait }
    }

    /// Returns the message to send at `now`, if there is one. There is never more than one message
    /// without an answer.
    pub fn poll(&mut self, now: Instant) -> Option<Act> {
        if self.asked.as_ref().is_some_and(|asked| now >= asked.sent + HOLD) {
            self.failed();
        }
        if self.asked.is_some() {
            return None;
        }
        // Climbs must not keep the host from renewing its lease where each answer takes long: time
        // is left for this message and a report, if each takes less than a third of the lease.
        // Where they take longer, reports and climbs take turns.
        let must_report =
            !self.has_reported && now >= self.next_tick && now + HOLD * 2 / 3 >= self.until;
        match self.then.take_if(|then| *then == Then::Report || !must_report) {
            Some(Then::Report) => return Some(self.report(now, true)),
            Some(Then::Climb { at, claim, want }) => {
                let climb = Some((at, claim.clone(), want.is_some()));
                self.asked = Some(Asked { sent: now, report: None, again: false, climb });
                return Some(Act::Climb { at, claim, want });
            }
            None if now < self.next_tick => return None,
            None => {}
        }
        self.ticked = now;
        self.next_tick = next_tick(self.next_tick, now);
        if std::mem::take(&mut self.is_early) {
            // The caller's next look comes first.
            self.next_tick = self.next_tick + TICK / 8;
        }
        Some(self.report(now, false))
    }

    /// Takes the answer to a report. An answer that comes too late changes nothing.
    pub fn reported(&mut self, now: Instant, result: Result<Answer, Refusal>) {
        let Some(Asked { sent, report: Some((turn, want)), again, .. }) = self.asked else {
            return;
        };
        let answer = match result {
            Ok(answer) if answer.turn == turn => answer,
            Ok(_) => return,
            Err(refusal) => {
                self.refused = Some(refusal);
                return self.failed();
            }
        };
        let holding = self.rate(now);
        self.asked = None;
        let until = sent + HOLD;
        // A young ledger believed what the host said about its share. If the share has run out
        // meanwhile, another ledger may have given it to somebody.
        let believed = answer.is_young && now >= self.until;
        if now >= until || believed {
            self.held = holding;
            return;
        }
        self.refused = None;
        self.has_reported = true;
        self.answered = Some(now);
        self.held = answer.granted.min(want);
        self.sure = self.joined.floor;
        self.until = until;
        let mine = self.claim();
        self.target = self.share(&answer, &(self.name.clone(), self.life), &mine);
        self.due = answer.due;
        self.beneath = answer.members;
        if self.then.is_some() {
            // The climb that waited for this report goes on.
        } else if !again && differ(self.target, want) {
            self.then = Some(Then::Report);
        } else if self.due.is_some() {
            self.then = Some(self.climb(0));
        }
    }

    /// Takes the answer to a climb.
    pub fn climbed(&mut self, now: Instant, answer: Answer) {
        let Some((at, claim, decided)) = self.asked.as_ref().and_then(|asked| asked.climb.clone())
        else {
            return;
        };
        self.asked = None;
        self.has_reported = false;
        self.answered = Some(now);
        if decided {
            self.beneath = answer.members;
            let goes_on = self.due.is_some_and(|due| due > at) && at + 2 < self.joined.way.len();
            self.then = goes_on.then(|| self.climb(at + 1));
        } else {
            let me = (self.joined.way[at].name.clone(), 0);
            let want = self.share(&answer, &me, &claim);
            self.then = Some(Then::Climb { at, claim, want: Some(want) });
        }
    }

    /// Gives up waiting for the answer to the last message: there will be none.
    pub fn failed(&mut self) {
        if let Some((_, want)) = self.asked.take().and_then(|asked| asked.report) {
            self.held = self.held.min(want);
        }
        self.then = None;
    }

    fn report(&mut self, now: Instant, again: bool) -> Act {
        let floor = self.joined.floor;
        let want = self.target.max(floor);
        let holding = self.rate(now).min(want);
        self.turn += 1;
        let report = Some((self.turn, want));
        self.asked = Some(Asked { sent: now, report, again, climb: None });
        Act::Report(Report {
            host: self.name.clone(),
            life: self.life,
            turn: self.turn,
            floor,
            claim: self.claim(),
            holding,
            want,
            used: self.used,
        })
    }

    fn claim(&self) -> Claim {
        Claim::new(self.joined.weight, self.joined.floor, self.demand)
    }

    fn climb(&self, at: usize) -> Then {
        let place = &self.joined.way[at];
        let sum = Claim::sum(self.beneath.iter().map(|member| &member.claim));
        let claim = if place.is_limit {
            let (weight, guaranteed) = self.joined.claims[at];
            let demand = sum.demand().min(place.remembered.rate);
            Claim::new(weight, guaranteed.min(demand).max(place.remembered.reserve), demand)
        } else {
            sum
        };
        Then::Climb { at, claim, want: None }
    }

    /// Returns the share of the member `me`, which makes the claim `mine`.
    fn share(&self, answer: &Answer, me: &(String, u64), mine: &Claim) -> u64 {
        let is_me = |member: &MemberView| member.name == me.0 && member.life == me.1;
        let Some(at) = answer.members.iter().position(is_me) else { return mine.floor() };
        let mut claims: Vec<Claim> =
            answer.members.iter().map(|member| member.claim.clone()).collect();
        claims[at] = mine.clone();
        divide(answer.rate, &claims)[at]
    }
}

/// Whether two rates differ by more than 1/256.
const fn differ(a: u64, b: u64) -> bool {
    a.abs_diff(b) > b / 256
}

/// Rounds up to nine binary digits.
fn rounded(rate: u64) -> u64 {
    let step = 1 << rate.checked_ilog2().unwrap_or(0).saturating_sub(8);
    rate.checked_next_multiple_of(step).unwrap_or(u64::MAX)
}

/// Returns the first tick after `now`, in step with the ticks before if `now` is not far behind.
fn next_tick(last: Instant, now: Instant) -> Instant {
    let next = last + TICK;
    if next > now { next } else { now + TICK }
}
