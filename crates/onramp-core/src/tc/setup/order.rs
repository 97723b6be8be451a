//! The orders in which Linux lists qdiscs and classes, which are the orders of its hash tables.
//!
//! Source: behaviour of Linux 7.2, as `tc` shows it; `qdisc_class_hash`, and the `hash_32` of
//! `include/linux/hash.h`.

/// The classes of a qdisc in the order in which Linux lists them: that of a hash table whose number
/// of buckets grows with the number of classes.
#[derive(Clone, Debug)]
pub(super) struct ClassOrder {
    /// The minor numbers in each bucket, the oldest first. Linux lists the newest first, so `iter`
    /// reverses each bucket.
    buckets: Vec<Vec<u16>>,
    len: usize,
}

impl Default for ClassOrder {
    fn default() -> Self {
        Self { buckets: vec![Vec::new(); 4], len: 0 }
    }
}

impl ClassOrder {
    fn bucket(&self, major: u16, minor: u16) -> usize {
        let id = u32::from(major) << 16 | u32::from(minor);
        let id = id ^ id >> 8;
        let id = id ^ id >> 4;
        id as usize & (self.buckets.len() - 1)
    }

    pub(super) fn add(&mut self, major: u16, minor: u16) {
        let bucket = self.bucket(major, minor);
        // A bucket stores its newest class last, although Linux lists this class first.
        self.buckets[bucket].push(minor);
        self.len += 1;
        if self.len * 4 <= self.buckets.len() * 3 {
            return;
        }
        let before = std::mem::take(&mut self.buckets);
        self.buckets = vec![Vec::new(); before.len() * 2];
        for minor in before.iter().flat_map(|bucket| bucket.iter().rev().copied()) {
            let bucket = self.bucket(major, minor);
            self.buckets[bucket].push(minor);
        }
    }

    pub(super) fn remove(&mut self, major: u16, minor: u16) {
        let bucket = self.bucket(major, minor);
        self.buckets[bucket].retain(|other| *other != minor);
        self.len -= 1;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u16> {
        self.buckets.iter().flat_map(|bucket| bucket.iter().rev().copied())
    }
}

/// The qdiscs that stand below other qdiscs, in the order in which Linux lists them: that of a hash
/// table by handles, with sixteen buckets.
#[derive(Clone, Debug, Default)]
pub(super) struct QdiscOrder {
    buckets: [Vec<u16>; 16],
}

impl QdiscOrder {
    fn bucket(major: u16) -> usize {
        ((u32::from(major) << 16).wrapping_mul(0x61C8_8647) >> 28) as usize
    }

    pub(super) fn add(&mut self, major: u16) {
        self.buckets[Self::bucket(major)].push(major);
    }

    pub(super) fn remove(&mut self, major: u16) {
        self.buckets[Self::bucket(major)].retain(|other| *other != major);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u16> {
        self.buckets.iter().flat_map(|bucket| bucket.iter().rev().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `ClassOrder` gives the same order as `tc class show` on Linux 6.18, for classes that are
    /// added in the same order.
    #[test]
    fn classes_are_listed_as_linux_lists_them() {
        let mut order = ClassOrder::default();
        for minor in [0x1, 0x2, 0x9, 0x10, 0x78] {
            order.add(1, minor);
        }
        assert_eq!(order.iter().collect::<Vec<_>>(), [0x1, 0x9, 0x10, 0x2, 0x78]);
        order.remove(1, 0x9);
        assert_eq!(order.iter().collect::<Vec<_>>(), [0x1, 0x10, 0x2, 0x78]);
    }

    /// A plain model of the hash table in `include/net/sch_generic.h`. The four nibbles of a number
    /// are combined into one by exclusive or, and a new class goes to the front of its bucket. When
    /// the number of classes exceeds three quarters of the number of buckets, the number of buckets
    /// doubles and all classes move, one bucket after another.
    struct Model {
        buckets: Vec<std::collections::VecDeque<u16>>,
        count: usize,
    }

    impl Model {
        fn place(buckets: usize, major: u16, minor: u16) -> usize {
            let id = u64::from(major) * 65_536 + u64::from(minor);
            let folded = id ^ (id / 16) ^ (id / 256) ^ (id / 4_096);
            usize::try_from(folded).expect("few bits") % buckets
        }

        fn add(&mut self, major: u16, minor: u16) {
            let place = Self::place(self.buckets.len(), major, minor);
            self.buckets[place].push_front(minor);
            self.count += 1;
            let size = self.buckets.len();
            if 4 * self.count > 3 * size {
                let before =
                    std::mem::replace(&mut self.buckets, vec![Default::default(); 2 * size]);
                for minor in before.into_iter().flatten() {
                    self.buckets[Self::place(2 * size, major, minor)].push_front(minor);
                }
            }
        }

        fn remove(&mut self, minor: u16) {
            self.buckets.iter_mut().for_each(|bucket| bucket.retain(|other| *other != minor));
            self.count -= 1;
        }
    }

    proptest! {
        #[test]
        fn classes_are_where_a_plain_table_has_them(
            major in any::<u16>(),
            steps in prop::collection::vec((any::<bool>(), any::<u16>()), 1..200),
        ) {
            let mut order = ClassOrder::default();
            let mut model = Model { buckets: vec![Default::default(); 4], count: 0 };
            let mut there = Vec::new();
            for (adds, minor) in steps {
                if adds || there.is_empty() {
                    if there.contains(&minor) {
                        continue;
                    }
                    there.push(minor);
                    order.add(major, minor);
                    model.add(major, minor);
                } else {
                    let gone = there.swap_remove(usize::from(minor) % there.len());
                    order.remove(major, gone);
                    model.remove(gone);
                }
                let expected: Vec<u16> = model.buckets.iter().flatten().copied().collect();
                prop_assert_eq!(order.iter().collect::<Vec<_>>(), expected);
            }
        }

        /// `QdiscOrder` puts a qdisc into the bucket whose number is the upper four bits of a
        /// multiplicative hash: the handle times a constant near 2^32 divided by the square of the
        /// golden ratio (Knuth).
        #[test]
        fn qdiscs_are_where_their_hash_says(
            mut majors in prop::collection::hash_set(any::<u16>(), 1..60),
        ) {
            let mut order = QdiscOrder::default();
            let all: Vec<u16> = majors.iter().copied().collect();
            all.iter().for_each(|major| order.add(*major));
            let gone = all[0];
            majors.remove(&gone);
            order.remove(gone);
            let bucket = |major: u16| {
                let product = (u64::from(major) * 65_536 * 1_640_531_527) % (1 << 32);
                product / (1 << 28)
            };
            // Within a bucket, the qdisc that was added last comes first.
            let mut expected: Vec<u16> = all[1..].iter().rev().copied().collect();
            expected.sort_by_key(|major| bucket(*major));
            prop_assert_eq!(order.iter().collect::<Vec<_>>(), expected);
        }
    }
}
