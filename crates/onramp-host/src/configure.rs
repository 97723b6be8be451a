//! Configures a host as a text of commands describes it, either completely or not at all.
//!
//! The commands of the text are first tried on a trial host, whose devices send nothing. Then the
//! real host is brought to the state that the trial host reached. Devices that did not change stay.
//! Trees of qdiscs in which only parameters differ are changed in place; other trees are replaced,
//! and the packets that they hold are moved or dropped.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use onramp::PortError;
use onramp_core::Setup;

use super::device::Value;
use super::follow::Follower;
use super::netdev::{Netdev, Netdevs};
use super::{Host, Line, Lines, Reply, ip};
use crate::tc::{self, TcError};

/// The description of a device, as far as commands can set its properties.
#[derive(Clone, Debug)]
pub(super) struct Described {
    pub(super) name: String,
    /// The properties that cannot change after creation, as a command writes them: `numtxqueues 4
    /// type veth peer name v1`.
    made: String,
    /// The name of the other end of a `veth`.
    pub(super) peer: Option<String>,
    /// Whether this device is the second end of a pair, which was made by the command that made the
    /// first end (its peer).
    is_second: bool,
    /// The socket addresses and the interfaces that the device uses; no other device can use them
    /// at the same time.
    uses: Vec<Value>,
    /// The number of the line in the text that makes the device.
    line: usize,
    mtu: u32,
    txqueuelen: u32,
    up: bool,
    tree: Arc<Setup>,
    followers: Vec<Follower>,
}

impl Described {
    fn of(devices: &Netdevs, device: &Netdev) -> Self {
        let peer = device.peer.and_then(|peer| devices.by_index(peer));
        let mut made = format!("numtxqueues {} type {}", device.queues, device.kind.name);
        for (key, value) in &device.given.0 {
            made += &format!(" {key} {value}");
        }
        if let Some(peer) = peer {
            made += &format!(" peer name {} numtxqueues {}", peer.name, peer.queues);
        }
        if [Some(device), peer].into_iter().flatten().any(|end| end.end.is_gone()) {
            // Nobody wants such a device, so it is made again.
            made += " gone";
        }
        Self {
            name: device.name.clone(),
            made,
            peer: peer.map(|peer| peer.name.clone()),
            uses: device
                .given
                .0
                .iter()
                .map(|(_, value)| value)
                .filter(|value| !matches!(value, Value::Number(_)))
                .cloned()
                .collect(),
            line: 0,
            is_second: peer.is_some_and(|peer| peer.index > device.index),
            mtu: device.mtu,
            txqueuelen: device.txqueuelen,
            up: device.up,
            tree: device.link.setup(),
            followers: device.followers.lock().clone(),
        }
    }

    pub(super) fn all(devices: &Netdevs) -> Vec<Self> {
        devices.iter().map(|device| Self::of(devices, device)).collect()
    }
}

impl Described {
    /// Whether this device can be made only after the device `there` is gone, because both use the
    /// same name, address or interface.
    fn waits_for(&self, there: &Self) -> bool {
        let names = [Some(&self.name), self.peer.as_ref()];
        names.contains(&Some(&there.name))
            || self.uses.iter().any(|value| there.uses.contains(value))
    }
}

/// The number of the line that failed, and the reply to it.
type Failed = (usize, Reply);

/// The words with which each command begins that makes a device.
const MAKE: &str = "ip link add dev ";

