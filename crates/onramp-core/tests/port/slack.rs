//! A port with slack is visited later and less often, and sends the same packets at the same rate.

use onramp_core::qdisc::Cx;
use onramp_core::{
    CATCH_UP_NS, Instant, Mode, PortOptions, QUOTA, Rate, RootQdisc, Setup, SharedRate,
};
use onramp_queue::PacketList;

use crate::own_time::{TREES, random};
use crate::world::{MTU, START, World, packet};

/// Nanoseconds in a millisecond: a tree of `TREES` allows one packet in this time.
const MS: u64 = 1_000_000;

fn world(tree: &[&str], options: PortOptions) -> World {
    let mut setup = Setup::default();
    tree.iter().for_each(|line| setup.apply(&format!("tc {line}")).expect("a line of tc"));
    World::over(setup.build(MTU, 7).expect("a root"), 16_384, options)
}

fn options(mode: Mode, slack_ns: u64) -> PortOptions {
    PortOptions { mode, slack_ns, ..PortOptions::default() }
}

/// The options of a port that asks for its runner at most once in this time.
fn resting(mode: Mode, rest_ns: u64) -> PortOptions {
    PortOptions { mode, rest_ns, ..PortOptions::default() }
}

/// Pushes a packet of 1,000 bytes at the present time. Four flows take turns.
fn push(world: &mut World) {
    let cookie = world.pushed;
    let mut pkt = packet(cookie, cookie % 4, world.now);
    pkt.len = 1_000;
    world.pushed += 1;
    let list = PacketList::from_iter([pkt]);
    let _ = world.port.xmit(list, world.now, &world.waker).expect("there is room");
}

/// Makes all visits that the port asks for until time `end`, each `late_ns` after the time that the
/// port named. Returns their number.
fn until(world: &mut World, end: Instant, late_ns: u64) -> u32 {
    let mut visits = 0;
    while let Some(due) = world.waker.due().filter(|due| *due <= end) {
        let late_ns = if due > world.now { late_ns } else { 0 };
        world.now = world.now.max(due).after(late_ns);
        let _ = world.visit();
        world.check();
        visits += 1;
    }
    world.now = world.now.max(end);
    visits
}

/// Pushes a packet at each of the times `arrivals` and makes each visit at the time that the port
/// names. Returns the port after it has sent everything, and the number of visits.
fn drive(tree: &[&str], options: PortOptions, arrivals: &[Instant]) -> (World, u32) {
    let mut world = world(tree, options);
    let mut visits = 0;
    for at in arrivals {
        if *at > world.now {
            visits += until(&mut world, *at, 0);
        }
        push(&mut world);
    }
    visits += until(&mut world, START.after(60_000 * MS), 0);
    assert_eq!(world.stats().held, 0, "{tree:?}");
    (world, visits)
}

/// Checks that the port with slack has sent and dropped the same packets as the port without, each
/// at most `slack_ns` later and none earlier, and that it knows of no lateness.
fn compare(prompt: &World, slack: &World, slack_ns: u64, what: &str) {
    assert_eq!(slack.sent(), prompt.sent(), "{what}");
    assert_eq!(slack.stats().dropped, prompt.stats().dropped, "{what}");
    for ((cookie, due), (_, left)) in prompt.wire().sent.iter().zip(&slack.wire().sent) {
        let range = *due..=due.after(slack_ns);
        assert!(range.contains(left), "{what}: {cookie} left at {left:?}, not in {range:?}");
    }
    let stats = slack.stats();
    let late: u64 = stats.late_ns.iter().sum();
    assert_eq!((stats.late_ns[0], stats.lost_ns), (late, 0), "{what}: {:?}", stats.late_ns);
}

/// 900 packets wait at the beginning. With a slack, they leave at the same rate with a fraction of
/// the visits, also if the slack is longer than a port catches up on lateness, and if one visit has
/// to send more than a quota.
#[test]
fn one_visit_serves_the_packets_of_a_slack() {
    let arrivals = [START; 900];
    for tree in TREES {
        let (prompt, visits) = drive(tree, options(Mode::Dedicated, 0), &arrivals);
        for ms in [1, 10, 100] {
            let options = options(Mode::Dedicated, ms * MS);
            let (slack, fewer) = drive(tree, options, &arrivals);
            compare(&prompt, &slack, ms * MS, &format!("{tree:?} {ms} ms"));
            // Of the packets of one visit, those above a quota cost further visits at once. The
            // four flows of `fq` leave together, so there an instant is due every 4 ms.
            let most = if ms == 1 { visits } else { visits / 2 };
            assert!(fewer <= most, "{tree:?} {ms} ms: {fewer} visits, {visits} without slack");
        }
        for ms in [1, 5, 20] {
            let (rests, fewer) = drive(tree, resting(Mode::Dedicated, ms * MS), &arrivals);
            compare(&prompt, &rests, ms * MS, &format!("{tree:?} rest {ms} ms"));
            let most = if ms == 20 { visits / 2 } else { visits };
            assert!(fewer <= most, "{tree:?} {ms} ms: {fewer} visits, {visits} without rest");
        }
    }
}

