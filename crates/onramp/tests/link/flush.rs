//! Flushing senders and links.

use std::time::Duration;

use onramp::dev::{Null, loopback};
use onramp::{Link, Rate};

use crate::common::{Gate, LONG, SHORT, balanced, gated, in_time, until};

/// A pacing rate so slow that the last packet leaves long after any short wait.
const QDISC: &str = "fq initial_quantum 0 quantum 256";

#[test]
fn a_flush_waits_for_paced_packets() {
    in_time(|| {
        let device = Null::default();
        let taken = device.stats();
        let link = Link::devices([Box::new(device) as Box<_>]).qdisc(QDISC).build().unwrap();
        let mut sender = link.sender();
        // At 80 kbit/s, a packet of 500 bytes (headers included) takes 50 ms.
        let flow = sender.flow(None).with_pacing_rate(Rate::bytes_per_second(10_000));
        let mut tries = 0;
        // The last leaves after 350 ms. If this thread rests for so long, all have left: once more.
        until("it waits", || {
            tries += 1;
            (0..8).for_each(|_| sender.send(&flow, &[0; 458]).unwrap());
            let waits = !link.flush(Duration::ZERO) && !sender.flush(SHORT);
            assert!(sender.flush(LONG) && link.flush(LONG));
            assert_eq!(taken.packets.get(), 8 * tries);
            waits
        });
        balanced(&link.stats());
    });
}

#[test]
fn a_flush_of_nothing_is_done() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        assert!(sender.flush(Duration::ZERO));
        assert!(link.flush(Duration::ZERO));
    });
}

#[test]
fn a_flush_waits_for_a_full_device() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.send(&flow, b"x").unwrap();
        assert!(!sender.flush(SHORT));
        assert!(!link.flush(SHORT));
        std::thread::scope(|scope| {
            let flushed = scope.spawn(|| sender.flush(LONG));
            let all = scope.spawn(|| link.flush(LONG));
            gate.open();
            assert!(flushed.join().unwrap() && all.join().unwrap());
        });
        assert_eq!(gate.taken().len(), 1);
    });
}

/// Packets that a receiver has not read count as sent, but have not come home. So a flush of the
/// sender waits for them, and a flush of the link does not.
#[test]
fn a_sender_waits_for_what_was_not_read_and_a_link_does_not() {
    in_time(|| {
        let (device, mut receiver) = loopback(100);
        let link = Link::devices([Box::new(device) as Box<_>]).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        (0..8).for_each(|_| sender.send(&flow, b"x").unwrap());
        assert!(link.flush(LONG));
        assert_eq!(link.stats().sent, 8);
        assert!(!sender.flush(SHORT));
        assert_eq!(receiver.recv_all().len(), 8);
        assert!(sender.flush(LONG));
        balanced(&link.stats());
    });
}

/// When a flush of a link returns true, the link holds no packet, wherever the packets were before
/// (intake, qdisc or burst).
#[test]
fn flushed_means_nothing_is_held() {
    in_time(|| {
        let device = Null::default();
        let taken = device.stats();
        let builder = Link::devices([Box::new(device) as Box<_>]).qdisc("pfifo limit 1mb");
        let link = builder.build().unwrap();
        let mut senders: Vec<_> = (0..4).map(|_| link.sender()).collect();
        for round in 1..=300 {
            std::thread::scope(|scope| {
                for sender in &mut senders {
                    scope.spawn(|| {
                        let flow = sender.flow(None);
                        (0..60).for_each(|_| sender.send(&flow, b"x").unwrap());
                    });
                }
            });
            assert!(link.flush(LONG));
            assert_eq!(taken.packets.get(), round * 240);
        }
        balanced(&link.stats());
    });
}
