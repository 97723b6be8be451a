//! Links: qdiscs in front of the caller's sockets or devices, for many threads.

use std::collections::hash_map::RandomState;
use std::ffi::{c_char, c_int};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use onramp::dev::UdpOptions;
use onramp::{Credits, Link as Core, LinkBuilder};
use socket2::{SockRef, Type};

use super::device::{self, Called, Device, refuse_inside};
use super::memory::{TextPlace, array, optional_text, put, text, value, wanted};
use super::object::{self, Named, Object};
use crate::abi::{ONRAMP_ABI, ONRAMP_MANUAL, ONRAMP_NO_GSO, ONRAMP_TXTIME, Options};
use crate::end::End;
use crate::error::{Error, Result, entry};
use crate::sending::Around;
use crate::{shaper, stats};

/// Bytes in flight of a sender if the caller sets only the packets.
const CREDIT_BYTES: u32 = 1 << 20;
/// The least `mtu` of the options, bytes: the longest header of IPv4 and 8 bytes fit (RFC 791).
const MTU_MIN: u32 = 68;
/// Packets in flight of a sender if the caller sets only the bytes.
const CREDIT_PACKETS: u32 = 96;

/// Qdiscs in front of the caller's sockets or devices, each of which is a port (a transmit queue).
/// Any thread may use a link at any time. Threads of the library send what has to wait, or the
/// program does it with `onramp_link_run`, if the link was made with `ONRAMP_MANUAL`.
#[derive(Debug)]
pub struct Link {
    _private: [u8; 0],
}

impl Named for Around {
    const WORD: u64 = 0x6f6e_7261_6d70_5f6c;
    const NAME: &'static str = "onramp_link";
}

impl Link {
    pub(super) fn object(link: *const Self) -> *mut Object<Around> {
        link.cast_mut().cast()
    }
}

/// Reads the options of a link; the defaults if there are none.
///
/// # Safety
///
/// `options` is null or may be read.
unsafe fn read(options: *const Options) -> Result<Option<Options>> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let options = unsafe { value(options, "options") }?;
    if options.size as usize != size_of::<Options>() {
        let text = format!(
            "size of the options is {}; expected {}, sizeof(onramp_options) of ABI {ONRAMP_ABI}",
            options.size,
            size_of::<Options>()
        );
        return Err(Error::invalid(text));
    }
    if options.flags & !(ONRAMP_NO_GSO | ONRAMP_TXTIME | ONRAMP_MANUAL) != 0 {
        let text = format!(
            "flags of the options is {:#x}; expected ONRAMP_NO_GSO, ONRAMP_TXTIME and \
             ONRAMP_MANUAL",
            options.flags
        );
        return Err(Error::invalid(text));
    }
    if (1..MTU_MIN).contains(&options.mtu) {
        let text = format!(
            "mtu of the options is {}; expected the length of the largest packet, {MTU_MIN} or \
             more, such as 1514, or 0",
            options.mtu
        );
        return Err(Error::invalid(text));
    }
    Ok(Some(*options))
}

/// Builds a link with these options, and writes it to `link`.
///
/// # Safety
///
/// `link` may be written, and `tc` of the options is null or ends with a zero byte.
unsafe fn build(
    link: *mut *mut Link,
    mut builder: LinkBuilder,
    options: Option<Options>,
) -> Result<usize> {
    static IDS: AtomicU64 = AtomicU64::new(1);
    if let Some(options) = options {
        // SAFETY: as the caller promises.
        let lines = unsafe { optional_text(options.tc, "tc") }?;
        if let Some(lines) = lines {
            builder = builder.tree(shaper::setup(lines, "link")?.with_root()?);
        }
        let (packets, bytes) = (options.credit_packets, options.credit_bytes);
        if packets > 0 || bytes > 0 {
            let or = |given: u32, default| if given > 0 { given } else { default };
            let (packets, bytes) = (or(packets, CREDIT_PACKETS), or(bytes, CREDIT_BYTES));
            builder = builder.credits(Credits { packets, bytes });
        }
        if options.credit_time_us > 0 {
            builder = builder.credit_time(Duration::from_micros(options.credit_time_us.into()));
        }
        builder = if options.mtu > 0 { builder.mtu(options.mtu) } else { builder };
        builder = if options.seed > 0 { builder.seed(options.seed) } else { builder };
        builder = if options.flags & ONRAMP_MANUAL != 0 { builder.manual() } else { builder };
    }
    let core = builder.build()?;
    // Relaxed: each link only needs another number.
    let id = IDS.fetch_add(1, Relaxed);
    let sockets = (0..core.ports()).map_while(|port| core.socket(port));
    let ends = sockets.map(|socket| End::of(socket)).collect();
    let around = Around { link: core, id, ends, hasher: RandomState::new() };
    // SAFETY: as the caller promises.
    unsafe { put(link, Object::new(around).cast()) };
    Ok(0)
}

