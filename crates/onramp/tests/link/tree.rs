//! Links with a tree of qdiscs, classes and filters in front of each port.

use onramp::{DropReason, Link, PortError, Setup};
use onramp_core::show::{Out, Style};

use super::common::{Gate, LONG, balanced, gated, in_time, until};

fn setup(lines: &[&str]) -> Setup {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    setup
}

/// With the first tree, all packets for the second class are dropped; with the second tree, all
/// packets for the first class.
#[test]
fn packets_find_their_class_in_every_port_and_in_the_next_tree() {
    in_time(|| {
        let gate = Gate::new(true);
        let root = "qdisc add dev any root handle 1: prio";
        let first = setup(&[root, "qdisc add dev any parent 1:2 pfifo limit 0"]);
        let second = setup(&[root, "qdisc add dev any parent 1:1 pfifo limit 0"]);
        let link = gated(&gate, "pfifo").tree(&first).build().unwrap();
        let mut sender = link.sender();
        let flows = [0x1_0001, 0x1_0002].map(|class| sender.flow(None).with_priority(class));
        let mut submit = |cookies: std::ops::Range<u64>| {
            for cookie in cookies {
                let flow = &flows[usize::from(cookie % 2 == 1)];
                let mut packet = sender.packet(flow, b"x").unwrap();
                packet.cookie = cookie;
                sender.submit(flow, packet).unwrap();
            }
            assert!(sender.flush(LONG));
        };
        submit(0..20);
        link.set_tree(&second).unwrap();
        submit(20..40);
        let expected = (0..20).filter(|n| n % 2 == 0).chain((20..40).filter(|n| n % 2 == 1));
        assert_eq!(gate.taken(), expected.collect::<Vec<u64>>());
        let stats = link.stats();
        assert_eq!(stats.dropped[&DropReason::Overlimit], 20);
        balanced(&stats);
    });
}

/// Returns the listing of the filters at a place (a parent) of a link's tree. Their counts are the
/// sums over all ports.
fn counted(link: &Link, place: &str) -> String {
    let setup = link.setup();
    let (at, _) = setup.filter_query(place).expect("a place");
    let mut out = Out::new(Style { stats: true, ..Style::default() });
    setup.show_counted(place, &link.filters(at), &mut out).expect("they are listed");
    out.finish()
}

/// A filter counts packets at each port; a listing shows the sums of these counts.
#[test]
fn filters_show_what_they_have_counted() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut lines = vec!["qdisc replace root handle 1: prio"];
        lines.push("filter add parent 1: matchall action gact pass");
        for line in lines {
            link.change(line).expect(line);
        }
        let text = counted(&link, "parent 1:");
        assert!(text.contains("(rule hit 0)"), "{text}");
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for _ in 0..7 {
            let packet = sender.packet(&flow, b"four").unwrap();
            sender.submit(&flow, packet).unwrap();
        }
        assert!(sender.flush(LONG));
        let text = counted(&link, "parent 1:");
        assert!(text.contains("(rule hit 7)"), "{text}");
        assert!(
            text.contains("Sent 322 bytes 7 pkt (dropped 0, overlimits 0 requeues 0)"),
            "{text}"
        );
    });
}

/// Below an `mq`, a filter belongs to one port and counts the packets of that port.
#[test]
fn filters_below_mq_count_at_their_port() {
    in_time(|| {
        let gate = Gate::new(true);
        let tree = setup(&[
            "qdisc add dev link root handle 1: mq",
            "qdisc add dev link parent 1:1 handle 2: prio",
            "filter add dev link parent 2: matchall classid 2:1",
        ]);
        let link = gated(&gate, "pfifo").tree(&tree).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        let packet = sender.packet(&flow, b"four").unwrap();
        sender.submit(&flow, packet).unwrap();
        assert!(sender.flush(LONG));
        let text = counted(&link, "parent 2:");
        assert!(text.contains("(rule hit 1)"), "{text}");
    });
}

#[test]
fn a_tree_without_a_root_is_refused() {
    let none = Setup::default();
    let error = Link::udp("127.0.0.1:0").tree(&none).build().expect_err("no root");
    assert!(error.to_string().contains("the tree has no root; add one"), "{error}");
    let link = Link::udp("127.0.0.1:0").ports(1).build().unwrap();
    assert!(matches!(link.set_tree(&none), Err(PortError::Config(_))));
}

/// The first class of an `mq` belongs to the first port. This link has only one port, so a qdisc
/// below the second class gets no packets.
#[test]
fn a_class_of_mq_is_a_port() {
    in_time(|| {
        for (class, dropped) in [("1:1", 20), ("1:2", 0)] {
            let gate = Gate::new(true);
            let root = "qdisc add dev any root handle 1: mq";
            let below = format!("qdisc add dev any parent {class} blackhole");
            let link = gated(&gate, "pfifo").tree(&setup(&[root, &below])).build().unwrap();
            let mut sender = link.sender();
            let flow = sender.flow(None);
            for _ in 0..20 {
                let packet = sender.packet(&flow, b"x").unwrap();
                sender.submit(&flow, packet).unwrap();
            }
            assert!(sender.flush(LONG));
            let stats = link.stats();
            let counted = stats.dropped.get(&DropReason::Blackhole).copied().unwrap_or(0);
            assert_eq!(counted, dropped, "{class}");
            balanced(&stats);
        }
    });
}

#[test]
fn mqprio_is_refused() {
    let mqprio = "mqprio num_tc 1 map 0 queues 1@0 hw 0";
    let error = Link::udp("127.0.0.1:0").qdisc(mqprio).build().expect_err("it chooses itself");
    assert!(error.to_string().contains("the transmit queues of a link are its ports"), "{error}");
    let link = Link::udp("127.0.0.1:0").ports(1).build().unwrap();
    assert!(matches!(link.set_qdisc(mqprio), Err(PortError::Config(_))));
}

/// Duplicates that `netem` makes count as sent, but not as submitted.
#[test]
fn duplicates_of_netem_are_counted() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "netem duplicate 100%").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        (0..50).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        assert!(sender.flush(LONG));
        until("the duplicates have left", || gate.taken().len() == 100);
        let stats = link.stats();
        assert_eq!((stats.submitted, stats.made, stats.sent), (50, 50, 100), "{stats:?}");
        balanced(&stats);
    });
}
