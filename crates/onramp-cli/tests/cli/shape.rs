//! Tests of `onramp shape` between two veth pairs, and of the traffic of a host itself, with real
//! clients and servers at their ends.

#[path = "shape/asked.rs"]
mod asked;
#[path = "shape/faults.rs"]
mod faults;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::{assert_documented_keys, assert_fails, read_json, root, run, skip, stderr};

/// Makes the network of a test: a client in the namespace `c`, a server in `s`, and between them
/// the interfaces `eth0` (to the client) and `eth1` (to the server). The script of the test
/// follows.
const NETWORK: &str = "\
set -e
mount -t tmpfs none /run
ip netns add c
ip netns add s
ip link add eth0 mtu $MTU type veth peer name e0 mtu $MTU netns c
ip link add eth1 mtu $MTU type veth peer name e0 mtu $MTU netns s
for side in c:1 s:2; do
    space=${side%:*} number=${side#*:}
    ip -n $space link set lo up
    ip -n $space link set e0 up
    ip -n $space addr add 192.0.2.$number/24 dev e0
    ip -n $space addr add 2001:db8::$number/64 dev e0 nodad
done
for name in eth0 eth1; do
    echo 1 > /proc/sys/net/ipv6/conf/$name/disable_ipv6
    ip link set $name up
done
# Until the kernel has noticed that there is a carrier, it sends nothing.
for space in c s; do
    until ip -n $space -o link show e0 | grep -q 'state UP'; do sleep 0.02; done
done
interfaces='eth0 eth1'
client() { ip netns exec c \"$@\"; }
server() { ip netns exec s \"$@\"; }
shape() {
    : > told
    \"$ONRAMP\" shape $interfaces --json shaped.json \"$@\" 2> told &
    shaper=$!
    until grep -q 'onramp: shaping' told; do
        kill -0 $shaper || { cat told >&2; exit 9; }
        sleep 0.02
    done
}
finish() {
    kill $shaper
    wait $shaper
}
listen() {
    server \"$@\" &
    until server ss -Hltun | grep -q .; do sleep 0.02; done
}
";

/// Runs a script of shell commands in the network. Returns `None`, and prints why, if this machine
/// lacks something that the test needs.
pub(super) fn in_network(folder: &Path, mtu: u32, script: &str) -> Option<Output> {
    in_network_for(200, folder, mtu, script)
}

/// Does the same, for at most so many seconds. The programs have a high priority where that is
/// allowed, so that the other programs of the machine decide no rate.
fn in_network_for(seconds: u64, folder: &Path, mtu: u32, script: &str) -> Option<Output> {
    if !root() {
        skip("onramp shape: the test needs root");
        return None;
    }
    for tool in ["ip", "ss", "ping", "iperf3", "nc", "tcpdump", "python3", "script"] {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            skip(&format!("no {tool}"));
            return None;
        }
    }
    let mut command = Command::new("nice");
    command.args(["-n", "-15", "timeout", "--kill-after=1", &seconds.to_string()]);
    command.args([
        "unshare",
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    command.args(["sh", "-c", &format!("{NETWORK}{script}")]).current_dir(folder);
    command.env("ONRAMP", env!("CARGO_BIN_EXE_onramp")).env("MTU", mtu.to_string());
    let output = command.stdin(Stdio::null()).output().expect("unshare runs");
    Some(output)
}

pub(super) fn assert_ok(folder: &Path, output: &Output) {
    let told = fs::read_to_string(folder.join("told")).unwrap_or_default();
    let printed = String::from_utf8_lossy(&output.stdout);
    let said = stderr(output);
    assert!(output.status.success(), "{}: {said}\n{printed}\n{told}", output.status);
}

/// Every packet was carried, dropped for a reason, or is still there.
fn assert_conserved(document: &Value) {
    for way in ["egress", "ingress"] {
        let way = &document[way];
        let number = |key: &str| way[key].as_u64().expect("a number");
        let drops = way["drops"].as_object().expect("an object").values();
        let dropped: u64 = drops.map(|count| count.as_u64().expect("a number")).sum();
        let known = number("sent") + dropped + number("refused") + number("queued");
        assert_eq!(number("packets"), known, "{way}");
    }
}

/// The rate that an iperf3 server received, Mbit/s.
fn received(path: &Path) -> f64 {
    let document = read_json(path);
    let sum = &document["end"]["sum_received"];
    let sum = if sum.is_null() { &document["end"]["sum"] } else { sum };
    sum["bits_per_second"].as_f64().unwrap_or_else(|| panic!("no rate: {document}")) / 1e6
}

/// ARP, IPv4, IPv6, VLAN tags, TCP with offload, UDP and a file pass unchanged, at the usual MTU
/// and with jumbo frames.
#[test]
fn everything_passes() {
    // A frame with VLAN 7, priority 5, and a protocol for experiments.
    let tagged = "\
import socket
frame = bytes.fromhex('ffffffffffff020000000001' '8100a007' '88b5') + bytes(60)
socket_ = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
socket_.bind(('e0', 0))
socket_.send(frame)
";
    // AF_XDP has no frames for an MTU of 9,000: packet sockets take its place.
    for (mtu, device) in [(1_500, "packet"), (9_000, "packet"), (1_500, "xdp"), (9_000, "xdp")] {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("tagged.py"), tagged).expect("a file");
        let large = mtu - 28;
        let script = format!(
            "\
shape --device {device}
ip -d link show eth0 > during
client ping -c2 -i0.2 -W5 192.0.2.2
client ping -c2 -i0.2 -W5 2001:db8::2
server tcpdump -i e0 -nn -e -c1 ether proto 0x88b5 or vlan 7 > tagged 2> tcpdump &
until grep -q listening tcpdump; do sleep 0.02; done
while kill -0 $!; do client python3 tagged.py; sleep 0.02; done
grep -q 'vlan 7, p 5' tagged
client ping -c1 -W5 -M do -s {large} 192.0.2.2
client ip neigh show 192.0.2.2 | grep -q lladdr
head -c 3000000 /dev/urandom > sent
listen sh -c 'nc -l -p 7000 > got'
client nc -N 192.0.2.2 7000 < sent
wait $!
cmp sent got
listen sh -c 'nc -6 -l -p 7001 > got6'
client nc -N 2001:db8::2 7001 < sent
wait $!
cmp sent got6
listen iperf3 -s -1 -p 5001
client iperf3 -c 192.0.2.2 -p 5001 -n 3M > /dev/null
wait $!
listen iperf3 -s -1 -p 5002
client iperf3 -c 192.0.2.2 -p 5002 -u -b 20M -n 2M -J > udp.json
wait $!
finish
"
        );
        let Some(output) = in_network(folder.path(), mtu, &script) else { return };
        assert_ok(folder.path(), &output);
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect("text");
        let during = read("during");
        assert!(during.contains("promiscuity 1"), "{during}");
        let (is_xdp, has_note) =
            (during.contains("prog/xdp"), read("told").contains("a packet socket takes its place"));
        assert_eq!(
            (is_xdp, has_note),
            (device == "xdp" && mtu == 1_500, device == "xdp" && mtu == 9_000)
        );
        let document = read_json(&folder.path().join("shaped.json"));
        assert_conserved(&document);
        assert_eq!(assert_documented_keys("## `onramp.shape`, version 1", &document), 7);
        let heading = "### Each direction of `onramp.wire` and `onramp.shape`";
        assert_eq!(assert_documented_keys(heading, &document["egress"]), 10);
        for way in ["egress", "ingress"] {
            assert_eq!(document[way]["discarded"], 0, "{document}");
            assert_eq!(document[way]["refused"], 0, "{document}");
        }
        let udp = read_json(&folder.path().join("udp.json"));
        assert!(udp["end"]["sum"]["packets"].as_u64().is_some_and(|count| count > 0), "{udp}");
        assert!(udp["end"]["sum"]["lost_percent"].as_f64().is_some_and(|lost| lost < 1.0), "{udp}");
    }
}

/// Number of times that a test measures a rate: load from other programs can only make it smaller.
const TRIES: u32 = 5;

/// A rate is kept in one direction, and the other is not shaped; a delay counts for both.
#[test]
fn rates_and_delays_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "\
shape --ingress 'tbf rate 50mbit burst 64kb latency 50ms' --egress 'netem delay 20ms'
client ping -q -c5 -i0.1 192.0.2.2 > ping
listen iperf3 -s -1
client iperf3 -c 192.0.2.2 -t 4 -O 1 -J > tcp.json
wait $!
finish
";
    let mut rates = Vec::new();
    for _ in 0..TRIES {
        let Some(output) = in_network(folder.path(), 1_500, script) else { return };
        assert_ok(folder.path(), &output);
        let least = least(&folder.path().join("ping"));
        assert!(least >= 20.0, "{least}");
        assert_conserved(&read_json(&folder.path().join("shaped.json")));
        let rate = received(&folder.path().join("tcp.json"));
        rates.push((rate, least));
        // 1,448 of each 1,514 bytes are data, so 47.8 Mbit/s are possible. On a busy machine,
        // iperf3 can begin its measurement late, when bytes have come already.
        assert!(rates.iter().filter(|(rate, _)| *rate >= 49.0).count() < 2, "{rates:?}");
        if (46.87..48.78).contains(&rate) && least < 22.0 {
            return;
        }
    }
    panic!("the rate was never within 2 % of 47.8 Mbit/s, or the delay not near 20 ms: {rates:?}");
}

/// A tree for each direction from one file; classes share the rate as their rates are.
#[test]
fn classes_of_a_file_share_a_rate() {
    let folder = tempfile::tempdir().expect("a folder");
    let lines = "\
# Towards the server: two classes, one for each port.
qdisc add dev eth1 root handle 1: htb default 20
class add dev eth1 parent 1: classid 1:1 htb rate 20mbit
class add dev eth1 parent 1:1 classid 1:10 htb rate 15mbit ceil 20mbit
class add dev eth1 parent 1:1 classid 1:20 htb rate 5mbit ceil 20mbit
filter add dev eth1 parent 1: protocol ip u32 match ip dport 5010 0xffff flowid 1:10
";
    fs::write(folder.path().join("classes.tc"), lines).expect("a file");
    let script = "\
shape --setup classes.tc
listen iperf3 -s -1 -p 5010
one=$!
server iperf3 -s -1 -p 5020 &
two=$!
until test $(server ss -Hltn | wc -l) = 2; do sleep 0.02; done
client iperf3 -c 192.0.2.2 -p 5010 -t 5 -O 1 -J > one.json &
client iperf3 -c 192.0.2.2 -p 5020 -t 5 -O 1 -J > two.json
wait $one $two
finish
";
    let mut shares = Vec::new();
    for _ in 0..TRIES {
        let Some(output) = in_network(folder.path(), 1_500, script) else { return };
        assert_ok(folder.path(), &output);
        let [one, two] = ["one.json", "two.json"].map(|name| received(&folder.path().join(name)));
        shares.push((one, two));
        let document = read_json(&folder.path().join("shaped.json"));
        assert_conserved(&document);
        assert_eq!(document["egress"]["drops"].as_object().map(serde_json::Map::len), Some(0));
        // If one connection began or ended long before the other, it had the rate for itself then.
        if (2.91..3.09).contains(&(one / two)) && one + two < 20.5 {
            return;
        }
    }
    panic!("the classes never had shares of three to one, of 20 Mbit/s: {shares:?}");
}

/// An interface that goes down loses frames and comes back; one that disappears ends the bridge
/// with an error. Nothing is left of either.
#[test]
fn interfaces_come_and_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "\
shape
client ping -c1 -W5 192.0.2.2
ip link set eth1 down
client ping -c2 -i0.2 -W1 192.0.2.2 && exit 7
ip link set eth1 up
client ping -c1 -W9 192.0.2.2 || client ping -c3 -W5 192.0.2.2
ip -d link show eth0 > during
kill -9 $shaper
wait $shaper || true
ip -d link show eth0 > after
shape
ip link del eth1
wait $shaper && exit 8
cat told >&2
";
    let Some(output) = in_network(folder.path(), 1_500, script) else { return };
    assert_ok(folder.path(), &output);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect("it was written");
    assert!(read("during").contains("promiscuity 1"), "{}", read("during"));
    assert!(read("after").contains("promiscuity 0"), "{}", read("after"));
    let told = stderr(&output);
    assert!(told.contains("the shaper broke: the interface eth1 was removed"), "{told}");
}

/// Commands that make a host of the middle of the network, with the client as its only neighbour.
pub(super) const HOST: &str = "\
interfaces=eth0
echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6
ip addr add 192.0.2.9/24 dev eth0
ip addr add 2001:db8::9/64 dev eth0 nodad
settings() { ip addr show dev eth0 scope global; ip route; ip -6 route | grep 2001; }
await_port() { until \"$@\" ss -Hlt | grep -q .; do sleep 0.02; done; }
";

/// The least round-trip time that `ping` has written into a file, milliseconds.
fn least(path: &Path) -> f64 {
    let text = fs::read_to_string(path).expect("it was written");
    let (_, times) = text.split_once("rtt min/avg/max/mdev = ").expect("a summary");
    times.split('/').next().expect("a number").parse().expect("a number")
}

/// What a host sends through its only interface, and what it gets, passes the qdiscs. The host's
/// settings stay as they are, and with the command, also if it is killed, the qdiscs end.
#[test]
fn a_host_shapes_its_own_traffic() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "\
{HOST}
settings > before
shape --egress 'netem delay 200ms' --ingress 'netem delay 150ms'
grep 'what leaves and what comes in through eth0' told
settings | cmp before -
ping -q -c5 -i0.1 192.0.2.1 > ping
ping -q -c2 -i0.1 -W5 2001:db8::1
client ping -q -c2 -i0.1 -W5 192.0.2.9
head -c 3000000 /dev/urandom > sent
client nc -l -p 7000 > got &
await_port client
nc -N 192.0.2.1 7000 < sent
wait $!
cmp sent got
nc -l -p 7001 > got &
await_port
client nc -N 192.0.2.9 7001 < sent
wait $!
cmp sent got
finish
cp shaped.json both.json
ping -q -c5 -i0.1 192.0.2.1 > after
shape --egress 'netem delay 200ms'
grep 'what leaves through eth0' told
ping -q -c5 -i0.1 192.0.2.1 > egress
ip -br link | grep -c onramp > taps
kill -9 $shaper
wait $shaper || true
while ip -br link | grep onramp; do sleep 0.02; done
settings | cmp before -
ping -q -c5 -i0.1 192.0.2.1 > at_last
shape --ingress 'netem delay 150ms'
grep 'what comes in through eth0' told
ping -q -c5 -i0.1 192.0.2.1 > ingress
\"$ONRAMP\" shape eth0 --ingress fq 2> refused && exit 6
\"$ONRAMP\" shape eth0 eth1 2>> refused && exit 6
finish
echo 'qdisc add dev eth0 root netem delay 200ms' > lines.tc
shape --setup lines.tc
ping -q -c5 -i0.1 192.0.2.1 > setup
finish
"
    );
    let Some(output) = in_network(folder.path(), 1_500, &script) else { return };
    assert_ok(folder.path(), &output);
    let path = |name: &str| folder.path().join(name);
    let pings =
        ["ping", "after", "egress", "at_last", "ingress", "setup"].map(|name| least(&path(name)));
    let [both, after, egress, at_last, ingress, setup] = pings;
    assert!(both >= 350.0 && egress >= 200.0 && ingress >= 150.0 && setup >= 200.0, "{pings:?}");
    assert!(after < 100.0 && at_last < 100.0 && ingress < 350.0 && egress < 350.0, "{pings:?}");
    let refused = fs::read_to_string(path("refused")).expect("lines");
    let busy = "another Onramp carries what comes in through eth0 already";
    assert_eq!(refused.matches(busy).count(), 2, "{refused}");
    assert_eq!(fs::read_to_string(path("taps")).expect("a number").trim(), "1");
    let document = read_json(&path("both.json"));
    assert_conserved(&document);
    assert_eq!(document["interfaces"], serde_json::json!(["eth0"]));
    assert_eq!(assert_documented_keys("## `onramp.shape`, version 1", &document), 7);
    for way in ["egress", "ingress"] {
        let lost = ["discarded", "refused", "missed"].map(|key| document[way][key].as_u64());
        assert_eq!(lost, [Some(0); 3], "{document}");
    }
    assert_eq!(document["devices"], serde_json::json!(["detour"]));
    let last = read_json(&path("shaped.json"));
    assert!(last["ingress"].is_null() && last["egress"]["sent"].as_u64() > Some(4), "{last}");
}

