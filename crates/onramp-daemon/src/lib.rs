//! The daemon: it owns a [`Host`](onramp_host::Host) and serves it on a Unix socket and over HTTP.
//!
//! [`serve::run`] is the daemon; [`client`] is what `onramp tc` and `onramp ip` are. What they say
//! to each other is in [`wire`], and for people in `docs/json.md`.
#![forbid(unsafe_code)]

pub mod client;
mod config;
pub mod dispatch;
pub mod feed;
mod figures;
pub mod http;
pub mod hub;
pub mod metrics;
pub mod monitor;
mod notify;
pub mod serve;
mod session;
pub mod snapshot;
mod socket;
pub mod top;
pub mod watch;
mod web;
pub mod wire;

pub use hub::Hub;
pub use socket::{default_path, find_path};
