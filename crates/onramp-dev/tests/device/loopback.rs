//! The in-memory network, tested with one thread.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::Wake;
use std::time::Duration;

use onramp_core::{Device, DeviceWaker, Instant, Port, PortOptions, PortWaker, Spec};
use onramp_dev::{Loopback, Network, Receiver, loopback};
use onramp_queue::{Completion, Credits, DropReason, Packet, PacketList, Pool};

use crate::common::{packet, pattern};

/// Makes packets of `flow` whose cookies count up from `first`.
fn packets(flow: u64, first: u64, count: u64) -> PacketList {
    let packet = |cookie| {
        let mut pkt = packet(None, flow, 20, 0);
        pkt.cookie = cookie;
        pkt
    };
    (first..first + count).map(packet).collect()
}

fn cookies(list: PacketList) -> Vec<u64> {
    list.map(|pkt| pkt.cookie).collect()
}

fn next(receiver: &mut Receiver) -> Option<u64> {
    receiver.try_recv().map(|pkt| pkt.cookie)
}

#[test]
fn delivers_what_was_sent_in_order() {
    let (mut device, mut receiver) = loopback(8);
    let dest = "127.0.0.1:9".parse().ok();
    let mut pkt = packet(dest, 5, 30, 0);
    (pkt.ecn, pkt.len, pkt.enqueued_ns) = (2, 72, 7);
    let mut burst: PacketList = [pkt, packet(None, 6, 0, 1)].into_iter().collect();
    let mut done = PacketList::new();
    let out = device.transmit(&mut burst, &mut done, Instant(1));
    assert_eq!((out.messages, out.retry_at), (2, None));
    assert!(burst.is_empty() && done.is_empty(), "the receiver has them");
    let first = receiver.try_recv().expect("it arrived");
    assert_eq!((first.payload(), first.dest()), (&pattern(30, 0)[..], dest));
    assert_eq!((first.flow, first.ecn, first.len, first.enqueued_ns), (5, 2, 72, 7));
    let second = receiver.recv_timeout(Duration::from_secs(120)).expect("it arrived");
    assert_eq!((second.flow, second.payload().len()), (6, 0));
    assert!(receiver.try_recv().is_none());
    assert!(!receiver.wait(Duration::ZERO), "nothing is there");
    assert!(receiver.recv_timeout(Duration::ZERO).is_none());
    assert!(receiver.recv_timeout(Duration::from_millis(1)).is_none());
    let (sent, received) = (device.stats(), receiver.stats());
    assert_eq!((sent.packets.get(), sent.bytes.get(), sent.pushes.get()), (2, 72, 1));
    assert_eq!((received.packets.get(), received.bytes.get(), received.takes.get()), (2, 72, 1));
    assert_eq!((received.sleeps.get(), received.abandoned()), (1, 0));
}

#[test]
fn a_full_queue_is_asked_again_later() {
    let (mut device, mut receiver) = loopback(4);
    let mut burst = packets(3, 0, 10);
    for meta in burst.metas_mut() {
        meta.drop_reason = Some(DropReason::PortDead);
    }
    let mut transmit = |burst: &mut PacketList, now| {
        let mut done = PacketList::new();
        let out = device.transmit(burst, &mut done, Instant(now));
        assert!(done.is_empty());
        (out.messages, out.retry_at)
    };
    assert_eq!(transmit(&mut burst, 1_000), (4, Some(Instant(51_000))));
    assert_eq!(transmit(&mut burst, 51_000), (0, Some(Instant(151_000))));
    for cookie in 0..3 {
        let pkt = receiver.try_recv().expect("it arrived");
        assert_eq!((pkt.cookie, pkt.drop_reason), (cookie, None), "it was sent");
    }
    // The receiver took four packets out of the mailbox at once, so the mailbox has room for four
    // new packets, although the test has received only three so far.
    assert_eq!(transmit(&mut burst, 151_000), (4, Some(Instant(201_000))));
    let held = |meta: &onramp_queue::Meta| meta.drop_reason == Some(DropReason::PortDead);
    assert_eq!((burst.len(), burst.metas().all(held)), (2, true), "as its port marked it");
    assert_eq!(cookies(receiver.recv_all()), [3]);
    assert_eq!(cookies(receiver.recv_all()), [4, 5, 6, 7]);
    assert_eq!(transmit(&mut burst, 201_000), (2, None));
    assert_eq!((next(&mut receiver), cookies(receiver.recv_all())), (Some(8), vec![9]));
    assert_eq!(device.stats().full.get(), 3);
}

