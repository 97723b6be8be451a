//! Configures a host as a text of commands describes it, either completely or not at all.
//!
//! The commands of the text are first tried on a trial host, whose devices send nothing. Then the
//! real host is brought to the state that the trial host reached. Devices that did not change stay.
//! Trees of qdiscs in which only parameters differ are changed in place; other trees are replaced,
//! and the packets that they hold are moved or dropped.
//!
//! The trial host cannot know whether another process uses the address of a device, or whether a
//! file can be written. So a device that leaves the host stays open until the new state stands, and
//! returns to the host if that fails. Only a device that uses what a new one needs (its address,
//! interface or file) is closed before. If the new state fails then, it is made again. What cannot
//! be made again is lost, which the error tells.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use onramp::PortError;

use super::described::Described;
use super::follow::Follower;
use super::netdev::{DEFAULT_LENGTH, Netdev, Netdevs, default_qdisc};
use super::{Host, Line, Lines, Reply, ip};
use crate::tc::{self, TcError};

/// Error: why a host could not be [configured](Host::configure).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigureError {
    /// The number (from 1 on) of the line whose command cannot be carried out. If a device cannot
    /// get the wanted properties, it is the line that makes the device.
    pub line: usize,
    /// The reply to the command.
    pub reply: Reply,
    /// The names of the devices that could not be restored, each with a reply that says why: they
    /// are gone, or not as they were. If there are none, the host is as it was.
    pub lost: Vec<(String, Reply)>,
}

impl ConfigureError {
    const fn new(line: usize, reply: Reply) -> Self {
        Self { line, reply, lost: Vec::new() }
    }

    fn unread(line: usize, error: &io::Error) -> Self {
        Self::new(line, Reply { code: 1, err: format!("{error}\n"), ..Reply::default() })
    }
}

impl fmt::Display for ConfigureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reply.err.trim_end())?;
        self.lost.iter().try_for_each(|(device, reply)| {
            write!(f, "\n{device} could not be restored: {}", reply.err.trim_end())
        })
    }
}

impl Error for ConfigureError {}

/// What has been done so far to bring a host to a state.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The commands that were carried out.
    pub(super) steps: Vec<String>,
    /// The names of the devices that were made; of a pair, the name of the first end.
    made: Vec<String>,
    /// The devices that have left the host, but are still open.
    aside: Vec<Netdev>,
}

/// The number of the line that failed, and the reply to it.
type Failed = (usize, Reply);

/// Closes a device. The packets that it holds are dropped, as in Linux.
fn close(device: Netdev) {
    device.close(Duration::ZERO);
}

