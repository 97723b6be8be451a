//! The command `onramp shape`: a transparent bridge of two interfaces with a tree of qdiscs in each
//! direction.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use onramp_core::{Clock as _, Device as _, Setup};
use onramp_dev::{MonotonicClock, PacketOptions, PacketSocket};
use onramp_wire::{Bridge, Way};

use crate::error::{tell, usage};
use crate::output::{self, Output};
use crate::progress::Line;
use crate::report::{json, shape as report};
use crate::setup;
use crate::signals::Signals;

/// Shape the traffic between two network interfaces, as a transparent bridge
///
/// Every frame that arrives at one of the interfaces leaves through the other, after the qdiscs of
/// that direction have released it: IPv4, IPv6, ARP, frames with VLAN tags and all others,
/// unchanged. Stand it between a network and its uplink, for example with cake where the kernel has
/// none. The command needs CAP_NET_RAW, which root has. It runs until it gets SIGINT (Ctrl-C),
/// SIGTERM or SIGHUP; then it prints what it has carried and dropped. It changes no setting of the
/// interfaces that outlasts it, also if it is killed. The interfaces should have no addresses,
/// because the host would answer there, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp shape eth0 eth1 --egress 'cake bandwidth 20mbit' --ingress 'cake bandwidth 95mbit'
  onramp shape eth0 eth1 --qdisc 'tbf rate 50mbit burst 64kb latency 50ms' --then 'netem delay 5ms'
  onramp shape eth0 eth1 --setup classes.tc --json shaped.json")]
pub(crate) struct Args {
    /// The interface whose direction is meant by --egress and --ingress, such as the uplink
    #[arg(value_name = "IF")]
    first: String,
    /// The other interface
    #[arg(value_name = "IF2")]
    second: String,
    /// The qdisc in both directions, in the syntax of tc [default: pfifo limit 1000]
    #[arg(long, value_name = "QDISC")]
    qdisc: Option<String>,
    /// The qdisc for frames that leave through IF, instead of --qdisc
    #[arg(long, value_name = "QDISC")]
    egress: Option<String>,
    /// The qdisc for frames that arrive at IF and leave through IF2, instead of --qdisc
    #[arg(long, value_name = "QDISC")]
    ingress: Option<String>,
    /// A further qdisc in both directions, behind the one before: first a rate, then a delay. May
    /// be given several times
    #[arg(long, value_name = "QDISC")]
    then: Vec<String>,
    /// A file with lines of tc: those for the device IF are about frames that leave through IF,
    /// those for IF2 about frames that leave through IF2
    #[arg(long, value_name = "FILE", conflicts_with_all = ["qdisc", "egress", "ingress", "then"])]
    setup: Option<PathBuf>,
    /// Seed of everything random, such as losses
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write what was carried and dropped as JSON (docs/json.md: onramp.shape); - is standard
    /// output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print errors only
    #[arg(long)]
    quiet: bool,
}

