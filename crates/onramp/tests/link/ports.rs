//! Adding and removing ports, changing qdiscs and rates, and the ways to choose a port.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use onramp::dev::Null;
use onramp::{BuildError, DropReason, Link, Mapping, Mode, PortError, Rate, TrySendError};

use crate::common::{Fates, Gate, LONG, SHORT, balanced, credits, gated, in_time, now, until};

const MODES: [Mode; 3] = [Mode::Hybrid, Mode::Inline, Mode::Dedicated];

/// 12 threads send over ports that are added and removed, with qdiscs that change. Every packet is
/// sent or is dropped for a reason, each sender gets all of its completions, and the packets of a
/// flow leave in order.
#[test]
fn everything_changes_under_load() {
    for mode in MODES {
        in_time(move || {
            let gates: Vec<_> = (0..20).map(|_| Gate::new(true)).collect();
            let link = Link::devices([gates[0].device(), gates[1].device()])
                .mode(mode)
                .runners(2)
                .credits(credits(40))
                .ports_max(20)
                .build()
                .unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            thread::scope(|scope| {
                for thread in 0..12_u64 {
                    let (mut sender, stop) = (link.sender(), stop.clone());
                    scope.spawn(move || {
                        let fates = Fates::of(&mut sender);
                        let mapping = if thread % 3 == 0 { Mapping::Cpu } else { Mapping::Turn };
                        let flow = sender.flow_with(None, mapping);
                        let mut sent = 0;
                        while !stop.load(Ordering::Relaxed) {
                            while let Ok(mut packet) = sender.packet(&flow, b"x") {
                                packet.cookie = thread << 32 | sent;
                                if let Err(back) = sender.submit(&flow, packet) {
                                    assert_eq!(back.why, TrySendError::Full);
                                    break;
                                }
                                sent += 1;
                            }
                            sender.wait_room(&flow, 1);
                        }
                        assert!(sender.flush(LONG));
                        assert_eq!(fates.total(), sent);
                    });
                }
                let qdiscs = ["pfifo", "fq", "fq maxrate 80mbit", "pfifo_fast", "bfifo"];
                for turn in 0..18 {
                    let added = link.add_port(gates[turn + 2].device()).unwrap();
                    assert_eq!(added, turn + 2);
                    thread::sleep(Duration::from_millis(2));
                    link.set_qdisc(qdiscs[turn % qdiscs.len()]).unwrap();
                    thread::sleep(Duration::from_millis(2));
                    let report = link.remove_port(turn, LONG).unwrap();
                    assert!(report.flushed, "its flows wait, so it gets empty");
                }
                stop.store(true, Ordering::Relaxed);
            });
            assert!(matches!(link.add_port(Null::default()), Err(PortError::TooMany(20))));
            let stats = link.stats();
            balanced(&stats);
            assert_eq!(stats.dropped.get(&DropReason::Purged), None, "what was on its way, too");
            for (gate, port) in gates.iter().zip(&stats.ports) {
                assert_eq!(gate.taken().len() as u64, port.sent);
                for thread in 0..12 {
                    let of = gate.taken().into_iter().filter(|cookie| cookie >> 32 == thread);
                    assert!(of.is_sorted(), "thread {thread} on one port, {mode:?}");
                }
            }
        });
    }
}

