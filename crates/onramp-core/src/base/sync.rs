//! Synchronization types for a port's owner and the threads that send commands to it: the types of
//! std, those of a model checker under `--cfg loom` or `--cfg shuttle`, or those of the simulated
//! machine under `--cfg sim`.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex,
    atomic::{AtomicU8, Ordering},
};
#[cfg(sim)]
pub(crate) use onramp_machine::sync::{
    Mutex,
    atomic::{AtomicU8, AtomicU64 as ShareWord, Ordering},
};
#[cfg(sim)]
pub(crate) use onramp_machine::thread_local;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex,
    atomic::{AtomicU8, Ordering},
};
#[cfg(not(any(loom, shuttle, sim)))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicU8, Ordering},
};
#[cfg(not(sim))]
pub(crate) use std::{sync::atomic::AtomicU64 as ShareWord, thread_local};

#[cfg(all(feature = "tc", loom))]
pub(crate) use loom::sync::atomic::AtomicU64;
#[cfg(all(feature = "tc", sim))]
pub(crate) use onramp_machine::sync::atomic::AtomicU64;
#[cfg(all(feature = "tc", shuttle))]
pub(crate) use shuttle::sync::atomic::AtomicU64;
#[cfg(all(feature = "tc", not(any(loom, shuttle, sim))))]
pub(crate) use std::sync::atomic::AtomicU64;
