//! A small fleet as a machine with states: the real hosts and the real ledgers, with messages that
//! the engine meets late, in any order or never, and with faults.
//!
//! One more host, which wants nothing and never fails, reports every 100 ms, as the other hosts of
//! a large fleet do. Without it the ledgers' clocks would stand still while the hosts are silent,
//! and many dangers would stay hidden.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use onramp_core::Instant;
use onramp_fleet::{
    Act, Answer, Book, Claim, HOLD, Host, Joined, Place, Refusal, Report, Terms, divide,
};

const MS: u64 = 1_000_000;
/// What a host wants when it wants much.
const MUCH: u64 = 1_000;
/// The engine's clock when the model begins, in microseconds.
const ENGINE_US: u64 = 1_000_000_000;
/// By how much a fault moves the engine's clock, in milliseconds.
const JUMP: i64 = 2_000;

/// A wrong way to build the protocol. The model makes the messages, the answers or the rates those
/// that a wrong program would make; the program itself stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// A host counts its lease from the answer, not from the sending of the report.
    LeaseFromAnswer,
    /// A host keeps its share without a limit of time.
    LeaseWithoutEnd,
    /// A host raises its rate when it asks for more, before the ledger has found room.
    RaisesFirst,
    /// A host says that it lowers its rate, and lowers it only after the answer.
    LowersLate,
    /// A host says that it holds what it wants to hold.
    HoldsItsWish,
    /// A host accepts the answer of a young ledger although its lease has ended.
    AcceptsYoung,
    /// The ledger's clock runs so fast that KEEP is shorter than HOLD.
    ShortKeep,
    /// The ledger's clock follows each jump of the engine's clock.
    FollowsJumps,
    /// A ledger that begins with nothing grants at once.
    GrantsYoung,
    /// The engine begins again with an old copy of its ledgers.
    OldCopy,
    /// The ledger takes reports in any order.
    TakesOvertaken,
    /// The ledger grants whatever a host wants.
    GrantsAll,
    /// The ledger sets nothing aside for hosts that it does not know.
    NoReserve,
    /// The ledger gives away the share of a host that was silent for half a second.
    BuriesEarly,
}

/// What may go wrong, and how often, while the model is explored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// How often the demand of a host changes.
    pub(crate) demands: u8,
    /// How many messages are still on their way when time passes.
    pub(crate) delays: u8,
    /// How often a host learns that its message has failed, while the engine still gets it.
    pub(crate) failures: u8,
    /// How often the engine begins again with nothing.
    pub(crate) restarts: u8,
    /// How often the engine loses the terms alone.
    pub(crate) losses: u8,
    /// How often a host's program dies. It begins again later.
    pub(crate) deaths: u8,
    /// How often the engine's clock jumps.
    pub(crate) jumps: u8,
}

/// The fleet that a model is about.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// For each host, what it knows.
    pub(crate) joined: Vec<Joined>,
    /// The way of the host that wants nothing.
    pub(crate) quiet: Vec<Place>,
    pub(crate) terms: Vec<(&'static str, Terms)>,
    /// Hosts that together must not exceed a rate.
    pub(crate) limits: Vec<(Vec<usize>, u64)>,
    pub(crate) budget: Budget,
    /// Hosts whose messages are late and whose programs die.
    pub(crate) fickle: Vec<usize>,
    /// Hosts whose demand changes.
    pub(crate) moody: Vec<usize>,
    pub(crate) sabotage: Option<Sabotage>,
    /// How far the model looks, in milliseconds.
    pub(crate) span_ms: u64,
    /// The spans by which time passes, in milliseconds.
    pub(crate) steps_ms: &'static [u64],
}

