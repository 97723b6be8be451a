//! AF_XDP: frames go to and come from a queue of a network interface through memory that is shared
//! with the kernel, past the kernel's network stack.
//!
//! | answer of the kernel | reaction of the device |
//! |---|---|
//! | EAGAIN, ENOBUFS, a full ring | keeps the packets; asks again after 50 µs, up to 1 ms |
//! | no error, but it takes no frame | the same; after a second, as for any other error |
//! | EBUSY (no carrier, or the card's queue refused the frame) | counts the frame as `lost` |
//! | ENETDOWN, ENXIO (the interface is down or gone) | drops the packet: `Unreachable` |
//! | any other error | drops the packet: `DeviceError` |
//!
//! The device drops a packet as `MessageSize` that has no Ethernet header, that is larger than the
//! interface or a frame of the memory takes, or that becomes more frames than the memory has.
//!
//! A packet whose frame is in the ring counts as sent, as with a card; it leaves even if it is
//! cancelled then. If the interface goes down, the frames that are in the ring leave when it is up
//! again, and all further packets are dropped until then. At a queue that the card has for
//! receiving only, the kernel takes no frame and reports no error: the packets that fill the ring
//! count as sent, and further ones are dropped after a second.
//!
//! Source: Linux `Documentation/networking/af_xdp.rst`.

mod receive;
mod send;

use std::io;
use std::sync::Arc;

#[cfg(doc)]
use onramp_core::{Device, frame};
use onramp_core::{DeviceInfo, Instant};
use onramp_queue::Counter;

pub use self::receive::XdpReceiver;
use crate::backoff::Backoff;
use crate::kept::Kept;
use crate::sys::{self, Redirect, RxSide, TxSide, XdpFrames, XdpShape};
pub use crate::sys::{Attach, Copying};

/// Bytes of a frame of the memory: half a page, enough for the usual MTU with the kernel's own 256
/// bytes in front.
const SMALL: u32 = 2_048;
/// Bytes of a large frame. The kernel takes no frame that is larger than a page.
const LARGE: u32 = 4_096;
/// Bytes that the kernel keeps in front of each received frame.
const HEADROOM: u32 = 256;
/// Bytes of the tag of a VLAN, which may come on top of the MTU.
const TAG: u32 = 4;
/// Number of queues of an interface from which a program can receive.
const QUEUES_MAX: u32 = 1_024;
/// Largest number of frames in each direction: 8 GiB for both.
const FRAMES_MAX: u32 = 1 << 20;

/// Options of an [`Xdp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpOptions {
    /// Whether the device receives. For that a program is attached to the interface, which needs
    /// `CAP_NET_ADMIN` and `CAP_BPF`; packets of a queue do not come to the kernel's own stack as
    /// long as the queue has a [receiver](Xdp::receiver). Without this, the device only transmits,
    /// which needs `CAP_NET_RAW`.
    pub receive: bool,
    /// Number of frames in each direction, a power of two, at most 2^20. They take this many times
    /// 4 or 8 KiB of memory that stays in RAM.
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
    queue: u32,
    side: TxSide,
    /// Bytes of the largest frame.
    size: usize,
    received: Option<RxSide>,
    /// The program stays attached as long as a queue exists.
    program: Arc<Program>,
    options: XdpOptions,
    backoff: Backoff,
    /// The packet that stayed in the burst while its frame is in the ring.
    in_ring: Kept,
    /// Whether the kernel has refused the frames in the ring.
    refuses: bool,
    /// Since when the kernel has taken no frame although it reports no error.
    idle_since: Option<Instant>,
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
    /// Number of frames in the ring that the kernel dropped, because the interface has no carrier
    /// or its queue refused them. Their packets count as sent.
    pub lost: Counter,
    /// Number of super-frames that the device segmented.
    pub segmented: Counter,
    /// Number of frames that were copied into the ring: all but those of packets that lay in the
    /// memory already, because they were received there.
    pub copied: Counter,
    /// Number of frames that were received.
    pub received: Counter,
    /// Bytes of the frames that were received.
    pub received_bytes: Counter,
    /// Number of frames that were received by a copy, because packets lay in half of the frames.
    pub received_copied: Counter,
    /// Number of received frames that were discarded because the packet for them was too small.
    pub no_room: Counter,
    /// Number of received frames that still waited when the receiver was dropped, and are lost.
    pub unread: Counter,
}

