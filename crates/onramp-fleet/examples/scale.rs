//! What a fleet costs and how fast it follows, in virtual time, by the number of its hosts.

use std::num::NonZero;
use std::time::{Duration, Instant};

use onramp_fleet::world::World;
use onramp_fleet::{Claim, Definition, divide};

const MBIT: u64 = 125_000;
const STEP: Duration = Duration::from_millis(20);
/// In a second.
const STEPS: usize = 50;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let are_limits = words.first().is_some_and(|word| word == "limits");
    let numbers = words[usize::from(are_limits)..].iter().map(|word| word.parse());
    let numbers: Vec<NonZero<u32>> = numbers.collect::<Result<_, _>>().unwrap_or_default();
    let numbers: Vec<u32> = numbers.into_iter().map(NonZero::get).collect();
    match *numbers {
        [hosts, limits, each] if are_limits && each <= limits => many_limits(hosts, limits, each),
        [] if words.is_empty() => [50, 1_000, 10_000].into_iter().for_each(one_limit),
        [_, ..] if !are_limits => numbers.into_iter().for_each(one_limit),
        _ => {
            eprintln!(
                "usage: scale [HOSTS...] | scale limits HOSTS LIMITS EACH\n\
                 Numbers are at least 1. EACH: of how many limits each host is; at most LIMITS."
            );
            std::process::exit(2);
        }
    }
}

/// Many limits, of which each host has joined some; a tenth of the members change their demands
/// each second.
fn many_limits(hosts: u32, limits: u32, each: u32) {
    let mut world = World::new(1, Duration::from_millis(1)..Duration::from_millis(3));
    let members = (u64::from(hosts) * u64::from(each)).div_ceil(u64::from(limits));
    let (rate, count) = (members * 4 * MBIT, u32::try_from(members).expect("few"));
    let floor = rate / 20 / members;
    let definition = Definition {
        rate,
        weight: 1,
        guaranteed: 0,
        hosts: count,
        floor,
        burst: None,
        parent: None,
    };
    let names: Vec<String> = (0..limits).map(|limit| format!("limit-{limit}")).collect();
    for name in &names {
        world.set(name, definition.clone()).expect("a sound limit");
    }
    for member in 0..hosts as usize * each as usize {
        world.join(&names[member % names.len()], 1);
    }
    let all = world.hosts();
    let change = |world: &mut World, round: usize| {
        for member in 0..all {
            let wants_much = (member / names.len() + round).is_multiple_of(10);
            world.change_demand(member, if wants_much { 40 * MBIT } else { 2 * MBIT });
        }
    };
    change(&mut world, 0);
    world.run(world.now() + Duration::from_secs(3), |_| {});
    let (begin, before) = (world.now(), world.cost());
    #[expect(clippy::disallowed_methods, reason = "only the report says it")]
    let cpu = Instant::now();
    let (mut most, mut least) = (0, u64::MAX);
    for round in 1..=2 {
        change(&mut world, round);
        for step in 0..STEPS {
            world.run(world.now() + STEP, |_| {});
            let sums = names.iter().map(|name| world.sum(name));
            for sum in sums {
                most = most.max(sum);
                if step >= STEPS / 2 {
                    least = least.min(sum);
                }
            }
        }
    }
    let seconds = world.now().since(begin) as f64 / 1e9;
    let (cost, per) = (world.cost(), seconds * f64::from(hosts));
    let each_host = |after: u64, before: u64| (after - before) as f64 / per;
    println!(
        "{hosts} hosts, {limits} limits, {each} at each host: a limit's sum {:.3} to {:.3}; \
         each host {:.0} messages/s, {:.1} kB/s up, {:.1} kB/s down, {:.2} ms of this machine's \
         time a second (with the ledgers' and the simulation's part)",
        least as f64 / rate as f64,
        most as f64 / rate as f64,
        each_host(cost.messages, before.messages),
        each_host(cost.sent_bytes, before.sent_bytes) / 1e3,
        each_host(cost.answered_bytes, before.answered_bytes) / 1e3,
        cpu.elapsed().as_secs_f64() * 1e3 / per,
    );
}

/// One limit for all hosts; a tenth of the hosts change their demands each second.
fn one_limit(hosts: u32) {
    let rate = u64::from(hosts) * 4 * MBIT;
    let floor = rate / 20 / u64::from(hosts);
    let mut world = World::new(1, Duration::from_millis(1)..Duration::from_millis(3));
    let definition =
        Definition { rate, weight: 1, guaranteed: 0, hosts, floor, burst: None, parent: None };
    world.set("limit", definition).expect("a sound limit");
    let count = hosts as usize;
    let mut wants = vec![2 * MBIT; count];
    for (host, want) in wants.iter_mut().enumerate() {
        world.join("limit", 1);
        *want = if host % 10 == 0 { 40 * MBIT } else { 2 * MBIT };
        world.change_demand(host, *want);
    }
    world.run(world.now() + Duration::from_secs(4), |_| {});
    let (begin, before) = (world.now(), world.cost());
    let (mut most, mut least, mut times) = (0, u64::MAX, Vec::new());
    for round in 1..=3 {
        for (host, want) in wants.iter_mut().enumerate() {
            *want = if (host + round) % 10 == 0 { 40 * MBIT } else { 2 * MBIT };
            world.change_demand(host, *want);
        }
        let claims: Vec<Claim> = wants.iter().map(|want| Claim::new(1, floor, *want)).collect();
        let fair = divide(rate, &claims);
        // Hosts whose shares rise.
        let is_short = |host: &usize| world.rate(*host) * 100 < fair[*host] * 95;
        let mut waiting: Vec<usize> = (0..count).filter(is_short).collect();
        for step in 1..=2 * STEPS {
            world.run(world.now() + STEP, |_| {});
            let sum = world.sum("limit");
            most = most.max(sum);
            if step > STEPS {
                least = least.min(sum);
            }
            waiting.retain(|host| {
                let there = world.rate(*host) * 100 >= fair[*host] * 95;
                if there {
                    times.push(step * 20);
                }
                !there
            });
        }
        times.extend(waiting.iter().map(|_| 9_999));
    }
    times.sort_unstable();
    assert!(most <= rate, "{hosts} hosts have {most} of {rate}");
    let seconds = world.now().since(begin) as f64 / 1e9;
    let (cost, per) = (world.cost(), seconds * f64::from(hosts));
    let each = |after: u64, before: u64| (after - before) as f64 / per;
    println!(
        "{hosts} hosts: sum {:.3} to {:.3} of the limit; 95 % of a share after {} ms (p99 {}, max \
         {}); each host {:.1} messages/s, {:.1} kB/s up, {:.1} kB/s down, {:.0} \
         members/message",
        least as f64 / rate as f64,
        most as f64 / rate as f64,
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        times[times.len() - 1],
        each(cost.messages, before.messages),
        each(cost.sent_bytes, before.sent_bytes) / 1e3,
        each(cost.answered_bytes, before.answered_bytes) / 1e3,
        (cost.members - before.members) as f64 / (cost.messages - before.messages) as f64,
    );
}
