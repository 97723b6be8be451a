//! The limits of a port, given here as numbers and not by the constants in the code. Whoever
//! changes such a constant changes what the port promises, and must change the number here as well.

use onramp_core::{Mode, Ran};
use onramp_queue::{Packet, PacketList};

use crate::busy::make_busy;
use crate::world::{START, World};

/// The length of a tick, 100 µs.
const TICK_NS: u64 = 100_000;

/// For each of these times, in nanoseconds after the start, pushes one packet at that time.
fn push_at(world: &mut World, after_ns: impl IntoIterator<Item = u64>) {
    for ns in after_ns {
        world.now = START.after(ns);
        assert_eq!(world.push(1), Some(Ran { done: 1, again: false }), "sent at once");
    }
}

/// Twenty-four packets within a tick make a port busy. The first packet after the end of a tick
/// opens the next tick, but does not count for it.
#[test]
fn twenty_four_packets_in_a_tick_make_it_busy() {
    let mut world = World::new("pfifo", 1_000);
    push_at(&mut world, (0..24).map(|n| n * 4_000));
    assert!(!world.port.is_busy(), "23 in this tick");
    push_at(&mut world, [TICK_NS - 1]);
    assert!(world.port.is_busy(), "24 in this tick");
    assert_eq!(world.waker.due(), Some(world.now.after(2 * TICK_NS)));
    world.check();
}

#[test]
fn a_tick_is_a_hundred_microseconds() {
    let mut world = World::new("pfifo", 1_000);
    push_at(&mut world, (0..24).map(|n| n * 4_000).chain([TICK_NS]));
    assert!(!world.port.is_busy(), "the 24th came in the next tick");
    // The last packet opened a new tick, for which no packet counts yet.
    push_at(&mut world, (1..=23).map(|n| TICK_NS + n));
    assert!(!world.port.is_busy());
    push_at(&mut world, [2 * TICK_NS - 1]);
    assert!(world.port.is_busy());
    world.check();
}

#[test]
fn twelve_packets_in_a_tick_keep_it_busy_and_eleven_do_not() {
    let mut world = World::new("pfifo", 1_000);
    let _ = make_busy(&mut world);
    world.pass(TICK_NS);
    let _ = world.visit();
    for _ in 0..3 {
        (0..12).for_each(|_| assert_eq!(world.push(1), None));
        world.pass(TICK_NS);
        assert_eq!(world.visit(), Ran { done: 12, again: false });
        assert!(world.port.is_busy(), "12 in a tick");
        assert_eq!(world.waker.due(), Some(world.now.after(TICK_NS)));
        world.check();
    }
    (0..11).for_each(|_| assert_eq!(world.push(1), None));
    world.pass(TICK_NS - 1);
    assert_eq!(world.visit(), Ran { done: 11, again: false });
    assert!(world.port.is_busy(), "the tick is not over");
    world.pass(1);
    let _ = world.visit();
    assert!(!world.port.is_busy(), "11 in a tick");
    assert_eq!(world.waker.due(), None);
    world.check();
}

/// A busy port sends each packet within 200 µs, at whatever time the packet arrives and the runner
/// visits.
#[test]
fn a_busy_port_leaves_no_packet_lying_for_more_than_two_ticks() {
    for after in [0, 1, 50_000, TICK_NS - 1, TICK_NS, TICK_NS + 1, 199_999] {
        for visited in [false, true] {
            let mut world = World::new("pfifo", 1_000);
            let _ = make_busy(&mut world);
            if visited {
                let _ = world.visit();
            }
            let left = world.waker.due().unwrap().since(world.now);
            assert_eq!(left, if visited { TICK_NS } else { 2 * TICK_NS });
            if after >= left {
                continue; // Skip the case: the runner would visit before the packet arrives.
            }
            world.pass(after);
            let (staged, cookie) = (world.now, world.pushed);
            assert_eq!(world.push(1), None);
            let _ = world.next_visit();
            let (last, sent) = *world.wire().sent.last().unwrap();
            assert_eq!((last, sent.since(staged)), (cookie, left - after));
            world.check();
        }
    }
}

#[test]
fn a_run_sends_sixty_four_packets() {
    let mut world = World::new("pfifo limit 10000", 1_000);
    assert_eq!(world.push(64), Some(Ran { done: 64, again: false }));
    assert_eq!(world.push(65), Some(Ran { done: 64, again: true }));
    assert_eq!(world.next_visit(), Ran { done: 1, again: false });
    assert_eq!(world.wire().offered, [64, 64, 1]);
    world.check();
}

