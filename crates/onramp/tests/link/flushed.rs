//! Waiting as a future until all packets of a sender have left.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use onramp::dev::{Null, loopback};
use onramp::{Link, Sender};

use crate::common::{Gate, LONG, balanced, gated, in_time, until};
use crate::ready::{Unpark, block_on};

fn poll(sender: &mut Sender, waker: &Arc<Unpark>) -> Poll<bool> {
    sender.poll_flush(&mut Context::from_waker(&Waker::from(waker.clone())))
}

/// Polls again as often as the sender asks for it, as an executor does, until the sender waits.
fn poll_on(sender: &mut Sender, waker: &Arc<Unpark>) -> Poll<bool> {
    loop {
        let woken = waker.woken();
        let polled = poll(sender, waker);
        if polled.is_ready() || waker.woken() == woken {
            return polled;
        }
    }
}

#[test]
fn a_sender_without_packets_is_flushed() {
    in_time(|| {
        let link = gated(&Gate::new(false), "pfifo").build().unwrap();
        let mut sender = link.sender();
        let waker = Unpark::here();
        assert_eq!(poll(&mut sender, &waker), Poll::Ready(true));
        assert_eq!(waker.woken(), 0);
    });
}

#[test]
fn a_future_waits_for_paced_packets() {
    in_time(|| {
        let device = Null::default();
        let taken = device.stats();
        let builder = Link::devices([Box::new(device) as Box<_>]);
        let link = builder.qdisc("tbf rate 8mbit burst 1100 limit 1mb").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for round in 1..=3 {
            for _ in 0..20 {
                sender.try_send(&flow, &[0; 1_000]).unwrap();
            }
            assert!(block_on(sender.flushed()));
            assert_eq!((taken.packets.get(), sender.in_flight()), (round * 20, 0));
        }
        balanced(&link.stats());
    });
}

/// The task is woken once, when the last packet has come home, and not for the others.
#[test]
fn the_last_packet_wakes_the_task() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for _ in 0..5 {
            sender.try_send(&flow, b"x").unwrap();
        }
        let waker = Unpark::here();
        assert_eq!(poll_on(&mut sender, &waker), Poll::Pending);
        let before = waker.woken();
        for _ in 1..5 {
            gate.let_go(1);
            assert_eq!(waker.woken(), before, "some are left");
        }
        gate.open();
        until("the task is woken", || waker.woken() > before);
        assert_eq!(poll(&mut sender, &waker), Poll::Ready(true));
        assert_eq!(waker.woken(), before + 1);
    });
}

#[test]
fn a_dropped_future_lets_its_task_go() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.try_send(&flow, b"x").unwrap();
        let unpark = Unpark::here();
        let waker = Waker::from(unpark.clone());
        while pin!(sender.flushed()).poll(&mut Context::from_waker(&waker)).is_pending() {
            if Arc::strong_count(&unpark) == 2 {
                break;
            }
        }
        drop(waker);
        assert_eq!(Arc::strong_count(&unpark), 1);
        let before = unpark.woken();
        gate.open();
        assert!(link.flush(LONG) && sender.flush(LONG));
        assert_eq!(unpark.woken(), before);
        assert_eq!(poll(&mut sender, &unpark), Poll::Ready(true));
    });
}

/// Packets that another sender made, and this one submitted, come home to the other. This sender's
/// task waits for them all the same, with threads and without.
#[test]
fn a_future_waits_for_packets_of_other_senders() {
    in_time(|| {
        for manual in [false, true] {
            let gate = Gate::new(false);
            let builder = gated(&gate, "pfifo");
            let link = if manual { builder.manual() } else { builder }.build().unwrap();
            let (mut makes, mut submits) = (link.sender(), link.sender());
            let flow = submits.flow(None);
            for _ in 0..3 {
                let packet = makes.packet(&flow, b"x").unwrap();
                submits.submit(&flow, packet).unwrap();
            }
            let waker = Unpark::here();
            assert_eq!(poll_on(&mut submits, &waker), Poll::Pending);
            assert_eq!(submits.in_flight(), 0, "they are not its own");
            gate.open();
            let work = || manual.then(|| link.run());
            until("they leave", || {
                work();
                link.stats().held == 0
            });
            let mut woken = 0;
            until("the task finds them gone", || {
                work();
                let again = waker.woken() > woken;
                woken = waker.woken();
                again && poll(&mut submits, &waker) == Poll::Ready(true)
            });
        }
    });
}