/// A waker that wakes no thread is as good as none.
#[test]
fn a_queue_whose_waker_wakes_nobody_is_asked_again_later() {
    let (mut queue, _receiver) = loopback(1);
    queue.attach(DeviceWaker::default());
    let (mut burst, mut done) = (packets(0, 0, 2), PacketList::new());
    assert_eq!(queue.transmit(&mut burst, &mut done, Instant(0)).retry_at, Some(Instant(50_000)));
}

/// A port over a queue, and what the port asks of its runner.
struct OverQueue {
    port: Port<Loopback>,
    asked: Asked,
    /// How often the device has woken the port.
    woken: Arc<Count>,
}

#[derive(Default)]
struct Asked(Cell<Option<Instant>>);

impl PortWaker for Asked {
    fn visit_by(&self, at: Instant) {
        self.0.set(Some(self.0.get().map_or(at, |due| due.min(at))));
    }
}

#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl OverQueue {
    fn new(mut queue: Loopback) -> Self {
        let woken = Arc::<Count>::default();
        let waker = DeviceWaker::new(woken.clone().into());
        queue.attach(waker.clone());
        let options = PortOptions { device_waker: Some(waker), ..PortOptions::default() };
        let qdisc = "pfifo".parse::<Spec>().expect("a qdisc").build(1_514);
        let port = Port::with_options(qdisc, queue, 1_000, options);
        Self { port, asked: Asked::default(), woken }
    }

    fn push(&self, list: PacketList, now: Instant) {
        let _ = self.port.xmit(list, now, &self.asked).expect("there is room");
    }

    /// Visits the port, and returns the time of the next visit that it asks for.
    fn visit(&self, now: Instant) -> Option<Instant> {
        self.asked.0.set(None);
        let _ = self.port.visit(now, &self.asked).expect("nobody is inside");
        self.asked.0.get()
    }

    /// How often the port has offered packets to its device, and how often it was woken.
    fn calls(&self) -> (u64, u32) {
        (self.port.snapshot().bursts, self.woken.0.load(SeqCst))
    }
}

/// A port over a full queue offers its packets again when the receiver has taken some, and not
/// before, however often it is visited.
#[test]
fn a_receiver_wakes_a_queue_that_it_had_no_room_for() {
    let (queue, mut receiver) = loopback(4);
    let over = OverQueue::new(queue);
    over.push(packets(0, 0, 10), Instant(0));
    assert_eq!(over.calls(), (1, 0));
    for us in 1..10_000 {
        let now = Instant(us * 1_000);
        let next = over.visit(now).expect("packets wait");
        assert_eq!((over.calls(), next), ((1, 0), Instant(100_000_000)), "a safeguard");
    }
    assert_eq!(next(&mut receiver), Some(0));
    assert_eq!(over.calls(), (1, 1), "the receiver has taken four at once");
    over.visit(Instant(10_000_000));
    assert_eq!(over.calls(), (2, 1), "it is full again");
    assert_eq!(cookies(receiver.recv_all()), [1, 2, 3]);
    assert_eq!(over.calls(), (2, 1), "no room was made");
    assert_eq!(cookies(receiver.recv_all()), [4, 5, 6, 7]);
    over.visit(Instant(10_000_001));
    assert_eq!(cookies(receiver.recv_all()), [8, 9]);
    assert_eq!(over.calls(), (3, 2), "no queue waits");
    // If nobody wakes it, the port comes back when the safeguard says so.
    over.push(packets(0, 10, 5), Instant(20_000_000));
    assert_eq!(over.visit(Instant(20_000_000)), Some(Instant(120_000_000)));
    assert_eq!(over.calls().0, 4);
    over.visit(Instant(120_000_000));
    assert_eq!(over.calls().0, 5);
    // A receiver that goes wakes the queue, too: the rest is refused at once.
    drop(receiver);
    assert_eq!(over.calls(), (5, 3));
    over.visit(Instant(120_000_001));
    assert!(over.port.is_quiet());
    assert_eq!(over.port.stats().dropped.get(DropReason::Refused), 1);
}

