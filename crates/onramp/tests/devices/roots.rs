//! One qdisc for all transmit queues of a device, or one for each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use onramp::dev::MonotonicClock;
use onramp::{Clock as _, DropReason, Link, Mapping};

use super::*;

const PATIENCE: Duration = Duration::from_secs(50);

/// Sends 10 packets to each of the 4 queues, and waits until their qdiscs have met them.
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

/// Does a line that cannot fail.
fn done(host: &mut Host, line: &str) {
    assert_eq!(exec(host, line), Reply::default(), "{line}");
}

/// Packets that left a qdisc, were dropped, or are in one.
fn met(link: &Link) -> u64 {
    let backlog: u32 = link.tree_views().iter().take(1).map(|view| view.backlog.packets).sum();
    let stats = link.stats();
    stats.sent + stats.dropped.values().sum::<u64>() + u64::from(backlog)
}

/// Packets that each queue has sent.
fn sent(link: &Link) -> Vec<u64> {
    link.stats().ports.iter().map(|port| port.sent).collect()
}

/// As in Linux: its limits, and its rates, are those of the device, and not of each queue.
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
    assert_eq!(link.stats().dropped[&DropReason::Purged], 15);
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

/// Roots of both sorts come and go while others send: nothing is lost, nobody waits for ever.
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
                }
                assert!(sender.flush(PATIENCE));
            });
        }
        for _ in 0..200 {
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
