//! `udp` devices that relay between clients and a server.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use onramp::Clock as _;
use onramp::dev::MonotonicClock;

use super::*;

/// Time limit for each wait in the tests. No expected event takes so long.
const PATIENCE: Duration = Duration::from_secs(120);

fn socket(own: &str) -> UdpSocket {
    let socket = UdpSocket::bind(own).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// A server that answers each datagram with the same payload and the address of its sender.
struct Echo {
    socket: UdpSocket,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start(socket: UdpSocket) -> Self {
        let (ours, end) = (socket.try_clone().expect("a handle"), Arc::<AtomicBool>::default());
        let theirs = end.clone();
        let thread = thread::Builder::new().spawn(move || {
            let mut buffer = [0; 2_048];
            while let Ok((len, from)) = ours.recv_from(&mut buffer) {
                if theirs.load(Ordering::SeqCst) {
                    return;
                }
                let mut answer = buffer[..len].to_vec();
                answer.extend_from_slice(format!(" {from}").as_bytes());
                ours.send_to(&answer, from).expect("it is sent");
            }
        });
        Self { socket, end, thread: Some(thread.expect("a thread")) }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("an address")
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        self.socket.send_to(b"end", self.address()).expect("it is sent");
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

/// Makes a relay `u0` to `server` with these options, and returns the host and the address at which
/// the relay listens.
fn relay(own: &str, server: SocketAddr, options: &str) -> (Host, SocketAddr) {
    let ends = format!("local {own} remote {server} listen {own}");
    let mut host = host(&[&format!("ip link add u0 up type udp {ends} {options}")]);
    let shown = out(&mut host, "ip -d link show u0");
    let mut words = shown.split_whitespace().skip_while(|word| *word != "listen");
    let at = words.nth(1).and_then(|word| word.parse().ok()).expect("an address");
    (host, at)
}

/// Sends `text` to the relay, and returns the answer: the same text, and the address from which the
/// server got it.
fn ask(client: &UdpSocket, at: SocketAddr, text: &str) -> (String, String) {
    client.send_to(text.as_bytes(), at).expect("it is sent");
    let mut buffer = [0; 2_048];
    let (len, from) = client.recv_from(&mut buffer).expect("an answer");
    assert_eq!(from, at, "the answer is from the address that was asked");
    let answer = std::str::from_utf8(&buffer[..len]).expect("text");
    let (text, address) = answer.rsplit_once(' ').expect("two parts");
    (text.to_owned(), address.to_owned())
}

/// Returns the lines that `ip -s link show u0` has about the relay.
fn counted(host: &mut Host) -> String {
    let shown = out(host, "ip -s link show u0");
    let lines = shown.lines().skip_while(|line| !line.contains("relay:")).map(str::trim);
    lines.collect::<Vec<_>>().join("; ")
}

/// Waits until the lines about the relay contain `want`.
#[track_caller]
fn wait_until_counted(host: &mut Host, want: &str) {
    let deadline = MonotonicClock.now() + PATIENCE;
    while !counted(host).contains(want) {
        assert!(MonotonicClock.now() < deadline, "{:?}, never {want:?}", counted(host));
        thread::yield_now();
    }
}

/// Whether this machine has addresses of this family.
fn has(own: &str) -> bool {
    UdpSocket::bind(own).is_ok()
}

/// Eight clients ask at the same time, each a hundred times. Each gets the answers to its own
/// questions in order, and the server sees a port for each.
#[test]
fn each_client_gets_its_own_answers() {
    for own in ["127.0.0.1:0", "[::1]:0"].into_iter().filter(|own| has(own)) {
        let server = Echo::start(socket(own));
        let (mut host, at) = relay(own, server.address(), "");
        let ask_all = |name: usize| {
            let client = socket(own);
            let ports = (0..100).map(|number| {
                let question = format!("{name}: {number}");
                let (text, port) = ask(&client, at, &question);
                assert_eq!(text, question);
                port
            });
            let mut ports: Vec<_> = ports.collect();
            ports.dedup();
            assert_eq!(ports.len(), 1, "{ports:?}");
            ports.remove(0)
        };
        let mut ports = thread::scope(|scope| {
            let clients: Vec<_> = (0..8).map(|name| scope.spawn(move || ask_all(name))).collect();
            clients.into_iter().map(|it| it.join().expect("it asks")).collect::<Vec<_>>()
        });
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8, "a port for each: {ports:?}");
        wait_until_counted(&mut host, "relay: clients 8 of 1024, forgotten 0, errors 0; ");
        wait_until_counted(&mut host, "answers: packets 800 ");
        let json = out(&mut host, "ip -s -j link show u0");
        let (mut at, mut found) = (json.as_str(), Vec::new());
        for key in ["relay", "clients", "clients_max", "forgotten", "errors", "refused", "answers"]
        {
            let place = at.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key}: {json}"));
            at = &at[place..];
            found.push(key);
        }
        assert_eq!(found.len(), 7);
    }
}

#[test]
fn an_idle_client_is_forgotten_and_may_come_again() {
    let server = Echo::start(socket("127.0.0.1:0"));
    // If this thread rests for a second, the client is forgotten before it is seen.
    let is_seen = |_| {
        let (mut host, at) = relay("127.0.0.1:0", server.address(), "idle 1");
        let client = socket("127.0.0.1:0");
        assert_eq!(ask(&client, at, "one").0, "one");
        let is_seen = counted(&mut host).contains("relay: clients 1 of 1024, ");
        wait_until_counted(&mut host, "relay: clients 0 of 1024, forgotten 1, ");
        assert_eq!(ask(&client, at, "two").0, "two");
        is_seen
    };
    assert!((0..60).any(is_seen));
}

#[test]
fn clients_beyond_the_limit_are_refused_and_counted() {
    let server = Echo::start(socket("127.0.0.1:0"));
    let (mut host, at) = relay("127.0.0.1:0", server.address(), "clients 2");
    let known = [socket("127.0.0.1:0"), socket("127.0.0.1:0")];
    known.iter().for_each(|client| assert_eq!(ask(client, at, "x").0, "x"));
    let others = [socket("127.0.0.1:0"), socket("127.0.0.1:0")];
    others.iter().for_each(|other| assert_eq!(other.send_to(b"y", at).expect("sent"), 1));
    wait_until_counted(&mut host, "clients 2 of 2, forgotten 0, errors 0, refused: clients 2;");
    known.iter().for_each(|client| assert_eq!(ask(client, at, "z").0, "z"));
    others.iter().for_each(|other| {
        other.set_nonblocking(true).expect("it can");
        assert_eq!(other.recv(&mut [0; 9]).expect_err("none").kind(), ErrorKind::WouldBlock);
    });
}

/// While no server listens, the kernel reports errors (ICMP). The relay counts them, and works as
/// soon as a server listens.
#[test]
fn a_server_may_come_late() {
    let place = socket("127.0.0.1:0");
    let address = place.local_addr().expect("an address");
    drop(place);
    let (mut host, at) = relay("127.0.0.1:0", address, "");
    let client = socket("127.0.0.1:0");
    for _ in 0..50 {
        client.send_to(b"is anybody there?", at).expect("sent");
    }
    let deadline = MonotonicClock.now() + PATIENCE;
    while counted(&mut host).contains("errors 0") {
        assert!(MonotonicClock.now() < deadline, "{}", counted(&mut host));
        thread::yield_now();
    }
    let Ok(place) = UdpSocket::bind(address) else {
        return; // Another program has taken the port meanwhile.
    };
    place.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let server = Echo::start(place);
    assert_eq!(server.address(), address);
    // The first datagrams may still be those that the relay had when the server came.
    let got = (0..60).any(|_| ask(&client, at, "yes").0 == "yes");
    assert!(got, "{}", counted(&mut host));
}

/// A client sends faster than the relay can take, and a server answers so. The kernel drops what
/// finds the sockets full: each datagram is counted all the same.
#[test]
fn what_the_kernel_drops_is_counted() {
    const COUNT: u64 = 20_000;
    let server = socket("127.0.0.1:0");
    let at_server = server.local_addr().expect("an address");
    let (mut host, at) = relay("127.0.0.1:0", at_server, "peer name u0b up");
    let client = socket("127.0.0.1:0");
    // The numbers of packets, and of those that were dropped, in the line below `RX:`.
    let counted = |host: &mut Host, device: &str| {
        let shown = out(host, &format!("ip -s link show {device}"));
        let numbers = shown.lines().nth(3).expect("numbers").split_whitespace();
        let numbers: Vec<u64> = numbers.map(|it| it.parse().expect("a number")).collect();
        (numbers[1] + numbers[3], shown)
    };
    let mut wait = |device: &str, count: u64| {
        let deadline = MonotonicClock.now() + PATIENCE;
        loop {
            let (sum, shown) = counted(&mut host, device);
            if sum == count {
                return;
            }
            assert!(sum < count && MonotonicClock.now() < deadline, "{shown}");
            thread::yield_now();
        }
    };
    for _ in 0..COUNT {
        client.send_to(&[7; 1_200], at).expect("sent");
    }
    wait("u0", COUNT);
    let (_, relay) = server.recv_from(&mut [0; 2_000]).expect("one has come");
    for _ in 0..COUNT {
        server.send_to(&[7; 1_200], relay).expect("sent");
    }
    wait("u0b", COUNT);
}

/// The answers pass the qdiscs of the peer, and those of the first device are not for them.
#[test]
fn a_peer_shapes_the_answers() {
    let server = Echo::start(socket("127.0.0.1:0"));
    let (mut host, at) = relay("127.0.0.1:0", server.address(), "peer name u0b up");
    let client = socket("127.0.0.1:0");
    assert_eq!(ask(&client, at, "one").0, "one");
    let shown = out(&mut host, "ip link show");
    assert!(shown.contains(": u0@u0b: ") && shown.contains(": u0b@u0: "), "{shown}");
    let add = "tc qdisc add dev u0b root handle 7: netem loss 100%";
    assert_eq!(exec(&mut host, add), Reply::default());
    client.send_to(b"two", at).expect("sent");
    let deadline = MonotonicClock.now() + PATIENCE;
    let dropped = |host: &mut Host| out(host, "tc -s qdisc show dev u0b").contains("dropped 1,");
    while !dropped(&mut host) {
        assert!(MonotonicClock.now() < deadline, "{}", out(&mut host, "tc -s qdisc show dev u0b"));
        thread::yield_now();
    }
    assert_eq!(exec(&mut host, "tc qdisc del dev u0b root"), Reply::default());
    // While the peer is down, answers are refused, and the first device goes on sending.
    assert_eq!(exec(&mut host, "ip link set u0b down"), Reply::default());
    assert!(!out(&mut host, "ip link show u0").contains("NO-CARRIER"));
    client.send_to(b"three", at).expect("sent");
    wait_until_counted(&mut host, ", refused: down 1");
    assert!(counted(&mut host).contains("answers: packets 2 "), "{}", counted(&mut host));
    assert_eq!(exec(&mut host, "ip link set u0b up"), Reply::default());
    assert_eq!(ask(&client, at, "four").0, "four");
    // The counters of the peer: what it got from the server, and what it sent to the client. The
    // relay counts an answer after it has sent it, so wait for the count.
    let deadline = MonotonicClock.now() + PATIENCE;
    loop {
        let shown = out(&mut host, "ip -s link show u0b");
        let numbers: Vec<_> = shown.lines().map(|it| it.split_whitespace().nth(1)).collect();
        if (numbers[3], numbers[5]) == (Some("3"), Some("2")) {
            break;
        }
        assert!(MonotonicClock.now() < deadline, "{shown}");
        thread::yield_now();
    }
    assert_eq!(exec(&mut host, "ip link del u0b"), Reply::default());
    assert_eq!(out(&mut host, "ip link show"), "", "both ends are gone");
    // A thread of a deleted device may end a moment later, and has the device's socket until then.
    let deadline = MonotonicClock.now() + PATIENCE;
    while let Err(error) = UdpSocket::bind(at) {
        assert!(MonotonicClock.now() < deadline, "the address is free again: {error}");
        thread::yield_now();
    }
}

/// With a port in `local`, the server gets all datagrams from this port, so one client is served at
/// a time, and gets no answer that was meant for the client before it.
#[test]
fn a_port_of_ones_own_is_for_one_client() {
    let server = socket("127.0.0.1:0");
    let place = socket("127.0.0.1:0");
    let own = place.local_addr().expect("an address");
    drop(place);
    let to = server.local_addr().expect("an address");
    let ends = format!("local {own} remote {to} listen 127.0.0.1:0 idle 10");
    let add = format!("ip link add u0 up type udp {ends}");
    let mut host = host(&[]);
    if exec(&mut host, &add) != Reply::default() {
        return; // Another program has taken the port meanwhile.
    }
    let shown = out(&mut host, "ip -d link show u0");
    let mut words = shown.split_whitespace().skip_while(|word| *word != "listen");
    let at: SocketAddr = words.nth(1).and_then(|it| it.parse().ok()).expect("an address");
    let [first, second] = [socket("127.0.0.1:0"), socket("127.0.0.1:0")];
    first.send_to(b"a", at).expect("sent");
    let mut buffer = [0; 9];
    assert_eq!(server.recv_from(&mut buffer).expect("it arrives"), (1, own));
    second.send_to(b"b", at).expect("sent");
    wait_until_counted(
        &mut host,
        "relay: clients 1 of 1, forgotten 0, errors 0, refused: clients 1",
    );
    wait_until_counted(&mut host, "relay: clients 0 of 1, forgotten 1, ");
    server.send_to(b"for the first", own).expect("sent");
    second.send_to(b"c", at).expect("sent");
    assert_eq!(server.recv_from(&mut buffer).expect("it arrives"), (1, own));
    server.send_to(b"d", own).expect("sent");
    assert_eq!(second.recv(&mut buffer).expect("an answer"), 1);
    assert_eq!(buffer[0], b'd');
    wait_until_counted(&mut host, "answers: packets 1 bytes 43, refused: late 1");
}

/// An answer that comes when its client has been forgotten is counted, also if the client had a
/// port of its own. The relay keeps that port for `idle` more, here one second. If this thread
/// rests longer than that, the kernel refuses the answer, and the test tries again.
#[test]
fn an_answer_after_its_client_was_forgotten_is_counted() {
    let is_counted = || {
        let server = socket("127.0.0.1:0");
        let to = server.local_addr().expect("an address");
        let (mut host, at) = relay("127.0.0.1:0", to, "idle 1 peer name u0b up");
        let client = socket("127.0.0.1:0");
        client.send_to(b"a", at).expect("sent");
        let (_, port) = server.recv_from(&mut [0; 9]).expect("it arrives");
        wait_until_counted(&mut host, "relay: clients 0 of 1024, forgotten 1, ");
        // Only a connected socket learns at once that its datagram was refused.
        server.connect(port).expect("it is local");
        server.send(b"late").expect("sent");
        if server.take_error().expect("it can be asked").is_some() {
            return false;
        }
        wait_until_counted(&mut host, "answers: packets 0 bytes 0, refused: late 1");
        let shown = out(&mut host, "ip -s link show u0b");
        let received: Vec<_> = shown.lines().nth(3).expect("numbers").split_whitespace().collect();
        assert_eq!((received[1], received[3]), ("0", "1"), "{shown}");
        true
    };
    assert!((0..60).any(|_| is_counted()));
}

/// A packet that leaves the qdiscs after its client was forgotten leaves by the socket for packets
/// that belong to no client. The answer that arrives there is counted.
#[test]
fn an_answer_to_a_packet_of_no_client_is_counted() {
    let server = socket("127.0.0.1:0");
    let to = server.local_addr().expect("an address");
    let (mut host, at) = relay("127.0.0.1:0", to, "idle 1");
    let add = "tc qdisc add dev u0 root handle 1: plug";
    assert_eq!(exec(&mut host, add), Reply::default());
    let client = socket("127.0.0.1:0");
    client.send_to(b"a", at).expect("sent");
    wait_until_counted(&mut host, "relay: clients 0 of 1024, forgotten 1, ");
    let release = "tc qdisc change dev u0 root handle 1: plug release_indefinite";
    assert_eq!(exec(&mut host, release), Reply::default());
    let (_, port) = server.recv_from(&mut [0; 9]).expect("it arrives");
    for _ in 0..3 {
        server.send_to(b"stray", port).expect("sent");
    }
    wait_until_counted(&mut host, "answers: packets 0 bytes 0, refused: stray 3");
}

/// A client whose packets wait in a slow class gets no more than its share of the relay's credits,
/// so another client, in an idle class, loses nothing.
#[test]
fn a_client_in_a_slow_class_leaves_credits_to_the_others() {
    let server = Echo::start(socket("127.0.0.1:0"));
    let (mut host, at) = relay("127.0.0.1:0", server.address(), "");
    for line in [
        "qdisc add dev u0 root handle 1: htb default 2",
        "class add dev u0 parent 1: classid 1:1 htb rate 8kbit",
        "class add dev u0 parent 1: classid 1:2 htb rate 100mbit",
        "qdisc add dev u0 parent 1:1 pfifo limit 100000",
        // The datagrams of the slow client begin with an "s", after the headers of IP and UDP.
        "filter add dev u0 parent 1: protocol ip u32 match u8 0x73 0xff at 28 classid 1:1",
    ] {
        assert_eq!(exec(&mut host, &format!("tc {line}")), Reply::default(), "{line}");
    }
    let [slow, quick] = [socket("127.0.0.1:0"), socket("127.0.0.1:0")];
    let deadline = MonotonicClock.now() + PATIENCE;
    while !counted(&mut host).contains(", refused: share ") {
        for _ in 0..100 {
            slow.send_to(b"slow", at).expect("sent");
        }
        assert!(MonotonicClock.now() < deadline, "{}", counted(&mut host));
    }
    // The kernel drops datagrams while the relay's socket is full of the slow client's. A datagram
    // that gets an answer has come behind these.
    quick.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let (deadline, mut buffer) = (MonotonicClock.now() + PATIENCE, [0; 100]);
    loop {
        quick.send_to(b"quick first", at).expect("sent");
        if quick.recv_from(&mut buffer).is_ok() {
            break;
        }
        assert!(MonotonicClock.now() < deadline, "{}", counted(&mut host));
    }
    quick.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    for number in 0..500 {
        let text = format!("quick {number}");
        quick.send_to(text.as_bytes(), at).expect("sent");
        loop {
            let (len, _) = quick.recv_from(&mut buffer).expect("an answer");
            let answer = String::from_utf8_lossy(&buffer[..len]).into_owned();
            // Answers to the other tries may still come.
            if !answer.starts_with("quick first") {
                assert!(answer.starts_with(&text), "{answer}");
                break;
            }
        }
    }
    let shown = counted(&mut host);
    let refused = shown.split("; ").next().and_then(|line| line.split("refused: ").nth(1));
    let is_right = |it: &str| it.starts_with("share ") || it.starts_with("missed ");
    assert!(refused.is_some_and(|it| it.split(", ").all(is_right)), "{shown}");
    // The credits of the packets that leave the slow class come back. A datagram that comes before
    // them is refused.
    let add = "tc qdisc replace dev u0 parent 1:1 pfifo limit 1";
    assert_eq!(exec(&mut host, add), Reply::default());
    let before = out(&mut host, "ip -s link show u0");
    let received = |text: &str| text.lines().nth(3).map(str::to_owned);
    let deadline = MonotonicClock.now() + PATIENCE;
    loop {
        slow.send_to(b"slow again", at).expect("sent");
        let after = out(&mut host, "ip -s link show u0");
        if received(&after) != received(&before) {
            break;
        }
        assert!(MonotonicClock.now() < deadline, "{after}");
        thread::yield_now();
    }
}

/// A relay whose device is down refuses datagrams in both directions.
#[test]
fn a_relay_that_is_down_refuses_and_counts() {
    let server = socket("127.0.0.1:0");
    let to = server.local_addr().expect("an address");
    let (mut host, at) = relay("127.0.0.1:0", to, "");
    let client = socket("127.0.0.1:0");
    client.send_to(b"x", at).expect("sent");
    let (_, from) = server.recv_from(&mut [0; 9]).expect("it arrives");
    assert_eq!(exec(&mut host, "ip link set u0 down"), Reply::default());
    server.send_to(b"y", from).expect("sent");
    client.send_to(b"z", at).expect("sent");
    wait_until_counted(&mut host, "refused: down 1; answers: packets 0 bytes 0, refused: down 1");
}

/// A configuration with a relay and its peer can be followed, and followed again without a change.
#[test]
fn a_configuration_may_have_a_relay_with_a_peer() {
    let place = socket("127.0.0.1:0");
    let at = place.local_addr().expect("an address");
    drop(place);
    let ends = format!("local 127.0.0.1:0 remote 127.0.0.1:9 peer name u0b mtu 1400 listen {at}");
    let text = format!("ip link add u0 up type udp {ends} clients 7 idle 5\n");
    let mut host = host(&[]);
    let steps = match host.configure(&text, Path::new("/")) {
        // Another program has the port.
        Err(failed) if failed.reply.err.contains("in use") => return,
        done => done.expect("it can be followed"),
    };
    assert!(steps[0].ends_with("clients 7 idle 5 peer name u0b numtxqueues 1"), "{steps:?}");
    assert!(out(&mut host, "ip link show u0b").contains(" mtu 1400 "));
    assert!(out(&mut host, "ip -d -j link show u0").contains("\"clients\":7,\"idle\":5"));
    let again = host.configure(&text, Path::new("/")).expect("it can be followed");
    assert_eq!(again, [""; 0]);
    assert!(!host.configure("", Path::new("/")).expect("it can be followed").is_empty());
    assert_eq!(out(&mut host, "ip link show"), "");
}

/// A relay whose server is itself would send each datagram to itself for ever.
#[test]
fn a_relay_to_itself_is_refused() {
    let mut host = host(&[]);
    for (listen, remote, is_itself) in [
        ("127.0.0.1", "127.0.0.1", true),
        ("127.0.0.1", "0.0.0.0", true),
        ("0.0.0.0", "127.0.0.7", true),
        ("[::]", "127.0.0.1", true),
        ("127.0.0.1", "127.0.0.2", false),
        // An address for documentation, which no host has.
        ("0.0.0.0", "192.0.2.1", false),
    ] {
        // Another program may get the port before the device does.
        let refused = (0..100).find_map(|_| {
            let place = UdpSocket::bind(format!("{listen}:0")).expect("a port");
            let port = place.local_addr().expect("an address").port();
            drop(place);
            let ends = format!("remote {remote}:{port} listen {listen}:{port}");
            let line = format!("ip link add u0 type udp local 0.0.0.0:0 {ends}");
            let reply = exec(&mut host, &line);
            (!reply.err.contains("in use")).then_some(reply.err)
        });
        let refused = refused.expect("a port is free");
        assert_eq!(refused.contains("relay to itself"), is_itself, "{listen} {remote}: {refused}");
        if !is_itself {
            out(&mut host, "ip link del u0");
        }
    }
}

/// A forked child has a copy of the relay, but not its thread. If the child drops the copy, the
/// parent's relay goes on.
#[test]
fn a_copy_in_a_forked_child_disturbs_nobody() {
    use rustix::process::{Pid, WaitOptions, waitpid};
    let server = Echo::start(socket("127.0.0.1:0"));
    let (mut host, at) = relay("127.0.0.1:0", server.address(), "");
    let client = socket("127.0.0.1:0");
    assert_eq!(ask(&client, at, "one").0, "one");
    let host = &mut host;
    let child = onramp::dev::run_in_child(move || {
        drop(std::mem::take(host));
        7
    });
    let child = Pid::from_raw(child.expect("there can be a child"));
    let ended = waitpid(child, WaitOptions::empty()).expect("it is our child").expect("it ended");
    assert_eq!(ended.1.exit_status(), Some(7), "the child panics at nothing");
    assert_eq!(ask(&client, at, "two").0, "two");
}
