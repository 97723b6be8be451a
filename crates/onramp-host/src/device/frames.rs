//! Devices that carry frames of the kernel's interfaces: bridges between two of them, and detours
//! of what the machine itself sends and receives.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::ifaddrs::getifaddrs;
use onramp_core::Device;
use onramp_dev::{
    Detour, PacketReceiver, PacketSocket, Receive, Side, Tap, TapOptions, Xdp, XdpOptions,
};
use onramp_queue::{Packet, PacketList};

use super::feeder::Frames;
use super::link_end::Switched;
use super::socket::ETHERNET;
use super::{End, LinkEnd, Refusal, Request, invalid};

/// One side of a bridge: the receivers of what comes in there, and the device through which frames
/// leave.
type BridgeSide = (Vec<Box<dyn Receive>>, Box<dyn Device>);

pub(super) fn packet(request: &Request<'_>) -> Result<Vec<End>, Refusal> {
    let [one, other] = interfaces(request)?;
    bridge(request, [one, other].map(open))
}

pub(super) fn tap(request: &Request<'_>) -> Result<Vec<End>, Refusal> {
    let [name, to] = interfaces(request)?;
    let options = TapOptions { seed: seed(), ..TapOptions::default() };
    let made = Tap::open(name, options)
        .and_then(|tap| tap.with_mtu(request.mtu[0]))
        .and_then(|tap| tap.set_up().map(|()| tap))
        .map_err(|error| {
            let exists = onramp_dev::interface_mtu(name).is_ok();
            let why = if exists {
                ": there is an interface of this name that is no free TAP"
            } else {
                ""
            };
            refused(&error, &format!("TAP {name}: {error}{why}"))
        });
    let tap = made.map(|tap| -> BridgeSide { (vec![Box::new(tap.receiver())], Box::new(tap)) });
    bridge(request, [tap, open(to)])
}

/// Makes a bridge by AF_XDP: of all queues from which the interfaces receive, and through the first
/// queue of each. Frames that go from one side to the other are not copied.
pub(super) fn xdp(request: &Request<'_>) -> Result<Vec<End>, Refusal> {
    let names = interfaces(request)?;
    let told = |error: io::Error| refused(&error, &error.to_string());
    for name in names {
        if let Some(address) = interface_address(name).map_err(told)? {
            return Err(invalid(&format!(
                "{name} has the address {address}, and this host gets no packet there any more \
                 while such a device exists: remove the address, or use type packet"
            )));
        }
    }
    let options = XdpOptions { seed: seed(), ..XdpOptions::default() };
    let opened = Xdp::open_interfaces(&names, options).map_err(told)?;
    let mut sides = names.iter().zip(opened).map(|(name, (from, to))| {
        let (interface, _) = PacketSocket::open_side(name, 0).map_err(told)?;
        let mut from: Vec<_> = from.into_iter().map(|from| Box::new(from) as _).collect();
        let first = from.pop().expect("an interface has a queue");
        from.push(Box::new(Holding { from: first, _interface: interface }));
        Ok((from, Box::new(to) as _))
    });
    bridge(request, [(); 2].map(|()| sides.next().expect("both were opened")))
}

/// Returns an address that this host has at a network interface, if there is one that other hosts
/// would use: link-local addresses of IPv6 are not meant.
///
/// # Errors
///
/// The kernel's error.
pub fn interface_address(name: &str) -> io::Result<Option<String>> {
    let addresses = getifaddrs()?.filter(|of| of.interface_name == name);
    Ok(addresses.filter_map(|of| of.address).find_map(|address| {
        let v4 = address.as_sockaddr_in().map(|v4| v4.ip().to_string());
        let v6 = address.as_sockaddr_in6().map(nix::sys::socket::SockaddrIn6::ip);
        v4.or_else(|| v6.filter(|ip| !ip.is_unicast_link_local()).map(|ip| ip.to_string()))
    }))
}

/// A receiver that keeps its interface promiscuous, and other bridges from it.
#[derive(Debug)]
struct Holding {
    from: Box<dyn Receive>,
    _interface: PacketReceiver,
}

impl Receive for Holding {
    fn receive(
        &mut self,
        most: usize,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
        into: &mut PacketList,
    ) -> io::Result<usize> {
        self.from.receive(most, make, into)
    }

