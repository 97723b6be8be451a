//! The two sides, with a kernel that the tests play.

use std::fs::File;

use super::super::ring::tests::{SIZE, ends};
use super::*;

const FRAME: u32 = 2_048;

fn frames() -> Arc<Frames> {
    Arc::new(Frames::new(2 * SIZE, FRAME).expect("memory"))
}

fn socket(frames: &Arc<Frames>) -> Arc<Socket> {
    let fd = File::open("/dev/null").expect("Linux").into();
    let lent = Lent { addresses: Mutex::default(), frames: Arc::clone(frames) };
    Arc::new(Socket { fd, lent, zero_copy: false })
}

/// A transmit side that has the second half of the frames.
fn tx_side(tx: Ring<xdp_desc>, completed: Ring<u64>, socket: Arc<Socket>) -> TxSide {
    let size = u64::from(SIZE) * u64::from(FRAME);
    let free = (0..u64::from(SIZE)).map(|index| size + index * u64::from(FRAME)).collect();
    let (own, lent) = (size..2 * size, VecDeque::new());
    TxSide { tx, completed, free, own, lent, out: 0, socket, maker: Maker::this_process() }
}

/// A receive side that has the first half of the frames, and half of them at most in packets.
fn rx_side(rx: Ring<xdp_desc>, mut fill: Ring<u64>, socket: Arc<Socket>) -> RxSide {
    for index in 0..SIZE {
        assert!(fill.put(u64::from(index * FRAME)));
    }
    fill.publish();
    let pool = MappedPool::new(Arc::clone(&socket.lent.frames));
    RxSide { rx, fill, pool, home: Vec::new(), most: SIZE as usize / 2, socket }
}

/// Lets a frame of these bytes come in, as the kernel does: behind some room that it keeps free.
fn come(frames: &Frames, wire: &mut Ring<xdp_desc>, taken: &mut Ring<u64>, bytes: &[u8]) {
    let frame = taken.take().expect("a free frame");
    taken.release();
    let addr = frame + 256;
    let (at, _) = frames.at(addr);
    // SAFETY: the frame is the kernel's, which this test plays.
    unsafe { at.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    let len = bytes.len().try_into().expect("a frame is small");
    assert!(wire.put(xdp_desc { addr, len, options: 0 }));
    wire.publish();
}

fn copied(bytes: &[u8]) -> Option<Packet> {
    Some(Packet::with_payload(bytes))
}

/// A frame may be back before the kernel says that it has taken the frame's entry.
#[test]
fn a_frame_that_is_back_is_no_room_in_the_ring() {
    let (tx, mut taken) = ends::<xdp_desc>();
    let (mut done, completed) = ends::<u64>();
    let mut side = tx_side(tx, completed, socket(&frames()));
    for _ in 0..SIZE {
        side.put(b"frame");
    }
    side.tx.publish();
    for _ in 0..SIZE {
        assert!(done.put(taken.take().expect("a frame").addr));
    }
    done.publish();
    assert_eq!(side.reclaim(), SIZE);
    assert_eq!((side.room(), side.waiting()), (0, SIZE), "the kernel has not said so");
    taken.release();
    assert_eq!((side.room(), side.waiting()), (SIZE as usize, 0));
    side.put(b"frame");
    assert_eq!(side.room(), SIZE as usize - 1);
}

/// A received frame that nobody takes stays the oldest; and so does one whose place in the ring of
/// free frames the kernel has not left yet.
#[test]
fn a_received_frame_stays_until_it_is_taken_and_given_back() {
    let (mut wire, rx) = ends::<xdp_desc>();
    let (fill, mut taken) = ends::<u64>();
    let mut side = rx_side(rx, fill, socket(&frames()));
    side.most = 0;
    for len in 1..=SIZE {
        let addr = taken.take().expect("a free frame");
        assert!(wire.put(xdp_desc { addr, len, options: 0 }));
    }
    wire.publish();
    let mut receive = |takes: bool| {
        side.receive(|_| panic!("it is copied"), |bytes| takes.then_some(bytes.len()))
    };
    assert_eq!(receive(true), None, "it could not be given back");
    taken.release();
    assert_eq!(receive(false), None);
    for len in 1..=SIZE {
        assert_eq!(receive(true), Some(len as usize));
    }
    assert_eq!(receive(true), None, "all are taken");
}

/// Packets lie in half of the frames. Further frames are copied, so the kernel always has some.
#[test]
fn packets_take_up_half_of_the_frames() {
    let (mut wire, rx) = ends::<xdp_desc>();
    let (fill, mut taken) = ends::<u64>();
    let frames = frames();
    let mut side = rx_side(rx, fill, socket(&frames));
    let mut packets = Vec::new();
    for number in 0..100 {
        come(&frames, &mut wire, &mut taken, &[number; 60]);
        packets.push(side.receive(|packet| packet, copied).expect("it came"));
        side.release(false).expect("the kernel need not be called");
    }
    let lies = |packet: &Packet| frames.address_of(packet.payload()).is_some();
    assert_eq!(packets.iter().filter(|packet| lies(packet)).count(), SIZE as usize / 2);
    for (packet, number) in packets.iter().zip(0..) {
        assert_eq!(packet.payload(), [number; 60]);
    }
    // When the packets are gone, further ones lie in the frames again.
    drop(packets);
    side.release(false).expect("the kernel need not be called");
    come(&frames, &mut wire, &mut taken, b"a frame");
    let packet = side.receive(|packet| packet, copied).expect("it came");
    assert!(lies(&packet));
    assert_eq!((packet.payload(), packet.capacity()), (&b"a frame"[..], FRAME as usize - 256));
    // A packet outlives both sides.
    drop((side, frames));
    assert_eq!(packet.payload(), b"a frame");
}

/// A frame whose packet is dropped while it is in a transmit ring goes back to the receive side
/// only when it has left, and also when the ring's socket is closed.
#[test]
fn a_frame_in_a_ring_is_not_used_again() {
    let (mut wire, rx) = ends::<xdp_desc>();
    let (fill, mut taken) = ends::<u64>();
    let (tx, mut sent) = ends::<xdp_desc>();
    let (mut done, completed) = ends::<u64>();
    let frames = frames();
    let mut from = rx_side(rx, fill, socket(&frames));
    let mut to = tx_side(tx, completed, socket(&frames));
    assert!(!to.put_in_place(b"elsewhere"));
    let mut forward = |to: &mut TxSide, bytes: &[u8]| {
        come(&frames, &mut wire, &mut taken, bytes);
        let packet = from.receive(|packet| packet, copied).expect("it came");
        assert!(to.put_in_place(packet.payload()));
        drop(packet);
        let mut home = || {
            from.refill();
            from.home.len()
        };
        assert_eq!((home(), home()), (1, 1), "it is in the ring");
        home()
    };
    forward(&mut to, b"one");
    to.tx.publish();
    let desc = sent.take().expect("it is in the ring");
    sent.release();
    assert_eq!((desc.len, to.room()), (3, SIZE as usize - 1));
    assert!(done.put(desc.addr));
    done.publish();
    assert_eq!((to.reclaim(), to.room()), (1, SIZE as usize));
    forward(&mut to, b"two");
    drop(to);
    from.refill();
    assert!(from.home.is_empty(), "the socket is closed");
}