/// Returns a descriptor of our own of the UDP socket `fd`.
///
/// # Safety
///
/// `fd` is an open descriptor, or -1.
unsafe fn duplicate(fd: c_int) -> Result<UdpSocket> {
    if fd < 0 {
        return Err(Error::new(libc::EBADF, format!("{fd} is no descriptor")));
    }
    // SAFETY: as the caller promises. If the descriptor is not open, the next call says so.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let doing = |what: &str| format!("{what} descriptor {fd}");
    let socket = SockRef::from(&borrowed);
    let kind = socket.r#type().map_err(|error| Error::system(doing("read the type of"), &error))?;
    let local =
        socket.local_addr().map_err(|error| Error::system(doing("read the address of"), &error))?;
    if kind != Type::DGRAM || local.as_socket().is_none() {
        let text = format!("descriptor {fd} is no UDP socket over IPv4 or IPv6");
        return Err(Error::new(libc::EPROTOTYPE, text));
    }
    let own = borrowed.try_clone_to_owned();
    Ok(own.map_err(|error| Error::system(doing("duplicate"), &error))?.into())
}

/// Makes a link over UDP sockets, connected or not. Each becomes a port. The sockets stay the
/// caller's, to receive from and to close: the link has duplicates of the descriptors. Set options
/// such as IP_TOS before. `options` may be NULL.
///
/// Returns 0.
///
/// # Safety
///
/// `link` may be written; `n` descriptors at `fds` may be read, and are open; `options` is NULL or
/// may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_link_sockets(
    link: *mut *mut Link,
    fds: *const c_int,
    n: usize,
    options: *const Options,
) -> c_int {
    entry(|| {
        wanted(link, "link")?;
        // SAFETY: as the caller promises.
        let options = unsafe { read(options) }?;
        // SAFETY: as the caller promises.
        let fds = unsafe { array(fds, n, "fds") }?;
        // SAFETY: as the caller promises.
        let sockets = fds.iter().map(|fd| unsafe { duplicate(*fd) });
        let sockets = sockets
            .enumerate()
            .map(|(at, socket)| socket.map_err(|error| error.at(format_args!("socket {at}"))));
        let flags = options.map_or(0, |options| options.flags);
        let (gso, txtime) = (flags & ONRAMP_NO_GSO == 0, flags & ONRAMP_TXTIME != 0);
        let udp = UdpOptions { gso, txtime, ..UdpOptions::default() };
        let builder = Core::sockets(sockets.collect::<Result<Vec<_>>>()?).udp_options(udp);
        // SAFETY: as the caller promises.
        unsafe { build(link, builder, options) }
    })
}

