//! Packets that their sender takes back.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use onramp::dev::loopback;
use onramp::{
    Device, DeviceInfo, DropReason, Flow, FlowStats, Instant, Link, PacketList, Sender,
    Transmitted, TrySendError,
};

use crate::common::{Fates, Gate, LONG, balanced, credits, gated, in_time, until};

const CANCELLED: Option<DropReason> = Some(DropReason::Cancelled);

fn send(sender: &mut Sender, flow: &Flow, cookies: std::ops::Range<u64>) {
    for cookie in cookies {
        let mut packet = sender.packet(flow, b"x").unwrap();
        packet.cookie = cookie;
        sender.submit(flow, packet).unwrap();
    }
}

fn stats(sender: &mut Sender, flow: &Flow) -> FlowStats {
    sender.flow_stats(flow).expect("the flow is watched")
}

/// A device that is full has no packet yet. Of the packets that wait for it, in the qdisc and in
/// front of the device, it never gets those that their sender takes back; it gets all others.
#[test]
fn a_device_gets_no_packet_that_was_taken_back() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "fq").credits(credits(1_000)).build().unwrap();
        let (mut sender, mut other) = (link.sender(), link.sender());
        let (flow, kept) = (sender.flow(None), sender.flow(None));
        [&flow, &kept].into_iter().for_each(|flow| sender.watch(flow));
        other.watch(&flow);
        let fates = Fates::of(&mut sender);
        send(&mut sender, &flow, 0..90);
        send(&mut sender, &kept, 100..190);
        send(&mut other, &flow, 200..205);
        assert_eq!(sender.cancel(&flow), Some(90));
        assert_eq!(sender.cancel(&flow), Some(0), "they are cancelled already");
        send(&mut sender, &flow, 300..305);
        gate.open();
        assert!(sender.flush(LONG) && other.flush(LONG));
        let mut taken = gate.taken();
        taken.sort_unstable();
        assert!(taken.into_iter().eq((100..190).chain(200..205).chain(300..305)));
        assert_eq!((fates.get(CANCELLED), fates.get(None)), (90, 95));
        let of_flow = stats(&mut sender, &flow);
        assert_eq!((of_flow.submitted, of_flow.sent, of_flow.in_flight()), (95, 5, 0));
        assert_eq!(of_flow.dropped, BTreeMap::from([(DropReason::Cancelled, 90)]));
        assert_eq!(stats(&mut sender, &kept).sent, 90);
        assert_eq!(stats(&mut other, &flow).sent, 5, "only its sender takes a packet back");
        assert_eq!(link.stats().dropped, BTreeMap::from([(DropReason::Cancelled, 90)]));
        balanced(&link.stats());
    });
}

/// Only a sender that watches a flow can take its packets back, and only those that it has
/// submitted since then.
#[test]
fn packets_of_flows_that_are_not_watched_stay() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(100)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        assert_eq!(sender.cancel(&flow), None);
        send(&mut sender, &flow, 0..10);
        assert_eq!(sender.cancel(&flow), None);
        sender.watch(&flow);
        assert_eq!(sender.cancel(&flow), Some(0));
        send(&mut sender, &flow, 10..20);
        let _ = sender.unwatch(&flow);
        assert_eq!(sender.cancel(&flow), None);
        sender.watch(&flow);
        send(&mut sender, &flow, 20..30);
        assert_eq!(sender.cancel(&flow), Some(10));
        assert_eq!(sender.unwatch(&flow).unwrap().in_flight(), 10, "it stays cancelled");
        send(&mut sender, &flow, 30..40);
        gate.open();
        assert!(sender.flush(LONG));
        assert!(gate.taken().into_iter().eq((0..20).chain(30..40)));
        balanced(&link.stats());
    });
}

