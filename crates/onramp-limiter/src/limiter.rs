//! The limit itself: no clock, no descriptor, no lock.

use onramp_core::Instant;

use crate::bucket::{Level, TokenBucket};

/// What a token stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// A byte.
    Bytes,
    /// An operation, such as a request to a disk or a packet.
    Ops,
}

const TYPES: [TokenType; 2] = [TokenType::Bytes, TokenType::Ops];

/// What becomes of a bucket in an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BucketUpdate {
    /// The bucket stays as it is.
    #[default]
    None,
    /// Tokens of this type are no longer limited.
    Disabled,
    /// The bucket has these settings from now on.
    Update(TokenBucket),
}

/// The tokens that a request costs. A request takes the tokens of both types or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Number of bytes.
    pub bytes: u64,
    /// Number of operations.
    pub ops: u64,
}

impl Request {
    /// Makes a request for tokens of one type.
    #[must_use]
    pub const fn of(tokens: u64, token_type: TokenType) -> Self {
        match token_type {
            TokenType::Bytes => Self { bytes: tokens, ops: 0 },
            TokenType::Ops => Self { bytes: 0, ops: tokens },
        }
    }

    const fn tokens(&self, token_type: TokenType) -> u64 {
        match token_type {
            TokenType::Bytes => self.bytes,
            TokenType::Ops => self.ops,
        }
    }
}

/// The place of one user of a [`Limiter`]: what is kept for the user's waiting request. A new
/// ticket (`Ticket::default()`) waits for nothing.
///
/// Use a ticket with one limiter only. Before you let a ticket go, call [`Limiter::abandon`]:
/// otherwise the tokens that are kept for it take up room in the bucket for ever.
#[derive(Debug, Default)]
pub struct Ticket {
    /// [`Limiter::updates`] when the ticket was last used.
    updates: u64,
    /// Tokens kept, of each type.
    kept: [u64; 2],
    /// When the waiting request may go.
    until: Instant,
}

/// A limit of bytes and operations, for one user or several, without a clock: every call takes the
/// time. [`RateLimiter`](crate::RateLimiter) adds a clock and a descriptor; use `Limiter` alone in
/// a loop that has timers of its own, or in virtual time.
///
/// A request that does not fit yet gets its turn at once: its tokens are set aside as they come in,
/// and the answer says at which nanosecond they are complete. Requests go in the order in which
/// they asked. No user ever waits for another user to do something: a user that does not come when
/// its turn has come only leaves less room for bursts of others. So the wait of a request is at
/// most (tokens that the bucket owes + tokens of the request) / rate, and is known when it begins.
///
/// In every span of time, the users together take at most `size + one_time_burst + rate * span`
/// tokens, if each comes as soon as its turn has come. (A span counts its first nanosecond and its
/// last.) To this come the part of a request that is larger than the bucket, and the requests of
/// users that come late.
///
/// ```
/// use std::time::Duration;
/// use onramp_core::Instant;
/// use onramp_limiter::{Limiter, Request, Ticket, TokenBucket, TokenType};
///
/// // 1,000 bytes in 1 ms, for two users.
/// let bucket = TokenBucket::new(1_000, 0, Duration::from_millis(1))?;
/// let mut limiter = Limiter::new(Some(bucket), None, Instant(0));
/// let (mut a, mut b) = (Ticket::default(), Ticket::default());
/// let request = Request::of(800, TokenType::Bytes);
///
/// assert_eq!(limiter.take(Instant(0), &mut a, request), Ok(()));
/// // 600 bytes are missing, which come in 600 us; the request of `b` is 800 us behind.
/// assert_eq!(limiter.take(Instant(0), &mut a, request), Err(Instant(600_000)));
/// assert_eq!(limiter.take(Instant(0), &mut b, request), Err(Instant(1_400_000)));
/// assert_eq!(limiter.take(Instant(600_000), &mut a, request), Ok(()));
/// assert_eq!(limiter.take(Instant(1_400_000), &mut b, request), Ok(()));
/// # Ok::<(), onramp_limiter::SettingError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    levels: [Option<Level>; 2],
    /// Number of updates, by which an update ends what is kept for tickets.
    updates: u64,
}

impl Limiter {
    /// Makes a limiter with full buckets. `None` means that tokens of this type are not limited.
    #[must_use]
    pub fn new(bytes: Option<TokenBucket>, ops: Option<TokenBucket>, now: Instant) -> Self {
        let full = |bucket: Option<TokenBucket>| bucket.map(|bucket| Level::full(bucket, now));
        Self { levels: [full(bytes), full(ops)], updates: 0 }
    }

