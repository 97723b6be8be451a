//! Random sequences of operations on a port: no packet is lost, invented or left behind.

use onramp_core::Spec;
use onramp_core::{CATCH_UP_NS, Instant, Mode, PortOptions, QUOTA_NS, REST_NS, Rate, SharedRate};
use onramp_queue::{DropReason, PacketList};
use proptest::prelude::*;

use crate::world::{START, World, packet};

#[derive(Clone, Debug)]
enum Op {
    /// Pushes packets: their number, their flow, and the nanoseconds until they may leave (0 = at
    /// once).
    Push(u64, u64, u64),
    /// Offers one packet of this flow whose payload lies elsewhere, and pushes it if the port does
    /// not send it: its flow, and the nanoseconds until it may leave (0 = at once).
    Lend(u64, u64),
    /// Pushes one packet, and lets this many packets arrive while the device transmits.
    Meanwhile(u64),
    Help,
    /// The runner visits, at the requested time or before it.
    Visit,
    Pass(u64),
    Back(u64),
    Room(Option<u32>),
    Fails(bool),
    /// From now on, a burst costs the device this many system calls.
    Calls(u32),
    /// From now on, each owner finds that it has worked for this many nanoseconds.
    Takes(u64),
    /// A new qdisc of the same kind replaces the port's qdisc.
    Replace,
    Close,
}

fn op() -> impl Strategy<Value = Op> {
    // In some flows all packets have departure times, in the others none. A flow with both kinds of
    // packets would have no promised order.
    let when = prop_oneof![
        4 => (0_u64..5).prop_map(|flow| (flow, 0)),
        1 => (5_u64..8, 1_u64..2_000_000),
    ];
    prop_oneof![
        12 => (1_u64..4, when.clone()).prop_map(|(n, (f, t))| Op::Push(n, f, t)),
        4 => when.clone().prop_map(|(f, t)| Op::Lend(f, t)),
        4 => (1_u64..400, when).prop_map(|(n, (f, t))| Op::Push(n, f, t)),
        2 => (1_u64..90).prop_map(Op::Meanwhile),
        3 => Just(Op::Help),
        4 => Just(Op::Visit),
        6 => (1_u64..150_000).prop_map(Op::Pass),
        1 => (1_u64..150_000).prop_map(Op::Back),
        2 => proptest::option::of(0_u32..100).prop_map(Op::Room),
        1 => any::<bool>().prop_map(Op::Fails),
        1 => (0_u32..2).prop_map(Op::Calls),
        1 => prop_oneof![Just(0), Just(QUOTA_NS / 2), Just(QUOTA_NS)].prop_map(Op::Takes),
        1 => Just(Op::Replace),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // In a few sequences, the port is closed in the middle. Packets that arrive later are purged.
    let closed = prop_oneof![9 => Just(None), 1 => (0_usize..120).prop_map(Some)];
    (proptest::collection::vec(op(), 1..120), closed).prop_map(|(mut ops, close)| {
        if let Some(at) = close {
            ops.insert(at.min(ops.len()), Op::Close);
        }
        ops
    })
}

/// What the test knows about its packets: for each cookie, the flow and the earliest departure
/// time.
#[derive(Debug, Default)]
struct Made {
    flow: Vec<u64>,
    not_before: Vec<u64>,
}

impl Made {
    fn packets(&mut self, count: u64, flow: u64, now: Instant, wait_ns: u64) -> PacketList {
        (0..count)
            .map(|_| {
                let mut pkt = packet(self.flow.len() as u64, flow, now);
                pkt.txtime_ns = if wait_ns == 0 { 0 } else { now.after(wait_ns).0 };
                self.flow.push(flow);
                self.not_before.push(pkt.txtime_ns);
                pkt
            })
            .collect()
    }
}

fn step(world: &mut World, qdisc: &str, made: &mut Made, op: &Op) {
    match *op {
        Op::Push(count, flow, wait_ns) => {
            let list = made.packets(count, flow, world.now, wait_ns);
            match world.port.xmit(list, world.now, &world.waker) {
                Ok(_) => world.pushed += count,
                Err(full) => assert_eq!(u64::from(full.0.len()), count),
            }
        }
        Op::Lend(flow, wait_ns) => {
            let mut list = made.packets(1, flow, world.now, wait_ns);
            let pkt = list.pop_front().expect("one");
            match world.port.xmit_lent(pkt, b"elsewhere", world.now, &world.waker) {
                Ok(_) => world.pushed += 1,
                Err((pkt, _)) => {
                    list.push_back(pkt);
                    let pushed = world.port.xmit(list, world.now, &world.waker);
                    world.pushed += u64::from(pushed.is_ok());
                }
            }
        }
        Op::Meanwhile(count) => {
            // This step pushes one packet into the idle port. While the device transmits it, other
            // threads push `count` more. If the device is not called, they push nothing.
            if world.wire().comes.is_none() && !world.port.is_busy() {
                let one = made.packets(1, 9, world.now, 0);
                let list = made.packets(count, 9, world.now, 0);
                world.wire().comes = Some(list);
                let before = world.wire().offered.len();
                world.pushed += 1;
                let _ = world.port.xmit(one, world.now, &world.waker).expect("it is idle");
                if world.wire().offered.len() > before {
                    let refused = std::mem::take(&mut world.wire().refused);
                    world.pushed += count - refused;
                } else {
                    world.wire().comes = None;
                }
            }
        }
        Op::Takes(ns) => world.waker.takes(ns),
        Op::Help => {
            let _ = world.help();
        }
        Op::Visit => {
            let _ = world.visit();
        }
        Op::Pass(ns) => world.pass(ns),
        Op::Back(ns) => world.now = Instant(world.now.0.saturating_sub(ns).max(START.0)),
        Op::Room(room) => world.wire().room = room,
        Op::Calls(calls) => world.wire().calls = calls,
        Op::Fails(fails) => world.wire().fails = fails.then_some(DropReason::Unreachable),
        Op::Replace => {
            let spec: Spec = qdisc.parse().expect("a qdisc");
            let qdisc = spec.build(crate::world::MTU);
            let done = world.port.replace(qdisc, world.now, &world.waker);
            assert!(done.expect("few jobs"), "nobody is inside");
        }
        Op::Close => {
            let _ = world.port.close(world.now, &world.waker).expect("nobody is inside");
        }
    }
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![2 => Just(Mode::Hybrid), 1 => Just(Mode::Inline), 1 => Just(Mode::Dedicated)]
}

/// How far the port may lag behind the clock: not at all, 5 ms, or any time up to 300 us, which is
/// about as long as a few of the steps that pass the time.
fn catch_up() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(CATCH_UP_NS), 1_u64..300_000]
}

