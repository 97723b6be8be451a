//! The ledger: who holds how much of a limit, for how long.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Claim;

/// How often a host reports.
pub const TICK: Duration = Duration::from_micros(TICK_US);
/// How long a host keeps a share after it sent the last report that was answered.
pub const HOLD: Duration = Duration::from_millis(1_000);
/// How long a ledger keeps a share for its holder after the holder's last report: longer than
/// [`HOLD`], so that the holder has let go of the share before anyone else may get it.
pub const KEEP: Duration = Duration::from_micros(KEEP_US);
/// The longest time by which a ledger's clock moves from one call to the next. It is shorter than
/// the difference of [`KEEP`] and [`HOLD`], so that a jump of the engine's clock leaves something
/// for clocks that do not run equally fast.
const STEP_US: u64 = 150_000;
const KEEP_US: u64 = 1_200_000;
pub(crate) const TICK_US: u64 = 100_000;

/// What a limit, or a part of it, may give out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The limit, in bytes per second.
    pub rate: u64,
    /// The part of the limit that is set aside for guarantees: the guaranteed rate of a host times
    /// the largest number of hosts, in bytes per second. Members that are in the ledger take their
    /// guarantees from it; the rest stays set aside for hosts that cannot reach the ledger, because
    /// such hosts send at their guaranteed rates.
    pub reserve: u64,
}

/// One ledger on the way from a host to the root of the tree of limits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Name of the ledger, and of the member that stands for it in the ledger of its parent.
    pub name: String,
    /// The terms as the caller remembers them. A ledger that has lost its terms works with the
    /// lowest rate and the largest reserve that anyone remembers.
    pub remembered: Terms,
    /// Whether the ledger stands for a limit of its own. If it does not, it is a group: a part of
    /// the hosts of its parent, which has no terms.
    pub is_limit: bool,
}

/// What a host tells the ledger of the limit that it has joined.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    /// Name of the host.
    pub host: String,
    /// A random number, drawn when the host's program began. A program that begins again holds
    /// nothing of what it held in its former life.
    pub life: u64,
    /// Number of the report, rising in each life. A ledger refuses a report that it meets after a
    /// later one.
    pub turn: u64,
    /// The host's guaranteed rate, in bytes per second.
    pub floor: u64,
    /// What the host wants.
    pub claim: Claim,
    /// The rate at which the host may send at present, in bytes per second.
    pub holding: u64,
    /// The rate at which the host wants to send from now on, in bytes per second. When the host
    /// sends the report, it sends packets at no more than this rate.
    pub want: u64,
    /// The rate at which the host sent in the last tick, in bytes per second. No share
    /// depends on it: a ledger keeps it only to show it to people.
    pub used: u64,
}

/// A ledger's answer to a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Number of the report.
    pub turn: u64,
    /// The rate at which the host may send, in bytes per second.
    pub granted: u64,
    /// Whether the ledger is new and may not know all holders yet. Such a ledger grants nothing
    /// that the host did not hold before.
    pub is_young: bool,
    /// The rate that the members divide, in bytes per second.
    pub rate: u64,
    /// All members, in the order of their names.
    pub members: Vec<MemberView>,
    /// The highest place on the way to the root for which nobody has made a [`Book::climb`] for
    /// half a tick. The host that gets this answer should climb from its own place to that one.
    pub due: Option<usize>,
}

/// A member, as an answer shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemberView {
    /// Name of the host or of the ledger beneath.
    pub name: String,
    /// The number that tells the lives of a host's program apart; 0 for a ledger beneath.
    pub life: u64,
    /// What the member wants.
    pub claim: Claim,
    /// What the member holds, in bytes per second.
    pub held: u64,
}

/// Why a ledger refused a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A later report came before this one.
    Overtaken,
    /// The limit has as many hosts as it may have.
    Full,
}

