//! The builder that configures and makes a [`Link`].

mod timing;
#[cfg(feature = "udp")]
mod udp;

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use onramp_core::qdisc::Kind;
use onramp_core::{ConfigError, Device, Kinds, Mode, Rate, SharedRate};
#[cfg(feature = "udp")]
use onramp_dev::DeviceError;
use onramp_dev::{Priority, Timer};
use onramp_queue::Credits;

#[cfg(feature = "udp")]
use self::udp::Sockets;
use crate::Link;
use crate::runner::StartError;
use crate::shared::{BoxDevice, CREDITS_MIN, LinkConfig, Setup, UdpSockets};
use crate::sync::thread;
use crate::timing::Timing;

/// Greatest default number of ports of a link that binds its own sockets. The default is one port
/// for each processor, up to this number: one thread at a time works for a port, so the rate of a
/// link grows with its ports, and each costs a socket and a qdisc.
const PORTS_DEFAULT_MAX: usize = 64;
/// Greatest number of ports that a link may have.
const PORTS_MAX: usize = 65_535;
/// Default limit on the number of ports that a link may have over its lifetime, removed ports
/// included.
const PORTS_MAX_DEFAULT: usize = 64;
/// Qdisc in front of each port's device if the caller names none: `fq`, in which a flow with a rate
/// of up to 100 Mbit/s pauses after each packet, and not only after each quantum as in Linux.
const DEFAULT: &str = "fq low_rate_threshold 100mbit";
/// Qdisc of a class or a queue for which a tree names none.
const FALLBACK: &str = "fq";
/// Greatest number of runners of a link.
const RUNNERS_MAX: usize = 64;
/// Default cap of one port's intake, packets. The credits of a sender bound how many of its packets
/// are in the intake; this cap bounds the packets of all senders together.
const BURST_DEFAULT: u16 = 16_384;
/// Default number of packets that a sender may have in flight. 96 is below fq's default
/// `flow_limit` of 100 packets, so a sender that waits for room loses no packet to that limit.
const CREDITS_DEFAULT: Credits = Credits { packets: 96, bytes: 1 << 20 };
/// Default number of packets that all senders together may have in flight, for each port. So many
/// packets fit into the caches of the processors, and are fewer than fq's default `limit` of 10,000
/// packets.
const CREDITS_PER_PORT_DEFAULT: u32 = 8_192;

/// Builder of a [`Link`]. Its methods set options; [`build`](Self::build) makes the link.
///
/// [`Link::udp`], [`Link::sockets`] and [`Link::devices`] return a builder. The default of every
/// option suits most programs; each method says when to change it.
#[derive(Debug)]
pub struct LinkBuilder {
    source: Source,
    ports: Option<usize>,
    kinds: Vec<&'static Kind>,
    tree: Wanted,
    seed: Option<u64>,
    credits: Option<Credits>,
    credits_per_port: Option<u32>,
    credit_time: Option<Duration>,
    patience: Duration,
    burst: u16,
    mtu: Option<u32>,
    mode: Mode,
    runners: Option<usize>,
    runner_cpus: Vec<usize>,
    runner_priority: Option<Priority>,
    rate: Option<Rate>,
    ports_max: Option<usize>,
    measures: bool,
    timing: Timing,
    manual: bool,
}

/// What the caller wants in front of each port.
#[derive(Debug)]
enum Wanted {
    /// The text of one qdisc.
    Qdisc(String),
    Tree(Box<onramp_core::Setup>),
}

impl Wanted {
    /// Returns the tree, whose later lines may name these kinds too.
    fn with_kinds(self, kinds: &Kinds) -> Result<onramp_core::Setup, ConfigError> {
        let mut tree = match self {
            Self::Qdisc(text) => onramp_core::Setup::of(kinds.spec_with_units(&text)?),
            Self::Tree(tree) => *tree,
        };
        tree.add_kinds(kinds)?;
        tree.for_ports()?;
        Ok(tree)
    }
}

enum Source {
    #[cfg(feature = "udp")]
    Udp(Sockets),
    Devices(Vec<BoxDevice>),
}

