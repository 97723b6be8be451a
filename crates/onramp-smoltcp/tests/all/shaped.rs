//! A tree in front of a device, whose room and capabilities the test decides.

use std::collections::VecDeque;

use onramp_smoltcp::{Error, Setup, Shaped, setup};
use smoltcp::phy::{
    Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Loopback, Medium, PacketMeta,
    RxToken, TxToken,
};
use smoltcp::time::{Duration, Instant};

use crate::host::Host;

fn tree(text: &str) -> Setup {
    setup(text).expect("a tree")
}

fn meta(id: u32) -> PacketMeta {
    let mut meta = PacketMeta::default();
    meta.id = id;
    meta
}

/// A device that takes as many frames as there is room, and gives those of a list.
#[derive(Default)]
struct Script {
    room: usize,
    taken: Vec<(Instant, u8, PacketMeta)>,
    come: VecDeque<(Vec<u8>, PacketMeta)>,
    mtu: usize,
}

struct Rx(Vec<u8>, PacketMeta);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }

    fn meta(&self) -> PacketMeta {
        self.1
    }
}

struct Tx<'a>(&'a mut Script, Instant, PacketMeta);

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        self.0.room -= 1;
        self.0.taken.push((self.1, frame[0], self.2));
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.2 = meta;
    }
}

impl Device for Script {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, now: Instant) -> Option<(Rx, Tx<'_>)> {
        let (frame, meta) = self.come.pop_front()?;
        Some((Rx(frame, meta), Tx(self, now, PacketMeta::default())))
    }

    fn transmit(&mut self, now: Instant) -> Option<Tx<'_>> {
        (self.room > 0).then(|| Tx(self, now, PacketMeta::default()))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu;
        capabilities.max_burst_size = Some(3);
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities.checksum.udp = Checksum::Tx;
        capabilities
    }
}

fn script(room: usize) -> Script {
    Script { room, mtu: 1_514, ..Script::default() }
}

fn send<D: Device>(device: &mut Shaped<D>, now: Instant, number: u8) {
    let mut token = device.transmit(now).expect("there is always a token");
    token.set_meta(meta(number.into()));
    token.consume(1_000, |buffer| buffer[0] = number);
}

#[test]
fn frames_leave_at_the_rate_of_the_tree_with_their_metadata() {
    // 1,000 bytes take 1 ms.
    let tree = tree("tbf rate 8mbit burst 1000b limit 90000b");
    let mut device = Shaped::new(script(9), &tree, 1).expect("a device");
    for number in 0..4 {
        send(&mut device, Instant::ZERO, number);
    }
    let mut now = Instant::ZERO;
    for _ in 0..4 {
        let next = device.next_frame_at(now);
        assert!(next.is_none_or(|at| at > now));
        now = next.unwrap_or(now);
    }
    let expected: Vec<_> =
        (0..4_u8).map(|n| (Instant::from_millis(n), n, meta(n.into()))).collect();
    assert_eq!(device.inner().taken, expected);
    assert_eq!(device.egress().delivered(), 4);
}

#[test]
fn frames_wait_in_the_tree_while_the_device_has_no_room() {
    let mut device = Shaped::new(script(1), &tree("pfifo limit 3"), 1).expect("a device");
    for number in 0..6 {
        send(&mut device, Instant::ZERO, number);
    }
    // One has gone, three are in the queue.
    assert_eq!((device.egress().delivered(), device.egress().held()), (1, 3));
    assert_eq!(device.egress().totals().dropped_packets(), 2);
    let again = device.next_frame_at(Instant::ZERO);
    assert_eq!(again, Some(Instant::from_millis(1)), "the device is asked again");
    device.inner_mut().room = 10;
    assert_eq!(device.next_frame_at(Instant::from_millis(1)), None);
    let taken: Vec<u8> = device.inner().taken.iter().map(|(_, number, _)| *number).collect();
    assert_eq!(taken, [0, 1, 2, 3]);
    assert_eq!(device.egress().held(), 0);
}

/// A copy that `netem` makes has the metadata of its frame too.
#[test]
fn copies_have_the_metadata_of_their_frame() {
    let tree = tree("netem delay 2ms 1ms duplicate 100%");
    let mut device = Shaped::new(script(9), &tree, 1).expect("a device");
    let mut now = Instant::ZERO;
    for number in 1..4 {
        send(&mut device, now, number);
    }
    while let Some(next) = device.next_frame_at(now) {
        now = next;
    }
    let mut taken: Vec<_> =
        device.inner().taken.iter().map(|(_, number, meta)| (*number, *meta)).collect();
    taken.sort_unstable_by_key(|(number, _)| *number);
    let expected = [1, 1, 2, 2, 3, 3].map(|number: u8| (number, meta(number.into())));
    assert_eq!(taken, expected);
}

