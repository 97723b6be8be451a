//! A socket for which the kernel has no room, because it sends to a neighbour that does not answer.

use std::process::Command;

use super::{assert_conserved, has, told};
use crate::{skip_kernel, stderr};

/// A network of its own with a neighbour 10.53.0.2, whom nobody knows at first.
const NETWORK: &str = "ip link set lo up && ip link add v0 type veth peer name v1 && \
ip link set v0 up && ip link set v1 up && ip addr add 10.53.0.1/24 dev v0 && \
ip ntable change name arp_cache dev v0 mcast_probes 200 && \
until ip -o link show v0 | grep -q 'state UP'; do sleep 0.02; done";

/// Fills a socket with datagrams to the neighbour, and sends from another socket, also in a child.
/// Then it closes the first socket, and the neighbour is found.
const SCRIPT: &str = "
import os, socket, subprocess, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
wire.bind(('v1', 0x0800))
wire.settimeout(60)
receiver = socket.socket(type=socket.SOCK_DGRAM)
receiver.bind(('127.0.0.1', 0))
receiver.settimeout(60)
stuck, other = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(2)]
stuck.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
stuck.setblocking(False)
def fill(first):
    for number in range(first, 1000):
        try:
            stuck.sendto(b'%04d' % number + bytes(996), ('10.53.0.2', 9))
        except BlockingIOError:
            return number
count = fill(0)
def goes_on(word):
    other.sendto(word, receiver.getsockname())
    assert receiver.recv(100) == word
goes_on(b'parent')
child = os.fork()
if child == 0:
    links = ['/proc/self/fd/' + fd for fd in os.listdir('/proc/self/fd')]
    sockets = [fd for fd in links if os.path.exists(fd) and os.readlink(fd).startswith('socket:')]
    # Only those that the script has made, and no duplicate.
    assert len(sockets) == 4, sockets
    goes_on(b'child')
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
# The neighbour is still unknown.
assert fill(count) == count
stuck.close()
subprocess.run('ip neigh replace 10.53.0.2 lladdr 02:00:00:00:00:02 dev v0', shell=True, check=True)
got = [int(wire.recv(2000)[42:46]) for _ in range(count)]
assert got == list(range(count)), got
print(count)
";

#[test]
fn a_neighbour_that_does_not_answer_holds_up_one_socket() {
    if !has("python3") || !has("ip") {
        return;
    }
    let unshare = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c"];
    let probe = Command::new(unshare[0]).args(&unshare[1..]).arg(NETWORK).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return skip_kernel("a network with neighbours needs user namespaces and veth");
    }
    let script = format!("{NETWORK} && exec python3 -c \"$0\"");
    let program = [&unshare[..], &[&script, SCRIPT]].concat();
    let (document, output) = told(&["--drain", "60"], &program);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_conserved(&document);
    let count: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
    assert!(count > 3, "{count}");
    assert_eq!((&document["sent"], &document["queued"]), (&(count + 2).into(), &0.into()));
}
