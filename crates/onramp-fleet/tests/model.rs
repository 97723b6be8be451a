//! The protocol, explored exhaustively within bounds.

mod protocol;

use std::time::Instant as Wall;

use onramp_fleet::{Joined, Place, Terms};

use self::protocol::{Budget, Sabotage, Setting, explore};

const RATE: u64 = 1_000;
const FLOOR: u64 = 100;

fn place(name: &str, rate: u64, reserve: u64, is_limit: bool) -> Place {
    Place { name: name.to_owned(), remembered: Terms { rate, reserve }, is_limit }
}

fn joined(way: &[Place]) -> Joined {
    let claims = way.iter().map(|_| (1, 0)).collect();
    Joined { way: way.to_vec(), claims, weight: 1, floor: FLOOR }
}

/// Two hosts in one limit.
fn flat(budget: Budget) -> Setting {
    let terms = Terms { rate: RATE, reserve: 2 * FLOOR };
    let way = [place("tenant", RATE, 2 * FLOOR, true)];
    Setting {
        joined: vec![joined(&way); 2],
        quiet: way.to_vec(),
        terms: vec![("tenant", terms)],
        limits: vec![(vec![0, 1], RATE)],
        budget,
        sabotage: None,
        span_ms: 3_000,
        steps_ms: &[100, 500],
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
        limits: vec![(vec![0, 1], RATE)],
        budget,
        sabotage: None,
        span_ms: 3_000,
        steps_ms: &[100, 500],
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
        limits: vec![(vec![0, 1], RATE)],
        budget,
        sabotage: None,
        span_ms: 3_000,
        steps_ms: &[100, 500],
    }
}

#[test]
fn probe() {
    let get = |name: &str, or: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or);
    let b = |name| get(name, 0) as u8;
    let budget = Budget {
        demands: b("DEM"), delays: b("DEL"), failures: b("FAI"), restarts: b("RES"),
        losses: b("LOS"), deaths: b("DEA"), jumps: b("JUM"),
    };
    let mut setting = match get("KIND", 0) { 0 => flat(budget), 1 => tree(budget), _ => group(budget) };
    setting.span_ms = get("SPAN", 3000);
    if get("STEP", 0) == 1 { setting.steps_ms = &[100, 1000]; }
    if get("STEP", 0) == 2 { setting.steps_ms = &[200, 500]; }
    let all = [Sabotage::LeaseFromAnswer, Sabotage::LeaseWithoutEnd, Sabotage::RaisesFirst, Sabotage::LowersLate,
        Sabotage::HoldsItsWish, Sabotage::AcceptsYoung, Sabotage::ShortKeep, Sabotage::FollowsJumps, Sabotage::GrantsYoung,
        Sabotage::OldCopy, Sabotage::TakesOvertaken, Sabotage::GrantsAll, Sabotage::NoReserve, Sabotage::BuriesEarly];
    setting.sabotage = match get("SAB", 99) { 99 => None, n => Some(all[n as usize]) };
    let began = Wall::now();
    let found = explore(&setting, get("MOST", 3_000_000) as usize, |_, _| {});
    println!("{:?} {:.1?} states {} {}", setting.sabotage, began.elapsed(), found.states, found.fault.map_or("ok".into(), |(path, fault)| format!("{fault}\n{path:?}")));
}
