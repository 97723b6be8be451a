//! Devices with names, and the commands of `tc` and `ip` that configure them.
//!
//! A [`Host`] is to Onramp what a network namespace is to Linux. It has devices, each a [`Link`]
//! with a tree of qdiscs, and carries out commands one after another, as the kernel does under
//! `rtnl_lock`. Threads that send never wait for a command.
#![forbid(unsafe_code)]

mod configure;
mod configured;
mod described;
mod device;
mod event;
mod fleet;
mod follow;
mod interface;
mod ip;
mod lines;
mod netdev;
pub mod reference;
mod save;
mod targets;
mod tc;

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use std::{fmt, fs, io};

use onramp_core::stats::PortSnapshot;
use onramp_core::view::QdiscView;
use onramp_core::{Kinds, filter};
use onramp_dev::Receiver;

use onramp::Link;

pub use self::configure::ConfigureError;
pub use self::device::{RelayView, interface_address};
pub use self::event::{Event, What};
pub use self::fleet::{Following, Share};
pub use self::follow::Part;
pub use self::interface::{Interface, InterfaceState};
pub use self::lines::{Line, Lines};
pub use self::tc::{TcError, tc, tc_tree};

/// What a command printed, and its exit status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The exit status: 0 (success), 1 (not understood), 2 (understood but not carried out), 255
    /// (an argument is wrong).
    pub code: u8,
    /// The command's standard output.
    pub out: String,
    /// The command's standard error.
    pub err: String,
}

/// The present state of a device. [`Host::devices`] returns it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceView {
    /// The name of the device.
    pub name: String,
    /// The number of the device. The number is not used again after the device was deleted.
    pub index: u32,
    /// The type of the device: `dummy`, `veth`, …
    pub kind: &'static str,
    /// Whether the device is up. A device that is down drops packets.
    pub up: bool,
    /// Size of the largest packet without its link header, bytes.
    pub mtu: u32,
    /// Default limit of `pfifo` and similar qdiscs on this device, packets.
    pub txqueuelen: u32,
    /// The name of the other end of a pair, such as a `veth`. `None`: the device has no other end.
    pub peer: Option<String>,
    /// The address to which a `udp` device sends packets that have no other destination. `None`:
    /// there is no such address.
    pub remote: Option<SocketAddr>,
    /// The counters of the device's relay. `None`: the device has no `listen`, and so no relay.
    pub relay: Option<RelayView>,
    /// The counters of the transmit queues of the device.
    pub queues: Vec<PortSnapshot>,
    /// The qdiscs of the device; a parent stands before its children. With each qdisc stands the
    /// number of the transmit queue to which it belongs.
    pub qdiscs: Vec<(usize, QdiscView)>,
}

/// Returns the reply to a command that needs no devices, because it asks for help or for the
/// version, or because it is no command of `tc`. A client that has no host can give this reply.
/// `None`: a host must carry out the command.
///
/// ```
/// assert!(onramp_host::without_devices(&["tc", "qdisc", "help"]).is_some());
/// assert!(onramp_host::without_devices(&["tc", "qdisc", "show"]).is_none());
/// ```
#[must_use]
pub fn without_devices(words: &[&str]) -> Option<Reply> {
    match words.split_first()? {
        (&"ip", words) => ip::without_devices(words),
        (&"tc", words) => tc::without_devices(words),
        _ => None,
    }
}

/// A set of devices, each with a name. Use it to configure several devices with the commands of
/// `tc` and `ip`; a program with one device needs only a [`Link`].
#[derive(Default)]
pub struct Host {
    devices: netdev::Netdevs,
    listeners: Vec<Listener>,
}

/// A function that is called for each event until it returns false.
type Listener = Box<dyn FnMut(&Event) -> bool + Send + Sync>;

