//! Arrays of packets through a tree in virtual time.

use onramp::qdisc::Dequeue;
use onramp::{Instant, Packet};

use super::{Shaper, keep, reason_number};
use crate::error::{Error, Result};

/// How long a replay waits for a packet to leave, in virtual time. The packets that are left then
/// are dropped (`purged`): the gates of a taprio, for example, may never open for them.
const PATIENCE_NS: u64 = 3_600_000_000_000;

/// What arrives, in order of time: the times in ns, the lengths in bytes, and the flows, which may
/// be missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrivals<'a> {
    pub(crate) in_ns: &'a [u64],
    pub(crate) len: &'a [u32],
    pub(crate) flow: &'a [u64],
}

/// What became of each packet: when it left (`u64::MAX`: it did not), and the number of its drop
/// reason, which may not be asked for.
#[derive(Debug)]
pub(crate) struct Fates<'a> {
    pub(crate) out_ns: &'a mut [u64],
    pub(crate) why: &'a mut [u8],
}

impl Shaper {
    /// Passes packets through the tree in virtual time, in front of a device that takes each packet
    /// at once. A packet that may leave at the instant of an arrival leaves before the arrival.
    pub(crate) fn replay(&mut self, all: &Arrivals<'_>, fates: &mut Fates<'_>) -> Result<()> {
        self.drops.append(&mut self.tree.drops());
        if self.backlog().0 > 0 || !self.drops.is_empty() {
            let text = "the tree holds packets, or dropped packets that onramp_tree_drops has not \
                        returned yet: take them first, or make another tree";
            return Err(Error::new(libc::EBUSY, text));
        }
        if let Some(at) = all.in_ns.windows(2).position(|pair| pair[1] < pair[0]) {
            return Err(Error::invalid(format!("in_ns[{}] is before in_ns[{at}]", at + 1)));
        }
        all.in_ns.first().map_or(Ok(self.now), |first| self.at(*first))?;
        fates.out_ns.fill(u64::MAX);
        fates.why.fill(0);
        let mut next = None;
        for (index, arrival) in all.in_ns.iter().enumerate() {
            while let Some(then) = next.filter(|then| *then <= Instant(*arrival)) {
                next = self.leave(then, fates);
            }
            self.now = Instant(*arrival);
            let flow = all.flow.get(index).copied().unwrap_or(0);
            self.arrive(index as u64, flow, all.len[index]);
            next = self.leave(self.now, fates);
        }
        let mut end = self.now.after(PATIENCE_NS);
        while let Some(then) = next.filter(|then| *then <= end) {
            let held = self.tree.backlog().packets;
            next = self.leave(then, fates);
            if self.tree.backlog().packets < held {
                end = self.now.after(PATIENCE_NS);
            }
        }
        self.tree.reset(self.now);
        self.note_drops(fates);
        // A duplicate has the cookie of its original: one of them left, the other was dropped.
        for (why, _) in fates.why.iter_mut().zip(&*fates.out_ns).filter(|(_, at)| **at < u64::MAX) {
            *why = 0;
        }
        Ok(())
    }

    fn arrive(&mut self, cookie: u64, flow: u64, len: u32) {
        let mut packet = self.free.pop().unwrap_or_else(|| Packet::with_capacity(super::ROOM));
        *packet =
            onramp::Meta { flow, len, cookie, enqueued_ns: self.now.0, ..onramp::Meta::default() };
        packet.set_payload(&[]);
        // The verdict is not needed: `note_drops` finds dropped packets.
        let _ = self.tree.enqueue(self.now, packet);
    }

    /// Takes all packets that may leave at `now`, and notes their fates and those of packets that
    /// were dropped. Returns when to ask again.
    fn leave(&mut self, now: Instant, fates: &mut Fates<'_>) -> Option<Instant> {
        self.now = self.now.max(now);
        let next = loop {
            match self.tree.dequeue(self.now) {
                Dequeue::Ready(packet) => {
                    let left = index(&packet, fates).map(|at| &mut fates.out_ns[at]);
                    // A duplicate has the cookie of its original: the first that leaves counts.
                    if let Some(left) = left {
                        *left = self.now.0.min(*left);
                    }
                    keep(packet, &mut self.free);
                }
                Dequeue::NotBefore(then) => break Some(then),
                Dequeue::Empty => break None,
            }
        };
        self.note_drops(fates);
        next
    }

    fn note_drops(&mut self, fates: &mut Fates<'_>) {
        for packet in self.tree.drops() {
            if let Some(why) = index(&packet, fates).and_then(|at| fates.why.get_mut(at)) {
                *why = reason_number(packet.drop_reason);
            }
            keep(packet, &mut self.free);
        }
    }
}

/// Returns the index of a packet in the arrays, which is its cookie.
fn index(packet: &Packet, fates: &Fates<'_>) -> Option<usize> {
    usize::try_from(packet.cookie).ok().filter(|at| *at < fates.out_ns.len())
}
