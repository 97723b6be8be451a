//! The small parts of the crate, tested with one thread at a time, each compared with a simple
//! model. The loom models test the parts with several threads.

mod alarm;
mod counter;
mod gate;
mod packet;
mod succession;
mod wakes;
