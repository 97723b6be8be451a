//! Alarms: many threads request visits to ports, and a few threads (runners) make these visits and
//! sleep in between.
//!
//! Each port has a [`Due`], in which the time of its next visit is noted, and each thread that
//! makes visits (a runner) has an [`Alarm`]. Ports are named by their numbers.
//!
//! ```text
//! a thread that requests a visit          the thread that makes the visits
//! ──────────────────────────────          ────────────────────────────────
//! due.note(at)                            alarm.rise()
//! if that is earlier: marks.set(port),    for each marked port: marks.clear(port),
//!   alarm.set(at)                           if due.take(now), visit it; mark it again if due
//! if that is earlier: wake the sleeper    sleep until alarm.rest(the earliest due left)
//! ```
//!
//! No request is lost. If a round of visits misses a note (a time written to a [`Due`]), the
//! visiting thread has already called `rise` or `rest`, so the requesting thread wakes it. (Waking
//! a thread that is awake must make its next sleep end at once, as `Thread::unpark` does.) If the
//! note was made before `rise`, the round finds the note.
//!
//! ```text
//!              | note, set | take | rise, rest
//! note, set    |     -     |  -   |     -        -: may run at the same time
//! take         |     -     |  -   |     -
//! rise, rest   |     -     |  -   | the sleeper alone
//! ```

use crate::mutant;
use crate::sync::AtomicU64;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// A time that never comes.
pub const NEVER: u64 = u64::MAX;

/// The time at which a port requests its next visit, in nanoseconds; [`NEVER`] if it requests none.
#[derive(Debug)]
pub struct Due(AtomicU64);

impl Default for Due {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl Due {
    /// Notes that the port requests a visit at `at` (nanoseconds) or before. Returns the time that
    /// was noted before this call.
    #[inline]
    pub fn note(&self, at: u64) -> u64 {
        // Release: publishes the reason for the visit; pairs with the acquire in `take`. Even if an
        // earlier time is already noted, this must be an atomic exchange: a plain load could see a
        // note that was already taken.
        self.0.fetch_min(at, mutant::or("due-note-release", Release, Relaxed))
    }

    /// If the noted time of the port's visit has come, removes the note and returns true. Returns
    /// false if the time has not come, or if no time is noted. Call this before visiting the port:
    /// a request that comes during the visit then makes a new note.
    #[inline]
    pub fn take(&self, now: u64) -> bool {
        // Relaxed: the loaded value is a guess, which the exchange below verifies.
        if self.0.load(Relaxed) > now {
            return false;
        }
        // Acquire: makes the reason for the visit visible; pairs with the release in `note`.
        self.0.swap(NEVER, mutant::or("due-take-acquire", Acquire, Relaxed)) != NEVER
    }

    /// Returns the time that is noted for the port's next visit, in nanoseconds.
    #[inline]
    pub fn at(&self) -> u64 {
        // Relaxed: a thread that notes an earlier time after this load wakes the visiting thread.
        self.0.load(Relaxed)
    }
}

/// One bit for each port, which is set while a visit to the port is requested, so that a round of
/// visits need not look at every port.
#[derive(Debug)]
pub struct Marks(Box<[AtomicU64]>);

impl Marks {
    /// Makes the marks for `places` ports; no port is marked.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self((0..places.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Marks the port with the number `place`. Call this after noting the time of the visit in the
    /// port's [`Due`], because the thread that clears the mark reads that time next.
    #[inline]
    pub fn set(&self, place: usize) {
        // Release: publishes the noted time; pairs with the acquire in `clear`.
        let order = mutant::or("mark-set-release", Release, Relaxed);
        self.0[place / 64].fetch_or(1 << (place % 64), order);
    }

    /// Clears the mark of the port with the number `place`. Call this before reading the port's
    /// [`Due`]: a request that comes later sets the mark again.
    #[inline]
    pub fn clear(&self, place: usize) {
        // Acquire: makes the noted time visible; pairs with the release in `set`.
        let order = mutant::or("mark-clear-acquire", Acquire, Relaxed);
        self.0[place / 64].fetch_and(!(1 << (place % 64)), order);
    }

    /// Returns the numbers of the marked ports, in ascending order. Ports that are marked during
    /// the iteration may be among them.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len()).flat_map(|word| self.in_word(word))
    }

