//! The clients that a relay has forgotten, and whose late answers it still counts.

use std::collections::{HashMap, VecDeque};

use onramp_core::Instant;

use super::clients::Limits;

/// What a relay keeps of the clients that it has forgotten, of type `T` for each. There are as many
/// as the relay may have clients, and each is kept as long as an idle client.
#[derive(Debug)]
pub(super) struct Forgotten<T> {
    limits: Limits,
    by_key: HashMap<u64, T>,
    /// The time at which each ends, and its key. The first has been kept longest.
    ends: VecDeque<(Instant, u64)>,
}

impl<T> Forgotten<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, by_key: HashMap::new(), ends: VecDeque::new() }
    }

    /// Keeps `what` of the client with this key, which is forgotten now. Returns what was kept
    /// longest if there is too much.
    pub(super) fn add(&mut self, key: u64, what: T, now: Instant) -> Option<T> {
        self.by_key.insert(key, what);
        self.ends.push_back((now + self.limits.idle, key));
        if self.by_key.len() > self.limits.clients as usize { self.pop() } else { None }
    }

    /// Returns what is kept of the client with this key, or `None` if nothing is.
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        self.by_key.get_mut(&key)
    }

    /// Removes and returns what was kept longest.
    pub(super) fn pop(&mut self) -> Option<T> {
        let (_, key) = self.ends.pop_front()?;
        self.by_key.remove(&key)
    }

    /// Returns the time at which to call [`end`](Self::end) next; `None`: nothing is kept.
    pub(super) fn end_at(&self) -> Option<Instant> {
        self.ends.front().map(|(end, _)| *end)
    }

    /// Removes and returns one that has been kept long enough.
    pub(super) fn end(&mut self, now: Instant) -> Option<T> {
        self.end_at().filter(|end| *end <= now).and_then(|_| self.pop())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_is_kept_for_its_time_and_only_so_many() {
        let mut forgotten = Forgotten::new(Limits { clients: 2, idle: Duration::from_nanos(100) });
        assert_eq!((forgotten.end_at(), forgotten.end(Instant(999)), forgotten.pop()), NOTHING);
        assert_eq!(forgotten.add(1, 'a', Instant(0)), None);
        assert_eq!(forgotten.add(2, 'b', Instant(10)), None);
        assert_eq!(forgotten.add(3, 'c', Instant(20)), Some('a'));
        assert_eq!(forgotten.get_mut(1), None);
        assert_eq!(forgotten.get_mut(2), Some(&mut 'b'));
        assert_eq!(forgotten.end_at(), Some(Instant(110)));
        assert_eq!(forgotten.end(Instant(109)), None);
        assert_eq!(forgotten.end(Instant(110)), Some('b'));
        assert_eq!(forgotten.end(Instant(110)), None);
        assert_eq!(forgotten.pop(), Some('c'));
        assert_eq!((forgotten.end_at(), forgotten.end(Instant(999)), forgotten.pop()), NOTHING);
    }

    const NOTHING: (Option<Instant>, Option<char>, Option<char>) = (None, None, None);
}
