//! A tree of qdiscs with the frames of one direction.

use std::collections::HashMap;

use onramp_core::qdisc::Dequeue;
use onramp_core::{ConfigError, Instant, Setup, Totals, Tree, frame};
use onramp_queue::{Layer, PAYLOAD_MAX, Packet};
use smoltcp::phy::{Medium, PacketMeta};
use smoltcp::time::Instant as Micros;

use crate::error::{self, Error};
use crate::time;

/// What a new frame consists of before the stack writes it.
static ZEROS: [u8; PAYLOAD_MAX] = [0; PAYLOAD_MAX];

/// The frames of one direction, and the tree of qdiscs that they pass.
///
/// Nothing is lost silently: at any time, `totals().enqueued_packets` is [`delivered`] +
/// `totals().dropped_packets()` + [`held`].
///
/// [`delivered`]: Self::delivered
/// [`held`]: Self::held
#[derive(Debug)]
pub struct Direction {
    tree: Tree,
    layer: Layer,
    seed: u64,
    /// The latest time that the direction was told. A tree's clock does not go back.
    now: Instant,
    /// A frame that has left the tree but has not been fetched.
    ready: Option<Packet>,
    /// The metadata of the frames in the tree, by their cookies, if they have any.
    metas: HashMap<u64, PacketMeta>,
    cookies: u64,
}

impl Direction {
    pub(crate) fn new(setup: &Setup, medium: Medium, mtu: usize, seed: u64) -> Result<Self, Error> {
        let (layer, tree) = (error::layer(medium)?, error::build(setup, mtu, seed)?);
        let (now, ready, metas, cookies) = (Instant(0), None, HashMap::new(), 0);
        Ok(Self { tree, layer, seed, now, ready, metas, cookies })
    }

    /// Returns what the tree has counted: frames that came, frames that left the tree, and drops by
    /// reason.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.tree.totals()
    }

    /// Returns how many frames have come out at the far side: the inner device or the peer has
    /// them.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.totals().sent_packets - u64::from(self.ready.is_some())
    }

    /// Returns how many frames are under way.
    #[must_use]
    pub fn held(&self) -> u64 {
        u64::from(self.tree.backlog().packets) + u64::from(self.ready.is_some())
    }

    /// Returns how many bytes are under way.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let ready = self.ready.as_ref().map_or(0, |packet| packet.len.into());
        self.tree.backlog().bytes + ready
    }

    /// Changes the tree by a line of `tc`, while frames are in it: see
    /// [`Tree::apply`](onramp_core::Tree::apply). A qdisc that is replaced drops its frames.
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] that names the wrong word and what would be right. The tree is unchanged
    /// then.
    pub fn change(&mut self, now: Micros, line: &str) -> Result<(), ConfigError> {
        let now = self.at(now);
        self.tree.apply(now, line)?;
        self.forget_drops();
        Ok(())
    }

    /// Returns the time at which the next frame may leave; a time that is not after `now` means
    /// that one waits to be fetched. `None`: no frame is under way.
    pub(crate) fn due(&mut self, now: Micros) -> Option<Micros> {
        let at = self.at(now);
        if self.ready.is_none() {
            match self.dequeue(at) {
                Dequeue::Ready(packet) => self.ready = Some(packet),
                Dequeue::NotBefore(then) => return Some(time::for_stack(then)),
                Dequeue::Empty => return None,
            }
        }
        Some(now)
    }

    /// Returns the next frame that may leave now.
    pub(crate) fn next(&mut self, now: Micros) -> Option<(Packet, PacketMeta)> {
        let at = self.at(now);
        let waiting = self.ready.take();
        let mut packet = waiting.or_else(|| match self.dequeue(at) {
            Dequeue::Ready(packet) => Some(packet),
            Dequeue::NotBefore(_) | Dequeue::Empty => None,
        })?;
        if packet.ecn == 3 {
            // False only for a frame that is not IP, and qdiscs mark none of these.
            frame::write_ce(&mut packet);
        }
        let meta = self.metas.remove(&packet.cookie).unwrap_or_default();
        Some((packet, meta))
    }

    /// Lets `write` fill a new frame of `len` bytes, and gives it to the tree.
    pub(crate) fn write<R>(
        &mut self,
        now: Micros,
        meta: PacketMeta,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let mut packet = Packet::with_payload(&ZEROS[..len]);
        let result = write(packet.payload_mut());
        self.submit(now, meta, packet);
        result
    }

    /// Gives a frame to the tree, which holds it, drops it, or lets it go.
    pub(crate) fn submit(&mut self, now: Micros, meta: PacketMeta, mut packet: Packet) {
        let at = self.at(now);
        packet.set_layer(self.layer);
        frame::describe(&mut packet, self.seed);
        (packet.enqueued_ns, packet.cookie) = (at.0, self.cookies);
        if meta != PacketMeta::default() {
            self.metas.insert(self.cookies, meta);
        }
        self.cookies += 1;
        // The tree counts what it drops.
        let _ = self.tree.enqueue(at, packet);
        self.forget_drops();
    }

    fn dequeue(&mut self, at: Instant) -> Dequeue {
        let answer = self.tree.dequeue(at);
        self.forget_drops();
        answer
    }

    fn forget_drops(&mut self) {
        for packet in self.tree.drops() {
            self.metas.remove(&packet.cookie);
        }
    }

    fn at(&mut self, now: Micros) -> Instant {
        self.now = self.now.max(time::for_tree(now));
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metadata of dropped frames takes no memory.
    #[test]
    fn metadata_goes_with_its_frame() {
        let setup = error::setup("pfifo limit 2").expect("a tree");
        let direction = Direction::new(&setup, Medium::Ip, 1_500, 1);
        let mut direction = direction.expect("a direction");
        let mut meta = PacketMeta::default();
        meta.id = 9;
        for _ in 0..5 {
            direction.write(Micros::ZERO, meta, 20, |_| ());
        }
        assert_eq!((direction.held(), direction.metas.len()), (2, 2));
        while let Some((_, of_frame)) = direction.next(Micros::ZERO) {
            assert_eq!(of_frame, meta);
        }
        assert!(direction.metas.is_empty());
    }
}
