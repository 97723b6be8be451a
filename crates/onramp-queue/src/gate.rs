//! What a sender looks at before each packet: whether there may be a reason not to send it on.
//!
//! ```text
//!              |  look  |  change
//! look         |   -    |    -      - needs no lock
//! change       |   -    |    -
//! ```

use crate::mutant;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicU8, fence};

/// Why packets may be refused, or go another way than their flow says.
#[derive(Debug, Default)]
pub struct Gate(AtomicU8);

impl Gate {
    const CHANGE: u8 = 1;
    const CLOSED: u8 = 2;
    const ONE: u8 = 4;
    const SHUT: u8 = 8;

    /// One place has died, or goes.
    pub fn note_change(&self) {
        self.0.fetch_or(Self::CHANGE, Relaxed); // Relaxed: see `is_open`.
    }

    /// Closes it for good. The closing thread looks for places after this call, and finds those
    /// added before. A thread that adds one later [sees](Self::has_closed_since) the gate closed.
    pub fn close(&self) {
        self.0.fetch_or(Self::CLOSED, Relaxed); // Relaxed: the fence orders it.
        if !mutant::is("gate-close-unfenced") {
            // SeqCst: pairs with that of `has_closed_since`.
            fence(SeqCst);
        }
    }

    /// Nobody comes by any more who would see to what is left.
    pub fn shut(&self) {
        self.0.fetch_or(Self::SHUT, Relaxed); // Relaxed: the fence orders it.
        if !mutant::is("gate-shut-unfenced") {
            // SeqCst: pairs with that of `is_shut`.
            fence(SeqCst);
        }
    }

    /// Whether it was closed. A thread asks after it has added a place. If the answer is no, the
    /// thread that [closes](Self::close) the gate later finds the place.
    #[must_use]
    pub fn has_closed_since(&self) -> bool {
        if !mutant::is("gate-look-unfenced") {
            // SeqCst: pairs with that of `close`.
            fence(SeqCst);
        }
        self.is_closed()
    }

    /// From now on the first place serves all flows, or no longer.
    pub fn set_one(&self, one: bool) {
        // Relaxed: see `is_open`.
        if one {
            self.0.fetch_or(Self::ONE, Relaxed);
        } else {
            self.0.fetch_and(!Self::ONE, Relaxed);
        }
    }

    /// The first place serves all flows.
    #[must_use]
    pub fn is_one(&self) -> bool {
        self.0.load(Relaxed) & Self::ONE != 0 // Relaxed: see `is_open`.
    }

    /// Every place lives and stays, and serves its own flows, and nothing is closed.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        // Relaxed: what a send that comes too late brings, the place itself drops.
        self.0.load(Relaxed) == 0
    }

    /// A place has died, or went or goes, or all is closed.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.0.load(Relaxed) & !Self::ONE != 0 // Relaxed: see `is_open`.
    }

    /// It is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.load(Relaxed) & Self::CLOSED != 0 // Relaxed: as above.
    }

    /// It is shut. A thread that leaves something behind asks after that. If the answer is no, the
    /// thread that shuts the gate looks afterwards, and finds it.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        if !mutant::is("gate-is-shut-unfenced") {
            // SeqCst: pairs with that of `shut`.
            fence(SeqCst);
        }
        self.0.load(Relaxed) & Self::SHUT != 0 // Relaxed: after the fence.
    }
}