/// A host's TCP keeps the rate of the qdisc, and its super-frames are cut for it.
#[test]
fn a_host_keeps_a_rate() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "\
{HOST}
shape --egress 'tbf rate 50mbit burst 64kb latency 50ms'
client iperf3 -s -1 > /dev/null &
await_port client
iperf3 -c 192.0.2.1 -t 4 -O 1 -J > tcp.json
wait $!
finish
"
    );
    let mut rates = Vec::new();
    for _ in 0..TRIES {
        let Some(output) = in_network(folder.path(), 1_500, &script) else { return };
        assert_ok(folder.path(), &output);
        let rate = received(&folder.path().join("tcp.json"));
        rates.push(rate);
        // 1,448 of each 1,514 bytes are data, so 47.8 Mbit/s are possible. On a busy machine,
        // iperf3 can begin its measurement late, when bytes have come already.
        assert!(rates.iter().filter(|rate| **rate >= 49.0).count() < 2, "{rates:?}");
        if (46.87..48.78).contains(&rate) {
            return;
        }
    }
    panic!("the rate was never within 2 % of 47.8 Mbit/s: {rates:?}");
}

/// An interface that disappears while its traffic is shaped ends the command with an error.
#[test]
fn a_host_loses_its_interface() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "\
{HOST}
shape --qdisc 'fq_codel'
ip link del eth0
wait $shaper && exit 8
cat told >&2
"
    );
    let Some(output) = in_network(folder.path(), 1_500, &script) else { return };
    assert_ok(folder.path(), &output);
    let told = stderr(&output);
    assert!(told.contains("the shaper broke: the interface eth0 was removed"), "{told}");
}

