//! Tests of the order of events in a simulation, and of the news that sources get about their own
//! packets.

use std::cell::RefCell;

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Rate, Setup, Tree};
use onramp_queue::Packet;
use onramp_sim::source::{News, Source};
use onramp_sim::{BEGIN, Sim, Wire};

use super::at;

/// The events of a run, in order. Each has the time in nanoseconds since the beginning, the name of
/// the source, and what the source sent or heard.
type Log = RefCell<Vec<(u64, &'static str, String)>>;

/// A source that sends packets at given times with given cookies, and notes in a log what it sends
/// and hears.
struct Scripted<'l> {
    name: &'static str,
    times: Vec<(u64, u64)>,
    back_ns: Option<u64>,
    log: &'l Log,
}

impl Scripted<'_> {
    fn note(&self, now: Instant, what: String) {
        self.log.borrow_mut().push((now.since(BEGIN), self.name, what));
    }
}

impl Source for Scripted<'_> {
    fn due(&mut self) -> Option<Instant> {
        self.times.first().map(|(ns, _)| at(*ns))
    }

    fn packet(&mut self, now: Instant) -> Option<Packet> {
        let (_, cookie) = self.times.remove(0);
        let mut pkt = Packet::new(100);
        (pkt.cookie, pkt.ecn) = (cookie, 3);
        self.note(now, format!("sends {cookie:x}"));
        (cookie != NOTHING).then_some(pkt)
    }

    fn back_ns(&self) -> Option<u64> {
        self.back_ns
    }

    fn hear(&mut self, now: Instant, news: &News) {
        self.note(now, format!("hears {:x} {}", news.cookie, news.ce));
    }
}

/// A cookie in the source's list of times: when the time with this cookie comes, the source returns
/// no packet.
const NOTHING: u64 = 0xdead;

fn wire(rate: Option<Rate>) -> Wire {
    let setup = Setup::of("pfifo".parse().expect("a qdisc"));
    Wire::new(Tree::of(&setup, 1514, 1).expect("it has a root"), rate, 0)
}

/// The script of a source: the source's name, the time and the cookie of each of its packets, and
/// how many nanoseconds after an arrival the source hears of it (`None`: never).
type Script<'t> = (&'static str, &'t [(u64, u64)], Option<u64>);