/// If the port of a flow is removed, the flow's later packets wait until the port is empty, and
/// then use another port.
#[test]
fn a_flow_moves_when_its_port_is_empty() {
    in_time(|| {
        let (old, new) = (Gate::new(false), Gate::new(true));
        let link = Link::devices([old.device(), new.device()]).qdisc("pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Port(0));
        (0..5).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        thread::scope(|scope| {
            let removes = scope.spawn(|| link.remove_port(0, LONG).unwrap());
            until("the port takes nothing any more", || {
                sender.try_send(&flow, b"x") == Err(TrySendError::Full)
            });
            assert!(!sender.wait_room_timeout(&flow, 1, SHORT), "it still has packets");
            assert!(new.taken().is_empty(), "nothing overtakes them");
            old.open();
            sender.send(&flow, b"y").unwrap();
            assert!(removes.join().unwrap().flushed);
        });
        assert!(sender.flush(LONG));
        assert_eq!(new.taken().len(), 1);
        balanced(&link.stats());
        assert!(matches!(link.remove_port(0, LONG), Err(PortError::Unknown(0))), "gone");
        assert!(matches!(link.remove_port(1, LONG), Err(PortError::Last(1))));
        assert!(matches!(link.remove_port(7, LONG), Err(PortError::Unknown(7))));
    });
}

#[test]
fn a_port_that_does_not_get_empty_is_purged() {
    in_time(|| {
        let (stuck, other) = (Gate::new(false), Gate::new(true));
        let link = Link::devices([stuck.device(), other.device()]).build().unwrap();
        let mut sender = link.sender();
        let fates = Fates::of(&mut sender);
        let flow = sender.flow_with(None, Mapping::Port(0));
        (0..5).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        let report = link.remove_port(0, SHORT).unwrap();
        assert_eq!((report.flushed, report.purged), (false, 5));
        sender.send(&flow, b"x").unwrap();
        assert!(sender.flush(LONG));
        assert_eq!((fates.get(None), fates.get(Some(DropReason::Purged))), (1, 5));
        balanced(&link.stats());
    });
}

/// A cork holds back packets for a port, and the port is removed. When the cork ends, the packets
/// go to the port that has taken over their flows.
#[test]
fn a_cork_for_a_port_that_is_gone() {
    in_time(|| {
        let (old, new) = (Gate::new(true), Gate::new(true));
        let link = Link::devices([old.device(), new.device()]).qdisc("pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Port(0));
        sender.cork();
        (0..5).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        assert!(link.remove_port(0, LONG).unwrap().flushed);
        sender.uncork().unwrap();
        assert!(sender.flush(LONG));
        assert_eq!((old.taken().len(), new.taken().len()), (0, 5));
        balanced(&link.stats());
    });
}

/// After some ports were removed, new flows spread evenly over the ports that are left, and later
/// also over an added port.
#[test]
fn what_is_left_shares_the_work() {
    let link = Link::devices((0..8).map(|_| Box::new(Null::default()) as Box<_>)).build().unwrap();
    for port in [0, 1, 2, 3, 5, 6] {
        assert!(link.remove_port(port, LONG).unwrap().flushed);
    }
    let sender = link.sender();
    let mut counts = [0; 8];
    (0..1_000).for_each(|_| counts[sender.flow(None).port()] += 1);
    assert_eq!(counts, [0, 0, 0, 0, 500, 0, 0, 500]);
    assert_eq!(link.add_port(Null::default()).unwrap(), 8);
    let mut counts = [0; 9];
    (0..999).for_each(|_| counts[sender.flow(None).port()] += 1);
    assert_eq!(counts, [0, 0, 0, 0, 333, 0, 0, 333, 333]);
}

/// A cork also holds back packets for a port that was added after the cork began.
#[test]
fn a_cork_for_a_port_that_came() {
    let gates = [Gate::new(true), Gate::new(true)];
    let link = gated(&gates[0], "pfifo").build().unwrap();
    let mut sender = link.sender();
    sender.cork();
    let device = gates[1].clone();
    assert_eq!(link.add_port(device.device()).unwrap(), 1);
    let flow = sender.flow_with(None, Mapping::Port(1));
    (0..5).for_each(|_| sender.try_send(&flow, b"x").unwrap());
    assert!(link.flush(LONG));
    assert!(gates[1].taken().is_empty());
    sender.uncork().unwrap();
    assert!(sender.flush(LONG));
    assert_eq!(gates[1].bursts(), [5]);
}

#[test]
fn a_closed_link_does_not_change() {
    let link = Link::devices([Box::new(Null::default()) as Box<_>]).build().unwrap();
    link.close(LONG);
    assert!(matches!(link.add_port(Null::default()), Err(PortError::Closed)));
    assert!(matches!(link.remove_port(0, LONG), Err(PortError::Closed)));
    assert!(matches!(link.set_qdisc("pfifo"), Err(PortError::Closed)));
    assert!(matches!(link.set_qdisc("nonesuch"), Err(PortError::Config(_))));
    assert!(matches!(link.set_rate(Rate::bytes_per_second(1)), Err(PortError::NoRate)));
}

/// The old qdisc holds packets that it paces over a long time. When it is replaced, they leave
/// through the new qdisc.
#[test]
fn a_new_qdisc_takes_over_what_is_held() {
    for mode in MODES {
        in_time(move || {
            let gate = Gate::new(true);
            let qdisc = "fq maxrate 8kbit initial_quantum 0";
            let link = gated(&gate, qdisc).mode(mode).build().unwrap();
            let mut sender = link.sender();
            let flow = sender.flow(None);
            for cookie in 0..50 {
                let mut packet = sender.packet(&flow, &[0; 1_000]).unwrap();
                packet.cookie = cookie;
                sender.submit(&flow, packet).unwrap();
            }
            until("they are in the qdisc", || link.stats().ports[0].enqueued == 50);
            link.set_qdisc("pfifo").unwrap();
            assert!(sender.flush(LONG));
            assert_eq!(gate.taken(), (0..50).collect::<Vec<_>>(), "in order");
            balanced(&link.stats());
        });
    }
}

/// When a qdisc is replaced, the limit of the new qdisc applies to the packets that move over;
/// packets beyond the limit are dropped and counted.
#[test]
fn a_new_qdisc_with_less_room() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        (0..80).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        until("the device is offered a burst", || gate.refusals() > 0);
        // Wait until all packets are in the qdisc: packets that are still in the intake do not
        // count towards the limit of the new qdisc yet.
        until("all is in the qdisc", || link.stats().ports[0].enqueued == 80);
        link.set_qdisc("pfifo limit 3").unwrap();
        link.views(0).expect("what is asked later is done later");
        gate.open();
        assert!(sender.flush(LONG));
        let stats = link.stats();
        let dropped = stats.dropped[&DropReason::Overlimit];
        assert!((1..=77).contains(&dropped), "{dropped} of 80");
        balanced(&stats);
    });
}

