//! A fleet in virtual time with everything that can fail: the sum of all rates never exceeds the
//! limit, and two seconds after each fault the shares are fair again (after many faults at once,
//! two seconds after the last message that was on its way for long).

use std::ops::Range;
use std::time::Duration;

use onramp_core::Instant;
use onramp_fleet::world::{Engine, World};
use onramp_fleet::{Claim, Definition, divide};

const MBIT: u64 = 125_000;
const RATE: u64 = 200 * MBIT;
const HOSTS: usize = 20;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn limit(rate: u64, hosts: u32, parent: Option<&str>) -> Definition {
    let floor = rate / 20 / u64::from(hosts.max(1));
    let parent = parent.map(str::to_owned);
    Definition { rate, weight: 1, guaranteed: 0, hosts, floor, burst: None, parent }
}

/// Hosts in one limit, and what they want.
struct Fleet {
    world: World,
    wants: Vec<u64>,
    weights: Vec<u32>,
    rate: u64,
    /// Whether each host can take part.
    takes_part: Vec<bool>,
    /// The limits with hosts, and the largest sums of some of them together.
    limits: Vec<(Vec<&'static str>, u64)>,
}

impl Fleet {
    fn new(seed: u64, weights: &[u32], rate: u64) -> Self {
        let mut world = World::new(seed, ms(1)..ms(4));
        let hosts = u32::try_from(weights.len()).expect("few hosts");
        world.set("tenant", limit(rate, hosts, None)).expect("a sound limit");
        for weight in weights {
            world.join("tenant", *weight);
        }
        let wants = vec![rate; weights.len()];
        let takes_part = vec![true; weights.len()];
        let mut fleet =
            Self { world, wants, weights: weights.to_vec(), rate, takes_part, limits: Vec::new() };
        fleet.want(|_| rate);
        fleet.pass(3_000);
        fleet.is_fair("at the start");
        fleet
    }

    /// Twenty hosts that all want more than their shares.
    fn equal(seed: u64) -> Self {
        Self::new(seed, &[1; HOSTS], RATE)
    }

    fn want(&mut self, wants: impl Fn(usize) -> u64) {
        for host in 0..self.wants.len() {
            self.wants[host] = wants(host);
            self.world.set_demand(host, self.wants[host]);
        }
    }

    /// Cuts hosts off from the engine, or ends that.
    fn cut(&mut self, hosts: Range<usize>, is_cut: bool) {
        for host in hosts {
            self.world.cut(host, is_cut);
            self.takes_part[host] = !is_cut;
        }
    }

    /// Lets the time pass and checks the sum at every event, or every millisecond if the fleet is
    /// large.
    fn pass(&mut self, span_ms: u64) {
        let end = self.world.now() + ms(span_ms);
        let tenant = [(vec!["tenant"], self.rate)];
        let limits = if self.limits.is_empty() { &tenant[..] } else { &self.limits };
        // A sum of a thousand rates is made every millisecond.
        let (every, mut next) = (if self.wants.len() > 100 { ms(1) } else { ms(0) }, Instant(0));
        self.world.run(end, |world| {
            if world.now() < next {
                return;
            }
            next = world.now() + every;
            for (names, rate) in limits {
                let sum: u64 = names.iter().map(|name| world.sum(name)).sum();
                assert!(sum <= *rate, "{} ns: {names:?}: {sum}, not {rate}", world.now().0);
            }
        });
    }

    fn floor(&self) -> u64 {
        self.rate / 20 / self.wants.len() as u64
    }

    /// What each host should have: those that take no part keep their guaranteed rates.
    fn fair(&self) -> Vec<u64> {
        let floor = self.floor();
        let claim = |host: usize| Claim::new(self.weights[host], floor, self.wants[host]);
        let members: Vec<usize> =
            (0..self.wants.len()).filter(|host| self.takes_part[*host]).collect();
        let claims: Vec<Claim> = members.iter().map(|host| claim(*host)).collect();
        let away = (self.wants.len() - members.len()) as u64;
        let mut shares = vec![0; self.wants.len()];
        for (host, share) in members.iter().zip(divide(self.rate - away * floor, &claims)) {
            shares[*host] = share;
        }
        shares
    }

