//! A detour: the packets that a host sends through one of its interfaces, or those that come in
//! through it, pass through this program before they go on.
//!
//! Each direction has a TAP of its own, which the kernel names `onramp0` and so on. A program in
//! the kernel stands at the interface and leads its packets to the TAP, where the receiver reads
//! them. Frames that the device gets go on as if nothing had happened: out through the interface,
//! or in through it to the host. The program knows these frames, those that leave by the socket
//! that sends them, and those that come in by a mark, and does not lead them round again.
//!
//! Addresses, routes and the other settings of the interface stay as they are. Without a
//! [`Switch`] that is on, and when the [`Detour`] is dropped or the process ends, also after
//! `kill -9`, the kernel takes the program away from the interface, and packets take the straight
//! way. Frames that are on the detour at that moment are lost.
//!
//! * `tcpdump` looks in front of the ingress hook, so it shows a packet that comes in twice.
//! * A packet loses its mark, priority and time stamp on the way. Filters and qdiscs behind the
//!   detour cannot use them, nor can PTP.
//! * The TAP has room for 4,096 frames. If the program reads too late, the kernel drops further
//!   frames, which [`Receive::missed`] counts.
//! * The kernel leaves the program at an interface that is moved to another network namespace.
//!   Until the receiver is called and notices, packets go to the interface there that has the TAP's
//!   number.
//! * A direction of an interface has one detour, or one bridge, at a time: packets that have left
//!   one detour would enter a second one and then the first one again, and a bridge would carry
//!   what comes in twice.
//!
//! Source: Linux `Documentation/bpf`, `include/uapi/linux/bpf.h` (`BPF_TCX_EGRESS`, Linux 6.6).

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::{Packet, PacketList};

use crate::claim::{Claim, Use};
use crate::packet::{PacketOptions, PacketSocket};
use crate::receive::Receive;
use crate::sys::{self, Hook, Known, Maker, PacketFd, Side};
use crate::tap::{Tap, TapOptions, TapReceiver};

/// Number of frames that the TAP holds until they are read.
const ROOM: u16 = 4_096;
/// Largest MTU of a TAP, bytes.
const TAP_MTU_MAX: u32 = 65_521;

/// Receives the packets of one direction of an interface, while its [`Switch`] is on. The detour
/// ends when the value is dropped.
///
/// If the interface or the TAP is removed or moved to another network namespace, or the TAP is set
/// down, the next call that finds no frame returns an error. The descriptor ([`AsFd`]) does not
/// tell of that.
#[derive(Debug)]
pub struct Detour {
    /// Fields are dropped in this order: packets take the straight way again before the TAP
    /// disappears.
    switch: Switch,
    /// Keeps packets out of the TAP that were not led there.
    _keeper: Hook,
    tap: TapReceiver,
    /// Sockets that are bound to the interface and to the TAP, to notice that one is gone.
    guards: [Guard; 2],
    /// Keeps other programs from the same direction of the interface.
    _claim: Claim,
    maker: Maker,
}

/// A socket that is bound to an interface.
#[derive(Debug)]
struct Guard {
    name: String,
    index: i32,
    fd: PacketFd,
}

impl Guard {
    fn new(name: &str) -> io::Result<Self> {
        let (index, fd) = (sys::interface_index(name)?, PacketFd::open()?);
        fd.bind(index, false)?;
        Ok(Self { name: name.to_owned(), index, fd })
    }

    const fn number(&self) -> u32 {
        self.index.cast_unsigned()
    }
}

/// The way of frames into the host: what is written into the TAP comes in through the interface.
struct Entrance {
    tap: Tap,
    _forward: Hook,
}

impl Device for Entrance {
    fn info(&self) -> &DeviceInfo {
        self.tap.info()
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        self.tap.transmit(burst, done, now)
    }
}

/// Leads packets to a [`Detour`], or lets them take the straight way. It has no effect any more
/// after the detour was dropped. Clones switch the same detour.
#[derive(Clone, Debug)]
pub struct Switch(Arc<Mutex<Diversion>>);

#[derive(Debug)]
struct Diversion {
    interface: u32,
    side: Side,
    tap: u32,
    mark: u32,
    known: Known,
    /// Leads packets to the TAP, while the switch is on.
    hook: Option<Hook>,
    is_over: bool,
}

impl Switch {
    /// Switches the detour on or off.
    ///
    /// # Errors
    ///
    /// The kernel's error if it does not take the program, for example because the interface is
    /// gone.
    pub fn set(&self, on: bool) -> io::Result<()> {
        let mut it = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        it.hook = match it.hook.take() {
            Some(hook) if on => Some(hook),
            None if on && !it.is_over => {
                Some(Hook::divert(it.interface, it.side, it.tap, it.mark, it.known)?)
            }
            _ => None,
        };
        Ok(())
    }

    fn end(&self) {
        let mut it = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (it.hook, it.is_over) = (None, true);
    }
}