/// In the mode `Dedicated`, a sender never transmits packets, whichever method it calls.
#[test]
fn only_runners_send_in_a_dedicated_link() {
    in_time(|| {
        let device = crate::device::Slow::new(Duration::ZERO);
        let bursts = device.bursts.clone();
        let link = Link::devices([Box::new(device) as Box<_>])
            .mode(Mode::Dedicated)
            .credits(credits(10))
            .build()
            .unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for _ in 0..1_000 {
            sender.send(&flow, b"x").unwrap();
        }
        sender.send_batch(&flow, &[b"x"; 100]).unwrap();
        assert!(sender.flush(LONG) && link.flush(LONG));
        assert_eq!(bursts.by(thread::current().id()), 0);
        let stats = link.stats();
        assert_eq!(stats.sent, 1_100);
        assert!(stats.runner_calls >= stats.runner_notifies && stats.runner_notifies > 0);
        balanced(&stats);
    });
}

/// In the mode `Inline`, each sender sends its packets itself, and a port is never left busy,
/// except after a full quota.
#[test]
fn an_inline_link_does_not_collect() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").mode(Mode::Inline).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        (0..2_000).for_each(|_| sender.send(&flow, b"x").unwrap());
        assert!(gate.bursts().iter().all(|burst| *burst == 1), "each by itself");
        assert_eq!(link.stats().ports[0].busy, 0);
        // If a list of packets is longer than a quota, a runner sends the rest of the list.
        while sender.try_send_batch(&flow, [b"x"; 96]) != Ok(96) {
            sender.wait_room(&flow, 1);
        }
        assert!(sender.flush(LONG));
        balanced(&link.stats());
    });
}

/// With several runners, packets stay in order and none is lost.
#[test]
fn several_runners_many_ports() {
    for mode in MODES {
        in_time(move || {
            let gates: Vec<_> = (0..6).map(|_| Gate::new(true)).collect();
            let link = Link::devices(gates.iter().map(|gate| gate.device()))
                .qdisc("fq maxrate 400mbit")
                .mode(mode)
                .runners(3)
                .runner_cpus([onramp::dev::current_cpu().unwrap()])
                .build()
                .unwrap();
            thread::scope(|scope| {
                for _ in 0..12 {
                    let mut sender = link.sender();
                    scope.spawn(move || {
                        let flow = sender.flow(None);
                        for cookie in 0..500 {
                            let mut packet = loop {
                                match sender.packet(&flow, &[0; 500]) {
                                    Ok(packet) => break packet,
                                    Err(_) => sender.wait_room(&flow, 500),
                                }
                            };
                            packet.cookie = flow.key() << 32 | cookie;
                            sender.submit(&flow, packet).unwrap();
                        }
                        assert!(sender.flush(LONG));
                    });
                }
            });
            for gate in &gates {
                let taken = gate.taken();
                for key in 0..12 {
                    let of = taken.iter().filter(|cookie| **cookie >> 32 == key);
                    assert!(of.is_sorted(), "{mode:?}");
                }
            }
            let stats = link.stats();
            assert_eq!(stats.sent, 12 * 500);
            balanced(&stats);
        });
    }
}

#[test]
fn flows_are_mapped_as_asked_for() {
    let devices = (0..4).map(|_| Box::new(Null::default()) as Box<_>);
    let link = Link::devices(devices).build().unwrap();
    let mut sender = link.sender();
    let ports =
        |mapping| (0..8).map(|_| sender.flow_with(None, mapping).port()).collect::<Vec<_>>();
    assert_eq!(ports(Mapping::Turn), [0, 1, 2, 3, 0, 1, 2, 3]);
    assert_eq!(ports(Mapping::Port(2)), [2; 8]);
    assert_eq!(ports(Mapping::Hash(7)), [3; 8]);
    let same = [sender.flow_with(None, Mapping::Hash(7)), sender.flow_with(None, Mapping::Hash(7))];
    assert_eq!(same[0].key(), same[1].key(), "one flow to the qdiscs");
    assert_ne!(same[0].key(), sender.flow_with(None, Mapping::Hash(8)).key());
    // A flow that is mapped by processor uses the port of the sender's processor. The thread of
    // this sender is pinned, so it stays on its processor.
    let flow = sender.flow_with(None, Mapping::Cpu);
    onramp::dev::pin_thread(onramp::dev::current_cpu().unwrap()).unwrap();
    let port = onramp::dev::current_cpu().unwrap() % 4;
    sender.send(&flow, b"x").unwrap();
    assert!(sender.flush(LONG));
    assert_eq!(link.stats().ports[port].sent, 1);
}

