//! Senders: the part of a link with which one thread sends.

use std::ffi::{c_int, c_uint, c_void};
use std::time::Duration;

use onramp::{Completion, PAYLOAD_MAX};

use super::device::refuse_inside;
use super::link::Link;
use super::memory::{Places, array, put, value, wanted};
use super::object::{self, Named, Object};
use crate::abi::{CompletionValue, FlowValue, Msg, ONRAMP_COMPLETIONS};
use crate::control::{self, ADDRESS_MAX};
use crate::error::{Error, Result, entry};
use crate::sending::{Aim, Message, Sending, Way, set_source};
use crate::shaper::reason_number;

/// Bytes of a UDP datagram's payload, at most, over IPv4.
const MESSAGE_MAX: usize = PAYLOAD_MAX - 28;

/// The part of a link with which one thread sends: it has the packets and the credits of the
/// thread. A sender may move to another thread, but a call that meets another one's gives -EBUSY.
#[derive(Debug)]
pub struct Sender {
    _private: [u8; 0],
}

impl Named for Sending {
    const WORD: u64 = 0x6f6e_7261_6d70_5f73;
    const NAME: &'static str = "onramp_sender";
}

impl Sender {
    fn object(sender: *const Self) -> *mut Object<Sending> {
        sender.cast_mut().cast()
    }
}

/// Makes a sender of a link. Each thread that sends needs one of its own. `flags`: 0 or
/// `ONRAMP_COMPLETIONS`.
///
/// Returns 0.
///
/// # Safety
///
/// `sender` may be written, and `link` comes from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_sender_new(
    sender: *mut *mut Sender,
    link: *mut Link,
    flags: u32,
) -> c_int {
    entry(|| {
        wanted(sender, "sender")?;
        if flags & !ONRAMP_COMPLETIONS != 0 {
            let text = format!("flags is {flags:#x}; expected ONRAMP_COMPLETIONS or 0");
            return Err(Error::invalid(text));
        }
        // SAFETY: as the caller promises.
        let around = unsafe { object::share(Link::object(link)) }?.clone();
        let made = Object::new(Sending::new(around, flags & ONRAMP_COMPLETIONS != 0));
        // SAFETY: as the caller promises.
        unsafe { put(sender, made.cast()) };
        Ok(0)
    })
}

/// Frees a sender. The packets that it has submitted go on their way. NULL is allowed.
///
/// Returns 0. -EBUSY: another call is using the sender, which is not freed. -EDEADLK: the call came
/// from a callback of a device.
///
/// # Safety
///
/// `sender` is NULL or comes from `onramp_sender_new`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_sender_free(sender: *mut Sender) -> c_int {
    entry(|| {
        refuse_inside()?;
        // SAFETY: as the caller promises.
        unsafe { object::free(Sender::object(sender)) }
    })
}

/// Fills `flow` with a new flow to the address `to` of `len` bytes, a `sockaddr_in` or
/// `sockaddr_in6`, on the next port in turn. NULL: to the peer to which the socket is connected, or
/// to the device of the caller's. Packets of one flow that one sender sends keep their order, as
/// far as the qdisc keeps it. Make a flow once for each connection, not for each packet.
///
/// Returns 0. -EAFNOSUPPORT: the address is not one of IPv4 or IPv6, or it is one of IPv6 and the
/// socket is of IPv4. -EINVAL: its port number is 0, or the link is over devices.
///
/// # Safety
///
/// `flow` may be written; `sender` comes from `onramp_sender_new`; `to` is NULL, or `len` bytes
/// there may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_flow_init(
    flow: *mut FlowValue,
    sender: *mut Sender,
    to: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    entry(|| {
        wanted(flow, "flow")?;
        // SAFETY: as the caller promises.
        let bytes = unsafe { address_bytes(to.cast(), len) }?;
        // SAFETY: as the caller promises.
        let made = unsafe { object::with(Sender::object(sender), |sender| sender.flow(bytes)) }?;
        // SAFETY: as the caller promises.
        unsafe { put(flow, made) };
        Ok(0)
    })
}

