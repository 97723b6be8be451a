//! Filters of `ingress` and `clsact` on frames between real clients and servers.

use std::fs;

use serde_json::Value;

use super::shape::{DAEMON, HOST, assert_ok, in_network};
use super::{assert_fails, read_json, run};

/// Returns the `stats` of the actions in a listing of filters.
fn actions(listing: &Value) -> Vec<[u64; 3]> {
    let filters = listing.as_array().expect("a list").iter();
    let actions = filters.filter_map(|filter| filter["options"]["actions"].as_array()).flatten();
    let stats = actions.map(|action| {
        ["bytes", "packets", "drops"].map(|key| action["stats"][key].as_u64().expect("a number"))
    });
    stats.collect()
}

/// Frames that come in at one end of a bridge meet the filters at its ingress, and frames that
/// leave through the other end those at its egress, while other frames pass.
#[test]
fn frames_of_a_bridge_meet_filters() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "\
{DAEMON}
o ip link add lan up type packet interface eth0 to eth1 peer name wan up
o tc qdisc add dev wan root handle 1: prio
client ping -q -c3 -i0.1 -W5 192.0.2.2
o tc qdisc add dev lan ingress
o tc filter add dev lan ingress protocol ip pref 1 flower ip_proto icmp action drop 2> warned
test ! -s warned
client ping -q -c3 -i0.1 -W1 192.0.2.2 && exit 6
client ping -q -c2 -i0.1 -W5 2001:db8::2
head -c 1000000 /dev/urandom > sent
listen sh -c 'nc -l -p 7000 > got'
client nc -N 192.0.2.2 7000 < sent
wait $!
cmp sent got
o tc -s -j filter show dev lan ingress > dropped.json
o tc -s -j qdisc show dev lan ingress > ingress.json
o ip -s -j link show lan > lan.json
o tc filter replace dev lan ingress protocol ip pref 1 handle 1 flower ip_proto icmp \\
    action skbedit priority 1:3
o tc -s -j class show dev wan > before.json
for n in 1 2 3 4 5; do client ping -q -c1 -W30 192.0.2.2; done
o tc -s -j class show dev wan > after.json
o tc qdisc add dev wan clsact
o tc filter add dev wan egress protocol ip flower ip_proto icmp action drop
client ping -q -c4 -i0.1 -W1 192.0.2.2 && exit 7
until
    o tc -s -j filter show dev wan egress > egress.json
    grep -Eq '\"packets\": ?4\\b' egress.json
do sleep 0.1; done
o tc qdisc del dev wan clsact
o tc qdisc del dev lan ingress
client ping -q -c1 -W5 192.0.2.2
end
"
    );
    let Some(output) = in_network(folder.path(), 1_500, &script) else { return };
    assert_ok(folder.path(), &output);
    let json = |name: &str| read_json(&folder.path().join(name));
    // A ping has 84 bytes of IP. What comes in counts without the Ethernet header.
    assert_eq!(actions(&json("dropped.json")), [[252, 3, 3]]);
    let ingress = &json("ingress.json")[0];
    assert_eq!((&ingress["kind"], &ingress["drops"]), (&"ingress".into(), &3.into()), "{ingress}");
    let received = json("lan.json")[0]["stats64"]["rx"].clone();
    assert_eq!(received["dropped"], 0, "the device has received what the filter dropped");
    assert!(received["bytes"].as_u64() > ingress["bytes"].as_u64(), "{received} {ingress}");
    assert!(ingress["bytes"].as_u64() > Some(1_000_000), "what passed, too: {ingress}");
    let third = |name: &str| {
        let classes = json(name);
        let mut classes = classes.as_array().expect("a list").iter();
        let class = classes.find(|class| class["handle"] == "1:3").expect("a band");
        class["stats"]["packets"].as_u64().or_else(|| class["packets"].as_u64()).expect("a number")
    };
    assert_eq!((third("before.json"), third("after.json")), (0, 5));
    assert_eq!(actions(&json("egress.json")), [[4 * 98, 4, 4]]);
}

/// What a host itself sends through a detour comes in and leaves at the same device.
#[test]
fn frames_of_a_detour_meet_filters() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "\
{DAEMON}
{HOST}
o ip link add out up type detour interface eth0
o tc qdisc add dev out clsact
o tc filter add dev out ingress protocol ip pref 1 flower ip_proto icmp dst_ip 192.0.2.1 \\
    action police rate 8bit burst 168 conform-exceed drop/pipe
o tc filter add dev out egress protocol ip pref 1 flower ip_proto icmp action pass
ping -q -c9 -i0.01 -W1 192.0.2.1 || true
until
    o tc -s -j filter show dev out ingress > in.json
    o tc -s -j filter show dev out egress > out.json
    grep -Eq '\"packets\": ?9\\b' in.json && grep -Eq '\"packets\": ?2\\b' out.json
do sleep 0.1; done
end
"
    );
    let Some(output) = in_network(folder.path(), 1_500, &script) else { return };
    assert_ok(folder.path(), &output);
    let [came_in, left] = ["in.json", "out.json"].map(|name| {
        let counted = actions(&read_json(&folder.path().join(name)));
        assert_eq!(counted.len(), 1, "{counted:?}");
        counted[0]
    });
    // Two pings use the burst up. A third would find tokens after 84 seconds.
    assert_eq!((came_in, left), ([9 * 84, 9, 7], [2 * 98, 2, 0]));
}

/// A shaper applies the egress filters of its lines. It refuses filters at an ingress, because
/// nothing comes in where its trees stand.
#[test]
fn lines_of_a_shaper_filter_what_leaves() {
    let folder = tempfile::tempdir().expect("a folder");
    let lines = "\
qdisc add dev eth1 root handle 1: fq
qdisc add dev eth1 clsact
filter add dev eth1 egress protocol ip flower ip_proto icmp action drop
qdisc add dev eth0 root fq
";
    fs::write(folder.path().join("lines.tc"), lines).expect("a file");
    let refused = folder.path().join("refused.tc");
    fs::write(&refused, lines.replace("egress", "ingress")).expect("a file");
    for command in
        ["shape eth0 eth1 --setup FILE", "wire --setup FILE -- true", "exec --setup FILE -- true"]
    {
        let output = run(&command.replace("FILE", &refused.display().to_string()));
        assert_fails(&output, 1, &["line 3", "nothing comes in", "egress in place of ingress"]);
    }
    let script = "\
shape --setup lines.tc
client ping -q -c2 -i0.1 -W5 2001:db8::2
client ping -q -c3 -i0.1 -W10 192.0.2.2 && exit 6
finish
";
    let Some(output) = in_network(folder.path(), 1_500, script) else { return };
    assert_ok(folder.path(), &output);
    let shaped = read_json(&folder.path().join("shaped.json"));
    let dropped: u64 = ["egress", "ingress"]
        .iter()
        .filter_map(|way| shaped[way]["drops"]["filter"].as_u64())
        .sum();
    assert_eq!(dropped, 3, "{shaped}");
}