/// Commands that start a daemon in the network. The script of the test follows, and `end` ends it.
pub(super) const DAEMON: &str = "\
export ONRAMP_SOCKET=$PWD/socket
\"$ONRAMP\" daemon --log warn 2> told &
daemon=$!
until test -S socket; do sleep 0.02; done
o() { \"$ONRAMP\" \"$@\"; }
end() { kill $daemon; wait $daemon; }
";

/// The daemon has bridges as devices, whose qdiscs change while frames pass, and whose counters add
/// up.
#[test]
fn the_daemon_joins_interfaces() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "\
{DAEMON}
o ip link add lan up type packet interface eth0 to eth1 peer name wan up
o tc qdisc add dev wan root netem delay 200ms
client ping -q -c5 -i0.1 -W5 192.0.2.2 > delayed
client ping -q -c2 -i0.1 -W5 2001:db8::2
o tc qdisc replace dev wan root tbf rate 50mbit burst 64kb latency 50ms
client ping -q -c5 -i0.1 192.0.2.2 > plain
head -c 3000000 /dev/urandom > sent
listen sh -c 'nc -l -p 7000 > got'
client nc -N 192.0.2.2 7000 < sent
wait $!
cmp sent got
o tc -s -j qdisc show dev wan > qdiscs.json
o ip link set lan down
client ping -q -c1 -W1 192.0.2.2 && exit 6
o ip -s -j link show > down.json
o ip link set lan up
client ping -q -c1 -W5 192.0.2.2
o save > saved
o ip link set lan mtu 1400 2>> refused && exit 9
for line in 'interface nope to eth0' 'interface eth0 to eth0' 'interface eth0' \
    'interface e% to eth0'; do
    o ip link add x type packet $line peer name y 2>> refused && exit 9
done
o ip link add x type packet interface eth0 to eth1 peer name y 2>> refused && exit 9
o ip link del lan
client ping -q -c1 -W1 192.0.2.2 && exit 7
o ip link add x mtu 1400 type packet interface eth0 to eth1 peer name y 2>> refused && exit 9
end
"
    );
    let Some(output) = in_network(folder.path(), 1_500, &script) else { return };
    assert_ok(folder.path(), &output);
    let path = |name: &str| folder.path().join(name);
    let pings = ["delayed", "plain"].map(|name| least(&path(name)));
    assert!(pings[0] >= 200.0 && pings[1] < 200.0, "{pings:?}");
    let links = read_json(&path("down.json"));
    let count = |name: &str, way: &str, key: &str| {
        let mut all = links.as_array().expect("a list").iter();
        let link = all.find(|link| link["ifname"] == name).expect("it is there");
        link["stats64"][way][key].as_u64().expect("a number")
    };
    assert!(count("lan", "rx", "bytes") > 3_000_000, "{links}");
    assert!(count("wan", "tx", "bytes") > 3_000_000, "{links}");
    assert!(count("lan", "rx", "dropped") > 0, "what came in while it was down: {links}");
    let qdisc = &read_json(&path("qdiscs.json"))[0];
    assert!(qdisc["kind"] == "tbf" && qdisc["packets"].as_u64() > Some(2_000), "{qdisc}");
    let saved = fs::read_to_string(path("saved")).expect("lines");
    let line = "ip link add dev lan numtxqueues 1 type packet interface eth0 to eth1 peer name wan";
    assert!(saved.contains(line), "{saved}");
    let refused = fs::read_to_string(path("refused")).expect("lines");
    for words in [
        "it is that of the kernel's interface",
        "No such device\npacket socket on nope: there is no such interface",
        "a bridge of an interface with itself",
        "\"to\" argument is required",
        "without %, /,",
        "another Onramp carries what comes in through eth0 already",
        "packet eth0 has an mtu of 1500, and this device of 1400",
    ] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
}