    fn is_fair(&self, what: &str) {
        for (host, fair) in self.fair().iter().enumerate() {
            let refused = self.world.host(host).refused();
            let rate = self.world.rate(host);
            let is_near = rate.abs_diff(*fair) * 100 <= fair * 3;
            let what = format!("{what}: {host} has {rate}, not {fair}; refused: {refused:?}");
            assert!(is_near || !self.takes_part[host], "{what}");
        }
    }
}

#[test]
fn weights() {
    let weights: Vec<u32> = (1..=4).cycle().take(HOSTS).collect();
    let fleet = Fleet::new(1, &weights, RATE);
    let shares: Vec<u64> = (0..4).map(|host| fleet.world.rate(host)).collect();
    for (share, weight) in shares.iter().zip(1..) {
        assert!((shares[0] * weight).abs_diff(*share) * 100 <= share * 3, "{shares:?}");
    }
}

#[test]
fn half_of_the_hosts_are_cut_off() {
    let mut fleet = Fleet::equal(2);
    fleet.cut(0..HOSTS / 2, true);
    fleet.pass(2_000);
    fleet.is_fair("half are cut off");
    assert!((0..HOSTS / 2).all(|host| fleet.world.rate(host) == fleet.floor()));
    fleet.cut(0..HOSTS / 2, false);
    fleet.pass(2_000);
    fleet.is_fair("nobody is cut off");
}

#[test]
fn the_engine_is_paused_for_30_seconds() {
    let mut fleet = Fleet::equal(3);
    fleet.world.set_engine(Engine::Paused);
    fleet.pass(30_000);
    assert_eq!(fleet.world.sum("tenant"), HOSTS as u64 * fleet.floor());
    fleet.want(|host| if host % 2 == 0 { RATE } else { MBIT });
    fleet.world.set_engine(Engine::Up);
    fleet.pass(2_000);
    fleet.is_fair("after the pause");
}

#[test]
fn the_engine_begins_again_with_nothing_twice() {
    let mut fleet = Fleet::equal(4);
    for pause in [50, 300, 1_100, 1_700] {
        for pause in [pause, 250] {
            fleet.world.set_engine(Engine::Down);
            fleet.pass(pause);
            fleet.world.empty_engine();
            fleet.world.set_engine(Engine::Up);
            fleet.pass(200);
        }
        fleet.pass(1_800);
        fleet.is_fair("after the engine began again");
    }
}

#[test]
fn messages_need_two_seconds() {
    let mut fleet = Fleet::equal(5);
    fleet.world.set_latency(ms(1_990)..ms(2_010));
    fleet.want(|host| if host % 2 == 0 { RATE } else { MBIT });
    fleet.pass(10_000);
    assert_eq!(fleet.world.sum("tenant"), HOSTS as u64 * fleet.floor());
    fleet.world.set_latency(ms(1)..ms(4));
    fleet.pass(2_000);
    fleet.is_fair("after the delays");
    // Some need long, some do not: the fleet works on.
    fleet.world.set_latency(ms(1)..ms(700));
    fleet.want(|host| if host % 3 == 0 { RATE } else { MBIT });
    fleet.pass(10_000);
}

#[test]
fn a_lie_brings_no_more_than_a_fair_share() {
    let mut fleet = Fleet::equal(6);
    fleet.want(|host| if host == 0 { MBIT } else { RATE });
    fleet.pass(2_000);
    fleet.is_fair("nobody lies");
    let honest = fleet.world.rate(1);
    fleet.world.lie(0, u64::MAX);
    fleet.wants[0] = u64::MAX;
    fleet.pass(2_000);
    fleet.is_fair("one host lies");
    let fair = RATE / HOSTS as u64;
    assert!(fleet.world.rate(0) <= fair, "{}", fleet.world.rate(0));
    assert!(fleet.world.rate(1) < honest, "{honest}");
}

#[test]
fn the_engines_clock_jumps() {
    let mut fleet = Fleet::equal(7);
    for seconds in [3_600, -7_200, 1, 10, -1, 3_600, -3_600] {
        fleet.world.move_engine_clock(seconds);
        fleet.pass(1_300);
        fleet.is_fair("after a jump");
    }
    fleet.world.cut(0, true);
    fleet.takes_part[0] = false;
    fleet.pass(500);
    fleet.world.move_engine_clock(3_600);
    fleet.pass(500);
    fleet.world.move_engine_clock(-3_600);
    fleet.pass(1_000);
    fleet.is_fair("one is cut off");
}

#[test]
fn hosts_die_and_come_back() {
    let mut fleet = Fleet::equal(8);
    for host in [3, 5, 7] {
        fleet.world.kill(host);
        fleet.takes_part[host] = false;
    }
    fleet.pass(2_000);
    fleet.is_fair("three are dead");
    for host in [3, 5, 7] {
        fleet.world.revive(host);
        fleet.takes_part[host] = true;
    }
    fleet.pass(2_000);
    fleet.is_fair("all live again");
    // A new life begins while the ledger still keeps the share of the old one.
    fleet.world.kill(3);
    fleet.pass(20);
    fleet.world.revive(3);
    fleet.pass(2_000);
    fleet.is_fair("a new life");
}

/// Every 50 to 450 ms something happens, for a minute; then everything is well.
#[test]
fn all_faults_at_once() {
    for seed in 0..6 {
        chaos(Fleet::equal(100 + seed), seed);
    }
}

fn chaos(mut fleet: Fleet, seed: u64) {
    disturb(&mut fleet, seed, 60_000);
    fleet.want(|host| if host % 3 == 0 { MBIT } else { RATE });
    // Messages that were on their way for long arrive within 1.5 s.
    fleet.pass(3_500);
    fleet.is_fair("after all faults");
}

/// Makes faults for this time, and ends them all.
fn disturb(fleet: &mut Fleet, seed: u64, span_ms: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) % below
    };
    let hosts = fleet.wants.len();
    let mut dead = vec![false; hosts];
    let mut passed = 0;
    while passed < span_ms {
        let host = usize::try_from(draw(hosts as u64)).expect("few hosts");
        match draw(12) {
            0..4 => {
                let want = draw(fleet.rate);
                fleet.wants[host] = want;
                fleet.world.set_demand(host, want);
            }
            4 => fleet.world.cut(host, true),
            5 => (0..hosts).for_each(|host| fleet.world.cut(host, false)),
            6 if dead[host] => {
                fleet.world.revive(host);
                dead[host] = false;
            }
            6 => {
                fleet.world.kill(host);
                dead[host] = true;
            }
            7 => fleet.world.set_engine(Engine::Down),
            8 => {
                // Messages that the killed engine had not read are lost with it.
                fleet.world.set_engine(Engine::Down);
                fleet.world.empty_engine();
                fleet.world.set_engine(Engine::Up);
            }
            9 => fleet.world.set_engine(Engine::Paused),
            10 => {
                let most = [5, 50, 400, 1_500][usize::try_from(draw(4)).expect("few")];
                fleet.world.set_latency(ms(1)..ms(most));
                fleet.world.set_engine(Engine::Up);
            }
            _ => fleet.world.set_engine(Engine::Up),
        }
        // Jumps are rarer: KEEP exceeds HOLD by one of them.
        if draw(20) == 0 {
            fleet.world.move_engine_clock(if draw(2) == 0 { 3_600 } else { -3_600 });
            fleet.pass(1_250);
            passed += 1_250;
        }
        let span = 50 + draw(400);
        fleet.pass(span);
        passed += span;
    }
    fleet.world.set_latency(ms(1)..ms(4));
    fleet.world.set_engine(Engine::Up);
    for (host, is_dead) in dead.into_iter().enumerate() {
        fleet.world.cut(host, false);
        if is_dead {
            fleet.world.revive(host);
        }
    }
}

