//! A job: a change or a query of a running tree.

use std::fmt;

use crate::sched::Cx;
use crate::tree::RootQdisc;

/// A change or query of a port's tree, to be run by the port's owner: see
/// [`Port::with`](super::Port::with). The time in the job's [`Cx`] is the time in which the port's
/// qdiscs live: the present, or up to [`PortOptions::catch_up_ns`](super::PortOptions::catch_up_ns)
/// before the present while packets are overdue.
pub type Job = Box<dyn FnOnce(&mut RootQdisc, &mut Cx<'_>) + Send>;

/// The error for a job that the port refused because [`JOBS_MAX`] jobs are already waiting.
/// Contains the refused job.
pub struct TooManyJobs(pub Job);

impl fmt::Debug for TooManyJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TooManyJobs")
    }
}

impl fmt::Display for TooManyJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{JOBS_MAX} jobs wait for the port already; its device blocks")
    }
}

impl std::error::Error for TooManyJobs {}

/// The largest number of jobs that may wait for a port, for example while its owner is blocked
/// inside the device.
pub const JOBS_MAX: usize = 1_024;