/// A TAP is joined with an interface. When the interface disappears, the device has no carrier, and
/// when it comes back, the configuration makes the device again. The daemon logs what the interface
/// does.
#[test]
fn the_daemon_has_taps() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "\
echo 'ip link add vm up type tap interface tap7 to eth1 peer name up7 up' > devices
{DAEMON}
end
\"$ONRAMP\" daemon --config devices 2> told &
daemon=$!
logged() {{ until grep -q \"up7: $*\" told; do sleep 0.1; done; }}
until o ip link show up7; do sleep 0.02; done
ip addr add 192.0.2.7/24 dev tap7
ping -q -c2 -i0.1 -W5 192.0.2.2
o ip link add x type tap interface eth0 to eth1 peer name y 2> refused && exit 9
ip -n s link set e0 down
logged eth1 has no carrier
ip -n s link set e0 up
logged eth1 works again
ip link del eth1
until o ip link show up7 | grep NO-CARRIER; do sleep 0.1; done
logged there is no interface eth1
ip link add eth1 type veth peer name e0 netns s
ip link set eth1 up
ip -n s link set e0 up
ip -n s addr add 192.0.2.2/24 dev e0
logged it has lost eth1
kill -HUP $daemon
until o ip link show up7 | grep -v NO-CARRIER | grep LOWER_UP; do sleep 0.1; done
ip addr replace 192.0.2.7/24 dev tap7
ping -q -c2 -i0.1 -W5 192.0.2.2
o ip link del vm
ip link show tap7 && exit 8
end
"
    );
    let Some(output) = in_network(folder.path(), 1_500, &script) else { return };
    assert_ok(folder.path(), &output);
    let refused = fs::read_to_string(folder.path().join("refused")).expect("lines");
    assert!(refused.contains("an interface of this name that is no free TAP"), "{refused}");
}

