//! Large messages leave an idle port without a copy, and otherwise as small ones do.

use onramp::{Device, DeviceInfo, DropReason, Packet, PacketList, Transmitted};

use super::*;

/// A size from which on messages are lent.
const LARGE: usize = 4_096;
const LONG: Duration = Duration::from_secs(60);

/// What a device has sent: for each packet the address of its bytes, if they were the caller's, and
/// their number.
type Sent = Arc<Mutex<Vec<(Option<usize>, usize)>>>;

/// A device that sends messages from the caller's memory.
struct Lender {
    info: DeviceInfo,
    sent: Sent,
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
        for packet in std::mem::take(burst) {
            self.sent.lock().expect("no panic").push((None, packet.payload().len()));
            done.push_back(packet);
        }
        Transmitted::default()
    }

    fn transmit_lent(&mut self, packet: &Packet, payload: &[u8], _: Instant) -> bool {
        assert!(usize::from(packet.gso_size) < payload.len());
        let at = payload.as_ptr().addr();
        self.sent.lock().expect("no panic").push((Some(at), payload.len()));
        true
    }
}

/// Makes a sender of a link over a device that sends messages from the caller's memory.
fn sending(qdisc: &str) -> (Sending, Sent) {
    let sent = Sent::default();
    let info = DeviceInfo::new("lender".to_owned(), 1_514).never_blocks();
    let device = Box::new(Lender { info, sent: sent.clone() });
    let builder = Link::devices([device as Box<dyn Device>]).qdisc(qdisc).manual();
    let link = builder.build().expect("a link");
    // The device sends to all addresses, as a connected socket for IPv6 does.
    let ends = [End { is_ipv6: true, is_connected: true }].into();
    let around = Around { link, id: 1, ends, hasher: RandomState::new() };
    (Sending::new(around, true), sent)
}

fn message(payload: &[u8]) -> Message<'_> {
    Message { payload, segment: 0, ecn: None, txtime_ns: 0, cookie: 7 }
}

fn way() -> Aim<'static> {
    Aim::Way(Way { dest: Some(SocketAddr::from(([127, 0, 0, 1], 9))), from: None })
}

fn taken(sent: &Sent) -> Vec<(Option<usize>, usize)> {
    std::mem::take(&mut *sent.lock().expect("no panic"))
}

/// Returns the completions of all packets of the sender.
fn told(sending: &mut Sending) -> Vec<(u64, u32, Option<DropReason>)> {
    assert!(sending.flush(LONG));
    let mut all = Vec::new();
    let put = |one: Completion| all.push((one.cookie, one.len, one.drop_reason));
    sending.completions(usize::MAX, put).expect("they are kept");
    all
}

#[test]
fn one_large_message_is_lent() {
    let (mut sending, sent) = sending("pfifo");
    let bytes = [7; 2 * LARGE];
    for (size, is_lent) in [(LARGE - 1, false), (LARGE, true), (2 * LARGE, true)] {
        for waits in [false, true] {
            let message = message(&bytes[..size]);
            sending.begin(1, waits).expect("nothing waits");
            if waits {
                sending.push_waiting(way(), &message).expect("there is room");
            } else {
                sending.push(way(), &message).expect("there is room");
            }
            sending.end(waits);
            assert_eq!(taken(&sent), [(is_lent.then(|| bytes.as_ptr().addr()), size)]);
            let len = u32::try_from(size).expect("it is small") + 42;
            assert_eq!(told(&mut sending), [(7, len, None)], "{size}");
            assert_eq!(sending.in_flight(), 0);
        }
    }
    let stats = sending.around.link.stats();
    assert_eq!((stats.submitted, stats.sent, stats.held), (6, 6, 0));
}

