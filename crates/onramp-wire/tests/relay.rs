//! Relays between real sockets on the loopback interface.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use onramp_core::{Clock as _, Instant};
use onramp_dev::MonotonicClock;
use onramp_wire::{Change, Options, Relay, series};

/// Far more than any of the tests needs.
const LONG: Duration = Duration::from_secs(120);

/// Starts a relay from a free port to these targets, through these qdiscs in both directions.
fn relay(stages: &[&str], targets: &[(&str, SocketAddr)]) -> Relay {
    let link = series(stages).expect("qdiscs");
    let entries: Vec<_> = targets
        .iter()
        .map(|(kind, target)| {
            let any = if target.is_ipv4() { "127.0.0.1" } else { "[::1]" };
            format!("{kind}:{any}:0={target}").parse().expect("an entry")
        })
        .collect();
    let options = Options { up: link.clone(), down: link, seed: 1, ..Options::default() };
    Relay::start(&entries, options).expect("a relay")
}

/// An entry whose target is a place at which the relay itself listens would go round for ever. A
/// place of the other protocol is another server's.
#[test]
fn a_loop_is_refused_and_another_protocol_is_none() {
    let free = UdpSocket::bind("127.6.5.4:0").and_then(|socket| socket.local_addr());
    let door = free.expect("a port");
    let start = |entries: [String; 2]| {
        let entries = entries.map(|entry| entry.parse().expect("an entry"));
        let link = series(&["pfifo"]).expect("a qdisc");
        let options = Options { up: link.clone(), down: link, seed: 1, ..Options::default() };
        Relay::start(&entries, options).map(drop).map_err(|error| error.to_string())
    };
    let through = |kind: &str| format!("{kind}:127.0.0.1:0={door}");
    for (first, second, loops) in
        [("tcp", "udp", false), ("udp", "tcp", false), ("udp", "udp", true), ("tcp", "tcp", true)]
    {
        let said = start([through(first), format!("{second}:{door}=127.0.0.1:9")]);
        let is_right = match &said {
            Ok(()) => !loops,
            Err(why) => loops && why.contains("listens at its target"),
        };
        assert!(is_right, "{first} to {second}: {said:?}");
    }
}

/// Returns an address with port 0 for each IP version of the loopback interface.
fn versions() -> Vec<&'static str> {
    let (mut all, ipv6) = (vec!["127.0.0.1:0"], "[::1]:0");
    match UdpSocket::bind(ipv6) {
        Ok(_) => all.push(ipv6),
        Err(error) => eprintln!("skipped with IPv6: {error}"),
    }
    all
}

fn listener() -> (TcpListener, SocketAddr) {
    listener_at("127.0.0.1:0")
}

