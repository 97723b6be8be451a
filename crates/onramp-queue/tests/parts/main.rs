//! The small parts, one thread at a time, each against a plain model; the models under the model
//! checker do more of those that threads share.

mod alarm;
mod counter;
mod gate;
mod packet;
mod succession;
mod wakes;
