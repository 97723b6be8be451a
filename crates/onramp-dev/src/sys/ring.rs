//! The rings that an AF_XDP socket shares with the kernel, and the memory of their frames.
//!
//! A ring has one producer and one consumer, of which the kernel is one. Each side writes its own
//! position and reads the other's; entries between the two positions belong to the consumer.
//!
//! Source: Linux `Documentation/networking/af_xdp.rst`, `include/uapi/linux/if_xdp.h`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use libc::{c_int, c_void, off_t, xdp_ring_offset};

/// Memory that is mapped into the process; unmapped when it is dropped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives out only an address and a length.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize, flags: c_int, fd: c_int, offset: off_t) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses a free address, so no other memory is touched.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start).ok_or_else(|| io::Error::from(io::ErrorKind::Other))?;
        Ok(Self { start, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole of a mapping that this value owns, and no reference into it
        // outlives the value.
        let result = unsafe { libc::munmap(self.start.as_ptr(), self.len) };
        debug_assert_eq!(result, 0, "the mapping is there");
    }
}

/// The memory of frames: `count` frames of `size` bytes.
#[derive(Debug)]
pub(crate) struct Frames {
    memory: Mapping,
    size: usize,
    /// How often each frame is in a transmit ring.
    in_rings: Box<[AtomicU32]>,
}

impl Frames {
    /// Length of the memory in bytes is `count` times `size`, a power of two.
    pub(crate) fn new(count: u32, size: u32) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let (count, size) = (count as usize, size as usize);
        assert!(size.is_power_of_two(), "the kernel wants a power of two");
        let in_rings = (0..count).map(|_| AtomicU32::new(0)).collect();
        Ok(Self { memory: Mapping::new(count * size, flags, -1, 0)?, size, in_rings })
    }

    /// Returns the address of bytes that lie in one frame of this memory, or `None` if they lie
    /// elsewhere.
    pub(super) fn address_of(&self, bytes: &[u8]) -> Option<u64> {
        let start = self.memory.start.addr().get();
        let address = bytes.as_ptr().addr().checked_sub(start)?;
        (address < self.memory.len).then_some(address as u64)
    }

    /// Returns a pointer to the byte at this address, and the number of bytes from there to the end
    /// of the frame.
    ///
    /// # Panics
    ///
    /// Panics if the address does not lie in the memory.
    pub(super) fn at(&self, address: u64) -> (NonNull<u8>, usize) {
        let at = NonNull::new(self.place(address, 0)).expect("an address in a mapping");
        let in_frame = usize::try_from(address - self.frame_of(address)).expect("below a page");
        (at, self.size - in_frame)
    }

    /// Returns the beginning of the frame in which the byte at a pointer lies.
    ///
    /// # Panics
    ///
    /// Panics if it does not lie in the memory.
    pub(super) fn frame_at(&self, place: NonNull<u8>) -> u64 {
        let offset = place.addr().get().checked_sub(self.memory.start.addr().get());
        let offset = offset.filter(|offset| *offset < self.memory.len);
        self.frame_of(offset.expect("a place in the memory") as u64)
    }

    fn in_rings(&self, address: u64) -> &AtomicU32 {
        &self.in_rings[usize::try_from(address).expect("an address in memory") / self.size]
    }

    /// Notes that the frame at this address is in a transmit ring once more.
    pub(super) fn enter(&self, address: u64) {
        // Relaxed: the packet in the frame is dropped afterwards, and comes home by a release.
        self.in_rings(address).fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the kernel has sent the frame at this address, or will never do so.
    pub(super) fn leave(&self, address: u64) {
        // Release: the kernel has read the frame before anybody uses it again; pairs with the
        // acquire in `is_in_ring`.
        self.in_rings(address).fetch_sub(1, Ordering::Release);
    }

    /// Whether the frame at this address is in a transmit ring.
    pub(super) fn is_in_ring(&self, address: u64) -> bool {
        // Acquire: pairs with the release in `leave`.
        self.in_rings(address).load(Ordering::Acquire) != 0
    }

    /// Address and length, for the kernel.
    pub(super) fn whole(&self) -> (u64, u64) {
        (self.memory.start.as_ptr().expose_provenance() as u64, self.memory.len as u64)
    }

    /// Returns the beginning of the frame in which the byte at `address` lies, counted from the
    /// beginning of the memory.
    pub(super) fn frame_of(&self, address: u64) -> u64 {
        address & !(self.size as u64 - 1)
    }

    /// Copies bytes to the beginning of a frame.
    ///
    /// # Panics
    ///
    /// Panics if they do not fit the frame, or if there is no such frame.
    ///
    /// # Safety
    ///
    /// The frame belongs to the caller: neither the kernel nor another thread accesses it.
    pub(super) unsafe fn write(&self, frame: u64, bytes: &[u8]) {
        let at = self.place(frame, bytes.len());
        // SAFETY: `place` has checked that the bytes lie in the memory; by the caller's promise no
        // one else accesses them, and the source is a Rust slice, which this memory never is.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
    }

    /// Returns the bytes at an address.
    ///
    /// # Panics
    ///
    /// Panics if they do not lie in one frame of the memory.
    ///
    /// # Safety
    ///
    /// As for [`write`](Self::write), for as long as the result lives.
    pub(super) unsafe fn read(&self, address: u64, len: usize) -> &[u8] {
        let at = self.place(address, len);
        // SAFETY: the bytes lie in the memory, which is initialised by `mmap` and outlives the
        // result; by the caller's promise no one writes them.
        unsafe { std::slice::from_raw_parts(at, len) }
    }

    fn place(&self, address: u64, len: usize) -> *mut u8 {
        let at = usize::try_from(address).expect("an address in memory");
        let in_frame = at & (self.size - 1);
        assert!(at < self.memory.len && in_frame + len <= self.size, "{len} bytes at {at}");
        // SAFETY: the offset is less than the length of the mapping.
        unsafe { self.memory.start.as_ptr().cast::<u8>().add(at) }
    }
}

