//! Packets that are pushed as one list may delay packets of other senders, but do not cause drops.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use onramp_core::qdisc::{Backlog, Cx, Dequeue, Peek, Qdisc, Verdict};
use onramp_core::{
    Device, DeviceInfo, Instant, Mode, Port, PortOptions, PortWaker, TICK_NS, Transmitted,
};
use onramp_queue::{DropReason, Packet, PacketList};

use crate::world::{World, packet};

/// Sends 30,000 packets of one flow, one every `gap_ns` nanoseconds, to a device that takes
/// everything. While the port holds `credits` packets, the sender has no credit, and runs the port
/// itself. The runner visits `late_ns` nanoseconds after the time for which a visit was requested.
/// Returns the numbers of dropped and sent packets.
fn stream(qdisc: &str, gap_ns: u64, credits: u64, late_ns: u64) -> (u64, u64) {
    let mut world = World::new(qdisc, 16_384);
    world.wire().calls = 1;
    for _ in 0..30_000 {
        world.pass(gap_ns);
        if world.waker.due().is_some_and(|due| due.after(late_ns) <= world.now) {
            // The runner is awake now, so it visits at once whenever a visit is requested.
            while world.waker.due().is_some_and(|due| due <= world.now) {
                let _ = world.visit();
            }
        }
        while world.stats().held >= credits {
            let _ = world.help();
        }
        let _ = world.push(1);
    }
    world.settle();
    world.check();
    let dropped = world.stats().dropped.iter().map(|(_, n)| n).sum();
    (dropped, world.stats().sent)
}

#[test]
#[cfg_attr(sim, ignore = "takes 8 to 74 seconds in a simulation")]
fn collected_lists_and_limits() {
    for qdisc in ["fq", "pfifo limit 1000"] {
        for (gap, credits, late) in [
            (200, 4_000, 0),
            (400, 4_000, 0),
            (1_000, 4_000, 0),
            (1_000, 4_000, 300_000),
            (200, 256, 0),
            (200, 64, 0),
        ] {
            let (dropped, sent) = stream(qdisc, gap, credits, late);
            assert_eq!((dropped, sent), (0, 30_000), "{qdisc}, {gap}, {credits}, {late}");
        }
    }
}

/// A flow whose packet waits for its departure time does not cause drops of another flow, whose
/// packets the device can take.
#[test]
fn one_waiting_packet_costs_others_theirs() {
    for waits in [false, true] {
        let mut world = World::with("fq", 16_384, Mode::Inline, None);
        world.wire().calls = 0;
        if waits {
            let mut list = PacketList::new();
            let mut pkt = packet(1_000_000, 99, world.now);
            pkt.txtime_ns = world.now.after(5_000_000).0;
            list.push_back(pkt);
            world.pushed += 1;
            let _ = world.port.xmit(list, world.now, &world.waker);
            let _ = world.help();
        }
        let mut dropped = 0;
        for _ in 0..100 {
            let _ = world.push(250);
            world.pass(TICK_NS);
            while world.waker.due().is_some_and(|due| due <= world.now) {
                let _ = world.visit();
            }
            dropped = world.stats().dropped.iter().map(|(_, n)| n).sum();
        }
        assert_eq!(dropped, 0, "one waits: {waits}");
    }
}

