//! The runner of a link without threads: the program makes the runner's rounds, when a timer's
//! descriptor says that it is time.
//!
//! A thread that asks for a visit sets the runner's alarm and rings: it sets the timer for now. A
//! round ends by setting the timer for the next visit, and loses no ring that comes meanwhile
//! ([`Alarm::rest_by`](onramp_queue::Alarm::rest_by)).

use std::os::fd::{AsFd, BorrowedFd};

use onramp_core::{Clock, Device, Instant};
use onramp_dev::Timer;
use onramp_queue::{NEVER, Turn};

use super::{Seat, Serves, round};
use crate::sync::atomic::Ordering;

/// What the program waits for in place of the runner's thread.
#[derive(Debug)]
pub(super) struct ByHand {
    timer: Timer,
    turn: Turn,
}

impl ByHand {
    pub(super) fn new(timer: Timer) -> Self {
        Self { timer, turn: Turn::default() }
    }

    /// Makes the timer's descriptor readable now.
    pub(super) fn ring(&self) {
        self.set(0);
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    fn set(&self, at: u64) {
        let set = self.timer.set((at != NEVER).then_some(at));
        debug_assert!(set.is_ok(), "the descriptor is a timer's: {set:?}");
    }
}

/// Makes one round as the only runner of a link without threads. Returns the time at which the next
/// round is due. Returns `None` if no round is due before somebody asks for one, if another thread
/// is making one, or if the link has threads or has been closed.
pub(crate) fn turn<S: Serves<D>, D: Device>(shared: &S, clock: &impl Clock) -> Option<Instant> {
    let rig = shared.rig();
    let (by_hand, runner) = (rig.threads.program()?, &rig.runners[0]);
    let turn = by_hand.turn.take()?;
    runner.alarm.rise();
    // Acquire: pairs with the release in `Runner::stop`.
    if runner.stop.load(Ordering::Acquire) {
        // No round is due any more, so the descriptor is no longer readable.
        runner.alarm.rest_by(NEVER, |at| by_hand.set(at));
        return None;
    }
    // Acquire: makes visible the event that `announce` published; pairs with the release there.
    if runner.rings.swap(false, Ordering::Acquire) {
        shared.ring();
    }
    let (visits, next) = round(shared, Seat { me: 0, number: 0 }, clock)?;
    runner.stats.wakeups.add(1);
    runner.stats.visits.add(u64::from(visits));
    runner.stats.idle.add(u64::from(visits == 0));
    let next = runner.alarm.rest_by(next, |at| by_hand.set(at));
    drop(turn);
    // The timer may have become due, or a thread may have rung, and the program have come, while
    // this thread still had the turn. The program then found nothing to do, so ring again.
    let now = clock.now();
    if runner.alarm.at() < next || next <= now.0 {
        by_hand.ring();
        return Some(now);
    }
    (next != NEVER).then_some(Instant(next))
}
