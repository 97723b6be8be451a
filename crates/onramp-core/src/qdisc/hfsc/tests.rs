//! Tests of what an `hfsc` keeps.

use onramp_queue::PacketList;

use super::*;
use crate::base::params::Value;
use crate::sched::ClassKind;

/// Adds a class with a rate in bytes per second for each of some curves, or changes it.
fn set(hfsc: &mut Hfsc, minor: u16, parent: u16, curves: &[(&str, u64)], now: Instant) {
    let ClassKind::Added { params, .. } = HFSC.classes else { unreachable!("it has classes") };
    let value = |param: &Param| {
        let (_, rate) = curves.iter().find(|(key, _)| *key == param.key)?;
        Some(Value::List(vec![0, 0, *rate]))
    };
    let given: Vec<_> = params.iter().map(value).collect();
    hfsc.set(minor, parent, &Values { params, given: &given, site: Site::default() }, now);
}

fn add(hfsc: &mut Hfsc, minor: u16, parent: u16, now: Instant) {
    set(hfsc, minor, parent, &[("sc", 1_000)], now);
}

fn hfsc() -> Hfsc {
    Hfsc::new(&Values { params: HFSC.params, given: &[None], site: Site::default() })
}

/// Adding and deleting classes, with and without packets, below a class that stays and below one
/// that goes too, takes no more memory than the classes that are there at a time.
#[test]
fn removed_classes_leave_nothing() {
    let (mut hfsc, mut drops) = (hfsc(), PacketList::new());
    let handle = Handle::new(0, 0);
    assert_eq!(hfsc.handle, handle);
    add(&mut hfsc, 1, 0, Instant(0));
    for round in 0..100_000_u64 {
        let now = Instant(round * 1_000_000);
        let mut cx = Cx::new(now, &mut drops);
        let (inner, leaf) = (2 + (round % 7) as u16, 20 + (round % 5) as u16);
        add(&mut hfsc, inner, 1, now);
        add(&mut hfsc, leaf, if round % 2 == 0 { 1 } else { inner }, now);
        if round % 3 > 0 {
            let place = hfsc.find(leaf).expect("it is there");
            let child = &mut hfsc.classes[place].child;
            let _ = child.enqueue(Packet::new(100), &mut cx, &mut hfsc.held);
            hfsc.activate(place, 100, tick(now.0));
            hfsc.set_timer(place, now.after(5));
        }
        if round % 3 > 1 {
            let _ = hfsc.dequeue(&mut cx);
        }
        hfsc.remove(leaf, &mut cx);
        hfsc.remove(inner, &mut cx);
        while cx.drops.pop_front().is_some() {}
    }
    assert_eq!((hfsc.classes.len(), hfsc.free.len(), hfsc.minors.len()), (4, 2, 2));
    assert!(hfsc.waiting.is_empty() && hfsc.ready.is_empty() && hfsc.timers.is_empty());
    let empty = |class: &Class| class.below.by_vt.is_empty() && class.below.by_f.is_empty();
    assert!(hfsc.classes.iter().all(empty));
    assert_eq!(hfsc.held, Backlog::default());
}

/// The timer of the scheduler and the timers of classes: the first one that has not passed counts,
/// the timer that a class had before does not, and neither does that of a removed class.
#[test]
fn the_next_timer_is_the_first_that_has_not_passed() {
    let (mut hfsc, mut drops) = (hfsc(), PacketList::new());
    (1..=3).for_each(|minor| add(&mut hfsc, minor, 0, Instant(0)));
    let next = |hfsc: &Hfsc, now| hfsc.next_timer(Instant(now)).0;
    assert_eq!(next(&hfsc, 5), 6);
    for (minor, then) in [(1, 50), (2, 10), (3, 20), (1, 30)] {
        let place = hfsc.find(minor).expect("it is there");
        hfsc.set_timer(place, Instant(then));
    }
    hfsc.timer = Instant(25);
    let nows = [0, 9, 10, 19, 20, 24, 25, 29, 30, 50];
    let expected = [10, 10, 20, 20, 25, 25, 30, 30, 31, 51];
    assert_eq!(nows.map(|now| next(&hfsc, now)), expected);
    hfsc.remove(2, &mut Cx::new(Instant(0), &mut drops));
    assert_eq!((next(&hfsc, 0), hfsc.timers.len()), (20, 2));
    hfsc.reset(&mut Cx::new(Instant(0), &mut drops));
    assert_eq!((next(&hfsc, 0), hfsc.timers.len()), (25, 0));
}

const SECOND: u64 = 1_000_000_000;
/// A rate in bytes per second at which no test waits for long.
const FAST: u64 = 1_000_000;

/// A tree of the leaf class 4 and the inner class 1, which has the leaf classes 2 and 3.
fn family() -> Hfsc {
    let mut hfsc = hfsc();
    for (minor, parent) in [(1, 0), (2, 1), (3, 1), (4, 0)] {
        set(&mut hfsc, minor, parent, &[("ls", FAST)], Instant(0));
    }
    hfsc
}

