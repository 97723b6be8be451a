//! The commands `ip link set` and `ip link del`.

use std::time::Duration;

use super::add::{mtu_fault, mtu_range};
use super::ask::{Ask, check_address};
use super::show;
use super::words::{Fault, Words, numbered};
use super::{Done, help};
use crate::What;
use crate::netdev::{Netdev, Netdevs};

pub(super) fn run(devices: &mut Netdevs, words: &mut Words<'_>) -> Done {
    let ask = Ask::read(words)?;
    let name = ask.dev.ok_or_else(|| Fault::missing(255, "dev", "."))?;
    let device = devices.get(name).ok_or_else(|| Fault::no_device(name))?;
    if ask.kind.is_some() {
        return Err(Fault::said(1, help::of(device.kind).trim_end()));
    }
    if ask.numtxqueues.is_some() || ask.index.is_some() {
        let why = "numtxqueues and index can be given only when a device is added";
        return Err(Fault::kernel("RTNETLINK answers: Operation not supported", why));
    }
    let mtu = ask.mtu.map(|mtu| new_mtu(devices, device, mtu)).transpose()?;
    ask.address.map_or(Ok(()), check_address)?;
    let new = ask.name.filter(|new| *new != name);
    let new = new.map(|new| numbered(devices, new, "")).transpose()?;
    if let Some(new) = new.as_deref().filter(|new| devices.get(new).is_some()) {
        let why = format!("a device {new:?} exists already");
        return Err(Fault::kernel("RTNETLINK answers: File exists", &why));
    }
    // All arguments have been checked, so no later step of `ip link set` can fail.
    let Some(device) = devices.get_mut(name) else { return Err(Fault::no_device(name)) };
    let before = device.up;
    if let Some(mtu) = mtu {
        device.mtu = mtu;
        device.forget_bursts();
    }
    device.txqueuelen = ask.txqueuelen.unwrap_or(device.txqueuelen);
    if let Some(address) = ask.address {
        (device.address, device.is_address_given) = (address, true);
    }
    device.set_up(ask.up.unwrap_or(before));
    let now = device.up;
    if let Some(new) = &new {
        devices.rename(name, new);
    }
    let what = match (before, now) {
        (false, true) => What::Up,
        (true, false) => What::Down,
        _ => What::Changed,
    };
    show::tell(devices, what, new.as_deref().unwrap_or(name));
    Ok(String::new())
}

fn new_mtu(devices: &Netdevs, device: &Netdev, mtu: i32) -> Result<u32, Fault> {
    let why = || format!("mtu {mtu}: {}", mtu_range(device.kind));
    let below = || Fault::kernel("Error: mtu less than device minimum.", &why());
    let mtu = u32::try_from(mtu).map_err(|_| below())?;
    if mtu != device.mtu && devices.has_interface(device) {
        let why = "it is that of the kernel's interface: set that, and make the device again";
        return Err(Fault::kernel("RTNETLINK answers: Operation not supported", why));
    }
    match mtu_fault(device.kind, mtu) {
        Some(said) => Err(Fault::kernel(said, &why())),
        None => Ok(mtu),
    }
}

pub(super) fn delete(devices: &mut Netdevs, words: &mut Words<'_>) -> Done {
    let ask = Ask::read(words)?;
    let name = ask.dev.ok_or_else(|| Fault::missing(255, "dev", "."))?;
    let taken = take(devices, name);
    if taken.is_empty() {
        return Err(Fault::no_device(name));
    }
    for device in taken {
        // Packets that the deleted device holds are dropped, as in Linux.
        device.close(Duration::ZERO);
    }
    Ok(String::new())
}

/// Takes a device and the other end of its pair from the host. Both are still open. Returns an
/// empty list if there is no such device.
pub(crate) fn take(devices: &mut Netdevs, name: &str) -> Vec<Netdev> {
    let Some(device) = devices.get(name) else { return Vec::new() };
    let peer = devices.peer(device).map(|peer| peer.name.clone());
    let names = [Some(name.to_owned()), peer].into_iter().flatten();
    let mut take = |name: String| {
        show::tell(devices, What::Deleted, &name);
        devices.remove(&name)
    };
    names.filter_map(&mut take).collect()
}

/// Gives devices back to the host that were [taken](take) from it.
pub(crate) fn put_back(devices: &mut Netdevs, taken: Vec<Netdev>) {
    let names: Vec<String> = taken.iter().map(|device| device.name.clone()).collect();
    taken.into_iter().for_each(|device| devices.add(device));
    for name in names {
        show::tell(devices, What::Added, &name);
    }
}