/// Each queue that waits for a receiver is woken once when that receiver takes packets, and no
/// queue that waits for another receiver.
#[test]
fn a_receiver_wakes_all_queues_that_wait_for_it() {
    let network = Network::new(2, 4);
    let [mut zero, mut one] = [0, 1].map(|place| network.receiver(place).expect("it is free"));
    let [first, second, other] = [0; 3].map(|_| OverQueue::new(network.queue()));
    first.push(packets(0, 0, 6), Instant(0));
    second.push(packets(2, 10, 3), Instant(0));
    other.push(packets(1, 20, 6), Instant(0));
    // A port that comes again before there is room waits no more often for that.
    first.visit(Instant(100_000_000));
    assert_eq!(first.calls().0, 2);
    let gone = OverQueue::new(network.queue());
    gone.push(packets(0, 30, 1), Instant(0));
    drop(gone);
    assert_eq!(cookies(zero.recv_all()), [0, 1, 2, 3]);
    let woken = [&first, &second, &other].map(|over| over.calls().1);
    assert_eq!(woken, [1, 1, 0]);
    for over in [&first, &second] {
        over.visit(Instant(200_000_000));
    }
    assert_eq!(cookies(zero.recv_all()), [4, 5, 10, 11]);
    assert_eq!(second.calls().1, 2, "it has one packet more");
    assert_eq!(cookies(one.recv_all()), [20, 21, 22, 23]);
    assert_eq!(other.calls().1, 1);
}

#[test]
fn without_a_receiver_packets_are_refused() {
    let (mut device, receiver) = loopback(4);
    drop(receiver);
    let (mut burst, mut done) = (packets(0, 0, 10), PacketList::new());
    let out = device.transmit(&mut burst, &mut done, Instant(1));
    assert_eq!((out.messages, out.retry_at, burst.len()), (0, None, 0));
    let refused = |pkt: &Packet| pkt.drop_reason == Some(DropReason::Refused);
    assert!(done.by_ref().take(10).all(|pkt| refused(&pkt)) && done.is_empty());
    assert_eq!((device.stats().refused.get(), device.stats().packets.get()), (10, 0));
}

/// Packets go to the receiver of their flow. If that receiver is full, the packets behind it in the
/// burst wait too, and the packets before it are delivered.
#[test]
fn flows_find_their_receivers() {
    let network = Network::new(3, 4);
    let mut queues = [network.queue(), network.queue()];
    let [Some(mut zero), Some(mut one)] = [network.receiver(0), network.receiver(1)] else {
        panic!("nobody has the places");
    };
    assert!(network.receiver(1).is_none(), "it is taken");
    assert!(network.receiver(3).is_none(), "there is none");
    let mut burst = packets(3, 0, 2);
    for (flow, first, count) in [(4, 2, 1), (5, 3, 1), (0, 4, 1), (1, 5, 5), (6, 10, 2)] {
        burst.append(&mut packets(flow, first, count));
    }
    let mut done = PacketList::new();
    let out = queues[0].transmit(&mut burst, &mut done, Instant(1));
    assert_eq!((out.messages, burst.len()), (7, 4), "two did not fit, and two are behind them");
    let fates: Vec<_> = done.map(|pkt| (pkt.cookie, pkt.drop_reason)).collect();
    assert_eq!(fates, [(3, Some(DropReason::Refused))]);
    assert_eq!(cookies(zero.recv_all()), [0, 1, 4]);
    assert_eq!(cookies(one.recv_all()), [2, 5, 6, 7]);
    // Until now, place 2 of the network had no receiver. From now on, packets of flow 2 arrive.
    let mut two = network.receiver(2).expect("nobody has it");
    let _ = queues[1].transmit(&mut packets(2, 20, 3), &mut PacketList::new(), Instant(2));
    assert_eq!(next(&mut two), Some(20));
    let stats = two.stats();
    drop(two);
    assert_eq!((stats.packets.get(), stats.abandoned()), (1, 2));
    assert!(network.receiver(2).is_some_and(|mut next| next.try_recv().is_none()));
    assert_eq!(network.receiver_stats(2).map(|stats| stats.abandoned()), Some(2));
    // If a packet has a destination address, the address selects the receiver, not the flow.
    let mut burst = packets(0, 30, 1);
    burst.extend(packets(0, 31, 1).map(|mut pkt| {
        pkt.set_dest("127.0.0.1:4".parse().ok());
        pkt
    }));
    let _ = queues[1].transmit(&mut burst, &mut PacketList::new(), Instant(3));
    assert_eq!((cookies(zero.recv_all()), cookies(one.recv_all())), (vec![30], vec![31]));
}