/// Adds `count` packets of 100 bytes to the class `minor`.
fn fill(hfsc: &mut Hfsc, minor: u16, count: u64, cx: &mut Cx<'_>) {
    for _ in 0..count {
        let mut pkt = Packet::new(100);
        pkt.priority = minor.into();
        assert_eq!(hfsc.enqueue(pkt, cx), Verdict::Queued);
    }
}

/// Dequeues from `cx.now` on until the time `until_ns`, or until the qdisc is empty, but at most
/// 10,000 times. Returns the classes of the packets.
fn drain(hfsc: &mut Hfsc, until_ns: u64, cx: &mut Cx<'_>) -> Vec<u32> {
    let mut out = Vec::new();
    for _ in 0..10_000 {
        match hfsc.dequeue(cx) {
            Dequeue::Ready(pkt) => out.push(pkt.priority),
            Dequeue::NotBefore(then) if then.0 < until_ns => cx.now = then,
            Dequeue::NotBefore(_) => {
                cx.now = Instant(until_ns);
                break;
            }
            Dequeue::Empty => break,
        }
    }
    out
}

fn count(out: &[u32], minor: u32) -> usize {
    out.iter().filter(|class| **class == minor).count()
}

#[test]
fn a_changed_inner_class_and_its_siblings_send_all() {
    let (mut hfsc, mut drops) = (family(), PacketList::new());
    let mut cx = Cx::new(Instant(SECOND), &mut drops);
    [2, 3, 4].into_iter().for_each(|minor| fill(&mut hfsc, minor, 10, &mut cx));
    set(&mut hfsc, 1, 0, &[("ls", 2 * FAST)], cx.now);
    let out = drain(&mut hfsc, 2 * SECOND, &mut cx);
    assert_eq!((out.len(), hfsc.held.packets), (30, 0));
    assert!(hfsc.classes.iter().all(|class| class.below.by_vt.is_empty()));
}

/// The place of a class that was changed while its children held packets is free for a new class.
#[test]
fn a_changed_inner_class_leaves_nothing() {
    let (mut hfsc, mut drops) = (family(), PacketList::new());
    let mut cx = Cx::new(Instant(SECOND), &mut drops);
    [2, 3].into_iter().for_each(|minor| fill(&mut hfsc, minor, 1, &mut cx));
    set(&mut hfsc, 1, 0, &[("ls", FAST)], cx.now);
    [2, 3, 1].into_iter().for_each(|minor| hfsc.remove(minor, &mut cx));
    let below = &hfsc.classes[ROOT].below;
    assert!(below.by_vt.is_empty() && below.by_f.is_empty());
    set(&mut hfsc, 5, 0, &[("ls", FAST)], cx.now);
    fill(&mut hfsc, 4, 1, &mut cx);
    assert_eq!(drain(&mut hfsc, 2 * SECOND, &mut cx), [4]);
}

/// A change of an inner class counts at once, and gives the class nothing: however often its curve
/// is set, the class and its sibling share by their curves.
#[test]
fn a_changed_inner_class_shares_by_its_new_curve() {
    let (mut hfsc, mut drops) = (family(), PacketList::new());
    let mut cx = Cx::new(Instant(SECOND), &mut drops);
    [2, 3, 4].into_iter().for_each(|minor| fill(&mut hfsc, minor, 900, &mut cx));
    for (rate, expected) in [(FAST, 200), (3 * FAST, 100)] {
        let mut of_sibling = 0_usize;
        for _ in 0..400 {
            set(&mut hfsc, 1, 0, &[("ls", rate)], cx.now);
            let Dequeue::Ready(pkt) = hfsc.dequeue(&mut cx) else { panic!("no class has a limit") };
            of_sibling += usize::from(pkt.priority == 4);
        }
        assert!(of_sibling.abs_diff(expected) <= 2, "{of_sibling} at {rate}");
    }
}

/// A limit holds from the change on that sets it, until the change that takes it away.
#[test]
fn an_inner_class_has_the_limit_of_its_last_change() {
    let (mut hfsc, mut drops) = (family(), PacketList::new());
    let mut cx = Cx::new(Instant(SECOND), &mut drops);
    fill(&mut hfsc, 2, 900, &mut cx);
    assert!((0..400).all(|_| matches!(hfsc.dequeue(&mut cx), Dequeue::Ready(_))));
    // At 1,000 bytes per second, the class sends ten packets in a second. What it sent before the
    // change does not count.
    set(&mut hfsc, 1, 0, &[("ls", FAST), ("ul", 1_000)], cx.now);
    assert_eq!(drain(&mut hfsc, 2 * SECOND, &mut cx).len(), 10);
    // After a packet, this limit makes the class wait for ten seconds.
    set(&mut hfsc, 1, 0, &[("ls", FAST), ("ul", 10)], cx.now);
    assert_eq!(drain(&mut hfsc, 3 * SECOND, &mut cx).len(), 1);
    set(&mut hfsc, 1, 0, &[("ls", FAST)], cx.now);
    assert_eq!(drain(&mut hfsc, 3 * SECOND, &mut cx).len(), 489);
}

