//! What a program gets back when it sends: the same as from the kernel alone.

use std::process::Command;

use super::{LONG, exec, has, received, receiver, told};
use crate::stderr;

/// A program learns of the same errors with the library and without it.
#[test]
fn errors_are_those_of_the_kernel() {
    const SCRIPT: &str = "
import errno, os, socket, time
def tell(name, call):
    try:
        print(name, call())
    except OSError as error:
        print(name, errno.errorcode[error.errno])
there = socket.socket(type=socket.SOCK_DGRAM)
there.bind(('127.0.0.1', 0))
to = there.getsockname()
s = socket.socket(type=socket.SOCK_DGRAM)
tell('no address', lambda: s.send(b'x'))
tell('sent', lambda: s.sendto(b'xyz', to))
tell('too large', lambda: s.sendto(bytes(65508), to))
tell('port 0', lambda: s.sendto(b'x', ('127.0.0.1', 0)))
tell('broadcast', lambda: s.sendto(b'x', ('255.255.255.255', 9)))
tell('out of band', lambda: s.sendto(b'x', socket.MSG_OOB, to))
tell('control', lambda: s.sendmsg([b'x'], [(0, 8, b'')], 0, to))
tell('write', lambda: os.write(s.fileno(), b'x'))
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
tell('family', lambda: s.sendto(b'x', 0, ('127.0.0.1', 9)))
tell('v6 too large', lambda: six.sendto(bytes(70000), ('::1', 9)))
tell('v6', lambda: six.sendto(b'four', ('::1', 9)))
closed = socket.socket(type=socket.SOCK_DGRAM)
fd = closed.fileno()
closed.close()
tell('closed', lambda: os.write(fd, b'x'))
gone = socket.socket(type=socket.SOCK_DGRAM)
gone.bind(('127.9.9.9', 0))
s.connect(gone.getsockname())
gone.close()
tell('nobody', lambda: s.send(b'x'))
tell('nobody told', lambda: s.send(b'x'))
tell('nobody again', lambda: s.send(b'x'))
shut = socket.socket(type=socket.SOCK_DGRAM)
shut.connect(to)
shut.shutdown(socket.SHUT_WR)
tell('shut', lambda: shut.send(b'x'))
tell('file', lambda: os.write(os.open('/dev/null', os.O_WRONLY), b'abcde'))
tcp = socket.create_server(('127.0.0.1', 0))
stream = socket.create_connection(tcp.getsockname())
tell('stream', lambda: stream.send(b'1234567'))
pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
tell('unix', lambda: pair[0].send(b'12'))
";
    if !has("python3") {
        return;
    }
    let plain = Command::new("python3").args(["-c", SCRIPT]).output().expect("it runs");
    let (document, shaped) = told(&["--qdisc", "pfifo limit 100"], &["python3", "-c", SCRIPT]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    assert_eq!(text(&shaped.stdout), text(&plain.stdout), "{}", stderr(&shaped));
    let text = text(&plain.stdout);
    // The kernel alone refuses what is out of band.
    assert_eq!(document["around"], 1, "{}", stderr(&shaped));
    for line in ["no address EDESTADDRREQ", "too large EMSGSIZE", "nobody told ECONNREFUSED"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// The kernel checks a datagram that will have to wait before the call returns.
#[test]
fn what_has_to_wait_is_checked_first() {
    const SCRIPT: &str = "
import errno, os, socket
def tell(name, call):
    try:
        print(name, call())
    except OSError as error:
        print(name, errno.errorcode[error.errno])
s = socket.socket(type=socket.SOCK_DGRAM)
tell('no address', lambda: s.send(b'x'))
tell('port 0', lambda: s.sendto(b'x', ('127.0.0.1', 0)))
tell('broadcast', lambda: s.sendto(b'x', ('255.255.255.255', 9)))
tell('control', lambda: s.sendmsg([b'x'], [(0, 8, b'')], 0, ('127.0.0.1', 9)))
tell('far too large', lambda: s.sendto(bytes(70000), ('127.0.0.1', 9)))
tell('too large', lambda: s.sendto(bytes(65508), ('127.0.0.1', 9)))
tell('sent', lambda: s.sendto(b'xyz', ('127.0.0.1', 9)))
tell('port', lambda: s.getsockname()[1] > 0)
";
    if !has("python3") {
        return;
    }
    let plain = Command::new("python3").args(["-c", SCRIPT]).output().expect("it runs");
    let (document, shaped) = told(&["--qdisc", "netem delay 100ms"], &["python3", "-c", SCRIPT]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    assert_eq!(text(&shaped.stdout), text(&plain.stdout), "{}", stderr(&shaped));
    assert!(text(&plain.stdout).contains("broadcast EACCES"), "{}", text(&plain.stdout));
    assert_eq!((&document["datagrams"], &document["sent"]), (&1.into(), &1.into()));
}

/// The error of a datagram that left late comes with the next call.
#[test]
fn a_late_error_is_told() {
    const SCRIPT: &str = "
import socket, time
gone = socket.socket(type=socket.SOCK_DGRAM)
gone.bind(('127.9.9.9', 0))
s = socket.socket(type=socket.SOCK_DGRAM)
s.connect(gone.getsockname())
gone.close()
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        s.send(b'x')
    except ConnectionRefusedError:
        print('refused')
        break
    time.sleep(0.01)
";
    if !has("python3") {
        return;
    }
    let mut command =
        exec(&["--qdisc", "netem delay 10ms", "--drain", "0"], &["python3", "-c", SCRIPT]);
    let output = command.output().expect("it runs");
    assert_eq!(output.stdout, b"refused\n", "{}", stderr(&output));
}

/// A socket whose buffer is full of what waits makes its program wait, as the kernel does.
#[test]
fn a_full_socket_makes_its_program_wait() {
    const SCRIPT: &str = "
import socket, sys
to = ('127.0.0.1', int(sys.argv[1]))
s = socket.socket(type=socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20000)
s.setblocking(False)
count = 0
try:
    while count < 1000:
        s.sendto(bytes(1000), to)
        count += 1
except BlockingIOError:
    print(count)
try:
    s.sendto(bytes(1000), to)
except BlockingIOError:
    print('again')
s.setblocking(True)
for i in range(30): s.sendto(b'blocking', to)
";
    if !has("python3") {
        return;
    }
    let (socket, port) = receiver();
    // So slow that nothing leaves between two calls.
    let qdisc = ["--qdisc", "tbf rate 1mbit burst 1100 limit 10000000", "--drain", "60"];
    let (document, output) = told(&qdisc, &["python3", "-c", SCRIPT, &port]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let (count, again) = text.split_once('\n').expect("two lines");
    // The kernel doubles the size; 1,000 bytes cost 2,304.
    let count: usize = count.parse().expect("a number");
    assert!((15..200).contains(&count), "{count}");
    assert!(again.is_empty() || again == "again\n", "{again}");
    let sent = document["sent"].as_u64().expect("a number");
    assert!(sent >= count as u64 + 30, "{document}");
    assert_eq!(received(&socket).len() as u64, sent);
}

/// What waits takes room of the send buffer: 2,304 bytes for 1,000 bytes of payload, of twice the
/// size that the program asks for. The first datagram leaves at once, and nothing leaves after it.
#[test]
fn what_waits_takes_room_of_its_socket() {
    const SCRIPT: &str = "
import socket
s = socket.socket(type=socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20000)
s.setblocking(False)
count = 0
try:
    while count < 1000:
        s.sendto(bytes(1000), ('127.0.0.1', 9))
        count += 1
except BlockingIOError:
    print(count)
try:
    s.sendto(bytes(1000), ('127.0.0.1', 9))
except BlockingIOError:
    print('again')
";
    if !has("python3") {
        return;
    }
    let options = ["--qdisc", "tbf rate 8bit burst 1100 limit 10000000", "--drain", "0"];
    let output = exec(&options, &["python3", "-c", SCRIPT]).output().expect("it runs");
    let count = 1 + 40_000_usize.div_ceil(2_304);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{count}\nagain\n"));
}

/// A program that asks the kernel only for changes (`EPOLLET`) is woken when its datagrams leave.
#[test]
fn edge_triggered_programs_are_woken() {
    const SCRIPT: &str = "
import select, socket, sys
to = ('127.0.0.1', int(sys.argv[1]))
s = socket.socket(type=socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4000)
s.setblocking(False)
poll = select.epoll()
poll.register(s, select.EPOLLOUT | select.EPOLLET)
sent = waits = 0
while sent < 50:
    try:
        s.sendto(bytes(1000), to)
        sent += 1
    except BlockingIOError:
        waits += 1
        assert poll.poll(30), 'not woken'
print('has waited' if waits > 0 else 'never waited')
";
    if !has("python3") {
        return;
    }
    let (_socket, port) = receiver();
    let qdisc = ["--qdisc", "tbf rate 1mbit burst 1100 limit 10000000", "--drain", "60"];
    let (document, output) = told(&qdisc, &["python3", "-c", SCRIPT, &port]);
    assert_eq!(output.stdout, b"has waited\n", "{}", stderr(&output));
    assert_eq!(document["sent"], 50);
}

/// A blocking socket waits for as long as its program has said.
#[test]
fn a_wait_ends_after_the_time_of_the_socket() {
    const SCRIPT: &str = "
import socket, struct, time
s = socket.socket(type=socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2000)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('ll', 0, 50000))
begin = time.monotonic()
try:
    while True: s.sendto(bytes(1000), ('127.0.0.1', 9))
except BlockingIOError:
    print('in time' if time.monotonic() - begin < 0.049 else 'timed out')
";
    if !has("python3") {
        return;
    }
    let mut command = exec(
        &["--qdisc", "tbf rate 8bit burst 1100 limit 10000000", "--drain", "0"],
        &["timeout", &LONG.as_secs().to_string(), "python3", "-c", SCRIPT],
    );
    let output = command.output().expect("it runs");
    assert_eq!(output.stdout, b"timed out\n", "{}", stderr(&output));
}

/// A signal handler ends a wait, as it ends a system call.
#[test]
fn a_signal_interrupts_a_program_that_waits() {
    const SCRIPT: &str = "
import os, signal, socket, sys
class Alarm(Exception): pass
def alarm(*_): raise Alarm
signal.signal(signal.SIGALRM, alarm)
s = socket.socket(type=socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2000)
signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
try:
    while True: s.sendto(bytes(1000), ('127.0.0.1', 9))
except Alarm:
    print('interrupted')
";
    if !has("python3") {
        return;
    }
    let mut command = exec(
        &["--qdisc", "tbf rate 8bit burst 1100 limit 10000000", "--drain", "0"],
        &["timeout", &LONG.as_secs().to_string(), "python3", "-c", SCRIPT],
    );
    let output = command.output().expect("it runs");
    assert_eq!(output.stdout, b"interrupted\n", "{}", stderr(&output));
}

/// A program that closes all descriptors, also those of the library, gets no other socket's
/// datagrams.
#[test]
fn descriptors_that_the_program_closes_are_not_used() {
    const SCRIPT: &str = "
import os, socket, sys
to = ('127.0.0.1', int(sys.argv[1]))
s = socket.socket(type=socket.SOCK_DGRAM)
for i in range(5): s.sendto(b'lost', to)
os.closerange(3, 2000)
other = socket.socket(type=socket.SOCK_DGRAM)
for fd in range(3, 1000):
    if fd != other.fileno(): os.dup2(other.fileno(), fd)
other.sendto(b'other', to)
";
    if !has("python3") {
        return;
    }
    let (socket, port) = receiver();
    let qdisc = ["--qdisc", "netem delay 15s", "--drain", "60"];
    let (document, output) = told(&qdisc, &["python3", "-c", SCRIPT, &port]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(received(&socket), [b"other"]);
    assert_eq!((&document["sent"], &document["drops"]["device_error"]), (&1.into(), &5.into()));
}
