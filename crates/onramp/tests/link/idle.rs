//! Who waits sleeps: it is polled a few times, and uses little of a processor, whatever it waits
//! for. This is the one place where time decides: a wait of a second uses less than a quarter of
//! one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use onramp::dev::{Null, loopback};
use onramp::{Device, Flow, Link, Mapping, Packet, Sender};
use rustix::time::{ClockId, clock_gettime};

use crate::common::{LONG, credits, in_time, now, until};
use crate::trap::Trap;

/// How long each waits.
const WAIT: Duration = Duration::from_secs(1);
/// What it may use of a processor meanwhile.
const MOST: Duration = Duration::from_millis(250);
/// Times that a task may be polled meanwhile.
const POLLS: u64 = 2_000;
/// Times that a runner may wake in a millisecond, for all who wait: it looks every 100 µs at most.
const WAKEUPS: u64 = 15;

/// What the calling thread has used of its processor.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// Does something that waits for about a second, and sees that it slept.
#[track_caller]
fn sleeps<R>(what: &str, wait: impl FnOnce() -> R) -> R {
    let before = used();
    let result = wait();
    let used = used() - before;
    assert!(used < MOST, "{what} used {used:?} of a processor");
    result
}

/// Wakes a thread, and counts.
struct Wakes(Thread, AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// An executor that has one task, and gives up after a second. Gives the times it polled.
fn polls(sender: &mut Sender, flow: &Flow) -> u64 {
    let wakes = Arc::new(Wakes(thread::current(), AtomicU64::new(0)));
    let waker = Waker::from(wakes.clone());
    let (deadline, mut polls) = (now() + WAIT, 0);
    loop {
        let woken = wakes.1.load(Ordering::SeqCst);
        polls += 1;
        let polled = sender.poll_ready(&mut Context::from_waker(&waker), flow, 1);
        assert_eq!(polled, Poll::Pending, "there is nothing to have");
        while wakes.1.load(Ordering::SeqCst) == woken {
            let left = deadline.since(now());
            if left == 0 {
                return polls;
            }
            thread::park_timeout(Duration::from_nanos(left));
        }
        if deadline.since(now()) == 0 {
            return polls;
        }
    }
}

/// The calls that wait, in a link where none of them can end. Each sender has a flow, and packets
/// that do not come home.
struct State {
    link: Link,
    senders: Vec<(Sender, Flow)>,
    /// Packets do not leave the link either.
    holds: bool,
}

impl State {
    /// Makes as many senders as there are ways to wait; `lay` has each of them wait.
    fn of(link: Link, holds: bool, port: usize, mut lay: impl FnMut(&mut Sender, &Flow)) -> Self {
        let senders = (0..4).map(|_| {
            let mut sender = link.sender();
            let flow = sender.flow_with(None, Mapping::Port(port));
            lay(&mut sender, &flow);
            (sender, flow)
        });
        let senders = senders.collect();
        Self { link, senders, holds }
    }

    /// Everybody waits for a second, all at the same time; then the link is closed, which ends
    /// `send`, and `end` makes an end of the rest.
    fn waits(self, what: &str, end: impl FnOnce()) {
        let Self { link, senders, holds } = self;
        let [mut ready, mut timed, mut sends, mut flushes]: [(Sender, Flow); 4] =
            senders.try_into().expect("four senders");
        let (before, began) = (link.stats().runner_wakeups, now());
        thread::scope(|scope| {
            let polls = scope.spawn(|| sleeps("ready", || polls(&mut ready.0, &ready.1)));
            let room = scope
                .spawn(|| sleeps("wait_room", || timed.0.wait_room_timeout(&timed.1, 1, WAIT)));
            scope.spawn(|| {
                let sent = sleeps("send", || sends.0.send(&sends.1, b"x"));
                assert!(sent.is_err(), "{what}: the link was closed");
            });
            let flushed = scope.spawn(|| sleeps("flush", || flushes.0.flush(WAIT)));
            let all = scope.spawn(|| sleeps("Link::flush", || link.flush(WAIT)));
            let polls = polls.join().unwrap();
            assert!(polls < POLLS, "{what}: {polls} polls");
            // Before the close, which ends these waits too.
            assert!(!room.join().unwrap(), "{what}");
            assert!(!flushed.join().unwrap(), "{what}");
            assert_eq!(all.join().unwrap(), !holds, "{what}");
            let woken = link.stats().runner_wakeups - before;
            let most = WAKEUPS * (now().since(began) / 1_000_000);
            assert!(woken < most, "{what}: the runner woke {woken} times, {most} are too many");
            sleeps("close", || link.close(WAIT));
        });
        end();
    }
}

/// A port is being removed, which takes long: it holds a packet that may not leave.
#[test]
fn while_a_port_is_being_removed() {
    in_time(|| {
        let devices = (0..2).map(|_| Box::new(Null::default()) as Box<dyn Device>);
        let link = Link::devices(devices).qdisc("fq horizon 4000s").build().unwrap();
        let removes = link.clone();
        let state = State::of(link.clone(), true, 0, |sender, flow| {
            let mut packet = sender.packet(flow, b"stays").unwrap();
            packet.txtime_ns = (link.now() + LONG * 20).0;
            sender.submit(flow, packet).unwrap();
        });
        let remover = thread::Builder::new()
            .spawn(move || sleeps("remove_port", || removes.remove_port(0, WAIT * 9)))
            .unwrap();
        let (mut other, flow) = (link.sender(), state.senders[0].1.clone());
        until("it takes nothing", || other.try_send(&flow, b"x").is_err());
        state.waits("a port leaves", || {
            let _ = remover.join().unwrap();
        });
    });
}

/// The caller has all the packets that it may have.
#[test]
fn while_the_caller_has_all_credits() {
    in_time(|| {
        let link = Link::devices([Box::new(Null::default()) as Box<dyn Device>]).qdisc("pfifo");
        let link = link.credits(credits(2)).build().unwrap();
        let mut held = Vec::new();
        let state = State::of(link, false, 0, |sender, flow| {
            held.extend([(); 2].map(|()| sender.packet(flow, b"held").unwrap()));
        });
        // Nothing was submitted, so a flush is done at once: let it wait for a packet of the heap,
        // which a receiver has.
        let (device, receiver) = loopback(9);
        let port = state.link.add_port(device).unwrap();
        let mut state = state;
        let (sender, _) = &mut state.senders[3];
        let flow = sender.flow_with(None, Mapping::Port(port));
        sender.submit(&flow, Packet::with_payload(b"unread")).unwrap();
        state.waits("the caller has all", || drop((held, receiver)));
    });
}

/// The packets lie in a mailbox.
#[test]
fn while_nobody_reads() {
    in_time(|| {
        let (device, receiver) = loopback(99);
        let link = Link::devices([Box::new(device) as Box<dyn Device>]).qdisc("pfifo");
        let link = link.credits(credits(3)).build().unwrap();
        let state = State::of(link, false, 0, |sender, flow| {
            (0..3).for_each(|_| sender.try_send(flow, b"unread").unwrap());
        });
        state.waits("nobody reads", || drop(receiver));
    });
}

/// The device keeps the owner of the port.
#[test]
fn while_a_device_blocks() {
    in_time(|| {
        let trap = Trap::new();
        let devices = [trap.device(), Box::new(Null::default())];
        let link = Link::devices(devices).qdisc("pfifo").credits(credits(3)).build().unwrap();
        let caught = trap.catch(&link, 0);
        let state = State::of(link, true, 0, |sender, flow| {
            (0..3).for_each(|_| sender.try_send(flow, b"x").unwrap());
        });
        state.waits("a device blocks", || {
            trap.open();
            caught.join().unwrap();
        });
    });
}

/// There is credit, and the intake is full, because a device keeps its owner.
#[test]
fn while_an_intake_is_full() {
    in_time(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device()]).qdisc("pfifo").burst(4).build().unwrap();
        let caught = trap.catch(&link, 0);
        // One packet each: then it is full.
        let state = State::of(link, true, 0, |sender, flow| sender.try_send(flow, b"x").unwrap());
        state.waits("an intake is full", || {
            trap.open();
            caught.join().unwrap();
        });
    });
}

