//! Threads that wait really sleep, whatever they wait for: a waiting task is polled only a few
//! times, and a waiting thread uses little processor time. These are the only tests that depend on
//! time: in a wait of one second, a thread must use less than a quarter of a second of processor
//! time.

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

/// How long each thread waits.
const WAIT: Duration = Duration::from_secs(1);
/// Greatest processor time that a thread may use during the wait.
const MOST: Duration = Duration::from_millis(250);
/// Greatest number of times that a waiting task may be polled during the wait.
const POLLS: u64 = 2_000;
/// Greatest number of times per millisecond that a runner may wake while all these threads wait. A
/// runner visits ports at most once every 100 µs, which is ten times; the rest is a tolerance.
const WAKEUPS: u64 = 15;

/// Returns the processor time that the calling thread has used.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// Makes a call that waits for about a second, and checks that its thread slept meanwhile.
#[track_caller]
fn sleeps<R>(what: &str, wait: impl FnOnce() -> R) -> R {
    let before = used();
    let result = wait();
    let used = used() - before;
    assert!(used < MOST, "{what} used {used:?} of a processor");
    result
}

/// A waker that unparks a thread and counts how often it was called.
struct Wakes(Thread, AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// Polls a sender for room, as an executor with a single task does, for one second. Returns how
/// often it polled.
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

/// A link in a state in which no waiting call can end. Each sender has a flow, and packets that do
/// not come home.
struct State {
    link: Link,
    senders: Vec<(Sender, Flow)>,
    /// Whether the packets stay in the link. If false, they have left the link, but have not come
    /// home.
    holds: bool,
}

impl State {
    /// Makes one sender for each of the four ways to wait. `lay` brings each sender into a state in
    /// which it has to wait.
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

    /// Lets all senders wait at the same time, for a second. Then closes the link, which ends the
    /// call of `send`, and calls `end`, which brings the packets home.
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
            // Wait for these calls to return before the close, because the close would make them
            // return early.
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

/// Every waiting call sleeps while a port is being removed that holds a packet whose departure time
/// is far away.
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
            .spawn(move || sleeps("remove_port", || removes.remove_port(0, LONG)))
            .unwrap();
        let (mut other, flow) = (link.sender(), state.senders[0].1.clone());
        until("it takes nothing", || other.try_send(&flow, b"x").is_err());
        state.waits("a port leaves", || {
            let _ = remover.join().unwrap();
        });
    });
}

/// Every waiting call sleeps while the caller itself holds all packets that its senders may have.
#[test]
fn while_the_caller_has_all_credits() {
    in_time(|| {
        let link = Link::devices([Box::new(Null::default()) as Box<dyn Device>]).qdisc("pfifo");
        let link = link.credits(credits(2)).build().unwrap();
        let mut held = Vec::new();
        let state = State::of(link, false, 0, |sender, flow| {
            held.extend([(); 2].map(|()| sender.packet(flow, b"held").unwrap()));
        });
        // This sender has submitted nothing, so its flush would return at once. Let it submit a
        // packet from the heap, which then lies in a mailbox.
        let (device, receiver) = loopback(9);
        let port = state.link.add_port(device).unwrap();
        let mut state = state;
        let (sender, _) = &mut state.senders[3];
        let flow = sender.flow_with(None, Mapping::Port(port));
        sender.submit(&flow, Packet::with_payload(b"unread")).unwrap();
        state.waits("the caller has all", || drop((held, receiver)));
    });
}

/// Every waiting call sleeps while the packets lie in a mailbox that nobody reads.
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

/// Every waiting call sleeps while a device blocks the thread that owns the port.
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

/// Every waiting call sleeps while an intake is full because a device blocks the thread that owns
/// the port. The senders have credit.
#[test]
fn while_an_intake_is_full() {
    in_time(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device()]).qdisc("pfifo").burst(4).build().unwrap();
        let caught = trap.catch(&link, 0);
        // Each sender stages one packet; then the intake is full.
        let state = State::of(link, true, 0, |sender, flow| sender.try_send(flow, b"x").unwrap());
        state.waits("an intake is full", || {
            trap.open();
            caught.join().unwrap();
        });
    });
}

/// Every waiting call sleeps while the packets of a cork do not fit into a full intake.
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
            // The third sender that is made calls `send`, which would succeed at once under a cork.
            // So this sender is not corked.
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

/// A link was closed while its packets lie in a mailbox. Every call on the link returns, and uses
/// little processor time until then.
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
                // `wait_room` returns at once, because there is nothing to wait for on a closed
                // link.
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
