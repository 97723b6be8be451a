//! Filters of a whole tree: their listed lines can be read again, counters of several queues are
//! summed, and a class that a filter refers to cannot be removed.

use onramp_core::dissect::Dissected;
use onramp_core::filter::reference::{ACTIONS, COMMON, FILTERS};
use onramp_core::filter::{FilterSpec, Query, show_filters};
use onramp_core::show::{Out, Style};
use onramp_core::{Handle, Instant, Setup, Tree};
use onramp_queue::{Layer, Packet};

const NOW: Instant = Instant(1_000_000_000);
const ROOT: Handle = Handle::new(1, 0);
const STATS: Style = Style { stats: true, details: false, json: false, pretty: false, iec: false };

fn setup(lines: &[&str]) -> Setup {
    let mut setup = Setup::default();
    for line in lines {
        setup.apply(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    setup
}

fn shown(setup: &Setup, query: &str) -> String {
    let mut out = Out::new(Style::default());
    setup.show_filters(query, &mut out).expect(query);
    out.finish()
}

/// When the lines that describe a tree are read again, they build the same tree.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn lines_are_read_again() {
    let mut first = setup(&["qdisc add dev e0 root handle 1: prio"]);
    for words in [
        "prio 20 u32 match u32 0 0 flowid 1:1",
        "prio 21 u32",
        "prio 22 handle 5: u32 divisor 4",
        "prio 22 u32 ht 5:3: match u32 7 7 flowid 1:1",
        "prio 22 u32 match u32 0 0 link 5: hashkey mask 3 at 0",
        "prio 22 handle ::9 u32 match u32 1 1 flowid 1:1",
        "prio 23 basic classid 1:1",
        "prio 23 basic classid 1:2",
        "prio 23 basic classid 1:3",
        "prio 24 bpf bytecode '1,6 0 0 1'",
        "prio 24 bpf bytecode '1,6 0 0 2'",
        "prio 25 handle 1 fw classid 1:1",
        "prio 25 handle 0x100 fw classid 1:2",
        "prio 25 handle 2 fw classid 1:3",
        "prio 26 protocol ip flower ip_proto udp src_port 5 classid 1:1",
        "prio 26 protocol ip flower ip_proto udp src_port 6 classid 1:3",
        "prio 26 protocol ip flower ip_proto udp classid 1:2",
        "prio 27 handle 7 flow map key mark",
        "prio 27 handle 3 flow map key src",
        "protocol ip prio 1 u32 match ip dport 53 0xffff match mark 5 0xf flowid 1:1 action ok",
        "protocol ip prio 2 u32 match u32 1 0xff at nexthdr+4 police mtu 500 drop",
        "prio 3 chain 7 matchall classid 1:1 action pipe random determ drop 10 action skbedit mark \
         5/7 priority 1:2 queue_mapping 3 inheritdsfield",
        "prio 4 handle 0x10/0xff fw classid 1:3 action police rate 8mbit burst 3000 peakrate \
         16mbit mtu 2000 overhead 4 linklayer atm conform-exceed drop/pipe",
        "prio 5 fw",
        "prio 6 protocol ipv6 basic match '(cmp(u8 at 9 eq 17) or not nbyte(ab at 0)) and \
         meta(vlan gt 3)' classid 1:3",
        "prio 7 protocol 802.1q flower vlan_id 5 vlan_ethtype ip ip_proto tcp dst_port 5-9 src_mac \
         2:0:0:0:0:1/24 classid 1:3",
        "prio 8 handle 9 flow hash keys src,dst divisor 16 perturb 10 baseclass 1:2",
        "prio 9 bpf bytecode '1,6 0 0 1' da classid 1:2",
        "prio 10 protocol 0x1234 basic classid 1:2",
    ] {
        let line = format!("filter add dev e0 parent 1: {words}");
        first.apply(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    let lines = first.lines();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let second = setup(&lines);
    assert_eq!(second.lines(), lines);
    assert_eq!(first.changes_to(&second), Some(Vec::new()));
    // Compare the listings without the numbers of hash tables and actions, because the second tree
    // assigns these numbers in another order.
    let alike = |setup: &Setup| {
        let text = shown(setup, "dev e0 parent 1:");
        let lines = text.lines().map(|line| {
            let words = line.split(' ').filter(|word| !word.starts_with("0x"));
            let plain =
                |word: &str| if word.starts_with("80") { "80N".into() } else { word.to_owned() };
            words.map(plain).collect::<Vec<_>>().join(" ")
        });
        lines.filter(|line| !line.contains(" index ")).collect::<Vec<_>>()
    };
    assert_eq!(alike(&second), alike(&first));
    // If the lines of two trees differ in a mask, a handle or a hash table, the trees are not
    // equal.
    for (from, to) in [
        ("handle 0x10/0xff fw", "handle 0x10/0xf fw"),
        ("handle 5: u32", "handle 6: u32"),
        ("handle 0x7 flow", "handle 0x8 flow"),
    ] {
        assert!(lines.iter().any(|line| line.contains(from)), "{from}: {lines:#?}");
        let other: Vec<String> = lines
            .iter()
            .map(|line| line.replace(from, to))
            .map(|line| {
                if from.contains("5:") {
                    line.replace(" ht 5:", " ht 6:").replace("link 5:", "link 6:")
                } else {
                    line
                }
            })
            .collect();
        let other = setup(&other.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(first.changes_to(&other), None, "{from}");
    }
}

/// A class can be removed once no filter refers to it, however that filter was removed.
#[test]
fn classes_stay_while_filters_need_them() {
    let tree = || {
        setup(&[
            "qdisc add dev e0 root handle 1: htb default 1",
            "class add dev e0 parent 1: classid 1:1 htb rate 1mbit",
            "class add dev e0 parent 1: classid 1:5 htb rate 1mbit",
        ])
    };
    let class = "class del dev e0 classid 1:5";
    let busy = |setup: &mut Setup| {
        let error = setup.apply(class).expect_err("filters need it");
        assert_eq!(error.why, "filters refer to the class");
        assert_eq!(error.fault.kernel_text().as_deref(), Some("Error: HTB class in use."));
    };
    for way in [
        "filter del dev e0 parent 1: prio 1",
        "filter del dev e0 parent 1: prio 1 handle 1 basic",
        "filter del dev e0 parent 1:",
    ] {
        let mut setup = tree();
        setup.apply("filter add dev e0 parent 1: prio 1 basic classid 1:5").expect("a filter");
        busy(&mut setup);
        setup.apply(way).expect(way);
        setup.apply(class).unwrap_or_else(|error| panic!("{way}: {error}"));
    }
    // A filter that refers to one class does not keep another class from being removed.
    let mut setup = tree();
    setup.apply("filter add dev e0 parent 1: prio 1 basic classid 1:1").expect("a filter");
    setup.apply(class).expect("nobody needs it");
    // A filter that was refused does not keep the class from being removed.
    let mut setup = tree();
    let bad = "filter add dev e0 parent 1:5 prio 1 u32 match u32 0 0 link 9:";
    setup.apply(bad).expect_err("no such table");
    setup.apply(class).expect("nobody needs it");
}

/// A class takes the filters that are attached to it with it, and what these have held is free. As
/// in Linux, a filter that is attached to a class of an `hfsc` holds only classes of a lower level.
#[test]
fn filters_go_with_their_class() {
    for (kind, rate) in [("htb", "htb rate 1mbit"), ("hfsc", "hfsc ls rate 1mbit")] {
        let mut setup = setup(&[
            &format!("qdisc add dev e0 root handle 1: {kind} default 1"),
            &format!("class add dev e0 parent 1: classid 1:1 {rate}"),
            &format!("class add dev e0 parent 1: classid 1:2 {rate}"),
            &format!("class add dev e0 parent 1: classid 1:5 {rate}"),
            "filter add dev e0 parent 1:5 prio 1 basic classid 1:1",
            "filter add dev e0 parent 1:5 prio 2 u32 match u32 0 0 classid 1:2",
        ]);
        let holds = setup.clone().apply("class del dev e0 classid 1:1").is_err();
        assert_eq!(holds, kind == "htb");
        setup.apply("class del dev e0 classid 1:5").expect("no filter selects it");
        assert!(!setup.lines().iter().any(|line| line.starts_with("filter")));
        setup.apply(&format!("class add dev e0 parent 1: classid 1:5 {rate}")).expect("a class");
        assert_eq!(shown(&setup, "dev e0 parent 1:5"), "");
        setup.apply(&format!("class add dev e0 parent 1:5 classid 1:6 {rate}")).expect("below");
        setup.apply("filter add dev e0 parent 1:5 prio 1 basic classid 1:1").expect("a filter");
        setup.apply("class del dev e0 classid 1:1").expect_err("1:5 has a higher level");
        setup.apply("class del dev e0 classid 1:2").expect("nothing holds it");
    }
}

/// The filters of a qdisc are removed with the qdisc.
#[test]
fn filters_go_with_their_qdisc() {
    let mut setup = setup(&[
        "qdisc add dev e0 root handle 1: htb default 1",
        "class add dev e0 parent 1: classid 1:1 htb rate 1mbit",
        "qdisc add dev e0 parent 1:1 handle 2: prio",
        "filter add dev e0 parent 1: prio 1 basic classid 1:1 action ok index 7",
        "filter add dev e0 parent 1:1 chain 3 prio 1 basic classid 1:1",
        "filter add dev e0 parent 2: prio 1 matchall classid 2:1 action ok index 8",
    ]);
    setup.apply("qdisc del dev e0 parent 1:1 handle 2:").expect("it is there");
    let lines = |setup: &Setup| {
        setup.lines().into_iter().filter(|line| line.starts_with("filter")).collect::<Vec<_>>()
    };
    assert_eq!(lines(&setup).len(), 2);
    setup.apply("qdisc add dev e0 parent 1:1 handle 2: prio").expect("room");
    assert_eq!(lines(&setup).len(), 2);
    // The numbers of the removed filters' actions are free again.
    setup
        .apply("filter add dev e0 parent 2: prio 1 matchall classid 2:1 action ok index 8")
        .expect("the number is free");
    setup.apply("qdisc del dev e0 root").expect("it is there");
    assert_eq!(lines(&setup), [""; 0]);
    setup.apply("qdisc add dev e0 root handle 1: prio").expect("room");
    assert_eq!(shown(&setup, "dev e0 parent 1:"), "");
    setup
        .apply("filter add dev e0 parent 1: prio 1 basic classid 1:1 action ok index 7")
        .expect("the number is free");
}

fn counted(filters: &[FilterSpec]) -> String {
    let mut out = Out::new(STATS);
    let query = Query { parent: Some(ROOT), ..Query::default() };
    show_filters(filters.iter(), ROOT, &query, &mut out);
    out.finish()
}

/// The listing shows each filter once, with the sum of its counters over all transmit queues.
#[test]
fn queues_are_summed() {
    let lines = setup(&[
        "qdisc add dev e0 root handle 1: prio",
        "filter add dev e0 parent 1: prio 1 handle 5 fw classid 1:1 action police mtu 500 drop",
        "filter add dev e0 parent 1: prio 2 matchall classid 1:1 action ok",
    ]);
    let queue = |packets: &[(u32, u32)]| {
        let mut tree = Tree::of(&lines, 1514, 0).expect("a root");
        for (mark, len) in packets {
            let mut pkt = Packet::new(*len);
            pkt.mark = *mark;
            let _ = tree.enqueue(NOW, pkt);
        }
        tree.filters(NOW, ROOT)
    };
    let first = || queue(&[(5, 100), (5, 600), (0, 1000)]);
    let second = || queue(&[(5, 300), (0, 50), (0, 60)]);
    let whole = FilterSpec::whole([first(), second()]);
    let text = counted(&whole);
    for part in [
        "\tSent 1000 bytes 3 pkt (dropped 1, overlimits 1 requeues 0) ",
        "not_in_hw (rule hit 3)",
        "\tSent 1110 bytes 3 pkt (dropped 0, overlimits 0 requeues 0) ",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(whole.len(), 2);
    // The sum over a single queue equals the counters of that queue. A filter that exists only in
    // one queue is listed too.
    assert_eq!(counted(&FilterSpec::whole([first()])), counted(&first()));
    assert_eq!(FilterSpec::whole([]).len(), 0);
    let fewer = first().into_iter().take(1).collect();
    let both = FilterSpec::whole([fewer, second()]);
    assert!(counted(&both).contains("not_in_hw (rule hit 2)"), "{}", counted(&both));
    // The listing of a described tree takes the counters from a list of counted filters. A filter
    // that this list lacks is shown with zeros.
    let mut out = Out::new(STATS);
    lines.show_counted("dev e0 parent 1:", &whole, &mut out).expect("filters");
    assert_eq!(out.finish(), text);
    let mut out = Out::new(STATS);
    lines.show_counted("dev e0 parent 1:", &whole[..1], &mut out).expect("filters");
    let part = out.finish();
    assert!(part.contains("Sent 1000 bytes") && part.contains("(rule hit 0)"), "{part}");
}

/// Each filter keeps its own counters, even if other filters are described by the same words.
#[test]
fn filters_of_the_same_words() {
    let words = "u32 match u32 0 0 flowid 1:1";
    let mut setup = setup(&["qdisc add dev e0 root handle 1: prio"]);
    for pref in 1..=3 {
        setup.apply(&format!("filter add dev e0 parent 1: prio {pref} {words}")).expect("room");
    }
    let mut tree = Tree::of(&setup, 1514, 0).expect("a root");
    let filters = tree.filters(NOW, ROOT);
    assert_eq!(filters.len(), 6);
    let mut out = Out::new(Style::default());
    setup.show_counted("dev e0 parent 1:", &filters, &mut out).expect("filters");
    assert_eq!(out.finish(), shown(&setup, "dev e0 parent 1:"));
    // A filter that is replaced, or deleted and added again, starts with new counters. The other
    // filters keep their counters.
    let matchall = "filter add dev e0 parent 1: prio 9 matchall classid 1:1 action continue";
    tree.apply(NOW, matchall).expect("room");
    let all = "filter add dev e0 parent 1: prio 8 matchall classid 1:1 action continue";
    tree.apply(NOW, all).expect("room");
    tree.apply(NOW, "filter del dev e0 parent 1: prio 1").expect("it is there");
    tree.apply(NOW, "filter del dev e0 parent 1: prio 2").expect("it is there");
    tree.apply(NOW, "filter del dev e0 parent 1: prio 3").expect("it is there");
    let _ = tree.enqueue(NOW, Packet::new(100));
    let again = "filter replace dev e0 parent 1: prio 7 matchall classid 1:1 action continue";
    tree.apply(NOW, again).expect("room");
    tree.apply(NOW, "filter del dev e0 parent 1: prio 8").expect("it is there");
    tree.apply(NOW, all).expect("room");
    let text = counted(&tree.filters(NOW, ROOT));
    let hits: Vec<&str> = text.lines().filter(|line| line.contains("rule hit")).collect();
    let expected = ["(rule hit 0)", "(rule hit 0)", "(rule hit 1)"];
    assert_eq!(hits.len(), 3);
    for (line, hit) in hits.iter().zip(expected) {
        assert!(line.ends_with(hit), "{text}");
    }
}

#[test]
fn filters_are_named_in_full() {
    let mut setup = setup(&[
        "qdisc add dev e0 root handle 1: prio",
        "filter add dev e0 parent 1: prio 3 protocol ip chain 2 basic classid 1:2",
        "filter add dev e0 parent 1: prio 4 protocol arp basic classid 1:2",
    ]);
    let one = "protocol ip pref 3 basic chain 2 handle 0x1 flowid 1:2 \n";
    let two = "protocol arp pref 4 basic chain 0 handle 0x1 flowid 1:2 \n";
    let heads = [one, two].map(|line| line.replace("handle 0x1 flowid 1:2 ", ""));
    assert_eq!(
        shown(&setup, "dev e0"),
        format!(
            "filter parent 1: {}filter parent 1: {one}filter parent 1: {}filter parent 1: {two}",
            heads[0], heads[1]
        )
    );
    // `tc filter show` leaves out the fields that its command line names, because they are the same
    // in each line of the output.
    for (query, line) in [
        ("parent 1: pref 3", "filter protocol ip basic chain 2 handle 0x1 flowid 1:2 \n"),
        ("parent 1: chain 2", "filter protocol ip pref 3 basic handle 0x1 flowid 1:2 \n"),
        ("parent 1: protocol ip", "filter pref 3 basic chain 2 handle 0x1 flowid 1:2 \n"),
        ("parent 1: chain 0", "filter protocol arp pref 4 basic handle 0x1 flowid 1:2 \n"),
        ("chain 2 pref 4", ""),
        ("chain 1", ""),
        ("protocol ipv6", ""),
    ] {
        let head = line.replace("handle 0x1 flowid 1:2 ", "");
        assert_eq!(shown(&setup, &format!("dev e0 {query}")), format!("{head}{line}"), "{query}");
    }
    let get = |setup: &Setup, line: &str| {
        let mut out = Out::new(Style::default());
        setup.get_filter(line, &mut out).map(|()| out.finish()).map_err(|error| error.to_string())
    };
    let full = "dev e0 parent 1: chain 2 pref 3 protocol ip handle 1 basic";
    assert_eq!(get(&setup, full), Ok(format!("filter parent 1: {one}")));
    let no_parent = full.replace("parent 1: ", "");
    assert_eq!(get(&setup, &no_parent), Err("filter: \"parent\": `get` needs it".into()));
    // Without a root qdisc, the listing is empty.
    setup.apply("qdisc del dev e0 root").expect("it is there");
    assert_eq!(shown(&setup, "dev e0"), "");
    let (place, query) = setup.filter_query("dev e0 parent 5:6 pref 7 chain 8").expect("words");
    assert_eq!(place, Handle::new(5, 6));
    let expected = Query { parent: Some(place), pref: Some(7), protocol: None, chain: Some(8) };
    assert_eq!(query, expected);
    assert!(setup.filter_query("dev e0 basic").is_err());
}

#[test]
fn references_are_for_people() {
    let entry = |id: &str| FILTERS.iter().chain(ACTIONS).find(|entry| entry.id == id).expect(id);
    assert_eq!(entry("matchall").help(), "matchall: matches every packet\n");
    let edit = "skbedit: changes metadata of the packet\n  \
        priority CLASS               the packet's priority, which may name a class\n  \
        mark MARK[/MASK]             the packet's mark\n  \
        queue_mapping QUEUE          the packet's transmit queue\n  \
        inheritdsfield               sets the priority from the DS field of the IP header\n";
    assert_eq!(entry("skbedit").help(), edit);
    let usage: Vec<String> = COMMON.iter().map(|option| option.usage()).collect();
    assert_eq!(usage, ["classid CLASS", "flowid CLASS", "action ACTION"]);
    let flags = entry("skbedit").options.last().map(|option| option.usage());
    assert_eq!(flags.as_deref(), Some("inheritdsfield"));
}

/// Returns the bytes of a packet as a filter sees them, from the Ethernet header on.
fn bytes(pkt: &Packet) -> Vec<u8> {
    let dissected = Dissected::of(pkt);
    (0..dissected.len(pkt)).map(|at| dissected.bytes::<1>(pkt, at).expect("inside")[0]).collect()
}

/// For a datagram without headers, filters see the headers that a device will write (RFC 791, RFC
/// 8200, RFC 768).
#[test]
fn datagrams_have_headers() {
    let mut pkt = Packet::with_payload(b"abcde");
    pkt.set_dest("192.0.2.7:4660".parse().ok());
    pkt.ecn = 2;
    let mut expected = vec![0; 12];
    expected.extend([8, 0]);
    // The IPv4 length is 20 + 8 + 5 bytes. DF is set, because sockets discover the path's MTU. The
    // TTL is 64, and the protocol is UDP.
    expected.extend([0x45, 2, 0, 33, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 192, 0, 2, 7]);
    expected.extend([0, 0, 0x12, 0x34, 0, 13, 0, 0]);
    expected.extend(b"abcde");
    assert_eq!(bytes(&pkt), expected);
    pkt.set_dest("[fd00::7]:4660".parse().ok());
    let mut expected = vec![0; 12];
    expected.extend([0x86, 0xdd]);
    // In IPv6, the ECN bits are the last two bits of the traffic class. The length counts the bytes
    // after the IPv6 header.
    expected.extend([0x60, 0x20, 0, 0, 0, 13, 17, 64]);
    expected.extend([0; 16]);
    expected.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    expected.extend([0, 0, 0x12, 0x34, 0, 13, 0, 0]);
    expected.extend(b"abcde");
    assert_eq!(bytes(&pkt), expected);
    // For a datagram without a destination, filters see an IPv4 header with the address 0.0.0.0.
    let nowhere = bytes(&Packet::with_payload(b"x"));
    assert_eq!(
        (nowhere.len(), &nowhere[12..16], &nowhere[30..38]),
        (43, &[8, 0, 0x45, 0][..], &[0; 8][..])
    );
    // If a datagram is too long for the 16 bits of a length field, the field contains 65,535.
    let long = Packet::with_payload(&vec![0; 65_535]);
    let long = bytes(&long);
    assert_eq!((&long[16..18], &long[38..40]), (&[0xff, 0xff][..], &[0xff, 0xff][..]));
    let most = Packet::with_payload(&vec![0; 65_507]);
    assert_eq!(&bytes(&most)[38..40], &[0xff, 0xeb]);
}

/// If the bytes begin with an IP header, its version determines the EtherType of the Ethernet
/// header.
#[test]
fn packets_of_ip_have_a_link_header() {
    for (first, ethertype) in [
        (0x45, 0x0800),
        (0x60, 0x86dd),
        (0x6f, 0x86dd),
        (0x50, 0x0800),
        (0x70, 0x0800),
        (0x06, 0x0800),
        (0x00, 0x0800),
    ] {
        let mut payload = vec![0; 40];
        payload[0] = first;
        let mut pkt = Packet::with_payload(&payload);
        pkt.set_layer(Layer::Ip);
        let dissected = Dissected::of(&pkt);
        assert_eq!(dissected.keys().outer, ethertype, "{first:x}");
        assert_eq!((dissected.len(&pkt), dissected.is_empty(&pkt)), (54, false));
        assert_eq!(dissected.bytes::<1>(&pkt, 14), Some([first]));
    }
    let mut empty = Packet::with_payload(b"");
    empty.set_layer(Layer::Ip);
    assert_eq!(bytes(&empty), [[0; 12].as_slice(), &[8, 0]].concat());
    assert!(!Dissected::of(&empty).is_empty(&empty));
    empty.set_layer(Layer::Ethernet);
    assert_eq!(bytes(&empty), [0; 0]);
    assert!(Dissected::of(&empty).is_empty(&empty));
}
