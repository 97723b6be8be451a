use super::memory::{Memory, ROOM};
use super::*;
use crate::{Credits, PacketList, Pool};

#[test]
fn a_packet_lies_where_its_bytes_are_and_comes_home() {
    let (memory, freed) = Memory::new();
    let mut pool = MappedPool::new(memory.clone());
    let mut one = memory.packet(&mut pool, 1, 5);
    assert_eq!((one.payload(), one.capacity()), (&[0; 5][..], usize::from(ROOM)));
    assert_eq!(one.payload().as_ptr(), memory.payload(1).as_ptr().cast_const());
    one.append_payload(b"more");
    assert_eq!(one.payload(), b"\0\0\0\0\0more");
    one.set_payload(&[8; ROOM as usize]);
    let copy = one.duplicate();
    let other = memory.packet(&mut pool, 3, 0);
    assert_eq!((pool.out(), memory.home(&mut pool)), (2, vec![]));
    // A list returns packets of one home together, and others by themselves.
    let list: PacketList = [other, copy, one].into_iter().collect();
    std::thread::scope(|scope| drop(scope.spawn(move || drop(list))));
    assert_eq!(pool.out(), 2, "the pool has not looked");
    assert_eq!((memory.home(&mut pool), pool.out()), (vec![1, 3], 0));
    // The next packet there has nothing of the one before but the bytes.
    let again = memory.packet(&mut pool, 1, 2);
    assert_eq!((again.payload(), again.len, again.priority), (&[8; 2][..], 0, 0));
    drop((again, memory));
    assert_eq!(freed.count(), 0);
    drop(pool);
    assert_eq!(freed.count(), 1);
}

#[test]
fn memory_outlives_the_pool_as_long_as_a_packet_is_out() {
    let (memory, freed) = Memory::new();
    let mut pool = MappedPool::new(memory.clone());
    let [one, two, three] = [0, 1, 2].map(|frame| memory.packet(&mut pool, frame, 4));
    drop((memory, one));
    drop(pool);
    drop(two);
    assert_eq!((freed.count(), three.payload()), (0, &[0; 4][..]));
    drop(three);
    assert_eq!(freed.count(), 1);
}

/// A sender that submits such a packet counts it as a guest until it is dropped.
#[test]
fn a_sender_may_submit_such_a_packet() {
    let (memory, _) = Memory::new();
    let mut mapped = MappedPool::new(memory.clone());
    let mut pool = Pool::new(Credits { packets: 1, bytes: 1 });
    let mut list = PacketList::from_iter([memory.packet(&mut mapped, 0, 4)]);
    pool.submit(&mut list, 1);
    assert!(pool.has_guests() && pool.has_room(1));
    drop(list);
    assert!(!pool.has_guests());
    assert_eq!(memory.home(&mut mapped), [0]);
}

#[test]
#[should_panic(expected = "multiple of 64")]
fn a_payload_has_to_be_aligned() {
    let (memory, _) = Memory::new();
    let mut pool = MappedPool::new(memory.clone());
    // SAFETY: the frame is large enough.
    let odd = unsafe { memory.payload(0).add(2) };
    // SAFETY: the bytes lie in the frame, and nobody uses them.
    drop(unsafe { pool.packet(odd, 8, 8) });
}

#[test]
#[should_panic(expected = "9 bytes do not fit 8")]
fn a_payload_has_to_fit() {
    let (memory, _) = Memory::new();
    let mut pool = MappedPool::new(memory.clone());
    // SAFETY: the bytes lie in the frame, and nobody uses them.
    drop(unsafe { pool.packet(memory.payload(0), 8, 9) });
}
