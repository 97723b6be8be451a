//! How a sender pushes packets into a port.

use onramp_core::Clock;
use onramp_queue::{Full, PacketList};

use super::{Sender, is_over};
use crate::Flow;

impl Sender {
    /// Stages as many packets of `flow` as there is room for. Returns the number of staged packets,
    /// and the number of packets that were not staged and went back to the pool.
    pub(super) fn submit_list(&mut self, flow: &Flow, list: &mut PacketList) -> (usize, usize) {
        // Choose the port only now, after the packets were made: while they were made, the flow may
        // have left a dead port.
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

    /// Stages all packets of the list with one push, or, if they do not fit, as many as do: a list
    /// may be longer than the intake's cap. Returns false if packets are left in the list.
    pub(super) fn push_parts(&mut self, port: usize, list: &mut PacketList) -> bool {
        if self.push_or_cork(port, list) {
            return true;
        }
        while let Some(packet) = list.pop_front() {
            let mut one = PacketList::from_iter([packet]);
            if !self.push_or_cork(port, &mut one) {
                one.append(list);
                *list = one;
                return false;
            }
        }
        true
    }

    /// Stages packets, or holds them back while the sender is corked. Returns false if packets are
    /// left in the list because they were not staged.
    #[inline]
    pub(super) fn push_or_cork(&mut self, port: usize, list: &mut PacketList) -> bool {
        if self.corked.is_empty() && self.shared().is_open() {
            return list.is_empty() || self.push(port, list);
        }
        self.push_specially(port, list)
    }

    /// Holds packets back while the sender is corked, or stages packets of a link whose ports have
    /// changed or that is closing.
    #[cold]
    pub(super) fn push_specially(&mut self, mut port: usize, list: &mut PacketList) -> bool {
        if !self.corked.is_empty() {
            if self.shared().is_copy() {
                return false;
            }
            // The link may have got more ports since the cork began.
            self.corked.resize_with(self.corked.len().max(port + 1), PacketList::new);
            self.corked[port].append(list);
            return true;
        }
        port = self.shared().front(port);
        if self.shared().is_copy() || !self.push_changed(port, list) {
            return false;
        }
        list.is_empty() || self.push(port, list)
    }

    /// Handles packets for `port` after ports were removed: stages those packets whose flows have
    /// another port now. Returns false if the packets left in the list may not be staged now.
    #[cold]
    fn push_changed(&mut self, port: usize, list: &mut PacketList) -> bool {
        if self.shared().slot(port).is_open() {
            return true;
        }
        while let Some(packet) = list.pop_front() {
            let successor = self.shared().route(port, packet.flow);
            let mut one = PacketList::from_iter([packet]);
            // While this loop runs, the successor may be removed as well, or may turn out to hold a
            // packet that was still on its way in.
            if !self.shared().slot(successor).is_open() || !self.push(successor, &mut one) {
                one.append(list);
                *list = one;
                return false;
            }
        }
        true
    }

    /// Stages packets with one clock reading and one atomic exchange. Returns false if packets are
    /// left in the list because the intake is full.
    ///
    /// The list is not moved until the clock was read: moving it right after it was written would
    /// stall until the processor's stores are done.
    #[inline]
    pub(super) fn push(&mut self, port: usize, list: &mut PacketList) -> bool {
        let Self { handle, pool, end, .. } = self;
        let shared = &*handle.shared;
        let slot = shared.slot(port);
        // Another sender used this memory last. The processor fetches it while we read the clock.
        slot.port.prefetch();
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
