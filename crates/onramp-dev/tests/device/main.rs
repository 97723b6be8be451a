//! Tests of devices through their public interface: real sockets on the loopback and in network
//! namespaces.

mod allocation;
mod capture;
mod common;
mod detour;
mod error;
mod loopback;
mod namespace;
mod packet;
mod recv;
mod tap;
mod udp;
mod udp_receive;
mod waker;
mod xdp;
