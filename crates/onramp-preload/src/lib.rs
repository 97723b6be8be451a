//! The library that `onramp exec` loads into a program (`LD_PRELOAD`). It takes the place of the
//! functions with which programs send UDP datagrams, and lets the datagrams pass a tree of qdiscs
//! before the program's own sockets send them.
//!
//! All sockets of a process share one tree (`state`). A datagram that may leave at once is sent
//! by the thread that calls; one that has to wait is sent later, by a thread of the library
//! (`shaper`), through a duplicate of the socket's descriptor (`sockets`). A child of the
//! process begins anew, with a tree of its own.
//!
//! docs/exec.md says what programs see of it, and decision 30 why it is so.
#![deny(unsafe_code)]

mod entry;
mod joined;
mod message;
mod notice;
mod room;
mod sending;
mod shaper;
mod sockets;
mod state;
mod sys;
