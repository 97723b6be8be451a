//! A simulated machine of many processors with coherent caches. It runs real code: each simulated
//! thread is a fiber, and each access of the code to shared memory is charged what it would cost on
//! the simulated machine.
//!
//! ```text
//! code under test ──▶ sync, thread     types with the interface of std; each access calls hook
//!                       └──▶ hook      charges the access, and lets earlier processors go first
//!                              └──▶ world     processors, threads, run queues, events in time
//!                                     └──▶ memory    cache lines: who holds each, what a transfer
//!                                                    costs, who waits for it
//! ```
//!
//! The machine has one clock for each processor, in picoseconds. The engine always continues the
//! processor whose clock is earliest, so the accesses to a shared line happen in the order of
//! simulated time. Everything runs in one thread of the real machine: the same program with the
//! same seed gives the same result.
//!
//! Outside a simulation, all types behave as those of std, and nothing is charged.
//!
//! # What the model has, and what it leaves out
//!
//! The model has: the state of each cache line (modified, shared, absent) for each core; the
//! distance between cores (same core, cluster, socket, machine); requests for one line served one
//! after another; first and second level caches that forget; a store buffer that hides the cost of
//! a store until the next atomic operation; hardware threads that slow each other; a scheduler with
//! time slices, wake-ups and migration.
//!
//! It leaves out: the bandwidth of memory and interconnect, prefetching that the code does not ask
//! for, changes of the clock frequency, the order in which hardware serves requests that come at
//! the same time (here: first come, first served), and the reordering of instructions: every load
//! that misses is waited for.

mod fiber;
pub mod hook;
mod locals;
mod machine;
mod memory;
mod report;
pub mod sync;
pub mod testing;
pub mod thread;
mod world;

pub use machine::{Caches, Costs, Machine, Topology};
pub use report::{HotSite, Report, Times, Transfers};
pub use world::{Failed, Setup, simulate};
