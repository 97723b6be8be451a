//! The peers of a socket, in bounded memory.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::room::Peer;

/// Where datagrams go to and from which local address. `None`: the routing table chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Path {
    pub(crate) dest: SocketAddr,
    pub(crate) source: Option<IpAddr>,
}

/// The peers by their paths. If there are too many, the one to which nothing was sent for longest
/// is forgotten, as a clock finds it: its hand takes the next peer in the order of their coming,
/// but spares each that was used since the hand last passed.
#[derive(Debug)]
pub(crate) struct Peers {
    most: usize,
    peers: HashMap<Path, Known>,
    clock: VecDeque<Path>,
}

#[derive(Debug)]
struct Known {
    peer: Arc<Peer>,
    used: bool,
}

impl Peers {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, peers: HashMap::new(), clock: VecDeque::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }

    /// Returns a number for the path that no stranger can predict, and that is the same whenever
    /// this peer is made anew.
    pub(crate) fn hash(&self, path: &Path) -> u64 {
        let hasher: &RandomState = self.peers.hasher();
        hasher.hash_one(path)
    }

    pub(crate) fn get(&mut self, path: &Path) -> Option<Arc<Peer>> {
        let known = self.peers.get_mut(path)?;
        known.used = true;
        Some(Arc::clone(&known.peer))
    }

    /// Adds a peer. Returns the one that is forgotten for it, if there are too many.
    pub(crate) fn add(&mut self, path: Path, peer: Arc<Peer>) -> Option<Arc<Peer>> {
        let forgotten = if self.peers.len() < self.most { None } else { self.forget() };
        self.peers.insert(path, Known { peer, used: false });
        self.clock.push_back(path);
        forgotten
    }

    fn forget(&mut self) -> Option<Arc<Peer>> {
        loop {
            let path = self.clock.pop_front()?;
            let known = self.peers.get_mut(&path)?;
            if !std::mem::take(&mut known.used) {
                return self.peers.remove(&path).map(|known| known.peer);
            }
            self.clock.push_back(path);
        }
    }
}