/// The daemon leads a host's own packets aside while the device is up, also jumbo frames.
#[test]
fn the_daemon_has_detours() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "\
{DAEMON}
{HOST}
o ip link add out type detour interface eth0 peer name in
ping -q -c5 -i0.1 192.0.2.1 > down
o ip link set out up
o ip link set in up
o tc qdisc add dev out root netem delay 200ms
o tc qdisc add dev in root netem delay 150ms
ping -q -c5 -i0.1 192.0.2.1 > up
ping -q -c1 -s 8000 -M do 192.0.2.1
o save > saved
o ip link set out down
ping -q -c5 -i0.1 192.0.2.1 > ingress
o ip link del in
ping -q -c5 -i0.1 192.0.2.1 > gone
o ip link add x numtxqueues 2 type detour interface eth0 2> refused && exit 9
end
\"$ONRAMP\" daemon --log warn --config saved 2> told &
daemon=$!
until o tc qdisc show dev in | grep 150ms; do sleep 0.02; done
ping -q -c5 -i0.1 192.0.2.1 > again
end
"
    );
    let Some(output) = in_network(folder.path(), 9_000, &script) else { return };
    assert_ok(folder.path(), &output);
    let path = |name: &str| folder.path().join(name);
    let pings = ["down", "up", "ingress", "gone", "again"].map(|name| least(&path(name)));
    let [down, up, ingress, gone, again] = pings;
    assert!(down < 100.0 && gone < 100.0 && (150.0..350.0).contains(&ingress), "{pings:?}");
    assert!(up >= 350.0 && again >= 350.0, "{pings:?}");
    let refused = fs::read_to_string(path("refused")).expect("lines");
    assert!(refused.contains("such a device has one queue"), "{refused}");
}