/// A shaper that releases a packet every millisecond is visited every millisecond without slack,
/// every second one with 1 ms, and every 11 ms with 10 ms.
#[test]
fn visits_fall_as_the_slack_grows() {
    let visits =
        [0, 1, 10].map(|ms| drive(TREES[0], options(Mode::Dedicated, ms * MS), &[START; 443]).1);
    // Three packets leave at once.
    let first = visits[0] - 440;
    assert_eq!(visits, [440, 220, 40].map(|later| first + later));
}

/// Packets arrive at random times, so the port is also visited, or sent from by the pushing thread,
/// before the slack is over.
#[test]
#[cfg_attr(sim, ignore = "takes 8 to 74 seconds in a simulation")]
fn a_visit_within_the_slack_sends_what_is_due() {
    for (number, tree) in TREES.iter().enumerate() {
        let (mut seed, mut at) = (number as u64, START);
        let mut arrivals = vec![START; 60];
        for _ in 0..400 {
            at = at.after(random(&mut seed, 2 * MS));
            arrivals.push(at);
        }
        for mode in [Mode::Dedicated, Mode::Inline, Mode::Hybrid] {
            let (prompt, visits) = drive(tree, options(mode, 0), &arrivals);
            for slack_ns in [MS / 10, MS, 10 * MS] {
                let (slack, fewer) = drive(tree, options(mode, slack_ns), &arrivals);
                compare(&prompt, &slack, slack_ns, &format!("{tree:?} {mode:?} {slack_ns} ns"));
                assert!(fewer <= visits, "{tree:?} {mode:?}: {fewer} visits, {visits} without");
            }
            for rest_ns in [MS / 10, 3 * MS, 10 * MS] {
                let (rests, fewer) = drive(tree, resting(mode, rest_ns), &arrivals);
                compare(&prompt, &rests, rest_ns, &format!("{tree:?} {mode:?} rest {rest_ns} ns"));
                assert!(fewer <= visits, "{tree:?} {mode:?}: {fewer} visits, {visits} without");
            }
        }
    }
}

/// A shaper that releases a packet every millisecond, and whose runner wants to be left alone for 5
/// ms. While packets wait, the time between two visits grows from 2 ms towards that, by 1 µs a
/// visit; after the queue has run empty, it is 2 ms again. The packets and the rate are the same.
#[test]
fn a_port_leaves_its_runner_alone_while_packets_wait() {
    let mut world = world(TREES[0], resting(Mode::Dedicated, 2 * MS));
    world.waker.rests(5 * MS);
    let mut gap_after = |visits: u32| {
        (0..100).for_each(|_| push(&mut world));
        let mut gap = 0;
        for _ in 0..visits {
            world.now = world.waker.due().expect("packets wait");
            let _ = world.visit();
            world.check();
            gap = world.waker.due().expect("packets wait").since(world.now);
        }
        let end = world.now.after(1_000 * MS);
        until(&mut world, end, 0);
        assert_eq!((world.stats().held, world.stats().lost_ns), (0, 0));
        gap
    };
    let gaps = [2, 21, 2].map(&mut gap_after);
    // With its first visit, the port only learns what its runner wants.
    assert_eq!(gaps, [2 * MS, 2 * MS + 20_000, 2 * MS + 1_000]);
}

/// If the quota of a visit ends with the last packet of the port, nothing is due any more: the time
/// until the next packet comes is not lost.
#[test]
fn a_quota_that_ends_with_the_last_packet_leaves_nothing_due() {
    let mut world = world(TREES[0], options(Mode::Dedicated, 100 * MS));
    // Three leave at once, and a quota is due when the slack is over.
    (0..3 + QUOTA).for_each(|_| push(&mut world));
    for _ in 0..2 {
        let end = world.now.after(1_000 * MS);
        until(&mut world, end, 0);
        assert_eq!((world.stats().held, world.stats().lost_ns), (0, 0));
        push(&mut world);
    }
}

