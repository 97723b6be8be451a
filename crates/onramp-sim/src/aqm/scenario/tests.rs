//! Tests that check which flows the scenarios have, and when these flows send.

use onramp_core::{Setup, Tree};

use super::*;
use crate::{Fate, Wire};

const SECONDS: u64 = 4;

/// A plan with a link of a million bytes per second.
fn plan(seed: u64) -> Plan {
    Plan {
        rate: Rate::bytes_per_second(1_000_000),
        seconds: SECONDS.try_into().expect("not zero"),
        seed,
    }
}

fn roles(members: &[Member]) -> Vec<Role> {
    members.iter().map(|member| member.role).collect()
}

/// Draws two random numbers in the order in which the scenario draws them for each bulk flow.
/// Returns the flow's round trip (`trip_ms` plus a random time) and the time at which it begins,
/// both in nanoseconds.
fn drawn(chance: &mut Chance, trip_ms: u64, more_ms: u64) -> (u64, u64) {
    (trip_ms * MS + chance.below(more_ms * MS), chance.below(SEC))
}

/// Returns the round trip of a flow, and the time at which it begins, in nanoseconds since
/// [`BEGIN`].
fn times(member: &Member) -> (u64, u64) {
    (member.trip_ns, member.traffic.from.since(BEGIN))
}

#[test]
fn bulk_flows_have_trips_and_beginnings_by_chance() {
    for (scenario, count, more) in [
        (Scenario::Mild, 5, &[][..]),
        (Scenario::Ecn, 5, &[]),
        (Scenario::Heavy, 50, &[]),
        (Scenario::Unresponsive, 5, &[Role::Flood]),
    ] {
        for seed in [1, 2] {
            let all = members(&plan(seed), scenario);
            let (bulk, rest) = all.split_at(count);
            assert_eq!((roles(bulk), roles(rest)), (vec![Role::Bulk; count], more.to_vec()));
            let mut chance = Chance::new(seed);
            for member in bulk {
                assert_eq!(times(member), drawn(&mut chance, 100, 10), "{scenario:?}");
            }
            assert!(rest.iter().all(|flood| times(flood) == (0, 0)));
        }
    }
}

#[test]
fn trips_differ_where_they_shall() {
    let all = members(&plan(3), Scenario::RttMix);
    let mut chance = Chance::new(3);
    let expected = [20, 50, 100, 200].map(|trip_ms| drawn(&mut chance, trip_ms, 0));
    assert_eq!(all.iter().map(times).collect::<Vec<_>>(), expected);
    assert_eq!(roles(&all), [Role::Bulk; 4]);
}

#[test]
fn short_flows_begin_until_the_end() {
    for seed in [1, 2, 3] {
        let all = members(&plan(seed), Scenario::Bursts);
        let mut chance = Chance::new(seed);
        assert_eq!(times(&all[0]), drawn(&mut chance, 100, 10));
        assert_eq!((times(&all[1]), times(&all[2])), ((0, 0), (0, 0)));
        assert_eq!(roles(&all[..3]), [Role::Bulk, Role::Video, Role::Voice]);
        // The whole time of the plan, warm-up included, is six seconds. On average two short flows
        // begin in each second.
        let (mut from_ns, mut begin) = (0, Vec::new());
        loop {
            from_ns += chance.exponential(500 * MS);
            if from_ns >= 6 * SEC {
                break;
            }
            begin.push((100 * MS, from_ns));
        }
        assert!(begin.len() > 4, "{begin:?}");
        assert_eq!(all[3..].iter().map(times).collect::<Vec<_>>(), begin);
        assert!(all[3..].iter().all(|it| it.role == Role::Web && it.packets() == Some(30)));
        assert!(all[..3].iter().all(|it| it.packets().is_none()));
    }
}

