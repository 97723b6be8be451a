//! The daemon: it owns a [`Host`](onramp_host::Host) and serves it on a Unix socket and over HTTP.
//!
//! [`serve::run`] runs the daemon; [`client`] is the part of `onramp tc` and `onramp ip` that asks
//! the daemon. The module [`wire`] defines the protocol between daemon and client; `docs/json.md`
//! describes the protocol for users.
#![forbid(unsafe_code)]

mod accept;
mod board;
pub mod client;
mod config;
pub mod dispatch;
pub mod feed;
mod figures;
pub mod fleet;
pub mod http;
pub mod hub;
mod interfaces;
mod lateness;
pub mod metrics;
pub mod monitor;
mod notify;
pub mod serve;
mod session;
pub mod snapshot;
mod socket;
pub mod top;
pub mod traffic;
pub mod watch;
pub mod wire;

pub use hub::Hub;
pub use socket::{default_path, find_path};
