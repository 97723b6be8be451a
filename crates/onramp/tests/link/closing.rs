//! Closing a link as a future.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use onramp::dev::run_in_child;
use onramp::{CloseReport, Closing, Flow, Link, LinkBuilder, Mode, Sender, TrySendError};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::blocked::block;
use crate::common::{Gate, LONG, SHORT, balanced, credits, gated, in_time, until};
use crate::flushed::Bad;
use crate::ready::{Unpark, block_on};
use crate::trap::Trap;

const ALL_SENT: CloseReport = CloseReport { flushed: true, purged: 0, blocked: 0 };

fn poll(closing: &mut Closing, waker: &Arc<Unpark>) -> Poll<CloseReport> {
    Pin::new(closing).poll(&mut Context::from_waker(&Waker::from(waker.clone())))
}

/// Makes a link whose device is shut, with `packets` packets in it.
fn holding(
    builder: impl Fn(LinkBuilder) -> LinkBuilder,
    packets: u32,
) -> (Arc<Gate>, Link, Sender) {
    let gate = Gate::new(false);
    let link = builder(gated(&gate, "pfifo").credits(credits(1_000))).build().unwrap();
    let mut sender = link.sender();
    let flow = sender.flow(None);
    (0..packets).for_each(|_| sender.try_send(&flow, b"x").unwrap());
    (gate, link, sender)
}

fn refuses(sender: &mut Sender) -> bool {
    let flow: Flow = sender.flow(None);
    sender.packet(&flow, b"x").err() == Some(TrySendError::Closed)
}

#[test]
fn a_future_in_time_loses_nothing() {
    in_time(|| {
        for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
            let (gate, link, mut sender) = holding(|builder| builder.mode(mode), 30);
            thread::scope(|scope| {
                let closing = link.closing(LONG);
                let closed = scope.spawn(|| block_on(closing));
                until("it refuses", || refuses(&mut sender));
                thread::sleep(SHORT);
                assert!(!closed.is_finished());
                gate.open();
                assert_eq!(closed.join().unwrap(), ALL_SENT);
            });
            assert_eq!(gate.taken().len(), 30);
            assert_eq!(block_on(link.closing(LONG)), ALL_SENT, "it is closed already");
            assert_eq!(link.close(LONG), ALL_SENT);
            balanced(&link.stats());
        }
    });
}

#[test]
fn a_future_purges_the_rest_and_says_so() {
    in_time(|| {
        for timeout in [Duration::ZERO, SHORT] {
            let (gate, link, mut sender) = holding(|builder| builder, 700);
            let report = block_on(link.closing(timeout));
            assert_eq!((report.flushed, report.purged, report.blocked), (false, 700, 0));
            assert!(gate.taken().is_empty() && refuses(&mut sender));
            assert!(sender.flush(LONG), "they are home");
            balanced(&link.stats());
        }
    });
}

/// A future does nothing before it is polled, and a future that is dropped unpolled leaves the link
/// open.
#[test]
fn an_unpolled_future_does_nothing() {
    in_time(|| {
        let (_gate, link, mut sender) = holding(|builder| builder, 1);
        let closing = link.closing(Duration::ZERO);
        assert!(!refuses(&mut sender));
        drop(closing);
        assert!(!refuses(&mut sender));
    });
}

/// A future that is dropped keeps neither its task nor anything else. The link goes on sending what
/// it holds, and can still be closed.
#[test]
fn a_dropped_future_lets_its_task_go() {
    in_time(|| {
        let (gate, link, mut sender) = holding(|builder| builder, 9);
        let waker = Unpark::here();
        let mut closing = link.closing(LONG);
        assert!(poll(&mut closing, &waker).is_pending());
        assert_eq!(Arc::strong_count(&waker), 2);
        drop(closing);
        let woken = waker.woken();
        assert_eq!(Arc::strong_count(&waker), 1, "nobody else has it");
        assert!(refuses(&mut sender));
        gate.open();
        until("they leave", || gate.taken().len() == 9);
        assert!(sender.flush(LONG));
        assert_eq!(waker.woken(), woken);
        assert_eq!(link.close(LONG), ALL_SENT);
    });
}

/// Without threads, only the program's rounds wake the task, and they do.
#[test]
fn the_program_serves_the_future() {
    in_time(|| {
        let (gate, link, mut sender) = holding(LinkBuilder::manual, 20);
        let waker = Unpark::here();
        let mut closing = link.closing(LONG);
        assert!(poll(&mut closing, &waker).is_pending());
        let mut polls = 0;
        let mut woken = 0;
        until("it is closed", || {
            link.run();
            if polls == 3 {
                gate.open();
            }
            if waker.woken() == woken {
                return false;
            }
            woken = waker.woken();
            polls += 1;
            match poll(&mut closing, &waker) {
                Poll::Ready(report) => {
                    assert_eq!(report, ALL_SENT);
                    true
                }
                Poll::Pending => false,
            }
        });
        assert!(polls > 3, "the device was shut until then");
        assert_eq!((gate.taken().len(), link.run()), (20, None));
        assert!(sender.flush(LONG) && refuses(&mut sender));
    });
}

