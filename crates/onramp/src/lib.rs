//! Queues and traffic control for packets that a program sends, as Linux has them.
//!
//! What to begin with depends on your program:
//!
//! - It sends from several threads, and leaves the work to Onramp: [`Link`]. [`Link::udp`] makes a
//!   link over UDP sockets, and [`Link::sender`] a [`Sender`] for each thread.
//! - It has a loop, a clock and buffers of its own: [`TreeOf`], with `enqueue(now, packet, buffer)`
//!   and `dequeue(now)`; or [`Tree`], if its packets need not carry the buffers.
//! - It has devices with names, which lines of `tc` and `ip` configure: `Host` of the crate
//!   [`onramp_host`](../onramp_host/index.html). Each device of a host has a [`Link`].
//! - It has a qdisc of its own, a type that implements [`Qdisc`](qdisc::Qdisc): [`Kinds`] says how
//!   trees, links and hosts can name it as they name `fq`.
//!
#![cfg_attr(feature = "udp", doc = include_str!("../README.md"))]
//!
//! # Features
//!
//! | feature | what it adds | what it needs |
//! |---|---|---|
//! | `link` (default) | [`Link`], [`Sender`], devices: threads send through ports | threads, libc |
//! | `udp` (default) | links over UDP sockets, receivers of datagrams | `link`, sockets |
//! | `tap` (default) | TUN and TAP devices | `link` |
//! | `packet` (default) | packet sockets on network interfaces | `link` |
//! | `xdp` (default) | AF_XDP sockets on queues of network interfaces | `link` |
//! | `tc` (with `link`) | trees of qdiscs, classes and filters, from lines of `tc` | nothing |
//! | `ebpf` (default) | filters that are eBPF programs | `tc` |
//!
//! Without any of these features, the crate consists of [`Tree`] and the qdiscs: no threads, no
//! sockets, no `libc`.
#![forbid(unsafe_code)]

#[cfg(feature = "link")]
mod builder;
#[cfg(feature = "link")]
mod closing;
#[cfg(feature = "link")]
mod error;
#[cfg(feature = "link")]
mod flow;
#[cfg(feature = "link")]
mod ingress;
#[cfg(feature = "link")]
mod line;
#[cfg(feature = "link")]
mod link;
#[cfg(feature = "link")]
mod nap;
#[cfg(feature = "udp")]
mod peers;
#[cfg(feature = "link")]
mod runner;
#[cfg(feature = "link")]
mod sender;
#[cfg(feature = "link")]
mod shared;
#[cfg(feature = "link")]
mod slots;
#[cfg(feature = "link")]
mod stats;
#[cfg(feature = "link")]
mod sync;
#[cfg(feature = "link")]
mod timing;

#[cfg(feature = "udp")]
pub use self::peers::{Peer, Peers, Room};
#[cfg(feature = "link")]
pub use self::{
    builder::{BuildError, LinkBuilder},
    closing::Closing,
    error::{PortError, Rejected, SendError, TrySendError},
    flow::{Flow, Mapping},
    ingress::{HeldIngress, LinkIngress},
    line::Line,
    link::{Changing, Link},
    sender::{FlowStats, Flushed, Message, Ready, Sender},
    shared::CloseReport,
    stats::{LinkStats, PortSnapshot},
};
#[cfg(feature = "tc")]
pub use onramp_core::{BurstOption, Change, Facts, Ingress, Lease, Setup, Taken, cmd, filter};
pub use onramp_core::{
    Child, Clash, Classes, Clock, ConfigError, Device, DeviceInfo, DeviceWaker, Fault, Handle,
    HeadStart, Instant, Kinds, Mode, Rate, Spec, Stopped, Totals, Transmitted, Tree, TreeOf, Wakes,
    frame, params, qdisc, show, stats as port_stats, view,
};
#[cfg(feature = "link")]
pub use onramp_dev as dev;
pub use onramp_queue::{
    Armed, Bell, Completion, Counter, Credits, DropReason, HeldWakes, Layer, Meta, PAYLOAD_MAX,
    Packet, PacketList, PartialChecksum, Pool, call_waker, hold_wakes,
};
