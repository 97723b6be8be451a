//! What a host reports about its devices to the program that uses it, and what happens when devices
//! end.

use std::net::UdpSocket;
use std::time::Duration;

use onramp::dev::MonotonicClock;
use onramp::{Clock as _, Mapping, TrySendError};

use super::*;

const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_view_of_a_device_has_all_that_ip_shows() {
    let mut host = host(&[
        "ip link add d0 index 4 type dummy",
        "ip link add v0 index 9 mtu 1400 txqueuelen 7 up type veth peer name v1 index 7",
        "ip link add u0 numtxqueues 2 up type udp local 127.0.0.1",
    ]);
    let views = host.devices();
    let seen: Vec<_> = views
        .iter()
        .map(|view| {
            let peer = view.peer.as_deref();
            (view.index, view.name.as_str(), view.kind, view.up, view.mtu, view.txqueuelen, peer)
        })
        .collect();
    assert_eq!(
        seen,
        [
            (4, "d0", "dummy", false, 1_500, 1_000, None),
            (7, "v1", "veth", false, 1_500, 1_000, Some("v0")),
            (9, "v0", "veth", true, 1_400, 7, Some("v1")),
            (10, "u0", "udp", true, 1_500, 1_000, None),
        ]
    );
    assert_eq!(views.iter().map(|view| view.queues.len()).collect::<Vec<_>>(), [1, 1, 1, 2]);
    // The qdiscs of a device with an `mq` are the `mq` itself, which counts to the first queue, and
    // one qdisc for each queue.
    let qdiscs: Vec<_> =
        views[3].qdiscs.iter().map(|(queue, view)| (*queue, view.kind.id)).collect();
    assert_eq!(qdiscs, [(0, "mq"), (0, "pfifo_fast"), (1, "pfifo_fast")]);
    // A single root qdisc serves all queues of a device, and is listed with the first queue.
    assert_eq!(exec(&mut host, "tc qdisc add dev u0 root handle 1: prio"), Reply::default());
    let view = host.devices().pop().expect("u0");
    let qdiscs: Vec<_> = view.qdiscs.iter().map(|(queue, view)| (*queue, view.kind.id)).collect();
    assert_eq!(qdiscs, [(0, "prio")]);
    assert!(host.link("nope").is_none() && host.receiver("nope").is_none());
}

/// The qdiscs of a host's devices measure the sojourn time of packets.
#[test]
fn qdiscs_of_devices_measure() {
    let mut host = host(&["ip link add d0 up type dummy"]);
    assert_eq!(exec(&mut host, "tc qdisc add dev d0 root handle 1: pfifo"), Reply::default());
    let link = host.link("d0").expect("it is there");
    let mut sender = link.sender();
    let flow = sender.flow(None);
    (0..10).for_each(|_| sender.send(&flow, b"x").expect("it is taken"));
    assert!(sender.flush(PATIENCE));
    let views = link.views(0).expect("it answers");
    let counts = views[0].sojourn_ns.as_ref().expect("it measures");
    assert_eq!(counts.iter().sum::<u64>(), 10);
}