/// Error of [`LinkBuilder::build`]: why the link could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The local address could not be resolved, or resolved to no address.
    #[cfg(feature = "udp")]
    Resolve(io::Error),
    /// The description of the qdisc or tree is wrong.
    Qdisc(ConfigError),
    /// A device could not be made, for example because a socket could not be bound.
    #[cfg(feature = "udp")]
    Device(DeviceError),
    /// The system could not start a runner thread.
    Runner(io::Error),
    /// The system could not make the timer of a link without threads.
    Timer(io::Error),
    /// A runner thread could not be pinned to a processor (made to run only there). The fields are
    /// the number of the processor and the kernel's error.
    Pin(usize, io::Error),
    /// A runner thread could not get its priority. The fields are the priority and the kernel's
    /// error.
    Priority(Priority, io::Error),
    /// An option is out of its range. The fields are the name of the option, the value given, and
    /// the allowed range.
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
            Self::Timer(error) => write!(
                f,
                "cannot make the timer of a link without threads: {error}; look at the limit on \
                 open files (ulimit -n)"
            ),
            Self::Pin(cpu, error) => write!(
                f,
                "cannot bind a runner to processor {cpu}: {error}; give one that this process may \
                 use (taskset -p, /proc/self/status: Cpus_allowed_list)"
            ),
            Self::Priority(priority, error) if error.kind() == io::ErrorKind::InvalidInput => {
                write!(
                    f,
                    "a runner cannot have the priority {priority}: expected nice -20 to 19, or \
                 SCHED_FIFO 1 to 99"
                )
            }
            Self::Priority(priority, error) => write!(
                f,
                "cannot give a runner the priority {priority}: {error}; a process needs the \
                 capability CAP_SYS_NICE for it, or a higher limit (ulimit -e, ulimit -r)"
            ),
            Self::Range(what, value, range) => write!(f, "{what} is {value}; expected {range}"),
        }
    }
}

// `Error::source` is not implemented, because the text of a `BuildError` already contains the text
// of its cause.
impl std::error::Error for BuildError {}

impl Link {
    /// Returns the builder of a link over devices of any kind. Each device becomes the device of
    /// one port. Use it for devices other than UDP sockets, such as a [`Device`] of your own.
    pub fn devices(devices: impl IntoIterator<Item = Box<dyn Device>>) -> LinkBuilder {
        LinkBuilder::new(Source::Devices(devices.into_iter().collect()))
    }
}

impl LinkBuilder {
    fn new(source: Source) -> Self {
        Self {
            source,
            ports: None,
            kinds: Vec::new(),
            tree: Wanted::Qdisc(DEFAULT.to_owned()),
            seed: None,
            credits: None,
            credits_per_port: None,
            credit_time: None,
            patience: timing::PATIENCE,
            burst: BURST_DEFAULT,
            mtu: None,
            mode: Mode::default(),
            runners: None,
            runner_cpus: Vec::new(),
            runner_priority: None,
            rate: None,
            ports_max: None,
            measures: false,
            timing: Timing::default(),
            manual: false,
        }
    }

    /// Sets the number of ports (transmit queues). Each port has its own socket and its own qdisc,
    /// like the queues below Linux's `mq`.
    ///
    /// Default: one port for each processor, at most 64, if the link binds its own sockets. A link
    /// over given sockets or devices has one port for each of them, and [`build`](Self::build)
    /// fails if this option names another number. The range is 1 to 65535.
    ///
    /// Choose 1 if one qdisc has to schedule all traffic. Choose more if so many threads send at
    /// the same time that the ports limit their throughput: a port sends what one thread can send.
    #[must_use]
    pub fn ports(mut self, ports: usize) -> Self {
        self.ports = Some(ports);
        self
    }

