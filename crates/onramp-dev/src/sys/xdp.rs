//! AF_XDP sockets: frames in memory that is shared with the kernel.
//!
//! Source: Linux `Documentation/networking/af_xdp.rst`, `include/uapi/linux/if_xdp.h`.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use libc::{c_int, off_t, sockaddr_xdp, socklen_t, xdp_desc, xdp_mmap_offsets, xdp_statistics};
use onramp_queue::{MappedPool, Packet};

use super::fork::Maker;
use super::ring::{Frames, Ring};

/// The option that raises the number of frames that one call sends in copy mode (Linux 6.17), and
/// its value. Without it, the kernel sends 32 and wants to be called again.
const MAX_TX_BUDGET: c_int = 9;
const TX_BUDGET: u32 = 256;

/// The kernel frees a queue some 20 ms after another socket has left it. How often, and after which
/// time each, it is asked again.
const TRIES: u32 = 60;
const PAUSE: Duration = Duration::from_millis(2);

/// How frames get from the memory to the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copying {
    /// Without a copy if the driver can, else by a copy.
    #[default]
    Any,
    /// By a copy, which every interface can.
    Copy,
    /// Without a copy; an error if the driver cannot.
    ZeroCopy,
}

/// What a socket is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) interface: u32,
    pub(crate) queue: u32,
    /// Number of frames for each direction, a power of two, and their size in bytes.
    pub(crate) frames: u32,
    pub(crate) size: u32,
    pub(crate) copying: Copying,
}

/// The transmit side of a socket.
#[derive(Debug)]
pub(crate) struct TxSide {
    tx: Ring<xdp_desc>,
    completed: Ring<u64>,
    /// Frames of this side that are not with the kernel.
    free: Vec<u64>,
    own: std::ops::Range<u64>,
    /// Frames in the ring that are not of this side: packets lie in them.
    lent: VecDeque<u64>,
    /// Number of frames in the ring that the kernel has not given back.
    out: usize,
    socket: Arc<Socket>,
    maker: Maker,
}

/// The receive side of a socket.
#[derive(Debug)]
pub(crate) struct RxSide {
    rx: Ring<xdp_desc>,
    fill: Ring<u64>,
    /// The packets that lie in frames of this side.
    pool: MappedPool,
    /// Frames whose packets were dropped, and that the kernel has not got back yet.
    home: Vec<u64>,
    /// Largest number of frames that are not with the kernel, because packets lie in them.
    most: usize,
    socket: Arc<Socket>,
}

/// A socket and the memory of its frames. Fields are dropped in this order: the kernel has finished
/// with the frames of a socket that is closed.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    lent: Lent,
    zero_copy: bool,
}

/// Frames that were in a ring whose transmit side is gone.
#[derive(Debug)]
struct Lent {
    addresses: Mutex<VecDeque<u64>>,
    frames: Arc<Frames>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let addresses = self.addresses.get_mut().unwrap_or_else(PoisonError::into_inner);
        addresses.iter().for_each(|address| self.frames.leave(*address));
    }
}

impl Socket {
    fn frames(&self) -> &Frames {
        &self.lent.frames
    }
}