#[test]
fn flows_are_numbered_and_only_marks_are_marked() {
    for scenario in Scenario::ALL {
        for (at, member) in members(&plan(1), scenario).iter().enumerate() {
            let traffic = &member.traffic;
            assert_eq!(traffic.flow, at as u64 + 1);
            assert_eq!(traffic.size, if member.role == Role::Voice { 200 } else { 1514 });
            assert_eq!(traffic.ecn, if scenario == Scenario::Ecn { 2 } else { 0 });
            assert_eq!(scenario.marks(), scenario == Scenario::Ecn);
            assert!(traffic.until > BEGIN.after(1 << 62));
        }
    }
    let names = ["mild", "heavy", "unresponsive", "bursts", "rtt-mix", "ecn"];
    assert_eq!(Scenario::ALL.map(Scenario::name), names);
    let counts =
        Scenario::ALL.map(|it| it.about().chars().take_while(char::is_ascii_digit).count());
    assert_eq!(counts, [1, 2, 1, 0, 1, 1], "how many flows there are, but for bursts");
    let roles = [Role::Bulk, Role::Web, Role::Flood, Role::Video, Role::Voice];
    let answer = roles.map(Role::is_responsive);
    assert_eq!(answer, [true, true, false, false, false]);
}

/// Returns the fates of the packets that a flow of this role sends alone within a second, over an
/// infinitely fast wire with a delay of 5 ms.
fn alone(role: Role, from_ns: u64) -> Vec<Fate> {
    let traffic = Traffic::of(7).between(from_ns, u64::MAX);
    let member = Member { role, trip_ns: 100 * MS, traffic };
    let setup = Setup::of("pfifo".parse().expect("a qdisc"));
    let tree = Tree::of(&setup, 1514, 1).expect("it has a root");
    let mut sim = Sim::new(Wire::new(tree, None, 5 * MS));
    member.join(&mut sim, &plan(1));
    sim.stop_at(BEGIN.after(SEC));
    sim.collect()
}

fn sent(role: Role, from_ns: u64) -> Vec<u64> {
    alone(role, from_ns).iter().map(|fate| fate.came.since(BEGIN)).collect()
}

#[test]
fn a_flood_sends_one_and_a_half_times_the_rate() {
    // The flow that ignores congestion sends packets of 1,514 bytes, and 1,500,000 bytes per
    // second, because the link's rate is 1,000,000.
    let times = sent(Role::Flood, 5);
    assert_eq!(times.len(), 991);
    assert_eq!((times[0], times[1], times[990]), (5, 1_009_338, 999_240_005));
}

/// The video sends a frame of eight packets every 40 ms, until the end of the plan.
#[test]
fn a_video_sends_frames() {
    let expected: Vec<u64> = (0..=24).flat_map(|frame| [frame * 40 * MS + 7; 8]).collect();
    assert_eq!(sent(Role::Video, 7), expected);
    let traffic = Traffic::of(9).size(333).between(6 * SEC - 40 * MS, u64::MAX);
    let last: Vec<_> = frames(&traffic, 6 * SEC).collect();
    assert_eq!(last.len(), 8, "what would come at the end does not come");
    assert!(last.iter().all(|(_, pkt)| (pkt.flow, pkt.len) == (9, 333)));
    assert_eq!(alone(Role::Video, 0)[0].packet.flow, 7);
}

/// The voice call sends 10,000 bytes per second. In this test its packets have 1,514 bytes, not
/// 200, because only `members`, which this test does not use, sets their size.
#[test]
fn a_call_sends_at_its_rate() {
    let expected: Vec<u64> = (0..7).map(|number| number * 151_400_000).collect();
    assert_eq!(sent(Role::Voice, 0), expected);
}

/// A bulk flow sends its next packets when it hears that earlier ones have arrived. Of a round trip
/// of 100 ms, a plan's wire takes 10 ms and the way back the other 90 ms. The wire of this test
/// takes 5 ms, so the next packets are sent after 95 ms.
#[test]
fn windows_hear_after_the_rest_of_the_trip() {
    let bulk = sent(Role::Bulk, 3);
    assert_eq!(bulk[..10], [3; 10]);
    assert_eq!(bulk[10..30], [95 * MS + 3; 20]);
    assert_eq!(bulk[30..70], [190 * MS + 3; 40]);
    let web = sent(Role::Web, 3);
    assert_eq!(web, bulk[..30]);
}
