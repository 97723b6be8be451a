//! Alarms: many threads request visits to places, and a few threads that sleep in between make the
//! visits.
//!
//! Each place that needs visits (a port) has a [`Due`]; each thread that makes the visits (a
//! runner) has an [`Alarm`].
//!
//! ```text
//! a thread that requests a visit          the thread that makes the visits
//! ──────────────────────────────          ────────────────────────────────
//! due.note(at)                            alarm.rise()
//! if that is earlier: marks.set(place),   for each marked place: marks.clear(place),
//!   alarm.set(at)                           if due.take(now), visit it; mark it again if due
//! if that is earlier: wake the sleeper    sleep until alarm.rest(the earliest due left)
//! ```
//!
//! If a round of visits misses a note, the visiting thread has already called `rise` or `rest`, so
//! the requesting thread wakes it. (Waking a thread that is awake must make its next sleep end at
//! once, as `Thread::unpark` does.) If the note came before `rise`, the round sees the note.
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

/// A time that never comes.
pub const NEVER: u64 = u64::MAX;

/// The time at which a place requests a visit, in nanoseconds.
#[derive(Debug)]
pub struct Due(AtomicU64);

impl Default for Due {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl Due {
    /// Notes that the place requests a visit at `at` (nanoseconds) or before. Returns the time
    /// noted before this call.
    #[inline]
    pub fn note(&self, at: u64) -> u64 {
        // Release: publishes the reason for the visit; pairs with the acquire in `take`. This must
        // be an exchange even if an earlier time is noted: a plain load could see a note that was
        // already taken.
        self.0.fetch_min(at, mutant::or("due-note-release", Release, Relaxed))
    }

    /// Takes the note if its time has come; returns false if there is no such note. Call this
    /// before visiting the place: requests that come later are noted again.
    #[inline]
    pub fn take(&self, now: u64) -> bool {
        // Relaxed: this value is a guess, which the exchange below verifies.
        if self.0.load(Relaxed) > now {
            return false;
        }
        // Acquire: pairs with the release in `note`.
        self.0.swap(NEVER, mutant::or("due-take-acquire", Acquire, Relaxed)) != NEVER
    }

    /// Returns the noted time, in nanoseconds.
    #[inline]
    pub fn at(&self) -> u64 {
        // Relaxed: a thread that notes an earlier time after this load wakes the sleeper.
        self.0.load(Relaxed)
    }
}

/// One bit per place that says whether a visit is noted, so that a round need not look at every
/// place.
#[derive(Debug)]
pub struct Marks(Box<[AtomicU64]>);

impl Marks {
    /// Makes the marks for `places` places; no mark is set.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self((0..places.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Marks a place. Call this after noting its due time, because the thread that clears the mark
    /// looks at the due time next.
    #[inline]
    pub fn set(&self, place: usize) {
        // Release: publishes the note; pairs with the acquire in `clear`.
        let order = mutant::or("mark-set-release", Release, Relaxed);
        self.0[place / 64].fetch_or(1 << (place % 64), order);
    }

    /// Clears the mark of a place. Call this before looking at the place: later notes set the mark
    /// again.
    #[inline]
    pub fn clear(&self, place: usize) {
        // Acquire: pairs with the release in `set`.
        let order = mutant::or("mark-clear-acquire", Acquire, Relaxed);
        self.0[place / 64].fetch_and(!(1 << (place % 64)), order);
    }

    /// Returns the marked places, in ascending order. Places that are marked during the iteration
    /// may be among them.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len()).flat_map(|word| self.in_word(word))
    }

    /// Returns the marked places within one group of 64, and the `from` for the next call.
    ///
    /// The group is the aligned group of 64 places that contains `from`; places below `from` are
    /// left out. Repeated calls go round through all places.
    pub fn some(&self, from: usize) -> (impl Iterator<Item = usize>, usize) {
        let word = from / 64 % self.0.len().max(1);
        let marked = (word < self.0.len()).then(|| self.in_word(word));
        let marked = marked.into_iter().flatten().filter(move |place| *place >= from);
        (marked, (word + 1) % self.0.len().max(1) * 64)
    }

    fn in_word(&self, word: usize) -> impl Iterator<Item = usize> {
        // Relaxed: this value is a guess. A thread that sets a mark after this load wakes the
        // sleeper, and `clear` acquires.
        let mut bits = self.0[word].load(Relaxed);
        std::iter::from_fn(move || {
            let place = word * 64 + bits.trailing_zeros() as usize;
            let more = bits != 0;
            bits &= bits.wrapping_sub(1);
            more.then_some(place)
        })
    }
}

/// The time at which a sleeping thread wakes by itself, in nanoseconds.
#[derive(Debug)]
pub struct Alarm(AtomicU64);

impl Default for Alarm {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl Alarm {
    /// Sets the alarm to `at` (nanoseconds) if that is earlier than its present time. Returns true
    /// if it was earlier; the caller must then wake the sleeper.
    #[inline]
    pub fn set(&self, at: u64) -> bool {
        // Release: publishes the note that was made before; pairs with the acquire in `rise`.
        // Acquire: if several threads take turns as sleeper ([`Post`](crate::Post)), shows which
        // thread called `rise` last; the caller wakes that thread.
        let order = mutant::or("alarm-set-release", AcqRel, Acquire);
        let order = mutant::or("alarm-set-acquire", order, Release);
        at < self.0.fetch_min(at, order)
    }

    /// Notes that the sleeper has risen: from here on, a thread that sets the alarm wakes the
    /// sleeper.
    #[inline]
    pub fn rise(&self) {
        // Acquire: pairs with the release in `set`. A thread that set the alarm without waking this
        // one, because an earlier time was set, has made its note before, so this thread finds the
        // note next.
        // Release: publishes which thread has risen; pairs with the acquire in `set`.
        let order = mutant::or("alarm-rise-acquire", AcqRel, Release);
        let order = mutant::or("alarm-rise-release", order, Acquire);
        if !mutant::is("alarm-rise-left-out") {
            self.0.swap(NEVER, order);
        }
    }

    /// Notes that the sleeper goes to sleep until `next` (nanoseconds). Returns the time until
    /// which it may sleep, which is earlier if the alarm was set earlier.
    #[inline]
    pub fn rest(&self, next: u64) -> u64 {
        // Relaxed: a thread that sets an earlier time after this exchange wakes the sleeper; a time
        // that was set before is in the returned value.
        self.0.fetch_min(next, Relaxed).min(next)
    }

    /// Returns the time that the alarm is set to, in nanoseconds. A hint: the time may be stale as
    /// soon as it is read.
    #[inline]
    pub fn at(&self) -> u64 {
        // Relaxed: the result is only a hint.
        self.0.load(Relaxed)
    }
}
