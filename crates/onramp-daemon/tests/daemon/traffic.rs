//! Traffic that the daemon makes for clients.

use std::net::{Shutdown, UdpSocket};
use std::thread;

use onramp_daemon::traffic::{self, Ended, Options as Wanted, Report};

use super::*;

/// A daemon with the devices that the lines make.
fn running(lines: &[&str]) -> (Running, Conversation) {
    let daemon = Running::start(Limits::default());
    let mut client = daemon.connect();
    for line in lines {
        assert_eq!(client.ask(&command(line))["code"], 0, "{line}");
    }
    (daemon, client)
}

/// Traffic that goes on until something ends it.
fn endless(dev: &str) -> Wanted {
    Wanted { dev: dev.to_owned(), seconds: 86_400.0, ..Wanted::default() }
}

fn ask(daemon: &Running, wanted: &Wanted) -> UnixStream {
    let stream = traffic::ask(&daemon.path(), wanted).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

fn told(stream: UnixStream) -> Result<Report, String> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("an answer, or the end");
    traffic::read(&line).map_err(|error| error.to_string())
}

/// Returns the number of packets that `d0` sent and dropped.
fn moved(client: &mut Conversation) -> u64 {
    let reply = client.ask(&command("ip -s link show d0"));
    let shown = reply["out"].as_str().expect("text");
    let line = shown.lines().nth(5).expect("what was sent");
    let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().expect("a number"));
    numbers.nth(1).expect("packets") + numbers.nth(1).expect("dropped")
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let pause = Duration::from_millis(5);
    let tries = PATIENCE.as_millis() / pause.as_millis();
    assert!(
        (0..tries).any(|_| is() || {
            thread::sleep(pause);
            false
        }),
        "never: {what}"
    );
}

/// On devices of all types that need no root, with and without a qdisc that drops or keeps packets,
/// each packet was sent, or dropped for a reason, or is still in the device.
#[test]
fn no_packet_is_unaccounted_for() {
    let sink = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let udp =
        format!("ip link add u0 up type udp local 127.0.0.1 remote {}", sink.local_addr().unwrap());
    let folder = tempfile::tempdir().expect("a folder");
    let pcap = format!("ip link add c0 up type pcap file {}/c.pcapng", folder.path().display());
    let (daemon, mut client) = running(&[
        "ip link add d0 up numtxqueues 2 type dummy",
        "ip link add d1 up type dummy",
        "ip link add d2 up type dummy",
        "ip link add v0 up type veth peer name v1 up",
        "ip link add l0 up type loopback",
        &udp,
        &pcap,
        "tc qdisc add dev d1 root handle 1: tbf rate 1mbit burst 2000 limit 6000",
        "tc qdisc add dev d2 root handle 1: netem delay 200s loss 20%",
    ]);
    for (dev, rate) in [
        ("d0", Some(1_000_000)),
        ("d0", None),
        ("d1", None),
        ("d2", None),
        ("v0", Some(1_000_000)),
        ("l0", Some(1_000_000)),
        ("u0", Some(1_000_000)),
        ("c0", Some(1_000_000)),
    ] {
        let wanted = Wanted { flows: 7, threads: 2, size: 200, ..endless(dev) };
        let wanted = Wanted { bytes_per_second: rate, seconds: 0.2, ..wanted };
        let report = told(ask(&daemon, &wanted)).expect("a report");
        let dropped: u64 = report.drops.values().sum();
        assert_eq!(report.submitted, report.sent + dropped + report.queued, "{report:?}");
        assert_eq!(report.wire_bytes, report.sent * 200, "{report:?}");
        assert!(report.submitted > 0 && report.ended == Ended::Time, "{report:?}");
        match dev {
            "d1" => assert!(report.drops.contains_key("overlimit"), "{report:?}"),
            "d2" => assert!(report.queued > 0 && report.sent == 0, "{report:?}"),
            _ => assert_eq!((report.sent, report.queued), (report.submitted, 0), "{report:?}"),
        }
        if dev == "d1" {
            let shown = client.ask(&command("tc -s qdisc show dev d1"));
            let want = format!(" {} pkt (dropped {dropped},", report.sent);
            let shown = shown["out"].as_str().expect("text");
            assert!(shown.contains(&want), "{shown}: {report:?}");
        }
    }
}

/// A filter and the hash of a qdisc tell the flows apart.
#[test]
fn flows_are_told_apart() {
    let (daemon, mut client) = running(&[
        "ip link add d0 up type dummy",
        "tc qdisc add dev d0 root handle 1: prio",
        "tc filter add dev d0 parent 1: protocol ip u32 match ip dport 53 0xffff classid 1:3",
        "tc filter add dev d0 parent 1: protocol ip u32 match ip sport 10001 0xffff classid 1:1",
        "tc qdisc add dev d0 parent 1:1 handle 11: pfifo",
        "tc qdisc add dev d0 parent 1:2 handle 12: pfifo",
        "tc qdisc add dev d0 parent 1:3 handle 13: pfifo",
    ]);
    let wanted = Wanted { flows: 3, seconds: 0.2, ..endless("d0") };
    let first = told(ask(&daemon, &wanted)).expect("a report");
    let wanted = Wanted { flows: 1, port: Some(53), ..wanted };
    let second = told(ask(&daemon, &wanted)).expect("a report");
    let reply = client.ask(&command("tc -s -j qdisc show dev d0"));
    let shown: Value = serde_json::from_str(reply["out"].as_str().expect("text")).expect("JSON");
    let packets = |handle: &str| {
        let list = shown.as_array().expect("a list");
        let found = list.iter().find(|it| it["handle"] == handle);
        found.and_then(|it| it["packets"].as_u64()).expect("a number")
    };
    assert_eq!(packets("13:"), second.submitted);
    assert_eq!(packets("11:") + packets("12:"), first.submitted);
    assert!(packets("11:").abs_diff(first.submitted / 3) <= 1, "one of three flows: {shown}");
}

