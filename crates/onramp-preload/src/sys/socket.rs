//! What the library asks the kernel about a socket, and sends out of it. All functions take any
//! number for a descriptor: the kernel refuses wrong ones.

use std::io;
use std::mem;
use std::ptr;
use std::time::Duration;

use libc::{c_int, c_void, iovec, msghdr, socklen_t};
use rustix::io::Errno;

/// The kernel checks a message as if it were sent, and does not send it.
pub(crate) const MSG_PROBE: c_int = 0x10;
/// Flags of a message that the kernel gets with it, also if it has waited.
pub(crate) const LASTING: c_int = libc::MSG_CONFIRM | libc::MSG_DONTROUTE;
/// All flags of a message that may wait.
const KNOWN: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_EOR | LASTING;

/// Returns the error of the system call that has just failed.
pub(crate) fn last_error() -> Errno {
    let code = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Errno::from_raw_os_error(code)
}

/// Reads an option of a socket that is a number of four or eight bytes.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Result<u64, Errno> {
    let (bytes, len) = option_bytes::<8>(fd, level, name)?;
    let [low, high] = [&bytes[..4], &bytes[4..]];
    let half = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_ne_bytes);
    Ok(if len == 8 { u64::from_ne_bytes(bytes) } else { (half(low) | half(high)).into() })
}

fn option_bytes<const N: usize>(
    fd: c_int,
    level: c_int,
    name: c_int,
) -> Result<([u8; N], usize), Errno> {
    let mut bytes = [0; N];
    let mut len = socklen_t::try_from(N).unwrap_or_default();
    let place = bytes.as_mut_ptr().cast::<c_void>();
    // SAFETY: the kernel writes at most `len` bytes to the array, and their number to `len`.
    let failed = unsafe { libc::getsockopt(fd, level, name, place, &raw mut len) };
    if failed != 0 {
        return Err(last_error());
    }
    Ok((bytes, len as usize))
}

/// Returns the number (`SO_COOKIE`) of a UDP socket; `None` for every other descriptor.
pub(crate) fn udp(fd: c_int) -> Option<u64> {
    let of = |name| option(fd, libc::SOL_SOCKET, name).ok();
    // Other families have other protocols with the same number.
    let is_udp = of(libc::SO_PROTOCOL)? == libc::IPPROTO_UDP as u64
        && [libc::AF_INET as u64, libc::AF_INET6 as u64].contains(&of(libc::SO_DOMAIN)?);
    of(libc::SO_COOKIE).filter(|_| is_udp)
}

/// Returns whether a message with these flags may wait: the kernel is to send it as it is, and at
/// no instant that the program chooses.
pub(crate) const fn takes(flags: c_int) -> bool {
    flags & !KNOWN == 0
}

/// Returns whether a socket holds back what is sent (`UDP_CORK`).
pub(crate) fn is_corked(fd: c_int) -> bool {
    option(fd, libc::SOL_UDP, libc::UDP_CORK) != Ok(0)
}

/// Returns whether the kernel has bytes of a socket that have not left (`SIOCOUTQ`): those of a
/// datagram that is not whole, or those that wait in a qdisc or for an address.
pub(crate) fn holds(fd: c_int) -> bool {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes to a live `c_int`.
    let failed = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) };
    failed == 0 && bytes > 0
}

/// Returns whether a call with these flags must not wait.
pub(crate) fn is_nonblocking(fd: c_int, flags: c_int) -> bool {
    // SAFETY: the call takes numbers.
    let of_file = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags & libc::MSG_DONTWAIT != 0 || (of_file >= 0 && of_file & libc::O_NONBLOCK != 0)
}

/// Returns how long a call that sends may wait (`SO_SNDTIMEO`); `None` is for ever.
pub(crate) fn send_timeout(fd: c_int) -> Option<Duration> {
    let (bytes, len) = option_bytes::<16>(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO).ok()?;
    let [seconds, micros] =
        [&bytes[..8], &bytes[8..]].map(|half| half.try_into().map_or(0, i64::from_ne_bytes));
    let seconds = u64::try_from(seconds).unwrap_or_default();
    let micros = u64::try_from(micros).unwrap_or_default();
    let time = Duration::from_secs(seconds) + Duration::from_micros(micros);
    (len == 16 && !time.is_zero()).then_some(time)
}

