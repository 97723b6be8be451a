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

    /// Returns this bucket with the bytes that were in `before`, `elapsed_ns` after its last
    /// update, or with the bytes of its debt. The same bytes are more nanoseconds at a lower rate.
    pub(crate) fn with_bytes_of(self, before: &Self, elapsed_ns: i64) -> Self {
        // Long enough that what each packet costs beyond its bytes makes no difference.
        const LEN: u32 = 1 << 24;
        let tokens_ns = i128::from((before.tokens_ns + elapsed_ns).min(before.depth_ns));
        let ns = tokens_ns * i128::from(self.cost.ns(LEN)) / i128::from(before.cost.ns(LEN)).max(1);
        let most = i128::from(self.depth_ns);
        // A debt of half of all nanoseconds is as good as a debt without end.
        let tokens_ns = ns.clamp(i128::from(i64::MIN / 2), most);
        Self { tokens_ns: i64::try_from(tokens_ns).unwrap_or(self.depth_ns), ..self }
    }

    /// Returns the tokens, in nanoseconds, that would be left if a packet of `len` bytes left now,
    /// `elapsed_ns` after the last update. A negative result says for how long the packet has to
    /// wait.
    #[inline]
    pub(crate) fn left_ns(&self, elapsed_ns: i64, len: u32) -> i64 {
        (self.tokens_ns + elapsed_ns).min(self.depth_ns) - self.cost.ns(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::law::cost::Framing;

    fn bucket(bytes_per_second: u64, depth: u32) -> Bucket {
        let cost = Cost::new(bytes_per_second, Framing::new(0, 0, false));
        Bucket::full(cost, cost.ns(depth))
    }

    #[test]
    fn bytes_stay_what_they_are_at_another_rate() {
        let slow = Bucket { tokens_ns: -4_000_000_000, ..bucket(1_000, 3_000) };
        // 4,000 bytes of debt, of which 1,000 have been paid off since.
        let fast = bucket(1_000_000, 3_000).with_bytes_of(&slow, 1_000_000_000);
        assert_eq!(fast.tokens_ns, -3_000_000);
        let again = bucket(1_000, 3_000).with_bytes_of(&fast, 0);
        assert_eq!(again.tokens_ns, -3_000_000_000);
        // A bucket is never fuller than it is deep, before and after.
        let full = bucket(1_000, 3_000).with_bytes_of(&bucket(1_000_000, 5_000), 1 << 40);
        assert_eq!(full.tokens_ns, full.depth_ns);
        let part = bucket(1_000_000, 5_000).with_bytes_of(&bucket(1_000, 3_000), 1 << 40);
        assert_eq!(part.tokens_ns, 3_000_000);
    }
}
