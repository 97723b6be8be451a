//! Which hints packets get: see `Node::link`.

/// A packet's hint leads to the packet that the same sender submitted so many packets earlier. An
/// owner waits for the newest so many packets of each sender, and has prefetched the others when it
/// comes to them. With 480 simulated threads on 30 ports, 4 is 3 % better than 2.
pub(crate) const AHEAD: u32 = 4;

/// The packets that a sender submitted last, by the addresses of their nodes.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// The place `turn % AHEAD` has the oldest one.
    nodes: [usize; AHEAD as usize],
    turn: usize,
}

impl Recent {
    /// Puts a packet in the place of the oldest one, and returns that one.
    #[inline]
    pub(crate) fn replace(&mut self, node: usize) -> usize {
        let at = self.turn % self.nodes.len();
        self.turn = self.turn.wrapping_add(1);
        std::mem::replace(&mut self.nodes[at], node)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ptr;

    use super::*;
    use crate::node::Node;
    use crate::{Credits, PacketList, Pool};

    /// The hint of a packet leads to the one that was submitted four packets earlier, whether they
    /// are submitted one by one or together; the first ones have none.
    #[test]
    fn hints_lead_to_earlier_packets() {
        let ahead = AHEAD as usize;
        for together in [1, 3, 12] {
            let mut pool = Pool::new(Credits { packets: 12, bytes: 12 });
            let (mut lists, mut seen) = (Vec::new(), Vec::new());
            for _ in 0..12 / together {
                let mut some: PacketList = (0..together).filter_map(|_| pool.take(1)).collect();
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
                lists.push(list);
            }
            assert_eq!(seen.len(), 12);
            for (number, &(address, hint)) in seen.iter().enumerate() {
                if number < ahead {
                    assert_eq!(hint, address, "{together}, {number}: none");
                } else if number >= 2 * ahead {
                    assert_eq!(hint, seen[number - ahead].0, "{together}, {number}");
                }
            }
        }
    }
}
