//! The functions that take the place of the C library's: all with which a program can send a
//! datagram, and those that end a process at once.

use std::mem::offset_of;
use std::ptr;
use std::slice;

use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, sockaddr_storage, socklen_t,
    ssize_t,
};
use rustix::io::Errno;

use super::next::call_next;
use super::process::{self, Inside};
use crate::joined::Outcome;
use crate::message::Message;
use crate::shaper::DATA_MAX;
use crate::sys::{self, SavedErrno};

/// Shows `onramp exec` that a file is this library.
#[unsafe(no_mangle)]
pub(crate) static onramp_preload: u8 = 1;

/// Length in bytes of the longest address that the kernel reads. `sendmsg` takes a longer one, of
/// which it reads this many bytes, and `sendto` refuses it. Of a length of 0, `sendmsg` makes no
/// address, and `sendto` a wrong one.
const NAME_MAX: usize = size_of::<sockaddr_storage>();
/// Most parts of a message that the kernel takes (`UIO_MAXIOV`), and most messages of `sendmmsg`.
const PARTS_MAX: usize = 1_024;

/// What a function makes of a message without payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Empty {
    /// An empty datagram.
    Sent,
    /// Nothing.
    Ignored,
}

/// A message that the next library has to send.
#[must_use]
struct Around {
    fd: c_int,
    flags: c_int,
    empty: Empty,
    /// The socket, if the message belongs to a datagram of several messages.
    joins: Option<u64>,
}

impl Around {
    const fn new(fd: c_int, flags: c_int, empty: Empty) -> Self {
        Self { fd, flags, empty, joins: None }
    }

    /// Notes what the next library has done with the message. `done` is what it returned to the
    /// program, or -1.
    fn returned(&self, done: ssize_t) {
        let Some(socket) = self.joins else { return };
        let Some(_inside) = Inside::enter() else { return };
        let errno = SavedErrno::new();
        let outcome = match done {
            ..0 => Outcome::Nothing,
            0 if self.empty == Empty::Ignored => Outcome::Nothing,
            _ if self.flags & libc::MSG_MORE != 0 => Outcome::Begun,
            _ => Outcome::Ended,
        };
        if let Some(shaper) = process::shaper().filter(|_| process::is_owner()) {
            shaper.returned(self.fd, socket, outcome);
        }
        errno.restore();
    }
}

/// Sends a message through the qdiscs. Returns what the function returns to the program; `Err` if
/// the message is not for the qdiscs, and the next library has to send it.
///
/// # Safety
///
/// The header is one that `sendmsg` takes: if the kernel finds it right, what it points to is
/// memory of the program.
unsafe fn submit(
    fd: c_int,
    header: *const msghdr,
    flags: c_int,
    empty: Empty,
) -> Result<ssize_t, Around> {
    let mut around = Around::new(fd, flags, empty);
    let Some(_inside) = Inside::enter() else { return Err(around) };
    let errno = SavedErrno::new();
    // SAFETY: the caller promises it.
    match unsafe { offer(header, &mut around) } {
        Some(Err(error)) => {
            sys::set_errno(error.raw_os_error());
            Ok(-1)
        }
        done => {
            errno.restore();
            done.and_then(Result::ok).map(usize::cast_signed).ok_or(around)
        }
    }
}

/// Offers a message to the qdiscs. `None` if it goes around them.
///
/// # Safety
///
/// As for `submit`.
unsafe fn offer(header: *const msghdr, around: &mut Around) -> Option<Result<usize, Errno>> {
    let Around { fd, flags, empty, .. } = *around;
    let number = sys::udp(fd)?;
    let shaper = process::shaper()?;
    if process::is_owner() && shaper.joins(fd, number, flags, sys::is_corked(fd)) {
        around.joins = Some(number);
    }
    if !process::is_owner() || around.joins.is_some() || !sys::takes(flags) {
        shaper.goes_around();
        return None;
    }
    // SAFETY: the caller promises it.
    let probed = unsafe { sys::probe(fd, header, flags) };
    if probed == Err(Errno::FAULT) {
        return Some(Err(Errno::FAULT));
    }
    // SAFETY: the kernel has read the header, of which it does not ask that it is aligned.
    let header = unsafe { ptr::read_unaligned(header) };
    if empty == Empty::Ignored {
        // SAFETY: the caller promises it: what the kernel finds wrong is something else.
        let parts = unsafe { parts(&header) };
        if parts.iter().all(|part| part.iov_len == 0) {
            return None;
        }
    }
    if let Err(error) = probed {
        return Some(Err(error));
    }
    // SAFETY: the caller promises it, and the kernel has found the header right. If a part lies
    // nowhere, it says whether that or the length is the error.
    let message = unsafe { read(&header) }?;
    shaper.send(fd, number, &message, flags)
}

