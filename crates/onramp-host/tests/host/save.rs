//! A saved configuration makes the same devices again.

use std::path::Path;

use onramp_host::Host;

use crate::{exec, out, refused};

/// Devices of several types, and trees with many kinds of qdiscs, classes, filters and actions.
const RICH: &[&str] = &[
    "ip link add d0 numtxqueues 2 type dummy",
    "ip link set dev d0 mtu 1400 txqueuelen 77 up",
    "ip link add v0 type veth peer name v1",
    "ip link set dev v1 up",
    "ip link add d1 type dummy",
    "ip link add d2 up type dummy",
    "ip link add u0 type udp local 127.0.0.1:0 remote 127.0.0.1:9",
    "tc qdisc add dev d0 root handle 1: htb default 20 r2q 5",
    "tc class add dev d0 parent 1: classid 1:1 htb rate 10mbit ceil 20mbit burst 20k",
    "tc class add dev d0 parent 1:1 classid 1:10 htb rate 2mbit ceil 5mbit prio 1 quantum 3000",
    "tc class add dev d0 parent 1:1 classid 1:20 htb rate 3mbit",
    "tc qdisc add dev d0 parent 1:10 handle 10: fq_codel limit 500 target 7ms ecn",
    "tc qdisc add dev d0 parent 1:20 handle 20: netem delay 20ms 3ms loss 1% limit 300",
    "tc filter add dev d0 parent 1: protocol ip prio 3 handle 6 fw classid 1:10",
    "tc filter add dev d0 parent 1: protocol ip prio 4 u32 match ip dport 53 0xffff flowid 1:10",
    "tc filter add dev d0 parent 1: protocol ip pref 5 flower ip_proto udp dst_port 9 classid 1:20",
    "tc filter add dev d0 parent 1: prio 6 protocol all matchall \
     action police rate 1mbit burst 20k conform-exceed drop",
    "tc filter add dev d0 parent 1: protocol ip prio 7 basic match cmp(u8 at 9 layer 0 eq 17) \
     classid 1:20",
    "tc qdisc add dev d0 clsact",
    "tc filter add dev d0 egress protocol ip prio 1 handle 3 fw action drop",
    "tc qdisc add dev v1 root handle 5: prio bands 4 priomap 1 2 3 3 1 2 0 0 1 1 1 1 1 1 1 1",
    "tc qdisc add dev v1 parent 5:2 handle 6: tbf rate 1mbit burst 5k latency 50ms",
    "tc qdisc add dev d1 root handle 2: cake bandwidth 10mbit diffserv4 wash",
    "tc qdisc add dev d2 root fq maxrate 5mbit flow_limit 33",
    "tc qdisc replace dev u0 root handle 9: sfq perturb 10 limit 99",
];

/// Carries out commands that must succeed; they may print warnings.
fn all(host: &mut Host, lines: &[&str]) {
    for line in lines {
        let reply = exec(host, line);
        assert_eq!(reply.code, 0, "{line}: {}", reply.err);
    }
}

