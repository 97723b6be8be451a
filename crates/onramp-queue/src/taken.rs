//! Packets that an owner has taken from an intake and puts in order step by step.

use std::ptr;

use crate::PacketList;
use crate::node::Node;

/// Packets that an owner has taken from an [`Intake`](crate::Intake), in which they are linked from
/// the newest to the oldest.
///
/// Which packet is the oldest is known only after a walk over all of them, and each step of the
/// walk waits for memory that another processor wrote: 60 to 250 ns on large machines. A packet of
/// a busy sender therefore says where an earlier packet of that sender lies, so that the walk can
/// prefetch it. An owner that may not work for so long walks a part of the way with
/// [`order`](Self::order), keeps the value, and leaves the rest to the next owner.
///
/// ```
/// use onramp_queue::{Intake, Packet, PacketList, Pushed};
///
/// let intake = Intake::new((), 100, 100);
/// let push = |length| intake.push(PacketList::from_iter([Packet::new(length)])).unwrap();
/// let Pushed::Owner { mut owner, .. } = push(0) else { unreachable!("the intake was idle") };
/// (1..=5).for_each(|length| assert!(matches!(push(length), Pushed::Staged { .. })));
///
/// let mut taken = owner.take_unordered();
/// assert!(!taken.order(3), "two packets are left");
/// assert!(taken.order(3));
/// let lengths: Vec<u32> = taken.ordered().map(|packet| packet.len).collect();
/// assert_eq!(lengths, [1, 2, 3, 4, 5]);
/// assert!(owner.leave_idle().is_ok());
/// ```
#[derive(Debug)]
pub struct Taken {
    /// The newest of the packets that are not in order yet.
    newest: *mut Node,
    /// How many these are.
    left: u32,
    /// The packets that are in order. All of them are newer than the others.
    ordered: PacketList,
}

// SAFETY: the value owns its nodes exclusively.
unsafe impl Send for Taken {}

impl Default for Taken {
    fn default() -> Self {
        Self { newest: ptr::null_mut(), left: 0, ordered: PacketList::new() }
    }
}

impl Taken {
    /// # Safety
    ///
    /// `newest` begins a chain of `count` nodes that is linked from the newest to the oldest
    /// packet and ends at null. The caller owns the chain exclusively, and gives it up.
    #[inline]
    pub(crate) unsafe fn new(newest: *mut Node, count: u32) -> Self {
        Self { newest, left: count, ordered: PacketList::new() }
    }

    /// Puts up to `most` packets in order. Returns whether all packets are in order now.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub fn order(&mut self, most: u32) -> bool {
        for _ in 0..most.min(self.left) {
            // SAFETY: this value owns the `left` nodes of the chain; this node leaves it here.
            let (older, hint) = unsafe { self.ordered.push_front_node(self.newest) };
            crate::sync::prefetch_write(hint);
            self.newest = older;
            self.left -= 1;
        }
        self.left == 0
    }

    /// Puts all packets in order and returns them, the oldest first.
    #[inline]
    #[must_use]
    #[cfg_attr(sim, track_caller)]
    pub fn ordered(mut self) -> PacketList {
        self.order(u32::MAX);
        std::mem::take(&mut self.ordered)
    }

    /// Returns the number of packets.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        self.left + self.ordered.len()
    }

    /// Whether there are no packets.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Taken {
    #[inline]
    fn drop(&mut self) {
        self.order(u32::MAX);
    }
}
