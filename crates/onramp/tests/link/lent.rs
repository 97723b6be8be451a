//! Large messages leave an idle port without a copy; where something makes them wait, a copy does.

use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::thread;

use onramp::{
    Completion, Device, DeviceInfo, Instant, Link, Message, Mode, Packet, PacketList, Sender,
    Transmitted,
};

use crate::common::{LONG, balanced, credits, in_time};

/// A size that is lent, and a size that is not.
const LARGE: usize = 9_000;
const SMALL: usize = 100;

fn payload(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((number * 31 + at / 7) % 251).expect("below 251")).collect()
}

fn receiver() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(LONG)).expect("a timeout");
    socket
}

/// Receives a datagram.
fn received(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let len = socket.recv(&mut buffer).expect("a datagram");
    buffer.truncate(len);
    buffer
}

/// A device that sends messages from the caller's memory, and keeps their addresses and sizes.
struct Lender {
    info: DeviceInfo,
    lent: Arc<Mutex<Vec<(usize, usize)>>>,
}

impl Device for Lender {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _: Instant,
    ) -> Transmitted {
        done.append(burst);
        Transmitted::default()
    }

    fn transmit_lent(&mut self, packet: &Packet, payload: &[u8], _: Instant) -> bool {
        assert!(packet.payload().is_empty());
        self.lent.lock().expect("no panic").push((payload.as_ptr().addr(), payload.len()));
        true
    }
}

/// The device gets the caller's own memory from 4,096 bytes on, unless a cork or a credit is in the
/// way.
#[test]
fn the_device_reads_the_memory_of_the_caller() {
    let lent = Arc::<Mutex<Vec<_>>>::default();
    let info = DeviceInfo::new("lender".to_owned(), 1_514).never_blocks();
    let device = Box::new(Lender { info, lent: lent.clone() });
    let builder = Link::devices([device as Box<dyn Device>]).qdisc("pfifo").credits(credits(2));
    let link = builder.build().expect("a link");
    let mut sender = link.sender();
    let flow = sender.flow(None);
    let data = payload(1, 65_507);
    let taken = |lent: &Mutex<Vec<_>>| std::mem::take(&mut *lent.lock().expect("no panic"));
    for size in [4_095, 4_096, 9_000, 65_507] {
        sender.try_send(&flow, &data[..size]).expect("it is accepted");
        let message = Message { payload: &data[1..size], segment: 1_000, ..Message::default() };
        sender.try_send_message(&flow, &message).expect("it is accepted");
        let all = [(data.as_ptr().addr(), size), (data[1..].as_ptr().addr(), size - 1)];
        let expected: Vec<_> = all.into_iter().filter(|(_, size)| *size >= 4_096).collect();
        assert_eq!(taken(&lent), expected, "{size}");
        assert_eq!(sender.reclaim(), 2);
    }
    // Packets that a cork holds back leave first.
    sender.cork();
    sender.try_send(&flow, &data).expect("it is accepted");
    assert_eq!(taken(&lent), []);
    sender.uncork().expect("there is room");
    // Packets that the caller keeps use up the credits.
    assert!(sender.flush(LONG));
    let kept = [(); 2].map(|()| sender.packet(&flow, b"kept").expect("there are two credits"));
    assert_eq!(sender.try_send(&flow, &data), Err(onramp::TrySendError::Full));
    assert_eq!(taken(&lent), []);
    drop(kept);
    sender.try_send(&flow, &data).expect("the credits are back");
    assert_eq!(taken(&lent).len(), 1);
    balanced(&link.stats());
}

/// Filters of a qdisc see large messages as they see small ones, and limits hold for both.
#[test]
fn filters_and_limits_hold_for_large_messages() {
    for (qdisc, lines) in [
        ("fq_codel", &["filter add parent 1: protocol all matchall action drop"][..]),
        ("sfq", &["filter add parent 1: protocol all matchall action drop"]),
        ("pfifo", &["qdisc add clsact", "filter add egress protocol all matchall action drop"]),
        ("bfifo limit 2000", &[]),
    ] {
        let (lent, info) = (Arc::default(), DeviceInfo::new("lender".to_owned(), 1_514));
        let device = Box::new(Lender { info, lent: Arc::clone(&lent) });
        let link = Link::devices([device as Box<dyn Device>]).build().expect("a link");
        link.change(&*format!("qdisc replace root handle 1: {qdisc}")).expect("a line of tc");
        for line in lines {
            link.change(*line).expect("a line of tc");
        }
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for size in [4_095, 4_096, 9_000] {
            sender.try_send(&flow, &payload(1, size)).expect("it is accepted");
        }
        assert!(sender.flush(LONG));
        let stats = link.stats();
        assert_eq!((stats.sent, stats.dropped_total()), (0, 3), "{qdisc}");
        balanced(&stats);
    }
}

/// Keeps the completions of a sender.
fn completions(sender: &mut Sender) -> Arc<Mutex<Vec<Completion>>> {
    let all = Arc::<Mutex<Vec<_>>>::default();
    let kept = all.clone();
    sender.on_complete(move |completion| kept.lock().expect("no panic").push(completion));
    all
}

