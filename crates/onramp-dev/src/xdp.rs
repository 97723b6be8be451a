//! AF_XDP: frames go to and come from a queue of a network interface through memory that is shared
//! with the kernel, past the kernel's network stack.
//!
//! | error from the kernel | reaction of the device |
//! |---|---|
//! | EAGAIN, EBUSY, ENOBUFS, a full ring | keeps the packets; asks again after 50 µs, up to 1 ms |
//! | ENETDOWN, ENXIO (the interface is down or gone) | drops the packet: `Unreachable` |
//! | any other error | drops the packet: `DeviceError` |
//! | a packet larger than a frame of the memory | drops the packet: `MessageSize` |
//!
//! A packet whose frame is in the ring counts as sent, as with a card. If the interface goes down,
//! the frames that are in the ring leave when it is up again, and all further packets are dropped
//! until then.
//!
//! Source: Linux `Documentation/networking/af_xdp.rst`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use onramp_core::frame::{self, SuperFrame};
use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::{Counter, DropReason, Layer, Packet, PacketList};

use crate::backoff::Backoff;
use crate::receive::Receive;
use crate::sys::{self, Redirect, RxSide, TxSide, XdpShape};

pub use crate::sys::{Attach, Copying};

/// Bytes of a frame of the memory: half a page, enough for the usual MTU with the kernel's own 256
/// bytes in front.
const SMALL: u32 = 2_048;
/// Bytes of a large frame. The kernel takes no frame that is larger than a page.
const LARGE: u32 = 4_096;
/// Bytes that the kernel keeps in front of each received frame.
const HEADROOM: u32 = 256;
/// Largest number of a queue.
const QUEUES_MAX: u32 = 1_024;

/// Options of an [`Xdp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpOptions {
    /// Whether the device receives. For that a program is attached to the interface, which needs
    /// `CAP_NET_ADMIN` and `CAP_BPF`; packets of a queue that has a receiver no longer come to the
    /// kernel's own stack. Without it, the device only transmits, which needs `CAP_NET_RAW`.
    pub receive: bool,
    /// Number of frames in each direction, a power of two. They take this many times 4 or 8 KiB of
    /// memory that stays in RAM.
    pub frames: u32,
    /// Whether frames are copied between the memory and the card.
    pub copying: Copying,
    /// Where the program is attached.
    pub attach: Attach,
    /// Seed of the hash that tells flows apart, see [`frame::describe`]. By default 0: give a
    /// random number if strangers choose the addresses.
    pub seed: u64,
}

impl Default for XdpOptions {
    fn default() -> Self {
        let (copying, attach) = (Copying::default(), Attach::default());
        Self { receive: true, frames: 2_048, copying, attach, seed: 0 }
    }
}

/// One queue of a network interface: a [`Device`] for the frames that leave through it. Its
/// [receiver](Self::receiver) has the frames that arrive.
///
/// Frames begin with an Ethernet header. The device cuts super-frames and completes checksums,
/// because the card does neither for such frames.
#[derive(Debug)]
pub struct Xdp {
    info: DeviceInfo,
    side: TxSide,
    size: usize,
    received: Option<RxSide>,
    /// The program stays attached as long as a queue exists.
    program: Arc<Program>,
    options: XdpOptions,
    backoff: Backoff,
    /// Whether the frame of the first packet of the next burst is in the ring already.
    in_ring: bool,
    /// Whether the kernel has refused the frames in the ring, because the interface is down.
    refuses: bool,
    /// Buffer for a segment of a super-frame.
    segment: Vec<u8>,
    stats: Arc<XdpStats>,
}

#[derive(Debug)]
struct Program {
    name: String,
    interface: u32,
    redirect: Option<Redirect>,
}

/// Counters of a queue of an [`Xdp`] and its receiver.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct XdpStats {
    /// Number of frames that were put into the ring.
    pub frames: Counter,
    /// Bytes of these frames.
    pub bytes: Counter,
    /// Number of times that the ring was full, or that the kernel took no further frame.
    pub full: Counter,
    /// Number of super-frames that the device segmented.
    pub segmented: Counter,
    /// Number of frames that were received.
    pub received: Counter,
    /// Bytes of the frames that were received.
    pub received_bytes: Counter,
    /// Number of received frames that were discarded because there was no packet for them.
    pub no_room: Counter,
}

