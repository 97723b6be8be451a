//! How links are made.

#[cfg(feature = "udp")]
mod udp;

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use onramp_core::Spec;
use onramp_core::{ConfigError, Mode, Rate, SharedRate};
#[cfg(feature = "udp")]
use onramp_dev::DeviceError;
use onramp_queue::Credits;

#[cfg(feature = "udp")]
use self::udp::Sockets;
use crate::Link;
use crate::runner::StartError;
use crate::shared::{BoxDevice, LinkConfig, Setup};

/// Ports of a link that binds its own sockets: one for each processor, at most this many.
const PORTS_DEFAULT_MAX: usize = 8;
/// Ports of a link, at most.
const PORTS_MAX: usize = 65_535;
/// Ports that a link may come to have if nobody says.
const PORTS_MAX_DEFAULT: usize = 64;
/// What stands in front of a port if nobody says.
const DEFAULT: &str = "fq";
/// Runners of a link, at most.
const RUNNERS_MAX: usize = 64;
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
    tree: Result<onramp_core::Setup, ConfigError>,
    seed: Option<u64>,
    credits: Credits,
    burst: u16,
    mtu: Option<u32>,
    mode: Mode,
    runners: Option<usize>,
    runner_cpus: Vec<usize>,
    rate: Option<Rate>,
    ports_max: Option<usize>,
    measures: bool,
}

enum Source {
    #[cfg(feature = "udp")]
    Udp(Sockets),
    Devices(Vec<BoxDevice>),
}

/// Why a link could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The local address could not be resolved.
    #[cfg(feature = "udp")]
    Resolve(io::Error),
    /// The qdisc's text is wrong.
    Qdisc(ConfigError),
    /// A device could not be made.
    #[cfg(feature = "udp")]
    Device(DeviceError),
    /// A runner thread could not be started.
    Runner(io::Error),
    /// A runner could not be kept on a processor: which, and what the kernel said.
    Pin(usize, io::Error),
    /// A number is out of its range: what, the number, and the range.
    Range(&'static str, usize, &'static str),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            #[cfg(feature = "udp")]
            Self::Resolve(error) => write!(
                f,
                "cannot resolve the local address: {error}; give one of this machine, such as \
                 0.0.0.0:0"
            ),
            Self::Qdisc(error) => error.fmt(f),
            #[cfg(feature = "udp")]
            Self::Device(error) => error.fmt(f),
            Self::Runner(error) => write!(
                f,
                "cannot start the runner thread: {error}; look at the limits on threads \
                 (ulimit -u, cgroup pids.max)"
            ),
            Self::Pin(cpu, error) => write!(
                f,
                "cannot keep a runner on processor {cpu}: {error}; give one that this process may \
                 use (taskset -p, /proc/self/status: Cpus_allowed_list)"
            ),
            Self::Range(what, value, range) => write!(f, "{what} is {value}, allowed is {range}"),
        }
    }
}

// No `source`: the text says it all.
impl std::error::Error for BuildError {}

impl LinkBuilder {
    pub(crate) fn devices(devices: impl IntoIterator<Item = BoxDevice>) -> Self {
        Self::new(Source::Devices(devices.into_iter().collect()))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            ports: None,
            tree: DEFAULT.parse().map(onramp_core::Setup::of),
            seed: None,
            credits: CREDITS_DEFAULT,
            burst: BURST_DEFAULT,
            mtu: None,
            mode: Mode::default(),
            runners: None,
            runner_cpus: Vec::new(),
            rate: None,
            ports_max: None,
            measures: false,
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
        let tree = Spec::with_units(qdisc).map(onramp_core::Setup::of);
        self.tree = tree.and_then(|tree| tree.for_ports().cloned());
        self
    }

