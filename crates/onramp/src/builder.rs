//! How links are made.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use onramp_core::qdisc::Spec;
use onramp_core::{ConfigError, Device, Port};
use onramp_dev::{DeviceError, Udp, UdpOptions, UdpStats};
use onramp_queue::Credits;

use crate::Link;
use crate::link::BoxDevice;
use crate::runner::Slot;

/// Ports of a link that binds its own sockets: one for each processor, at most this many.
const PORTS_DEFAULT_MAX: usize = 8;
/// Ports of a link, at most.
const PORTS_MAX: usize = 1_024;
/// Packets that wait in one intake at most. Credits bound what each sender has there; this is
/// what bounds all of them together.
const BURST_DEFAULT: u16 = 16_384;
/// Packets a sender may have below it. Under fq's `flow_limit` of 100, so that a sender that waits
/// for room loses nothing.
const CREDITS_DEFAULT: Credits = Credits { packets: 96, bytes: 1 << 20 };

/// Says what a link shall be; [`build`](Self::build) makes it.
#[derive(Debug)]
pub struct LinkBuilder {
    source: Source,
    ports: Option<usize>,
    qdisc: Result<Spec, ConfigError>,
    credits: Credits,
    burst: u16,
    mtu: Option<u32>,
    udp: UdpOptions,
}

enum Source {
    Bind(io::Result<SocketAddr>),
    Sockets(Vec<UdpSocket>),
    Devices(Vec<BoxDevice>),
}

/// Why a link could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The local address could not be resolved.
    Resolve(io::Error),
    /// The qdisc's text is wrong.
    Qdisc(ConfigError),
    /// A device could not be made.
    Device(DeviceError),
    /// The runner thread could not be started.
    Runner(io::Error),
    /// A number is out of its range: what, the number, and the range.
    Range(&'static str, usize, &'static str),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve(error) => write!(
                f,
                "cannot resolve the local address: {error}; give one of this machine, such as \
                 0.0.0.0:0"
            ),
            Self::Qdisc(error) => error.fmt(f),
            Self::Device(error) => error.fmt(f),
            Self::Runner(error) => write!(
                f,
                "cannot start the runner thread: {error}; look at the limits on threads \
                 (ulimit -u, cgroup pids.max)"
            ),
            Self::Range(what, value, range) => write!(f, "{what} is {value}, allowed is {range}"),
        }
    }
}

// No `source`: the text says it all.
impl std::error::Error for BuildError {}

impl LinkBuilder {
    pub(crate) fn udp(local: impl ToSocketAddrs) -> Self {
        let addr = local.to_socket_addrs().and_then(|mut addrs| {
            addrs.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no address"))
        });
        Self::new(Source::Bind(addr))
    }

    pub(crate) fn sockets(sockets: impl IntoIterator<Item = UdpSocket>) -> Self {
        Self::new(Source::Sockets(sockets.into_iter().collect()))
    }

    pub(crate) fn devices(devices: impl IntoIterator<Item = BoxDevice>) -> Self {
        Self::new(Source::Devices(devices.into_iter().collect()))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            ports: None,
            qdisc: "fq".parse(),
            credits: CREDITS_DEFAULT,
            burst: BURST_DEFAULT,
            mtu: None,
            udp: UdpOptions::default(),
        }
    }

    /// Ports (transmit queues), each with a socket of its own and a qdisc of its own (`mq`). By
    /// default one for each processor, at most 8. Sockets and devices of yours are a port each.
    #[must_use]
    pub fn ports(mut self, ports: usize) -> Self {
        self.ports = Some(ports);
        self
    }

    /// The qdisc in front of each port, as `tc` writes it, with units: `fq maxrate 8mbit`.
    /// Default: `fq`.
    #[must_use]
    pub fn qdisc(mut self, qdisc: &str) -> Self {
        self.qdisc = Spec::with_units(qdisc);
        self
    }

    /// What each sender may have below it. Default: 96 packets, 1 MiB; fewer packets when more
    /// than 85 senders a port share the link.
    #[must_use]
    pub fn credits(mut self, credits: Credits) -> Self {
        self.credits = credits;
        self
    }

    /// Packets that may wait in each port's intake (`net.core.qdisc_max_burst`). Default: 16384.
    #[must_use]
    pub fn burst(mut self, burst: u16) -> Self {
        self.burst = burst;
        self
    }

    /// Largest packet on the wire, bytes, link header included. From it `fq` derives its quantum.
    /// Default: what the device says.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// How UDP sockets send: segmentation, transmit times. Devices of other kinds do not look.
    #[must_use]
    pub fn udp_options(mut self, options: UdpOptions) -> Self {
        self.udp = options;
        self
    }

    /// Makes the link and starts its runner thread.
    ///
    /// # Errors
    ///
    /// [`BuildError`]: what was wrong; nothing is left behind.
    pub fn build(self) -> Result<Link, BuildError> {
        let spec = self.qdisc.map_err(BuildError::Qdisc)?;
        if !(1..=Credits::PACKETS_MAX).contains(&self.credits.packets) {
            let credits = self.credits.packets as usize;
            return Err(BuildError::Range("credits", credits, "1 to 32768 packets"));
        }
        if self.burst == 0 {
            return Err(BuildError::Range("burst", 0, "1 to 65535 packets"));
        }
        let (devices, udp) = self.source.open(self.ports, self.udp)?;
        let slots = devices.into_iter().map(|device| {
            let mtu = self.mtu.unwrap_or_else(|| device.info().mtu);
            Slot::new(Port::new(spec.build(mtu), device, self.burst))
        });
        Link::start(slots.collect(), udp, self.credits).map_err(BuildError::Runner)
    }
}

/// Devices, and what those that are UDP sockets count.
type Opened = (Vec<BoxDevice>, Vec<Arc<UdpStats>>);

impl Source {
    fn open(self, ports: Option<usize>, options: UdpOptions) -> Result<Opened, BuildError> {
        let given = match &self {
            Self::Bind(_) => None,
            Self::Sockets(sockets) => Some(sockets.len()),
            Self::Devices(devices) => Some(devices.len()),
        };
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        let wanted = ports.or(given).unwrap_or_else(|| cpus.min(PORTS_DEFAULT_MAX));
        if !(1..=PORTS_MAX).contains(&wanted) {
            return Err(BuildError::Range("the number of ports", wanted, "1 to 1024"));
        }
        if given.is_some_and(|given| given != wanted) {
            let why = "one for each socket or device given";
            return Err(BuildError::Range("the number of ports", wanted, why));
        }
        let sockets: Vec<Udp> = match self {
            Self::Devices(devices) => return Ok((devices, Vec::new())),
            Self::Bind(local) => {
                let local = local.map_err(BuildError::Resolve)?;
                let bind = |_| Udp::bind_with(local, options);
                (0..wanted).map(bind).collect::<Result<_, _>>()
            }
            Self::Sockets(sockets) => {
                let open = |socket| Udp::new(socket, options);
                sockets.into_iter().map(open).collect()
            }
        }
        .map_err(BuildError::Device)?;
        let stats = sockets.iter().map(Udp::stats).collect();
        let boxed = sockets.into_iter().map(|udp| Box::new(udp) as BoxDevice).collect();
        Ok((boxed, stats))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind(addr) => f.debug_tuple("Bind").field(addr).finish(),
            Self::Sockets(sockets) => f.debug_tuple("Sockets").field(sockets).finish(),
            Self::Devices(devices) => f.debug_tuple("Devices").field(&devices.len()).finish(),
        }
    }
}
