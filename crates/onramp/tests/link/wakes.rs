//! Events that wake waiting senders though none of their packets comes home: the close of a link,
//! the death of a port, and the removal of a port.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use onramp::dev::{Null, Receiver, loopback};
use onramp::{Device, Flow, Link, Mapping, SendError, Sender, TrySendError};

use crate::common::{Gate, LONG, balanced, credits, in_time, until};
use crate::ready::block_on;
use crate::trap::{Mortal, Trap, kill};

/// The ways in which a sender waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Send,
    SendBatch,
    WaitRoom,
    /// Waits with a time limit that is longer than the test.
    Timeout,
    Ready,
    PollReady,
}

pub(crate) const HOWS: [How; 6] =
    [How::Send, How::SendBatch, How::WaitRoom, How::Timeout, How::Ready, How::PollReady];

impl How {
    /// Waits for room by the method that `self` names, and then sends one packet. Returns the
    /// result of the last call.
    pub(crate) fn go_on(self, sender: &mut Sender, flow: &Flow) -> Result<(), SendError> {
        loop {
            match self {
                Self::Send => return sender.send(flow, b"x"),
                Self::SendBatch => return sender.send_batch(flow, &[b"x"]),
                Self::WaitRoom => sender.wait_room(flow, 1),
                Self::Timeout => assert!(sender.wait_room_timeout(flow, 1, LONG), "too late"),
                Self::Ready => block_on(sender.ready(flow, 1)),
                Self::PollReady => block_on(poll_fn(|cx| sender.poll_ready(cx, flow, 1))),
            }
            match sender.try_send(flow, b"x") {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full) => {} // Another sender took the room first, so wait again.
                Err(TrySendError::Closed) => return Err(SendError::Closed),
                Err(TrySendError::PortDead) => return Err(SendError::PortDead),
                Err(why) => panic!("{why}"),
            }
        }
    }
}

/// Where all packets of the waiting senders are. None of them comes home by itself.
enum Place {
    /// All packets are in a mailbox that nobody reads.
    Mailbox(Receiver),
    /// All packets are in front of a device that blocks its caller until the test opens the device.
    Device(Arc<Trap>, JoinHandle<()>),
}

/// A link with three ports. Port 0 dies when told to. Port 1 leads to the place where the packets
/// of the waiting senders stay; if that place is a mailbox, port 1 dies when told to, too. Port 2
/// takes all packets.
struct World {
    link: Link,
    place: Place,
    kills: [Arc<AtomicBool>; 2],
}

const CREDITS: u32 = 3;

impl World {
    fn new(mailbox: bool) -> Self {
        let null = || Box::new(Null::default()) as Box<dyn Device>;
        let (first, kills_first) = Mortal::over(null());
        let (lo, receiver) = loopback(100);
        let trap = Trap::new();
        let place = if mailbox { Box::new(lo) as Box<_> } else { trap.device() };
        let (second, kills_second) = Mortal::over(place);
        let link = Link::devices([first, second, null()]).qdisc("pfifo");
        let link = link.credits(credits(CREDITS)).build().unwrap();
        let place = if mailbox {
            Place::Mailbox(receiver)
        } else {
            let caught = trap.catch(&link, 1);
            Place::Device(trap, caught)
        };
        Self { link, place, kills: [kills_first, kills_second] }
    }

    /// Starts a thread whose sender has no credit, because all of its packets are at port 1, and
    /// waits with a flow of the port `port`. The thread returns the result of its wait.
    fn waits(&self, how: How, port: usize) -> JoinHandle<(Result<(), SendError>, Sender)> {
        let mut sender = self.link.sender();
        let below = sender.flow_with(None, Mapping::Port(1));
        (0..CREDITS).for_each(|_| sender.try_send(&below, b"x").unwrap());
        let waits = self.link.stats().waits;
        let thread = thread::Builder::new().spawn(move || {
            let flow = sender.flow_with(None, Mapping::Port(port));
            (how.go_on(&mut sender, &flow), sender)
        });
        until("it waits", || self.link.stats().waits > waits);
        thread.unwrap()
    }

