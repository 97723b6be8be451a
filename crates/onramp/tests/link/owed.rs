//! For which packets a sender's flush waits, which packets use its credits, and to which sender a
//! packet's completion is reported: whichever sender made the packet, and wherever the packet goes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use onramp::dev::{Receiver, loopback};
use onramp::{DropReason, Flow, Link, Mapping, Packet, Rejected, Sender, TrySendError};

use crate::common::{Fates, Gate, LONG, balanced, credits, gated, in_time, until};
use crate::trap::Trap;

/// Returns whether all packets that the sender submitted are home, as its flush says.
fn home(sender: &mut Sender) -> bool {
    sender.flush(Duration::ZERO)
}

/// Makes a link whose device puts packets into a mailbox at once.
fn mailbox() -> (Link, Receiver) {
    let (device, receiver) = loopback(1_000);
    let link = Link::devices([Box::new(device) as Box<_>]).qdisc("pfifo");
    (link.credits(credits(4)).build().unwrap(), receiver)
}

/// Packets that were allocated on the heap use no credit, but a flush of the sender that submitted
/// them waits for them, too.
#[test]
fn packets_of_the_heap_are_flushed() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(4)).build().unwrap();
        let mut sender = link.sender();
        let fates = Fates::of(&mut sender);
        let flow = sender.flow(None);
        for round in 1..=3 {
            gate.shut();
            for _ in 0..20 {
                sender.submit(&flow, Packet::with_payload(b"of the heap")).unwrap();
            }
            assert!(!home(&mut sender));
            assert_eq!(sender.in_flight(), 0, "it uses no credit");
            gate.let_go(19);
            assert!(!home(&mut sender), "one is left");
            gate.open();
            assert!(sender.flush(LONG));
            assert_eq!(link.stats().sent, round * 20);
        }
        assert_eq!(fates.total(), 0, "their fate is told to nobody");
        // A packet that the caller still holds was not submitted, so a flush does not wait for it.
        let held = sender.packet(&flow, b"x").unwrap();
        assert!(home(&mut sender));
        assert_eq!(sender.in_flight(), 1);
        drop(held);
        balanced(&link.stats());
    });
}

/// Packets from the heap that have been sent have no effect on later waits: a sender that waits for
/// room is woken when half of its own packets that are in flight have come home.
#[test]
fn packets_of_the_heap_leave_no_trace() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").credits(credits(4)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for _ in 0..50 {
            sender.submit(&flow, Packet::with_payload(b"of the heap")).unwrap();
        }
        assert!(sender.flush(LONG));
        gate.shut();
        let _held: Vec<_> = (0..3).map(|_| sender.packet(&flow, b"held").unwrap()).collect();
        sender.try_send(&flow, b"the last credit").unwrap();
        thread::scope(|scope| {
            let sends = scope.spawn(|| sender.send(&flow, b"waits for that one"));
            until("it sleeps", || link.stats().parks > 0);
            gate.open();
            assert_eq!(sends.join().unwrap(), Ok(()));
        });
        assert!(sender.flush(LONG));
        assert_eq!(sender.in_flight(), 3, "what it holds");
    });
}

/// One sender makes a packet, and another sender submits it. A flush of the submitting sender waits
/// for the packet. The packet uses the credit of the sender that made it, and its completion is
/// reported to that sender.
#[test]
fn a_lent_packet_is_flushed_by_who_submitted_it() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").build().unwrap();
        let (mut made, mut lent) = (link.sender(), link.sender());
        let (told_maker, told_other) = (Fates::of(&mut made), Fates::of(&mut lent));
        let flow = made.flow(None);
        let packet = made.packet(&flow, b"lent").unwrap();
        assert!(home(&mut made) && home(&mut lent));
        lent.submit(&flow, packet).unwrap();
        assert!(home(&mut made), "it submitted nothing");
        assert!(!home(&mut lent));
        assert_eq!((made.in_flight(), lent.in_flight()), (1, 0));
        // The sender `made` now submits a packet of its own, behind the packet that it made and
        // `lent` submitted. A flush of each sender waits only for the packet that the sender itself
        // submitted.
        made.try_send(&flow, b"own").unwrap();
        assert!(!home(&mut made));
        gate.let_go(1);
        assert!(lent.flush(LONG));
        assert!(!home(&mut made), "its own is held");
        assert_eq!((made.in_flight(), told_maker.total()), (1, 1));
        gate.open();
        assert!(made.flush(LONG));
        assert_eq!((told_maker.get(None), told_other.total()), (2, 0));
        balanced(&link.stats());
    });
}

