//! Devices that carry packets, and the clock that devices and qdiscs use.
//!
//! * [`Udp`]: uses one UDP socket as one transmit queue; consecutive packets of a flow leave as one
//!   message to the kernel. Its [`UdpReceiver`] makes IP packets of the datagrams that come in.
//! * [`Loopback`]: hands packets to receivers of the same process, without a copy.
//! * [`Tap`]: a TUN or TAP device of the kernel, for frames in both directions.
//! * [`PacketSocket`]: a packet socket (`AF_PACKET`) on an interface of the kernel, for frames in
//!   both directions.
//! * [`Detour`]: receives the packets that the host itself sends or gets through one of its
//!   interfaces, and lets them go on.
//! * [`Xdp`]: a queue of a network card, past the kernel's network stack.
//! * [`CaptureFile`](capture::CaptureFile): writes packets into a capture file (pcap, pcapng);
//!   [`CaptureReceiver`](capture::CaptureReceiver) has the packets of one.
//! * [`Null`]: sends nothing; takes packets at once, or simulates the processor time and the packet
//!   rate of a network card.
//!
//! [`exec`] is what `onramp exec` and the programs that it runs tell each other.
//!
//! All `unsafe` code is in the module `sys`, behind safe functions.
#![deny(unsafe_code)]

mod backoff;
#[cfg(feature = "capture")]
pub mod capture;
#[cfg(feature = "packet")]
mod claim;
mod clock;
#[cfg(feature = "detour")]
mod detour;
#[cfg(feature = "udp")]
mod error;
#[cfg(feature = "exec")]
pub mod exec;
#[cfg(any(feature = "packet", feature = "xdp"))]
mod kept;
mod loopback;
mod null;
#[cfg(feature = "packet")]
mod packet;
mod receive;
mod spin;
mod sync;
mod sys;
#[cfg(feature = "tap")]
mod tap;
#[cfg(feature = "udp")]
mod udp;
mod wait;
#[cfg(feature = "xdp")]
mod xdp;

pub use clock::MonotonicClock;
#[cfg(feature = "detour")]
pub use detour::{Detour, Switch};
#[cfg(feature = "udp")]
pub use error::DeviceError;
pub use loopback::{Loopback, LoopbackStats, Network, Receiver, ReceiverStats, Recv, loopback};
pub use null::{Null, NullStats};
#[cfg(feature = "packet")]
pub use packet::{PacketOptions, PacketReceiver, PacketSocket, PacketStats};
pub use receive::Receive;
#[cfg(feature = "detour")]
pub use sys::Side;
#[doc(hidden)]
pub use sys::run_in_child;
pub use sys::{
    Priority, SocketMemory, Timer, current_cpu, exact_timers, forks, pin_thread,
    set_receive_buffer, set_thread_priority, socket_memory, thread_cpu_ns, watch_forks,
};
#[cfg(any(feature = "tap", feature = "packet", feature = "xdp"))]
pub use sys::{add_interface_address, interface_mtu, set_interface_mtu, set_interface_up};
#[cfg(feature = "tap")]
pub use sys::{enter_child, tie_child};
#[cfg(feature = "tap")]
pub use tap::{Tap, TapOptions, TapReceiver, TapStats};
#[cfg(feature = "udp")]
pub use udp::{
    Source, Udp, UdpOptions, UdpReceiver, UdpReceiverOptions, UdpReceiverStats, UdpStats,
};
pub use wait::ThreadWaker;
#[cfg(feature = "xdp")]
pub use xdp::{Attach, Copying, Xdp, XdpOptions, XdpReceiver, XdpStats};
