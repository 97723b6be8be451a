//! Packets that lie in memory of the caller's.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use onramp_queue::{Credits, MappedPool, Packet, PacketList, Pool};

const FRAME: usize = 512;
const ROOM: u16 = (FRAME - MappedPool::HEADER) as u16;
const COUNT: usize = 4;

/// Memory of four frames. Counts how often it was freed.
struct Memory {
    start: NonNull<Frame>,
    freed: Arc<AtomicUsize>,
}

#[repr(align(64))]
struct Frame(#[expect(dead_code, reason = "only its size counts")] [u8; FRAME]);

// SAFETY: the memory belongs to no thread.
unsafe impl Send for Memory {}
// SAFETY: a shared reference gives out only an address.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> (Arc<Self>, Arc<AtomicUsize>) {
        let freed = Arc::<AtomicUsize>::default();
        let frames: Box<[Frame; COUNT]> = Box::new([const { Frame([7; FRAME]) }; COUNT]);
        let start = NonNull::from(Box::leak(frames)).cast();
        (Arc::new(Self { start, freed: freed.clone() }), freed)
    }

    /// Returns the address of the payload of a frame.
    fn payload(&self, frame: usize) -> NonNull<u8> {
        assert!(frame < COUNT);
        // SAFETY: there are so many frames.
        let frame = unsafe { self.start.add(frame) };
        // SAFETY: a frame is larger than a header.
        unsafe { frame.cast::<u8>().add(MappedPool::HEADER) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` made the pointer from such a box.
        drop(unsafe { Box::from_raw(self.start.cast::<[Frame; COUNT]>().as_ptr()) });
        self.freed.fetch_add(1, Relaxed);
    }
}

/// Makes a packet of the bytes in a frame that nobody uses.
fn packet(pool: &mut MappedPool, memory: &Memory, frame: usize, len: u16) -> Packet {
    // SAFETY: the tests make one packet of a frame at a time; all bytes are initialised.
    unsafe { pool.packet(memory.payload(frame), ROOM, len) }
}

fn home(pool: &mut MappedPool) -> Vec<NonNull<u8>> {
    let mut home = Vec::new();
    pool.reclaim(|payload| home.push(payload));
    home.sort();
    home
}

#[test]
fn a_packet_lies_where_its_bytes_are_and_comes_home() {
    let (memory, freed) = Memory::new();
    let mut pool = MappedPool::new(memory.clone());
    let mut one = packet(&mut pool, &memory, 1, 5);
    assert_eq!((one.payload(), one.capacity()), (&[7; 5][..], usize::from(ROOM)));
    assert_eq!(one.payload().as_ptr(), memory.payload(1).as_ptr().cast_const());
    one.append_payload(b"more");
    assert_eq!(one.payload(), b"\x07\x07\x07\x07\x07more");
    one.set_payload(&[8; ROOM as usize]);
    let copy = one.duplicate();
    let other = packet(&mut pool, &memory, 3, 0);
    assert_eq!((pool.out(), home(&mut pool)), (2, vec![]));
    // A list returns packets of one home together, and others one by one.
    let list: PacketList = [other, copy, one].into_iter().collect();
    std::thread::spawn(move || drop(list)).join().expect("a drop does not panic");
    assert_eq!(pool.out(), 2, "nobody has looked");
    assert_eq!(home(&mut pool), [memory.payload(1), memory.payload(3)]);
    assert_eq!(pool.out(), 0);
    // The next packet there has nothing of the one before but the bytes.
    let again = packet(&mut pool, &memory, 1, 2);
    assert_eq!((again.payload(), again.len, again.priority), (&[8; 2][..], 0, 0));
    drop(again);
    drop(memory);
    assert_eq!(freed.load(Relaxed), 0);
    drop(pool);
    assert_eq!(freed.load(Relaxed), 1);
}

#[test]
fn memory_outlives_the_pool_as_long_as_a_packet_is_out() {
    let (memory, freed) = Memory::new();
    let mut pool = MappedPool::new(memory.clone());
    let [one, two, three] = [0, 1, 2].map(|frame| packet(&mut pool, &memory, frame, 4));
    drop((memory, one));
    drop(pool);
    drop(two);
    assert_eq!((freed.load(Relaxed), three.payload()), (0, &[7; 4][..]));
    drop(three);
    assert_eq!(freed.load(Relaxed), 1);
}

/// A sender that submits such a packet counts it as a guest until it is dropped.
#[test]
fn a_sender_may_submit_such_a_packet() {
    let (memory, _) = Memory::new();
    let mut mapped = MappedPool::new(memory.clone());
    let mut pool = Pool::new(Credits { packets: 1, bytes: 1 });
    let mut list = PacketList::from_iter([packet(&mut mapped, &memory, 0, 4)]);
    pool.submit(&mut list, 1);
    assert!(pool.has_guests() && pool.has_room(1));
    drop(list);
    assert!(!pool.has_guests());
    assert_eq!(home(&mut mapped), [memory.payload(0)]);
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
