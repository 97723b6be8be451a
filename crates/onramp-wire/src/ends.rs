//! The interfaces at the two ends of a wire, and what the bridge holds of them.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

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
    // Without this, the kernel does not use an IPv6 address before it has looked for another owner
    // for a second. In a namespace without IPv6, the file does not exist.
    drop(fs::write(format!("/proc/sys/net/ipv6/conf/{NAME}/accept_dad"), "0"));
    add_interface_address(NAME, v4.into(), PREFIX)?;
    set_interface_up(NAME)?;
    match add_interface_address(NAME, v6.into(), PREFIX6) {
        // A kernel without IPv6, or one that has switched it off.
        Err(error) if without_v6(&error) => Ok(()),
        other => other,
    }
}

fn without_v6(error: &io::Error) -> bool {
    let none = [Errno::EAFNOSUPPORT, Errno::EACCES, Errno::EOPNOTSUPP];
    none.contains(&Errno::from_raw(error.raw_os_error().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