/// The bound on catching up comes on top of the slack: a runner that comes 5 ms later than the port
/// asked costs no rate, and one that comes 20 ms later costs 15 ms.
#[test]
fn lateness_counts_from_the_end_of_the_slack() {
    for (late_ms, lost_ms, bucket) in [(0, 0, 0), (5, 0, 23), (20, 15, 25)] {
        let mut world = world(TREES[0], options(Mode::Dedicated, 3 * MS));
        (0..100).for_each(|_| push(&mut world));
        let _ = world.next_visit();
        assert_eq!(world.sent().len(), 3, "the burst of 3,000 bytes");
        let due = world.waker.due().expect("packets wait");
        assert_eq!(due, START.after(4 * MS), "a millisecond, and the slack");
        world.now = due.after(late_ms * MS);
        while world.visit().again {}
        let stats = world.stats();
        assert_eq!(stats.lost_ns, lost_ms * MS);
        assert_eq!(stats.late_ns[bucket], 1, "{late_ms} ms: {:?}", stats.late_ns);
        // If time was lost, the bucket is full at the beginning of the 8 ms.
        let sent = if lost_ms == 0 { 4 + late_ms } else { 3 + 8 };
        assert_eq!(world.sent().len() as u64, 3 + sent, "{late_ms} ms");
    }
}

/// A port that catches up on no lateness keeps its rate with a slack, if its runner is punctual.
#[test]
fn slack_needs_no_catching_up() {
    let (prompt, _) = drive(TREES[0], options(Mode::Dedicated, 0), &[START; 300]);
    let none = PortOptions { catch_up_ns: 0, ..options(Mode::Dedicated, 10 * MS) };
    let (slack, _) = drive(TREES[0], none, &[START; 300]);
    compare(&prompt, &slack, 10 * MS, "catch-up 0");
}

/// A visit that another reason asks for is not put off: the device was full, or packets are left.
#[test]
fn only_the_qdiscs_instants_are_put_off() {
    let mut world = world(TREES[0], options(Mode::Dedicated, 100 * MS));
    world.wire().room = Some(1);
    (0..10).for_each(|_| push(&mut world));
    assert_eq!(world.waker.due(), Some(START), "packets were staged");
    let _ = world.next_visit();
    assert_eq!(world.sent().len(), 1);
    assert_eq!(world.waker.due(), Some(START.after(50_000)), "the time that the device named");
    world.wire().room = None;
    let _ = world.next_visit();
    assert_eq!(world.sent().len(), 3, "the rest of the burst");
    assert_eq!(world.waker.due(), Some(START.after(101 * MS)), "the next instant and the slack");
    let job = Box::new(|_: &mut RootQdisc, _: &mut Cx<'_>| ());
    assert!(world.port.with(job, world.now, &world.waker).expect("room"), "nobody is inside");
    assert_eq!(world.waker.due(), Some(world.now), "a job may change what is due");
}

/// A device that was full, and has said meanwhile that it has room, is offered the rest at once.
#[test]
fn a_device_that_has_room_again_is_not_put_off() {
    let mut world = world(TREES[0], options(Mode::Dedicated, 100 * MS));
    (world.wire().room, world.wire().wakes) = (Some(1), true);
    (0..10).for_each(|_| push(&mut world));
    let _ = world.next_visit();
    assert_eq!((world.sent().len(), world.waker.due()), (1, Some(START)));
}

/// A qdisc with more packets for the same instant than a quota is visited again at once.
#[test]
fn a_quota_is_not_put_off() {
    let mut world = world(&["qdisc add dev any root pfifo"], options(Mode::Dedicated, 10 * MS));
    (0..100).for_each(|_| push(&mut world));
    let _ = world.next_visit();
    assert!(world.sent().len() < 100, "the quota");
    assert_eq!(world.waker.due(), Some(START));
}

/// Two ports share 8 Mbit/s, with a slack and with runners that come late. Together they send
/// 8 Mbit/s.
#[test]
fn a_shared_rate_is_kept_with_slack() {
    let shared = SharedRate::new(Rate::bytes_per_second(1_000_000), 2);
    let mut worlds = [0, 1].map(|member| {
        let share = Some(shared.share(member));
        let options = PortOptions { share, ..options(Mode::Dedicated, 7 * MS) };
        World::with_options("pfifo limit 1000", 16_384, options)
    });
    let mut seed = 3;
    let end = START.after(4_000 * MS);
    let mut wakes = [START; 2];
    loop {
        let next = usize::from(wakes[1] < wakes[0]);
        let (world, now) = (&mut worlds[next], wakes[next]);
        if now > end {
            break;
        }
        world.now = now;
        while world.stats().held < 60 {
            push(world);
        }
        let _ = world.visit();
        let late_ns = random(&mut seed, CATCH_UP_NS);
        wakes[next] = world.waker.due().expect("packets wait").after(late_ns);
    }
    let sent: u64 = worlds.iter().map(|world| world.stats().sent_bytes).sum();
    let mbit = sent as f64 * 8.0 / 4e6;
    assert!((mbit - 8.0).abs() < 0.12, "{mbit} Mbit/s");
}
