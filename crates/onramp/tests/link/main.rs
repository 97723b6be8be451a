//! A link with real threads. What is right never depends on how fast they are; a test that hangs
//! is stopped after a minute.

mod close;
mod common;
mod conserve;
mod control;
mod cork;
mod death;
mod device;
mod flush;
mod kinds;
mod moves;
mod network;
mod order;
mod pace;
mod ports;
mod ready;
mod regressions;
mod review;
mod room;
mod senders;
mod stats;
mod tree;
