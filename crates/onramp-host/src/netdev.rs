//! Devices of a host: by name, and by number.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onramp_core::Facts;
use onramp_dev::Receiver;
use onramp_queue::DropReason;

use super::What;
use super::device::{Carried, Given, LinkEnd, Relay, Type};
use onramp::{CloseReport, Link};

/// Bytes of a device's name, at most (`IFNAMSIZ`, less the zero at its end).
pub(crate) const NAME_MAX: usize = 15;

/// A device.
#[derive(Debug)]
pub(crate) struct Netdev {
    /// Its name.
    pub(crate) name: String,
    /// Its number, which is not used again.
    pub(crate) index: u32,
    /// What it is.
    pub(crate) kind: &'static Type,
    /// The parameters of its type.
    pub(crate) given: Given,
    /// Whether it takes packets.
    pub(crate) up: bool,
    /// Whether it ever did, and so has a default qdisc.
    pub(crate) was_up: bool,
    /// Largest packet without its link header, bytes.
    pub(crate) mtu: u32,
    /// Packets that `pfifo` and its like hold by default.
    pub(crate) txqueuelen: u32,
    /// Transmit queues.
    pub(crate) queues: usize,
    /// The other end of a `veth`, by its number.
    pub(crate) peer: Option<u32>,
    /// Its hardware address.
    pub(crate) address: [u8; 6],
    /// What sends.
    pub(crate) link: Link,
    /// What is below the link.
    pub(crate) end: Arc<LinkEnd>,
    /// Who sends what arrives from outside.
    pub(crate) relay: Option<Relay>,
}

/// What a device counted: `ip -s link`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceCounters {
    pub(crate) received: Carried,
    pub(crate) sent: Carried,
}

impl Netdev {
    /// Takes packets from now on, or drops them.
    pub(crate) fn set_up(&mut self, up: bool) {
        self.up = up;
        self.was_up |= up;
        self.end.set_up(up);
        self.describe();
    }

    /// Largest packet with its link header, bytes (`psched_mtu`): what qdiscs go by.
    pub(crate) fn packet_max(&self) -> u32 {
        self.mtu.saturating_add(self.kind.header)
    }

    /// The kind of its root, as `ip link` shows it.
    pub(crate) fn qdisc(&self) -> &'static str {
        match self.link.setup().root_id() {
            Some(kind) => kind,
            // Nobody asked for one, and it was not up yet.
            None if !self.was_up => "noop",
            None => self.default_qdisc(),
        }
    }

    fn default_qdisc(&self) -> &'static str {
        default_qdisc(self.kind, self.txqueuelen, self.queues)
    }

    /// Tells its tree what it is now.
    pub(crate) fn describe(&self) {
        let facts = Facts {
            fallback: self.default_qdisc().parse().ok(),
            queues: u16::try_from(self.queues).unwrap_or(u16::MAX),
            txqueuelen: self.txqueuelen,
            mtu: self.packet_max(),
            dormant: !self.was_up,
            ports: true,
        };
        self.link.describe_device(&self.name, facts);
    }

    /// What arrives at the device from now on, to be read by one; `None`: somebody reads, or
    /// nothing arrives at devices of its type.
    pub(crate) fn receiver(&self) -> Option<Receiver> {
        self.end.receiver()
    }

    /// What it received and sent. Drops of its qdiscs are theirs.
    pub(crate) fn counters(&self) -> DeviceCounters {
        let stats = self.link.stats();
        let dropped = stats.dropped.iter().filter(|(reason, _)| is_devices(**reason));
        let dropped = dropped.map(|(_, count)| *count).sum();
        let sent = Carried { packets: stats.sent, bytes: stats.sent_bytes, dropped };
        DeviceCounters { received: self.end.received(), sent }
    }

    /// Ends it, after at most `timeout`.
    pub(crate) fn close(mut self, timeout: Duration) -> CloseReport {
        // First who sends through the link.
        drop(self.relay.take());
        self.link.close(timeout)
    }
}