#[test]
fn an_operator_raises_and_lowers_a_limit() {
    let mut fleet = Fleet::equal(9);
    fleet.rate = 2 * RATE;
    fleet.world.set("tenant", limit(2 * RATE, 20, None)).expect("a sound limit");
    fleet.want(|_| 2 * RATE);
    fleet.pass(1_000);
    fleet.is_fair("after the limit was raised");
    // The hosts that are cut off keep their shares for HOLD at most.
    fleet.world.cut(0, true);
    fleet.takes_part[0] = false;
    fleet.world.set("tenant", limit(RATE, 20, None)).expect("a sound limit");
    fleet.world.run(fleet.world.now() + ms(1_000), |world| {
        assert!(world.sum("tenant") <= 2 * RATE, "{}", world.sum("tenant"));
    });
    fleet.rate = RATE;
    fleet.pass(1_000);
    fleet.is_fair("after the limit was lowered");
}

const LEAVES: [&str; 4] = ["a-east", "a-west", "b-east", "b-west"];

/// A company with two tenants, each with two regions, each with four hosts. Tenant a has twice the
/// weight of tenant b. A quarter of the company's rate is guaranteed to region b-west.
fn company(seed: u64) -> Fleet {
    let mut world = World::new(seed, ms(1)..ms(4));
    let mut set = |name: &str, definition| world.set(name, definition).expect("a sound limit");
    set("company", limit(RATE, 0, None));
    set("a", Definition { weight: 2, ..limit(RATE, 0, Some("company")) });
    set("b", Definition { guaranteed: RATE / 4, ..limit(RATE / 2, 0, Some("company")) });
    for name in LEAVES {
        let guaranteed = if name == "b-west" { RATE / 4 } else { 0 };
        let floor = RATE / 400;
        let parent = Some(&name[..1]);
        set(name, Definition { guaranteed, floor, ..limit(RATE / 2, 4, parent) });
    }
    for name in LEAVES {
        for _ in 0..4 {
            world.join(name, 1);
        }
    }
    let mut limits: Vec<_> = LEAVES.iter().map(|name| (vec![*name], RATE / 2)).collect();
    limits.push((LEAVES.to_vec(), RATE));
    limits.push((LEAVES[2..].to_vec(), RATE / 2));
    let (wants, weights, takes_part) = (vec![0; 16], vec![1; 16], vec![true; 16]);
    let mut fleet = Fleet { world, wants, weights, rate: RATE, takes_part, limits };
    fleet.want(|_| RATE);
    fleet.pass(4_000);
    fleet
}

