//! A host that follows a text of commands: all of it, or none.
//!
//! The text is tried on a host whose devices send nothing. What that host is in the end, this one
//! becomes: devices that are alike stay, their trees are changed where only parameters differ, and
//! replaced, with what they hold, where more does.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use onramp_core::Setup;

use super::netdev::{Netdev, Netdevs};
use super::{Host, Reply, ip};
use crate::tc::{self, TcError};

/// What a device is, as far as commands say it.
#[derive(Clone, Debug)]
struct Described {
    name: String,
    /// `numtxqueues 4 type veth peer name v1`: what cannot change.
    made: String,
    /// It was made by the command that made the device before.
    is_second: bool,
    mtu: u32,
    txqueuelen: u32,
    up: bool,
    tree: Arc<Setup>,
}

impl Described {
    fn of(devices: &Netdevs, device: &Netdev) -> Self {
        let peer = device.peer.and_then(|peer| devices.by_index(peer));
        let mut made = format!("numtxqueues {} type {}", device.queues, device.kind.name);
        if let Some(peer) = peer {
            made += &format!(" peer name {} numtxqueues {}", peer.name, peer.queues);
        }
        for (key, address) in &device.given.0 {
            made += &format!(" {key} {address}");
        }
        Self {
            name: device.name.clone(),
            made,
            is_second: peer.is_some_and(|peer| peer.index > device.index),
            mtu: device.mtu,
            txqueuelen: device.txqueuelen,
            up: device.up,
            tree: device.link.setup(),
        }
    }

    fn all(devices: &Netdevs) -> Vec<Self> {
        devices.iter().map(|device| Self::of(devices, device)).collect()
    }
}

impl Host {
    /// Brings the host to what `text` describes, a command a line, or, if one of them cannot be
    /// done, leaves all as it was. Gives the commands that it took to get there; lines of a tree
    /// that was replaced begin with `-` and `+`.
    ///
    /// Files that it names are looked for below `folder`.
    ///
    /// Devices that an earlier text made and this one does not are deleted; those that somebody
    /// else made are left alone.
    ///
    /// # Errors
    ///
    /// The line that cannot be done, from 1 on, and what it said.
    pub fn configure(&mut self, text: &str, folder: &Path) -> Result<Vec<String>, (usize, Reply)> {
        let mut trial = Self::new();
        trial.devices.is_trial = true;
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            let reply = trial.exec(&words, folder);
            if reply.code != 0 {
                return Err((at + 1, reply));
            }
        }
        let wanted = Described::all(&trial.devices);
        let before = Described::all(&self.devices);
        let followed = self.follow(&wanted);
        let done = followed.map_err(|reply| {
            // What could not be tried, such as an address that somebody else has.
            let _ = self.follow(&before);
            (0, reply)
        });
        self.tell();
        let commands = done?;
        self.configured = wanted.into_iter().map(|device| device.name).collect();
        Ok(commands)
    }

    /// Makes the devices that are wanted, as they are wanted.
    fn follow(&mut self, wanted: &[Described]) -> Result<Vec<String>, Reply> {
        let mut commands = Vec::new();
        let names: BTreeSet<&str> = wanted.iter().map(|device| device.name.as_str()).collect();
        let gone = |name: &String| !names.contains(name.as_str());
        for name in self.configured.iter().filter(|name| gone(name)).cloned().collect::<Vec<_>>() {
            if self.devices.get(&name).is_some() {
                self.ip(&mut commands, format!("link del dev {name}"))?;
            }
        }
        for device in wanted {
            let there = self.devices.get(&device.name);
            let there = there.map(|there| Described::of(&self.devices, there));
            let differs = there.as_ref().is_some_and(|there| there.made != device.made);
            if differs && !device.is_second {
                self.ip(&mut commands, format!("link del dev {}", device.name))?;
            }
            if (there.is_none() || differs) && self.devices.get(&device.name).is_none() {
                let add = format!("link add dev {} {}", device.name, device.made);
                self.ip(&mut commands, add)?;
            }
        }
        for device in wanted {
            self.set(&mut commands, device)?;
            self.grow(&mut commands, device)?;
        }
        Ok(commands)
    }

    fn ip(&mut self, commands: &mut Vec<String>, line: String) -> Result<(), Reply> {
        let reply = ip::exec(&mut self.devices, &line.split(' ').collect::<Vec<_>>());
        if reply.code != 0 {
            return Err(reply);
        }
        commands.push(format!("ip {line}"));
        Ok(())
    }

    /// Gives a device what can change.
    fn set(&mut self, commands: &mut Vec<String>, wanted: &Described) -> Result<(), Reply> {
        let Some(device) = self.devices.get(&wanted.name) else { return Ok(()) };
        let mut line = String::new();
        if device.mtu != wanted.mtu {
            line += &format!(" mtu {}", wanted.mtu);
        }
        if device.txqueuelen != wanted.txqueuelen {
            line += &format!(" txqueuelen {}", wanted.txqueuelen);
        }
        if device.up != wanted.up {
            line += if wanted.up { " up" } else { " down" };
        }
        if line.is_empty() {
            return Ok(());
        }
        self.ip(commands, format!("link set dev {}{line}", wanted.name))
    }

    /// Gives a device its tree.
    fn grow(&mut self, commands: &mut Vec<String>, wanted: &Described) -> Result<(), Reply> {
        let Some(device) = self.devices.get(&wanted.name) else { return Ok(()) };
        let there = device.link.setup();
        if let Some(changes) = there.changes_to(&wanted.tree) {
            drop(there);
            for line in changes {
                let line = format!("tc {line}");
                let words: Vec<&str> = line.split(' ').skip(1).collect();
                let reply = tc::exec(&mut self.devices, &words);
                if reply.code != 0 {
                    return Err(reply);
                }
                commands.push(line);
            }
            return Ok(());
        }
        let (before, after) = (there.lines(), wanted.tree.lines());
        let is_new = |line: &&String| !before.contains(line);
        let is_gone = |line: &&String| !after.contains(line);
        commands.extend(before.iter().filter(is_gone).map(|line| format!("- tc {line}")));
        commands.extend(after.iter().filter(is_new).map(|line| format!("+ tc {line}")));
        let done = device.link.set_tree(&wanted.tree);
        done.map_err(|error| Reply::from(TcError::from(error)))?;
        device.describe();
        Ok(())
    }
}