/// The kind that a device has when nobody gives it one.
pub(crate) fn default_qdisc(kind: &Type, txqueuelen: u32, queues: usize) -> &'static str {
    if kind.no_queue || txqueuelen == 0 {
        "noqueue"
    } else if queues > 1 {
        "mq"
    } else {
        "pfifo_fast"
    }
}

/// Whether devices drop for this reason, and not qdiscs.
fn is_devices(reason: DropReason) -> bool {
    matches!(
        reason,
        DropReason::MessageSize
            | DropReason::Refused
            | DropReason::Unreachable
            | DropReason::NoBuffers
            | DropReason::NoPermission
            | DropReason::PortDead
            | DropReason::DeviceError
    )
}

/// What happened to a device, for [`Event`](super::Event)s: what, its name, and how `ip` shows it.
pub(crate) type Happened = (What, String, String);

/// The devices of a host.
#[derive(Debug, Default)]
pub(crate) struct Netdevs {
    by_index: BTreeMap<u32, Netdev>,
    by_name: BTreeMap<String, u32>,
    /// The greatest number so far.
    last: u32,
    /// What `ip` did, oldest first; the host takes it.
    pub(crate) happened: Vec<Happened>,
    /// Whether anybody wants to know.
    pub(crate) is_heard: bool,
    /// Commands are only tried: devices send nothing, and touch nothing outside.
    pub(crate) is_trial: bool,
}

impl Netdevs {
    /// The device of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Netdev> {
        self.by_index.get(self.by_name.get(name)?)
    }

    /// The device of this name.
    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Netdev> {
        self.by_index.get_mut(self.by_name.get(name)?)
    }

    /// The device of this number.
    pub(crate) fn by_index(&self, index: u32) -> Option<&Netdev> {
        self.by_index.get(&index)
    }

    /// All of them, by their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Netdev> {
        self.by_index.values()
    }

    /// A number that no device has or had.
    pub(crate) fn new_index(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// The greatest number that a device has or had.
    pub(crate) const fn last(&self) -> u32 {
        self.last
    }

    /// Whether no device has or had this number.
    pub(crate) fn is_fresh(&self, index: u32) -> bool {
        index > self.last
    }

    /// Adds a device, whose name and number no other has.
    pub(crate) fn add(&mut self, device: Netdev) {
        device.describe();
        self.last = self.last.max(device.index);
        self.by_name.insert(device.name.clone(), device.index);
        self.by_index.insert(device.index, device);
    }

    /// Removes the device of this name, which lives on until it is closed.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Netdev> {
        let index = self.by_name.remove(name)?;
        self.by_index.remove(&index)
    }

    /// Gives the device `name`, if there is one, the name `new`, which no other has.
    pub(crate) fn rename(&mut self, name: &str, new: &str) {
        let Some(index) = self.by_name.remove(name) else { return };
        self.by_name.insert(new.to_owned(), index);
        if let Some(device) = self.by_index.get_mut(&index) {
            new.clone_into(&mut device.name);
            device.describe();
        }
    }

    /// The first name that begins with `prefix`, goes on with a number, and is free.
    pub(crate) fn free_name(&self, prefix: &str, taken: Option<&str>) -> String {
        let mut names = (0..=u32::MAX).map(|number| format!("{prefix}{number}"));
        let free = |name: &String| {
            !self.by_name.contains_key(name) && taken.is_none_or(|taken| taken != name)
        };
        names.find(free).unwrap_or_default()
    }

    /// Ends all of them, after at most `timeout` for all together that still send.
    pub(crate) fn close(&mut self, timeout: Duration) {
        self.by_name.clear();
        let devices = std::mem::take(&mut self.by_index);
        let each = timeout / u32::try_from(devices.len().max(1)).unwrap_or(u32::MAX);
        for device in devices.into_values() {
            device.close(each);
        }
    }
}
