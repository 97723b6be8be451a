//! Datagrams that carry an ECN code point, and that qdiscs mark.

use super::{assert_conserved, has, told};
use crate::stderr;

/// Sends from and to itself. `got` prints the payload and the traffic class of what has come.
const BOTH: &str = "
import socket, struct, sys
def receiver(family, address):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.bind((address, 0))
    s.settimeout(60)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
    return s
def got(s):
    data, control, *_ = s.recvmsg(100, 100)
    print(data.decode(), *[message[0] for _, _, message in control])
four = receiver(socket.AF_INET, '127.0.0.1')
six = receiver(socket.AF_INET6, '::1')
s = socket.socket(type=socket.SOCK_DGRAM)
t = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
def tos(s, value): s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, value)
def tclass(s, value): s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, value)
";

/// `netem` marks all that can carry a mark, at once, and drops the rest. The DSCP stays.
#[test]
fn marks_reach_the_receiver() {
    const SCRIPT: &str = "
tos(s, 0xb8)
s.sendto(b'not ECT', four.getsockname())
tos(s, 0xba)
s.sendto(b'ECT(0)', four.getsockname())
got(four)
tos(s, 0x29)
s.connect(four.getsockname())
s.send(b'ECT(1)')
got(four)
s.sendmsg([b'message'], [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack('i', 0x66))])
got(four)
s.sendmsg([b'byte'], [(socket.IPPROTO_IP, socket.IP_TOS, b'\\x46')])
got(four)
s.sendmsg([b'not ECT'], [(socket.IPPROTO_IP, socket.IP_TOS, b'\\x44')])
t.sendto(b'not ECT', six.getsockname())
tclass(t, 0x52)
tos(t, 0x2a)
t.sendto(b'v6', six.getsockname())
got(six)
level, kind = socket.IPPROTO_IPV6, socket.IPV6_TCLASS
for value in [0x89, -1]:
    t.sendmsg([b'v6 message'], [(level, kind, struct.pack('i', value))], 0, six.getsockname())
    got(six)
t.sendto(b'mapped', ('::ffff:127.0.0.1', four.getsockname()[1]))
got(four)
";
    if !has("python3") {
        return;
    }
    let script = format!("{BOTH}{SCRIPT}");
    let (document, output) = told(&["--qdisc", "netem loss 100% ecn"], &["python3", "-c", &script]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let expected = [
        ("ECT(0)", 0xbb),
        ("ECT(1)", 0x2b),
        ("message", 0x67),
        ("byte", 0x47),
        ("v6", 0x53),
        ("v6 message", 0x8b),
        ("v6 message", 0x53),
        ("mapped", 0x2b),
    ];
    let expected: String = expected.map(|(data, class)| format!("{data} {class}\n")).concat();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert_conserved(&document);
    let counts = ["datagrams", "sent", "marked", "around"].map(|key| &document[key]);
    assert_eq!(counts, [11, 8, 8, 0].map(serde_json::Value::from).each_ref());
    assert_eq!(document["drops"]["impaired"], 3);
    assert!(stderr(&output).contains("8 marked (ECN)"), "{}", stderr(&output));
}

/// Behind a slow rate, `codel` marks what has waited for longer than `ce_threshold`: those that the
/// thread of the library sends, after the program's call has returned.
#[test]
fn what_has_waited_is_marked() {
    const SCRIPT: &str = "
tos(s, 0x02)
for i in range(20): s.sendto(bytes(1000), four.getsockname())
s.close()
for i in range(20): print(four.recvmsg(2000, 100)[1][0][2][0])
";
    if !has("python3") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let tree = folder.path().join("tree.tc");
    let lines = "qdisc add dev out root handle 1: tbf rate 80kbit burst 1100 limit 1000000\n\
                 qdisc add dev out parent 1: codel target 1s interval 9s ce_threshold 1ms\n";
    std::fs::write(&tree, lines).expect("room");
    let script = format!("{BOTH}{SCRIPT}");
    let options = ["--setup", tree.to_str().expect("UTF-8"), "--drain", "60"];
    let (document, output) = told(&options, &["python3", "-c", &script]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // The first one leaves at once. How many further ones are late depends on the machine, but not
    // that the last one is.
    let got = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(got.starts_with("2\n") && got.ends_with("3\n"), "{got}");
    assert_eq!(document["marked"], got.matches('3').count());
    assert_eq!(document["sent"], 20);
}
