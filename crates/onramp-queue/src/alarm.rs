//! When somebody who sleeps has to come by: asked for by many, answered by few.
//!
//! Each place to see to (a port) has a [`Due`]; each who goes round (a runner) has an [`Alarm`].
//!
//! ```text
//! who asks                                who goes round
//! ────────                                ──────────────
//! due.note(at)                            alarm.rise()
//! if that is earlier: marks.set(place),   for each marked place: marks.clear(place),
//!   alarm.set(at)                           if due.take(now), see to it; if due, mark it again
//! if that is earlier: wake the sleeper    sleep until alarm.rest(the earliest due left)
//! ```
//!
//! A note that the round missed meets an alarm that has risen or rests: then the asker wakes the
//! sleeper. (A wake-up of one who is awake must make its next sleep end at once, as
//! `Thread::unpark` does.) A note that came before the alarm rose is seen by the round.
//!
//! ```text
//!              | note, set | take | rise, rest
//! note, set    |     -     |  -   |     -        - needs no lock
//! take         |     -     |  -   |     -
//! rise, rest   |     -     |  -   | the sleeper alone
//! ```

use crate::mutant;
use crate::sync::AtomicU64;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// No time at all.
pub const NEVER: u64 = u64::MAX;

/// When a place wants to be seen to, nanoseconds.
#[derive(Debug)]
pub struct Due(AtomicU64);

impl Default for Due {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl Due {
    /// Notes that the place wants to be seen to at `at` or before. Gives the time noted so far.
    #[inline]
    pub fn note(&self, at: u64) -> u64 {
        // Release: what is to be seen to; pairs with the acquire in `take`. An exchange, also if an
        // earlier time is noted: a mere look could see one that was taken already.
        self.0.fetch_min(at, mutant::or("due-note-release", Release, Relaxed))
    }

    /// Takes the note, if its time has come. Take it before seeing to the place: what is asked for
    /// from then on is noted again.
    #[inline]
    pub fn take(&self, now: u64) -> bool {
        // Relaxed: a guess, which the exchange below checks.
        if self.0.load(Relaxed) > now {
            return false;
        }
        // Acquire: pairs with the release in `note`.
        self.0.swap(NEVER, mutant::or("due-take-acquire", Acquire, Relaxed)) != NEVER
    }

    /// The time noted.
    #[inline]
    pub fn at(&self) -> u64 {
        // Relaxed: who notes an earlier one after this wakes the sleeper.
        self.0.load(Relaxed)
    }
}

/// Which of many places have something noted, so that a round need not look at all of them.
#[derive(Debug)]
pub struct Marks(Box<[AtomicU64]>);

impl Marks {
    /// Marks for so many places, none of them set.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self((0..places.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Marks a place whose due time was noted. Not before: who clears the mark looks there next.
    #[inline]
    pub fn set(&self, place: usize) {
        // Release: the note; pairs with the acquire in `clear`.
        let order = mutant::or("mark-set-release", Release, Relaxed);
        self.0[place / 64].fetch_or(1 << (place % 64), order);
    }

    /// Takes the mark away. Before the look at the place: what is noted from then on is marked
    /// again.
    #[inline]
    pub fn clear(&self, place: usize) {
        // Acquire: pairs with the release in `set`.
        let order = mutant::or("mark-clear-acquire", Acquire, Relaxed);
        self.0[place / 64].fetch_and(!(1 << (place % 64)), order);
    }

    /// The places that are marked, in order. A place that is marked meanwhile may be among them.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len()).flat_map(|word| self.in_word(word))
    }

    /// The places that are marked among 64, and how far the look came: where to go on.
    ///
    /// So many are those from the multiple of 64 at or before `from`; round and round, `from` goes
    /// through all of them.
    pub fn some(&self, from: usize) -> (impl Iterator<Item = usize>, usize) {
        let word = from / 64 % self.0.len().max(1);
        let marked = (word < self.0.len()).then(|| self.in_word(word));
        let marked = marked.into_iter().flatten().filter(move |place| *place >= from);
        (marked, (word + 1) % self.0.len().max(1) * 64)
    }

    fn in_word(&self, word: usize) -> impl Iterator<Item = usize> {
        // Relaxed: a guess; who marks after it wakes the sleeper, and `clear` acquires.
        let mut bits = self.0[word].load(Relaxed);
        std::iter::from_fn(move || {
            let place = word * 64 + bits.trailing_zeros() as usize;
            let more = bits != 0;
            bits &= bits.wrapping_sub(1);
            more.then_some(place)
        })
    }
}

/// When a sleeper wakes by itself, nanoseconds.
#[derive(Debug)]
pub struct Alarm(AtomicU64);

impl Default for Alarm {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl Alarm {
    /// Sets it to `at`, if that is earlier. True: then the caller has to wake the sleeper.
    #[inline]
    pub fn set(&self, at: u64) -> bool {
        // Release: the note that came before; pairs with the acquire in `rise`. Acquire: who rose
        // last, where several take turns ([`Post`](crate::Post)): the caller wakes that one.
        let order = mutant::or("alarm-set-release", AcqRel, Acquire);
        let order = mutant::or("alarm-set-acquire", order, Release);
        at < self.0.fetch_min(at, order)
    }

    /// The sleeper has risen: from here on whoever sets the alarm wakes it.
    #[inline]
    pub fn rise(&self) {
        // Acquire: pairs with the release in `set`: whoever set it without waking us, because an
        // earlier time stood there, has noted before what we look for next.
        // Release: who we are; pairs with the acquire in `set`.
        let order = mutant::or("alarm-rise-acquire", AcqRel, Release);
        let order = mutant::or("alarm-rise-release", order, Acquire);
        if !mutant::is("alarm-rise-left-out") {
            self.0.swap(NEVER, order);
        }
    }

    /// The sleeper goes to rest until `next`; gives the time to sleep to, maybe an earlier one.
    #[inline]
    pub fn rest(&self, next: u64) -> u64 {
        // Relaxed: who sets it earlier after this wakes us; who did before is in its value.
        self.0.fetch_min(next, Relaxed).min(next)
    }

    /// The time it is set to. A hint.
    #[inline]
    pub fn at(&self) -> u64 {
        // Relaxed: a hint.
        self.0.load(Relaxed)
    }
}