/// A packet that a qdisc drops is counted by the qdisc; a packet that a device drops is counted by
/// the device.
#[test]
fn a_device_counts_what_it_drops_itself() {
    let mut host = host(&[
        "ip link add d0 up type dummy",
        "tc qdisc add dev d0 root handle 1: netem delay 200s limit 2",
    ]);
    let link = host.link("d0").expect("it is there");
    let mut sender = link.sender();
    let flow = sender.flow(None);
    (0..10).for_each(|_| sender.send(&flow, &[7; 100]).expect("it is taken"));
    let deadline = MonotonicClock.now() + PATIENCE;
    while link.stats().dropped_total() < 8 {
        assert!(MonotonicClock.now() < deadline, "two are kept");
        std::thread::yield_now();
    }
    let numbers = |host: &mut Host| {
        let shown = out(host, "ip -s link show d0");
        let line = shown.lines().nth(5).expect("what was sent");
        line.split_whitespace().map(|word| word.parse().expect("a number")).collect::<Vec<u64>>()
    };
    assert_eq!(numbers(&mut host), [0; 6], "bytes, packets, errors, dropped, carrier, collisions");
    // While `d0` is down, the device drops all packets, and counts the drops itself.
    assert_eq!(exec(&mut host, "ip link set d0 down"), Reply::default());
    assert_eq!(exec(&mut host, "tc qdisc replace dev d0 root handle 2: pfifo"), Reply::default());
    (0..3).for_each(|_| sender.send(&flow, &[7; 100]).expect("it is taken"));
    assert!(sender.flush(PATIENCE));
    assert_eq!(numbers(&mut host), [0, 0, 0, 3, 0, 0]);
    assert_eq!(exec(&mut host, "ip link set d0 up"), Reply::default());
    (0..4).for_each(|_| sender.send(&flow, &[7; 100]).expect("it is taken"));
    assert!(sender.flush(PATIENCE));
    // The headers of UDP, IPv4 and Ethernet have 8, 20 and 14 bytes.
    assert_eq!(numbers(&mut host), [4 * 142, 4, 0, 3, 0, 0]);
}

/// Received datagrams are counted with the sizes of their headers, which are longer for IPv6 than
/// for IPv4.
#[test]
fn a_relay_counts_bytes_on_the_wire() {
    for (own, headers) in [("127.0.0.1:0", 42), ("[::1]:0", 62)] {
        let Ok(sink) = UdpSocket::bind(own) else {
            continue; // This machine has no IPv6, so this round is skipped.
        };
        sink.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let to = sink.local_addr().expect("an address");
        let add = format!("ip link add u0 up type udp local {own} remote {to} listen {own}");
        let mut host = host(&[&add]);
        let shown = out(&mut host, "ip -d link show u0");
        let mut words = shown.split_whitespace().skip_while(|word| *word != "listen");
        let at = words.nth(1).expect("where it listens");
        let client = UdpSocket::bind(own).expect("a socket");
        for len in [0, 1, 100] {
            client.send_to(&vec![1; len], at).expect("sent");
            let mut buffer = [0; 128];
            assert_eq!(sink.recv_from(&mut buffer).expect("it arrives").0, len);
        }
        // The relay counts a datagram after it has sent it, so wait for the count.
        let deadline = MonotonicClock.now() + PATIENCE;
        let line = |host: &mut Host| {
            let shown = out(host, "ip -s link show u0");
            let line = shown.lines().nth(3).expect("what was received").trim().to_owned();
            line.split_whitespace().take(4).collect::<Vec<_>>().join(" ")
        };
        let want = format!("{} 3 0 0", 101 + 3 * headers);
        while line(&mut host) != want {
            assert!(MonotonicClock.now() < deadline, "{:?}, never {want}", line(&mut host));
            std::thread::yield_now();
        }
    }
}

/// The mailbox of packets that arrived at a device and were not read yet holds 4,096 packets.
/// Further packets wait in the device that sends them.
#[test]
fn a_box_holds_four_thousand_packets() {
    let host = host(&["ip link add v0 up type veth peer name v1 up"]);
    let mut receiver = host.receiver("v1").expect("nobody else reads");
    let link = host.link("v0").expect("it is there");
    // Each of the 50 senders may have 96 packets in flight, so together they send more than 4,096.
    let mut senders: Vec<_> = (0..50).map(|_| link.sender()).collect();
    for sender in &mut senders {
        let flow = sender.flow(None);
        (0..96).for_each(|_| sender.try_send(&flow, b"x").expect("it has credit"));
    }
    let deadline = MonotonicClock.now() + PATIENCE;
    while link.stats().sent < 4_096 {
        assert!(MonotonicClock.now() < deadline, "{:?}", link.stats());
        std::thread::yield_now();
    }
    assert!(!link.flush(Duration::from_millis(5)), "there is no room for more");
    let stats = link.stats();
    assert!(stats.held > 0, "{stats:?}");
    assert_eq!((stats.submitted, stats.sent), (50 * 96, 4_096));
    assert_eq!(receiver.recv_all().len(), 4_096);
}

