//! The command `onramp shape`: a tree of qdiscs for each direction of a host's own traffic through
//! an interface, or of a transparent bridge between two interfaces.

mod watch;

use std::path::PathBuf;
use std::time::Duration;
use std::{io, iter};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::net::if_::InterfaceFlags;
use onramp_core::{Clock as _, Device, Setup};
use onramp_dev::{
    Detour, MonotonicClock, PacketReceiver, PacketSocket, Receive, Side, Switch, Xdp, XdpOptions,
    XdpReceiver,
};
use onramp_host::interface_address;
use onramp_wire::{Bridge, Direction, PLAIN, Way};

use self::watch::Interfaces;
use crate::error::{tell, usage};
use crate::output::{self, Output};
use crate::progress::Line;
use crate::report::{json, shape as report};
use crate::setup;
use crate::signals::Signals;

/// Shape the traffic through a network interface, or between two
///
/// With one interface, the command shapes what this host itself sends through the interface, what
/// comes in to the host through it, or both. The interface keeps its addresses and routes. This
/// needs root and Linux 6.6. With two interfaces, the command is a transparent bridge: every frame
/// that arrives at one of them leaves through the other, after the qdiscs of that direction have
/// released it. This needs CAP_NET_RAW, which root has; the interfaces should have no addresses,
/// because the host would answer there, too. Either way frames of all protocols pass unchanged:
/// IPv4, IPv6, ARP, VLAN. Use it for example for cake where the kernel has none. It runs until it
/// gets SIGINT (Ctrl-C; not if a script has started it with &), SIGTERM or SIGHUP; then it prints
/// what it has carried and dropped. It changes no setting that outlasts it, also if it is killed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp shape eth0 --egress 'cake bandwidth 20mbit'
  onramp shape eth0 --egress 'cake bandwidth 20mbit' --ingress 'cake bandwidth 95mbit ingress'
  onramp shape eth0 eth1 --egress 'cake bandwidth 20mbit' --ingress 'cake bandwidth 95mbit'
  onramp shape eth0 eth1 --qdisc 'tbf rate 50mbit burst 64kb latency 50ms' --then 'netem delay 5ms'
  onramp shape eth0 eth1 --setup classes.tc --json shaped.json")]
pub(crate) struct Args {
    /// The interface whose direction is meant by --egress and --ingress, such as the uplink
    #[arg(value_name = "IF")]
    first: String,
    /// The other interface of a bridge
    #[arg(value_name = "IF2")]
    second: Option<String>,
    /// The qdisc in both directions, in the syntax of tc [default: with two interfaces pfifo limit
    /// 1000; with one, only the direction that has a qdisc is shaped]
    #[arg(long, value_name = "QDISC")]
    qdisc: Option<String>,
    /// The qdisc for frames that leave through IF, instead of --qdisc
    #[arg(long, value_name = "QDISC")]
    egress: Option<String>,
    /// The qdisc for frames that arrive at IF, for this host or to leave through IF2, instead of
    /// --qdisc
    #[arg(long, value_name = "QDISC")]
    ingress: Option<String>,
    /// A further qdisc in both directions, behind the one before: first a rate, then a delay. May
    /// be given several times
    #[arg(long, value_name = "QDISC")]
    then: Vec<String>,
    /// A file with lines of tc: those for the device IF are about frames that leave through IF,
    /// those for IF2 about frames that leave through IF2. With one interface, frames that arrive
    /// are left alone
    #[arg(long, value_name = "FILE", conflicts_with_all = ["qdisc", "egress", "ingress", "then"])]
    setup: Option<PathBuf>,
    /// How frames come from and go to the interfaces of a bridge. AF_XDP does not see VLAN tags
    /// that an interface takes out of frames [default: packet]
    #[arg(long, value_name = "KIND")]
    device: Option<Kind>,
    /// Seed of everything random, such as losses
    #[arg(long, value_name = "N", value_parser = crate::cmd::values::seed)]
    seed: Option<u64>,
    /// Write what was carried and dropped as JSON (docs/json.md: onramp.shape); - is standard
    /// output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print errors only
    #[arg(long)]
    quiet: bool,
}

/// A kind of device at the interfaces of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Packet sockets, with super-frames: every interface has them
    Packet,
    /// AF_XDP, past the kernel's network stack, without super-frames; needs CAP_NET_ADMIN and
    /// CAP_BPF, too. An interface that cannot gets a packet socket
    Xdp,
}