impl Fleet {
    fn leaves_are(&self, percents: [u64; 4], what: &str) {
        let sums = LEAVES.map(|name| self.world.sum(name) * 100);
        for (sum, percent) in sums.iter().zip(percents) {
            let near = sum.abs_diff(RATE * percent) <= RATE * 3;
            assert!(near, "{what}: {sums:?} of {RATE}, not {percents:?}");
        }
    }
}

#[test]
fn regions_in_tenants_in_a_company() {
    let mut fleet = company(10);
    // By weight, b has a third. b-west has its guarantee of a quarter, b-east the rest.
    fleet.leaves_are([33, 33, 8, 25], "all want much");
    // Tenant a wants nothing: tenant b gets its limit.
    fleet.want(|host| if host < 8 { 0 } else { RATE });
    fleet.pass(2_000);
    let sum = fleet.world.sum("b-east") + fleet.world.sum("b-west");
    assert!(sum * 100 >= RATE * 47, "{sum} of {}", RATE / 2);
    fleet.want(|_| RATE);
    fleet.pass(2_000);
    fleet.leaves_are([33, 33, 8, 25], "all want much again");
    // A region is cut off for longer than its shares last, and comes back.
    for host in 4..8 {
        fleet.world.cut(host, true);
    }
    fleet.pass(5_000);
    // A region may not exceed its own limit, half of the company's, so the other tenant gets more.
    fleet.leaves_are([49, 1, 25, 25], "a region is cut off");
    for host in 4..8 {
        fleet.world.cut(host, false);
    }
    fleet.pass(2_000);
    fleet.leaves_are([33, 33, 8, 25], "the region is back");
}

#[test]
fn all_faults_at_once_in_a_tree() {
    for seed in 0..4 {
        let mut fleet = company(200 + seed);
        disturb(&mut fleet, seed, 60_000);
        fleet.want(|_| RATE);
        fleet.pass(4_000);
        fleet.leaves_are([33, 33, 8, 25], "after all faults");
    }
}

