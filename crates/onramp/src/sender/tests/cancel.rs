//! A sender keeps a cancel no longer than packets that it concerns, even if the port never runs
//! empty.

use super::*;

/// A link whose port holds one packet for an hour, and its sender.
fn busy_link() -> (Link, Sender) {
    let builder = Link::devices([Box::new(Null::default()) as Box<_>]).qdisc("fq horizon 4000s");
    let credits = Credits { packets: 100, bytes: 1 << 20 };
    let link = builder.credits(credits).build().expect("a link");
    let mut sender = link.sender();
    let stays = sender.flow(None);
    submit(&mut sender, &stays, 1, 3_600_000_000_000);
    (link, sender)
}

/// Submits packets that leave, or are dropped, in `ns` nanoseconds.
fn submit(sender: &mut Sender, flow: &Flow, count: u32, ns: u64) {
    for _ in 0..count {
        let mut packet = sender.packet(flow, b"x").expect("there is room");
        packet.txtime_ns = sender.shared().clock.now().after(ns).0;
        sender.submit(flow, packet).expect("there is room");
    }
}

/// Waits until only the packet that stays for an hour is in flight.
fn settle(sender: &mut Sender) {
    while sender.in_flight() > 1 {
        sender.reclaim();
        thread::sleep(Duration::from_micros(100));
    }
    sender.reclaim();
}

#[test]
fn a_cancel_ends_with_its_packets() {
    let (link, mut sender) = busy_link();
    let flow = sender.flow(None);
    let cancels = sender.shared().cancels.clone();
    let mut cancelled = 0;
    sender.watch(&flow);
    for _ in 0..50 {
        submit(&mut sender, &flow, 3, 1_000_000);
        cancelled += sender.cancel(&flow).expect("the flow is watched");
        submit(&mut sender, &flow, 3, 1_000_000);
        settle(&mut sender);
        assert!(!cancels.stand());
    }
    assert!(cancelled > 0 && sender.watched.tags() == 2, "one is used while the other comes home");
    assert_eq!(link.stats().held, 1, "the port was never empty");
}

/// The cancels of a sender whose packets stay are no more than its packets in flight. A flow that
/// is no longer watched leaves nothing behind either.
#[test]
fn cancels_are_bounded_by_packets_in_flight() {
    let (link, mut sender) = busy_link();
    let cancels = sender.shared().cancels.clone();
    for round in 0..300 {
        let flow = sender.flow(None);
        sender.watch(&flow);
        for _ in 0..9 {
            submit(&mut sender, &flow, 1, 20_000_000);
            let _ = sender.cancel(&flow);
        }
        let _ = sender.unwatch(&flow);
        if round % 11 == 10 {
            settle(&mut sender);
            assert!(!cancels.stand(), "{round}");
        }
        assert!(sender.watched.tags() <= 101, "{round}");
    }
    settle(&mut sender);
    assert_eq!(link.stats().held, 1);
}

/// A sender is dropped while its cancels stand. They end when its last packet is home.
#[test]
fn a_dropped_sender_leaves_no_cancel_behind() {
    let (link, mut sender) = busy_link();
    let (mut other, cancels) = (link.sender(), sender.shared().cancels.clone());
    let flow = other.flow(None);
    other.watch(&flow);
    submit(&mut other, &flow, 3, 200_000_000);
    assert_eq!(other.cancel(&flow), Some(3));
    drop(other);
    assert!(cancels.stand());
    // A minute is only a guard: the packets are dropped after 200 ms.
    (0..60_000).take_while(|_| cancels.stand()).for_each(|_| {
        thread::sleep(Duration::from_millis(1));
    });
    assert!(!cancels.stand());
    sender.reclaim();
    assert_eq!(link.stats().dropped.get(&DropReason::Cancelled), Some(&3));
    assert_eq!(link.stats().held, 1, "the port was never empty");
}
