//! Tests that Onramp does not have eight bugs that Linux had after its lock-free list in front of
//! qdiscs was added in 2025. The tests call them R1 to R8. R1, R3 and R8 are tested in this file,
//! R2, R4 and R7 in `onramp/tests/link/regressions.rs`, R5 in `onramp/tests/stress.rs`, and R6 in
//! `onramp-queue/tests/stress.rs`. The comment at each test says what the bug was.

use onramp_core::Spec;
use onramp_core::qdisc::{Backlog, Cx, Dequeue, KINDS, Kind, Peek, Qdisc, Verdict};
use onramp_core::{
    Device, DeviceInfo, Instant, Mode, Port, PortOptions, QUOTA, Rate, SharedRate, Transmitted,
    Tree,
};
use onramp_queue::{DropReason, Packet, PacketList};

use crate::world::{MTU, Notes, START, World, packet};

/// Whether this kind of qdisc, with default options and without classes, lets packets leave at
/// once.
fn sends(kind: &Kind) -> bool {
    let Ok(spec) = kind.id.parse::<Spec>() else { return false };
    let mut tree = Tree::new(&spec, MTU);
    // With these options, a shaper lets the first packet leave at once, but not the second.
    (0..2).all(|cookie| {
        let _ = tree.enqueue(START, packet(cookie, 0, START));
        matches!(tree.dequeue(START), Dequeue::Ready(_))
    })
}

/// R1, the first of eight bugs of Linux (see the head of this file): batching moved the bottleneck
/// to the dequeue side, and drops were freed under the lock.
///
/// In this test, ten times as many packets arrive as the device takes, in small packets of 1,000
/// flows. For every kind of qdisc, a run of an owner still sends its whole quota, and enqueues at
/// most four times the quota.
#[test]
#[cfg_attr(sim, ignore = "takes 8 to 74 seconds in a simulation")]
fn r1_overload_takes_nothing_from_what_is_sent() {
    for kind in KINDS.iter().filter(|kind| sends(kind)) {
        let mut per_run = Vec::new();
        for overload in [1, 2, 10] {
            // `etf` drops packets without a departure time. In deadline mode, `etf` sends a packet
            // without waiting for its time.
            let timed = kind.id == "etf";
            let line = if timed { "etf clockid TAI deadline_mode" } else { kind.id };
            let mut world = World::with(line, 2_000, Mode::Dedicated, None);
            let (mut came, mut runs, mut refused) = (0, 0, 0);
            for _ in 0..300 {
                let mut list: PacketList = (0..u64::from(QUOTA) * overload)
                    .map(|i| packet(came + i, (came + i) % 1_000, world.now))
                    .collect();
                for meta in list.metas_mut().filter(|_| timed) {
                    meta.txtime_ns = world.now.after(1_000_000_000).0;
                }
                came += u64::from(list.len());
                match world.port.xmit(list, world.now, &world.waker) {
                    Ok(ran) => assert_eq!(ran, None),
                    Err(full) => refused += u64::from(full.0.len()),
                }
                let before = world.stats();
                let _ = world.visit();
                let after = world.stats();
                assert!(after.enqueued - before.enqueued <= u64::from(4 * QUOTA), "{}", kind.id);
                runs += 1;
                world.pass(10_000);
            }
            world.pushed = came - refused;
            let sent = world.stats().sent;
            per_run.push(sent as f64 / f64::from(runs));
            let dropped: u64 = world.stats().dropped.iter().map(|(_, n)| n).sum();
            assert_eq!(world.pushed, sent + dropped + world.stats().held, "{}", kind.id);
        }
        let peak = per_run.iter().copied().fold(0.0, f64::max);
        assert!(per_run[2] >= 0.8 * peak, "{}: {per_run:?} packets a run", kind.id);
        assert!(peak > 0.9 * f64::from(QUOTA), "{}: {per_run:?} packets a run", kind.id);
    }
}

