//! Traffic that the daemon itself makes: packets of several flows, sent into a device at a rate.
//!
//! A client asks for traffic in one request ([`Options`]) and gets one reply ([`Report`]) when the
//! traffic has ended: after its time, because its client wants it to end or has gone, because the
//! device was deleted, or because the daemon ends. Threads of their own send the packets, so that
//! traffic delays no other request.

mod client;
mod count;
mod pace;
mod packet;
mod run;

use std::net::SocketAddr;
use std::sync::Arc;

use onramp::Link;
use onramp_host::Host;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

pub use self::client::{ask, read};
pub use self::count::{Ended, Report};
pub(crate) use self::run::Run;

use self::packet::Shape;
use crate::hub::Hub;

/// The most threads that send traffic at a time, for all clients together.
const THREADS: usize = 64;
/// The destination port of packets for which no other is asked (RFC 863).
const DISCARD: u16 = 9;
/// The most flows, threads and seconds of one request. A day is enough, and a client may ask again.
const FLOWS_MAX: u32 = 65_536;
const THREADS_MAX: u32 = 16;
const SECONDS_MAX: f64 = 86_400.0;

/// The traffic that a client asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Name of the device into which the packets are sent.
    pub dev: String,
    /// Number of flows. The packets of all flows take turns.
    pub flows: u32,
    /// Rate of all flows together, in bytes per second, headers included. `None`: as fast as the
    /// device takes packets, without overflowing its qdisc.
    pub bytes_per_second: Option<u64>,
    /// Size of each packet in bytes, as `tc` counts it: with the headers of Ethernet, IP and UDP.
    pub size: u32,
    /// How long to send, seconds.
    pub seconds: f64,
    /// Destination port in the packets; `None`: port 9 (discard). Cannot be given for a `udp`
    /// device, which sends to the port of its server.
    pub port: Option<u16>,
    /// Number of threads that send.
    pub threads: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dev: String::new(),
            flows: 16,
            bytes_per_second: Some(1_250_000),
            size: 1_000,
            seconds: 10.0,
            port: None,
            threads: 1,
        }
    }
}

impl Options {
    /// Checks the numbers.
    ///
    /// # Errors
    ///
    /// A message for people that names the wrong number and the allowed ones.
    pub fn check(&self) -> Result<(), String> {
        let Self { flows, seconds, threads, bytes_per_second, .. } = self;
        if !(1..=FLOWS_MAX).contains(flows) {
            return Err(format!("flows {flows}: expected 1 to {FLOWS_MAX}"));
        }
        if !(1..=THREADS_MAX).contains(threads) {
            return Err(format!("threads {threads}: expected 1 to {THREADS_MAX}"));
        }
        if threads > flows {
            return Err(format!(
                "threads {threads}: each thread needs a flow, but flows is {flows}"
            ));
        }
        if !(0.001..=SECONDS_MAX).contains(seconds) {
            return Err(format!("seconds {seconds}: expected 0.001 to {SECONDS_MAX}"));
        }
        if *bytes_per_second == Some(0) {
            return Err("rate 0: nothing is sent at a rate of zero".to_owned());
        }
        Ok(())
    }
}

/// Sends traffic for clients. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    hub: Hub,
    places: Arc<Semaphore>,
}

impl Traffic {
    pub(crate) fn new(hub: Hub) -> Self {
        Self { hub, places: Arc::new(Semaphore::new(THREADS)) }
    }

    /// Begins to send the traffic that a request asks for.
    ///
    /// # Errors
    ///
    /// A message for people that says what is wrong with the request.
    pub(crate) async fn begin(&self, options: Map<String, Value>) -> Result<Run, String> {
        let options = Options::deserialize(Value::Object(options));
        let options = options.map_err(|error| format!("\"traffic\": {error}"))?;
        options.check()?;
        let places = self.places.clone().try_acquire_many_owned(options.threads);
        let places = places.map_err(|_| {
            format!("{THREADS} threads may send traffic at a time; end other traffic first")
        })?;
        let asked = options.clone();
        let target = self.hub.with(move |host| find(host, &asked)).await;
        let (link, shape) = target.map_err(|died| died.to_string())??;
        Run::start(options, &link, &shape, places).map_err(|error| format!("no thread: {error}"))
    }
}

/// Finds the link of the device that the options name, and the form of the packets.
fn find(host: &Host, options: &Options) -> Result<(Link, Shape), String> {
    let Options { dev, size, port, .. } = options;
    let device = host.device(dev).ok_or_else(|| no_device(host, dev))?;
    let link = host.link(dev).ok_or_else(|| no_device(host, dev))?;
    if !device.up {
        return Err(format!("{dev} is down; set it up first: onramp ip link set {dev} up"));
    }
    let shape = match device.kind {
        "udp" => {
            let to: SocketAddr = device.remote.ok_or_else(|| {
                format!("{dev} has no server to send to; make it with remote ADDRESS:PORT")
            })?;
            if let Some(port) = port {
                return Err(format!("port {port}: packets of {dev} go to its remote, {to}"));
            }
            Shape::datagram(to, *size)
        }
        _ => Shape::frame(port.unwrap_or(DISCARD), *size),
    };
    let largest = device.mtu.saturating_add(packet::ETHERNET);
    let (least, most) = (shape.size_min(), largest.min(shape.size_max()));
    if !(least..=most).contains(size) {
        return Err(format!(
            "size {size}: packets of {dev} have {least} to {most} bytes, headers included"
        ));
    }
    Ok((link, shape))
}

fn no_device(host: &Host, name: &str) -> String {
    /// The most names that the message lists.
    const NAMES: usize = 8;
    let names = host.names();
    if names.is_empty() {
        return format!(
            "there is no device {name:?}, and no other; make one: onramp ip link add {name} up \
             type dummy"
        );
    }
    let more = if names.len() > NAMES { ", .." } else { "" };
    let names: Vec<&str> = names.into_iter().take(NAMES).collect();
    format!("there is no device {name:?}; expected one of {}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_bounds() {
        let fine = Options::default();
        assert_eq!(fine.check(), Ok(()));
        let wrong = [
            (Options { flows: 0, ..fine.clone() }, "flows 0: expected 1 to 65536"),
            (Options { flows: 65_537, ..fine.clone() }, "flows 65537: expected 1 to 65536"),
            (Options { threads: 0, ..fine.clone() }, "threads 0: expected 1 to 16"),
            (Options { threads: 17, flows: 17, ..fine.clone() }, "threads 17: expected 1 to 16"),
            (
                Options { threads: 2, flows: 1, ..fine.clone() },
                "threads 2: each thread needs a flow, but flows is 1",
            ),
            (Options { seconds: 0.0, ..fine.clone() }, "seconds 0: expected 0.001 to 86400"),
            (Options { seconds: f64::NAN, ..fine.clone() }, "seconds NaN: expected 0.001 to 86400"),
            (Options { bytes_per_second: Some(0), ..fine.clone() }, "rate 0: nothing is sent"),
        ];
        for (options, begins) in wrong {
            let why = options.check().expect_err("it is wrong");
            assert!(why.starts_with(begins), "{why}");
        }
    }
}