#[test]
fn a_changed_limit_holds_below_a_class_without_one() {
    let (mut hfsc, mut drops) = (family(), PacketList::new());
    set(&mut hfsc, 6, 2, &[("ls", FAST)], Instant(0));
    let mut cx = Cx::new(Instant(SECOND), &mut drops);
    fill(&mut hfsc, 6, 100, &mut cx);
    set(&mut hfsc, 2, 1, &[("ls", FAST), ("ul", 1_000)], cx.now);
    assert_eq!(drain(&mut hfsc, 2 * SECOND, &mut cx).len(), 10);
    // The class 1 has no limit, but may send no earlier than the class 2 below it.
    let f = |minor| hfsc.classes[hfsc.find(minor)?].share.as_ref().map(|share| share.f);
    assert!(f(1) == f(2) && f(1) > Some(tick(SECOND)), "{:?} {:?}", f(1), f(2));
}

/// A new limit of a leaf class counts from the change on, however much the class sent before.
#[test]
fn a_new_limit_does_not_make_up_for_the_past() {
    let (mut hfsc, mut drops) = (family(), PacketList::new());
    let mut cx = Cx::new(Instant(SECOND), &mut drops);
    fill(&mut hfsc, 4, 900, &mut cx);
    assert_eq!(drain(&mut hfsc, 2 * SECOND, &mut cx).len(), 900);
    fill(&mut hfsc, 4, 100, &mut cx);
    set(&mut hfsc, 4, 0, &[("ls", FAST), ("ul", 1_000)], cx.now);
    assert_eq!(drain(&mut hfsc, 2 * SECOND, &mut cx).len(), 10);
}

/// A class, or the root, that gets its first child drops the packets in its qdisc.
#[test]
fn packets_of_a_class_that_gets_a_child_are_dropped() {
    for (curves, parent) in [(&[("ls", FAST)][..], 4), (&[("rt", FAST)], 4), (&[], 0)] {
        let (mut hfsc, mut drops) = (hfsc(), PacketList::new());
        if parent > 0 {
            set(&mut hfsc, parent, 0, curves, Instant(0));
        }
        let mut cx = Cx::new(Instant(SECOND), &mut drops);
        fill(&mut hfsc, parent, 11, &mut cx);
        assert!(matches!(hfsc.dequeue(&mut cx), Dequeue::Ready(_)));
        let sent = hfsc.counters(parent).0.packets;
        set(&mut hfsc, 5, parent, &[("ls", FAST)], cx.now);
        assert_eq!((hfsc.held.packets, hfsc.counters(parent).1.packets), (10, 0));
        fill(&mut hfsc, 5, 3, &mut cx);
        assert_eq!(drain(&mut hfsc, 2 * SECOND, &mut cx), [5, 5, 5], "{curves:?}");
        assert_eq!((hfsc.held, hfsc.counters(parent).0.packets), (Backlog::default(), sent));
        assert!(hfsc.waiting.is_empty() && hfsc.ready.is_empty());
        assert!(hfsc.classes.iter().all(|class| class.below.by_vt.is_empty()), "{curves:?}");
        let reasons: Vec<_> = cx.drops.metas().map(|meta| meta.drop_reason).collect();
        assert_eq!(reasons, [Some(DropReason::Purged); 10], "{curves:?}");
    }
}

#[test]
fn a_reset_drops_the_packets_of_a_class_that_got_a_child() {
    let (mut hfsc, mut drops) = (family(), PacketList::new());
    let mut cx = Cx::new(Instant(SECOND), &mut drops);
    fill(&mut hfsc, 4, 10, &mut cx);
    set(&mut hfsc, 5, 4, &[("ls", FAST)], cx.now);
    hfsc.reset(&mut cx);
    assert_eq!((hfsc.held, cx.drops.len()), (Backlog::default(), 10));
}

/// What a class sent under its guarantee alone does not count against its children.
#[test]
fn a_class_that_gets_a_share_by_a_child_owes_nothing() {
    let (mut hfsc, mut drops) = (hfsc(), PacketList::new());
    set(&mut hfsc, 1, 0, &[("rt", FAST)], Instant(0));
    set(&mut hfsc, 4, 0, &[("ls", FAST)], Instant(0));
    let mut cx = Cx::new(Instant(SECOND), &mut drops);
    fill(&mut hfsc, 1, 900, &mut cx);
    assert_eq!(drain(&mut hfsc, 2 * SECOND, &mut cx).len(), 900);
    set(&mut hfsc, 2, 1, &[("ls", FAST)], cx.now);
    [2, 4].into_iter().for_each(|minor| fill(&mut hfsc, minor, 100, &mut cx));
    let out = drain(&mut hfsc, 2 * SECOND, &mut cx);
    assert!(count(&out[..100], 2).abs_diff(50) <= 2);
}

#[test]
fn a_recount_of_an_inner_class_leaves_its_children_active() {
    let (mut hfsc, mut drops) = (family(), PacketList::new());
    let mut cx = Cx::new(Instant(SECOND), &mut drops);
    fill(&mut hfsc, 2, 10, &mut cx);
    Classes::recount(&mut hfsc, 1);
    assert_eq!(drain(&mut hfsc, 2 * SECOND, &mut cx).len(), 10);
}
