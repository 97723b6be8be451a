//! A bridge of the daemon by AF_XDP.

use std::fs;

use super::read_json;
use super::shape::{DAEMON, assert_ok, in_network};

/// The interfaces have several queues each to receive from. Frames pass whichever queue they come
/// to, through the qdiscs, and are counted.
#[test]
fn the_daemon_bridges_by_af_xdp() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "\
{DAEMON}
for side in 0:c 1:s; do
    ip link del eth${{side%:*}}
    ip link add eth${{side%:*}} numrxqueues 3 numtxqueues 3 type veth \\
        peer name e0 numrxqueues 3 numtxqueues 3 netns ${{side#*:}}
    ip link set eth${{side%:*}} up
    ip -n ${{side#*:}} link set e0 up
done
ip -n c addr add 192.0.2.1/24 dev e0
ip -n s addr add 192.0.2.2/24 dev e0
o ip link add lan up type xdp interface eth0 to eth1 peer name wan up
ip -d link show eth0 | grep -q prog/xdp
o tc qdisc add dev wan root netem delay 200ms
for number in 1 2 3 4 5; do client ping -q -c1 -W30 192.0.2.2; done > delayed
o tc qdisc replace dev wan root tbf rate 50mbit burst 64kb latency 50ms
for number in 1 2 3; do
    head -c 1000000 /dev/urandom > sent
    listen sh -c 'nc -l -p 7000 > got'
    client nc -N 192.0.2.2 7000 < sent
    wait $!
    cmp sent got
done
o tc -s -j qdisc show dev wan > qdiscs.json
o ip -s -j link show > links.json
o save > saved
o ip link add x type packet interface eth0 to eth1 peer name y 2>> refused && exit 9
o ip link del lan
ip -d link show eth0 | grep -q prog/xdp && exit 8
ip addr add 192.0.2.9/24 dev eth1
o ip link add lan type xdp interface eth0 to eth1 peer name wan 2>> refused && exit 9
ip addr del 192.0.2.9/24 dev eth1
ip link set eth1 mtu 9000
o ip link add lan type xdp interface eth0 to eth1 peer name wan 2>> refused && exit 9
end
"
    );
    let Some(output) = in_network(folder.path(), 1_500, &script) else { return };
    assert_ok(folder.path(), &output);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect(name);
    let qdisc = &read_json(&folder.path().join("qdiscs.json"))[0];
    assert!(qdisc["kind"] == "tbf" && qdisc["bytes"].as_u64() > Some(3_000_000), "{qdisc}");
    let links = read_json(&folder.path().join("links.json"));
    let mut links = links.as_array().expect("a list").iter();
    let lan = links.find(|link| link["ifname"] == "lan").expect("it is there");
    assert!(lan["stats64"]["rx"]["bytes"].as_u64() > Some(3_000_000), "{lan}");
    let saved = read("saved");
    let line = "ip link add dev lan numtxqueues 1 type xdp interface eth0 to eth1 peer name wan";
    assert!(saved.contains(line), "{saved}");
    assert_eq!(read("delayed").matches(" 1 received").count(), 5, "{}", read("delayed"));
    let refused = read("refused");
    for words in [
        "another Onramp carries what comes in through eth0 already",
        "eth1 has the address 192.0.2.9",
        "the MTU of eth1 is 9000 bytes, and AF_XDP has frames for 3822",
    ] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
}

/// Who lacks rights learns of all that are needed at once, whichever is missing, and of no option
/// that the command does not have.
#[test]
fn all_rights_that_are_missing_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "\
for kept in '' ,+net_raw ,+net_raw,+net_admin; do
    setpriv --bounding-set=-all$kept \"$ONRAMP\" shape eth0 eth1 --device xdp 2>> told && exit 9
done
true
";
    let Some(output) = in_network(folder.path(), 1_500, script) else { return };
    assert_ok(folder.path(), &output);
    let told = fs::read_to_string(folder.path().join("told")).expect("messages");
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 3, "{told}");
    for line in lines {
        for words in ["eth0", "CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF"] {
            assert!(line.contains(words), "{words}: {line}");
        }
        assert!(!line.contains("generic") && !line.contains("fewer frames"), "{line}");
    }
}