impl Detour {
    /// Prepares a detour for one direction of the Ethernet interface `name` of the calling thread's
    /// network namespace. Returns the receiver, and the device from which packets go on. Packets
    /// take the detour when its [switch](Self::switch) is on; then frames wait for the receiver
    /// until the TAP is full.
    ///
    /// `seed` is that of the hash that tells flows apart, see
    /// [`frame::describe`](onramp_core::frame::describe).
    ///
    /// # Errors
    ///
    /// The text of the error says what is wrong: there is no such interface (`NotFound`), it is not
    /// an Ethernet (`InvalidInput`), its direction has a detour already, or a bridge carries what
    /// comes in (`ResourceBusy`), the kernel is older than Linux 6.6 or has no BPF (`Unsupported`),
    /// or the program may not do this (`PermissionDenied`): that needs `CAP_NET_ADMIN`,
    /// `CAP_NET_RAW` and `CAP_BPF`. Root has them, but not in a user namespace.
    pub fn lay(name: &str, side: Side, seed: u64) -> io::Result<(Self, Box<dyn Device>)> {
        Self::prepare(name, side, seed).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let why = format!(
                    "detour at {name}: this needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF: run as \
                     root, outside of user namespaces ({error})"
                );
                io::Error::new(error.kind(), why)
            }
            _ => error,
        })
    }

    fn prepare(name: &str, side: Side, seed: u64) -> io::Result<(Self, Box<dyn Device>)> {
        // Never 0, which is the mark of packets without a mark.
        let [a, b, c, d, ..] = RandomState::new().hash_one(name).to_ne_bytes();
        let mark = 1 | u32::from_ne_bytes([a, b, c, d]);
        let options = PacketOptions { seed, ..PacketOptions::default() };
        let socket = PacketSocket::open(name, options)?;
        let guard = Guard::new(name)?;
        let interface = guard.number();
        let what = match side {
            Side::Egress => Use::Egress,
            // A bridge would carry what comes in twice.
            Side::Ingress => Use::Bridge,
        };
        let claim = Claim::take(name, interface, what)?;
        let options = TapOptions { seed, ..TapOptions::default() };
        let tap = Tap::open("onramp%d", options).map_err(|error| told(&error, "a TAP"))?;
        let tap = tap.with_mtu(sys::interface_mtu(name)?.min(TAP_MTU_MAX))?;
        sys::set_queue_length(tap.name(), ROOM)?;
        // Without this, the kernel would look for IPv6 routers through the TAP. The file does not
        // exist in a kernel without IPv6.
        let file = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", tap.name());
        drop(fs::write(file, "1"));
        let guards = [guard, Guard::new(tap.name())?];
        let to = guards[1].number();
        let hook = |made: io::Result<Hook>| made.map_err(|error| refused(&error, name));
        let keeper = hook(Hook::guard(to, mark))?;
        tap.set_up()?;
        let receiver = tap.receiver();
        let (known, device): (_, Box<dyn Device>) = match side {
            Side::Egress => (Known::Socket(socket.cookie()?), Box::new(socket)),
            Side::Ingress => {
                let forward = hook(Hook::forward(to, interface, mark))?;
                (Known::Mark, Box::new(Entrance { tap, _forward: forward }))
            }
        };
        let diversion =
            Diversion { interface, side, tap: to, mark, known, hook: None, is_over: false };
        let detour = Self {
            switch: Switch(Arc::new(Mutex::new(diversion))),
            _keeper: keeper,
            tap: receiver,
            guards,
            _claim: claim,
            maker: Maker::this_process(),
        };
        Ok((detour, device))
    }

    /// Returns the switch of the detour, which is off at first.
    #[must_use]
    pub fn switch(&self) -> Switch {
        self.switch.clone()
    }
}

impl Drop for Detour {
    fn drop(&mut self) {
        // In a child of `fork`, another thread of the parent may have held the switch's lock. The
        // parent still has the detour.
        if self.maker.is_here() {
            self.switch.end();
        }
    }
}

impl Receive for Detour {
    fn receive(
        &mut self,
        most: usize,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
        into: &mut PacketList,
    ) -> io::Result<usize> {
        let count = self.tap.receive(most, make, into)?;
        if count == 0 {
            self.guards.iter().try_for_each(|guard| guard.fd.check(&guard.name))?;
            let tap = &self.guards[1];
            if !tap.fd.has_carrier(tap.index) {
                // Packets that are led to it would be lost.
                let why = format!("the interface {} was set down", tap.name);
                return Err(io::Error::new(io::ErrorKind::NetworkDown, why));
            }
        }
        Ok(count)
    }

    fn discarded(&self) -> u64 {
        self.tap.discarded()
    }

    fn missed(&self) -> u64 {
        let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        dropped(&text, &self.guards[1].name)
    }
}

impl AsFd for Detour {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }
}

/// Returns how many packets to the interface `name` were dropped, by the text of `/proc/net/dev`.
/// Behind the name stand eight numbers about packets that came in, then bytes, packets, errors and
/// drops of those that went out.
fn dropped(text: &str, name: &str) -> u64 {
    let line =
        text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().nth(11)?.parse().ok());
    number.unwrap_or(0)
}

fn told(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Says what to do about a program that the kernel does not take.
fn refused(error: &io::Error, name: &str) -> io::Error {
    let (kind, why) = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            (io::ErrorKind::PermissionDenied, "the kernel takes no program")
        }
        Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP) => {
            (io::ErrorKind::Unsupported, "this needs Linux 6.6 with CONFIG_BPF_SYSCALL")
        }
        _ => (error.kind(), "the kernel refuses a program there"),
    };
    io::Error::new(kind, format!("detour at {name}: {why}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_stand_in_the_twelfth_column() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo:     100       2    0    7    0     0          0         0      100       2    0    8    0
onramp1:       0       0    0    0    0     0          0         0     1500       1    0    9    0
onramp10:      0       0    0    0    0     0          0         0     1500       1    0    3    0
";
        assert_eq!(dropped(text, "onramp1"), 9);
        assert_eq!(dropped(text, "onramp10"), 3);
        assert_eq!(dropped(text, "onramp2"), 0);
    }
}
