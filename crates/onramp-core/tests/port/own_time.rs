//! A port whose runner comes late sends what a port with a punctual runner sends, because its
//! qdiscs live in a time of their own, a bounded time behind the clock.

use onramp_core::Spec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use onramp_core::qdisc::{Backlog, Cx, Dequeue, Peek, Qdisc, Verdict};
use onramp_core::{
    CATCH_UP_NS, Instant, Mode, PortOptions, REST_NS, Rate, RootQdisc, Setup, SharedRate,
};
use onramp_queue::{DropReason, Packet, PacketList};

use crate::world::{MTU, START, World, packet};

/// Trees that hold packets back, as lines of `tc`. They allow 8 Mbit/s: one packet of 1,000 bytes
/// in a millisecond.
pub(crate) const TREES: [&[&str]; 8] = [
    &["qdisc add dev any root tbf rate 8mbit burst 3000 limit 500000"],
    &[
        "qdisc add dev any root handle 1: htb default 1",
        "class add dev any parent 1: classid 1:1 htb rate 8mbit",
    ],
    &[
        "qdisc add dev any root handle 1: hfsc default 1",
        "class add dev any parent 1: classid 1:1 hfsc ls rate 8mbit ul rate 8mbit",
    ],
    &["qdisc add dev any root fq maxrate 2mbit quantum 1000 initial_quantum 1000"],
    &["qdisc add dev any root cake bandwidth 8mbit"],
    &["qdisc add dev any root netem delay 3ms 1ms rate 8mbit limit 5000"],
    &[
        "qdisc add dev any root handle 1: tbf rate 8mbit burst 3000 limit 500000",
        "qdisc add dev any parent 1:1 fq_codel",
    ],
    &[
        "qdisc add dev any root handle 1: htb default 2",
        "class add dev any parent 1: classid 1:1 htb rate 4mbit ceil 8mbit",
        "class add dev any parent 1: classid 1:2 htb rate 4mbit",
    ],
];

/// Trees that shape to 20 Mbit/s, as lines of `tc`: the means that users try first, with the bursts
/// that they have by default or that documents name.
const SHAPERS: [&[&str]; 7] = [
    &[
        "qdisc add dev any root handle 1: htb default 1",
        "class add dev any parent 1: classid 1:1 htb rate 20mbit",
    ],
    &["qdisc add dev any root tbf rate 20mbit burst 3kb latency 100ms"],
    &["qdisc add dev any root fq maxrate 20mbit"],
    &["qdisc add dev any root fq maxrate 20mbit quantum 1514 initial_quantum 1514"],
    &["qdisc add dev any root cake bandwidth 20mbit"],
    &[
        "qdisc add dev any root handle 1: hfsc default 1",
        "class add dev any parent 1: classid 1:1 hfsc ls rate 20mbit ul rate 20mbit",
    ],
    &["qdisc add dev any root netem rate 20mbit"],
];
/// How many of these, from the first on, lose most of their rate to a late runner if the port does
/// not catch up. The others count from the packet before, and not from the present.
const FORGETFUL: usize = 4;

/// A port to which only its runner sends, and whose visits this test times.
fn world(tree: &[&str], catch_up_ns: u64) -> World {
    resting(tree, catch_up_ns, 0)
}

/// Makes a port as [`world`] does, which asks for its runner at most once in `rest_ns`.
fn resting(tree: &[&str], catch_up_ns: u64, rest_ns: u64) -> World {
    let mut setup = Setup::default();
    tree.iter().for_each(|line| setup.apply(&format!("tc {line}")).expect("a line of tc"));
    let root = setup.build(MTU, 7).expect("a root");
    let mode = Mode::Dedicated;
    let options = PortOptions { mode, catch_up_ns, rest_ns, ..PortOptions::default() };
    let mut world = World::over(root, 16_384, options);
    world.now = START;
    world
}

/// Pushes a packet of 1,000 bytes at time `at`. Four flows take turns.
fn push(world: &mut World, at: Instant) {
    push_of(world, at, 4);
}

/// Pushes a packet of 1,000 bytes at time `at`. So many flows take turns.
fn push_of(world: &mut World, at: Instant, flows: u64) {
    let cookie = world.pushed;
    let mut pkt = packet(cookie, cookie % flows, at);
    pkt.len = 1_000;
    world.pushed += 1;
    let list = PacketList::from_iter([pkt]);
    assert!(world.port.xmit(list, at, &world.waker).expect("there is room").is_none(), "staged");
}

/// Visits the port at its present time until it has nothing more to do then.
fn visit(world: &World) {
    while world.visit().again {}
}

