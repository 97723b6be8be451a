//! `ip link` on a host, with the output that iproute2 6.1 prints for a kernel's veth.

use super::*;

/// Replaces hardware addresses in an output, because they are random.
fn without_address(text: &str) -> String {
    let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    for i in 1..words.len() {
        if words[i - 1] == "link/ether" {
            words[i] = "ADDRESS".into();
        }
    }
    words.join(" ")
}

#[test]
fn a_device_is_shown_as_iproute2_shows_one() {
    let mut host = host(&["ip link add v0 type veth peer name v1", "ip link set dev v0 up"]);
    let one_up = "\
1: v1@v0: <BROADCAST,MULTICAST> mtu 1500 qdisc noop state DOWN mode DEFAULT group default qlen 1000
    link/ether ADDRESS brd ff:ff:ff:ff:ff:ff
2: v0@v1: <NO-CARRIER,BROADCAST,MULTICAST,UP,M-DOWN> mtu 1500 qdisc noqueue state LOWERLAYERDOWN \
mode DEFAULT group default qlen 1000
    link/ether ADDRESS brd ff:ff:ff:ff:ff:ff
";
    assert_eq!(without_address(&out(&mut host, "ip link")), one_up);
    let both_up = "\
2: v0@v1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP mode DEFAULT group \
default qlen 1000
    link/ether ADDRESS brd ff:ff:ff:ff:ff:ff
    RX:  bytes packets errors dropped  missed   mcast           
             0       0      0       0       0       0 
    TX:  bytes packets errors dropped carrier collsns           
             0       0      0       0       0       0 
";
    exec(&mut host, "ip link set v1 up");
    assert_eq!(without_address(&out(&mut host, "ip -s l sh dev v0")), both_up);
}

#[test]
fn json_has_the_keys_of_iproute2() {
    let mut host = host(&["ip link add v0 type veth peer name v1 address 2:0:0:0:0:ab"]);
    let json = "[{},{\"ifindex\":2,\"link\":\"v1\",\"ifname\":\"v0\"";
    exec(&mut host, "ip link set v0 up txqueuelen 0");
    let shown = out(&mut host, "ip -j link show up");
    assert!(shown.starts_with(json), "{shown}");
    assert!(!shown.contains("txqlen"), "an empty queue is not shown: {shown}");
    let shown = out(&mut host, "ip -j -s -d link show v1");
    let end = "\"link_type\":\"ether\",\"address\":\"02:00:00:00:00:ab\",\
               \"broadcast\":\"ff:ff:ff:ff:ff:ff\",\"promiscuity\":0,\"allmulti\":0,\
               \"min_mtu\":68,\"max_mtu\":65535,\"linkinfo\":{\"info_kind\":\"veth\"},\
               \"num_tx_queues\":1,\"num_rx_queues\":1,\"stats64\":{\"rx\":{\"bytes\":0,\
               \"packets\":0,\"errors\":0,\"dropped\":0,\"over_errors\":0,\"multicast\":0},\
               \"tx\":{\"bytes\":0,\"packets\":0,\"errors\":0,\"dropped\":0,\
               \"carrier_errors\":0,\"collisions\":0}}}]\n";
    assert!(shown.ends_with(end), "{shown}");
}

#[test]
fn types_have_their_flags_and_states() {
    let mut host = host(&[
        "ip link add d0 up type dummy",
        "ip link add l0 up type loopback",
        "ip link add u0 up type udp local 127.0.0.1:0",
        "ip link add u1 up numtxqueues 3 type udp local 127.0.0.1:0",
        "ip link add name d1 txqueuelen 7 mtu 0 type dummy",
    ]);
    let heads = [
        "1: d0: <BROADCAST,NOARP,UP,LOWER_UP> mtu 1500 qdisc noqueue state UNKNOWN ",
        "2: l0: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN ",
        "3: u0: <POINTOPOINT,NOARP,UP,LOWER_UP> mtu 1500 qdisc pfifo_fast state UNKNOWN ",
        "4: u1: <POINTOPOINT,NOARP,UP,LOWER_UP> mtu 1500 qdisc mq state UNKNOWN ",
        "5: d1: <BROADCAST,NOARP> mtu 0 qdisc noop state DOWN mode DEFAULT group default qlen 7\\ ",
    ];
    let shown = out(&mut host, "ip -o link");
    assert_eq!(shown.lines().count(), heads.len());
    for (line, head) in shown.lines().zip(heads) {
        assert!(line.starts_with(head), "{line}");
    }
    let brief = out(&mut host, "ip -br link show u0");
    assert_eq!(brief, "u0               UNKNOWN        <POINTOPOINT,NOARP,UP,LOWER_UP> \n");
    // A device that goes down keeps its qdisc, as in Linux.
    exec(&mut host, "ip link set d0 down");
    assert!(out(&mut host, "ip link show d0").contains(" qdisc noqueue state DOWN "));
}

