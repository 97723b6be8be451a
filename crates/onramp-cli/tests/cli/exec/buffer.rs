//! How many datagrams the send buffer of a socket has room for: as many as in Linux.

use std::process::Command;

use serde_json::Value;

use super::{exec, has, receiver, told};
use crate::{skip_kernel, stderr};

/// A network with a qdisc of the kernel, which lets nothing leave after the first datagrams.
const NETWORK: &str = "ip link set lo up && \
tc qdisc replace dev lo root tbf rate 8bit burst 66000 limit 2000000000";

/// Prints, for sizes of the payload, how many datagrams a socket takes before a qdisc that lets
/// nothing leave. The first two use up the burst of the qdisc. The sizes are none at which kernels
/// of different versions charge differently.
const SCRIPT: &str = "
import socket, sys
for family, to in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):
    for _ in range(2):
        socket.socket(family, socket.SOCK_DGRAM).sendto(bytes(65000), (to, 9))
    for size in 300, 600, 660, 1000, 1472, 1640, 1700, 4000, 7700, 7900, 16100, 30000, 65000:
        s = socket.socket(family, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50000)
        s.setblocking(False)
        count = 0
        try:
            while True:
                s.sendto(bytes(size), (to, 9))
                count += 1
        except BlockingIOError:
            print(family.name, size, count)
";

#[test]
fn a_socket_takes_as_many_datagrams_as_in_linux() {
    if !has("python3") || !has("ip") || !has("tc") {
        return;
    }
    let unshare = ["--user", "--map-root-user", "--net", "sh", "-c"];
    // Without its removal, the qdisc would keep the datagrams, they their sockets, and these the
    // network for ever, together with errors of ICMP that count against the whole machine's.
    let script =
        format!("{NETWORK} || exit 77; trap 'tc qdisc del dev lo root' EXIT; python3 -c \"$0\"");
    let output = Command::new("unshare").args(unshare).args([&script, SCRIPT]).output();
    let plain = match output {
        Ok(output) if output.status.success() => output,
        Ok(output) if output.status.code() != Some(77) && output.status.code() != Some(1) => {
            panic!("{}", stderr(&output))
        }
        _ => return skip_kernel("a network with a qdisc needs user namespaces and tbf"),
    };
    let qdisc = "tbf rate 8bit burst 66000 limit 2000000000";
    let options = ["--qdisc", qdisc, "--drain", "0", "--quiet"];
    let shaped = exec(&options, &["python3", "-c", SCRIPT]).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&plain.stdout).lines().count(), 26, "{}", stderr(&plain));
    assert_eq!(text(&shaped.stdout), text(&plain.stdout), "{}", stderr(&shaped));
}

/// A program that sends as fast as it can from a blocking socket has to wait for its send buffer
/// before it meets the limit that `fq` has for a flow, 100 datagrams, unless they are small.
#[test]
fn the_send_buffer_is_full_before_the_limit_of_a_flow() {
    const SCRIPT: &str = "
import socket, sys
s = socket.socket(type=socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 106496)
for _ in range(500):
    s.sendto(bytes(int(sys.argv[2])), ('127.0.0.1', int(sys.argv[1])))
";
    if !has("python3") {
        return;
    }
    let (_socket, port) = receiver();
    for (payload, is_dropped) in [("1000", false), ("600", true)] {
        let options = ["--qdisc", "fq maxrate 8mbit", "--drain", "60"];
        let (document, output) = told(&options, &["python3", "-c", SCRIPT, &port, payload]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let sent = document["sent"].as_u64().expect("a number");
        assert_eq!(document["drops"]["fq_flow_limit"].is_u64(), is_dropped, "{document}");
        assert_eq!(sent < 500, is_dropped, "{document}");
        assert_eq!(document["datagrams"], Value::from(500));
    }
}