/// A qdisc that pushes another packet into its own port during each enqueue, as another sender
/// might. So the owner of the port never finds the intake empty.
#[derive(Debug)]
struct Busy {
    list: PacketList,
    limit: u32,
    port: Arc<OnceLock<Weak<Port<Stuck>>>>,
    left: Arc<Mutex<u32>>,
}
struct Stuck(DeviceInfo, Arc<Mutex<bool>>);
#[derive(Default, Debug)]
struct Nobody;
impl PortWaker for Nobody {
    fn visit_by(&self, _at: Instant) {}
}
impl Device for Stuck {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }
    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        if *self.1.lock().unwrap() {
            return Transmitted { calls: 0, messages: 0, retry_at: Some(now.after(1_000_000)) };
        }
        done.append(burst);
        Transmitted { calls: 0, messages: 1, retry_at: None }
    }
}
impl Qdisc for Busy {
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let more = {
            let mut left = self.left.lock().unwrap();
            let more = *left > 0;
            *left = left.saturating_sub(1);
            more
        };
        if more {
            let port = self.port.get().and_then(Weak::upgrade).unwrap();
            let list = PacketList::from_iter([packet(0, 1, cx.now)]);
            let ran = port.xmit(list, cx.now, &Nobody).expect("room");
            assert!(ran.is_none());
        }
        if self.list.len() >= self.limit {
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        self.list.push_back(pkt);
        Verdict::Queued
    }
    fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
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

fn one_call(mode: Mode, held: bool) -> u64 {
    let (port, left) = (Arc::new(OnceLock::new()), Arc::new(Mutex::new(0)));
    let qdisc =
        Busy { list: PacketList::new(), limit: 100, port: port.clone(), left: left.clone() };
    let stuck = Arc::new(Mutex::new(false));
    let device = Stuck(DeviceInfo::new("stuck".to_owned(), 1_000), stuck.clone());
    let world = Arc::new(Port::with_options(
        Box::new(qdisc),
        device,
        16_384,
        PortOptions { mode, ..PortOptions::default() },
    ));
    port.set(Arc::downgrade(&world)).ok().unwrap();
    let mut now = Instant(1_000_000_000);
    let push = |n: u64, now| {
        let list = (0..n).map(|_| packet(0, 1, now)).collect();
        world.xmit(list, now, &Nobody).expect("room")
    };
    if held {
        // Thirty packets come at once and make the port busy: it collects packets for the runner.
        // Then, six times, one packet comes, and the runner finds it 100 µs later with no newer
        // packet behind it. So collecting only delayed that packet, and after two such visits the
        // port stops collecting for a while.
        for _ in 0..30 {
            let _ = push(1, now);
        }
        for _ in 0..6 {
            let _ = push(1, now);
            now = now.after(TICK_NS);
            let _ = world.visit(now, &Nobody);
        }
    }
    *stuck.lock().unwrap() = true;
    *left.lock().unwrap() = 100_000;
    let before = world.snapshot().enqueued;
    let ran = push(1, now);
    assert!(ran.is_some(), "{mode:?}, held {held}");
    let did = world.snapshot().enqueued - before;
    *left.lock().unwrap() = 0;
    did
}

#[test]
fn one_call_is_bounded() {
    for (mode, held) in [(Mode::Hybrid, false), (Mode::Hybrid, true), (Mode::Inline, false)] {
        assert!(one_call(mode, held) <= 256, "{mode:?}, held {held}");
    }
}

/// Fills the qdisc with 90 packets of each of `flows` flows while the device is full. Then the
/// device takes everything again, and one packet of another flow arrives, with priority `priority`.
/// Returns how many packets leave before that packet.
fn overtaken(qdisc: &str, flows: u64, priority: u32, mode: Mode) -> usize {
    let mut world = World::with(qdisc, 16_384, mode, None);
    world.wire().room = Some(0);
    let _ = world.push(1);
    for round in 0..90 {
        let list: PacketList =
            (0..flows).map(|flow| packet(1_000 + round, flow, world.now)).collect();
        world.pushed += flows;
        let _ = world.port.xmit(list, world.now, &world.waker);
        while world.waker.due().is_some_and(|due| due <= world.now) {
            let _ = world.visit();
        }
        world.pass(200_000);
        while world.waker.due().is_some_and(|due| due <= world.now) {
            let _ = world.visit();
        }
    }
    world.wire().room = None;
    world.pass(1_000_000);
    let mut pkt = packet(7_777_777, 7_777, world.now);
    pkt.priority = priority;
    world.pushed += 1;
    let _ = world.port.xmit(PacketList::from_iter([pkt]), world.now, &world.waker);
    world.settle();
    world.check();
    let dropped: u64 = world.stats().dropped.iter().map(|(_, n)| n).sum();
    assert_eq!(dropped, 0);
    world.sent().iter().position(|&cookie| cookie == 7_777_777).unwrap()
}

#[test]
fn a_sparse_flow_is_not_kept_out() {
    for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
        for (qdisc, flows, priority) in [
            ("fq", 50, 0),
            ("fq", 50, 6),
            ("fq flow_limit 10000", 50, 0),
            ("pfifo_fast txqueuelen 4501", 50, 6),
            ("pfifo_fast txqueuelen 5000", 50, 6),
        ] {
            let before = overtaken(qdisc, flows, priority, mode);
            // In `fq`, each of the other flows is new and may send its initial quantum (ten packets
            // of the largest size) before the packet that arrived last. In other kinds, only the
            // packets of a burst that the device did not take may leave before that packet.
            let most = if qdisc.starts_with("fq") { 2_800 } else { 64 };
            assert!(before <= most, "{mode:?}, {qdisc}, {priority}: {before} of 4,501 before it");
        }
    }
}