    /// The tree of qdiscs, classes and filters in front of each port, in the place of
    /// [`qdisc`](Self::qdisc). Of a tree whose root is `mq`, each port gets what stands below the
    /// class of its number: `1:1` is the first port.
    ///
    /// ```no_run
    /// use onramp::{Link, Setup};
    ///
    /// let mut tree = Setup::default();
    /// for line in [
    ///     "tc qdisc add dev any root handle 1: prio",
    ///     "tc qdisc add dev any parent 1:1 pfifo limit 100",
    ///     "tc qdisc add dev any parent 1:2 fq maxrate 8mbit",
    /// ] {
    ///     tree.apply(line)?;
    /// }
    /// let link = Link::udp("0.0.0.0:0").tree(&tree).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn tree(mut self, tree: &onramp_core::Setup) -> Self {
        self.tree = tree.for_ports().cloned();
        self
    }

    /// Where the chance that qdiscs take begins, for runs that shall repeat. Default: unknown to
    /// anybody, as the keys of hashes should be.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
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

    /// Who sends: see [`Mode`]. Default: hybrid.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Runner threads, which share the ports; 1 to 64. Default: 1, and one for each port, at most
    /// as many as there are processors, when they alone send ([`Mode::Dedicated`]).
    #[must_use]
    pub fn runners(mut self, runners: usize) -> Self {
        self.runners = Some(runners);
        self
    }

    /// Keeps the runners on these processors, in turn. Default: wherever the kernel puts them.
    #[must_use]
    pub fn runner_cpus(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.runner_cpus = cpus.into_iter().collect();
        self
    }

    /// A rate on the wire, headers included, that all ports have together. Those that have
    /// something to send have equal parts of it. Default: none.
    ///
    /// [`Link::set_rate`] changes it.
    #[must_use]
    pub fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Ports that the link may ever have, those that were removed included
    /// ([`Link::add_port`]). Default: 64, or as many as it starts with.
    #[must_use]
    pub fn ports_max(mut self, ports: usize) -> Self {
        self.ports_max = Some(ports);
        self
    }

    /// Each qdisc measures how long packets take from push to dequeue: see
    /// [`Link::measure`](Link::measure).
    #[must_use]
    pub fn measure(mut self, measures: bool) -> Self {
        self.measures = measures;
        self
    }

    /// Makes the link and starts its runners.
    ///
    /// # Errors
    ///
    /// [`BuildError`]: what was wrong; nothing is left behind.
    pub fn build(self) -> Result<Link, BuildError> {
        let tree = self.tree.map_err(BuildError::Qdisc)?;
        if !(1..=Credits::PACKETS_MAX).contains(&self.credits.packets) {
            let credits = self.credits.packets as usize;
            return Err(BuildError::Range("credits", credits, "1 to 32768 packets"));
        }
        if self.burst == 0 {
            return Err(BuildError::Range("burst", 0, "1 to 65535 packets"));
        }
        let (devices, udp) = self.source.open(self.ports)?;
        let ports_max = self.ports_max.unwrap_or_else(|| devices.len().max(PORTS_MAX_DEFAULT));
        if !(devices.len()..=PORTS_MAX).contains(&ports_max) {
            let why = "what it starts with to 65535";
            return Err(BuildError::Range("the greatest number of ports", ports_max, why));
        }
        let runners = self.runners.unwrap_or_else(|| match self.mode {
            Mode::Dedicated => devices.len().min(processors()),
            Mode::Hybrid | Mode::Inline => 1,
        });
        if !(1..=RUNNERS_MAX).contains(&runners) {
            return Err(BuildError::Range("the number of runners", runners, "1 to 64"));
        }
        let seed = self.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        let tree = Arc::new(of_link(tree, &devices, self.mtu));
        let (mode, burst, mtu, measures) = (self.mode, self.burst, self.mtu, self.measures);
        let plan = LinkConfig { tree, seed, mode, burst, mtu, measures, shares_root: false };
        let rate = self.rate.map(|rate| SharedRate::new(rate, ports_max));
        let setup = Setup { plan, credits: self.credits, rate, runners, ports_max, udp };
        Link::start(setup, devices, &self.runner_cpus).map_err(|error| match error {
            StartError::Spawn(error) => BuildError::Runner(error),
            StartError::Pin(cpu, error) => BuildError::Pin(cpu, error),
        })
    }
}

/// The tree, for a link over these devices.
fn of_link(
    mut tree: onramp_core::Setup,
    devices: &[BoxDevice],
    mtu: Option<u32>,
) -> onramp_core::Setup {
    let largest = devices.iter().map(|device| device.info().mtu).max();
    let facts = onramp_core::Facts {
        fallback: tree.facts().fallback.clone().or_else(|| DEFAULT.parse().ok()),
        queues: u16::try_from(devices.len()).unwrap_or(u16::MAX),
        mtu: mtu.or(largest).unwrap_or(0),
        ports: true,
        ..tree.facts().clone()
    };
    let name = tree.device().unwrap_or("link").to_owned();
    tree.of_device(&name, facts);
    tree
}

/// Processors that this process may use.
fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// What the UDP sockets of a link count, each in its place.
#[cfg(feature = "udp")]
pub(crate) type SocketCounters = Vec<Arc<onramp_dev::UdpStats>>;
#[cfg(not(feature = "udp"))]
pub(crate) type SocketCounters = ();

impl Source {
    /// Makes the devices, one for each port.
    fn open(self, ports: Option<usize>) -> Result<(Vec<BoxDevice>, SocketCounters), BuildError> {
        let given = match &self {
            #[cfg(feature = "udp")]
            Self::Udp(sockets) => sockets.given(),
            Self::Devices(devices) => Some(devices.len()),
        };
        let wanted = ports.or(given).unwrap_or_else(|| processors().min(PORTS_DEFAULT_MAX));
        if !(1..=PORTS_MAX).contains(&wanted) {
            return Err(BuildError::Range("the number of ports", wanted, "1 to 65535"));
        }
        if given.is_some_and(|given| given != wanted) {
            let why = "one for each socket or device given";
            return Err(BuildError::Range("the number of ports", wanted, why));
        }
        match self {
            Self::Devices(devices) => Ok((devices, SocketCounters::default())),
            #[cfg(feature = "udp")]
            Self::Udp(sockets) => sockets.open(wanted),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            #[cfg(feature = "udp")]
            Self::Udp(sockets) => sockets.fmt(f),
            Self::Devices(devices) => f.debug_tuple("Devices").field(&devices.len()).finish(),
        }
    }
}

#[cfg(test)]
mod tests;
