//! The command `onramp daemon`: runs the daemon, which owns devices and executes the commands of
//! `tc` and `ip`.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use onramp_core::Rate;
use onramp_daemon::fleet;
use onramp_daemon::serve::{self, Limits, Options};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cmd::fleet::engine;
use crate::error::usage;

/// Run the daemon that owns devices and carries out `onramp tc` and `onramp ip`
///
/// The daemon stays in the foreground and logs to standard error. SIGTERM and SIGINT end it; SIGHUP
/// makes it read the configuration again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp daemon
  onramp daemon --socket ~/onramp.sock &   # then: export ONRAMP_SOCKET=~/onramp.sock
  onramp daemon --config devices.conf --metrics 127.0.0.1:9100 --log warn")]
pub(crate) struct Args {
    /// The control socket [default: $ONRAMP_SOCKET, else $XDG_RUNTIME_DIR/onramp.sock, else
    /// /run/onramp/onramp.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// A file of commands that are carried out at the start, one per line, such as
    /// `ip link add d0 type dummy`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the metrics and the web page, such as 127.0.0.1:9100 [default: neither is served]
    #[arg(long, value_name = "ADDR", value_parser = crate::cmd::values::address)]
    metrics: Option<SocketAddr>,
    /// Let the web page run tc and ip commands; without this option, it only shows figures
    #[arg(long, requires = "metrics")]
    web_control: bool,
    /// How much lateness devices catch up on, milliseconds, 0 to 1000 [default: 5]. A thread that
    /// comes late to send packets sends at once what was due in this time; shapers lose the rate of
    /// longer lateness
    #[arg(long, value_name = "MS", value_parser = crate::cmd::values::whole::<u64>(0..=1000))]
    catch_up: Option<u64>,
    /// Slack of the devices, microseconds, 0 to 1000000. Packets that a qdisc has held back leave
    /// up to this time later, so that one wake-up serves several of them; rates stay exact
    /// [default: a wake-up for each packet, but at most one in 90 microseconds, and while packets
    /// wait that are closer together than that, one in up to 400, so that wake-ups take 5 % of a
    /// processor]
    #[arg(long, value_name = "US", value_parser = crate::cmd::values::whole::<u64>(0..=1_000_000))]
    slack: Option<u64>,
    /// The engine of the fleet that this host belongs to, a Redis server:
    /// redis://USER:PASSWORD@HOST:PORT, rediss:// for TLS, or unix:///PATH; @FILE reads the URL
    /// from a file. Commands of tc may then say `fleet LIMIT` in place of a rate
    #[arg(long, value_name = "URL")]
    fleet: Option<String>,
    /// The name by which the fleet knows this host; no two hosts have the same [default: the
    /// machine's name]
    #[arg(long, value_name = "NAME", requires = "fleet")]
    fleet_name: Option<String>,
    /// The rate of qdiscs and classes that follow a limit before the daemon has heard of it,
    /// because the engine has not answered since the daemon began; at most the limit's --floor
    /// [default: 0, so that nothing passes]
    #[arg(long, value_name = "RATE", requires = "fleet")]
    fleet_floor: Option<Rate>,
    /// The certificate (PEM) of the authority that signed the engine's certificate [default: those
    /// that the machine trusts]
    #[arg(long, value_name = "FILE", requires = "fleet")]
    fleet_authority: Option<PathBuf>,
    /// Level of the log: error, warn, info, debug or trace; or levels for parts of the program, as
    /// in `info,onramp_daemon=debug` [default: $RUST_LOG, else info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let Args { socket, config, metrics, web_control, catch_up, slack, .. } = args;
    let fleet = args.fleet.as_deref().map(|url| -> Result<fleet::Options> {
        let engine = engine("--fleet", url, "--fleet-authority", args.fleet_authority.as_deref())?;
        let floor = args.fleet_floor.map_or(0, Rate::as_bytes_per_second);
        Ok(fleet::Options { engine, name: name(args.fleet_name.clone())?, floor })
    });
    let fleet = fleet.transpose()?;
    let log = args.log;
    let filter = log.or_else(|| std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty()));
    let filter = filter.unwrap_or_else(|| "info".to_owned());
    let filter = targets(&filter)?;
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(filter).with(lines).init();
    let limits = Limits::default();
    let catch_up = catch_up.map(Duration::from_millis);
    let slack = slack.map(Duration::from_micros);
    let options = Options { socket, config, metrics, web_control, catch_up, slack, limits, fleet };
    serve::run(options).map_err(|error| anyhow!(error))
}

/// Returns the name by which the fleet knows this host.
fn name(given: Option<String>) -> Result<String> {
    let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = given.unwrap_or_else(machine);
    if !onramp_fleet::is_name(&name) {
        let expected = "expected 1 to 64 letters, digits, '.', '_' or '-'";
        return Err(usage(format!("--fleet-name {name:?}: {expected}")));
    }
    Ok(name)
}

/// Parses the filter for log messages. A part of the filter without `=` must be a level, such as
/// `info`: the name of a part of the program without a level is an error.
fn targets(text: &str) -> Result<Targets> {
    let expected = "expected off, error, warn, info, debug or trace, or levels for parts of the \
                    program, as in info,onramp_daemon=debug";
    // An empty part would be read as the level `error`.
    let is_level = |part: &str| !part.trim().is_empty() && part.parse::<LevelFilter>().is_ok();
    let alone = |part: &&str| !part.contains('=') && !is_level(part);
    if let Some(part) = text.split(',').find(alone) {
        return Err(usage(format!("--log {text:?}: {part:?} is not a level; {expected}")));
    }
    text.parse().map_err(|error| usage(format!("--log {text:?}: {error}; {expected}")))
}
