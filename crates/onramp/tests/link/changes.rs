//! Changes of a link's tree of qdiscs: which ports get a change, and which threads do not wait for
//! it.

use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use onramp::dev::Null;
use onramp::view::QdiscView;
use onramp::{
    Device, DeviceInfo, DropReason, Instant, Link, Mapping, Mode, PacketList, PortError, Setup,
    Transmitted,
};

use crate::common::{Gate, LONG, SHORT, balanced, credits, gated, in_time, leave, until};
use crate::trap::{Mortal, Trap, kill};

fn boxed() -> Box<dyn Device> {
    Box::new(Null::default())
}

/// Returns the kinds of the qdiscs in front of a port.
fn kinds(link: &Link, port: usize) -> Vec<&'static str> {
    let views = link.views(port).expect("it answers");
    views.iter().map(|view: &QdiscView| view.kind.id).collect()
}

/// A change leaves out ports that are dead or removed, and does not wait for them.
#[test]
fn a_change_is_not_held_up_by_dead_ports() {
    in_time(|| {
        let (mortal, dies) = Mortal::over(boxed());
        let link = Link::devices([boxed(), mortal, boxed()]).build().unwrap();
        kill(&link, 1, &dies);
        link.remove_port(2, LONG).unwrap();
        for (line, kind) in [
            ("qdisc replace dev link root handle 5: pfifo limit 9", "pfifo"),
            ("qdisc change dev link root pfifo limit 10", "pfifo"),
            ("qdisc replace dev link root handle 6: fq", "fq"),
        ] {
            link.change(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(kinds(&link, 0), [kind]);
        }
        assert!(matches!(link.views(1), Err(PortError::Dead(1))));
        assert!(link.views(2).is_err(), "it was removed");
    });
}

/// If a port could not be told of a change, the next change gives it the whole tree; later changes
/// do not.
#[test]
fn a_port_that_missed_a_change_is_built_anew_once() {
    in_time(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device()]).qdisc("pfifo").build().unwrap();
        let caught = trap.catch(&link, 0);
        // The device blocks the port's owner, so each change waits in the port as a job. Hand the
        // port as many changes as may wait there (`set_tree` itself does not block).
        let tree = link.setup();
        (0..onramp_core::JOBS_MAX).for_each(|_| link.set_tree(&tree).unwrap());
        let missed = link.change("qdisc replace dev link root handle 7: prio");
        assert!(matches!(missed, Err(PortError::Blocked(0))), "{missed:?}");
        trap.open();
        caught.join().unwrap();
        until("it answers", || link.views(0).is_ok());
        link.change("qdisc add dev link parent 7:2 handle 8: netem delay 200s").unwrap();
        assert_eq!(kinds(&link, 0), ["prio", "netem"]);
        // From here on, the port misses no change. So it is not rebuilt, and keeps its packets.
        let mut sender = link.sender();
        let flow = sender.flow(None).with_priority(0x7_0002);
        sender.try_send(&flow, b"stays").unwrap();
        link.change("qdisc change dev link parent 7:2 netem delay 199s").unwrap();
        link.change("qdisc add dev link parent 7:1 handle 9: pfifo").unwrap();
        let stats = link.stats();
        assert_eq!((stats.held, stats.dropped.get(&DropReason::Purged)), (1, None));
    });
}

/// If a port could not be told of a new tree, it gets that tree with the next change.
#[test]
fn a_tree_that_a_port_missed_comes_with_the_next_change() {
    in_time(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device()]).qdisc("pfifo").build().unwrap();
        let caught = trap.catch(&link, 0);
        let tree = link.setup();
        (0..onramp_core::JOBS_MAX).for_each(|_| link.set_tree(&tree).unwrap());
        let mut prio = Setup::default();
        prio.apply("qdisc add dev link root handle 7: prio").unwrap();
        assert!(matches!(link.set_tree(&prio), Err(PortError::Blocked(0))));
        trap.open();
        caught.join().unwrap();
        until("it answers", || link.views(0).is_ok());
        link.change("qdisc add dev link parent 7:2 handle 8: fq").unwrap();
        assert_eq!(kinds(&link, 0), ["prio", "fq"]);
    });
}

