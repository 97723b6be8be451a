//! Devices by name, and the commands of `tc` and `ip` that configure them.
//!
//! A [`Host`] is to Onramp what a network namespace is to Linux: it has devices, each a [`Link`]
//! with a tree of qdiscs, and carries out commands one after another, as the kernel does under
//! `rtnl_lock`. Traffic waits for none of them.

mod configure;
mod device;
mod event;
mod ip;
mod lines;
mod netdev;
pub mod reference;
mod targets;
mod tc;

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use std::{fmt, fs, io};

use onramp_core::filter;
use onramp_core::stats::PortSnapshot;
use onramp_core::view::QdiscView;
use onramp_dev::Receiver;

use onramp::Link;

pub use self::event::{Event, What};
pub use self::lines::{Line, Lines};
pub use self::tc::{TcError, tc};

/// What a command printed, and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The exit status: 0, 1 (not understood), 2 (not done), 255 (an argument is wrong).
    pub code: u8,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// A device as it is now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceView {
    /// Its name.
    pub name: String,
    /// Its number, which is not used again.
    pub index: u32,
    /// What it is: `dummy`, `veth`, …
    pub kind: &'static str,
    /// Whether it takes packets.
    pub up: bool,
    /// Largest packet without its link header, bytes.
    pub mtu: u32,
    /// Packets that `pfifo` and its like hold by default.
    pub txqueuelen: u32,
    /// The other end of a `veth`.
    pub peer: Option<String>,
    /// Its transmit queues.
    pub queues: Vec<PortSnapshot>,
    /// Its qdiscs, each with the transmit queue that it stands in front of; parents first.
    pub qdiscs: Vec<(usize, QdiscView)>,
}

/// Devices by name.
#[derive(Default)]
pub struct Host {
    devices: netdev::Netdevs,
    listeners: Vec<Listener>,
    /// The devices that the last text described that it was configured by.
    configured: BTreeSet<String>,
}

/// Hears of events; once it says false, of no more.
type Listener = Box<dyn FnMut(&Event) -> bool + Send + Sync>;

impl Host {
    /// A host without devices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Does what a command says: `tc qdisc add dev d0 root fq`, `ip link show`. Files that it names
    /// are looked for below `folder`.
    pub fn exec(&mut self, words: &[&str], folder: &Path) -> Reply {
        self.run(words, |file| read_file(&folder.join(file), FILE_MAX))
    }

    /// As [`exec`](Self::exec), for somebody who may not see the files here: commands that name
    /// some are refused.
    pub fn exec_alone(&mut self, words: &[&str]) -> Reply {
        let why = "commands from here name no files; give the program itself, or use onramp tc";
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
            other => {
                let word = other.map_or("", |(first, _)| first);
                let err = format!("what is {word:?}? expected tc or ip\n");
                Reply { code: 255, err, ..Reply::default() }
            }
        };
        self.tell();
        reply
    }

    /// All devices, by their numbers.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceView> {
        let view = |device: &netdev::Netdev| DeviceView {
            name: device.name.clone(),
            index: device.index,
            kind: device.kind.name,
            up: device.up,
            mtu: device.mtu,
            txqueuelen: device.txqueuelen,
            peer: device.peer.and_then(|peer| Some(self.devices.by_index(peer)?.name.clone())),
            queues: device.link.stats().ports,
            qdiscs: device.views(),
        };
        self.devices.iter().map(view).collect()
    }

    /// The link below a device, to send through.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<Link> {
        Some(self.devices.get(name)?.link.clone())
    }

    /// What arrives at a device from now on: of `veth`, what the other end sends, of `loopback`,
    /// what itself sends. What nobody reads is counted and freed.
    ///
    /// `None`: there is no such device, somebody reads already, or nothing arrives at devices of
    /// its type.
    #[must_use]
    pub fn receiver(&self, name: &str) -> Option<Receiver> {
        self.devices.get(name)?.receiver()
    }

    /// Ends all devices: what they hold may leave until `timeout` has passed.
    pub fn close(&mut self, timeout: Duration) {
        self.devices.close(timeout);
    }

    /// Calls `listener` with whatever happens from now on, until it says false. It is called in the
    /// midst of a command, and shall not keep it.
    pub fn listen(&mut self, listener: impl FnMut(&Event) -> bool + Send + Sync + 'static) {
        self.listeners.push(Box::new(listener));
    }

    /// Tells the listeners what happened.
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

/// Bytes of a program for filters, at most: far more than one may have.
const FILE_MAX: u64 = 1 << 20;

/// Reads a file of at most `max` bytes. A pipe, which would keep everybody waiting, is none.
///
/// # Errors
///
/// It cannot be read, is no regular file, or is longer.
pub fn read_file(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut options = fs::File::options();
    // What is opened is looked at, and not what may have its name by then.
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
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