/// A cork that does not fit into a full intake.
#[test]
fn while_a_cork_waits_for_a_full_intake() {
    in_time(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device()]).qdisc("pfifo").burst(4).build().unwrap();
        let caught = trap.catch(&link, 0);
        let mut fills = link.sender();
        let flow = fills.flow(None);
        (0..4).for_each(|_| fills.try_send(&flow, b"x").unwrap());
        let mut made = 0;
        let state = State::of(link, true, 0, |sender, flow| {
            made += 1;
            // To send under a cork is to be done.
            if made != 3 {
                sender.cork();
                (0..9).for_each(|_| sender.try_send(flow, b"x").unwrap());
            }
        });
        state.waits("a cork waits", || {
            trap.open();
            caught.join().unwrap();
        });
    });
}

/// A link that is closed, and packets of it that lie in a mailbox: whatever is asked of it ends,
/// and nobody is busy until then.
#[test]
fn after_a_close_with_packets_in_a_mailbox() {
    in_time(|| {
        let (device, receiver) = loopback(99);
        let link = Link::devices([Box::new(device) as Box<dyn Device>]).qdisc("pfifo");
        let link = link.credits(credits(3)).build().unwrap();
        let (mut own, mut heap) = (link.sender(), link.sender());
        let flow = own.flow(None);
        (0..3).for_each(|_| own.try_send(&flow, b"unread").unwrap());
        heap.submit(&flow, Packet::with_payload(b"unread")).unwrap();
        assert!(link.close(Duration::ZERO).flushed);
        thread::scope(|scope| {
            scope.spawn(|| {
                let flushed = sleeps("flush", || own.flush(LONG));
                assert!(!flushed, "they are not read");
                // Woken at once: there is nothing to wait for.
                own.wait_room(&flow, 1);
                assert!(own.send(&flow, b"x").is_err());
            });
            scope.spawn(|| assert!(!sleeps("flush of heap packets", || heap.flush(LONG))));
            assert!(sleeps("Link::flush", || link.flush(LONG)));
            assert!(sleeps("close", || link.close(LONG)).flushed);
        });
        drop(receiver);
        assert!(own.flush(LONG) && heap.flush(LONG));
    });
}
