//! Writes the configuration of a host as the commands that make it again.

use std::collections::HashMap;

use super::configure::Progress;
use super::described::Described;
use super::{Host, Reply};

const USAGE: &str = "Usage: onramp save [ dev NAME ]\n";

impl Host {
    /// Returns the commands that make the host's devices and their trees of qdiscs again, with
    /// their present settings: lines of `ip` and `tc`, in an order in which they can be carried
    /// out. On a new host, [`configure`](Self::configure) makes the same devices of these lines,
    /// joined to a text. Counters, packets that wait, and random hardware addresses are not part of
    /// the configuration.
    ///
    /// With `device`, returns only the commands for this device, and for the other end of its pair.
    ///
    /// Filters whose `indev` is a device without commands are left out: they match no packet. A
    /// device that writes a capture (`type pcap file FILE`) cannot be made again while FILE exists.
    ///
    /// # Errors
    ///
    /// The reply of `ip` or `tc` if there is no such device, or if the configuration cannot be
    /// made again.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use onramp_host::Host;
    ///
    /// let mut host = Host::new();
    /// for line in ["ip link add d0 type dummy", "tc qdisc add dev d0 root fq limit 50"] {
    ///     let words: Vec<_> = line.split(' ').collect();
    ///     assert_eq!(host.exec(&words, Path::new("/")).code, 0);
    /// }
    /// let saved = host.save(None).expect("it can be saved").join("\n");
    /// let mut other = Host::new();
    /// other.configure(&saved, Path::new("/")).expect("it can be made again");
    /// assert_eq!(other.save(None).expect("it can be saved").join("\n"), saved);
    /// ```
    pub fn save(&self, device: Option<&str>) -> Result<Vec<String>, Reply> {
        let mut wanted = Described::all(&self.devices);
        if let Some(name) = device {
            let is_it = |it: &Described| it.name == name || it.peer.as_deref() == Some(name);
            wanted.retain(is_it);
            if wanted.is_empty() {
                let err = format!("Cannot find device \"{name}\"\n");
                return Err(Reply { code: 1, err, ..Reply::default() });
            }
        }
        Described::forget_indevs(&mut wanted);
        // The commands are those that bring a host without devices to this state.
        let mut trial = Self::new();
        trial.devices.is_trial = true;
        let mut progress = Progress::default();
        trial.follow(&wanted, &mut progress).map_err(|(_, reply)| reply)?;
        // A tree that is made as a whole has the sign `+` in front of its lines, and the default
        // tree that it replaces has no lines.
        let plain = |step: String| step.strip_prefix("+ ").map(str::to_owned).unwrap_or(step);
        let mut named: HashMap<String, String> =
            wanted.iter().flat_map(Described::with_names).collect();
        let step = |step| {
            let step = plain(step);
            let line = step.strip_prefix("tc ").and_then(|line| named.remove(line));
            line.map_or(step, |line| format!("tc {line}"))
        };
        Ok(progress.steps.into_iter().map(step).collect())
    }

    /// Carries out the command `save`.
    pub(super) fn saved(&self, words: &[&str]) -> Reply {
        let device = match *words {
            [] => None,
            ["dev", name] => Some(name),
            ["help"] => return Reply { err: USAGE.to_owned(), ..Reply::default() },
            _ => {
                let err = format!("save: expected nothing, or dev NAME\n{USAGE}");
                return Reply { code: 255, err, ..Reply::default() };
            }
        };
        match self.save(device) {
            Ok(lines) => {
                let out = lines.into_iter().map(|line| line + "\n").collect();
                Reply { out, ..Reply::default() }
            }
            Err(reply) => reply,
        }
    }
}
