//! Threads, locks and atomic types: those of std, or those of the simulated machine under `--cfg
//! sim`.

#[cfg(sim)]
pub(crate) use onramp_machine::{
    sync::{Mutex, atomic},
    thread,
};
#[cfg(not(sim))]
pub(crate) use std::{
    sync::{Mutex, atomic},
    thread,
};
