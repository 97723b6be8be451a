//! System calls behind safe functions. The crate's only `unsafe` code is here.
#![allow(unsafe_code)]

#[cfg(feature = "xdp")]
mod bpf;
#[cfg(feature = "tap")]
mod child;
mod fork;
mod measure;
#[cfg(feature = "udp")]
mod mmsg;
#[cfg(feature = "xdp")]
mod ring;
#[cfg(feature = "udp")]
mod sockopt;
mod time;
#[cfg(feature = "tap")]
mod tun;
#[cfg(feature = "xdp")]
mod xdp;

#[cfg(feature = "xdp")]
pub use bpf::Attach;
#[cfg(feature = "xdp")]
pub(crate) use bpf::{Redirect, interface_index};
#[cfg(feature = "tap")]
pub use child::tie_child;
pub use fork::{forks, run_in_child, watch_forks};
pub use measure::{SocketMemory, socket_memory};
#[cfg(all(test, feature = "udp"))]
pub(crate) use mmsg::View;
#[cfg(feature = "udp")]
pub(crate) use mmsg::{Close, Messages};
#[cfg(feature = "udp")]
pub(crate) use sockopt::{enable_txtime, path_mtu, set_udp_segment};
pub(crate) use time::monotonic_ns;
pub use time::{Priority, current_cpu, exact_timers, pin_thread, set_thread_priority};
#[cfg(feature = "tap")]
pub use tun::set_interface_up;
#[cfg(feature = "tap")]
pub(crate) use tun::{
    TunFlags, add_interface_address, interface_mtu, open_tun, read_frame, set_interface_mtu,
    set_tun_offload, write_frame,
};
#[cfg(feature = "xdp")]
pub use xdp::Copying;
#[cfg(feature = "xdp")]
pub(crate) use xdp::{RxSide, Shape as XdpShape, TxSide, open as open_xdp};
