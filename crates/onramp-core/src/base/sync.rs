//! Synchronization types for a port's owner and the threads that send commands to it: the types of
//! std, or those of a model checker under `--cfg loom` or `--cfg shuttle`.

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