    fn discarded(&self) -> u64 {
        self.from.discarded()
    }

    fn missed(&self) -> u64 {
        self.from.missed()
    }
}

impl AsFd for Holding {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }
}

pub(super) fn detour(request: &Request<'_>) -> Result<Vec<End>, Refusal> {
    let name = request.given.interface("interface").unwrap_or_default();
    let sides = [Side::Egress, Side::Ingress].into_iter().enumerate();
    let end = |(place, side): (usize, Side)| {
        let (from, device) =
            Detour::lay(name, side, seed()).map_err(|error| refused(&error, &error.to_string()))?;
        let end = Arc::new(LinkEnd::switching(from.switch()));
        // As at an `ifb`, a frame counts as received and as sent by the same device.
        let frames = Frames { from: vec![Box::new(from)], at: end.clone() };
        finish(request, place, device, &end, frames)
    };
    sides.take(1 + usize::from(request.pair)).map(end).collect()
}

/// Returns the names of both interfaces of a bridge.
fn interfaces<'a>(request: &Request<'a>) -> Result<[&'a str; 2], Refusal> {
    let names = ["interface", "to"].map(|key| request.given.interface(key).unwrap_or_default());
    if names[0] == names[1] {
        return Err(invalid("a bridge of an interface with itself has no sides: name two"));
    }
    Ok(names)
}

/// Opens an interface of the kernel as a side of a bridge.
fn open(name: &str) -> Result<BridgeSide, Refusal> {
    let opened = PacketSocket::open_side(name, seed());
    let (from, socket) = opened.map_err(|error| refused(&error, &error.to_string()))?;
    Ok((vec![Box::new(from)], Box::new(socket)))
}

/// Makes both ends of a bridge. What comes in at one side leaves through the other.
fn bridge(
    request: &Request<'_>,
    [one, other]: [Result<BridgeSide, Refusal>; 2],
) -> Result<Vec<End>, Refusal> {
    let ((from_one, one), (from_other, other)) = (one?, other?);
    let ends = [0, 1].map(|_| Arc::<LinkEnd>::default());
    let from_one = Frames { from: from_one, at: ends[0].clone() };
    let from_other = Frames { from: from_other, at: ends[1].clone() };
    Ok(vec![
        finish(request, 0, one, &ends[0], from_other)?,
        finish(request, 1, other, &ends[1], from_one)?,
    ])
}

/// Makes the end of a device at this place of a pair, which sends `frames`.
fn finish(
    request: &Request<'_>,
    place: usize,
    device: Box<dyn Device>,
    end: &Arc<LinkEnd>,
    frames: Frames,
) -> Result<End, Refusal> {
    if request.queues[place] > 1 {
        return Err(invalid("such a device has one queue: leave out numtxqueues"));
    }
    let (mtu, largest) = (request.mtu[place], device.info().mtu.saturating_sub(ETHERNET));
    if mtu != largest {
        return Err(other_mtu(&device.info().name, largest, mtu));
    }
    let queues: Vec<Box<dyn Device>> = vec![Box::new(Switched::new(end.clone(), device))];
    Ok(End { queues, end: end.clone(), listener: None, frames: Some(frames) })
}

/// Returns the error for a device whose mtu is not that of its interface.
pub(super) fn other_mtu(interface: &str, has: u32, mtu: u32) -> Refusal {
    invalid(&format!(
        "{interface} has an mtu of {has}, and this device of {mtu}: leave out mtu, and give both \
         interfaces the same, as with `ip link set NAME mtu {mtu}`"
    ))
}

/// Returns a seed for the hash that tells flows apart.
pub(super) fn seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}

fn refused(error: &io::Error, why: &str) -> Refusal {
    let said = match error.kind() {
        io::ErrorKind::PermissionDenied => "Operation not permitted",
        io::ErrorKind::NotFound => "No such device",
        io::ErrorKind::ResourceBusy => "Device or resource busy",
        io::ErrorKind::Unsupported => "Operation not supported",
        _ => "Invalid argument",
    };
    Refusal::new(&format!("RTNETLINK answers: {said}"), why)
}