/// Makes a link over devices of the caller's. Each becomes a port. The structures are copied; what
/// their `user` points to must live until `free` is called. `options` may be NULL.
///
/// Returns 0. If it fails, no callback was called, and none will be.
///
/// # Safety
///
/// `link` may be written; `n` devices at `devices` may be read, and their callbacks may be called
/// by any thread; `options` is NULL or may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_link_devices(
    link: *mut *mut Link,
    devices: *const Device,
    n: usize,
    options: *const Options,
) -> c_int {
    entry(|| {
        wanted(link, "link")?;
        // SAFETY: as the caller promises.
        let options = unsafe { read(options) }?;
        if options.is_some_and(|options| options.flags & (ONRAMP_NO_GSO | ONRAMP_TXTIME) != 0) {
            let text = "ONRAMP_NO_GSO and ONRAMP_TXTIME are for links over sockets";
            return Err(Error::invalid(text));
        }
        // SAFETY: as the caller promises.
        let devices = unsafe { array(devices, n, "devices") }?;
        let taken = Arc::new(AtomicBool::new(false));
        let mut made: Vec<Box<dyn onramp::Device>> = Vec::with_capacity(n);
        for (at, device) in devices.iter().enumerate() {
            // SAFETY: as the caller promises.
            let called = unsafe { Called::new(device, &taken) };
            made.push(Box::new(called.map_err(|error| error.at(format_args!("device {at}")))?));
        }
        // SAFETY: as the caller promises.
        unsafe { build(link, Core::devices(made), options) }?;
        device::take(&taken);
        Ok(0)
    })
}

/// Frees a link. Its senders stay usable. When the last of them is freed too, the link closes at
/// once, and drops the packets that it still holds: `onramp_link_close` gives them time. The `free`
/// of its devices is called then, or soon after, by a thread of the library that still uses them;
/// if the link was closed before, no thread does, unless it is blocked in a device. NULL is
/// allowed. A child after `fork` may free its copy of a link.
///
/// Returns 0. -EDEADLK: the call came from a callback of a device.
///
/// # Safety
///
/// `link` is NULL or comes from this library; no other call uses it, or will.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_link_free(link: *mut Link) -> c_int {
    entry(|| {
        refuse_inside()?;
        // SAFETY: as the caller promises.
        unsafe { object::free(Link::object(link)) }
    })
}

/// Closes a link: refuses new packets, waits until the link holds none, but for at most
/// `timeout_ns`, and drops the rest (`ONRAMP_DROP_PURGED`), whose number it writes to `purged`
/// (NULL: not wanted). Then the threads of the link end.
///
/// Returns 0 if all packets have left or were dropped by a qdisc or a device (`onramp_link_stats`
/// tells which). -ETIMEDOUT: the call dropped some, or a device still blocks.
///
/// # Safety
///
/// `link` comes from this library; `purged` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_link_close(
    link: *mut Link,
    timeout_ns: u64,
    purged: *mut u64,
) -> c_int {
    entry(|| {
        refuse_inside()?;
        // SAFETY: as the caller promises.
        let around = unsafe { object::share(Link::object(link)) }?;
        let report = around.link.close(Duration::from_nanos(timeout_ns));
        // SAFETY: as the caller promises.
        unsafe { put(purged, report.purged) };
        if report.flushed && report.blocked == 0 {
            return Ok(0);
        }
        let text = format!(
            "{} packets were dropped, because they had not left after {timeout_ns} ns; {} devices \
             still block",
            report.purged, report.blocked
        );
        Err(Error::new(libc::ETIMEDOUT, text))
    })
}

/// Waits until a link holds no packet, but for at most `timeout_ns`. While other threads send, that
/// may never be.
///
/// Returns 0. -ETIMEDOUT: it still holds packets.
///
/// # Safety
///
/// `link` comes from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_link_flush(link: *mut Link, timeout_ns: u64) -> c_int {
    entry(|| {
        refuse_inside()?;
        // SAFETY: as the caller promises.
        let around = unsafe { object::share(Link::object(link)) }?;
        if around.link.flush(Duration::from_nanos(timeout_ns)) {
            return Ok(0);
        }
        Err(Error::new(libc::ETIMEDOUT, format!("the link holds packets after {timeout_ns} ns")))
    })
}

/// Returns the descriptor of a link that was made with `ONRAMP_MANUAL`, for epoll, poll or an event
/// library. It is readable whenever `onramp_link_run` is due, also because another thread has sent
/// packets. It is the library's: do not read from it, and do not close it. The library closes it
/// when the link and its senders are freed.
///
/// -EINVAL: the link has threads, which need no program.
///
/// # Safety
///
/// `link` comes from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_link_fd(link: *mut Link) -> c_int {
    entry(|| {
        // SAFETY: as the caller promises.
        let around = unsafe { object::share(Link::object(link)) }?;
        let fd = by_hand(around)?.as_raw_fd();
        usize::try_from(fd).map_err(|_| Error::new(libc::EBADF, format!("{fd} is no descriptor")))
    })
}

