//! Programs whose datagrams pass a qdisc: `onramp exec`.

#[path = "exec/buffer.rs"]
mod buffer;
#[path = "exec/errors.rs"]
mod errors;
#[path = "exec/joined.rs"]
mod joined;
#[path = "exec/limits.rs"]
mod limits;
#[path = "exec/marks.rs"]
mod marks;
#[path = "exec/neighbour.rs"]
mod neighbour;
#[path = "exec/odd.rs"]
mod odd;
#[path = "exec/refused.rs"]
mod refused;
#[path = "exec/reused.rs"]
mod reused;
#[path = "exec/room.rs"]
mod room;
#[path = "exec/trees.rs"]
mod trees;
#[path = "exec/unusual.rs"]
mod unusual;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

use onramp_core::Clock as _;
use onramp_dev::MonotonicClock;
use serde_json::Value;

use crate::{onramp, skip, stderr};

/// Far more than the tests need.
const LONG: Duration = Duration::from_secs(60);
/// How long nothing comes before a test believes that nothing will.
const QUIET: Duration = Duration::from_millis(300);

/// Returns the path of the library: the one that `cargo xtask test` has built and names in the
/// environment, or else builds it.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(path) = std::env::var_os("ONRAMP_TEST_PRELOAD") {
            return path.into();
        }
        // The folder of the program under test, such as `target/debug`.
        let folder = Path::new(env!("CARGO_BIN_EXE_onramp")).parent().expect("a folder");
        let name = folder.file_name().and_then(|name| name.to_str()).expect("a name");
        let profile = if name == "debug" { "dev" } else { name };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "onramp-preload", "--profile", profile]);
        cargo.arg("--target-dir").arg(folder.parent().expect("a folder"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = cargo.output().expect("cargo runs");
        assert!(output.status.success(), "{}", stderr(&output));
        folder.join("libonramp_preload.so")
    })
}

/// Returns a command that runs a program through qdiscs; `options` are those of `onramp exec`.
fn exec(options: &[&str], program: &[&str]) -> Command {
    let words = ["exec"].iter().chain(options).chain(&["--"]).chain(program);
    let mut command = onramp(words.copied());
    command.env("ONRAMP_PRELOAD", library());
    command
}

/// Runs a program, and returns what the command says as JSON.
fn told(options: &[&str], program: &[&str]) -> (Value, Output) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("told.json");
    let path = file.to_str().expect("UTF-8");
    let output = exec(&[options, &["--json", path]].concat(), program).output().expect("it runs");
    assert!(file.is_file(), "{}", stderr(&output));
    let document = crate::read_json(&file);
    assert_eq!((&document["schema"], &document["version"]), (&"onramp.exec".into(), &1.into()));
    (document, output)
}

/// Returns whether a tool is there, and says that the test is skipped if not.
fn has(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    if !found {
        skip(&format!("exec: no {tool}"));
    }
    found
}

/// A socket that gets what the programs under test send.
fn receiver() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = socket.local_addr().expect("an address").port().to_string();
    (socket, port)
}