fn run(scripts: &[Script<'_>]) -> Vec<(u64, &'static str, String)> {
    let log = Log::default();
    let mut sim = Sim::new(wire(None));
    for (number, (name, times, back_ns)) in scripts.iter().enumerate() {
        let (times, back_ns) = (times.to_vec(), *back_ns);
        assert_eq!(sim.add(Scripted { name, times, back_ns, log: &log }), number);
    }
    assert_eq!(sim.now(), BEGIN);
    sim.for_each(drop);
    log.into_inner()
}

fn said<'l>(log: &'l [(u64, &'static str, String)]) -> Vec<(u64, &'static str, &'l str)> {
    log.iter().map(|(ns, name, what)| (*ns, *name, what.as_str())).collect()
}

#[test]
fn what_is_heard_comes_before_what_is_sent_and_both_in_their_order() {
    let log = run(&[
        ("late", &[(10, 1), (20, 2)], Some(10)),
        ("early", &[(0, 3), (20, 4)], Some(20)),
        ("deaf", &[(20, 5)], None),
    ]);
    let expected = [
        (0, "early", "sends 3"),
        (10, "late", "sends 1"),
        // Two sources hear news at 20 ns. The news of the packet that was sent first is heard
        // first.
        (20, "early", "hears 3 true"),
        (20, "late", "hears 1 true"),
        (20, "late", "sends 2"),
        (20, "early", "sends 4"),
        (20, "deaf", "sends 5"),
        (30, "late", "hears 2 true"),
        (40, "early", "hears 4 true"),
    ];
    assert_eq!(said(&log), expected);
}

/// If a packet of a source is due but the source returns none, the simulation asks the source when
/// its next packet is due, and goes on.
#[test]
fn without_a_packet_it_goes_on() {
    let log = run(&[("one", &[(5, NOTHING), (3, 7), (9, 8)], None)]);
    // The first packet is due at 5 ns, and the second at 3 ns. Because the source sends its packets
    // in the order of the list, it sends the second also at 5 ns, right after the first.
    let expected = [(5, "one", "sends dead"), (5, "one", "sends 7"), (9, "one", "sends 8")];
    assert_eq!(said(&log), expected);
}

/// A source may set the 48 low bits of a packet's cookie. The packet's fate and the news of its
/// arrival have the same 48 bits; the simulation clears the other bits.
#[test]
fn cookies_are_given_back() {
    let log = Log::default();
    let mut sim = Sim::new(wire(Some(Rate::bytes_per_second(1_000_000))));
    let own = (1 << 48) - 1;
    for times in [vec![(0, own), (1, 5)], vec![(0, u64::MAX), (1, 6)]] {
        sim.add(Scripted { name: "one", times, back_ns: Some(1), log: &log });
    }
    assert!(format!("{sim:?}").contains("sources: 2"));
    let told: Vec<_> = sim.map(|fate| (fate.source, fate.packet.cookie)).collect();
    assert_eq!(told, [(0, own), (1, own), (0, 5), (1, 6)]);
    let heard =
        log.borrow().iter().filter(|(_, _, what)| what == "hears ffffffffffff true").count();
    assert_eq!(heard, 2);
}

/// A source that never wants to send.
struct Silent;

impl Source for Silent {
    fn due(&mut self) -> Option<Instant> {
        None
    }

    fn packet(&mut self, _: Instant) -> Option<Packet> {
        None
    }
}

#[test]
#[should_panic(expected = "a world has at most 65,536 sources")]
fn there_are_so_many_sources() {
    let mut sim = Sim::new(wire(None));
    for number in 0..65_536 {
        assert_eq!(sim.add(Silent), number);
    }
    sim.add(Silent);
}

/// A source that does not implement `back_ns` and `hear` hears of no arrivals, and this causes no
/// error.
#[test]
fn who_does_not_listen_hears_nothing() {
    let mut silent = Silent;
    silent.hear(BEGIN, &News { cookie: 1, ce: false });
    assert_eq!(silent.back_ns(), None);
    assert_eq!(Sim::new(wire(None)).count(), 0);
}

/// Events at the very instant at which the simulation ends still happen.
#[test]
fn the_end_is_part_of_time() {
    let log = Log::default();
    let mut sim = Sim::new(wire(None));
    let times = vec![(5, 1), (6, 2)];
    sim.add(Scripted { name: "one", times, back_ns: None, log: &log });
    sim.stop_at(at(5));
    assert_eq!((sim.by_ref().count(), sim.now()), (1, at(5)));
    sim.stop_at(at(6));
    assert_eq!((sim.by_ref().count(), sim.now()), (1, at(6)));
}

/// After a run, the tree is the caller's, with the packets that it still holds.
#[test]
fn the_tree_outlives_its_simulation() {
    let setup = Setup::of("netem delay 5ms".parse().expect("a qdisc"));
    let tree = Tree::of(&setup, 1514, 1).expect("it has a root");
    let log = Log::default();
    let mut sim = Sim::new(Wire::new(tree, None, 0));
    let times = vec![(0, 1), (10, 2)];
    sim.add(Scripted { name: "one", times, back_ns: None, log: &log });
    sim.stop_at(at(5_000_000));
    assert_eq!((&mut sim).map(|fate| fate.packet.cookie).collect::<Vec<_>>(), [1]);
    let mut tree = sim.into_wire().into_tree();
    assert_eq!(tree.backlog().packets, 1);
    assert!(matches!(tree.dequeue(at(5_000_010)), Dequeue::Ready(pkt) if pkt.cookie & 0xff == 2));
}
