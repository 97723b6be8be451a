//! Cancelled packets: a sender takes back packets that it has submitted, and the port drops them
//! where it would have given them to the device.
//!
//! A sender gives the same [tag](crate::Pool::counted) to all packets that it may want to take back
//! together. To take them back, it [cancels](crate::Pool::cancel) the tag: it sets the tag's bit in
//! a table that belongs to its pool's home. Every thread that has a packet of the pool can read
//! this bit ([`Packet::is_cancelled`](crate::Packet::is_cancelled)), without a lock. A [`Cancels`]
//! counts the bits that are set in the tables of all pools of a link; while there are none, no
//! owner of a port looks at a packet.
//!
//! When the last packet with the tag has come home, the sender [ends](crate::Pool::end_cancel) the
//! cancel, and may use the tag again. If the sender is dropped before, the bits of its pool count
//! until the pool's last packet has come home, because only then the home is freed.
//!
//! All operations are relaxed. A thread that gets a packet from a port's intake sees every cancel
//! that was made before this packet was pushed, because the intake orders the push before the
//! take. A cancel that it does not see yet is one that came at the same time: whether the packet is
//! sent or dropped, it comes home once.

use crate::sync::Ordering::Relaxed;
use crate::sync::{Arc, AtomicU32, AtomicU64, Padded};

/// Number of 64-bit words of a table with one bit for each tag.
const WORDS: usize = (u16::MAX as usize + 1) / 64;

/// Counts the cancels that stand in a link: see [`Pool::cancel`](crate::Pool::cancel). Clones count
/// together. A link gives a clone to each of its ports, so that an owner sees with one load whether
/// it has to look for cancelled packets.
#[derive(Clone, Debug)]
pub struct Cancels(Arc<Padded<AtomicU32>>);

impl Default for Cancels {
    fn default() -> Self {
        Self(Arc::new(Padded(AtomicU32::new(0))))
    }
}

impl Cancels {
    /// Whether any cancel stands, so that packets may be [cancelled](crate::Packet::is_cancelled).
    #[must_use]
    #[inline]
    pub fn stand(&self) -> bool {
        self.0.0.load(Relaxed) > 0 // Relaxed: see the module.
    }
}

/// The cancelled tags of one pool.
#[derive(Debug)]
pub(crate) struct Cancelled {
    tags: Box<[AtomicU64]>,
    cancels: Cancels,
}

impl Cancelled {
    pub(crate) fn new(cancels: Cancels) -> Self {
        Self { tags: (0..WORDS).map(|_| AtomicU64::new(0)).collect(), cancels }
    }

    /// Whether the tag is cancelled.
    pub(crate) fn has(&self, tag: u16) -> bool {
        let (word, bit) = self.place(tag);
        word.load(Relaxed) & bit != 0 // Relaxed: see the module.
    }

    /// Cancels the tag.
    pub(crate) fn add(&self, tag: u16) {
        let (word, bit) = self.place(tag);
        // Relaxed: see the module.
        if word.fetch_or(bit, Relaxed) & bit == 0 {
            self.cancels.0.0.fetch_add(1, Relaxed);
        }
    }

    /// Ends the cancel of the tag.
    pub(crate) fn remove(&self, tag: u16) {
        let (word, bit) = self.place(tag);
        // Relaxed: see the module.
        if word.fetch_and(!bit, Relaxed) & bit != 0 {
            self.cancels.0.0.fetch_sub(1, Relaxed);
        }
    }

    fn place(&self, tag: u16) -> (&AtomicU64, u64) {
        (&self.tags[usize::from(tag / 64)], 1 << (tag % 64))
    }
}

impl Drop for Cancelled {
    /// Ends all cancels of the pool, whose packets are all home.
    fn drop(&mut self) {
        // Relaxed: see the module.
        let standing = self.tags.iter().map(|word| word.load(Relaxed).count_ones()).sum();
        self.cancels.0.0.fetch_sub(standing, Relaxed);
    }
}
