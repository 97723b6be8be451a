//! A token bucket in whole numbers: its settings, and how many tokens it holds.
//!
//! Source: RFC 2697, section 3, without colours.
//! Differs: a request may be larger than the bucket. The bucket then goes into debt.

use std::fmt;
use std::io;
use std::time::Duration;

use onramp_core::Instant;

/// Longest time, in nanoseconds, in which a bucket may fill: 104 days. Up to this value, 1024
/// requests of any size can wait at the same time before a sum could exceed 128 bits.
const REFILL_MAX_NS: u64 = 1 << 53;

/// The settings of a token bucket: how many tokens it holds, and how fast it fills. A token is a
/// byte or an operation ([`TokenType`](crate::TokenType)).
///
/// The rate is `size / refill_time`, exactly: the bucket counts in fractions of a token, so that no
/// rounding adds up, whatever the sizes of the requests and the times between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    size: u64,
    one_time_burst: u64,
    refill_ns: u64,
}

impl TokenBucket {
    /// Describes a bucket that holds at most `size` tokens and fills from empty to full in
    /// `refill_time`. `one_time_burst` tokens, possibly none, are there once in addition; they are
    /// used first and do not come back.
    ///
    /// A large `size` allows large bursts. Choose `size` and `refill_time` together: 1,000,000
    /// bytes in 100 ms and 10,000 bytes in 1 ms are the same rate, but the second allows a burst
    /// one hundredth as large. As in every token bucket, a program that comes back later than the
    /// bucket needs to fill loses the tokens of the rest of that time, so the bucket should last
    /// for the longest time that its loop may be held up.
    ///
    /// # Errors
    ///
    /// [`SettingError`] if `size` or `refill_time` is zero, or if `refill_time` is longer than 104
    /// days. A bucket of no tokens would never let a request pass: for no limit, pass `None` in
    /// place of a bucket.
    ///
    /// ```
    /// use std::time::Duration;
    /// use onramp_limiter::{SettingError, TokenBucket};
    ///
    /// let bucket = TokenBucket::new(12_500, 0, Duration::from_micros(250))?;
    /// assert_eq!(bucket.size(), 12_500);
    /// assert_eq!(TokenBucket::new(0, 0, Duration::from_secs(1)), Err(SettingError::Size));
    /// # Ok::<(), SettingError>(())
    /// ```
    pub fn new(
        size: u64,
        one_time_burst: u64,
        refill_time: Duration,
    ) -> Result<Self, SettingError> {
        if size == 0 {
            return Err(SettingError::Size);
        }
        if refill_time.is_zero() {
            return Err(SettingError::RefillTime);
        }
        match u64::try_from(refill_time.as_nanos()) {
            Ok(refill_ns) if refill_ns <= REFILL_MAX_NS => {
                Ok(Self { size, one_time_burst, refill_ns })
            }
            _ => Err(SettingError::RefillTooLong),
        }
    }

    /// Describes a bucket by three numbers, as the configuration of a virtual machine has them,
    /// with the refill time in milliseconds. Three zeros mean no limit (`None`).
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new). Some monitors take a zero among other values as "no
    /// limit"; here it is an error, because a limit that is set half-way is a mistake.
    pub fn from_millis(
        size: u64,
        one_time_burst: u64,
        refill_ms: u64,
    ) -> Result<Option<Self>, SettingError> {
        if (size, one_time_burst, refill_ms) == (0, 0, 0) {
            return Ok(None);
        }
        Self::new(size, one_time_burst, Duration::from_millis(refill_ms)).map(Some)
    }

    /// Returns the most tokens that the bucket holds.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Returns the tokens that are there once in addition.
    #[must_use]
    pub const fn one_time_burst(&self) -> u64 {
        self.one_time_burst
    }

    /// Returns the time in which the bucket fills from empty to full.
    #[must_use]
    pub const fn refill_time(&self) -> Duration {
        Duration::from_nanos(self.refill_ns)
    }
}

/// Why the settings of a [`TokenBucket`] are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SettingError {
    /// The size is zero.
    Size,
    /// The refill time is zero.
    RefillTime,
    /// The refill time is longer than 104 days.
    RefillTooLong,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size => {
                "the size of the bucket is 0, so no request would ever pass; give a size of at \
                 least 1, or all values as 0 for no limit"
            }
            Self::RefillTime => {
                "the refill time is 0, which is no rate; give the time in which the bucket fills, \
                 or all values as 0 for no limit"
            }
            Self::RefillTooLong => {
                "the refill time is longer than 104 days; divide the size and the refill time by \
                 the same number, which gives the same rate"
            }
        })
    }
}

impl std::error::Error for SettingError {}

