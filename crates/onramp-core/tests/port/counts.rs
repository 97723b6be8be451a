//! Tests each count of a port's snapshot (its statistics) against the operations that the test
//! made.

use std::sync::{Arc, Mutex};

use onramp_core::Spec;
use onramp_core::qdisc::{Backlog, Cx, Dequeue, Peek, Qdisc, Verdict};
use onramp_core::stats::PortSnapshot;
use onramp_core::view::QdiscView;
use onramp_core::{Device, DeviceInfo, Job, Port, Ran, Setup};
use onramp_queue::{DropReason, Packet, PacketList};

use crate::busy::make_busy;
use crate::regressions::Sink;
use crate::world::{MTU, Notes, START, World, packet};

/// Returns the counts of a snapshot that are not histograms: packets enqueued, packets made by
/// qdiscs, packets sent, bytes sent, packets held, runs, runs by threads that wait for credit, busy
/// periods and bursts.
fn counts(stats: &PortSnapshot) -> [u64; 9] {
    [
        stats.enqueued,
        stats.made,
        stats.sent,
        stats.sent_bytes,
        stats.held,
        stats.runs,
        stats.helped,
        stats.busy,
        stats.bursts,
    ]
}

#[test]
fn a_port_that_did_nothing_counted_nothing() {
    let stats = World::new("pfifo", 100).stats();
    assert_eq!(counts(&stats), [0; 9]);
    assert!(stats.dropped.is_empty());
    for histogram in [stats.burst_packets, stats.staging_ns, stats.sojourn_ns] {
        assert_eq!(histogram.iter().sum::<u64>(), 0);
    }
}

/// The port's packets have 100 bytes. The device takes four packets, then three, then all that are
/// left. A thread that waits for credit makes one of the runs.
#[test]
fn each_count_counts_its_own() {
    let mut world = World::new("pfifo limit 9", 100);
    world.wire().room = Some(4);
    // Of 20 packets, 9 are offered to the device (which takes 4), 9 are in the qdisc, and 2 are
    // dropped because the qdisc is full.
    assert_eq!(world.push(20), Some(Ran { done: 6, again: false }));
    let stats = world.stats();
    assert_eq!(counts(&stats), [20, 0, 4, 400, 14, 1, 0, 0, 1]);
    assert_eq!(stats.dropped, [(DropReason::Overlimit, 2)]);
    // A thread that waits for credit makes a run. The run is counted, although it does not call the
    // device before the device's retry time.
    assert_eq!(world.help(), Some(Ran { done: 0, again: false }));
    assert_eq!(counts(&world.stats()), [20, 0, 4, 400, 14, 2, 1, 0, 1]);
    world.wire().room = Some(3);
    let _ = world.next_visit();
    assert_eq!(counts(&world.stats()), [20, 0, 7, 700, 11, 3, 1, 0, 2]);
    world.wire().room = None;
    let _ = world.next_visit();
    let stats = world.stats();
    assert_eq!(counts(&stats), [20, 0, 18, 1_800, 0, 4, 1, 0, 3]);
    assert_eq!(stats.dropped, [(DropReason::Overlimit, 2)]);
    world.check();
}

/// A sender that only stages packets at a busy port is not an owner: the packets count as held, but
/// not as enqueued.
#[test]
fn staged_packets_are_held_and_not_enqueued() {
    let mut world = World::new("pfifo", 1_000);
    let pushed = make_busy(&mut world);
    let before = world.stats();
    assert_eq!((before.busy, before.enqueued, before.held), (1, pushed, 0));
    assert_eq!(world.push(7), None);
    let stats = world.stats();
    assert_eq!((stats.enqueued, stats.runs), (before.enqueued, before.runs));
    assert_eq!(stats.held, 7);
    world.settle();
    let stats = world.stats();
    assert_eq!((stats.enqueued, stats.sent, stats.held), (world.pushed, world.pushed, 0));
    // The port has been busy once, and is no longer busy.
    assert_eq!(stats.busy, 1);
    let _ = make_busy(&mut world);
    assert_eq!(world.stats().busy, 2);
}

/// Packets that a qdisc makes count as enqueued, and also have a count of their own.
#[test]
fn packets_that_were_made_are_counted() {
    let mut world = World::new("netem duplicate 100%", 1_000);
    let _ = world.push(10);
    let stats = world.stats();
    assert_eq!((stats.enqueued, stats.made, stats.sent, stats.sent_bytes), (20, 10, 20, 2_000));
    assert_eq!(stats.held, 0);
}

/// Each drop reason has its own count, and reasons without drops are not listed.
#[test]
fn drops_are_counted_by_reason() {
    let mut world = World::new("pfifo limit 15", 1_000);
    world.wire().fails = Some(DropReason::Refused);
    world.wire().room = Some(0);
    let _ = world.push(33);
    // The device, which takes nothing, is offered a burst of 15 packets. Another 15 wait in the
    // qdisc, and 3 do not fit.
    assert_eq!(world.stats().dropped, [(DropReason::Overlimit, 3)]);
    world.wire().room = None;
    world.settle();
    let stats = world.stats();
    // The device drops every third of the 30 packets that it gets.
    assert_eq!(stats.dropped.len(), 2);
    assert!(stats.dropped.contains(&(DropReason::Overlimit, 3)));
    assert!(stats.dropped.contains(&(DropReason::Refused, 10)));
    assert_eq!((stats.sent, stats.sent_bytes, stats.held), (20, 2_000, 0));
}

