//! Prefetches the packets that the queues of several flows will release next.

use onramp_queue::PacketList;

/// The largest number of queues whose packets are prefetched at the same time.
const SCOUTS: usize = 8;

/// Prefetches up to `most` packets of the flows `flows`, which are served in this order. `prefetch`
/// prefetches the state of a flow, and `queue_of` returns the flow's queue and the bytes that the
/// flow may send in its turn.
pub(crate) fn scout<'a>(
    most: u32,
    flows: impl Iterator<Item = u32>,
    prefetch: impl Fn(u32),
    queue_of: impl Fn(u32) -> (&'a PacketList, i32),
) {
    let mut flows = flows.take(most as usize);
    let mut left = most;
    while left > 0 {
        let (mut party, mut size) = ([0; SCOUTS], 0);
        for flow in flows.by_ref().take(SCOUTS) {
            prefetch(flow);
            party[size] = flow;
            size += 1;
        }
        if size == 0 {
            return;
        }
        // Each scout with the number of packets that it has not prefetched yet.
        let mut scouts = [const { None }; SCOUTS];
        for (scout, flow) in scouts.iter_mut().zip(&party[..size]) {
            let (queue, credit) = queue_of(*flow);
            let count = in_turn(queue, credit).min(left);
            left -= count;
            *scout = (count > 0).then(|| (queue.scout(), count - 1));
        }
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for (scout, left) in scouts.iter_mut().flatten() {
                if *left > 0 {
                    *left -= 1;
                    scout.advance();
                    goes_on = true;
                }
            }
        }
    }
}

/// Returns how many bytes a flow with this credit may send in its next turn.
pub(crate) fn turn(credit: i32, quantum: i32) -> i32 {
    if credit > 0 { credit } else { credit + quantum }
}

/// Returns how many packets of its queue a flow sends in a turn with `credit` bytes, if all have
/// the same length. A flow sends as long as it has credit, so its last packet may exceed it.
fn in_turn(queue: &PacketList, credit: i32) -> u32 {
    let credit = u64::try_from(credit).unwrap_or(0);
    let packets = (credit * u64::from(queue.len())).div_ceil(queue.bytes().max(1));
    queue.len().min(u32::try_from(packets).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use onramp_queue::Packet;

    use super::*;

    fn queue(lengths: &[u32]) -> PacketList {
        lengths.iter().map(|&length| Packet::new(length)).collect()
    }

    #[test]
    fn a_turn_ends_with_the_credit() {
        let four = queue(&[100; 4]);
        for (credit, packets) in
            [(-5, 0), (0, 0), (1, 1), (100, 1), (101, 2), (400, 4), (i32::MAX, 4)]
        {
            assert_eq!(in_turn(&four, credit), packets, "{credit} bytes");
        }
        assert_eq!(in_turn(&queue(&[]), 1_000), 0);
        assert_eq!(in_turn(&queue(&[0; 3]), 1), 3);
    }

    /// Flows are looked at in their order, in parties of eight, until as many packets are found as
    /// will leave. No more flows are looked at than packets will leave.
    #[test]
    fn scouts_go_as_far_as_packets_leave() {
        let seen = RefCell::new(Vec::new());
        for (length, most, flows) in [(2, 6, 6), (2, 16, 8), (2, 17, 16), (9, 100, 16), (0, 9, 9)] {
            let queues: Vec<_> = (0..20).map(|_| queue(&vec![100; length])).collect();
            seen.borrow_mut().clear();
            let queue_of = |flow: u32| (&queues[flow as usize], 1_000);
            scout(most, 0..20, |flow| seen.borrow_mut().push(flow), queue_of);
            assert_eq!(*seen.borrow(), Vec::from_iter(0..flows), "{length}, {most}");
        }
        scout(9, std::iter::empty(), |_| unreachable!("no flow"), |_| unreachable!("no flow"));
    }
}