impl Xdp {
    /// Opens a queue of the interface `name`.
    ///
    /// # Errors
    ///
    /// Fails if there is no such interface or queue, if the kernel has no AF_XDP or the program may
    /// not use it, if another program holds the queue or has attached a program, or if too little
    /// memory may be locked (`ulimit -l`). The text says which, and what to do.
    pub fn open(name: &str, queue: u32, options: XdpOptions) -> io::Result<Self> {
        let interface = sys::interface_index(name)
            .map_err(|error| told(&error, &format!("there is no interface {name}")))?;
        let redirect = options
            .receive
            .then(|| Redirect::attach(interface, QUEUES_MAX, options.attach))
            .transpose()
            .map_err(|error| told(&error, &attach_failed(name, &error)))?;
        let program = Program { name: name.to_owned(), interface, redirect };
        Self::with(Arc::new(program), queue, options)
    }

    /// Opens another queue of the same interface. Packets that arrive at a queue without a receiver
    /// go to the kernel, so open all queues of the interface to get all packets.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn another_queue(&self, queue: u32) -> io::Result<Self> {
        Self::with(Arc::clone(&self.program), queue, self.options)
    }

    fn with(program: Arc<Program>, queue: u32, options: XdpOptions) -> io::Result<Self> {
        let name = &program.name;
        if !options.frames.is_power_of_two() {
            let why = format!("{} frames: the number must be a power of two", options.frames);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mtu = sys::interface_mtu(name)?.saturating_add(ETHERNET);
        let size = if mtu + HEADROOM <= SMALL { SMALL } else { LARGE };
        let shape = XdpShape {
            interface: program.interface,
            queue,
            frames: options.frames,
            size,
            copying: options.copying,
        };
        let (side, received) = sys::open_xdp(shape)
            .map_err(|error| told(&error, &open_failed(name, queue, &error)))?;
        if let Some(redirect) = &program.redirect {
            redirect
                .set(queue, side.descriptor())
                .map_err(|error| told(&error, &format!("{name} has no queue {queue}")))?;
        }
        let info = DeviceInfo::new(format!("xdp {name} queue {queue}"), mtu).never_blocks();
        Ok(Self {
            info,
            side,
            size: size as usize,
            received: program.redirect.is_some().then_some(received),
            program,
            options,
            backoff: Backoff::new(),
            in_ring: false,
            refuses: false,
            segment: Vec::new(),
            stats: Arc::default(),
        })
    }

    /// Returns the receiver of the frames that arrive at this queue; `None` if it was taken before,
    /// or if the device only transmits.
    pub fn receiver(&mut self) -> Option<XdpReceiver> {
        let side = self.received.take()?;
        let (stats, seed) = (Arc::clone(&self.stats), self.options.seed);
        let program = self.program.clone();
        Some(XdpReceiver { side, seed, stats, _program: program })
    }

    /// Whether the card reads and writes the frames where they lie, without a copy.
    #[must_use]
    pub fn zero_copy(&self) -> bool {
        self.side.zero_copy()
    }

    /// Returns the counters of this queue, which any thread may read at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<XdpStats> {
        Arc::clone(&self.stats)
    }

    /// Puts a packet's frame, or its segments, into the ring. Returns false if there is no room.
    fn put(&mut self, packet: &mut Packet, out: &mut Transmitted) -> bool {
        let whole = SuperFrame::of(packet);
        let frames = whole.as_ref().map_or(1, SuperFrame::count);
        if self.side.room() < frames {
            self.side.reclaim();
            if self.side.room() < frames {
                return false;
            }
        }
        if packet.ecn == 3 {
            frame::write_ce(packet);
        }
        let Some(whole) = whole else {
            frame::complete_checksum(packet);
            self.side.put(packet.payload());
            self.count(packet.payload().len(), out);
            return true;
        };
        self.stats.segmented.add(1);
        let mut bytes = std::mem::take(&mut self.segment);
        for index in 0..frames {
            whole.write_segment(packet.payload(), index, &mut bytes);
            frame::write_checksum(whole.partial_checksum(), &mut bytes);
            self.side.put(&bytes);
            self.count(bytes.len(), out);
        }
        self.segment = bytes;
        true
    }

    fn count(&self, bytes: usize, out: &mut Transmitted) {
        out.messages += 1;
        self.stats.frames.add(1);
        self.stats.bytes.add(bytes as u64);
    }

    /// The bytes of the largest frame that the packet becomes.
    fn largest(packet: &Packet) -> usize {
        let segment = |whole: SuperFrame| whole.headers() + usize::from(packet.gso_size);
        SuperFrame::of(packet).map_or_else(|| packet.payload().len(), segment)
    }

    /// Lets the kernel send until it has taken all frames of the ring, or takes no more.
    fn flush(&mut self, out: &mut Transmitted) -> Result<(), io::Error> {
        let mut before = u32::MAX;
        loop {
            let (waiting, sent) = self.side.send();
            out.calls += 1;
            match sent {
                _ if waiting == 0 => return Ok(()),
                Ok(()) if waiting < before => {}
                Err(error) if is_full(&error) && waiting < before => {}
                Ok(()) => return Err(io::Error::from_raw_os_error(libc::EAGAIN)),
                Err(error) => return Err(error),
            }
            before = waiting;
            self.side.reclaim();
        }
    }
}

