//! What completions say about times: when a packet was pushed, and when it left its port.

use onramp_core::Mode;
use onramp_queue::{Completion, Credits, DropReason, PacketList, Pool};

use crate::world::{START, World};

const MS: u64 = 1_000_000;

fn pool() -> Pool {
    Pool::new(Credits { packets: 100, bytes: 100_000 })
}

/// Pushes a packet of the pool with each of these cookies, at the world's time.
fn push(world: &mut World, pool: &mut Pool, cookies: impl IntoIterator<Item = u64>) {
    let mut list = PacketList::new();
    for cookie in cookies {
        let mut pkt = pool.take(100).expect("a credit");
        (pkt.cookie, pkt.flow, pkt.len) = (cookie, 40 + cookie, 100);
        list.push_back(pkt);
    }
    push_list(world, pool, list);
}

fn push_list(world: &mut World, pool: &mut Pool, mut list: PacketList) {
    pool.submit(&mut list, world.now.0);
    world.pushed += u64::from(list.len());
    let _ = world.port.xmit(list, world.now, &world.waker).expect("there is room");
}

/// What a completion says: the cookie, when the packet was pushed and when it left (nanoseconds
/// since `START`), and why it was dropped.
type Told = (u64, u64, Option<u64>, Option<DropReason>);

/// Returns the completions of the packets that came home, by cookie.
fn told(pool: &mut Pool) -> Vec<Told> {
    let mut told = Vec::new();
    pool.reclaim(|completion| {
        let Completion { cookie, flow, len, pushed_ns, left_ns, drop_reason, .. } = completion;
        assert_eq!((flow, len), (40 + cookie, 100));
        let left = left_ns.map(|left| left - START.0);
        told.push((cookie, pushed_ns - START.0, left, drop_reason));
    });
    told.sort_by_key(|completion| completion.0);
    told
}

#[test]
fn a_completion_says_when_a_packet_was_pushed_and_when_it_left() {
    let (mut world, mut pool) = (World::new("pfifo limit 2", 100), pool());
    world.wire().room = Some(0);
    world.wire().retry_ns = 3 * MS;
    push(&mut world, &mut pool, [0]);
    world.pass(2 * MS);
    // The device is still full, so the qdisc has room for two packets.
    push(&mut world, &mut pool, [1, 2, 3]);
    let full = Some(DropReason::Overlimit);
    assert_eq!(told(&mut pool), [(3, 2 * MS, Some(2 * MS), full)]);
    world.pass(5 * MS);
    world.wire().room = None;
    let _ = world.visit();
    let left = Some(7 * MS);
    let sent = [(0, 0, left, None), (1, 2 * MS, left, None), (2, 2 * MS, left, None)];
    assert_eq!(told(&mut pool), sent);
}

/// A departure time that the sender asked for does not appear as the time of the departure.
#[test]
fn the_time_asked_for_is_not_the_time_of_leaving() {
    let (mut world, mut pool) = (World::new("pfifo", 100), pool());
    let mut pkt = pool.take(100).expect("a credit");
    (pkt.flow, pkt.len, pkt.txtime_ns) = (40, 100, START.0 + 90 * MS);
    push_list(&mut world, &mut pool, PacketList::from_iter([pkt]));
    assert_eq!(told(&mut pool), [(0, 0, Some(0), None)]);
}

/// An owner may have read the clock before another thread pushed a packet. Even so, no packet
/// leaves before it came.
#[test]
fn nothing_leaves_before_it_came() {
    let (mut world, mut pool) = (World::with("pfifo", 100, Mode::Dedicated, None), pool());
    let before = world.now;
    world.pass(3 * MS);
    push(&mut world, &mut pool, [0]);
    world.now = before;
    let _ = world.visit();
    assert_eq!(told(&mut pool), [(0, 3 * MS, Some(3 * MS), None)]);
}

#[test]
fn what_a_device_drops_or_hands_on_has_its_time() {
    let (mut world, mut pool) = (World::new("pfifo", 100), pool());
    world.wire().fails = Some(DropReason::Refused);
    world.wire().hands_on = true;
    world.pass(MS);
    push(&mut world, &mut pool, [0, 1]);
    world.pass(MS);
    drop(std::mem::take(&mut world.wire().elsewhere));
    let refused = Some(DropReason::Refused);
    assert_eq!(told(&mut pool), [(0, MS, Some(MS), refused), (1, MS, Some(MS), None)]);
}

/// A receiver may submit a packet again. Its next way does not begin with the departure time of its
/// first.
#[test]
fn the_time_of_a_first_way_is_no_departure_time() {
    let (mut world, mut pool) = (World::new("pfifo", 100), pool());
    world.wire().hands_on = true;
    push(&mut world, &mut pool, [0]);
    let mut again = std::mem::take(&mut world.wire().elsewhere);
    assert_eq!(again.front().map(|pkt| pkt.txtime_ns), Some(START.0));
    pool.submit(&mut again, world.now.0);
    assert_eq!(again.front().map(|pkt| pkt.txtime_ns), Some(0));
    // A departure time that still lies ahead is one that the receiver asks for.
    again.metas_mut().for_each(|meta| meta.txtime_ns = START.0 + 9 * MS);
    pool.submit(&mut again, world.now.0);
    assert_eq!(again.front().map(|pkt| pkt.txtime_ns), Some(START.0 + 9 * MS));
}

#[test]
fn the_end_of_a_port_has_a_time_and_its_death_has_none() {
    for dies in [false, true] {
        let (mut world, mut pool) = (World::new("pfifo", 100), pool());
        world.wire().room = Some(0);
        push(&mut world, &mut pool, [0, 1]);
        world.pass(4 * MS);
        if dies {
            world.wire().panics = true;
            let _ = world.port.visit(world.now, &world.waker);
        } else {
            let _ = world.port.close(world.now, &world.waker);
        }
        let (left, why) =
            if dies { (None, DropReason::PortDead) } else { (Some(4 * MS), DropReason::Purged) };
        assert_eq!(told(&mut pool), [(0, 0, left, Some(why)), (1, 0, left, Some(why))]);
    }
}