#[test]
fn names_are_made_up_where_nobody_says() {
    let mut host = host(&[
        "ip link add type dummy",
        "ip link add type dummy",
        "ip link add type veth",
        "ip link add veth2 type veth peer veth4",
        "ip link add type veth peer",
    ]);
    let shown = out(&mut host, "ip -br link");
    let names: Vec<&str> = shown.lines().filter_map(|line| line.split(' ').next()).collect();
    let pairs = ["veth0@veth1", "veth1@veth0", "veth4@veth2", "veth2@veth4", "veth3@veth5"];
    let want = [&["dummy0", "dummy1"][..], &pairs, &["veth5@veth3"]].concat();
    assert_eq!(names, want);
}

#[test]
fn a_pair_comes_and_goes_together() {
    let mut host = host(&["ip link add a type veth peer name b", "ip link set a name c"]);
    assert!(out(&mut host, "ip -o link show b").starts_with("1: b@c: "));
    assert_eq!(exec(&mut host, "ip link del dev b"), Reply::default());
    assert_eq!(out(&mut host, "ip link"), "");
    assert_eq!(out(&mut host, "ip -j link"), "[]\n");
    // The number of a deleted device is not used for a new device.
    exec(&mut host, "ip link add d type dummy");
    assert!(out(&mut host, "ip link").starts_with("3: d: "));
}

