//! The protocol, explored exhaustively within bounds.

mod protocol;

use onramp_fleet::{Bursts, Joined, Place, Terms};

use self::protocol::{Budget, Sabotage, Setting, explore};

const RATE: u64 = 1_000;
const FLOOR: u64 = 100;

fn place(name: &str, rate: u64, reserve: u64, is_limit: bool) -> Place {
    Place { name: name.to_owned(), remembered: Terms { rate, reserve }, is_limit }
}

fn joined(way: &[Place]) -> Joined {
    let claims = way.iter().map(|_| (1, 0)).collect();
    Joined { way: way.to_vec(), claims, weight: 1, floor: FLOOR, bursts: Bursts::default() }
}

/// What all settings have in common: two hosts, whose sum must not exceed the limit.
fn usual(budget: Budget) -> Setting {
    Setting {
        joined: Vec::new(),
        quiet: Vec::new(),
        terms: Vec::new(),
        limits: vec![(vec![0, 1], RATE)],
        budget,
        fickle: vec![0, 1],
        moody: vec![0, 1],
        sabotage: None,
        span_ms: 2_600,
        steps_ms: &[200, 500],
    }
}

/// Two hosts in one limit.
fn flat(budget: Budget) -> Setting {
    let terms = Terms { rate: RATE, reserve: 2 * FLOOR };
    let way = [place("tenant", RATE, 2 * FLOOR, true)];
    Setting {
        joined: vec![joined(&way); 2],
        quiet: way.to_vec(),
        terms: vec![("tenant", terms)],
        ..usual(budget)
    }
}

/// Two limits, with a host each, in one.
fn tree(budget: Budget) -> Setting {
    let root = place("company", RATE, 2 * FLOOR, true);
    let part = |name| [place(name, RATE, FLOOR, true), root.clone()];
    Setting {
        joined: vec![joined(&part("north")), joined(&part("south"))],
        quiet: vec![place("idle", RATE, 0, true), root.clone()],
        terms: vec![
            ("company", Terms { rate: RATE, reserve: 2 * FLOOR }),
            ("north", Terms { rate: RATE, reserve: FLOOR }),
            ("south", Terms { rate: RATE, reserve: FLOOR }),
        ],
        ..usual(budget)
    }
}

/// Two hosts in one group of a limit.
fn group(budget: Budget) -> Setting {
    let root = place("tenant", RATE, 2 * FLOOR, true);
    let part = |name| [place(name, 0, 0, false), root.clone()];
    Setting {
        joined: vec![joined(&part("tenant#0")); 2],
        quiet: part("tenant#1").to_vec(),
        terms: vec![("tenant", Terms { rate: RATE, reserve: 2 * FLOOR })],
        ..usual(budget)
    }
}

/// Explores a setting and checks that the sum never exceeds the limit, and that from every `each`th
/// state a world without faults finds the fair shares within two and a half seconds.
fn sound(setting: &Setting, each: usize) {
    let found = explore(setting, 2_000_000, |number, state| {
        if number % each == 0 {
            let mut state = state.clone();
            setting.run_fairly(&mut state, 2_500);
            let fair = setting.fair(&state);
            for host in 0..2 {
                let rate = setting.rate(&state, host);
                assert!(
                    rate.abs_diff(fair[host]) <= RATE / 100,
                    "{rate}, fair: {fair:?}: {state:?}"
                );
            }
        }
    });
    println!("{} states", found.states);
    assert!(found.fault.is_none(), "{found:?}");
    assert!(found.states > 1_000, "{}", found.states);
}

fn none() -> Budget {
    Budget::default()
}

#[test]
fn late_messages() {
    sound(&flat(Budget { demands: 1, delays: 1, ..none() }), 100);
}

/// A changed demand is reported between two ticks.
#[test]
fn reports_between_ticks() {
    let budget = Budget { demands: 1, delays: 1, ..none() };
    for setting in [flat(budget), group(budget)] {
        let setting = Setting { steps_ms: &[50, 500], span_ms: 1_200, ..setting };
        sound(&Setting { fickle: vec![0], moody: vec![0], ..setting }, 200);
    }
}

#[test]
fn messages_that_overtake_others() {
    let budget = Budget { demands: 2, delays: 2, failures: 1, ..none() };
    sound(&Setting { fickle: vec![0], moody: vec![0], span_ms: 1_500, ..flat(budget) }, 100);
}

