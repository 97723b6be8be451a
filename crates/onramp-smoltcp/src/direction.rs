//! A tree of qdiscs with the frames of one direction.

use onramp_core::qdisc::Dequeue;
use onramp_core::{ConfigError, Instant, Setup, Totals, TreeOf, frame};
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
    /// The tree, whose packets have the frames and carry their metadata.
    frames: TreeOf<PacketMeta>,
    layer: Layer,
    seed: u64,
    /// The latest time that the direction was told. A tree's clock does not go back.
    now: Instant,
}

impl Direction {
    pub(crate) fn new(setup: &Setup, medium: Medium, mtu: usize, seed: u64) -> Result<Self, Error> {
        let (layer, tree) = (error::layer(medium)?, error::build(setup, mtu, seed)?);
        Ok(Self { frames: TreeOf::new(tree), layer, seed, now: Instant(0) })
    }

    /// Returns what the tree has counted: frames that came, frames that left the tree, and drops by
    /// reason.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.frames.tree().totals()
    }

    /// Returns how many frames have come out at the far side: the inner device or the peer has
    /// them.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.totals().sent_packets
    }

    /// Returns how many frames are under way.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.frames.tree().backlog().packets.into()
    }

    /// Returns how many bytes are under way.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.frames.tree().backlog().bytes
    }

    /// Changes the tree by a line of `tc`, while frames are in it: see
    /// [`Tree::apply`](onramp_core::Tree::apply). A qdisc that is replaced drops its frames.
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] that names the wrong word and what would be right, also for a filter at
    /// the ingress, which no frame would meet. The tree is unchanged then.
    pub fn change(&mut self, now: Micros, line: &str) -> Result<(), ConfigError> {
        let now = self.at(now);
        self.frames.tree().setup().clone().apply_leaving(line)?;
        self.frames.tree_mut().apply(now, line)?;
        self.forget_drops();
        Ok(())
    }

    /// Returns the time at which the next frame may leave; a time that is not after `now` means
    /// that one waits to be fetched. `None`: no frame is under way.
    pub(crate) fn due(&mut self, now: Micros) -> Option<Micros> {
        let at = self.at(now);
        let next = self.frames.tree_mut().next_at(at);
        self.forget_drops();
        next.map(|next| if next == at { now } else { time::for_stack(next) })
    }

    /// Returns the next frame that may leave now.
    pub(crate) fn next(&mut self, now: Micros) -> Option<(Packet, PacketMeta)> {
        let at = self.at(now);
        let answer = self.frames.dequeue(at);
        self.forget_drops();
        let Dequeue::Ready((mut packet, meta)) = answer else { return None };
        if packet.ecn == 3 {
            // False only for a frame that is not IP, and qdiscs mark none of these.
            frame::write_ce(&mut packet);
        }
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
        packet.enqueued_ns = at.0;
        // The tree counts what it drops.
        let _ = self.frames.enqueue(at, packet, meta);
        self.forget_drops();
    }

    fn forget_drops(&mut self) {
        self.frames.drops().for_each(drop);
    }

    fn at(&mut self, now: Micros) -> Instant {
        self.now = self.now.max(time::for_tree(now));
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dropped frames, and their metadata, take no memory: those that do not fit, those that a
    /// qdisc drops to find the next, and those of a qdisc that is replaced.
    #[test]
    fn dropped_frames_are_freed() {
        let setup = error::setup("codel limit 40 target 1ms interval 1ms").expect("a tree");
        let direction = Direction::new(&setup, Medium::Ip, 1_500, 1);
        let mut direction = direction.expect("a direction");
        let mut meta = PacketMeta::default();
        meta.id = 9;
        let mut drops = Vec::new();
        let mut freed = |direction: &mut Direction| {
            drops.push(direction.totals().dropped_packets());
            assert!(direction.frames.drops().next().is_none(), "drops: {drops:?}");
        };
        for _ in 0..50 {
            direction.write(Micros::ZERO, meta, 1_000, |_| ());
        }
        freed(&mut direction);
        for ms in [5, 20, 40, 60] {
            let _ = direction.due(Micros::from_millis(ms));
            freed(&mut direction);
            assert_eq!(direction.next(Micros::from_millis(ms)).map(|(_, meta)| meta), Some(meta));
            freed(&mut direction);
        }
        direction
            .change(Micros::from_millis(60), "qdisc replace dev d root pfifo")
            .expect("a line");
        freed(&mut direction);
        assert_eq!(direction.held(), 0);
        assert!(drops[0] < drops[4] && drops[4] < drops[9], "each way is tried: {drops:?}");
    }
}