fn listener_at(any: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(any).expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

fn connect(relay: &Relay) -> TcpStream {
    limited(TcpStream::connect(relay.addresses()[0]).expect("the relay accepts"))
}

/// Accepts a connection.
fn accept(listener: &TcpListener) -> TcpStream {
    limited(listener.accept().expect("a connection").0)
}

/// Gives a socket a time limit, so that a test ends.
fn limited(socket: TcpStream) -> TcpStream {
    socket.set_read_timeout(Some(LONG)).expect("it is open");
    socket.set_write_timeout(Some(LONG)).expect("it is open");
    socket
}

fn took(since: Instant) -> Duration {
    Duration::from_nanos(MonotonicClock.now().since(since))
}

fn udp() -> UdpSocket {
    udp_at("127.0.0.1:0")
}

fn udp_at(any: &str) -> UdpSocket {
    let socket = UdpSocket::bind(any).expect("a port");
    socket.set_read_timeout(Some(LONG)).expect("it is open");
    socket
}

fn pattern(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Serves one connection: sends all back that comes, until the client has ended its direction.
fn echo(listener: &TcpListener) {
    let mut near = accept(listener);
    let mut far = near.try_clone().expect("a descriptor");
    std::io::copy(&mut near, &mut far).expect("the bytes come and go");
    far.shutdown(Shutdown::Write).expect("it is open");
}

/// Waits until the counts of a relay are as they should be.
#[track_caller]
fn await_counts(relay: &Relay, are_right: impl Fn(&onramp_wire::Counts) -> bool) {
    let end = MonotonicClock.now() + LONG;
    while !are_right(&relay.counts()) {
        assert!(MonotonicClock.now() < end, "{:?}", relay.counts());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_megabyte_each_way_arrives_whole() {
    for line in ["netem delay 5ms loss 2%", "netem delay 1ms reorder 20% duplicate 5% corrupt 1%"] {
        let (listener, target) = listener();
        let relay = relay(&[line], &[("tcp", target)]);
        let (sent, mut received) = (pattern(1_000_000, 1), Vec::new());
        thread::scope(|scope| {
            scope.spawn(|| echo(&listener));
            let mut near = connect(&relay);
            let mut out = near.try_clone().expect("a descriptor");
            let bytes = &sent;
            scope.spawn(move || {
                out.write_all(bytes).expect("it goes on");
                out.shutdown(Shutdown::Write).expect("it is open");
            });
            near.read_to_end(&mut received).expect("it goes on");
        });
        assert!(sent == received, "{} bytes of {}", received.len(), sent.len());
        let (carried, counts) = relay.stop();
        assert_eq!((counts.connections, counts.reset, counts.connections_refused), (1, 0, 0));
        assert!(counts.retransmitted > 0 && counts.failure.is_none(), "{counts:?}");
        assert!(carried.up.carried() > 690 && carried.down.carried() > 690, "{carried:?}");
    }
}

/// Bytes and datagrams pass with either IP version.
#[test]
fn both_ip_versions_pass() {
    for any in versions() {
        let ((listener, target), server) = (listener_at(any), udp_at(any));
        let targets = [("tcp", target), ("udp", server.local_addr().expect("an address"))];
        let relay = relay(&["pfifo limit 1000"], &targets);
        let (client, mut buffer) = (udp_at(any), [0; 2_000]);
        client.connect(relay.addresses()[1]).expect("an address");
        for length in [1, 1_000] {
            let sent = pattern(length, 5);
            client.send(&sent).expect("it is sent");
            let (count, from) = server.recv_from(&mut buffer).expect("it arrives");
            assert!(buffer[..count] == sent && from.is_ipv4() == target.is_ipv4());
            server.send_to(&sent, from).expect("it is sent");
            let count = client.recv(&mut buffer).expect("it arrives");
            assert!(buffer[..count] == sent);
        }
        let (mut near, mut received) = (connect(&relay), Vec::new());
        thread::scope(|scope| {
            scope.spawn(|| echo(&listener));
            near.write_all(b"a few bytes").expect("there is room");
            near.shutdown(Shutdown::Write).expect("it is open");
            near.read_to_end(&mut received).expect("it ends");
        });
        assert!(received == b"a few bytes");
        let (_, counts) = relay.stop();
        assert_eq!((counts.connections, counts.clients, counts.failure), (1, 1, None));
    }
}

/// A datagram counts as a frame with the headers of the IP version with which it comes.
#[test]
fn header_lengths_are_those_of_the_ip_version() {
    for any in versions() {
        let server = udp_at(any);
        let target = server.local_addr().expect("an address");
        let relay = relay(&["pfifo limit 1000"], &[("udp", target)]);
        let (client, mut buffer) = (udp_at(any), [0; 2_000]);
        client.send_to(&[1; 1_000], relay.addresses()[0]).expect("it is sent");
        let (count, from) = server.recv_from(&mut buffer).expect("it arrives");
        server.send_to(&buffer[..count], from).expect("it is sent");
        client.recv(&mut buffer).expect("it arrives");
        let (carried, _) = relay.stop();
        let frame = 14 + if target.is_ipv4() { 20 } else { 40 } + 8 + 1_000;
        let sent = [carried.up, carried.down].map(|way| way.qdiscs.sent_bytes);
        assert_eq!(sent, [frame; 2], "{any}");
    }
}

/// A connection costs a round trip through the line before the first byte, and a datagram its own.
#[test]
fn delays_are_those_of_the_line() {
    let delay = Duration::from_millis(30);
    let (listener, target) = listener();
    let server = udp();
    let targets = [("tcp", target), ("udp", server.local_addr().expect("an address"))];
    let relay = relay(&["netem delay 30ms"], &targets);
    let begin = MonotonicClock.now();
    let mut near = connect(&relay);
    near.write_all(b"x").expect("there is room");
    let mut far = accept(&listener);
    assert!(took(begin) >= delay, "the target is connected through the line");
    let mut byte = [0];
    far.read_exact(&mut byte).expect("it arrives");
    assert!(took(begin) >= 3 * delay);
    far.write_all(b"y").expect("there is room");
    near.read_exact(&mut byte).expect("it arrives");
    assert!(took(begin) >= 4 * delay && byte == *b"y");

    let client = udp();
    client.connect(relay.addresses()[1]).expect("an address");
    let mut buffer = [0; 70_000];
    for length in [0, 1, 65_507] {
        let (sent, begin) = (pattern(length, 2), MonotonicClock.now());
        client.send(&sent).expect("it is sent");
        let (count, from) = server.recv_from(&mut buffer).expect("it arrives");
        assert!(buffer[..count] == sent && took(begin) >= delay);
        server.send_to(&buffer[..count], from).expect("it is sent");
        let count = client.recv(&mut buffer).expect("it arrives");
        assert!(buffer[..count] == sent && took(begin) >= 2 * delay);
    }
    let (carried, counts) = relay.stop();
    assert_eq!((counts.clients, counts.connections), (1, 1));
    assert!(carried.down.carried() >= 3 && carried.up.qdiscs.sent_bytes > 65_507);
}

/// Each client gets the answers to its own datagrams.
#[test]
fn udp_clients_have_sockets_of_their_own() {
    let server = udp();
    let relay = relay(&["pfifo limit 1000"], &[("udp", server.local_addr().expect("an address"))]);
    let clients: Vec<_> = (0..20).map(|_| udp()).collect();
    for (number, client) in (0..).zip(&clients) {
        client.send_to(&[number], relay.addresses()[0]).expect("it is sent");
    }
    let mut buffer = [0; 8];
    for _ in &clients {
        let (count, from) = server.recv_from(&mut buffer).expect("it arrives");
        buffer[count] = 77;
        server.send_to(&buffer[..=count], from).expect("it is sent");
    }
    for (number, client) in (0..).zip(&clients) {
        let (count, from) = client.recv_from(&mut buffer).expect("it arrives");
        assert_eq!((&buffer[..count], from), (&[number, 77][..], relay.addresses()[0]));
    }
    assert_eq!(relay.counts().clients, 20);
    // Nobody is there any more.
    drop(server);
    for _ in 0..100 {
        clients[0].send_to(b"x", relay.addresses()[0]).expect("it is sent");
        thread::sleep(Duration::from_millis(1));
    }
    await_counts(&relay, |counts| counts.unreachable > 0 && counts.failure.is_some());
}

#[test]
fn half_a_connection_may_be_closed() {
    let (listener, target) = listener();
    let relay = relay(&["netem delay 1ms"], &[("tcp", target)]);
    let mut near = connect(&relay);
    near.write_all(b"question").expect("there is room");
    near.shutdown(Shutdown::Write).expect("it is open");
    let mut far = accept(&listener);
    let mut text = String::new();
    far.read_to_string(&mut text).expect("it ends");
    let answer = pattern(200_000, 3);
    far.write_all(&answer).expect("there is room");
    drop(far);
    let mut received = Vec::new();
    near.read_to_end(&mut received).expect("it ends");
    assert!(text == "question" && received == answer);
}

/// A reset of one side comes to the other; a target that refuses resets the client's connection.
#[test]
fn resets_pass() {
    let (listener, target) = listener();
    let relay = relay(&["netem delay 1ms"], &[("tcp", target)]);
    let reset = |socket: TcpStream| {
        let linger = Some(Duration::ZERO);
        socket2::SockRef::from(&socket).set_linger(linger).expect("it is open");
    };
    let kind = |mut socket: TcpStream| {
        socket.read(&mut [0]).expect_err("it is reset").kind() == ErrorKind::ConnectionReset
    };
    let (near, far) = (connect(&relay), accept(&listener));
    reset(near);
    assert!(kind(far));
    let (near, far) = (connect(&relay), accept(&listener));
    reset(far);
    assert!(kind(near));
    await_counts(&relay, |counts| (counts.connections, counts.reset) == (2, 2));
    drop(listener);
    assert!(kind(connect(&relay)));
    await_counts(&relay, |counts| (counts.reset, counts.connections_refused) == (2, 1));
    let failure = relay.counts().failure.expect("it was refused");
    assert!(failure.contains(&target.to_string()) && failure.contains("refused"), "{failure}");
}

/// Many connections are one bottleneck together: 100 of 20,000 bytes each take as long as the rate
/// says, and none starves.
#[test]
fn many_connections_share_the_rate() {
    let (listener, target) = listener();
    let line = ["tbf rate 16mbit burst 5000 limit 100000", "netem delay 2ms"];
    let relay = relay(&line, &[("tcp", target)]);
    let begin = MonotonicClock.now();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100 {
                let mut far = accept(&listener);
                scope.spawn(move || far.write_all(&pattern(20_000, 4)).expect("there is room"));
            }
        });
        for _ in 0..100 {
            let mut near = connect(&relay);
            scope.spawn(move || {
                let mut received = Vec::new();
                near.read_to_end(&mut received).expect("it goes on");
                assert!(received == pattern(20_000, 4));
            });
        }
    });
    // 2,000,000 bytes at 2,000,000 bytes per second, less the burst.
    assert!(took(begin) >= Duration::from_millis(990), "{:?}", took(begin));
    let (carried, counts) = relay.stop();
    assert_eq!((counts.connections, counts.reset), (100, 0));
    assert!(carried.down.qdiscs.sent_bytes > 2_000_000);
}