/// Makes packets of `flow` leave from the local address `from` of `len` bytes, a `sockaddr_in` or
/// `sockaddr_in6` whose port number does not matter, and from the interface with the index
/// `ifindex` (`if_nametoindex`). NULL, or an unspecified address, leaves the choice of the address
/// to the system, and 0 that of the interface. A server whose socket is bound to no address has to
/// answer from the address to which the request came (`IP_PKTINFO`, `IPV6_PKTINFO`).
///
/// The kernel checks the address when it sends: packets from an address that is not of this machine
/// are dropped (`ONRAMP_DROP_DEVICE_ERROR`, `ONRAMP_DROP_UNREACHABLE`).
///
/// Returns 0. -EINVAL: one address is of IPv4, the other of IPv6. -EAFNOSUPPORT: `from` is neither.
/// -EDQUOT: the process has asked for 32,767 other pairs of address and interface, which the
/// library never forgets.
///
/// # Safety
///
/// `flow` may be read and written; `from` is NULL, or `len` bytes there may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_flow_from(
    flow: *mut FlowValue,
    from: *const libc::sockaddr,
    len: libc::socklen_t,
    ifindex: c_uint,
) -> c_int {
    entry(|| {
        // SAFETY: as the caller promises.
        let mut changed = *unsafe { value(flow.cast_const(), "flow") }?;
        // SAFETY: as the caller promises.
        let bytes = unsafe { address_bytes(from.cast(), len) }?;
        set_source(&mut changed, bytes, ifindex)?;
        // SAFETY: as the caller promises.
        unsafe { put(flow, changed) };
        Ok(0)
    })
}

/// Returns the bytes of an address; none if `to` is null.
///
/// # Safety
///
/// `to` is null, or `len` bytes there may be read.
unsafe fn address_bytes<'a>(to: *const c_void, len: libc::socklen_t) -> Result<&'a [u8]> {
    let len = if to.is_null() { 0 } else { (len as usize).min(ADDRESS_MAX) };
    if !to.is_null() && len < 2 {
        return Err(Error::invalid(format!("the address has only {len} bytes")));
    }
    // SAFETY: as the caller promises.
    unsafe { array(to.cast::<u8>(), len, "the address") }
}

/// Returns the payload whose parts are at `iov`; copies it to `scratch` if it has several.
///
/// # Safety
///
/// The `n` parts, and the bytes of each, may be read, and nobody changes them meanwhile.
unsafe fn payload(iov: *const libc::iovec, n: usize, scratch: &mut Vec<u8>) -> Result<&[u8]> {
    // SAFETY: as the caller promises.
    let parts = unsafe { array(iov, n, "iov") }?;
    // SAFETY: as the caller promises.
    let bytes = |part: &libc::iovec| unsafe {
        array(part.iov_base.cast_const().cast::<u8>(), part.iov_len, "iov_base")
    };
    if let [part] = parts {
        return bytes(part);
    }
    scratch.clear();
    for part in parts {
        let part = bytes(part)?;
        if scratch.len().saturating_add(part.len()) > MESSAGE_MAX {
            return Err(onramp::TrySendError::TooLarge.into());
        }
        scratch.extend_from_slice(part);
    }
    Ok(scratch)
}

