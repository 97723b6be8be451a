//! Credits in time: how much a sender has in flight follows the rate at which its packets leave.

use std::time::Duration;

use onramp::dev::Null;
use onramp::{Credits, Device, Link, LinkBuilder, Sender};

use crate::common::{Gate, LONG, balanced, gated, in_time};
use crate::ready::block_on;

const MS: Duration = Duration::from_millis(1);
/// Payload of the packets; with headers, a packet has 1,250 bytes, which take 0.5 ms at 20 Mbit/s.
const SIZE: usize = 1_208;
/// Packets that leave in 8 ms at 20 Mbit/s.
const IN_TIME: u32 = 16;
const CREDITS: Credits = Credits { packets: 1_000, bytes: 1 << 18 };
/// Packets of this size that the credits allow.
const BY_CREDITS: u32 = 217;

fn null(qdisc: &str) -> LinkBuilder {
    let device = Box::new(Null::default()) as Box<dyn Device>;
    Link::devices([device]).qdisc(qdisc).credits(CREDITS)
}

/// Sends `count` packets as fast as the credits allow. Returns the greatest number that was in
/// flight after the first half of them.
fn most_in_flight(sender: &mut Sender, count: u32) -> u32 {
    let flow = sender.flow(None);
    let mut most = 0;
    for n in 0..count {
        sender.send(&flow, &[0; SIZE]).expect("the link is open");
        if n >= count / 2 {
            most = most.max(sender.in_flight());
        }
    }
    most
}

/// A shaper's rate bounds what is in flight, whoever waits and however late the threads come: a
/// late thread makes the rate look smaller, and not larger, but for the burst of the bucket.
#[test]
fn a_paced_sender_has_little_in_flight() {
    in_time(|| {
        for qdisc in ["tbf rate 20mbit burst 1300 limit 1mb", "fq maxrate 20mbit flow_limit 1000"] {
            for manual in [false, true] {
                let builder = null(qdisc).credit_time(8 * MS);
                let link = if manual { builder.manual() } else { builder }.build().expect("one");
                let mut sender = link.sender();
                let most = most_in_flight(&mut sender, 300);
                assert!((2..=2 * IN_TIME).contains(&most), "{qdisc}: {most} packets");
                assert!(sender.flush(LONG));
                assert_eq!(link.stats().sent, 300);
                balanced(&link.stats());
                sender.set_credit_time(None);
                let most = most_in_flight(&mut sender, 400);
                assert!(most > BY_CREDITS / 2, "{qdisc}: only {most} packets without it");
            }
        }
    });
}

/// A sender on a fast link is bounded by its credits alone, once it knows how fast the link is.
#[test]
fn a_fast_link_is_not_held_up() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo limit 100000").credits(CREDITS).build().expect("a link");
        let mut sender = link.sender();
        sender.set_credit_time(Some(LONG));
        let flow = sender.flow(None);
        for _ in 0..2 * BY_CREDITS {
            sender.send(&flow, &[0; SIZE]).expect("the link is open");
        }
        assert!(sender.flush(LONG));
        gate.shut();
        let fit = (0..).take_while(|_| sender.try_send(&flow, &[0; SIZE]).is_ok()).count();
        assert_eq!(u32::try_from(fit), Ok(BY_CREDITS));
        gate.open();
        assert!(sender.flush(LONG));
        balanced(&link.stats());
    });
}

/// With the shortest time, two packets may be in flight, and every way of waiting ends.
#[test]
fn two_packets_are_always_allowed() {
    in_time(|| {
        let link = null("tbf rate 20mbit burst 1300 limit 1mb").build().expect("a link");
        let mut sender = link.sender();
        sender.set_credit_time(Some(Duration::ZERO));
        let flow = sender.flow(None);
        let mut most = 0;
        for n in 0..60 {
            match n % 3 {
                0 => sender.send(&flow, &[0; SIZE]).expect("the link is open"),
                1 => {
                    block_on(sender.ready(&flow, SIZE));
                    sender.try_send(&flow, &[0; SIZE]).expect("it has room");
                }
                _ => {
                    assert!(sender.wait_room_timeout(&flow, SIZE, LONG));
                    sender.try_send(&flow, &[0; SIZE]).expect("it has room");
                }
            }
            most = most.max(sender.in_flight());
        }
        assert_eq!(most, 2);
        sender.send_batch(&flow, &[[0; SIZE]; 20]).expect("the link is open");
        assert!(sender.in_flight() <= 2);
        assert!(sender.flush(LONG));
        assert_eq!(link.stats().sent, 80);
    });
}

/// The caller keeps as many packets as may be in flight. Nothing would come home, so calls that
/// wait do not wait for it.
#[test]
fn packets_that_the_caller_keeps_hold_nobody_up() {
    in_time(|| {
        let link = null("tbf rate 20mbit burst 1300 limit 1mb").build().expect("a link");
        let mut sender = link.sender();
        sender.set_credit_time(Some(Duration::ZERO));
        let flow = sender.flow(None);
        let mut kept = Vec::new();
        while let Ok(packet) = sender.packet(&flow, &[0; SIZE]) {
            kept.push(packet);
        }
        assert_eq!(kept.len(), 2);
        for n in 1..=10 {
            if n % 2 == 0 {
                block_on(sender.ready(&flow, SIZE));
                sender.try_send(&flow, &[0; SIZE]).expect("it has room");
            } else {
                sender.send(&flow, &[0; SIZE]).expect("the link is open");
            }
            assert_eq!(sender.in_flight(), 3, "and one after another");
        }
        sender.send_batch(&flow, &[[0; SIZE]; 5]).expect("the link is open");
        assert_eq!(sender.in_flight(), 3);
        assert!(sender.flush(LONG));
        assert_eq!(link.stats().sent, 15);
    });
}

/// The sizes of packets differ: a large packet does not make room for many small ones.
#[test]
fn packets_of_all_sizes_get_through() {
    in_time(|| {
        let link = null("tbf rate 100mbit burst 70000 limit 1mb").build().expect("a link");
        let mut sender = link.sender();
        sender.set_credit_time(Some(Duration::ZERO));
        let flow = sender.flow(None);
        for round in 0..20 {
            sender.send(&flow, &[0; 30_000]).expect("the link is open");
            for _ in 0..round {
                sender.send(&flow, &[0; 10]).expect("the link is open");
                assert!(sender.in_flight() <= 2, "two, of whatever size");
            }
        }
        assert!(sender.flush(LONG));
        balanced(&link.stats());
    });
}
