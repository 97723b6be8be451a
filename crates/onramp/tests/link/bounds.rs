//! Limits on how many ports one call of a sender may serve to help other senders, however many
//! ports the link has or had.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use onramp::dev::Null;
use onramp::{Device, Flow, Link, Mapping, Mode, SendError, Sender, TrySendError};

use crate::common::{Fates, Gate, LONG, balanced, credits, in_time, now, until};
use crate::ready::block_on;
use crate::trap::{Mortal, kill};

/// Greatest number of ports that a non-blocking call without credit may serve (send their packets):
/// the flow's own port, and one that asked for a visit.
const AGAIN: u64 = 2;
/// Greatest number of ports that a waiting call may serve in one attempt: the flow's own port, and
/// four others.
const WAITING: u64 = 5;

fn null() -> Box<dyn Device> {
    Box::new(Null::default())
}

/// Sends a packet with a departure time so late that it stays in the qdisc until the link is
/// closed.
fn stays(link: &Link, sender: &mut Sender, flow: &Flow) {
    let mut packet = sender.packet(flow, b"stays").unwrap();
    packet.txtime_ns = (link.now() + LONG * 20).0;
    sender.submit(flow, packet).unwrap();
}

/// Makes a link with `ports` ports. In each of them, a packet of another sender waits for its
/// departure time, so each port wants visits. Returns also a sender that has no credit, with a flow
/// on port 0.
fn all_marked(ports: usize) -> (Link, Sender, Flow) {
    let link = Link::devices((0..ports).map(|_| null())).ports_max(ports);
    // The sender must not lose patience: a runner would wake it then, and its next poll would serve
    // ports twice.
    let link = link.qdisc("fq horizon 4000s").credits(credits(2)).patience(2 * LONG);
    let link = link.build().unwrap();
    for port in 0..ports {
        let mut other = link.sender();
        let flow = other.flow_with(None, Mapping::Port(port));
        stays(&link, &mut other, &flow);
    }
    let mut sender = link.sender();
    let flow = sender.flow_with(None, Mapping::Port(0));
    (0..2).for_each(|_| stays(&link, &mut sender, &flow));
    (link, sender, flow)
}

fn helped(link: &Link) -> Vec<u64> {
    link.stats().ports.iter().map(|port| port.helped).collect()
}

/// Repeats `call` until it has served every port at least once, and checks that each call serves no
/// more than `most` ports.
fn works_at_few(link: &Link, most: u64, mut call: impl FnMut()) {
    let first = helped(link);
    let mut before: u64 = first.iter().sum();
    let ports = link.ports();
    let (mut calls, deadline) = (0_u64, now() + LONG);
    while helped(link).iter().zip(&first).any(|(now, first)| now == first) {
        // A runner may own a port at the moment of a call, so the call may serve fewer ports than
        // it could.
        assert!(now() < deadline, "never at all of them: {:?}", helped(link));
        call();
        calls += 1;
        let after: u64 = helped(link).iter().sum();
        assert!(after - before <= most, "{} of {ports} ports in one call", after - before);
        if after == before {
            thread::yield_now();
        }
        before = after;
    }
    // All ports together need at least this many calls, because each call serves no more than
    // `most` ports.
    assert!(calls >= ports as u64 / most, "{calls} calls");
}

/// A sender that tries again and again and gets `Full` serves at most two ports in each call, and
/// in turn serves all ports.
#[test]
fn a_retry_works_at_two_ports() {
    for ports in [1, 2, 16, 64, 300] {
        in_time(move || {
            let (link, mut sender, flow) = all_marked(ports);
            works_at_few(&link, AGAIN, || {
                assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Full));
            });
            works_at_few(&link, AGAIN, || {
                assert_eq!(sender.try_send_batch(&flow, [b"x"; 9]), Err(TrySendError::Full));
            });
        });
    }
}

/// A task that waits for room serves at most five ports in each poll.
#[test]
fn a_poll_works_at_five_ports() {
    for ports in [3, 64, 300] {
        in_time(move || {
            let (link, mut sender, flow) = all_marked(ports);
            let mut cx = Context::from_waker(Waker::noop());
            works_at_few(&link, WAITING, || {
                assert_eq!(sender.poll_ready(&mut cx, &flow, 1), Poll::Pending);
            });
        });
    }
}

/// A blocking call that waits for room serves at most five ports in one attempt.
#[test]
fn a_wait_works_at_five_ports() {
    in_time(|| {
        let (link, mut sender, flow) = all_marked(64);
        works_at_few(&link, WAITING, || {
            assert!(!sender.wait_room_timeout(&flow, 1, Duration::ZERO));
        });
    });
}

