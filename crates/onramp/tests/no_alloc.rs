//! Limits on memory: a link allocates nothing for a packet and little for a flow, and leaves
//! nothing allocated at the end.
//!
//! The allocator counts the allocations of the whole process. So this test runs without a test
//! harness, whose threads allocate at any time.

use std::alloc::System;
use std::hint::black_box;
use std::net::UdpSocket;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use onramp::Spec;
use onramp::dev::Null;
use onramp::qdisc::{ClassKind, Dequeue, KINDS};
use onramp::{Credits, Flow, Instant, Link, Packet, Sender, Setup, Tree, TreeOf};
use stats_alloc::{INSTRUMENTED_SYSTEM, Stats, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LONG: Duration = Duration::from_secs(50);
const CREDITS: u32 = 64;

/// Returns the number of allocations and reallocations that the process makes while `work` runs.
fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATOR.stats();
    work();
    let change = ALLOCATOR.stats() - before;
    change.allocations + change.reallocations
}

/// Returns the number of bytes that the process has allocated at present.
fn live() -> usize {
    let Stats { bytes_allocated, bytes_deallocated, .. } = ALLOCATOR.stats();
    bytes_allocated - bytes_deallocated
}

/// Waits until at most `bytes` bytes are allocated, because the runner frees the packets that it
/// holds a little later. Returns false if that takes too long.
fn settles_at(bytes: usize) -> bool {
    (0..10_000).any(|_| {
        thread::sleep(Duration::from_micros(500));
        live() <= bytes
    })
}

fn null(qdisc: &str) -> Link {
    let credits = Credits { packets: CREDITS, bytes: 1 << 20 };
    let link = Link::devices([Box::new(Null::default()) as Box<_>]).qdisc(qdisc).credits(credits);
    started(link.build().expect("it is in order"))
}

fn udp(qdisc: &str) -> Link {
    started(Link::udp("127.0.0.1:0").ports(2).qdisc(qdisc).build().expect("it binds"))
}

/// Waits until the runner's thread has allocated what a thread allocates at its start.
fn started(link: Link) -> Link {
    while link.stats().runner_wakeups == 0 {
        thread::sleep(Duration::from_micros(100));
    }
    link
}

/// Makes a sender allocate all that it will ever need: a packet for each credit, the waker of its
/// thread, and its flow in the qdisc. (Many packets are sent, because a single packet may bypass
/// the qdisc, which then makes no flow.)
fn warm_up(sender: &mut Sender, flow: &Flow) {
    let packets: Vec<_> = std::iter::from_fn(|| sender.packet(flow, &[0; 120]).ok()).collect();
    assert!(packets.len() >= 16, "a fair share of the credits");
    let room = sender.wait_room_timeout(flow, 120, Duration::from_micros(1));
    assert!(!room, "they are in our hands");
    drop(packets);
    sender.send_batch(flow, &[[0; 120]; 1_000]).expect("the link is open");
    assert!(sender.flush(LONG));
}

fn a_send_allocates_nothing(link: &Link, dest: Option<std::net::SocketAddr>) {
    let mut sender = link.sender();
    let flow = sender.flow(dest);
    sender.on_complete(|completion| _ = black_box(completion));
    warm_up(&mut sender, &flow);
    let batch = [[1; 120]; 50];
    let sends = |sender: &mut Sender| {
        for _ in 0..20_000 {
            sender.send(&flow, &[0; 120]).expect("the link is open");
        }
    };
    let batches = |sender: &mut Sender| {
        for _ in 0..400 {
            sender.send_batch(&flow, &batch).expect("the link is open");
        }
    };
    let changed = |sender: &mut Sender| {
        for priority in 0..5_000 {
            if let Ok(mut packet) = sender.packet(&flow, &[0; 120]) {
                packet.priority = priority % 16;
                sender.submit(&flow, packet).expect("the intake has room");
            } else {
                sender.wait_room(&flow, 120);
            }
        }
    };
    assert_eq!(allocations(|| sends(&mut sender)), 0, "20,000 sends");
    assert_eq!(allocations(|| batches(&mut sender)), 0, "400 batches");
    assert_eq!(allocations(|| changed(&mut sender)), 0, "5,000 packets changed on their way");
    assert!(sender.flush(LONG));
}

