//! Trees in which each destination has a qdisc of its own.

use super::{assert_conserved, has, received, receiver, told};
use crate::stderr;

/// A tree such as that in docs/exec.md: what goes to one network is lost, what goes to one port of
/// another address is delayed, and the rest leaves at once, in IPv4 and IPv6 and from sockets for
/// both.
#[test]
fn each_destination_has_a_qdisc_of_its_own() {
    const TREE: &str = "\
qdisc add dev out root handle 1: prio bands 3 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
qdisc add dev out parent 1:2 netem loss 100%
qdisc add dev out parent 1:3 netem delay 30s
filter add dev out parent 1: protocol ip prio 1 flower dst_ip 127.0.2.0/24 flowid 1:2
filter add dev out parent 1: protocol ipv6 prio 2 flower ip_proto udp dst_ip ::1 dst_port PORT \
flowid 1:2
filter add dev out parent 1: protocol ip prio 3 flower ip_proto udp dst_ip 127.0.3.1 dst_port PORT \
flowid 1:3
";
    const SCRIPT: &str = "
import socket, sys
port = int(sys.argv[1])
s = socket.socket(type=socket.SOCK_DGRAM)
both = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
for i in range(5):
    s.sendto(b'lost', ('127.0.2.9', port + i))
    both.sendto(b'lost', ('::ffff:127.0.2.1', port + i))
    s.sendto(b'delayed', ('127.0.3.1', port))
    both.sendto(b'delayed', ('::ffff:127.0.3.1', port))
    s.sendto(b'direct', ('127.0.3.1', port + 1))
    s.sendto(b'direct', ('127.0.4.1', port))
    both.sendto(b'direct', ('::1', port + 1))
both.sendto(b'lost', ('::1', port))
";
    if !has("python3") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let tree = folder.path().join("tree.tc");
    std::fs::write(&tree, TREE.replace("PORT", "4000")).expect("room");
    let options = ["--setup", tree.to_str().expect("UTF-8"), "--drain", "0"];
    let (document, output) = told(&options, &["python3", "-c", SCRIPT, "4000"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_conserved(&document);
    let counts = ["datagrams", "sent", "queued"].map(|key| &document[key]);
    assert_eq!(counts, [36, 15, 10].map(serde_json::Value::from).each_ref(), "{document}");
    assert_eq!(document["drops"]["impaired"], 11);
    for flow in document["processes"][0]["flows"].as_array().expect("a list") {
        let remote = flow["remote"].as_str().expect("an address");
        let sum = ["sent", "queued"].map(|key| flow[key].as_u64().expect("a number"));
        let expected = match remote {
            "127.0.3.1:4000" => [0, 5],
            "[::1]:4000" => [0, 0],
            remote if remote.starts_with("127.0.2.") => [0, 0],
            _ => [5, 0],
        };
        assert_eq!(sum, expected, "{flow}");
    }
}

/// By default, `prio` sends what has low delay (`IP_TOS` 0x10) through its first band, whether the
/// socket or the message says so: as in Linux.
#[test]
fn the_type_of_service_sets_the_priority() {
    const SCRIPT: &str = "
import socket, sys
to = ('127.0.0.1', int(sys.argv[1]))
s = socket.socket(type=socket.SOCK_DGRAM)
s.sendto(b'best effort', to)
s.sendmsg([b'lost'], [(socket.IPPROTO_IP, socket.IP_TOS, bytes([0x10]))], 0, to)
s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x10)
s.sendto(b'lost', to)
s.sendmsg([b'none'], [(socket.IPPROTO_IP, socket.IP_TOS, bytes(1))], 0, to)
s.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 0)
s.sendto(b'by priority', to)
";
    if !has("python3") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let tree = folder.path().join("tree.tc");
    let lines = "qdisc add dev out root handle 1: prio\n\
                 qdisc add dev out parent 1:1 netem loss 100%\n";
    std::fs::write(&tree, lines).expect("room");
    let (socket, port) = receiver();
    let options = ["--setup", tree.to_str().expect("UTF-8")];
    let (_, output) = told(&options, &["python3", "-c", SCRIPT, &port]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(received(&socket), [&b"best effort"[..], b"none", b"by priority"]);
}