    /// Takes the tokens of a request, or says when to call `take` again.
    ///
    /// A request for at most as many tokens as the bucket holds goes when the bucket has its
    /// tokens. A larger one goes when the bucket is full, and leaves the bucket in debt, so that
    /// the rate stays exact. Zero tokens of a type cost nothing.
    ///
    /// A user that has to wait may come back with another request: what was kept is used for it,
    /// and what is too much is given back. Tokens of a type that the other request does not want
    /// stay kept, until a request wants them or [`abandon`](Self::abandon) gives them back.
    ///
    /// # Errors
    ///
    /// The time at which the request may go. The tokens are then kept for `ticket`. Until that time
    /// all requests with this ticket get the same answer, so that a small one does not overtake.
    pub fn take(
        &mut self,
        now: Instant,
        ticket: &mut Ticket,
        request: Request,
    ) -> Result<(), Instant> {
        if ticket.updates != self.updates {
            *ticket = Ticket { updates: self.updates, ..Ticket::default() };
        }
        if now < ticket.until {
            return Err(ticket.until);
        }
        let mut until = None;
        for ((level, kept), of) in self.levels.iter_mut().zip(&mut ticket.kept).zip(TYPES) {
            if let Some(level) = level.as_mut().filter(|_| request.tokens(of) > 0) {
                until = until.max(level.keep(now, *kept, request.tokens(of)));
                *kept = request.tokens(of);
            }
        }
        if let Some(until) = until {
            ticket.until = until;
            return Err(until);
        }
        for ((level, kept), of) in self.levels.iter_mut().zip(&mut ticket.kept).zip(TYPES) {
            if let Some(level) = level.as_mut().filter(|_| request.tokens(of) > 0) {
                level.take(std::mem::take(kept));
            }
        }
        Ok(())
    }

    /// Ends the wait of a ticket, and gives back what was kept for it. Call it when a request is
    /// given up, for example because its device was reset.
    pub fn abandon(&mut self, now: Instant, ticket: &mut Ticket) {
        if ticket.updates == self.updates {
            for (level, kept) in self.levels.iter_mut().zip(ticket.kept) {
                if let Some(level) = level {
                    level.give_up(now, kept);
                }
            }
        }
        *ticket = Ticket { updates: self.updates, ..Ticket::default() };
    }

    /// Adds tokens, for example those of a request that was taken and then not carried out. The
    /// bucket gets what it has room for. The others go to the one-time burst, up to the number with
    /// which it began. Requests that wait already keep their times.
    pub fn replenish(&mut self, now: Instant, tokens: u64, token_type: TokenType) {
        if let Some(level) = &mut self.levels[token_type as usize] {
            level.add(now, tokens);
        }
    }

    /// Changes the buckets. A bucket with new settings keeps its tokens, as far as there is room,
    /// and its debt, so that an update is no way to get a burst; it gets the one-time burst of the
    /// new settings. A bucket for tokens that were not limited before is full.
    ///
    /// Requests that wait must ask again at once, because the time that they were told no longer
    /// holds: what was kept for them is free again.
    pub fn update(&mut self, now: Instant, bytes: BucketUpdate, ops: BucketUpdate) {
        self.updates += 1;
        for (level, update) in self.levels.iter_mut().zip([bytes, ops]) {
            match (update, level.take()) {
                (BucketUpdate::Disabled, _) | (BucketUpdate::None, None) => {}
                (BucketUpdate::None, Some(mut old)) => {
                    old.keep_nothing(now);
                    *level = Some(old);
                }
                (BucketUpdate::Update(new), Some(old)) => *level = Some(old.replaced_by(new, now)),
                (BucketUpdate::Update(new), None) => *level = Some(Level::full(new, now)),
            }
        }
    }

    /// Returns the settings of a bucket, or `None` if tokens of this type are not limited.
    #[must_use]
    pub fn bucket(&self, token_type: TokenType) -> Option<TokenBucket> {
        self.levels[token_type as usize].as_ref().map(Level::bucket)
    }

    /// Returns how many tokens a request could take at once, without the one-time burst; a negative
    /// number is a debt. Tokens that are kept for waiting requests do not count. Returns `None` if
    /// tokens of this type are not limited.
    #[must_use]
    pub fn available(&mut self, now: Instant, token_type: TokenType) -> Option<i128> {
        Some(self.levels[token_type as usize].as_mut()?.available(now))
    }

    /// Returns how many tokens of the one-time burst are left, or `None` if tokens of this type are
    /// not limited.
    #[must_use]
    pub fn one_time_burst_left(&self, token_type: TokenType) -> Option<u64> {
        self.levels[token_type as usize].as_ref().map(Level::one_time_burst_left)
    }
}