#[test]
fn an_engine_that_begins_again_twice() {
    let budget = Budget { delays: 1, restarts: 2, ..none() };
    sound(&Setting { fickle: vec![0], moody: vec![0], ..flat(budget) }, 100);
}

#[test]
fn a_new_engine_that_gets_an_old_message() {
    let budget = Budget { demands: 1, delays: 1, restarts: 1, ..none() };
    sound(&Setting { fickle: vec![0], moody: vec![1], span_ms: 2_600, ..flat(budget) }, 100);
}

#[test]
fn programs_that_die_and_clocks_that_jump() {
    let budget = Budget { delays: 1, deaths: 1, jumps: 1, ..none() };
    sound(&Setting { fickle: vec![0], moody: vec![0], span_ms: 2_000, ..flat(budget) }, 100);
}

#[test]
fn an_engine_that_loses_its_terms() {
    let budget = Budget { demands: 1, delays: 1, losses: 1, ..none() };
    sound(&Setting { fickle: vec![0], moody: vec![0], span_ms: 2_000, ..flat(budget) }, 100);
}

#[test]
fn limits_in_a_limit() {
    let budget = Budget { delays: 1, restarts: 1, ..none() };
    sound(&Setting { fickle: vec![0], moody: vec![0], ..tree(budget) }, 100);
    let budget = Budget { demands: 1, delays: 1, ..none() };
    sound(&Setting { fickle: vec![0], moody: vec![0], ..tree(budget) }, 100);
}

#[test]
fn hosts_in_a_group() {
    let budget = Budget { demands: 1, delays: 1, ..none() };
    sound(&Setting { fickle: vec![0], moody: vec![0], ..group(budget) }, 100);
}

#[test]
fn programs_that_die_and_messages_that_are_lost_with_two_levels() {
    for make in [tree, group] {
        for budget in
            [Budget { deaths: 1, delays: 1, ..none() }, Budget { failures: 1, delays: 1, ..none() }]
        {
            sound(&Setting { fickle: vec![0], moody: vec![0], ..make(budget) }, 100);
        }
    }
}

/// Makes the protocol wrong in one way and checks that the exploration notices.
fn noticed(sabotage: Sabotage, budget: Budget) {
    noticed_in(flat(budget), sabotage);
}

fn noticed_in(setting: Setting, sabotage: Sabotage) {
    let wrong = Setting { sabotage: Some(sabotage), fickle: vec![0], moody: vec![0], ..setting };
    let found = explore(&wrong, 500_000, |_, _| {});
    let (path, fault) = found.fault.expect("the exploration noticed nothing");
    println!("{sabotage:?}: after {} states: {fault}: {path:?}", found.states);
}

#[test]
fn hosts_that_break_the_protocol_are_noticed() {
    noticed(Sabotage::LeaseFromAnswer, Budget { delays: 2, ..none() });
    noticed(Sabotage::LeaseWithoutEnd, Budget { delays: 1, ..none() });
    noticed(Sabotage::RaisesFirst, Budget { demands: 2, delays: 1, ..none() });
    noticed(Sabotage::LowersLate, Budget { demands: 1, delays: 1, ..none() });
    noticed(Sabotage::HoldsItsWish, Budget { delays: 2, restarts: 1, ..none() });
    noticed(Sabotage::AcceptsYoung, Budget { delays: 1, restarts: 1, ..none() });
}

#[test]
fn ledgers_that_break_the_protocol_are_noticed() {
    noticed(Sabotage::ShortKeep, Budget { delays: 1, ..none() });
    noticed(Sabotage::FollowsJumps, Budget { delays: 1, jumps: 1, ..none() });
    noticed(Sabotage::GrantsYoung, Budget { delays: 1, restarts: 1, ..none() });
    noticed(Sabotage::OldCopy, Budget { demands: 1, delays: 1, restarts: 1, ..none() });
    noticed(Sabotage::TakesOvertaken, Budget { demands: 2, delays: 2, failures: 1, ..none() });
    noticed(Sabotage::GrantsAll, Budget { demands: 1, delays: 1, ..none() });
    noticed(Sabotage::NoReserve, Budget { delays: 1, ..none() });
    noticed(Sabotage::BuriesEarly, Budget { demands: 1, delays: 1, ..none() });
}

#[test]
fn what_breaks_the_protocol_is_noticed_with_two_levels() {
    for make in [tree, group] {
        noticed_in(make(Budget { delays: 1, ..none() }), Sabotage::LeaseWithoutEnd);
        noticed_in(make(Budget { demands: 1, delays: 1, ..none() }), Sabotage::GrantsAll);
    }
}
