//! Descriptions of machines, from files in which each number has its source.

use std::{fmt, fs};

use onramp_machine::{Caches, Costs, Machine, Topology};
use serde::{Deserialize, Serialize};

use crate::parameter::{Draw, Parameter};

/// The machines that are described in this crate: name and text of the file.
pub const MACHINES: &[(&str, &str)] = &[
    ("altix-2004", include_str!("../data/machines/altix-2004.toml")),
    ("arm-64", include_str!("../data/machines/arm-64.toml")),
    ("desktop-amd", include_str!("../data/machines/desktop-amd.toml")),
    ("desktop-intel", include_str!("../data/machines/desktop-intel.toml")),
    ("pentium3-2001", include_str!("../data/machines/pentium3-2001.toml")),
    ("xeon-2009", include_str!("../data/machines/xeon-2009.toml")),
    ("xeon-6985p", include_str!("../data/machines/xeon-6985p.toml")),
];

/// The description of a machine: the arrangement of its processors, and an interval for each cost.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Name of the machine: that of its file.
    pub name: String,
    /// Which machine this is, for people.
    pub title: String,
    /// Number of sockets.
    pub sockets: u16,
    /// Number of clusters in each socket: cores that share a last-level cache, or lie on one die.
    pub clusters: u16,
    /// Number of cores in each cluster.
    pub cores: u16,
    /// Number of hardware threads in each core.
    pub threads: u16,
    /// Number of lines in a core's first-level data cache.
    pub l1_lines: u32,
    /// Number of lines in a core's second-level cache.
    pub l2_lines: u32,
    /// Number of lines in the last-level cache, for people: the simulated one keeps all lines.
    pub llc_lines: u32,
    /// Size of a cache line in bytes.
    pub line_bytes: u32,
    /// A load from the own first-level cache.
    pub l1: Parameter,
    /// A load from the own second-level cache.
    pub l2: Parameter,
    /// A line that the other hardware thread of the core wrote, for people: in the simulation, the
    /// hardware threads of a core share its caches, so that this is a hit.
    pub sibling: Parameter,
    /// An unmodified line from the last-level cache.
    pub llc: Parameter,
    /// A modified line from another core of the same cluster.
    pub near: Parameter,
    /// A modified line from another cluster of the same socket.
    pub far: Parameter,
    /// A modified line from another socket.
    pub remote: Parameter,
    /// An unmodified line from the caches of another socket.
    pub remote_clean: Parameter,
    /// A line from the memory of the own socket.
    pub memory: Parameter,
    /// A line from the memory of another socket.
    pub memory_remote: Parameter,
    /// An atomic read-modify-write of a line that the core owns, beyond the load.
    pub atomic: Parameter,
    /// A full fence.
    pub fence: Parameter,
    /// One hint that the thread spins.
    pub pause: Parameter,
    /// A reading of the clock.
    pub clock: Parameter,
    /// A switch between two threads.
    pub context_switch: Parameter,
    /// From a wake-up call until the thread runs on another processor.
    pub wake: Parameter,
    /// What a wake-up call costs its caller.
    pub wake_call: Parameter,
    /// A device's interrupt, without its work.
    pub interrupt: Parameter,
    /// How many times longer local work takes beside a working hardware thread of the same core.
    pub smt: Parameter,
    /// The same beside one that spins.
    pub smt_spin: Parameter,
    /// The scheduler's time slice, in milliseconds.
    pub slice_ms: Parameter,
}

/// A machine that this crate does not describe, or whose description has a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(String);

impl Unknown {
    pub(crate) fn new(what: String) -> Self {
        Self(what)
    }

