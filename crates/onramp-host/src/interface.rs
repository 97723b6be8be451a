//! The interfaces of the kernel through which devices send and receive.

use std::collections::BTreeMap;
use std::io;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use super::Host;

/// An interface of the kernel through which a device sends and receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Name of the device.
    pub device: String,
    /// Number of the device: one that is made anew under the same name has another.
    pub index: u32,
    /// State of the interface.
    pub state: InterfaceState,
}

/// The state of an interface of the kernel, as a device meets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterfaceState {
    /// The interface is up and has a carrier.
    #[default]
    Works,
    /// The interface is up, but has no carrier, for example because its cable is not plugged in.
    NoCarrier,
    /// The interface is set down.
    Down,
    /// There is no interface of this name.
    Gone,
    /// The device has lost the interface, and there is one of this name, which it does not use: the
    /// interface was made anew, or the TAP of a detour was set down.
    Replaced,
}

impl InterfaceState {
    /// Returns the state of an interface with these flags (`None`: there is no such interface),
    /// for a device that has lost its interface or not.
    fn of(flags: Option<InterfaceFlags>, is_lost: bool) -> Self {
        let Some(flags) = flags else { return Self::Gone };
        if is_lost {
            Self::Replaced
        } else if !flags.contains(InterfaceFlags::IFF_UP) {
            Self::Down
        } else if !flags.contains(InterfaceFlags::IFF_RUNNING) {
            Self::NoCarrier
        } else {
            Self::Works
        }
    }
}

impl Host {
    /// Returns the interfaces of the kernel that the devices use, with their present states. One
    /// that two devices use comes twice.
    ///
    /// # Errors
    ///
    /// The kernel's error, if it does not list its interfaces.
    pub fn interfaces(&self) -> io::Result<Vec<Interface>> {
        let mut used = Vec::new();
        for device in self.devices.iter() {
            let peer = device.peer.and_then(|peer| self.devices.by_index(peer));
            // Without a second interface, both ends use the first.
            let far = device.given.interface("to");
            let ends = match (device.given.interface("interface"), far, peer) {
                (Some(name), Some(far), Some(peer)) => {
                    vec![(name, device, device.end.is_gone()), (far, peer, peer.end.is_gone())]
                }
                (Some(name), ..) => {
                    let mut both = [Some(device), peer].into_iter().flatten();
                    vec![(name, device, both.any(|end| end.end.is_gone()))]
                }
                (None, ..) => continue,
            };
            used.extend(ends);
        }
        if used.is_empty() {
            return Ok(Vec::new());
        }
        let flags: BTreeMap<_, _> =
            getifaddrs()?.map(|there| (there.interface_name, there.flags)).collect();
        let interfaces = used.into_iter().map(|(name, device, is_lost)| Interface {
            name: name.to_owned(),
            device: device.name.clone(),
            index: device.index,
            state: InterfaceState::of(flags.get(name).copied(), is_lost),
        });
        Ok(interfaces.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_tell_the_state() {
        let (up, running) = (InterfaceFlags::IFF_UP, InterfaceFlags::IFF_RUNNING);
        for (flags, is_lost, state) in [
            (Some(up | running), false, InterfaceState::Works),
            (Some(up), false, InterfaceState::NoCarrier),
            (Some(running), false, InterfaceState::Down),
            (None, false, InterfaceState::Gone),
            (None, true, InterfaceState::Gone),
            (Some(up | running), true, InterfaceState::Replaced),
        ] {
            assert_eq!(InterfaceState::of(flags, is_lost), state, "{flags:?} {is_lost}");
        }
    }
}
