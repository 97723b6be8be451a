//! Types with the interface of `std::sync`. Inside a simulation, each access is charged; outside,
//! they are the types of std.

mod atomic_types;
mod channel;
mod local;
mod mutex;

/// Atomic types.
pub mod atomic {
    pub use std::sync::atomic::Ordering;

    pub use super::atomic_types::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
        fence,
    };
}

/// Channels.
pub mod mpsc {
    pub use super::channel::{Receiver, Sender, SyncSender, channel, sync_channel};
    pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
}

pub use self::local::{AccessError, LocalKey};
pub use self::mutex::{Mutex, MutexGuard};
