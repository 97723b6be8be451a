//! Synchronization types that the owners of ports and the threads that send them commands share:
//! those of std, or those of a model checker under `--cfg loom` or `--cfg shuttle`.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex,
    atomic::{AtomicU8, Ordering},
};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex,
    atomic::{AtomicU8, Ordering},
};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicU8, Ordering},
};
