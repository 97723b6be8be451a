//! Classes in an order, in one piece of memory: it is read more often than it is long.

/// Numbers of classes by a key, which none shares with another.
#[derive(Debug)]
pub(super) struct Sorted<K>(Vec<(K, usize)>);

impl<K> Default for Sorted<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord + Copy> Sorted<K> {
    pub(super) fn insert(&mut self, key: K, class: usize) {
        let place = self.0.partition_point(|(other, _)| *other < key);
        self.0.insert(place, (key, class));
    }

    pub(super) fn remove(&mut self, key: K) {
        if let Ok(place) = self.0.binary_search_by_key(&key, |(key, _)| *key) {
            self.0.remove(place);
        }
    }

    pub(super) fn first(&self) -> Option<(K, usize)> {
        self.0.first().copied()
    }

    pub(super) fn last(&self) -> Option<(K, usize)> {
        self.0.last().copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|(_, class)| *class)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