/// A sender submits a packet that a sender of another link made, and is dropped before the packet
/// comes home. The sender that made the packet gets its credit back, and the completion.
#[test]
fn a_packet_is_lent_to_another_link() {
    in_time(|| {
        let gates = [Gate::new(true), Gate::new(false)];
        let links = gates.each_ref().map(|gate| gated(gate, "pfifo").build().unwrap());
        let [mut made, mut lent] = links.each_ref().map(Link::sender);
        let fates = Fates::of(&mut made);
        let flows = [made.flow(None), lent.flow(None)];
        let packet = made.packet(&flows[0], b"abroad").unwrap();
        lent.submit(&flows[1], packet).unwrap();
        assert!(home(&mut made) && !home(&mut lent));
        assert_eq!(made.in_flight(), 1);
        // Drop the sender that submitted the packet before the packet comes home.
        drop(lent);
        gates[1].open();
        assert!(links[1].flush(LONG));
        until("it is home", || made.reclaim() == 1);
        assert_eq!((fates.get(None), made.in_flight()), (1, 0));
        links.iter().for_each(|link| balanced(&link.stats()));
    });
}

/// The sender that made a packet is dropped while the packet is in flight. A flush of the sender
/// that submitted the packet still waits for it.
#[test]
fn a_lent_packet_outlives_its_maker() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").build().unwrap();
        let (mut made, mut lent) = (link.sender(), link.sender());
        let flow = made.flow(None);
        let packet = made.packet(&flow, b"lent").unwrap();
        lent.submit(&flow, packet).unwrap();
        drop(made);
        assert!(!home(&mut lent));
        gate.open();
        assert!(lent.flush(LONG));
        balanced(&link.stats());
    });
}

/// If a callback panics, its sender loses no credits, and still knows which packets are in flight.
#[test]
fn a_callback_that_panics_keeps_the_books() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(8)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for panics_at in 1..=8_u32 {
            gate.shut();
            let mut calls = 0;
            sender.on_complete(move |_| {
                calls += 1;
                assert_ne!(calls, panics_at, "the panic that this test causes");
            });
            (0..8).for_each(|_| sender.try_send(&flow, b"x").unwrap());
            assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Full));
            gate.open();
            assert!(link.flush(LONG));
            // All packets have come home at once. So the flush calls the callback for them, which
            // panics.
            assert!(catch_unwind(AssertUnwindSafe(|| sender.flush(LONG))).is_err());
            sender.on_complete(|_| ());
            assert!(sender.flush(LONG), "nothing is below");
            assert_eq!(sender.in_flight(), 0, "the {panics_at}. panics");
            // All credits are available again, and a sender that waits for credit is woken.
            gate.shut();
            let held: Vec<_> = (0..7).map(|_| sender.packet(&flow, b"x").unwrap()).collect();
            sender.try_send(&flow, b"x").unwrap();
            assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Full));
            gate.open();
            sender.wait_room(&flow, 1);
            drop(held);
            assert!(sender.flush(LONG));
        }
        balanced(&link.stats());
    });
}

/// Submits `packet`, which a receiver got earlier, with `sender` on `flow`.
fn on(sender: &mut Sender, flow: &Flow, packet: Packet) {
    sender.submit(flow, packet).unwrap();
}

/// A receiver gets a packet and submits it again by the sender that made it. The packet counts as
/// one packet in flight, until the receiver drops it.
#[test]
fn what_a_receiver_sends_on_counts_once() {
    in_time(|| {
        let (link, mut receiver) = mailbox();
        let mut sender = link.sender();
        let fates = Fates::of(&mut sender);
        let flow = sender.flow(None);
        sender.try_send(&flow, b"x").unwrap();
        for _ in 0..5 {
            let packet = receiver.recv_timeout(LONG).unwrap();
            assert!(!home(&mut sender), "the receiver has it");
            on(&mut sender, &flow, packet);
            assert!(!home(&mut sender));
            assert_eq!((sender.in_flight(), fates.total()), (1, 0));
        }
        drop(receiver.recv_timeout(LONG).unwrap());
        assert!(home(&mut sender));
        assert_eq!((sender.in_flight(), fates.get(None)), (0, 1), "told once");
        assert!(link.flush(LONG));
        assert_eq!(link.stats().submitted, 6);
        balanced(&link.stats());
    });
}

