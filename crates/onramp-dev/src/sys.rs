//! System calls behind safe functions. The crate's only `unsafe` code is here.
#![allow(unsafe_code)]

#[cfg(any(feature = "xdp", feature = "detour"))]
mod bpf;
#[cfg(feature = "tap")]
mod child;
#[cfg(feature = "udp")]
mod datagrams;
mod fork;
#[cfg(any(feature = "tap", feature = "packet"))]
mod frame;
#[cfg(any(feature = "tap", feature = "packet", feature = "xdp"))]
mod interface;
mod measure;
#[cfg(any(feature = "udp", feature = "packet"))]
mod message;
#[cfg(feature = "udp")]
mod mmsg;
#[cfg(feature = "udp")]
mod name;
#[cfg(feature = "packet")]
mod packet;
#[cfg(feature = "xdp")]
mod ring;
mod room;
#[cfg(feature = "exec")]
mod shared;
#[cfg(feature = "udp")]
mod sockopt;
mod time;
mod timer;
#[cfg(feature = "tap")]
mod tun;
#[cfg(feature = "xdp")]
mod xdp;

#[cfg(feature = "xdp")]
pub use bpf::Attach;
#[cfg(feature = "xdp")]
pub(crate) use bpf::Redirect;
#[cfg(feature = "detour")]
pub use bpf::Side;
#[cfg(feature = "detour")]
pub(crate) use bpf::{Hook, Known};
#[cfg(feature = "tap")]
pub use child::{enter_child, tie_child};
#[cfg(all(test, feature = "udp"))]
pub(crate) use datagrams::Told;
#[cfg(feature = "udp")]
pub(crate) use datagrams::{Arrived, DATAGRAMS_MAX, Datagrams};
pub(crate) use fork::Maker;
pub use fork::{forks, run_in_child, watch_forks};
#[cfg(any(feature = "tap", feature = "packet"))]
pub(crate) use frame::write_frame;
#[cfg(any(feature = "packet", feature = "xdp"))]
pub(crate) use interface::interface_index;
#[cfg(feature = "xdp")]
pub(crate) use interface::receive_queues;
#[cfg(feature = "detour")]
pub(crate) use interface::set_queue_length;
#[cfg(any(feature = "tap", feature = "packet", feature = "xdp"))]
pub use interface::{add_interface_address, interface_mtu, set_interface_mtu, set_interface_up};
pub use measure::{SocketMemory, socket_memory};
#[cfg(all(test, feature = "udp"))]
pub(crate) use mmsg::View;
#[cfg(feature = "udp")]
pub(crate) use mmsg::{Close, From, Messages, Shape};
#[cfg(feature = "packet")]
pub(crate) use packet::{Inbox, MESSAGES_MAX, Outbox, PacketFd, Received, Setting};
#[cfg(feature = "xdp")]
pub(crate) use ring::Frames as XdpFrames;
pub use room::set_receive_buffer;
#[cfg(feature = "exec")]
pub(crate) use shared::SharedWords;
#[cfg(feature = "udp")]
pub(crate) use sockopt::{enable_txtime, path_mtu, set_udp_gro, set_udp_segment, tell_headers};
pub(crate) use time::monotonic_ns;
pub use time::{
    Priority, current_cpu, exact_timers, pin_thread, set_thread_priority, thread_cpu_ns,
};
pub use timer::Timer;
#[cfg(feature = "tap")]
pub(crate) use tun::{TunFlags, open_tun, read_frame, set_tun_offload};
#[cfg(feature = "xdp")]
pub use xdp::Copying;
#[cfg(feature = "xdp")]
pub(crate) use xdp::{RxSide, Shape as XdpShape, TxSide, open as open_xdp};
