//! Tests what a parent qdisc knows of the qdiscs below its classes.

use std::sync::{Arc, Mutex};

use onramp_queue::{DropReason, PacketList};

use super::*;

const NOW: Instant = Instant(1_000);

/// A queue whose behaviour the test chooses.
#[derive(Debug, Default)]
struct Scripted {
    queue: PacketList,
    /// Whether the queue drops every packet that arrives.
    full: bool,
    /// Whether a peek or dequeue first drops the first packet of the queue.
    drops_first: bool,
    /// Whether no packet may leave the queue.
    waits: bool,
    overlimits: u64,
    prefetched: Arc<Mutex<u32>>,
}

impl Scripted {
    fn head(&mut self, cx: &mut Cx<'_>) {
        if self.drops_first
            && let Some(pkt) = self.queue.pop_front()
        {
            cx.drop(pkt, DropReason::Purged);
        }
    }
}

impl Qdisc for Scripted {
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if self.full {
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        self.queue.push_back(pkt);
        Verdict::Queued
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        self.head(cx);
        if self.waits && !self.queue.is_empty() {
            return Dequeue::NotBefore(cx.now.after(5));
        }
        self.queue.pop_front().map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        self.head(cx);
        if self.waits && !self.queue.is_empty() {
            return Peek::NotBefore(cx.now.after(5));
        }
        Peek::at(self.queue.front())
    }

    fn backlog(&self) -> Backlog {
        Backlog::of(&self.queue)
    }

    fn accepts(&self, _pkt: &Packet) -> bool {
        !self.full
    }

    fn prefetch(&self) {
        *self.prefetched.lock().expect("nobody panics") += 1;
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        cx.purge(&mut self.queue);
    }

    fn overlimits(&self) -> u64 {
        self.overlimits
    }
}

/// A parent qdisc with a single class, number 1.
#[derive(Debug)]
struct Parent {
    child: Child,
    sum: Backlog,
}

impl Classes for Parent {
    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        (minor == 1).then_some(&mut self.child)
    }

    fn recount(&mut self, minor: u16) {
        assert_eq!(minor, 1);
        self.child.recount(&mut self.sum);
    }
}

fn child(qdisc: Scripted) -> Child {
    Child::new(Box::new(qdisc))
}