/// Returns the parts of a message.
///
/// # Safety
///
/// The list can be read. It need not be aligned.
unsafe fn parts(header: &msghdr) -> Vec<iovec> {
    let part = |at| {
        // SAFETY: the caller promises it.
        unsafe { ptr::read_unaligned(header.msg_iov.wrapping_add(at)) }
    };
    (0..header.msg_iovlen).map(part).collect()
}

/// Returns the message that a header describes; `None` if a part of it lies nowhere. The kernel has
/// not looked at the parts: one at another place that cannot be read ends the program.
///
/// # Safety
///
/// As for `submit`, as long as the message is used; and the kernel has found the header right.
unsafe fn read(header: &msghdr) -> Option<Message<'_>> {
    let name_len = if header.msg_name.is_null() { 0 } else { header.msg_namelen as usize };
    // SAFETY: the kernel has read this many bytes there.
    let name = unsafe { bytes(header.msg_name, name_len.min(NAME_MAX)) };
    // SAFETY: the caller promises it.
    let control = unsafe { bytes(header.msg_control, header.msg_controllen) };
    // SAFETY: the caller promises it.
    let parts = unsafe { parts(header) };
    if parts.iter().any(|part| part.iov_base.is_null() && part.iov_len > 0) {
        return None;
    }
    // SAFETY: the caller promises it.
    let part = |part: &iovec| unsafe { bytes(part.iov_base, part.iov_len) };
    Some(Message { name, control, parts: parts.iter().map(part).collect() })
}

/// # Safety
///
/// The memory can be read, as long as the slice is used.
unsafe fn bytes<'m>(start: *const c_void, len: usize) -> &'m [u8] {
    if len == 0 || start.is_null() {
        return &[];
    }
    // SAFETY: the caller promises it.
    unsafe { slice::from_raw_parts(start.cast(), len) }
}

/// Returns the header of a message with one part, or several.
fn header(name: *const sockaddr, name_len: socklen_t, parts: *const iovec, count: usize) -> msghdr {
    let mut header = sys::no_message();
    header.msg_name = name.cast_mut().cast();
    header.msg_namelen = if name.is_null() { 0 } else { name_len };
    header.msg_iov = parts.cast_mut();
    header.msg_iovlen = count;
    header
}

fn part(start: *const c_void, len: size_t) -> iovec {
    iovec { iov_base: start.cast_mut(), iov_len: len }
}

/// Takes the place of sendto(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendto(
    fd: c_int,
    start: *const c_void,
    len: size_t,
    flags: c_int,
    name: *const sockaddr,
    name_len: socklen_t,
) -> ssize_t {
    let part = part(start, len);
    let header = header(name, name_len, &raw const part, 1);
    // The next library refuses an address that is too short or too long for `sendto`, and what is
    // too long for a message: of lengths that no memory has, the kernel says to each function
    // something else.
    let mut around = Around::new(fd, flags, Empty::Sent);
    if (name.is_null() || (1..=NAME_MAX).contains(&(name_len as usize))) && len <= DATA_MAX {
        // SAFETY: the arguments are those of `sendto`.
        match unsafe { submit(fd, &raw const header, flags, Empty::Sent) } {
            Ok(done) => return done,
            Err(next) => around = next,
        }
    }
    let done = call_next!(
        SENDTO,
        fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t,
        fd,
        start,
        len,
        flags,
        name,
        name_len
    );
    around.returned(done);
    done
}

/// Takes the place of send(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn send(
    fd: c_int,
    start: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    let part = part(start, len);
    let header = header(ptr::null(), 0, &raw const part, 1);
    let mut around = Around::new(fd, flags, Empty::Sent);
    if len <= DATA_MAX {
        // SAFETY: the arguments are those of `send`.
        match unsafe { submit(fd, &raw const header, flags, Empty::Sent) } {
            Ok(done) => return done,
            Err(next) => around = next,
        }
    }
    let done =
        call_next!(SEND, fn(c_int, *const c_void, size_t, c_int) -> ssize_t, fd, start, len, flags);
    around.returned(done);
    done
}

