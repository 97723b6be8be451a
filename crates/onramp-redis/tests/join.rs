//! Links whose rates follow limits, with a real engine.

#![cfg(feature = "link")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use onramp::dev::Null;
use onramp::{Device, Handle, Link, Mapping};
use onramp_fleet::Definition;
use onramp_redis::{Engine, EngineError, JoinError, Limit, Member, join};

use common::{Frozen, PATIENCE, Server, eventually};

const RATE: u64 = 1_000_000;
const FLOOR: u64 = 10_000;
const ROOT: Handle = Handle::new(1, 0);

fn member(host: &str, weight: u32) -> Member {
    Member { limit: "tenant".to_owned(), host: host.to_owned(), weight, floor: FLOOR }
}

fn link(line: &str) -> Link {
    let device = Box::new(Null::default()) as Box<dyn Device>;
    let link = Link::devices([device]).build().expect("a link");
    link.change(line).expect("a sound line");
    link
}

/// The rate of a `tbf` at the root of a link, in bytes per second.
fn rate(link: &Link) -> u64 {
    let setup = link.setup();
    let line = setup.line("add", ROOT, &[]).expect("it has a root");
    let words: Vec<&str> = line.split(' ').collect();
    let at = words.iter().position(|word| *word == "rate").expect("it has a rate");
    words[at + 1].parse::<onramp::Rate>().expect("a rate").as_bytes_per_second()
}

/// Returns the engine of an operator, who waits for answers for as long as it takes.
fn operator(server: &Server) -> Engine {
    Engine::new(&server.url(), None).expect("a URL").with_patience(PATIENCE)
}

fn engine_with_limit(server: &Server) -> Engine {
    set_limit(&operator(server), None);
    Engine::new(&server.url(), None).expect("a URL")
}