/// All ledgers of an engine. The engine carries out one call at a time.
///
/// A ledger never trusts two clocks at once: it measures with a clock of its own, which follows the
/// engine's clock, but by at most 150 ms from one call to the next. So it stands still when the
/// engine does, and a wrong engine clock that is set right moves it by 150 ms at most: less
/// than the difference of [`KEEP`] and [`HOLD`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Book {
    terms: BTreeMap<String, Terms>,
    ledgers: BTreeMap<String, Ledger>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Ledger {
    /// The ledger's own clock, in microseconds since it began.
    clock: u64,
    /// The clock that the ledger's clock follows, as it was at the last call.
    leader: Leader,
    remembered: Option<Terms>,
    members: BTreeMap<(String, u64), Member>,
}

/// A clock that a ledger's clock follows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Leader {
    /// Name of the ledger above; empty for the engine's clock.
    name: String,
    /// The clock, in microseconds.
    us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Member {
    turn: u64,
    floor: u64,
    claim: Claim,
    held: u64,
    /// When the ledger stops keeping the member's share, by the ledger's clock.
    until: u64,
    /// What a ledger beneath should hold, by the last division; `None` before the first division.
    aim: Option<u64>,
    /// When a host beneath last made a division, by the ledger's clock.
    divided: Option<u64>,
}

impl Ledger {
    /// Moves the clock after the clock `leader`, by at most `step`, and lets go of members whose
    /// time has run out. Returns the clock.
    ///
    /// A ledger beneath that nobody has called for the time of a lease begins anew, and is young:
    /// an operator may have moved the limit away and back, and hosts that have not heard of it yet
    /// hold shares that this ledger does not know.
    fn advance(&mut self, leader: Leader, step: u64) -> u64 {
        let moved = leader.us.saturating_sub(self.leader.us);
        if self.leader.name == leader.name && step == u64::MAX && moved >= KEEP_US {
            *self = Self { leader: leader.clone(), ..Self::default() };
        } else if self.leader.name == leader.name {
            self.clock += moved.min(step);
        }
        self.leader = leader;
        let clock = self.clock;
        self.members.retain(|_, member| member.until > clock);
        clock
    }

    /// Whether holders that the ledger does not know may still hold shares.
    const fn is_young(&self) -> bool {
        self.clock < KEEP_US
    }

    fn held(&self) -> u64 {
        self.members.values().fold(0, |sum, member| sum.saturating_add(member.held))
    }

    fn floors(&self) -> u64 {
        self.members.values().fold(0, |sum, member| sum.saturating_add(member.floor))
    }
}

impl Book {
    /// Makes an empty book, as an engine has it when it begins.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the terms of the limit `name`.
    pub fn define(&mut self, name: &str, terms: Terms) {
        self.terms.insert(name.to_owned(), terms);
    }

    /// Forgets the terms of the limit `name`.
    pub fn forget(&mut self, name: &str) {
        self.terms.remove(name);
    }

    /// Takes a host's report. `engine_us` is the engine's clock, in microseconds. `way` are the
    /// ledgers from the limit (or group) that the host has joined to the root of the tree.
    ///
    /// What the host wants is granted as far as the ledger has it to give: what a member lets go of
    /// is free at once, and what a member holds is free only when the member's time has run out.
    ///
    /// # Errors
    ///
    /// A [`Refusal`]; then nothing has changed.
    ///
    /// # Panics
    ///
    /// If `way` is empty.
    pub fn report(
        &mut self,
        engine_us: u64,
        way: &[Place],
        report: &Report,
    ) -> Result<Answer, Refusal> {
        self.advance(engine_us, way);
        let key = (report.host.clone(), report.life);
        let before = self.ledgers[&way[0].name].members.get(&key).cloned();
        if before.as_ref().is_some_and(|member| member.turn >= report.turn) {
            return Err(Refusal::Overtaken);
        }
        if before.is_none() && !self.has_room(way, report.floor) {
            return Err(Refusal::Full);
        }
        let known = before.as_ref().map_or(report.floor, |member| member.held);
        let room = known.saturating_add(self.rate(way, 0)).saturating_sub(self.used(way, 0));
        let ledger = self.ledgers.get_mut(&way[0].name).expect("`advance` made it");
        // What the ledger knew of the host can be more than the host holds, if a report was late.
        // So the host keeps what both know of, and gets more only while all shares together fit.
        let most = match ledger.is_young() {
            true => report.holding,
            false => room.max(known.min(report.holding)),
        };
        // What is guaranteed to a host fits, except for a moment after an operator raised it.
        let held = report.want.max(report.floor).min(most);
        let member = Member {
            turn: report.turn,
            floor: report.floor,
            claim: report.claim.clone(),
            held,
            until: ledger.clock + KEEP_US,
            aim: None,
            divided: None,
        };
        ledger.members.insert(key, member);
        let due = self.touch(way);
        Ok(Answer { turn: report.turn, granted: held, due, ..self.answer(way, 0) })
    }

