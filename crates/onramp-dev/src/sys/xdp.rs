//! AF_XDP sockets: frames in memory that is shared with the kernel.
//!
//! Source: Linux `Documentation/networking/af_xdp.rst`, `include/uapi/linux/if_xdp.h`.

use std::ffi::c_void;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use libc::{c_int, off_t, sockaddr_xdp, socklen_t, xdp_desc, xdp_mmap_offsets, xdp_statistics};

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
    /// Frames that are not with the kernel.
    free: Vec<u64>,
    own: std::ops::Range<u64>,
    socket: Arc<Socket>,
}

/// The receive side of a socket.
#[derive(Debug)]
pub(crate) struct RxSide {
    rx: Ring<xdp_desc>,
    fill: Ring<u64>,
    socket: Arc<Socket>,
}

/// A socket and the memory of its frames.
#[derive(Debug)]
pub(crate) struct Socket {
    frames: Frames,
    fd: OwnedFd,
    zero_copy: bool,
}

/// Opens a socket on a queue of an interface. Its receive side gets packets only after a program
/// sends them there.
pub(crate) fn open(shape: Shape) -> io::Result<(TxSide, RxSide)> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let frames = Frames::new(2 * shape.frames, shape.size)?;
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
    for ring in [libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING] {
        set(&fd, ring, &shape.frames)?;
    }
    // Twice as many entries as there are frames: a frame may come back while the kernel has not
    // said yet that it has taken the frame's earlier entry.
    set(&fd, libc::XDP_UMEM_FILL_RING, &(2 * shape.frames))?;
    // A kernel that does not know the option sends 32 frames a call, which is as right.
    let _ = set(&fd, MAX_TX_BUDGET, &TX_BUDGET);
    // SAFETY: the structure consists of numbers, for which zero is a value.
    let mut at: xdp_mmap_offsets = unsafe { mem::zeroed() };
    get(&fd, libc::XDP_MMAP_OFFSETS, &mut at)?;
    let size = shape.frames;
    #[expect(clippy::cast_possible_wrap, reason = "the constants are small")]
    let (fill_at, completed_at) =
        (libc::XDP_UMEM_PGOFF_FILL_RING as off_t, libc::XDP_UMEM_PGOFF_COMPLETION_RING as off_t);
    let mut fill = Ring::new(&fd, 2 * size, fill_at, &at.fr)?;
    let completed = Ring::new(&fd, size, completed_at, &at.cr)?;
    let rx = Ring::new(&fd, size, libc::XDP_PGOFF_RX_RING, &at.rx)?;
    let tx = Ring::new(&fd, size, libc::XDP_PGOFF_TX_RING, &at.tx)?;
    let frame = |index: u32| u64::from(index) * u64::from(shape.size);
    for index in 0..size {
        let filled = fill.put(frame(index));
        assert!(filled, "the ring is empty and has more entries than there are frames");
    }
    fill.publish();
    bind(&fd, &shape)?;
    let mut options = libc::xdp_options { flags: 0 };
    get(&fd, libc::XDP_OPTIONS, &mut options)?;
    let zero_copy = options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0;
    let socket = Arc::new(Socket { frames, fd, zero_copy });
    let free = (size..2 * size).map(frame).rev().collect();
    let own = frame(size)..frame(2 * size);
    let tx = TxSide { tx, completed, free, own, socket: Arc::clone(&socket) };
    Ok((tx, RxSide { rx, fill, socket }))
}

fn bind(fd: &OwnedFd, shape: &Shape) -> io::Result<()> {
    let copying = match shape.copying {
        Copying::Any => 0,
        Copying::Copy => libc::XDP_COPY,
        Copying::ZeroCopy => libc::XDP_ZEROCOPY,
    };
    #[expect(clippy::cast_possible_truncation, reason = "the number is 44")]
    let family = libc::AF_XDP as u16;
    let address = sockaddr_xdp {
        sxdp_family: family,
        sxdp_flags: copying | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: shape.interface,
        sxdp_queue_id: shape.queue,
        sxdp_shared_umem_fd: 0,
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
            let frame = self.socket.frames.frame_of(address);
            debug_assert!(self.own.contains(&frame), "the kernel returns what it was given");
            if self.own.contains(&frame) {
                self.free.push(frame);
                count += 1;
            }
        }
        self.completed.release();
        count
    }

    /// Returns the number of frames that can be put now: there has to be a frame that the kernel
    /// has given back, and an entry of the ring that it has said to have taken. It says the one and
    /// the other at different times.
    pub(crate) fn room(&self) -> usize {
        self.free.len().min(self.tx.room())
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
        let frame = self.free.pop().expect("there is room");
        // SAFETY: the frame was in `free`, so it is not with the kernel, and `self` is borrowed
        // exclusively; the receive side uses other frames.
        unsafe { self.socket.frames.write(frame, bytes) };
        let len = u32::try_from(bytes.len()).expect("a frame is small");
        let put = self.tx.put(xdp_desc { addr: frame, len, options: 0 });
        assert!(put, "there was room, and only this side takes it");
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

impl RxSide {
    /// Passes the bytes of the oldest received frame to `read`, if there is a frame. If `read`
    /// returns something, takes the frame out and gives it back to the kernel; else the frame stays
    /// the oldest.
    pub(crate) fn receive<R>(&mut self, read: impl FnOnce(&[u8]) -> Option<R>) -> Option<R> {
        let desc = self.rx.peek()?;
        if self.fill.room() == 0 {
            // The kernel has not said yet what it has taken from the ring. The frame waits.
            return None;
        }
        // SAFETY: the kernel has given the frame to this side, and gets it back only below; the
        // transmit side uses other frames.
        let bytes = unsafe { self.socket.frames.read(desc.addr, desc.len as usize) };
        let result = read(bytes)?;
        self.rx.take();
        let put = self.fill.put(self.socket.frames.frame_of(desc.addr));
        assert!(put, "there was room, and only this side takes it");
        Some(result)
    }

    /// Shows the kernel the frames that were given back, and wakes it if it waits for them. With
    /// `ask`, calls it in any case. Returns its answer: ENXIO says that the interface is gone.
    pub(crate) fn release(&mut self, ask: bool) -> io::Result<()> {
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
