//! What a fleet costs and how fast it follows, in virtual time, by the number of its hosts.

use std::time::Duration;

use onramp_fleet::world::World;
use onramp_fleet::{Claim, Definition, divide};

const MBIT: u64 = 125_000;

fn main() {
    let counts: Vec<u32> = match std::env::args().skip(1).map(|word| word.parse()).collect() {
        Ok(counts) if !Vec::is_empty(&counts) => counts,
        _ => vec![50, 1_000, 10_000],
    };
    for hosts in counts {
        one_limit(hosts);
    }
}

/// One limit for all hosts; a tenth of the hosts change their demands each second.
fn one_limit(hosts: u32) {
    let rate = u64::from(hosts) * 4 * MBIT;
    let floor = rate / 20 / u64::from(hosts);
    let mut world = World::new(1, Duration::from_millis(1)..Duration::from_millis(3));
    let definition = Definition { rate, weight: 1, guaranteed: 0, hosts, floor, parent: None };
    world.set("limit", definition).expect("a sound limit");
    let count = hosts as usize;
    let mut wants = vec![2 * MBIT; count];
    for (host, want) in wants.iter_mut().enumerate() {
        world.join("limit", 1);
        *want = if host % 10 == 0 { 40 * MBIT } else { 2 * MBIT };
        world.set_demand(host, *want);
    }
    world.run(world.now() + Duration::from_secs(4), |_| {});
    let (begin, before) = (world.now(), world.cost());
    let (mut most, mut least, mut times) = (0, u64::MAX, Vec::new());
    for round in 1..=3 {
        for (host, want) in wants.iter_mut().enumerate() {
            *want = if (host + round) % 10 == 0 { 40 * MBIT } else { 2 * MBIT };
            world.set_demand(host, *want);
        }
        let claims: Vec<Claim> = wants.iter().map(|want| Claim::new(1, floor, *want)).collect();
        let fair = divide(rate, &claims);
        // Hosts whose shares rise.
        let is_short = |host: &usize| world.rate(*host) * 100 < fair[*host] * 95;
        let mut waiting: Vec<usize> = (0..count).filter(is_short).collect();
        for step in 1..=100 {
            world.run(world.now() + Duration::from_millis(20), |_| {});
            let sum = world.sum("limit");
            most = most.max(sum);
            if step > 50 {
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
