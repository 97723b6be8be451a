//! Statistics of flows.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use onramp::dev::loopback;
use onramp::{
    Completion, Device, DeviceInfo, DropReason, FlowStats, Instant, Link, Mapping, Packet,
    PacketList, Sender, Transmitted,
};

use crate::common::{Gate, LONG, balanced, credits, gated, in_time};

/// A device that is often full, and that refuses every seventh packet.
struct Lossy {
    info: DeviceInfo,
    rng: Rng,
    count: u64,
}

impl Lossy {
    fn boxed(seed: u64) -> Box<dyn Device> {
        let info = DeviceInfo::new("lossy".to_owned(), 1_514);
        Box::new(Self { info, rng: Rng::with_seed(seed), count: 0 })
    }
}

impl Device for Lossy {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        for mut pkt in burst.by_ref().take(self.rng.usize(0..70)) {
            self.count += 1;
            pkt.drop_reason =
                (self.count.is_multiple_of(7)).then_some(DropReason::Refused).or(pkt.drop_reason);
            done.push_back(pkt);
        }
        let retry_at = (!burst.is_empty()).then(|| now + Duration::from_micros(30));
        Transmitted { calls: 1, messages: 1, retry_at }
    }
}

/// What completions say of one flow: how many packets were sent, their bytes, and how many packets
/// were dropped, by reason.
type Told = BTreeMap<u64, (u64, u64, BTreeMap<DropReason, u64>)>;

fn record(sender: &mut Sender) -> Arc<Mutex<Told>> {
    let told = Arc::<Mutex<Told>>::default();
    let theirs = told.clone();
    sender.on_complete(move |completion: Completion| {
        let mut told = theirs.lock().unwrap();
        let (sent, bytes, dropped) = told.entry(completion.flow).or_default();
        match completion.drop_reason {
            Some(reason) => *dropped.entry(reason).or_default() += 1,
            None => (*sent, *bytes) = (*sent + 1, *bytes + u64::from(completion.len)),
        }
    });
    told
}

/// Sends random batches on three flows, of which it watches two. Returns how many packets were
/// accepted, and how many of these were counted.
fn sends(link: &Link, seed: u64) -> (u64, u64) {
    let (mut sender, mut rng) = (link.sender(), Rng::with_seed(seed));
    let told = record(&mut sender);
    let flows =
        [Mapping::Turn, Mapping::Port(1), Mapping::Cpu].map(|by| sender.flow_with(None, by));
    flows[..2].iter().for_each(|flow| sender.watch(flow));
    let mut accepted = [0; 3];
    for _ in 0..300 {
        let which = rng.usize(0..3);
        let batch = vec![[0; 20]; rng.usize(1..40)];
        match sender.try_send_batch(&flows[which], &batch) {
            Ok(count) => accepted[which] += count as u64,
            Err(_) => {
                let _ = sender.wait_room_timeout(&flows[which], 20, Duration::from_micros(300));
            }
        }
        for flow in &flows[..2] {
            let in_flight = sender.flow_stats(flow).unwrap().in_flight();
            assert!(in_flight <= sender.in_flight().into());
        }
    }
    assert!(sender.flush(LONG));
    assert_eq!(sender.flow_stats(&flows[2]), None);
    for (flow, accepted) in flows[..2].iter().zip(accepted) {
        let stats = sender.flow_stats(flow).unwrap();
        let (sent, bytes, dropped) = told.lock().unwrap().remove(&flow.key()).unwrap_or_default();
        assert_eq!((stats.submitted, stats.in_flight()), (accepted, 0));
        assert_eq!((stats.sent, stats.sent_bytes, &stats.dropped), (sent, bytes, &dropped));
        assert_eq!(stats.delay_ns.iter().sum::<u64>(), sent, "one entry for each");
        assert!(stats.delay_mean_ns() <= Some(stats.delay_max_ns));
        assert!(stats.delay_sum_ns >= stats.delay_max_ns);
    }
    (accepted.iter().sum(), accepted[..2].iter().sum())
}

