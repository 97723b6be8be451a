//! A role that one thread has at a time, and that another takes over while that one is kept.
//!
//! A runner that visits a port calls a device, which may block. Before that it says so
//! ([`Post::go_out`]). Another thread that finds it out for too long takes the role
//! ([`Post::relieve`]), and the thread that was kept learns of it as it comes back
//! ([`Post::come_back`]): from then on the role is not its own.
//!
//! ```text
//! word                 meaning
//! holder, 0            the holder works, or sleeps
//! holder, since        the holder is out since then, and may be relieved
//! ```
//!
//! ```text
//!                      |  go_out, come_back  |  relieve
//! go_out, come_back    |  the holder alone   |    -      - needs no lock
//! relieve              |         -           |    -
//! ```
//!
//! Who wakes the holder of a role that sleeps by an [`Alarm`](crate::Alarm) asks for the
//! [`holder`](Post::holder) after it has set that. The new holder takes the role first and
//! [rises](crate::Alarm::rise) then: so it finds what the alarm was set for, or is woken itself.

use crate::mutant;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU64, Padded};

const HOLDER_SHIFT: u32 = 48;
const SINCE: u64 = (1 << HOLDER_SHIFT) - 1;
/// Time is kept in units of so many bits of nanoseconds: 48 bits of them last for nine years.
const UNIT_SHIFT: u32 = 10;

/// A role, and who has it.
#[derive(Debug)]
pub struct Post(Padded<AtomicU64>);

/// A holder that was seen out.
#[derive(Clone, Copy, Debug)]
pub struct Out(u64);

impl Out {
    /// Since when, nanoseconds, to about a microsecond.
    #[must_use]
    pub const fn since(self) -> u64 {
        (self.0 & SINCE) << UNIT_SHIFT
    }
}

impl Post {
    /// A role that `holder` has.
    #[must_use]
    pub fn new(holder: u16) -> Self {
        Self(Padded(AtomicU64::new(u64::from(holder) << HOLDER_SHIFT)))
    }

    const fn out(holder: u16, now: u64) -> u64 {
        let since = (now >> UNIT_SHIFT) & SINCE;
        (holder as u64) << HOLDER_SHIFT | if since == 0 { 1 } else { since }
    }

    /// Who has it. Stale as soon as it is read: see above.
    #[must_use]
    #[inline]
    pub fn holder(&self) -> u16 {
        // Relaxed: the alarm orders it, see above.
        (self.0.0.load(Relaxed) >> HOLDER_SHIFT) as u16
    }

    /// The holder `me` goes where it may be kept, at `now` nanoseconds.
    #[inline]
    pub fn go_out(&self, me: u16, now: u64) {
        // Release: what we did in the role; pairs with the acquire in `relieve`.
        self.0.0.store(Self::out(me, now), mutant::or("post-out-release", Release, Relaxed));
    }

    /// The holder `me`, out since `then`, is back. False: somebody else has the role now.
    #[must_use]
    #[inline]
    pub fn come_back(&self, me: u16, then: u64) -> bool {
        let (out, back) = (Self::out(me, then), u64::from(me) << HOLDER_SHIFT);
        if mutant::is("post-back-unchecked") {
            self.0.0.store(back, Relaxed); // Relaxed: as below.
            return true;
        }
        // Relaxed: nothing changes hands; who relieved us has the role by then.
        self.0.0.compare_exchange(out, back, Relaxed, Relaxed).is_ok()
    }

    /// The holder, if it is out.
    #[must_use]
    pub fn is_out(&self) -> Option<Out> {
        // Relaxed: a guess, which `relieve` checks.
        let word = self.0.0.load(Relaxed);
        (word & SINCE != 0).then_some(Out(word))
    }

    /// Gives `by` the role of the holder that was seen `out`, unless that has come back since.
    #[must_use]
    pub fn relieve(&self, out: Out, by: u16) -> bool {
        let taken = u64::from(by) << HOLDER_SHIFT;
        // Acquire: what the holder did in the role; pairs with the release in `go_out`. (A thread
        // that relieves the new holder pairs with that one's own `go_out`.)
        let order = mutant::or("post-relieve-acquire", Acquire, Relaxed);
        self.0.0.compare_exchange(out.0, taken, order, Relaxed).is_ok()
    }

    /// Hands the role to the thread `to`. The holder alone does that, and does not go out again.
    /// What it did in the role, it passes on as it wakes that thread.
    pub fn hand_over(&self, to: u16) {
        // Relaxed: the new holder rises after it has seen this. So a thread that finds the alarm
        // risen by it sees this too, or what comes later.
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
