//! How packets of a sender get into their port.

use onramp_core::Clock;
use onramp_queue::{Full, PacketList};

use super::{Sender, is_over};
use crate::Flow;

impl Sender {
    /// Stages what there is room for of packets of `flow`. Gives the number of those staged, and of
    /// those that were not and went back to the pool.
    pub(super) fn submit_list(&mut self, flow: &Flow, list: &mut PacketList) -> (usize, usize) {
        // Not before the packets were made: meanwhile the flow may have left a dead port.
        let (count, port) = (list.len(), self.port_of(flow));
        if self.push_parts(port, list) {
            return (count as usize, 0);
        }
        let left = list.len();
        self.end.counters.refused.add(left.into());
        for packet in list {
            self.pool.take_back(packet);
        }
        ((count - left) as usize, left as usize)
    }

    /// Stages packets in one piece, or, when that does not fit, as many as do: a list may be
    /// longer than the intake's cap. False: the rest is left in the list.
    pub(super) fn push_parts(&mut self, port: usize, list: &mut PacketList) -> bool {
        if self.push(port, list) {
            return true;
        }
        while let Some(packet) = list.pop_front() {
            let mut one = PacketList::from_iter([packet]);
            if !self.push(port, &mut one) {
                one.append(list);
                *list = one;
                return false;
            }
        }
        true
    }

    /// Stages packets: one clock reading and one exchange. False: what is left in the list was not.
    ///
    /// The list stays where it is until the clock was read: to move it right after it was written
    /// would wait for the stores.
    #[inline]
    pub(super) fn push(&mut self, mut port: usize, list: &mut PacketList) -> bool {
        if !self.corked.is_empty() {
            if self.shared().is_copy() {
                return false;
            }
            // A port may have come since the cork.
            self.corked.resize_with(self.corked.len().max(port + 1), PacketList::new);
            self.corked[port].append(list);
            return true;
        }
        if !self.shared().is_open() {
            port = self.shared().front(port);
            if self.shared().is_copy() || !self.push_changed(port, list) {
                return false;
            }
        }
        list.is_empty() || self.push_now(port, list)
    }

    /// Packets for `port` after ports changed: stages those that have another port now. False: what
    /// is left in the list may not be staged now.
    #[cold]
    fn push_changed(&mut self, port: usize, list: &mut PacketList) -> bool {
        if self.shared().slot(port).is_open() {
            return true;
        }
        while let Some(packet) = list.pop_front() {
            let successor = self.shared().route(port, packet.flow);
            let mut one = PacketList::from_iter([packet]);
            // The port may go, or get a packet that was on its way, in the middle of the list.
            if !self.shared().slot(successor).is_open() || !self.push_now(successor, &mut one) {
                one.append(list);
                *list = one;
                return false;
            }
        }
        true
    }

    #[inline]
    fn push_now(&mut self, port: usize, list: &mut PacketList) -> bool {
        let Self { handle, pool, end, .. } = self;
        let shared = &*handle.shared;
        let slot = shared.slot(port);
        slot.port.prefetch(); // Another sender had it; it comes while we look at the clock.
        let now = shared.clock.now();
        pool.submit(list, now.0);
        let count = list.len();
        match slot.port.xmit(std::mem::take(list), now, &shared.waker(slot)) {
            Ok(ran) => {
                end.counters.submitted.add(u64::from(count));
                if let Some(ran) = ran {
                    self.slice_over = is_over(self.slice_start, now);
                    shared.follow_up(slot, ran);
                }
                true
            }
            Err(Full(back)) => {
                *list = back;
                pool.revoke(list);
                false
            }
        }
    }
}