    /// Takes what a host has found for the ledger `way[at]` when it divided the rate of the ledger
    /// above, `way[at + 1]`: what the hosts beneath claim together, and the share `want` that they
    /// should have together. The ledger beneath never holds less than its own members hold. With
    /// `None`, only the claim is noted, and the answer shows what there is to divide.
    ///
    /// Any host beneath may make this call, and several may at once: they all compute the same.
    ///
    /// # Panics
    ///
    /// If `way` has no place `at + 1`.
    pub fn climb(
        &mut self,
        engine_us: u64,
        way: &[Place],
        at: usize,
        claim: &Claim,
        want: Option<u64>,
    ) -> Answer {
        self.advance(engine_us, way);
        let free = self.free(way, at + 1);
        let used = self.used(way, at);
        let ledger = self.ledgers.get_mut(&way[at + 1].name).expect("`advance` made it");
        let young = ledger.is_young();
        let clock = ledger.clock;
        let member = ledger.members.get_mut(&child(&way[at])).expect("`touch` made it");
        member.claim = claim.clone();
        if let Some(want) = want {
            let most = if young { member.held } else { member.held.saturating_add(free) };
            member.held = want.min(most).max(used).max(member.floor);
            member.aim = Some(want);
            member.divided = Some(clock);
        }
        let granted = member.held;
        Answer { granted, ..self.answer(way, at + 1) }
    }

    /// Moves the clocks of all ledgers on the way, the highest first, and makes the ledgers that do
    /// not exist.
    ///
    /// A ledger beneath follows the clock of the ledger above, not the engine's: so the ledger
    /// above never gives away a share while the ledger beneath still keeps parts of it for its
    /// members.
    fn advance(&mut self, engine_us: u64, way: &[Place]) {
        let mut leader = Leader { name: String::new(), us: engine_us };
        let mut step = STEP_US;
        for place in way.iter().rev() {
            let ledger = self
                .ledgers
                .entry(place.name.clone())
                .or_insert_with(|| Ledger { leader: leader.clone(), ..Ledger::default() });
            let us = ledger.advance(leader, step);
            leader = Leader { name: place.name.clone(), us };
            step = u64::MAX;
            // Without its terms, a ledger starts from the last ones that it knew.
            let all = ledger.remembered.get_or_insert(place.remembered);
            match self.terms.get(&place.name) {
                Some(terms) => *all = *terms,
                None => {
                    all.rate = all.rate.min(place.remembered.rate);
                    all.reserve = all.reserve.max(place.remembered.reserve);
                }
            }
        }
        self.touch(way);
    }

    /// Returns the terms of a limit.
    fn terms(&self, place: &Place) -> Terms {
        let remembered = self.ledgers[&place.name].remembered;
        self.terms.get(&place.name).copied().or(remembered).unwrap_or_default()
    }

