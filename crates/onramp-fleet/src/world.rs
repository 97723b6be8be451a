//! A fleet in virtual time: the hosts and ledgers of this crate, with messages that take time and
//! faults that are made on purpose.
//!
//! Use it to see what a fleet of your size does before you have it: how fast shares follow demands,
//! how many messages and bytes a host needs, and what happens without the engine.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use onramp_core::Instant;

use crate::ledger::TICK_US;
use crate::{Act, Answer, Book, Definition, DefinitionError, Definitions, Host, Joined, Refusal};

/// The bytes that the engine has around each word.
const AROUND: u64 = 8;

/// What the engine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// It answers.
    Up,
    /// It does not run: messages to it fail at once.
    Down,
    /// It is stopped: messages to it wait.
    Paused,
}

/// What hosts and engine have sent and done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Messages from hosts to the engine.
    pub messages: u64,
    /// Bytes of these messages, as [`Act::words`] writes them, with 8 bytes around each word.
    pub sent_bytes: u64,
    /// Bytes of the engine's answers.
    pub answered_bytes: u64,
    /// Members in the engine's answers.
    pub members: u64,
}

/// A fleet of hosts, an engine, and the time.
#[derive(Debug)]
pub struct World {
    definitions: Definitions,
    book: Book,
    engine: Engine,
    /// How far the engine's clock is from the world's, in microseconds.
    engine_ahead_us: i64,
    waiting: VecDeque<(Sender, Act)>,
    hosts: Vec<Machine>,
    by_limit: BTreeMap<String, Vec<usize>>,
    events: BTreeMap<(Instant, u64), Event>,
    scheduled: u64,
    random: u64,
    latency_ns: Range<u64>,
    now: Instant,
    cost: Cost,
}

#[derive(Debug)]
struct Machine {
    host: Host,
    name: String,
    limit: String,
    weight: u32,
    is_cut: bool,
    is_dead: bool,
    /// How many lives the host's program had before.
    lives: u32,
    /// When the host is to be polled next.
    looks: Instant,
    /// When in a tick the host looks at its counters, and what it will find that it wants.
    phase_ns: u64,
    wants: u64,
    /// The rate that the host claims to want, if it lies.
    lie: Option<u64>,
}

/// A host and its life: an answer to a former life reaches nobody.
type Sender = (usize, u32);

#[derive(Debug)]
enum Event {
    Look(usize),
    Notes(usize),
    Asks(Sender, Box<Act>),
    Answered(Sender, Box<Reply>),
    Failed(Sender),
}

#[derive(Debug)]
enum Reply {
    Report(Result<Answer, Refusal>),
    Climb(Answer),
}

impl World {
    /// Makes a world without hosts, in which a message needs a time within `latency` for its way.
    /// The same seed gives the same world.
    #[must_use]
    pub fn new(seed: u64, latency: Range<Duration>) -> Self {
        let ns = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self {
            definitions: Definitions::new(),
            book: Book::new(),
            engine: Engine::Up,
            engine_ahead_us: 1_800_000_000_000_000,
            waiting: VecDeque::new(),
            hosts: Vec::new(),
            by_limit: BTreeMap::new(),
            events: BTreeMap::new(),
            scheduled: 0,
            random: seed,
            latency_ns: ns(latency.start)..ns(latency.end),
            now: Instant(0),
            cost: Cost::default(),
        }
    }

