//! Chooses the bucket (flow queue) of a packet in a fair queueing qdisc.
//!
//! Source: `tc-fq_codel(8)`, `tc-sfq(8)`; behaviour of Linux 7.2: if the upper half of a packet's
//! priority is the qdisc's own handle, the lower half is the number of the bucket. Otherwise the
//! filters choose the bucket. Only if there are no filters, the bucket comes from a hash of the
//! flow.

use onramp_queue::{DropReason, Packet};

use crate::base::params::Values;
use crate::base::{Handle, Instant};
use crate::filter::{Decision, Filters};

/// Flow keys that differ only in their 12 lowest bits get buckets that are far apart.
const BLOCK_BITS: u32 = 12;

/// 2^64 divided by the golden ratio. Its multiples are spread evenly over 64 bits.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// An arbitrary odd number with its set bits spread over the whole word.
const PRIME: u64 = 0xD6E8_FEB8_6659_FD93;

/// Returns a hash of `a` in which every bit depends on every bit of `a`.
#[inline]
fn folded(a: u64, factor: u64) -> u64 {
    let product = u128::from(a) * u128::from(factor);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are folded together")]
    let folded = (product >> 64) as u64 ^ product as u64;
    folded
}

#[derive(Debug)]
pub(crate) struct Buckets {
    /// The major number of the qdisc, or 0 if it has none. A packet's priority whose upper half is
    /// this number names a bucket.
    major: u16,
    count: u32,
    seed: u64,
    pub(crate) filters: Filters,
}

impl Buckets {
    pub(crate) fn new(values: &Values<'_>, count: u32) -> Self {
        let site = &values.site;
        Self { major: site.handle.major, count, seed: site.seed, filters: Filters::default() }
    }

    /// Returns the bucket of a packet, counted from 0, or the reason for which the packet must be
    /// dropped.
    #[inline]
    pub(crate) fn of(&mut self, pkt: &mut Packet, now: Instant) -> Result<usize, DropReason> {
        let named = Handle::from_priority(pkt.priority);
        if named.major == self.major
            && self.major != 0
            && let Some(bucket) = self.named(named)
        {
            return Ok(bucket);
        }
        if self.filters.is_empty() {
            return Ok(self.hash(pkt.flow));
        }
        match self.filters.classify(pkt, now) {
            Decision::Class(class) => self.named(class).ok_or(DropReason::Unclassified),
            Decision::Unknown => Err(DropReason::Unclassified),
            Decision::Drop => Err(DropReason::Filter),
        }
    }

    #[inline]
    fn named(&self, class: Handle) -> Option<usize> {
        (1..=self.count).contains(&class.minor.into()).then(|| usize::from(class.minor) - 1)
    }

    /// Returns the bucket of a flow. Consecutive keys, which senders often use, collide less often
    /// than random keys would. Other keys collide as often as random keys would, and which of them
    /// collide depends on the seed.
    #[inline]
    pub(crate) fn hash(&self, flow: u64) -> usize {
        let block = folded(folded((flow >> BLOCK_BITS) ^ self.seed, GOLDEN) ^ self.seed, PRIME);
        let row = flow & ((1 << BLOCK_BITS) - 1);
        let hash = row.wrapping_mul(GOLDEN).wrapping_add(block);
        (((hash >> 32) * u64::from(self.count)) >> 32) as usize
    }

