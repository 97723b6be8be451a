//! A fleet in virtual time: how fast shares follow demands, and that the sum of all rates never
//! exceeds the limit, whatever fails.

use std::time::Duration;

use onramp_core::Instant;
use onramp_fleet::world::{Engine, World};
use onramp_fleet::{Act, Book, Definition, Definitions, HOLD, Host, TICK, divide};

const MBIT: u64 = 125_000;
const RATE: u64 = 200 * MBIT;

fn limit(rate: u64, hosts: u32) -> Definition {
    Definition {
        rate,
        weight: 1,
        guaranteed: 0,
        hosts,
        floor: rate / 20 / u64::from(hosts),
        burst: None,
        parent: None,
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A world with 50 hosts in one limit, each of which wants more than its share.
fn fifty(seed: u64) -> World {
    let mut world = World::new(seed, ms(1)..ms(4));
    world.set("tenant", limit(RATE, 50)).expect("a sound limit");
    for host in 0..50 {
        world.join("tenant", 1);
        world.set_demand(host, RATE);
    }
    world
}

/// Lets `span` pass and checks at every event that the sum never exceeds the limit.
fn pass(world: &mut World, span: Duration) {
    let end = world.now() + span;
    world.run(end, |world| {
        let sum = world.sum("tenant");
        assert!(sum <= RATE, "{} ns: the sum is {sum}", world.now().0);
    });
}

#[test]
fn fifty_hosts_share_the_whole_limit() {
    let mut world = fifty(1);
    pass(&mut world, ms(3_000));
    let sum = world.sum("tenant");
    assert!(sum >= RATE * 99 / 100, "{sum}");
}

#[test]
fn shares_follow_demands_within_half_a_second() {
    let mut world = fifty(2);
    pass(&mut world, ms(3_000));
    for round in 0..20 {
        let wants: Vec<u64> =
            (0..50).map(|host| if (host + round) % 5 == 0 { 20 * MBIT } else { MBIT }).collect();
        for (host, want) in wants.iter().enumerate() {
            world.set_demand(host, *want);
        }
        pass(&mut world, ms(500));
        let claims: Vec<_> =
            wants.iter().map(|want| onramp_fleet::Claim::new(1, RATE / 1_000, *want)).collect();
        for (host, fair) in divide(RATE, &claims).iter().enumerate() {
            let rate = world.rate(host);
            assert!(rate * 100 >= fair * 95, "round {round}, host {host}: {rate} of {fair}");
        }
        pass(&mut world, ms(500));
    }
}

#[test]
fn a_killed_engine_that_comes_back_empty() {
    let mut world = fifty(3);
    pass(&mut world, ms(3_000));
    world.set_engine(Engine::Down);
    pass(&mut world, ms(300));
    world.empty_engine();
    world.set_engine(Engine::Up);
    // Shares last through a short restart: the new ledger believes the hosts.
    for _ in 0..40 {
        pass(&mut world, ms(50));
        assert!(world.sum("tenant") >= RATE * 98 / 100, "{}", world.sum("tenant"));
    }
    world.set_engine(Engine::Down);
    pass(&mut world, ms(1_500));
    assert_eq!(world.sum("tenant"), 50 * (RATE / 20 / 50));
    world.empty_engine();
    world.set_engine(Engine::Up);
    pass(&mut world, ms(2_000));
    assert!(world.sum("tenant") >= RATE * 98 / 100, "{}", world.sum("tenant"));
    assert!(world.now() > Instant(0));
}

/// A host that hears first of a higher floor does not send at it before the ledger has the room.
#[test]
fn a_raised_floor_waits_for_room() {
    let definition = |floor| Definition { floor, ..limit(1_000, 2) };
    let mut all = Definitions::new();
    let mut book = Book::new();
    let mut set = |floor, book: &mut Book| {
        all.set("tenant", definition(floor)).expect("a sound limit");
        book.define("tenant", all.terms("tenant").expect("it is set"));
        ["a", "b"].map(|host| all.joined("tenant", host, 1).expect("it has hosts"))
    };
    let [of_a, of_b] = set(0, &mut book);
    let mut now = Instant(0);
    let mut a = Host::new("a", 1, of_a, now);
    let mut b = Host::new("b", 2, of_b, now);
    a.set_demand(now, 1_000);
    let tick = |hosts: &mut [&mut Host], now: &mut Instant, book: &mut Book| {
        *now = *now + TICK;
        for host in hosts {
            while let Some(act) = host.poll(*now) {
                let Act::Report(report) = act else { panic!("there is one ledger") };
                let answer = book.report(now.0 / 1_000, &host.joined().way, &report);
                host.reported(*now, answer);
            }
        }
    };
    for _ in 0..30 {
        tick(&mut [&mut a, &mut b], &mut now, &mut book);
    }
    assert_eq!((a.rate(now), b.rate(now)), (1_000, 0));
    let [of_a, of_b] = set(400, &mut book);
    b.set_joined(of_b);
    for _ in 0..5 {
        tick(&mut [&mut b], &mut now, &mut book);
        assert!(a.rate(now) + b.rate(now) <= 1_000, "{} and {}", a.rate(now), b.rate(now));
    }
    a.set_joined(of_a);
    for _ in 0..5 {
        tick(&mut [&mut a, &mut b], &mut now, &mut book);
        assert!(a.rate(now) + b.rate(now) <= 1_000, "{} and {}", a.rate(now), b.rate(now));
    }
    assert_eq!((a.rate(now), b.rate(now)), (600, 400));
    // Without the engine, each falls to its new floor.
    now = now + 2 * HOLD;
    assert_eq!((a.rate(now), b.rate(now)), (400, 400));
}

/// A demand that changes in each of the caller's ticks makes no more reports than one that stays,
/// also if the caller's ticks are not quite even.
#[test]
fn a_demand_that_changes_all_the_time_makes_no_more_reports() {
    let mut world = World::new(1, ms(1)..ms(2));
    world.set("tenant", limit(1_000_000, 1)).expect("a sound limit");
    let host = world.join("tenant", 1);
    world.run(Instant(3_000_000_000), |_| {});
    let before = world.cost().messages;
    for tick in 0..100 {
        world.run(Instant((3_000 + tick * 100 + tick % 2 * 2) * 1_000_000), |_| {});
        world.set_demand(host, 100_000 * (1 + tick % 2));
    }
    let messages = world.cost().messages - before;
    assert!((95..=220).contains(&messages), "{messages}");
}
