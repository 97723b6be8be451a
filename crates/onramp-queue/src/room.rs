//! Room: how the thread that makes room in a full device tells the port of the device, so that the
//! port's owner offers its packets again at once.
//!
//! ```text
//! owner of the port                            thread that makes room
//! ─────────────────                            ──────────────────────
//! the device takes nothing                     make room
//! room.want(): offer the packets again at      room.announce(): if an owner wanted room, ask
//!   once if room was announced meanwhile;        for a visit to the port
//!   otherwise leave the port, and
//! in a later visit: if room.take(), offer
//!   the packets again
//! ```
//!
//! No announcement is lost: the owner and the announcing thread exchange one word, so one of the
//! two exchanges comes first. If the owner's does, the announcing thread sees that room is wanted
//! and asks for a visit; otherwise the owner sees the announcement.
//!
//! ```text
//!               |  announce  |  want, take
//! announce      |     -      |      -             -: may run at the same time
//! want, take    |     -      |  one owner
//! ```

use crate::mutant;
use crate::sync::AtomicU8;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};

const QUIET: u8 = 0;
const WANTED: u8 = 1;
const ANNOUNCED: u8 = 2;

/// Whether the owner of a port wants room in its device, and whether room was announced.
#[derive(Debug)]
pub struct Room(AtomicU8);

impl Default for Room {
    fn default() -> Self {
        Self(AtomicU8::new(QUIET))
    }
}

impl Room {
    /// Announces that the device has room again. Returns true if an owner has wanted room since the
    /// last announcement; the caller must then ask for a visit to the port.
    pub fn announce(&self) -> bool {
        // Release: publishes that there is room; pairs with the acquire in `want` and `take`.
        // Acquire: a thread that sees that room is wanted also sees what the owner did before, such
        // as naming the runner to ask; pairs with the release in `want`.
        let order = mutant::or("room-announce-release", AcqRel, Acquire);
        let order = mutant::or("room-announce-acquire", order, Release);
        self.0.swap(ANNOUNCED, order) == WANTED
    }

    /// For an owner whose packets the device did not take: wants room from now on. Returns true if
    /// room was announced since the owner last looked; the owner must then offer the packets again.
    #[must_use]
    pub fn want(&self) -> bool {
        // Acquire: makes the room visible; pairs with the release in `announce`. Release: pairs
        // with the acquire there.
        let order = mutant::or("room-want-acquire", AcqRel, Release);
        let order = mutant::or("room-want-release", order, Acquire);
        let before = self.0.swap(WANTED, order);
        before == ANNOUNCED && !mutant::is("room-want-deaf")
    }

    /// For an owner that has left packets to a device that was full: whether room was announced
    /// since. If so, the owner must offer the packets again.
    #[must_use]
    pub fn take(&self) -> bool {
        // Acquire: makes the room visible; pairs with the release in `announce`.
        let order = mutant::or("room-take-acquire", Acquire, Relaxed);
        self.is_announced() && self.0.swap(QUIET, order) == ANNOUNCED
    }

    /// Whether room was announced since the owner last looked. This is a hint: it may be stale as
    /// soon as it is read.
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.0.load(Relaxed) == ANNOUNCED // Relaxed: the result is only a hint.
    }
}