    /// Lets the packets come home at the end of a test, and checks the counters.
    fn let_go(self, senders: Vec<Sender>) {
        match self.place {
            Place::Mailbox(receiver) => drop(receiver),
            Place::Device(trap, caught) => {
                trap.open();
                caught.join().unwrap();
            }
        }
        for mut sender in senders {
            assert!(sender.flush(LONG));
            assert_eq!(sender.in_flight(), 0);
        }
        until("all is counted", || self.link.stats().held == 0);
        balanced(&self.link.stats());
    }
}

/// A close wakes all waiting senders, although their packets stay in a mailbox or in front of a
/// device.
#[test]
fn a_close_wakes_those_whose_packets_lie_elsewhere() {
    for mailbox in [true, false] {
        in_time(move || {
            for port in [0, 1] {
                let world = World::new(mailbox);
                let waiting: Vec<_> = HOWS.map(|how| (how, world.waits(how, port))).into();
                if mailbox {
                    let all = u64::from(CREDITS) * HOWS.len() as u64;
                    until("the mailbox has them all", || world.link.stats().sent == all);
                }
                // If the packets are in a mailbox, the link has sent all of them. But a runner may
                // still be busy with the port, so give the close a long time limit.
                let report = world.link.close(if mailbox { LONG } else { Duration::ZERO });
                assert_eq!(report.flushed, mailbox);
                let mut senders = Vec::new();
                for (how, thread) in waiting {
                    let (told, sender) = thread.join().unwrap();
                    assert_eq!(told, Err(SendError::Closed), "{how:?}, mailbox {mailbox}");
                    assert_eq!(sender.in_flight(), CREDITS);
                    senders.push(sender);
                }
                world.let_go(senders);
            }
        });
    }
}

/// When a port dies, every sender that waits for room for a flow of that port is woken, even if all
/// its packets in flight are in other ports or at a receiver.
#[test]
fn a_death_wakes_those_whose_packets_lie_elsewhere() {
    for (mailbox, port) in [(true, 0), (true, 1), (false, 0)] {
        in_time(move || {
            let world = World::new(mailbox);
            let other = world.waits(How::Send, 2);
            let waiting: Vec<_> = HOWS.map(|how| (how, world.waits(how, port))).into();
            kill(&world.link, port, &world.kills[port]);
            let mut senders = Vec::new();
            for (how, thread) in waiting {
                let (told, sender) = thread.join().unwrap();
                assert_eq!(told, Err(SendError::PortDead), "{how:?}, mailbox {mailbox}");
                assert_eq!(sender.in_flight(), CREDITS);
                senders.push(sender);
            }
            // A sender that waits with a flow of a living port is not told of the death, and goes
            // on waiting.
            assert!(!other.is_finished());
            world.link.close(Duration::ZERO);
            let (told, sender) = other.join().unwrap();
            assert_eq!(told, Err(SendError::Closed));
            senders.push(sender);
            world.let_go(senders);
        });
    }
}

/// A port dies because its device panics while a runner calls it. Senders that wait with flows of
/// that port are woken, though all their packets in flight are elsewhere, in a mailbox.
#[test]
fn a_death_by_a_runner_wakes_them_too() {
    in_time(|| {
        let world = World::new(true);
        let waiting: Vec<_> = HOWS.map(|how| (how, world.waits(how, 0))).into();
        world.link.set_qdisc("fq").unwrap();
        world.kills[0].store(true, std::sync::atomic::Ordering::SeqCst);
        let mut other = world.link.sender();
        let flow = other.flow_with(None, Mapping::Port(0));
        let mut packet = other.packet(&flow, b"later").unwrap();
        packet.txtime_ns = (world.link.now() + Duration::from_millis(5)).0;
        other.submit(&flow, packet).unwrap();
        let mut senders = vec![other];
        for (how, thread) in waiting {
            let (told, sender) = thread.join().unwrap();
            assert_eq!(told, Err(SendError::PortDead), "{how:?}");
            senders.push(sender);
        }
        world.let_go(senders);
    });
}

