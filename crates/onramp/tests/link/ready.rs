//! Waiting for room as a future, without any runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use onramp::{Flow, Link, Sender, TrySendError};

use crate::common::{Gate, LONG, SHORT, balanced, credits, gated, in_time, until};

/// Wakes a thread, and counts.
struct Unpark(Thread, AtomicU32);

impl Unpark {
    fn here() -> Arc<Self> {
        Arc::new(Self(thread::current(), AtomicU32::new(0)))
    }

    fn woken(&self) -> u32 {
        self.1.load(Ordering::SeqCst)
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// The smallest executor.
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

/// A shut link whose sender has no credit left.
fn out_of_credit() -> (Arc<Gate>, Link, Sender, Flow) {
    let gate = Gate::new(false);
    let link = gated(&gate, "pfifo").credits(credits(4)).build().unwrap();
    let mut sender = link.sender();
    let flow = sender.flow(None);
    while sender.try_send(&flow, b"x").is_ok() {}
    (gate, link, sender, flow)
}

/// Polls once with a waker that counts.
fn poll(sender: &mut Sender, flow: &Flow, waker: &Arc<Unpark>) -> Poll<()> {
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
                        // Room in the intake may have gone to another since.
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

/// The task moved to another waker: that one is woken.
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

/// A future that is dropped lets go of its task, and does not wake it any more.
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

/// A call that nothing is kept of leaves the sender usable by any means.
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
        // Armed again, and the sender goes before its packets come home.
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

/// Half of the packets out wake a future, not the first of them.
#[test]
fn wake_ups_come_in_batches() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "fq").credits(credits(64)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        let waker = Unpark::here();
        let mut polls = 0;
        for _ in 0..64 * 20 {
            while sender.try_send(&flow, b"x").is_err() {
                polls += 1;
                if poll(&mut sender, &flow, &waker).is_pending() {
                    thread::park_timeout(Duration::from_millis(1));
                }
            }
        }
        assert!(sender.flush(LONG));
        assert!(waker.woken() <= polls, "one wake-up a poll at most");
        assert_eq!(link.stats().sent, 64 * 20);
    });
}

/// What waits for room may sit under the future's own cork.
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
