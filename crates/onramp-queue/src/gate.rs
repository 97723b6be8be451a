//! The gate: one byte that a sender checks before each packet. It tells the sender whether
//! something may prevent it from sending the packet in the usual way.
//!
//! ```text
//!              |  look  |  change
//! look         |   -    |    -      -: may run at the same time
//! change       |   -    |    -
//! ```

use crate::mutant;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicU8, fence};

/// Flags that are set when packets may be refused, or may have to go to another port than the one
/// chosen by their flow. In the documentation of the gate, a "place" is a port.
#[derive(Debug, Default)]
pub struct Gate(AtomicU8);

impl Gate {
    const CHANGE: u8 = 1;
    const CLOSED: u8 = 2;
    const ONE: u8 = 4;
    const SHUT: u8 = 8;

    /// Notes that a place (a port) has died or is being removed.
    pub fn note_change(&self) {
        self.0.fetch_or(Self::CHANGE, Relaxed); // Relaxed: stale values do no harm, see `is_open`.
    }

    /// Closes the gate for good, because the link closes. Afterwards the calling thread closes all
    /// places (ports) that it finds; it finds each place that was added before this call. A thread
    /// that adds a place later [sees](Self::has_closed_since) that the gate is closed, and closes
    /// that place itself.
    pub fn close(&self) {
        self.0.fetch_or(Self::CLOSED, Relaxed); // Relaxed: the fence below orders the write.
        if !mutant::is("gate-close-unfenced") {
            // SeqCst: pairs with the fence in `has_closed_since`: either the thread that adds a
            // place sees the flag, or this thread finds the place.
            fence(SeqCst);
        }
    }

    /// Shuts the gate: notes that from now on no runner visits the places (ports) to send or drop
    /// packets that are left there.
    pub fn shut(&self) {
        self.0.fetch_or(Self::SHUT, Relaxed); // Relaxed: the fence below orders the write.
        if !mutant::is("gate-shut-unfenced") {
            // SeqCst: pairs with the fence in `is_shut`: either the thread that leaves packets sees
            // the flag, or this thread finds the packets.
            fence(SeqCst);
        }
    }

    /// Whether the gate was closed. A thread calls this after it has added a place (a port). If the
    /// result is false, any thread that [closes](Self::close) the gate later finds the new place.
    #[must_use]
    pub fn has_closed_since(&self) -> bool {
        if !mutant::is("gate-look-unfenced") {
            // SeqCst: the place is added before the flag is read; pairs with the fence in `close`.
            fence(SeqCst);
        }
        self.is_closed()
    }

    /// Sets whether the first place (port) alone has a tree of qdiscs that serves the flows of all
    /// places.
    pub fn set_one(&self, one: bool) {
        // Relaxed: stale values do no harm, see `is_open`.
        if one {
            self.0.fetch_or(Self::ONE, Relaxed);
        } else {
            self.0.fetch_and(!Self::ONE, Relaxed);
        }
    }

    /// Whether the first place (port) alone has a tree of qdiscs that serves the flows of all
    /// places.
    #[must_use]
    pub fn is_one(&self) -> bool {
        self.0.load(Relaxed) & Self::ONE != 0 // Relaxed: stale values do no harm, see `is_open`.
    }

    /// Whether nothing unusual has happened: every place (port) is alive and stays, each place
    /// serves its own flows, and the gate is neither closed nor shut.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        // Relaxed: a sender that misses a change gives its packet to the old port, and that port
        // itself drops or sends the packet.
        self.0.load(Relaxed) == 0
    }

    /// Whether a place (port) has died, was removed or is being removed, or the gate is closed or
    /// shut.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.0.load(Relaxed) & !Self::ONE != 0 // Relaxed: stale values do no harm, see `is_open`.
    }

    /// Whether the gate is closed ([`close`](Self::close) was called).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.load(Relaxed) & Self::CLOSED != 0 // Relaxed: stale values do no harm, see `is_open`.
    }

    /// Whether the gate is shut ([`shut`](Self::shut) was called). A thread calls this after it has
    /// left packets in a place (a port). If the result is false, the thread that shuts the gate
    /// looks for packets afterwards and finds these.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        if !mutant::is("gate-is-shut-unfenced") {
            // SeqCst: the packets are left before the flag is read; pairs with the fence in `shut`.
            fence(SeqCst);
        }
        self.0.load(Relaxed) & Self::SHUT != 0 // Relaxed: the fence above orders the load.
    }
}