/// When a host is closed, it closes its devices. The devices' links accept no more packets after
/// that.
#[test]
fn a_host_that_ends_closes_its_devices() {
    let mut host = host(&["ip link add d0 up type dummy", "ip link add d1 up type dummy"]);
    let links = ["d0", "d1"].map(|name| host.link(name).expect("it is there"));
    let mut senders = links.each_ref().map(|link| link.sender());
    let flows = senders.each_ref().map(|sender| sender.flow(None));
    host.close(PATIENCE);
    assert!(host.devices().is_empty() && host.link("d0").is_none());
    for (sender, flow) in senders.iter_mut().zip(&flows) {
        assert_eq!(sender.try_send(flow, b"x"), Err(TrySendError::Closed));
    }
    // After the close, `ip link` of the host shows no devices.
    assert_eq!(out(&mut host, "ip link"), "");
    assert_eq!(exec(&mut host, "ip link add d0 type dummy"), Reply::default());
    assert!(out(&mut host, "ip link").starts_with("3: d0: "), "numbers are not used again");
}

/// A device that is deleted accepts no more packets and drops the packets that it holds.
#[test]
fn a_device_that_is_deleted_is_closed() {
    let mut host = host(&[
        "ip link add d0 up type dummy",
        "tc qdisc add dev d0 root handle 1: netem delay 200s",
    ]);
    let link = host.link("d0").expect("it is there");
    let mut sender = link.sender();
    let flow = sender.flow(None);
    sender.try_send(&flow, b"x").expect("there is room");
    assert_eq!(exec(&mut host, "ip link del d0"), Reply::default());
    assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Closed));
    let stats = link.stats();
    assert_eq!((stats.held, stats.sent, stats.dropped_total()), (0, 0, 1));
}

/// The devices of a host that closes have its time limit of 2 s together: the close takes less than
/// 100 s, although each of 100 devices holds a packet that cannot leave in time.
#[test]
fn devices_share_the_time_to_end() {
    const COUNT: u32 = 100;
    let mut host = Host::new();
    for number in 0..COUNT {
        for line in [
            format!("ip link add d{number} up type dummy"),
            format!("tc qdisc add dev d{number} root netem delay 200s"),
        ] {
            assert_eq!(exec(&mut host, &line), Reply::default());
        }
        let mut sender = host.link(&format!("d{number}")).expect("it is there").sender();
        let flow = sender.flow_with(None, Mapping::Port(0));
        sender.try_send(&flow, b"stays").expect("there is room");
    }
    // The host closes the devices one after another. If each had the limit for itself, the close
    // would take 100 * 2 s = 200 s.
    let begun = MonotonicClock.now();
    host.close(Duration::from_secs(2));
    assert!(MonotonicClock.now().since(begun) < 100_000_000_000);
}

/// A device may send until the time limit of the host has passed, however many others are idle.
#[test]
fn idle_devices_take_no_time_from_another() {
    let mut host =
        host(&["ip link add d0 up type dummy", "tc qdisc add dev d0 root netem delay 3s"]);
    for number in 1..100 {
        let line = format!("ip link add d{number} up type dummy");
        assert_eq!(exec(&mut host, &line), Reply::default());
    }
    let link = host.link("d0").expect("it is there");
    let mut sender = link.sender();
    let flow = sender.flow(None);
    sender.try_send(&flow, b"x").expect("there is room");
    // A hundredth of the limit is less than the delay.
    host.close(Duration::from_secs(200));
    assert_eq!((link.stats().sent, link.stats().dropped_total()), (1, 0));
}
