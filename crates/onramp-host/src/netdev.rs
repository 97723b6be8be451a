//! The devices of a host, by name and by number.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onramp_core::{Clock as _, Facts, Kinds};
use onramp_dev::{MonotonicClock, Receiver};
use onramp_queue::DropReason;

use super::What;
use super::device::{Carried, Feeder, Given, LinkEnd, Relay, Type};
use super::follow::List;
use onramp::{CloseReport, Link};

/// Greatest length of a device's name, bytes (`IFNAMSIZ` without the zero at its end).
pub(crate) const NAME_MAX: usize = 15;

/// The `txqueuelen` of a device for which no command gives one, packets.
pub(crate) const DEFAULT_LENGTH: u32 = 1_000;

/// A device of a host.
#[derive(Debug)]
pub(crate) struct Netdev {
    /// Name of the device.
    pub(crate) name: String,
    /// Number of the device. It is not used again after the device was deleted.
    pub(crate) index: u32,
    /// Type of the device.
    pub(crate) kind: &'static Type,
    /// Options of the device's type.
    pub(crate) given: Given,
    /// Whether the device is up. A device that is down drops packets.
    pub(crate) up: bool,
    /// Whether the device was ever up, and so has a default qdisc.
    pub(crate) was_up: bool,
    /// Size of the largest packet without its link header, bytes.
    pub(crate) mtu: u32,
    /// Default limit of `pfifo` and similar qdiscs on the device, packets.
    pub(crate) txqueuelen: u32,
    /// Number of transmit queues.
    pub(crate) queues: usize,
    /// Number of the device that is the other end of a `veth`.
    pub(crate) peer: Option<u32>,
    /// Hardware address of the device.
    pub(crate) address: [u8; 6],
    /// Whether a command chose the hardware address. Otherwise it is random.
    pub(crate) is_address_given: bool,
    /// Whether the last call of `Host::configure` that succeeded described the device, under
    /// whatever name.
    pub(crate) is_configured: bool,
    /// The link through which the device sends.
    pub(crate) link: Link,
    /// The part of the device below its link: it takes the packets that the link sends.
    pub(crate) end: Arc<LinkEnd>,
    /// The thread that sends the datagrams received by the device's listening socket; `None` if the
    /// device has no such socket.
    pub(crate) relay: Option<Relay>,
    /// The thread that sends frames of the kernel's interfaces; `None` if the device gets none.
    pub(crate) feeder: Option<Feeder>,
    /// The rates of the device's qdiscs and classes that follow shares of a fleet's limits.
    pub(crate) followers: List,
}

/// The counters of a device, as `ip -s link` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceCounters {
    pub(crate) received: Carried,
    pub(crate) sent: Carried,
    /// Number of packets among `sent` of which the kernel has told later that they did not arrive.
    pub(crate) sent_errors: u64,
}

impl Netdev {
    /// Sets the device up, so that it accepts packets from now on, or down, so that it drops them.
    pub(crate) fn set_up(&mut self, up: bool) {
        self.up = up;
        self.was_up |= up;
        self.end.set_up(up);
        self.describe();
    }

    /// Returns the size of the largest packet including its link header, bytes (`psched_mtu`).
    /// Qdiscs use this value.
    pub(crate) fn packet_max(&self) -> u32 {
        self.mtu.saturating_add(self.kind.header)
    }

    /// Returns the kind of the device's root qdisc, as `ip link` shows it.
    pub(crate) fn qdisc(&self) -> &'static str {
        let setup = self.link.setup();
        match (setup.root_id(), &setup.facts().fallback) {
            (Some(kind), _) => kind,
            (None, Some(default)) if self.was_up => default.kind().id,
            // No command has added a qdisc, and the device was never up, so it has no default qdisc
            // yet.
            _ => "noop",
        }
    }

    /// Tells the device's tree of qdiscs the present properties of the device, such as the size of
    /// its largest packet.
    pub(crate) fn describe(&self) {
        let facts = Facts {
            fallback: default_qdisc(self.kind, self.txqueuelen, self.queues).parse().ok(),
            queues: u16::try_from(self.queues).unwrap_or(u16::MAX),
            txqueuelen: self.txqueuelen,
            mtu: self.packet_max(),
            dormant: !self.was_up,
            ports: true,
        };
        self.link.describe_device(&self.name, facts);
    }

    /// Returns why no packet comes in at the device, or `None` if packets may come in.
    pub(crate) fn deaf(&self) -> Option<&'static str> {
        match self.kind.name {
            _ if self.end.receives() => None,
            "udp" => Some("a udp device without listen only sends"),
            _ => Some("a dummy only counts and discards what it is given"),
        }
    }

    /// Returns a receiver of the packets that arrive at the device from now on. `None`: there is a
    /// receiver already, or nothing arrives at devices of this type.
    pub(crate) fn receiver(&self) -> Option<Receiver> {
        self.end.receiver()
    }

    /// Returns counters of the packets that the device received and sent. Packets that its qdiscs
    /// dropped are not counted here.
    pub(crate) fn counters(&self) -> DeviceCounters {
        let stats = self.link.stats();
        let dropped = stats.dropped.iter().filter(|(reason, _)| is_devices(**reason));
        let dropped = dropped.map(|(_, count)| *count).sum();
        let sent = Carried { packets: stats.sent, bytes: stats.sent_bytes, dropped };
        DeviceCounters { received: self.end.received(), sent, sent_errors: self.end.errors() }
    }

    /// Closes the device, which may go on sending the packets that it holds until `timeout` has
    /// passed.
    pub(crate) fn close(mut self, timeout: Duration) -> CloseReport {
        // First end the threads that send through the link.
        drop((self.relay.take(), self.feeder.take()));
        self.link.close(timeout)
    }
}

