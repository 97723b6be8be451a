//! Links over devices of several kinds.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use onramp::{Device, DeviceInfo, DropReason, Instant, Link, PacketList, Transmitted};

use crate::common::{Gate, LONG, balanced, credits, gated, in_time, until};

/// A device that blocks its caller, which no device should do.
#[derive(Debug)]
pub(crate) struct Slow {
    info: DeviceInfo,
    pause: Duration,
    pub(crate) bursts: Bursts,
}

/// Number of bursts that each thread gave to the device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bursts(Arc<Mutex<HashMap<ThreadId, u32>>>);

impl Bursts {
    pub(crate) fn by(&self, thread: ThreadId) -> u32 {
        self.0.lock().unwrap().get(&thread).copied().unwrap_or(0)
    }
}

impl Slow {
    pub(crate) fn new(pause: Duration) -> Self {
        let info = DeviceInfo::new("slow".to_owned(), 1_514);
        Self { info, pause, bursts: Bursts::default() }
    }
}

impl Device for Slow {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        *self.bursts.0.lock().unwrap().entry(thread::current().id()).or_default() += 1;
        thread::sleep(self.pause);
        done.append(burst);
        Transmitted { calls: 1, messages: 1, retry_at: None }
    }
}

#[test]
fn a_full_device_holds_everything_back_and_goes_on() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo limit 1mb").credits(credits(500)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        let mut cookie = 0;
        for round in 1..=20 {
            gate.shut();
            let sent = link.stats().sent;
            for _ in 0..round * 5 {
                let mut packet = sender.packet(&flow, b"x").unwrap();
                packet.cookie = cookie;
                cookie += 1;
                sender.submit(&flow, packet).unwrap();
            }
            let refusals = gate.refusals();
            until("the runner asks again by itself", || gate.refusals() > refusals);
            assert_eq!(link.stats().sent, sent, "nothing leaves");
            gate.open();
            assert!(sender.flush(LONG));
        }
        assert_eq!(gate.taken(), (0..cookie).collect::<Vec<_>>(), "in order");
        balanced(&link.stats());
    });
}

/// A device is full most of the time while many threads push all the time. All packets are sent.
#[test]
fn a_device_that_opens_now_and_then() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "fq").credits(credits(20)).build().unwrap();
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for _ in 0..8 {
                let mut sender = link.sender();
                threads.push(scope.spawn(move || {
                    let flow = sender.flow(None);
                    (0..300).for_each(|_| sender.send(&flow, b"x").unwrap());
                    assert!(sender.flush(LONG));
                }));
            }
            until("it refuses a packet", || gate.refusals() > 0);
            while threads.iter().any(|thread| !thread.is_finished()) {
                gate.open();
                thread::yield_now();
                gate.shut();
                thread::sleep(Duration::from_micros(300));
                gate.open();
                thread::sleep(Duration::from_micros(100));
            }
        });
        let stats = link.stats();
        assert_eq!(stats.sent, 8 * 300);
        balanced(&stats);
    });
}

fn receiver(addr: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(addr).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

#[test]
fn udp_carries_payloads_of_every_size() {
    in_time(|| {
        let (socket, addr) = receiver("127.0.0.1:0");
        let link = Link::udp("127.0.0.1:0").ports(1).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(addr);
        let mut buffer = vec![0; 65_536];
        for size in [0, 1, 120, 1_472, 1_473, 9_000, 65_507] {
            let payload: Vec<u8> = (0..251).cycle().take(size).collect();
            sender.send(&flow, &payload).unwrap();
            let (len, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..len], payload);
            assert!(from.ip().is_loopback());
        }
        assert!(sender.flush(LONG));
        assert_eq!(link.udp_stats()[0].segments.get(), 7);
        balanced(&link.stats());
    });
}