/// The receiver gets the packet itself, not a copy. When the receiver drops the packet, its memory
/// returns to the sender.
#[test]
fn what_was_read_goes_home() {
    let (mut device, mut receiver) = loopback(8);
    let mut pool = Pool::new(Credits { packets: 2, bytes: 1_000 });
    let mut burst = PacketList::new();
    for cookie in 0..2 {
        let mut pkt = pool.take(8).expect("within the credits");
        pkt.set_payload(b"as it is");
        pkt.cookie = cookie;
        burst.push_back(pkt);
    }
    burst.stamp(1, true);
    let sent = burst.front().map(|pkt| pkt.payload().as_ptr());
    let _ = device.transmit(&mut burst, &mut PacketList::new(), Instant(2));
    assert_eq!((pool.returned(), pool.has_room(8)), (0, false));
    let first = receiver.try_recv();
    assert_eq!(first.as_ref().map(|pkt| pkt.payload().as_ptr()), sent);
    drop(first);
    drop((device, receiver));
    let mut fates = Vec::new();
    assert_eq!(pool.reclaim(|fate| fates.push(fate)), 2);
    fates.sort_by_key(|fate| fate.cookie);
    let fate = |cookie| Completion {
        flow: 0,
        cookie,
        drop_reason: None,
        len: 0,
        payload: 8,
        pushed_ns: 1,
        left_ns: Some(2),
    };
    assert_eq!(fates, [fate(0), fate(1)], "both were sent; the second was abandoned");
}

/// A receiver waits as long as a queue or the network exists, because packets may still be sent.
/// When the last of them is dropped and all packets were received, the receiver notices that at
/// once.
#[test]
fn the_end_comes_after_the_last_packet() {
    let network = Network::new(2, 8);
    let (mut queue, mut receiver) = (network.queue(), network.receiver(0).expect("it is free"));
    let _ = queue.transmit(&mut packets(0, 0, 2), &mut PacketList::new(), Instant(1));
    drop(network);
    assert!(!receiver.has_ended());
    drop(queue);
    assert!(!receiver.has_ended() && receiver.wait(Duration::MAX));
    assert_eq!(receiver.recv_timeout(Duration::MAX).map(|pkt| pkt.cookie), Some(0));
    assert!(!receiver.has_ended());
    assert_eq!(receiver.recv_timeout(Duration::MAX).map(|pkt| pkt.cookie), Some(1));
    assert!(receiver.has_ended() && receiver.recv_timeout(Duration::MAX).is_none());
}

#[test]
fn a_super_packet_arrives_whole_and_knows_its_datagrams() {
    let (mut device, mut receiver) = loopback(4);
    let mut pkt = packet(None, 1, 250, 0);
    pkt.gso_size = 100;
    let mut burst: PacketList = [pkt, packet(None, 1, 0, 0)].into_iter().collect();
    let _ = device.transmit(&mut burst, &mut PacketList::new(), Instant(1));
    let whole = receiver.try_recv().expect("it arrived");
    let sizes: Vec<_> = whole.datagrams().map(<[u8]>::len).collect();
    assert_eq!(sizes, [100, 100, 50]);
    assert!(whole.datagrams().flatten().eq(&pattern(250, 0)));
    let empty = receiver.try_recv().expect("it arrived");
    assert!(empty.datagrams().eq([&[][..]]));
}

#[test]
fn a_queue_is_like_lo() {
    let network = Network::new(2, 1);
    let queue = network.queue();
    let info = queue.info();
    // Linux's `lo` carries packets of 65,536 bytes behind an Ethernet header of 14 bytes.
    assert_eq!((&*info.name, info.mtu, info.may_block), ("loopback", 65_550, false));
}

#[test]
#[should_panic(expected = "at least one receiver")]
fn a_network_without_receivers() {
    let _ = Network::new(0, 1);
}