/// Opens a socket on a queue of an interface. It uses the frames of the memory from number `first`
/// on, one half of them to receive and the other to transmit. It tells the kernel of the memory, or
/// shares it with the socket `shared`, which has done so. Its receive side gets packets only after
/// a program sends them there.
pub(crate) fn open(
    shape: Shape,
    frames: &Arc<Frames>,
    first: u32,
    shared: Option<&TxSide>,
) -> io::Result<(TxSide, RxSide)> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let size = shape.frames;
    if shared.is_none() {
        let (addr, len) = frames.whole();
        let memory = libc::xdp_umem_reg {
            addr,
            len,
            chunk_size: shape.size,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set(&fd, libc::XDP_UMEM_REG, &memory)?;
    }
    for ring in [libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING] {
        set(&fd, ring, &size)?;
    }
    // Twice as many entries as there are frames: a frame may come back while the kernel has not
    // said yet that it has taken the frame's earlier entry.
    set(&fd, libc::XDP_UMEM_FILL_RING, &(2 * size))?;
    // A kernel that does not know the option sends 32 frames a call, which is as right.
    let _ = set(&fd, MAX_TX_BUDGET, &TX_BUDGET);
    // SAFETY: the structure consists of numbers, for which zero is a value.
    let mut at: xdp_mmap_offsets = unsafe { mem::zeroed() };
    get(&fd, libc::XDP_MMAP_OFFSETS, &mut at)?;
    #[expect(clippy::cast_possible_wrap, reason = "the constants are small")]
    let (fill_at, completed_at) =
        (libc::XDP_UMEM_PGOFF_FILL_RING as off_t, libc::XDP_UMEM_PGOFF_COMPLETION_RING as off_t);
    let mut fill = Ring::new(&fd, 2 * size, fill_at, &at.fr)?;
    let completed = Ring::new(&fd, size, completed_at, &at.cr)?;
    let rx = Ring::new(&fd, size, libc::XDP_PGOFF_RX_RING, &at.rx)?;
    let tx = Ring::new(&fd, size, libc::XDP_PGOFF_TX_RING, &at.tx)?;
    let frame = |index: u32| u64::from(first + index) * u64::from(shape.size);
    for index in 0..size {
        let filled = fill.put(frame(index));
        assert!(filled, "the ring is empty and has more entries than there are frames");
    }
    fill.publish();
    bind(&fd, &shape, shared.map(|side| side.socket.fd.as_fd()))?;
    let mut options = libc::xdp_options { flags: 0 };
    get(&fd, libc::XDP_OPTIONS, &mut options)?;
    let zero_copy = options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0;
    let lent = Lent { addresses: Mutex::default(), frames: Arc::clone(frames) };
    let socket = Arc::new(Socket { fd, lent, zero_copy });
    let free = (size..2 * size).map(frame).rev().collect();
    let own = frame(size)..frame(2 * size);
    let lent = VecDeque::new();
    let maker = Maker::this_process();
    let tx = TxSide { tx, completed, free, own, lent, out: 0, socket: Arc::clone(&socket), maker };
    let pool = MappedPool::new(Arc::clone(frames));
    let most = (size / 2).min(MappedPool::PACKETS_MAX) as usize;
    Ok((tx, RxSide { rx, fill, pool, home: Vec::new(), most, socket }))
}

fn bind(fd: &OwnedFd, shape: &Shape, shared: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let copying = match shape.copying {
        Copying::Any => 0,
        Copying::Copy => libc::XDP_COPY,
        Copying::ZeroCopy => libc::XDP_ZEROCOPY,
    };
    // A socket that shares memory does as the socket that told the kernel of the memory.
    let flags = shared.map_or(copying | libc::XDP_USE_NEED_WAKEUP, |_| libc::XDP_SHARED_UMEM);
    let owner = shared.map_or(0, |fd| fd.as_raw_fd().cast_unsigned());
    #[expect(clippy::cast_possible_truncation, reason = "the number is 44")]
    let family = libc::AF_XDP as u16;
    let address = sockaddr_xdp {
        sxdp_family: family,
        sxdp_flags: flags,
        sxdp_ifindex: shape.interface,
        sxdp_queue_id: shape.queue,
        sxdp_shared_umem_fd: owner,
    };
    for tried in 1.. {
        // SAFETY: the kernel reads a live `sockaddr_xdp` of this length.
        let result = unsafe {
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len_of::<sockaddr_xdp>())
        };
        if result == 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) || tried == TRIES {
            return Err(error);
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// What came of a look at the transmit ring.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Number of frames that the kernel has not said to have taken.
    pub(crate) waiting: u32,
    /// Whether the kernel was called. If not, no frame waits, or the driver is at work and takes
    /// the frames without a call.
    pub(crate) called: bool,
    /// The result of the call.
    pub(crate) result: io::Result<()>,
}

impl TxSide {
    /// Takes frames back that the kernel has sent or dropped. Returns their number.
    pub(crate) fn reclaim(&mut self) -> u32 {
        let mut count = 0;
        while let Some(address) = self.completed.take() {
            let frame = self.socket.frames().frame_of(address);
            let known = if self.own.contains(&frame) {
                self.free.push(frame);
                true
            } else {
                self.take_lent(frame)
            };
            debug_assert!(known, "the kernel returns what it was given");
            if known {
                self.out -= 1;
                count += 1;
            }
        }
        self.completed.release();
        count
    }