/// R3, the third of eight bugs of Linux (see the head of this file): bulk dequeues of over 1,000
/// packets overran the device's ring, and packets that were put back bypassed the scheduler.
///
/// In a port, no burst is larger than a quota (64 packets). After the at most 64 packets that a
/// full device did not take, the qdisc decides which packets leave next.
#[test]
fn r3_a_burst_is_bounded_and_nothing_bypasses_the_qdisc() {
    let mut world = World::new("pfifo_fast", 2_000);
    world.wire().room = Some(10);
    for _ in 0..5 {
        let _ = world.push(100);
    }
    let mut urgent = world.packets(3);
    urgent.metas_mut().for_each(|meta| meta.priority = 6);
    let _ = world.port.xmit(urgent, world.now, &world.waker).expect("there is room");
    for room in [Some(5), Some(0), Some(20), None] {
        world.wire().room = room;
        world.pass(200_000);
        let _ = world.visit();
    }
    world.settle();
    world.check();
    assert!(world.wire().offered.iter().all(|packets| *packets <= QUOTA));
    let sent = world.sent();
    assert_eq!(sent.len(), 503);
    let first = sent.iter().position(|cookie| *cookie == 500).expect("it was sent");
    assert!(first <= QUOTA as usize + 10, "{first} packets went before");
    assert_eq!(sent[first..first + 3], [500, 501, 502]);
    assert!(sent.iter().filter(|cookie| **cookie < 500).is_sorted());
}

/// A qdisc that drops a packet in every other dequeue, and all packets that it holds in every
/// seventh.
#[derive(Debug, Default)]
struct Picky {
    list: PacketList,
    calls: u32,
}

impl Qdisc for Picky {
    fn enqueue(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        self.list.push_back(pkt);
        Verdict::Queued
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        self.calls += 1;
        let drops = if self.calls.is_multiple_of(7) { u32::MAX } else { self.calls % 2 };
        for _ in 0..drops {
            let Some(pkt) = self.list.pop_front() else { break };
            cx.drop(pkt, DropReason::Overlimit);
        }
        self.list.pop_front().map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        unreachable!("it stands below no other")
    }

    fn backlog(&self) -> Backlog {
        Backlog { packets: self.list.len(), bytes: self.list.bytes() }
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        while let Some(pkt) = self.list.pop_front() {
            cx.drop(pkt, DropReason::Purged);
        }
    }
}

/// R8, the last of eight bugs of Linux (see the head of this file): when a leaf qdisc dropped a
/// packet at dequeue, the packet was subtracted twice in the leaf's parent, which then stalled for
/// ever.
///
/// A port keeps no separate count of the packets in its qdisc. So packets that the qdisc drops at
/// dequeue, even if it drops all, neither stall the port nor unbalance its counts, with or without
/// a shared rate.
#[test]
fn r8_drops_in_dequeue_are_counted_once() {
    for shared in [false, true] {
        let share = shared.then(|| SharedRate::new(Rate::bytes_per_second(50_000_000), 1).share(0));
        let device = Sink(DeviceInfo::new("sink".to_owned(), MTU));
        let port = Port::with_options(
            Box::new(Picky::default()),
            device,
            500,
            PortOptions { share, ..PortOptions::default() },
        );
        let (waker, mut now, mut pushed) = (Notes::default(), START, 0_u64);
        for round in 0..200_u64 {
            let count = round % 97;
            let list = (0..count).map(|i| packet(pushed + i, 7, now)).collect();
            let _ = port.xmit(list, now, &waker).expect("there is room");
            pushed += count;
            now = now.after(50_000);
            let _ = port.visit(now, &waker);
            let stats = port.snapshot();
            let dropped: u64 = stats.dropped.iter().map(|(_, n)| n).sum();
            assert_eq!(pushed, stats.sent + dropped + stats.held, "round {round}");
        }
        for _ in 0..1_000 {
            now = now.after(200_000);
            let _ = port.visit(now, &waker);
        }
        let stats = port.snapshot();
        assert_eq!(stats.held, 0, "it stalls");
        assert!(stats.sent > 0 && port.stats().dropped.get(DropReason::Overlimit) > 0);
    }
}

/// A device that takes everything.
pub(crate) struct Sink(pub(crate) DeviceInfo);

impl Device for Sink {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        done.append(burst);
        Transmitted::default()
    }
}

/// The clock jumps an hour ahead, and later back again. No packet is lost, none leaves before its
/// time, and no packet waits longer than the clock needs to catch up.
#[test]
fn a_clock_that_jumps() {
    const HOUR: u64 = 3_600_000_000_000;
    for qdisc in ["pfifo", "fq", "fq maxrate 1mbit", "pfifo_fast"] {
        for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
            let mut world = World::with(qdisc, 1_000, mode, None);
            let _ = world.push(30);
            world.pass(HOUR);
            let _ = world.push(30);
            world.settle();
            world.now = START; // Here the clock jumps back by one hour.
            let _ = world.push(30);
            let _ = world.help();
            world.check();
            world.pass(HOUR);
            world.settle();
            world.check();
            assert_eq!(world.sent(), (0..90).collect::<Vec<_>>(), "{qdisc}, {mode:?}");
        }
    }
}
