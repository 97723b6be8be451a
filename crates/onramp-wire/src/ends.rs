//! The interfaces at the two ends of a wire, and what the bridge holds of them.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use onramp_core::Device;
use onramp_dev::{
    PacketOptions, PacketReceiver, PacketSocket, Receive, Tap, TapOptions, add_interface_address,
    set_interface_mtu, set_interface_up,
};

use crate::veth;
use crate::{Space, SpaceError};

/// Lengths of the networks' prefixes.
const PREFIX: u8 = 24;
const PREFIX6: u8 = 64;
/// The pause between two looks whether an IPv6 address can be used, and the number of looks after
/// which the program goes on all the same: far more than the kernel needs.
const LOOK: Duration = Duration::from_millis(1);
const LOOKS: u32 = 5_000;
/// Flag of an address that the kernel does not use yet (`IFA_F_TENTATIVE` of Linux
/// `include/uapi/linux/if_addr.h`).
const TENTATIVE: u32 = 0x40;
/// Name of the interface at each end.
const NAME: &str = "wire0";

/// What the ends of a wire are. Programs at the ends see an interface `wire0` in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ends {
    /// TAPs, or veth pairs where the kernel does not let the program open `/dev/net/tun`:
    /// [`Wire::fallback`](crate::Wire::fallback) says so.
    #[default]
    Any,
    /// TAPs, or an error.
    Tap,
    /// veth pairs, whose other interfaces are in a third network namespace, in which packet sockets
    /// (`AF_PACKET`) read and write them. They need no `/dev/net/tun`, but more processor time.
    Packet,
}

/// How the ends are to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) mtu: u32,
    pub(crate) offload: bool,
    pub(crate) seed: u64,
}

/// A namespace and its addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'s> {
    pub(crate) space: &'s Space,
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

/// One end, as the bridge sees it.
pub(crate) struct End {
    /// What the end sends.
    pub(crate) from: Box<dyn Receive>,
    /// Where to send what the end is to receive.
    pub(crate) to: Box<dyn Device>,
}

