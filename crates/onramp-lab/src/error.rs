//! Why an experiment could not be made, or what it found that must not be.

use std::fmt;
use std::io;

/// Why an experiment failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A thread could not be started: which, of how many, and why.
    Thread(usize, usize, io::Error),
    /// A thread of the experiment panicked; the panic hook has printed why.
    Panicked,
    /// A clock or counter of the kernel could not be read: which, and why.
    Usage(&'static str, io::Error),
    /// A thread could not be bound to a processor: which processor, and why.
    Pin(usize, io::Error),
    /// The link could not be made.
    Link(onramp::BuildError),
    /// The kernel's own path could not be set up or used: what was done, and why it failed.
    Kernel(String),
    /// A line of `tc` that the laboratory writes itself is refused: which, and why.
    Setup(String, String),
    /// No side has a qdisc: which, and what Onramp says to it.
    Qdisc(String, String),
    /// Nothing came out: in which cell, and for how long.
    Stalled(String),
    /// Packets were lost, or came from nowhere: in which cell, and the account.
    Conservation(String),
    /// A link was to be full for a whole window, and was not: what showed it.
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
            Self::Panicked => f.write_str("a thread of the experiment panicked; please report it"),
            Self::Usage(what, error) => write!(f, "cannot read {what}: {error}"),
            Self::Pin(cpu, error) => write!(
                f,
                "cannot bind a thread to processor {cpu}: {error}; leave threads unpinned, or \
                 allow the processor (taskset, cpuset)"
            ),
            Self::Link(error) => write!(f, "cannot make the link: {error}"),
            Self::Kernel(why) => write!(f, "the kernel's own path: {why}"),
            Self::Setup(line, why) => write!(f, "`{line}`: {why}; please report this"),
            Self::Qdisc(qdisc, why) => {
                write!(f, "{qdisc}: neither the kernel nor Onramp has it; Onramp's: {why}")
            }
            Self::Stalled(cell) => write!(
                f,
                "nothing came out: {cell}; give senders more credits, or use a qdisc and a device \
                 that let packets pass"
            ),
            Self::Conservation(account) => write!(f, "packets do not add up: {account}"),
            Self::NotFull(why) => {
                write!(f, "the link is not as full as it has to be: {why}; please report it")
            }
        }
    }
}

// No `source`: the text says it all.
impl std::error::Error for Error {}
