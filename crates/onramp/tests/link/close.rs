//! Closing a link, and what happens to packets and senders afterwards.

use std::sync::Arc;
use std::time::Duration;

use onramp::dev::Null;
use onramp::{CloseReport, DropReason, Link, SendError, TrySendError};

use crate::common::{Fates, Gate, LONG, SHORT, balanced, credits, gated, in_time, until};

#[test]
fn a_close_in_time_loses_nothing() {
    in_time(|| {
        for _ in 0..100 {
            let device = Null::default();
            let taken = device.stats();
            let link = Link::devices([Box::new(device) as Box<_>]).build().unwrap();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    let mut sender = link.sender();
                    scope.spawn(move || {
                        let flow = sender.flow(None);
                        (0..100).for_each(|_| sender.send(&flow, b"x").unwrap());
                    });
                }
            });
            let report = link.close(LONG);
            assert_eq!((report.flushed, report.purged), (true, 0));
            assert_eq!(taken.packets.get(), 400);
            balanced(&link.stats());
        }
    });
}

#[test]
fn a_close_with_a_deadline_purges_the_rest_and_says_so() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        let fates = Fates::of(&mut sender);
        let flow = sender.flow(None);
        for _ in 0..30 {
            sender.send(&flow, b"x").unwrap();
        }
        let report = link.close(SHORT);
        assert_eq!((report.flushed, report.purged), (false, 30));
        let stats = link.stats();
        assert_eq!(stats.dropped.get(&DropReason::Purged), Some(&30));
        balanced(&stats);
        assert!(sender.flush(LONG), "their sender hears of it");
        assert_eq!(fates.get(Some(DropReason::Purged)), 30);
    });
}

#[test]
fn a_closed_link_refuses() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "fq").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        let made_before = sender.packet(&flow, b"x").unwrap();
        sender.send(&flow, b"x").unwrap();
        assert_eq!(link.close(LONG).purged, 0);
        assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Closed));
        assert_eq!(sender.send(&flow, b"x"), Err(SendError::Closed));
        assert_eq!(sender.try_send_batch(&flow, ["x"]), Err(TrySendError::Closed));
        assert_eq!(sender.send_batch(&flow, &["x"]), Err(SendError::Closed));
        assert_eq!(sender.packet(&flow, b"x").err(), Some(TrySendError::Closed));
        let mut late = link.sender();
        assert_eq!(late.send(&flow, b"x"), Err(SendError::Closed));
        // A packet that was made before the close can still be submitted: it is accepted, dropped
        // and counted.
        sender.submit(&flow, made_before).unwrap();
        sender.wait_room(&flow, 9);
        crate::ready::block_on(sender.ready(&flow, 9));
        assert!(sender.flush(LONG));
        let stats = link.stats();
        assert_eq!((stats.submitted, stats.sent), (2, 1));
        assert_eq!(stats.dropped.get(&DropReason::Purged), Some(&1));
        balanced(&stats);
        // The report of a second close counts the packet that was submitted after the first close,
        // because the packet was dropped after the first close began.
        let again = link.close(LONG);
        assert_eq!((again.flushed, again.purged), (false, 1));
    });
}

#[test]
fn a_close_wakes_who_waits() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(2)).build().unwrap();
        std::thread::scope(|scope| {
            let mut waiting = Vec::new();
            for _ in 0..6 {
                let mut sender = link.sender();
                waiting.push(scope.spawn(move || {
                    let flow = sender.flow(None);
                    loop {
                        if let Err(why) = sender.send(&flow, b"x") {
                            return why;
                        }
                    }
                }));
            }
            // A sender whose patience ends sleeps again, so the number of sleeps alone does not
            // tell that each of the six has slept.
            until("all have used their credits", || link.stats().submitted == 12);
            until("the last one sleeps, too", || link.stats().parks >= 6);
            assert_eq!(link.close(Duration::ZERO).purged, 12);
            for thread in waiting {
                assert_eq!(thread.join().unwrap(), SendError::Closed);
            }
        });
        balanced(&link.stats());
    });
}

/// A link lives until its last handle and its last sender are dropped, in either order.
#[test]
fn a_link_lives_as_long_as_its_senders() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "fq").build().unwrap();
        let clone = link.clone();
        let mut sender = link.sender();
        drop((link, clone));
        let flow = sender.flow(None);
        for _ in 0..100 {
            sender.send(&flow, b"x").unwrap();
        }
        assert!(sender.flush(LONG));
        assert_eq!(gate.taken().len(), 100);
        assert_eq!(Arc::strong_count(&gate), 2, "ours, and the device's");
        drop(sender);
        assert_eq!(Arc::strong_count(&gate), 1, "the device went with the last sender");
    });
}

#[test]
fn a_link_dropped_with_packets_held_frees_all() {
    in_time(|| {
        for qdisc in ["pfifo", "fq", "fq maxrate 1kbit"] {
            let gate = Gate::new(false);
            let link = gated(&gate, qdisc).build().unwrap();
            let mut sender = link.sender();
            let flow = sender.flow(None);
            for _ in 0..50 {
                sender.send(&flow, b"x").unwrap();
            }
            drop(sender);
            let stats = link.stats();
            assert_eq!((stats.submitted, stats.sent + stats.dropped_total()), (50, 0));
            drop(link);
            assert_eq!(Arc::strong_count(&gate), 1);
        }
    });
}

/// Senders push while the link closes. Each packet is sent, or dropped and counted, or refused.
#[test]
fn pushes_race_with_the_close() {
    in_time(|| {
        for round in 0..60 {
            let device = Null::default();
            let taken = device.stats();
            let link = Link::devices([Box::new(device) as Box<_>]).build().unwrap();
            let accepted: u64 = std::thread::scope(|scope| {
                let mut threads = Vec::new();
                for _ in 0..4 {
                    let mut sender = link.sender();
                    threads.push(scope.spawn(move || {
                        let fates = Fates::of(&mut sender);
                        let flow = sender.flow(None);
                        let mut accepted = 0;
                        while sender.send(&flow, b"x").is_ok() {
                            accepted += 1;
                        }
                        // A flush of a closed link gives up soon.
                        until("all come home", || sender.flush(LONG));
                        assert_eq!(fates.total(), accepted);
                        accepted
                    }));
                }
                let threshold = round * 20;
                until("some are sent", || taken.packets.get() >= threshold);
                link.close(Duration::ZERO);
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            until("all is counted", || link.stats().held == 0);
            let stats = link.stats();
            assert_eq!((stats.submitted, stats.sent), (accepted, taken.packets.get()));
            balanced(&stats);
        }
    });
}

#[test]
fn several_may_close_at_once() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        (0..20).for_each(|_| sender.send(&flow, b"x").unwrap());
        std::thread::scope(|scope| {
            let closes = [(); 4].map(|()| scope.spawn(|| link.close(SHORT)));
            for report in closes.map(|close| close.join().unwrap()) {
                // Closes at the same time act as one close, and each of them reports the same
                // result.
                assert_eq!(report, CloseReport { flushed: false, purged: 20, blocked: 0 });
            }
        });
        assert_eq!(link.close(LONG).purged, 20, "and so does one that comes later");
        let stats = link.stats();
        assert_eq!(stats.dropped.get(&DropReason::Purged), Some(&20));
        balanced(&stats);
    });
}