#[test]
fn what_is_wrong_is_told_in_a_line() {
    assert_fails(&run("shape"), 2, &["<IF>"]);
    assert_fails(&run("shape eth9"), 2, &["nothing would be shaped", "--egress"]);
    assert_fails(&run("shape eth9 --then fq"), 2, &["nothing would be shaped"]);
    assert_fails(&run("shape eth9 --qdisc fq"), 1, &["there is no interface eth9"]);
    assert_fails(&run("shape lo --qdisc fq"), 1, &["lo is the loopback interface"]);
    let about = &["--device is about the two interfaces of a bridge"];
    assert_fails(&run("shape eth9 --qdisc fq --device xdp"), 2, about);
    assert_fails(&run("shape eth9 --qdisc fq --device packet"), 2, about);
    assert_fails(&run("shape lo lo"), 2, &["one interface, or two"]);
    assert_fails(&run("shape lo eth9 --qdisc fifo"), 2, &["--qdisc: ", "fifo"]);
    assert_fails(&run("shape a b --egress 'tbf rate 1mbit'"), 2, &["--egress: "]);
    let unused = "shape a b --qdisc fq --egress fq --ingress fq";
    assert_fails(&run(unused), 2, &["--qdisc has no effect"]);
    assert_fails(&run("shape a b --setup /no/such/file"), 1, &["/no/such/file"]);
    assert_fails(&run("shape a b --setup x --then fq"), 2, &["--setup", "--then"]);
    assert_fails(&run("shape no-such0 no-such1"), 1, &["no interface no-such0", "there are", "lo"]);
    assert_fails(&run("shape lo no-such1"), 1, &["lo is the loopback interface"]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("lines.tc");
    for (lines, words) in [
        ("qdisc add dev c root fq", &["line 1", "it is about c", "a or b"][..]),
        ("# nothing\n\nqdisc add root fq", &["line 3", "no device"]),
        ("qdisc add dev a root fq\nqdisc add dev b root fqq", &["line 2", "fqq"]),
        ("# nothing", &["no root"]),
    ] {
        fs::write(&file, lines).expect("a file");
        assert_fails(&run(&format!("shape a b --setup {}", file.display())), 1, words);
    }
}