/// Sets the limit with this burst, in bytes.
fn set_limit(engine: &Engine, burst: Option<u32>) {
    let (rate, hosts, floor) = (RATE, 2, FLOOR);
    let definition =
        Definition { rate, weight: 1, guaranteed: 0, hosts, floor, burst, parent: None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let set = async { engine.set("tenant", &definition).await };
    runtime.expect("a runtime").block_on(set).expect("a sound limit");
}

/// Sets its flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends through a link twice what the limit allows, once `starts` is set and until `done` is set.
/// What does not fit is dropped and counted.
fn flood(link: &Link, starts: &AtomicBool, done: &AtomicBool) {
    let mut sender = link.sender();
    let flow = sender.flow_with(None, Mapping::Port(0));
    while !done.load(Ordering::Relaxed) {
        if starts.load(Ordering::Relaxed) {
            (0..4).for_each(|_| _ = sender.try_send(&flow, &[0; 1_000]));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Two links share a limit: the busy one gets what the idle one leaves, and both get their shares
/// by weight when both are busy. When the engine dies, each has its floor.
#[test]
fn links_share_a_limit() {
    let Some(mut server) = Server::start(&[]) else { return };
    let engine = engine_with_limit(&server);
    let line = "qdisc replace root handle 1: tbf rate 1mbit burst 4kb latency 20ms";
    let (first, second) = (link(line), link(line));
    let joined = join(&first, ROOT, engine.clone(), member("a", 1)).expect("it has a rate");
    let other = join(&second, ROOT, engine, member("b", 3)).expect("it has a rate");
    let (done, now, later) =
        (AtomicBool::new(false), AtomicBool::new(true), AtomicBool::new(false));
    thread::scope(|scope| {
        // The senders end also if a wait fails.
        let end = Ends(&done);
        scope.spawn(|| flood(&first, &now, &done));
        scope.spawn(|| flood(&second, &later, &done));
        let shares = |least: u64, most: u64| {
            eventually(&format!("the first link has {least} to {most}"), || {
                joined.share().limit == Limit::Set && (least..=most).contains(&rate(&first))
            });
        };
        shares(RATE * 8 / 10, RATE);
        later.store(true, Ordering::Relaxed);
        shares(RATE * 22 / 100, RATE * 28 / 100);
        eventually("the second link has the rest", || rate(&second) > RATE * 70 / 100);
        server.kill();
        shares(FLOOR, FLOOR);
        assert!(matches!(joined.share().error, Some(EngineError::Unreachable(_))));
        server.again();
        shares(RATE * 22 / 100, RATE * 28 / 100);
        eventually("the second link has the rest", || rate(&second) > RATE * 70 / 100);
        drop(end);
    });
    assert!(!joined.is_over());
    joined.leave().expect("nothing went wrong");
    assert_eq!(rate(&first), 1, "nobody renews the lease");
    drop(other);
    eventually("the other has left", || rate(&second) == 1);
}

/// If the thread that sets the rate does not come to run, the link's port goes back to the floor by
/// itself.
#[test]
fn a_share_ends_while_nobody_runs() {
    let Some(server) = Server::start(&[]) else { return };
    let engine = engine_with_limit(&server);
    let link = link("qdisc replace root handle 1: tbf rate 1mbit burst 4kb latency 20ms");
    let joined = join(&link, ROOT, engine, member("a", 1)).expect("it has a rate");
    let (done, now) = (AtomicBool::new(false), AtomicBool::new(true));
    // Whether the link passes so much in half a second, while so much is offered that it could pass
    // most of the limit.
    let passes = |least: u64, most: u64| {
        let counted = || {
            let stats = link.stats();
            (link.now(), stats.sent_bytes, stats.submitted)
        };
        let (begin, sent, submitted) = counted();
        thread::sleep(Duration::from_millis(500));
        let (end, sent_then, submitted_then) = counted();
        let rate = |count: u64| count * 1_000_000_000 / end.since(begin);
        let offered = rate(1_000 * (submitted_then - submitted));
        offered > RATE * 9 / 10 && (least..=most).contains(&rate(sent_then - sent))
    };
    let has_its_share = || (0..120).any(|_| passes(RATE * 8 / 10, RATE * 11 / 10));
    thread::scope(|scope| {
        // The sender ends also if a wait fails.
        let end = Ends(&done);
        scope.spawn(|| flood(&link, &now, &done));
        assert!(has_its_share(), "at the beginning");
        if let Some(frozen) = Frozen::threads("onramp-fleet") {
            assert!((0..120).any(|_| passes(0, FLOOR * 2)), "never: its floor");
            assert!(rate(&link) > RATE / 2, "only the port knows");
            drop(frozen);
            assert!(has_its_share(), "when the thread runs again");
        }
        drop(end);
    });
    joined.leave().expect("nothing went wrong");
}

/// A burst of the limit stands in place of the link's own until an operator takes it away or the
/// link leaves.
#[test]
fn a_link_has_its_part_of_the_burst() {
    let Some(server) = Server::start(&[]) else { return };
    let engine = engine_with_limit(&server);
    let link = link("qdisc replace root handle 1: tbf rate 1mbit burst 4kb latency 20ms");
    let burst = || link.setup().burst_options(ROOT, &["rate"])[0].given.clone();
    let joined = join(&link, ROOT, engine.clone(), member("a", 1)).expect("it has a rate");
    eventually("the link has its share", || rate(&link) == RATE - FLOOR);
    assert_eq!(burst(), "4kb");
    // The other host's floor is set aside: 99 of 100 parts are left.
    set_limit(&operator(&server), Some(50_000));
    eventually("the link has its part of the burst", || burst() == "49500b");
    link.change("qdisc change root handle 1: tbf rate 1mbit burst 5kb latency 20ms")
        .expect("sound");
    eventually("the burst is set back", || burst() == "49500b");
    set_limit(&operator(&server), None);
    eventually("the link has its own burst", || burst() == "4kb");
    set_limit(&operator(&server), Some(40_000));
    eventually("the link has its part of the burst", || burst() == "39600b");
    joined.leave().expect("nothing went wrong");
    assert_eq!((rate(&link), &*burst()), (1, "4kb"));
}

/// Each port of a link would send at the whole share. So a link with several ports does not join,
/// and one that gets another port leaves.
#[test]
fn a_link_with_several_ports_does_not_follow() {
    let Some(server) = Server::start(&[]) else { return };
    let engine = engine_with_limit(&server);
    let link = link("qdisc replace root handle 1: tbf rate 1mbit burst 4kb latency 20ms");
    let joined = join(&link, ROOT, engine.clone(), member("a", 1)).expect("it has a rate");
    link.add_port(Null::default()).expect("there is room");
    eventually("the membership is over", || joined.is_over());
    assert_eq!(rate(&link), 1);
    assert!(matches!(joined.leave(), Err(JoinError::Ports(2))));
    assert!(matches!(join(&link, ROOT, engine, member("a", 1)), Err(JoinError::Ports(2))));
}

/// A class that is deleted, a qdisc without a rate, and a place where there is nothing.
#[test]
fn what_has_no_rate_does_not_follow() {
    let Some(server) = Server::start(&[]) else { return };
    let engine = engine_with_limit(&server);
    let link = link("qdisc replace root handle 1: htb default 10");
    let class = Handle::new(1, 0x10);
    for place in [ROOT, class, Handle::new(2, 0)] {
        let error = join(&link, place, engine.clone(), member("a", 1)).expect_err("no rate");
        assert!(matches!(error, JoinError::NoRate(at) if at == place), "{error}");
    }
    let wrong = Member { limit: "a/b".to_owned(), ..member("a", 1) };
    let error = join(&link, class, engine.clone(), wrong).expect_err("no name");
    assert!(matches!(&error, JoinError::Name(name) if name == "a/b"), "{error}");
    link.change("qdisc replace root handle 3: cake bandwidth 1mbit autorate-ingress")
        .expect("sound");
    let error =
        join(&link, Handle::new(3, 0), engine.clone(), member("a", 1)).expect_err("escapes");
    assert!(matches!(error, JoinError::Escapes(..)), "{error}");
    link.change("qdisc replace root handle 1: htb default 10").expect("sound");
    link.change("class add parent 1: classid 1:10 htb rate 1mbit ceil 2mbit").expect("sound");
    let joined = join(&link, class, engine, member("a", 1)).expect("it has a rate");
    let listed = || link.setup().line("add", class, &[]).unwrap_or_default();
    eventually("both rates follow", || {
        let line = listed();
        joined.share().rate > FLOOR && line.matches(" 7920").count() == 2
    });
    // Another rate lasts until the next look.
    link.change("class change parent 1: classid 1:10 htb rate 5mbit ceil 6mbit").expect("sound");
    eventually("the rates are set back", || listed().matches(" 7920").count() == 2);
    link.change("class del classid 1:10").expect("sound");
    eventually("the membership is over", || joined.is_over());
    let error = joined.leave().expect_err("the class is gone");
    assert!(matches!(error, JoinError::NoRate(at) if at == class), "{error}");
}

/// Without an engine, a link begins at its floor, which is set aside for it.
#[test]
fn a_link_without_an_engine_has_its_floor() {
    let engine = Engine::new("redis://127.0.0.1:1", None).expect("a URL");
    let link = link("qdisc replace root handle 1: tbf rate 1mbit burst 4kb latency 20ms");
    let joined = join(&link, ROOT, engine, member("a", 1)).expect("it has a rate");
    eventually("nobody answers", || {
        matches!(joined.share().error, Some(EngineError::Unreachable(_)))
    });
    assert_eq!((rate(&link), joined.share().limit), (FLOOR, Limit::Unknown));
}
