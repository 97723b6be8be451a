//! A token bucket that counts its tokens in nanoseconds of sending time.
//!
//! Source: RFC 2697, section 3, without colours; `tc-tbf(8)`.

use crate::law::cost::Cost;

/// A token bucket: it gains one nanosecond of tokens in each nanosecond, up to its depth. A packet
/// costs as many tokens as its transmission takes nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    pub(crate) cost: Cost,
    /// The largest number of tokens that the bucket holds, in nanoseconds.
    pub(crate) depth_ns: i64,
    /// The tokens in the bucket at its last update, in nanoseconds. A negative value is a debt.
    pub(crate) tokens_ns: i64,
}

impl Bucket {
    pub(crate) fn full(cost: Cost, depth_ns: i64) -> Self {
        Self { cost, depth_ns, tokens_ns: depth_ns }
    }

    /// Returns the tokens, in nanoseconds, that would be left if a packet of `len` bytes left now,
    /// `elapsed_ns` after the last update. A negative result says for how long the packet has to
    /// wait.
    #[inline]
    pub(crate) fn left_ns(&self, elapsed_ns: i64, len: u32) -> i64 {
        (self.tokens_ns + elapsed_ns).min(self.depth_ns) - self.cost.ns(len)
    }
}
