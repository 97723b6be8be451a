//! Flows that are served by deficit round robin, where new flows are served before old flows.
//!
//! There are two lists of flows. A flow that was in no list joins the list of new flows, and sends
//! one quantum before it moves to the list of old flows. A flow that has no packets left when its
//! turn comes leaves its list. A new flow without packets is first moved to the end of the old
//! flows, because otherwise it could come back as a new flow at once and keep the old flows from
//! sending.
//!
//! Source: RFC 8290, section 4; Linux 7.2 `net/sched/sch_fq_codel.c`, `net/sched/sch_fq_pie.c`.

use onramp_queue::{Packet, PacketList, prefetch};

use crate::sched::scouts::{scout, turn};
use crate::sched::turns::{MANY, Turns};

/// Which of the two lists a flow is in: [`NEW`] or [`OLD`].
pub(crate) type Age = usize;
pub(crate) const NEW: Age = 0;
pub(crate) const OLD: Age = 1;

/// A flow: a queue of packets, and the state of the law (such as CoDel) that decides which of them
/// are dropped. With the state of CoDel, a flow fills one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Flow<L> {
    pub(crate) queue: PacketList,
    pub(crate) law: L,
    /// Bytes that the flow may still send in this round.
    credit: i32,
    /// Whether the flow is in one of the two lists.
    listed: bool,
}

const _: () = assert!(size_of::<Flow<crate::law::codel::Codel>>() == 64, "one cache line");

impl<L> Flow<L> {
    /// Returns the bytes that the flow may still send in this round, or `None` if the flow is in no
    /// list.
    pub(crate) fn deficit(&self) -> Option<i32> {
        self.listed.then_some(self.credit)
    }

    /// Subtracts the size of a packet that the flow sent from the bytes that the flow may still
    /// send.
    #[inline]
    pub(crate) fn charge(&mut self, pkt: &Packet) {
        self.credit = self.credit.saturating_sub_unsigned(pkt.len);
    }
}

#[derive(Debug)]
pub(crate) struct Flows<L> {
    flows: Box<[Flow<L>]>,
    /// The list of new flows and the list of old flows, indexed by [`NEW`] and [`OLD`].
    lists: [Turns; 2],
    quantum: i32,
    /// Number of times that a flow has joined the list of new flows.
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

    /// Sets all flows back to their initial state, and returns the packets that they held.
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

    /// Appends a packet to the flow number `index`. A flow that is in no list joins the list of new
    /// flows.
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

    /// Asks the processor to prefetch these flows, because packets for them are about to be
    /// enqueued.
    #[inline]
    pub(crate) fn prefetch_flows(&self, buckets: impl Iterator<Item = usize> + Clone) {
        if self.flows.len() <= MANY {
            return;
        }
        buckets.clone().for_each(|index| prefetch(&self.flows[index]));
        buckets.for_each(|index| self.flows[index].queue.prefetch_back());
    }

    /// Prefetches up to `most` packets that will be dequeued next: see
    /// [`Qdisc::prefetch_next`](crate::qdisc::Qdisc::prefetch_next).
    pub(crate) fn prefetch_next(&self, most: u32) {
        let turns = self.lists[NEW].iter().chain(self.lists[OLD].iter());
        let flow = |index: u32| &self.flows[index as usize];
        let queue_of = |index| {
            let Flow { queue, credit, .. } = flow(index);
            (queue, turn(*credit, self.quantum))
        };
        scout(most, turns, |index| prefetch(flow(index)), queue_of);
    }

    /// Returns the number of the flow whose turn it is, and in which list the flow is, or `None` if
    /// no flow is in a list.
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

    /// Takes the first flow, which has no packets left, out of a list. A new flow moves to the end
    /// of the old flows, if there are any, so that it does not come back as a new flow at once.
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

    /// Changes the quantum, in bytes, for each flow from its next round on.
    pub(crate) fn set_quantum(&mut self, quantum: u32) {
        self.quantum = i32::try_from(quantum).unwrap_or(i32::MAX);
    }

