//! Parts of messages for `sendmmsg` and `recvmmsg`, and packets as the memory that a call fills.

use std::convert::Infallible;
use std::io;
use std::mem;
use std::ptr;

use libc::{c_int, iovec, mmsghdr};
use onramp_queue::Packet;

/// Returns the header of a message without parts, name and control messages.
pub(crate) const fn no_message() -> mmsghdr {
    // SAFETY: a header consists of integers and raw pointers, for which zero is a valid value.
    unsafe { mem::zeroed() }
}

/// Returns a piece of memory as a part of a message.
pub(crate) const fn part(start: *mut u8, len: usize) -> iovec {
    iovec { iov_base: start.cast(), iov_len: len }
}

/// Converts a small number to the integer type that the C library gives an argument or a field.
#[inline]
pub(crate) fn number<T: TryFrom<usize>>(n: usize) -> T {
    T::try_from(n).unwrap_or_else(|_| unreachable!("{n} is small"))
}

/// Receives messages, as many as there are headers, without waiting. Returns their number.
///
/// # Safety
///
/// Each header points to a name, parts and a control buffer of its own, or to none, whose lengths
/// are right; nobody else uses them or the memory of the parts during the call.
pub(crate) unsafe fn receive(fd: c_int, headers: &mut [mmsghdr]) -> io::Result<usize> {
    let (first, count) = (headers.as_mut_ptr(), number(headers.len()));
    // SAFETY: `count` headers are there, and the caller promises the rest.
    let received = unsafe { libc::recvmmsg(fd, first, count, libc::MSG_DONTWAIT, ptr::null_mut()) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// Returns the buffer of a packet behind its first `head` bytes, into which this function writes
/// zeros. The payload of the packet becomes empty.
pub(crate) fn room(packet: &mut Packet, head: usize) -> iovec {
    let mut room = part(ptr::null_mut(), 0);
    let Ok(()) = packet.fill::<Infallible>(|buffer| {
        let (head, behind) = buffer.split_at_mut(head.min(buffer.len()));
        head.fill(mem::MaybeUninit::new(0));
        room = part(behind.as_mut_ptr().cast(), behind.len());
        Ok(&mut [])
    });
    room
}

/// Tells a packet how many bytes of its buffer have been written.
///
/// # Safety
///
/// The first `len` bytes of the packet's buffer must have been written.
pub(crate) unsafe fn fill(packet: &mut Packet, len: usize) {
    let Ok(()) = packet.fill::<Infallible>(|buffer| {
        let (front, _) = buffer.split_at_mut(len);
        // SAFETY: the caller promises it.
        Ok(unsafe { front.assume_init_mut() })
    });
}