/// Returns the kind of qdisc that a device gets by default when it is set up for the first time, or
/// when a command deletes its root.
pub(crate) fn default_qdisc(kind: &Type, txqueuelen: u32, queues: usize) -> &'static str {
    if kind.no_queue || txqueuelen == 0 {
        "noqueue"
    } else if queues > 1 {
        "mq"
    } else {
        "pfifo_fast"
    }
}

/// Whether packets with this drop reason were dropped by a device, and not by a qdisc.
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

/// Something that happened to a device, from which an [`Event`](super::Event) is made: the kind,
/// the name of the device, and the line that `ip` shows.
pub(crate) type Happened = (What, String, String);

/// The devices of a host.
#[derive(Debug, Default)]
pub(crate) struct Netdevs {
    by_index: BTreeMap<u32, Netdev>,
    by_name: BTreeMap<String, u32>,
    /// The greatest number that any device has or had.
    last: u32,
    /// The changes that happened since the host last took this list, oldest first.
    pub(crate) happened: Vec<Happened>,
    /// Whether there is a listener for events.
    pub(crate) is_heard: bool,
    /// Whether commands are only tried: devices send nothing and use nothing outside the process.
    pub(crate) is_trial: bool,
    /// The kinds of qdiscs that commands may name.
    pub(crate) kinds: Kinds,
    /// How much lateness new devices catch up on. `None`: the default.
    pub(crate) catch_up: Option<Duration>,
    /// The slack of new devices. `None`: the default.
    pub(crate) slack: Option<Duration>,
    /// Whether commands may name limits of a fleet.
    pub(crate) is_in_fleet: bool,
}

impl Netdevs {
    /// Returns the device with this name, or `None` if there is none.
    pub(crate) fn get(&self, name: &str) -> Option<&Netdev> {
        self.by_index.get(self.by_name.get(name)?)
    }

    /// Returns the device with this name, or `None` if there is none.
    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Netdev> {
        self.by_index.get_mut(self.by_name.get(name)?)
    }

    /// Returns the device with this number, or `None` if there is none.
    pub(crate) fn by_index(&self, index: u32) -> Option<&Netdev> {
        self.by_index.get(&index)
    }

    /// Returns the other end of a device's pair, or `None` if the device has no other end.
    pub(crate) fn peer(&self, device: &Netdev) -> Option<&Netdev> {
        self.by_index(device.peer?)
    }

    /// Whether the device, or the other end of its pair, carries frames of the kernel's interfaces.
    pub(crate) fn has_interface(&self, device: &Netdev) -> bool {
        device.given.has_interface()
            || self.peer(device).is_some_and(|peer| peer.given.has_interface())
    }

    /// Returns all devices, ordered by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Netdev> {
        self.by_index.values()
    }

    /// Returns a new device number, which no device has or had.
    pub(crate) fn new_index(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// Returns the greatest device number that a device has or had.
    pub(crate) const fn last(&self) -> u32 {
        self.last
    }

    /// Whether no device has or had the number `index`.
    pub(crate) fn is_fresh(&self, index: u32) -> bool {
        index > self.last
    }

    /// Adds a device whose name and number no other device has.
    pub(crate) fn add(&mut self, device: Netdev) {
        device.describe();
        self.last = self.last.max(device.index);
        self.by_name.insert(device.name.clone(), device.index);
        self.by_index.insert(device.index, device);
    }

    /// Removes the device with this name from the host and returns it. The device is still open:
    /// its link sends packets until the caller closes the device.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Netdev> {
        let index = self.by_name.remove(name)?;
        self.by_index.remove(&index)
    }

    /// Renames the device `name`, if it exists, to `new`, also in the filters that name it with
    /// `indev`. The caller has checked that no device has the name `new`.
    pub(crate) fn rename(&mut self, name: &str, new: &str) {
        let Some(index) = self.by_name.remove(name) else { return };
        self.by_name.insert(new.to_owned(), index);
        if let Some(device) = self.by_index.get_mut(&index) {
            new.clone_into(&mut device.name);
            device.describe();
        }
        self.iter().for_each(|device| device.link.rename_indev(name, new));
    }

    /// Returns the first free device name that consists of `before`, a number and `behind`. The
    /// name `taken` counts as used.
    pub(crate) fn free_name(&self, before: &str, behind: &str, taken: &str) -> String {
        let mut names = (0..=u32::MAX).map(|number| format!("{before}{number}{behind}"));
        let free = |name: &String| !self.by_name.contains_key(name) && taken != name;
        names.find(free).unwrap_or_default()
    }

    /// Closes all devices. Together they have at most `timeout` to send the packets that they hold.
    pub(crate) fn close(&mut self, timeout: Duration) {
        self.by_name.clear();
        let devices = std::mem::take(&mut self.by_index);
        let end = MonotonicClock.now() + timeout;
        for device in devices.into_values() {
            // While one device is closed, the later ones go on sending.
            let left = end.since(MonotonicClock.now());
            device.close(Duration::from_nanos(left));
        }
    }
}