    /// Sets the qdisc in front of each port, written as `tc` writes it, with units: `fq maxrate
    /// 8mbit`. Default: `fq low_rate_threshold 100mbit`.
    ///
    /// With the default, a flow with a [pacing rate](crate::Flow::set_pacing_rate) of up to 100
    /// Mbit/s pauses after each packet, as a sender of media expects. `fq` alone has Linux's
    /// default for this option, 550 kbit/s: a faster flow sends a quantum (3,028 bytes at an MTU of
    /// 1,514 bytes) at once and then pauses, which costs fewer wake-ups. At 2 Mbit/s, packets of
    /// 240 bytes then leave in bursts of 13, every 12 ms.
    ///
    /// Change it to get another scheduling policy: bands (`prio`), a rate limit (`tbf`), active
    /// queue management (`fq_codel`, `cake`). If the text is wrong, [`build`](Self::build) returns
    /// [`BuildError::Qdisc`].
    #[must_use]
    pub fn qdisc(mut self, qdisc: &str) -> Self {
        self.tree = Wanted::Qdisc(qdisc.to_owned());
        self
    }

    /// Adds a kind of qdisc of your own, which [`qdisc`](Self::qdisc) and later changes of the link
    /// may then name: [`Link::change`], [`Link::set_qdisc`]. [`Kinds`] shows how to write one. Call
    /// `kind` once for each kind, before or after `qdisc`. Default: the built-in kinds alone.
    ///
    /// For a [`tree`](Self::tree) of lines that name the kind, make the tree by
    /// [`Setup::with_kinds`](onramp_core::Setup::with_kinds). A link of such a tree knows the kinds
    /// of the tree.
    ///
    /// If no text can name the kind, for example because a built-in kind has its name,
    /// [`build`](Self::build) returns [`BuildError::Qdisc`].
    ///
    /// ```
    /// use onramp::params::{Default, Param, Unit, Values};
    /// use onramp::qdisc::{Kind, Qdisc};
    /// use onramp::{Link, Spec};
    ///
    /// const LIMIT: Param = Param::new("limit", Unit::Packets, Default::Number(9), "packets held");
    /// static SHORT: Kind = Kind::new("short", "a short fifo", &[LIMIT], short);
    ///
    /// /// Builds the qdisc. Here it is a built-in one; a type of your own is built as well.
    /// fn short(values: &Values<'_>) -> Box<dyn Qdisc> {
    ///     let text = format!("pfifo limit {}", values.number("limit"));
    ///     text.parse::<Spec>().expect("a good text").build_at(values.site)
    /// }
    ///
    /// let device = Box::new(onramp::dev::Null::default());
    /// let link = Link::devices([device as _]).kind(&SHORT).qdisc("short limit 5").build()?;
    /// link.change("qdisc replace root handle 1: prio")?;
    /// link.change("qdisc add parent 1:1 short")?;
    /// let error = link.change("qdisc add parent 1:2 short rate 1mbit").unwrap_err();
    /// assert_eq!(error.to_string(), r#"qdisc short: unexpected "rate": short takes limit"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn kind(mut self, kind: &'static Kind) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Sets the tree of qdiscs, classes and filters in front of each port, instead of a single
    /// [`qdisc`](Self::qdisc). If the root of the tree is `mq`, each port gets the part of the tree
    /// below one class of the `mq`: class `1:1` belongs to the first port, and so on.
    ///
    /// Use a tree if packets need classes or filters. If the tree has no qdisc at its root,
    /// [`build`](Self::build) returns [`BuildError::Qdisc`].
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
        self.tree = Wanted::Tree(Box::new(tree.clone()));
        self
    }

    /// Sets the seed of the random numbers that qdiscs draw, such as the drops of `netem`. Default:
    /// a random seed that nobody can predict, as the keys of hashes should be.
    ///
    /// Set it in tests and simulations whose runs have to repeat exactly. Do not set it in
    /// production: whoever knows the seed can choose flows whose hashes collide.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the credits of each sender: how many packets, and how many bytes of payload, it may
    /// have in flight, that is, accepted by the link and neither sent nor dropped. The range is 1
    /// to 32768 packets. Every sender keeps what this method gives it, however many senders there
    /// are, unless [`credits_per_port`](Self::credits_per_port) is set too.
    ///
    /// Default: 96 packets and 1 MiB; with many senders fewer packets, because all senders together
    /// then get 8192 packets for each port. [`LinkStats::credits`](crate::LinkStats::credits) says
    /// how many packets each sender has at present.
    ///
    /// Raise the number of packets if a sender gets [`Full`](crate::TrySendError::Full) although
    /// the device is idle, or sends in bursts longer than 96 packets. Lower it to keep queues and
    /// delays short, or set [`credit_time`](Self::credit_time). If it exceeds the limit of the
    /// qdisc for the packets of one flow (100 packets under `fq`), the qdisc may drop packets even
    /// of a sender that waits for room.
    #[must_use]
    pub fn credits(mut self, credits: Credits) -> Self {
        self.credits = Some(credits);
        self
    }

    /// Bounds the number of packets that all senders of the link together may have in flight, for
    /// each port. If the senders' [credits](Self::credits) exceed this number, each sender gets an
    /// equal part of it, but at least 4 packets (fewer if its credits are fewer). Default: 8192
    /// packets if `credits` is not set, which bounds no sender that has [credits of its
    /// own](Link::sender_with), although such a sender counts as one of them; no bound if `credits`
    /// is set. The range is 4 packets and more; all
    /// ports together must have at least the `credits` that are set for one sender.
    ///
    /// Set it to bound queues, delay and memory where the number of senders is not known. The
    /// number of packets of one sender then falls as senders come, and grows as they go.
    #[must_use]
    pub fn credits_per_port(mut self, packets: u32) -> Self {
        self.credits_per_port = Some(packets);
        self
    }

    /// Sets the greatest number of packets that may wait in each port's intake, as Linux's
    /// `net.core.qdisc_max_burst` does. Default: 16384 packets. The range is 1 to 65535 packets.
    ///
    /// Credits normally keep the number of packets in an intake far below this cap. Raise the cap
    /// only if [`LinkStats::refused`](crate::LinkStats::refused) grows; lower it to bound the
    /// memory that very many senders can fill.
    #[must_use]
    pub fn burst(mut self, burst: u16) -> Self {
        self.burst = burst;
        self
    }

    /// Sets the size of the largest packet on the wire, in bytes, link header included. `fq` and
    /// other qdiscs derive their quantum from this size. Default: the size that the device reports.
    ///
    /// Change this size if the path carries smaller or larger packets than the device reports, for
    /// example jumbo frames. The range is 1 byte and more.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Sets which threads transmit packets: senders, runners or both, see [`Mode`]. Default:
    /// [`Mode::Hybrid`].
    ///
    /// Choose [`Mode::Dedicated`] if sending threads must never spend time on the system calls of a
    /// device, and a processor is free for the runner. Choose [`Mode::Inline`] if packets should
    /// leave as early as possible even while many senders use the same port.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the number of runner threads, which share the ports. The range is 1 to 64. Default: 1
    /// runner. In [`Mode::Dedicated`], where runners alone transmit, the default is one runner for
    /// each port, but no more than there are processors.
    ///
    /// Raise the number if one runner cannot serve all ports in time, for example if many ports
    /// pace their packets.
    #[must_use]
    pub fn runners(mut self, runners: usize) -> Self {
        self.runners = Some(runners);
        self
    }

    /// Pins the runner threads to these processors: the first runner to the first processor, and so
    /// on. If there are more runners than processors in the list, the list starts over. Default:
    /// the kernel chooses the processors.
    ///
    /// Set this option if processors are reserved for networking. If a runner cannot be pinned,
    /// [`build`](Self::build) returns [`BuildError::Pin`].
    #[must_use]
    pub fn runner_cpus(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.runner_cpus = cpus.into_iter().collect();
        self
    }

    /// Sets the priority of the runner threads. Default: that of the thread that builds the link.
    ///
    /// Set it if other threads compete for the processors and packets have to leave at exact times:
    /// the later a runner runs, the less evenly it paces. A runner with [`Priority::Fifo`] keeps
    /// ordinary threads off its processor while it has work. If the process may not set the
    /// priority, [`build`](Self::build) returns [`BuildError::Priority`].
    #[must_use]
    pub fn runner_priority(mut self, priority: Priority) -> Self {
        self.runner_priority = Some(priority);
        self
    }

    /// Sets a rate limit that all ports share. The rate counts bytes on the wire, headers included.
    /// Ports that have packets to send get equal parts of the rate. Default: no limit.
    ///
    /// Set this limit if the link as a whole must not exceed a rate although it has several ports:
    /// a rate in the qdisc limits each port by itself. [`Link::set_rate`] changes the rate later,
    /// but only of a link that was built with a rate.
    #[must_use]
    pub fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Sets how many ports the link may have over its lifetime, counting ports that were removed
    /// (see [`Link::add_port`]). Default: 64, or twice the initial number of ports if that is
    /// larger. The range is from the initial number of ports to 65535.
    ///
    /// Raise this number if the program adds and removes ports often: the number of a removed port
    /// is not used again.
    #[must_use]
    pub fn ports_max(mut self, ports: usize) -> Self {
        self.ports_max = Some(ports);
        self
    }

    /// Sets whether each qdisc measures the sojourn time of packets (the time from push to
    /// dequeue): see [`Link::measure`](Link::measure). Default: false.
    ///
    /// Set it to true to see queueing delays from the first packet on. Measuring costs time for
    /// each packet.
    #[must_use]
    pub fn measure(mut self, measures: bool) -> Self {
        self.measures = measures;
        self
    }

    /// Makes a link without threads. The program itself does the work of the runner: it calls
    /// [`Link::run`] when the link's [descriptor](Link::descriptor) is readable, or at the time
    /// that the previous call has returned. Default: a link has threads.
    ///
    /// Use it in a program that has a loop of its own around `epoll` or `poll` and wants no other
    /// threads, or that wants to know exactly when packets leave. Several threads may send all the
    /// same. A call that waits, such as [`Sender::send`](crate::Sender::send) of a sender without
    /// credit, [`Link::flush`], [`Link::close`], and [`Link::change`] or [`Link::views`] while
    /// another thread owns a port, does the runner's work while it waits, so it ends although the
    /// loop stands still meanwhile. A future such as
    /// [`Sender::ready`](crate::Sender::ready) waits for the program to call `run`. A device that
    /// blocks, blocks the program.
    ///
    /// The options of threads, [`runners`](Self::runners), [`runner_cpus`](Self::runner_cpus),
    /// [`runner_priority`](Self::runner_priority) and [`spin`](Self::spin), do not go with it:
    /// [`build`](Self::build) then fails.
    ///
    /// ```
    /// use onramp::Link;
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// let receiver = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let link = Link::udp("127.0.0.1:0")
    ///     .ports(1)
    ///     .qdisc("tbf rate 1mbit burst 1600 limit 100kb")
    ///     .manual()
    ///     .build()?;
    /// let mut sender = link.sender();
    /// let flow = sender.flow(receiver.local_addr()?);
    /// for number in 0..5 {
    ///     sender.try_send(&flow, &[number; 1_000])?;
    /// }
    /// while link.stats().sent < 5 {
    ///     let descriptor = link.descriptor().expect("the link has no threads");
    ///     poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None)?;
    ///     link.run();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn manual(mut self) -> Self {
        self.manual = true;
        self
    }

    /// Makes the timer of a link without threads.
    fn program_timer(&self) -> Result<Timer, BuildError> {
        const NONE: &str = "0, because the program runs the link (`manual`)";
        for (what, value) in [
            ("the number of runners", self.runners.unwrap_or(0)),
            ("the number of processors for runners", self.runner_cpus.len()),
            ("the number of priorities for runners", self.runner_priority.iter().count()),
            ("the nanoseconds to spin", usize::try_from(self.timing.spin_ns).unwrap_or(usize::MAX)),
        ] {
            if value > 0 {
                return Err(BuildError::Range(what, value, NONE));
            }
        }
        Timer::new().map_err(BuildError::Timer)
    }

    /// Makes the link and starts its runner threads.
    ///
    /// # Errors
    ///
    /// Returns a [`BuildError`] that names what was wrong. In this case, no thread and no socket is
    /// left behind.
    pub fn build(self) -> Result<Link, BuildError> {
        let timer = if self.manual { Some(self.program_timer()?) } else { None };
        let kinds = Kinds::new(self.kinds).map_err(BuildError::Qdisc)?;
        let tree = self.tree.with_kinds(&kinds).map_err(BuildError::Qdisc)?;
        let credits = self.credits.unwrap_or(CREDITS_DEFAULT);
        if !(1..=Credits::PACKETS_MAX).contains(&credits.packets) {
            let packets = credits.packets as usize;
            return Err(BuildError::Range("credits", packets, "1 to 32768 packets"));
        }
        let default = self.credits.is_none().then_some(CREDITS_PER_PORT_DEFAULT);
        let credits_per_port = self.credits_per_port.or(default);
        if self.mtu == Some(0) {
            return Err(BuildError::Range("the largest packet", 0, "at least 1 byte"));
        }
        if self.burst == 0 {
            return Err(BuildError::Range("burst", 0, "1 to 65535 packets"));
        }
        let (devices, udp) = self.source.open(self.ports)?;
        // Of the ports' credits, a single sender must be able to have the credits that it was
        // given.
        let most = credits_per_port.unwrap_or(u32::MAX) as usize;
        let least = self.credits.map_or(0, |one| one.packets as usize).div_ceil(devices.len());
        if most < least.max(CREDITS_MIN as usize) {
            let why = "at least 4, and with all ports at least the credits of one sender";
            return Err(BuildError::Range("credits per port", most, why));
        }
        let most = (2 * devices.len()).min(PORTS_MAX);
        let ports_max = self.ports_max.unwrap_or_else(|| most.max(PORTS_MAX_DEFAULT));
        if !(devices.len()..=PORTS_MAX).contains(&ports_max) {
            let why = "at least the number of ports at the start, and at most 65535";
            return Err(BuildError::Range("the largest number of ports", ports_max, why));
        }
        let runners = self.runners.unwrap_or_else(|| match self.mode {
            Mode::Dedicated => devices.len().min(processors()),
            Mode::Hybrid | Mode::Inline => 1,
        });
        if !(1..=RUNNERS_MAX).contains(&runners) {
            return Err(BuildError::Range("the number of runners", runners, "1 to 64"));
        }
        timing::check(self.timing)?;
        let seed = self.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        let tree = Arc::new(of_link(tree, &devices, self.mtu));
        let plan = LinkConfig {
            tree,
            ingresses: Vec::new(),
            seed,
            mode: self.mode,
            burst: self.burst,
            mtu: self.mtu,
            measures: self.measures,
            timing: self.timing,
            shares_root: false,
            stale: BTreeSet::new(),
        };
        let rate = self.rate.map(|rate| SharedRate::new(rate, ports_max));
        let setup = Setup {
            plan,
            credits,
            credits_per_port,
            keeps_own_credits: self.credits_per_port.is_none(),
            credit_time: self.credit_time,
            patience_ns: timing::ns(self.patience),
            rate,
            runners,
            priority: self.runner_priority,
            timer,
            ports_max,
            udp,
        };
        Link::start(setup, devices, &self.runner_cpus).map_err(not_started)
    }
}