/// Submitted packets = sent + dropped + in flight, for each flow of many senders, ports that are
/// full, devices and qdiscs that drop.
#[test]
fn every_packet_of_a_flow_is_counted_once() {
    in_time(|| {
        let devices = (0..3).map(Lossy::boxed);
        let link = Link::devices(devices)
            .qdisc("pfifo limit 50")
            .credits(credits(200))
            .burst(60)
            .build()
            .unwrap();
        let sums: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|seed| {
                    let link = &link;
                    scope.spawn(move || sends(link, seed))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let stats = link.stats();
        assert_eq!(stats.submitted, sums.iter().map(|(accepted, _)| accepted).sum());
        assert!(stats.dropped_total() > 0 && sums.iter().all(|(_, counted)| *counted > 0));
        balanced(&stats);
    });
}

fn counts(stats: Option<FlowStats>) -> (u64, u64, u64) {
    let stats = stats.expect("the flow is watched");
    (stats.submitted, stats.sent, stats.in_flight())
}

/// Packets that were under way before a watch began, or that a watch left behind, are not counted.
#[test]
fn only_what_is_submitted_during_a_watch_counts() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(20)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        let send = |sender: &mut Sender, count| {
            (0..count).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        };
        assert_eq!((sender.flow_stats(&flow), sender.unwatch(&flow)), (None, None));
        send(&mut sender, 1);
        sender.watch(&flow);
        send(&mut sender, 2);
        sender.watch(&flow);
        assert_eq!(counts(sender.flow_stats(&flow)), (2, 0, 2), "it was watched already");
        assert_eq!(counts(sender.unwatch(&flow)), (2, 0, 2));
        send(&mut sender, 3);
        sender.watch(&flow);
        send(&mut sender, 4);
        assert_eq!(counts(sender.flow_stats(&flow)), (4, 0, 4));
        gate.open();
        assert!(sender.flush(LONG));
        assert_eq!(counts(sender.flow_stats(&flow)), (4, 4, 0));
        assert_eq!(counts(sender.unwatch(&flow)), (4, 4, 0));
        sender.watch(&flow);
        assert_eq!(counts(sender.flow_stats(&flow)), (0, 0, 0), "a new watch begins at zero");
    });
}

/// A sender counts packets that it made and submitted, whatever a receiver writes into them.
#[test]
fn a_sender_counts_its_own_packets() {
    in_time(|| {
        let (device, mut receiver) = loopback(100);
        let link = Link::devices([Box::new(device) as Box<_>]).build().unwrap();
        let (mut maker, mut other) = (link.sender(), link.sender());
        let flow = maker.flow(None);
        [&mut maker, &mut other].into_iter().for_each(|sender| sender.watch(&flow));
        let lent = maker.packet(&flow, b"x").unwrap();
        other.submit(&flow, lent).unwrap();
        other.submit(&flow, Packet::with_payload(b"x")).unwrap();
        maker.send(&flow, b"x").unwrap();
        maker.send(&flow, b"again").unwrap();
        let mut packets: Vec<_> = (0..4).map(|_| receiver.recv_timeout(LONG).unwrap()).collect();
        let mut again = packets.pop().unwrap();
        again.flow += 1;
        other.submit(&flow, again).unwrap();
        assert_eq!(counts(maker.flow_stats(&flow)), (2, 0, 2));
        drop((packets, receiver.recv_timeout(LONG)));
        assert!(maker.flush(LONG) && other.flush(LONG));
        assert_eq!(counts(maker.flow_stats(&flow)), (2, 2, 0));
        assert_eq!(counts(other.flow_stats(&flow)), (0, 0, 0));
    });
}

/// What a cork holds back counts when it is submitted, even if the link is closed by then.
#[test]
fn a_cork_holds_back_what_is_not_submitted() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").credits(credits(4)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.watch(&flow);
        sender.cork();
        sender.send(&flow, b"x").unwrap();
        assert_eq!(counts(sender.flow_stats(&flow)), (0, 0, 0));
        link.close(Duration::ZERO);
        assert!(sender.flush(LONG));
        let stats = sender.flow_stats(&flow).unwrap();
        assert_eq!((stats.submitted, stats.in_flight()), (1, 0));
        assert_eq!(stats.dropped, BTreeMap::from([(DropReason::Purged, 1)]));
        assert_eq!((stats.delay_mean_ns(), stats.dropped_total()), (None, 1));
    });
}

#[test]
fn a_panic_of_the_callback_spoils_no_counts() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(9)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.watch(&flow);
        (0..9).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        gate.open();
        assert!(link.flush(LONG));
        let mut calls = 0;
        sender.on_complete(move |_| {
            calls += 1;
            assert!(calls != 3, "as the test wants it");
        });
        let _ = catch_unwind(AssertUnwindSafe(|| sender.flush(LONG)));
        assert!(sender.flush(LONG));
        assert_eq!(counts(sender.flow_stats(&flow)), (9, 9, 0));
    });
}
