//! Tests of what an `hfsc` keeps.

use onramp_queue::PacketList;

use super::*;
use crate::base::params::Value;
use crate::sched::ClassKind;

/// Returns the options of a class whose curves `rt` and `ls` have a rate of 1,000 bytes per second.
fn curves() -> Vec<Option<Value>> {
    let ClassKind::Added { params, .. } = HFSC.classes else { unreachable!("it has classes") };
    let is_both = |key| key == "sc";
    params.iter().map(|param| is_both(param.key).then(|| Value::List(vec![0, 0, 1_000]))).collect()
}

fn add(hfsc: &mut Hfsc, minor: u16, parent: u16, now: Instant) {
    let ClassKind::Added { params, .. } = HFSC.classes else { unreachable!("it has classes") };
    let given = curves();
    hfsc.set(minor, parent, &Values { params, given: &given, site: Site::default() }, now);
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