/// Another thread closes the link, with and without threads of its own, while the future waits.
#[test]
fn another_close_wakes_the_future() {
    in_time(|| {
        for manual in [false, true] {
            let make = |builder: LinkBuilder| if manual { builder.manual() } else { builder };
            let (_gate, link, _sender) = holding(make, 20);
            let waker = Unpark::here();
            let mut closing = link.closing(LONG);
            assert!(poll(&mut closing, &waker).is_pending());
            let purged = CloseReport { flushed: false, purged: 20, blocked: 0 };
            assert_eq!(link.close(Duration::ZERO), purged);
            assert!(waker.woken() > 0, "when the other close returns");
            assert_eq!(poll(&mut closing, &waker), Poll::Ready(purged));
        }
    });
}

/// Many futures and calls close one link at the same time.
#[test]
fn many_may_close_at_once() {
    in_time(|| {
        for round in 0..20 {
            let (_gate, link, mut sender) = holding(|builder| builder, 20);
            let purged = CloseReport { flushed: false, purged: 20, blocked: 0 };
            thread::scope(|scope| {
                let futures = [(); 3].map(|()| scope.spawn(|| block_on(link.closing(LONG))));
                let last = scope.spawn(|| block_on(link.closing(SHORT)));
                let call =
                    scope.spawn(|| if round % 2 == 0 { Some(link.close(SHORT)) } else { None });
                for report in futures.map(|future| future.join().unwrap()) {
                    assert_eq!(report, purged, "round {round}");
                }
                assert_eq!(last.join().unwrap(), purged);
                assert!(call.join().unwrap().is_none_or(|report| report == purged));
            });
            assert!(sender.flush(LONG));
            balanced(&link.stats());
        }
    });
}

/// The device of the only port blocks the only runner, which would wake the task. The future ends
/// all the same, and the packets are purged when the device returns.
#[test]
fn a_blocked_runner_does_not_hold_up_the_future() {
    in_time(|| {
        let trap = Trap::for_runners();
        let link = Link::devices([trap.device()]).qdisc("fq").runners(1).build().unwrap();
        block(&link, 0, &trap);
        for _ in 0..2 {
            let report = block_on(link.closing(SHORT));
            assert_eq!((report.flushed, report.blocked), (false, 1));
        }
        assert_eq!(trap.inside(), 1, "it is blocked still");
        trap.open();
        until("the port is empty", || link.stats().held == 0);
        balanced(&link.stats());
    });
}

/// A task whose waker panics keeps no other task waiting.
#[test]
fn a_waker_that_panics_harms_nobody() {
    in_time(|| {
        let (gate, link, _sender) = holding(|builder| builder, 20);
        let bad = Arc::new(Bad::default());
        let mut first = link.closing(LONG);
        let waker = Waker::from(bad.clone());
        assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_pending());
        thread::scope(|scope| {
            let second = scope.spawn(|| block_on(link.closing(LONG)));
            until("it panics", || bad.0.load(Ordering::SeqCst));
            gate.open();
            assert_eq!(second.join().unwrap(), ALL_SENT);
        });
        assert_eq!(poll(&mut first, &Unpark::here()), Poll::Ready(ALL_SENT));
    });
}

/// The future is the last handle of its link.
#[test]
fn a_future_keeps_its_link() {
    in_time(|| {
        let (gate, link, sender) = holding(|builder| builder, 20);
        let closing = link.closing(LONG);
        drop((link, sender));
        gate.open();
        assert_eq!(block_on(closing), ALL_SENT);
        assert_eq!(gate.taken().len(), 20);
        assert_eq!(Arc::strong_count(&gate), 1, "the device went with the future");
    });
}

/// A process forks while a future waits. In the child, the future is ready at once, and dropping it
/// waits for nothing; in the parent, it goes on.
#[test]
fn a_child_of_fork_has_a_future_that_is_ready() {
    in_time(|| {
        let (gate, link, _sender) = holding(|builder| builder, 20);
        let waker = Unpark::here();
        let mut closing = Some(link.closing(LONG));
        assert!(poll(closing.as_mut().unwrap(), &waker).is_pending());
        let child = run_in_child(|| {
            let mut mine = closing.take().expect("the child has a copy");
            let polled = Pin::new(&mut mine).poll(&mut Context::from_waker(Waker::noop()));
            drop(mine);
            let of_copy = CloseReport { flushed: false, purged: 0, blocked: 0 };
            i32::from(polled != Poll::Ready(of_copy))
        });
        let pid = Pid::from_raw(child.expect("there can be a child")).expect("it has a number");
        let mut status = None;
        until("the child ends", || {
            status = waitpid(Some(pid), WaitOptions::NOHANG).expect("it is a child");
            status.is_some()
        });
        assert_eq!(status.and_then(|(_, status)| status.exit_status()), Some(0));
        gate.open();
        assert_eq!(block_on(closing.expect("the parent has it still")), ALL_SENT);
        assert_eq!(gate.taken().len(), 20);
    });
}
