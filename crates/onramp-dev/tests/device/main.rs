//! Devices, from outside: real sockets on the loopback and in namespaces of their own.

mod allocation;
mod common;
mod error;
mod loopback;
mod namespace;
mod udp;
mod waker;
