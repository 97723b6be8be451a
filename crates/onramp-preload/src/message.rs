//! A message as a program gives it to the kernel, and its control messages.

use libc::c_int;
use onramp_core::frame;

use crate::sys;

/// A message that the kernel has found right.
#[derive(Clone, Debug)]
pub(crate) struct Message<'m> {
    /// The address, as the kernel's `sockaddr`; empty if the program named none.
    pub(crate) name: &'m [u8],
    /// The control messages.
    pub(crate) control: &'m [u8],
    /// The parts of the payload.
    pub(crate) parts: Vec<&'m [u8]>,
}

/// What the control messages of a message ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// The payload of each datagram, if the kernel is to cut the message (`UDP_SEGMENT`); 0 if it
    /// is not to do so, although an option of the socket says it.
    pub(crate) segment: Option<u16>,
    /// Whether the program names an instant of departure (`SCM_TXTIME`).
    pub(crate) timed: bool,
}

impl Message<'_> {
    /// Returns the length of the payload, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.len()))
    }

    /// Returns the payload in one piece.
    pub(crate) fn payload(&self) -> Vec<u8> {
        self.parts.concat()
    }
}

impl Wishes {
    /// Reads control messages (cmsg(3)) that the kernel has found right.
    pub(crate) fn read(control: &[u8]) -> Self {
        let mut wishes = Self::default();
        for (level, kind, message) in messages(control) {
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_SEGMENT) => {
                    let size = message.get(HEAD..HEAD + 2).and_then(|size| size.try_into().ok());
                    wishes.segment = size.map(u16::from_ne_bytes);
                }
                (libc::SOL_SOCKET, libc::SCM_TXTIME) => wishes.timed = true,
                _ => {}
            }
        }
        wishes
    }
}

/// Length of the head of a control message: its length, its level and its type.
const HEAD: usize = size_of::<usize>() + 2 * size_of::<c_int>();

/// The bits of a traffic class with the ECN code point (RFC 3168).
pub(crate) const ECN: u8 = 0b11;

/// The control message, and the option of a socket, with the traffic class of a datagram: the DSCP
/// and the ECN code point. IPv4 and IPv6 have one each.
const fn class_option(is_v6: bool) -> (c_int, c_int) {
    if is_v6 { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) } else { (libc::IPPROTO_IP, libc::IP_TOS) }
}

/// Returns the priority that control messages give a datagram; `None` if it has that of its socket.
/// As in Linux, the class of a message sets it in IPv4 only.
pub(crate) fn priority(control: &[u8], is_v6: bool) -> Option<u32> {
    if is_v6 { None } else { named_class(control, is_v6).map(frame::priority) }
}

/// Returns the traffic class of a datagram of the socket `fd` with these control messages.
pub(crate) fn class(fd: c_int, control: &[u8], is_v6: bool) -> u8 {
    let (level, kind) = class_option(is_v6);
    let of_socket = || sys::option(fd, level, kind).ok().and_then(|class| class.try_into().ok());
    named_class(control, is_v6).or_else(of_socket).unwrap_or(0)
}

/// Returns the traffic class that control messages name; `None` if it is to be that of the socket.
fn named_class(control: &[u8], is_v6: bool) -> Option<u8> {
    let (_, _, message) = messages(control)
        .filter(|(level, kind, _)| (*level, *kind) == class_option(is_v6))
        .last()?;
    // `IP_TOS` may have one byte instead of four. An `IPV6_TCLASS` of -1 stands for the socket's.
    let len = usize::from_ne_bytes(message.get(..size_of::<usize>())?.try_into().ok()?);
    match message.get(HEAD..len)? {
        [class] => Some(*class),
        number => u8::try_from(c_int::from_ne_bytes(number.try_into().ok()?)).ok(),
    }
}

/// Returns the control messages with this traffic class behind them: of several, the kernel takes
/// the last one.
pub(crate) fn with_class(control: &[u8], is_v6: bool, class: u8) -> Vec<u8> {
    let mut whole = control.to_vec();
    whole.resize(control.len().next_multiple_of(size_of::<usize>()), 0);
    let (level, kind) = class_option(is_v6);
    whole.extend((HEAD + size_of::<c_int>()).to_ne_bytes());
    for number in [level, kind, class.into()] {
        whole.extend(number.to_ne_bytes());
    }
    whole
}