/// The line can be changed while it carries.
#[test]
fn a_relay_is_changed_while_it_runs() {
    let server = udp();
    let relay = relay(&["pfifo limit 1000"], &[("udp", server.local_addr().expect("an address"))]);
    let client = udp();
    client.connect(relay.addresses()[0]).expect("an address");
    let change = |words: &[&str]| Change::read(words).expect("a change");
    relay.change(change(&["link", "down"]), Vec::new()).expect("it can be made");
    client.send(b"lost").expect("it is sent");
    // The counts are told when the datagram has passed the line.
    await_counts(&relay, |counts| counts.clients == 1);
    relay.change(change(&["link", "up", "delay", "1ms"]), Vec::new()).expect("it can be made");
    client.send(b"whole").expect("it is sent");
    let mut buffer = [0; 8];
    let count = server.recv(&mut buffer).expect("it arrives");
    let lines = relay.lines().expect("it works");
    assert!(lines[0].concat().contains("netem") && !lines[1].concat().contains("netem"));
    let (carried, _) = relay.stop();
    assert_eq!((&buffer[..count], carried.up.lost), (&b"whole"[..], 1));
}

/// A target that answers and then resets, because it has not read all, is understood all the same:
/// its answer comes before the reset.
#[test]
fn an_answer_before_a_reset_arrives() {
    let (listener, target) = listener();
    let relay = relay(&["netem delay 1ms"], &[("tcp", target)]);
    for _ in 0..20 {
        let mut near = connect(&relay);
        near.write_all(&[1; 5_000]).expect("there is room");
        let mut far = accept(&listener);
        far.read_exact(&mut [0; 10]).expect("it comes");
        far.write_all(b"an answer").expect("there is room");
        drop(far); // The kernel sends a reset, because bytes are unread or still come.
        let mut answer = Vec::new();
        let end = near.read_to_end(&mut answer).expect_err("it is reset");
        assert_eq!((&answer[..], end.kind()), (&b"an answer"[..], ErrorKind::ConnectionReset));
    }
}

