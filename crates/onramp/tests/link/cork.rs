//! Tests of corks (a corked sender holds packets back until it is uncorked).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onramp::dev::Null;
use onramp::{DropReason, Link, Mode, TrySendError};

use crate::common::{Fates, Gate, LONG, SHORT, balanced, credits, gated, in_time, until};
use crate::trap::Trap;

#[test]
fn a_cork_holds_back_and_lets_go_at_once() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.cork();
        for _ in 0..20 {
            sender.send(&flow, b"held back").unwrap();
        }
        assert_eq!(sender.in_flight(), 20, "they use credits");
        assert_eq!(link.stats().submitted, 0);
        assert!(gate.taken().is_empty());
        sender.uncork().unwrap();
        assert!(sender.flush(LONG));
        assert_eq!(gate.bursts(), [20], "one piece");
        sender.send(&flow, b"no cork").unwrap();
        assert!(sender.flush(LONG));
        assert_eq!(gate.bursts(), [20, 1]);
        sender.uncork().unwrap();
        balanced(&link.stats());
    });
}

#[test]
fn a_cork_keeps_order_on_every_port() {
    in_time(|| {
        let gates = [Gate::new(true), Gate::new(true), Gate::new(true)];
        let link = Link::devices(gates.iter().map(|gate| gate.device())).build().unwrap();
        let mut sender = link.sender();
        let flows = [(); 3].map(|()| sender.flow(None));
        sender.cork();
        for cookie in 0..60 {
            let flow = &flows[cookie % 3];
            let mut packet = sender.packet(flow, b"x").unwrap();
            packet.cookie = cookie as u64;
            sender.submit(flow, packet).unwrap();
        }
        sender.uncork().unwrap();
        assert!(sender.flush(LONG));
        for (flow, gate) in flows.iter().zip(0..) {
            assert_eq!(flow.port(), gate, "flows go round");
            let theirs: Vec<u64> = (gate as u64..60).step_by(3).collect();
            assert_eq!(gates[gate].taken(), theirs);
            assert_eq!(gates[gate].bursts(), [20]);
        }
    });
}

#[test]
fn waiting_and_flushing_pull_the_cork() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").credits(credits(10)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.cork();
        // More packets are corked than there are credits. So a `send` that waits for credit has to
        // end the cork, because it waits for the corked packets themselves.
        for _ in 0..25 {
            sender.send(&flow, b"x").unwrap();
        }
        assert!(sender.flush(LONG));
        assert_eq!(gate.taken().len(), 25);

        sender.cork();
        sender.send(&flow, b"x").unwrap();
        assert!(sender.flush(LONG));
        assert_eq!(gate.taken().len(), 26);
        assert_eq!(sender.try_send(&flow, b"x"), Ok(()), "and there is no cork any more");
        assert!(sender.flush(LONG));
        assert_eq!(link.stats().sent, 27);
    });
}

#[test]
fn a_sender_dropped_under_a_cork_sends() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.cork();
        for _ in 0..20 {
            sender.send(&flow, b"x").unwrap();
        }
        drop(sender);
        assert!(link.flush(LONG));
        assert_eq!(gate.taken().len(), 20);
        balanced(&link.stats());
    });
}

#[test]
fn a_closed_link_swallows_a_cork_and_counts_it() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.cork();
        sender.send(&flow, b"x").unwrap();
        link.close(Duration::ZERO);
        assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Closed));
        sender.uncork().unwrap();
        assert!(sender.flush(LONG));
        let stats = link.stats();
        assert_eq!((stats.submitted, stats.sent, stats.dropped_total()), (1, 0, 1));
        balanced(&stats);
    });
}

/// A cork may hold more packets than the intake can hold, even on a port that other senders keep
/// busy.
#[test]
fn a_cork_larger_than_the_intake_gets_through() {
    in_time(|| {
        for how in 0..3 {
            let device = Box::new(Null::default()) as Box<_>;
            let builder = Link::devices([device]).qdisc("pfifo limit 1mb").burst(8);
            let link = builder.credits(credits(200)).build().unwrap();
            let done = &AtomicU32::new(0);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    let mut sender = link.sender();
                    scope.spawn(move || {
                        let flow = sender.flow(None);
                        for _ in 0..20 {
                            sender.cork();
                            for _ in 0..200 {
                                sender.send(&flow, b"corked").unwrap();
                            }
                            match how {
                                0 => sender.wait_room(&flow, 10),
                                1 => assert!(sender.flush(LONG)),
                                _ => crate::ready::block_on(sender.ready(&flow, 10)),
                            }
                        }
                        done.fetch_add(1, Ordering::SeqCst);
                    });
                }
                for _ in 0..2 {
                    let mut sender = link.sender();
                    scope.spawn(move || {
                        let flow = sender.flow(None);
                        while done.load(Ordering::SeqCst) < 2 {
                            let _ = sender.try_send(&flow, b"busy");
                            sender.give_way();
                        }
                    });
                }
            });
            assert!(link.flush(LONG));
            assert!(link.stats().sent >= 2 * 20 * 200);
            balanced(&link.stats());
        }
    });
}

