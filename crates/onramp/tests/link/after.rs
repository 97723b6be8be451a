//! What happens while and after a device blocks a runner: requests for room, added ports, dead
//! ports among these, and the watch (the thread that watches the runners).

use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use onramp::dev::{Null, loopback};
use onramp::{Device, DeviceInfo, Instant, Link, Mapping, Mode, PacketList, SendError};
use onramp::{Transmitted, TrySendError};

use crate::blocked::{block, later};
use crate::common::{LONG, balanced, credits, in_time, until};
use crate::ready::{Unpark, block_on, poll};
use crate::trap::{Mortal, Trap, kill};

/// A device that takes all packets, but needs 6 ms for each burst.
struct Slow(DeviceInfo);

impl Device for Slow {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _: Instant,
    ) -> Transmitted {
        thread::sleep(Duration::from_millis(6));
        done.append(burst);
        Transmitted { calls: 1, messages: 1, retry_at: None }
    }
}

fn boxed(device: impl Device + 'static) -> Box<dyn Device> {
    Box::new(device)
}

/// A task waits for room in an intake. Each visit of a runner that could make room takes so long
/// that another thread takes over the runner's role. The task is woken nevertheless.
#[test]
fn a_wish_for_room_survives_a_relief() {
    in_time(|| {
        let slow = Slow(DeviceInfo::new("slow".to_owned(), 1_514));
        let builder = Link::devices([boxed(slow), boxed(Null::default())]).burst(4);
        let builder = builder.qdisc("pfifo limit 1000").mode(Mode::Dedicated).runners(1);
        let link = builder.credits(credits(64)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Port(0));
        let mut sent = 0;
        while sent < 200 || link.stats().runner_stand_ins < 10 {
            block_on(sender.ready(&flow, 1));
            while sender.try_send(&flow, b"x").is_ok() {
                sent += 1;
            }
        }
        assert!(sender.flush(LONG));
        assert_eq!(link.stats().sent, sent);
        balanced(&link.stats());
    });
}

/// A task asks for room during a visit in which a device blocks the runner so long that another
/// thread takes over its role. Whether the task asks before or after the takeover, it is woken.
#[test]
fn a_wish_that_comes_during_a_relieved_visit_is_heard() {
    for comes_late in [false, true] {
        in_time(move || {
            let trap = Trap::for_runners();
            let builder = Link::devices([trap.device(), boxed(Null::default())]).burst(4);
            let builder = builder.qdisc("pfifo limit 1000").mode(Mode::Dedicated).runners(1);
            let link = builder.credits(credits(64)).build().unwrap();
            let mut sender = link.sender();
            let flow = sender.flow_with(None, Mapping::Port(0));
            // A runner that rests in a visit for some milliseconds is relieved, too.
            let before = link.stats().runner_stand_ins;
            trap.shut();
            sender.try_send(&flow, b"bait").unwrap();
            until("the runner is inside", || trap.inside() == 1);
            while sender.try_send(&flow, b"x").is_ok() {}
            let waker = Unpark::here();
            if comes_late {
                until("the runner is relieved", || link.stats().runner_stand_ins > before);
            }
            assert_eq!(poll(&mut sender, &flow, &waker), Poll::Pending);
            assert!(sender.in_flight() < 64, "it has credit");
            until("the runner is relieved", || link.stats().runner_stand_ins > before);
            trap.open();
            until("the task is woken", || waker.woken() > 0);
            block_on(sender.ready(&flow, 1));
            sender.try_send(&flow, b"x").unwrap();
            assert!(sender.flush(LONG));
            balanced(&link.stats());
        });
    }
}

/// Makes a link with one port, whose device blocks the only runner. Further ports can be added.
fn alone(mode: Mode, each: u32) -> (Link, Arc<Trap>) {
    let trap = Trap::for_runners();
    let builder = Link::devices([trap.device()]).qdisc("fq").mode(mode).runners(1);
    let link = builder.ports_max(8).credits(credits(each)).build().unwrap();
    block(&link, 0, &trap);
    (link, trap)
}

/// If ports are added while a device blocks the thread of the only runner, another thread serves
/// them as the runner, even if the devices of added ports block, too.
#[test]
fn an_added_port_gets_the_runner_that_is_kept() {
    for mode in [Mode::Dedicated, Mode::Hybrid, Mode::Inline] {
        in_time(move || {
            let (link, trap) = alone(mode, 100);
            let mut sender = link.sender();
            let others = [Trap::for_runners(), Trap::for_runners()];
            let mut ports = Vec::new();
            for blocks in [None, Some(&others[0]), None, Some(&others[1]), None] {
                let device = blocks.map_or_else(|| boxed(Null::default()), |trap| trap.device());
                let port = link.add_port(device).unwrap();
                assert_eq!(trap.inside(), 1, "it is blocked still");
                if let Some(trap) = blocks {
                    block(&link, port, trap);
                    continue;
                }
                ports.push(port);
                for &port in &ports {
                    let before = link.stats().ports[port].sent;
                    let flow = sender.flow_with(None, Mapping::Port(port));
                    sender.try_send(&flow, b"now").unwrap();
                    later(&link, &mut sender, &flow, 500_000);
                    until("the port sends", || link.stats().ports[port].sent == before + 2);
                }
            }
            others.iter().chain([&trap]).for_each(|trap| trap.open());
            assert!(link.flush(LONG));
            balanced(&link.stats());
        });
    }
}