/// Takes the place of write(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn write(fd: c_int, start: *const c_void, len: size_t) -> ssize_t {
    let part = part(start, len);
    let header = header(ptr::null(), 0, &raw const part, 1);
    let mut around = Around::new(fd, 0, Empty::Sent);
    if len <= DATA_MAX {
        // SAFETY: the arguments are those of `write`, which on a socket sends.
        match unsafe { submit(fd, &raw const header, 0, Empty::Sent) } {
            Ok(done) => return done,
            Err(next) => around = next,
        }
    }
    let done = call_next!(WRITE, fn(c_int, *const c_void, size_t) -> ssize_t, fd, start, len);
    around.returned(done);
    done
}

/// Takes the place of writev(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let mut around = Around::new(fd, 0, Empty::Ignored);
    if let Ok(count @ 1..=PARTS_MAX) = usize::try_from(count)
        && !parts.is_null()
    {
        let header = header(ptr::null(), 0, parts, count);
        // SAFETY: the arguments are those of `writev`, which on a socket sends.
        match unsafe { submit(fd, &raw const header, 0, Empty::Ignored) } {
            Ok(done) => return done,
            Err(next) => around = next,
        }
    }
    let done = call_next!(WRITEV, fn(c_int, *const iovec, c_int) -> ssize_t, fd, parts, count);
    around.returned(done);
    done
}

/// Takes the place of sendmsg(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmsg(fd: c_int, header: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the header is one of `sendmsg`.
    let around = match unsafe { submit(fd, header, flags, Empty::Sent) } {
        Ok(done) => return done,
        Err(next) => next,
    };
    let done = call_next!(SENDMSG, fn(c_int, *const msghdr, c_int) -> ssize_t, fd, header, flags);
    around.returned(done);
    done
}

/// Takes the place of sendmmsg(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmmsg(
    fd: c_int,
    first: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let errno = SavedErrno::new();
    let is_udp = !first.is_null() && sys::udp(fd).is_some();
    errno.restore();
    // The kernel stops after the first message that it only checks.
    if !is_udp || flags & sys::MSG_PROBE != 0 {
        // SAFETY: the arguments are those of the caller.
        return unsafe { next_sendmmsg(fd, first, count, flags) };
    }
    // The kernel takes no more at once.
    let count = (count as usize).min(PARTS_MAX);
    let mut sent = 0;
    for at in 0..count {
        let errno = SavedErrno::new();
        let message = first.wrapping_add(at);
        let header = message.cast::<msghdr>();
        // SAFETY: the header is one of `sendmmsg`, the first field of the message.
        let done = match unsafe { submit(fd, header, flags, Empty::Sent) } {
            Ok(done) => match c_uint::try_from(done) {
                Ok(len) => {
                    let place = message.wrapping_byte_add(offset_of!(mmsghdr, msg_len));
                    // SAFETY: it is one of the caller's messages, which nobody else uses.
                    unsafe { ptr::write_unaligned(place.cast(), len) };
                    true
                }
                Err(_) => false,
            },
            Err(around) => {
                // SAFETY: it is one of the caller's messages.
                let is_sent = unsafe { next_sendmmsg(fd, message, 1, flags) } == 1;
                around.returned(if is_sent { 1 } else { -1 });
                is_sent
            }
        };
        if !done {
            if sent == 0 {
                return -1;
            }
            // The kernel does not tell the error of a later message.
            errno.restore();
            return sent;
        }
        sent += 1;
    }
    sent
}

/// # Safety
///
/// The arguments are those of `sendmmsg`.
unsafe fn next_sendmmsg(fd: c_int, first: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    call_next!(SENDMMSG, fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int, fd, first, count, flags)
}

/// Takes the place of _exit(2), with which the children of some programs end.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn _exit(code: c_int) -> ! {
    process::at_end();
    sys::exit_now(code)
}

/// Takes the place of _Exit(3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn _Exit(code: c_int) -> ! {
    process::at_end();
    sys::exit_now(code)
}