#[test]
#[should_panic(expected = "there is no port 4: the link has 4 ports")]
fn a_port_that_is_not_there() {
    let devices = (0..4).map(|_| Box::new(Null::default()) as Box<_>);
    let link = Link::devices(devices).build().unwrap();
    let _ = link.sender().flow_with(None, Mapping::Port(4));
}

/// All ports together keep the rate of the link. The test runs in real time, but does not depend on
/// how exactly the rate is kept.
#[test]
fn a_rate_for_all_ports() {
    in_time(|| {
        let gates: Vec<_> = (0..3).map(|_| Gate::new(true)).collect();
        let link = Link::devices(gates.iter().map(|gate| gate.device()))
            .qdisc("pfifo")
            .rate(Rate::bytes_per_second(1_000))
            .build()
            .unwrap();
        let mut sender = link.sender();
        let flows = [(); 3].map(|()| sender.flow(None));
        let began = now();
        for flow in &flows {
            (0..10).for_each(|_| sender.try_send(flow, &[0; 958]).unwrap());
        }
        // At this rate, a packet takes a port a second or more. So each port sends at most two
        // packets at once, and one more each second.
        thread::sleep(SHORT);
        let sent = link.stats().sent;
        let seconds = now().since(began) / 1_000_000_000;
        assert!(sent <= 3 * (2 + seconds), "{sent} of 30 in {seconds} s");
        link.set_rate(Rate::bytes_per_second(0)).unwrap();
        assert!(sender.flush(LONG), "without a limit");
        balanced(&link.stats());
    });
}

#[test]
fn numbers_out_of_range() {
    let link = || Link::devices([Box::new(Null::default()) as Box<_>]);
    let range = |result: Result<Link, BuildError>| matches!(result, Err(BuildError::Range(..)));
    assert!(range(link().runners(0).build()));
    assert!(range(link().runners(65).build()));
    assert!(range(link().ports_max(0).build()));
    assert!(range(link().mtu(0).build()));
    assert!(range(link().catch_up(Duration::from_millis(1_001)).build()));
    assert!(link().catch_up(Duration::ZERO).build().is_ok());
    assert!(range(link().slack(Duration::from_micros(1_000_001)).build()));
    assert!(link().slack(Duration::from_secs(1)).build().is_ok());
    assert!(range(link().spin(Duration::from_micros(1_001)).build()));
    assert!(link().spin(Duration::from_millis(1)).build().is_ok());
    assert!(range(link().ports_max(65_536).build()));
    let pinned = link().runners(2).runner_cpus([0, 999_999]).build();
    assert!(matches!(pinned, Err(BuildError::Pin(999_999, _))), "{pinned:?}");
    let priority = onramp::dev::Priority::Nice(20);
    let ranked = link().runner_priority(priority).build();
    let error = ranked.expect_err("there is no such niceness");
    assert!(matches!(error, BuildError::Priority(..)), "{error:?}");
    let expected = "a runner cannot have the priority nice 20: expected nice -20 to 19, or \
                    SCHED_FIFO 1 to 99";
    assert_eq!(error.to_string(), expected);
}

/// All threads of a link have the priority that the builder was given, and no other thread has it.
#[test]
fn runners_have_their_priority() {
    // Each link has its own number of the niceness, so that other tests do not disturb.
    let link = Link::devices([Box::new(Null::default()) as Box<_>])
        .runners(2)
        .runner_priority(onramp::dev::Priority::Nice(13))
        .build()
        .unwrap();
    let nice = |task: &std::path::Path| {
        let stat = std::fs::read_to_string(task.join("stat")).ok()?;
        let (name, rest) = stat.rsplit_once(')')?;
        let nice = rest.split_ascii_whitespace().nth(16)? == "13";
        nice.then(|| name.split_once('(').expect("a name").1.to_owned())
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let mut found: Vec<String> = tasks.filter_map(|task| nice(&task.path())).collect();
    found.sort();
    assert_eq!(found, ["onramp-run-0", "onramp-run-1"]);
    drop(link);
}
