//! A post: a role (for example that of the runner) that one thread, the holder, has at a time, and
//! that another thread can take over while the holder is blocked.
//!
//! A runner that visits a port calls a device, which may block. Before such a call, the runner
//! calls [`Post::go_out`]. If the runner stays out (in that call) for too long, another thread
//! takes the role over ([`Post::relieve`]). When the first thread returns from the device,
//! [`Post::come_back`] tells it that it no longer has the role.
//!
//! ```text
//! word                 meaning
//! holder, 0            the holder works, or sleeps
//! holder, since        the holder has been out since the time `since`, and may be relieved
//! ```
//!
//! ```text
//!                      |  go_out, come_back  |  relieve
//! go_out, come_back    |  the holder alone   |    -      -: may run at the same time
//! relieve              |         -           |    -
//! ```
//!
//! A holder may sleep by an [`Alarm`](crate::Alarm). A thread that wants to wake the holder first
//! sets the alarm and then reads the number of the [`holder`](Post::holder). A new holder first
//! takes the role and then calls [`rise`](crate::Alarm::rise). So the new holder either finds the
//! work for which the alarm was set, or is itself woken.

use crate::mutant;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU64, Padded};

const HOLDER_SHIFT: u32 = 48;
const SINCE: u64 = (1 << HOLDER_SHIFT) - 1;
/// Times are stored in units of 2^`UNIT_SHIFT` nanoseconds; 48 bits of this unit suffice for nine
/// years.
const UNIT_SHIFT: u32 = 10;

/// A role that one thread (the holder) has at a time, and the number of that thread.
#[derive(Debug)]
pub struct Post(Padded<AtomicU64>);

/// The state of a role whose holder was seen to be out (in a call that may block).
#[derive(Clone, Copy, Debug)]
pub struct Out(u64);

impl Out {
    /// Returns the time at which the holder went out (began a call that may block), in nanoseconds,
    /// with a resolution of about one microsecond.
    #[must_use]
    pub const fn since(self) -> u64 {
        (self.0 & SINCE) << UNIT_SHIFT
    }
}

impl Post {
    /// Makes a role whose holder is the thread with the number `holder`.
    #[must_use]
    pub fn new(holder: u16) -> Self {
        Self(Padded(AtomicU64::new(u64::from(holder) << HOLDER_SHIFT)))
    }

    const fn out(holder: u16, now: u64) -> u64 {
        let since = (now >> UNIT_SHIFT) & SINCE;
        (holder as u64) << HOLDER_SHIFT | if since == 0 { 1 } else { since }
    }

    /// Returns the number of the thread that holds the role. The number may be stale as soon as it
    /// is read; the module documentation explains why this is harmless.
    #[must_use]
    #[inline]
    pub fn holder(&self) -> u16 {
        // Relaxed: the alarm, which the caller sets before this load, orders the load; see the
        // module documentation.
        (self.0.0.load(Relaxed) >> HOLDER_SHIFT) as u16
    }

    /// Notes that the holder `me` goes out: at `now` (nanoseconds), it starts a call that may
    /// block.
    #[inline]
    pub fn go_out(&self, me: u16, now: u64) {
        // Release: publishes what this thread did while it was the runner of these ports; pairs
        // with the acquire in `relieve`, by which another thread becomes their runner.
        self.0.0.store(Self::out(me, now), mutant::or("post-out-release", Release, Relaxed));
    }

    /// Notes that the holder `me`, which went out at `then` (nanoseconds), is back from its call.
    /// Returns false if another thread has taken over the role.
    #[must_use]
    #[inline]
    pub fn come_back(&self, me: u16, then: u64) -> bool {
        let (out, back) = (Self::out(me, then), u64::from(me) << HOLDER_SHIFT);
        if mutant::is("post-back-unchecked") {
            self.0.0.store(back, Relaxed); // Relaxed: the store need not order memory.
            return true;
        }
        // Relaxed: the exchange need not order other memory. If it fails, another thread has the
        // role.
        self.0.0.compare_exchange(out, back, Relaxed, Relaxed).is_ok()
    }

    /// Returns the state of the role if its holder is out (in a call that may block), or `None` if
    /// it is not.
    #[must_use]
    pub fn is_out(&self) -> Option<Out> {
        // Relaxed: the loaded value is a guess, which `relieve` verifies.
        let word = self.0.0.load(Relaxed);
        (word & SINCE != 0).then_some(Out(word))
    }

    /// Gives the role to the thread `by`, if the holder that was seen in `out` is still out.
    /// Returns false if that holder has come back, or has lost the role, since then.
    #[must_use]
    pub fn relieve(&self, out: Out, by: u16) -> bool {
        let taken = u64::from(by) << HOLDER_SHIFT;
        // Acquire: makes what the previous holder did while it had the role visible; pairs with the
        // release in `go_out`. (A thread that later relieves the new holder pairs with that
        // holder's own `go_out`.)
        let order = mutant::or("post-relieve-acquire", Acquire, Relaxed);
        self.0.0.compare_exchange(out.0, taken, order, Relaxed).is_ok()
    }

    /// Hands the role to the thread `to`. Only the holder calls this, and it must not call `go_out`
    /// afterwards. What the holder did while it had the role becomes visible to the thread `to`
    /// when the holder wakes that thread.
    pub fn hand_over(&self, to: u16) {
        // Relaxed: the new holder calls `rise` after it has seen this store. So a thread that sees
        // that the new holder called `rise` also sees this store or a later one.
        self.0.0.store(u64::from(to) << HOLDER_SHIFT, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_comes_back_in_time_keeps_the_role() {
        let post = Post::new(3);
        assert_eq!((post.holder(), post.is_out().is_none()), (3, true));
        post.go_out(3, 5_000_000);
        let out = post.is_out().expect("it is out");
        assert_eq!((out.since(), post.holder()), (5_000_000 / 1_024 * 1_024, 3));
        assert!(post.come_back(3, 5_000_000));
        assert!(!post.relieve(out, 9), "it is back");
        assert_eq!((post.holder(), post.is_out().is_none()), (3, true));
    }

    #[test]
    fn a_holder_that_was_relieved_learns_of_it() {
        let post = Post::new(0);
        post.go_out(0, 0);
        let out = post.is_out().expect("out since the beginning of time is out, too");
        assert!(post.relieve(out, u16::MAX));
        assert!(!post.relieve(out, 7), "once");
        assert!(!post.come_back(0, 0));
        assert_eq!((post.holder(), post.is_out().is_none()), (u16::MAX, true));
        post.hand_over(7);
        assert_eq!(post.holder(), 7);
    }

    #[test]
    fn years_do_not_touch_the_holder() {
        let post = Post::new(0x1234);
        let now = 100 * 365 * 86_400 * 1_000_000_000;
        post.go_out(0x1234, now);
        assert_eq!(post.holder(), 0x1234);
        assert!(post.come_back(0x1234, now));
    }
}
