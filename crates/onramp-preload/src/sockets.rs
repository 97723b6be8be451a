//! The sockets of the process, as the kernel has them.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;
use rustix::io::Errno;

use crate::joined::AllJoined;
use crate::message;
use crate::notice::tell;
use crate::state::{Route, Sockets};
use crate::sys::{self, Kept, is_of};

/// With so many descriptors, the limit is as usual, and not too low.
const ENOUGH: u64 = 1_024;

/// The sockets from which datagrams have to leave.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Duplicates of descriptors, by the numbers of their sockets.
    kept: HashMap<u64, Arc<Kept>>,
    /// The program's own descriptors of sockets for which there can be no duplicate. They serve as
    /// long as the program leaves them open.
    own: HashMap<u64, c_int>,
    /// The socket whose program is just sending, and its descriptor.
    pub(crate) at_hand: Option<(u64, c_int)>,
    /// The sockets from which nothing may leave before their program has ended a datagram.
    pub(crate) joined: AllJoined,
}

impl Table {
    /// Returns a duplicate of the descriptor `fd` of a socket, which may be the one that is kept.
    /// `None` if there can be none.
    pub(crate) fn duplicate(&self, fd: c_int, socket: u64) -> Option<Arc<Kept>> {
        let kept = self.kept.get(&socket).filter(|kept| kept.fd().is_some());
        kept.cloned().or_else(|| Kept::new(fd, socket).map(Arc::new))
    }

    /// Returns whether a datagram that left the socket now would be glued to one that its program
    /// has begun, or would not leave until its program lets go of it. Of a socket whose program is
    /// just sending, it is known that it is not corked.
    fn is_open(&mut self, fd: c_int, socket: u64) -> bool {
        (self.fd_at_hand(socket).is_none() && sys::is_corked(fd))
            || self.joined.is_open(socket, || sys::holds(fd))
    }

    fn fd_at_hand(&self, socket: u64) -> Option<c_int> {
        self.at_hand.filter(|(number, _)| *number == socket).map(|(_, fd)| fd)
    }
}

impl Sockets for Table {
    fn send(&mut self, route: &Route, ecn: u8, payload: &[u8]) -> Result<(), Errno> {
        let kept = || self.kept.get(&route.socket).and_then(|kept| kept.fd());
        let own = || self.own.get(&route.socket).copied().filter(|fd| is_of(*fd, route.socket));
        let fd = self.fd_at_hand(route.socket).or_else(kept).or_else(own).ok_or(Errno::BADF)?;
        if self.is_open(fd, route.socket) {
            return Err(Errno::AGAIN);
        }
        if ecn == route.ecn {
            return sys::send(fd, &route.name, &route.control, payload, route.flags);
        }
        let is_v6 = address(&route.name).is_some_and(|remote| remote.is_ipv6());
        let class = message::class(fd, &route.control, is_v6) & !message::ECN | ecn;
        let control = message::with_class(&route.control, is_v6, class);
        sys::send(fd, &route.name, &control, payload, route.flags)
    }

    fn keep(&mut self, socket: u64) {
        let Some(fd) = self.fd_at_hand(socket) else { return };
        match self.duplicate(fd, socket) {
            Some(kept) => _ = self.kept.insert(socket, kept),
            None => {
                self.own.insert(socket, fd);
                if is_of(fd, socket) {
                    tell_of_limit(sys::descriptors_max());
                }
            }
        }
    }

    fn release(&mut self, socket: u64) {
        self.kept.remove(&socket);
        self.own.remove(&socket);
    }
}

/// Says once what follows if the process may have so few descriptors that there are too few
/// duplicates.
fn tell_of_limit(most: u64) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    // Relaxed: a flag that says only itself.
    if most < ENOUGH && !TOLD.swap(true, Relaxed) {
        let pid = std::process::id();
        tell(&format!(
            "process {pid} may have {most} descriptors (ulimit -n), too few for the library to \
             keep all sockets open whose datagrams wait: if the program closes one of them, its \
             datagrams are dropped; raise the limit to {ENOUGH}"
        ));
    }
}

/// Reads an address as the kernel has it (`sockaddr_in`, `sockaddr_in6`). An IPv4 address that an
/// IPv6 socket has mapped is an IPv4 address, because IPv4 carries its datagrams.
pub(crate) fn address(name: &[u8]) -> Option<SocketAddr> {
    let at = |at: usize| name.get(at..at + 2).and_then(|two| two.try_into().ok());
    let port = u16::from_be_bytes(at(2)?);
    match c_int::from(u16::from_ne_bytes(at(0)?)) {
        libc::AF_INET => {
            let bits: [u8; 4] = name.get(4..8)?.try_into().ok()?;
            Some((Ipv4Addr::from(bits), port).into())
        }
        libc::AF_INET6 => {
            let bits: [u8; 16] = name.get(8..24)?.try_into().ok()?;
            Some((Ipv6Addr::from(bits).to_canonical(), port).into())
        }
        _ => None,
    }
}

/// Returns an address that a program has passed, without what the kernel does not read: the bytes
/// behind the address, and the padding of an IPv4 address, in which programs leave anything. So the
/// same destination is the same bytes.
pub(crate) fn plain(name: &[u8]) -> Vec<u8> {
    // A family, a port and four bytes of an address, then eight bytes of padding.
    const READ: usize = 8;
    let mut plain = name.to_vec();
    match name.first_chunk().map(|family| c_int::from(u16::from_ne_bytes(*family))) {
        // The kernel takes an address without a family for one of IPv4.
        Some(libc::AF_INET | libc::AF_UNSPEC) => {
            plain.truncate(size_of::<libc::sockaddr_in>());
            plain.iter_mut().skip(READ).for_each(|byte| *byte = 0);
        }
        Some(libc::AF_INET6) => plain.truncate(size_of::<libc::sockaddr_in6>()),
        _ => {}
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_writes_them() {
        let v4 = [&[2, 0, 0x1f, 0x90, 127, 0, 0, 1][..], &[0; 8]].concat();
        assert_eq!(address(&v4), "127.0.0.1:8080".parse().ok());
        let mut v6 = vec![0; 28];
        (v6[0], v6[3], v6[23]) = (10, 53, 1);
        assert_eq!(address(&v6), "[::1]:53".parse().ok());
        let mapped =
            [&[10, 0, 0, 53, 0, 0, 0, 0][..], &[0; 10], &[255, 255, 127, 0, 0, 1], &[0; 4]];
        assert_eq!(address(&mapped.concat()), "127.0.0.1:53".parse().ok());
        assert_eq!((address(&v4[..6]), address(&[1; 28]), address(&[])), (None, None, None));
    }

    #[test]
    fn one_destination_is_the_same_bytes() {
        let v4 = [&[2, 0, 0x1f, 0x90, 127, 0, 0, 1][..], &[0; 8]].concat();
        let rubbish = [&v4[..8], &[7; 8]].concat();
        assert_eq!(plain(&rubbish), v4);
        assert_eq!(plain(&[&rubbish[..], &[7; 112]].concat()), v4);
        let of_no_family = [&[0; 2], &v4[2..]].concat();
        assert_eq!(plain(&[&of_no_family[..8], &[7; 20]].concat()), of_no_family);
        // The kernel reads the flow label and the scope, and takes an address without a scope.
        let v6 = [&[10, 0][..], &[5; 26]].concat();
        assert_eq!(plain(&[&v6[..], &[7; 100]].concat()), v6);
        assert_eq!(plain(&v6[..24]), v6[..24]);
        for name in [&[][..], &[2], &v4[..6], &[1; 28]] {
            assert_eq!(plain(name), name);
        }
    }
}
