//! The script does what `Book` specifies.

use onramp_fleet::{
    Act, Answer, Book, Claim, Definition, Definitions, Joined, Refusal, Report, Terms,
};
use redis::{Client, Connection, Value};

use super::common::Server;
use super::{LEDGER, answer, give};
use crate::limits::terms_key;

/// The line of the script that reads the engine's clock. In this test the clock is the last word.
const READS_TIME: &str = "local time = call('TIME')\n";
const TAKES_TIME: &str = "local time = {0, ARGV[#ARGV]}\n";

/// Source: SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    fn one_of(&mut self, parts: u64) -> bool {
        self.below(parts) == 0
    }
}

/// A real engine and a book that have been told the same.
struct Pair {
    connection: Connection,
    script: String,
    epoch: u64,
    book: Book,
    engine_us: u64,
}

/// A member that the test plays.
struct Member {
    name: String,
    life: u64,
    turn: u64,
    joined: Joined,
}

impl Pair {
    fn new(server: &Server) -> Self {
        let connection = Client::open(server.url()).expect("a URL").get_connection();
        assert_eq!(LEDGER.matches(READS_TIME).count(), 1);
        let script = LEDGER.replace(READS_TIME, TAKES_TIME);
        let connection = connection.expect("it listens");
        Self { connection, script, epoch: 1, book: Book::new(), engine_us: 7_000_000_000 }
    }

    fn define(&mut self, name: &str, terms: Option<Terms>) {
        let mut command = redis::cmd(if terms.is_some() { "SET" } else { "DEL" });
        command.arg(terms_key("company", name));
        match terms {
            Some(terms) => {
                self.book.define(name, terms);
                command.arg(format!("{} {}", terms.rate, terms.reserve));
            }
            None => self.book.forget(name),
        }
        command.exec(&mut self.connection).expect("it answers");
    }

    fn empty(&mut self) {
        self.book = Book::new();
        redis::cmd("FLUSHALL").exec(&mut self.connection).expect("it answers");
    }

    /// Makes the engine another process, which has read all keys from a file.
    fn restart(&mut self, definitions: &Definitions) {
        self.epoch += 1;
        self.book = Book::new();
        for (name, _) in definitions.iter() {
            self.define(name, definitions.terms(name));
        }
    }

    fn call(&mut self, joined: &Joined, act: &Act) -> Result<Answer, Refusal> {
        let mut command = redis::cmd("EVAL");
        give(command.arg(&self.script), &self.epoch.to_string(), &joined.way, act);
        let value: Value =
            command.arg(self.engine_us).query(&mut self.connection).expect("it is up");
        answer(value).expect("an answer")
    }

    fn expect(&mut self, joined: &Joined, act: &Act) -> Result<Answer, Refusal> {
        let is = match act {
            Act::Report(report) => self.book.report(self.engine_us, &joined.way, report),
            Act::Climb { at, claim, want } => {
                Ok(self.book.climb(self.engine_us, &joined.way, *at, claim, *want))
            }
        };
        assert_eq!(self.call(joined, act), is, "{act:?} of {joined:?}");
        is
    }
}

fn definition(rate: u64, hosts: u32, floor: u64, parent: Option<&str>) -> Definition {
    let parent = parent.map(str::to_owned);
    Definition { rate, weight: 2, guaranteed: rate / 3, hosts, floor, burst: None, parent }
}

/// A company with two tenants, of which one has groups, and a limit in a limit in a limit.
fn definitions(random: &mut Random) -> Definitions {
    let scale = [1, 1_000, 1_250_000_000, 1 << 40][usize::try_from(random.below(4)).expect("< 4")];
    let mut all = Definitions::new();
    for (name, definition) in [
        ("company", definition(1_000 * scale, 0, 0, None)),
        ("region", definition(600 * scale, 0, 0, Some("company"))),
        ("a", definition(500 * scale, 4, 20 * scale, Some("region"))),
        ("b", definition(700 * scale, 200, scale, Some("company"))),
        ("c", definition(50 * scale, 3, 0, Some("region"))),
    ] {
        all.set(name, definition).expect("a sound limit");
    }
    all
}