/// The answer also comes if the client is still sending when the target resets.
#[test]
fn an_answer_to_a_client_that_still_sends_arrives() {
    let (listener, target) = listener();
    let relay = relay(&["netem delay 1ms"], &[("tcp", target)]);
    for round in 0..200 {
        let mut near = connect(&relay);
        let mut sends = near.try_clone().expect("a descriptor");
        thread::scope(|scope| {
            scope.spawn(move || while sends.write_all(&[1; 100_000]).is_ok() {});
            let mut far = accept(&listener);
            far.read_exact(&mut vec![0; 1_000 * (round + 1)]).expect("it comes");
            far.write_all(b"an answer").expect("there is room");
            drop(far);
            let mut answer = Vec::new();
            // The thread that sends may have met the reset first.
            drop(near.read_to_end(&mut answer));
            assert_eq!(answer, b"an answer");
        });
    }
}

/// What a connection has carried when the relay ends does not look like all of it.
#[test]
fn a_relay_that_ends_resets_its_connections() {
    let (listener, target) = listener();
    let relay = relay(&["netem delay 1ms"], &[("tcp", target)]);
    let (mut near, mut far) = (connect(&relay), accept(&listener));
    far.write_all(&[1; 1_000]).expect("there is room");
    near.read_exact(&mut [0; 1_000]).expect("it comes");
    assert_eq!(relay.stop().1.cut, 1);
    for end in [&mut near, &mut far] {
        let error = end.read(&mut [0]).expect_err("it is reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

/// The largest datagrams of IPv6 do not fit a packet of the relay. They are counted, and others go
/// on.
#[test]
fn the_largest_datagrams_are_counted() {
    let Ok(server) = UdpSocket::bind("[::1]:0") else { return };
    server.set_read_timeout(Some(LONG)).expect("it is open");
    let target = server.local_addr().expect("an address");
    let relay = relay(&["pfifo limit 100"], &[("udp", target)]);
    let client = UdpSocket::bind("[::1]:0").expect("a port");
    for size in [65_527, 65_512, 65_511, 100] {
        client.send_to(&vec![7; size], relay.addresses()[0]).expect("it is sent");
    }
    let mut buffer = vec![0; 1 << 16];
    for expected in [65_511, 100] {
        assert_eq!(server.recv(&mut buffer).expect("it comes"), expected);
    }
    assert_eq!(relay.stop().0.up.discarded, 2);
}

/// Datagrams that the kernel drops because the relay did not take them in time are counted.
#[test]
fn a_flood_is_counted() {
    let (server, client) = (udp(), udp());
    let target = server.local_addr().expect("an address");
    let relay = relay(&["pfifo limit 1000000"], &[("udp", target)]);
    let send = |bytes: &[u8]| client.send_to(bytes, relay.addresses()[0]).expect("it is sent");
    let (mut sent, mut buffer) = (30_000_u64, [0; 2_000]);
    for _ in 0..sent {
        send(&[7; 1_000]);
    }
    // When the server has got the last one, the relay has taken or missed all before it.
    server.set_read_timeout(Some(Duration::from_millis(100))).expect("it is open");
    let end = MonotonicClock.now() + LONG;
    loop {
        sent += 1;
        send(&sent.to_be_bytes());
        let next = || server.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec());
        if std::iter::from_fn(next).any(|received| received == sent.to_be_bytes()) {
            break;
        }
        assert!(MonotonicClock.now() < end, "the last one does not come");
    }
    let up = relay.stop().0.up;
    assert_eq!(up.qdiscs.enqueued_packets + up.missed, sent);
}
