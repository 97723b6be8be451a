//! Waiting for room as a future, without an asynchronous runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use onramp::{Flow, Link, Sender, TrySendError};

use crate::common::{Gate, LONG, SHORT, balanced, credits, gated, in_time, until};

/// A waker that unparks a thread and counts how often it was called.
pub(crate) struct Unpark(Thread, AtomicU32);

impl Unpark {
    pub(crate) fn here() -> Arc<Self> {
        Arc::new(Self(thread::current(), AtomicU32::new(0)))
    }

    pub(crate) fn woken(&self) -> u32 {
        self.1.load(Ordering::SeqCst)
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// Polls a future until it is ready: a minimal executor.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Unpark::here());
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Makes a link whose device is shut (takes nothing), and a sender with four packets in flight,
/// which has no credit left.
fn out_of_credit() -> (Arc<Gate>, Link, Sender, Flow) {
    all_below(4)
}

fn all_below(packets: u32) -> (Arc<Gate>, Link, Sender, Flow) {
    let gate = Gate::new(false);
    let link = gated(&gate, "pfifo").credits(credits(packets)).patience(2 * LONG).build().unwrap();
    let mut sender = link.sender();
    let flow = sender.flow(None);
    while sender.try_send(&flow, b"x").is_ok() {}
    (gate, link, sender, flow)
}

/// Polls a sender for room once, with a waker that counts how often it is called.
pub(crate) fn poll(sender: &mut Sender, flow: &Flow, waker: &Arc<Unpark>) -> Poll<()> {
    let waker = Waker::from(waker.clone());
    sender.poll_ready(&mut Context::from_waker(&waker), flow, 1)
}

#[test]
fn a_future_resolves_when_there_is_room() {
    in_time(|| {
        let (gate, link, mut sender, flow) = out_of_credit();
        thread::scope(|scope| {
            let task = scope.spawn(move || {
                for _ in 0..100 {
                    while sender.try_send(&flow, b"x") == Err(TrySendError::Full) {
                        block_on(sender.ready(&flow, 1));
                    }
                }
                assert!(sender.flush(LONG));
            });
            thread::sleep(SHORT);
            assert!(!task.is_finished());
            gate.open();
            task.join().unwrap();
        });
        assert_eq!(link.stats().sent, 104);
        balanced(&link.stats());
    });
}

#[test]
fn a_future_with_room_is_ready_at_once() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        let waker = Unpark::here();
        assert_eq!(poll(&mut sender, &flow, &waker), Poll::Ready(()));
        sender.try_send(&flow, b"x").unwrap();
        assert_eq!(poll(&mut sender, &flow, &waker), Poll::Ready(()));
        assert_eq!(waker.woken(), 0);
    });
}

#[test]
fn two_futures_on_two_threads() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "fq").credits(credits(2)).build().unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                let mut sender = link.sender();
                scope.spawn(move || {
                    let flow = sender.flow(None);
                    for _ in 0..2_000 {
                        block_on(sender.ready(&flow, 1));
                        // The send may fail, because another sender may have taken the room in the
                        // intake since.
                        let _ = sender.try_send(&flow, b"x");
                    }
                    assert!(sender.flush(LONG));
                });
            }
        });
        assert!(link.stats().sent > 0);
        balanced(&link.stats());
    });
}

/// If a task polls a second time with another waker, only the second waker is called.
#[test]
fn the_last_waker_counts() {
    in_time(|| {
        let (gate, _link, mut sender, flow) = out_of_credit();
        let (first, second) = (Unpark::here(), Unpark::here());
        assert_eq!(poll(&mut sender, &flow, &first), Poll::Pending);
        assert_eq!(poll(&mut sender, &flow, &second), Poll::Pending);
        gate.open();
        until("the second is woken", || second.woken() > 0);
        assert_eq!((first.woken(), second.woken()), (0, 1));
        assert_eq!(poll(&mut sender, &flow, &second), Poll::Ready(()));
    });
}

/// When a future is dropped, it no longer keeps its task alive and no longer wakes it.
#[test]
fn a_dropped_future_lets_its_task_go() {
    in_time(|| {
        let (gate, link, mut sender, flow) = out_of_credit();
        let unpark = Unpark::here();
        let waker = Waker::from(unpark.clone());
        let polled = pin!(sender.ready(&flow, 1)).poll(&mut Context::from_waker(&waker));
        assert_eq!(polled, Poll::Pending);
        drop(waker);
        assert_eq!(Arc::strong_count(&unpark), 1);
        gate.open();
        assert!(link.flush(LONG));
        assert_eq!(unpark.woken(), 0);
        drop(sender);
    });
}