/// A close ends every flush that waits. The flush returns false if a receiver or a device still
/// holds packets.
#[test]
fn a_close_ends_a_flush() {
    for mailbox in [true, false] {
        in_time(move || {
            let world = World::new(mailbox);
            let mut sender = world.link.sender();
            let flow = sender.flow_with(None, Mapping::Port(1));
            (0..CREDITS).for_each(|_| sender.try_send(&flow, b"x").unwrap());
            // A second sender submits a packet from the heap, which stays where the first sender's
            // packets stay. It belongs to no sender's pool, but a flush of the second sender waits
            // for it.
            let mut lends = world.link.sender();
            lends.submit(&flow, onramp::Packet::with_payload(b"of the heap")).unwrap();
            let sender = thread::scope(|scope| {
                let own = scope.spawn(|| (sender.flush(LONG * 10), sender));
                let heap = scope.spawn(|| lends.flush(LONG * 10));
                until("one of them sleeps", || world.link.stats().parks > 0);
                world.link.close(Duration::ZERO);
                let (flushed, sender) = own.join().unwrap();
                assert!(!flushed && !heap.join().unwrap(), "they lie there still");
                sender
            });
            assert_eq!(sender.in_flight(), CREDITS);
            world.let_go(vec![sender, lends]);
        });
    }
}

/// When a port dies, a flush that waits for packets in that port ends.
#[test]
fn a_death_ends_a_flush_of_what_was_in_the_port() {
    in_time(|| {
        let gate = Gate::new(false);
        let (mortal, dies) = Mortal::over(gate.device());
        let link = Link::devices([mortal, Box::new(Null::default())]).qdisc("pfifo");
        let link = link.build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Port(0));
        (0..5).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        thread::scope(|scope| {
            let flushed = scope.spawn(|| sender.flush(LONG));
            until("it sleeps", || link.stats().parks > 0);
            kill(&link, 0, &dies);
            assert!(flushed.join().unwrap());
        });
        until("all is counted", || link.stats().held == 0);
        balanced(&link.stats());
    });
}

/// Senders that have credit wait for a port that is being removed. When it is removed, they
/// continue at the ports that take over its flows.
#[test]
fn a_removal_wakes_those_who_wait_for_the_port() {
    for qdisc in ["pfifo", "fq"] {
        in_time(move || {
            let gate = Gate::new(false);
            let devices = [gate.device(), Box::new(Null::default())];
            let link = Link::devices(devices).qdisc(qdisc).build().unwrap();
            let mut first = link.sender();
            let flow = first.flow_with(None, Mapping::Port(0));
            first.try_send(&flow, b"x").unwrap();
            let mut before = 1;
            thread::scope(|scope| {
                let removes = scope.spawn(|| link.remove_port(0, LONG).unwrap());
                until("it takes nothing", || {
                    let refused = first.try_send(&flow, b"x").is_err();
                    before += usize::from(!refused);
                    refused
                });
                let waiting = HOWS.map(|how| {
                    let (mut sender, flow) = (link.sender(), flow.clone());
                    let (says, refused) = channel();
                    let thread = scope.spawn(move || {
                        while sender.try_send(&flow, b"x").is_ok() {}
                        says.send(()).unwrap();
                        let told = how.go_on(&mut sender, &flow);
                        (told, sender.flush(LONG))
                    });
                    refused.recv().unwrap();
                    (how, thread)
                });
                // Another sender's cork holds back packets for the port that is being removed.
                let (mut corks, under) = (link.sender(), flow.clone());
                corks.cork();
                (0..3).for_each(|_| corks.try_send(&under, b"x").unwrap());
                let corked = scope.spawn(move || (corks.flush(LONG), corks.in_flight()));
                assert!(!first.flush(Duration::ZERO));
                gate.open();
                assert!(removes.join().unwrap().flushed);
                for (how, thread) in waiting {
                    assert_eq!(thread.join().unwrap(), (Ok(()), true), "{how:?}");
                }
                assert_eq!(corked.join().unwrap(), (true, 0));
            });
            assert_eq!(gate.taken().len(), before, "what was there before");
            let stats = link.stats();
            assert_eq!(stats.ports[1].sent, HOWS.len() as u64 + 3);
            balanced(&stats);
        });
    }
}