/// `tc -s` shows for the root qdisc how many packets were requeued. Each packet counts each time
/// that the device does not take it (`net/sched/sch_generic.c`, `dev_requeue_skb`, which counts
/// each packet).
#[test]
fn a_packet_is_requeued_each_time_the_device_leaves_it() {
    let mut world = World::new("pfifo", 1000);
    let requeues = |world: &World| view(&world.port).counters.requeues;
    assert_eq!(requeues(&world), 0);
    world.wire().room = Some(3);
    let _ = world.push(10);
    assert_eq!(requeues(&world), 7);
    world.wire().room = Some(5);
    while world.stats().bursts < 2 {
        let _ = world.next_visit();
    }
    assert_eq!(requeues(&world), 7 + 2);
    world.wire().room = None;
    world.settle();
    assert_eq!((requeues(&world), world.stats().held), (9, 0));
}

/// Returns the view (state and counters) of the root qdisc of a port that has no owner.
pub(crate) fn view<D: Device>(port: &Port<D>) -> QdiscView {
    view_in(port, Setup::of("pfifo".parse::<Spec>().expect("a qdisc")))
}

/// Returns the view of the root qdisc of a port that has no owner. The tree is that of `setup`.
pub(crate) fn view_in<D: Device>(port: &Port<D>, setup: Setup) -> QdiscView {
    let found = Arc::new(Mutex::new(None));
    let inside = found.clone();
    let job: Job = Box::new(move |root, _| {
        *inside.lock().unwrap() = root.views(&setup, None).into_iter().next();
    });
    assert!(port.with(job, START, &Notes::default()).expect("few jobs wait"));
    found.lock().unwrap().take().expect("the job was done")
}

/// A qdisc that drops packets at enqueue if 7 divides their cookies, and at dequeue if 3 divides
/// their cookies. For each packet that leaves and whose cookie is one more than a multiple of
/// three, the qdisc makes another packet.
#[derive(Debug, Default)]
struct Leaky(PacketList);

impl Qdisc for Leaky {
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if pkt.cookie.is_multiple_of(7) {
            cx.drop(pkt, DropReason::Filter);
            return Verdict::Dropped;
        }
        self.0.push_back(pkt);
        Verdict::Queued
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        while let Some(pkt) = self.0.pop_front() {
            match pkt.cookie % 3 {
                0 => cx.drop(pkt, DropReason::Overlimit),
                1 => {
                    cx.made += 1;
                    let more = packet(2, pkt.flow, cx.now);
                    self.0.push_back(more);
                    return Dequeue::Ready(pkt);
                }
                _ => return Dequeue::Ready(pkt),
            }
        }
        Dequeue::Empty
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        unreachable!("it stands below no other")
    }

    fn backlog(&self) -> Backlog {
        Backlog { packets: self.0.len(), bytes: self.0.bytes() }
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        while let Some(pkt) = self.0.pop_front() {
            cx.drop(pkt, DropReason::Purged);
        }
    }
}

/// If a qdisc drops or makes packets, the port, the tree of qdiscs and the result of the run all
/// report the same numbers.
#[test]
fn drops_and_packets_made_are_counted_whenever_they_occur() {
    for at_once in [1_u64, 20] {
        let device = Sink(DeviceInfo::new("sink".to_owned(), MTU));
        let port = Port::new(Box::new(Leaky::default()), device, 100);
        let mut done = 0;
        for first in (0..20).step_by(usize::try_from(at_once).expect("small")) {
            let list = (first..first + at_once).map(|cookie| packet(cookie, 1, START)).collect();
            let ran = port.xmit(list, START, &Notes::default()).expect("there is room");
            done += ran.expect("the port is idle").done;
        }
        // Of the packets 0 to 19, these are dropped at enqueue: 0, 7 and 14. Dropped at dequeue: 3,
        // 6, 9, 12, 15 and 18. Duplicated: 1, 4, 10, 13, 16 and 19.
        let drops = [(DropReason::Filter, 3), (DropReason::Overlimit, 6)];
        let (made, sent) = (6, 20 - 3 - 6 + 6);
        let stats = port.snapshot();
        assert_eq!(counts(&stats)[..5], [20 + made, made, sent, 100 * sent, 0], "{at_once}");
        assert_eq!(u64::from(done), 20 + made, "{at_once}");
        let view = view(&port);
        assert_eq!((view.counters.packets, view.counters.bytes), (sent, 100 * sent));
        assert_eq!((view.counters.drops, view.counters.requeues), (9, 0));
        for told in [stats.dropped, view.drops] {
            assert_eq!(told.len(), 2, "{told:?}");
            assert!(drops.iter().all(|drop| told.contains(drop)), "{told:?}");
        }
    }
}
