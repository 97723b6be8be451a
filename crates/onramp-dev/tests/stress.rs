//! Stress test of the in-memory network with many threads: no packet is lost, duplicated, reordered
//! within its flow or left uncounted.
//!
//! Run the test under ThreadSanitizer too: `cargo xtask tsan`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use onramp_core::{Device, Instant};
use onramp_dev::{Loopback, Network, Receiver};
use onramp_queue::{Credits, DropReason, Packet, PacketList, Pool};

/// A timeout longer than any wait in a run without errors.
const LONG: Duration = Duration::from_secs(50);
const SENDERS: usize = 8;
const PLACES: usize = 8;
const RECEIVERS: u64 = PLACES as u64;
/// Number of packets per sender. It is smaller in debug builds, where each step takes a hundred
/// times as long.
const PACKETS: u64 = if cfg!(debug_assertions) { 20_000 } else { 200_000 };

/// A random number generator (xorshift64*): the same seed gives the same numbers.
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }
}

/// Counts of the packets that came back to a sender.
#[derive(Debug, Default)]
struct Fates {
    sent: u64,
    refused: u64,
}

impl Fates {
    fn reclaim(&mut self, pool: &mut Pool) {
        pool.reclaim(|fate| match fate.drop_reason {
            None => self.sent += 1,
            Some(DropReason::Refused) => self.refused += 1,
            Some(other) => panic!("{other:?}"),
        });
    }
}

/// Sends packets to receivers chosen at random, several in a row to the same receiver. The packets
/// of each flow are numbered.
fn send(mut queue: Loopback, sender: u64) -> Fates {
    let mut chance = Chance::new(sender + 1);
    let mut pool = Pool::new(Credits { packets: 100, bytes: 1 << 20 });
    let mut fates = Fates::default();
    let mut next = [0; PLACES];
    let (mut burst, mut left) = (PacketList::new(), PACKETS);
    while left > 0 || !burst.is_empty() {
        fates.reclaim(&mut pool);
        let receiver = chance.below(RECEIVERS);
        for _ in 0..chance.below(20).min(left) {
            let Some(mut pkt) = pool.take(8) else { break };
            let number = &mut next[usize::try_from(receiver).expect("eight")];
            (pkt.flow, pkt.cookie) = (sender * RECEIVERS + receiver, *number);
            pkt.set_payload(&number.to_be_bytes());
            pkt.set_submitted(true);
            *number += 1;
            left -= 1;
            burst.push_back(pkt);
        }
        let mut done = PacketList::new();
        let _ = queue.transmit(&mut burst, &mut done, Instant(0));
        if !burst.is_empty() || !pool.has_room(8) {
            thread::yield_now();
        }
    }
    while pool.out() > 0 {
        fates.reclaim(&mut pool);
        thread::yield_now();
    }
    fates
}

/// Makes a receiver for the place `place` of the network, receives packets for a while, and drops
/// the receiver. Repeats this until all packets are sent. Returns the number of received packets.
fn receive(network: &Network, place: u64, all_sent: &AtomicBool) -> u64 {
    let mut chance = Chance::new(100 + place);
    let (mut last, mut received) = ([None; SENDERS], 0);
    let mut see = |pkt: Packet| {
        assert_eq!((pkt.flow % RECEIVERS, pkt.payload()), (place, &pkt.cookie.to_be_bytes()[..]));
        let last = &mut last[usize::try_from(pkt.flow / RECEIVERS).expect("eight")];
        assert!(last.is_none_or(|last| last < pkt.cookie), "in order, and once");
        *last = Some(pkt.cookie);
        received += 1;
    };
    let mut sent = false;
    while !sent {
        // Read the flag before receiving. If it is set, all packets have been sent, so this last
        // round receives all that are left.
        sent = all_sent.load(Ordering::Acquire);
        let index = usize::try_from(place).expect("eight");
        let mut receiver = network.receiver(index).expect("it is ours alone");
        for _ in 0..chance.below(50) {
            if !sent && !receiver.wait(Duration::from_micros(chance.below(500))) {
                break;
            }
            if chance.below(2) == 0 {
                receiver.recv_all().for_each(&mut see);
            } else {
                receiver.try_recv().into_iter().for_each(&mut see);
            }
        }
        drop(receiver);
        // Sometimes leave the place of the network without a receiver for a while.
        if chance.below(4) == 0 {
            thread::yield_now();
        }
    }
    received
}

#[test]
fn receivers_come_and_go_and_every_packet_is_accounted_for() {
    let network = Network::new(PLACES, 30);
    let all_sent = AtomicBool::new(false);
    thread::scope(|scope| {
        let (network, all_sent) = (&network, &all_sent);
        let receivers: Vec<_> = (0..RECEIVERS)
            .map(|place| scope.spawn(move || receive(network, place, all_sent)))
            .collect();
        let senders: Vec<_> = (0..SENDERS as u64)
            .map(|sender| {
                let queue = network.queue();
                let stats = queue.stats();
                (scope.spawn(move || send(queue, sender)), stats)
            })
            .collect();
        let (mut sent, mut refused) = (0, 0);
        for (sender, stats) in senders {
            let fates = sender.join().expect("a sender panicked");
            assert_eq!(fates.sent + fates.refused, PACKETS);
            assert_eq!((stats.packets.get(), stats.refused.get()), (fates.sent, fates.refused));
            (sent, refused) = (sent + fates.sent, refused + fates.refused);
        }
        all_sent.store(true, Ordering::Release);
        let mut received = 0;
        for (place, receiver) in receivers.into_iter().enumerate() {
            let count = receiver.join().expect("a receiver panicked");
            let stats = network.receiver_stats(place).expect("there is such a place");
            assert_eq!(stats.packets.get(), count);
            received += count + stats.abandoned();
        }
        assert_eq!(sent, received, "{refused} were refused");
    });
}

/// Plays `times` rounds: sends a packet to the partner thread and waits for the packet that the
/// partner sends back. If `serves` is false, this thread waits first and then sends back.
fn bounce(mut queue: Loopback, mut receiver: Receiver, to: u64, times: u64, serves: bool) {
    for number in 0..times {
        if serves {
            let mut burst: PacketList = [Packet::new(64)].into_iter().collect();
            burst.metas_mut().for_each(|meta| (meta.flow, meta.cookie) = (to, number));
            let _ = queue.transmit(&mut burst, &mut PacketList::new(), Instant(0));
            assert!(burst.is_empty(), "there is room for one");
        }
        let pkt = receiver.recv_timeout(LONG).expect("a wake-up was lost");
        assert_eq!(pkt.cookie, number);
        if !serves {
            let mut burst: PacketList = [pkt].into_iter().collect();
            burst.metas_mut().for_each(|meta| meta.flow = to);
            let _ = queue.transmit(&mut burst, &mut PacketList::new(), Instant(0));
            assert!(burst.is_empty(), "there is room for one");
        }
    }
}

/// Two threads wait for each other in turn, so a single lost wake-up would stop both threads.
#[test]
fn no_wake_up_is_lost() {
    let network = Network::new(2, 1);
    let receivers = [0, 1].map(|place| network.receiver(place).expect("it is free"));
    let [zero, one] = receivers;
    let queues = [network.queue(), network.queue()];
    let [first, second] = queues;
    thread::scope(|scope| {
        scope.spawn(move || bounce(first, zero, 1, 5_000, true));
        scope.spawn(move || bounce(second, one, 0, 5_000, false));
    });
}
