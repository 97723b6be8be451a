//! Wakers that call methods of the link. Whatever the thread that calls the waker is doing at the
//! moment, it never waits for itself.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use onramp::dev::Null;
use onramp::{Device, Flow, Link, Mapping, PortError, Sender};

use crate::common::{Gate, LONG, balanced, credits, in_time, leave, until};

/// A waker that calls all methods of a link, and records the names of the threads that call it.
struct Nosy {
    link: Link,
    /// Number of the port that the waker removes.
    port: usize,
    calls: AtomicU32,
    done: AtomicU32,
    nested: AtomicU32,
    callers: Mutex<Vec<Option<String>>>,
}

impl Nosy {
    fn new(link: &Link, port: usize) -> Arc<Self> {
        Arc::new(Self {
            link: link.clone(),
            port,
            calls: 0.into(),
            done: 0.into(),
            nested: 0.into(),
            callers: Mutex::default(),
        })
    }

    /// Records whether a change of ports was refused because it was made inside another one
    /// (`Nested`).
    fn note<T>(&self, said: Result<T, PortError>) {
        match said {
            Err(PortError::Nested) => _ = self.nested.fetch_add(1, SeqCst),
            Ok(_) | Err(PortError::Closed | PortError::TooMany(_) | PortError::Unknown(_)) => {}
            Err(why) => panic!("{why}"),
        }
    }

    fn done(&self) -> bool {
        let (done, calls) = (self.done.load(SeqCst), self.calls.load(SeqCst));
        done > 0 && done == calls
    }
}

impl Wake for Nosy {
    fn wake(self: Arc<Self>) {
        self.callers.lock().unwrap().push(thread::current().name().map(str::to_owned));
        self.calls.fetch_add(1, SeqCst);
        let link = &self.link;
        let _ = link.stats();
        drop(link.sender());
        match link.set_qdisc("pfifo limit 500") {
            Ok(()) | Err(PortError::Closed) => {}
            Err(why) => panic!("{why}"),
        }
        self.note(link.add_port(Null::default()));
        self.note(link.remove_port(self.port, Duration::ZERO));
        let mut sender = link.sender();
        let flow = sender.flow(None);
        let _ = sender.try_send(&flow, b"from a waker");
        drop(sender);
        assert!(link.ports() > 0 && link.deaths().is_empty());
        self.done.fetch_add(1, SeqCst);
    }
}

/// Number of packets in flight. A task's waker is called when half of them have come home. So a
/// change of the qdisc must drop at least half; it cannot drop packets that were already offered to
/// the device, but these are fewer than half.
const BELOW: u32 = 500;

/// Makes a link and a sender that has no credit left. The device of port 0 is shut (takes nothing),
/// with all packets in front of it; ports 1 and 2 take all packets.
fn shut() -> (Arc<Gate>, Link, Sender, Flow) {
    shut_with(BELOW)
}

fn shut_with(below: u32) -> (Arc<Gate>, Link, Sender, Flow) {
    let gate = Gate::new(false);
    let null = || Box::new(Null::default()) as Box<dyn Device>;
    let builder = Link::devices([gate.device(), null(), null()]).qdisc("pfifo").ports_max(32);
    let link = builder.credits(credits(below)).build().unwrap();
    let mut sender = link.sender();
    let flow = sender.flow_with(None, Mapping::Port(0));
    (0..below).for_each(|_| sender.send(&flow, b"x").unwrap());
    (gate, link, sender, flow)
}

fn end(gate: &Gate, link: &Link, mut sender: Sender) {
    gate.open();
    assert!(sender.flush(LONG));
    drop(sender);
    assert!(link.flush(LONG));
    balanced(&link.stats());
    link.close(LONG);
}

/// A runner sends the packets for which a task waits, and so calls the task's waker. All calls that
/// the waker makes on the link return.
#[test]
fn a_runner_calls_it() {
    in_time(|| {
        let (gate, link, mut sender, flow) = shut();
        let nosy = Nosy::new(&link, 2);
        leave(&Waker::from(nosy.clone()), &mut sender, &flow);
        gate.open();
        until("the waker is through", || nosy.done());
        assert_eq!(nosy.nested.load(SeqCst), 0);
        assert!(nosy.callers.lock().unwrap()[0].as_ref().unwrap().starts_with("onramp-run"));
        assert_eq!((link.ports(), link.stats().ports.len()), (4, 4));
        end(&gate, &link, sender);
    });
}

/// A change of the qdisc drops the packets for which a task waits, and so calls the task's waker.
/// All calls that the waker makes on the link return.
#[test]
fn a_change_of_the_qdisc_calls_it() {
    in_time(|| {
        let (gate, link, mut sender, flow) = shut();
        let nosy = Nosy::new(&link, 2);
        leave(&Waker::from(nosy.clone()), &mut sender, &flow);
        link.set_qdisc("pfifo limit 1").unwrap();
        until("the waker is through", || nosy.done());
        assert_eq!(nosy.nested.load(SeqCst), 0);
        end(&gate, &link, sender);
    });
}

