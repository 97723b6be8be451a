//! A call of the program that sends.

use std::net::SocketAddr;
use std::sync::Arc;

use libc::c_int;

use crate::message::{self, Message, Wishes};
use crate::sockets::{address, plain};
use crate::state::{Datagram, Route};
use crate::sys::{self, Kept};

/// Messages up to this length are not cut into segments if only an option of the socket, and not
/// the message itself, asks for it: asking for the option takes a system call.
const WHOLE: usize = 512;

/// What a program sends by one call: one datagram, or several of equal length.
#[derive(Debug)]
pub(crate) struct Sending {
    /// The descriptor: the program's, or a duplicate.
    pub(crate) fd: c_int,
    /// The duplicate, which the call makes before it waits.
    pub(crate) kept: Option<Arc<Kept>>,
    pub(crate) flags: c_int,
    pub(crate) route: Route,
    pub(crate) payload: Vec<u8>,
    segment: usize,
    remote: Option<SocketAddr>,
    priority: u32,
    mark: u32,
}

impl Sending {
    /// Reads a message that the kernel has found right. Returns `None` if it cannot wait, because
    /// the program has chosen its instant, or if it has no address any more.
    pub(crate) fn new(fd: c_int, socket: u64, message: &Message<'_>, flags: c_int) -> Option<Self> {
        let wishes = Wishes::read(message.control);
        if wishes.timed {
            return None;
        }
        let name = match message.name {
            // The socket may be connected to another address before the datagram leaves.
            [] => sys::name_of_peer(fd)?,
            name => plain(name),
        };
        let of_socket = || if message.len() > WHOLE { message::socket_segment(fd) } else { None };
        // A message with a size of 0 is one datagram, whatever the socket asks for.
        let segment = wishes.segment.or_else(of_socket).filter(|size| *size > 0);
        let option = |name| {
            let value = sys::option(fd, libc::SOL_SOCKET, name).ok();
            value.and_then(|value| u32::try_from(value).ok()).unwrap_or(0)
        };
        // The size of segments goes with each segment: it keeps the kernel from cutting the segment
        // once more, by the option of the socket.
        let (remote, control) = (address(&name), message.control.to_vec());
        let is_v6 = remote.is_some_and(|remote| remote.is_ipv6());
        let class = message::class(fd, &control, is_v6);
        let priority = message::priority(&control, is_v6);
        Some(Self {
            fd,
            kept: None,
            flags,
            remote,
            route: Route {
                socket,
                name,
                control,
                flags: flags & sys::LASTING,
                ecn: class & message::ECN,
            },
            payload: message.payload(),
            segment: segment.map_or(usize::MAX, usize::from),
            priority: priority.unwrap_or_else(|| option(libc::SO_PRIORITY)),
            mark: option(libc::SO_MARK),
        })
    }

    /// Returns whether there is still a descriptor of the socket, after a wait in which the program
    /// may have closed its own one.
    pub(crate) fn is_open(&mut self) -> bool {
        let kept = self.kept.as_ref().and_then(|kept| kept.fd());
        self.fd = kept.unwrap_or(self.fd);
        kept.is_some() || sys::is_of(self.fd, self.route.socket)
    }

    /// Returns whether the kernel would cut the message into as many datagrams as it asks for.
    pub(crate) fn is_cut(&self) -> bool {
        sys::cuts(self.payload.len().div_ceil(self.segment))
    }

    /// Returns the address of the socket.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        sys::name_of_socket(self.fd).and_then(|name| address(&name))
    }

    /// Returns the largest payload of a datagram that IP can carry, in bytes.
    pub(crate) const fn largest(&self) -> usize {
        match self.remote {
            Some(SocketAddr::V6(_)) => 65_527,
            _ => 65_507,
        }
    }

    /// Returns how many bytes may wait for the socket (`SO_SNDBUF`).
    pub(crate) fn send_buffer(&self) -> u64 {
        sys::option(self.fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(u64::MAX)
    }

    /// Returns the datagrams. `local` is the address of the socket.
    pub(crate) fn datagrams(
        &self,
        local: Option<SocketAddr>,
    ) -> impl Iterator<Item = Datagram<'_>> {
        // An empty message is one empty datagram.
        let empty = self.payload.is_empty().then_some(&[][..]);
        self.payload.chunks(self.segment).chain(empty).map(move |payload| Datagram {
            route: &self.route,
            payload,
            local,
            remote: self.remote,
            priority: self.priority,
            mark: self.mark,
        })
    }
}
