//! The destinations of a program whose tasks share one address, each with a sender of its own.

mod peer;

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use onramp_dev::Source;
use onramp_queue::{Credits, hold_wakes};

use self::peer::lock;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Link, Mapping, Sender, TrySendError};

pub use self::peer::{Peer, Room};

/// Where datagrams go, and from which local address. `None`: see [`Peers::get`].
type Path = (Option<SocketAddr>, Option<IpAddr>);

/// The destinations to which a program sends, in bounded memory: each is a [`Peer`], with a flow, a
/// [`Sender`] and credits of its own. All threads may use them at the same time.
///
/// Use it to make an asynchronous socket of a link: its tasks name a destination with each
/// datagram, and a destination whose packets wait in the qdisc must not keep tasks from sending to
/// others. A program whose threads have destinations of their own needs only
/// [`Link::sender`](crate::Link::sender).
///
/// ```
/// use onramp::{Credits, Link, Message, Peers};
///
/// let receiver = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// let link = Link::udp("127.0.0.1:0").ports(1).qdisc("fq maxrate 20mbit").build()?;
/// let peers = Peers::new(&link, Credits { packets: 64, bytes: 16_384 }, 1_000);
/// let peer = peers.get(Some(receiver.local_addr()?), None)?;
/// peer.try_send(&Message { payload: b"hello", ..Message::default() })?;
/// assert_eq!(receiver.recv(&mut [0; 9])?, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Peers {
    link: Link,
    credits: Credits,
    most: usize,
    table: Mutex<Table>,
    forgotten: AtomicU64,
}

/// The peers by their paths. If there are too many, a clock finds one to which nothing was sent for
/// long: its hand takes the next peer in the order of their coming, but spares each that was used
/// since the hand last passed.
#[derive(Debug, Default)]
struct Table {
    peers: HashMap<Path, Known, RandomState>,
    clock: VecDeque<Path>,
}

#[derive(Debug)]
struct Known {
    peer: Arc<Peer>,
    used: bool,
}

impl Peers {
    /// Makes an empty table of at most `most` peers of this link, each with these credits. If
    /// [`LinkBuilder::credits`](crate::LinkBuilder::credits) was not set, or
    /// [`credits_per_port`](crate::LinkBuilder::credits_per_port) was, all peers in the table, idle
    /// ones too, share the credits of the port, and each has at most its part.
    ///
    /// # Panics
    ///
    /// Panics when `most` is 0, and when `credits` has 0 packets, or more than 32,768.
    #[must_use]
    pub fn new(link: &Link, credits: Credits, most: usize) -> Self {
        assert!(most > 0, "a table of peers has room for at least one");
        let range = 1..=Credits::PACKETS_MAX;
        assert!(range.contains(&credits.packets), "a peer has credits for 1 to 32768 packets");
        let (link, table, forgotten) = (link.clone(), Mutex::default(), AtomicU64::new(0));
        Self { link, credits, most, table, forgotten }
    }

    /// Returns the peer for the destination `dest` and the local address `source`, and makes it if
    /// it is new. If there are too many peers then, forgets one to which nothing was sent for long.
    /// A forgotten peer that is asked for again has a new sender and new credits, but its packets
    /// belong to the same flow as before.
    ///
    /// Without `dest`, packets go to the address to which the link's socket is connected. Without
    /// `source`, they leave from the address to which the socket is bound, or that the routing
    /// table chooses ([`Flow::with_source`](crate::Flow::with_source)).
    ///
    /// A thread may wait here while another one looks up a peer, makes one or forgets one.
    ///
    /// # Errors
    ///
    /// Those of [`Source::new`], if `source` is given. `BrokenPipe` in a child of `fork`, where the
    /// link is closed.
    pub fn get(&self, dest: Option<SocketAddr>, source: Option<IpAddr>) -> io::Result<Arc<Peer>> {
        if self.link.shared().is_copy() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, TrySendError::Closed));
        }
        let path = (dest, source);
        // A sender that comes or goes may wake tasks. Wakers are called without the lock, because
        // they may run code that looks up a peer.
        let _held = hold_wakes();
        let mut table = lock(&self.table);
        if let Some(known) = table.peers.get_mut(&path) {
            known.used = true;
            return Ok(Arc::clone(&known.peer));
        }
        // Peers that nobody uses any more keep their senders for long, so all share the credits of
        // the port, whatever their own are.
        let sender = Sender::new(self.link.handle.clone(), self.credits, 0);
        // A number that no stranger can predict, and that a forgotten peer gets again.
        let hash = table.peers.hasher().hash_one(path);
        let mut flow = sender.flow_with(dest, Mapping::Hash(hash));
        if let Some(source) = source {
            flow = flow.with_source(Source::new(source, 0)?);
        }
        let peer = Arc::new(Peer::new(sender, flow));
        let forgotten = if table.peers.len() < self.most { None } else { table.forget() };
        table.peers.insert(path, Known { peer: Arc::clone(&peer), used: false });
        table.clock.push_back(path);
        // The sender of a forgotten peer ends without the lock.
        drop(table);
        if let Some(old) = forgotten {
            old.forget();
            self.forgotten.fetch_add(1, Ordering::Relaxed); // Relaxed: the counter stands alone.
        }
        Ok(peer)
    }

    /// Returns the number of peers in the table at present. Returns 0 in a child of `fork`.
    #[must_use]
    pub fn count(&self) -> usize {
        if self.link.shared().is_copy() {
            return 0;
        }
        lock(&self.table).peers.len()
    }

    /// Returns how many peers were forgotten because others came.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed) // Relaxed: the counter stands alone.
    }
}

impl Table {
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

#[cfg(test)]
mod tests;
