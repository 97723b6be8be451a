//! The filters of `ingress` and `clsact` on packets that devices carry.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use onramp::dev::MonotonicClock;
use onramp::{Clock as _, DropReason, Link, Mapping, TrySendError};

use super::*;

/// Time limit for each wait in the tests. No expected event takes so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sends `count` packets of 100 bytes to each of the ports 1 to 4, through the given port of the
/// link, and waits until the link holds no packet.
fn send(link: &Link, port: usize, count: usize) {
    let mut sender = link.sender();
    let flows = [1, 2, 3, 4].map(|to| {
        let dest: SocketAddr = ([10, 0, 0, 1], to).into();
        sender.flow_with(dest, Mapping::Hash(port as u64))
    });
    for flow in flows.iter().cycle().take(4 * count) {
        sender.send(flow, &[7; 100]).expect("it is taken");
    }
    assert!(link.flush(PATIENCE), "everything left");
}

/// Returns the first line of statistics that a listing contains.
fn sent(host: &mut Host, listing: &str) -> String {
    let shown = out(host, listing);
    let line = shown.lines().find_map(|line| line.trim().strip_prefix("Sent "));
    let line = line.unwrap_or_default().split(" requeues").next().unwrap_or_default();
    line.trim_end_matches(", overlimits 0").to_owned()
}

/// Returns the packets that the device has received, and the packets that were dropped there.
fn received(host: &mut Host, device: &str) -> [u64; 2] {
    let shown = out(host, &format!("ip -s link show {device}"));
    let line = shown.lines().nth(3).expect("what was received");
    let column = |place| line.split_whitespace().nth(place).and_then(|word| word.parse().ok());
    [1, 3].map(|place| column(place).expect("a number"))
}

const DROP_3: &str = "protocol ip u32 match ip dport 3 0xffff action drop";

