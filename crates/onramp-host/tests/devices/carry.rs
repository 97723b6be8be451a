//! Packets that devices carry, and the counters of these packets.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use onramp::dev::MonotonicClock;
use onramp::{Clock as _, Link};

use super::*;

/// Time limit for each wait in the tests. No expected event takes so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sends `count` packets of 100 bytes, and waits until the link holds no packet.
pub(super) fn send(host: &Host, device: &str, count: usize) {
    send_through(&host.link(device).expect("there is such a device"), count);
}

fn send_through(link: &Link, count: usize) {
    let mut sender = link.sender();
    let flow = sender.flow(None);
    for _ in 0..count {
        sender.send(&flow, &[7; 100]).expect("it is taken");
    }
    assert!(link.flush(PATIENCE), "everything left");
}

/// Returns four counters that `ip -s link` shows for a device: packets received, packets dropped at
/// receiving, packets sent, and packets dropped at sending.
fn counted(host: &mut Host, device: &str) -> [u64; 4] {
    let shown = out(host, &format!("ip -s link show {device}"));
    let lines: Vec<&str> = shown.lines().collect();
    let column = |line: &str, place: usize| {
        line.split_whitespace().nth(place).and_then(|word| word.parse().ok()).expect("a number")
    };
    let (received, sent) = (lines[3], lines[5]);
    [column(received, 1), column(received, 3), column(sent, 1), column(sent, 3)]
}

#[test]
fn a_dummy_swallows_and_counts() {
    let mut host = host(&["ip link add d0 up numtxqueues 3 type dummy"]);
    send(&host, "d0", 1_000);
    assert_eq!(counted(&mut host, "d0"), [0, 0, 1_000, 0]);
    assert!(host.receiver("d0").is_none(), "nothing arrives there");
}