/// Why the device put no further packet into the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The burst is empty.
    Done,
    /// The ring has no room for the first packet of the burst.
    Full,
    /// The first packet of the burst is larger than a frame of the memory.
    Large,
}

impl Xdp {
    /// Puts packets of the burst into the ring. The newest of them stays in `newest`, the others
    /// move to `done`.
    fn fill(
        &mut self,
        burst: &mut PacketList,
        newest: &mut Option<Packet>,
        done: &mut PacketList,
        out: &mut Transmitted,
    ) -> Stop {
        while let Some(mut packet) = burst.pop_front() {
            let large = Self::largest(&packet) > self.size;
            if large || !self.put(&mut packet, out) {
                burst.push_front(packet);
                return if large { Stop::Large } else { Stop::Full };
            }
            if let Some(older) = newest.replace(packet) {
                done.push_back(older);
            }
        }
        Stop::Done
    }
}

impl Device for Xdp {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let mut out = Transmitted::default();
        self.side.reclaim();
        // The newest packet whose frame is in the ring is not done before the kernel has taken the
        // frame: if the kernel takes no more, the packet stays in the burst, so that the port calls
        // again.
        let mut newest = if self.in_ring { burst.pop_front() } else { None };
        self.in_ring = false;
        if self.refuses {
            if let (_, Err(error)) = self.side.send()
                && !is_full(&error)
            {
                out.calls += 1;
                done.extend(newest.take());
                drop_all(burst, done, &error);
                return out;
            }
            self.refuses = false;
        }
        loop {
            let stop = self.fill(burst, &mut newest, done, &mut out);
            match self.flush(&mut out) {
                Ok(()) => {}
                Err(error) if is_full(&error) => {
                    self.stats.full.add(1);
                    if let Some(packet) = newest.take() {
                        burst.push_front(packet);
                        self.in_ring = true;
                    }
                    out.retry_at = Some(self.backoff.wait(now));
                    return out;
                }
                Err(error) => {
                    self.refuses = true;
                    done.extend(newest.take());
                    drop_all(burst, done, &error);
                    return out;
                }
            }
            self.backoff.reset();
            if let Some(packet) = newest.take() {
                done.push_back(packet);
            }
            match stop {
                Stop::Done => return out,
                Stop::Large => {
                    let mut packet = burst.pop_front().expect("it is the first of the burst");
                    packet.drop_reason = Some(DropReason::MessageSize);
                    done.push_back(packet);
                }
                Stop::Full => {
                    let room = self.side.room();
                    self.side.reclaim();
                    if self.side.room() == room {
                        self.stats.full.add(1);
                        out.retry_at = Some(self.backoff.wait(now));
                        return out;
                    }
                }
            }
        }
    }
}