/// The removal of a port purges the packets for which a task waits, and so calls the task's waker.
/// All calls that the waker makes on the link return.
#[test]
fn the_removal_of_a_port_calls_it() {
    for removes in [0, 2] {
        in_time(move || {
            let (gate, link, mut sender, flow) = shut();
            // In the first round, the waker itself tries to remove port 0, which is being removed;
            // in the second round, it tries to remove port 2.
            let nosy = Nosy::new(&link, removes);
            leave(&Waker::from(nosy.clone()), &mut sender, &flow);
            let report = link.remove_port(0, Duration::ZERO).unwrap();
            assert_eq!((report.flushed, report.blocked), (false, 0));
            until("the waker is through", || nosy.done());
            end(&gate, &link, sender);
        });
    }
}

/// A thread removes a port and waits for `packets` packets that a runner sends. Meanwhile, the
/// runner calls a waker, which tries to remove another port. Checks that both removals return, and
/// that all packets are sent.
fn a_removal_waits_for(packets: u32) {
    in_time(move || {
        let (gate, link, mut sender, flow) = shut_with(packets);
        let nosy = Nosy::new(&link, 2);
        leave(&Waker::from(nosy.clone()), &mut sender, &flow);
        let removes = link.clone();
        let removes =
            thread::Builder::new().spawn(move || removes.remove_port(0, Duration::from_secs(120)));
        until("the port takes nothing", || {
            // A port that is being removed accepts no packets, so `try_send` fails.
            let mut other = link.sender();
            let flow = other.flow_with(None, Mapping::Port(0));
            other.try_send(&flow, b"x").is_err()
        });
        gate.open();
        let report = removes.unwrap().join().unwrap().unwrap();
        assert!(report.flushed, "the waker waits for who waits for the runner: {report:?}");
        until("the waker is through", || nosy.done());
        end(&gate, &link, sender);
    });
}

/// While a port is being removed, a runner sends all packets of the port and then calls a waker,
/// which tries to remove another port. Both removals return.
#[test]
fn a_runner_calls_it_during_a_removal() {
    a_removal_waits_for(8);
}

/// While a port is being removed, a runner calls a waker before it has sent all packets of the
/// port. The waker tries to remove another port. Both removals return.
#[test]
fn a_runner_with_more_to_send_calls_it_during_a_removal() {
    a_removal_waits_for(BELOW);
}

/// When a port is added or senders are dropped, each waiting sender may have more packets in
/// flight, so the thread that adds or drops calls the wakers. All calls that a waker then makes on
/// the link return.
#[test]
fn a_larger_share_calls_it() {
    for adds in [true, false] {
        in_time(move || {
            // The device takes nothing, so no packet comes home and calls the waker before.
            let gate = Gate::new(false);
            let builder = Link::devices([gate.device()]).qdisc("pfifo").ports_max(32);
            let link = builder.build().unwrap();
            let mut others: Vec<_> = (0..1_900).map(|_| link.sender()).collect();
            let mut sender = link.sender();
            let flow = sender.flow(None);
            let mut wait = || {
                while sender.try_send(&flow, b"x").is_ok() {}
                let nosy = Nosy::new(&link, 7);
                leave(&Waker::from(nosy.clone()), &mut sender, &flow);
                nosy
            };
            let mut nosy = wait();
            if adds {
                // If the task has waited for long, a runner may have called the waker before. Then
                // the task waits again, until the link has no number for another port.
                link.add_port(Null::default()).unwrap();
                while nosy.nested.load(SeqCst) < 2 {
                    nosy = wait();
                    link.add_port(Null::default()).expect("it comes while a port is added");
                }
            } else {
                others.clear();
            }
            until("the waker is through", || nosy.done());
            drop(others);
            end(&gate, &link, sender);
        });
    }
}

/// A close calls the waker of a waiting task before it purges the packets for which the task waits.
#[test]
fn a_close_calls_it() {
    in_time(|| {
        let (_gate, link, mut sender, flow) = shut();
        let nosy = Nosy::new(&link, 2);
        leave(&Waker::from(nosy.clone()), &mut sender, &flow);
        let report = link.close(Duration::ZERO);
        assert_eq!((report.flushed, report.purged, report.blocked), (false, BELOW.into(), 0));
        until("the waker is through", || nosy.done());
        assert!(sender.flush(LONG));
        balanced(&link.stats());
    });
}

struct Closer(Link, AtomicU32);

impl Wake for Closer {
    fn wake(self: Arc<Self>) {
        self.0.close(Duration::ZERO);
        self.1.fetch_add(1, SeqCst);
    }
}

/// A runner, a change of the qdisc, or a removal of a port calls a waker, which closes the link.
/// The close returns, and no packet is lost.
#[test]
fn a_waker_closes_the_link() {
    for how in 0..3 {
        in_time(move || {
            let (gate, link, mut sender, flow) = shut();
            let closer = Arc::new(Closer(link.clone(), AtomicU32::new(0)));
            leave(&Waker::from(closer.clone()), &mut sender, &flow);
            match how {
                0 => gate.open(),
                // The waker may close the link in the middle of the call.
                1 => {
                    let set = link.set_qdisc("pfifo limit 1");
                    assert!(matches!(set, Ok(()) | Err(PortError::Closed)), "{set:?}");
                }
                _ => {
                    let removed = link.remove_port(0, Duration::ZERO);
                    assert!(matches!(removed, Ok(_) | Err(PortError::Closed)), "{removed:?}");
                }
            }
            until("the link is closed", || closer.1.load(SeqCst) > 0);
            assert!(sender.flush(LONG));
            until("all is counted", || link.stats().held == 0);
            balanced(&link.stats());
            assert_eq!(link.close(Duration::ZERO).blocked, 0);
        });
    }
}