/// How often the line on a terminal is renewed.
const RENEW: Duration = Duration::from_secs(1);

impl Args {
    fn device(&self) -> Kind {
        self.device.unwrap_or(Kind::Packet)
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<()> {
    if args.second.as_ref() == Some(&args.first) {
        return Err(usage(
            "name one interface, or two: a bridge of an interface with itself has no sides",
        ));
    }
    if args.device.is_some() && args.second.is_none() {
        return Err(usage(
            "--device is about the two interfaces of a bridge: name a second one, or leave it out",
        ));
    }
    let trees = trees(&args)?;
    let output = args.json.as_deref().map(Output::new).transpose()?;
    let signals = Signals::listen()?;
    let seed = args.seed.unwrap_or_else(|| onramp_wire::Options::default().seed);
    // The promiscuous sockets must live as long as the ways.
    let Ways { ways, devices, switches, _promiscuous } = match &args.second {
        Some(second) => bridged(&args, second, &trees, seed)?,
        None => detoured(&args.first, &trees, seed)?,
    };
    // Of the directions that are shaped, in this order.
    let each = |all: Vec<Direction>| {
        let mut all = all.into_iter();
        trees.each_ref().map(|tree| tree.as_ref().and_then(|_| all.next()))
    };
    let began = MonotonicClock.now();
    let bridge = Bridge::start(ways)?;
    for switch in &switches {
        let refused = || format!("cannot shape the traffic of {}", args.first);
        switch.set(true).with_context(refused)?;
    }
    if !args.quiet {
        let first = &args.first;
        tell(&match (&args.second, &trees) {
            (Some(second), _) => format!("shaping between {first} and {second}"),
            (None, [Some(_), None]) => format!("shaping what leaves through {first}"),
            (None, [None, _]) => format!("shaping what comes in through {first}"),
            (None, _) => format!("shaping what leaves and what comes in through {first}"),
        });
    }
    let names: Vec<&str> = iter::once(&*args.first).chain(args.second.as_deref()).collect();
    follow(&names, &bridge, each, &signals, args.quiet)?;
    let broken = bridge.error();
    // Before a TAP disappears, which takes a while, no packet is led to one any more.
    switches.iter().try_for_each(|switch| switch.set(false))?;
    let carried = each(bridge.stop());
    let seconds = Duration::from_nanos(MonotonicClock.now().since(began)).as_secs_f64();
    let mut done = Vec::new();
    if !args.quiet && !output.as_ref().is_some_and(Output::is_stdout) {
        tell(&report::text(&carried));
    }
    // A pipe may never have a reader: from now on, a signal ends the command.
    let signals = match output.as_ref().is_some_and(Output::may_stall) {
        true => {
            signals.end();
            None
        }
        false => Some(signals),
    };
    if let Some(output) = &output {
        let json = report::json(&names, &devices, seconds, &carried);
        done.push(output.write(&json::pretty(&json)));
    }
    if let Some(why) = broken {
        done.push(Err(anyhow!("the shaper broke: {why}")));
    }
    // A second signal must not end the program before it has told its errors.
    if let Some(signals) = signals {
        signals.end();
    }
    output::all(done)
}

/// Shows what the bridge carries, and tells what happens to its interfaces, until a signal comes or
/// the bridge breaks.
fn follow(
    names: &[&str],
    bridge: &Bridge,
    each: impl Fn(Vec<Direction>) -> report::Both,
    signals: &Signals,
    quiet: bool,
) -> Result<()> {
    let mut interfaces = Interfaces::new(names.iter().copied());
    let (mut line, mut before) = (Line::new(!quiet), None);
    while !signals.within(RENEW)? {
        let Some(carried) = bridge.carried() else { break };
        for news in interfaces.look().into_iter().filter(|_| !quiet) {
            line.take_back();
            tell(&news);
        }
        let (carried, now) = (each(carried), MonotonicClock.now());
        if let Some((before, at)) = before.replace((carried, now)) {
            line.show(&report::line(&before, &carried, Duration::from_nanos(now.since(at))));
        }
    }
    Ok(())
}

/// The directions that are shaped, and what has to live as long.
#[derive(Default)]
struct Ways {
    ways: Vec<Way>,
    /// The kinds of the devices at the interfaces.
    devices: Vec<&'static str>,
    /// Lead the host's own packets to the ways.
    switches: Vec<Switch>,
    /// Keep interfaces promiscuous whose frames come by AF_XDP, which takes all frames before them.
    _promiscuous: Vec<PacketReceiver>,
}

/// Makes the directions of a bridge between two interfaces: to the first, and from it.
fn bridged(args: &Args, second: &str, trees: &[Option<Setup>; 2], seed: u64) -> Result<Ways> {
    let opened =
        |name: &str| open(name, seed).map_err(|error| all_rights(name, args.device(), error));
    let (first, second) = (opened(&args.first)?, opened(second)?);
    if !args.quiet {
        remarks([&first.1, &second.1])?;
    }
    let mut all = Ways::default();
    let names = [first.1.name(), second.1.name()].map(str::to_owned);
    let mut together = Vec::new().into_iter();
    if args.device() == Kind::Xdp {
        for name in &names {
            if let Some(address) = interface_address(name)? {
                bail!(
                    "{name} has the address {address}, and with --device xdp this host gets no \
                     packet there any more: remove the address, or leave out --device xdp"
                );
            }
        }
        // If this fails, an interface that can is opened by itself below.
        together = xdp(&names, seed).unwrap_or_default().into_iter();
    }
    let mut side = |(from, socket): (PacketReceiver, PacketSocket)| -> Result<BridgeSide> {
        if args.device() == Kind::Xdp {
            let alone = |name: &str| {
                xdp(&[name], seed).map(|mut sides| sides.pop().expect("an interface has a queue"))
            };
            match together.next().map_or_else(|| alone(socket.name()), Ok) {
                Ok(side) => {
                    all.devices.push("xdp");
                    all._promiscuous.push(from);
                    return Ok(side);
                }
                // What the user may not do is no reason to do something else.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(error.into());
                }
                Err(error) if args.quiet => drop(error),
                Err(error) => tell(&format!("note: {error}; a packet socket takes its place")),
            }
        }
        all.devices.push("packet");
        Ok((vec![Box::new(from) as Box<dyn Receive>], Box::new(socket)))
    };
    let ((from_first, first), (from_second, second)) = (side(first)?, side(second)?);
    let ends = (seed..).zip([(from_second, first), (from_first, second)]);
    for ((seed, (from, to)), tree) in ends.zip(trees.iter().flatten()) {
        let mut from = from.into_iter();
        let way = way(from.next().expect("an interface has a queue"), tree, seed, to)?;
        all.ways.push(from.fold(way, Way::and_from));
    }
    Ok(all)
}

/// Makes the directions of the host's own traffic through an interface that have a tree.
fn detoured(name: &str, trees: &[Option<Setup>; 2], seed: u64) -> Result<Ways> {
    usable(name)?;
    let mut all = Ways { devices: vec!["detour"], ..Ways::default() };
    for ((seed, side), tree) in (seed..).zip([Side::Egress, Side::Ingress]).zip(trees) {
        let Some(tree) = tree else { continue };
        let (from, to) = Detour::lay(name, side, seed)
            .with_context(|| format!("cannot shape the traffic of {name}"))?;
        all.switches.push(from.switch());
        all.ways.push(way(Box::new(from), tree, seed, to)?);
    }
    Ok(all)
}

fn way(from: Box<dyn Receive>, tree: &Setup, seed: u64, to: Box<dyn Device>) -> Result<Way> {
    Way::of(from, tree, seed, to).ok_or_else(|| anyhow!("a tree has no root"))
}

/// One side of a bridge: the receivers of an interface, and the device.
type BridgeSide = (Vec<Box<dyn Receive>>, Box<dyn Device>);

/// Opens interfaces by AF_XDP. A frame that is forwarded from one to another is not copied.
fn xdp(names: &[impl AsRef<str>], seed: u64) -> io::Result<Vec<BridgeSide>> {
    let sides = Xdp::open_interfaces(names, XdpOptions { seed, ..XdpOptions::default() })?;
    let side = |(from, to): (Vec<XdpReceiver>, Xdp)| -> BridgeSide {
        (from.into_iter().map(|from| Box::new(from) as _).collect(), Box::new(to))
    };
    Ok(sides.into_iter().map(side).collect())
}

/// Returns the trees of frames that leave through IF, and of frames that arrive at it. A direction
/// without a tree is left alone.
fn trees(args: &Args) -> Result<[Option<Setup>; 2]> {
    if args.qdisc.is_some() && args.egress.is_some() && args.ingress.is_some() {
        return Err(usage(
            "--qdisc has no effect beside --egress and --ingress: leave one of them out",
        ));
    }
    let names: Vec<_> =
        [Some(&*args.first), args.second.as_deref()].into_iter().flatten().collect();
    let mut of_file = match &args.setup {
        Some(path) => setup::read_each(path, &names)?.into_iter(),
        None => Vec::new().into_iter(),
    };
    let plain = args.second.is_some().then_some((PLAIN, "--qdisc"));
    let mut tree = |own: Option<&str>, option: &'static str| {
        let own = own.map(|own| (own, option));
        let of_file = of_file.next().flatten();
        let both = args.qdisc.as_deref().map(|both| (both, "--qdisc"));
        if of_file.is_some() {
            return Ok(of_file);
        }
        let Some(first) = own.or(both).or(plain) else { return Ok(None) };
        let then = args.then.iter().map(|then| (&**then, "--then"));
        setup::stages(&iter::once(first).chain(then).collect::<Vec<_>>()).map(Some)
    };
    let trees =
        [tree(args.egress.as_deref(), "--egress")?, tree(args.ingress.as_deref(), "--ingress")?];
    if trees.iter().all(Option::is_none) {
        return Err(usage(
            "nothing would be shaped: give --egress, --ingress, --qdisc or --setup, or a second \
             interface",
        ));
    }
    Ok(trees)
}