    /// Whether one more host with this guaranteed rate fits into the limit that `way` begins with.
    fn has_room(&self, way: &[Place], floor: u64) -> bool {
        let limit = way.iter().find(|place| place.is_limit);
        limit.is_none_or(|place| {
            let floors = self.ledgers[&place.name].floors();
            floors.saturating_add(floor) <= self.terms(place).reserve
        })
    }

    /// Returns what the ledger may give out in all: its limit, but not more than it holds of the
    /// limit above, less what the ledger above has given out too much.
    ///
    /// A ledger gives out too much in its book alone, when it believed a report that came late, or
    /// when an operator has lowered the limit.
    fn rate(&self, way: &[Place], at: usize) -> u64 {
        let own = if way[at].is_limit { self.terms(&way[at]).rate } else { u64::MAX };
        let Some(above) = way.get(at + 1) else { return own };
        let member = self.ledgers[&above.name].members.get(&child(&way[at]));
        let excess = self.used(way, at + 1).saturating_sub(self.rate(way, at + 1));
        own.min(member.map_or(0, |member| member.held).saturating_sub(excess))
    }

    /// Returns what is set aside for hosts that the ledger does not know.
    fn aside(&self, way: &[Place], at: usize) -> u64 {
        if !way[at].is_limit {
            return 0;
        }
        self.terms(&way[at]).reserve.saturating_sub(self.ledgers[&way[at].name].floors())
    }

    fn used(&self, way: &[Place], at: usize) -> u64 {
        self.ledgers[&way[at].name].held().saturating_add(self.aside(way, at))
    }

    fn free(&self, way: &[Place], at: usize) -> u64 {
        self.rate(way, at).saturating_sub(self.used(way, at))
    }

    /// Renews what each ledger on the way holds of the ledger above, and returns the highest place
    /// for which nobody has divided the rate of the ledger above for a tick.
    fn touch(&mut self, way: &[Place]) -> Option<usize> {
        let mut due = None;
        for at in 0..way.len() - 1 {
            let used = self.used(way, at);
            let floor = match way[at].is_limit {
                true => self.terms(&way[at]).reserve,
                false => self.ledgers[&way[at].name].floors(),
            };
            let ledger = self.ledgers.get_mut(&way[at + 1].name).expect("`advance` made it");
            let until = ledger.clock + KEEP_US;
            let member = ledger.members.entry(child(&way[at])).or_insert_with(|| Member {
                turn: 0,
                floor,
                claim: Claim::new(1, floor, floor),
                held: 0,
                until,
                aim: None,
                divided: None,
            });
            // What is set aside for a host that the ledger beneath has let go of is the business of
            // the ledger above from now on.
            let less = member.floor.saturating_sub(floor);
            member.floor = floor;
            member.held = member.held.saturating_sub(less).max(used);
            member.until = until;
            if member.divided.is_none_or(|divided| ledger.clock - divided >= TICK_US / 2) {
                due = Some(at);
            }
        }
        due
    }

    fn answer(&self, way: &[Place], at: usize) -> Answer {
        let ledger = &self.ledgers[&way[at].name];
        let own = if way[at].is_limit { self.terms(&way[at]).rate } else { u64::MAX };
        let member =
            way.get(at + 1).map(|above| &self.ledgers[&above.name].members[&child(&way[at])]);
        let aim = member.map_or(u64::MAX, |member| member.aim.unwrap_or(member.held));
        let members = ledger.members.iter().map(|((name, life), member)| MemberView {
            name: name.clone(),
            life: *life,
            claim: member.claim.clone(),
            held: member.held,
        });
        Answer {
            turn: 0,
            granted: 0,
            is_young: ledger.is_young(),
            rate: own.min(aim).saturating_sub(self.aside(way, at)),
            members: members.collect(),
            due: None,
        }
    }
}

/// Returns the key of the member that stands for a ledger in the ledger above.
fn child(place: &Place) -> (String, u64) {
    (place.name.clone(), 0)
}