/// A message of several datagrams counts the headers of each. One that is not larger than its
/// segments is one datagram.
#[test]
fn a_large_message_of_several_datagrams_is_lent() {
    let (mut sending, sent) = sending("pfifo");
    let bytes = [7; LARGE];
    for (segment, datagrams) in [(1_024, 4), (1_500, 3), (4_096, 1), (5_000, 1)] {
        let message = Message { segment, ..message(&bytes) };
        sending.push(way(), &message).expect("there is room");
        assert_eq!(taken(&sent), [(Some(bytes.as_ptr().addr()), LARGE)]);
        let len = 4_096 + datagrams * 42;
        assert_eq!(told(&mut sending), [(7, len, None)], "{segment}");
    }
}

/// What waits is copied: several messages, which enter their port together, and one behind a qdisc
/// that holds it.
#[test]
fn large_messages_that_wait_are_copied() {
    let (mut several, sent) = sending("pfifo");
    let bytes = [7; LARGE];
    several.begin(2, false).expect("nothing waits");
    several.push(way(), &message(&bytes)).expect("there is room");
    several.push(way(), &message(&bytes)).expect("there is room");
    several.end(false);
    assert_eq!(told(&mut several).len(), 2);
    assert_eq!(taken(&sent), [(None, LARGE); 2]);
    for qdisc in ["netem delay 1ms", "tbf rate 1gbit burst 10000 limit 100000"] {
        let (mut held, sent) = sending(qdisc);
        held.push(way(), &message(&bytes)).expect("there is room");
        assert_eq!(told(&mut held), [(7, 4_096 + 42, None)], "{qdisc}");
        assert_eq!(taken(&sent), [(None, LARGE)], "{qdisc}");
    }
    let (mut blackhole, sent) = sending("blackhole");
    blackhole.push(way(), &message(&bytes)).expect("there is room");
    let reason = Some(DropReason::Blackhole);
    assert_eq!(told(&mut blackhole), [(7, 4_096 + 42, reason)]);
    assert_eq!(taken(&sent), []);
}

/// A large message fails as a small one does.
#[test]
fn a_large_message_fails_as_a_small_one() {
    let (mut sending, _) = sending("pfifo");
    let bytes = vec![7; 65_508];
    let errno = |sending: &mut Sending, size: usize| {
        sending.push(way(), &message(&bytes[..size])).expect_err("it fails").errno
    };
    assert_eq!(errno(&mut sending, 65_508), libc::EMSGSIZE);
    sending.around.link.close(Duration::ZERO);
    assert_eq!([1, LARGE].map(|size| errno(&mut sending, size)), [libc::EPIPE; 2]);
    assert_eq!(told(&mut sending), []);
}

/// The number of a source is looked up once for messages in a row.
#[test]
fn the_last_source_is_kept() {
    let (mut sending, _) = sending("pfifo");
    let from = |last: u8| Local::new(IpAddr::from([127, 9, 9, last]), 0).expect("an address");
    let dest = |port| Some(SocketAddr::from(([127, 0, 0, 1], port)));
    let one = sending.source(from(1), dest(1)).expect("there are numbers");
    let other = sending.source(from(2), dest(2)).expect("there are numbers");
    assert_ne!(one, other);
    assert_eq!(sending.last_source, Some((from(2), other)));
    assert_eq!(sending.source(from(2), dest(3)).expect("it has one"), other);
    assert_eq!(sending.source(from(1), dest(1)).expect("it has one"), one);
}

/// Messages to one destination from two sources are two flows, as in the kernel, and messages of
/// one way are one.
#[test]
fn a_way_is_a_flow() {
    let (mut sending, _) = sending("pfifo");
    let dest = Some(SocketAddr::from(([127, 0, 0, 1], 1)));
    let from = |last: u8| Local::new(IpAddr::from([127, 9, 9, last]), 0);
    let keys = [None, from(1), from(2), from(1), None];
    let keys = keys.map(|from| sending.flow_of(Way { dest, from }).expect("it is right").key());
    assert_eq!((keys[0], keys[1]), (keys[4], keys[3]));
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
}
