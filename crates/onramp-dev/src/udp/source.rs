//! Local addresses from which UDP sockets send.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::num::NonZero;
use std::sync::{Mutex, OnceLock, PoisonError};

/// A local address, and an interface, from which a UDP socket sends datagrams (`IP_PKTINFO`,
/// `IPV6_PKTINFO`): `ip(7)`, `ipv6(7)`, RFC 3542.
///
/// A socket that is bound to no address (`0.0.0.0`, `::`) sends from the address that the routing
/// table chooses. A server with several addresses has to answer from the one that it was asked on:
/// make a `Source` of the address to which the request came ([`frame::Datagram`]), and give it to
/// the flow of the answers.
///
/// The process keeps one number for each pair of address and interface, at most 32,767 in all, and
/// never forgets one. So make sources of addresses of this machine, not of every address that a
/// stranger names.
///
/// [`frame::Datagram`]: onramp_core::frame::Datagram
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(NonZero<u16>);

/// What a [`Source`] stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Local {
    pub(super) addr: IpAddr,
    pub(super) interface: u32,
}

impl Source {
    /// Returns the source for `addr`, an address of this machine, and the interface with this index
    /// (`if_nametoindex(3)`). An unspecified address (`0.0.0.0`, `::`) leaves the choice of the
    /// address to the system, the index 0 that of the interface.
    ///
    /// The kernel checks the address when it sends: datagrams from an address that is not of this
    /// machine, or not of the family of their destination, are dropped as `DeviceError` or
    /// `Unreachable`.
    ///
    /// # Errors
    ///
    /// `QuotaExceeded` if the process has made 32,767 other sources.
    pub fn new(addr: IpAddr, interface: u32) -> io::Result<Self> {
        SOURCES.number(Local { addr, interface }).map(Self)
    }

    /// Returns the number by which packets name the source: see
    /// [`Packet::set_source`](onramp_queue::Packet::set_source).
    #[must_use]
    pub const fn number(self) -> NonZero<u16> {
        self.0
    }
}

/// Returns what the source with this number stands for; `None` if nobody has made this source.
#[inline]
pub(super) fn local(number: NonZero<u16>) -> Option<Local> {
    SOURCES.local(number)
}

static SOURCES: Sources = Sources {
    numbers: Mutex::new(BTreeMap::new()),
    chunks: [const { OnceLock::new() }; u16::BITS as usize],
};

/// The largest number of a source that a packet has room for.
const LAST: u16 = 32_767;

/// The sources of the process. A thread that sends looks them up by number, without a lock.
struct Sources {
    numbers: Mutex<BTreeMap<Local, NonZero<u16>>>,
    /// Chunk `k` has the places of the numbers from 2^k to 2^(k + 1) - 1.
    chunks: [OnceLock<Box<[OnceLock<Local>]>>; u16::BITS as usize],
}

impl Sources {
    fn number(&self, local: Local) -> io::Result<NonZero<u16>> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = numbers.get(&local) {
            return Ok(*number);
        }
        let next = u16::try_from(numbers.len() + 1).ok().filter(|next| *next <= LAST);
        let next = next.and_then(NonZero::new);
        let number = next.ok_or_else(|| {
            let why = "the process has made 32767 sources of UDP datagrams, and may make no more";
            io::Error::new(io::ErrorKind::QuotaExceeded, why)
        })?;
        let (chunk, place) = split(number);
        let places = self.chunks[chunk]
            .get_or_init(|| (0..1_usize << chunk).map(|_| OnceLock::new()).collect());
        let _ = places[place].set(local);
        numbers.insert(local, number);
        Ok(number)
    }

    #[inline]
    fn local(&self, number: NonZero<u16>) -> Option<Local> {
        let (chunk, place) = split(number);
        self.chunks[chunk].get()?[place].get().copied()
    }
}

/// Returns the chunk of a number, and its place there.
#[inline]
fn split(number: NonZero<u16>) -> (usize, usize) {
    let chunk = number.ilog2() as usize;
    (chunk, usize::from(number.get()) - (1 << chunk))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn each_pair_has_a_number_until_there_is_none_left() {
        let sources =
            Sources { numbers: Mutex::default(), chunks: [const { OnceLock::new() }; 16] };
        let local = |n: u32| Local { addr: Ipv4Addr::from(n).into(), interface: n % 3 };
        for n in 0..32_767 {
            let number = sources.number(local(n)).expect("there is one left");
            assert_eq!((u32::from(number.get()), sources.local(number)), (n + 1, Some(local(n))));
        }
        assert_eq!(sources.number(local(7)).expect("it has one").get(), 8);
        let full = sources.number(local(32_767)).expect_err("there is none left");
        assert_eq!(full.kind(), io::ErrorKind::QuotaExceeded);
    }

    #[test]
    fn a_number_that_nobody_made_stands_for_nothing() {
        let sources =
            Sources { numbers: Mutex::default(), chunks: [const { OnceLock::new() }; 16] };
        sources.number(Local { addr: Ipv4Addr::LOCALHOST.into(), interface: 0 }).expect("a place");
        for number in [2, 3, 4, u16::MAX] {
            assert_eq!(sources.local(NonZero::new(number).expect("not zero")), None);
        }
    }
}