/// 200 ports are removed, one after another. The flows of all removed ports end at the port that is
/// left, and their packets keep their order.
#[test]
fn the_flows_of_many_ports_end_at_the_one_that_lives() {
    for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
        in_time(move || {
            const REMOVALS: usize = 200;
            let gate = Gate::new(true);
            let link = Link::devices([gate.device()]).ports_max(REMOVALS + 1);
            let link = link.qdisc("pfifo").mode(mode).build().unwrap();
            let mut sender = link.sender();
            let fates = Fates::of(&mut sender);
            let mut flows = Vec::new();
            let mut cookie = 0;
            for port in 0..REMOVALS {
                if port % 50 == 0 {
                    flows.push(sender.flow_with(None, Mapping::Port(port)));
                }
                assert_eq!(link.add_port(Passes(gate.device())).unwrap(), port + 1);
                for round in [0, 1] {
                    for flow in &flows {
                        sender.wait_room(flow, 1);
                        let mut packet = sender.packet(flow, b"x").unwrap();
                        (packet.cookie, cookie) = (cookie, cookie + 1);
                        sender.submit(flow, packet).unwrap();
                    }
                    if round == 0 {
                        assert!(link.remove_port(port, LONG).unwrap().flushed);
                    }
                }
            }
            assert!(sender.flush(LONG));
            assert_eq!(gate.taken(), (0..cookie).collect::<Vec<_>>(), "{mode:?}");
            let last = link.stats().ports[REMOVALS].sent;
            assert!(last >= flows.len() as u64, "all of them go by the last one");
            for flow in &flows {
                sender.send(flow, b"x").unwrap();
            }
            assert!(sender.flush(LONG));
            let stats = link.stats();
            assert_eq!(stats.ports[REMOVALS].sent, last + flows.len() as u64);
            assert_eq!(fates.get(None), cookie + flows.len() as u64);
            balanced(&stats);
        });
    }
}

/// A device that passes its packets to another device.
struct Passes(Box<dyn Device>);

impl Device for Passes {
    fn info(&self) -> &onramp::DeviceInfo {
        self.0.info()
    }

    fn transmit(
        &mut self,
        burst: &mut onramp::PacketList,
        done: &mut onramp::PacketList,
        now: onramp::Instant,
    ) -> onramp::Transmitted {
        self.0.transmit(burst, done, now)
    }
}

/// All ports except one die. Flows that are mapped by processor then use the living port, even if
/// they used another port before. This holds for each call that sends or waits.
#[test]
fn flows_by_processor_find_the_port_that_lives() {
    in_time(|| {
        for lives in [0, 1, 3] {
            let (devices, kills): (Vec<_>, Vec<_>) = (0..4).map(|_| Mortal::over(null())).unzip();
            let link = Link::devices(devices).qdisc("pfifo").build().unwrap();
            let mut sender = link.sender();
            let flows: Vec<_> = (0..8).map(|_| sender.flow_with(None, Mapping::Cpu)).collect();
            flows.iter().for_each(|flow| sender.send(flow, b"before").unwrap());
            for port in (0..4).filter(|port| *port != lives) {
                kill(&link, port, &kills[port]);
            }
            let before = link.stats().ports[lives].sent;
            for flow in &flows {
                assert_eq!(sender.try_send(flow, b"x"), Ok(()), "port {lives} of {}", flow.port());
                assert_eq!(sender.try_send_batch(flow, [b"x"; 3]), Ok(3));
                assert_eq!(sender.send(flow, b"x"), Ok(()));
                block_on(poll_fn(|cx| sender.poll_ready(cx, flow, 1)));
                assert!(sender.wait_room_timeout(flow, 1, LONG));
            }
            // A sender that is made after the deaths also uses the living port.
            let mut late = link.sender();
            let flow = late.flow_with(None, Mapping::Cpu);
            assert_eq!(late.try_send(&flow, b"x"), Ok(()));
            assert!(sender.flush(LONG) && late.flush(LONG));
            assert_eq!(link.stats().ports[lives].sent, before + 8 * 5 + 1);
            // When the last port dies, the senders get the error `PortDead`.
            kill(&link, lives, &kills[lives]);
            for flow in &flows {
                assert_eq!(sender.try_send(flow, b"x"), Err(TrySendError::PortDead));
                assert_eq!(sender.send(flow, b"x"), Err(SendError::PortDead));
            }
            balanced(&link.stats());
        }
    });
}

/// A port dies while senders whose flows are mapped by processor sleep or send. The senders
/// continue at another port.
#[test]
fn a_flow_by_processor_outlives_its_port() {
    in_time(|| {
        let (devices, kills): (Vec<_>, Vec<_>) = (0..2).map(|_| Mortal::over(null())).unzip();
        let devices = devices.into_iter().chain([null()]);
        let link = Link::devices(devices).qdisc("pfifo").credits(credits(4)).build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let (mut sender, stop) = (link.sender(), stop.clone());
                    scope.spawn(move || {
                        let flow = sender.flow_with(None, Mapping::Cpu);
                        while !stop.load(Ordering::SeqCst) {
                            sender.send(&flow, b"x").expect("port 2 lives");
                        }
                        assert!(sender.flush(LONG));
                    })
                })
                .collect();
            for port in [0, 1] {
                let sent = link.stats().sent;
                until("they send", || link.stats().sent > sent + 1_000);
                kill(&link, port, &kills[port]);
            }
            let sent = link.stats().ports[2].sent;
            until("they go on", || link.stats().ports[2].sent > sent + 1_000);
            stop.store(true, Ordering::SeqCst);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        balanced(&link.stats());
    });
}
