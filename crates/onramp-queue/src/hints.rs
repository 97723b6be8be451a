//! Which hints packets get: see `Node::link`.

/// The hint of a packet leads to the packet that the same sender submitted `AHEAD` packets earlier.
/// (A packet that the port refused counts each time it is submitted.) An owner that walks over a
/// list waits for the newest `AHEAD` packets of each sender, and has prefetched the older ones when
/// it comes to them.
pub(crate) const AHEAD: u32 = 4;

/// The packets that a sender submitted last for one port.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// The addresses of their nodes. The oldest stands at the place `count % AHEAD`.
    nodes: [usize; AHEAD as usize],
    /// How many packets the sender has submitted for this port since it changed to it.
    count: usize,
    port: usize,
}

impl Recent {
    /// Says for which port the sender submits its next packets. The packets of another port are in
    /// the hands of another owner, so no hint leads to them.
    #[inline]
    pub(crate) fn toward(&mut self, port: usize) {
        if self.port != port {
            *self = Self { port, ..Self::default() };
        }
    }

    /// Notes that the sender submits the packet of `node` while `below` of its packets are below.
    /// Returns the address to which the packet's hint leads: that of `node` itself if the packet
    /// submitted `AHEAD` packets earlier may have left.
    #[inline]
    pub(crate) fn hint(&mut self, node: usize, below: u32) -> usize {
        let (at, ahead) = (self.count % self.nodes.len(), self.nodes.len());
        let earlier = std::mem::replace(&mut self.nodes[at], node);
        let is_known = self.count >= ahead && below >= AHEAD;
        self.count += 1;
        if is_known { earlier } else { node }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ptr;

    use super::*;
    use crate::node::Node;
    use crate::{Credits, PacketList, Pool};

    /// Submits packets, so many at a time. Returns the address of each and that of its hint, and
    /// the packets as an owner gets them from the intake.
    fn submit(pool: &mut Pool, times: u32, together: u32) -> (Vec<(usize, usize)>, PacketList) {
        let (mut seen, mut all) = (Vec::new(), PacketList::new());
        for _ in 0..times {
            let mut some: PacketList = (0..together).filter_map(|_| pool.take(1)).collect();
            assert_eq!(some.len(), together);
            pool.submit(&mut some, 0);
            // As `Intake::push` links them, and `Taken` puts them in order.
            let (oldest, mut newest, _) = some.reverse().expect("not empty");
            std::mem::forget(some);
            let (mut list, at) = (PacketList::new(), seen.len());
            // SAFETY: the packets were in a list of this thread, which was forgotten.
            unsafe { Node::turn(oldest, ptr::null_mut()) };
            while !newest.is_null() {
                // SAFETY: as above.
                let (older, hint) = unsafe { list.push_front_node(newest) };
                seen.insert(at, (newest.addr(), hint.addr()));
                newest = older;
            }
            all.append(&mut list);
        }
        (seen, all)
    }

    fn check(seen: &[(usize, usize)], case: &str) {
        let ahead = AHEAD as usize;
        for (number, &(address, hint)) in seen.iter().enumerate() {
            let earlier = number.checked_sub(ahead).map_or(address, |earlier| seen[earlier].0);
            assert_eq!(hint, earlier, "{case}: packet {number}");
        }
    }

    fn pool() -> Pool {
        Pool::new(Credits { packets: 12, bytes: 12 })
    }

    /// The hint of a packet leads to the one that was submitted four packets earlier, whether they
    /// are submitted one by one or together. Packets before which nothing, or nothing that is still
    /// below, was submitted have none.
    #[test]
    fn hints_lead_to_earlier_packets_that_are_below() {
        for together in [1, 3, 12] {
            let mut pool = pool();
            for round in 0..3 {
                let (seen, all) = submit(&mut pool, 12 / together, together);
                check(&seen, &format!("{together} together, round {round}"));
                drop(all);
                assert_eq!(pool.reclaim(|_| ()), 12);
            }
        }
    }

    #[test]
    fn no_hint_leads_to_another_port() {
        let mut pool = pool();
        let mut all = PacketList::new();
        for port in [0, 7, 0] {
            pool.toward(port);
            let (seen, mut some) = submit(&mut pool, 4, 1);
            assert!(seen.iter().all(|(address, hint)| address == hint), "port {port}");
            all.append(&mut some);
        }
    }

    /// A hint may lead to memory that was freed. Only miri, or a tool like it, sees an access.
    #[test]
    fn freed_memory_is_not_touched() {
        let mut pool = pool();
        let (seen, mut packets) = submit(&mut pool, 12, 1);
        check(&seen, "before");
        drop(pool);
        packets.by_ref().take(8).for_each(drop);
        let (oldest, newest, count) = packets.reverse().expect("four are left");
        std::mem::forget(packets);
        // SAFETY: the packets were in a list of this thread, which was forgotten.
        unsafe { Node::set_hint(oldest, seen[0].0) };
        // SAFETY: as above.
        let taken = unsafe { crate::Taken::new(newest, count) };
        assert_eq!(taken.ordered().len(), 4);
    }
}
