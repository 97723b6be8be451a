//! A port takes part in a shared rate (one rate that several ports divide among them) only while
//! the port has something to send.

use onramp_core::{Instant, Mode, Rate, SharedRate};
use onramp_queue::PacketList;

use crate::world::{START, World, packet};

/// At this rate, 100 bytes take 800 ns.
const RATE: Rate = Rate::bytes_per_second(125_000_000);

/// After a member of the rate has stopped sending, it still counts as a member for the time that
/// its last packet takes at its share of the rate, and for 200 us more. After this many
/// nanoseconds, it no longer counts.
const FORGOTTEN_NS: u64 = 300_000;

/// Returns a port that is one of the two members of a shared rate, and the rate itself, from which
/// the test can take the other member.
fn world() -> (World, SharedRate) {
    let rate = SharedRate::new(RATE, 2);
    let world = World::with("pfifo limit 10000", 10_000, Mode::Hybrid, Some(rate.share(0)));
    (world, rate)
}

/// Whether the port takes part in the shared rate, although it has not run for a while. To find
/// out, the other member joins: it gets half of the rate if the port takes part, and otherwise all
/// of it.
fn has_a_part(rate: &SharedRate, now: Instant) -> bool {
    let now = now.after(FORGOTTEN_NS);
    let mut other = rate.share(1);
    other.update_active(now, true);
    other.charge(125_000);
    match other.not_before(now).expect("it has to be paid for").since(now) {
        1_000_000 => false,
        2_000_000 => true,
        other => panic!("neither all nor half of the rate: {other} ns for 1 ms of bytes"),
    }
}

#[test]
fn a_port_with_nothing_has_none() {
    let (mut world, rate) = world();
    assert!(!has_a_part(&rate, world.now));
    assert_eq!(world.push(1).map(|ran| ran.done), Some(1));
    assert!(!has_a_part(&rate, world.now), "it has sent all");
    assert_eq!(world.waker.due(), None, "an empty port waits for nothing");
    let _ = world.help();
    assert!(!has_a_part(&rate, world.now), "to be looked at is nothing to send");
}

/// A port that waits for the shared rate takes part in it, even if only one packet waits. Each
/// packet leaves when the time that the packet before it takes at the rate is over.
#[test]
fn a_port_that_waits_for_the_rate_has_one() {
    for held in [1, 2, 30] {
        let (mut world, rate) = world();
        assert_eq!(world.push(held + 1).map(|ran| ran.done), Some(1));
        assert_eq!(world.stats().held, held);
        assert_eq!(world.waker.due(), Some(world.now.after(800)));
        assert!(has_a_part(&rate, world.now), "{held}");
        // The second packet leaves exactly at its time.
        world.pass(799);
        assert_eq!(world.visit().done, 0);
        world.pass(1);
        assert_eq!(world.visit().done, 1);
        world.settle();
        assert_eq!(world.stats().held, 0);
        assert_eq!(world.now, START.after(800 * held));
        assert!(!has_a_part(&rate, world.now), "{held}");
    }
}

/// If the runner visits late, the port may send a quota at once. It still takes part in the rate
/// afterwards, because it has more packets.
#[test]
fn a_port_that_has_used_up_its_quota_has_one() {
    let (mut world, rate) = world();
    let _ = world.push(200);
    world.pass(500_000);
    let ran = world.visit();
    assert_eq!((ran.done, ran.again), (64, true));
    assert!(has_a_part(&rate, world.now));
}

/// A port whose qdisc holds back all of the port's packets for a later time has nothing to send
/// now, and does not take part in the rate.
#[test]
fn a_port_whose_packets_wait_for_their_time_has_none() {
    let rate = SharedRate::new(RATE, 2);
    let mut world = World::with("fq timer_slack 0", 100, Mode::Hybrid, Some(rate.share(0)));
    let mut pkt = packet(0, 1, world.now);
    pkt.txtime_ns = world.now.after(5_000_000).0;
    world.pushed = 1;
    let _ = world.port.xmit(PacketList::from_iter([pkt]), world.now, &world.waker);
    assert_eq!((world.stats().held, world.waker.due()), (1, Some(world.now.after(5_000_000))));
    assert!(!has_a_part(&rate, world.now));
    // Two more packets arrive that may leave at once. The second of them must wait for the rate, so
    // the port takes part.
    let list = [packet(1, 2, world.now), packet(2, 2, world.now)].into_iter().collect();
    world.pushed = 3;
    let _ = world.port.xmit(list, world.now, &world.waker);
    assert_eq!((world.stats().held, world.waker.due()), (2, Some(world.now.after(800))));
    assert!(has_a_part(&rate, world.now));
    world.settle();
    assert_eq!(world.sent(), [1, 2, 0]);
}
