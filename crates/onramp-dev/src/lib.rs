//! Devices that carry packets, and the clock.

mod sys {
    pub(crate) mod measure;
}

pub use sys::measure::{SocketMemory, socket_memory};
