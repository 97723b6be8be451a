//! Threads, locks and atomic types: those of std, or those of the simulated machine (crate
//! `onramp-machine`) under `--cfg sim`.

#[cfg(sim)]
pub(crate) use onramp_machine::{
    sync::{Mutex, MutexGuard, atomic, mpsc},
    thread,
};
#[cfg(not(sim))]
pub(crate) use std::{
    sync::{Mutex, MutexGuard, atomic, mpsc},
    thread,
};
