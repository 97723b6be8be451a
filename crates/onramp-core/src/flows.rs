//! Flows served in turn: deficit round robin, with a list of new flows before that of old ones.
//!
//! A flow that had nothing joins the new flows, and sends a quantum before it joins the old ones.
//! One that has nothing left when its turn comes leaves the lists, but from among the new flows it
//! first makes a round among the old ones, or it could come back as new and starve them.
//!
//! Source: RFC 8290, section 4; Linux 7.2 `net/sched/sch_fq_codel.c`, `net/sched/sch_fq_pie.c`.

use onramp_queue::{Packet, PacketList, prefetch};

use crate::turns::{MANY, Turns};

/// Which list a flow is in.
pub(crate) type Age = usize;
pub(crate) const NEW: Age = 0;
pub(crate) const OLD: Age = 1;

/// A queue with the state that its law keeps; with that of CoDel, it is one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Flow<L> {
    pub(crate) queue: PacketList,
    pub(crate) law: L,
    /// Bytes it may still send in this round.
    credit: i32,
    /// It is in one of the lists.
    listed: bool,
}

const _: () = assert!(size_of::<Flow<crate::codel::Codel>>() == 64, "one cache line");

impl<L> Flow<L> {
    /// Bytes it may still send in this round, if it is in a list.
    pub(crate) fn deficit(&self) -> Option<i32> {
        self.listed.then_some(self.credit)
    }

    /// Charges the flow for what it sent.
    #[inline]
    pub(crate) fn charge(&mut self, pkt: &Packet) {
        self.credit = self.credit.saturating_sub_unsigned(pkt.len);
    }
}

#[derive(Debug)]
pub(crate) struct Flows<L> {
    flows: Box<[Flow<L>]>,
    /// By age.
    lists: [Turns; 2],
    quantum: i32,
    /// How often a flow was new.
    pub(crate) new_flow_count: u64,
}

impl<L: Default> Flows<L> {
    pub(crate) fn new(count: u32, quantum: u32) -> Self {
        let fresh =
            || Flow { queue: PacketList::new(), law: L::default(), credit: 0, listed: false };
        Self {
            flows: (0..count).map(|_| fresh()).collect(),
            lists: Default::default(),
            quantum: i32::try_from(quantum).unwrap_or(i32::MAX),
            new_flow_count: 0,
        }
    }

    /// Forgets all that is known of the flows, and gives what they held.
    pub(crate) fn reset(&mut self) -> PacketList {
        self.lists.iter_mut().for_each(Turns::clear);
        let mut held = PacketList::new();
        for flow in &mut self.flows {
            held.append(&mut flow.queue);
            (flow.law, flow.listed) = (L::default(), false);
        }
        held
    }
}

impl<L> Flows<L> {
    #[inline]
    pub(crate) fn get(&self, index: usize) -> &Flow<L> {
        &self.flows[index]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Flow<L> {
        &mut self.flows[index]
    }

    pub(crate) fn all(&self) -> &[Flow<L>] {
        &self.flows
    }

    /// Appends a packet to a flow, and a flow that is in no list to the new ones.
    #[inline]
    pub(crate) fn push(&mut self, index: usize, pkt: Packet) {
        let flow = &mut self.flows[index];
        flow.queue.push_back(pkt);
        if !flow.listed {
            (flow.credit, flow.listed) = (self.quantum, true);
            self.new_flow_count += 1;
            self.append(index, NEW);
        }
    }

    /// Packets of these buckets are about to come.
    #[inline]
    pub(crate) fn foresee(&self, buckets: impl Iterator<Item = usize> + Clone) {
        if self.flows.len() <= MANY {
            return;
        }
        buckets.clone().for_each(|index| prefetch(&self.flows[index]));
        buckets.for_each(|index| self.flows[index].queue.prefetch_back());
    }

    /// The flow whose turn it is, and its list.
    #[inline]
    pub(crate) fn turn(&mut self) -> Option<(Age, usize)> {
        loop {
            let age = if self.lists[NEW].is_empty() { OLD } else { NEW };
            let first = self.lists[age].first()?;
            if let Some([far, _, near]) = self.lists[age].look_ahead() {
                prefetch(&self.flows[far as usize]);
                self.flows[near as usize].queue.prefetch_front();
            }
            let flow = &mut self.flows[first as usize];
            if flow.credit > 0 {
                return Some((age, first as usize));
            }
            flow.credit += self.quantum;
            self.lists[age].pop_front();
            self.append(first as usize, OLD);
        }
    }

    /// The first flow of a list has nothing left.
    #[inline]
    pub(crate) fn retire(&mut self, age: Age) {
        let Some(first) = self.lists[age].first() else { return };
        let index = first as usize;
        self.lists[age].pop_front();
        if age == NEW && !self.lists[OLD].is_empty() {
            self.append(index, OLD);
        } else {
            self.flows[index].listed = false;
        }
    }

    #[inline]
    fn append(&mut self, index: usize, age: Age) {
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 65,536 flows")]
        let place = index as u32;
        self.lists[age].push_back(place);
    }

    /// Other bytes of a round, from the next one on.
    pub(crate) fn set_quantum(&mut self, quantum: u32) {
        self.quantum = i32::try_from(quantum).unwrap_or(i32::MAX);
    }

    /// Flows in a list.
    pub(crate) fn listed(&self, age: Age) -> u64 {
        self.lists[age].len() as u64
    }
}
