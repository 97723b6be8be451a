//! `mq` and `mqprio`: a packet's transmit queue is selected by the sender's choice, by the packet's
//! flow or by its traffic class, and the queues are served in turn.

use std::collections::{BTreeMap, BTreeSet};

use onramp_core::Spec;
use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const MTU: u32 = 1514;
const NOW: Instant = Instant(5_000_000_000);

fn setup(lines: &[&str]) -> Setup {
    let mut setup = Setup::default();
    for line in lines {
        setup.apply(line).unwrap_or_else(|error| panic!("`{line}`: {error}"));
    }
    setup
}

fn tree(lines: &[&str]) -> Tree {
    Tree::of(&setup(lines), MTU, 1).expect("there is a root")
}

fn refused(lines: &[&str], line: &str) -> String {
    setup(lines).apply(line).expect_err(line).to_string()
}

fn packet(flow: u64, priority: u32, queue: Option<u16>) -> Packet {
    let mut pkt = Packet::new(100);
    (pkt.flow, pkt.cookie, pkt.priority) = (flow, flow, priority);
    if let Some(queue) = queue {
        pkt.set_queue(queue);
    }
    pkt
}

/// Returns the number of packets in each of the first `queues` transmit queues.
fn held(tree: &mut Tree, queues: u16) -> Vec<u32> {
    let classes = tree.root().classes().expect("it has classes");
    (1..=queues).map(|n| classes.child(n).map_or(0, |child| child.held().packets)).collect()
}

fn cookies(tree: &mut Tree) -> Vec<u64> {
    let mut cookies = Vec::new();
    while let Dequeue::Ready(pkt) = tree.dequeue(NOW) {
        cookies.push(pkt.cookie);
    }
    cookies
}

#[test]
fn chosen_queues_send_in_turn() {
    let mut tree = tree(&["qdisc add dev e root handle 1: mq queues 3"]);
    for (flow, queue) in [(10, 0), (11, 0), (12, 0), (20, 1), (30, 2), (31, 2)] {
        let _ = tree.enqueue(NOW, packet(flow, 0, Some(queue)));
    }
    assert_eq!(held(&mut tree, 3), [3, 1, 2]);
    // Before any packet was sent, the first queue counts as the one served last. So the second
    // queue is served first.
    assert_eq!(cookies(&mut tree), [20, 30, 10, 31, 11, 12]);
}

#[test]
fn flows_keep_their_queue_and_all_queues_have_some() {
    let mut tree = tree(&["qdisc add dev e root handle 1: mq queues 8"]);
    let mut queues: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for round in 0..3 {
        for flow in 0..200 {
            // If the packet asks for a queue that does not exist, the flow selects the queue.
            let chosen = (round == 2).then_some(8);
            let before = held(&mut tree, 8);
            let _ = tree.enqueue(NOW, packet(flow, 0, chosen));
            let after = held(&mut tree, 8);
            let queue = (0..8).find(|queue| before[*queue] != after[*queue]).expect("it is held");
            queues.entry(flow).or_default().insert(queue);
        }
    }
    assert!(queues.values().all(|queues| queues.len() == 1));
    let used: BTreeSet<usize> = queues.into_values().flatten().collect();
    assert_eq!(used.len(), 8);
}

/// Without the option `queues`, `mq` has as many queues as the number of the highest class that has
/// a qdisc.
#[test]
fn queues_come_with_their_qdiscs() {
    let mut tree = tree(&[
        "qdisc add dev e root handle 1: mq",
        "qdisc add dev e parent 1:2 handle 20: pfifo limit 2",
        "qdisc add dev e parent 1:4 handle 40: blackhole",
    ]);
    for queue in 0..4 {
        for flow in 0..3 {
            let _ = tree.enqueue(NOW, packet(flow, 0, Some(queue)));
        }
    }
    assert_eq!(held(&mut tree, 5), [3, 2, 3, 0, 0]);
    assert_eq!(tree.totals().dropped_packets(), 4);
    // If a qdisc is added later to a class with a higher number, `mq` gets more queues. The packets
    // that `mq` holds stay.
    tree.apply(NOW, "qdisc add dev e parent 1:5 handle 50: pfifo").expect("there may be more");
    let _ = tree.enqueue(NOW, packet(9, 0, Some(4)));
    assert_eq!(held(&mut tree, 5), [3, 2, 3, 0, 1]);
    assert_eq!(cookies(&mut tree).len(), 9);
}

