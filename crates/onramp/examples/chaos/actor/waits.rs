//! The ways in which an actor (a thread that sends and waits at random) waits.

use std::future::{Future, poll_fn};
use std::iter;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use onramp::Sender;

use super::Actor;
use crate::counts::Met;
use crate::wakers::{Alarm, Mood};
use crate::watch::{Doing, Slot, moved, nanos, now};

impl Actor<'_> {
    pub(super) fn wait_room_timeout(&mut self) {
        let (flow, slot) = (self.flow(), self.slot.clone());
        let time = Duration::from_micros(self.rng.u64(0..100_000));
        slot.wait(Doing::WaitRoomTimeout, time, flow.port() as u64, || {
            self.sender().wait_room_timeout(&flow, 100, time)
        });
    }

    pub(super) fn wait_room(&mut self) {
        let (flow, slot, bound) = (self.flow(), self.slot.clone(), self.patience());
        slot.wait(Doing::WaitRoom, bound, flow.port() as u64, || {
            self.sender().wait_room(&flow, 100);
        });
    }

    /// Flushes the actor's sender, by a call or as a task. If the flush reports that no packet is
    /// left, checks that this is true.
    pub(super) fn flush(&mut self) {
        let long = self.rng.u32(0..6) == 0;
        let time = Duration::from_millis(self.rng.u64(0..if long { 400 } else { 10 }));
        let slot = self.slot.clone();
        let last = self.ledger.number.load(SeqCst);
        let flushed = if self.rng.bool() {
            let (task, sender) = (self.task(time), self.sender());
            let mut flushed = false;
            task.run(async { flushed = sender.flushed().await });
            flushed
        } else {
            slot.wait(Doing::Flush, time, 0, || self.sender().flush(time))
        };
        if flushed {
            self.world.weather.flushed(self.ledger.id, last);
            if !self.ledger.told_mine() {
                let what = format!(
                    "a flush returned too early: not all packets were reported: {:?}",
                    self.ledger
                );
                slot.watch().failed(&what);
            }
        }
    }

    /// Waits for room by polling a future of the sender, as an asynchronous task does. Two of three
    /// such tasks give up after a random time, and drop the future.
    pub(super) fn poll(&mut self) {
        let time = Duration::from_micros(self.rng.u64(0..150_000));
        let (flow, task) = (self.flow(), self.task(time));
        let (by_hand, waits) = (self.rng.bool(), self.rng.u32(0..3) == 0);
        let bound = self.patience();
        let sender = self.sender();
        let polls = |sender: &mut Sender, cx: &mut Context<'_>| sender.poll_ready(cx, &flow, 100);
        match (waits, by_hand) {
            (true, true) => task.wait(bound, poll_fn(|cx: &mut Context<'_>| polls(sender, cx))),
            (true, false) => task.wait(bound, sender.ready(&flow, 100)),
            (false, true) => task.run(poll_fn(|cx: &mut Context<'_>| polls(sender, cx))),
            (false, false) => task.run(sender.ready(&flow, 100)),
        }
    }

    /// Takes all packets that the sender may have and keeps them, so that none can come home, and
    /// then waits for room with a time limit.
    pub(super) fn hoard(&mut self) {
        let time = Duration::from_millis(250);
        let (flow, task, slot) = (self.flow(), self.task(time), self.slot.clone());
        let (by_poll, at_once) = (self.rng.bool(), self.at_once());
        let sender = self.sender();
        let packets: Vec<_> = iter::from_fn(|| sender.packet(&flow, &[]).ok()).collect();
        if by_poll {
            task.run(sender.ready(&flow, 100));
        } else {
            slot.wait(Doing::WaitRoomTimeout, time, 1, || {
                sender.wait_room_timeout(&flow, 100, time)
            });
        }
        slot.call(Doing::DropPacket, at_once, 1, || drop(packets));
    }

    /// Makes a task. `Task::run` gives up after `time`; `Task::wait` never gives up.
    pub(super) fn task(&mut self, time: Duration) -> Task {
        let mood = match self.rng.u32(0..6) {
            0 if self.world.plan.panics => Mood::Panics,
            1 => Mood::DropsLink,
            2 => Mood::ClonesLink,
            3..=4 if self.world.plan.controls => Mood::Controls,
            _ => Mood::Plain,
        };
        let (alarm, waker) = Alarm::new(mood, self.link());
        Task { alarm, waker, slot: self.slot.clone(), time, at_once: self.at_once() }
    }
}

/// An asynchronous task: polls a future in the actor's thread, as an executor does.
pub(super) struct Task {
    alarm: Arc<Alarm>,
    waker: Waker,
    slot: Arc<Slot>,
    /// The time after which the task gives up and drops its future.
    time: Duration,
    at_once: Duration,
}

impl Task {
    /// Polls the future whenever the task is woken, until the future is ready or the time of the
    /// task is over.
    pub(super) fn run(self, future: impl Future<Output = ()>) {
        let mut future = pin!(future);
        let end = now() + nanos(self.time);
        self.watched(|| {
            let woken = self.alarm.woken();
            let poll = || self.is_ready(future.as_mut());
            if self.slot.call(Doing::Poll, self.at_once, 0, poll) {
                return true;
            }
            let left = end.saturating_sub(now());
            self.rest(woken, Some(Duration::from_nanos(left)));
            if left == 0 {
                Met::Cancelled.note();
            }
            left == 0
        });
    }

    /// Polls the future whenever the task is woken, until the future is ready.
    fn wait(self, bound: Duration, future: impl Future<Output = ()>) {
        let mut future = pin!(future);
        self.slot.wait(Doing::Ready, bound, 0, || {
            self.watched(|| {
                let woken = self.alarm.woken();
                let ready = self.is_ready(future.as_mut());
                if !ready {
                    self.rest(woken, None);
                }
                ready
            });
        });
    }

    fn is_ready(&self, future: Pin<&mut impl Future<Output = ()>>) -> bool {
        future.poll(&mut Context::from_waker(&self.waker)).is_ready()
    }

    /// Sleeps until the task is woken, or until the time `most` has passed. Returns at once if the
    /// task has been woken since the caller read `woken`, the task's number of wake-ups.
    fn rest(&self, woken: u64, most: Option<Duration>) {
        while self.alarm.woken() == woken {
            match most {
                Some(most) => return thread::park_timeout(most),
                None => thread::park(),
            }
        }
        // Let other threads run, as an executor runs its other tasks first.
        thread::yield_now();
    }

    /// Calls `round` until it returns true. If that takes longer than 50 ms, reports to the
    /// watchdog how often the task woke itself meanwhile.
    fn watched(&self, mut round: impl FnMut() -> bool) {
        let (start, before) = (now(), moved());
        while !round() {}
        let wall = now() - start;
        if wall > 50_000_000 {
            self.slot.woke_itself(self.alarm.self_woken(), wall, moved() - before);
        }
    }
}