mod storm {
    use onramp_core::Spec;
    use onramp_core::{Instant, Mode, Rate, SharedRate, TICK_NS};
    use proptest::prelude::*;

    use crate::world::{START, World, packet};
    use onramp_queue::PacketList;

    #[derive(Clone, Debug)]
    enum Op {
        Ones(u64, u64),
        List(u64, u64),
        Help,
        /// Lets a given time pass. Visits that become due in that time are made, each of them late
        /// by a given number of nanoseconds.
        PortWaker(u64, u64),
        Back(u64),
        Room(Option<u32>),
        Calls(u32),
        Retry(u64),
        Sulks(bool),
        Replace,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => (1_u64..100, 0_u64..4).prop_map(|(n, f)| Op::Ones(n, f)),
            4 => (1_u64..700, 0_u64..4).prop_map(|(n, f)| Op::List(n, f)),
            2 => Just(Op::Help),
            14 => (1_u64..300_000, 0_u64..60_000).prop_map(|(n, l)| Op::PortWaker(n, l)),
            1 => (1_u64..150_000).prop_map(Op::Back),
            2 => proptest::option::of(0_u32..200).prop_map(Op::Room),
            1 => (0_u32..2).prop_map(Op::Calls),
            1 => (0_u64..3_000_000).prop_map(Op::Retry),
            1 => any::<bool>().prop_map(Op::Sulks),
            1 => Just(Op::Replace),
        ]
    }

    fn progress(world: &World) -> (u64, u64, u64) {
        let stats = world.stats();
        (stats.enqueued, stats.sent, stats.dropped.iter().map(|(_, n)| n).sum())
    }

    fn visit(world: &mut World) {
        let before = progress(world);
        let ran = world.visit();
        assert!(!ran.again || progress(world) != before, "a spin: {ran:?} {:?}", world.stats());
        assert!(ran.done <= 64 * 5 + 256 + 1024, "one call did {}", ran.done);
    }

    #[expect(clippy::too_many_lines, reason = "one operation after another")]
    fn run(qdisc: &str, cap: u16, mode: Mode, ops: &[Op], share: bool, unlimited: bool) {
        let share = share.then(|| SharedRate::new(Rate::bytes_per_second(20_000_000), 1).share(0));
        let paced = share.is_some() || qdisc.contains("maxrate");
        let mut world = World::with(qdisc, cap, mode, share);
        world.wire().calls = 0;
        let mut flows = Vec::new();
        let mut stuck = false;
        for op in ops {
            match *op {
                Op::Ones(n, f) | Op::List(n, f) => {
                    let per = if matches!(op, Op::Ones(..)) { 1 } else { n };
                    for _ in 0..n / per {
                        let list: PacketList = (0..per)
                            .map(|_| {
                                flows.push(f);
                                packet(flows.len() as u64 - 1, f, world.now)
                            })
                            .collect();
                        match world.port.xmit(list, world.now, &world.waker) {
                            Ok(_) => world.pushed += per,
                            Err(full) => assert_eq!(u64::from(full.0.len()), per),
                        }
                        world.check();
                    }
                }
                Op::Help => {
                    let _ = world.help();
                }
                Op::PortWaker(ns, late) => {
                    let until = world.now.after(ns);
                    while let Some(due) = world.waker.due().filter(|due| due.after(late) <= until) {
                        world.now = world.now.max(due.after(late));
                        let mut again = 0;
                        while world.waker.due().is_some_and(|due| due <= world.now) {
                            visit(&mut world);
                            world.check();
                            again += 1;
                            assert!(again < 3_000, "spins at one time {:?}", world.stats());
                        }
                    }
                    world.now = world.now.max(until);
                }
                Op::Back(ns) => world.now = Instant(world.now.0.saturating_sub(ns).max(START.0)),
                Op::Room(room) => {
                    world.wire().room = room;
                    stuck = room.is_some();
                }
                Op::Calls(calls) => world.wire().calls = calls,
                Op::Retry(ns) => world.wire().retry_ns = ns + 1,
                Op::Sulks(sulks) => world.wire().sulks = sulks,
                Op::Replace => {
                    let spec: Spec = qdisc.parse().unwrap();
                    let qdisc = spec.build(crate::world::MTU);
                    assert!(world.port.replace(qdisc, world.now, &world.waker).unwrap());
                }
            }
            world.check();
        }
        let _ = stuck;
        if unlimited {
            assert_eq!(world.stats().dropped.iter().map(|(_, n)| n).sum::<u64>(), 0);
        }
        world.wire().room = None;
        // Now the runner visits on time. All packets that need not wait for a departure time have
        // left after three ticks and a retry of the device.
        if !paced {
            let until = world.now.after(3 * TICK_NS + world.wire().retry_ns + 3_000_000);
            while let Some(due) = world.waker.due().filter(|due| *due <= until) {
                world.now = world.now.max(due);
                visit(&mut world);
            }
            assert_eq!(world.stats().held, 0);
        }
        world.settle();
        world.check();
        assert_eq!(world.stats().held, 0);
        let mut newest = std::collections::HashMap::new();
        for &(cookie, _) in &world.wire().sent {
            let flow = flows[usize::try_from(cookie).unwrap()];
            let before = newest.insert(flow, cookie);
            assert!(before.is_none_or(|before| before < cookie));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            cases: 150,
            ..ProptestConfig::default()
        })]

        #[test]
        #[cfg_attr(sim, ignore = "takes 8 to 74 seconds in a simulation")]
        fn nothing_spins(
            ops in proptest::collection::vec(op(), 1..100),
            cap in prop_oneof![Just(1_u16), 2_u16..100, 1_000_u16..4_000],
            mode in prop_oneof![
                3 => Just(Mode::Hybrid),
                1 => Just(Mode::Inline),
                1 => Just(Mode::Dedicated),
            ],
            (which, share) in (0_usize..6, any::<bool>()),
        ) {
            let qdiscs = [
                "pfifo limit 100000000",
                "pfifo limit 0",
                "bfifo limit 2000",
                "fq",
                "fq maxrate 100mbit",
                "pfifo_fast txqueuelen 40",
            ];
            run(qdiscs[which], cap, mode, &ops, share, which == 0);
        }
    }
}

/// A limit in bytes counts the bytes of the packets: small packets leave as one burst. Large
/// packets that fit the limit are sent, too.
#[test]
fn a_limit_in_bytes_counts_the_bytes_that_come() {
    for (limit, bursts, large) in
        [(10_000, vec![60], 0), (1_500, vec![15; 4], 0), (200_000, vec![60], 4)]
    {
        let qdisc = format!("bfifo limit {limit}");
        let mut world = World::new(&qdisc, 16_384);
        assert_eq!(world.push(60).map(|ran| ran.done), Some(60));
        assert_eq!(world.wire().offered, bursts, "{qdisc}");
        assert_eq!(world.stats().dropped, []);
        let packet = |cookie| {
            let mut pkt = Packet::new(60_000);
            (pkt.cookie, pkt.flow, pkt.enqueued_ns) = (cookie, 1, world.now.0);
            pkt
        };
        let list = (60..64).map(packet).collect();
        world.pushed += 4;
        let _ = world.port.xmit(list, world.now, &world.waker).expect("there is room");
        world.settle();
        assert_eq!(world.dropped(DropReason::Overlimit), 4 - large, "{qdisc}");
        world.check();
    }
}
