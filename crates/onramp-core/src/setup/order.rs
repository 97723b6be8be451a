//! The orders in which Linux lists qdiscs and classes: those of its hash tables.
//!
//! Source: behaviour of Linux 7.2, as `tc` shows it; `qdisc_class_hash`, and the `hash_32` of
//! `include/linux/hash.h`.

/// Classes by their numbers, in buckets that grow.
#[derive(Clone, Debug)]
pub(super) struct ClassOrder {
    /// The newest first.
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
        // A bucket lists its newest first; ours are kept the other way around.
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

/// Qdiscs below others by their handles, in sixteen buckets.
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

    /// Seen with `tc class show` of Linux 6.18, in the order the classes were added.
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
}