/// How long after the instant that is due the port asks for its runner.
fn slack() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1_000_000), 1_u64..300_000]
}

/// How often, at most, the port asks for its runner.
fn rest() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(REST_NS), 1_u64..2_000_000]
}

/// The options that the port of a random run gets, apart from its share.
fn options() -> impl Strategy<Value = PortOptions> {
    (mode(), catch_up(), slack(), rest()).prop_map(|(mode, catch_up_ns, slack_ns, rest_ns)| {
        PortOptions { mode, catch_up_ns, slack_ns, rest_ns, ..PortOptions::default() }
    })
}

fn run(qdisc: &str, cap: u16, mut options: PortOptions, ops: &[Op], in_order: bool) {
    let mode = options.mode;
    options.share = cap
        .is_multiple_of(3)
        .then(|| SharedRate::new(Rate::bytes_per_second(2_000_000), 1).share(0));
    let (mut world, mut made) = (World::with_options(qdisc, cap, options), Made::default());
    world.wire().lends = true;
    for op in ops {
        step(&mut world, qdisc, &mut made, op);
        world.check();
    }
    // From here on, the device takes everything, and only the runner works. All packets must leave.
    (world.wire().room, world.wire().fails) = (None, None);
    world.settle();
    world.check();
    assert_eq!(world.stats().held, 0, "the runner has finished");
    assert!(!world.port.is_busy() || mode == Mode::Dedicated);
    let mut newest = std::collections::HashMap::new();
    for &(cookie, at) in &world.wire().sent {
        let index = usize::try_from(cookie).unwrap();
        assert!(at.0 >= made.not_before[index] || !qdisc.starts_with("fq"), "{cookie} is early");
        if made.not_before[index] == 0 || in_order {
            let key = if in_order { 0 } else { made.flow[index] };
            let before = newest.insert(key, cookie);
            assert!(before.is_none_or(|before| before < cookie), "{before:?} before {cookie}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(sim) { 32 } else { 256 }, // A simulation takes long.
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn pfifo_conserves_and_keeps_order(ops in ops(), cap in 1_u16..600, options in options()) {
        run("pfifo limit 300", cap, options, &ops, true);
    }

    #[test]
    fn fq_conserves_and_keeps_order_in_flows(
        ops in ops(),
        cap in 1_u16..600,
        options in options(),
    ) {
        run("fq limit 300 flow_limit 120", cap, options, &ops, false);
    }

    #[test]
    fn paced_fq_conserves(ops in ops(), cap in 1_u16..600, options in options()) {
        let qdisc = "fq maxrate 10mbit flow_limit 200 quantum 300 initial_quantum 500";
        run(qdisc, cap, options, &ops, false);
    }

    #[test]
    fn tbf_conserves_and_keeps_order(ops in ops(), cap in 1_u16..600, options in options()) {
        run("tbf rate 20mbit burst 2000 limit 20000", cap, options, &ops, true);
    }
}
