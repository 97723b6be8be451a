//! Replacing a qdisc that defers its packets (says that they may leave only later). To move the
//! packets to the new qdisc, the old qdisc is dequeued with a clock that runs ahead to the times
//! that the qdisc announces, as long as packets leave.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use onramp_core::Instant;
use onramp_core::Spec;
use onramp_core::qdisc::{Backlog, Cx, Dequeue, Peek, Qdisc, Verdict};
use onramp_queue::{DropReason, Packet, PacketList};

use crate::counts::view;
use crate::jobs::give;
use crate::world::{MTU, World};

/// How many times in a row a qdisc that is being replaced may defer a packet, before the port gives
/// up and drops the packets that the qdisc still holds.
const WAITS: u32 = 64;

/// A qdisc that defers each packet `waits` times, by `gap_ns` nanoseconds each time.
#[derive(Debug)]
struct Stubborn {
    list: PacketList,
    waits: u32,
    gap_ns: u64,
    /// How many times the qdisc will still defer its next packet.
    left: u32,
    /// Until this is true, the qdisc lets no packet leave, and records no dequeue.
    begun: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<Instant>>>,
    /// Whether the qdisc makes another packet each time a packet leaves.
    makes: bool,
}

impl Qdisc for Stubborn {
    fn enqueue(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        self.list.push_back(pkt);
        Verdict::Queued
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if !self.begun.load(SeqCst) {
            return Dequeue::NotBefore(cx.now.after(1_000_000));
        }
        self.asked.lock().unwrap().push(cx.now);
        if self.list.is_empty() {
            return Dequeue::Empty;
        }
        if self.left > 0 {
            self.left -= 1;
            return Dequeue::NotBefore(cx.now.after(self.gap_ns));
        }
        self.left = self.waits;
        let pkt = self.list.pop_front().expect("it holds one");
        if self.makes && pkt.cookie < 1_000 {
            cx.made += 1;
            self.list.push_back(crate::world::packet(pkt.cookie + 1_000, pkt.flow, cx.now));
        }
        Dequeue::Ready(pkt)
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        unreachable!("it stands below no other")
    }

    fn backlog(&self) -> Backlog {
        Backlog { packets: self.list.len(), bytes: self.list.bytes() }
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        while let Some(pkt) = self.list.pop_front() {
            cx.drop(pkt, DropReason::Purged);
        }
    }
}

fn replace(world: &World, qdisc: Box<dyn Qdisc>) {
    assert!(world.port.replace(qdisc, world.now, &world.waker).expect("few jobs wait"));
}

/// Makes a port with a [`Stubborn`] qdisc that holds `packets` packets, and replaces it by the
/// qdisc `line`. Returns the port, and the times at which the old qdisc was dequeued meanwhile.
fn takes_over(packets: u64, waits: u32, gap_ns: u64, makes: bool, line: &str) -> (World, Vec<u64>) {
    let mut world = World::new("pfifo", 1_000);
    let (begun, asked) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<_>>>::default());
    let (list, left) = (PacketList::new(), waits);
    let stubborn =
        Stubborn { list, waits, gap_ns, left, begun: begun.clone(), asked: asked.clone(), makes };
    replace(&world, Box::new(stubborn));
    world.enqueue(packets);
    assert_eq!(world.stats().held, packets);
    begun.store(true, SeqCst);
    replace(&world, line.parse::<Spec>().expect(line).build(MTU));
    let asked = asked.lock().unwrap().iter().map(|at| at.since(world.now)).collect();
    (world, asked)
}

/// While a qdisc is replaced, it is dequeued again at each time that it announces. For each packet,
/// the first such dequeue comes exactly at the announced time, and later dequeues come a nanosecond
/// after the announced time, because some qdiscs round that time down.
#[test]
fn its_clock_runs_to_the_times_that_it_names() {
    let (_, asked) = takes_over(2, 3, 1_000, false, "pfifo");
    let first = [0, 1_000, 2_001, 3_002];
    assert_eq!(asked[..4], first);
    assert_eq!(asked[4..8], first.map(|ns| 3_002 + ns), "each packet counts for itself");
    assert_eq!(asked[8..], [2 * 3_002], "now it is empty");
}

/// A qdisc that is being replaced may defer each packet up to sixty-four times. If it defers a
/// packet more often, all packets that it holds are dropped, because it may never release them.
#[test]
fn it_may_put_off_each_packet_so_many_times() {
    for (waits, moves) in [(0, true), (1, true), (WAITS, true), (WAITS + 1, false)] {
        let (mut world, asked) = takes_over(3, waits, 7, false, "pfifo");
        let each = if moves { 3 * (waits as usize + 1) + 1 } else { waits as usize };
        assert_eq!(asked.len(), each, "{waits}");
        assert_eq!(world.dropped(DropReason::Purged), if moves { 0 } else { 3 }, "{waits}");
        world.settle();
        assert_eq!(world.sent(), if moves { vec![0, 1, 2] } else { Vec::new() });
        world.check();
    }
}

/// If the old qdisc defers a packet until a time that has already come, its packets are dropped,
/// because it would never release them.
#[test]
fn who_waits_for_now_waits_for_ever() {
    let (world, asked) = takes_over(3, 1, 0, false, "pfifo");
    assert_eq!((asked, world.dropped(DropReason::Purged)), (vec![0], 3));
    world.check();
}

/// If the old qdisc makes packets while it is emptied, they count as made, and move to the new
/// qdisc, too.
#[test]
fn what_it_makes_moves_over() {
    let (mut world, _) = takes_over(5, 0, 0, true, "pfifo");
    let stats = world.stats();
    assert_eq!((stats.enqueued, stats.made, stats.held), (10, 5, 10));
    world.settle();
    assert_eq!((world.stats().sent, world.stats().dropped), (10, Vec::new()));
}

/// Packets that do not fit the new qdisc count as drops of the new qdisc. Packets that the old
/// qdisc did not release are dropped by the port, and count for neither qdisc.
#[test]
fn the_new_one_counts_its_own_drops() {
    let (world, _) = takes_over(5, 0, 0, false, "pfifo limit 3");
    let told = view(&world.port);
    assert_eq!((told.counters.drops, told.backlog.packets), (2, 3));
    assert_eq!(told.drops, [(DropReason::Overlimit, 2)]);
    let (world, _) = takes_over(5, WAITS + 1, 1, false, "pfifo limit 3");
    assert_eq!(world.dropped(DropReason::Purged), 5);
    assert_eq!((view(&world.port).counters.drops, view(&world.port).drops), (0, Vec::new()));
}

/// Whether a port measures sojourn times is a setting of the port, so it also holds for the new
/// qdisc.
#[test]
fn the_new_one_measures_as_the_old_one_did() {
    for measures in [false, true] {
        let mut world = World::new("pfifo", 100);
        assert!(give(&world, Box::new(move |root, _| root.measure(measures))));
        replace(&world, "fq".parse::<Spec>().expect("a qdisc").build(MTU));
        let _ = world.push(3);
        let told = view(&world.port);
        assert_eq!(told.counters.packets, 3);
        let counted = told.sojourn_ns.map(|counts| counts.iter().sum::<u64>());
        assert_eq!(counted, measures.then_some(3));
    }
}