#[test]
fn udp_over_ipv6_and_a_connected_socket() {
    in_time(|| {
        let (socket, addr) = match UdpSocket::bind("[::1]:0") {
            Ok(socket) => {
                let addr = socket.local_addr().unwrap();
                (socket, addr)
            }
            Err(error) => {
                // Write to stderr directly, because the test harness hides what passing tests
                // print.
                let mut stderr = std::io::stderr();
                return writeln!(stderr, "SKIP: kernel: no IPv6: {error}").expect("it is open");
            }
        };
        socket.set_read_timeout(Some(LONG)).unwrap();
        let ours = UdpSocket::bind("[::1]:0").unwrap();
        ours.connect(addr).unwrap();
        let link = Link::sockets([ours]).build().unwrap();
        let mut sender = link.sender();
        let (flow, named) = (sender.flow(None), sender.flow(addr));
        sender.send(&flow, b"to the peer").unwrap();
        sender.send(&named, b"to the same").unwrap();
        let mut buffer = [0; 100];
        for expected in [b"to the peer", b"to the same"] {
            let len = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], expected);
        }
        assert!(sender.flush(LONG));
        balanced(&link.stats());
    });
}

/// The kernel may refuse UDP packets to a closed port or to port 0. The link counts every packet,
/// with a drop reason if the packet was dropped.
#[test]
fn packets_that_udp_drops_have_a_reason() {
    in_time(|| {
        let (socket, addr) = receiver("127.0.0.1:0");
        let ours = UdpSocket::bind("127.0.0.1:0").unwrap();
        ours.connect(addr).unwrap();
        drop(socket);
        let link = Link::sockets([ours]).build().unwrap();
        let mut sender = link.sender();
        let (refused, nowhere) = (sender.flow(None), sender.flow("127.0.0.1:0".parse().ok()));
        for _ in 0..200 {
            sender.send(&refused, b"x").unwrap();
            sender.send(&nowhere, b"x").unwrap();
        }
        assert!(sender.flush(LONG));
        let stats = link.stats();
        assert_eq!(stats.submitted, 400);
        let device = stats.dropped.get(&DropReason::DeviceError).copied().unwrap_or(0);
        assert_eq!(device, 200, "port 0 is no destination: {:?}", stats.dropped);
        assert_eq!(link.udp_stats()[0].segments.get(), stats.sent);
        balanced(&stats);
    });
}

#[test]
fn a_link_binds_a_socket_for_each_port() {
    in_time(|| {
        let link = Link::udp("127.0.0.1:0").ports(5).build().unwrap();
        assert_eq!((link.ports(), link.udp_stats().len(), link.stats().ports.len()), (5, 5, 5));
        let (socket, addr) = receiver("127.0.0.1:0");
        let mut sender = link.sender();
        let mut sources = std::collections::HashSet::new();
        for _ in 0..5 {
            let flow = sender.flow(addr);
            sender.send(&flow, b"x").unwrap();
            sources.insert(socket.recv_from(&mut [0; 9]).unwrap().1);
        }
        assert_eq!(sources.len(), 5);
        assert!(link.udp_stats().iter().all(|stats| stats.segments.get() == 1));
    });
}

#[test]
fn what_cannot_be_built_says_why() {
    let why = |builder: onramp::LinkBuilder| builder.build().unwrap_err().to_string();
    let null = || Box::new(onramp::dev::Null::default()) as Box<dyn Device>;
    assert!(why(Link::udp("127.0.0.1:0").qdisc("fqq")).contains("expected a qdisc kind"));
    assert!(why(Link::udp("127.0.0.1:0").qdisc("fq maxrate fast")).contains("maxrate"));
    assert!(why(Link::udp("127.0.0.1:0").ports(0)).contains("the number of ports is 0"));
    assert!(why(Link::devices([null()]).ports(2)).contains("as many ports as"));
    assert!(why(Link::devices([])).contains("the number of ports is 0"));
    assert!(why(Link::devices([null()]).burst(0)).contains("burst is 0"));
    assert!(why(Link::devices([null()]).credits(credits(0))).contains("credits is 0"));
    assert!(why(Link::devices([null()]).credits(credits(40_000))).contains("credits is 40000"));
    assert!(why(Link::udp("host.invalid:1")).contains("cannot resolve"));
    // This address belongs to a documentation network, so no machine has it.
    assert!(why(Link::udp("192.0.2.1:0")).contains("192.0.2.1"));
}