impl Xdp {
    /// Opens a queue of the interface `name`.
    ///
    /// # Errors
    ///
    /// Fails if there is no such interface or queue, if the kernel has no AF_XDP or the program may
    /// not use it, if another program holds the queue or has attached a program, if too little
    /// memory may be locked (`ulimit -l`), if the options are out of range, or if the interface's
    /// MTU is larger than a frame of the memory: 3,822 bytes, and 4,078 for a device that only
    /// transmits. The text says which, and what to do.
    pub fn open(name: &str, queue: u32, options: XdpOptions) -> io::Result<Self> {
        let program = Program::of(name, queue, options)?;
        Self::with(&Arc::new(program), queue, options)
    }

    /// Opens several queues, of one interface or of several, whose frames lie in one memory: a
    /// frame that was received from one of them leaves through another where it lies, without a
    /// copy. Where the kernel cannot share memory between them (Linux before 5.10, or some
    /// drivers), each queue has memory of its own, as with [`open`](Self::open), and frames are
    /// copied.
    ///
    /// ```no_run
    /// use onramp_dev::{Xdp, XdpOptions};
    ///
    /// let bridge = Xdp::open_all(&[("eth0", 0), ("eth1", 0)], XdpOptions::default())?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_all(queues: &[(&str, u32)], options: XdpOptions) -> io::Result<Vec<Self>> {
        let mut places: Vec<(Arc<Program>, u32)> = Vec::new();
        for (name, queue) in queues {
            let known = places.iter().find(|(program, _)| program.name == *name);
            let program = match known {
                Some((program, _)) => Arc::clone(program),
                None => Arc::new(Program::of(name, *queue, options)?),
            };
            places.push((program, *queue));
        }
        if let Some(all) = Self::together(&places, options)? {
            return Ok(all);
        }
        places.iter().map(|(program, queue)| Self::with(program, *queue, options)).collect()
    }

    /// Opens all queues from which interfaces receive, as [`open_all`](Self::open_all) does.
    /// Returns for each interface the receivers of its queues, and a device for its first queue.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_interfaces(
        names: &[impl AsRef<str>],
        options: XdpOptions,
    ) -> io::Result<Vec<(Vec<XdpReceiver>, Self)>> {
        let mut queues = Vec::new();
        for name in names.iter().map(AsRef::as_ref) {
            queues.extend((0..Self::queues(name)?).map(|queue| (name, queue)));
        }
        let mut sides: Vec<(Vec<XdpReceiver>, Self)> = Vec::new();
        for ((_, queue), mut xdp) in queues.iter().zip(Self::open_all(&queues, options)?) {
            let from = xdp.receiver();
            match sides.last_mut() {
                Some((receivers, _)) if *queue > 0 => receivers.extend(from),
                _ => sides.push((from.into_iter().collect(), xdp)),
            }
        }
        Ok(sides)
    }

    /// Returns the number of queues from which the interface receives: those from 0 up to this
    /// number, excluded. Each needs a device with a receiver to get all packets of the interface.
    ///
    /// # Errors
    ///
    /// The kernel's error, if there is no such interface.
    pub fn queues(name: &str) -> io::Result<u32> {
        sys::receive_queues(name).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => {
                let why =
                    "there is no such interface in this network namespace; `ip link` lists all";
                io::Error::new(io::ErrorKind::NotFound, format!("AF_XDP on {name}: {why}"))
            }
            _ => told(&error, &format!("cannot count the queues of {name}")),
        })
    }

    /// Opens another queue of the same interface. Packets that arrive at a queue without a receiver
    /// go to the kernel, so open all queues of the interface to get all packets.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn another_queue(&self, queue: u32) -> io::Result<Self> {
        Self::with(&self.program, queue, self.options)
    }

    /// Opens a queue with memory of its own.
    fn with(program: &Arc<Program>, queue: u32, options: XdpOptions) -> io::Result<Self> {
        let alone = Self::together(&[(Arc::clone(program), queue)], options)?;
        Ok(alone.and_then(|mut alone| alone.pop()).expect("one queue needs nothing to be shared"))
    }

    /// Opens queues whose frames lie in one memory. Returns `None` if the kernel cannot share it.
    fn together(
        places: &[(Arc<Program>, u32)],
        options: XdpOptions,
    ) -> io::Result<Option<Vec<Self>>> {
        let mut size = SMALL;
        for (program, queue) in places {
            size = size.max(frame_size(&program.name, *queue, options)?.1);
        }
        let each = 2 * options.frames;
        let count = u32::try_from(places.len()).ok().and_then(|queues| each.checked_mul(queues));
        let Some(count) = count else {
            let why = format!("{} queues of {} frames are too many", places.len(), options.frames);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        let mut all: Vec<Self> = Vec::new();
        if count == 0 {
            return Ok(Some(all));
        }
        let frames = XdpFrames::new(count, size)
            .map_err(|error| told(&error, &format!("no memory for {count} frames")))?;
        let frames = Arc::new(frames);
        for ((program, queue), first) in places.iter().zip((0..count).step_by(each as usize)) {
            let shape = XdpShape {
                interface: program.interface,
                queue: *queue,
                frames: options.frames,
                size,
                copying: options.copying,
            };
            let shared = all.first().map(|first| &first.side);
            match sys::open_xdp(shape, &frames, first, shared) {
                Ok(sides) => all.push(Self::of(program, *queue, options, sides, size)?),
                Err(error) if shared.is_some() && cannot_share(&error) => return Ok(None),
                Err(error) => {
                    return Err(told(
                        &error,
                        &open_failed(&program.name, *queue, &error, options.receive),
                    ));
                }
            }
        }
        Ok(Some(all))
    }

    fn of(
        program: &Arc<Program>,
        queue: u32,
        options: XdpOptions,
        (side, received): (TxSide, RxSide),
        size: u32,
    ) -> io::Result<Self> {
        let name = &program.name;
        let (mtu, _) = frame_size(name, queue, options)?;
        let info = DeviceInfo::new(format!("xdp {name} queue {queue}"), mtu).never_blocks();
        Ok(Self {
            info,
            queue,
            side,
            size: size as usize,
            received: program.redirect.is_some().then_some(received),
            program: Arc::clone(program),
            options,
            backoff: Backoff::new(),
            in_ring: Kept::default(),
            refuses: false,
            idle_since: None,
            segment: Vec::new(),
            stats: Arc::default(),
        })
    }

    /// Returns the receiver of the frames that arrive at this queue from now on; `None` if it was
    /// taken before, or if the device only transmits. Until this call, and again when the receiver
    /// is dropped, the frames go to the kernel's own stack.
    ///
    /// If the kernel refuses to give frames to the receiver, the receiver's calls return the error.
    pub fn receiver(&mut self) -> Option<XdpReceiver> {
        let side = self.received.take()?;
        let (program, stats) = (Arc::clone(&self.program), Arc::clone(&self.stats));
        Some(XdpReceiver::new(side, self.queue, program, stats, self.options.seed))
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
}

impl Program {
    /// Attaches the program to an interface, if the options say that packets are received.
    fn of(name: &str, queue: u32, options: XdpOptions) -> io::Result<Self> {
        let interface = sys::interface_index(name)
            .map(i32::cast_unsigned)
            .map_err(|error| told(&error, &format!("there is no interface {name}")))?;
        frame_size(name, queue, options)?;
        let redirect = options
            .receive
            .then(|| Redirect::attach(interface, QUEUES_MAX, options.attach))
            .transpose()
            .map_err(|error| told(&error, &attach_failed(name, &error, options.attach)))?;
        Ok(Self { name: name.to_owned(), interface, redirect })
    }
}

/// Whether the kernel's error says that it cannot share memory between these queues.
fn cannot_share(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// Length of an Ethernet header in bytes.
const ETHERNET: u32 = 14;

/// Checks the options for a queue of the interface `name`. Returns the bytes of the largest packet
/// that the interface takes, and of the frames of the memory.
fn frame_size(name: &str, queue: u32, options: XdpOptions) -> io::Result<(u32, u32)> {
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let frames = options.frames;
    if !frames.is_power_of_two() {
        return refused(format!("{frames} frames: the number must be a power of two"));
    }
    if frames > FRAMES_MAX {
        return refused(format!("{frames} frames: at most {FRAMES_MAX} are possible"));
    }
    if options.receive && queue >= QUEUES_MAX {
        return refused(format!(
            "queue {queue} of {name}: only the queues below {QUEUES_MAX} can receive"
        ));
    }
    let mtu = sys::interface_mtu(name)?;
    let headroom = if options.receive { HEADROOM } else { 0 };
    let more = ETHERNET + TAG + headroom;
    let needed = mtu.saturating_add(more);
    if needed > LARGE {
        let most = LARGE - more;
        return refused(format!(
            "the MTU of {name} is {mtu} bytes, and AF_XDP has frames for {most}: run \
             `ip link set {name} mtu {most}`, or use a packet socket"
        ));
    }
    Ok((mtu + ETHERNET, if needed <= SMALL { SMALL } else { LARGE }))
}

/// Adds what was tried to an error of the kernel.
fn told(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// The rights that a device needs that receives: all of them at once, because the kernel names only
/// the first that is missing.
const RIGHTS: &str = "it needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF, which root has outside of \
    user namespaces";

fn attach_failed(name: &str, error: &io::Error, attach: Attach) -> String {
    let why = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => RIGHTS,
        Some(libc::EBUSY | libc::EEXIST) => {
            "another program has attached one: end it, or see `ip link show`"
        }
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSPC | libc::ERANGE | libc::EMSGSIZE) => {
            match attach {
                Attach::Driver => {
                    "the driver takes none, or not with these settings: try `Attach::Generic`, or \
                     a packet socket"
                }
                Attach::Any | Attach::Generic => "the interface takes none: use a packet socket",
            }
        }
        _ => "the kernel refuses",
    };
    format!("cannot attach a program to {name} ({why})")
}

fn open_failed(name: &str, queue: u32, error: &io::Error, receive: bool) -> String {
    let why = match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT) => "this kernel has no AF_XDP: use a packet socket",
        Some(libc::EPERM) if receive => RIGHTS,
        Some(libc::EPERM) => "it needs CAP_NET_RAW, which root has",
        Some(libc::EBUSY) => "another socket holds the queue",
        Some(libc::ENOBUFS | libc::ENOMEM) => "too little memory may be locked: raise `ulimit -l`",
        Some(libc::EINVAL) => "the interface has no such queue",
        Some(libc::ENETDOWN) => "the interface is down",
        Some(libc::EOPNOTSUPP) => "the driver cannot do without a copy",
        _ => "the kernel refuses",
    };
    format!("cannot open queue {queue} of {name} by AF_XDP ({why})")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error names all rights at once, and an option only to a program that has chosen another.
    #[test]
    fn an_error_says_what_its_reader_can_do() {
        let errno = io::Error::from_raw_os_error;
        let refused = attach_failed("x0", &errno(libc::EPERM), Attach::Any);
        for right in ["CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF"] {
            assert!(refused.contains(right), "{refused}");
            assert!(open_failed("x0", 0, &errno(libc::EPERM), true).contains(right));
        }
        let only_sends = open_failed("x0", 0, &errno(libc::EPERM), false);
        assert!(only_sends.contains("CAP_NET_RAW") && !only_sends.contains("CAP_BPF"));
        for (attach, names) in
            [(Attach::Driver, true), (Attach::Any, false), (Attach::Generic, false)]
        {
            let cannot = attach_failed("x0", &errno(libc::EOPNOTSUPP), attach);
            assert_eq!(cannot.contains("Attach::Generic"), names, "{cannot}");
        }
        let locked = open_failed("x0", 0, &errno(libc::ENOBUFS), true);
        assert!(locked.contains("raise `ulimit -l`") && !locked.contains("frames"), "{locked}");
    }
}