/// Makes both ends. Also returns why they are no TAPs, if they may have been.
pub(crate) fn make(
    places: [Place<'_>; 2],
    how: How,
    ends: Ends,
) -> Result<([End; 2], Option<String>), SpaceError> {
    let taps = || {
        let [near, far] = places;
        Ok([tap(near, how)?, tap(far, how)?])
    };
    match ends {
        Ends::Tap => Ok((taps().map_err(SpaceError::tap)?, None)),
        Ends::Packet => Ok((pairs(places, how)?, None)),
        Ends::Any => match taps() {
            Ok(taps) => Ok((taps, None)),
            Err(error) if is_closed(&error) => {
                let why = format!("cannot open /dev/net/tun: {error}");
                match pairs(places, how) {
                    Ok(pairs) => Ok((pairs, Some(why))),
                    Err(error) => Err(error.after(why)),
                }
            }
            Err(error) => Err(SpaceError::tap(error)),
        },
    }
}

/// Whether the error means that there is no `/dev/net/tun`, or that it is closed.
fn is_closed(error: &io::Error) -> bool {
    let closed = [Errno::ENOENT, Errno::ENODEV, Errno::ENXIO, Errno::EACCES, Errno::EPERM];
    closed.contains(&Errno::from_raw(error.raw_os_error().unwrap_or(0)))
}

/// Makes one end of TAPs.
fn tap(place: Place<'_>, how: How) -> io::Result<End> {
    let Place { space, v4, v6 } = place;
    let How { mtu, offload, seed } = how;
    let options = TapOptions { offload, seed, ..TapOptions::default() };
    let tap = space.run(move || {
        let tap = Tap::open(NAME, options)?.with_mtu(mtu)?;
        set_up(v4, v6)?;
        io::Result::Ok(tap)
    })?;
    Ok(End { from: Box::new(tap.receiver()), to: Box::new(tap) })
}

/// Makes both ends of veth pairs. Their other interfaces are in a namespace of their own, which the
/// packet sockets keep: so `wire0` is the only interface that programs see.
fn pairs(places: [Place<'_>; 2], how: How) -> Result<[End; 2], SpaceError> {
    let hidden = Space::new()?;
    // Otherwise, the kernel would send packets of its own into the wire from there. In a namespace
    // without IPv6, the file does not exist.
    hidden.run(|| drop(fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")));
    let [near, far] = places;
    let pair = |place, name| pair(&hidden, name, place, how).map_err(SpaceError::pair);
    Ok([pair(near, "client")?, pair(far, "server")?])
}

/// Makes one end of veth pairs; `name` is the name of the other interface, in `hidden`.
fn pair(hidden: &Space, name: &'static str, place: Place<'_>, how: How) -> io::Result<End> {
    let Place { space, v4, v6 } = place;
    let there = space.run(|| File::open("/proc/thread-self/ns/net"))?;
    let (socket, receiver) = hidden.run(move || {
        veth::add(name, NAME, &there)?;
        set_interface_mtu(name, how.mtu)?;
        // The interface that is set up last can send at once. The other one can only when the
        // kernel has noticed its carrier, and frames that its qdisc gets before are lost; packet
        // sockets pass by the qdisc. They also learn from this when a program has set `wire0` down.
        set_interface_up(name)?;
        let (offload, seed) = (how.offload, how.seed);
        let options = PacketOptions { offload, seed, bypass: true, ..PacketOptions::default() };
        let mut socket = PacketSocket::open(name, options)?;
        let receiver = socket.receiver()?;
        io::Result::<(PacketSocket, PacketReceiver)>::Ok((socket, receiver))
    })?;
    space.run(move || {
        set_interface_mtu(NAME, how.mtu)?;
        set_up(v4, v6)
    })?;
    Ok(End { from: Box::new(receiver), to: Box::new(socket) })
}

/// Gives the interface of one end its addresses, and sets it up.
fn set_up(v4: Ipv4Addr, v6: Ipv6Addr) -> io::Result<()> {
    // Without this, the kernel looks for another owner of an IPv6 address for a second before it
    // uses the address. In a namespace without IPv6, the file does not exist.
    drop(fs::write(format!("/proc/sys/net/ipv6/conf/{NAME}/accept_dad"), "0"));
    add_interface_address(NAME, v4.into(), PREFIX)?;
    set_interface_up(NAME)?;
    match add_interface_address(NAME, v6.into(), PREFIX6) {
        // A kernel without IPv6, or one that has switched it off.
        Err(error) if without_v6(&error) => Ok(()),
        Err(error) => Err(error),
        Ok(()) => {
            // The kernel leaves even the decision not to look for another owner to a work queue.
            // Until that has run, which takes a while on a busy machine, it neither sends from the
            // address nor answers who has it.
            for _ in 0..LOOKS {
                if is_usable(v6)? {
                    break;
                }
                thread::sleep(LOOK);
            }
            Ok(())
        }
    }
}

/// Whether the kernel uses this address of the calling thread's network namespace: it is not
/// tentative any more, and packets to it have a route, which the kernel adds a moment later.
fn is_usable(address: Ipv6Addr) -> io::Result<bool> {
    let read = |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let digits = format!("{:032x}", address.to_bits());
    Ok(is_settled(&read("if_inet6")?, &digits) && has_route(&read("ipv6_route")?, &digits))
}

/// Whether `/proc/net/if_inet6` has the address without the flag of a tentative one. A line has the
/// address, the number of the interface, the length of the prefix, the scope, the flags and the
/// name.
fn is_settled(addresses: &str, digits: &str) -> bool {
    let mut lines = addresses.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let flags = lines.find_map(|words| match words[..] {
        [address, _, _, _, flags, _] if address == digits => u32::from_str_radix(flags, 16).ok(),
        _ => None,
    });
    flags.is_some_and(|flags| flags & TENTATIVE == 0)
}

/// Whether `/proc/net/ipv6_route` has a route for this single address. A line begins with the
/// destination and the length of its prefix.
fn has_route(routes: &str, digits: &str) -> bool {
    routes.lines().any(|line| line.starts_with(&format!("{digits} 80 ")))
}

fn without_v6(error: &io::Error) -> bool {
    let none = [Errno::EAFNOSUPPORT, Errno::EACCES, Errno::EOPNOTSUPP];
    none.contains(&Errno::from_raw(error.raw_os_error().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_usable_when_it_is_settled_and_has_a_route() {
        let digits = format!("{:032x}", crate::SERVER6.to_bits());
        assert_eq!(digits, "20010db8000000000000000000000002");
        let other = "fe800000000000000000000000000001 02 40 20 80    wire0\n";
        for (flags, settled) in [("40", false), ("c0", false), ("80", true), ("00", true)] {
            let text = format!("{other}{digits} 02 40 00 {flags}    wire0\n");
            assert_eq!(is_settled(&text, &digits), settled, "{flags}");
        }
        assert!(!is_settled(other, &digits));
        let zero = "0".repeat(32);
        let route = |destination: &str, prefix: &str| {
            format!("{destination} {prefix} {zero} 00 {zero} 00000100 00000001 00000000 1 wire0\n")
        };
        let network = route("20010db8000000000000000000000000", "40");
        assert!(!has_route(&network, &digits));
        assert!(has_route(&(network + &route(&digits, "80")), &digits));
    }

    /// The kernel uses the addresses when the interface is made, and not some time later. Only root
    /// can make a namespace without leaving its own.
    #[test]
    fn the_addresses_can_be_used_at_once() {
        for _ in 0..10 {
            let space = match Space::new() {
                Ok(space) => space,
                Err(error) => return eprintln!("skipped: {error}"),
            };
            let (v4, v6) = (crate::CLIENT, crate::CLIENT6);
            let how = How { mtu: 1_500, offload: true, seed: 1 };
            let end = match tap(Place { space: &space, v4, v6 }, how) {
                Ok(end) => end,
                Err(error) => return eprintln!("skipped: {error}"),
            };
            let usable = space.run(move || {
                let has_v6 = std::path::Path::new("/proc/thread-self/net/if_inet6").exists();
                !has_v6 || is_usable(v6).expect("the files can be read")
            });
            assert!(usable);
            drop(end);
        }
    }

    #[test]
    fn only_a_closed_device_has_a_substitute() {
        for errno in [Errno::ENOENT, Errno::ENODEV, Errno::ENXIO, Errno::EACCES, Errno::EPERM] {
            assert!(is_closed(&errno.into()), "{errno}");
        }
        for errno in [Errno::EBUSY, Errno::EINVAL, Errno::EMFILE, Errno::ENOMEM] {
            assert!(!is_closed(&errno.into()), "{errno}");
        }
        assert!(!is_closed(&io::Error::other("a text")));
    }
}