/// How often the line on a terminal is renewed.
const RENEW: Duration = Duration::from_secs(1);

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<()> {
    if args.first == args.second {
        return Err(usage(
            "name two interfaces: a bridge of an interface with itself has no sides",
        ));
    }
    let [egress, ingress] = trees(&args)?;
    let output = args.json.as_deref().map(Output::new).transpose()?;
    let signals = Signals::listen()?;
    let seed = args.seed.unwrap_or_else(|| onramp_wire::Options::default().seed);
    let (mut first, mut second) = (open(&args.first, seed)?, open(&args.second, seed)?);
    if !args.quiet {
        remarks(&args, [&first, &second])?;
    }
    let (from_first, from_second) = (first.receiver()?, second.receiver()?);
    let way = |from, tree: &Setup, seed, to| {
        Way::of(Box::new(from), tree, seed, Box::new(to))
            .ok_or_else(|| anyhow!("a tree has no root"))
    };
    let out = way(from_second, &egress, seed, first)?;
    let into = way(from_first, &ingress, seed.wrapping_add(1), second)?;
    let began = MonotonicClock.now();
    let bridge = Bridge::start([out, into])?;
    if !args.quiet {
        tell(&format!("shaping between {} and {}", args.first, args.second));
    }
    let mut line = Line::new(!args.quiet);
    let mut before = None;
    // Until a signal comes, or the bridge breaks.
    while !signals.within(RENEW)? {
        let Some(carried) = bridge.carried() else { break };
        let now = MonotonicClock.now();
        if let Some((before, at)) = before.replace((carried, now)) {
            line.show(&report::line(&before, &carried, Duration::from_nanos(now.since(at))));
        }
    }
    drop(line);
    let broken = bridge.error();
    let carried = bridge.stop();
    let seconds = Duration::from_nanos(MonotonicClock.now().since(began)).as_secs_f64();
    let mut done = Vec::new();
    if !args.quiet && !output.as_ref().is_some_and(Output::is_stdout) {
        tell(&report::text(&carried));
    }
    if let Some(output) = &output {
        let names = [&*args.first, &*args.second];
        done.push(output.write(&json::pretty(&report::json(names, seconds, &carried))));
    }
    if let Some(why) = broken {
        done.push(Err(anyhow!("the bridge broke: {why}")));
    }
    // A second signal must not end the program before it has told its errors.
    while signals.within(Duration::ZERO)? {}
    output::all(done)
}

/// Returns the trees of frames that leave through IF, and of frames that arrive at it.
fn trees(args: &Args) -> Result<[Setup; 2]> {
    if args.qdisc.is_some() && args.egress.is_some() && args.ingress.is_some() {
        return Err(usage(
            "--qdisc has no effect beside --egress and --ingress: leave one of them out",
        ));
    }
    let tree = |own: Option<&str>, option: &'static str| {
        let then = args.then.iter().map(|then| (&**then, "--then"));
        let both = || (args.qdisc.as_deref().unwrap_or("pfifo limit 1000"), "--qdisc");
        let first = own.map_or_else(both, |own| (own, option));
        setup::stages(&[first].into_iter().chain(then).collect::<Vec<_>>())
    };
    let trees =
        [tree(args.egress.as_deref(), "--egress")?, tree(args.ingress.as_deref(), "--ingress")?];
    let Some(path) = &args.setup else { return Ok(trees) };
    let [egress, ingress] = setup::read_each(path, [&args.first, &args.second])?;
    let [plain_egress, plain_ingress] = trees;
    Ok([egress.unwrap_or(plain_egress), ingress.unwrap_or(plain_ingress)])
}

/// Opens an interface for frames in both directions.
fn open(name: &str, seed: u64) -> Result<PacketSocket> {
    let found = getifaddrs().context("cannot list the network interfaces")?;
    let found: BTreeMap<_, _> = found.map(|of| (of.interface_name, of.flags)).collect();
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
    let options = PacketOptions { promiscuous: true, seed, ..PacketOptions::default() };
    PacketSocket::open(name, options).with_context(|| format!("cannot open {name}"))
}

/// Tells of what the user may not expect: addresses, and packets that fit one interface only.
fn remarks(args: &Args, devices: [&PacketSocket; 2]) -> Result<()> {
    for name in [&args.first, &args.second] {
        let addresses = getifaddrs()?.filter(|of| of.interface_name == *name);
        let address = addresses.filter_map(|of| of.address).find_map(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| v4.ip().to_string());
            let v6 = address.as_sockaddr_in6().map(nix::sys::socket::SockaddrIn6::ip);
            v4.or_else(|| v6.filter(|ip| !ip.is_unicast_link_local()).map(|ip| ip.to_string()))
        });
        if let Some(address) = address {
            tell(&format!(
                "note: {name} has the address {address}: the host answers there itself, and the \
                 packets that it sends are not shaped"
            ));
        }
    }
    let [first, second] = devices.map(|device| device.info().mtu);
    if first != second {
        let (small, large) =
            if first < second { (&args.first, &args.second) } else { (&args.second, &args.first) };
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