/// A receiver gets a packet and submits it again by another sender, of the same link or of another
/// link. The flushes of both senders wait for the packet until it is dropped.
#[test]
fn what_a_receiver_sends_on_by_another_sender() {
    for abroad in [false, true] {
        in_time(move || {
            let (link, mut receiver) = mailbox();
            let (other_link, mut other_receiver) = mailbox();
            let mut sender = link.sender();
            let mut other = if abroad { other_link.sender() } else { link.sender() };
            let (fates, others) = (Fates::of(&mut sender), Fates::of(&mut other));
            let (flow, there) = (sender.flow(None), other.flow(None));
            sender.try_send(&flow, b"x").unwrap();
            let packet = receiver.recv_timeout(LONG).unwrap();
            assert!(home(&mut other));
            on(&mut other, &there, packet);
            assert!(!home(&mut sender) && !home(&mut other));
            assert_eq!((sender.in_flight(), other.in_flight()), (1, 0));
            let last = if abroad { &mut other_receiver } else { &mut receiver };
            let packet = last.recv_timeout(LONG).unwrap();
            assert!(!home(&mut sender) && !home(&mut other));
            // The sender that made the packet submits it once more.
            on(&mut sender, &flow, packet);
            let packet = receiver.recv_timeout(LONG).unwrap();
            assert!(!home(&mut sender) && !home(&mut other));
            drop(packet);
            assert!(home(&mut sender) && home(&mut other));
            assert_eq!((sender.in_flight(), fates.get(None), others.total()), (0, 1, 0));
        });
    }
}

/// A received packet is submitted again, and is dropped because the mailbox has no receiver any
/// more. Only this last fate is reported as its completion.
#[test]
fn the_last_fate_is_told() {
    in_time(|| {
        let (link, mut receiver) = mailbox();
        let mut sender = link.sender();
        let fates = Fates::of(&mut sender);
        let flow = sender.flow(None);
        sender.try_send(&flow, b"x").unwrap();
        let packet = receiver.recv_timeout(LONG).unwrap();
        drop(receiver);
        on(&mut sender, &flow, packet);
        assert!(sender.flush(LONG));
        assert_eq!((fates.get(Some(DropReason::Refused)), fates.total()), (1, 1));
        balanced(&link.stats());
    });
}

/// A packet that a full intake refuses is given back unchanged. As it was never accepted, no
/// completion is reported for it, and it uses the credit of the sender that made it until it is
/// dropped.
#[test]
fn a_refused_packet_is_below_nobody() {
    in_time(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device()]).burst(1).build().unwrap();
        let caught = trap.catch(&link, 0);
        let (mut maker, mut other) = (link.sender(), link.sender());
        let (fates, others) = (Fates::of(&mut maker), Fates::of(&mut other));
        let flow = maker.flow(None);
        other.try_send(&flow, b"fills the intake").unwrap();
        for lends in [false, true] {
            let packet = maker.packet(&flow, b"x").unwrap();
            let sender = if lends { &mut other } else { &mut maker };
            let Err(Rejected { packet, why }) = sender.submit(&flow, packet) else {
                panic!("there is no room")
            };
            assert_eq!(why, TrySendError::Full);
            assert!(home(&mut maker));
            maker.reclaim();
            assert_eq!(maker.in_flight(), 1, "the caller has it");
            drop(packet);
            maker.reclaim();
            assert_eq!((maker.in_flight(), fates.total()), (0, 0));
        }
        trap.open();
        caught.join().unwrap();
        assert!(other.flush(LONG));
        assert_eq!((others.get(None), link.stats().refused), (1, 2));
        balanced(&link.stats());
    });
}

/// A receiver submits a received packet again, by the sender that made it or by another, and the
/// packet is refused. The sender that made the packet then still waits until the receiver drops it,
/// and gets its completion.
#[test]
fn what_is_refused_as_it_is_sent_on_is_as_it_was() {
    in_time(|| {
        let (device, mut receiver) = loopback(9);
        let trap = Trap::new();
        let link = Link::devices([Box::new(device) as Box<_>, trap.device()]);
        let link = link.qdisc("pfifo").burst(1).build().unwrap();
        let caught = trap.catch(&link, 1);
        let (mut sender, mut other) = (link.sender(), link.sender());
        let fates = Fates::of(&mut sender);
        let [flow, full] = [0, 1].map(|port| sender.flow_with(None, Mapping::Port(port)));
        other.try_send(&full, b"fills the intake").unwrap();
        let mut wrong = Vec::new();
        for (turn, lends) in [(1, true), (2, false)] {
            sender.try_send(&flow, b"x").unwrap();
            let packet = receiver.recv_timeout(LONG).unwrap();
            let by = if lends { &mut other } else { &mut sender };
            let packet = by.submit(&full, packet).expect_err("there is no room").packet;
            if home(&mut sender) {
                wrong.push(format!("lent {lends}: flushed, though the receiver has it"));
            }
            drop(packet);
            assert!(home(&mut sender));
            if fates.get(None) != turn {
                wrong.push(format!("lent {lends}: its fate was not told"));
            }
        }
        trap.open();
        caught.join().unwrap();
        assert!(other.flush(LONG));
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}
