//! A program that closes a socket while one of its threads waits for room in it, and then opens
//! another file, which gets the number of the socket's descriptor.

use super::{assert_conserved, has, received, receiver, told};
use crate::stderr;

/// What goes to the port `FAST` leaves at once. The rest has a rate at which the second datagram
/// waits for twelve seconds.
const TREE: &str = "\
qdisc add dev out root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
qdisc add dev out parent 1:1 tbf rate 2kbit burst 5000 limit 1000000
filter add dev out parent 1: protocol ip prio 1 flower ip_proto udp dst_port FAST flowid 1:2
";

/// Sends two datagrams to the first port; the second one waits, and takes the whole room. A thread
/// sends a third one, to the second port, and waits for room, until the second one leaves. Then the
/// number of the socket is that of a connection.
const SCRIPT: &str = "
import os, socket, sys, threading, time
first, second = [('127.0.0.1', int(port)) for port in sys.argv[1:]]
listener = socket.create_server(('127.0.0.1', 0))
s = socket.socket(type=socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
assert s.sendto(bytes(4000), first) == 4000
assert s.sendto(bytes(4000), first) == 4000
number, sent = s.fileno(), []
thread = threading.Thread(target=lambda: sent.append(s.sendto(bytes(4000), second)))
thread.start()
def slept():
    # A thread that has not once gone to sleep or woken in the meantime has slept all the time.
    lines = open('/proc/self/task/%d/status' % thread.native_id).readlines()
    return [line for line in lines if 'ctxt_switches' in line or 'sleeping' in line]
before = None
while before != slept() or len(before) < 3:
    before = slept()
    time.sleep(0.02)
assert sent == []
os.close(number)
connection = socket.create_connection(listener.getsockname())
assert connection.fileno() == number
peer, _ = listener.accept()
peer.settimeout(60)
thread.join()
assert sent == [4000]
connection.close()
assert peer.recv(10000) == b''
os._exit(0)
";

/// The datagram leaves from its socket, and the peer of the connection gets the end of the stream
/// and nothing else, if the datagram leaves within the call and if it waits once more.
#[test]
fn a_datagram_leaves_from_its_socket_although_another_file_has_its_number() {
    if !has("python3") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let tree = folder.path().join("tree.tc");
    let options = ["--setup", tree.to_str().expect("UTF-8"), "--drain", "60"];
    for leaves_at_once in [false, true] {
        let [(slow, slow_port), (fast, fast_port)] = [receiver(), receiver()];
        std::fs::write(&tree, TREE.replace("FAST", &fast_port)).expect("room");
        let second = if leaves_at_once { &fast_port } else { &slow_port };
        let program = ["python3", "-c", SCRIPT, &slow_port, second];
        let (document, output) = told(&options, &program);
        assert_eq!(output.status.code(), Some(0), "{leaves_at_once}: {}", stderr(&output));
        let counts = ["datagrams", "sent", "queued"].map(|key| &document[key]);
        assert_eq!(counts, [3, 3, 0].map(serde_json::Value::from).each_ref(), "{document}");
        assert_conserved(&document);
        let expected = if leaves_at_once { [2, 1] } else { [3, 0] };
        assert_eq!([&slow, &fast].map(|socket| received(socket).len()), expected);
        let local = |flow: &serde_json::Value| flow["local"].clone();
        let flows = document["processes"][0]["flows"].as_array().expect("a list");
        assert!(flows.iter().all(|flow| local(flow) == local(&flows[0])), "{document}");
    }
}