/// A packet that waits for its runner is delayed from its push on, like one that is enqueued at
/// once: the wait is a part of the delay.
#[test]
fn a_delay_begins_with_the_push() {
    let tree = ["qdisc add dev any root netem delay 10ms"];
    let leaves = |catch_up_ns, late_ms: u64| {
        let mut world = world(&tree, catch_up_ns);
        push(&mut world, START);
        visit(&world);
        push(&mut world, START.after(1_000_000));
        push(&mut world, START.after(2_000_000));
        world.now = START.after((2 + late_ms) * 1_000_000);
        visit(&world);
        let mut leaves = Vec::new();
        while let Some(due) = world.waker.due() {
            world.now = due.max(world.now);
            visit(&world);
            leaves.resize(world.wire().sent.len(), world.now.since(START) / 1_000);
        }
        leaves
    };
    assert_eq!(leaves(CATCH_UP_NS, 3), [10_000, 11_000, 12_000]);
    assert_eq!(leaves(0, 3), [10_000, 15_000, 15_000], "without looking back");
    // The runner comes 7 ms after the first of the two, and looks back by 5 ms.
    assert_eq!(leaves(CATCH_UP_NS, 6), [10_000, 13_000, 13_000]);
    // Where nothing is held back, packets are enqueued in batches, at the present.
    let mut world = world(&tree, CATCH_UP_NS);
    push(&mut world, START);
    world.now = START.after(3_000_000);
    visit(&world);
    assert_eq!(world.waker.due(), Some(START.after(13_000_000)));
}

/// Numbers that look random, each less than `below`.
pub(crate) fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// 100 packets wait, and 2,000 more arrive at random times, on average as fast as 8 Mbit/s. One
/// runner comes at each arrival and at each time that the port names. Another runner comes up to 2
/// ms later than the port asks. Whenever the late runner has come, the device has got the same
/// packets from it as from the punctual runner, in the same order.
#[test]
#[cfg_attr(sim, ignore = "takes 8 to 74 seconds in a simulation")]
fn a_late_runner_sends_what_a_punctual_one_sends() {
    for (number, tree) in TREES.iter().enumerate() {
        let mut worlds = [CATCH_UP_NS; 2].map(|catch_up_ns| world(tree, catch_up_ns));
        for world in &mut worlds {
            (0..100).for_each(|_| push(world, START));
            visit(world);
        }
        let [mut punctual, mut late] = worlds;
        let mut seed = number as u64;
        let mut at = START;
        let arrivals = (0..200_u64).flat_map(|burst| {
            at = at.after(random(&mut seed, 16_000_000));
            (0..10).map(move |n| at.after(n * burst * 1_000))
        });
        let mut arrivals: Vec<Instant> = arrivals.collect();
        arrivals.sort_unstable();
        let mut arrivals = arrivals.into_iter().peekable();
        let (mut seed, mut compared) = (number as u64, 0);
        while let Some(due) = late.waker.due() {
            let wake = due.max(late.now).after(random(&mut seed, 2_000_000));
            while let Some(arrival) = arrivals.next_if(|arrival| *arrival <= wake) {
                until(&mut punctual, arrival);
                push(&mut punctual, arrival);
                visit(&punctual);
                push(&mut late, arrival);
            }
            until(&mut punctual, wake);
            late.now = wake;
            visit(&late);
            late.check();
            assert_eq!(late.sent(), punctual.sent(), "{tree:?} at {wake:?}");
            assert_eq!(late.stats().dropped, punctual.stats().dropped, "{tree:?} at {wake:?}");
            compared += 1;
        }
        assert!(compared > 300 && arrivals.next().is_none(), "{tree:?}: {compared}");
        assert_eq!((late.stats().held, late.stats().lost_ns), (0, 0), "{tree:?}");
    }
}

/// Makes all visits that the port asked for until time `end`, each at the time that it named.
fn until(world: &mut World, end: Instant) {
    while let Some(due) = world.waker.due().filter(|due| *due <= end) {
        world.now = world.now.max(due);
        let _ = world.visit();
    }
    world.now = world.now.max(end);
}

/// Counts the bytes that leave in four seconds under a runner that is late by 0 to `late_ns` each
/// time, while 60 packets always wait; returns Mbit/s and the number of visits.
fn rate(tree: &[&str], late_ns: u64, catch_up_ns: u64) -> (f64, u32) {
    rate_of(world(tree, catch_up_ns), late_ns, 4)
}