    /// Returns the numbers of the marked ports within one group of 64 port numbers, and the value
    /// of `from` for the next call.
    ///
    /// The group is the aligned group of 64 port numbers that contains `from`; numbers below `from`
    /// are left out. Repeated calls go through all ports, and then begin again with the first
    /// group.
    pub fn some(&self, from: usize) -> (impl Iterator<Item = usize>, usize) {
        let word = from / 64 % self.0.len().max(1);
        let marked = (word < self.0.len()).then(|| self.in_word(word));
        let marked = marked.into_iter().flatten().filter(move |place| *place >= from);
        (marked, (word + 1) % self.0.len().max(1) * 64)
    }

    fn in_word(&self, word: usize) -> impl Iterator<Item = usize> {
        // Relaxed: the loaded value is a guess. A thread that sets a mark after this load wakes the
        // visiting thread, and `clear` acquires.
        let mut bits = self.0[word].load(Relaxed);
        std::iter::from_fn(move || {
            let place = word * 64 + bits.trailing_zeros() as usize;
            let more = bits != 0;
            bits &= bits.wrapping_sub(1);
            more.then_some(place)
        })
    }
}

/// The time at which a sleeping thread (a runner) wakes by itself, in nanoseconds; [`NEVER`] if the
/// alarm is not set.
#[derive(Debug)]
pub struct Alarm(AtomicU64);

impl Default for Alarm {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl Alarm {
    /// Sets the alarm to `at` (nanoseconds) if that is earlier than the time to which it is set
    /// now. Returns true if `at` was earlier; the caller must then wake the sleeping thread.
    #[inline]
    pub fn set(&self, at: u64) -> bool {
        // Release: publishes the note that was made before this call; pairs with the acquire in
        // `rise`.
        // Acquire: if several threads take turns as sleeping thread ([`Post`](crate::Post)), shows
        // which of them called `rise` last; the caller wakes that thread.
        let order = mutant::or("alarm-set-release", AcqRel, Acquire);
        let order = mutant::or("alarm-set-acquire", order, Release);
        at < self.0.fetch_min(at, order)
    }

    /// Notes that the sleeping thread has awoken, by clearing the alarm. A thread that sets the
    /// alarm from now on must wake the sleeping thread again.
    #[inline]
    pub fn rise(&self) {
        // Acquire: pairs with the release in `set`. Another thread may have set the alarm without
        // waking this thread, because an earlier time was set. That thread made its note before, so
        // this thread finds the note next.
        // Release: publishes which thread has called `rise`; pairs with the acquire in `set`.
        let order = mutant::or("alarm-rise-acquire", AcqRel, Release);
        let order = mutant::or("alarm-rise-release", order, Acquire);
        if !mutant::is("alarm-rise-left-out") {
            self.0.swap(NEVER, order);
        }
    }

    /// Notes that the calling thread goes to sleep until `next` (nanoseconds). Returns the time
    /// until which it may sleep; this time is earlier than `next` if the alarm was set to an
    /// earlier time.
    #[inline]
    pub fn rest(&self, next: u64) -> u64 {
        // Relaxed: a thread that sets an earlier time after this exchange wakes the sleeping
        // thread; a time that was set before is in the value that the exchange returns.
        self.0.fetch_min(next, Relaxed).min(next)
    }

    /// Does what [`rest`](Self::rest) does for a program that waits for a timer in place of a
    /// sleeping thread: sets the timer, by `set_timer`, for the time until which the program may
    /// wait. Returns this time; 0 if it must not wait at all.
    ///
    /// A thread that has to wake the program sets the timer for time 0. The call sets the timer
    /// once more if it has just replaced such a setting. Settings of the timer must exclude each
    /// other, as the kernel's timers do.
    #[inline]
    pub fn rest_by(&self, next: u64, set_timer: impl Fn(u64)) -> u64 {
        let next = self.rest(next);
        set_timer(next);
        // A thread that set the timer before this one had set the alarm before that.
        if self.at() < next && !mutant::is("alarm-rest-by-unchecked") {
            set_timer(0);
            return 0;
        }
        next
    }

    /// Returns the time that the alarm is set to, in nanoseconds. This is a hint: the time may be
    /// stale as soon as it is read.
    #[inline]
    pub fn at(&self) -> u64 {
        // Relaxed: the result is only a hint.
        self.0.load(Relaxed)
    }
}
