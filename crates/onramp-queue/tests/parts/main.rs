//! The small parts of the crate, tested with one thread at a time, each against a simple model. The
//! loom models test the parts that several threads share.

mod alarm;
mod counter;
mod gate;
mod packet;
mod succession;
mod wakes;