#[test]
fn it_leaves_within_the_call_and_its_fate_is_told() {
    for qdisc in ["fq", "pfifo", "fq_codel"] {
        let receiver = receiver();
        let link = Link::udp("127.0.0.1:0").ports(1).qdisc(qdisc).build().expect("a link");
        let mut sender = link.sender();
        let all = completions(&mut sender);
        let flow = sender.flow(receiver.local_addr().expect("an address"));
        sender.watch(&flow);
        let data = payload(1, LARGE);
        let message = Message { payload: &data, segment: 2_000, cookie: 77, ..Message::default() };
        sender.try_send_message(&flow, &message).expect("it is accepted");
        assert_eq!(link.stats().sent, 1, "{qdisc}: it has left");
        let parts: Vec<_> = (0..5).map(|_| received(&receiver)).collect();
        assert_eq!(parts.concat(), data, "{qdisc}");
        assert_eq!((sender.reclaim(), sender.in_flight()), (1, 0));
        let told = all.lock().expect("no panic").clone();
        assert_eq!((told.len(), told[0].cookie, told[0].drop_reason), (1, 77, None));
        assert_eq!((told[0].payload, told[0].len), (9_000, 9_000 + 5 * 42));
        let stats = sender.flow_stats(&flow).expect("it is watched");
        assert_eq!((stats.submitted, stats.sent), (1, 1), "{qdisc}");
        // Each datagram counts with its headers.
        assert_eq!(link.stats().ports[0].sent_bytes, (LARGE + 5 * 42) as u64, "{qdisc}");
        balanced(&link.stats());
    }
}

/// A message that has to wait, or that the runner has to send, is copied: the caller may change its
/// memory at once.
#[test]
fn where_it_waits_a_copy_leaves() {
    for (qdisc, mode) in [
        ("netem delay 2ms", Mode::Hybrid),
        ("tbf rate 80mbit burst 20kb latency 5s", Mode::Inline),
        ("fq maxrate 80mbit", Mode::Hybrid),
        ("fq", Mode::Dedicated),
        ("htb", Mode::Hybrid),
    ] {
        let receiver = receiver();
        let builder = Link::udp("127.0.0.1:0").ports(1).qdisc(qdisc).mode(mode);
        let link = builder.build().expect("a link");
        let mut sender = link.sender();
        let flow = sender.flow(receiver.local_addr().expect("an address"));
        for number in 0..20 {
            let mut data = payload(number, LARGE);
            sender.send(&flow, &data).expect("it is accepted");
            data.fill(0xff);
            assert_eq!(received(&receiver), payload(number, LARGE), "{qdisc} {number}");
        }
        // The last datagram may have arrived before its owner counted it.
        assert!(sender.flush(LONG));
        balanced(&link.stats());
    }
}

/// Twelve threads send small and large messages through one port; those of a flow keep their order.
#[test]
fn large_and_small_keep_their_order() {
    const EACH: usize = 300;
    in_time(|| {
        let link = Link::udp("127.0.0.1:0").ports(1).credits(credits(16)).build().expect("a link");
        thread::scope(|scope| {
            for thread in 0..12 {
                let (mut sender, receiver) = (link.sender(), receiver());
                scope.spawn(move || {
                    let flow = sender.flow(receiver.local_addr().expect("an address"));
                    for round in 0..EACH / 10 {
                        let sizes =
                            (0..10).map(|at| if (at + round) % 3 == 0 { LARGE } else { SMALL });
                        for (at, size) in sizes.enumerate() {
                            sender.send(&flow, &payload(thread + round + at, size)).expect("sent");
                            if at % 4 == 3 {
                                sender.cork();
                                sender.send(&flow, &payload(0, LARGE)).expect("sent");
                                while sender.uncork().is_err() {
                                    sender.wait_room(&flow, LARGE);
                                }
                            }
                        }
                        // The socket holds what a round sends.
                        for at in 0..10 {
                            let size = if (at + round) % 3 == 0 { LARGE } else { SMALL };
                            assert_eq!(received(&receiver), payload(thread + round + at, size));
                            if at % 4 == 3 {
                                assert_eq!(received(&receiver), payload(0, LARGE));
                            }
                        }
                    }
                    assert!(sender.flush(LONG));
                });
            }
        });
        balanced(&link.stats());
        assert_eq!(link.stats().sent, 12 * (EACH + EACH / 5) as u64);
    });
}

#[test]
fn what_no_message_holds_is_refused() {
    let link = Link::udp("127.0.0.1:0").ports(1).build().expect("a link");
    let mut sender = link.sender();
    let flow = sender.flow(receiver().local_addr().expect("an address"));
    let error = sender.try_send(&flow, &[0; 65_508]).expect_err("too large");
    assert_eq!(error, onramp::TrySendError::TooLarge);
    link.close(LONG);
    assert_eq!(sender.try_send(&flow, &[0; LARGE]), Err(onramp::TrySendError::Closed));
}
