//! The search through the hash tables of `u32`: from a node that matches into the table that the
//! node is linked with, and back if no node there matches.

use onramp_queue::Packet;

use super::super::Look;
use super::node::fold;
use super::{Node, Selector, word_at};

/// What a node decides about a packet, and where the search goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::filter) enum Step {
    /// Try the next node of the bucket.
    Next,
    /// The node matches, and its filter decides about the packet.
    Match,
    /// Search a bucket of the hash table `table`. The bucket is `hash` modulo the table's number of
    /// buckets.
    Into { table: u32, hash: u32, place: Place },
    /// The packet ends before one of the node's keys: ask no other filter of this preference.
    Leave,
}

/// How far a search has moved on in the packet, because it followed links with `offset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::filter) struct Place {
    /// By how many bytes links with `eat` have moved on from the network header.
    on: i32,
    /// Offset of the next header (`nexthdr`) in bytes, counted from the position `on` bytes after
    /// the network header.
    next: i32,
}

impl Place {
    /// Returns where the search goes on after a linked table in which no node matched: at the
    /// position before the link. As in Linux, the next header stays the one that was found.
    pub(in crate::filter) fn back_to(self, before: Self) -> Self {
        Self { next: self.next, ..before }
    }
}

impl Selector {
    /// Returns whether all keys match, or `None` if the packet ends before one of the keys.
    fn matches(&self, look: &mut Look, pkt: &Packet, place: Place) -> Option<bool> {
        if let Some((value, mask)) = self.mark
            && pkt.mark & mask != value
        {
            return Some(false);
        }
        for key in &self.keys {
            if !key.matches_at(look, pkt, place.on, place.next)? {
                return Some(false);
            }
        }
        Some(true)
    }
}

impl Node {
    /// Whether the node has a class or actions, so that a match decides about the packet.
    pub(in crate::filter) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Returns what the node decides about a packet, and where the search goes on.
    pub(in crate::filter) fn step(&self, look: &mut Look, pkt: &Packet, place: Place) -> Step {
        match self.selector.matches(look, pkt, place) {
            None => Step::Leave,
            Some(false) => Step::Next,
            Some(true) => match self.link {
                None if self.terminal => Step::Match,
                None => Step::Next,
                Some(table) => self.descend(look, pkt, place, table).unwrap_or(Step::Leave),
            },
        }
    }

    fn descend(&self, look: &mut Look, pkt: &Packet, mut place: Place, table: u32) -> Option<Step> {
        let hash = match self.hash.mask {
            0 => 0,
            mask => fold(word_at(look, pkt, place.on + self.hash.offset)?, mask),
        };
        let moves = self.moves;
        if moves.fixed || moves.variable {
            let mut more = i32::from(moves.plus) + 3;
            if moves.variable {
                let word = word_at(look, pkt, place.on + moves.at)?;
                more += i32::try_from((word >> 16 & u32::from(moves.mask)) >> moves.shift).ok()?;
            }
            place.next = more & !3;
        }
        if moves.eat {
            place = Place { on: place.on + place.next, next: 0 };
        }
        let begins = i64::try_from(look.at(pkt).keys().network).ok()? + i64::from(place.on);
        Some(match (begins < i64::from(pkt.len), self.terminal) {
            (true, _) => Step::Into { table, hash, place },
            (false, true) => Step::Match,
            (false, false) => Step::Next,
        })
    }
}
