//! One machine word that holds a list of nodes (the memory of packets), the length of the list and
//! a few flags. A node's link to the next node is such a word, too, with a hint (see `Node::link`)
//! in place of the length and the flags.
//!
//! ```text
//!   63      48 47                    6 5      0
//!  +----------+-----------------------+--------+
//!  |  count   |  newest node, or null | flags  |
//!  +----------+-----------------------+--------+
//! ```
//!
//! Nodes are 64-byte aligned and live in the lower 48 bits of the address space. (Linux maps memory
//! there unless a program asks for higher addresses.) [`Word::assert_holds`] checks alignment and
//! address of each new node. The word is stored as a pointer, so that it carries the provenance of
//! the newest node.

use super::Node;

/// The bits of the flags: the low bits, which are zero in the address of every node because of its
/// alignment.
const FLAGS: usize = 0x3f;
const COUNT_SHIFT: u32 = 48;
const NODE: usize = ((1 << COUNT_SHIFT) - 1) & !FLAGS;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("onramp-queue packs a 48-bit pointer and a 16-bit count into one 64-bit word");

/// One value of the packed word: address of the newest node, length of the list, and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) *mut Node);

impl Word {
    pub(crate) const ZERO: Self = Self(std::ptr::null_mut());

    /// # Panics
    ///
    /// Panics when the address of `node` does not fit the word: the address is not a multiple of
    /// 64, or is 2^48 or more.
    pub(crate) fn assert_holds(node: *mut Node) {
        let addr = node.addr();
        assert!(addr & !NODE == 0, "onramp-queue packs addresses into 48 bits; got {addr:#x}");
    }

    /// Returns a word with the flags `flags` and no nodes.
    #[inline]
    pub(crate) const fn flags_only(flags: usize) -> Self {
        Self(std::ptr::without_provenance_mut(flags))
    }

    /// Returns the word for a list of `count` nodes, of which `node` is the newest, with the flags
    /// `flags`.
    #[inline]
    pub(crate) fn with(node: *mut Node, count: u16, flags: usize) -> Self {
        debug_assert_eq!(node.addr() & !NODE, 0, "checked when it was made");
        Self(node.map_addr(|addr| addr | flags | (usize::from(count) << COUNT_SHIFT)))
    }

    /// Returns the word that has the bits `beside` beside the address of `node`.
    #[inline]
    pub(crate) fn with_beside(node: *mut Node, beside: usize) -> Self {
        debug_assert_eq!((node.addr() & !NODE, beside & NODE), (0, 0), "no bit belongs to both");
        Self(node.map_addr(|addr| addr | beside))
    }

    /// Returns the bits that are not part of the node's address: in the word of an intake or a
    /// home, the count and the flags; in the link of a node, its hint.
    #[inline]
    pub(crate) fn beside(self) -> usize {
        self.0.addr() & !NODE
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

    /// Returns a word with the same list and the flags `flags`.
    #[inline]
    pub(crate) fn with_flags(self, flags: usize) -> Self {
        Self(self.0.map_addr(|addr| (addr & !FLAGS) | flags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(addr: usize) -> *mut Node {
        std::ptr::without_provenance_mut(addr)
    }

    #[test]
    fn parts_do_not_touch_each_other() {
        let top = node(NODE);
        for count in [0, 1, 0x7fff, 0x8000, u16::MAX] {
            for flags in [0, 1, FLAGS] {
                let word = Word::with(top, count, flags);
                assert_eq!((word.node(), word.count(), word.flags()), (top, count, flags));
                let other = word.with_flags(2);
                assert_eq!((other.node(), other.count(), other.flags()), (top, count, 2));
                let empty = Word::with(node(0), count, flags);
                assert!(empty.node().is_null());
                assert_eq!((empty.count(), empty.flags()), (count, flags));
            }
        }
        assert!(Word::flags_only(2).has(2) && !Word::flags_only(2).has(1));
        assert_eq!(Word::flags_only(0), Word::ZERO);
    }

    #[test]
    fn addresses_that_fit() {
        Word::assert_holds(node(64));
        Word::assert_holds(node((1 << 48) - 64));
    }

    #[test]
    #[should_panic(expected = "48 bits; got 0x1000000000000")]
    fn addresses_too_high() {
        Word::assert_holds(node(1 << 48));
    }

    #[test]
    #[should_panic(expected = "48 bits; got 0x20")]
    fn addresses_not_aligned() {
        Word::assert_holds(node(32));
    }
}