#[test]
fn all_faults_at_once_in_groups() {
    for seed in 0..2 {
        let mut fleet = Fleet::new(300 + seed, &[1; 100], RATE);
        disturb(&mut fleet, seed, 30_000);
        fleet.want(|_| RATE);
        fleet.pass(4_000);
        fleet.is_fair("after all faults");
    }
}

/// 1,000 hosts in groups: the sum never exceeds the limit, and 95 % of the new shares are there
/// half a second after demands have changed.
#[test]
fn a_thousand_hosts() {
    let mut fleet = Fleet::new(11, &[1; 1_000], 50 * RATE);
    for round in 0..3 {
        let before: Vec<u64> = (0..1_000).map(|host| fleet.world.rate(host)).collect();
        fleet.want(|host| if (host + round) % 5 == 0 { 50 * RATE } else { MBIT });
        fleet.pass(500);
        let fair = fleet.fair();
        let far = |from: &[u64]| from.iter().zip(&fair).map(|(a, b)| a.abs_diff(*b)).sum::<u64>();
        let after: Vec<u64> = (0..1_000).map(|host| fleet.world.rate(host)).collect();
        let (way, left) = (far(&before), far(&after));
        assert!(left * 100 <= way * 5, "round {round}: {left} of {way} are left");
        fleet.pass(1_000);
        fleet.is_fair("a second later");
    }
}

#[test]
fn faults_of_a_thousand_hosts() {
    faults(1_000);
}

/// Each fault in turn, in a fleet that has groups. Two seconds after each, shares are fair.
fn faults(hosts: usize) {
    let rate = hosts as u64 * RATE / 20;
    let mut fleet = Fleet::new(12, &vec![1; hosts], rate);
    fleet.cut(0..hosts / 2, true);
    fleet.pass(2_000);
    fleet.is_fair("half are cut off");
    fleet.cut(0..hosts / 2, false);
    fleet.pass(2_000);
    fleet.is_fair("nobody is cut off");
    fleet.world.set_engine(Engine::Down);
    fleet.pass(1_500);
    fleet.world.empty_engine();
    fleet.world.set_engine(Engine::Up);
    fleet.pass(2_000);
    fleet.is_fair("the engine began again with nothing");
    fleet.world.set_engine(Engine::Paused);
    fleet.pass(3_000);
    fleet.world.set_engine(Engine::Up);
    fleet.pass(2_000);
    fleet.is_fair("after the pause");
    fleet.world.set_latency(ms(1_990)..ms(2_010));
    fleet.pass(3_000);
    fleet.world.set_latency(ms(1)..ms(4));
    fleet.pass(2_000);
    fleet.is_fair("after the delays");
    fleet.want(|host| if host == 0 { MBIT } else { rate });
    fleet.pass(1_000);
    fleet.world.lie(0, u64::MAX);
    fleet.wants[0] = u64::MAX;
    fleet.pass(2_000);
    fleet.is_fair("one host lies");
}

/// Ten hosts that want everything, eight seconds after they joined a limit with groups. Each way to
/// the engine takes as long as `way` says.
fn far_away(way: Range<Duration>) -> World {
    let mut world = World::new(13, way);
    world.set("tenant", limit(RATE, 100, None)).expect("a sound limit");
    for host in 0..10 {
        world.join("tenant", 1);
        world.set_demand(host, RATE);
    }
    world.run(world.now() + ms(8_000), |_| {});
    world
}

/// Hosts keep their leases where a message and its answer need 0.3 s: what they tell the ledgers
/// above does not keep them from it.
#[test]
fn an_engine_that_is_far_away() {
    let mut world = far_away(ms(140)..ms(150));
    let mut lapses = 0;
    world.run(world.now() + ms(5_000), |world| {
        lapses += (0..10).filter(|host| world.now() >= world.host(*host).until()).count();
    });
    assert_eq!(lapses, 0);
    assert!(world.sum("tenant") > RATE * 9 / 10, "{}", world.sum("tenant"));
}

