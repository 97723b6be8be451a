//! Compares `pfifo`, `bfifo` and `pfifo_fast` with simple models: the qdisc and its model send the
//! same packets and drop the same packets.

use std::collections::VecDeque;

use onramp_core::Spec;
use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Tree};
use onramp_queue::{DropReason, Packet};
use proptest::prelude::*;

/// A model of a queue. A packet is known by its number, length and priority.
trait Model {
    fn takes(&mut self, number: u64, len: u32, priority: u32) -> bool;
    fn gives(&mut self) -> Option<u64>;
}

struct Fifo {
    packets: VecDeque<(u64, u32)>,
    packet_limit: usize,
    byte_limit: u64,
}

impl Model for Fifo {
    fn takes(&mut self, number: u64, len: u32, _priority: u32) -> bool {
        let bytes: u64 = self.packets.iter().map(|(_, len)| u64::from(*len)).sum();
        let fits =
            self.packets.len() < self.packet_limit && bytes + u64::from(len) <= self.byte_limit;
        if fits {
            self.packets.push_back((number, len));
        }
        fits
    }
    fn gives(&mut self) -> Option<u64> {
        self.packets.pop_front().map(|(number, _)| number)
    }
}

/// A model of one band of `pfifo_fast`: a ring of slots. The reader clears the slots that it has
/// read, in batches and at the ring's end. The writer can only write into a clear slot.
struct Ring {
    places: Vec<Option<u64>>,
    write: usize,
    read: usize,
    cleared: usize,
}

impl Ring {
    fn new(size: usize) -> Self {
        Self { places: vec![None; size], write: 0, read: 0, cleared: 0 }
    }
    fn takes(&mut self, number: u64) -> bool {
        let free = self.places[self.write].is_none();
        if free {
            self.places[self.write] = Some(number);
            self.write = (self.write + 1) % self.places.len();
        }
        free
    }
    fn gives(&mut self) -> Option<u64> {
        let number = self.places[self.read]?;
        self.read += 1;
        let batch = if self.places.len() / 2 < 16 { 1 } else { 16 };
        if self.read - self.cleared >= batch || self.read == self.places.len() {
            self.places[self.cleared..self.read].fill(None);
            self.cleared = self.read;
        }
        if self.read == self.places.len() {
            (self.read, self.cleared) = (0, 0);
        }
        Some(number)
    }
}

struct Bands([Ring; 3]);

impl Model for Bands {
    fn takes(&mut self, number: u64, _len: u32, priority: u32) -> bool {
        // In tc-prio(8), band 0 takes interactive and control packets, and band 2 takes filler,
        // bulk and two unused priorities.
        let band = match priority % 16 {
            6 | 7 => 0,
            1 | 2 | 3 | 5 => 2,
            _ => 1,
        };
        self.0[band].takes(number)
    }
    fn gives(&mut self) -> Option<u64> {
        self.0.iter_mut().find_map(Ring::gives)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Enqueue { len: u32, priority: u32 },
    Dequeue,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let len = prop_oneof![60_u32..1515, Just(0), Just(1514)];
    let enqueue = (len, any::<u32>()).prop_map(|(len, priority)| Op::Enqueue { len, priority });
    prop::collection::vec(prop_oneof![3 => enqueue, 2 => Just(Op::Dequeue)], 0..600)
}

fn compare(line: &str, model: &mut dyn Model, ops: &[Op]) -> Result<(), TestCaseError> {
    let spec: Spec = line.parse().expect("a correct line");
    let mut tree = Tree::new(&spec, 1514);
    let mut held = 0;
    for (number, op) in (0..).zip(ops) {
        match op {
            Op::Enqueue { len, priority } => {
                let mut pkt = Packet::new(*len);
                (pkt.cookie, pkt.priority) = (number, *priority);
                let taken = model.takes(number, *len, *priority);
                let verdict = tree.enqueue(Instant(0), pkt);
                prop_assert_eq!(verdict == Verdict::Queued, taken, "packet {}", number);
                let drop = tree.drops().next().and_then(|pkt| pkt.drop_reason);
                prop_assert_eq!(drop, (!taken).then_some(DropReason::Overlimit));
                held += u32::from(taken);
            }
            Op::Dequeue => {
                let ours = match tree.dequeue(Instant(0)) {
                    Dequeue::Ready(pkt) => Some(pkt.cookie),
                    Dequeue::Empty => None,
                    Dequeue::NotBefore(_) => panic!("{line} has no clock"),
                };
                prop_assert_eq!(ours, model.gives());
                held -= u32::from(ours.is_some());
            }
        }
        prop_assert_eq!(tree.backlog().packets, held);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn pfifo_does_as_described(limit in 0_usize..40, ops in ops()) {
        let mut model =
            Fifo { packets: VecDeque::new(), packet_limit: limit, byte_limit: u64::MAX };
        compare(&format!("pfifo limit {limit}"), &mut model, &ops)?;
    }

    #[test]
    fn bfifo_does_as_described(limit in 0_u64..20_000, ops in ops()) {
        let mut model =
            Fifo { packets: VecDeque::new(), packet_limit: usize::MAX, byte_limit: limit };
        compare(&format!("bfifo limit {limit}"), &mut model, &ops)?;
    }

    #[test]
    fn pfifo_fast_does_as_described(
        size in prop_oneof![2 => 1_usize..70, 1 => 31_usize..33],
        ops in ops(),
    ) {
        let mut model = Bands([Ring::new(size), Ring::new(size), Ring::new(size)]);
        compare(&format!("pfifo_fast txqueuelen {size}"), &mut model, &ops)?;
    }
}

/// Sends five packets while the device is busy, and then dequeues all of them. Returns the numbers
/// of the packets that leave. The first packet finds the qdisc empty and may bypass it.
fn behind_a_passing_one(line: &str, priorities: [u32; 5]) -> Vec<u64> {
    let mut tree = Tree::new(&line.parse().expect("a correct line"), 1514);
    for (number, priority) in priorities.into_iter().enumerate() {
        let mut pkt = Packet::new(100);
        (pkt.cookie, pkt.priority) = (number as u64, priority);
        let _ = tree.keep_or_enqueue(Instant(1), pkt);
    }
    assert_eq!(u64::from(tree.backlog().packets) * 100, tree.backlog().bytes);
    let next = |tree: &mut Tree| match tree.dequeue(Instant(2)) {
        Dequeue::Ready(pkt) => Some(pkt.cookie),
        _ => None,
    };
    std::iter::from_fn(|| next(&mut tree)).collect()
}

/// If a packet has bypassed an empty qdisc but found the device busy, it is the next packet to
/// leave. More urgent packets do not overtake it, and it is not dropped to make room.
#[test]
fn what_has_passed_by_stays_the_first() {
    // Priority 6 belongs to the first band (served first), priority 2 to the last.
    assert_eq!(behind_a_passing_one("pfifo_fast", [2, 2, 6, 0, 6]), [0, 2, 4, 3, 1]);
    assert_eq!(behind_a_passing_one("pfifo_head_drop limit 3", [0; 5]), [0, 3, 4]);
    assert_eq!(behind_a_passing_one("pfifo limit 3", [0; 5]), [0, 1, 2]);
    // In `pfifo_fast`, the packet that bypassed the qdisc takes no slot of its band, so two more
    // packets fit into a band of two slots.
    assert_eq!(behind_a_passing_one("pfifo_fast txqueuelen 2", [0; 5]), [0, 1, 2]);
}