/// One end of a ring with entries of the type `T`, whose other end is the kernel's.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    memory: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    mask: u32,
    /// The position of this end. Entries before it that the other end does not know of yet are
    /// written, or read, but not published.
    own: u32,
    entry: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries, a power of two.
    pub(super) fn new(
        fd: &OwnedFd,
        size: u32,
        which: off_t,
        offsets: &xdp_ring_offset,
    ) -> io::Result<Self> {
        let place = |offset: u64| usize::try_from(offset).map_err(|_| invalid());
        let entries = place(offsets.desc)?;
        let (producer, consumer) = (place(offsets.producer)?, place(offsets.consumer)?);
        let flags = place(offsets.flags)?;
        let len = entries + size as usize * size_of::<T>();
        let memory =
            Mapping::new(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), which)?;
        let number = size_of::<AtomicU32>();
        let is_wrong = |at: &usize| at + number > len || !at.is_multiple_of(number);
        let wrong = [producer, consumer, flags].iter().any(is_wrong);
        if wrong || !entries.is_multiple_of(align_of::<T>()) {
            return Err(invalid());
        }
        let mask = size - 1;
        let entry = std::marker::PhantomData;
        Ok(Self { memory, producer, consumer, flags, entries, mask, own: 0, entry })
    }

    fn number(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `new` has checked that the number at this offset lies in the mapping.
        let at = unsafe { self.memory.start.as_ptr().cast::<u8>().add(offset) };
        // SAFETY: `new` has checked that the offset is a multiple of the number's size; both sides
        // access the number atomically; the mapping outlives the result.
        unsafe { &*at.cast::<AtomicU32>() }
    }

    fn entry(&self, position: u32) -> *mut T {
        let at = self.entries + (position & self.mask) as usize * size_of::<T>();
        // SAFETY: the index is at most the mask, so the entry lies in the mapping.
        unsafe { self.memory.start.as_ptr().cast::<u8>().add(at).cast() }
    }

    /// Whether the kernel has to be called so that it looks at what was published.
    pub(super) fn needs_wakeup(&self) -> bool {
        // SeqCst: the position is stored before the flag is read; pairs with the kernel's barrier
        // between setting the flag and its last look at the ring. Otherwise the kernel could see no
        // new entry while this side sees no flag, and nobody would wake the kernel.
        fence(Ordering::SeqCst);
        // Relaxed: the fence orders it.
        self.number(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// The number of entries of the ring.
    pub(super) const fn size(&self) -> usize {
        self.mask as usize + 1
    }

    /// As the producer: writes an entry behind the last. Returns false if the ring is full.
    pub(super) fn put(&mut self, value: T) -> bool {
        if self.room() == 0 {
            return false;
        }
        // SAFETY: the entry is free by the check above, so the kernel does not read it.
        unsafe { self.entry(self.own).write(value) };
        self.own = self.own.wrapping_add(1);
        true
    }

    /// As the producer: the number of entries that can be put now. The kernel may have read more
    /// than it has said: it moves its position when it likes.
    pub(super) fn room(&self) -> usize {
        // Acquire: the kernel has read an entry before it moved its position past it; pairs with
        // its release, so the entry may be overwritten.
        let other = self.number(self.consumer).load(Ordering::Acquire);
        let size = self.mask + 1;
        size.saturating_sub(self.own.wrapping_sub(other)) as usize
    }

    /// As the producer: shows the kernel the entries that were written.
    pub(super) fn publish(&self) {
        // Release: publishes the entries, and the frames that they name; pairs with the acquire of
        // the kernel.
        self.number(self.producer).store(self.own, Ordering::Release);
    }

    /// As the producer: the number of entries that the kernel has not said to have consumed.
    pub(super) fn waiting(&self) -> u32 {
        // Relaxed: only a number for a decision; `put` synchronises before it writes.
        self.own.wrapping_sub(self.number(self.consumer).load(Ordering::Relaxed))
    }

    /// As the consumer: returns the oldest entry, which stays in the ring.
    pub(super) fn peek(&self) -> Option<T> {
        // Acquire: makes the entry and the frame that it names visible; pairs with the kernel's
        // release.
        let other = self.number(self.producer).load(Ordering::Acquire);
        if other == self.own {
            return None;
        }
        // SAFETY: the kernel has published the entry, and does not write it before `release` has
        // given it back.
        Some(unsafe { self.entry(self.own).read() })
    }

    /// As the consumer: takes the oldest entry out.
    pub(super) fn take(&mut self) -> Option<T> {
        let value = self.peek()?;
        self.own = self.own.wrapping_add(1);
        Some(value)
    }

    /// As the consumer: gives the entries that were taken back to the kernel.
    pub(super) fn release(&self) {
        // Release: the entries have been read before the kernel may write them; pairs with its
        // acquire.
        self.number(self.consumer).store(self.own, Ordering::Release);
    }
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel names an impossible ring")
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs::File;
    use std::os::fd::FromRawFd;
    use std::thread;

    use super::*;

    pub(crate) const SIZE: u32 = 8;

    /// Both ends of a ring of [`SIZE`] entries, in memory that two mappings share, as with the
    /// kernel.
    pub(crate) fn ends<T: Copy>() -> (Ring<T>, Ring<T>) {
        // SAFETY: the name is a string that ends with zero.
        let fd = unsafe { libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the descriptor was just opened, and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let fd = File::from(fd);
        fd.set_len(4_096).expect("memory");
        let fd = OwnedFd::from(fd);
        let offsets = xdp_ring_offset { producer: 0, consumer: 64, desc: 192, flags: 128 };
        let end = || Ring::new(&fd, SIZE, 0, &offsets).expect("it is mapped");
        (end(), end())
    }

    #[test]
    fn entries_come_in_order_and_no_more_than_there_is_room_for() {
        let (mut giver, mut taker) = ends::<u64>();
        for turn in 0..5 {
            let base = turn * 100;
            for number in 0..u64::from(SIZE) {
                assert!(giver.put(base + number));
            }
            assert!(!giver.put(99), "it is full");
            assert_eq!(taker.take(), None, "nothing is published");
            giver.publish();
            assert_eq!((giver.waiting(), giver.room()), (SIZE, 0));
            assert_eq!((taker.peek(), taker.peek()), (Some(base), Some(base)), "it stays");
            for number in 0..u64::from(SIZE) {
                assert_eq!(taker.take(), Some(base + number));
            }
            assert_eq!(taker.take(), None);
            assert!(!giver.put(99), "the entries are not given back");
            taker.release();
            assert_eq!((giver.waiting(), giver.room()), (0, SIZE as usize));
        }
    }

    #[test]
    fn two_threads_share_a_ring() {
        const COUNT: u64 = 20_000;
        let (mut giver, mut taker) = ends::<u64>();
        thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..COUNT {
                    while !giver.put(number) {
                        thread::yield_now();
                    }
                    giver.publish();
                }
            });
            for number in 0..COUNT {
                let taken = loop {
                    match taker.take() {
                        Some(taken) => break taken,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(taken, number);
                taker.release();
            }
        });
    }

    #[test]
    fn impossible_places_are_refused() {
        let (giver, _) = ends::<u64>();
        let fd = File::open("/dev/zero").expect("Linux");
        let far = xdp_ring_offset { producer: 1 << 20, consumer: 64, desc: 192, flags: 128 };
        Ring::<u64>::new(&OwnedFd::from(fd), SIZE, 0, &far).expect_err("outside");
        drop(giver);
    }
}
