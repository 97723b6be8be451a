//! Counters of a socket.

use std::sync::atomic::{AtomicU64, Ordering};

use onramp::Peers;

/// Counters of an [`OnrampSocket`](crate::OnrampSocket). What became of the packets that the link
/// has accepted is in [`LinkStats`](onramp::LinkStats) ([`Link::stats`](onramp::Link::stats)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketStats {
    /// Number of peers that the socket remembers at present.
    pub peers: usize,
    /// Number of peers that the socket has forgotten because others came
    /// ([`Options::peers`](crate::Options::peers)).
    pub forgotten: u64,
    /// Number of times that a batch found no room, so that quinn kept it for later.
    pub full: u64,
    /// Number of replies that found no room and that quinn dropped for this: answers of the
    /// endpoint itself, such as a retry, outside all connections.
    pub replies_dropped: u64,
    /// Number of batches dropped because they exceeded 65,507 bytes. After such a batch, the socket
    /// asks quinn for smaller ones.
    pub too_large: u64,
    /// Number of batches dropped because the process has no number left for their local address
    /// ([`Source::new`](onramp::dev::Source::new)).
    pub no_source: u64,
    /// Number of batches dropped because the link was closed or its port was dead.
    pub closed: u64,
}

/// The counters that several threads write.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) full: AtomicU64,
    pub(crate) replies_dropped: AtomicU64,
    pub(crate) too_large: AtomicU64,
    pub(crate) no_source: AtomicU64,
    pub(crate) closed: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self, peers: &Peers) -> SocketStats {
        // Relaxed: each counter stands alone.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SocketStats {
            peers: peers.count(),
            forgotten: peers.forgotten(),
            full: read(&self.full),
            replies_dropped: read(&self.replies_dropped),
            too_large: read(&self.too_large),
            no_source: read(&self.no_source),
            closed: read(&self.closed),
        }
    }
}

/// Adds 1 to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed); // Relaxed: each counter stands alone.
}