/// The future ends a cork of the sender.
#[test]
fn a_future_pulls_the_cork() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.cork();
        for _ in 0..8 {
            sender.try_send(&flow, b"x").unwrap();
        }
        assert!(block_on(sender.flushed()));
        assert_eq!(gate.taken().len(), 8);
    });
}

/// A cork holds back more packets than the port's intake takes at once.
#[test]
fn a_cork_that_does_not_fit_leaves_in_parts() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").burst(4).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.cork();
        for _ in 0..20 {
            sender.try_send(&flow, b"x").unwrap();
        }
        gate.open();
        assert!(block_on(sender.flushed()));
        assert_eq!(gate.taken().len(), 20);
        balanced(&link.stats());
    });
}

/// A close that purges the packets wakes the task: they have come home.
#[test]
fn a_close_ends_the_wait() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.try_send(&flow, b"x").unwrap();
        let waker = Unpark::here();
        assert_eq!(poll_on(&mut sender, &waker), Poll::Pending);
        let before = waker.woken();
        assert_eq!(link.close(Duration::ZERO).purged, 1);
        until("the task is woken", || waker.woken() > before);
        assert_eq!(poll(&mut sender, &waker), Poll::Ready(true));
    });
}

/// A receiver holds packets of a closed link. The task does not wait for it.
#[test]
fn a_close_ends_the_wait_for_a_receiver() {
    in_time(|| {
        let (device, mut receiver) = loopback(100);
        let link = Link::devices([Box::new(device) as Box<_>]).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        (0..8).for_each(|_| sender.send(&flow, b"x").unwrap());
        let waker = Unpark::here();
        assert_eq!(poll_on(&mut sender, &waker), Poll::Pending);
        let before = waker.woken();
        assert!(link.close(LONG).flushed);
        until("the task is woken", || waker.woken() > before);
        assert_eq!(poll(&mut sender, &waker), Poll::Ready(false));
        assert_eq!(receiver.recv_all().len(), 8);
        assert_eq!(poll(&mut sender, &waker), Poll::Ready(true));
    });
}

/// A waker that panics.
#[derive(Default)]
pub(crate) struct Bad(pub(crate) AtomicBool);

impl Wake for Bad {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
        panic!("as asked for");
    }
}

/// A task whose waker panics keeps neither the port nor the tasks of other senders waiting.
#[test]
fn a_waker_that_panics_harms_nobody() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").build().unwrap();
        let (mut first, mut second) = (link.sender(), link.sender());
        let flow = first.flow(None);
        for _ in 0..2 {
            first.try_send(&flow, b"x").unwrap();
            second.try_send(&flow, b"x").unwrap();
        }
        let (bad, good) = (Arc::new(Bad::default()), Unpark::here());
        // The first poll may have served the port, and then asks to be polled again.
        assert_eq!(poll_on(&mut first, &good), Poll::Pending);
        let waker = Waker::from(bad.clone());
        assert!(first.poll_flush(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(poll_on(&mut second, &good), Poll::Pending);
        let before = good.woken();
        gate.open();
        until("both are woken", || bad.0.load(Ordering::SeqCst) && good.woken() > before);
        assert_eq!(poll(&mut second, &good), Poll::Ready(true));
        assert_eq!(poll(&mut first, &good), Poll::Ready(true));
        balanced(&link.stats());
    });
}