/// What a cork holds back is dropped by the call itself.
#[test]
fn corked_packets_are_taken_back_at_once() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").credits(credits(8)).build().unwrap();
        let mut sender = link.sender();
        let (flow, kept) = (sender.flow(None), sender.flow(None));
        sender.watch(&flow);
        let fates = Fates::of(&mut sender);
        sender.cork();
        send(&mut sender, &flow, 0..3);
        send(&mut sender, &kept, 3..5);
        send(&mut sender, &flow, 5..8);
        assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Full));
        assert_eq!(sender.cancel(&flow), Some(6));
        assert_eq!((sender.reclaim(), sender.in_flight(), fates.get(CANCELLED)), (6, 2, 6));
        assert_eq!(stats(&mut sender, &flow).dropped_total(), 6);
        assert_eq!(link.stats().dropped, BTreeMap::from([(DropReason::Cancelled, 6)]));
        send(&mut sender, &flow, 8..10);
        sender.uncork().unwrap();
        assert!(sender.flush(LONG));
        assert_eq!(gate.taken(), [3, 4, 8, 9]);
        balanced(&link.stats());
    });
}

/// A sender is dropped after it has taken packets back. They are dropped all the same.
#[test]
fn packets_stay_cancelled_without_their_sender() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(100)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.watch(&flow);
        send(&mut sender, &flow, 0..50);
        assert_eq!(sender.cancel(&flow), Some(50));
        send(&mut sender, &flow, 50..60);
        drop(sender);
        gate.open();
        assert!(link.flush(LONG));
        assert_eq!(gate.taken(), (50..60).collect::<Vec<_>>());
        balanced(&link.stats());
    });
}

/// The device has handed packets to a receiver, which sends one of them again. It is too late to
/// take them back.
#[test]
fn packets_of_a_receiver_are_not_taken_back() {
    in_time(|| {
        let (device, mut receiver) = loopback(100);
        let link = Link::devices([Box::new(device) as Box<_>]).build().unwrap();
        let (mut maker, mut other) = (link.sender(), link.sender());
        let flow = maker.flow(None);
        maker.watch(&flow);
        send(&mut maker, &flow, 0..2);
        let again = receiver.recv_timeout(LONG).unwrap();
        assert_eq!(maker.cancel(&flow), Some(2), "a receiver still has them");
        other.submit(&flow, again).unwrap();
        let cookies = [1, 0].map(|_| receiver.recv_timeout(LONG).unwrap().cookie);
        assert_eq!(cookies, [1, 0]);
        assert!(maker.flush(LONG) && other.flush(LONG));
        assert_eq!(stats(&mut maker, &flow).sent, 2);
        balanced(&link.stats());
    });
}

#[test]
fn a_panic_of_the_callback_leaves_a_cancel_right() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(9)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.watch(&flow);
        send(&mut sender, &flow, 0..9);
        assert_eq!(sender.cancel(&flow), Some(9));
        gate.open();
        assert!(link.flush(LONG));
        let mut calls = 0;
        sender.on_complete(move |_| {
            calls += 1;
            assert!(calls != 3, "as the test wants it");
        });
        let _ = catch_unwind(AssertUnwindSafe(|| sender.flush(LONG)));
        assert!(sender.flush(LONG));
        send(&mut sender, &flow, 9..12);
        assert!(sender.flush(LONG));
        let stats = stats(&mut sender, &flow);
        assert_eq!((stats.dropped_total(), stats.sent, stats.in_flight()), (9, 3, 0));
        assert_eq!(gate.taken(), [9, 10, 11]);
    });
}

/// A device that takes a few packets at a time, and dies after `left` packets.
struct Lazy {
    info: DeviceInfo,
    rng: Rng,
    left: u32,
}

impl Lazy {
    fn boxed(seed: u64, left: u32) -> Box<dyn Device> {
        let info = DeviceInfo::new("lazy".to_owned(), 1_514).never_blocks();
        Box::new(Self { info, rng: Rng::with_seed(seed), left })
    }
}

