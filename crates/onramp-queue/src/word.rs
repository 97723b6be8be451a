//! One machine word that is a list of nodes, its length and a few flags.
//!
//! ```text
//!   63      48 47                    6 5      0
//!  +----------+-----------------------+--------+
//!  |  count   |  newest node, or null | flags  |
//!  +----------+-----------------------+--------+
//! ```
//!
//! Nodes are 64-byte aligned and live in the lower 47 bits of the address space (so Linux maps
//! them for every program that does not ask otherwise); [`Word::with`] checks both. The word stays
//! a pointer, so the provenance of the newest node travels with it.

use crate::packet::Node;

/// Flags fit below the alignment of a node.
const FLAGS: usize = 0x3f;
const COUNT_SHIFT: u32 = 48;
const NODE: usize = ((1 << COUNT_SHIFT) - 1) & !FLAGS;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("onramp-queue packs a 48-bit pointer and a 16-bit count into one 64-bit word");

/// A value of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) *mut Node);

impl Word {
    pub(crate) const ZERO: Self = Self(std::ptr::null_mut());

    /// No nodes, only flags.
    #[inline]
    pub(crate) const fn flags_only(flags: usize) -> Self {
        Self(std::ptr::without_provenance_mut(flags))
    }

    /// `count` nodes whose newest is `node`.
    #[inline]
    pub(crate) fn with(node: *mut Node, count: u16, flags: usize) -> Self {
        debug_assert_eq!(node.addr() & !NODE, 0, "nodes are aligned and below 2^48");
        Self(node.map_addr(|addr| addr | flags | (usize::from(count) << COUNT_SHIFT)))
    }

    #[inline]
    pub(crate) fn node(self) -> *mut Node {
        self.0.map_addr(|addr| addr & NODE)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "16 bits are left after the shift")]
    pub(crate) fn count(self) -> u16 {
        (self.0.addr() >> COUNT_SHIFT) as u16
    }

    #[inline]
    pub(crate) fn has(self, flag: usize) -> bool {
        self.0.addr() & flag != 0
    }

    #[inline]
    pub(crate) fn flags(self) -> usize {
        self.0.addr() & FLAGS
    }

    /// The same nodes with other flags.
    #[inline]
    pub(crate) fn with_flags(self, flags: usize) -> Self {
        Self(self.0.map_addr(|addr| (addr & !FLAGS) | flags))
    }
}