impl Host {
    /// Brings the host to the state that `text` describes. The text consists of commands in
    /// [lines](Lines), like a file for `tc -batch`. If one of the commands cannot be carried out,
    /// the host is left as it was, except for devices that cannot be restored: the error names
    /// these ([`ConfigureError::lost`]). Returns the commands that were carried out on the host.
    /// Where a tree of qdiscs was replaced, the lines of the old tree begin with `-` and those of
    /// the new tree with `+`.
    ///
    /// File names in the text are relative to `folder`.
    ///
    /// Devices that an earlier text made and that this text does not mention are deleted. Devices
    /// that were made in another way, and not by a text, are left alone.
    ///
    /// # Errors
    ///
    /// Returns the line whose command cannot be carried out, and the reply to the command, and
    /// names the devices that could not be restored.
    pub fn configure(&mut self, text: &str, folder: &Path) -> Result<Vec<String>, ConfigureError> {
        let mut trial = Self::with_kinds(self.devices.kinds.clone());
        trial.devices.is_trial = true;
        trial.devices.is_in_fleet = self.devices.is_in_fleet;
        let mut made_by = Vec::new();
        let mut lines = Lines::new(text.as_bytes());
        while let Some(line) = lines.next() {
            let Line { number, words } =
                line.map_err(|error| ConfigureError::unread(lines.number(), &error))?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let reply = trial.exec(&words, folder);
            if reply.code != 0 {
                return Err(ConfigureError::new(number, reply));
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
        for device in &wanted {
            if let Some(there) = self.devices.get_mut(&device.name) {
                there.is_configured = true;
            }
        }
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
    fn follow_or_stay(&mut self, wanted: &[Described]) -> Result<Vec<String>, ConfigureError> {
        let mut before = Described::all(&self.devices);
        Described::forget_indevs(&mut before);
        let mut progress = Progress::default();
        match self.follow(wanted, &mut progress) {
            Ok(()) => {
                progress.aside.into_iter().for_each(close);
                Ok(progress.steps)
            }
            Err((line, reply)) => {
                let lost = self.undo(&before, progress);
                Err(ConfigureError { line, reply, lost })
            }
        }
    }

    /// Gives the host the wanted devices with their wanted properties, and notes in `progress` what
    /// it has done.
    pub(super) fn follow(
        &mut self,
        wanted: &[Described],
        progress: &mut Progress,
    ) -> Result<(), Failed> {
        let going = self.going(wanted);
        let names: BTreeSet<&str> = going.iter().map(|device| device.name.as_str()).collect();
        let stays = |name: &str| self.devices.get(name).is_some() && !names.contains(name);
        let missing = wanted.iter().filter(|device| !device.is_second && !stays(&device.name));
        // Make those devices first that can be made beside the present ones.
        let (late, early): (Vec<_>, Vec<_>) =
            missing.partition(|device| going.iter().any(|there| device.waits_for(there)));
        for device in early {
            self.make(device, progress)?;
        }
        for device in &going {
            // One end of a pair takes the other end with it.
            let taken = ip::take(&mut self.devices, &device.name);
            if taken.is_empty() {
                continue;
            }
            progress.steps.push(format!("ip link del dev {}", device.name));
            let hinders =
                |there: &Netdev| late.iter().any(|it| it.given.is_hindered_by(&there.given));
            if taken.iter().any(hinders) {
                taken.into_iter().for_each(close);
            } else {
                progress.aside.extend(taken);
            }
        }
        for device in late {
            self.make(device, progress)?;
        }
        for device in wanted {
            let equipped = self.equip(&mut progress.steps, device);
            equipped.map_err(|reply| (device.line, reply))?;
        }
        Ok(())
    }

    /// Makes a device, and the other end of its pair.
    fn make(&mut self, device: &Described, progress: &mut Progress) -> Result<(), Failed> {
        let add = format!("link add dev {} {}", device.name, device.made);
        self.ip(&mut progress.steps, add).map_err(|reply| (device.line, reply))?;
        progress.made.push(device.name.clone());
        Ok(())
    }

    /// Brings the host back to the state `before`. What cannot be restored does not hinder the
    /// rest: returns the names of these devices, each with the reply that says why.
    fn undo(&mut self, before: &[Described], progress: Progress) -> Vec<(String, Reply)> {
        for name in &progress.made {
            ip::take(&mut self.devices, name).into_iter().for_each(close);
        }
        ip::put_back(&mut self.devices, progress.aside);
        let mut lost = Vec::new();
        for device in before.iter().filter(|device| !device.is_second) {
            if self.devices.get(&device.name).is_none()
                && let Err(reply) = self.make_again(device)
            {
                let both = [Some(&device.name), device.peer.as_ref()].into_iter().flatten();
                lost.extend(both.map(|name| (name.clone(), reply.clone())));
            }
        }
        for device in before {
            let equipped = self.equip(&mut Vec::new(), device);
            lost.extend(equipped.err().map(|reply| (device.name.clone(), reply)));
            if let Some(there) = self.devices.get_mut(&device.name) {
                there.address = device.address;
                there.is_address_given = device.is_address_given;
                there.is_configured = device.is_configured;
            }
        }
        lost
    }

    /// Makes a device again that had to be closed.
    fn make_again(&mut self, device: &Described) -> Result<(), Reply> {
        if let Some(capture) = device.given.get("replace") {
            // The capture is worth more than the device.
            let err = format!("{capture} would lose its contents\n");
            return Err(Reply { code: 2, err, ..Reply::default() });
        }
        self.make(device, &mut Progress::default()).map_err(|(_, reply)| reply)
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
                device.made != there.made || there.has_to_return
            }
            None => there.is_configured,
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

    /// Gives a device the wanted properties and the wanted tree of qdiscs.
    fn equip(&mut self, commands: &mut Vec<String>, wanted: &Described) -> Result<(), Reply> {
        self.set_default(commands, wanted)?;
        // A packet that came before the qdiscs and filters are there would pass without them.
        let device = self.devices.get(&wanted.name);
        let goes_up = wanted.up && device.is_some_and(|device| !device.up);
        let waits = goes_up && !wanted.tree.lines().is_empty();
        self.set(commands, wanted, waits)?;
        self.grow(commands, wanted)?;
        match waits {
            true => self.ip(commands, format!("link set dev {} up", wanted.name)),
            false => Ok(()),
        }
    }

    /// Sets a device up that is to have another default qdisc than it would get with the wanted
    /// `txqueuelen`. The default qdisc follows from the `txqueuelen` that the device has when it is
    /// set up for the first time: it has to be 0 then, or must not.
    fn set_default(&mut self, commands: &mut Vec<String>, wanted: &Described) -> Result<(), Reply> {
        let Some(device) = self.devices.get(&wanted.name) else { return Ok(()) };
        let default = |length| default_qdisc(device.kind, length, device.queues);
        let first = match wanted.stands().filter(|_| !device.was_up) {
            Some(stands) if stands != default(wanted.txqueuelen) => {
                [0, DEFAULT_LENGTH].into_iter().find(|length| stands == default(*length))
            }
            _ => None,
        };
        let Some(first) = first else { return Ok(()) };
        self.ip(commands, format!("link set dev {} txqueuelen {first} up", wanted.name))
    }

    /// Gives a device the wanted values of those properties that can change, but does not set it up
    /// if it `waits` for its qdiscs.
    fn set(
        &mut self,
        commands: &mut Vec<String>,
        wanted: &Described,
        waits: bool,
    ) -> Result<(), Reply> {
        let Some(device) = self.devices.get(&wanted.name) else { return Ok(()) };
        let mut line = String::new();
        if wanted.is_address_given && device.address != wanted.address {
            line += &format!(" address {}", ip::address(wanted.address));
        }
        if let Some(mtu) = wanted.mtu.filter(|mtu| device.mtu != *mtu) {
            line += &format!(" mtu {mtu}");
        }
        if device.txqueuelen != wanted.txqueuelen {
            line += &format!(" txqueuelen {}", wanted.txqueuelen);
        }
        if device.up != wanted.up && !waits {
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