/// Sends messages of one flow, in order. Never waits. They enter the flow's port together; those
/// that were accepted and do not fit into the port enter it with the next call that sends, waits or
/// flushes. The bytes are copied before the call returns. If this thread is the first at an idle
/// port, it also sends packets of the port, as far as the qdisc lets them go.
///
/// Returns how many messages were accepted. If none was: -EAGAIN, no room (`onramp_sender_wait`);
/// -EMSGSIZE, too large; -EPIPE, the link is closed; -EOWNERDEAD, the flow's port is dead;
/// -ENOBUFS, completions wait; -EDESTADDRREQ, the flow has no address and the socket is not
/// connected; -EINVAL.
///
/// # Safety
///
/// `sender` comes from `onramp_sender_new`; `flow`, and `n` messages at `msgs` with their parts,
/// may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_send(
    sender: *mut Sender,
    flow: *const FlowValue,
    msgs: *const Msg,
    n: usize,
) -> c_int {
    entry(|| {
        // SAFETY: as the caller promises.
        let flow = *unsafe { value(flow, "flow") }?;
        // SAFETY: as the caller promises.
        let msgs = unsafe { array(msgs, n, "msgs") }?;
        let send = |sender: &mut Sending| {
            let mut scratch = Vec::new();
            all(sender, msgs, false, |sender, msg: &Msg| {
                if msg.ecn > 3 || msg.reserved != [0; 5] {
                    let text = format!(
                        "ecn is {} and reserved is {:?}; expected 0 to 3, and zeros",
                        msg.ecn, msg.reserved
                    );
                    return Err(Error::invalid(text));
                }
                // SAFETY: as the caller promises.
                let payload = unsafe { payload(msg.iov, msg.iovlen, &mut scratch) }?;
                let Msg { segment, txtime_ns, cookie, .. } = *msg;
                let ecn = Some(msg.ecn).filter(|ecn| *ecn != 0);
                let message = Message { payload, segment, ecn, txtime_ns, cookie };
                sender.push(Aim::Flow(&flow), &message)
            })
        };
        // SAFETY: as the caller promises.
        unsafe { object::with(Sender::object(sender), send) }
    })
}

/// Calls `push` for each message, until one fails. Returns the number of those before it, or the
/// error if it was the first. If `waits`, waits until those before it have entered their ports.
fn all<M>(
    sender: &mut Sending,
    msgs: impl IntoIterator<Item = M, IntoIter: ExactSizeIterator>,
    waits: bool,
    mut push: impl FnMut(&mut Sending, M) -> Result<()>,
) -> Result<usize> {
    let msgs = msgs.into_iter();
    sender.begin(msgs.len(), waits)?;
    let mut done = Ok(0);
    for (at, msg) in msgs.enumerate() {
        if let Err(error) = push(sender, msg) {
            done = if at == 0 { Err(error) } else { Ok(at) };
            break;
        }
        done = Ok(at + 1);
    }
    sender.end(waits);
    done
}

/// Sends messages as sendmmsg(2) does, with the same arguments: each to the address `msg_name`
/// (NULL: the peer of the socket). The flow of a message is a hash of that address and of the one
/// that IP_PKTINFO or IPV6_PKTINFO names. Knows the control messages UDP_SEGMENT, IP_TOS and
/// IPV6_TCLASS (only ECN), SCM_TXTIME, and IP_PKTINFO and IPV6_PKTINFO, which say from which local
/// address and interface the message leaves, as `onramp_flow_from` does. Writes to `msg_len` of
/// each accepted message how many bytes it has. `flags`: MSG_DONTWAIT or 0, and MSG_NOSIGNAL.
/// Without MSG_DONTWAIT, waits until all messages are accepted and have entered their ports.
///
/// A call with one message of 4,096 bytes and more sends the message without a copy, if the port is
/// idle and the qdisc (a fifo, `codel`, `fq_codel`, `sfq`, `fq`) lets the message leave at once.
///
/// Returns how many messages were accepted. If none was, an error as of `onramp_send`, or
/// -EOPNOTSUPP: a flag or control message is not known; -EAFNOSUPPORT: the socket cannot send to an
/// address of this family; -EINVAL: the address has the port number 0; -EDQUOT: too many sources,
/// see `onramp_flow_from`; -EDEADLK: it would have to wait in a callback of a device.
///
/// # Safety
///
/// `sender` comes from `onramp_sender_new`; `n` messages at `msgs` may be read and written, and all
/// they point to may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_sendmmsg(
    sender: *mut Sender,
    msgs: *mut libc::mmsghdr,
    n: c_uint,
    flags: c_int,
) -> c_int {
    entry(|| {
        if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) != 0 {
            let text = format!("flags is {flags:#x}; expected MSG_DONTWAIT and MSG_NOSIGNAL");
            return Err(Error::new(libc::EOPNOTSUPP, text));
        }
        let waits = flags & libc::MSG_DONTWAIT == 0;
        if waits {
            refuse_inside()?;
        }
        let n = n as usize;
        // SAFETY: as the caller promises. This only checks the pointer.
        unsafe { array(msgs.cast_const(), n, "msgs") }?;
        let send = |sender: &mut Sending| {
            let mut scratch = Vec::new();
            all(sender, 0..n, waits, |sender, at| {
                let msg = msgs.wrapping_add(at);
                // SAFETY: as the caller promises; nobody writes to the message meanwhile.
                let header = unsafe { &(*msg).msg_hdr };
                // SAFETY: as the caller promises.
                let len = unsafe { one(sender, header, waits, &mut scratch) }?;
                // SAFETY: as the caller promises. `header` is not used again.
                unsafe { (*msg).msg_len = len };
                Ok(())
            })
        };
        // SAFETY: as the caller promises.
        unsafe { object::with(Sender::object(sender), send) }
    })
}