/// Returns the error with which an interface of a bridge could not be opened. AF_XDP needs more
/// rights than the packet socket that the command opens first, so an error about rights names all.
fn all_rights(name: &str, device: Kind, error: anyhow::Error) -> anyhow::Error {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    if device == Kind::Packet || kind != Some(io::ErrorKind::PermissionDenied) {
        return error;
    }
    anyhow!(
        "cannot open {name}: with --device xdp this needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF: \
         run as root, outside of user namespaces, or give the program the rights with `setcap \
         cap_net_raw,cap_net_admin,cap_bpf+ep`"
    )
}

/// Opens an interface of a bridge, for frames in both directions.
fn open(name: &str, seed: u64) -> Result<(PacketReceiver, PacketSocket)> {
    usable(name)?;
    PacketSocket::open_side(name, seed).with_context(|| format!("cannot open {name}"))
}

/// Returns an error if there is no interface of this name that is up and leads to a network.
fn usable(name: &str) -> Result<()> {
    let found = watch::flags().context("cannot list the network interfaces")?;
    let Some(flags) = found.get(name) else {
        let names: Vec<_> = found.into_keys().collect();
        bail!("there is no interface {name}; there are {}", names.join(", "));
    };
    if flags.contains(InterfaceFlags::IFF_LOOPBACK) {
        bail!(
            "{name} is the loopback interface, which leads nowhere: name an interface to a network"
        );
    }
    if !flags.contains(InterfaceFlags::IFF_UP) {
        bail!("{name} is down: set it up with `ip link set {name} up`");
    }
    Ok(())
}

/// Tells of what the user may not expect: addresses, and packets that fit one interface only.
fn remarks(devices: [&PacketSocket; 2]) -> Result<()> {
    for name in devices.map(PacketSocket::name) {
        if let Some(address) = interface_address(name)? {
            tell(&format!(
                "note: {name} has the address {address}: the host answers there itself, and the \
                 packets that it sends are not shaped (`onramp shape {name}` shapes those)"
            ));
        }
    }
    let [first, second] = devices.map(|device| device.info().mtu);
    if first != second {
        let [mut small, mut large] = devices.map(PacketSocket::name);
        if first > second {
            std::mem::swap(&mut small, &mut large);
        }
        tell(&format!(
            "note: {small} takes packets of at most {} bytes, {large} of {}: larger ones are \
             refused and counted",
            first.min(second) - ETHERNET,
            first.max(second) - ETHERNET,
        ));
    }
    Ok(())
}

/// Length of an Ethernet header in bytes.
const ETHERNET: u32 = 14;