/// Returns each control message with its level and its type, and with the gap behind it.
fn messages(control: &[u8]) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
    let mut rest = control;
    std::iter::from_fn(move || {
        let (whole, level, kind) = first(rest)?;
        let (message, behind) = rest.split_at(whole.min(rest.len()));
        rest = behind;
        Some((level, kind, message))
    })
}

/// Returns the length of the first control message, with the gap behind it, its level and its type.
fn first(control: &[u8]) -> Option<(usize, c_int, c_int)> {
    let (head, _) = control.split_at_checked(HEAD)?;
    let (len, kinds) = head.split_at(size_of::<usize>());
    let len = usize::from_ne_bytes(len.try_into().ok()?);
    let (level, kind) = kinds.split_at(size_of::<c_int>());
    let number = |bytes: &[u8]| bytes.try_into().ok().map(c_int::from_ne_bytes);
    let whole = len.checked_next_multiple_of(size_of::<usize>())?;
    (len >= HEAD && len <= control.len()).then_some((whole, number(level)?, number(kind)?))
}

/// Returns the size of the datagrams into which the kernel cuts all messages of the socket: its
/// option `UDP_SEGMENT`.
pub(crate) fn socket_segment(fd: c_int) -> Option<u16> {
    let size = sys::option(fd, libc::SOL_UDP, libc::UDP_SEGMENT).ok()?;
    u16::try_from(size).ok().filter(|size| *size > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(level: c_int, kind: c_int, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEAD + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn a_message_may_ask_for_segments_or_a_time() {
        let tos = control(libc::IPPROTO_IP, libc::IP_TOS, &[184]);
        let segment = |size: u16| control(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
        let ttl = control(libc::IPPROTO_IP, libc::IP_TTL, &9_u32.to_ne_bytes());
        for size in [0, 1_200] {
            let wishes = Wishes::read(&[&*tos, &*segment(size), &*ttl].concat());
            assert_eq!(wishes, Wishes { segment: Some(size), timed: false });
        }
        assert_eq!(Wishes::read(&[tos, ttl].concat()), Wishes::default());
        let time = control(libc::SOL_SOCKET, libc::SCM_TXTIME, &[0; 8]);
        assert!(Wishes::read(&time).timed);
    }

    #[test]
    fn the_class_of_a_datagram_is_the_last_one_that_is_named() {
        let four = |class: u8| control(libc::IPPROTO_IP, libc::IP_TOS, &[class]);
        let six =
            |class: c_int| control(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class.to_ne_bytes());
        assert_eq!((named_class(&[], false), named_class(&four(2), true)), (None, None));
        let all = [four(184), six(41), control(libc::IPPROTO_IP, libc::IP_TTL, &[9])].concat();
        assert_eq!((named_class(&all, false), named_class(&all, true)), (Some(184), Some(41)));
        assert_eq!(named_class(&[six(41), six(-1)].concat(), true), None);
        for is_v6 in [false, true] {
            let marked = with_class(&all, is_v6, 255);
            assert_eq!(named_class(&marked, is_v6), Some(255));
            assert_eq!(named_class(&marked, !is_v6), named_class(&all, !is_v6));
        }
        let low_delay = control(libc::IPPROTO_IP, libc::IP_TOS, &[0x10]);
        assert_eq!([false, true].map(|is_v6| priority(&low_delay, is_v6)), [Some(6), None]);
        assert_eq!(priority(&six(0x10), true), None);
        // A program need not write the gap behind the last message.
        let short = &four(184)[..HEAD + 1];
        assert_eq!(named_class(&with_class(short, true, 3), false), Some(184));
        assert_eq!(named_class(&with_class(short, true, 3), true), Some(3));
    }

    #[test]
    fn broken_control_messages_end_the_reading() {
        assert_eq!(Wishes::read(&[]), Wishes::default());
        assert_eq!(Wishes::read(&[1; 15]), Wishes::default());
        let mut long = control(0, 0, &[1, 2, 3]);
        long[0] = 200;
        assert_eq!(Wishes::read(&long), Wishes::default());
        long[0] = 3;
        assert_eq!(Wishes::read(&long), Wishes::default());
        long[..8].copy_from_slice(&usize::MAX.to_ne_bytes());
        assert_eq!(Wishes::read(&long), Wishes::default());
    }
}