/// Commands that fail, the exit status of each, and the beginning of its error text.
const FAILURES: &[(&str, u8, &str)] = &[
    ("ip link show nope", 1, "Device \"nope\" does not exist."),
    ("ip link set nope up", 1, "Cannot find device \"nope\""),
    ("ip link del nope", 1, "Cannot find device \"nope\""),
    ("ip link add v0 type dummy", 2, "RTNETLINK answers: File exists"),
    ("ip link add x type veth peer name v0", 2, "RTNETLINK answers: File exists"),
    ("ip link add x type veth peer name x", 2, "RTNETLINK answers: File exists"),
    ("ip link set v0 name v1", 2, "RTNETLINK answers: File exists"),
    ("ip link set v0 mtu 5", 2, "Error: mtu less than device minimum."),
    ("ip link set v0 mtu -5", 2, "Error: mtu less than device minimum."),
    ("ip link set v0 mtu 70000", 2, "Error: mtu greater than device maximum."),
    ("ip link set v0 mtu abc", 255, "Error: argument \"abc\" is wrong: Invalid \"mtu\" value"),
    ("ip link add x mtu 5 type veth", 2, "RTNETLINK answers: Invalid argument"),
    ("ip link set v0 mtu", 255, "Command line is not complete. Try option \"help\""),
    ("ip link add x type", 255, "Command line is not complete. Try option \"help\""),
    ("ip link add", 1, "Not enough information: \"type\" argument is required"),
    ("ip link replace x", 1, "Not enough information: \"type\" argument is required"),
    ("ip link add x type foo", 2, "Error: Unknown device type."),
    ("ip link set", 255, "Not enough information: \"dev\" argument is required."),
    ("ip link del", 255, "Not enough information: \"dev\" argument is required."),
    ("ip link set v0 foo", 255, "Error: either \"dev\" is duplicate, or \"foo\" is a garbage."),
    ("ip link show v0 v1", 255, "Error: either \"dev\" is duplicate, or \"v1\" is a garbage."),
    ("ip link add x numtxqueues 0 type veth", 2, "Error: Invalid number of transmit queues."),
    ("ip link add x numtxqueues 70000 type veth", 2, "Error: Invalid number of transmit queues."),
    (
        "ip link add a/b type veth",
        255,
        "Error: argument \"a/b\" is wrong: \"dev\" not a valid ifname",
    ),
    ("ip link set v0 name abcdefghijklmnop", 255, "Error: argument \"abcdefghijklmnop\" is wrong:"),
    ("ip link add dev abcdefghijklmnop type veth", 2, "Error: Attribute failed policy validation."),
    ("ip link add x1 name x2 type veth", 255, "both \"name\" and \"dev\" cannot be used when"),
    (
        "ip link add x type veth peer type foo",
        255,
        "Error: duplicate \"type\": \"foo\" is the second",
    ),
    (
        "ip link add x name y name z type veth",
        255,
        "Error: duplicate \"name\": \"z\" is the second",
    ),
    ("ip link add x type veth foo", 1, "Usage: ip link <options> type veth [peer <options>]"),
    ("ip link foo", 255, "Command \"foo\" is unknown, try \"ip link help\"."),
    ("ip foo", 1, "Object \"foo\" is unknown, try \"ip help\"."),
    ("ip -x link", 255, "Option \"-x\" is unknown, try \"ip -help\"."),
    ("ip", 255, "Usage: ip [ OPTIONS ] OBJECT { COMMAND | help }"),
    ("ip link help", 255, "Usage: ip link add"),
    ("ip link add x type udp", 1, "Not enough information: \"local\" argument is required"),
    ("ip link add x type udp local here", 255, "Error: argument \"here\" is wrong:"),
    ("ip link add x type udp local 192.0.2.1:1", 2, "RTNETLINK answers: Cannot assign requested"),
    ("ip link add x type udp local 127.0.0.1 listen 127.0.0.1", 2, "RTNETLINK answers: Invalid"),
    ("ip link add x type udp local 127.0.0.1 remote [::1]:9", 2, "RTNETLINK answers: Invalid"),
    ("ip link add x numtxqueues 2 type udp local 127.0.0.1:4", 2, "RTNETLINK answers: Invalid"),
    (
        "ip link add x type udp local 127.0.0.1 clients 5",
        2,
        "RTNETLINK answers: Invalid argument\nc",
    ),
    (
        "ip link add x type udp local 127.0.0.1 idle 5",
        2,
        "RTNETLINK answers: Invalid argument\nidle",
    ),
    (
        "ip link add x type udp local 127.0.0.1 peer name y",
        2,
        "RTNETLINK answers: Invalid argument",
    ),
    ("ip link add x type udp local 127.0.0.1 clients 0", 255, "Error: argument \"0\" is wrong: "),
    ("ip link add x type udp local 127.0.0.1 clients 65536", 255, "Error: argument \"65536\" is"),
    ("ip link add x type udp local 127.0.0.1 idle 1s", 255, "Error: argument \"1s\" is wrong: "),
    ("ip link add x type udp local ::1 idle 5 idle 6", 255, "Error: duplicate \"idle\": \"6\" is"),
    (
        "ip link add x type udp local 127.9.8.7:4004 remote 127.0.0.1:5 listen 127.0.0.1 clients 2",
        2,
        "RTNETLINK answers: Invalid argument\neach client has its own socket",
    ),
    ("ip link add x type veth peer name y peer name z", 255, "Error: "),
    ("ip link add x index 1 type dummy", 2, "RTNETLINK answers: File exists"),
    ("ip link add x address 1:2 type dummy", 1, "\"1:2\" is invalid lladdr."),
];

#[test]
fn what_is_wrong_is_said_as_iproute2_says_it() {
    let mut host = host(&["ip link add v0 type veth peer name v1"]);
    let before = out(&mut host, "ip -d link");
    for (line, code, begins) in FAILURES {
        let reply = exec(&mut host, line);
        assert_eq!(reply.code, *code, "{line}: {}", reply.err);
        assert!(reply.err.starts_with(begins), "{line}: {}", reply.err);
        assert!(reply.err.ends_with('\n') && reply.out.is_empty(), "{line}: {reply:?}");
    }
    assert_eq!(out(&mut host, "ip -d link"), before, "what failed changed nothing");
}

#[test]
fn words_may_be_cut_short() {
    let mut host = host(&["ip l a d0 up t dummy", "ip link c d0 qlen 5", "ip li set d0 txqlen 6"]);
    assert!(out(&mut host, "ip --oneline lin l d0").contains(" qlen 6\\ "));
    assert!(out(&mut host, "ip -V").starts_with("ip utility, "));
    assert_eq!(out(&mut host, "ip link show type veth"), "");
    assert_eq!(out(&mut host, "ip link show master d0"), "");
    assert_eq!(exec(&mut host, "ip link d d0").code, 0);
}