/// Checks that threads that share a link, and the link's runner, allocate nothing for a packet. In
/// the first phases, memory for flows that wait at the same time may still grow; an allocation for
/// each packet would show in every phase.
fn many_threads_allocate_nothing(qdisc: &str, dest: Option<std::net::SocketAddr>, link: &Link) {
    const THREADS: usize = 16;
    const PHASES: usize = 8;
    let phase = Barrier::new(THREADS + 1);
    let senders: Vec<_> = (0..THREADS).map(|_| link.sender()).collect();
    let mut counts = Vec::with_capacity(PHASES);
    thread::scope(|scope| {
        for mut sender in senders {
            let phase = &phase;
            scope.spawn(move || {
                let flow = sender.flow(dest);
                warm_up(&mut sender, &flow);
                phase.wait();
                for _ in 0..PHASES {
                    phase.wait();
                    for _ in 0..150 {
                        sender.send(&flow, &[0; 120]).expect("the link is open");
                        sender.send_batch(&flow, &[[0; 120]; 3]).expect("the link is open");
                    }
                    assert!(sender.flush(LONG));
                    phase.wait();
                }
            });
        }
        phase.wait();
        for _ in 0..PHASES {
            counts.push(allocations(|| {
                phase.wait();
                phase.wait();
            }));
        }
    });
    // The last phase is not checked, because it ends together with its threads, which may then free
    // and allocate.
    assert!(counts[..PHASES - 1].contains(&0), "{THREADS} threads, {qdisc}: {counts:?}");
    assert!(link.stats().sent >= (600 * PHASES * THREADS) as u64 / 4);
}

/// A tree whose packets carry values allocates nothing, once it has held as many as it ever will.
fn values_allocate_nothing() {
    let spec: Spec = "pfifo limit 32".parse().expect("a qdisc");
    let mut tree = TreeOf::new(Tree::new(&spec, 1_514));
    // Every second packet is dropped: a value leaves with each packet, whatever becomes of it.
    let mut packets: Vec<_> = (0..64_u32).map(|n| (Packet::new(100 + n), n)).collect();
    let mut round = || {
        for (packet, value) in packets.drain(..) {
            let _ = tree.enqueue(Instant(1), packet, value);
        }
        packets.extend(tree.drops());
        assert_eq!(packets.len(), 32);
        while let Dequeue::Ready((packet, value)) = tree.dequeue(Instant(1)) {
            packets.push((packet, value));
        }
        assert!(packets.iter().all(|(packet, value)| packet.len == 100 + value));
    };
    round();
    assert_eq!(allocations(|| (0..100).for_each(|_| round())), 0);
}

fn idle_flows_cost_little() {
    const FLOWS: usize = 10_000;
    // Without pacing, a packet that finds the fq empty bypasses the flows, so no flow is made. An
    // fq that paces also has a calendar, which takes 18 KB.
    for (qdisc, flows, fixed) in [("fq maxrate 1gbit", FLOWS as u64, 22_000), ("fq", 0, 5_000)] {
        let spec: Spec = qdisc.parse().expect("a qdisc");
        let before = live();
        let mut tree = Tree::new(&spec, 1_514);
        for flow in 0..FLOWS as u64 {
            let mut packet = Packet::new(162);
            packet.flow = flow;
            let _ = tree.enqueue(Instant(1), packet);
            assert!(matches!(tree.dequeue(Instant(1)), Dequeue::Ready(_)));
        }
        let bytes = live() - before;
        tree.stats(&mut |name, value| assert!(name != "inactive" || value == flows));
        println!("{FLOWS} idle flows, {qdisc}: {bytes} bytes, {} a flow", bytes / FLOWS);
        assert!(bytes <= fixed + 131 * usize::try_from(flows).expect("few"), "{bytes} bytes");
    }

    let link = null("fq maxrate 1gbit");
    let mut sender = link.sender();
    let flows: Vec<_> = (0..FLOWS).map(|_| sender.flow(None)).collect();
    warm_up(&mut sender, &flows[0]);
    let before = live();
    for flow in &flows {
        sender.send(flow, &[0; 120]).expect("the link is open");
    }
    assert!(sender.flush(LONG));
    let bytes = live() - before;
    let handle = size_of::<Flow>();
    println!("the same through a link: {bytes} bytes, and {handle} for each handle of a flow");
    assert!(bytes <= 1_340_000, "{bytes} bytes");
    assert!(handle <= 96);
}

fn idle_senders_cost_little() {
    const SENDERS: usize = 1_000;
    let link = null("fq");
    let before = live();
    let senders: Vec<_> = (0..SENDERS)
        .map(|_| {
            let mut sender = link.sender();
            let flow = sender.flow(None);
            sender.send(&flow, &[0; 120]).expect("the link is open");
            assert!(sender.flush(LONG));
            sender
        })
        .collect();
    let each = (live() - before) / SENDERS;
    println!("{SENDERS} idle senders: {each} bytes each");
    assert!(each <= 2_048, "{each} bytes");
    drop(senders);
}

/// Greatest memory that an unused port may cost, together with its `pfifo_fast`, bytes.
const PORT_BYTES: usize = 4_096;

fn idle_ports_cost_little() {
    const PORTS: usize = 10_000;
    let mut setup = Setup::default();
    setup.apply("qdisc add dev x root handle 1: mq").expect("a root");
    let devices: Vec<_> = (0..PORTS).map(|_| Box::new(Null::default()) as Box<_>).collect();
    let before = live();
    let link = Link::devices(devices).tree(&setup).build().expect("a link");
    let each = (live() - before) / PORTS;
    println!("{PORTS} idle ports: {each} bytes each");
    assert!(each <= PORT_BYTES, "{each} bytes");
    assert_eq!(link.tree_views().len(), PORTS + 1);
    assert!((live() - before) / PORTS <= each + 160, "to look at them leaves little");
}