/// Sends one message of `onramp_sendmmsg`. Returns the length of its payload.
///
/// # Safety
///
/// All that the message points to may be read.
unsafe fn one(
    sender: &mut Sending,
    header: &libc::msghdr,
    waits: bool,
    scratch: &mut Vec<u8>,
) -> Result<c_uint> {
    // As in the kernel, a name without a length is none.
    let name = if header.msg_namelen == 0 { std::ptr::null_mut() } else { header.msg_name };
    // SAFETY: as the caller promises.
    let address = unsafe { address_bytes(name, header.msg_namelen) }?;
    let dest = if address.is_empty() { None } else { control::address(address)? };
    let control = header.msg_control.cast_const().cast::<u8>();
    // SAFETY: as the caller promises.
    let controls = unsafe { array(control, header.msg_controllen, "msg_control") }?;
    let control::Controls { segment, ecn, txtime_ns, from } = control::controls(controls)?;
    // SAFETY: as the caller promises.
    let payload = unsafe { payload(header.msg_iov, header.msg_iovlen, scratch) }?;
    let message = Message { payload, segment, ecn, txtime_ns, cookie: 0 };
    let aim = Aim::Way(Way { dest, from });
    if waits {
        sender.push_waiting(aim, &message)?;
    } else {
        sender.push(aim, &message)?;
    }
    Ok(c_uint::try_from(payload.len()).unwrap_or(c_uint::MAX))
}

/// Waits until a message of `bytes` is likely to be accepted on `flow`, or never will be (the link
/// is closed, or the port dead), but for at most `timeout_ns`.
///
/// Returns 0. -ETIMEDOUT: there is still no room. -EDEADLK: the call came from a callback of a
/// device.
///
/// # Safety
///
/// `sender` comes from `onramp_sender_new`, and `flow` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_sender_wait(
    sender: *mut Sender,
    flow: *const FlowValue,
    bytes: usize,
    timeout_ns: u64,
) -> c_int {
    entry(|| {
        refuse_inside()?;
        // SAFETY: as the caller promises.
        let flow = *unsafe { value(flow, "flow") }?;
        let most = Duration::from_nanos(timeout_ns);
        let wait = |sender: &mut Sending| sender.wait(&flow, bytes, most);
        // SAFETY: as the caller promises.
        let has_room = unsafe { object::with(Sender::object(sender), wait) }?;
        done_in_time(has_room, "there is no room", timeout_ns)
    })
}

/// Returns the descriptor of the sender for epoll, poll or an event library: an eventfd, which is
/// the library's and is closed when the sender is freed. It becomes readable after
/// `onramp_sender_arm`. Watch it edge-triggered (EPOLLET), or read its 8 bytes when it is readable.
///
/// # Safety
///
/// `sender` comes from `onramp_sender_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_sender_fd(sender: *mut Sender) -> c_int {
    // SAFETY: as the caller promises.
    entry(|| unsafe { object::with(Sender::object(sender), Sending::fd) })
}

