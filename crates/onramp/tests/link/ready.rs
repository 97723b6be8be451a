//! Waiting for room as a future, without any runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use onramp::{Flow, Link, Sender, TrySendError};

use crate::common::{Gate, LONG, SHORT, balanced, credits, gated, in_time, until};

/// Wakes a thread, and counts.
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

/// A shut link whose sender has no credit left: four packets are below.
fn out_of_credit() -> (Arc<Gate>, Link, Sender, Flow) {
    all_below(4)
}

fn all_below(packets: u32) -> (Arc<Gate>, Link, Sender, Flow) {
    let gate = Gate::new(false);
    let link = gated(&gate, "pfifo").credits(credits(packets)).build().unwrap();
    let mut sender = link.sender();
    let flow = sender.flow(None);
    while sender.try_send(&flow, b"x").is_ok() {}
    (gate, link, sender, flow)
}

/// Polls once with a waker that counts.
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

/// The packet that makes half of those below be home wakes a task, once.
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
            // The runner is not asked again after the last packet.
            gate.open_for(1);
            until("the task is woken", || waker.woken() == 1);
            if below > half + 1 {
                gate.let_go((below - half - 1).into());
            }
            gate.open();
            // All packets are home, not only sent.
            assert!(link.flush(LONG) && sender.flush(LONG));
            assert_eq!(waker.woken(), 1, "of {below}");
            assert_eq!(poll(&mut sender, &flow, &waker), Poll::Ready(()));
            assert_eq!((waker.woken(), sender.in_flight()), (1, 0));
            assert_eq!(link.stats().waits, 2);
        }
    });
}

/// What came home and was looked at is not below any more: the next half is of the rest.
#[test]
fn each_wait_is_for_half_of_the_rest() {
    in_time(|| {
        let (gate, _link, mut sender, flow) = all_below(16);
        // A packet too large for what is left of the bytes: only an empty sender has room.
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
