//! Nothing is lost silently.

use onramp_smoltcp::{DropReason, End, pair, setup};
use smoltcp::phy::{Device, Medium, RxToken as _, TxToken as _};
use smoltcp::time::{Duration, Instant};

use crate::host::check_books;

fn send(device: &mut impl Device, now: Instant, number: u32) {
    let token = device.transmit(now).expect("there is always a token");
    token.consume(100, |buffer| buffer[..4].copy_from_slice(&number.to_be_bytes()));
}

/// Fetches the frames that are there, and returns how many.
fn fetch(end: &mut End, now: Instant) -> u64 {
    let mut count = 0;
    while let Some((token, _)) = end.receive(now) {
        token.consume(|frame| assert_eq!(frame.len(), 100));
        count += 1;
    }
    count
}

#[test]
fn every_frame_is_delivered_dropped_or_held() {
    for tree in [
        "netem delay 3ms 1ms rate 1mbit loss 10% duplicate 5% limit 20",
        "tbf rate 1mbit burst 500b limit 2000b",
        "red limit 4000b min 500b max 1500b avpkt 100b probability 0.5 bandwidth 1mbit",
        "fq maxrate 1mbit limit 10",
        "pfifo limit 5",
    ] {
        let tree = setup(tree).expect("a tree");
        let [mut a, mut b] = pair(Medium::Ip, 1_500, [&tree, &tree], 5).expect("two devices");
        let (mut now, mut came) = (Instant::ZERO, 0);
        for number in 0..2_000 {
            send(&mut a, now, number);
            check_books(&a);
            // A hold-up, in which the queue fills.
            if number % 100 > 30 {
                now += Duration::from_micros(u64::from(number % 7) * 400);
                came += fetch(&mut b, now);
                check_books(&a);
            }
        }
        while let Some(at) = b.next_frame_at(now) {
            check_books(&a);
            now = at;
            came += fetch(&mut b, now);
        }
        let sends = a.sends();
        let totals = sends.totals();
        assert_eq!(sends.held(), 0);
        assert_eq!(sends.delivered(), came);
        assert_eq!(totals.enqueued_packets - totals.made_packets, 2_000);
        let by_reason: u64 = DropReason::ALL.iter().map(|reason| totals.dropped(*reason)).sum();
        assert_eq!(came + by_reason, totals.enqueued_packets);
    }
}

#[test]
fn a_full_tree_drops_and_says_why() {
    let (full, free) = (setup("pfifo limit 2").expect("a tree"), setup("pfifo").expect("a tree"));
    let [mut a, mut b] = pair(Medium::Ip, 1_500, [&full, &free], 1).expect("two devices");
    for number in 0..5 {
        send(&mut a, Instant::ZERO, number);
    }
    assert_eq!(a.sends().totals().dropped(DropReason::Overlimit), 3);
    assert_eq!(a.sends().held(), 2);
    assert_eq!(fetch(&mut b, Instant::ZERO), 2);
}

#[test]
fn a_change_of_the_tree_is_counted_too() {
    let (slow, free) = (
        setup("qdisc add dev d root handle 1: tbf rate 8kbit burst 200b limit 9000b"),
        setup("pfifo"),
    );
    let (slow, free) = (slow.expect("a tree"), free.expect("a tree"));
    let [mut a, mut b] = pair(Medium::Ip, 1_500, [&slow, &free], 1).expect("two devices");
    for number in 0..5 {
        send(&mut a, Instant::ZERO, number);
    }
    assert_eq!(fetch(&mut b, Instant::ZERO), 2);
    let line = "qdisc replace dev d root handle 2: pfifo";
    a.sends_mut().change(Instant::ZERO, line).expect("a line of tc");
    assert_eq!(a.sends().totals().dropped(DropReason::Purged), 3);
    check_books(&a);
    assert!(a.sends_mut().change(Instant::ZERO, "qdisc replace dev d root pfifox").is_err());
    a.sends_mut().change(Instant::ZERO, "qdisc add dev d clsact").expect("a line of tc");
    let filter = "filter add dev d ingress matchall action drop";
    assert!(a.sends_mut().change(Instant::ZERO, filter).is_err(), "no frame would meet it");
}

/// A time that goes back is taken as the latest one.
#[test]
fn a_clock_that_goes_back_is_held() {
    let tree = setup("netem delay 1ms").expect("a tree");
    let [mut a, mut b] = pair(Medium::Ip, 1_500, [&tree, &tree], 1).expect("two devices");
    send(&mut a, Instant::from_millis(10), 1);
    send(&mut a, Instant::from_millis(3), 2);
    assert_eq!(b.next_frame_at(Instant::ZERO), Some(Instant::from_millis(11)));
    assert_eq!(fetch(&mut b, Instant::from_millis(11)), 2);
}

/// The two directions do not lose the same frames.
#[test]
fn each_direction_has_chance_of_its_own() {
    let tree = setup("netem loss 50%").expect("a tree");
    let [mut a, mut b] = pair(Medium::Ip, 1_500, [&tree, &tree], 1).expect("two devices");
    let now = Instant::ZERO;
    for number in 0..64 {
        send(&mut a, now, number);
        send(&mut b, now, number);
    }
    let [at_a, at_b] = [&mut a, &mut b].map(|end| {
        let mut numbers = Vec::new();
        while let Some((token, _)) = end.receive(now) {
            numbers.push(token.consume(|frame| frame[3]));
        }
        numbers
    });
    assert_ne!(at_a, at_b);
}
