//! A packet whose payload lies elsewhere passes an idle port, if nothing makes the packet wait.

use std::sync::Arc;

use onramp_core::qdisc::{Backlog, Cx, Dequeue, Peek, Qdisc, Verdict};
use onramp_core::{Edit, Job, Mode, PortOptions, Ran, Rate, Setup, SharedRate, Spec};
use onramp_queue::{DropReason, Packet, PacketList};

use crate::busy::make_busy;
use crate::counts::{view, view_in};
use crate::world::{MTU, START, World, packet};

const PAYLOAD: &[u8] = b"elsewhere";
const ONE: Ran = Ran { done: 1, again: false };

/// Makes a port whose device sends packets with a payload that lies elsewhere.
fn world(qdisc: &str) -> World {
    let world = World::new(qdisc, 100);
    world.wire().lends = true;
    world
}

/// Offers a packet, and checks that the port has done nothing with it: it can be pushed afterwards.
#[track_caller]
fn refused(world: &mut World) {
    let before = world.sent().len();
    let (packet, _) = world.lend(PAYLOAD).expect_err("something makes it wait");
    assert_eq!((packet.cookie, packet.drop_reason), (world.pushed, None));
    assert_eq!((world.sent().len(), world.wire().lent.len()), (before, 0));
    world.check();
}

#[test]
fn qdiscs_that_let_it_through_at_once() {
    for qdisc in ["pfifo", "bfifo", "pfifo_fast", "codel", "fq_codel", "sfq", "fq", "noqueue"] {
        let mut world = world(qdisc);
        let _ = world.push(1);
        assert_eq!(world.lend(PAYLOAD).ok(), Some(ONE), "{qdisc}");
        let _ = world.push(1);
        assert_eq!(world.wire().sent, [(0, START), (1, START), (2, START)], "{qdisc}");
        assert_eq!(world.wire().lent, [PAYLOAD], "{qdisc}");
        let stats = world.stats();
        assert_eq!((stats.enqueued, stats.sent, stats.sent_bytes), (3, 3, 300), "{qdisc}");
        assert_eq!((stats.runs, world.waker.due()), (3, None), "{qdisc}");
        world.check();
        let counters = view(&world.port).counters;
        assert_eq!((counters.packets, counters.bytes), (3, 300), "{qdisc}");
    }
}

#[test]
fn fq_counts_it_as_of_the_fast_path() {
    let mut world = world("fq");
    let _ = (world.push(1), world.lend(PAYLOAD));
    let setup = Setup::of("fq".parse::<Spec>().expect("a qdisc"));
    let extra = view_in(&world.port, setup).extra;
    assert!(extra.0.contains(&("fastpath", 2)), "{extra:?}");
}

/// A packet of several datagrams counts once for each of them, as in Linux.
#[test]
fn the_datagrams_of_a_packet_are_counted() {
    let mut world = world("fq");
    let mut pkt = packet(0, 7, world.now);
    (pkt.gso_size, pkt.len, world.pushed) = (4, 300, 1);
    assert_eq!(world.port.xmit_lent(pkt, PAYLOAD, world.now, &world.waker).ok(), Some(ONE));
    let counters = view(&world.port).counters;
    assert_eq!((counters.packets, counters.bytes), (3, 300));
    world.check();
}

#[test]
fn qdiscs_that_may_hold_it_back_change_it_or_look_at_it() {
    for qdisc in [
        "netem delay 1ms",
        "netem",
        "tbf rate 8mbit burst 2kb latency 50ms",
        "fq maxrate 8mbit",
        "prio",
        "htb",
        "cake",
        "red limit 400000 avpkt 1000",
        "noop",
        "blackhole",
        "pfifo limit 0",
        "bfifo limit 99",
    ] {
        refused(&mut world(qdisc));
    }
}

#[test]
fn packets_with_a_time_or_a_rate_enter_fq() {
    let world = world("fq");
    let paced: fn(&mut Packet) = |pkt| pkt.pacing_rate = 1_000;
    let timed: fn(&mut Packet) = |pkt| pkt.txtime_ns = START.0 + 1;
    for label in [paced, timed] {
        let mut pkt = packet(0, 7, world.now);
        label(&mut pkt);
        assert!(world.port.xmit_lent(pkt, PAYLOAD, world.now, &world.waker).is_err());
        world.check();
    }
}

#[test]
fn nothing_passes_what_waits() {
    // In the device, which is full, and then in the pause that it has asked for.
    let mut world = world("pfifo");
    world.wire().room = Some(0);
    refused(&mut world);
    let _ = world.push(1);
    world.wire().room = None;
    refused(&mut world);
    let _ = world.next_visit();
    assert_eq!(world.lend(PAYLOAD).ok(), Some(ONE));
    assert_eq!(world.sent(), [0, 1]);
    // In the qdisc: the offer releases the packet that is due, and still does not pass it.
    let mut world = self::world("fq low_rate_threshold 8mbit");
    let mut list = world.packets(2);
    list.metas_mut().for_each(|meta| meta.pacing_rate = 100_000);
    let _ = world.port.xmit(list, world.now, &world.waker).expect("there is room");
    refused(&mut world);
    world.pass(1_000_000);
    let (_, ran) = world.lend(PAYLOAD).expect_err("another packet is first");
    assert_eq!((ran, world.sent()), (Some(ONE), vec![0, 1]));
    assert_eq!(world.lend(PAYLOAD).ok(), Some(ONE));
    world.check();
}