fn member(random: &mut Random, definitions: &Definitions) -> Member {
    let limit = ["a", "b", "c"][usize::try_from(random.below(3)).expect("< 3")];
    let name = format!("host-{}.\u{e4} x", random.below(7));
    let mut joined = definitions.joined(limit, &name, 1).expect("it has hosts");
    if random.one_of(5) {
        // A host that remembers other terms.
        for place in joined.way.iter_mut().filter(|place| place.is_limit) {
            place.remembered.rate /= 2;
            place.remembered.reserve = random.below(place.remembered.rate + 1);
        }
    }
    let life = if random.one_of(2) { u64::MAX - random.below(3) } else { random.draw() };
    Member { name, life, turn: 0, joined }
}

fn report(random: &mut Random, member: &mut Member) -> Act {
    let rate = member
        .joined
        .way
        .iter()
        .find(|place| place.is_limit)
        .map_or(1, |place| place.remembered.rate.max(4));
    member.turn = if random.one_of(10) { member.turn.saturating_sub(1) } else { member.turn + 1 };
    let floor = member.joined.floor;
    let most = if random.one_of(3) { rate } else { rate / 4 };
    let want = random.below(most).max(floor);
    Act::Report(Report {
        host: member.name.clone(),
        life: member.life,
        turn: member.turn,
        floor,
        claim: Claim::new(1, floor, random.below(rate)),
        holding: random.below(rate / 4),
        want,
        used: random.below(rate),
    })
}

fn climb(random: &mut Random, member: &Member) -> Act {
    let way = &member.joined.way;
    let at = usize::try_from(random.below(way.len() as u64 - 1)).expect("a small number");
    let rate = member.joined.way[way.len() - 1].remembered.rate.max(1);
    let claims: Vec<Claim> =
        (0..random.below(4)).map(|_| Claim::new(1, random.below(9), random.below(rate))).collect();
    let want = (!random.one_of(3)).then(|| random.below(rate));
    Act::Climb { at, claim: Claim::sum(&claims), want }
}

fn step(random: &mut Random, pair: &mut Pair, definitions: &Definitions, members: &mut [Member]) {
    match random.below(200) {
        0 => pair.empty(),
        1 => pair.restart(definitions),
        // The engine's clock is set back.
        2 => pair.engine_us -= random.below(2_000_000),
        3 => pair.engine_us += random.below(5_000_000),
        4 => pair.define("region", None),
        5 => pair.define("a", Some(Terms::default())),
        6..10 => {
            for (name, _) in definitions.iter() {
                pair.define(name, definitions.terms(name));
            }
        }
        10..15 => {
            let at = usize::try_from(random.below(members.len() as u64)).expect("few");
            members[at] = member(random, definitions);
        }
        _ => pair.engine_us += random.below(40_000),
    }
}

#[test]
fn the_script_answers_what_the_book_answers() {
    let Some(server) = Server::start(&[]) else { return };
    let (mut refused, mut granted, mut young) = (0, 0, 0);
    for seed in 0..12 {
        let mut random = Random(seed);
        let mut pair = Pair::new(&server);
        pair.empty();
        let definitions = definitions(&mut random);
        let mut members: Vec<Member> = (0..12).map(|_| member(&mut random, &definitions)).collect();
        for _ in 0..1_000 {
            step(&mut random, &mut pair, &definitions, &mut members);
            let at = usize::try_from(random.below(12)).expect("few");
            let act = match random.one_of(4) {
                true => climb(&mut random, &members[at]),
                false => report(&mut random, &mut members[at]),
            };
            match pair.expect(&members[at].joined, &act) {
                Err(_) => refused += 1,
                Ok(answer) if answer.is_young => young += 1,
                Ok(_) => granted += 1,
            }
        }
    }
    assert!(refused > 500 && granted > 3_000 && young > 1_000, "{refused} {granted} {young}");
}