    /// Returns the number of flows in the list of new flows or of old flows.
    pub(crate) fn listed(&self, age: Age) -> u64 {
        self.lists[age].len() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A plain model of RFC 8290, section 4.
    struct Model {
        quantum: i64,
        /// For each flow: the sizes of its packets in bytes, the bytes that it may still send in
        /// this round, and whether it is in a list.
        flows: Vec<(VecDeque<u32>, i64, bool)>,
        new: VecDeque<usize>,
        old: VecDeque<usize>,
        were_new: u64,
    }

    impl Model {
        fn push(&mut self, flow: usize, len: u32) {
            let (queue, credit, listed) = &mut self.flows[flow];
            queue.push_back(len);
            if !*listed {
                (*credit, *listed) = (self.quantum, true);
                self.new.push_back(flow);
                self.were_new += 1;
            }
        }

        fn dequeue(&mut self) -> Option<(usize, u32)> {
            loop {
                let is_new = !self.new.is_empty();
                let list = if is_new { &mut self.new } else { &mut self.old };
                let flow = *list.front()?;
                let (queue, credit, listed) = &mut self.flows[flow];
                if *credit <= 0 {
                    *credit += self.quantum;
                    list.pop_front();
                    self.old.push_back(flow);
                } else if let Some(len) = queue.pop_front() {
                    *credit -= i64::from(len);
                    return Some((flow, len));
                } else {
                    list.pop_front();
                    if is_new && !self.old.is_empty() {
                        self.old.push_back(flow);
                    } else {
                        *listed = false;
                    }
                }
            }
        }
    }

    /// Dequeues a packet as a qdisc does that uses `Flows`. Returns the number of the packet's flow
    /// and the size of the packet.
    fn dequeue(flows: &mut Flows<u8>) -> Option<(usize, u32)> {
        loop {
            let (age, index) = flows.turn()?;
            let flow = flows.get_mut(index);
            if let Some(pkt) = flow.queue.pop_front() {
                flow.charge(&pkt);
                return Some((index, pkt.len));
            }
            flows.retire(age);
        }
    }

    /// Random operations give the same packets as the model, with quanta from less than a packet to
    /// many packets.
    #[test]
    fn flows_are_served_as_the_paper_says() {
        let mut noise = 1_u64;
        let mut random = |below: u64| {
            noise =
                noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
            (noise >> 33) % below
        };
        for (quantum, count) in [(1, 3), (3, 3), (4, 6), (10, 2), (300, 40)] {
            let mut flows = Flows::<u8>::new(count, quantum);
            let mut model = Model {
                quantum: quantum.into(),
                flows: vec![(VecDeque::new(), 0, false); count as usize],
                new: VecDeque::new(),
                old: VecDeque::new(),
                were_new: 0,
            };
            for step in 0..3_000 {
                // In turn, the number of queued packets grows for 100 steps and shrinks for 100
                // steps.
                if random(10) < if step % 200 < 100 { 6 } else { 3 } {
                    let flow = usize::try_from(random(count.into())).expect("few");
                    let len = 1 + u32::try_from(random(7)).expect("small");
                    flows.push(flow, Packet::new(len));
                    model.push(flow, len);
                } else {
                    assert_eq!(dequeue(&mut flows), model.dequeue(), "{quantum}, step {step}");
                }
                let lists = [flows.listed(NEW), flows.listed(OLD)];
                assert_eq!(lists, [model.new.len() as u64, model.old.len() as u64]);
                assert_eq!(flows.new_flow_count, model.were_new);
                for (flow, (_, credit, listed)) in flows.all().iter().zip(&model.flows) {
                    assert_eq!(flow.deficit().map(i64::from), listed.then_some(*credit));
                }
            }
        }
    }

    #[test]
    fn after_a_reset_all_is_new() {
        let mut flows = Flows::<u8>::new(4, 100);
        for flow in [2, 0, 2] {
            flows.push(flow, Packet::new(50));
            flows.get_mut(flow).law = 9;
        }
        assert_eq!(flows.reset().len(), 3);
        assert_eq!((flows.turn(), flows.listed(NEW), flows.listed(OLD)), (None, 0, 0));
        assert!(flows.all().iter().all(|flow| flow.law == 0 && flow.deficit().is_none()));
        flows.push(0, Packet::new(50));
        assert_eq!((flows.turn(), flows.new_flow_count), (Some((NEW, 0)), 3));
    }

    /// A new quantum applies from a flow's next round on; what the flow may still send in this
    /// round stays as it is.
    #[test]
    fn the_quantum_may_change() {
        let mut flows = Flows::<u8>::new(2, 100);
        (0..2).for_each(|_| flows.push(0, Packet::new(100)));
        flows.set_quantum(500);
        assert_eq!(flows.get(0).deficit(), Some(100));
        assert_eq!(dequeue(&mut flows), Some((0, 100)));
        assert_eq!(flows.turn(), Some((OLD, 0)));
        assert_eq!(flows.get(0).deficit(), Some(500));
    }
}
