//! Many senders on one link, and senders that exist only for a short time.

use std::thread;

use onramp::dev::Null;
use onramp::{Link, LinkBuilder};

use crate::common::{Fates, LONG, balanced, in_time};

fn null() -> LinkBuilder {
    Link::devices([Box::new(Null::default()) as Box<_>])
}

#[test]
fn a_thousand_senders_share_a_link() {
    in_time(|| {
        let link = null().build().unwrap();
        thread::scope(|scope| {
            for _ in 0..1_000 {
                let mut sender = link.sender();
                let work = move || {
                    let fates = Fates::of(&mut sender);
                    let flow = sender.flow(None);
                    (0..40).for_each(|_| sender.send(&flow, &[0; 120]).unwrap());
                    assert!(sender.flush(LONG));
                    assert_eq!(fates.get(None), 40);
                };
                let small = thread::Builder::new().stack_size(128 << 10);
                small.spawn_scoped(scope, work).expect("the machine has 1,000 threads");
            }
        });
        let stats = link.stats();
        assert_eq!(stats.sent, 40_000);
        balanced(&stats);
    });
}

/// What a sender has counted stays in the link's counters after the sender was dropped.
#[test]
fn short_lived_senders_count_too() {
    in_time(|| {
        let link = null().build().unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..500 {
                        let mut sender = link.sender();
                        let flow = sender.flow(None);
                        (0..round % 7).for_each(|_| sender.send(&flow, b"x").unwrap());
                    }
                });
            }
        });
        assert!(link.flush(LONG));
        let stats = link.stats();
        assert_eq!(stats.submitted, 4 * (0..500).map(|round| round % 7).sum::<u64>());
        balanced(&stats);
    });
}

/// A sender may move to another thread between any two calls.
#[test]
fn a_sender_may_wander() {
    in_time(|| {
        let builder = null().credits(crate::common::credits(3));
        let link = builder.build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for _ in 0..50 {
            sender = thread::scope(|scope| {
                let flow = &flow;
                let moved = scope.spawn(move || {
                    (0..10).for_each(|_| sender.send(flow, b"x").unwrap());
                    sender
                });
                moved.join().unwrap()
            });
        }
        assert!(sender.flush(LONG));
        assert_eq!(link.stats().sent, 500);
    });
}

#[test]
fn packets_of_the_heap_and_of_other_senders_may_be_submitted() {
    in_time(|| {
        let link = null().build().unwrap();
        let (mut one, mut two) = (link.sender(), link.sender());
        let (first, second) = (Fates::of(&mut one), Fates::of(&mut two));
        let flow = one.flow(None);
        let lent = one.packet(&flow, b"made by one").unwrap();
        two.submit(&flow, lent).unwrap();
        two.submit(&flow, onramp::Packet::with_payload(b"of the heap")).unwrap();
        assert!(one.flush(LONG) && two.flush(LONG) && link.flush(LONG));
        assert_eq!((first.total(), second.total()), (1, 0), "the credit's owner hears of it");
        let dropped = one.packet(&flow, b"never submitted").unwrap();
        assert_eq!(one.in_flight(), 1);
        drop(dropped);
        assert!(one.flush(LONG));
        assert_eq!(first.total(), 1, "what was not submitted has no fate");
        assert_eq!(link.stats().sent, 2);
        balanced(&link.stats());
    });
}

/// A flow can be used only with the link that made it, because its key and its port mean nothing to
/// another link.
#[test]
#[should_panic(expected = "a flow belongs to the link that made it")]
fn a_flow_of_another_link_is_refused() {
    let link = || {
        let device: Box<dyn onramp::Device> = Box::new(Null::new(1_514));
        Link::devices([device]).build().expect("a link")
    };
    let (ours, theirs) = (link(), link());
    let flow = theirs.sender().flow(None);
    let _ = ours.sender().try_send(&flow, b"stray");
}