#[test]
fn traffic_ends_when_its_client_wants_and_when_it_dies() {
    let (daemon, mut client) = running(&["ip link add d0 up type dummy"]);
    let stream = ask(&daemon, &endless("d0"));
    wait_until("packets", || moved(&mut client) > 0);
    stream.shutdown(Shutdown::Write).expect("it is open");
    let report = told(stream).expect("a report");
    assert_eq!((report.ended, report.submitted), (Ended::Stopped, moved(&mut client)));
    // Without a rate, packets never cease to move while the traffic lasts.
    let dying = ask(&daemon, &Wanted { bytes_per_second: None, ..endless("d0") });
    let before = moved(&mut client);
    wait_until("packets", || moved(&mut client) > before);
    drop(dying);
    wait_until("the end", || {
        let now = moved(&mut client);
        thread::sleep(Duration::from_millis(100));
        moved(&mut client) == now
    });
}

#[test]
fn traffic_ends_with_its_device_and_with_its_daemon() {
    let (daemon, mut client) = running(&[
        "ip link add d0 up type dummy",
        "ip link add d1 up type dummy",
        "tc qdisc add dev d1 root netem delay 200s limit 100000",
    ]);
    let streams = ["d1", "d0"].map(|dev| ask(&daemon, &endless(dev)));
    wait_until("packets", || moved(&mut client) > 0);
    wait_until("packets", || {
        let shown = client.ask(&command("tc -s qdisc show dev d1"));
        !shown["out"].as_str().expect("text").contains(" 0p requeues")
    });
    let [first, second] = streams;
    assert_eq!(client.ask(&command("ip link del d1"))["code"], 0);
    let report = told(first).expect("a report");
    let dropped: u64 = report.drops.values().sum();
    assert_eq!((report.ended, report.sent, report.queued), (Ended::Deleted, 0, 0), "{report:?}");
    assert!(report.submitted == dropped && report.drops.contains_key("purged"), "{report:?}");
    drop(daemon);
    let report = told(second).expect("a report");
    // A daemon that ends waits for no packet, so some may be in the device.
    assert_eq!((report.ended, report.drops.len()), (Ended::Daemon, 0), "{report:?}");
    assert!(report.sent > 0 && report.sent + report.queued == report.submitted, "{report:?}");
}

#[test]
fn what_is_wrong_with_a_wish_is_told() {
    let (daemon, mut client) = running(&[
        "ip link add d0 up type dummy",
        "ip link add d1 type dummy",
        "ip link add u0 up type udp local 127.0.0.1",
        "ip link add u1 up type udp local 127.0.0.1 remote 127.0.0.1:9",
    ]);
    let fine = Wanted { seconds: 0.01, ..endless("d0") };
    for (wanted, why) in [
        (endless("d7"), "there is no device \"d7\"; expected one of d0, d1, u0, u1"),
        (endless("d1"), "d1 is down; set it up first: onramp ip link set d1 up"),
        (endless("u0"), "u0 has no server to send to; make it with remote ADDRESS:PORT"),
        (
            Wanted { port: Some(5), ..endless("u1") },
            "port 5: packets of u1 go to its remote, 127.0.0.1:9",
        ),
        (
            Wanted { size: 41, ..fine.clone() },
            "size 41: packets of d0 have 42 to 1514 bytes, headers included",
        ),
        (
            Wanted { size: 1_515, ..fine.clone() },
            "size 1515: packets of d0 have 42 to 1514 bytes, headers included",
        ),
        (Wanted { flows: 0, ..fine.clone() }, "flows 0: expected 1 to 65536"),
    ] {
        assert_eq!(told(ask(&daemon, &wanted)).expect_err("refused"), why);
    }
    let strange = client.ask(&json!({"v": 1, "id": 4, "traffic": {"dev": "d0", "speed": 1}}));
    let said = strange["err"].as_str().expect("text");
    assert!(said.starts_with("onramp: \"traffic\": unknown field `speed`"), "{said}");
    assert_eq!((&strange["id"], &strange["code"]), (&4.into(), &2.into()));
    // A refused wish does not end the connection.
    assert_eq!(client.ask(&command("ip link show d0"))["code"], 0);
    // Packets of the smallest size are sent. The wish is repeated if its thread got no processor
    // during its short time.
    let smallest = Wanted { size: 42, ..fine };
    assert!((0..100).any(|_| told(ask(&daemon, &smallest)).expect("a report").sent > 0));
}

/// 64 threads may send at a time. Meanwhile, other clients are served.
#[test]
fn threads_are_limited() {
    let (daemon, mut client) = running(&["ip link add d0 up type dummy"]);
    let wanted = Wanted { threads: 16, ..endless("d0") };
    let streams: Vec<_> = (0..4).map(|_| ask(&daemon, &wanted)).collect();
    let one = Wanted { seconds: 0.001, ..endless("d0") };
    wait_until("64 threads", || told(ask(&daemon, &one)).is_err());
    let why = told(ask(&daemon, &one)).expect_err("refused");
    assert_eq!(why, "64 threads may send traffic at a time; end other traffic first");
    assert_eq!(client.ask(&command("tc qdisc show"))["code"], 0);
    drop(streams);
    wait_until("room", || told(ask(&daemon, &one)).is_ok());
}
