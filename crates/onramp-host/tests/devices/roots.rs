//! Devices with one qdisc for all of their transmit queues, and devices with one qdisc for each
//! queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use onramp::dev::MonotonicClock;
use onramp::{Clock as _, DropReason, Link, Mapping, PortError};

use super::*;

const PATIENCE: Duration = Duration::from_secs(120);

/// Sends 10 packets to each of the 4 queues, and waits until the qdiscs have handled them.
fn send_to_each(link: &Link) {
    let (mut sender, before) = (link.sender(), met(link));
    for queue in 0..4 {
        let flow = sender.flow_with(None, Mapping::Port(queue));
        (0..10).for_each(|_| sender.try_send(&flow, &[7; 100]).expect("there is room"));
    }
    let deadline = MonotonicClock.now() + PATIENCE;
    while met(link) < before + 40 {
        assert!(MonotonicClock.now() < deadline, "they were met");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Carries out a command that must succeed.
fn done(host: &mut Host, line: &str) {
    assert_eq!(exec(host, line), Reply::default(), "{line}");
}

/// Waits until `count` packets were dropped for this reason.
fn until_dropped(link: &Link, reason: DropReason, count: u64) {
    let deadline = MonotonicClock.now() + PATIENCE;
    while link.stats().dropped.get(&reason) != Some(&count) {
        assert!(MonotonicClock.now() < deadline, "{count} for {reason:?}: {:?}", link.stats());
        thread::sleep(Duration::from_micros(200));
    }
}

/// Returns the sum of the packets that have left the device's qdiscs, were dropped by them, or are
/// in them.
fn met(link: &Link) -> u64 {
    // Read the counters of packets that left first, so that a packet that leaves in the meantime is
    // not counted twice.
    let stats = link.stats();
    let backlog: u32 = link.tree_views().iter().take(1).map(|view| view.backlog.packets).sum();
    stats.sent + stats.dropped.values().sum::<u64>() + u64::from(backlog)
}

/// Returns the number of packets that each queue has sent.
fn sent(link: &Link) -> Vec<u64> {
    link.stats().ports.iter().map(|port| port.sent).collect()
}

/// A root qdisc serves all queues of a device together, as in Linux: its limits and rates apply to
/// the device, and not to each queue.
#[test]
fn a_root_serves_all_queues_together() {
    let mut host = host(&["ip link add d0 up numtxqueues 4 type dummy"]);
    let link = host.link("d0").unwrap();
    send_to_each(&link);
    assert_eq!(sent(&link), [10; 4], "noqueue");

    done(&mut host, "tc qdisc add dev d0 root handle 1: netem delay 200s limit 15");
    send_to_each(&link);
    let view = link.tree_views().remove(0);
    assert_eq!((view.backlog.packets, view.counters.drops), (15, 25));
    assert_eq!(link.views(3).unwrap()[0].backlog.packets, 15, "it is in front of all queues");
    assert_eq!(link.all_views().len(), 1);

    done(&mut host, "tc qdisc replace dev d0 root handle 2: mq");
    until_dropped(&link, DropReason::Purged, 15);
    send_to_each(&link);
    assert_eq!(sent(&link), [20; 4], "each queue has its own");

    for (line, expected) in [
        ("tc qdisc replace dev d0 root handle 3: prio", [60, 20, 20, 20]),
        ("tc qdisc replace dev d0 root handle 4: fq", [100, 20, 20, 20]),
        ("tc qdisc del dev d0 root", [110, 30, 30, 30]),
    ] {
        done(&mut host, line);
        send_to_each(&link);
        assert_eq!(sent(&link), expected, "{line}");
    }
}

/// If the root changes from one qdisc for all queues to one qdisc for each queue, or back, the
/// packets that the qdiscs hold are dropped, as with `tc`, because newer packets of their flows
/// could overtake them.
#[test]
fn a_text_that_names_another_sort_of_root_drops_what_is_held() {
    let held = "tc qdisc add dev d0 root handle 1: mq\n\
                tc qdisc add dev d0 parent 1:2 netem delay 200s\n\
                tc qdisc add dev d0 parent 1:3 netem delay 200s\n";
    let one = "tc qdisc add dev d0 root netem delay 200s\n";
    let mut host = Host::new();
    let mut follow = |lines: &str| {
        let text = format!("ip link add d0 up numtxqueues 4 type dummy\n{lines}");
        host.configure(&text, Path::new("/")).expect("it can be done");
        host.link("d0").unwrap()
    };
    let link = follow(held);
    send_to_each(&link);
    assert_eq!(sent(&link), [10, 0, 0, 10]);
    follow(one);
    until_dropped(&link, DropReason::Purged, 20);
    send_to_each(&link);
    follow(&one.replace("200s", "199s"));
    assert_eq!(link.tree_views()[0].backlog.packets, 40, "the root is the same");
    follow(held);
    until_dropped(&link, DropReason::Purged, 60);
    send_to_each(&link);
    assert_eq!(sent(&link), [20, 0, 0, 20]);
}

#[test]
fn the_port_that_serves_all_stays() {
    let mut host = host(&["ip link add d0 up numtxqueues 3 type dummy"]);
    let link = host.link("d0").unwrap();
    done(&mut host, "tc qdisc add dev d0 root handle 1: prio");
    assert!(matches!(link.remove_port(0, PATIENCE), Err(PortError::Last(0))));
    assert!(link.remove_port(1, PATIENCE).is_ok());
    done(&mut host, "tc qdisc replace dev d0 root handle 2: mq");
    assert!(link.remove_port(0, PATIENCE).is_ok());
    // Ports 0 and 1 are removed now. A new root qdisc serves port 2, which is left.
    done(&mut host, "tc qdisc replace dev d0 root handle 3: pfifo");
    let mut sender = link.sender();
    let flow = sender.flow_with(None, Mapping::Port(0));
    sender.send(&flow, b"x").unwrap();
    assert!(sender.flush(PATIENCE));
    assert_eq!((sent(&link), link.tree_views()[0].counters.packets), (vec![0, 0, 1], 1));
}

/// While other threads send, root qdiscs for all queues and for each queue are added and removed.
/// No packet is lost, and no thread waits forever.
#[test]
fn roots_change_under_load() {
    let mut host = host(&["ip link add d0 up numtxqueues 3 type dummy"]);
    let link = host.link("d0").unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut sender = link.sender();
                let flows = [0, 1, 2].map(|port| sender.flow_with(None, Mapping::Port(port)));
                let by_cpu = sender.flow_with(None, Mapping::Cpu);
                while !stop.load(Ordering::Relaxed) {
                    for flow in flows.iter().chain([&by_cpu]) {
                        sender.send_batch(flow, &[[7; 100]; 8]).expect("the link is open");
                    }
                    sender.cork();
                    let _ = flows.each_ref().map(|flow| sender.try_send(flow, b"corked"));
                    let _ = sender.uncork();
                }
                assert!(sender.flush(PATIENCE));
            });
        }
        // At least 200 rounds, and until all ports have sent beside them.
        let deadline = MonotonicClock.now() + PATIENCE;
        let idle = || sent(&link).contains(&0) && MonotonicClock.now() < deadline;
        for _ in (0..).take_while(|round| *round < 200 || idle()) {
            for line in [
                "tc qdisc replace dev d0 root handle 1: htb default 1",
                "tc class add dev d0 parent 1: classid 1:1 htb rate 10gbit",
                "tc qdisc replace dev d0 parent 1:1 handle 11: fq_codel",
                "tc qdisc replace dev d0 root handle 2: mq",
                "tc qdisc replace dev d0 parent 2:2 handle 22: pfifo limit 20",
                "tc qdisc del dev d0 root",
            ] {
                done(&mut host, line);
                let shown = out(&mut host, "tc -s qdisc show dev d0");
                assert!(!shown.is_empty());
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(link.flush(PATIENCE));
    let stats = link.stats();
    let out: u64 = stats.sent + stats.dropped.values().sum::<u64>();
    assert_eq!((stats.submitted, stats.held), (out, 0));
    assert!(sent(&link).iter().all(|sent| *sent > 0));
}

/// The kind of the device's root qdisc, as `ip link` and `tc qdisc` show it.
fn shown_root(host: &mut Host) -> String {
    let (link, tree) = (out(host, "ip link show u0"), out(host, "tc qdisc show dev u0"));
    let after = |text: &str, word| {
        let kind = text.split(' ').skip_while(|found| *found != word).nth(1);
        kind.expect("a kind").to_owned()
    };
    let (shown, listed) = (after(&link, "qdisc"), after(&tree, "qdisc"));
    assert_eq!(shown, listed, "{link}{tree}");
    shown
}

/// As in Linux, `txqueuelen` decides which default qdisc a device gets when it gets one, and leaves
/// the default qdisc that is there.
#[test]
fn a_default_qdisc_stays_until_a_root_is_deleted() {
    let far = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let far = far.local_addr().expect("an address");
    for (queues, usual) in [(1, "pfifo_fast"), (2, "mq")] {
        let add = format!(
            "ip link add u0 txqueuelen 0 numtxqueues {queues} type udp local 127.0.0.1:0 remote \
             {far}"
        );
        let mut host = host(&[&add]);
        let link = host.link("u0").expect("there is such a device");
        let mut sender = link.sender();
        let flows: Vec<_> =
            (0..queues).map(|queue| sender.flow_with(None, Mapping::Port(queue))).collect();
        let mut step = |host: &mut Host, line: &str| {
            done(host, line);
            for flow in &flows {
                (0..3).for_each(|_| sender.try_send(flow, b"x").expect("the port is alive"));
            }
            (0..queues).for_each(|queue| assert!(link.views(queue).is_ok(), "{line}: {queue}"));
        };
        for length in [500, 0] {
            step(&mut host, &format!("ip link set u0 txqueuelen {length}"));
        }
        step(&mut host, "ip link set u0 up");
        for length in [500, 0, 500] {
            step(&mut host, &format!("ip link set u0 txqueuelen {length}"));
            assert_eq!(shown_root(&mut host), "noqueue", "{length}");
        }
        for line in ["down", "up"] {
            step(&mut host, &format!("ip link set u0 {line}"));
            assert_eq!(shown_root(&mut host), "noqueue", "{line}");
        }
        step(&mut host, "tc qdisc add dev u0 root handle 1: fq");
        step(&mut host, "tc qdisc del dev u0 root");
        assert_eq!(shown_root(&mut host), usual);
        for length in [0, 500, 0] {
            step(&mut host, &format!("ip link set u0 txqueuelen {length}"));
            assert_eq!(shown_root(&mut host), usual, "{length}");
        }
        step(&mut host, "tc qdisc add dev u0 root handle 1: fq");
        step(&mut host, "tc qdisc del dev u0 root");
        assert_eq!(shown_root(&mut host), "noqueue");
    }
}