/// Each packet is counted once, with its bytes, whichever method receives it.
#[test]
fn what_is_received_is_counted_once() {
    let (mut device, mut receiver) = loopback(8);
    let mut send = |flow, first, count| {
        let mut burst = packets(flow, first, count);
        burst = burst
            .map(|mut pkt| {
                pkt.len = 100 + u32::try_from(pkt.cookie).expect("small");
                pkt
            })
            .collect();
        device.transmit(&mut burst, &mut PacketList::new(), Instant(1))
    };
    let out = send(0, 0, 4);
    assert_eq!((out.calls, out.messages), (0, 4), "it calls nobody");
    let stats = receiver.stats();
    let counted = || (stats.packets.get(), stats.bytes.get(), stats.takes.get());
    assert_eq!(counted(), (0, 0, 0));
    assert!(receiver.wait(Duration::ZERO), "they are there");
    assert_eq!((counted(), receiver.has_ended()), ((0, 0, 1), false), "taken, not given out");
    assert_eq!(next(&mut receiver), Some(0));
    assert_eq!(counted(), (1, 100, 1));
    send(0, 4, 2);
    // `recv_all` first returns only the packets that the receiver has already taken out of the
    // mailbox. The next call takes the packets that came later, with one more atomic swap.
    assert_eq!(cookies(receiver.recv_all()), [1, 2, 3]);
    assert_eq!(counted(), (4, 100 + 101 + 102 + 103, 1));
    assert_eq!(cookies(receiver.recv_all()), [4, 5]);
    assert_eq!(counted(), (6, 406 + 104 + 105, 2));
    assert!(receiver.recv_all().is_empty() && receiver.try_recv().is_none());
    assert_eq!(counted(), (6, 615, 2), "nothing is no swap");
    assert_eq!(stats.sleeps.get(), 0, "nobody had to sleep");
}

/// When a receiver is dropped, the packets that it has taken but not returned, and the packets that
/// wait in the mailbox, are counted as abandoned.
#[test]
fn what_a_receiver_leaves_is_counted() {
    let (mut device, mut receiver) = loopback(8);
    let _ = device.transmit(&mut packets(0, 0, 3), &mut PacketList::new(), Instant(1));
    assert_eq!(next(&mut receiver), Some(0));
    let _ = device.transmit(&mut packets(0, 3, 4), &mut PacketList::new(), Instant(2));
    let stats = receiver.stats();
    drop(receiver);
    assert_eq!((stats.packets.get(), stats.abandoned()), (1, 2 + 4));
}

/// A waiting receiver notices at once that nobody can send any more, however long its timeout is.
#[test]
fn a_wait_ends_with_the_network() {
    let (mut device, mut receiver) = loopback(8);
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            let first = receiver.recv_timeout(Duration::MAX).map(|pkt| pkt.cookie);
            (first, receiver.wait(Duration::MAX), receiver.has_ended())
        });
        let _ = device.transmit(&mut packets(0, 7, 1), &mut PacketList::new(), Instant(1));
        drop(device);
        assert_eq!(waits.join().expect("it does not panic"), (Some(7), false, true));
    });
}

/// Consecutive packets with the same receiver and drop reason are handed over with one push.
#[test]
fn a_run_is_a_push() {
    let network = Network::new(2, 8);
    let (mut queue, _zero, _one) = (network.queue(), network.receiver(0), network.receiver(1));
    let mut burst = packets(0, 0, 3);
    for (flow, first, count) in [(1, 3, 2), (3, 5, 1), (2, 6, 1)] {
        burst.append(&mut packets(flow, first, count));
    }
    let out = queue.transmit(&mut burst, &mut PacketList::new(), Instant(1));
    let stats = queue.stats();
    assert_eq!((out.messages, stats.packets.get(), stats.pushes.get()), (7, 7, 3));
    // The second receiver serves flows 1 and 3, so the packets of these flows were handed over with
    // one push. The first receiver serves flows 0 and 2.
    let mut burst = packets(0, 7, 4);
    for (meta, reason) in
        burst.metas_mut().zip([None, Some(DropReason::PortDead)].into_iter().cycle())
    {
        meta.drop_reason = reason;
    }
    let _ = queue.transmit(&mut burst, &mut PacketList::new(), Instant(2));
    assert_eq!((stats.packets.get(), stats.pushes.get(), stats.full.get()), (11, 7, 0));
}