/// Where a message and its answer need longer, reports and climbs take turns, so that the hosts
/// have their shares some of the time.
#[test]
fn an_engine_that_is_farther_away() {
    let mut world = far_away(ms(200)..ms(210));
    let mut most = 0;
    world.run(world.now() + ms(5_000), |world| most = most.max(world.sum("tenant")));
    assert!(most > RATE / 4, "{most}");
}

/// Where ledgers are above the hosts' own, hosts lower their rates with the limit, too, before the
/// ledgers between have heard of it.
#[test]
fn a_limit_with_groups_is_lowered_from_far_away() {
    let mut world = far_away(ms(140)..ms(150));
    assert!(world.sum("tenant") > RATE * 9 / 10, "{}", world.sum("tenant"));
    world.set("tenant", limit(RATE / 2, 100, None)).expect("a sound limit");
    world.run(world.now() + ms(1_000), |_| {});
    world.run(world.now() + ms(2_000), |world| {
        assert!(world.sum("tenant") <= RATE / 2, "{}", world.sum("tenant"));
    });
    assert!(world.sum("tenant") > RATE * 9 / 20, "{}", world.sum("tenant"));
}

/// A ledger's clock moves by at most 0.15 s from one call to the next, so that a clock that is set
/// forward ends no lease early. With one host that can call only every 0.3 s, a dead one's lease
/// lasts twice as long.
#[test]
fn a_lonely_host_far_away_waits_longer() {
    let mut world = World::new(1, ms(150)..ms(151));
    world.set("tenant", limit(RATE, 8, None)).expect("a sound limit");
    for _ in 0..2 {
        let host = world.join("tenant", 1);
        world.set_demand(host, RATE);
    }
    world.run(world.now() + ms(8_000), |_| {});
    world.kill(1);
    world.run(world.now() + ms(1_600), |_| {});
    assert!(world.rate(0) < RATE * 6 / 10, "{}", world.rate(0));
    world.run(world.now() + ms(2_000), |_| {});
    assert!(world.rate(0) > RATE * 9 / 10, "{}", world.rate(0));
}

/// With 10,000 hosts the sum is at most the limit, too, and each host sends and reads about as much
/// as with 50.
#[test]
fn cost_is_flat_up_to_ten_thousand_hosts() {
    let cost = |hosts: u32| {
        let mut world = World::new(1, ms(1)..ms(3));
        let rate = u64::from(hosts) * 4 * MBIT;
        let definition =
            Definition { rate, hosts, floor: 4 * MBIT / 20, ..limit(rate, hosts, None) };
        world.set("tenant", definition).expect("a sound limit");
        let change = |world: &mut World, round: usize| {
            for host in 0..hosts as usize {
                let want = if (host + round).is_multiple_of(10) { 40 * MBIT } else { 2 * MBIT };
                world.change_demand(host, want);
            }
        };
        for _ in 0..hosts {
            world.join("tenant", 1);
        }
        change(&mut world, 0);
        let safe = |world: &mut World, span| {
            for _ in 0..10 {
                world.run(world.now() + span / 10, |_| {});
                assert!(world.sum("tenant") <= rate, "{hosts}: {}", world.sum("tenant"));
            }
        };
        safe(&mut world, ms(2_500));
        let before = world.cost();
        change(&mut world, 1);
        safe(&mut world, ms(1_000));
        assert!(world.sum("tenant") > rate * 95 / 100, "{hosts}: {}", world.sum("tenant"));
        let after = world.cost();
        [
            after.messages - before.messages,
            after.sent_bytes - before.sent_bytes,
            after.answered_bytes - before.answered_bytes,
        ]
        .map(|count| count / u64::from(hosts))
    };
    // There are one, two and three levels of ledgers. Hosts tell each level above theirs twice in a
    // tick, if that is enough for its members to agree.
    let few = cost(50);
    for (hosts, tenths) in [(1_000, 16), (10_000, 25)] {
        for (many, few) in cost(hosts).into_iter().zip(few) {
            assert!(many * 10 <= tenths * few + 10, "{hosts} hosts: {many}, 50 hosts: {few}");
        }
    }
}
