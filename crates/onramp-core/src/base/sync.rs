//! What commands and owners of ports share: std's types, or those of a checker under `--cfg loom`
//! or `--cfg shuttle`.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, Ordering},
};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, Ordering},
};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, Ordering},
};