/// What a `clsact` drops at the egress reaches neither the root nor the device, and its sender
/// learns of it; over all queues, under one root, under `mq` and without a root.
#[test]
fn filters_in_front_of_the_root_see_what_leaves() {
    for root in ["pfifo", "mq", "noqueue", "prio"] {
        let mut host = host(&[
            "ip link add d0 up numtxqueues 3 type dummy",
            &format!("tc qdisc replace dev d0 root handle 1: {root}"),
            "tc qdisc add dev d0 clsact",
            &format!("tc filter add dev d0 egress {DROP_3}"),
        ]);
        let link = host.link("d0").expect("it is there");
        (0..3).for_each(|port| send(&link, port, 10));
        let stats = link.stats();
        assert_eq!((stats.sent, stats.dropped[&DropReason::Filter]), (90, 30), "{root}");
        let passed = "12780 bytes 90 pkt (dropped 0";
        assert_eq!(sent(&mut host, "tc -s qdisc show dev d0 root"), passed, "{root}");
        let clsact = "17040 bytes 120 pkt (dropped 30";
        assert_eq!(sent(&mut host, "tc -s qdisc show dev d0 clsact"), clsact, "{root}");
        let filter = "4260 bytes 30 pkt (dropped 30";
        assert_eq!(sent(&mut host, "tc -s filter show dev d0 egress"), filter, "{root}");
        let json = out(&mut host, "tc -s -j qdisc show dev d0 clsact");
        assert!(json.contains(r#""kind":"clsact","handle":"ffff:""#), "{json}");
        assert!(json.contains(r#""bytes":17040,"packets":120,"drops":30"#), "{json}");
        let view = host.device("d0").expect("it is there");
        let views = view.qdiscs.iter().filter(|(_, view)| view.kind.id == "clsact");
        let counted: u64 = views.map(|(_, view)| view.counters.packets).sum();
        assert_eq!(counted, 120, "{root}");
        // A `clsact` that comes again counts anew.
        out(&mut host, "tc qdisc del dev d0 clsact");
        send(&link, 0, 5);
        out(&mut host, "tc qdisc add dev d0 clsact");
        assert_eq!(sent(&mut host, "tc -s qdisc show dev d0 clsact"), "0 bytes 0 pkt (dropped 0");
        assert_eq!(link.stats().sent, 110);
    }
}

/// A priority that the egress filters set decides the band.
#[test]
fn filters_in_front_of_the_root_choose_the_band() {
    let mut host = host(&[
        "ip link add d0 up type dummy",
        "tc qdisc add dev d0 root handle 1: prio",
        "tc qdisc add dev d0 clsact",
        "tc filter add dev d0 egress protocol ip u32 match ip dport 3 0xffff \
         action skbedit priority 1:3",
    ]);
    send(&host.link("d0").expect("it is there"), 0, 10);
    let classes = out(&mut host, "tc -s class show dev d0");
    let lines: Vec<_> = classes.lines().filter(|line| line.starts_with(" Sent")).collect();
    let packets = lines.iter().filter_map(|line| line.split(' ').nth(4));
    assert_eq!(packets.collect::<Vec<_>>(), ["0", "30", "10"], "{classes}");
}

/// Packets that come in at one end of a pair meet its filters, from each queue of the other end,
/// with a reader and without one. The device has received them all, as in Linux.
#[test]
fn filters_at_the_ingress_see_what_comes_in() {
    for device in ["veth peer name v1 up", "loopback"] {
        let at = if device == "loopback" { "v0" } else { "v1" };
        let mut host = host(&[
            &format!("ip link add v0 up numtxqueues 2 type {device}"),
            &format!("tc qdisc add dev {at} ingress"),
            &format!("tc filter add dev {at} ingress pref 1 {DROP_3}"),
            &format!(
                "tc filter add dev {at} ingress pref 2 matchall action skbedit mark 6 priority 2:2"
            ),
        ]);
        let link = host.link("v0").expect("it is there");
        (0..2).for_each(|port| send(&link, port, 10));
        let mut receiver = host.receiver(at).expect("nobody else reads");
        send(&link, 1, 10);
        let packets: Vec<_> = receiver.recv_all().collect();
        let seen = packets.iter().filter(|packet| {
            packet.mark == 6 && packet.priority == 0x2_0002 && packet.dest().is_some()
        });
        let ports = seen.filter_map(|packet| packet.dest().map(|dest| dest.port()));
        assert_eq!(ports.filter(|port| *port != 3).count(), 30);
        drop((packets, receiver));
        assert_eq!(received(&mut host, at), [120, 0]);
        let stats = link.stats();
        assert_eq!((stats.sent, stats.dropped_total()), (120, 0), "the sender's device sent them");
        // Without the Ethernet header of 14 bytes.
        let counted = "15360 bytes 120 pkt (dropped 30";
        assert_eq!(sent(&mut host, &format!("tc -s qdisc show dev {at} ingress")), counted);
        let filter = "3840 bytes 30 pkt (dropped 30";
        assert_eq!(sent(&mut host, &format!("tc -s filter show dev {at} ingress")), filter);
    }
}

/// Each packet meets the filters once, also if the reader has no room for it at first.
#[test]
fn a_full_reader_has_no_packet_counted_twice() {
    let mut host = host(&[
        "ip link add v0 up type veth peer name v1 up",
        "tc qdisc add dev v0 root pfifo limit 10000",
        "tc qdisc add dev v1 clsact",
        "tc filter add dev v1 ingress matchall action pass",
    ]);
    let link = host.link("v0").expect("it is there");
    let mut receiver = host.receiver("v1").expect("nobody else reads");
    // A sender has 96 credits, and the reader room for 4,096 packets.
    let mut senders: Vec<_> = (0..60).map(|_| link.sender()).collect();
    for sender in &mut senders {
        let flow = sender.flow(None);
        (0..90).for_each(|_| sender.send(&flow, &[7; 100]).expect("it is taken"));
    }
    let mut got = 0;
    while got < 60 * 90 {
        assert!(receiver.wait(PATIENCE), "{got} arrived");
        got += receiver.recv_all().len();
    }
    assert!(link.flush(PATIENCE));
    let counted = "691200 bytes 5400 pkt (dropped 0";
    assert_eq!(sent(&mut host, "tc -s filter show dev v1 ingress"), counted);
    assert_eq!(received(&mut host, "v1"), [5_400, 0]);
}

/// While packets pass, commands add and delete filters for both ways, and the qdiscs that have
/// them. No packet is lost, and none is counted by two drops.
#[test]
fn commands_change_the_filters_while_packets_pass() {
    let mut host = host(&[
        "ip link add v0 up numtxqueues 2 type veth peer name v1 up",
        "tc qdisc add dev v0 root handle 1: prio",
        "tc qdisc add dev v0 clsact",
        "tc qdisc add dev v1 clsact",
        "tc filter add dev v1 ingress pref 1 u32 match ip dport 1 0xffff action drop",
        "tc filter add dev v0 egress pref 1 u32 match ip dport 2 0xffff action drop",
    ]);
    let link = host.link("v0").expect("it is there");
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let rush = |port: usize| {
            let mut sender = link.sender();
            let flows = [1, 2, 3, 4].map(|to| {
                let dest: SocketAddr = ([10, 0, 0, 1], to).into();
                sender.flow_with(dest, Mapping::Hash(port as u64))
            });
            for flow in flows.iter().cycle() {
                if ends.load(Ordering::SeqCst) {
                    break;
                }
                match sender.try_send(flow, &[7; 100]) {
                    Ok(()) | Err(TrySendError::Full) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let threads = [0, 1].map(|port| scope.spawn(move || rush(port)));
        // At least 60 rounds, and until packets have met the filters.
        let deadline = MonotonicClock.now() + PATIENCE;
        let met = || link.stats().dropped.get(&DropReason::Filter) > Some(&100);
        let waits = || !met() && MonotonicClock.now() < deadline;
        for round in (0..).take_while(|round| *round < 60 || waits()) {
            for line in [
                &format!("tc filter add dev v1 ingress {DROP_3}"),
                &format!("tc filter add dev v0 egress {DROP_3}"),
                "tc -s qdisc show",
                "tc -s filter show dev v1 ingress",
                "tc -s filter show dev v0 egress",
                "tc filter del dev v1 ingress pref 49152",
                "tc filter del dev v0 egress pref 49152",
            ] {
                // A port whose owner gets no processor for a second is late, which is told.
                let reply = exec(&mut host, line);
                assert_eq!(reply.code, 0, "{line}: {reply:?}");
            }
            if round % 20 == 19 {
                out(&mut host, "tc qdisc replace dev v0 root mq");
                out(&mut host, "tc qdisc replace dev v0 root handle 1: prio");
            }
        }
        ends.store(true, Ordering::SeqCst);
        let _ = threads.map(|thread| thread.join().expect("it sends"));
    });
    assert!(link.flush(PATIENCE));
    let stats = link.stats();
    assert_eq!(stats.submitted, stats.sent + stats.dropped_total());
    assert_eq!(received(&mut host, "v1"), [stats.sent, 0]);
    let count = |line: &str, place: usize| {
        let words: Vec<_> = line.split(|c: char| !c.is_ascii_digit()).collect();
        words.into_iter().filter(|word| !word.is_empty()).nth(place).and_then(|n| n.parse().ok())
    };
    let at_v1 = sent(&mut host, "tc -s qdisc show dev v1 clsact");
    assert_eq!(count(&at_v1, 1), Some(stats.sent), "the first filter was always there: {at_v1}");
    let filter = sent(&mut host, "tc -s filter show dev v0 egress");
    assert!(count(&filter, 1) > Some(0_u64), "{filter}");
}

/// A relay's filters see the clients' datagrams with the addresses from which they came, before the
/// relay knows the clients; and the answers, where a second device has these.
#[test]
fn a_relay_filters_datagrams_by_their_ends() {
    // At `[::]`, IPv4 clients come too, and meet the filters for IPv4.
    let v4 = "127.0.0.1:0";
    for (own, listen) in [(v4, v4), ("[::1]:0", "[::1]:0"), (v4, "0.0.0.0:0"), (v4, "[::]:0")] {
        let Ok(server) = UdpSocket::bind(own) else { continue };
        let [wanted, unwanted] = [(); 2].map(|()| UdpSocket::bind(own).expect("a socket"));
        for socket in [&server, &wanted, &unwanted] {
            socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        }
        let at_server = server.local_addr().expect("an address");
        let mut host = host(&[
            &format!(
                "ip link add u0 up type udp local {own} remote {at_server} listen {listen} \
                 peer name u1 up"
            ),
            "tc qdisc add dev u0 root handle 1: prio",
            "tc qdisc add dev u0 clsact",
            "tc qdisc add dev u1 ingress",
        ]);
        let at = carry::listens_at(&mut host, "u0");
        let at = SocketAddr::new(at_server.ip(), at.port());
        let port = |socket: &UdpSocket| socket.local_addr().expect("an address").port();
        let kind = if own.starts_with('[') { "ipv6" } else { "ip" };
        for line in [
            format!(
                "tc filter add dev u0 ingress protocol {kind} pref 1 flower ip_proto udp \
                 src_port {} dst_port {} action drop",
                port(&unwanted),
                at.port(),
            ),
            "tc filter add dev u0 ingress pref 2 matchall action skbedit priority 1:3".into(),
            format!(
                "tc filter add dev u1 ingress protocol {kind} pref 1 flower ip_proto udp \
                 src_port {} action pass",
                at_server.port(),
            ),
        ] {
            assert_eq!(exec(&mut host, &line), Reply::default(), "{line}");
        }
        for number in 0..20_u8 {
            unwanted.send_to(&[number; 64], at).expect("it is sent");
            wanted.send_to(&[100 + number; 64], at).expect("it is sent");
            let mut buffer = [0; 128];
            let (len, from) = server.recv_from(&mut buffer).expect("it arrives");
            assert_eq!(buffer[..len], [100 + number; 64], "only those that are wanted");
            server.send_to(&[number; 32], from).expect("it is sent");
            let (len, _) = wanted.recv_from(&mut buffer).expect("an answer");
            assert_eq!(buffer[..len], [number; 32]);
        }
        // The thread counts a datagram after it has sent it.
        let deadline = MonotonicClock.now() + PATIENCE;
        while received(&mut host, "u0") != [40, 0] || received(&mut host, "u1") != [20, 0] {
            assert!(MonotonicClock.now() < deadline, "{:?}", received(&mut host, "u0"));
            thread::yield_now();
        }
        let headers = if kind == "ip" { 28 } else { 48 };
        let dropped = format!("{} bytes 20 pkt (dropped 20", 20 * (64 + headers));
        assert_eq!(sent(&mut host, "tc -s filter show dev u0 ingress"), dropped);
        let passed = format!("{} bytes 20 pkt (dropped 0", 20 * (32 + headers));
        assert_eq!(sent(&mut host, "tc -s filter show dev u1 ingress"), passed);
        let classes = out(&mut host, "tc -s class show dev u0");
        assert_eq!(classes.lines().filter(|line| line.contains(" 20 pkt ")).count(), 1);
        assert!(classes.split("prio 1:3").nth(1).is_some_and(|third| third.contains(" 20 pkt ")));
        let relay = host.device("u0").and_then(|device| device.relay).expect("it relays");
        assert_eq!((relay.clients, relay.answers), (1, 20), "no client for what was dropped");
        assert!(relay.refused.is_empty(), "{:?}", relay.refused);
    }
}

/// A filter with `indev` means the device, and not its name: it goes on matching after the device
/// was renamed, and so does the same filter of a saved configuration.
#[test]
fn a_filter_follows_the_name_of_its_device() {
    let mut first = host(&[
        "ip link add v0 up type veth peer name v1 up",
        "ip link add d0 up type dummy",
        "tc qdisc add dev v1 ingress",
        "tc filter add dev v1 ingress protocol ip pref 1 u32 match u32 0 0 indev v1 action drop",
        "tc filter add dev v1 ingress protocol ip pref 2 flower indev d0 action pass",
        "ip link set dev v1 name w1",
        "ip link set dev d0 name v1",
    ]);
    let saved = first.save(None).expect("it can be saved").join("\n");
    let mut second = Host::new();
    second.configure(&saved, Path::new("/")).expect("it can be made again");
    for host in [&mut first, &mut second] {
        send(&host.link("v0").expect("it is there"), 0, 10);
        let shown = out(host, "tc -s filter show dev w1 ingress");
        assert!(shown.contains("input dev w1\n") && shown.contains("indev v1\n"), "{shown}");
        assert!(shown.contains("Sent 5120 bytes 40 pkt (dropped 40"), "{shown}");
    }
}