impl From<SettingError> for io::Error {
    fn from(error: SettingError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// A bucket and the tokens in it. All tokens are counted in units: a token has `unit` units, and
/// the bucket gains `gain` units in each nanosecond.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    bucket: TokenBucket,
    gain: u64,
    unit: i128,
    /// Tokens left of the one-time burst.
    once: u64,
    /// Units in the bucket that are not kept for a request. A negative value is a debt.
    free: i128,
    /// Units that are kept for requests that have to wait, or that could go but have not gone yet.
    kept: i128,
    /// The time for which `free` is right.
    at: Instant,
}

impl Level {
    /// Makes a full bucket.
    pub(crate) fn full(bucket: TokenBucket, now: Instant) -> Self {
        let divisor = greatest_common_divisor(bucket.size, bucket.refill_ns);
        let (gain, unit) = (bucket.size / divisor, i128::from(bucket.refill_ns / divisor));
        let once = bucket.one_time_burst;
        let free = i128::from(bucket.size) * unit;
        Self { bucket, gain, unit, once, free, kept: 0, at: now }
    }

    /// Makes the bucket that takes the place of this one. The tokens that this bucket has move into
    /// it, as far as there is room, and so does a debt. What was kept for requests is free again.
    pub(crate) fn replaced_by(mut self, bucket: TokenBucket, now: Instant) -> Self {
        self.keep_nothing(now);
        let tokens = self.available(now);
        let mut new = Self::full(bucket, now);
        new.free = new.free.min(tokens.saturating_mul(new.unit));
        new
    }

    pub(crate) const fn bucket(&self) -> TokenBucket {
        self.bucket
    }

    pub(crate) const fn one_time_burst_left(&self) -> u64 {
        self.once
    }

    /// Returns the whole tokens in the bucket that a request may take, without the one-time burst.
    /// A negative number is a debt.
    pub(crate) fn available(&mut self, now: Instant) -> i128 {
        self.advance(now);
        self.free.div_euclid(self.unit)
    }

    /// Keeps `tokens` for a request, `own` of which are kept for it already. Returns when the
    /// request may go; `None` means at once. The tokens stay kept until [`take`](Self::take) or
    /// [`give_up`](Self::give_up).
    ///
    /// The request goes when the bucket holds its tokens, or when the bucket is full, if the
    /// request is larger than the bucket. All requests that were kept before this one are paid
    /// already, so they go before it, and none that comes later can go before it.
    pub(crate) fn keep(&mut self, now: Instant, own: u64, tokens: u64) -> Option<Instant> {
        if tokens <= own {
            self.give_up(now, own - tokens);
            return None;
        }
        self.advance(now);
        let more = tokens - own;
        let from_once = more.min(self.once);
        let needed = more - from_once;
        let short = self.units(needed.min(self.bucket.size)).saturating_sub(self.free);
        self.once -= from_once;
        self.free = self.free.saturating_sub(self.units(needed));
        self.kept = self.kept.saturating_add(self.units(more));
        let short = u128::try_from(short).unwrap_or(0);
        if needed == 0 || short == 0 {
            return None;
        }
        let wait_ns = short.div_ceil(self.gain.into());
        Some(self.at.after(u64::try_from(wait_ns).unwrap_or(u64::MAX)))
    }

    /// A request takes the tokens that were kept for it.
    pub(crate) fn take(&mut self, tokens: u64) {
        self.kept = self.kept.saturating_sub(self.units(tokens));
    }

    /// Gives tokens back that were kept for a request.
    pub(crate) fn give_up(&mut self, now: Instant, tokens: u64) {
        self.advance(now);
        self.take(tokens);
        self.add(now, tokens);
    }

    /// Keeps nothing for any request any longer.
    pub(crate) fn keep_nothing(&mut self, now: Instant) {
        self.advance(now);
        let back = std::mem::take(&mut self.kept);
        self.add_units(back);
    }

    /// Adds tokens: into the bucket as far as there is room, and the others to the one-time burst,
    /// up to the number with which it began.
    pub(crate) fn add(&mut self, now: Instant, tokens: u64) {
        self.advance(now);
        self.add_units(self.units(tokens));
    }

    fn add_units(&mut self, units: i128) {
        let added = units.min(self.room());
        self.free = self.free.saturating_add(added);
        let rest = u64::try_from((units - added) / self.unit).unwrap_or(u64::MAX);
        self.once = self.once.saturating_add(rest).min(self.bucket.one_time_burst);
    }

    /// Adds the tokens that have come since the last call. Tokens that are kept for requests that
    /// could go are still in the bucket, so there is less room for others.
    fn advance(&mut self, now: Instant) {
        let gained = u128::from(now.since(self.at)) * u128::from(self.gain);
        let room = self.room();
        self.free += i128::try_from(gained).map_or(room, |gained| gained.min(room));
        self.at = self.at.max(now);
    }

    /// Returns how many units the bucket has room for. A request goes at the first whole nanosecond
    /// after its last token, so what comes in between, less than a nanosecond's gain, is not lost.
    fn room(&self) -> i128 {
        let ceiling = self.units(self.bucket.size).saturating_sub(self.kept).max(0);
        (ceiling + i128::from(self.gain - 1)).saturating_sub(self.free).max(0)
    }

    const fn units(&self, tokens: u64) -> i128 {
        // At most 64 and 53 bits.
        tokens as i128 * self.unit
    }
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
