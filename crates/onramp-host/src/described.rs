//! The description of a device: what commands make it, and what other devices hinder it.

use std::collections::BTreeMap;
use std::sync::Arc;

use onramp_core::{Handle, Setup};

use super::device::{Given, Value};
use super::follow::{Follower, WORD};
use super::netdev::{Netdev, Netdevs};

/// The description of a device, as far as commands can set its properties.
#[derive(Clone, Debug)]
pub(super) struct Described {
    pub(super) name: String,
    /// The properties that cannot change after creation, as a command writes them: `numtxqueues 4
    /// type veth peer name v1`.
    pub(super) made: String,
    /// The name of the other end of a `veth`.
    pub(super) peer: Option<String>,
    /// Whether this device is the second end of a pair, which was made by the command that made the
    /// first end (its peer).
    pub(super) is_second: bool,
    /// The options of the device's type.
    pub(super) given: Given,
    /// Whether the device has lost an interface of the kernel, and has to be made again because all
    /// of its interfaces are there now.
    pub(super) has_to_return: bool,
    /// The number of the line in the text that makes the device.
    pub(super) line: usize,
    /// The mtu. `None`: the device has that of the kernel's interfaces, which no command can set.
    pub(super) mtu: Option<u32>,
    pub(super) txqueuelen: u32,
    pub(super) address: [u8; 6],
    /// Whether a command chose the address. Otherwise it is random, and any other would do.
    pub(super) is_address_given: bool,
    /// Whether the last call of `Host::configure` that succeeded described the device.
    pub(super) is_configured: bool,
    pub(super) up: bool,
    pub(super) tree: Arc<Setup>,
    pub(super) followers: Vec<Follower>,
}

impl Described {
    /// Returns the name of the default qdisc that stands at the root, or `None` if a command has
    /// put another qdisc there, or if the device has never been up.
    pub(super) fn stands(&self) -> Option<&'static str> {
        let facts = self.tree.facts();
        let default = self.tree.root_id().is_none() && !facts.dormant;
        facts.fallback.as_ref().filter(|_| default).map(|spec| spec.kind().id)
    }

    fn of(devices: &Netdevs, device: &Netdev) -> Self {
        let peer = devices.peer(device);
        let mut made = format!("numtxqueues {} type {}", device.queues, device.kind.name);
        for (key, value) in &device.given.0 {
            made += &format!(" {key} {value}");
        }
        if let Some(peer) = peer {
            made += &format!(" peer name {} numtxqueues {}", peer.name, peer.queues);
        }
        let ends = || [Some(device), peer].into_iter().flatten();
        // Under the lock, so that the tree has the rates of which the followers know.
        let followers = device.followers.lock();
        let (tree, followers) = (device.link.setup(), followers.clone());
        Self {
            name: device.name.clone(),
            made,
            peer: peer.map(|peer| peer.name.clone()),
            is_second: peer.is_some_and(|peer| peer.index > device.index),
            given: device.given.clone(),
            has_to_return: ends().any(|end| end.end.is_gone()) && ends().all(can_return),
            line: 0,
            mtu: (!devices.has_interface(device)).then_some(device.mtu),
            txqueuelen: device.txqueuelen,
            address: device.address,
            is_address_given: device.is_address_given,
            is_configured: device.is_configured,
            up: device.up,
            tree,
            followers,
        }
    }

    /// Returns those lines of the tree in which rates follow shares, each with the line as a person
    /// would have written it: with the names of limits in place of shares, and with the qdisc's or
    /// class's own burst in place of the limit's.
    pub(super) fn with_names(&self) -> Vec<(String, String)> {
        let mut places: BTreeMap<Handle, Vec<(&str, String)>> = BTreeMap::new();
        for it in &self.followers {
            let text = match it.weight {
                1 => format!("{WORD} {}", it.limit),
                weight => format!("{WORD} {}:{weight}", it.limit),
            };
            let edits = places.entry(it.place).or_default();
            edits.push((it.key, text));
            edits.extend(it.own.iter().cloned());
        }
        let lines = places.into_iter().filter_map(|(place, texts)| {
            let edits: Vec<_> = texts.iter().map(|(key, text)| (*key, text.as_str())).collect();
            Some((self.tree.line("add", place, &[])?, self.tree.line("add", place, &edits)?))
        });
        lines.collect()
    }

    pub(super) fn all(devices: &Netdevs) -> Vec<Self> {
        devices.iter().map(|device| Self::of(devices, device)).collect()
    }

    /// Forgets the filters of `all` whose `indev` is none of `all`: they match no packet, and no
    /// command can add them where only these devices are.
    pub(super) fn forget_indevs(all: &mut [Self]) {
        let names: Vec<String> = all.iter().map(|device| device.name.clone()).collect();
        let is_there = |name: &str| names.iter().any(|it| it == name);
        for device in all {
            if device.tree.indevs().any(|name| !is_there(name)) {
                Arc::make_mut(&mut device.tree).forget_indevs(is_there);
            }
        }
    }

    /// Whether this device can be made only after the device `there` has left the host, because
    /// both have the same name, or because of what `there` uses.
    pub(super) fn waits_for(&self, there: &Self) -> bool {
        let names = [Some(&self.name), self.peer.as_ref()];
        names.contains(&Some(&there.name)) || self.given.is_hindered_by(&there.given)
    }
}

/// Whether a device that has lost an interface of the kernel or its capture can be made again. A
/// device with captures cannot, because the one that it has written would lose its contents.
fn can_return(device: &Netdev) -> bool {
    let is_there = |name: &str| onramp_dev::interface_mtu(name).is_ok();
    // A `tap` makes the first of its interfaces itself.
    let makes = |key: &str| device.kind.name == "tap" && key == "interface";
    device.given.0.iter().all(|(key, value)| match value {
        Value::Interface(name) => makes(key) || is_there(name),
        Value::File(_) => false,
        Value::Address(_) | Value::Number(_) => true,
    })
}