#[test]
fn received_frames_come_directly_or_through_a_tree() {
    let mut direct = Shaped::new(script(9), &tree("pfifo"), 1).expect("a device");
    let shaped = Shaped::new(script(9), &tree("pfifo"), 1).expect("a device");
    let mut shaped = shaped.with_ingress(&tree("netem delay 5ms"), 1).expect("a device");
    let read = |device: &mut Shaped<Script>, now| {
        device.receive(now).map(|(rx, tx)| {
            let meta = rx.meta();
            // The stack answers while it has the frame.
            let number = rx.consume(|frame| {
                tx.consume(60, |answer| answer[0] = 100 + frame[0]);
                frame[0]
            });
            (number, meta)
        })
    };
    for device in [&mut direct, &mut shaped] {
        device.inner_mut().come.extend([(vec![1; 60], meta(7)), (vec![2; 60], meta(8))]);
    }
    let (start, later) = (Instant::ZERO, Instant::from_millis(5));
    assert_eq!(read(&mut direct, start), Some((1, meta(7))));
    assert_eq!(read(&mut direct, start), Some((2, meta(8))));
    assert_eq!(read(&mut direct, start), None);
    assert_eq!(read(&mut shaped, start), None);
    assert_eq!(shaped.ingress().expect("a tree").held(), 2);
    assert_eq!(shaped.next_frame_at(start), Some(later));
    assert_eq!(read(&mut shaped, later), Some((1, meta(7))));
    assert_eq!(shaped.next_frame_at(later), Some(later), "another is there");
    assert_eq!(read(&mut shaped, later), Some((2, meta(8))));
    assert_eq!(read(&mut shaped, later), None);
    assert_eq!(shaped.ingress().expect("a tree").delivered(), 2);
    for device in [&direct, &shaped] {
        let answers: Vec<u8> = device.inner().taken.iter().map(|(_, number, _)| *number).collect();
        assert_eq!(answers, [101, 102]);
    }
}

#[test]
fn capabilities_are_those_of_the_device() {
    let device = Shaped::new(script(9), &tree("pfifo"), 1).expect("a device");
    let ours = format!("{:?}", device.capabilities());
    assert_eq!(ours, format!("{:?}", script(9).capabilities()));
}

#[test]
fn a_description_without_a_root_and_a_huge_mtu_are_refused() {
    let error = Shaped::new(script(9), &Setup::default(), 1).map(|_| ()).expect_err("no root");
    assert!(matches!(error, Error::Tree(_)));
    let huge = Script { mtu: 65_536, ..Script::default() };
    let error = Shaped::new(huge, &tree("pfifo"), 1).map(|_| ()).expect_err("too large");
    assert_eq!(error, Error::Mtu(65_536));
    assert_eq!(
        error.to_string(),
        "the device's max_transmission_unit is 65536, but a packet carries at most 65535 bytes; \
         give the device a smaller one"
    );
    assert!(setup("netem delay 20").is_err(), "a time needs a unit");
    assert!(setup("qdisc add dev d parent 1: pfifo").is_err(), "there is no 1:");
    assert!(setup("# nothing").is_err(), "no root");
    let lines = "qdisc add dev d root pfifo\nqdisc add dev d clsact";
    assert!(setup(lines).is_ok());
    let filter = "filter add dev d ingress matchall action drop";
    let error = setup(&format!("{lines}\n{filter}")).expect_err("no frame would meet it");
    assert!(error.to_string().contains("egress in place of ingress"), "{error}");
}

/// The interface's deadlines and those of the tree are one.
#[test]
fn the_earlier_of_deadline_and_departure_counts() {
    let mut device =
        Shaped::new(Loopback::new(Medium::Ip), &tree("netem delay 300ms"), 1).expect("a device");
    let mut host = Host::new(1, &mut device);
    assert_eq!(device.poll_at(Instant::ZERO, &mut host.stack, &host.sockets), None);
    host.connect(9);
    host.poll(Instant::ZERO, &mut device);
    let departure = Instant::from_millis(300);
    let at = device.poll_at(Instant::ZERO, &mut host.stack, &host.sockets);
    assert_eq!(at, Some(departure), "the SYN leaves before it is sent again");
    host.poll(departure, &mut device);
    let retry = device.poll_at(departure, &mut host.stack, &host.sockets).expect("a deadline");
    assert!(retry > departure && retry <= Instant::ZERO + Duration::from_secs(2), "{retry}");
}

/// A peer that sends without a pause does not keep `receive` for ever: a call takes a bounded
/// number of frames into the ingress tree, and the program is to call again at once.
#[test]
fn a_call_takes_a_bounded_number_of_frames() {
    const FRAMES: usize = 10_000;
    let shaped = Shaped::new(script(9), &tree("pfifo"), 1).expect("a device");
    let ingress = tree("netem delay 20ms limit 20000");
    let mut shaped = shaped.with_ingress(&ingress, 1).expect("a device");
    shaped.inner_mut().come = (0..FRAMES).map(|_| (vec![0; 100], meta(0))).collect();
    let (mut calls, now) = (0, Instant::ZERO);
    while shaped.next_frame_at(now).is_none_or(|at| at <= now) {
        let before = shaped.inner().come.len();
        assert!(shaped.receive(now).is_none(), "the delay has only begun");
        assert!(before - shaped.inner().come.len() <= 64);
        calls += 1;
    }
    assert_eq!(shaped.inner().come.len(), 0, "after {calls} calls");
    assert_eq!(shaped.next_frame_at(now), Some(Instant::from_millis(20)));
}