fn not_started(error: StartError) -> BuildError {
    match error {
        StartError::Spawn(error) => BuildError::Runner(error),
        StartError::Pin(cpu, error) => BuildError::Pin(cpu, error),
        StartError::Rank(priority, error) => BuildError::Priority(priority, error),
    }
}

/// Returns the tree of qdiscs that the options describe, adapted to a link over these devices.
fn of_link(
    mut tree: onramp_core::Setup,
    devices: &[BoxDevice],
    mtu: Option<u32>,
) -> onramp_core::Setup {
    let largest = devices.iter().map(|device| device.info().mtu).max();
    let facts = onramp_core::Facts {
        fallback: tree.facts().fallback.clone().or_else(|| FALLBACK.parse().ok()),
        queues: u16::try_from(devices.len()).unwrap_or(u16::MAX),
        mtu: mtu.or(largest).unwrap_or(0),
        ports: true,
        ..tree.facts().clone()
    };
    let name = tree.device().unwrap_or("link").to_owned();
    tree.of_device(&name, facts);
    tree
}

/// Returns the number of processors that this process may use.
fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

impl Source {
    /// Makes the devices of the link, one for each port.
    fn open(self, ports: Option<usize>) -> Result<(Vec<BoxDevice>, UdpSockets), BuildError> {
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
            let why = "as many ports as sockets or devices are given";
            return Err(BuildError::Range("the number of ports", wanted, why));
        }
        match self {
            Self::Devices(devices) => Ok((devices, UdpSockets::default())),
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