/// Asks for room for a message of `bytes` on `flow`, without waiting. Call it after -EAGAIN, and
/// last before the event loop waits: other calls with the sender may cancel the request. May send
/// packets of the link, to make room.
///
/// Returns 1 if there is room now, or never will be: try again. Returns 0 if not: the descriptor of
/// `onramp_sender_fd` becomes readable when there may be. Then try again, and ask again if there
/// still is none. -EDEADLK: the call came from a callback of a device.
///
/// # Safety
///
/// `sender` comes from `onramp_sender_new`, and `flow` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_sender_arm(
    sender: *mut Sender,
    flow: *const FlowValue,
    bytes: usize,
) -> c_int {
    entry(|| {
        refuse_inside()?;
        // SAFETY: as the caller promises.
        let flow = *unsafe { value(flow, "flow") }?;
        let arm = |sender: &mut Sending| sender.arm(&flow, bytes).map(usize::from);
        // SAFETY: as the caller promises.
        unsafe { object::with(Sender::object(sender), arm) }
    })
}

/// Waits until all packets that this sender submitted have left or were dropped, but for at most
/// `timeout_ns`.
///
/// Returns 0. -ETIMEDOUT: some are still in the link. -EDEADLK: the call came from a callback of a
/// device.
///
/// # Safety
///
/// `sender` comes from `onramp_sender_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_sender_flush(sender: *mut Sender, timeout_ns: u64) -> c_int {
    entry(|| {
        refuse_inside()?;
        let flush = |sender: &mut Sending| Ok(sender.flush(Duration::from_nanos(timeout_ns)));
        // SAFETY: as the caller promises.
        let done = unsafe { object::with(Sender::object(sender), flush) }?;
        done_in_time(done, "packets are in flight", timeout_ns)
    })
}

fn done_in_time(done: bool, what: &str, timeout_ns: u64) -> Result<usize> {
    if done {
        return Ok(0);
    }
    Err(Error::new(libc::ETIMEDOUT, format!("{what} after {timeout_ns} ns")))
}

/// Returns how many packets of the sender are in flight: accepted, and neither sent nor dropped
/// yet. Looks which have left since the last call, and never waits; may send packets that had not
/// fitted into their port. A program with one thread and a loop around epoll learns by it that all
/// have left: it calls `onramp_link_run` when the descriptor of `onramp_link_fd` is readable, and
/// then this function, until it returns 0.
///
/// # Safety
///
/// `sender` comes from `onramp_sender_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_sender_in_flight(sender: *mut Sender) -> c_int {
    let read = |sender: &mut Sending| Ok(sender.in_flight());
    // SAFETY: as the caller promises.
    entry(|| unsafe { object::with(Sender::object(sender), read) })
}

/// Takes what became of packets of the sender, which was made with `ONRAMP_COMPLETIONS`, `n` at
/// most, in no particular order, and writes it to `completions`. A sender of which 65,536
/// completions wait accepts no messages.
///
/// Returns how many it took.
///
/// # Safety
///
/// `sender` comes from `onramp_sender_new`, and `n` completions may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onramp_sender_completions(
    sender: *mut Sender,
    completions: *mut CompletionValue,
    n: usize,
) -> c_int {
    entry(|| {
        // SAFETY: as the caller promises.
        let mut places = unsafe { Places::new(completions, n, "completions") }?;
        let take = |sender: &mut Sending| sender.completions(n, |one| places.put(told(&one)));
        // SAFETY: as the caller promises.
        unsafe { object::with(Sender::object(sender), take) }?;
        Ok(places.count)
    })
}

/// Returns what the caller is told of a completion.
fn told(one: &Completion) -> CompletionValue {
    CompletionValue {
        cookie: one.cookie,
        flow: one.flow,
        pushed_ns: one.pushed_ns,
        left_ns: one.left_ns.unwrap_or(u64::MAX),
        len: one.len,
        drop_reason: reason_number(one.drop_reason),
        reserved: [0; 3],
    }
}