    /// Says on one line what is wrong with a file of which `text` is the text, on which of its
    /// lines, and in which field.
    pub(crate) fn in_file(text: &str, error: &toml::de::Error) -> Self {
        let before = error.span().and_then(|span| text.get(..span.start));
        let place = before.map_or_else(String::new, |before| {
            let line = before.matches('\n').count();
            let field = text.lines().nth(line).and_then(|line| line.split_once('='));
            let field = field.map_or("", |(field, _)| field.trim());
            if field.is_empty() || error.message().contains(field) {
                return format!("line {}: ", line + 1);
            }
            format!("line {}: {field}: ", line + 1)
        });
        Self(place + error.message())
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unknown {}

impl Description {
    /// Returns the description of a machine of [`MACHINES`].
    ///
    /// # Errors
    ///
    /// [`Unknown`] names the machines that there are.
    pub fn named(name: &str) -> Result<Self, Unknown> {
        match MACHINES.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Self::read(text),
            None => {
                let names: Vec<_> = MACHINES.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                Err(Unknown(format!("there is no machine {name:?}: the machines are {names}")))
            }
        }
    }

    /// Returns the description of a machine of [`MACHINES`], or that of a file if `name` has a
    /// slash or a dot.
    ///
    /// # Errors
    ///
    /// [`Unknown`] says what is wrong with the name or with the file.
    pub fn find(name: &str) -> Result<Self, Unknown> {
        if !name.contains(['/', '.']) {
            return Self::named(name);
        }
        let wrong = |why: &dyn fmt::Display| Unknown(format!("the machine {name}: {why}"));
        let text = fs::read_to_string(name).map_err(|error| wrong(&error))?;
        Self::read(&text).map_err(|why| wrong(&why))
    }

    /// Reads a description from the text of a file.
    ///
    /// # Errors
    ///
    /// [`Unknown`] says what is wrong with the text, and where.
    pub fn read(text: &str) -> Result<Self, Unknown> {
        let this: Self = toml::from_str(text).map_err(|error| Unknown::in_file(text, &error))?;
        for (name, parameter) in this.parameters() {
            let Parameter { low, high, ref unit, .. } = *parameter;
            if let Some(unit) = unit.as_deref().filter(|unit| *unit != "ns") {
                let what = "numbers are nanoseconds where the name has no unit; leave it out";
                return Err(Unknown(format!("{name}: unit {unit:?}: {what}")));
            }
            if !(low >= 0.0 && low <= high && high.is_finite()) {
                return Err(Unknown(format!("{name}: {low} to {high} is no interval")));
            }
        }
        // A slice of no time would leave threads that share a processor no time at all, and a
        // sibling makes no work faster.
        for (name, least) in [("slice_ms", 0.001), ("smt", 1.0), ("smt_spin", 1.0)] {
            let known = this.parameters().into_iter().find(|(known, _)| *known == name);
            if let Some((_, parameter)) = known.filter(|(_, parameter)| parameter.low < least) {
                return Err(Unknown(format!("{name}: {} is less than {least}", parameter.low)));
            }
        }
        let counts = [this.sockets, this.clusters, this.cores, this.threads];
        let has_lines = this.line_bytes.is_power_of_two() && (16..=128).contains(&this.line_bytes);
        if counts.contains(&0) || !has_lines {
            let what = "sockets, clusters, cores and threads are at least 1, line_bytes is 16, 32, \
                        64 or 128";
            return Err(Unknown(what.to_owned()));
        }
        let processors: u64 = counts.into_iter().map(u64::from).product();
        if processors > u16::MAX.into() {
            let what = format!("{processors} processors: expected at most {}", u16::MAX);
            return Err(Unknown(format!("sockets, clusters, cores and threads make {what}")));
        }
        Ok(this)
    }

    /// Returns the text of a file from which [`read`](Self::read) makes this description again.
    ///
    /// # Panics
    ///
    /// Never: every description can be written.
    #[must_use]
    pub fn text(&self) -> String {
        toml::to_string(self).expect("words and numbers")
    }

    fn parameters(&self) -> [(&'static str, &Parameter); 21] {
        [
            ("l1", &self.l1),
            ("l2", &self.l2),
            ("sibling", &self.sibling),
            ("llc", &self.llc),
            ("near", &self.near),
            ("far", &self.far),
            ("remote", &self.remote),
            ("remote_clean", &self.remote_clean),
            ("memory", &self.memory),
            ("memory_remote", &self.memory_remote),
            ("atomic", &self.atomic),
            ("fence", &self.fence),
            ("pause", &self.pause),
            ("clock", &self.clock),
            ("context_switch", &self.context_switch),
            ("wake", &self.wake),
            ("wake_call", &self.wake_call),
            ("interrupt", &self.interrupt),
            ("smt", &self.smt),
            ("smt_spin", &self.smt_spin),
            ("slice_ms", &self.slice_ms),
        ]
    }

    /// Draws a machine from the intervals.
    pub fn draw(&self, draw: &mut Draw) -> Machine {
        let mut machine = self.draw_each(draw);
        let costs = &mut machine.costs;
        // Each cost is drawn by itself, but no line comes faster from farther away, and an
        // unmodified one no slower than a modified one.
        costs.far = costs.far.max(costs.near);
        costs.remote = costs.remote.max(costs.far);
        costs.remote_clean = costs.remote_clean.min(costs.remote);
        machine
    }

    fn draw_each(&self, draw: &mut Draw) -> Machine {
        Machine {
            topology: Topology {
                sockets: self.sockets,
                clusters: self.clusters,
                cores: self.cores,
                threads: self.threads,
            },
            caches: Caches {
                line_bytes: self.line_bytes,
                l1_lines: self.l1_lines,
                l2_lines: self.l2_lines,
            },
            costs: Costs {
                l1: draw.picoseconds(&self.l1),
                l2: draw.picoseconds(&self.l2),
                llc: draw.picoseconds(&self.llc),
                near: draw.picoseconds(&self.near),
                far: draw.picoseconds(&self.far),
                remote: draw.picoseconds(&self.remote),
                remote_clean: draw.picoseconds(&self.remote_clean),
                memory: draw.picoseconds(&self.memory),
                memory_remote: draw.picoseconds(&self.memory_remote),
                atomic: draw.picoseconds(&self.atomic),
                fence: draw.picoseconds(&self.fence),
                pause: draw.picoseconds(&self.pause),
                clock: draw.picoseconds(&self.clock),
                context_switch: draw.picoseconds(&self.context_switch),
                wake: draw.picoseconds(&self.wake),
                wake_call: draw.picoseconds(&self.wake_call),
                // Picoseconds are thousandths of nanoseconds, as permille are of 1.
                smt: draw.picoseconds(&self.smt),
                smt_spin: draw.picoseconds(&self.smt_spin),
                slice: draw.picoseconds(&self.slice_ms) * 1_000_000,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_machines_are_described() {
        for (name, text) in MACHINES {
            let described = Description::read(text).unwrap_or_else(|why| panic!("{name}: {why}"));
            assert_eq!(described.name, *name);
            for (what, parameter) in described.parameters() {
                assert!(
                    !parameter.source.is_empty() && !parameter.note.is_empty(),
                    "{name}: {what}"
                );
                let cut = ["(:", "(;", "(,"];
                assert!(!cut.iter().any(|cut| parameter.source.contains(cut)), "{name}: {what}");
                let how = ["read", "remembered", "derived", "measured"];
                assert!(how.contains(&&*parameter.how), "{name}: {what}");
            }
            let Costs { l1, l2, near, remote, smt, slice, .. } =
                described.draw(&mut Draw::new(0)).costs;
            assert!(l1 <= l2 && l2 <= near && near <= remote, "{name}");
            assert!((1_000..2_000).contains(&smt) && slice > 1_000_000_000, "{name}");
        }
        for (name, _) in MACHINES {
            let described = Description::named(name).expect("described");
            for seed in 1..200 {
                let Costs { near, far, remote, remote_clean, .. } =
                    described.draw(&mut Draw::new(seed)).costs;
                assert!(near <= far && far <= remote && remote_clean <= remote, "{name} {seed}");
            }
        }
        let xeon = Description::named("xeon-6985p").unwrap().draw(&mut Draw::new(0));
        assert_eq!(xeon.topology.processors(), 480);
    }

    #[test]
    fn mistakes_are_named() {
        let (_, text) = MACHINES[0];
        let wrong = |from: &str, to: &str, words: &[&str]| {
            assert!(text.contains(from), "{from}");
            let why = Description::read(&text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        };
        wrong("[l2]", "[l3]", &["l3"]);
        wrong("sockets = ", "sockets = 0 #", &["at least 1"]);
        wrong("low = ", "low = 1e9 #", &["is no interval"]);
        wrong("cores = ", "cores = 65535 #", &[" processors: expected at most 65535"]);
        wrong("line_bytes = ", "line_bytes = 256 #", &["line_bytes is 16, 32, 64 or 128"]);
        for (name, value) in [("slice_ms", "0"), ("smt", "0.5"), ("smt_spin", "0.9")] {
            let at = format!("[{name}]\nlow = ");
            wrong(&at, &format!("{at}{value} #"), &[name, value, "less than"]);
        }
        wrong("[l2]\n", "[l2]\nunit = \"us\"\n", &["l2: unit \"us\"", "leave it out"]);
        let why = Description::named("xeon").unwrap_err().to_string();
        assert!(why.contains("\"xeon\"") && why.contains("xeon-6985p"), "{why}");
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (name, _) in MACHINES {
            let mut machine = Description::named(name).expect("described");
            assert_eq!(Description::read(&machine.text()), Ok(machine.clone()), "{name}");
            machine.title = "a \"title\" \\ with\ta tab, a\nline and \u{7f}, ü".into();
            machine.near.unit = Some("ns".into());
            (machine.near.low, machine.near.high) = (1e-7, 1.5e17);
            assert_eq!(Description::read(&machine.text()), Ok(machine), "{name}");
        }
    }
}