/// If nobody listens at the destination, the kernel tells so when the next packet is sent.
#[test]
fn datagrams_for_which_nobody_listens_are_counted_as_errors() {
    let to = "127.77.77.77:9";
    let mut host = host(&[&format!("ip link add u0 up type udp local 127.0.0.1 remote {to}")]);
    let errors = |host: &mut Host| {
        let shown = out(host, "ip -s -j link show u0");
        let (_, sent) = shown.split_once(r#""tx":"#).expect("counters");
        let (_, errors) = sent.split_once(r#""errors":"#).expect("a counter");
        errors.split(',').next().and_then(|word| word.parse::<u64>().ok()).expect("a number")
    };
    for _ in 0..10 {
        send(&host, "u0", 1);
    }
    assert_eq!(counted(&mut host, "u0"), [0, 0, 10, 0], "the kernel has taken all");
    assert!((1..10).contains(&errors(&mut host)), "{}", errors(&mut host));
    let heard = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let to = heard.local_addr().expect("an address");
    exec(&mut host, "ip link del u0");
    exec(&mut host, &format!("ip link add u0 up type udp local 127.0.0.1 remote {to}"));
    send(&host, "u0", 10);
    assert_eq!(errors(&mut host), 0);
}

#[test]
fn a_device_that_is_down_drops_and_counts() {
    let mut host = host(&["ip link add d0 type dummy"]);
    send(&host, "d0", 10);
    assert_eq!(counted(&mut host, "d0"), [0, 0, 0, 10]);
    exec(&mut host, "ip link set d0 up");
    send(&host, "d0", 5);
    exec(&mut host, "ip link set d0 down");
    send(&host, "d0", 1);
    assert_eq!(counted(&mut host, "d0"), [0, 0, 5, 11]);
}

/// A qdisc keeps to the size of the largest packet that its device had when the qdisc was added, as
/// the quantum of an `ets` class shows.
#[test]
fn qdiscs_go_by_the_largest_packet_that_a_device_has_when_they_come() {
    let mut host = host(&["ip link add d0 up type dummy"]);
    let quantum = |host: &mut Host| {
        let shown = out(host, "tc class show dev d0 classid 1:1");
        shown.trim().split(' ').next_back().map(str::to_owned)
    };
    exec(&mut host, "tc qdisc add dev d0 root handle 1: ets bands 2");
    assert_eq!(quantum(&mut host).as_deref(), Some("1514"));
    exec(&mut host, "ip link set d0 mtu 9000");
    assert_eq!(quantum(&mut host).as_deref(), Some("1514"), "it stays what it was");
    exec(&mut host, "tc qdisc del dev d0 root");
    exec(&mut host, "tc qdisc add dev d0 root handle 1: ets bands 2");
    assert_eq!(quantum(&mut host).as_deref(), Some("9014"));
}

/// A device that changes leaves its qdiscs and classes as they are. The saved commands make the
/// same listing on another host, and a configuration that sets the mtu first gives new defaults.
#[test]
fn qdiscs_keep_their_defaults_as_their_device_changes() {
    let made = ["ip link add d0 type dummy", "ip link set dev d0 up"];
    let tree = [
        "tc qdisc add dev d0 root handle 1: drr",
        "tc class add dev d0 parent 1: classid 1:1 drr",
        "tc qdisc add dev d0 parent 1:1 handle 2: fq",
        "tc class add dev d0 parent 1: classid 1:2 drr",
        "tc qdisc add dev d0 parent 1:2 handle 3: bfifo",
    ];
    let list = |host: &mut Host| {
        ["tc qdisc show dev d0", "tc class show dev d0"].map(|line| out(host, line)).concat()
    };
    let mut host = host(&[&made[..], &tree].concat());
    let before = list(&mut host);
    let found = |listed: &str, words: &[&str]| words.iter().all(|word| listed.contains(word));
    assert!(found(&before, &["quantum 3028b", "limit 1514000b", "leaf 2: quantum 1514b"]));
    exec(&mut host, "ip link set d0 mtu 9000 txqueuelen 50");
    assert_eq!(list(&mut host), before);
    let saved = host.save(None).expect("it can be saved");
    let mut other = Host::new();
    other.configure(&saved.join("\n"), Path::new("/")).expect("it can be made again");
    assert_eq!(list(&mut other), before);
    // What is added now has the defaults of now.
    exec(&mut host, "tc class add dev d0 parent 1: classid 1:3 drr");
    exec(&mut host, "tc qdisc add dev d0 parent 1:3 handle 4: bfifo");
    assert!(found(&list(&mut host), &["limit 450700b", "leaf 4: quantum 9014b"]));
    // Where a text sets the mtu before the tree, the tree has the defaults of that mtu.
    let set = "ip link set dev d0 mtu 9000 txqueuelen 50 up";
    let text = [&made[..1], &[set], &tree].concat().join("\n");
    let steps = other.configure(&text, Path::new("/")).expect("it can be made");
    let now = list(&mut other);
    assert!(found(&now, &["quantum 18028b", "limit 450700b", "leaf 2: quantum 9014b"]), "{now}");
    assert!(steps.contains(&format!("+ {}", tree[2])), "{steps:?}");
    assert_eq!(other.configure(&text, Path::new("/")), Ok(Vec::new()), "nothing is left to do");
}

#[test]
fn a_loopback_receives_what_it_sends() {
    let mut host = host(&["ip link add l0 up type loopback"]);
    send(&host, "l0", 10);
    assert_eq!(counted(&mut host, "l0"), [10, 0, 10, 0], "nobody read, and they arrived");
    let mut receiver = host.receiver("l0").expect("nobody else reads");
    assert!(host.receiver("l0").is_none(), "one at a time");
    send(&host, "l0", 3);
    assert_eq!(receiver.recv_all().len(), 3);
    assert_eq!(counted(&mut host, "l0"), [13, 0, 13, 0]);
}

#[test]
fn what_one_end_sends_the_other_receives() {
    let mut host = host(&["ip link add v0 up numtxqueues 2 type veth peer name v1 up"]);
    let mut receiver = host.receiver("v1").expect("nobody else reads");
    // A packet is in flight until it is read at `v1`, and a sender may have only 96 packets in
    // flight. So send 50 packets before reading.
    send(&host, "v0", 50);
    let packets: Vec<_> = receiver.recv_all().collect();
    assert_eq!(packets.len(), 50);
    assert!(packets.iter().all(|packet| packet.payload() == [7; 100]));
    drop(packets);
    drop(receiver);
    send(&host, "v1", 7);
    assert_eq!(counted(&mut host, "v0"), [7, 0, 50, 0]);
    assert_eq!(counted(&mut host, "v1"), [50, 0, 7, 0]);
    // A device has no carrier while its other end is down.
    exec(&mut host, "ip link set v1 down");
    send(&host, "v0", 4);
    assert_eq!(counted(&mut host, "v0"), [7, 0, 50, 4]);
}

/// Waits until the device's counters have these values; another thread counts, so they may be late.
fn wait_until_counted(host: &mut Host, device: &str, want: [u64; 4]) {
    let deadline = MonotonicClock.now() + PATIENCE;
    while counted(host, device) != want {
        let late = MonotonicClock.now() > deadline;
        assert!(!late, "{:?}, never {want:?}", counted(host, device));
        std::thread::yield_now();
    }
}

/// A thread sends 20,000 packets to `v1`, whose mailbox holds 4,096. All of them must arrive.
#[test]
fn a_reader_gets_more_than_its_box_holds() {
    let host = host(&["ip link add v0 up type veth peer name v1 up"]);
    let mut receiver = host.receiver("v1").expect("nobody else reads");
    let total: u32 = 20_000;
    let link = host.link("v0").expect("there is such a device");
    std::thread::scope(|scope| {
        scope.spawn(|| send_through(&link, total as usize));
        let mut got = 0;
        while got < total {
            assert!(receiver.wait(PATIENCE), "{got} of {total} arrived");
            got += receiver.recv_all().len();
        }
    });
}

/// Returns the address at which a device listens.
pub(super) fn listens_at(host: &mut Host, device: &str) -> SocketAddr {
    let shown = out(host, &format!("ip -d link show {device}"));
    let mut words = shown.split_whitespace().skip_while(|word| *word != "listen");
    words.nth(1).and_then(|word| word.parse().ok()).expect("an address")
}

#[test]
fn datagrams_of_others_go_through() {
    let sink = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    sink.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let to = sink.local_addr().expect("an address");
    let add = format!("ip link add u0 up type udp local 127.0.0.1 remote {to} listen 127.0.0.1:0");
    let mut host = host(&[&add]);
    let (at, client) = (listens_at(&mut host, "u0"), UdpSocket::bind("127.0.0.1:0").expect("one"));
    for number in 0..50_u8 {
        client.send_to(&[number; 64], at).expect("sent");
        let mut buffer = [0; 128];
        let (len, _) = sink.recv_from(&mut buffer).expect("it arrives");
        assert_eq!(buffer[..len], [number; 64]);
    }
    wait_until_counted(&mut host, "u0", [50, 0, 50, 0]);
    let relay = host.device("u0").and_then(|device| device.relay).expect("it listens");
    assert_eq!((relay.clients, relay.clients_max, relay.errors), (1, 1024, 0));
    // A device that is down accepts no packets. When a device is deleted, its sockets are closed.
    exec(&mut host, "ip link set u0 down");
    client.send_to(&[1; 64], at).expect("sent");
    wait_until_counted(&mut host, "u0", [50, 1, 50, 0]);
    assert_eq!(exec(&mut host, "ip link del u0"), Reply::default());
    // A child process that another test begins has copies of all sockets for a moment.
    let deadline = MonotonicClock.now() + PATIENCE;
    while let Err(error) = UdpSocket::bind(at) {
        assert!(MonotonicClock.now() < deadline, "the address is free again: {error}");
        std::thread::yield_now();
    }
}