/// `uncork_timeout` waits until the intake has room for what a cork holds back, but no longer than
/// the caller wants.
#[test]
fn a_cork_ends_when_its_packets_fit() {
    in_time(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device()]).qdisc("pfifo").burst(4).build().unwrap();
        let caught = trap.catch(&link, 0);
        let mut sender = link.sender();
        let flow = sender.flow(None);
        (0..4).for_each(|_| sender.try_send(&flow, b"fills the intake").unwrap());
        sender.cork();
        (0..3).for_each(|_| sender.try_send(&flow, b"corked").unwrap());
        for timeout in [Duration::ZERO, SHORT] {
            assert!(!sender.uncork_timeout(timeout));
        }
        assert_eq!(sender.uncork(), Err(TrySendError::Full), "the cork goes on");
        let before = link.stats();
        assert_eq!(before.waits, 2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                until("the sender sleeps", || link.stats().parks > before.parks);
                trap.open();
            });
            assert!(sender.uncork_timeout(Duration::MAX));
        });
        assert!(sender.uncork_timeout(Duration::ZERO), "there is no cork any more");
        caught.join().unwrap();
        assert!(sender.flush(LONG));
        let stats = link.stats();
        assert_eq!((stats.submitted, stats.sent), (8, 8));
        assert_eq!(stats.waits, 3, "a call that does not wait is not counted");
        balanced(&stats);
    });
}

/// The next call of a sender whose cork holds back packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    WaitRoom,
    Timeout,
    Flush,
    Ready,
    Uncork,
    UncorkTimeout,
    Drop,
}

impl After {
    /// The calls that wait for room.
    const WAITING: [Self; 6] =
        [Self::WaitRoom, Self::Timeout, Self::Flush, Self::Ready, Self::UncorkTimeout, Self::Drop];
}

/// A link is closed while its intake is full and its runner is blocked inside a device. Packets
/// that a cork holds back find no room in the intake, so they are purged, whether their sender
/// calls `uncork` before the close or after it. No call waits for the device.
#[test]
fn a_cork_on_a_full_intake_ends_with_the_link() {
    let both = After::WAITING.into_iter().flat_map(|how| [(how, true), (how, false)]);
    for (how, waits) in both.chain([(After::Uncork, false)]) {
        in_time(move || {
            let trap = Trap::for_runners();
            let builder = Link::devices([trap.device()]).qdisc("pfifo").burst(4);
            let link = builder.mode(Mode::Dedicated).credits(credits(64)).build().unwrap();
            let mut sender = link.sender();
            let fates = Fates::of(&mut sender);
            let flow = sender.flow(None);
            trap.shut();
            sender.try_send(&flow, b"bait").unwrap();
            until("the runner is inside", || trap.inside() == 1);
            let mut accepted = 1;
            while sender.try_send(&flow, b"x").is_ok() {
                accepted += 1;
            }
            sender.cork();
            (0..3).for_each(|_| sender.try_send(&flow, b"corked").unwrap());
            let closes = || {
                let report = link.close(Duration::ZERO);
                assert!(!report.flushed && report.blocked == 1, "{how:?}: {report:?}");
            };
            if !waits {
                closes();
            }
            let (said, says) = std::sync::mpsc::channel();
            let goes_on = std::thread::Builder::new().spawn(move || {
                said.send(()).unwrap();
                match how {
                    After::WaitRoom => sender.wait_room(&flow, 1),
                    After::Timeout => assert!(sender.wait_room_timeout(&flow, 1, LONG)),
                    After::Flush => assert!(!sender.flush(LONG), "the device has one"),
                    After::Ready => crate::ready::block_on(sender.ready(&flow, 1)),
                    After::Uncork => sender.uncork().unwrap(),
                    After::UncorkTimeout => assert!(sender.uncork_timeout(Duration::MAX)),
                    After::Drop => return None,
                }
                assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Closed));
                // A task that waits is woken by the close at once. The cork ends with the next
                // call, which purges its packets.
                sender.uncork().unwrap();
                Some(sender)
            });
            says.recv().unwrap();
            if waits {
                closes();
            }
            let sender = goes_on.unwrap().join().unwrap();
            assert_eq!(trap.inside(), 1, "{how:?}: it is kept still");
            let dropped = || link.stats().dropped.get(&DropReason::Purged).copied();
            assert_eq!(dropped(), Some(3), "{how:?}");
            if let Some(mut sender) = sender {
                sender.reclaim();
                assert_eq!(fates.get(Some(DropReason::Purged)), 3, "{how:?}");
                trap.open();
                until("they come home", || sender.flush(Duration::ZERO));
                assert_eq!(fates.total(), accepted + 3);
            }
            trap.open();
            until("all is counted", || link.stats().held == 0);
            let stats = link.stats();
            assert_eq!(stats.submitted, accepted + 3, "{how:?}");
            assert_eq!(stats.submitted, stats.sent + stats.dropped_total());
            assert_eq!(dropped(), Some(stats.dropped_total()));
            balanced(&stats);
        });
    }
}
