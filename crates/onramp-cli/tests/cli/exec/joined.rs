//! Datagrams of several messages (`MSG_MORE`, `UDP_CORK`), while others of their socket wait.

use super::{assert_conserved, has, received, receiver, told};
use crate::stderr;

/// A datagram waits; then the program begins another one, which goes around, and ends it when the
/// first one has long been due.
const SCRIPT: &str = "
import socket, sys, time
s = socket.socket(type=socket.SOCK_DGRAM)
s.connect(('127.0.0.1', int(sys.argv[1])))
way = sys.argv[2]
assert s.send(b'late') == 4
if way == 'more':
    assert s.send(b'one, ', socket.MSG_MORE) == 5
    time.sleep(0.3)
    assert s.send(b'two') == 3
else:
    s.setsockopt(17, 1, 1)
    if way == 'cork later':
        time.sleep(0.3)
    assert s.send(b'one, ') == 5
    if way == 'cork':
        time.sleep(0.3)
    assert s.send(b'two') == 3
    s.setsockopt(17, 1, 0)
";

/// Nothing is glued to the datagram that the program has begun.
#[test]
fn what_waits_leaves_after_a_datagram_that_the_program_has_begun() {
    if !has("python3") {
        return;
    }
    for way in ["more", "cork", "cork later"] {
        let (socket, port) = receiver();
        let options = ["--qdisc", "netem delay 100ms", "--drain", "60"];
        let (document, output) = told(&options, &["python3", "-c", SCRIPT, &port, way]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(received(&socket), [&b"one, two"[..], b"late"], "{way}");
        assert_conserved(&document);
        let counts = ["datagrams", "sent", "around"].map(|key| &document[key]);
        assert_eq!(counts, [1, 1, 2].map(serde_json::Value::from).each_ref(), "{document}");
    }
}

/// A datagram that never ends, in a process that ends: what waits is counted as left.
#[test]
fn what_waits_for_a_datagram_without_end_is_counted() {
    const SCRIPT: &str = "
import socket, sys
s = socket.socket(type=socket.SOCK_DGRAM)
s.connect(('127.0.0.1', int(sys.argv[1])))
assert s.send(b'late') == 4
assert s.send(b'one, ', socket.MSG_MORE) == 5
";
    if !has("python3") {
        return;
    }
    let (socket, port) = receiver();
    let options = ["--qdisc", "netem delay 20ms", "--drain", "0.3"];
    let (document, output) = told(&options, &["python3", "-c", SCRIPT, &port]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(received(&socket).len(), 0);
    assert_eq!((&document["sent"], &document["queued"]), (&0.into(), &1.into()), "{document}");
    assert_conserved(&document);
}