/// A caller may poll for room and then not wait for the result: the sender can still be used in any
/// way.
#[test]
fn a_dropped_future_leaves_the_sender_usable() {
    in_time(|| {
        let (gate, link, mut sender, flow) = out_of_credit();
        let waker = Unpark::here();
        assert_eq!(poll(&mut sender, &flow, &waker), Poll::Pending);
        assert!(!sender.wait_room_timeout(&flow, 1, SHORT), "another way of waiting");
        assert_eq!(poll(&mut sender, &flow, &waker), Poll::Pending);
        assert!(!sender.flush(SHORT));
        assert_eq!(poll(&mut sender, &flow, &waker), Poll::Pending);
        gate.open();
        assert!(sender.flush(LONG));
        while sender.try_send(&flow, b"x").is_err() {
            sender.wait_room(&flow, 1);
        }
        assert!(sender.flush(LONG));
        assert_eq!(link.stats().sent, 5);
        // The sender is dropped after it has asked to be woken, before its packets come home: its
        // waker is not called.
        gate.shut();
        while sender.try_send(&flow, b"x").is_ok() {}
        let last = Unpark::here();
        assert_eq!(poll(&mut sender, &flow, &last), Poll::Pending);
        drop(sender);
        gate.open();
        assert!(link.flush(LONG));
        assert_eq!(last.woken(), 0, "nobody is there to be woken");
        balanced(&link.stats());
    });
}

/// A waiting task is woken exactly once: when half of the sender's packets in flight have come
/// home.
#[test]
fn half_of_what_is_below_wakes_a_task() {
    in_time(|| {
        for below in [1, 2, 3, 4, 5, 8, 64] {
            let (gate, link, mut sender, flow) = all_below(below);
            let waker = Unpark::here();
            assert_eq!(poll(&mut sender, &flow, &waker), Poll::Pending);
            assert_eq!(poll(&mut sender, &flow, &waker), Poll::Pending, "the same request");
            let half = (below / 2).max(1);
            for _ in 1..half {
                gate.let_go(1);
                assert_eq!(waker.woken(), 0, "of {below}, one after another");
            }
            // When the device has taken one more packet, half of the packets are home. (The helper
            // `let_go` would wait until the device is offered further packets, but there may be
            // none.)
            gate.open_for(1);
            until("the task is woken", || waker.woken() == 1);
            if below > half + 1 {
                gate.let_go((below - half - 1).into());
            }
            gate.open();
            // Wait until all packets are home, and not only sent.
            assert!(link.flush(LONG) && sender.flush(LONG));
            assert_eq!(waker.woken(), 1, "of {below}");
            assert_eq!(poll(&mut sender, &flow, &waker), Poll::Ready(()));
            assert_eq!((waker.woken(), sender.in_flight()), (1, 0));
            assert_eq!(link.stats().waits, 2);
        }
    });
}

/// After each wake-up, the task waits for half of the packets that are then still in flight.
#[test]
fn each_wait_is_for_half_of_the_rest() {
    in_time(|| {
        let (gate, _link, mut sender, flow) = all_below(16);
        // Ask for room for a payload that is larger than the number of bytes that the sender may
        // have in flight. Only a sender with no packet in flight has room for such a packet.
        let poll = |sender: &mut Sender, waker: &Arc<Unpark>| {
            let waker = Waker::from(waker.clone());
            sender.poll_ready(&mut Context::from_waker(&waker), &flow, 1 << 30)
        };
        for half in [8, 4, 2, 1] {
            let waker = Unpark::here();
            assert_eq!(poll(&mut sender, &waker), Poll::Pending);
            if half > 1 {
                gate.let_go(half - 1);
            }
            assert_eq!(waker.woken(), 0, "{half} are needed");
            gate.let_go(1);
            assert_eq!(waker.woken(), 1);
        }
        gate.open();
        assert!(sender.flush(LONG));
        assert_eq!(poll(&mut sender, &Unpark::here()), Poll::Ready(()));
    });
}

/// A future waits for credit while the sender's own cork holds back the packets that use the
/// credit. The future ends the cork.
#[test]
fn a_future_pulls_the_cork() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").credits(credits(8)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.cork();
        while sender.try_send(&flow, b"x").is_ok() {}
        block_on(sender.ready(&flow, 1));
        assert_eq!(sender.try_send(&flow, b"x"), Ok(()));
        assert!(sender.flush(LONG));
        assert_eq!(gate.taken().len(), 9);
    });
}