impl Host {
    /// Returns a host without devices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a host without devices, whose commands may name these kinds of qdiscs. Use it to add
    /// kinds of your own to the built-in ones.
    ///
    /// ```
    /// # use onramp_core::{Kinds, qdisc::Kind};
    /// # fn build(_: &onramp_core::params::Values<'_>) -> Box<dyn onramp_core::qdisc::Qdisc> {
    /// #     "pfifo".parse::<onramp_core::Spec>().unwrap().build(1514)
    /// # }
    /// use std::path::Path;
    ///
    /// static MINE: Kind = Kind::new("mine", "what it does", &[], build);
    ///
    /// let mut host = onramp_host::Host::with_kinds(Kinds::new([&MINE])?);
    /// for line in ["ip link add d0 type dummy", "tc qdisc add dev d0 root handle 1: mine"] {
    ///     let words: Vec<&str> = line.split(' ').collect();
    ///     assert_eq!(host.exec(&words, Path::new(".")).code, 0);
    /// }
    /// # let words = ["tc", "qdisc", "show", "dev", "d0"];
    /// # assert!(host.exec(&words, Path::new(".")).out.starts_with("qdisc mine 1: root "));
    /// # Ok::<(), onramp_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn with_kinds(kinds: Kinds) -> Self {
        let mut host = Self::default();
        host.devices.kinds = kinds;
        host
    }

    /// Carries out a command, given as words: `tc qdisc add dev d0 root fq`, `ip link show`.
    /// Returns its output and exit status. File names in the command are relative to `folder`.
    pub fn exec(&mut self, words: &[&str], folder: &Path) -> Reply {
        self.run(words, |file| read_file(&folder.join(file), FILE_MAX))
    }

    /// Carries out a command as [`exec`](Self::exec) does, for a caller that has no access to the
    /// files of this machine. Commands that name files are refused.
    pub fn exec_alone(&mut self, words: &[&str]) -> Reply {
        let why =
            "commands sent this way cannot name files; give the program itself, or use onramp tc";
        self.run(words, |_| Err(io::Error::other(why)))
    }

    fn run(&mut self, words: &[&str], read: impl FnMut(&str) -> io::Result<Vec<u8>>) -> Reply {
        self.devices.is_heard = !self.listeners.is_empty();
        let reply = match words.split_first() {
            Some((&"ip", words)) => ip::exec(&mut self.devices, words),
            Some((&"tc", words)) if words.contains(&"bpf") => {
                match filter::with_files(&words.join(" "), read) {
                    Ok(line) => {
                        let words: Vec<&str> = line.split_ascii_whitespace().collect();
                        tc::exec(&mut self.devices, &words)
                    }
                    Err(error) => TcError::from(error).into(),
                }
            }
            Some((&"tc", words)) => tc::exec(&mut self.devices, words),
            Some((&"save", words)) => self.saved(words),
            other => {
                let word = other.map_or("", |(first, _)| first);
                let err = format!("unknown program {word:?}; expected tc, ip or save\n");
                Reply { code: 255, err, ..Reply::default() }
            }
        };
        self.tell();
        reply
    }

    /// Returns the present state of all devices, ordered by device number.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceView> {
        self.devices.iter().map(|device| self.view(device)).collect()
    }

    /// Returns the present state of a device. `None`: there is no device with this name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<DeviceView> {
        self.devices.get(name).map(|device| self.view(device))
    }

    /// Returns the names of all devices, ordered by device number.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.devices.iter().map(|device| &*device.name).collect()
    }

    fn view(&self, device: &netdev::Netdev) -> DeviceView {
        DeviceView {
            name: device.name.clone(),
            index: device.index,
            kind: device.kind.name,
            up: device.up,
            mtu: device.mtu,
            txqueuelen: device.txqueuelen,
            peer: device.peer.and_then(|peer| Some(self.devices.by_index(peer)?.name.clone())),
            remote: device.given.address("remote"),
            relay: device.relay.as_ref().map(device::Relay::view),
            queues: device.link.stats().ports,
            qdiscs: device.views(),
        }
    }

    /// Returns the link of a device, through which packets are sent. `None`: there is no device
    /// with this name.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<Link> {
        Some(self.devices.get(name)?.link.clone())
    }

    /// Returns a receiver of the packets that arrive at a device from now on. At a `veth`, these
    /// are the packets that the other end of the pair sends; at a `loopback`, the packets that the
    /// device itself sends. Packets that arrive while there is no receiver are counted and freed.
    ///
    /// Returns `None` if there is no such device, if there is a receiver already, or if nothing
    /// arrives at devices of this type.
    #[must_use]
    pub fn receiver(&self, name: &str) -> Option<Receiver> {
        self.devices.get(name)?.receiver()
    }

    /// Sets how much lateness devices catch up on that are made from now on: see
    /// [`LinkBuilder::catch_up`](onramp::LinkBuilder::catch_up), which gives the default and the
    /// range. Outside the range, no device can be made.
    pub fn set_catch_up(&mut self, catch_up: Duration) {
        self.devices.catch_up = Some(catch_up);
    }

    /// Sets the slack of devices that are made from now on: see
    /// [`LinkBuilder::slack`](onramp::LinkBuilder::slack), which gives the default and the range.
    /// Outside the range, no device can be made.
    pub fn set_slack(&mut self, slack: Duration) {
        self.devices.slack = Some(slack);
    }

    /// Returns the number and the name of each device, and the time that the device has lost since
    /// it was made, nanoseconds: the sum of [`PortSnapshot::lost_ns`] over its transmit queues.
    /// Unlike [`devices`](Self::devices), this method reads no qdiscs, so it can be called often.
    #[must_use]
    pub fn lost_ns(&self) -> Vec<(u32, String, u64)> {
        let lost = |link: &Link| link.stats().ports.iter().map(|port| port.lost_ns).sum();
        let devices = self.devices.iter();
        devices.map(|device| (device.index, device.name.clone(), lost(&device.link))).collect()
    }

    /// Closes all devices. They go on sending the packets that they hold until `timeout` has
    /// passed; the packets left then are dropped.
    pub fn close(&mut self, timeout: Duration) {
        self.devices.close(timeout);
    }

    /// Registers `listener`, which is called for every event from now on until it returns false.
    /// The call is made in the middle of a command, so `listener` must return quickly.
    pub fn listen(&mut self, listener: impl FnMut(&Event) -> bool + Send + Sync + 'static) {
        self.listeners.push(Box::new(listener));
    }

    /// Calls the listeners for the events that have happened since the last call of this function.
    #[expect(clippy::disallowed_methods, reason = "an event is a report")]
    fn tell(&mut self) {
        for (what, device, mut line) in std::mem::take(&mut self.devices.happened) {
            if line.len() > Event::LINE_MAX {
                line.truncate(line.floor_char_boundary(Event::LINE_MAX - '…'.len_utf8()));
                line.push('…');
            }
            let event = Event { at: SystemTime::now(), device, what, line };
            self.listeners.retain_mut(|listener| listener(&event));
        }
    }
}

/// Greatest size of a file with a filter program, bytes. It is far above the size that such a
/// program may have.
const FILE_MAX: u64 = 1 << 20;

/// Reads a file of at most `max` bytes. Pipes are refused, because reading one could block.
///
/// # Errors
///
/// Returns an error if the file cannot be read, is not a regular file, or is longer than `max`
/// bytes.
pub fn read_file(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut options = fs::File::options();
    // Check the kind of the opened file, and not of the path, which may name another file by then.
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::other(format!("it has more than {max} bytes")));
    }
    Ok(bytes)
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("devices", &self.devices).finish_non_exhaustive()
    }
}