/// Senders without credit wait while their packets lie in a port. The port is removed, but does not
/// become empty within the time limit of the removal, so the removal drops these packets. That
/// wakes the senders, and they continue at another port.
#[test]
fn a_removal_that_purges_wakes_them_too() {
    in_time(|| {
        let gate = Gate::new(false);
        let devices = [gate.device(), Box::new(Null::default())];
        let link = Link::devices(devices).qdisc("pfifo").credits(credits(1)).build().unwrap();
        let flow = link.sender().flow_with(None, Mapping::Port(0));
        let waiting = HOWS.map(|how| {
            let (mut sender, flow) = (link.sender(), flow.clone());
            sender.try_send(&flow, b"its only credit").unwrap();
            let waits = link.stats().waits;
            let thread = thread::Builder::new().spawn(move || {
                let told = how.go_on(&mut sender, &flow);
                (told, sender.flush(LONG))
            });
            until("it waits", || link.stats().waits > waits);
            (how, thread.unwrap())
        });
        let report = link.remove_port(0, Duration::ZERO).unwrap();
        assert_eq!((report.flushed, report.purged), (false, HOWS.len() as u64));
        for (how, thread) in waiting {
            assert_eq!(thread.join().unwrap(), (Ok(()), true), "{how:?}");
        }
        assert!(gate.taken().is_empty());
        assert_eq!(link.stats().ports[1].sent, HOWS.len() as u64);
        balanced(&link.stats());
    });
}

/// The removal of a port does not end the wait of senders without credit whose packets lie in a
/// mailbox. When their packets are read, they continue at another port.
#[test]
fn a_removal_leaves_those_without_credit_waiting() {
    in_time(|| {
        let mut world = World::new(true);
        let waiting: Vec<_> = HOWS.map(|how| (how, world.waits(how, 0))).into();
        assert!(world.link.remove_port(0, LONG).unwrap().flushed);
        assert!(world.link.remove_port(1, LONG).unwrap().flushed, "a mailbox is no port");
        assert!(waiting.iter().all(|(_, thread)| !thread.is_finished()));
        let Place::Mailbox(receiver) = &mut world.place else { unreachable!("it is one") };
        assert_eq!(receiver.recv_all().len(), CREDITS * u32::try_from(HOWS.len()).unwrap());
        let mut senders = Vec::new();
        for (how, thread) in waiting {
            let (told, sender) = thread.join().unwrap();
            assert_eq!(told, Ok(()), "{how:?}");
            senders.push(sender);
        }
        assert!(world.link.flush(LONG));
        assert_eq!(world.link.stats().ports[2].sent, HOWS.len() as u64);
        world.let_go(senders);
    });
}

/// Senders that have credit wait for room in an intake, because a device blocks the port's owner.
/// They continue when the owner returns from the device.
#[test]
fn an_intake_with_room_wakes_those_who_wait_for_it() {
    in_time(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device()]).qdisc("pfifo").burst(2).build().unwrap();
        let caught = trap.catch(&link, 0);
        let mut first = link.sender();
        let flow = first.flow(None);
        assert_eq!(first.try_send_batch(&flow, [b"x"; 5]), Ok(2), "as many as the intake takes");
        let waiting = HOWS.map(|how| {
            let (mut sender, flow) = (link.sender(), flow.clone());
            let refused = link.stats().refused;
            let thread = thread::Builder::new().spawn(move || {
                assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Full));
                let told = how.go_on(&mut sender, &flow);
                (told, sender.flush(LONG))
            });
            until("it was refused", || link.stats().refused > refused);
            (how, thread.unwrap())
        });
        trap.open();
        caught.join().unwrap();
        for (how, thread) in waiting {
            assert_eq!(thread.join().unwrap(), (Ok(()), true), "{how:?}");
        }
        assert!(first.flush(LONG));
        assert_eq!(link.stats().sent, 1 + 2 + HOWS.len() as u64);
        balanced(&link.stats());
    });
}
