//! The two sides, with a kernel that the tests play.

use std::fs::File;

use super::super::ring::tests::{SIZE, ends};
use super::*;

const FRAME: u32 = 2_048;

fn socket() -> Arc<Socket> {
    let frames = Frames::new(2 * SIZE, FRAME).expect("memory");
    let fd = File::open("/dev/null").expect("Linux").into();
    Arc::new(Socket { frames, fd, zero_copy: false })
}

/// A frame may be back before the kernel says that it has taken the frame's entry.
#[test]
fn a_frame_that_is_back_is_no_room_in_the_ring() {
    let (tx, mut taken) = ends::<xdp_desc>();
    let (mut done, completed) = ends::<u64>();
    let size = u64::from(SIZE) * u64::from(FRAME);
    let free = (0..u64::from(SIZE)).map(|index| size + index * u64::from(FRAME)).collect();
    let mut side = TxSide { tx, completed, free, own: size..2 * size, socket: socket() };
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
    let (mut fill, mut taken) = ends::<u64>();
    for index in 0..SIZE {
        assert!(fill.put(u64::from(index * FRAME)));
    }
    fill.publish();
    let mut side = RxSide { rx, fill, socket: socket() };
    for len in 1..=SIZE {
        let addr = taken.take().expect("a free frame");
        assert!(wire.put(xdp_desc { addr, len, options: 0 }));
    }
    wire.publish();
    assert_eq!(side.receive(|bytes| Some(bytes.len())), None, "it could not be given back");
    taken.release();
    assert_eq!(side.receive(|_| None::<()>), None);
    for len in 1..=SIZE {
        assert_eq!(side.receive(|bytes| Some(bytes.len())), Some(len as usize));
    }
    assert_eq!(side.receive(|_| Some(())), None, "all are taken");
}
