//! Tests of a link with real threads. Whether they pass does not depend on the speed of the
//! threads; a test that hangs is stopped after a minute.

mod after;
mod blocked;
mod books;
mod bounds;
mod changes;
mod close;
mod closes;
mod common;
mod conserve;
mod control;
mod cork;
mod credits;
mod death;
mod device;
mod flush;
mod foreign;
mod fork;
mod idle;
mod kinds;
mod moves;
mod network;
mod nosy;
mod order;
mod owed;
mod pace;
mod ports;
mod ready;
mod regressions;
mod review;
mod room;
mod senders;
mod stats;
mod trap;
mod tree;
mod wakes;