/// Measuring of sojourn times can be started and stopped at any time, and also applies to ports
/// that are added later.
#[test]
fn to_measure_begins_and_ends() {
    in_time(|| {
        let link = Link::devices([boxed(), boxed()]).ports_max(4).build().unwrap();
        let mut sender = link.sender();
        let mut counted = [0; 4];
        // Sends a packet through each port. Returns, for each port, whether the packet's sojourn
        // time was measured.
        let mut measured = || {
            let mut port = |port: usize| {
                let flow = sender.flow_with(None, Mapping::Port(port));
                sender.send(&flow, b"x").unwrap();
                assert!(sender.flush(LONG));
                let views = link.views(port).unwrap();
                let counts = views[0].sojourn_ns.as_ref();
                let now = counts.map_or(0, |counts| counts.iter().sum::<u64>());
                let more = now - std::mem::replace(&mut counted[port], now);
                assert!(more <= 1, "{more}");
                more == 1
            };
            (0..link.ports()).map(&mut port).collect::<Vec<_>>()
        };
        assert_eq!(measured(), [false; 2]);
        link.measure(true);
        assert_eq!(measured(), [true; 2]);
        assert_eq!(link.add_port(Null::default()).unwrap(), 2);
        assert_eq!(measured(), [true; 3]);
        link.measure(false);
        assert_eq!(measured(), [false; 3]);
        assert_eq!(link.add_port(Null::default()).unwrap(), 3);
        assert_eq!(measured(), [false; 4]);
    });
}

/// A thread waits until a port has carried out its job, while the device blocks the port's owner.
/// Meanwhile, other threads can change the link.
#[test]
fn who_waits_for_a_port_keeps_the_link_from_nobody() {
    let asks: [fn(&Link) -> bool; 3] = [
        |link| link.views(0).is_ok(),
        |link| !link.filters(onramp_core::Handle::new(1, 0)).is_empty(),
        |link| link.change("qdisc change dev link root prio").is_ok(),
    ];
    for (number, ask) in asks.into_iter().enumerate() {
        in_time(move || {
            let trap = Trap::new();
            let mut tree = Setup::default();
            for line in [
                "qdisc add dev link root handle 1: prio",
                "filter add dev link parent 1: protocol ip matchall classid 1:1",
            ] {
                tree.apply(line).unwrap();
            }
            let link = Link::devices([trap.device()]).tree(&tree).build().unwrap();
            // On a busy machine, the waiting call may give up before the device returns, so try up
            // to five times.
            let answered = (0..5).any(|_| {
                let caught = trap.catch(&link, 0);
                thread::scope(|scope| {
                    let asking = scope.spawn(|| ask(&link));
                    thread::sleep(SHORT);
                    let waits = !asking.is_finished();
                    // `Link::setup` takes the same lock as a change, so this call shows that the
                    // thread that waits for the port does not hold the lock. Then let the device
                    // return.
                    assert_eq!(link.setup().root_id(), Some("prio"));
                    trap.open();
                    caught.join().unwrap();
                    asking.join().unwrap() && waits
                })
            });
            assert!(answered, "{number}");
        });
    }
}

/// A waker that adds a port to its link and records the result.
struct Adds(Link, Mutex<Vec<Result<usize, PortError>>>);

impl Wake for Adds {
    fn wake(self: Arc<Self>) {
        let said = self.0.add_port(Null::default());
        self.1.lock().unwrap().push(said);
    }
}

/// When a removal wakes the senders that waited for the removed port, the removal is complete, so
/// wakers that it calls may change ports.
#[test]
fn who_is_told_of_a_removal_may_change_ports() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = Link::devices([gate.device(), boxed()]).qdisc("pfifo").ports_max(4);
        let link = link.build().unwrap();
        let (mut first, mut waits) = (link.sender(), link.sender());
        let flow = first.flow_with(None, Mapping::Port(0));
        first.try_send(&flow, b"x").unwrap();
        let adds = Arc::new(Adds(link.clone(), Mutex::default()));
        thread::scope(|scope| {
            let removes = scope.spawn(|| link.remove_port(0, LONG).unwrap());
            until("it takes nothing", || first.try_send(&flow, b"x").is_err());
            leave(&Waker::from(adds.clone()), &mut waits, &flow);
            gate.open();
            assert!(removes.join().unwrap().flushed);
        });
        let said = adds.1.lock().unwrap();
        assert!(matches!(said[..], [Ok(2)]), "{said:?}");
    });
}

