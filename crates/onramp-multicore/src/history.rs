//! The kernels of measurements that are older than the designs of the laboratory, as small programs
//! for the simulated machine.
//!
//! Each program does what that kernel did with a packet: it takes the same locks, writes the same
//! shared lines and works as long in between. The locks and the counters that processors share are
//! atomics of the simulated machine, so how long a processor waits for a line or for a lock, and
//! who gets a lock next, follows from the machine and from no formula.
//!
//! The measurement of 2001 counts switches between threads and no cache lines, so its kernel is a
//! simulation of events, without that machine.
//!
//! ```text
//! y2001   an HTTP server with and without a patch of softirqs (Linux 2.4.10)
//! y2004   N senders to N receivers over loopback, one transmit lock (Linux 2.4)
//! y2009   1 to 8 senders through one queue of a network card (Linux 2.6.29)
//! lock    the spinlocks of those kernels
//! memory  cache lines whose contents nobody needs
//! window  the measured time, and what was counted in it
//! ```

mod lock;
mod memory;
mod window;
mod y2001;
mod y2004;
mod y2009;

pub(crate) use y2001::figures as http_2001;
pub(crate) use y2004::figures as loopback_2004;
pub(crate) use y2009::figures as udp_2009;
