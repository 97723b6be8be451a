//! A queue of packets, sorted by departure time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use onramp_queue::Packet;

/// A queue of packets in the order of their departure times. Packets with equal times leave in the
/// order in which they were pushed.
///
/// Most packets are pushed in the order of their departure times; these form a line. A packet whose
/// time is before that of the last packet in the line goes into a heap instead. So the last packet
/// in the line leaves after all packets in the heap, and if a packet in the line and a packet in
/// the heap have equal times, the packet in the line was pushed first and leaves first.
#[derive(Debug, Default)]
pub(crate) struct TimeQueue {
    line: VecDeque<(u64, Packet)>,
    heap: BinaryHeap<Reverse<Early>>,
    came: u64,
}

/// A packet in the heap: when it was pushed, a packet with a later departure time was in the queue.
#[derive(Debug)]
struct Early {
    at_ns: u64,
    came: u64,
    pkt: Packet,
}

impl Early {
    fn key(&self) -> (u64, u64) {
        (self.at_ns, self.came)
    }
}

impl PartialEq for Early {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Early {}

impl PartialOrd for Early {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Early {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl TimeQueue {
    /// Returns the latest departure time of all packets in the queue, or `None` if the queue is
    /// empty.
    pub(crate) fn last_ns(&self) -> Option<u64> {
        self.line.back().map(|(at_ns, _)| *at_ns)
    }

    #[inline]
    pub(crate) fn push(&mut self, at_ns: u64, pkt: Packet) {
        if self.last_ns().is_none_or(|last_ns| at_ns >= last_ns) {
            self.line.push_back((at_ns, pkt));
        } else {
            self.came += 1;
            self.heap.push(Reverse(Early { at_ns, came: self.came, pkt }));
        }
    }

    /// Returns the earliest departure time, or `None` if the queue is empty.
    #[inline]
    pub(crate) fn first_ns(&self) -> Option<u64> {
        let line = self.line.front().map(|(at_ns, _)| *at_ns);
        let heap = self.heap.peek().map(|early| early.0.at_ns);
        line.into_iter().chain(heap).min()
    }

    #[inline]
    fn heap_is_first(&self) -> bool {
        match (self.line.front(), self.heap.peek()) {
            (Some((line_ns, _)), Some(early)) => early.0.at_ns < *line_ns,
            _ => false,
        }
    }

    /// Returns the packet that leaves next, or `None` if the queue is empty.
    pub(crate) fn first(&self) -> Option<&Packet> {
        if self.heap_is_first() {
            self.heap.peek().map(|early| &early.0.pkt)
        } else {
            self.line.front().map(|(_, pkt)| pkt)
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Packet> {
        if self.heap_is_first() {
            self.heap.pop().map(|early| early.0.pkt)
        } else {
            self.line.pop_front().map(|(_, pkt)| pkt)
        }
    }
}
