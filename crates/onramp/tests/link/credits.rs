//! Senders that wait because many senders share the credits, and that may have more packets in
//! flight when other senders are dropped.

use std::task::Poll;
use std::thread;

use onramp::dev::{Null, Receiver, loopback};
use onramp::{Credits, Link, SendError, Sender, TrySendError};

use crate::common::{LONG, balanced, in_time, until};
use crate::ready::{Unpark, poll};
use crate::wakes::HOWS;

/// Number of other senders. A port's 8,192 packets in flight give each of more than 2,048 senders
/// only the minimum of four.
const CROWD: usize = 2_100;

/// Makes a link over a mailbox that nobody reads, and many other senders (a crowd), which share its
/// credits.
fn crowd() -> (Link, Receiver, Vec<Sender>) {
    let (lo, receiver) = loopback(10_000);
    let link = Link::devices([Box::new(lo) as Box<_>]).qdisc("pfifo").build().unwrap();
    let others = (0..CROWD).map(|_| link.sender()).collect();
    (link, receiver, others)
}

/// When the other senders are dropped, all waiting senders continue, though none of their own
/// packets comes home.
#[test]
fn who_waits_goes_on_when_others_leave() {
    in_time(|| {
        let (link, receiver, others) = crowd();
        let waiting = HOWS.map(|how| {
            let mut sender = link.sender();
            let flow = sender.flow(None);
            let mut below = 0;
            while sender.try_send(&flow, b"x").is_ok() {
                below += 1;
            }
            assert!((4..100).contains(&below), "its share: {below}");
            let waits = link.stats().waits;
            let thread = thread::Builder::new().spawn(move || {
                let told = how.go_on(&mut sender, &flow);
                (told, sender.in_flight() - below, sender)
            });
            until("it waits", || link.stats().waits > waits);
            (how, thread.unwrap())
        });
        drop(others);
        let mut senders = Vec::new();
        for (how, thread) in waiting {
            let (told, more, sender): (Result<(), SendError>, u32, Sender) = thread.join().unwrap();
            assert_eq!((told, more), (Ok(()), 1), "{how:?}");
            senders.push(sender);
        }
        drop(receiver);
        senders.iter_mut().for_each(|sender| assert!(sender.flush(LONG)));
        balanced(&link.stats());
    });
}

/// A task that waits for room is woken each time the number of packets that its sender may have in
/// flight has doubled; it then finds room.
#[test]
fn a_task_sees_each_step() {
    in_time(|| {
        let (link, receiver, mut others) = crowd();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        let mut below = 0;
        for left in [CROWD, 1_000, 500, 250, 100] {
            let waker = Unpark::here();
            if left < CROWD {
                assert_eq!(poll(&mut sender, &flow, &waker), Poll::Pending);
                others.truncate(left);
                until("the task is woken", || waker.woken() > 0);
                assert_eq!(poll(&mut sender, &flow, &waker), Poll::Ready(()), "{left} left");
            }
            let before = below;
            let told = loop {
                match sender.try_send(&flow, b"x") {
                    Ok(()) => below += 1,
                    Err(why) => break why,
                }
            };
            assert_eq!(told, TrySendError::Full);
            assert!(below > before, "{left} left, {below} below");
        }
        drop(receiver);
        assert!(sender.flush(LONG));
        balanced(&link.stats());
    });
}

/// A sender with credits of its own keeps them among many others, because nobody has set the
/// credits of the ports. Only these bound it.
#[test]
fn a_sender_keeps_credits_of_its_own() {
    in_time(|| {
        for (per_port, expected) in [(None, 512), (Some(5_010), 10)] {
            let (lo, receiver) = loopback(10_000);
            let mut builder = Link::devices([Box::new(lo) as Box<_>]).qdisc("pfifo");
            if let Some(packets) = per_port {
                builder = builder.credits_per_port(packets);
            }
            let link = builder.build().unwrap();
            let mut sender = link.sender_with(Credits { packets: 512, bytes: 1 << 20 });
            let others: Vec<_> = (0..500).map(|_| link.sender()).collect();
            assert_eq!(sender.credits().packets, expected);
            let flow = sender.flow(None);
            while sender.try_send(&flow, b"x").is_ok() {}
            assert_eq!(sender.in_flight(), expected);
            // The others have their part of the default, or of what is set.
            let others_have = per_port.unwrap_or(8_192) / 501;
            assert_eq!(others[0].credits().packets, others_have);
            drop((receiver, others));
            assert!(sender.flush(LONG));
            balanced(&link.stats());
        }
    });
}

/// A sender may have more packets in flight as soon as its share has grown at all, and whether it
/// has the link's credits or more of its own. A task that waits is woken each time.
#[test]
fn a_task_sees_each_credit_more() {
    in_time(|| {
        for (own, counts) in [(false, [99, 95, 90, 86]), (true, [99, 86, 60, 2])] {
            let (lo, receiver) = loopback(10_000);
            let mut builder = Link::devices([Box::new(lo) as Box<_>]).qdisc("pfifo");
            if own {
                builder = builder.credits_per_port(8_192);
            }
            let link = builder.build().unwrap();
            let mut sender = match own {
                true => link.sender_with(Credits { packets: 5_000, bytes: 1 << 20 }),
                false => link.sender(),
            };
            let flow = sender.flow(None);
            let mut others: Vec<_> = (0..counts[0]).map(|_| link.sender()).collect();
            for left in counts {
                let waker = Unpark::here();
                if left < counts[0] {
                    assert_eq!(poll(&mut sender, &flow, &waker), Poll::Pending);
                    others.truncate(left);
                    until("the task is woken", || waker.woken() > 0);
                    assert_eq!(poll(&mut sender, &flow, &waker), Poll::Ready(()), "{left} left");
                }
                while sender.try_send(&flow, b"x").is_ok() {}
                let share = u32::try_from(8_192 / (left + 1)).unwrap();
                assert_eq!(sender.in_flight(), share.min(if own { 5_000 } else { 96 }));
                assert_eq!(sender.credits().packets, sender.in_flight());
            }
            drop(receiver);
            assert!(sender.flush(LONG));
            balanced(&link.stats());
        }
    });
}

/// When a port is added, each sender may have more packets in flight, so waiting tasks are woken.
#[test]
fn a_task_sees_that_a_port_was_added() {
    in_time(|| {
        let (lo, receiver) = loopback(10_000);
        let builder = Link::devices([Box::new(lo) as Box<_>]).qdisc("pfifo").ports_max(4);
        let link = builder.build().unwrap();
        let others: Vec<_> = (0..CROWD - 200).map(|_| link.sender()).collect();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        while sender.try_send(&flow, b"x").is_ok() {}
        let waker = Unpark::here();
        assert_eq!(poll(&mut sender, &flow, &waker), Poll::Pending);
        link.add_port(Null::default()).unwrap();
        until("the task is woken", || waker.woken() > 0);
        sender.try_send(&flow, b"x").unwrap();
        drop((receiver, others));
        assert!(sender.flush(LONG));
        balanced(&link.stats());
    });
}