#[test]
fn a_busy_port_collects_it() {
    let mut world = world("pfifo");
    let _ = make_busy(&mut world);
    assert!(!world.port.may_lend());
    refused(&mut world);
    assert!(world.port.is_busy(), "it stays busy");
}

#[test]
fn many_in_a_tick_make_a_port_busy() {
    let mut world = world("pfifo");
    while world.port.may_lend() {
        assert_eq!(world.lend(PAYLOAD).ok(), Some(ONE));
        assert!(world.pushed < 1_000, "many packets at one time make a port busy");
    }
    assert!(world.port.is_busy());
    world.check();
}

#[test]
fn ports_that_pass_nothing() {
    // Senders may not send.
    let mut world = World::with("pfifo", 100, Mode::Dedicated, None);
    world.wire().lends = true;
    assert!(!world.port.may_lend());
    refused(&mut world);
    // The port has a part of a rate.
    let share = SharedRate::new(Rate::bytes_per_second(1_000_000), 1).share(0);
    let mut world = World::with("pfifo", 100, Mode::Hybrid, Some(share));
    world.wire().lends = true;
    refused(&mut world);
    // The device sends no such packets.
    let mut world = World::new("pfifo", 100);
    refused(&mut world);
    // The port is closed.
    let mut world = self::world("pfifo");
    let _ = world.port.close(world.now, &world.waker);
    refused(&mut world);
}

/// Filters in front of the root see every packet.
#[test]
fn filters_in_front_of_the_root_see_it() {
    let mut world = world("pfifo");
    let mut setup = Setup::of("pfifo".parse::<Spec>().expect("a qdisc"));
    let mut edit = |world: &World, line| {
        let change = setup.change(line).expect("a line of tc");
        let edit = Edit::new(&Arc::new(setup.clone()), &change, Some(0), MTU, 0).expect("a change");
        let job: Job = Box::new(move |root, cx| root.edit(edit, cx));
        assert!(world.port.with(job, world.now, &world.waker).expect("few jobs wait"));
    };
    edit(&world, "qdisc add dev x clsact");
    refused(&mut world);
    edit(&world, "qdisc del dev x clsact");
    assert_eq!(world.lend(PAYLOAD).ok(), Some(ONE));
}

/// While one packet passes, other threads push packets and close the port: the thread sends the
/// packets, or drops them, before it leaves.
#[test]
fn what_comes_meanwhile_is_looked_after() {
    let mut world = world("pfifo");
    let list: PacketList = (1..4).map(|cookie| packet(cookie, 7, START)).collect();
    world.wire().comes = Some(list);
    assert_eq!(world.lend(PAYLOAD).ok(), Some(Ran { done: 4, again: false }));
    world.pushed += 3;
    assert_eq!(world.sent(), [0, 1, 2, 3]);
    world.check();
    let list: PacketList = (5..8).map(|cookie| packet(cookie, 7, START)).collect();
    (world.wire().comes, world.wire().closes) = (Some(list), Some(true));
    assert_eq!(world.lend(PAYLOAD).ok(), Some(Ran { done: 4, again: false }));
    world.pushed += 3;
    assert_eq!(world.wire().closes, Some(false), "this thread is the owner");
    assert_eq!((world.sent().len(), world.dropped(DropReason::Purged)), (5, 3));
    world.check();
    let ran = world.push(1);
    assert_eq!((ran, world.dropped(DropReason::Purged)), (Some(ONE), 4));
}

/// A qdisc that panics when it counts the packet, which the device has sent already.
#[derive(Debug)]
struct Miscounting;

impl Qdisc for Miscounting {
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        cx.drop(pkt, DropReason::Overlimit);
        Verdict::Dropped
    }

    fn dequeue(&mut self, _: &mut Cx<'_>) -> Dequeue {
        Dequeue::Empty
    }

    fn peek(&mut self, _: &mut Cx<'_>) -> Peek {
        Peek::Empty
    }

    fn backlog(&self) -> Backlog {
        Backlog::default()
    }

    fn can_bypass(&self) -> bool {
        true
    }

    fn passed(&mut self) {
        panic!("it cannot count");
    }

    fn reset(&mut self, _: &mut Cx<'_>) {}
}

#[test]
fn what_was_sent_counts_as_sent_although_the_qdisc_panics() {
    let mut world = World::over(Box::new(Miscounting), 100, PortOptions::default());
    world.wire().lends = true;
    assert_eq!(world.lend(PAYLOAD).ok(), Some(ONE));
    assert_eq!((world.port.death(), world.stats().sent), (Some("it cannot count"), 1));
    world.check();
}

#[test]
fn a_device_that_panics_gives_the_packet_back() {
    let mut world = world("pfifo");
    world.wire().panics = true;
    refused(&mut world);
    assert_eq!(world.port.death(), Some("as the script says"));
    assert_eq!(world.push(1), Some(ONE));
    assert_eq!(world.dropped(DropReason::PortDead), 1);
    world.check();
}