    /// Takes out a frame in which a packet lies, if it is there.
    fn take_lent(&mut self, frame: u64) -> bool {
        // Frames come back in the order in which they were put, as a rule.
        let place = self.lent.iter().position(|lent| *lent == frame);
        let taken = place.and_then(|place| self.lent.remove(place));
        taken.inspect(|frame| self.socket.frames().leave(*frame)).is_some()
    }

    /// Returns the number of frames that can be put now: the kernel must have room to give them
    /// back, and there has to be an entry of the ring that it has said to have taken. It says the
    /// one and the other at different times.
    pub(crate) fn room(&self) -> usize {
        let most = self.completed.size();
        (most - self.out).min(self.tx.room())
    }

    /// Returns the number of frames that the kernel has not said to have taken.
    pub(crate) fn waiting(&self) -> u32 {
        self.tx.waiting()
    }

    /// Copies a frame into the ring. [`send`](Self::send) shows it to the kernel.
    ///
    /// # Panics
    ///
    /// Panics if there is no [room](Self::room), or if the bytes are more than a frame has.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        assert!(self.room() > 0, "the caller has looked");
        let frame = self.free.pop().expect("there is room, and these frames are as many");
        // SAFETY: the frame was in `free`, so it is not with the kernel, and `self` is borrowed
        // exclusively; the receive side uses other frames.
        unsafe { self.socket.frames().write(frame, bytes) };
        self.enqueue(frame, bytes.len());
    }

    /// Puts bytes into the ring that lie in a frame of the memory, where they are, or returns false
    /// if they lie elsewhere. The bytes may belong to a packet that is then dropped: nobody uses
    /// the frame again before the kernel has given it back.
    ///
    /// # Panics
    ///
    /// As [`put`](Self::put).
    pub(crate) fn put_in_place(&mut self, bytes: &[u8]) -> bool {
        let Some(address) = self.socket.frames().address_of(bytes) else { return false };
        assert!(self.room() > 0, "the caller has looked");
        self.socket.frames().enter(address);
        self.lent.push_back(self.socket.frames().frame_of(address));
        self.enqueue(address, bytes.len());
        true
    }

    fn enqueue(&mut self, addr: u64, len: usize) {
        let len = u32::try_from(len).expect("a frame is small");
        let put = self.tx.put(xdp_desc { addr, len, options: 0 });
        assert!(put, "there was room, and only this side takes it");
        self.out += 1;
    }

    /// Shows the kernel what was put, and lets it send once, if it has to be told.
    pub(crate) fn send(&mut self) -> Sent {
        self.tx.publish();
        let waiting = self.tx.waiting();
        if waiting == 0 || self.socket.zero_copy && !self.tx.needs_wakeup() {
            return Sent { waiting, called: false, result: Ok(()) };
        }
        let fd = self.socket.fd.as_raw_fd();
        // SAFETY: a length of zero, so the kernel reads no memory.
        let sent = unsafe { libc::sendto(fd, ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
        let result = if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        Sent { waiting: self.tx.waiting(), called: true, result }
    }

    pub(crate) fn zero_copy(&self) -> bool {
        self.socket.zero_copy
    }
}

impl Drop for TxSide {
    fn drop(&mut self) {
        if !self.maker.is_here() {
            // The parent of this process still sends, and shares the rings.
            return;
        }
        self.reclaim();
        // The kernel may still read these frames. They are free when the socket is closed.
        let mut left = self.socket.lent.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        left.append(&mut self.lent);
    }
}

impl RxSide {
    /// Takes the oldest received frame out, if there is one: as a packet where it lies, or, while
    /// many packets lie in frames, by passing its bytes to `copy` and giving the frame back to the
    /// kernel. If `copy` returns nothing, the frame stays the oldest.
    pub(crate) fn receive<R>(
        &mut self,
        in_place: impl FnOnce(Packet) -> R,
        copy: impl FnOnce(&[u8]) -> Option<R>,
    ) -> Option<R> {
        let desc = self.rx.peek()?;
        if let Some(packet) = self.packet(desc) {
            self.rx.take();
            return Some(in_place(packet));
        }
        if self.fill.room() == 0 {
            // The kernel has not said yet what it has taken from the ring. The frame waits.
            return None;
        }
        // SAFETY: the kernel has given the frame to this side, and gets it back only below; the
        // transmit side uses other frames.
        let bytes = unsafe { self.socket.frames().read(desc.addr, desc.len as usize) };
        let result = copy(bytes)?;
        self.rx.take();
        let put = self.fill.put(self.socket.frames().frame_of(desc.addr));
        assert!(put, "there was room, and only this side takes it");
        Some(result)
    }

    /// Makes a packet of a received frame, if the kernel has enough other frames, and if there is
    /// room for the packet's own data in front of the bytes.
    fn packet(&mut self, desc: xdp_desc) -> Option<Packet> {
        if self.pool.out() as usize + self.home.len() >= self.most {
            return None;
        }
        let (at, room) = self.socket.frames().at(desc.addr);
        let in_front = desc.addr - self.socket.frames().frame_of(desc.addr);
        if in_front < MappedPool::HEADER as u64
            || !at.addr().get().is_multiple_of(MappedPool::ALIGN)
        {
            return None;
        }
        let (len, room) = (u16::try_from(desc.len).ok()?, u16::try_from(room).ok()?);
        // SAFETY: the bytes and the room in front of them lie in one frame, which the kernel has
        // given to this side and initialised as far as `len`; the frame goes back to the kernel
        // only after `reclaim` has returned it.
        (len <= room).then(|| unsafe { self.pool.packet(at, room, len) })
    }

    /// Discards the oldest received frame. Returns false if there is none.
    pub(crate) fn discard(&mut self) -> bool {
        self.rx.take().is_some()
    }

    /// Gives frames whose packets were dropped back to the kernel.
    fn refill(&mut self) {
        let Self { pool, home, fill, socket, .. } = self;
        let frames = socket.frames();
        pool.reclaim(|payload| home.push(frames.frame_at(payload)));
        home.retain(|frame| frames.is_in_ring(*frame) || !fill.put(*frame));
    }

    /// Shows the kernel the frames that were given back, and wakes it if it waits for them. With
    /// `ask`, calls it in any case. Returns its answer: ENXIO says that the interface is gone.
    pub(crate) fn release(&mut self, ask: bool) -> io::Result<()> {
        self.refill();
        self.rx.release();
        self.fill.publish();
        if !self.fill.needs_wakeup() && !ask {
            return Ok(());
        }
        let (fd, flags) = (self.socket.fd.as_raw_fd(), libc::MSG_DONTWAIT);
        let none = ptr::null_mut::<c_void>();
        // SAFETY: a length of zero, so the kernel writes no memory.
        let result =
            unsafe { libc::recvfrom(fd, none, 0, flags, ptr::null_mut(), ptr::null_mut()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.socket.fd.as_raw_fd()
    }

    /// Returns how many packets the kernel has dropped because no frame was free or the ring was
    /// full, or because they were larger than a frame.
    pub(crate) fn missed(&self) -> u64 {
        // SAFETY: the structure consists of numbers, for which zero is a value.
        let mut counts: xdp_statistics = unsafe { mem::zeroed() };
        // An error would mean that the kernel does not count.
        let _ = get(&self.socket.fd, libc::XDP_STATISTICS, &mut counts);
        counts.rx_dropped + counts.rx_ring_full
    }
}

impl AsFd for RxSide {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd.as_fd()
    }
}

fn set<T: Copy>(fd: &OwnedFd, option: c_int, value: &T) -> io::Result<()> {
    let (at, len) = ((&raw const *value).cast(), len_of::<T>());
    // SAFETY: the kernel reads `len` bytes of a live `T`.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, at, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get<T: Copy>(fd: &OwnedFd, option: c_int, value: &mut T) -> io::Result<()> {
    let mut len = len_of::<T>();
    let at = (&raw mut *value).cast();
    // SAFETY: the kernel writes at most `len` bytes into a live `T`, which consists of numbers.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, at, &raw mut len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const fn len_of<T>() -> socklen_t {
    #[expect(clippy::cast_possible_truncation, reason = "some tens of bytes")]
    let len = size_of::<T>() as socklen_t;
    len
}

#[cfg(test)]
mod tests;