/// A device that records the timer slack of the threads that call it, nanoseconds.
struct Slack(DeviceInfo, Arc<Mutex<Vec<u64>>>);

impl Device for Slack {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        self.1.lock().unwrap().push(rustix::thread::current_timer_slack().unwrap());
        done.append(burst);
        Transmitted::default()
    }
}

/// Runners use exact timers. By default, the kernel may wake a thread 50 µs late in order to save
/// wake-ups (prctl(2), `PR_SET_TIMERSLACK`).
#[test]
fn runners_have_exact_timers() {
    in_time(|| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let slack = Slack(DeviceInfo::new("slack".to_owned(), 1_514), seen.clone());
        let link = Link::devices([Box::new(slack) as Box<_>]).mode(Mode::Dedicated);
        let link = link.build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.send(&flow, b"x").unwrap();
        assert!(sender.flush(LONG));
        let seen = seen.lock().unwrap();
        assert!(!seen.is_empty() && seen.iter().all(|ns| *ns == 1), "{seen:?}");
    });
}

/// Packets that a cork held back when the link was closed count as accepted and purged. This holds
/// even while the link's device blocks its caller.
#[test]
fn what_a_cork_of_a_closed_link_held_is_counted() {
    in_time(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device()]).qdisc("pfifo").burst(3).build().unwrap();
        let caught = trap.catch(&link, 0);
        let (mut other, mut corks) = (link.sender(), link.sender());
        let flow = other.flow(None);
        (0..3).for_each(|_| other.try_send(&flow, b"x").unwrap());
        corks.cork();
        (0..2).for_each(|_| corks.try_send(&flow, b"x").unwrap());
        assert_eq!(link.close(Duration::ZERO).blocked, 1);
        assert_eq!(corks.uncork(), Ok(()));
        assert_eq!(corks.reclaim(), 2);
        let stats = link.stats();
        // The packet of the blocked sender is counted only when that sender returns from the
        // device.
        assert_eq!(stats.submitted, 3 + 2);
        assert_eq!(stats.dropped.get(&DropReason::Purged), Some(&2));
        trap.open();
        caught.join().unwrap();
        assert!(other.flush(LONG));
        until("all is counted", || link.stats().held == 0);
        assert_eq!(link.stats().submitted, 1 + 3 + 2);
        balanced(&link.stats());
    });
}

/// A sender that moves to another processor changes its port as soon as all of its packets have
/// come home. The sender need not take them back explicitly.
#[test]
fn a_sender_that_moves_takes_its_flows_along() {
    use onramp::dev::pin_thread;
    in_time(|| {
        if pin_thread(0).is_err() || pin_thread(1).is_err() {
            return; // This machine has only one processor, so a sender cannot move.
        }
        let gates = [Gate::new(true), Gate::new(true)];
        let link = Link::devices(gates.iter().map(|gate| gate.device())).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Cpu);
        sender.try_send(&flow, b"x").unwrap();
        assert!(link.flush(LONG));
        assert_eq!(gates[1].taken().len(), 1, "port 1 is that of processor 1");
        pin_thread(0).unwrap();
        // If a packet is still on its way home, the sender sends one more packet through port 1. So
        // send until a packet leaves through port 0.
        until("it moves, as nothing is below", || {
            sender.try_send(&flow, b"x").unwrap();
            assert!(link.flush(LONG));
            !gates[0].taken().is_empty()
        });
    });
}

/// If packets stay in a link that is not closed, a flush waits for its whole timeout and returns
/// false.
#[test]
fn a_flush_in_vain_says_so() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(4)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        assert!(sender.flush(Duration::ZERO) && link.flush(Duration::ZERO), "nothing is below");
        (0..4).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        for timeout in [Duration::ZERO, Duration::from_millis(1)] {
            assert!(!sender.flush(timeout) && !link.flush(timeout));
        }
        gate.let_go(3);
        assert!(!sender.flush(Duration::ZERO), "one stays");
        assert_eq!(sender.in_flight(), 1);
        gate.open();
        assert!(sender.flush(LONG) && link.flush(LONG));
        assert_eq!(sender.in_flight(), 0);
    });
}