/// As in Linux, a packet's priority selects a traffic class, and the packet goes to one of that
/// class's queues.
#[test]
fn priorities_have_queues_of_their_own() {
    let line = "qdisc add dev e root handle 1: mqprio num_tc 3 map 0 0 1 1 2 0 1 0 0 2 2 \
        queues 1@0 1@1 2@2 hw 0";
    let mut tree = tree(&[line]);
    for number in 0..160 {
        let _ =
            tree.enqueue(NOW, packet(number % 7, u32::try_from(number % 16).expect("few"), None));
    }
    let held = held(&mut tree, 4);
    assert_eq!((held[0], held[1], held[2] + held[3]), (100, 30, 30));
    assert!(held[2] > 0 && held[3] > 0);
    // A packet that asks for a queue of another traffic class gets a queue of its own class.
    for (priority, queue, expected) in [(4, 2, 2), (4, 3, 3), (4, 0, 2), (2, 3, 1)] {
        let mut tree = self::tree(&[line]);
        let _ = tree.enqueue(NOW, packet(0, priority, Some(queue)));
        assert_eq!(self::held(&mut tree, 4)[expected], 1, "{priority}, {queue}");
    }
}

#[test]
fn they_stand_at_the_root_and_ask_no_filters() {
    let mq = "qdisc add dev e root handle 1: mq queues 2";
    let prio = "qdisc add dev e parent 1:1 handle 2: prio";
    for line in [
        "qdisc add dev e parent 2:1 handle 3: mq",
        "qdisc add dev e parent 2:1 mqprio num_tc 1 map 0 queues 1@0 hw 0",
    ] {
        assert!(refused(&[mq, prio], line).contains("can only be the root"), "{line}");
    }
    let filter = "filter add dev e parent 1: protocol ip prio 1 matchall classid 1:2";
    assert!(refused(&[mq], filter).contains("mq does not use filters"));
    let below = "qdisc add dev e parent 1:3 pfifo";
    assert!(refused(&[mq], below).contains("its classes are 1:1 to 1:2"));
    let class = "class add dev e parent 1: classid 1:9 mq";
    assert!(refused(&[mq], class).contains("classes can be added only to qdiscs"));
}

#[test]
fn what_cannot_be_is_refused() {
    for (options, why) in [
        ("num_tc 2 map 0 3 queues 2@0 2@2 hw 0", "there is no class 3: the classes are 0 to 1"),
        ("num_tc 2 map 0 1 queues 3@0 2@2 hw 0", "class 0: 3@0 overlap with class 1: 2@2"),
        ("num_tc 2 map 0 1 queues 0@0 1@2 hw 0", "no queues for class 0"),
        ("num_tc 3 map 0 1 2 queues 1@0 1@1 hw 0", "no queues for class 2"),
        ("num_tc 1 map 0 queues 1@0 1@1 hw 0", "there are 1 classes"),
        ("num_tc 1 map 0 queues 4000@100 hw 0", "exceed the limit of 4096"),
        ("num_tc 17 queues 1@0 hw 0", "1 to 16"),
        ("num_tc 1 map 0 hw 0", "no queues for class 0"),
        ("num_tc 1 map 0 queues 1 hw 0", "COUNT@FIRST"),
        ("num_tc 1 map 0 queues 1@0", "use `hw 0`"),
        ("num_tc 1 map 0 queues 1@0 hw 1", "use `hw 0`"),
        ("num_tc 1 map 0 queues 1@0 hw 0 mode channel", "mqprio takes num_tc, map, queues, hw"),
    ] {
        let error = format!("mqprio {options}").parse::<Spec>().expect_err(options).to_string();
        assert!(error.contains(why), "{options}: {error}");
    }
    // The queue ranges of `mqprio` may come in any order and may leave gaps.
    for options in ["num_tc 2 map 0 1 queues 2@2 2@0 hw 0", "num_tc 2 map 0 1 queues 1@0 1@2 hw 0"]
    {
        assert!(format!("mqprio {options}").parse::<Spec>().is_ok(), "{options}");
    }
}

/// If the transmit queues have a port each, each port gets the qdisc that is attached to the port's
/// class of `mq`.
#[test]
fn a_port_is_a_queue() {
    let tree = setup(&[
        "qdisc add dev e root handle 1: mq",
        "qdisc add dev e parent 1:2 handle 20: pfifo limit 2",
    ]);
    let holds = |queue: usize| {
        let mut port = tree.build_port(queue, MTU, 0).expect("there is a root");
        let mut drops = onramp_queue::PacketList::new();
        let mut cx = onramp_core::qdisc::Cx::new(NOW, &mut drops);
        for flow in 0..5 {
            let _ = port.enqueue(packet(flow, 0, None), &mut cx);
        }
        assert!(port.classes().is_none(), "no mq is left");
        port.backlog().packets
    };
    assert_eq!([holds(0), holds(1), holds(2), holds(70_000)], [5, 2, 5, 5]);
    assert!(tree.for_ports().is_ok());
    let mqprio = setup(&["qdisc add dev e root mqprio num_tc 1 map 0 queues 1@0 hw 0"]);
    let error = mqprio.for_ports().expect_err("it chooses itself").to_string();
    assert!(error.contains("use mq"), "{error}");
    // If the root is not `mq`, each port gets a copy of the whole tree.
    let prio = setup(&["qdisc add dev e root prio"]);
    assert!(prio.build_port(3, MTU, 0).expect("there is a root").classes().is_some());
}