/// Drops the packets of a burst for the reason of an error.
fn drop_all(burst: &mut PacketList, done: &mut PacketList, error: &io::Error) {
    for packet in burst.metas_mut() {
        packet.drop_reason = Some(reason(error));
    }
    done.append(burst);
}

/// Whether the kernel takes no further frame at present.
fn is_full(error: &io::Error) -> bool {
    let full = [libc::EAGAIN, libc::EBUSY, libc::ENOBUFS, libc::EINTR];
    error.raw_os_error().is_some_and(|errno| full.contains(&errno))
}

fn reason(error: &io::Error) -> DropReason {
    match error.raw_os_error() {
        Some(libc::ENETDOWN | libc::ENXIO) => DropReason::Unreachable,
        _ => DropReason::DeviceError,
    }
}

/// Receives the frames that arrive at a queue of an [`Xdp`].
///
/// A sender in the same kernel, such as the other end of a veth pair, may have left the checksum of
/// TCP or UDP to a card. Such a frame is told by its checksum field, which holds the sum of the
/// pseudo-header, and its packet has a [partial checksum](Packet::partial_checksum).
#[derive(Debug)]
pub struct XdpReceiver {
    side: RxSide,
    seed: u64,
    stats: Arc<XdpStats>,
    // The program is attached as long as somebody receives.
    _program: Arc<Program>,
}

impl Receive for XdpReceiver {
    fn receive(
        &mut self,
        most: usize,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
        into: &mut PacketList,
    ) -> io::Result<usize> {
        let mut count = 0;
        for _ in 0..most {
            let (seed, stats) = (self.seed, &self.stats);
            let received = self.side.receive(|bytes| {
                stats.received.add(1);
                stats.received_bytes.add(bytes.len() as u64);
                let Some(mut packet) = make(bytes.len()) else {
                    stats.no_room.add(1);
                    return None;
                };
                packet.set_payload(bytes);
                packet.set_layer(Layer::Ethernet);
                frame::find_partial_checksum(&mut packet);
                frame::describe(&mut packet, seed);
                Some(packet)
            });
            match received {
                Some(Some(packet)) => {
                    into.push_back(packet);
                    count += 1;
                }
                Some(None) => {}
                None => break,
            }
        }
        self.side.release();
        Ok(count)
    }

    fn discarded(&self) -> u64 {
        self.stats.no_room.get()
    }

    fn missed(&self) -> u64 {
        self.side.missed()
    }
}

impl AsFd for XdpReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.side.as_fd()
    }
}

/// Length of an Ethernet header in bytes.
const ETHERNET: u32 = 14;

/// Adds what was tried to an error of the kernel.
fn told(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn attach_failed(name: &str, error: &io::Error) -> String {
    let why = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "it needs CAP_NET_ADMIN and CAP_BPF, which root has; without them, an AF_XDP device \
             can only transmit"
        }
        Some(libc::EBUSY | libc::EEXIST) => {
            "another program has attached one: end it, or see `ip link show`"
        }
        Some(libc::EOPNOTSUPP | libc::EINVAL) => {
            "the driver takes none, or not with these settings: try `generic`, or a packet socket"
        }
        _ => "the kernel refuses",
    };
    format!("cannot attach a program to {name} ({why})")
}

fn open_failed(name: &str, queue: u32, error: &io::Error) -> String {
    let why = match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT) => "this kernel has no AF_XDP: use a packet socket",
        Some(libc::EPERM) => "it needs CAP_NET_RAW, which root has",
        Some(libc::EBUSY) => "another socket holds the queue",
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            "too little memory may be locked: raise `ulimit -l`, or use fewer frames"
        }
        Some(libc::EINVAL) => "the interface has no such queue",
        Some(libc::ENETDOWN) => "the interface is down",
        Some(libc::EOPNOTSUPP) => "the driver cannot do without a copy",
        _ => "the kernel refuses",
    };
    format!("cannot open queue {queue} of {name} by AF_XDP ({why})")
}
