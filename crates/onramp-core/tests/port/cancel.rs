//! Packets that their sender has cancelled.

use onramp_core::{Mode, PortOptions, QUOTA, Ran};
use onramp_queue::{Cancels, Credits, DropReason, PacketList, Pool};

use crate::world::World;

const OLD: u16 = 1;
const NEW: u16 = 2;

/// A world, and a sender that can cancel its packets.
struct Sends {
    world: World,
    pool: Pool,
    cancels: Cancels,
}

impl Sends {
    fn new(qdisc: &str, mode: Mode) -> Self {
        let cancels = Cancels::default();
        let options = PortOptions { mode, cancels: cancels.clone(), ..PortOptions::default() };
        let world = World::with_options(qdisc, 2_000, options);
        Self { world, pool: Pool::new(Credits { packets: 2_000, bytes: 1 << 20 }), cancels }
    }

    /// Pushes `count` packets of 100 bytes with this tag.
    fn push(&mut self, count: u32, tag: u16) -> Option<Ran> {
        let mut list = PacketList::new();
        for _ in 0..count {
            let mut packet = self.pool.take(1).expect("a credit");
            (packet.len, packet.flow, packet.cookie) = (100, 7, self.world.pushed);
            self.world.pushed += 1;
            list.push_back(packet);
        }
        self.pool.submit(&mut list, self.world.now.0);
        self.pool.counted(&mut list).for_each(|(_, place)| *place = tag);
        self.world.port.xmit(list, self.world.now, &self.world.waker).expect("there is room")
    }

    fn cancel(&mut self, tag: u16) {
        self.pool.cancel(tag, &self.cancels);
    }

    fn cancelled(&self) -> u64 {
        self.world.check();
        self.world.dropped(DropReason::Cancelled)
    }
}

/// Packets that no owner has taken yet are dropped before they enter the qdisc.
#[test]
fn staged_packets_do_not_enter_the_qdisc() {
    let mut sends = Sends::new("pfifo", Mode::Dedicated);
    let _ = sends.push(10, OLD);
    let _ = sends.push(3, NEW);
    sends.cancel(OLD);
    assert_eq!(sends.world.visit(), Ran { done: 13, again: false });
    assert_eq!((sends.cancelled(), sends.world.stats().enqueued), (10, 3));
    assert_eq!(sends.world.sent(), [10, 11, 12]);
}

/// Packets that wait in the qdisc, and in front of a full device, are dropped when the qdisc has
/// released them. The completion says why, and when.
#[test]
fn queued_packets_do_not_reach_the_device() {
    let mut sends = Sends::new("pfifo", Mode::Inline);
    sends.world.wire().room = Some(0);
    let _ = sends.push(1, OLD);
    let _ = sends.push(99, OLD);
    let _ = sends.push(50, NEW);
    sends.world.pass(7_000);
    sends.cancel(OLD);
    assert_eq!(sends.world.stats().enqueued, 150, "they are in the qdisc");
    sends.world.wire().room = None;
    sends.world.settle();
    assert_eq!(sends.cancelled(), 100);
    assert_eq!(sends.world.sent(), (100..150).collect::<Vec<_>>());
    let (mut fates, now) = (Vec::new(), sends.world.now);
    sends.pool.reclaim(|fate| fates.push((fate.drop_reason, fate.left_ns)));
    fates.retain(|(reason, _)| reason.is_some());
    assert_eq!(fates, vec![(Some(DropReason::Cancelled), Some(now.0)); 100]);
}

/// An owner that drops cancelled packets does no more work than one that sends packets.
#[test]
fn an_owner_drops_no_more_than_it_would_send() {
    let mut sends = Sends::new("pfifo limit 10000", Mode::Inline);
    sends.world.wire().room = Some(0);
    let _ = sends.push(1, OLD);
    let _ = sends.push(999, OLD);
    let _ = sends.push(1, NEW);
    for _ in 0..20 {
        let _ = sends.world.next_visit();
    }
    assert_eq!(sends.world.stats().enqueued, 1_001);
    sends.cancel(OLD);
    sends.world.wire().room = None;
    let mut runs = 0;
    while sends.world.sent().is_empty() {
        let ran = sends.world.next_visit();
        assert!(ran.done <= QUOTA, "{ran:?}");
        runs += 1;
    }
    assert_eq!((runs, sends.cancelled()), (1_001_u32.div_ceil(QUOTA), 1_000));
}

/// When a cancel has ended, the tag may be used again.
#[test]
fn a_tag_can_be_used_again() {
    let mut sends = Sends::new("pfifo", Mode::Dedicated);
    for round in 1..=5 {
        let _ = sends.push(4, OLD);
        sends.cancel(OLD);
        let _ = sends.world.visit();
        assert_eq!(sends.cancelled(), round * 4);
        assert_eq!(sends.pool.reclaim(|_| {}), 4);
        sends.pool.end_cancel(OLD);
        let _ = sends.push(4, OLD);
        let _ = sends.world.visit();
        sends.pool.reclaim(|_| {});
        assert_eq!((sends.cancelled(), sends.world.stats().sent), (round * 4, round * 4));
    }
}