/// Measures as [`rate`] does, with packets of so many flows.
fn rate_of(mut world: World, late_ns: u64, flows: u64) -> (f64, u32) {
    let (mut seed, mut visits) = (1, 0);
    let end = START.after(4_000_000_000);
    loop {
        while world.stats().held < 60 {
            let now = world.now;
            push_of(&mut world, now, flows);
        }
        world.now = world.now.max(world.waker.due().expect("packets wait"));
        world.pass(random(&mut seed, late_ns + 1));
        if world.now > end {
            break;
        }
        let _ = world.visit();
        visits += 1;
    }
    (world.stats().sent_bytes as f64 * 8.0 / 4e6, visits)
}

/// A runner that comes 2.5 ms late on average takes more than a twentieth of the rate from `tbf`
/// and `htb` if the port does not catch up, and takes nothing from any tree if the port does.
#[test]
#[cfg_attr(sim, ignore = "takes 8 to 74 seconds in a simulation")]
fn a_late_runner_costs_no_rate() {
    for tree in TREES.iter().take(7).filter(|tree| !tree[0].contains("netem")) {
        let (punctual, _) = rate(tree, 0, CATCH_UP_NS);
        let (late, visits) = rate(tree, 4_900_000, CATCH_UP_NS);
        assert!((punctual - 8.0).abs() < 0.08, "{tree:?}: {punctual} Mbit/s");
        assert!((late - punctual).abs() < 0.04, "{tree:?}: {late} Mbit/s, punctual {punctual}");
        assert!(visits < 4_000, "{tree:?}: {visits} visits");
    }
    let lossy = |tree: usize| rate(TREES[tree], 4_900_000, 0).0;
    assert!(lossy(0) < 7.6 && lossy(1) < 7.6, "{} {}", lossy(0), lossy(1));
}

/// Each means by which users shape to 20 Mbit/s gives a single flow this rate within 2 %, whether
/// its runner is punctual or up to 1 ms or up to 5 ms late, as on a busy machine. The ports rest as
/// those of a link do.
#[test]
#[cfg_attr(sim, ignore = "takes 8 to 74 seconds in a simulation")]
fn a_shaper_keeps_its_rate_under_a_late_runner() {
    for (number, tree) in SHAPERS.into_iter().enumerate() {
        let percent = |late_ns, catch_up_ns| {
            rate_of(resting(tree, catch_up_ns, REST_NS), late_ns, 1).0 / 20.0 * 100.0
        };
        for late_ns in [0, 1_000_000, 5_000_000] {
            let had = percent(late_ns, CATCH_UP_NS);
            assert!((98.0..=102.0).contains(&had), "{tree:?}, {late_ns} ns late: {had} %");
        }
        let had = percent(5_000_000, 0);
        assert_eq!(had < 50.0, number < FORGETFUL, "{tree:?} without catching up: {had} %");
    }
}

/// A runner that is 20 ms late makes a port with the usual bound send 5 ms of the rate at once, and
/// the port counts the other 15 ms as lost.
#[test]
fn a_port_catches_up_on_a_bounded_time() {
    let mut world = world(TREES[0], CATCH_UP_NS);
    (0..100).for_each(|_| push(&mut world, START));
    visit(&world);
    assert_eq!(world.sent().len(), 3, "the burst of 3,000 bytes");
    let due = world.waker.due().expect("packets wait");
    assert_eq!(due, START.after(1_000_000));
    world.now = due.after(20_000_000);
    visit(&world);
    // The bucket holds 3 packets again at the beginning of the 5 ms.
    assert_eq!(world.sent().len(), 3 + 3 + 5);
    let stats = world.stats();
    assert_eq!(stats.lost_ns, 15_000_000);
    assert_eq!(stats.late_ns.iter().sum::<u64>(), 1, "{:?}", stats.late_ns);
    assert_eq!(stats.late_ns[25], 1, "2^24 to 2^25 ns: {:?}", stats.late_ns);
}

/// Returns a port whose `tbf` holds 17 packets, the first of which was due 2 ms ago.
fn overdue(catch_up_ns: u64) -> World {
    let mut world = world(TREES[0], catch_up_ns);
    (0..20).for_each(|_| push(&mut world, START));
    visit(&world);
    assert_eq!(world.sent().len(), 3, "the burst of 3,000 bytes");
    world.now = world.waker.due().expect("packets wait").after(2_000_000);
    world
}