/// Does what is due in a link that was made with `ONRAMP_MANUAL`, without waiting: sends packets
/// whose time has come, a limited number from each port. Writes to `next` (NULL: not wanted) when
/// to call again, ns of CLOCK_MONOTONIC. A time in the past means at once, and `UINT64_MAX` that
/// only the descriptor will tell: there is nothing to do, another thread is in this call, the link
/// is closed, or this is a child after `fork`. A program that waits for the descriptor of
/// `onramp_link_fd` does not need `next`, because the descriptor becomes readable at that time too.
///
/// The calls that wait (`onramp_sender_wait`, `onramp_sender_flush`, `onramp_link_flush`,
/// `onramp_link_close`, `onramp_link_tc`, and `onramp_sendmmsg` without MSG_DONTWAIT) do this work
/// themselves while they wait, so a program with one thread may make them. `onramp_sender_arm` does
/// not wait: the descriptor of `onramp_sender_fd` becomes readable because the program goes on
/// calling `onramp_link_run`. A device that blocks in `transmit` blocks the calling thread.
///
/// Returns 0. -EINVAL: the link has threads, which do this work. -EDEADLK: the call came from a
/// callback of a device.
///
/// # Safety
///
/// `link` comes from this library; `next` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_link_run(link: *mut Link, next: *mut u64) -> c_int {
    entry(|| {
        refuse_inside()?;
        // SAFETY: as the caller promises.
        let around = unsafe { object::share(Link::object(link)) }?;
        by_hand(around)?;
        let at = around.link.run().map_or(u64::MAX, |at| at.0);
        // SAFETY: as the caller promises.
        unsafe { put(next, at) };
        Ok(0)
    })
}

/// Returns the descriptor of a link without threads.
fn by_hand(around: &Around) -> Result<BorrowedFd<'_>> {
    around.link.descriptor().ok_or_else(|| {
        let text = "the link has threads, which do this work: make it with the flag ONRAMP_MANUAL \
                    of onramp_options to do it in the program";
        Error::invalid(text)
    })
}

/// Carries out a command of tc on a running link, while other threads send, and writes what tc
/// would print to `text`: see `onramp_tree_tc`. The lines need not name a device.
///
/// Returns the length of the whole text. -EINVAL: the line is wrong, and nothing has changed.
/// -EINPROGRESS: a device blocks its port, which makes the change later.
///
/// # Safety
///
/// `link` comes from this library; `line` ends with a zero byte; `n` bytes at `text` may be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_link_tc(
    link: *mut Link,
    line: *const c_char,
    text: *mut c_char,
    n: usize,
) -> c_int {
    entry(|| {
        refuse_inside()?;
        // SAFETY: as the caller promises.
        let line = unsafe { self::text(line, "line") }?;
        // SAFETY: as the caller promises. A wrong place is refused before the command is carried
        // out.
        let place = unsafe { TextPlace::new(text, n) }?;
        // SAFETY: as the caller promises.
        let around = unsafe { object::share(Link::object(link)) }?;
        Ok(place.print(&onramp_host::tc(&around.link, shaper::bare(line))?))
    })
}

/// Writes the counters of a link to `text` as one JSON object, `n` bytes at most with the zero byte
/// at its end: `submitted`, `sent`, `held`, `drops` by reason, and more, for the link and for each
/// of its `ports` (docs/json.md). `text` may be NULL if `n` is 0.
///
/// Returns the length of the whole text, as `snprintf` does.
///
/// # Safety
///
/// `link` comes from this library; `n` bytes at `text` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_link_stats(link: *mut Link, text: *mut c_char, n: usize) -> c_int {
    entry(|| {
        // SAFETY: as the caller promises.
        let around = unsafe { object::share(Link::object(link)) }?;
        // SAFETY: as the caller promises.
        let place = unsafe { TextPlace::new(text, n) }?;
        Ok(place.print(&stats::json(&around.link.stats())))
    })
}
