//! Marks of congestion in the frames that come out.

use onramp_smoltcp::{Shaped, pair, setup};
use smoltcp::phy::{Device, Loopback, Medium, RxToken as _, TxToken as _};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::Ipv4Packet;

/// When the tests begin: far from the time 0 of a frame that nobody has stamped.
const START: Instant = Instant::from_millis_const(10_000);

/// Sends two frames at once, lets the next wait for some 0.3 ms, and marks frames that have waited.
const MARKS: &str = "qdisc add dev d root handle 1: htb default 1
                     class add dev d parent 1: classid 1:1 htb rate 1mbit burst 60b cburst 60b
                     qdisc add dev d parent 1:1 fq_codel ce_threshold 1us";

/// Makes an IPv4 packet of an ECN-capable sender (or not), behind an Ethernet header (or not).
fn frame(medium: Medium, ecn: u8) -> Vec<u8> {
    let mut ip = vec![0; 40];
    ip[..4].copy_from_slice(&[0x45, ecn, 0, 40]);
    (ip[8], ip[9]) = (64, 253);
    ip[12..20].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    Ipv4Packet::new_unchecked(&mut ip[..]).fill_checksum();
    if medium == Medium::Ethernet {
        let mut frame = vec![2; 12];
        frame.extend([8, 0]);
        frame.extend(ip);
        return frame;
    }
    ip
}

fn send(device: &mut impl Device, now: Instant, frame: &[u8]) {
    let token = device.transmit(now).expect("there is always a token");
    token.consume(frame.len(), |buffer| buffer.copy_from_slice(frame));
}

/// Receives a frame and returns its ECN bits, after a look at its checksum.
fn receive(device: &mut impl Device, now: Instant) -> u8 {
    let medium = device.capabilities().medium;
    let (token, _) = device.receive(now).expect("a frame has come");
    token.consume(|frame| {
        let ip = if medium == Medium::Ethernet { &frame[14..] } else { frame };
        let ip = Ipv4Packet::new_checked(ip).expect("an IPv4 packet");
        assert!(ip.verify_checksum());
        ip.ecn()
    })
}

#[test]
fn marks_reach_the_other_end_of_a_pair() {
    let up = setup(MARKS).expect("a tree");
    let down = setup("pfifo").expect("a tree");
    for (medium, mtu) in [(Medium::Ip, 1_500), (Medium::Ethernet, 1_514)] {
        for (ecn, marked) in [(2, 3), (1, 3), (0, 0), (3, 3)] {
            let [mut a, mut b] = pair(medium, mtu, [&up, &down], 1).expect("two devices");
            let frame = frame(medium, ecn);
            for _ in 0..3 {
                send(&mut a, START, &frame);
            }
            for _ in 0..2 {
                assert_eq!(receive(&mut b, START), ecn);
            }
            let then = b.next_frame_at(START).expect("a frame is under way");
            assert!(then > START);
            assert_eq!(receive(&mut b, then), marked, "{medium:?}, ECN {ecn}");
        }
    }
}

#[test]
fn marks_reach_the_inner_device() {
    let tree = setup("fq_codel ce_threshold 1us").expect("a tree");
    let shaper = setup(MARKS).expect("a tree");
    let mut device = Shaped::new(Loopback::new(Medium::Ip), &shaper, 1).expect("a device");
    let frame = frame(Medium::Ip, 2);
    for _ in 0..3 {
        send(&mut device, START, &frame);
    }
    let mut seen = Vec::new();
    let mut now = START;
    for _ in 0..10 {
        now = device.next_frame_at(now).unwrap_or(now);
        while let Some((token, _)) = device.receive(now) {
            seen.push(token.consume(|frame| Ipv4Packet::new_unchecked(frame).ecn()));
        }
    }
    assert_eq!(seen, [2, 2, 3], "the last has waited");
    // A received frame is marked as well.
    let mut device = Shaped::new(Loopback::new(Medium::Ip), &setup("pfifo").expect("a tree"), 1)
        .and_then(|device| device.with_ingress(&tree, 1))
        .expect("a device");
    send(&mut device, START, &frame);
    send(&mut device, START, &frame);
    assert_eq!(receive(&mut device, START), 2);
    assert_eq!(receive(&mut device, START + Duration::from_millis(1)), 3, "it waited in the tree");
}

/// A frame's wait begins when it enters the tree: one that leaves at once is not marked.
#[test]
fn a_frame_that_has_not_waited_is_not_marked() {
    let tree = setup("dualpi2").expect("a tree");
    let [mut a, mut b] = pair(Medium::Ip, 1_500, [&tree, &tree], 1).expect("two devices");
    for (wait, mark) in [(0, 1), (1_000, 3)] {
        let then = START + Duration::from_millis(wait);
        for _ in 0..3 {
            send(&mut a, START, &frame(Medium::Ip, 1));
        }
        assert_eq!([(); 3].map(|()| receive(&mut b, then))[0], mark, "after {wait} ms");
    }
}
