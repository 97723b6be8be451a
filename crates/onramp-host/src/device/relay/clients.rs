//! The clients of a relay: who they are, and when the relay forgets them.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use onramp_core::Instant;

/// How many clients a relay has, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The most clients at a time.
    pub(crate) clients: u32,
    /// Time without any datagram, in either direction, after which a client is forgotten.
    pub(crate) idle: Duration,
}

/// The clients of a relay. Each has an address, a key and, of type `T`, what the relay needs to
/// serve the client.
#[derive(Debug)]
pub(super) struct Clients<T> {
    limits: Limits,
    keys: HashMap<SocketAddr, u64>,
    by_key: HashMap<u64, Client<T>>,
    /// For each client, a time at which it was not idle, and its key. The time may be older than
    /// that of the client's last datagram, so that a datagram changes nothing here.
    seen: BTreeSet<(Instant, u64)>,
}

/// A client of a relay.
#[derive(Debug)]
pub(super) struct Client<T> {
    pub(super) address: SocketAddr,
    /// Time of the last datagram from or for this client.
    last: Instant,
    pub(super) served: T,
}

impl<T> Clients<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, keys: HashMap::new(), by_key: HashMap::new(), seen: BTreeSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there is room for one more client.
    pub(super) fn has_room(&self) -> bool {
        self.len() < self.limits.clients as usize
    }

    /// Returns the key of the client with this address, or `None` if there is no such client.
    pub(super) fn key(&self, address: SocketAddr) -> Option<u64> {
        self.keys.get(&address).copied()
    }

    /// Adds a client whose address and key no other client has.
    pub(super) fn add(&mut self, address: SocketAddr, key: u64, served: T, now: Instant) {
        self.keys.insert(address, key);
        self.by_key.insert(key, Client { address, last: now, served });
        self.seen.insert((now, key));
    }

    /// Returns the client with this key, which is idle from `now` on. Returns `None` if there is no
    /// such client.
    pub(super) fn touch(&mut self, key: u64, now: Instant) -> Option<&Client<T>> {
        let client = self.by_key.get_mut(&key)?;
        client.last = now;
        Some(client)
    }

    /// Returns the client with this key, or `None` if there is no such client.
    pub(super) fn get(&self, key: u64) -> Option<&Client<T>> {
        self.by_key.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Client<T>> {
        self.by_key.get_mut(&key)
    }

    /// Returns the time at which to call [`forget`](Self::forget) next; `None`: there is no client.
    pub(super) fn forget_at(&self) -> Option<Instant> {
        self.seen.first().map(|(seen, _)| *seen + self.limits.idle)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.forget_at().is_some_and(|at| at <= now)
    }

    /// Removes the clients that have been idle for too long, and returns them with their keys.
    pub(super) fn forget(&mut self, now: Instant) -> Vec<(u64, Client<T>)> {
        let mut gone = Vec::new();
        while let Some((_, key)) = self.seen.first().copied().filter(|_| self.is_due(now)) {
            self.seen.pop_first();
            let Some(client) = self.by_key.get(&key) else { continue };
            if client.last + self.limits.idle > now {
                self.seen.insert((client.last, key));
            } else if let Some(client) = self.by_key.remove(&key) {
                self.keys.remove(&client.address);
                gone.push((key, client));
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(most: u32) -> Clients<char> {
        Clients::new(Limits { clients: most, idle: Duration::from_nanos(100) })
    }

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn forget(clients: &mut Clients<char>, now: u64) -> Vec<char> {
        let gone = clients.forget(Instant(now)).into_iter().map(|(_, client)| client.served);
        let mut gone: Vec<_> = gone.collect();
        gone.sort_unstable();
        gone
    }

    #[test]
    fn who_is_idle_is_forgotten_on_time_and_not_before() {
        let mut clients = clients(9);
        assert_eq!(clients.forget_at(), None);
        for (port, name, at) in [(1, 'a', 0), (2, 'b', 10), (3, 'c', 20)] {
            clients.add(address(port), port.into(), name, Instant(at));
        }
        assert_eq!(clients.forget_at(), Some(Instant(100)));
        assert!(clients.touch(1, Instant(50)).is_some() && clients.touch(7, Instant(50)).is_none());
        assert_eq!(forget(&mut clients, 109), []);
        // The time to look again has become that of the client that has been idle longest.
        assert_eq!(clients.forget_at(), Some(Instant(110)));
        assert_eq!(forget(&mut clients, 120), ['b', 'c']);
        assert_eq!((clients.len(), clients.key(address(2))), (1, None));
        assert_eq!(clients.key(address(1)), Some(1), "a datagram came from or for it");
        assert_eq!(forget(&mut clients, 149), []);
        assert_eq!(forget(&mut clients, 150), ['a']);
        assert_eq!((clients.len(), clients.forget_at()), (0, None));
        clients.add(address(1), 1, 'd', Instant(500));
        assert_eq!(clients.forget_at(), Some(Instant(600)));
    }

    #[test]
    fn room_is_for_as_many_as_the_limit_says() {
        let mut clients = clients(2);
        for port in [1, 2] {
            assert!(clients.has_room());
            clients.add(address(port), port.into(), 'x', Instant(0));
        }
        assert!(!clients.has_room());
        assert_eq!(forget(&mut clients, 100), ['x', 'x']);
        assert!(clients.has_room());
    }
}
