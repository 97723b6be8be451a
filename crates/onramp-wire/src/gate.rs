//! The gate that lets packets pass as a schedule says.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Tree};
use onramp_queue::Packet;

use crate::schedule::{CHANCE, Chances};
use crate::{ETHERNET, Schedule};

/// Lets packets of a tree pass as a schedule says.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) schedule: Schedule,
    /// The schedule, since the clock began: before, nothing passes.
    pub(crate) chances: Option<Chances>,
    /// A packet of which a part has passed, and the number of bytes that have not.
    pub(crate) passing: Option<(Packet, u32)>,
    pub(crate) behind: Tree,
}

impl Gate {
    /// Moves what passes by `now` out of `tree`.
    pub(crate) fn advance(&mut self, tree: &mut Tree, now: Instant) {
        let Some(chances) = &mut self.chances else { return };
        while chances.next() <= now {
            if self.passing.is_none() && tree.backlog().packets == 0 {
                chances.skip(now);
                return;
            }
            let at = chances.next();
            chances.advance();
            let mut room = CHANCE;
            while room > 0 {
                let (packet, left) = match self.passing.take() {
                    Some(passing) => passing,
                    None => match tree.dequeue(at) {
                        Dequeue::Ready(packet) => {
                            let bytes = packet.len.saturating_sub(ETHERNET).max(1);
                            (packet, bytes)
                        }
                        Dequeue::NotBefore(_) | Dequeue::Empty => break,
                    },
                };
                let part = left.min(room);
                room -= part;
                if part < left {
                    self.passing = Some((packet, left - part));
                } else {
                    let mut packet = packet;
                    packet.enqueued_ns = at.0;
                    // A packet that is dropped is counted by the tree.
                    let _ = self.behind.enqueue(at, packet);
                }
            }
        }
    }
}
