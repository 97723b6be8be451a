//! How a sender pushes packets into a port's intake.

use onramp_core::Clock;
use onramp_queue::{Full, PacketList};

use super::{Sender, is_over};
use crate::Flow;

impl Sender {
    /// Stages as many packets of `flow` as there is room for. Returns the number of staged packets,
    /// and the number of packets that were not staged, which go back to the sender's pool.
    pub(super) fn submit_list(&mut self, flow: &Flow, list: &mut PacketList) -> (usize, usize) {
        // Choose the port only now, after the packets were made. While they were made, the flow may
        // have changed to another port because its port died.
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

    /// Stages all packets of the list with one push. If they do not fit (a list may be longer than
    /// the cap of the intake), stages as many as do. Returns false if packets are left in the list.
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

    /// Stages packets or, while the sender is corked, holds them back. Returns false if packets are
    /// left in the list because they were not staged.
    #[inline]
    pub(super) fn push_or_cork(&mut self, port: usize, list: &mut PacketList) -> bool {
        if self.corked.is_empty() && self.shared().is_open() {
            return list.is_empty() || self.push(port, list);
        }
        self.push_specially(port, list)
    }

    /// The slow path: holds packets back while the sender is corked, or stages packets of a link
    /// that is closing or whose ports have changed.
    #[cold]
    pub(super) fn push_specially(&mut self, mut port: usize, list: &mut PacketList) -> bool {
        if !self.corked.is_empty() {
            if self.shared().is_copy() {
                return false;
            }
            // `corked` has a list of packets for each port. Ports may have been added to the link
            // since the cork began, so add lists for these ports.
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

    /// Handles packets for `port` on a link from which ports were removed. If `port` was removed,
    /// stages its packets at the ports that have taken over their flows. Returns false if the
    /// packets left in the list cannot be staged now.
    #[cold]
    fn push_changed(&mut self, port: usize, list: &mut PacketList) -> bool {
        if self.shared().slot(port).is_open() {
            return true;
        }
        while let Some(packet) = list.pop_front() {
            let successor = self.shared().route(port, packet.flow);
            let mut one = PacketList::from_iter([packet]);
            // While this loop runs, the successor may be removed as well, or it may become known
            // that `port` still holds a packet that must leave first.
            if !self.shared().slot(successor).is_open() || !self.push(successor, &mut one) {
                one.append(list);
                *list = one;
                return false;
            }
        }
        true
    }

    /// Stages packets with one reading of the clock and one atomic exchange. Returns false if
    /// packets are left in the list because the intake is full.
    ///
    /// This function copies the head of `list` only after it has read the clock: if it did so right
    /// after the caller had written the list, the processor would stall until the stores are done.
    #[inline]
    pub(super) fn push(&mut self, port: usize, list: &mut PacketList) -> bool {
        let Self { handle, pool, end, watched, .. } = self;
        let shared = &*handle.shared;
        let slot = shared.slot(port);
        // Another sender wrote to the port's memory last. Let the processor fetch that memory while
        // this thread reads the clock.
        slot.port.prefetch();
        let now = shared.clock.now();
        pool.toward(port);
        pool.submit(list, now.0);
        if !watched.is_empty() {
            watched.submit(pool, list);
        }
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
                watched.revoke(pool, list);
                pool.revoke(list);
                false
            }
        }
    }
}
