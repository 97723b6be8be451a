//! The limit with a clock, a descriptor and a lock.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use onramp_core::{Clock as _, Instant};
use onramp_dev::{MonotonicClock, Timer};

use crate::bucket::{SettingError, TokenBucket};
use crate::limiter::{BucketUpdate, Limiter, Request, Ticket, TokenType};

/// A limit that several devices share, each by a [`RateLimiter`] of its own, possibly in several
/// threads. The devices take turns in the order in which they had to wait.
///
/// # Synchronisation
///
/// A call of a limiter locks a mutex ([`std::sync::Mutex`]) for the arithmetic of one request,
/// which takes less than a microsecond, and, if the request has to wait, for the system call that
/// sets the limiter's own timer. The exact fill of two buckets does not fit an atomic word, and a
/// request for bytes and operations must get both or none. So one limiter can hold up the thread of
/// another, which a sender of Onramp never does: for as long as it computes, or, if the system
/// takes the processor away from a thread that has the lock, until that thread runs again. No
/// thread holds the lock while it waits for tokens. A limiter that is alone in its group finds the
/// lock free.
///
/// ```
/// use std::time::Duration;
/// use onramp_limiter::{Group, TokenBucket, TokenType};
///
/// let bucket = TokenBucket::new(1_000_000, 0, Duration::from_secs(1))?;
/// let group = Group::new(Some(bucket), None);
/// let (mut disk, mut net) = (group.limiter()?, group.limiter()?);
/// assert!(disk.consume(600_000, TokenType::Bytes));
/// assert!(!net.consume(600_000, TokenType::Bytes)); // waits, until `net.as_fd()` is readable
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Group(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    limiter: Limiter,
    /// The timers of all limiters of the group.
    timers: Vec<Weak<Timer>>,
}

impl Group {
    /// Makes a group with full buckets. `None` means that tokens of this type are not limited.
    #[must_use]
    pub fn new(bytes: Option<TokenBucket>, ops: Option<TokenBucket>) -> Self {
        let limiter = Limiter::new(bytes, ops, MonotonicClock.now());
        Self(Arc::new(Mutex::new(Shared { limiter, timers: Vec::new() })))
    }

    /// Makes a limiter for one device of the group. The limit lives as long as one of its limiters
    /// or its group.
    ///
    /// # Errors
    ///
    /// The error of `timerfd_create(2)`, for example because the process has no descriptor left.
    pub fn limiter(&self) -> io::Result<RateLimiter> {
        let timer = Arc::new(Timer::new()?);
        let timers = &mut self.lock().timers;
        timers.retain(|timer| timer.strong_count() > 0);
        timers.push(Arc::downgrade(&timer));
        let (group, ticket) = (self.clone(), Ticket::default());
        Ok(RateLimiter { group, ticket, timer, is_blocked: false })
    }

    /// Changes the buckets: see [`Limiter::update`]. Every limiter of the group gets an event, so
    /// that one that waits asks again; a limiter that does not wait has nothing to do then.
    ///
    /// # Panics
    ///
    /// Panics if the kernel refuses to set a timer, as [`RateLimiter::consume`] does.
    pub fn update_buckets(&self, bytes: BucketUpdate, ops: BucketUpdate) {
        let mut shared = self.lock();
        shared.limiter.update(MonotonicClock.now(), bytes, ops);
        for timer in shared.timers.iter().filter_map(Weak::upgrade) {
            set(&timer, Some(Instant(0)));
        }
    }

    /// Returns the settings of a bucket, or `None` if tokens of this type are not limited.
    #[must_use]
    pub fn bucket(&self, token_type: TokenType) -> Option<TokenBucket> {
        self.lock().limiter.bucket(token_type)
    }

    /// Returns how many tokens a request could take at once: see [`Limiter::available`].
    #[must_use]
    pub fn available(&self, token_type: TokenType) -> Option<i128> {
        self.lock().limiter.available(MonotonicClock.now(), token_type)
    }

    /// Locks what is shared. A thread that panicked with the lock has left numbers behind that
    /// limit too much at worst, so the others go on.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rate limiter for one device: it lets requests pass as long as there are tokens, and otherwise
/// makes its descriptor readable at the moment at which the blocked request may go.
///
/// Its methods have the names and the contract that limiters of virtual machine monitors have
/// (`rate_limiter` of Firecracker and of Cloud Hypervisor): call [`consume`](Self::consume) for
/// each request; if it returns false, leave the request where it is, wait until the descriptor
/// ([`AsFd`], [`AsRawFd`]) is readable, call [`event_handler`](Self::event_handler), and try again.
///
/// A limiter belongs to one thread at a time. For a limit of several devices, see [`Group`].
///
/// ```
/// use onramp_limiter::{RateLimiter, TokenType};
/// use rustix::event::{PollFd, PollFlags, poll};
///
/// // 4,000 bytes in 10 ms; operations are not limited.
/// let mut limiter = RateLimiter::with_millis(4_000, 0, 10, 0, 0, 0)?;
/// assert!(limiter.consume(4_000, TokenType::Bytes));
/// assert!(limiter.consume(1, TokenType::Ops));
///
/// // This request fits 1 ms later.
/// assert!(!limiter.consume(400, TokenType::Bytes));
/// assert!(limiter.is_blocked());
/// poll(&mut [PollFd::new(&limiter, PollFlags::IN)], None)?;
/// limiter.event_handler()?;
/// assert!(limiter.consume(400, TokenType::Bytes));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct RateLimiter {
    group: Group,
    ticket: Ticket,
    timer: Arc<Timer>,
    /// Whether a request has to wait for an event.
    is_blocked: bool,
}