/// Calls `f` with a context. Returns the result of `f`, and the number of packets that `f` dropped.
fn with<R>(f: impl FnOnce(&mut Cx<'_>) -> R) -> (R, u32) {
    let mut drops = PacketList::new();
    let result = f(&mut Cx::new(NOW, &mut drops));
    (result, drops.len())
}

fn backlog(packets: u32, bytes: u64) -> Backlog {
    Backlog { packets, bytes }
}

/// Returns the bytes and the packets that left the child, and the number of drops.
fn counted(child: &Child) -> (u64, u64, u64) {
    let (counters, _) = child.counters();
    (counters.bytes, counters.packets, counters.drops)
}

#[test]
fn what_passes_is_counted_and_what_is_held_is_summed() {
    let mut child = child(Scripted::default());
    // The other children of the parent hold 3 packets, 300 bytes together.
    let mut sum = backlog(3, 300);
    let (verdict, _) = with(|cx| child.enqueue(Packet::new(100), cx, &mut sum));
    assert_eq!(verdict, Verdict::Queued);
    assert_eq!((child.held(), sum), (backlog(1, 100), backlog(4, 400)));
    let _ = with(|cx| child.enqueue(Packet::new(50), cx, &mut sum));
    assert_eq!((child.held(), sum), (backlog(2, 150), backlog(5, 450)));
    let (peeked, _) = with(|cx| child.peek(cx, &mut sum));
    assert_eq!((peeked, sum), (Peek::Ready(100), backlog(5, 450)));
    assert_eq!(counted(&child), (0, 0, 0));
    let (answer, _) = with(|cx| child.dequeue(cx, &mut sum));
    assert!(matches!(answer, Dequeue::Ready(pkt) if pkt.len == 100));
    assert_eq!((child.held(), sum), (backlog(1, 50), backlog(4, 350)));
    assert_eq!(counted(&child), (100, 1, 0));
    assert_eq!(child.counters().1, backlog(1, 50));
}

#[test]
fn drops_of_every_call_are_counted() {
    let mut sum = backlog(0, 0);
    let mut full = child(Scripted { full: true, overlimits: 7, ..Scripted::default() });
    let (verdict, dropped) = with(|cx| full.enqueue(Packet::new(100), cx, &mut sum));
    assert_eq!((verdict, dropped, sum), (Verdict::Dropped, 1, backlog(0, 0)));
    assert_eq!(counted(&full), (0, 0, 1));
    assert_eq!(full.counters().0.overlimits, 7);
    // `class_counters`, for classes with counters of their own, counts the packets that were
    // dropped when they arrived, and no other drops.
    assert_eq!(full.class_counters().0.drops, 1);

    let mut drops = child(Scripted { drops_first: true, ..Scripted::default() });
    for len in [100, 50, 30] {
        let _ = with(|cx| drops.enqueue(Packet::new(len), cx, &mut sum));
    }
    let (peeked, dropped) = with(|cx| drops.peek(cx, &mut sum));
    assert_eq!((peeked, dropped, sum), (Peek::Ready(50), 1, backlog(2, 80)));
    assert_eq!(counted(&drops), (0, 0, 1));
    let (answer, dropped) = with(|cx| drops.dequeue(cx, &mut sum));
    assert!(matches!(answer, Dequeue::Ready(pkt) if pkt.len == 30));
    assert_eq!((dropped, sum), (1, backlog(0, 0)));
    assert_eq!(counted(&drops), (30, 1, 2));
    assert_eq!(drops.class_counters().0.drops, 0);

    for _ in 0..2 {
        let _ = with(|cx| drops.enqueue(Packet::new(10), cx, &mut sum));
    }
    let ((), dropped) = with(|cx| drops.reset(cx, &mut sum));
    assert_eq!((dropped, sum, drops.held()), (2, backlog(0, 0), backlog(0, 0)));
    assert_eq!(counted(&drops), (30, 1, 4));
}

/// A child is idle (and need not be asked for a packet) only after it has returned that it is
/// empty.
#[test]
fn a_child_is_idle_once_it_was_asked_in_vain() {
    let mut child = child(Scripted::default());
    let mut sum = backlog(0, 0);
    assert!(!child.is_idle());
    let _ = with(|cx| child.peek(cx, &mut sum));
    assert!(child.is_idle());
    let _ = with(|cx| child.enqueue(Packet::new(1), cx, &mut sum));
    assert!(!child.is_idle());
    let _ = with(|cx| child.peek(cx, &mut sum));
    assert!(!child.is_idle());
    let _ = with(|cx| child.dequeue(cx, &mut sum));
    assert!(!child.is_idle(), "it may have become empty, but has not said so");
    let _ = with(|cx| child.dequeue(cx, &mut sum));
    assert!(child.is_idle());
    let _ = with(|cx| child.reset(cx, &mut sum));
    assert!(!child.is_idle(), "whatever it noted is gone");
    let _ = with(|cx| child.dequeue(cx, &mut sum));
    // `recount` leaves an idle child idle, unless it finds a packet in the child.
    child.recount(&mut sum);
    assert!(child.is_idle());
    let _ = with(|cx| child.qdisc().enqueue(Packet::new(9), cx));
    assert_eq!(child.held(), backlog(0, 0));
    child.recount(&mut sum);
    assert_eq!((child.is_idle(), child.held(), sum), (false, backlog(1, 9), backlog(1, 9)));
    child.recount(&mut sum);
    assert!(!child.is_idle());
}

/// A child that holds packets but returns that none may leave now is not idle.
#[test]
fn a_child_that_waits_is_asked_again() {
    let mut child = child(Scripted { waits: true, ..Scripted::default() });
    let mut sum = backlog(0, 0);
    let _ = with(|cx| child.enqueue(Packet::new(1), cx, &mut sum));
    let (peeked, _) = with(|cx| child.peek(cx, &mut sum));
    assert_eq!((peeked, child.is_idle()), (Peek::NotBefore(Instant(1_005)), false));
    let (answer, _) = with(|cx| child.dequeue(cx, &mut sum));
    assert!(matches!(answer, Dequeue::NotBefore(Instant(1_005))));
    assert!(!child.is_idle());
    assert_eq!((counted(&child), sum), ((0, 0, 0), backlog(1, 1)));
}

#[test]
fn a_child_begins_with_what_it_holds_and_says_what_its_qdisc_says() {
    let prefetched = Arc::new(Mutex::new(0));
    let mut queue = PacketList::new();
    queue.push_back(Packet::new(100));
    let holds = child(Scripted { queue, prefetched: prefetched.clone(), ..Scripted::default() });
    assert_eq!((holds.held(), holds.is_idle()), (backlog(1, 100), false));
    assert!(holds.accepts(&Packet::new(1)));
    holds.prefetch_packets();
    assert_eq!(*prefetched.lock().expect("nobody panics"), 1);
    let full = child(Scripted { full: true, ..Scripted::default() });
    assert!(!full.accepts(&Packet::new(1)));
}

/// When a new qdisc replaces the qdisc below a class, the new qdisc's counters begin at zero, but
/// the class keeps its own counters.
#[test]
fn a_grafted_qdisc_counts_anew() {
    let mut parent = Parent { child: child(Scripted::default()), sum: backlog(0, 0) };
    let Parent { child, sum } = &mut parent;
    for _ in 0..3 {
        let _ = with(|cx| child.enqueue(Packet::new(100), cx, sum));
    }
    let _ = with(|cx| child.dequeue(cx, sum));
    let next = Scripted { full: true, overlimits: 5, ..Scripted::default() };
    let ((), dropped) = with(|cx| parent.graft(1, Box::new(next), cx));
    assert_eq!((dropped, parent.sum, parent.child.held()), (2, backlog(0, 0), backlog(0, 0)));
    let none = Counters { overlimits: 5, ..Counters::default() };
    assert_eq!(parent.counters(1), (none, backlog(0, 0)));
    let passed = parent.child.class_counters().0;
    assert_eq!((passed.bytes, passed.packets), (100, 1));
    assert!(!parent.child.is_idle());
    // After a graft, the child is not idle, because the new qdisc may hold packets.
    let Parent { child, sum } = &mut parent;
    let _ = with(|cx| child.dequeue(cx, sum));
    assert!(child.is_idle());
    let mut queue = PacketList::new();
    queue.push_back(Packet::new(70));
    let _ = with(|cx| parent.graft(1, Box::new(Scripted { queue, ..Scripted::default() }), cx));
    assert_eq!((parent.child.is_idle(), parent.sum), (false, backlog(1, 70)));
    let _ = with(|cx| parent.graft(1, Box::new(Scripted::default()), cx));
    assert!(!parent.child.is_idle(), "it was not asked yet");
    // `graft` below class 2, which does not exist, drops the new qdisc and changes nothing.
    let prefetched = Arc::new(Mutex::new(0));
    let lost = Scripted { prefetched: prefetched.clone(), ..Scripted::default() };
    let _ = with(|cx| parent.graft(2, Box::new(lost), cx));
    assert_eq!(Arc::strong_count(&prefetched), 1);
    assert_eq!(parent.counters(2), (Counters::default(), Backlog::default()));
    assert!(!parent.has_root());
}
