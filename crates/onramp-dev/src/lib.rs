//! Devices that carry packets, and the clock they live by.
//!
//! * [`Udp`]: one UDP socket is one transmit queue; neighbours of a flow leave as one message.
//! * [`Loopback`]: into a queue of the same process, for tests and examples.
//! * [`Null`]: takes everything, at once.
//!
//! Everything `unsafe` lives in `sys`, behind safe functions.
#![deny(unsafe_code)]

mod backoff;
mod clock;
mod error;
mod loopback;
mod null;
mod sys;
mod udp;

pub use clock::MonotonicClock;
pub use error::DeviceError;
pub use loopback::{Loopback, Received, Receiver, loopback};
pub use null::{Null, NullStats};
pub use sys::{SocketMemory, current_cpu, exact_timers, pin_thread, socket_memory};
pub use udp::{Udp, UdpOptions, UdpStats};