impl Host {
    /// Brings the host to the state that `text` describes. The text consists of commands in
    /// [lines](Lines), like a file for `tc -batch`. If one of the commands cannot be carried out,
    /// the host is left as it was. Returns the commands that were carried out on the host. Where a
    /// tree of qdiscs was replaced, the lines of the old tree begin with `-` and those of the new
    /// tree with `+`.
    ///
    /// File names in the text are relative to `folder`.
    ///
    /// Devices that an earlier text made and that this text does not mention are deleted. Devices
    /// that were made in another way, and not by a text, are left alone.
    ///
    /// # Errors
    ///
    /// Returns the number (from 1 on) of the line whose command cannot be carried out, and the
    /// reply to the command. If a device cannot get the wanted properties, the line is the one that
    /// makes the device.
    pub fn configure(&mut self, text: &str, folder: &Path) -> Result<Vec<String>, (usize, Reply)> {
        let mut trial = Self::with_kinds(self.devices.kinds.clone());
        trial.devices.is_trial = true;
        trial.devices.is_in_fleet = self.devices.is_in_fleet;
        let mut made_by = Vec::new();
        for Line { number, words } in Lines::new(text.as_bytes()).map_while(Result::ok) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let reply = trial.exec(&words, folder);
            if reply.code != 0 {
                return Err((number, reply));
            }
            made_by.push((trial.devices.last(), number));
        }
        self.keep_ports(&mut trial.devices);
        for there in self.devices.iter() {
            if let Some(device) = trial.devices.get_mut(&there.name) {
                device.keep_shares(there);
            }
        }
        let mut wanted = Described::all(&trial.devices);
        for (device, index) in wanted.iter_mut().zip(trial.devices.iter().map(|it| it.index)) {
            let place = made_by.partition_point(|(last, _)| *last < index);
            device.line = made_by.get(place).map_or(0, |(_, line)| *line);
        }
        let done = self.follow_or_stay(&wanted);
        self.tell();
        let commands = done?;
        self.configured = wanted.into_iter().map(|device| device.name).collect();
        Ok(commands)
    }

    /// Replaces the port 0 of `listen`, which means any port, by the port that the device of this
    /// name has on the host, so that the clients of its relay find it where it was.
    fn keep_ports(&self, trial: &mut Netdevs) {
        for there in self.devices.iter() {
            let (Some(has), Some(device)) =
                (there.given.address("listen"), trial.get_mut(&there.name))
            else {
                continue;
            };
            let wanted = device.given.address("listen");
            if wanted.is_some_and(|wanted| wanted.port() == 0 && wanted.ip() == has.ip()) {
                device.given.set("listen", has);
            }
        }
    }

    /// Gives the host the wanted devices with their wanted properties. If that fails, restores all
    /// devices as they were.
    fn follow_or_stay(&mut self, wanted: &[Described]) -> Result<Vec<String>, Failed> {
        let before = Described::all(&self.devices);
        let mut steps = Vec::new();
        let Err((line, mut reply)) = self.follow(wanted, &mut steps) else { return Ok(steps) };
        // A step failed that the trial host could not check, for example because another process
        // uses the address of a device. Delete the devices that earlier steps made.
        let was = |name: &str| before.iter().any(|device| device.name == name);
        for name in wanted.iter().map(|device| &device.name).filter(|name| !was(name)) {
            let is_ours = steps.iter().any(|step| step.starts_with(&format!("{MAKE}{name} ")));
            if is_ours && self.devices.get(name).is_some() {
                let _ = self.ip(&mut Vec::new(), format!("link del dev {name}"));
            }
        }
        if let Err((_, undone)) = self.follow(&before, &mut Vec::new()) {
            reply.err +=
                &format!("onramp: cannot restore the earlier devices either: {}", undone.err);
        }
        Err((line, reply))
    }

    /// Gives the host the wanted devices with their wanted properties. Adds each command that was
    /// carried out to `steps`.
    pub(super) fn follow(
        &mut self,
        wanted: &[Described],
        steps: &mut Vec<String>,
    ) -> Result<(), Failed> {
        let going = self.going(wanted);
        let names: BTreeSet<&str> = going.iter().map(|device| device.name.as_str()).collect();
        let stays = |name: &str| self.devices.get(name).is_some() && !names.contains(name);
        let missing = wanted.iter().filter(|device| !device.is_second && !stays(&device.name));
        // Make those devices first that can be made beside the present ones: making a device may
        // fail, and deleting devices cannot be undone.
        let (late, early): (Vec<_>, Vec<_>) =
            missing.partition(|device| going.iter().any(|there| device.waits_for(there)));
        let make = |host: &mut Self, device: &Described, steps: &mut Vec<String>| {
            let add = format!("link add dev {} {}", device.name, device.made);
            host.ip(steps, add).map_err(|reply| (device.line, reply))
        };
        for device in early {
            make(self, device, steps)?;
        }
        for device in going {
            // Deleting one end of a `veth` deletes the other end, too.
            if self.devices.get(&device.name).is_some() {
                let del = format!("link del dev {}", device.name);
                self.ip(steps, del).map_err(|reply| (device.line, reply))?;
            }
        }
        for device in late {
            make(self, device, steps)?;
        }
        for device in wanted {
            let set = self.set(steps, device).and_then(|()| self.grow(steps, device));
            set.map_err(|reply| (device.line, reply))?;
        }
        Ok(())
    }

    /// Returns the host's devices that have to be deleted, because they are no longer wanted or
    /// because they have to be made anew with other properties.
    fn going(&self, wanted: &[Described]) -> Vec<Described> {
        let wanted: BTreeMap<&str, &Described> =
            wanted.iter().map(|device| (device.name.as_str(), device)).collect();
        let mut there = Described::all(&self.devices);
        there.retain_mut(|there| match wanted.get(there.name.as_str()) {
            Some(device) => {
                there.line = device.line;
                device.made != there.made
            }
            None => self.configured.contains(&there.name),
        });
        there
    }

    fn ip(&mut self, commands: &mut Vec<String>, line: String) -> Result<(), Reply> {
        let reply = ip::exec(&mut self.devices, &line.split(' ').collect::<Vec<_>>());
        if reply.code != 0 {
            return Err(reply);
        }
        commands.push(format!("ip {line}"));
        Ok(())
    }

    /// Gives a device the wanted values of those properties that can change.
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

    /// Gives a device the wanted tree of qdiscs, whose rates follow the wanted shares.
    fn grow(&mut self, commands: &mut Vec<String>, wanted: &Described) -> Result<(), Reply> {
        let Some(device) = self.devices.get(&wanted.name) else { return Ok(()) };
        // The shares may have changed since the text was read.
        let follow = |followers: &mut Vec<Follower>| {
            followers.clone_from(&wanted.followers);
            followers.iter_mut().for_each(|it| it.is_stale = true);
        };
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
            if let Some(device) = self.devices.get(&wanted.name) {
                follow(&mut device.followers.lock());
            }
            return Ok(());
        }
        let (before, after) = (there.lines(), wanted.tree.lines());
        let [old, new] = [&before, &after].map(|lines| lines.iter().collect::<HashSet<_>>());
        let (gone, come) = (before.iter().filter(|it| !new.contains(it)), after.iter());
        commands.extend(gone.map(|line| format!("- tc {line}")));
        commands.extend(come.filter(|it| !old.contains(it)).map(|line| format!("+ tc {line}")));
        let mut followers = device.followers.lock();
        let done = device.link.set_tree(&wanted.tree);
        if !matches!(done, Err(PortError::Config(_) | PortError::Closed)) {
            follow(&mut followers);
        }
        drop(followers);
        done.map_err(|error| Reply::from(TcError::from(error)))?;
        device.describe();
        Ok(())
    }
}