    /// Sets a limit. Hosts that have joined it learn of the change at once.
    ///
    /// # Errors
    ///
    /// [`DefinitionError`].
    pub fn set(&mut self, name: &str, definition: Definition) -> Result<(), DefinitionError> {
        self.definitions.set(name, definition)?;
        let names: Vec<String> = self.definitions.iter().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            self.book.define(&name, self.definitions.terms(&name).unwrap_or_default());
        }
        for at in 0..self.hosts.len() {
            let joined = self.joined(at);
            self.hosts[at].host.set_joined(joined);
        }
        Ok(())
    }

    /// Adds a host that joins `limit` with this weight, and returns its number. The host wants
    /// nothing yet.
    ///
    /// # Panics
    ///
    /// If there is no such limit, or it has no hosts of its own.
    pub fn join(&mut self, limit: &str, weight: u32) -> usize {
        let at = self.hosts.len();
        let name = format!("host-{at}");
        let joined = self.definitions.joined(limit, &name, weight).expect("a limit with hosts");
        let life = self.draw();
        let begin = self.now + Duration::from_nanos(self.draw() % 100_000_000);
        let (phase_ns, wants) = (self.draw() % (TICK_US * 1_000), 0);
        let host = Host::new(&name, life, joined, begin);
        let (limit, is_cut, is_dead, lie, looks) = (limit.to_owned(), false, false, None, begin);
        self.by_limit.entry(limit.clone()).or_default().push(at);
        let lives = 0;
        self.hosts.push(Machine {
            host,
            name,
            limit,
            weight,
            is_cut,
            is_dead,
            lives,
            looks,
            phase_ns,
            wants,
            lie,
        });
        self.schedule(begin, Event::Look(at));
        at
    }

    /// Changes what a host wants to send, in bytes per second. The host finds it out when it next
    /// looks at its counters, within a tick: each host looks at a time of its own.
    pub fn change_demand(&mut self, host: usize, demand: u64) {
        let machine = &mut self.hosts[host];
        machine.wants = demand;
        let (now, tick) = (self.now.0, TICK_US * 1_000);
        let waits = (machine.phase_ns + tick - now % tick) % tick;
        self.schedule(self.now.after(waits), Event::Notes(host));
    }

    /// Tells a host what it wants to send, in bytes per second, as a meter does that has just read
    /// its counters.
    pub fn set_demand(&mut self, host: usize, demand: u64) {
        let machine = &mut self.hosts[host];
        machine.host.set_demand(self.now, machine.lie.unwrap_or(demand));
        self.look(host);
    }

    /// Makes a host lie: whatever its demand, it claims to want this many bytes per second.
    pub fn lie(&mut self, host: usize, claimed: u64) {
        self.hosts[host].lie = Some(claimed);
        self.set_demand(host, claimed);
    }

    /// Cuts the host off from the engine (messages on their way are lost), or ends that.
    pub fn cut(&mut self, host: usize, is_cut: bool) {
        self.hosts[host].is_cut = is_cut;
    }

    /// Kills a host: it sends nothing from now on, neither messages nor packets.
    pub fn kill(&mut self, host: usize) {
        self.hosts[host].is_dead = true;
    }

    /// Starts a killed host's program again: a new life, which holds nothing and wants what the
    /// former life wanted.
    pub fn revive(&mut self, host: usize) {
        let (joined, life) = (self.joined(host), self.draw());
        let machine = &mut self.hosts[host];
        machine.is_dead = false;
        machine.lives += 1;
        machine.looks = self.now;
        let demand = machine.host.demand();
        machine.host = Host::new(&machine.name, life, joined, self.now);
        machine.host.set_demand(self.now, demand);
        self.schedule(self.now, Event::Look(host));
    }

    /// Sets what the engine is doing.
    pub fn set_engine(&mut self, engine: Engine) {
        self.engine = engine;
        if engine == Engine::Up {
            while let Some((sender, act)) = self.waiting.pop_front() {
                self.serve(sender, act);
            }
        } else if engine == Engine::Down {
            for (sender, _) in std::mem::take(&mut self.waiting) {
                self.schedule(self.now, Event::Failed(sender));
            }
        }
    }

    /// Makes the engine lose everything: ledgers and terms.
    pub fn empty_engine(&mut self) {
        self.book = Book::new();
    }

    /// Moves the engine's clock by `seconds`.
    pub fn move_engine_clock(&mut self, seconds: i64) {
        self.engine_ahead_us = self.engine_ahead_us.saturating_add(seconds * 1_000_000);
    }

    /// Sets the time that a message needs for its way.
    pub fn set_latency(&mut self, latency: Range<Duration>) {
        let ns = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns = ns(latency.start)..ns(latency.end);
    }

    /// Returns the time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Returns what hosts and engine have sent so far.
    #[must_use]
    pub const fn cost(&self) -> Cost {
        self.cost
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Returns a host.
    #[must_use]
    pub fn host(&self, host: usize) -> &Host {
        &self.hosts[host].host
    }

    /// Returns the rate at which a host may send at present, in bytes per second.
    #[must_use]
    pub fn rate(&self, host: usize) -> u64 {
        let machine = &self.hosts[host];
        if machine.is_dead { 0 } else { machine.host.rate(self.now) }
    }

    /// Returns how many bytes a host may send at once at present, beyond its rate; `None`: as many
    /// as its own qdisc says.
    #[must_use]
    pub fn burst(&self, host: usize) -> Option<u64> {
        self.hosts[host].host.burst(self.now)
    }

    /// Returns the rate at which all hosts of a limit together may send, in bytes per second.
    #[must_use]
    pub fn sum(&self, limit: &str) -> u64 {
        let hosts = self.by_limit.get(limit).map_or(&[][..], Vec::as_slice);
        hosts.iter().map(|host| self.rate(*host)).sum()
    }

    /// Lets the time pass until `end`. `watch` is called after every event.
    pub fn run(&mut self, end: Instant, mut watch: impl FnMut(&Self)) {
        while let Some(next) = self.events.first_entry().filter(|next| next.key().0 <= end) {
            let ((at, _), event) = next.remove_entry();
            self.now = at;
            self.happen(event);
            watch(self);
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Look(at) if self.hosts[at].looks == self.now => self.look(at),
            Event::Look(_) => {}
            Event::Notes(at) => self.set_demand(at, self.hosts[at].wants),
            Event::Asks(sender, act) => self.arrive(sender, *act),
            Event::Failed((at, life)) | Event::Answered((at, life), _)
                if self.hosts[at].lives != life => {}
            Event::Failed((at, _)) => {
                self.hosts[at].host.failed();
                self.look(at);
            }
            Event::Answered((at, _), reply) => {
                if self.hosts[at].is_cut {
                    return;
                }
                let host = &mut self.hosts[at].host;
                match *reply {
                    Reply::Report(result) => host.reported(self.now, result),
                    Reply::Climb(answer) => host.climbed(self.now, answer),
                }
                self.look(at);
            }
        }
    }

    fn look(&mut self, at: usize) {
        if self.hosts[at].is_dead {
            return;
        }
        if let Some(act) = self.hosts[at].host.poll(self.now) {
            self.cost.messages += 1;
            self.cost.sent_bytes += act.len(&self.hosts[at].host.joined().way, AROUND);
            let arrives = self.now.after(self.latency());
            self.schedule(arrives, Event::Asks((at, self.hosts[at].lives), Box::new(act)));
        }
        let next = self.hosts[at].host.next(self.now);
        self.hosts[at].looks = next;
        self.schedule(next, Event::Look(at));
    }

    fn arrive(&mut self, sender: Sender, act: Act) {
        match self.engine {
            _ if self.hosts[sender.0].is_cut => {}
            Engine::Up => self.serve(sender, act),
            Engine::Paused => self.waiting.push_back((sender, act)),
            Engine::Down => {
                let back = self.now.after(self.latency());
                self.schedule(back, Event::Failed(sender));
            }
        }
    }

    fn serve(&mut self, sender: Sender, act: Act) {
        let engine_us = (self.now.0 / 1_000).saturating_add_signed(self.engine_ahead_us);
        let way = &self.hosts[sender.0].host.joined().way;
        let reply = match act {
            Act::Report(report) => Reply::Report(self.book.report(engine_us, way, &report)),
            Act::Climb { at, claim, want } => {
                Reply::Climb(self.book.climb(engine_us, way, at, &claim, want))
            }
        };
        if let Reply::Report(Ok(answer)) | Reply::Climb(answer) = &reply {
            self.cost.answered_bytes += answer.len(AROUND);
            self.cost.members += answer.members.len() as u64;
        }
        let back = self.now.after(self.latency());
        self.schedule(back, Event::Answered(sender, Box::new(reply)));
    }

    fn joined(&self, at: usize) -> Joined {
        let machine = &self.hosts[at];
        let joined = self.definitions.joined(&machine.limit, &machine.name, machine.weight);
        joined.expect("a limit with hosts")
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }

    fn latency(&mut self) -> u64 {
        let width = self.latency_ns.end.saturating_sub(self.latency_ns.start).max(1);
        self.latency_ns.start + self.draw() % width
    }

    /// Source: SplitMix64 (Steele, Lea, Flood 2014).
    const fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