    /// Changes the seed of the hash for all packets from now on.
    pub(crate) fn reseed(&mut self, seed: u64) {
        self.seed = seed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(count: u32, seed: u64) -> Buckets {
        Buckets { major: 1, count, seed, filters: Filters::default() }
    }

    /// Returns how many different buckets the flows `flows` get.
    fn filled(count: u32, seed: u64, flows: impl Iterator<Item = u64>) -> usize {
        let buckets = buckets(count, seed);
        flows.map(|flow| buckets.hash(flow)).collect::<std::collections::BTreeSet<_>>().len()
    }

    #[test]
    fn flows_in_a_row_do_not_collide() {
        for seed in 0..100 {
            assert_eq!(filled(1024, seed, 4096 * seed..4096 * seed + 390), 390, "{seed}");
            assert_eq!(filled(128, seed, 0..48), 48, "{seed}");
        }
    }

    /// Flows that are not consecutive collide as often as chance has it: 1,024 balls that are
    /// thrown at random into 1,024 urns fill 647 of them, with a standard deviation of 10.
    #[test]
    fn other_flows_collide_as_chance_has_it() {
        for shift in [12, 13, 20, 32, 48, 54] {
            let filled = filled(1024, 0x1234_5678_9ABC, (0..1024).map(|flow| flow << shift));
            assert!((582..=710).contains(&filled), "{shift}: {filled}");
        }
        let mut rng = crate::base::rng::Rng::new(1);
        let filled = filled(1024, 0, (0..1024).map(|_| rng.next_u64()));
        assert!((597..=697).contains(&filled), "{filled}");
    }

    /// A seed whose bits are all ones, half ones or nearly all zeros spreads flows as well as any
    /// other seed.
    #[test]
    fn any_seed_is_as_good() {
        for seed in [u64::MAX, u64::MAX << 32, u64::MAX >> 32, 1, 1 << 63] {
            let filled = filled(1024, seed, (0..1024).map(|flow| flow << 20));
            assert!((582..=710).contains(&filled), "{seed:x}: {filled}");
        }
    }

    /// The same seed gives the same buckets in every version of this crate, so that a repeated
    /// simulation gives the same result. The expected values were computed by the formulas above,
    /// with integers of unlimited size.
    #[test]
    fn buckets_stay_what_they_were() {
        for (seed, flow, bucket) in [
            (0, 0, 0),
            (0, 1, 632),
            (0, 0xfff, 869),
            (0, 0x1000, 807),
            (7, 0x500000, 525),
            (7, 0x500001, 134),
            (8, 0x500000, 302),
            (0x123456789abcdef, 0xfedcba9876543210, 693),
            (0xffffffffffffffff, 0xffffffffffffffff, 101),
        ] {
            assert_eq!(buckets(1024, seed).hash(flow), bucket, "{flow:x} with {seed:x}");
        }
        // With 100 buckets instead of 1,024, the number of a flow's bucket is about a tenth as
        // large.
        assert_eq!(buckets(100, 7).hash(5 << 20), 51);
    }

    #[test]
    fn another_seed_holds_from_then_on() {
        let mut ours = buckets(1024, 7);
        ours.reseed(8);
        for flow in (0..100).map(|flow| flow << 13) {
            assert_eq!(ours.hash(flow), buckets(1024, 8).hash(flow));
        }
    }

    /// The seed of the hash is the seed that the qdisc gets when it is built (`Site::seed`).
    #[test]
    fn a_qdisc_hashes_by_its_seed() {
        let spec: crate::tc::Spec = "sfq".parse().expect("a qdisc");
        for seed in [0, 1, 99] {
            let site = crate::base::params::Site { seed, ..Default::default() };
            let ours = Buckets::new(&spec.values_at(site), 1024);
            assert!(
                (0..99).all(|flow| ours.hash(flow << 20) == buckets(1024, seed).hash(flow << 20))
            );
        }
    }

    #[test]
    fn the_seed_decides() {
        let moved = |other: u64| {
            let (a, b) = (buckets(1024, 7), buckets(1024, other));
            (0..1000_u64).filter(|flow| a.hash(flow << 20) != b.hash(flow << 20)).count()
        };
        assert_eq!(moved(7), 0);
        assert!(moved(8) > 950 && moved(9 << 50) > 950);
    }

    #[test]
    fn a_priority_names_a_bucket_of_its_own_qdisc() {
        let mut buckets = buckets(16, 0);
        let mut of = |priority| {
            let mut pkt = Packet::new(100);
            (pkt.flow, pkt.priority) = (5, priority);
            buckets.of(&mut pkt, Instant(0))
        };
        let hashed = of(0).expect("a bucket");
        assert_eq!((of(0x1_0001), of(0x1_0010)), (Ok(0), Ok(15)));
        for elsewhere in [0x1_0011, 0x1_0000, 0x2_0001, 3] {
            assert_eq!(of(elsewhere), Ok(hashed));
        }
    }
}