impl Device for Lazy {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let before = done.len();
        done.extend(burst.by_ref().take(self.rng.usize(0..70)));
        self.left = self.left.checked_sub(done.len() - before).expect("it has had enough");
        let retry_at = (!burst.is_empty()).then(|| now + Duration::from_micros(30));
        Transmitted { calls: 1, messages: 1, retry_at }
    }
}

/// Sends on two flows, corks, and takes packets back, until `rounds` are over or the link refuses
/// packets for good. Returns the number of packets that were taken back.
fn sends_and_cancels(link: &Link, seed: u64, rounds: u32) -> u64 {
    let (mut sender, mut rng) = (link.sender(), Rng::with_seed(seed));
    let fates = Fates::of(&mut sender);
    let flows = [sender.flow(None), sender.flow(None)];
    flows.iter().for_each(|flow| sender.watch(flow));
    let mut accepted = [0; 2];
    for _ in 0..rounds {
        let which = rng.usize(0..2);
        match rng.u32(0..8) {
            0 => sender.cork(),
            1 => drop(sender.uncork()),
            2 | 3 => assert!(sender.cancel(&flows[which]).is_some()),
            _ => {
                let batch = vec![[0; 20]; rng.usize(1..40)];
                match sender.try_send_batch(&flows[which], &batch) {
                    Ok(count) => accepted[which] += count as u64,
                    Err(TrySendError::Full) => {
                        let wait = Duration::from_micros(300);
                        let _ = sender.wait_room_timeout(&flows[which], 20, wait);
                    }
                    Err(_) => break,
                }
            }
        }
    }
    // A flush of a closed link gives up soon.
    until("all come home", || sender.flush(LONG));
    for (flow, accepted) in flows.iter().zip(accepted) {
        let stats = stats(&mut sender, flow);
        assert_eq!((stats.submitted, stats.in_flight()), (accepted, 0));
    }
    assert_eq!(fates.total(), accepted.iter().sum());
    fates.get(CANCELLED)
}

/// Eight threads send on a link with these devices and take packets back, while `meanwhile` runs.
/// Every packet is counted once. Returns how many packets were taken back.
fn in_threads(devices: [Box<dyn Device>; 2], rounds: u32, meanwhile: impl FnOnce(&Link)) -> u64 {
    let link = Link::devices(devices)
        .qdisc("pfifo limit 300")
        .credits(credits(200))
        .burst(100)
        .build()
        .unwrap();
    let cancelled: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|seed| {
                let link = &link;
                scope.spawn(move || sends_and_cancels(link, seed, rounds))
            })
            .collect();
        meanwhile(&link);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    link.close(Duration::ZERO);
    until("all is counted", || link.stats().held == 0);
    let stats = link.stats();
    assert_eq!(stats.dropped.get(&DropReason::Cancelled).copied().unwrap_or(0), cancelled);
    balanced(&stats);
    cancelled
}

#[test]
fn many_threads_take_packets_back() {
    in_time(|| {
        let devices = [Lazy::boxed(1, u32::MAX), Lazy::boxed(2, u32::MAX)];
        let cancelled = in_threads(devices, 1_000, |_| {});
        assert!(cancelled > 0, "no packet was taken back");
    });
}

#[test]
fn a_link_closes_while_packets_are_taken_back() {
    in_time(|| {
        for round in 0..20 {
            let devices = [Lazy::boxed(round, u32::MAX), Lazy::boxed(round + 100, u32::MAX)];
            in_threads(devices, u32::MAX, |link| {
                thread::sleep(Duration::from_millis(3));
                link.close(Duration::from_micros(round * 200));
            });
        }
    });
}

#[test]
fn a_device_dies_while_packets_are_taken_back() {
    in_time(|| {
        for round in 0..10 {
            let devices = [Lazy::boxed(round, 2_000), Lazy::boxed(round + 100, 3_000)];
            in_threads(devices, 3_000, |_| {});
        }
    });
}
