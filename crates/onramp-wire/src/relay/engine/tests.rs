//! An engine on the thread of the test, between real sockets of the loopback interface. It does
//! nothing while the test does not let it run.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::*;
use crate::series;

/// Far more than any of the tests needs.
const LONG_NS: u64 = 120_000_000_000;

fn udp() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_nonblocking(true).expect("it is open");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

/// Returns an address that refuses connections as long as the socket is open.
fn refusing() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a descriptor");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).expect("a port");
    let address = socket.local_addr().ok().and_then(|address| address.as_socket());
    (socket, address.expect("an address"))
}

/// Makes an engine with one door to the target, and returns it with the address of the door.
fn engine(kind: &str, target: SocketAddr) -> (Engine, SocketAddr) {
    let entry = format!("{kind}:127.0.0.1:0={target}").parse().expect("an entry");
    let door = Door::open(&entry).expect("a port");
    let setup = series(&["pfifo limit 1000000"]).expect("a qdisc");
    let lane = || crate::relay::lane(&setup, None, 1_500, 1).expect("a line");
    let address = door.address;
    let engine = Engine::new(vec![door], [lane(), lane()], 1_500, Arc::default());
    (engine.expect("descriptors"), address)
}

/// Lets the engine run until `is_done`.
#[track_caller]
fn run(engine: &mut Engine, mut is_done: impl FnMut(&Engine) -> bool) {
    let end = MonotonicClock.now().after(LONG_NS);
    while !is_done(engine) {
        assert!(MonotonicClock.now() < end, "{:?} {:?}", engine.counts, engine.carried());
        if !engine.run().expect("it works") {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Empties the socket. Returns whether a datagram with these bytes was in it.
fn has_got(socket: &UdpSocket, bytes: &[u8]) -> bool {
    let (mut buffer, mut has) = ([0; 2_000], false);
    while let Ok(count) = socket.recv(&mut buffer) {
        has |= &buffer[..count] == bytes;
    }
    has
}

/// Datagrams for which the sockets of the relay have no room are counted, in both directions, also
/// those of a client that is forgotten later.
#[test]
fn datagrams_that_the_kernel_drops_are_counted() {
    const FLOOD: u64 = 40_000;
    let ((server, target), (client, _)) = (udp(), udp());
    let (mut engine, door) = engine("udp", target);
    client.connect(door).expect("an address");
    for _ in 0..FLOOD {
        client.send(&[1; 1_000]).expect("it is sent");
    }
    // When a datagram behind the flood has arrived, the relay has received what the kernel kept.
    let mut sent = FLOOD;
    let mut relay = None;
    run(&mut engine, |_| {
        let mut buffer = [0; 2_000];
        while let Ok((count, from)) = server.recv_from(&mut buffer) {
            relay = (count == 4).then_some(from).or(relay);
        }
        if relay.is_none() {
            sent += u64::from(client.send(b"last").is_ok());
        }
        relay.is_some()
    });
    run(&mut engine, |engine| {
        let up = engine.carried()[0];
        up.qdiscs.enqueued_packets + up.missed == sent
    });
    assert!(engine.carried()[0].missed > 1_000, "{:?}", engine.carried());

    let relay = relay.expect("it has come");
    for _ in 0..FLOOD {
        server.send_to(&[2; 1_000], relay).expect("it is sent");
    }
    let mut sent = FLOOD;
    run(&mut engine, |_| {
        let is_done = has_got(&client, b"last");
        if !is_done {
            sent += u64::from(server.send_to(b"last", relay).is_ok());
        }
        is_done
    });
    let is_whole = |engine: &Engine| {
        let down = engine.carried()[1];
        down.qdiscs.enqueued_packets + down.missed == sent && down.missed > 1_000
    };
    run(&mut engine, is_whole);
    engine.idle_ns = 1;
    engine.timers.push(Reverse((MonotonicClock.now(), engine.known.values().copied().sum())));
    run(&mut engine, |engine| engine.counts.forgotten == 1);
    assert!(is_whole(&engine), "{:?}", engine.carried());
}

/// A client is forgotten when it was idle for long, and not before; then it counts as a new one.
#[test]
fn an_idle_client_is_forgotten() {
    let ((server, target), (client, _)) = (udp(), udp());
    let (mut engine, door) = engine("udp", target);
    let arrives = |engine: &mut Engine| {
        client.send_to(b"x", door).expect("it is sent");
        run(engine, |_| has_got(&server, b"x"));
    };
    arrives(&mut engine);
    let first = *engine.known.values().next().expect("a client");
    let last = engine.clients[&first].last;
    engine.forget(first, last.after(IDLE_NS - 1));
    assert_eq!((engine.counts.clients, engine.counts.forgotten), (1, 0));
    engine.forget(first, last.after(IDLE_NS));
    assert_eq!((engine.counts.clients, engine.counts.forgotten), (1, 1));
    assert!(engine.clients.is_empty() && engine.known.is_empty());
    // The timer of a client that is new forgets it.
    engine.idle_ns = 10_000_000;
    arrives(&mut engine);
    run(&mut engine, |engine| engine.counts.forgotten == 2);
    assert_eq!((engine.counts.clients, engine.known.len()), (2, 0));
}

/// A connection that the first address of a target refuses goes to the second, and counts as none
/// that was refused.
#[test]
fn the_next_address_is_tried_after_a_refusal() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let target = listener.local_addr().expect("an address");
    // A port that is bound and at which nobody listens.
    let (_refusing, refusing) = refusing();
    let (mut engine, door) = engine("tcp", target);
    engine.doors[0].targets.insert(0, refusing);
    let mut client = TcpStream::connect(door).expect("the relay listens");
    client.write_all(b"hello").expect("there is room");
    listener.set_nonblocking(true).expect("it is open");
    let mut far = None;
    run(&mut engine, |_| {
        far = far.take().or_else(|| listener.accept().ok());
        far.as_ref().is_some_and(|(far, _)| {
            far.set_nonblocking(true).expect("it is open");
            far.peek(&mut [0; 5]).is_ok_and(|count| count == 5)
        })
    });
    assert_eq!((engine.counts.connections_refused, &engine.counts.failure), (0, &None));
}

/// If all addresses refuse, the relay names the last one, of which the error is.
#[test]
fn a_refusal_names_the_address_that_refused_last() {
    let ((_first, first), (_last, last)) = (refusing(), refusing());
    let (mut engine, door) = engine("tcp", last);
    engine.doors[0].targets.insert(0, first);
    let _client = TcpStream::connect(door).expect("the relay listens");
    run(&mut engine, |engine| engine.counts.connections_refused == 1);
    let failure = engine.counts.failure.as_ref().expect("it was refused");
    assert!(failure.contains(&last.to_string()), "{failure}");
}

/// Datagrams do not wait while connections wait for descriptors: after a batch of them, the engine
/// goes on at once if more may be there, and then sleeps.
#[test]
fn datagrams_do_not_wait_for_descriptors() {
    let ((_server, target), (client, _)) = (udp(), udp());
    let (mut engine, door) = engine("udp", target);
    client.connect(door).expect("an address");
    for _ in 0..=BATCH {
        client.send(b"x").expect("it is sent");
    }
    engine.retry = Some(Instant::MAX);
    assert!(engine.run().expect("it works"), "one more waits");
    assert!(!engine.run().expect("it works"), "nothing waits");
}