/// Returns whether the program wants to know of datagrams that a qdisc drops (`IP_RECVERR`).
pub(crate) fn reports_errors(fd: c_int) -> bool {
    let of = |level, name| option(fd, level, name).is_ok_and(|value| value != 0);
    of(libc::IPPROTO_IP, libc::IP_RECVERR) || of(libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
}

/// Returns the address to which a socket is connected, as the kernel's `sockaddr`.
pub(crate) fn name_of_peer(fd: c_int) -> Option<Vec<u8>> {
    name_of(|name, len| {
        // SAFETY: the caller's buffer has as many bytes as it says.
        unsafe { libc::getpeername(fd, name, len) }
    })
}

/// Returns the address of a socket, as the kernel's `sockaddr`.
pub(crate) fn name_of_socket(fd: c_int) -> Option<Vec<u8>> {
    name_of(|name, len| {
        // SAFETY: the caller's buffer has as many bytes as it says.
        unsafe { libc::getsockname(fd, name, len) }
    })
}

fn name_of(ask: impl FnOnce(*mut libc::sockaddr, *mut socklen_t) -> c_int) -> Option<Vec<u8>> {
    const ROOM: usize = size_of::<libc::sockaddr_storage>();
    let mut name = [0_u64; ROOM / 8];
    let mut len = socklen_t::try_from(ROOM).ok()?;
    if ask(name.as_mut_ptr().cast(), &raw mut len) != 0 {
        return None;
    }
    let mut bytes: Vec<u8> = name.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.truncate(len as usize);
    Some(bytes)
}

/// Returns the header of a message without address, parts and control messages.
pub(crate) const fn no_message() -> msghdr {
    // SAFETY: a header consists of integers and raw pointers, for which zero is a value.
    unsafe { mem::zeroed() }
}

/// Lets the kernel check a message, which it does not send: address, route, permission and control
/// messages.
///
/// # Safety
///
/// The header is one that `sendmsg` takes: what it points to is memory of the program.
pub(crate) unsafe fn probe(fd: c_int, header: *const msghdr, flags: c_int) -> Result<(), Errno> {
    let flags = (flags & LASTING) | MSG_PROBE | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel only reads, and the caller promises that it may.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd, header, flags) };
    if sent < 0 { Err(last_error()) } else { Ok(()) }
}

/// Sends a datagram at once, by a raw system call. `EAGAIN` says that the socket has no room.
pub(crate) fn send(
    fd: c_int,
    name: &[u8],
    control: &[u8],
    payload: &[u8],
    flags: c_int,
) -> Result<(), Errno> {
    let mut part = iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    let mut header = no_message();
    header.msg_name = name.as_ptr().cast_mut().cast();
    header.msg_namelen = socklen_t::try_from(name.len()).unwrap_or_default();
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if !control.is_empty() {
        header.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_controllen = control.len();
    }
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel reads the header, and the slices to which it points, as long as they are.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const header, flags) };
    if sent < 0 { Err(last_error()) } else { Ok(()) }
}

/// Ends the process at once.
pub(crate) fn exit_now(code: c_int) -> ! {
    loop {
        // SAFETY: the call takes a number, and does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

/// The program's `errno`, which the library's own system calls must not change.
pub(crate) struct SavedErrno(c_int);

impl SavedErrno {
    pub(crate) fn new() -> Self {
        // SAFETY: the function has no arguments.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the place is a number of this thread.
        Self(unsafe { ptr::read(place) })
    }

    /// Lets `errno` be what it was.
    pub(crate) fn restore(self) {
        set_errno(self.0);
    }
}

pub(crate) fn set_errno(code: c_int) {
    // SAFETY: the function has no arguments.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is a number of this thread.
    unsafe { ptr::write(place, code) };
}