#[test]
fn a_run_feeds_the_qdisc_two_hundred_and_fifty_six_packets() {
    let mut world = World::new("pfifo limit 10000", 1_000);
    assert_eq!(world.push(900), Some(Ran { done: 64, again: true }));
    // Each run enqueues 256 packets, also those that a later run sends.
    for enqueued in [256, 512, 768, 900] {
        assert_eq!(world.stats().enqueued, enqueued);
        world.check();
        let _ = world.next_visit();
    }
}

/// A run enqueues no more than 256 packets, counting those that the qdisc makes when it splits a
/// packet. Only the packet that reaches 256 may exceed that number: all of its parts are enqueued.
#[test]
fn what_a_qdisc_makes_counts_for_what_a_run_feeds_it() {
    const DATAGRAMS: u64 = 40;
    let mut world = World::new("cake unlimited memlimit 100mb", 1_000);
    let several = |cookie| {
        let mut pkt = Packet::with_payload(&[0; 4_000]);
        (pkt.gso_size, pkt.cookie, pkt.enqueued_ns) = (100, cookie, world.now.0);
        pkt
    };
    let list: PacketList = (0..300).map(several).collect();
    let ran = world.port.xmit(list, world.now, &world.waker).expect("there is room");
    assert_eq!(ran, Some(Ran { done: 64, again: true }));
    let mut before = 0;
    while before < 300 * DATAGRAMS {
        let enqueued = world.stats().enqueued;
        assert!(enqueued - before < 256 + DATAGRAMS, "{} in one run", enqueued - before);
        before = enqueued;
        let _ = world.next_visit();
    }
    let _ = world.settle();
    let stats = world.stats();
    assert_eq!((stats.sent, stats.made), (300 * DATAGRAMS, 300 * (DATAGRAMS - 1)));
}

#[test]
fn a_busy_port_collects_a_thousand_packets() {
    let mut world = World::new("pfifo limit 10000", 4_000);
    let _ = make_busy(&mut world);
    (0..1_023).for_each(|_| assert_eq!(world.push(1), None));
    assert_eq!(world.push(1), Some(Ran { done: 64, again: true }));
    world.check();
}

/// Packets that the qdisc makes are counted, held and sent like those that arrived.
#[test]
fn duplicates_are_counted() {
    let mut world = World::new("netem duplicate 100% delay 1ms limit 150", 1_000);
    let _ = world.push(100);
    let stats = world.stats();
    // 75 packets and their 75 duplicates fit the limit of 150. The other 25 packets and their 25
    // duplicates are dropped.
    let dropped: u64 = stats.dropped.iter().map(|(_, n)| n).sum();
    assert_eq!((stats.enqueued, stats.made, stats.held, dropped), (200, 100, 150, 50));
    let _ = world.settle();
    let stats = world.stats();
    assert_eq!((stats.sent, stats.held), (150, 0));
    // The port holds no packet any more, so closing it drops nothing.
    assert!(world.port.close(world.now, &world.waker).is_some());
    assert_eq!(world.stats().dropped.iter().map(|(_, n)| n).sum::<u64>(), 50);
}

/// A run enqueues also the packets that it does not send, so that the qdisc can schedule them by
/// priority.
#[test]
fn a_run_lets_those_compete_that_it_does_not_send() {
    let mut world = World::new("pfifo_fast", 1_000);
    let list = world.packets(164).map(|mut pkt| {
        pkt.priority = if pkt.cookie < 128 { 0 } else { 6 };
        pkt
    });
    let ran = world.port.xmit(list.collect(), world.now, &world.waker).expect("there is room");
    assert_eq!(ran, Some(Ran { done: 64, again: true }));
    assert_eq!(world.stats().enqueued, 164);
    assert_eq!(world.next_visit(), Ran { done: 64, again: true });
    assert_eq!(world.next_visit(), Ran { done: 36, again: false });
    let mut expected: Vec<u64> = (0..64).collect();
    expected.extend((128..164).chain(64..128));
    assert_eq!(world.sent(), expected);
    world.check();
}

/// Packets that a run leaves in front of the qdisc for the next run are not dropped, however long
/// the list and however small the qdisc's limit.
#[test]
fn what_a_run_leaves_is_not_dropped() {
    let mut world = World::new("pfifo limit 10", 1_000);
    assert_eq!(world.push(200), Some(Ran { done: 64, again: true }));
    assert_eq!(world.stats().held, 136);
    world.settle();
    assert_eq!((world.stats().sent, world.stats().dropped), (200, Vec::new()));
}