/// One step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Time passes, hosts and engine exchange their messages. `held` is a host and the number of
    /// one of its messages in this exchange (with answers) that does not arrive for the present.
    Pass {
        ms: u64,
        held: Option<(usize, u8)>,
    },
    Demand {
        host: usize,
    },
    /// The engine meets the message with this number among those on their way.
    Serve {
        message: usize,
    },
    /// The answer with this number arrives. With `held`, the host's next message waits.
    Arrive {
        message: usize,
        held: bool,
    },
    Fail {
        host: usize,
    },
    Restart,
    LoseTerms,
    Die {
        host: usize,
    },
    Revive {
        host: usize,
    },
    Jump {
        ms: i64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Body {
    Ask(Act),
    Report(Result<Answer, Refusal>),
    Climb(Answer),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Message {
    host: usize,
    life: u64,
    /// Number of the message in the host's life.
    number: u32,
    /// Whether the message was still on its way when time passed.
    is_late: bool,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    host: Host,
    life: u64,
    is_dead: bool,
    /// Number of the last message that was sent.
    number: u32,
    /// Whether an answer to this message may come.
    waits: bool,
    /// What sabotaged hosts remember.
    wrong: Wrong,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Wrong {
    /// When the report without an answer was sent, what it wants, and the rate before.
    asked: Option<(Instant, u64, u64)>,
    granted: Option<(Instant, u64)>,
    until: Option<Instant>,
    /// The last report that the engine met, and when.
    met: Option<(Report, Instant)>,
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) now: Instant,
    nodes: Vec<Node>,
    book: Book,
    flying: Vec<Message>,
    engine_ms: i64,
    left: Budget,
    high: Vec<bool>,
    turn: u64,
}

impl Setting {
    /// Returns the state in which the first host wants much, the others want little, and all have
    /// found their shares.
    pub(crate) fn start(&self) -> State {
        let mut book = Book::new();
        for (name, terms) in &self.terms {
            book.define(name, *terms);
        }
        let mut high = vec![false; self.joined.len()];
        high[0] = true;
        let node = |(at, joined): (usize, &Joined)| {
            let mut host = Host::new(&format!("h{at}"), 1, joined.clone(), Instant(0));
            host.set_demand(Instant(0), if high[at] { MUCH } else { 0 });
            let (life, is_dead, number, waits, wrong) = (1, false, 0, false, Wrong::default());
            Node { host, life, is_dead, number, waits, wrong }
        };
        let mut state = State {
            now: Instant(0),
            nodes: self.joined.iter().enumerate().map(node).collect(),
            book,
            flying: Vec::new(),
            engine_ms: 0,
            left: self.budget,
            high: high.clone(),
            turn: 0,
        };
        self.run_fairly(&mut state, 4_000);
        for node in &mut state.nodes {
            node.wrong = Wrong { until: node.wrong.until, ..Wrong::default() };
        }
        state
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    /// Returns the steps that are possible in a state which began at `start`.
    pub(crate) fn steps(&self, state: &State, start: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        let left = &state.left;
        for (message, flying) in state.flying.iter().enumerate() {
            steps.push(match flying.body {
                Body::Ask(_) => Step::Serve { message },
                Body::Report(_) | Body::Climb(_) => Step::Arrive { message, held: false },
            });
            if let Some(Step::Arrive { .. }) = steps.last()
                && left.delays > 0
            {
                steps.push(Step::Arrive { message, held: true });
            }
        }
        for (host, node) in state.nodes.iter().enumerate() {
            if left.demands > 0 && self.moody.contains(&host) {
                steps.push(Step::Demand { host });
            }
            if !self.fickle.contains(&host) {
                continue;
            }
            if node.is_dead {
                steps.push(Step::Revive { host });
            } else if left.deaths > 0 {
                steps.push(Step::Die { host });
            }
            if left.failures > 0 && !node.is_dead && node.waits {
                steps.push(Step::Fail { host });
            }
        }
        if left.restarts > 0 {
            steps.push(Step::Restart);
        }
        if left.losses > 0 {
            steps.push(Step::LoseTerms);
        }
        if left.jumps > 0 {
            steps.extend([Step::Jump { ms: JUMP }, Step::Jump { ms: -JUMP }]);
        }
        let passed = (state.now.0 - start.0) / MS;
        for ms in self.steps_ms.iter().copied().filter(|ms| passed + ms <= self.span_ms) {
            steps.push(Step::Pass { ms, held: None });
            if left.delays > 0 {
                let held = self.fickle.iter().flat_map(|host| (0..4).map(move |at| (*host, at)));
                steps.extend(held.map(|held| Step::Pass { ms, held: Some(held) }));
            }
        }
        steps
    }

    /// Takes a step.
    pub(crate) fn take(&self, state: &mut State, step: Step) {
        match step {
            Step::Pass { ms, held } => {
                self.pass(state, ms);
                self.exchange(state, held);
            }
            Step::Demand { host } => {
                state.left.demands -= 1;
                state.high[host] = !state.high[host];
                let demand = if state.high[host] { MUCH } else { 0 };
                state.nodes[host].host.set_demand(state.now, demand);
            }
            Step::Serve { message } => self.serve(state, message),
            Step::Arrive { message, held } => {
                let host = state.flying[message].host;
                self.arrive(state, message);
                self.exchange(state, held.then_some((host, 0)));
            }
            Step::Fail { host } => {
                state.left.failures -= 1;
                self.fail(state, host);
            }
            Step::Restart => {
                state.left.restarts -= 1;
                self.restart(state);
            }
            Step::LoseTerms => {
                state.left.losses -= 1;
                for (name, _) in &self.terms {
                    state.book.forget(name);
                }
            }
            Step::Die { host } => {
                state.left.deaths -= 1;
                state.nodes[host].is_dead = true;
                state.nodes[host].waits = false;
                self.drop_answers(state);
            }
            Step::Revive { host } => self.revive(state, host),
            Step::Jump { ms } => {
                state.left.jumps -= 1;
                self.jump(state, ms);
            }
        }
        self.exchange(state, None);
        state.flying.sort_by_key(|message| (message.host, message.life, message.number));
    }

    /// Carries all messages, except those that are late, until no host has more to say.
    fn exchange(&self, state: &mut State, mut held: Option<(usize, u8)>) {
        while let Some(at) = state.flying.iter().position(|message| !message.is_late) {
            if let Some((host, left)) = &mut held
                && state.flying[at].host == *host
            {
                if *left == 0 {
                    state.flying[at].is_late = true;
                    state.left.delays -= 1;
                    held = None;
                    continue;
                }
                *left -= 1;
            }
            match state.flying[at].body {
                Body::Ask(_) => self.serve(state, at),
                Body::Report(_) | Body::Climb(_) => self.arrive(state, at),
            }
        }
    }

    fn engine_us(&self, state: &State) -> u64 {
        let now = state.now.0 / 1_000;
        let now = if self.is(Sabotage::ShortKeep) { now * 3 / 2 } else { now };
        (ENGINE_US + now).saturating_add_signed(state.engine_ms * 1_000)
    }

    fn pass(&self, state: &mut State, ms: u64) {
        let mut left = ms;
        while left > 0 {
            let span = left.min(100);
            left -= span;
            state.now = Instant(state.now.0 + span * MS);
            self.quiet_report(state);
            if self.is(Sabotage::BuriesEarly) {
                self.bury(state);
            }
        }
        for host in 0..state.nodes.len() {
            self.look(state, host);
        }
    }

    fn quiet_report(&self, state: &mut State) {
        state.turn += 1;
        let report = Report {
            host: "z".to_owned(),
            life: 1,
            turn: state.turn,
            floor: 0,
            claim: Claim::new(1, 0, 0),
            holding: 0,
            want: 0,
            used: 0,
        };
        let engine_us = self.engine_us(state);
        let taken = state.book.report(engine_us, &self.quiet, &report);
        assert!(taken.is_ok(), "{taken:?}");
    }

    fn bury(&self, state: &mut State) {
        let engine_us = self.engine_us(state);
        for node in &state.nodes {
            if let Some((report, met)) = &node.wrong.met
                && state.now.0 - met.0 >= 500 * MS
            {
                let (turn, want) = (report.turn + 1, report.floor);
                let report = Report { turn, want, holding: want, ..report.clone() };
                let taken = state.book.report(engine_us, &node.host.joined().way, &report);
                assert!(taken.is_ok() || taken == Err(Refusal::Overtaken), "{taken:?}");
            }
        }
    }

    fn jump(&self, state: &mut State, ms: i64) {
        if self.is(Sabotage::FollowsJumps) && ms > 0 {
            for _ in 0..ms / 100 {
                state.engine_ms += 100;
                self.quiet_report(state);
            }
        } else {
            state.engine_ms += ms;
        }
        self.quiet_report(state);
    }

    fn restart(&self, state: &mut State) {
        state.book = Book::new();
        if self.is(Sabotage::GrantsYoung) {
            for _ in 0..16 {
                self.quiet_report(state);
                state.engine_ms += 100;
            }
        } else if self.is(Sabotage::OldCopy) {
            state.book = Self { sabotage: None, ..self.clone() }.start().book;
            state.turn += 1_000;
        }
    }

    fn look(&self, state: &mut State, host: usize) {
        let now = state.now;
        let node = &mut state.nodes[host];
        if node.is_dead {
            return;
        }
        let before = node.host.rate(now);
        let Some(mut act) = node.host.poll(now) else { return };
        node.number += 1;
        node.waits = true;
        if let Act::Report(report) = &mut act {
            if self.sabotage.is_some() {
                node.wrong.asked = Some((now, report.want, before));
            }
            if self.is(Sabotage::HoldsItsWish) {
                report.holding = report.want;
            }
        }
        let (life, number, body) = (node.life, node.number, Body::Ask(act));
        state.flying.push(Message { host, life, number, is_late: false, body });
        self.drop_answers(state);
    }

    /// Forgets answers for which nobody waits: they change nothing.
    fn drop_answers(&self, state: &mut State) {
        let nodes = &state.nodes;
        state.flying.retain(|message| {
            let node = &nodes[message.host];
            let is_due = node.waits && node.life == message.life && node.number == message.number;
            matches!(message.body, Body::Ask(_)) || is_due
        });
    }

    fn serve(&self, state: &mut State, message: usize) {
        let engine_us = self.engine_us(state);
        let Message { host, life, .. } = state.flying[message];
        let way = state.nodes[host].host.joined().way.clone();
        let Body::Ask(act) = state.flying[message].body.clone() else { unreachable!("an answer") };
        let body = match act {
            Act::Report(mut report) => {
                if self.is(Sabotage::NoReserve) {
                    self.give_reserve(state);
                }
                if self.is(Sabotage::BuriesEarly) && state.nodes[host].life == life {
                    state.nodes[host].wrong.met = Some((report.clone(), state.now));
                }
                let turn = report.turn;
                if self.is(Sabotage::TakesOvertaken) {
                    state.turn += 1;
                    report.turn = state.turn + 1_000;
                }
                let mut result = state.book.report(engine_us, &way, &report);
                if let Ok(answer) = &mut result {
                    answer.turn = turn;
                    answer.is_young &= !self.is(Sabotage::AcceptsYoung);
                    if self.is(Sabotage::GrantsAll) {
                        answer.granted = report.want;
                    }
                }
                Body::Report(result)
            }
            Act::Climb { at, claim, want } => {
                Body::Climb(state.book.climb(engine_us, &way, at, &claim, want))
            }
        };
        state.flying[message].body = body;
        self.drop_answers(state);
    }

    /// Adds to the limit what the ledger sets aside, so that nothing is.
    fn give_reserve(&self, state: &mut State) {
        let (name, terms) = self.terms[0];
        let probe = Report {
            host: "z".to_owned(),
            life: 1,
            turn: state.turn + 1,
            floor: 0,
            claim: Claim::new(1, 0, 0),
            holding: 0,
            want: 0,
            used: 0,
        };
        state.turn += 1;
        state.book.define(name, terms);
        let engine_us = self.engine_us(state);
        if let Ok(answer) = state.book.report(engine_us, &self.quiet, &probe) {
            let aside = terms.rate - answer.rate;
            state.book.define(name, Terms { rate: terms.rate + aside, ..terms });
        }
    }

    fn arrive(&self, state: &mut State, message: usize) {
        let now = state.now;
        let Message { host, body, .. } = state.flying.remove(message);
        let node = &mut state.nodes[host];
        node.waits = false;
        let asked = node.wrong.asked.take();
        match body {
            Body::Report(result) => {
                let granted = result.as_ref().map_or(0, |answer| answer.granted);
                node.host.reported(now, result);
                if let Some((sent, want, _)) = asked
                    && node.host.answered() == Some(now)
                {
                    node.wrong.granted = Some((now, granted.min(want)));
                    node.wrong.until = Some(sent + HOLD);
                }
            }
            Body::Climb(answer) => node.host.climbed(now, answer),
            Body::Ask(_) => unreachable!("a message to the engine"),
        }
        self.look(state, host);
    }

    fn fail(&self, state: &mut State, host: usize) {
        state.nodes[host].host.failed();
        state.nodes[host].waits = false;
        state.nodes[host].wrong.asked = None;
        self.drop_answers(state);
        self.look(state, host);
    }

    fn revive(&self, state: &mut State, host: usize) {
        let node = &mut state.nodes[host];
        node.life += 1;
        node.number = 0;
        node.is_dead = false;
        node.wrong = Wrong::default();
        let name = format!("h{host}");
        node.host = Host::new(&name, node.life, self.joined[host].clone(), state.now);
        node.host.set_demand(state.now, if state.high[host] { MUCH } else { 0 });
        self.look(state, host);
    }

    /// Returns the rate at which a host may send.
    pub(crate) fn rate(&self, state: &State, host: usize) -> u64 {
        let node = &state.nodes[host];
        if node.is_dead {
            return 0;
        }
        let (rate, wrong) = (node.host.rate(state.now), &node.wrong);
        let lives = wrong.until.is_some_and(|until| state.now < until);
        let most = match (self.sabotage, wrong.asked, wrong.granted) {
            (Some(Sabotage::LeaseFromAnswer), asked, Some((since, granted)))
                if state.now < since + HOLD =>
            {
                granted.min(asked.map_or(u64::MAX, |(_, want, _)| want))
            }
            (Some(Sabotage::LeaseWithoutEnd), asked, Some((_, granted))) => {
                granted.min(asked.map_or(u64::MAX, |(_, want, _)| want))
            }
            (Some(Sabotage::RaisesFirst), Some((_, want, _)), _) => want,
            (Some(Sabotage::LowersLate), Some((_, _, before)), _) if lives => before,
            _ => 0,
        };
        rate.max(most)
    }

    /// Returns what is wrong with a state, if anything is.
    pub(crate) fn fault(&self, state: &State) -> Option<String> {
        self.limits.iter().find_map(|(hosts, rate)| {
            let rates: Vec<u64> = hosts.iter().map(|host| self.rate(state, *host)).collect();
            (rates.iter().sum::<u64>() > *rate).then(|| format!("{rates:?} exceed {rate}"))
        })
    }

    /// Lets time pass in a world without faults.
    pub(crate) fn run_fairly(&self, state: &mut State, ms: u64) {
        for _ in 0..ms / 100 {
            for host in 0..state.nodes.len() {
                if state.nodes[host].is_dead {
                    self.revive(state, host);
                }
            }
            for message in &mut state.flying {
                message.is_late = false;
            }
            self.pass(state, 100);
            self.exchange(state, None);
        }
    }

    /// Returns what every host should have, if the model has one limit.
    pub(crate) fn fair(&self, state: &State) -> Vec<u64> {
        let claims: Vec<Claim> = self
            .joined
            .iter()
            .zip(&state.high)
            .map(|(joined, high)| {
                Claim::new(joined.weight, joined.floor, if *high { MUCH } else { 0 })
            })
            .chain([Claim::new(1, 0, 0)])
            .collect();
        divide(self.limits[0].1, &claims)
    }
}

/// What an exploration found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) states: usize,
    /// The steps to a state that must not be, and what is wrong with it.
    pub(crate) fault: Option<(Vec<Step>, String)>,
}

/// Explores all states that the setting allows, the nearest first, and calls `visit` for each.
pub(crate) fn explore(
    setting: &Setting,
    most: usize,
    mut visit: impl FnMut(usize, &State),
) -> Found {
    let start = setting.start();
    let began = start.now;
    let mut seen: HashMap<u64, (u64, Option<Step>)> = HashMap::new();
    let key = hash(&start);
    seen.insert(key, (key, None));
    let mut queue = VecDeque::from([(key, start)]);
    let mut states = 0;
    while let Some((from, state)) = queue.pop_front() {
        if let Some(fault) = setting.fault(&state) {
            let mut path = Vec::new();
            let mut at = from;
            while let (before, Some(step)) = seen[&at] {
                path.push(step);
                at = before;
            }
            path.reverse();
            return Found { states, fault: Some((path, fault)) };
        }
        visit(states, &state);
        states += 1;
        assert!(states <= most, "more than {most} states");
        for step in setting.steps(&state, began) {
            let mut next = state.clone();
            setting.take(&mut next, step);
            let key = hash(&next);
            seen.entry(key).or_insert_with(|| {
                queue.push_back((key, next));
                (from, Some(step))
            });
        }
    }
    Found { states, fault: None }
}

fn hash(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
