//! The machine on which the figures were measured.

use std::fs;

use serde::Serialize;

/// A machine, as reports describe it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// The kernel, as `uname -srm` prints it.
    pub(crate) kernel: String,
    /// The model name of the first processor.
    pub(crate) cpu: String,
    /// Number of processors that this process may use.
    pub(crate) cpus: usize,
    /// The size of the memory in bytes.
    pub(crate) memory_bytes: u64,
    /// The load average (processes that run or want to run) over the minute before the run. If it
    /// is above zero, other programs were running, too.
    pub(crate) load_1m: f64,
    /// The version of this program.
    pub(crate) onramp: &'static str,
    /// Whether this program was built with optimisation.
    pub(crate) optimised: bool,
    /// The time at which the run began, in seconds since 1970 (UTC).
    pub(crate) started_unix: i64,
}

impl Machine {
    /// Describes the machine that the program runs on. Values that the machine does not tell are
    /// empty or zero.
    pub(crate) fn here() -> Self {
        let uname = rustix::system::uname();
        let kernel = [uname.sysname(), uname.release(), uname.machine()]
            .map(|part| part.to_string_lossy().into_owned())
            .join(" ");
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            kernel,
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes(),
            load_1m: load.split(' ').next().and_then(|l| l.parse().ok()).unwrap_or(0.0),
            onramp: env!("CARGO_PKG_VERSION"),
            optimised: !cfg!(debug_assertions),
            started_unix: rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec,
        }
    }

    /// Returns warnings to readers of the figures.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let busy = was_busy(self.load_1m, self.cpus as f64);
        let slow = (!self.optimised).then(|| NOT_OPTIMISED.to_owned());
        slow.into_iter().chain(busy).collect()
    }

    /// Returns a description of one line for people.
    pub(crate) fn summary(&self) -> String {
        let gib = self.memory_bytes.div_ceil(1 << 30);
        format!("{}, {} CPUs, {gib} GiB, {}", self.cpu, self.cpus, self.kernel)
    }
}

/// The warning about figures of a program that was built without optimisation.
pub(crate) const NOT_OPTIMISED: &str = "The program was built without optimisation, which makes \
                                        all of its figures worse: measure with a build of `cargo \
                                        build --release`.";

/// Returns a warning if other programs kept the machine busy in the minute before the run.
pub(crate) fn was_busy(load_1m: f64, cpus: f64) -> Option<String> {
    (load_1m > cpus / 2.0).then(|| {
        format!(
            "The machine was busy before the run (load {load_1m:.1} on {cpus} CPUs): trust ratios \
             more than rates."
        )
    })
}

/// Returns the size of the memory in bytes; 0 means unknown.
pub(crate) fn memory_bytes() -> u64 {
    let total = field("/proc/meminfo", "MemTotal").unwrap_or_default();
    total.trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib * 1024)
}

/// Returns the value of the first line `name : value` of a file under /proc.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_optimisation_and_a_busy_machine_are_told() {
        let quiet = Machine { cpus: 2, load_1m: 0.5, optimised: true, ..Machine::here() };
        assert_eq!(quiet.warnings(), [""; 0]);
        let slow = Machine { optimised: false, ..quiet.clone() };
        assert_eq!(slow.warnings(), [NOT_OPTIMISED]);
        let both = Machine { optimised: false, load_1m: 1.5, ..quiet };
        let [first, second] = &both.warnings()[..] else { panic!("two warnings") };
        assert_eq!(first, NOT_OPTIMISED);
        assert!(second.contains("was busy before the run (load 1.5 on 2 CPUs)"), "{second}");
        assert_eq!(Machine::here().optimised, !cfg!(debug_assertions));
    }
}
