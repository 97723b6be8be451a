//! A detour: the packets that a host sends through one of its interfaces, or those that come in
//! through it, pass through this program before they go on.
//!
//! Each direction has a TAP of its own, which the kernel names `onramp0` and so on. A program in
//! the kernel stands at the interface and leads its packets to the TAP, where the receiver reads
//! them. What is sent to the device goes on as if nothing had happened: out through the interface,
//! or in through it to the host. A mark, a random number that the kernel keeps beside such a
//! packet, tells the program at the interface not to lead it round again.
//!
//! Addresses, routes and the other settings of the interface stay as they are. The programs and the
//! TAP disappear with the [`Detour`], and with the process, also after `kill -9`; then the
//! packets take the straight way again. Frames that are on the detour at that moment are lost.
//!
//! | fact | consequence |
//! |---|---|
//! | `tcpdump` looks in front of the ingress hook | it shows a packet that comes in twice |
//! | a packet loses its mark, priority and time stamp on the way | filters and qdiscs behind the detour cannot use them |
//! | the TAP has room for 500 frames | when the program is late, further frames are lost, and [counted](Receive::missed) |
//!
//! Source: Linux `Documentation/bpf`, `include/uapi/linux/bpf.h` (`BPF_TCX_EGRESS`, Linux 6.6).

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use onramp_core::Device;
use onramp_queue::{Packet, PacketList};

use crate::packet::{PacketOptions, PacketSocket};
use crate::receive::Receive;
use crate::sys::{self, Hook, PacketFd, Side};
use crate::tap::{Tap, TapOptions, TapReceiver};

/// Receives the packets of one direction of an interface, which are led through this program. The
/// detour ends when the value is dropped.
///
/// If the interface is removed, or moved to another network namespace, the next call that finds no
/// frame returns an error. The descriptor ([`AsFd`]) does not tell of that.
#[derive(Debug)]
pub struct Detour {
    /// Fields are dropped in this order: the packets take the straight way again before the TAP
    /// disappears.
    _hooks: Vec<Hook>,
    tap: TapReceiver,
    tap_name: String,
    /// A socket that is bound to the interface, to notice that the interface is gone.
    guard: PacketFd,
    name: String,
}

impl Detour {
    /// Leads the packets of one side of the Ethernet interface `name` of the calling thread's
    /// network namespace through the program. The detour begins at once: frames wait for the
    /// receiver until the TAP is full. Returns the receiver, and the device from which the packets
    /// go on.
    ///
    /// `seed` is that of the hash that tells flows apart, see
    /// [`frame::describe`](onramp_core::frame::describe).
    ///
    /// # Errors
    ///
    /// The text of the error says what is wrong: there is no such interface (`NotFound`), it is not
    /// an Ethernet (`InvalidInput`), the kernel is older than Linux 6.6 or has no BPF
    /// (`Unsupported`), or the program may not do this (`PermissionDenied`): that needs
    /// `CAP_NET_ADMIN`, `CAP_NET_RAW` and `CAP_BPF`. Root has them, but not in a user namespace.
    pub fn begin(name: &str, side: Side, seed: u64) -> io::Result<(Self, Box<dyn Device>)> {
        // Never 0, which is the mark of packets without a mark.
        let [a, b, c, d, ..] = RandomState::new().hash_one(name).to_ne_bytes();
        let mark = 1 | u32::from_ne_bytes([a, b, c, d]);
        let options = PacketOptions { mark, seed, ..PacketOptions::default() };
        let socket = PacketSocket::open(name, options)?;
        let interface = sys::interface_index(name)?;
        let guard = PacketFd::open()?;
        guard.bind(interface, false)?;
        let options = TapOptions { seed, ..TapOptions::default() };
        let tap = Tap::open("onramp%d", options).map_err(|error| told(&error, "a TAP"))?;
        let tap = tap.with_mtu(sys::interface_mtu(name)?)?;
        // Without this, the kernel would look for IPv6 routers through the TAP. The file does not
        // exist in a kernel without IPv6.
        let file = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", tap.name());
        drop(fs::write(file, "1"));
        let number = |index: i32| index.cast_unsigned();
        let (to, interface) = (number(sys::interface_index(tap.name())?), number(interface));
        let hook = |made: io::Result<Hook>| made.map_err(|error| refused(&error, name));
        let mut hooks = vec![hook(Hook::guard(to, mark))?];
        if side == Side::Ingress {
            hooks.push(hook(Hook::forward(to, interface, mark))?);
        }
        tap.set_up()?;
        hooks.push(hook(Hook::divert(interface, side, to, mark))?);
        // The last hook is the first to be taken away.
        hooks.reverse();
        let receiver = Self {
            _hooks: hooks,
            guard,
            tap: tap.receiver(),
            tap_name: tap.name().to_owned(),
            name: name.to_owned(),
        };
        let device: Box<dyn Device> = match side {
            Side::Egress => Box::new(socket),
            Side::Ingress => Box::new(tap),
        };
        Ok((receiver, device))
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
            self.guard.check(&self.name)?;
        }
        Ok(count)
    }

    fn discarded(&self) -> u64 {
        self.tap.discarded()
    }

    fn missed(&self) -> u64 {
        let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        dropped(&text, &self.tap_name)
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
        Some(libc::EPERM | libc::EACCES) => (
            io::ErrorKind::PermissionDenied,
            "this needs CAP_NET_ADMIN and CAP_BPF: run as root, outside of user namespaces",
        ),
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
