//! The daemon: it owns a [`Host`](onramp::Host) and serves it on a Unix socket and over HTTP.
#![forbid(unsafe_code)]
