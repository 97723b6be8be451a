//! The error type of the experiments: why an experiment could not run, and which of its own checks
//! failed.

use std::fmt;
use std::io;

/// The reason why an experiment failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A thread could not be started. The fields are the thread's number, the number of threads
    /// wanted, and the operating system's error.
    Thread(usize, usize, io::Error),
    /// A thread of the experiment panicked; the panic hook has printed why.
    Panicked,
    /// A clock or counter of the kernel could not be read. The fields are its name, and the
    /// operating system's error.
    Usage(&'static str, io::Error),
    /// A thread could not be bound to a processor. The fields are the processor's number, and the
    /// operating system's error.
    Pin(usize, io::Error),
    /// The link of the experiment could not be made.
    Link(onramp::BuildError),
    /// The kernel's own transmit path could not be set up or used. The text says which step failed,
    /// and why.
    Kernel(String),
    /// The network of the experiment could not be set up or used. The text says which step failed,
    /// and why.
    Network(String),
    /// Onramp refused a line of `tc` that the laboratory itself wrote. The fields are the line, and
    /// the reason.
    Setup(String, String),
    /// Neither the kernel nor Onramp has a qdisc that was asked for. The fields are the qdisc, and
    /// Onramp's error for it.
    Qdisc(String, String),
    /// No packet left the device during a measurement. The text names the design and the settings
    /// of the measurement, and the time waited.
    Stalled(String),
    /// Packets were lost or duplicated during a measurement. The text names the design and the
    /// settings of the measurement, and the packet counts.
    Conservation(String),
    /// Packets left a shaper before the instant of their release. The text names the shaper and
    /// says how many.
    Early(String),
    /// A qdisc dropped packets while it was filled, so it cannot be measured with this backlog. The
    /// text names the qdisc and says how many packets it held.
    Room(String),
    /// This build has no queue of the design, because another crate has it. The field is the name
    /// of the design.
    Absent(&'static str),
    /// The run was asked to end early; see `measure::stop`.
    Stopped,
    /// The experiment needs a link that is full during the whole measured window, but the link was
    /// not full. The text says what showed this.
    NotFull(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Thread(number, of, error) => write!(
                f,
                "cannot start thread {number} of {of}: {error}; use fewer threads, or raise \
                 `ulimit -u`, kernel.threads-max or the control group's pids.max"
            ),
            Self::Panicked => {
                f.write_str("the measurement panicked, as standard error says; please report it")
            }
            Self::Usage(what, error) => write!(f, "cannot read {what}: {error}"),
            Self::Pin(cpu, error) => write!(
                f,
                "cannot bind a thread to processor {cpu}: {error}; leave threads unpinned, or \
                 allow the processor (taskset, cpuset)"
            ),
            Self::Link(error) => write!(f, "cannot make the link: {error}"),
            Self::Kernel(why) => write!(f, "cannot measure the kernel's own path: {why}"),
            Self::Network(why) => write!(f, "cannot set up or use the test network: {why}"),
            Self::Setup(line, why) => write!(f, "`{line}`: {why}; please report this"),
            Self::Qdisc(qdisc, why) => {
                write!(
                    f,
                    "{qdisc}: neither the kernel nor Onramp knows this qdisc; Onramp's error: {why}"
                )
            }
            Self::Stalled(cell) => {
                write!(
                    f,
                    "no packet left the device: {cell}; give senders more credits, or use a \
                     qdisc and a device that let packets pass"
                )
            }
            Self::Conservation(account) => write!(f, "packets were lost or duplicated: {account}"),
            Self::Early(which) => {
                write!(f, "packets left before their instant, please report it: {which}")
            }
            Self::Room(held) => write!(f, "{held} packets; give a smaller backlog"),
            Self::Absent(design) => write!(
                f,
                "{design}: the queue of another crate cannot run on the simulated machine; choose \
                 another design"
            ),
            Self::Stopped => f.write_str("the run was asked to end early"),
            Self::NotFull(why) => {
                write!(
                    f,
                    "the link was not full during the whole measurement: {why}; please report it"
                )
            }
        }
    }
}

// This error does not override `source()`, because the text of `Display` already includes the
// cause.
impl std::error::Error for Error {}
