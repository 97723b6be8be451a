//! A token bucket. Its tokens are nanoseconds of sending.
//!
//! Source: RFC 2697, section 3, without colours; `tc-tbf(8)`.

use crate::law::cost::Cost;

/// Fills by a nanosecond each nanosecond, up to its depth; a packet takes out what it costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    pub(crate) cost: Cost,
    /// The most it holds.
    pub(crate) depth_ns: i64,
    /// What it held when it was last looked at; less than zero: a debt.
    pub(crate) tokens_ns: i64,
}

impl Bucket {
    pub(crate) fn full(cost: Cost, depth_ns: i64) -> Self {
        Self { cost, depth_ns, tokens_ns: depth_ns }
    }

    /// What would be left if a packet of `len` bytes left now, `elapsed_ns` after the last look.
    /// Less than zero: how long the packet has to wait.
    #[inline]
    pub(crate) fn left_ns(&self, elapsed_ns: i64, len: u32) -> i64 {
        (self.tokens_ns + elapsed_ns).min(self.depth_ns) - self.cost.ns(len)
    }
}