impl RateLimiter {
    /// Makes a limiter with full buckets. `None` means that tokens of this type are not limited. A
    /// limiter without buckets also has a descriptor, because a later
    /// [update](Self::update_buckets) may need it where a seccomp filter forbids to create one.
    ///
    /// # Errors
    ///
    /// The error of `timerfd_create(2)`, for example because the process has no descriptor left.
    pub fn new(bytes: Option<TokenBucket>, ops: Option<TokenBucket>) -> io::Result<Self> {
        Group::new(bytes, ops).limiter()
    }

    /// Makes a limiter from six numbers, in the order in which monitors have them: for bytes, and
    /// then for operations, the size, the one-time burst, and the refill time in milliseconds.
    /// Three zeros mean that tokens of this type are not limited.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new), and an error of the kind
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if [`TokenBucket::from_millis`] refuses the
    /// values. Its text says whether the bytes or the operations are wrong.
    pub fn with_millis(
        bytes_size: u64,
        bytes_one_time_burst: u64,
        bytes_refill_ms: u64,
        ops_size: u64,
        ops_one_time_burst: u64,
        ops_refill_ms: u64,
    ) -> io::Result<Self> {
        let of = |what: &'static str| {
            move |error: SettingError| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("limit of {what}: {error}"))
            }
        };
        let bytes = TokenBucket::from_millis(bytes_size, bytes_one_time_burst, bytes_refill_ms)
            .map_err(of("bytes"))?;
        let ops = TokenBucket::from_millis(ops_size, ops_one_time_burst, ops_refill_ms)
            .map_err(of("operations"))?;
        Self::new(bytes, ops)
    }

    /// Takes tokens of one type. Returns false if the request has to wait, and then blocks the
    /// limiter: until the [event handler](Self::event_handler) has been called, all requests must
    /// wait. The tokens are kept for the request, so it passes after the event.
    ///
    /// Tokens of a type that is not limited are always there, unless the limiter is blocked.
    ///
    /// # Panics
    ///
    /// Panics if the kernel refuses `timerfd_settime(2)`, for example because a seccomp filter
    /// forbids it: the limiter could then never be unblocked.
    pub fn consume(&mut self, tokens: u64, token_type: TokenType) -> bool {
        self.consume_all(Request::of(tokens, token_type))
    }

    /// Takes tokens of both types or none. Otherwise like [`consume`](Self::consume). Use it in
    /// place of two calls of `consume` and a [`manual_replenish`](Self::manual_replenish) of what
    /// the first has taken.
    ///
    /// # Panics
    ///
    /// In the same case as [`consume`](Self::consume).
    pub fn consume_all(&mut self, request: Request) -> bool {
        if self.is_blocked {
            return false;
        }
        let now = MonotonicClock.now();
        let mut shared = self.group.lock();
        let Err(until) = shared.limiter.take(now, &mut self.ticket, request) else { return true };
        // Set under the lock, so that an update that follows finds the timer set and fires it.
        set(&self.timer, Some(until));
        self.is_blocked = true;
        false
    }

    /// Adds tokens: see [`Limiter::replenish`]. Use it to take back a `consume` whose request was
    /// not carried out.
    pub fn manual_replenish(&mut self, tokens: u64, token_type: TokenType) {
        let now = MonotonicClock.now();
        self.group.lock().limiter.replenish(now, tokens, token_type);
    }

    /// Whether a request has to wait for an event.
    #[must_use]
    pub const fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Reads the event, and unblocks the limiter. Call it when the descriptor is readable.
    ///
    /// # Errors
    ///
    /// An error of the kind [`WouldBlock`](io::ErrorKind::WouldBlock) if there is no event, as when
    /// the descriptor was reported readable before an update set it anew. The limiter stays as it
    /// is.
    pub fn event_handler(&mut self) -> io::Result<()> {
        rustix::io::read(&*self.timer, &mut [0; 8])?;
        self.is_blocked = false;
        Ok(())
    }

    /// Changes the buckets, of all limiters of the group: see [`Group::update_buckets`].
    ///
    /// # Panics
    ///
    /// In the same case as [`consume`](Self::consume).
    pub fn update_buckets(&mut self, bytes: BucketUpdate, ops: BucketUpdate) {
        self.group.update_buckets(bytes, ops);
    }

    /// Gives up the request that waits, for example because the device was reset: its tokens are
    /// free for others, and the limiter is no longer blocked.
    ///
    /// # Panics
    ///
    /// In the same case as [`consume`](Self::consume).
    pub fn abandon(&mut self) {
        let now = MonotonicClock.now();
        let mut shared = self.group.lock();
        shared.limiter.abandon(now, &mut self.ticket);
        set(&self.timer, None);
        self.is_blocked = false;
    }

    /// Returns the group, by which other devices can share the limit, and which tells the settings
    /// and the tokens that are there.
    #[must_use]
    pub const fn group(&self) -> &Group {
        &self.group
    }
}

/// What is kept for a request that waits is given back.
impl Drop for RateLimiter {
    fn drop(&mut self) {
        self.group.lock().limiter.abandon(MonotonicClock.now(), &mut self.ticket);
    }
}

/// The descriptor, which is readable when [`event_handler`](RateLimiter::event_handler) is to be
/// called. Only wait for it: reading it would lose the event.
impl AsFd for RateLimiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

impl AsRawFd for RateLimiter {
    fn as_raw_fd(&self) -> RawFd {
        self.timer.as_fd().as_raw_fd()
    }
}

/// Makes the timer's descriptor readable from this time on; `None`: not any more.
fn set(timer: &Timer, at: Option<Instant>) {
    timer
        .set(at.map(|at| at.0))
        .expect("the kernel refuses timerfd_settime, without which the limiter stays blocked");
}