/// A port is added while a device blocks the only runner's thread, and then dies. A sender that
/// waits for credit on a flow of that port is told of the death.
#[test]
fn a_death_on_an_added_port_is_told() {
    for mode in [Mode::Dedicated, Mode::Hybrid, Mode::Inline] {
        in_time(move || {
            let (link, trap) = alone(mode, 1);
            let (lo, receiver) = loopback(10);
            let (device, dies) = Mortal::over(Box::new(lo));
            let port = link.add_port(device).unwrap();
            let mut sender = link.sender();
            let flow = sender.flow_with(None, Mapping::Port(port));
            sender.try_send(&flow, b"lies in the mailbox").unwrap();
            until("it lies there", || link.stats().ports[port].sent == 1);
            let waits = link.stats().waits;
            let waiting = thread::Builder::new().spawn(move || {
                let told = sender.send(&flow, b"waits");
                (told, sender)
            });
            until("it waits", || link.stats().waits > waits);
            kill(&link, port, &dies);
            let (told, mut sender) = waiting.unwrap().join().unwrap();
            assert_eq!((told, trap.inside()), (Err(SendError::PortDead), 1));
            assert_eq!(sender.in_flight(), 1);
            drop(receiver);
            trap.open();
            assert!(sender.flush(LONG) && link.flush(LONG));
            balanced(&link.stats());
        });
    }
}

/// Number of threads that a link with one runner can have: the runner's first thread, and 64 that
/// may stand in for it.
const THREADS: usize = 64 + 1;

/// More devices block than the link has threads, so no thread is left to watch the runners. When
/// the devices return, a thread watches again.
#[test]
fn more_devices_block_than_there_are_threads() {
    in_time(|| {
        let traps: Vec<_> = (0..THREADS + 5).map(|_| Trap::for_runners()).collect();
        let devices = traps.iter().map(|trap| trap.device()).chain([boxed(Null::default())]);
        let builder = Link::devices(devices).qdisc("pfifo").mode(Mode::Dedicated).runners(1);
        let link = builder.build().unwrap();
        let mut sender = link.sender();
        let flows: Vec<_> =
            (0..=traps.len()).map(|port| sender.flow_with(None, Mapping::Port(port))).collect();
        let inside = || traps.iter().map(|trap| trap.inside() as usize).sum::<usize>();
        let mut sent = 0;
        for round in 1..=3 {
            traps.iter().for_each(|trap| trap.shut());
            for flow in &flows[..traps.len()] {
                sender.try_send(flow, b"x").unwrap();
            }
            until("each thread is kept", || inside() == THREADS);
            assert!(link.stats().runner_unwatched >= round, "nobody is left to watch");
            traps.iter().for_each(|trap| trap.open());
            assert!(sender.flush(LONG) && link.flush(LONG));
            sent += traps.len() as u64;
            // Let some devices block again, one after another: each time, another thread takes over
            // the runner's role.
            let before = link.stats().runner_stand_ins;
            for (kept, trap) in (1..).zip(&traps[..5]) {
                trap.shut();
                sender.try_send(&flows[kept - 1], b"x").unwrap();
                until("it is relieved", || {
                    let relieved = link.stats().runner_stand_ins >= before + kept as u64;
                    inside() == kept && relieved
                });
            }
            sender.try_send(&flows[traps.len()], b"x").unwrap();
            sent += 5 + 1;
            let last = traps.len();
            until("another port sends", || link.stats().ports[last].sent == round);
            assert_eq!(inside(), 5);
            traps.iter().for_each(|trap| trap.open());
            assert!(sender.flush(LONG) && link.flush(LONG));
            assert_eq!(link.stats().sent, sent);
        }
        balanced(&link.stats());
        assert_eq!(link.close(LONG).blocked, 0);
    });
}

/// While a device blocks the runner, one task waits for credit, and another task waits for room in
/// a full intake. A close wakes both tasks.
#[test]
fn a_close_tells_a_task_that_waits_for_a_kept_runner() {
    in_time(|| {
        let trap = Trap::for_runners();
        let builder = Link::devices([trap.device(), boxed(Null::default())]).burst(4);
        let builder = builder.qdisc("pfifo limit 1000").mode(Mode::Dedicated).runners(1);
        let link = builder.credits(credits(5)).build().unwrap();
        let (mut full, mut poor) = (link.sender(), link.sender());
        let flow = full.flow_with(None, Mapping::Port(0));
        trap.shut();
        poor.try_send(&flow, b"bait").unwrap();
        until("the runner is inside", || trap.inside() == 1);
        for sender in [&mut poor, &mut full] {
            while sender.try_send(&flow, b"x").is_ok() {}
        }
        let wakers = [Unpark::here(), Unpark::here()];
        assert_eq!(poll(&mut full, &flow, &wakers[0]), Poll::Pending);
        assert_eq!(poll(&mut poor, &flow, &wakers[1]), Poll::Pending);
        assert_eq!(link.close(Duration::ZERO).blocked, 1);
        until("both are woken", || wakers.iter().all(|waker| waker.woken() > 0));
        for sender in [&mut poor, &mut full] {
            assert_eq!(poll(sender, &flow, &wakers[0]), Poll::Ready(()));
            assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Closed));
        }
        trap.open();
        assert!(full.flush(LONG) && poor.flush(LONG));
        until("all is counted", || link.stats().held == 0);
        balanced(&link.stats());
    });
}