fn senders_that_go_leave_nothing() {
    let link = null("fq");
    // All senders use one flow, because fq keeps flows for a while after their last packet.
    let flow = link.sender().flow(None);
    warm_up(&mut link.sender(), &flow);
    let round = || {
        for count in 0..200 {
            let mut sender = link.sender();
            for size in [0, 100, 1_000, 10_000].iter().cycle().take(count % 9) {
                sender.send(&flow, &vec![0; *size]).expect("the link is open");
            }
            if count % 3 == 0 {
                sender.cork();
                sender.send(&flow, b"under the cork").expect("the link is open");
            }
        }
        assert!(link.flush(LONG));
    };
    round();
    let before = live();
    (0..5).for_each(|_| round());
    assert!(settles_at(before), "{} bytes more", live().wrapping_sub(before));
}

fn links_that_go_leave_nothing() {
    let round = || {
        for qdisc in ["fq", "fq maxrate 1kbit", "pfifo limit 3"] {
            let link = null(qdisc);
            let mut sender = link.sender();
            let flow = sender.flow(None);
            for _ in 0..60 {
                let _ = sender.try_send(&flow, &[0; 1_000]);
            }
        }
    };
    round();
    let before = live();
    (0..5).for_each(|_| round());
    assert!(settles_at(before), "{} bytes more", live().wrapping_sub(before));
}

/// Greatest memory that a class may cost, together with its own `pfifo`, bytes.
/// `docs/performance.md` states this limit.
const CLASS_BYTES: usize = 1_150;

/// Greatest memory that a flow with one packet may cost, not counting the packet, bytes.
const FLOW_BYTES: usize = 150;

fn classes_and_flows_cost_little() {
    const COUNT: usize = 4_000;
    let build = |lines: &[String]| {
        let mut setup = Setup::default();
        lines.iter().for_each(|line| setup.apply(line).map(|_| ()).expect("a line of tc"));
        let before = live();
        let tree = Tree::of(&setup, 1_514, 1).expect("a root");
        (live() - before, tree)
    };
    for kind in KINDS {
        let root = format!("qdisc add dev x root handle 1: {}", kind.id);
        if let ClassKind::Added { .. } = kind.classes {
            let rate = match kind.id {
                "htb" => "rate 1gbit",
                "hfsc" => "ls rate 1gbit",
                _ => "",
            };
            let class =
                |minor| format!("class add dev x parent 1: classid 1:{minor:x} {} {rate}", kind.id);
            let (empty, _) = build(std::slice::from_ref(&root));
            let lines: Vec<_> = [root].into_iter().chain((1..=COUNT).map(class)).collect();
            let each = (build(&lines).0 - empty) / COUNT;
            println!("{}: {each} bytes a class", kind.id);
            assert!(each <= CLASS_BYTES, "{}: {each} bytes", kind.id);
        } else if matches!(kind.id, "fq" | "fq_codel" | "fq_pie" | "sfq" | "cake") {
            let room = match kind.id {
                "sfq" => "divisor 65536 flows 65408 limit 100000",
                "cake" => "unlimited memlimit 1gb",
                "fq" => "limit 100000",
                _ => "limit 100000 flows 65536",
            };
            let (own, mut tree) = build(&[format!("{root} {room}")]);
            let before = live();
            drop(Packet::new(100));
            let packets: Vec<_> = (0..COUNT).map(|_| Packet::new(100)).collect();
            let bytes = live() - before;
            for (pkt, flow) in packets.into_iter().zip(1..) {
                let mut pkt = pkt;
                pkt.flow = flow;
                let _ = tree.enqueue(Instant(1), pkt);
            }
            let each = (live() - before).saturating_sub(bytes) / COUNT;
            println!("{}: {own} bytes, and {each} a flow", kind.id);
            assert!(each <= FLOW_BYTES, "{}: {each} bytes", kind.id);
        }
    }
}

fn main() {
    assert_eq!(allocations(|| drop(black_box(vec![0; 9]))), 1, "the counter counts");
    let sink = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    let addr = sink.local_addr().ok();
    a_send_allocates_nothing(&null("fq"), None);
    a_send_allocates_nothing(&null("pfifo limit 50"), None);
    a_send_allocates_nothing(&null("fq maxrate 1gbit"), None);
    a_send_allocates_nothing(&udp("fq"), addr);
    for qdisc in ["fq", "fq maxrate 500mbit", "pfifo limit 50"] {
        many_threads_allocate_nothing(qdisc, None, &null(qdisc));
        many_threads_allocate_nothing(qdisc, addr, &udp(qdisc));
    }
    values_allocate_nothing();
    idle_flows_cost_little();
    classes_and_flows_cost_little();
    idle_senders_cost_little();
    idle_ports_cost_little();
    senders_that_go_leave_nothing();
    links_that_go_leave_nothing();
    println!("test result: ok. 1 passed; 0 failed");
}
