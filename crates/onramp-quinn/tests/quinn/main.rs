//! quinn itself, with endpoints that send through links. No test depends on the speed of anything;
//! a test that hangs fails after two minutes.

mod bulk;
mod close;
mod common;
mod ecn;
mod edges;
mod fair;
mod room;