/// A job that runs while packets are overdue does not take their time from them. The job runs at
/// the instant that was due; then the runner sends what was due, from that instant on.
#[test]
fn a_job_takes_no_time_from_packets_that_are_due() {
    let mut world = overdue(CATCH_UP_NS);
    let due = Instant(world.now.0 - 2_000_000);
    world.pass(2_000_000);
    let job = Box::new(move |_: &mut RootQdisc, cx: &mut Cx<'_>| assert_eq!(cx.now, due));
    assert!(world.port.with(job, world.now, &world.waker).expect("room"), "nobody is inside");
    assert_eq!(world.sent().len(), 3, "a thread that submits a job does not transmit");
    world.check();
    visit(&world);
    assert_eq!(world.sent().len(), 8, "five were due, and the bucket holds only three");
    let stats = world.stats();
    assert_eq!((stats.lost_ns, stats.late_ns.iter().sum::<u64>()), (0, 1));
    world.settle();
    assert_eq!(world.sent(), (0..20).collect::<Vec<_>>());
}

/// A job between two instants that were due leaves the second one due.
#[test]
fn a_job_before_an_instant_leaves_the_instant_due() {
    let mut world = overdue(CATCH_UP_NS);
    visit(&world);
    assert_eq!(world.sent().len(), 6, "three were due");
    let due = world.waker.due().expect("packets wait");
    let job = || Box::new(|_: &mut RootQdisc, _: &mut Cx<'_>| ());
    assert!(world.port.with(job(), world.now, &world.waker).expect("room"), "nobody is inside");
    // The runner comes late to the visit that the job asked for.
    world.now = due.after(4_500_000);
    visit(&world);
    assert_eq!(world.sent().len(), 11, "five more were due, and the bucket holds only three");
}

/// A job that purges the port leaves nothing due: packets that come a second later are not late.
#[test]
fn nothing_is_due_after_a_job_has_purged_the_port() {
    let mut world = overdue(CATCH_UP_NS);
    let purge = Box::new(|root: &mut RootQdisc, cx: &mut Cx<'_>| {
        let next = "pfifo".parse::<Spec>().expect("a qdisc").build(MTU);
        root.succeed("blackhole".parse::<Spec>().expect("a qdisc").build(MTU), cx);
        root.succeed(next, cx);
    });
    assert!(world.port.with(purge, world.now, &world.waker).expect("room"), "nobody is inside");
    assert_eq!(world.stats().held, 0);
    world.pass(1_000_000_000);
    let now = world.now;
    push(&mut world, now);
    visit(&world);
    world.check();
    let stats = world.stats();
    assert_eq!((stats.lost_ns, stats.late_ns.iter().sum::<u64>()), (0, 1), "the job came late");
}

/// The device takes one of three packets that were due, and is full. The other two wait in front of
/// the device, and no packet is lost or overtaken.
#[test]
fn a_device_may_be_full_while_its_port_is_behind() {
    let mut world = overdue(CATCH_UP_NS);
    world.wire().room = Some(1);
    visit(&world);
    world.check();
    assert_eq!(world.sent().len(), 4);
    world.wire().room = None;
    let _ = world.next_visit();
    assert_eq!(world.sent().len(), 6, "the device takes the rest of the burst");
    world.settle();
    world.check();
    assert_eq!(world.sent(), (0..20).collect::<Vec<_>>());
}

/// A port that is closed while packets are overdue drops all of them, and packets that come later.
#[test]
fn a_port_may_be_closed_while_it_is_behind() {
    let mut world = overdue(CATCH_UP_NS);
    let now = world.now;
    push(&mut world, now);
    let _ = world.port.close(world.now, &world.waker).expect("nobody is inside");
    world.settle();
    world.check();
    assert_eq!((world.sent().len(), world.dropped(DropReason::Purged)), (3, 18));
    assert_eq!(world.stats().held, 0);
}

/// A port that does not catch up sends what its qdisc allows for the present instant, and counts
/// the whole lateness as lost.
#[test]
fn a_port_with_a_catch_up_of_zero_lives_in_the_present() {
    let mut world = overdue(0);
    visit(&world);
    let stats = world.stats();
    assert_eq!((stats.lost_ns, stats.late_ns.iter().sum::<u64>()), (2_000_000, 1));
    assert_eq!(world.sent().len(), 6, "the bucket holds 3 packets after 3 ms");
    // 13 ms more than the bucket holds are lost for good.
    world.now = world.waker.due().expect("packets wait").after(15_000_000);
    visit(&world);
    assert_eq!((world.sent().len(), world.stats().lost_ns), (9, 17_000_000));
    world.settle();
    world.check();
    assert_eq!(world.sent(), (0..20).collect::<Vec<_>>());
}

/// 400 packets arrive in 400 us while a `tbf` with room for two packets waits for its next one. 400
/// is more than an owner may enqueue in one run. A late runner drops and sends what a punctual one
/// does.
#[test]
fn an_owner_whose_quota_ends_goes_on_at_the_same_instant() {
    let tree = ["qdisc add dev any root tbf rate 80mbit burst 1500 limit 2000"];
    let [mut punctual, mut late] = [0, 1].map(|_| world(&tree, CATCH_UP_NS));
    for world in [&mut punctual, &mut late] {
        (0..3).for_each(|_| push(world, START));
        visit(world);
    }
    for n in 0..400 {
        let at = START.after(1_000 + n * 1_000);
        until(&mut punctual, at);
        push(&mut punctual, at);
        visit(&punctual);
        push(&mut late, at);
    }
    let end = START.after(1_000_000);
    until(&mut punctual, end);
    late.now = end;
    visit(&late);
    late.check();
    assert_eq!(late.sent(), punctual.sent());
    assert_eq!(late.stats().dropped, punctual.stats().dropped);
    assert!(late.stats().runs > 2, "one run was not enough");
}

/// A qdisc that never releases its packet, and names the past as the instant at which to ask again.
#[derive(Debug, Default)]
struct Stubborn {
    list: PacketList,
    asked: Arc<AtomicU32>,
}

impl Qdisc for Stubborn {
    fn enqueue(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        self.list.push_back(pkt);
        Verdict::Queued
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        self.asked.fetch_add(1, Relaxed);
        Dequeue::NotBefore(Instant(cx.now.0 - 1))
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        unreachable!("it stands below no other")
    }

    fn backlog(&self) -> Backlog {
        Backlog { packets: self.list.len(), bytes: self.list.bytes() }
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.list.by_ref().for_each(|pkt| cx.drop(pkt, DropReason::Purged));
    }
}

/// A qdisc that names instants that are over does not keep a late owner: 5 ms late, the owner asks
/// it 321 times at instants that are over, and once at the present.
#[test]
fn a_qdisc_that_names_the_past_does_not_keep_the_owner() {
    let qdisc = Stubborn::default();
    let asked = qdisc.asked.clone();
    let options = PortOptions { mode: Mode::Dedicated, ..PortOptions::default() };
    let mut world = World::over(Box::new(qdisc), 16_384, options);
    push(&mut world, START);
    visit(&world);
    assert_eq!(asked.swap(0, Relaxed), 1, "the owner was punctual");
    world.pass(CATCH_UP_NS);
    visit(&world);
    assert_eq!(asked.swap(0, Relaxed), 322);
}

/// Two ports share 8 Mbit/s. Their runners come up to 2 ms late. Together they send 8 Mbit/s.
#[test]
fn a_shared_rate_counts_at_the_instants_that_were_due() {
    let shared = SharedRate::new(Rate::bytes_per_second(1_000_000), 2);
    let mut worlds = [0, 1].map(|member| {
        let share = Some(shared.share(member));
        let options = PortOptions { mode: Mode::Dedicated, share, ..PortOptions::default() };
        World::with_options("pfifo limit 1000", 16_384, options)
    });
    let mut seed = 3;
    let mut wakes = [START; 2];
    let end = START.after(4_000_000_000);
    loop {
        let next = usize::from(wakes[1] < wakes[0]);
        let (world, now) = (&mut worlds[next], wakes[next]);
        if now > end {
            break;
        }
        world.now = now;
        while world.stats().held < 60 {
            push(world, now);
        }
        let _ = world.visit();
        let due = world.waker.due().expect("packets wait");
        wakes[next] = due.after(random(&mut seed, 2_000_000));
    }
    let sent: u64 = worlds.iter().map(|world| world.stats().sent_bytes).sum();
    let mbit = sent as f64 * 8.0 / 4e6;
    assert!((mbit - 8.0).abs() < 0.08, "{mbit} Mbit/s");
}

/// A runner reads the clock, stands still for 4 ms, and only then takes the staged packets. Two of
/// them were pushed meanwhile, by senders that read the clock in one order and pushed in the other.
/// `netem` holds them for its whole delay, from the push.
#[test]
fn a_packet_that_came_after_the_owner_read_the_clock_is_delayed_from_its_push() {
    let mut world = world(&["qdisc add dev any root netem delay 10ms"], CATCH_UP_NS);
    let (earlier, later) = (START.after(3_000_000), START.after(4_000_000));
    push(&mut world, later);
    push(&mut world, earlier);
    visit(&world); // at START
    assert_eq!(world.waker.due(), Some(later.after(10_000_000)));
    world.now = later.after(9_999_999);
    visit(&world);
    assert_eq!(world.wire().sent.len(), 0);
    world.now = later.after(10_000_000);
    visit(&world);
    assert_eq!(world.wire().sent.len(), 2);
}