/// Returns the datagrams that have come to a socket, when no further one comes.
fn received(socket: &UdpSocket) -> Vec<Vec<u8>> {
    socket.set_read_timeout(Some(QUIET)).expect("it is open");
    let (mut all, mut room) = (Vec::new(), vec![0; 65_536]);
    loop {
        match socket.recv(&mut room) {
            Ok(len) => all.push(room[..len].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Asserts that each datagram is sent, dropped or left, in all and for each process.
fn assert_conserved(document: &Value) {
    let number = |value: &Value| value.as_u64().expect("a number");
    let processes = document["processes"].as_array().expect("a list");
    for part in processes.iter().chain([document]) {
        let drops: u64 = part["drops"].as_object().expect("a table").values().map(number).sum();
        let came = number(&part["datagrams"]) + number(&part["made"]);
        assert_eq!(came, number(&part["sent"]) + drops + number(&part["queued"]), "{part}");
    }
}

/// Sends datagrams that begin with their number, 500 bytes each.
const SENDER: &str = "
import socket, sys
to = ('127.0.0.1', int(sys.argv[1]))
s = socket.socket(type=socket.SOCK_DGRAM)
for i in range(int(sys.argv[2])):
    assert s.sendto(b'%04d' % i + bytes(496), to) == 500
s.close()
";

/// 100 datagrams of 542 bytes on the wire take 433 ms at 1 Mbit/s, without those of the burst. A
/// slow machine may take longer.
#[test]
fn a_rate_is_kept_and_what_waits_outlives_its_socket() {
    if !has("python3") {
        return;
    }
    let (socket, port) = receiver();
    let begin = MonotonicClock.now();
    let qdisc = ["--qdisc", "tbf rate 1mbit burst 2000 limit 1000000", "--drain", "60"];
    let (document, output) = told(&qdisc, &["python3", "-c", SENDER, &port, "100"]);
    let took = Duration::from_nanos(MonotonicClock.now().since(begin));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(took >= Duration::from_millis(415), "{took:?}");
    let numbers: Vec<_> = received(&socket).iter().map(|datagram| datagram[..4].to_vec()).collect();
    let expected: Vec<_> = (0..100).map(|i| format!("{i:04}").into_bytes()).collect();
    assert_eq!(numbers, expected);
    assert_conserved(&document);
    let counts = ["datagrams", "sent", "sent_bytes", "queued", "around"].map(|key| &document[key]);
    assert_eq!(counts, [100, 100, 54_200, 0, 0].map(Value::from).each_ref());
    let flow = &document["processes"][0]["flows"][0];
    assert_eq!(flow["remote"], format!("127.0.0.1:{port}"));
    assert!(flow["local"].as_str().is_some_and(|local| !local.ends_with(":0")), "{flow}");
    let text = stderr(&output);
    assert!(text.contains("100 datagrams sent; 1 process, 1 flow"), "{text}");
}

#[test]
fn losses_and_copies_are_counted() {
    if !has("python3") {
        return;
    }
    let (socket, port) = receiver();
    let program = ["python3", "-c", SENDER, &port, "20"];
    let (document, output) = told(&["--qdisc", "netem loss 100%"], &program);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(received(&socket).len(), 0);
    assert_eq!((&document["sent"], &document["drops"]["impaired"]), (&0.into(), &20.into()));
    assert_conserved(&document);
    let (document, _) = told(&["--qdisc", "netem delay 5ms duplicate 100%"], &program);
    assert_eq!(received(&socket).len(), 40);
    assert_eq!((&document["made"], &document["sent"]), (&20.into(), &40.into()));
    assert_conserved(&document);
}

/// All calls with which a program can send a datagram, in one order.
#[test]
fn each_way_of_sending_passes_the_qdisc() {
    const SCRIPT: &str = "
import ctypes, os, socket, struct, sys
to = ('127.0.0.1', int(sys.argv[1]))
s = socket.socket(type=socket.SOCK_DGRAM)
n = 0
def next():
    global n
    n += 1
    return b'%04d' % n + bytes(596)
tos = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack('i', 32))]
UDP_SEGMENT = [(17, 103, struct.pack('H', 300))]
UNCUT = [(17, 103, struct.pack('H', 0))]
class Iovec(ctypes.Structure):
    _fields_ = [('base', ctypes.c_char_p), ('len', ctypes.c_size_t)]
class Header(ctypes.Structure):
    _fields_ = [('name', ctypes.c_void_p), ('name_len', ctypes.c_uint),
        ('parts', ctypes.POINTER(Iovec)), ('count', ctypes.c_size_t),
        ('control', ctypes.c_void_p), ('control_len', ctypes.c_size_t), ('flags', ctypes.c_int),
        ('gap', ctypes.c_int), ('sent', ctypes.c_uint)]
for round in range(3):
    assert s.sendto(next(), to) == 600
    assert s.sendmsg([next()[:4], bytes(96), b'', bytes(500)], tos, 0, to) == 600
    s.connect(to)
    assert s.send(next()) == 600
    assert os.write(s.fileno(), next()) == 600
    assert os.writev(s.fileno(), [next()[:10], bytes(590)]) == 600
    assert s.sendmsg([next(), next()[:300]], UDP_SEGMENT) == 900
    assert s.sendmsg([next()], UNCUT) == 600
    bytes_of = [next(), next()]
    parts = [(Iovec * 1)(Iovec(one, 600)) for one in bytes_of]
    headers = (Header * 2)(*[Header(None, 0, part, 1, None, 0, 0, 0, 0) for part in parts])
    assert ctypes.CDLL(None).sendmmsg(s.fileno(), headers, 2, 0) == 2
    assert [header.sent for header in headers] == [600, 600]
    s.connect(('127.0.0.1', 9))
# What a message asks for comes before what its socket asks for. (The option of the first socket
# would hold for what still waits.)
s = socket.socket(type=socket.SOCK_DGRAM)
s.setsockopt(17, 103, 200)
assert s.sendto(next(), to) == 600
assert s.sendmsg([next()], UNCUT, 0, to) == 600
assert s.sendmsg([next()], UDP_SEGMENT, 0, to) == 600
assert s.sendto(b'', to) == 0
";
    if !has("python3") {
        return;
    }
    let (socket, port) = receiver();
    let qdisc = ["--qdisc", "tbf rate 2mbit burst 700 limit 1000000", "--drain", "60"];
    let (document, output) = told(&qdisc, &["python3", "-c", SCRIPT, &port]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let got = received(&socket);
    let (mut number, mut lens) = (0, Vec::new());
    for datagram in &got[..got.len() - 1] {
        lens.push(datagram.len());
        // Only the first part of a message that the kernel is asked to cut has a number.
        if datagram[0] != 0 {
            number += 1;
            assert_eq!(datagram[..4], *format!("{number:04}").as_bytes());
        }
    }
    let one_round = [600, 600, 600, 600, 600, 300, 300, 300, 600, 600, 600];
    let with_option = [200, 200, 200, 600, 300, 300];
    assert_eq!(lens, [&[one_round; 3].concat()[..], &with_option].concat());
    assert_eq!(got.last().map(Vec::len), Some(0));
    assert_conserved(&document);
    assert_eq!((&document["sent"], &document["around"]), (&40.into(), &0.into()));
}

/// A child of `fork` begins anew, in the midst of its parent's waiting datagrams; it and its parent
/// send what waits before they end.
#[test]
fn a_child_has_a_qdisc_of_its_own() {
    const SCRIPT: &str = "
import os, socket, sys
to = ('127.0.0.1', int(sys.argv[1]))
s = socket.socket(type=socket.SOCK_DGRAM)
for i in range(10): s.sendto(b'parent%d' % i, to)
child = os.fork()
if child == 0:
    # Only the sockets, and no duplicate that the parent keeps.
    left = [os.readlink('/proc/self/fd/' + fd) for fd in os.listdir('/proc/self/fd')
            if os.path.exists('/proc/self/fd/' + fd)]
    sockets = [fd for fd in left if fd.startswith('socket:')]
    for i in range(10): s.sendto(b'child%d' % i, to)
    os._exit(len(sockets))
for i in range(10): s.sendto(b'parent%d' % i, to)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";
    if !has("python3") {
        return;
    }
    let (socket, port) = receiver();
    let qdisc = ["--qdisc", "tbf rate 40kbit burst 100 limit 1000000", "--drain", "60"];
    let (document, output) = told(&qdisc, &["python3", "-c", SCRIPT, &port]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let mut got = HashMap::new();
    for datagram in received(&socket) {
        let who = if datagram.starts_with(b"child") { "child" } else { "parent" };
        *got.entry(who).or_insert(0) += 1;
    }
    assert_eq!(got, HashMap::from([("parent", 20), ("child", 10)]));
    assert_conserved(&document);
    let processes = document["processes"].as_array().expect("a list");
    let mut sent: Vec<_> = processes.iter().filter_map(|one| one["sent"].as_u64()).collect();
    sent.sort_unstable();
    assert_eq!(sent, [10, 20]);
}

/// Threads that open, fill and close sockets, and children that are made in the midst of it.
#[test]
fn threads_and_children_do_not_hang() {
    const PROGRAM: &str = r#"
#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
static struct sockaddr_in to;
static int fresh(void) {
    int s = socket(AF_INET, SOCK_DGRAM, 0), size = 4000;
    setsockopt(s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    return s;
}
static void *sender(void *none) {
    int s = fresh();
    for (int i = 0; i < 200; i++) {
        if (i % 20 == 0) { close(s); s = fresh(); }
        if (sendto(s, "thread", 6, 0, (void *)&to, sizeof to) != 6) _exit(2);
    }
    close(s);
    return none;
}
int main(int count, char **words) {
    to.sin_family = AF_INET;
    to.sin_port = htons(atoi(words[count - 1]));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) if (pthread_create(&threads[i], 0, sender, 0)) return 3;
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) _exit(sendto(fresh(), "child", 5, 0, (void *)&to, sizeof to) != 5);
        int status = 0;
        if (waitpid(child, &status, 0) != child || status) return 4;
    }
    for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
    return 0;
}
"#;
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = refused::compile(folder.path(), "busy", PROGRAM, &["-pthread"]) else {
        return;
    };
    let (_socket, port) = receiver();
    let seconds = LONG.as_secs().to_string();
    let qdisc = ["--qdisc", "tbf rate 4mbit burst 2000 limit 10000000", "--drain", "60"];
    let (document, output) = told(&qdisc, &["timeout", &seconds, &program, &port]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_conserved(&document);
    assert_eq!((&document["sent"], &document["queued"]), (&1_620.into(), &0.into()));
    let processes = document["processes"].as_array().expect("a list");
    assert_eq!(processes.len(), 21);
}

/// A process that is killed has counted what left and what did not.
#[test]
fn a_killed_process_is_counted() {
    const SCRIPT: &str = "
import os, signal, socket, sys
to = ('127.0.0.1', int(sys.argv[1]))
s = socket.socket(type=socket.SOCK_DGRAM)
for i in range(10): s.sendto(bytes(1000), to)
os.kill(os.getpid(), signal.SIGKILL)
";
    if !has("python3") {
        return;
    }
    let (socket, port) = receiver();
    let qdisc = ["--qdisc", "tbf rate 80bit burst 1100 limit 1000000"];
    let (document, output) = told(&qdisc, &["python3", "-c", SCRIPT, &port]);
    assert_eq!(output.status.code(), Some(137), "{}", stderr(&output));
    assert_eq!(received(&socket).len(), 1);
    assert_conserved(&document);
    assert_eq!((&document["sent"], &document["queued"]), (&1.into(), &9.into()));
    assert!(stderr(&output).contains("9 left in the queue"), "{}", stderr(&output));
}

/// What a program may not tell the library to hold back passes around the qdisc. The message that
/// ends a datagram goes the way of the one that began it.
#[test]
fn corked_datagrams_go_around() {
    const SCRIPT: &str = "
import socket, sys
to = ('127.0.0.1', int(sys.argv[1]))
s = socket.socket(type=socket.SOCK_DGRAM)
s.connect(to)
s.send(b'one, ', socket.MSG_MORE)
s.setsockopt(17, 1, 1)
s.send(b'two')
s.setsockopt(17, 1, 0)
s.send(b'three, ', socket.MSG_MORE)
s.send(b'four')
s.send(b'lost')
";
    if !has("python3") {
        return;
    }
    let (socket, port) = receiver();
    let (document, output) =
        told(&["--qdisc", "netem loss 100%"], &["python3", "-c", SCRIPT, &port]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(received(&socket), [&b"one, two"[..], b"three, four"]);
    let counts = ["datagrams", "around", "sent"].map(|key| &document[key]);
    assert_eq!(counts, [1, 4, 0].map(Value::from).each_ref());
}

/// `iperf3` offers ten times the rate. However long it takes, no more may leave than the rate
/// allows.
#[test]
fn iperf3_is_shaped() {
    if !has("iperf3") {
        return;
    }
    let mut tries = 0;
    let (document, output, took) = loop {
        let port = receiver().1;
        let mut server = Command::new("iperf3");
        server.args(["--server", "--one-off", "--port", &port]);
        server.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut server = server.spawn().expect("it runs");
        // The server listens a moment later, and another program may have taken its port.
        std::thread::sleep(QUIET);
        let begin = MonotonicClock.now();
        let client = ["iperf3", "--client", "127.0.0.1", "--port", &port, "--udp"];
        let client = [&client[..], &["--bitrate", "10M", "--length", "1000", "--time", "1"]];
        let qdisc = ["--qdisc", "tbf rate 1mbit burst 5kb limit 20kb"];
        let (document, output) = told(&qdisc, &client.concat());
        let took = Duration::from_nanos(MonotonicClock.now().since(begin));
        let _ = server.kill();
        server.wait().expect("it was started");
        tries += 1;
        if output.status.success() || tries == 5 {
            break (document, output, took);
        }
    };
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_conserved(&document);
    let number = |value: &Value| value.as_u64().expect("a number");
    let most = 5.0 * 1_024.0 + 1e6 / 8.0 * took.as_secs_f64();
    let sent = number(&document["sent_bytes"]);
    #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 bytes")]
    let is_kept = sent as f64 <= most;
    assert!(is_kept && sent > 20_000, "{sent} bytes of at most {most}");
    assert!(number(&document["drops"]["overlimit"]) > 0, "{document}");
}

#[test]
fn node_is_shaped() {
    const SCRIPT: &str = "
const socket = require('dgram').createSocket('udp4');
let left = 50;
for (let i = 0; i < 50; i++)
    socket.send(Buffer.alloc(500, 65 + i), Number(process.argv[1]), '127.0.0.1', (error) => {
        if (error) throw error;
        if (--left == 0) socket.close();
    });
";
    if !has("node") {
        return;
    }
    let (socket, port) = receiver();
    let qdisc = ["--qdisc", "tbf rate 1mbit burst 2000 limit 1000000", "--drain", "60"];
    let (document, output) = told(&qdisc, &["node", "-e", SCRIPT, &port]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let got: Vec<_> = received(&socket).iter().map(|datagram| datagram[0]).collect();
    assert_eq!(got, (65..115).collect::<Vec<u8>>());
    assert_eq!((&document["sent"], &document["around"]), (&50.into(), &0.into()));
}