/// Returns everything that the commands list, except the hardware addresses, which are random.
fn listings(host: &mut Host) -> Vec<String> {
    let links = out(host, "ip -j link show");
    let mut parts = links.split(r#""address":""#);
    let mut told: Vec<_> = parts.next().into_iter().map(str::to_owned).collect();
    told.extend(parts.map(|part| part["00:00:00:00:00:00".len()..].to_owned()));
    told.push(out(host, "tc -j -d qdisc show"));
    for device in ["d0", "v0", "v1", "d1", "d2", "u0"] {
        told.push(out(host, &format!("tc -j class show dev {device}")));
        for place in ["root", "ingress", "egress", "parent 1:"] {
            told.push(exec(host, &format!("tc -j filter show dev {device} {place}")).out);
        }
    }
    told
}

#[test]
fn a_saved_configuration_makes_the_same_host() {
    let (mut host, folder) = (Host::new(), Path::new("/"));
    all(&mut host, RICH);
    let saved = out(&mut host, "save");
    let before = listings(&mut host);
    let mut configured = Host::new();
    configured.configure(&saved, folder).expect("a configuration");
    for (after, before) in listings(&mut configured).iter().zip(&before) {
        assert_eq!(after, before, "as a configuration:\n{saved}");
    }
    let mut batch = Host::new();
    all(&mut batch, &saved.lines().collect::<Vec<_>>());
    assert_eq!(listings(&mut batch), before, "as a batch:\n{saved}");
    assert_eq!(out(&mut batch, "save"), saved);
    // The host itself is in that state already.
    assert_eq!(host.configure(&saved, folder).expect("a configuration"), [""; 0]);
}

/// One device is saved alone, but a pair together.
#[test]
fn one_device_is_saved_with_its_peer() {
    let mut host = Host::new();
    all(&mut host, RICH);
    let saved = out(&mut host, "save dev v1");
    let mut other = Host::new();
    all(&mut other, &saved.lines().collect::<Vec<_>>());
    let list = |host: &mut Host| out(host, "tc -j qdisc show dev v1");
    assert_eq!(list(&mut other), list(&mut host));
    assert_eq!(other.devices().iter().map(|it| &*it.name).collect::<Vec<_>>(), ["v1", "v0"]);
    assert_eq!(refused(&mut host, "save dev none"), (1, "Cannot find device \"none\"\n".into()));
    let (code, why) = refused(&mut host, "save everything");
    assert!(code == 255 && why.starts_with("save: expected nothing, or dev NAME\n"), "{why}");
    assert_eq!(out(&mut Host::new(), "save"), "");
}

/// Every name that a device or one of its options can have is read again as it was saved.
#[test]
fn names_are_saved_so_that_they_can_be_read() {
    for sign in (0..=u8::MAX).map(char::from).chain(['\u{2003}', '…']) {
        let (name, mut host) = (format!("d{sign}0"), Host::new());
        for words in [
            vec!["ip", "link", "add", "dev", &name, "type", "dummy"],
            vec!["ip", "link", "add", "dev", "v0", "type", "veth", "peer", "name", &name],
        ] {
            host.exec(&words, Path::new("/"));
        }
        for name in [format!("{sign}0"), format!("v1{sign}")] {
            host.exec(&["ip", "link", "add", "w0", "type", "dummy"], Path::new("/"));
            host.exec(&["ip", "link", "set", "w0", "name", &name], Path::new("/"));
        }
        let saved = host.save(None).expect("it can be saved").join("\n");
        let mut other = Host::new();
        other.configure(&saved, Path::new("/")).expect("it can be made again");
        let sorted = |host: &Host| {
            let mut names: Vec<String> = host.names().into_iter().map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(sorted(&other), sorted(&host), "{sign:?}:\n{saved}");
    }
    let mut host = Host::new();
    for (sign, said) in [("#", "#"), ("'", "'"), ("\"", "\\\""), ("\\", "\\\\")] {
        let (code, why) = refused(&mut host, &format!("ip link add dev d{sign}0 type dummy"));
        let want = format!("no device may be called \"d{said}0\"");
        assert!(code == 2 && why.contains(&want), "{why}");
        let bridge = format!("ip link add p0 type packet interface e{sign}0 to eth1");
        let (code, why) = refused(&mut host, &bridge);
        assert!(code == 255 && why.contains("quotes"), "{code}: {why}");
    }
}

/// An address that a command gave is saved; one that was chosen at random is not.
#[test]
fn addresses_that_were_given_are_saved() {
    let (mut host, folder) = (Host::new(), Path::new("/"));
    all(
        &mut host,
        &[
            "ip link add d0 address 2:0:0:0:0:a up type dummy",
            "ip link add d1 type dummy",
            "ip link add v0 type veth peer name v1 address 02:00:00:00:00:0b",
            "ip link set dev v0 address 02:00:00:00:00:0c mtu 1400",
        ],
    );
    let saved = out(&mut host, "save");
    assert_eq!(saved.matches(" address ").count(), 3, "{saved}");
    assert!(saved.contains("ip link set dev v0 address 02:00:00:00:00:0c mtu 1400\n"), "{saved}");
    let mut other = Host::new();
    other.configure(&saved, folder).expect("it can be made again");
    assert_eq!(out(&mut other, "save"), saved);
    for (device, end) in [("d0", "0a"), ("v0", "0c"), ("v1", "0b")] {
        let shown = out(&mut other, &format!("ip link show {device}"));
        assert!(shown.contains(&format!(" 02:00:00:00:00:{end} brd ")), "{shown}");
    }
}

/// The default qdisc at the root is that of the `txqueuelen` with which the device was first set
/// up, also in the host that a saved configuration makes.
#[test]
fn the_default_qdisc_that_stands_is_made_again() {
    let udp = "type udp local 127.0.0.1:0 remote 127.0.0.1:9";
    let (mut host, folder) = (Host::new(), Path::new("/"));
    all(
        &mut host,
        &[
            &format!("ip link add u0 up {udp}"),
            "ip link set u0 txqueuelen 0",
            &format!("ip link add u1 up txqueuelen 0 {udp}"),
            "ip link set u1 txqueuelen 50 mtu 1400",
            &format!("ip link add u2 up txqueuelen 0 numtxqueues 2 {udp}"),
            "ip link set u2 txqueuelen 70",
            "ip link set u2 down",
            &format!("ip link add u3 up numtxqueues 2 {udp}"),
            "ip link set u3 txqueuelen 0",
            &format!("ip link add u4 up txqueuelen 0 {udp}"),
            "tc qdisc add dev u4 root handle 1: fq",
            "ip link set u4 txqueuelen 40",
        ],
    );
    let listings = |host: &mut Host| {
        let links = out(host, "ip link show");
        let links = links.lines().filter(|line| line.contains("qdisc"));
        [links.collect::<Vec<_>>().join("\n"), out(host, "tc qdisc show")]
    };
    let (saved, before) = (out(&mut host, "save"), listings(&mut host));
    assert!(before[0].contains("qdisc pfifo_fast") && before[0].contains("qdisc noqueue"));
    let mut configured = Host::new();
    configured.configure(&saved, folder).expect("a configuration");
    assert_eq!(listings(&mut configured), before, "as a configuration:\n{saved}");
    assert_eq!(out(&mut configured, "save"), saved);
    let mut batch = Host::new();
    all(&mut batch, &saved.lines().collect::<Vec<_>>());
    assert_eq!(listings(&mut batch), before, "as a batch:\n{saved}");
    assert_eq!(host.configure(&saved, folder).expect("a configuration"), [""; 0]);
    // What a command deletes leaves the default that the device would get now.
    for host in [&mut host, &mut batch] {
        all(host, &["tc qdisc del dev u4 root"]);
        assert!(out(host, "tc qdisc show dev u4").starts_with("qdisc pfifo_fast"));
    }
}

/// Returns the listings of the filters of `d0`, those of each chain by themselves, too.
fn filters(host: &mut Host) -> Vec<String> {
    let lines = ["", " chain 0", " chain 2", " chain 3", " chain 4"];
    lines.map(|chain| out(host, &format!("tc filter show dev d0{chain}"))).into()
}

/// Checks that a host to which the `tc filter` lines apply lists the same filters after it was
/// saved and made again, that it is saved in the same way then, and that nothing changes if the
/// host itself reads what was saved.
fn comes_back(lines: &[&str]) {
    let mut host = Host::new();
    all(&mut host, &["ip link add d0 type dummy", "tc qdisc add dev d0 root handle 1: prio"]);
    for line in lines {
        let (verb, words) = line.split_once(' ').expect("a verb");
        all(&mut host, &[&format!("tc filter {verb} dev d0 parent 1: {words}")]);
    }
    let saved = out(&mut host, "save");
    let mut again = Host::new();
    again.configure(&saved, Path::new("/")).unwrap_or_else(|error| panic!("{error}\n{saved}"));
    assert_eq!(filters(&mut again), filters(&mut host), "{saved}");
    assert_eq!(out(&mut again, "save"), saved);
    assert_eq!(host.configure(&saved, Path::new("/")).expect("it can be read"), [""; 0]);
}

/// A change of a `u32` or `flow` filter keeps parts of what was there.
#[test]
fn changed_filters_come_back() {
    let node = "protocol ip pref 9 u32 match ip dport 53 0xffff";
    let flow = "protocol ip pref 9 handle 7 flow";
    for lines in [
        &[
            &format!("add {node} indev d0 classid 1:1"),
            "add protocol ip pref 9 handle 2: u32 divisor 4",
            "change protocol ip pref 9 handle 800::800 u32 classid 1:3 action drop",
            "change protocol ip pref 9 handle 800::800 u32 link 2: classid 1:2 action pass",
        ][..],
        &[&format!("add {node}"), "change protocol ip pref 9 handle 800::800 u32 classid 1:3"],
        &[
            &format!("add {node} classid 1:3"),
            "add protocol ip pref 9 handle 2: u32 divisor 4",
            "change protocol ip pref 9 handle 800::800 u32 link 2:",
        ],
        &[
            "add protocol ip pref 9 handle 2: u32 divisor 4",
            "add protocol ip pref 9 handle 2:3:7 u32 ht 2:3: match u32 1 1 classid 1:1",
            "change protocol ip pref 9 handle 2:3:7 u32 classid 1:2",
        ],
        &[
            &format!("add {flow} map key src baseclass 1:1 addend 5"),
            &format!("change {flow} map key src divisor 3"),
        ],
        &[
            &format!("add {flow} map key dst and 0xff or 8 match u32(u8 6 0xff at 9) action pass"),
            &format!("change {flow} rshift 2 action drop"),
            &format!("change {flow} match u32(u8 17 0xff at 9)"),
        ],
        &[
            &format!("add {flow} hash keys dst,src divisor 4 perturb 5"),
            &format!("change {flow} xor 3"),
        ],
    ] {
        comes_back(lines);
    }
}

/// The hash tables of `u32` come back with their numbers, also those of preferences that are gone.
#[test]
fn tables_of_u32_come_back() {
    let dport = "u32 match ip dport 53 0xffff classid 1:1";
    for lines in [
        &[
            &format!("add protocol ip pref 9 {dport}"),
            "add protocol ip pref 9 u32 ht 800: match ip dport 54 0xffff classid 1:2",
            &format!("add protocol ip pref 5 {dport}"),
        ][..],
        &[
            "add protocol ip pref 9 handle 801: u32 divisor 4",
            "add protocol ip pref 9 u32 ht 801:1: match ip dport 53 0xffff classid 1:1",
            &format!("add protocol ip pref 5 {dport}"),
        ],
        &[
            &format!("add protocol ip pref 9 {dport}"),
            &format!("add protocol ip pref 5 {dport}"),
            "del pref 9",
            &format!("add protocol ipv6 pref 9 {dport}"),
        ],
        &[
            "add protocol ip pref 20 handle 3: u32 divisor 16",
            "add protocol ipv6 pref 21 chain 2 u32 ht 3:2: match u32 0 0 classid 1:2",
            "add protocol ipv6 pref 21 chain 2 u32 ht 800: match u32 0 0 classid 1:2",
        ],
        &[
            "add protocol ip pref 20 handle 3: u32 divisor 16",
            "add protocol ip pref 20 u32 sample u8 0x12 0xff at 0 divisor 16 ht 3: \
             match u8 0x12 0xff at 0 order 5 classid 1:2",
        ],
        &[
            "add protocol ip pref 20 handle 2: u32 divisor 1",
            "add protocol ip pref 21 u32 ht 2:: match ip protocol 17 0xff classid 1:3",
            "add protocol ip pref 21 u32 match u32 0 0 link 2:",
            "del protocol ip pref 20",
            "add protocol ip pref 20 flower action drop",
        ],
        &[
            "add protocol ip pref 20 handle 2: u32 divisor 1",
            "add protocol ip pref 21 u32 ht 2:: match ip protocol 17 0xff classid 1:3",
            "del protocol ip pref 20",
            &format!("add protocol ip pref 20 {dport}"),
            "add protocol ip pref 20 handle 3: u32 divisor 1",
        ],
        &[
            "add protocol ip pref 16 handle ::5 u32 match u32 0 0 police rate 1mbit burst 10k drop",
            "replace protocol ip pref 16 handle 800::5 u32 match u32 0 0 \
             police rate 2mbit burst 10k drop classid 1:2",
        ],
    ] {
        comes_back(lines);
    }
}

/// Filters come back with their handles, their actions with their numbers, and chains in the order
/// in which they are listed.
#[test]
fn numbers_and_chains_come_back() {
    for lines in [
        &[
            "add protocol ip pref 9 matchall action drop index 1",
            "add protocol ip pref 5 flower ip_proto udp action drop cookie aa action pass",
            "add protocol ip pref 6 basic police rate 1mbit burst 10k drop classid 1:1",
            "add protocol ip pref 7 basic action skbedit mark 3 no_percpu classid 1:1",
            "add protocol ip pref 8 u32 match u32 0 0 \
             action police rate 1mbit burst 10k conform-exceed drop/pipe index 7",
        ][..],
        &[
            "add protocol ip pref 9 handle 0x7 matchall classid 1:1",
            "add protocol ip pref 10 handle 0x9 basic classid 1:1",
            "add protocol ip pref 10 basic classid 1:2",
            "add protocol ip pref 11 handle 0x9 bpf bytecode 1,6 0 0 4294967295, classid 1:1",
            "add protocol ip pref 12 handle 5 flower ip_proto tcp classid 1:2",
            "add protocol ip pref 12 flower ip_proto udp classid 1:2",
            "add protocol 0x1234 pref 13 flower classid 1:2",
        ],
        &[
            "add protocol ip pref 10 handle 4 flower ip_proto udp action drop",
            "add protocol ip pref 10 flower ip_proto tcp action ok",
            "add protocol ip pref 10 flower ip_proto tcp dst_port 4 action ok",
            "add protocol ip pref 10 flower ip_proto udp dst_port 5 action ok",
            "del protocol ip pref 10 handle 4 flower",
        ],
        &[
            "add protocol ip pref 12 chain 4 matchall action goto chain 3",
            "add protocol ip pref 12 chain 3 u32 match u32 0 0 classid 1:1",
            "add protocol ip pref 13 chain 4 u32 match u32 0 0 classid 1:1",
            "add protocol ip pref 12 matchall action goto chain 4",
        ],
        &[
            "add protocol ip pref 13 handle 5/0xf fw classid 1:2",
            "add protocol ip pref 13 handle 6/0xf fw classid 1:2",
            "add protocol ip pref 14 fw",
        ],
    ] {
        comes_back(lines);
    }
}

/// A configuration that gives a filter another handle changes the host.
#[test]
fn another_handle_is_a_change() {
    let text = |handle: u32| {
        format!(
            "ip link add d0 type dummy\ntc qdisc add dev d0 root handle 1: prio\n\
             tc filter add dev d0 parent 1: pref 9 handle {handle} basic classid 1:1\n"
        )
    };
    let (mut host, folder) = (Host::new(), Path::new("/"));
    host.configure(&text(5), folder).expect("a configuration");
    assert_eq!(host.configure(&text(5), folder).expect("the same"), [""; 0]);
    let add = "tc filter add dev d0 parent 1: protocol all pref 9 chain 0 handle";
    let steps = [("-", 5), ("+", 6)];
    let steps = steps.map(|(sign, handle)| format!("{sign} {add} {handle:#x} basic classid 1:1"));
    assert_eq!(host.configure(&text(6), folder).expect("another handle"), steps);
}

/// Options that a change of `netem` has left without effect are not saved: with them, the
/// configuration would be refused, or would reorder packets.
#[test]
fn what_a_change_of_netem_leaves_over_is_not_saved() {
    for (add, change) in [
        ("delay 50ms 10ms distribution normal", "delay 60ms"),
        ("delay 5ms loss 1% ecn", "delay 6ms"),
        ("delay 50ms reorder 5%", "loss 1%"),
        ("delay 50ms reorder 5%", "delay 60ms"),
    ] {
        let mut host = Host::new();
        let lines = [
            "ip link add d0 up type dummy".to_owned(),
            format!("tc qdisc add dev d0 root netem {add}"),
            format!("tc qdisc change dev d0 root netem {change}"),
        ];
        all(&mut host, &lines.each_ref().map(String::as_str));
        let saved = out(&mut host, "save");
        let mut other = Host::new();
        other.configure(&saved, Path::new("/")).expect(&saved);
        assert!(!out(&mut other, "tc qdisc show dev d0").contains("gap"), "{saved}");
    }
    // Those that have an effect are.
    let mut host = Host::new();
    let line = "tc qdisc add dev d0 root netem delay 50ms 10ms distribution normal reorder 5% loss \
                1% ecn";
    all(&mut host, &["ip link add d0 up type dummy", line]);
    let saved = out(&mut host, "save");
    for option in ["distribution normal", "reorder 5%", "loss 1%", "ecn"] {
        assert!(saved.contains(option), "{option}: {saved}");
    }
}