/// A burst has at most 64 packets (a quota), and a run normally sends one burst. In inline mode, a
/// run sends four bursts if a burst costs the device no system call, because packets that the run
/// leaves must wait for the runner.
#[test]
fn a_run_sends_four_bursts_where_they_cost_nothing() {
    for (mode, calls, most) in [
        (Mode::Inline, 0, 256),
        (Mode::Inline, 1, 64),
        (Mode::Hybrid, 0, 64),
        (Mode::Hybrid, 1, 64),
    ] {
        let mut world = World::with("pfifo limit 10000", 1_000, mode, None);
        world.wire().calls = calls;
        let _ = world.push(1);
        assert_eq!(world.push(600), Some(Ran { done: most, again: true }), "{mode:?}, {calls}");
        let bursts = vec![64; most as usize / 64];
        assert_eq!(world.wire().offered[1..], bursts, "{mode:?}, {calls}");
    }
}

/// If the packets are already in the qdisc, a run also sends at most four bursts of 64 packets.
#[test]
fn four_bursts_are_all_that_a_run_sends_of_a_long_queue() {
    let mut world = World::with("pfifo limit 10000", 1_000, Mode::Inline, None);
    (world.wire().calls, world.wire().room) = (0, Some(0));
    world.enqueue(600);
    world.wire().room = None;
    world.wire().offered.clear();
    world.pass(1_000_000);
    assert_eq!(world.visit(), Ran { done: 256, again: true });
    assert_eq!(world.wire().offered, [64; 4]);
    world.settle();
    assert_eq!(world.wire().offered, [64, 64, 64, 64, 64, 64, 64, 64, 64, 24]);
}

/// In dedicated mode, only the runner sends, and it visits again at once. So a run sends one burst,
/// even if bursts cost no system call.
#[test]
fn a_dedicated_keeper_sends_one_burst() {
    let mut world = World::with("pfifo limit 10000", 1_000, Mode::Dedicated, None);
    world.wire().calls = 0;
    for _ in 0..3 {
        let _ = world.push(1);
        world.pass(50_000);
        let _ = world.visit();
    }
    let _ = world.push(600);
    assert_eq!(world.visit(), Ran { done: 64, again: true });
}

/// A run of four quotas sends 256 packets, even if one of its bursts has to end early.
#[test]
fn four_bursts_are_two_hundred_and_fifty_six_packets() {
    // The bursts of the run are 64 and 64 packets, then 63 (the large packet does not fit the limit
    // in bytes after them), then 64 with the large packet first, and then one more packet to make
    // 256.
    let mut world = World::with("bfifo limit 6500", 1_000, Mode::Inline, None);
    world.wire().calls = 0;
    let _ = world.push(1);
    let list = world.packets(300).map(|mut pkt| {
        pkt.len = match pkt.cookie {
            ..=191 => 100,
            192 => 300,
            _ => 50,
        };
        pkt
    });
    let ran = world.port.xmit(list.collect(), world.now, &world.waker).expect("there is room");
    assert_eq!(ran, Some(Ran { done: 256, again: true }));
    assert_eq!(world.wire().offered, [1, 64, 64, 63, 64, 1]);
}

/// A run takes new packets from the intake only if at most 64 packets wait in front of the qdisc.
#[test]
fn a_run_takes_more_while_sixty_four_wait() {
    for (waits, taken) in [(63, true), (64, true), (65, false)] {
        let mut world = World::with("pfifo limit 10", 400, Mode::Dedicated, None);
        world.wire().room = Some(0);
        let _ = world.push(256 + waits);
        let _ = world.visit();
        assert_eq!(world.stats().held, 20 + waits, "a burst and the qdisc have ten each");
        let _ = world.push(2);
        let ran = world.visit();
        // The qdisc holds its limit of ten packets, and ten more wait in the burst that the device
        // did not take. So all packets that the run enqueues are dropped.
        assert_eq!(world.stats().held, if taken { 20 } else { 22 }, "{waits}");
        assert_eq!(u64::from(ran.done), if taken { waits + 2 } else { waits });
    }
}

/// Packets that arrive through a port belong to sockets, which have memory limits of their own. As
/// in Linux, these packets do not count towards the memory limit of `fq_codel`.
#[test]
fn packets_of_a_port_are_charged_to_their_senders() {
    let line = "fq_codel memory_limit 2000 target 4s interval 4s noecn drop_batch 1";
    let mut world = World::new(line, 1_000);
    world.wire().room = Some(0);
    world.enqueue(200);
    assert_eq!(world.stats().dropped, []);
    let same = line.parse::<onramp_core::Spec>().expect("a qdisc").build(1_000);
    assert!(world.port.replace(same, world.now, &world.waker).expect("few jobs wait"));
    world.enqueue(200);
    assert_eq!((world.stats().dropped, world.stats().held), (Vec::new(), 400));
}
