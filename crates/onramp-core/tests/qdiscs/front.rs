//! The filters of `ingress` and `clsact`: those that packets meet when they come in, and those in
//! front of the root. The figures of the first two tests are those of Linux 7.2.

use onramp_core::filter::FilterSpec;
use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, QdiscView, Query, whole};
use onramp_core::{Handle, Ingress, Instant, Setup, Tree};
use onramp_queue::{DropReason, Layer, Packet, PacketList};

const MS: u64 = 1_000_000;
const NOW: Instant = Instant(1_000_000_000);
const EGRESS: Handle = Handle::new(0xffff, 0xfff3);

fn setup(lines: &[&str]) -> Setup {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    setup
}

fn tree(lines: &[&str]) -> Tree {
    Tree::of(&setup(lines), 1_514, 0).expect("there is a root")
}

/// An Ethernet frame of `len` bytes with an IPv4 packet of this protocol and source port.
fn frame(protocol: u8, port: u16, len: usize) -> Packet {
    let mut bytes = vec![0; len];
    bytes[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    bytes[16..18].copy_from_slice(&u16::try_from(len - 14).unwrap().to_be_bytes());
    bytes[22..24].copy_from_slice(&[64, protocol]);
    bytes[34..36].copy_from_slice(&port.to_be_bytes());
    let mut packet = Packet::with_payload(&bytes);
    packet.set_layer(Layer::Ethernet);
    packet
}

fn udp(port: u16, len: usize) -> Packet {
    frame(17, port, len)
}

/// Returns the view of the `ingress` or `clsact`: bytes, packets, drops, and drops by reason.
fn front(views: &[QdiscView]) -> (u64, u64, u64, Vec<(DropReason, u64)>) {
    let view = views.iter().find(|view| view.parent == Some(Handle::new(0xffff, 0xfff1)));
    let view = view.expect("it is viewed");
    (view.counters.bytes, view.counters.packets, view.counters.drops, view.drops.clone())
}

/// Returns what each action of these filters has counted, as the listing shows it.
fn sent(filters: &[FilterSpec], setup: &Setup, place: &str) -> Vec<String> {
    let mut out = Out::new(Style { stats: true, ..Style::default() });
    setup.show_counted(&format!("dev e0 {place}"), filters, &mut out).expect("a place");
    let text = out.finish();
    let sent = text.lines().filter_map(|line| line.trim().strip_prefix("Sent "));
    sent.map(|line| line.split(" requeues").next().unwrap_or_default().to_owned()).collect()
}

/// When the packets of the first test left Linux, in units of 10 µs, and their numbers.
const TIMES: [u64; 28] = [
    200, 304, 432, 600, 800, 1_024, 1_272, 1_616, 2_056, 2_592, 3_224, 3_952, 4_776, 5_096, 5_512,
    6_024, 6_632, 7_336, 8_136, 9_032, 10_024, 10_320, 10_712, 11_200, 11_784, 12_464, 13_240,
    14_112,
];
const NUMBERS: [u64; 28] = [
    1, 2, 3, 5, 6, 7, 11, 15, 19, 23, 27, 31, 10, 14, 18, 22, 26, 30, 34, 38, 9, 13, 17, 21, 25,
    29, 33, 37,
];

/// Sends 40 packets of four flows through the tree, in front of a wire of 1 Mbit/s. Returns the
/// times at which they leave, in units of 10 µs, and their numbers.
fn sent_by(tree: &mut Tree) -> (Vec<u64>, Vec<u64>) {
    let (mut left, mut free) = (Vec::new(), 0);
    let mut drain = |tree: &mut Tree, until: u64| {
        while free <= until {
            let Dequeue::Ready(packet) = tree.dequeue(Instant(free)) else { break };
            left.push((free / 10_000, packet.cookie));
            free += u64::from(packet.len) * 8_000;
        }
        free = free.max(until);
    };
    for number in 0..40_u16 {
        let at = MS * (u64::from(number) + 1);
        drain(tree, at);
        let mut packet = udp(10_000 + number % 4, 100 + 30 * usize::from(number));
        packet.cookie = number.into();
        packet.priority = if number % 2 == 0 { 0 } else { 6 };
        let _ = tree.enqueue(Instant(at), packet);
    }
    drain(tree, 1_000 * MS);
    left.into_iter().unzip()
}

/// 40 packets of four flows meet the filters of a `clsact`, and then a `prio` in front of a wire of
/// 1 Mbit/s. The packets leave in the order and at the times at which they left Linux, and all
/// counters are Linux's.
#[test]
fn what_leaves_meets_the_filters_of_clsact_as_in_linux() {
    let lines = [
        "qdisc add dev e0 root handle 1: prio bands 3",
        "qdisc add dev e0 clsact",
        "filter add dev e0 egress protocol ip pref 1 u32 match ip sport 10000 0xffff action drop",
        "filter add dev e0 egress protocol ip pref 2 u32 match ip sport 10001 0xffff \
         action skbedit priority 1:3 action pass",
        "filter add dev e0 egress protocol ip pref 3 u32 match ip sport 10002 0xffff classid 1:1",
        "filter add dev e0 egress protocol ip pref 4 matchall \
         action police rate 1mbit burst 2000 conform-exceed drop/pipe",
    ];
    let mut tree = tree(&lines);
    assert_eq!(sent_by(&mut tree), (TIMES.to_vec(), NUMBERS.to_vec()));

    let views = tree.views();
    assert_eq!(front(&views), (27_400, 40, 12, vec![(DropReason::Filter, 12)]));
    let root = &views[0];
    assert_eq!((root.counters.bytes, root.counters.packets), (18_580, 28));
    assert_eq!((root.counters.drops, &root.drops[..]), (0, &[][..]), "they did not reach it");
    let classes: Vec<_> = root.classes.iter().map(|class| class.counters.bytes).collect();
    assert_eq!(classes, [4_880, 7_000, 6_700]);
    let filters = tree.filters(NOW, EGRESS);
    let setup = tree.setup().clone();
    let counted = [
        "6400 bytes 10 pkt (dropped 10, overlimits 0",
        "6700 bytes 10 pkt (dropped 0, overlimits 0",
        "6700 bytes 10 pkt (dropped 0, overlimits 0",
        "7300 bytes 10 pkt (dropped 2, overlimits 2",
    ];
    assert_eq!(sent(&filters, &setup, "egress"), counted);
    let totals = tree.totals();
    assert_eq!((totals.enqueued_packets, totals.sent_packets), (40, 28));
    assert_eq!(totals.dropped(DropReason::Filter), 12);
    assert_eq!(tree.drops().filter(|pkt| pkt.drop_reason == Some(DropReason::Filter)).count(), 12);
}

/// A packet that comes in counts without its Ethernet header, which counts for the `mtu` of a
/// policer only; and it has come in by the device of the filter.
#[test]
fn what_comes_in_is_as_long_as_in_linux() {
    let setup = setup(&[
        "qdisc add dev e0 clsact",
        "filter add dev e0 ingress protocol ip pref 5 basic match 'meta(pkt_len eq 84)' \
         action pipe action continue",
        "filter add dev e0 ingress protocol ip pref 6 basic match 'meta(pkt_len eq 98)' \
         action drop",
        "filter add dev e0 ingress protocol ip pref 8 flower indev e0 action continue",
        "filter add dev e0 ingress protocol ip pref 9 u32 match u32 0 0 indev e1 action drop",
        "filter add dev e0 ingress protocol ip pref 10 matchall \
         action police mtu 98 conform-exceed drop/continue",
        "filter add dev e0 ingress protocol ip pref 11 matchall \
         action police mtu 97 conform-exceed drop/pipe action continue",
    ]);
    let mut ingress = Ingress::of(&setup);
    for _ in 0..3 {
        let mut ping = frame(1, 0, 98);
        assert!(!ingress.passes(NOW, &mut ping));
        assert_eq!((ping.drop_reason, ping.len), (Some(DropReason::Filter), 98));
    }
    let filters: Vec<_> = ingress.filters().cloned().collect();
    let (all, none) = (
        "252 bytes 3 pkt (dropped 0, overlimits 0",
        "0 bytes 0 pkt (dropped 0, \
        overlimits 0",
    );
    let dropped = "252 bytes 3 pkt (dropped 3, overlimits 3";
    let expected = [all, all, none, all, none, all, dropped, none];
    assert_eq!(sent(&filters, &setup, "ingress"), expected);
    let mut views = Vec::new();
    ingress.add_to(&setup, &mut views);
    assert_eq!(front(&views), (252, 3, 3, vec![(DropReason::Filter, 3)]));
    // An IP packet without a link header, as a TUN receives it, has no header that is left out.
    let mut ip = Packet::with_payload(&frame(1, 0, 98).payload()[14..]);
    ip.set_layer(Layer::Ip);
    assert!(ingress.passes(NOW, &mut ip));
    let mut views = Vec::new();
    ingress.add_to(&setup, &mut views);
    assert_eq!(front(&views).0, 252 + 84);
}

/// Asks the filters of one line, at the ingress and in front of a `pfifo`, about a packet. Returns
/// the packet, or `None` if they drop it; both must agree.
fn asked(filters: &[&str], make: impl Fn() -> Packet) -> Option<Packet> {
    let mut lines =
        vec!["qdisc add dev e0 root pfifo".to_owned(), "qdisc add dev e0 clsact".into()];
    for way in ["ingress", "egress"] {
        let line = |filter: &&str| format!("filter add dev e0 {way} protocol ip {filter}");
        lines.extend(filters.iter().map(line));
    }
    let setup = setup(&lines.iter().map(|line| &**line).collect::<Vec<_>>());
    let mut packet = make();
    let came_in = Ingress::of(&setup).passes(NOW, &mut packet).then_some(packet);
    let mut tree = Tree::of(&setup, 1_514, 0).expect("a root");
    let verdict = tree.enqueue(NOW, make());
    let left = match tree.dequeue(NOW) {
        Dequeue::Ready(packet) => Some(packet),
        _ => None,
    };
    assert_eq!(verdict == Verdict::Dropped, left.is_none());
    let seen = |packet: &Option<Packet>| {
        packet.as_ref().map(|pkt| (pkt.priority, pkt.mark, pkt.chosen_queue()))
    };
    assert_eq!(seen(&came_in), seen(&left), "{filters:?}");
    left
}

#[test]
fn each_action_acts() {
    let packet = || udp(5, 100);
    assert!(asked(&[], packet).is_some(), "without a filter");
    assert!(asked(&["pref 1 u32 match ip sport 6 0xffff action drop"], packet).is_some());
    for last in ["drop", "shot", "police rate 8kbit burst 50 conform-exceed drop/pass"] {
        assert!(asked(&[&format!("pref 1 matchall action {last}")], packet).is_none(), "{last}");
    }
    let passes = ["ok", "pass", "pipe", "continue", "police rate 8mbit burst 9k drop"];
    for first in passes {
        let first = format!("pref 1 matchall action {first}");
        assert!(asked(&[&first], packet).is_some(), "{first}");
        // Only `continue`, and no other of these, asks the next filter.
        let next = asked(&[&first, "pref 2 matchall action drop"], packet);
        assert_eq!(next.is_none(), first.ends_with("continue"), "{first}");
    }
    let loops = asked(&["pref 1 matchall action reclassify"], packet);
    assert!(loops.is_none(), "as in Linux, after so many restarts");
    let chains = ["pref 1 matchall action goto chain 3", "pref 1 chain 3 matchall action drop"];
    assert!(asked(&chains, packet).is_none());
    let edit = "pref 1 matchall action skbedit priority 1:2 mark 5/7 queue_mapping 3";
    let marked = || {
        let mut packet = packet();
        packet.mark = 0xff;
        packet
    };
    let packet = asked(&[edit], marked).expect("it passes");
    assert_eq!((packet.priority, packet.mark, packet.queue()), (0x1_0002, 0xfd, 3));
    // The class that a filter names does not become the priority.
    let packet = asked(&["pref 1 matchall classid 1:2"], marked).expect("it passes");
    assert_eq!((packet.priority, packet.mark), (0, 0xff));
}

/// A policer in virtual time: of packets of 1,000 bytes of IP, 8 Mbit/s let one pass each
/// millisecond, after a burst of three.
#[test]
fn a_policer_at_the_ingress_keeps_its_rate() {
    let setup = setup(&[
        "qdisc add dev e0 ingress",
        "filter add dev e0 ingress matchall action police rate 8mbit burst 3000 mtu 2000 drop",
    ]);
    let mut ingress = Ingress::of(&setup);
    let mut passed = |from_ms: u64, count: u64| {
        let times = (0..count).map(|number| Instant(NOW.0 + from_ms * MS + number * MS / 4));
        times.filter(|at| ingress.passes(*at, &mut udp(5, 1_014))).count()
    };
    assert_eq!(passed(0, 400), 3 + 99);
    assert_eq!(passed(1_000, 400), 3 + 99, "the bucket is full again");
}

/// Filters that a line does not name keep their counters and tokens; a new `ingress` counts anew.
#[test]
fn edits_leave_the_other_filters_alone() {
    let mut setup = setup(&[
        "qdisc add dev e0 ingress",
        "filter add dev e0 ingress pref 5 matchall \
         action police rate 8kbit burst 2100 mtu 2000 conform-exceed drop/pipe action continue",
    ]);
    let mut ingress = Ingress::of(&setup);
    let follow = |setup: &mut Setup, ingress: &mut Ingress, line: &str| {
        let change = setup.change(line).expect(line);
        ingress.follow(setup, &change);
    };
    let passes = |ingress: &mut Ingress| ingress.passes(NOW, &mut udp(5, 1_014));
    let hits = |ingress: &Ingress, setup: &Setup| {
        sent(&ingress.filters().cloned().collect::<Vec<_>>(), setup, "ingress")
    };
    assert!(passes(&mut ingress) && ingress.is_met());
    let line = "filter add dev e0 ingress pref 6 handle 7 fw action drop";
    follow(&mut setup, &mut ingress, line);
    assert!(passes(&mut ingress));
    let mut marked = udp(5, 64);
    marked.mark = 7;
    assert!(!ingress.passes(NOW, &mut marked), "the new filter acts");
    assert!(!passes(&mut ingress), "the tokens are used up");
    assert_eq!(hits(&ingress, &setup)[0], "3050 bytes 4 pkt (dropped 1, overlimits 1");
    // The same description keeps all; another one begins anew.
    ingress.set(&setup);
    assert_eq!(hits(&ingress, &setup)[0], "3050 bytes 4 pkt (dropped 1, overlimits 1");
    follow(&mut setup, &mut ingress, "filter del dev e0 ingress pref 5");
    assert!(passes(&mut ingress));
    assert_eq!(hits(&ingress, &setup), ["50 bytes 1 pkt (dropped 1, overlimits 0"]);
    follow(&mut setup, &mut ingress, "qdisc del dev e0 ingress");
    assert!(!ingress.is_met() && ingress.passes(NOW, &mut marked));
    let mut views = Vec::new();
    ingress.add_to(&setup, &mut views);
    assert!(views.is_empty());
    follow(&mut setup, &mut ingress, "qdisc add dev e0 clsact");
    follow(&mut setup, &mut ingress, line);
    follow(&mut setup, &mut ingress, "filter add dev e0 egress matchall action drop");
    assert!(passes(&mut ingress) && !ingress.passes(NOW, &mut marked));
    ingress.add_to(&setup, &mut views);
    assert_eq!(front(&views), (1_050, 2, 1, vec![(DropReason::Filter, 1)]));
}

/// The filters in front of the root stay when the root changes, and end with their `clsact`.
#[test]
fn the_filters_in_front_outlive_the_root() {
    let mut tree = tree(&["qdisc add dev e0 root pfifo", "qdisc add dev e0 clsact"]);
    let count = |tree: &mut Tree| {
        let _ = tree.enqueue(NOW, udp(5, 100));
        front(&tree.views()).1
    };
    assert_eq!(count(&mut tree), 0, "a packet that meets no filter is not counted");
    tree.apply(NOW, "filter add dev e0 egress chain 3 matchall action drop").expect("a filter");
    assert_eq!(count(&mut tree), 0, "the search begins in chain 0");
    tree.apply(NOW, "filter add dev e0 egress matchall action pass").expect("a filter");
    assert_eq!(count(&mut tree), 1);
    tree.apply(NOW, "qdisc replace dev e0 root handle 7: prio").expect("a root");
    assert_eq!(count(&mut tree), 2);
    // A description with the same filters and another root, and one with other filters.
    let mut next = tree.setup().clone();
    next.apply("qdisc replace dev e0 root handle 8: fq").expect("a root");
    tree.set(NOW, &next).expect("a root");
    assert_eq!(count(&mut tree), 3);
    next.apply("filter add dev e0 egress matchall action pass").expect("a filter");
    tree.set(NOW, &next).expect("a root");
    assert_eq!(count(&mut tree), 1);
    tree.apply(NOW, "qdisc del dev e0 clsact").expect("it is there");
    let _ = tree.enqueue(NOW, udp(5, 100));
    assert_eq!(tree.views().len(), 1);
    assert!(tree.filters(NOW, EGRESS).is_empty());
    tree.apply(NOW, "qdisc add dev e0 ingress").expect("there is none");
    tree.apply(NOW, "filter add dev e0 ingress matchall action drop").expect("a filter");
    assert_eq!(tree.enqueue(NOW, udp(5, 100)), Verdict::Queued, "they are for what comes in");
    assert_eq!(tree.views().len(), 1);
}

/// All ways into a tree lead past the filters, and no packet is lost.
#[test]
fn each_way_into_the_tree_meets_the_filters() {
    let mut tree = tree(&[
        "qdisc add dev e0 root pfifo_fast",
        "qdisc add dev e0 clsact",
        "filter add dev e0 egress protocol ip u32 match ip sport 5 0xffff action drop",
    ]);
    assert_eq!(tree.pass_or_enqueue(NOW, udp(5, 100)).err(), Some(Verdict::Dropped));
    assert!(tree.pass_or_enqueue(NOW, udp(6, 100)).is_ok(), "it bypasses the qdisc");
    assert_eq!(tree.keep_or_enqueue(NOW, udp(5, 100)), Verdict::Dropped);
    assert_eq!(tree.keep_or_enqueue(NOW, udp(6, 100)), Verdict::Queued);
    assert_eq!(tree.pass_or_enqueue(NOW, udp(5, 100)).err(), Some(Verdict::Dropped));
    assert_eq!(tree.pass_or_enqueue(NOW, udp(6, 100)).err(), Some(Verdict::Queued));
    let list: PacketList = (0..10).map(|number| udp(5 + number % 2, 100)).collect();
    assert_eq!(tree.enqueue_list(NOW, list), 5);
    let totals = tree.totals();
    assert_eq!((totals.enqueued_packets, totals.dropped(DropReason::Filter)), (16, 8));
    assert_eq!((totals.sent_packets, tree.backlog().packets), (1, 7));
    assert_eq!((tree.drops().count(), front(&tree.views()).2), (8, 8));
}

/// `tc -s qdisc show` shows what a `clsact` has counted for both ways, over all queues.
#[test]
fn a_listing_shows_the_sums() {
    for root in ["qdisc add dev e0 root handle 1: pfifo", "qdisc add dev e0 root handle 1: mq"] {
        let setup = setup(&[
            root,
            "qdisc add dev e0 clsact",
            "filter add dev e0 ingress matchall action drop",
            "filter add dev e0 egress protocol ip u32 match ip sport 5 0xffff action drop",
        ]);
        let mut ingress = Ingress::of(&setup);
        assert!(!ingress.passes(NOW, &mut udp(5, 114)));
        let mut queues = Vec::new();
        for number in 0..3 {
            let mut tree = Tree::of(&setup, 1_514, 0).expect("a root");
            let _ = tree.enqueue(NOW, udp(5 + number, 100));
            let mut views = tree.views();
            if root.ends_with("mq") {
                // The tree of one queue begins below the `mq`.
                views.retain(|view| view.parent.is_some());
            }
            queues.push(views);
        }
        ingress.add_to(&setup, &mut queues[1]);
        let views = whole(queues);
        let mut out = Out::new(Style { stats: true, ..Style::default() });
        Listed::new(None, &setup, 1_514, &views).qdiscs(Query::default(), &mut out);
        let text = out.finish();
        let shown = text.split("qdisc clsact ffff: parent ffff:fff1 \n").nth(1).expect("listed");
        let sent = " Sent 400 bytes 4 pkt (dropped 2, overlimits 0 requeues 0) ";
        assert_eq!(shown.lines().next(), Some(sent), "{text}");
    }
}
