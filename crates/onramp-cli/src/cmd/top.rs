//! The command `onramp top`: shows live tables of the daemon's devices.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use onramp_daemon::feed::Remote;
use onramp_daemon::find_path;
use onramp_daemon::snapshot::{Query, Sort};
use onramp_daemon::top::{self, Batch};

use crate::error::usage;
use crate::signals::Signals;

/// Show the traffic of the daemon's devices in a table that is updated continually
///
/// There is a row for each device, queue, qdisc and class. It shows the rate, packets per second,
/// the number of packets that wait, the median and the 99th percentile of waiting times, drops per
/// second and their reasons. `?` shows the keys.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp top
  onramp top --sort drops d0
  onramp top --once
  onramp top -b -n 60 --json | jq -c '.rows[] | {id, bytes_per_second}'")]
pub(crate) struct Args {
    /// Show only rows that contain every WORD, such as `d0`, `fq`, `8001:` or `overlimit`
    #[arg(value_name = "WORD")]
    filter: Vec<String>,
    /// Order of the rows: as a tree, or by a figure with the greatest first
    #[arg(long, value_name = "WHAT", default_value = "tree",
        value_parser = PossibleValuesParser::new(Sort::ALL.map(Sort::name)))]
    sort: String,
    /// Seconds between two updates, 0.1 or more
    #[arg(short = 'd', long, value_name = "SECONDS", default_value_t = 1.0,
        value_parser = crate::cmd::values::number)]
    delay: f64,
    /// Print a table for each update, instead of using the whole screen
    #[arg(short, long)]
    batch: bool,
    /// Print N tables, and end; 1 or more
    #[arg(short = 'n', value_name = "N",
        value_parser = crate::cmd::values::whole::<u64>(1..=u64::MAX))]
    tables: Option<u64>,
    /// Print one table; the same as -b -n 1
    #[arg(long, conflicts_with = "tables")]
    once: bool,
    /// Print JSON, one document per line (docs/json.md: onramp.stats)
    #[arg(short, long)]
    json: bool,
    /// Print at most this number of rows
    #[arg(long, value_name = "ROWS",
        value_parser = crate::cmd::values::whole::<usize>(0..=u64::MAX))]
    limit: Option<usize>,
    /// The daemon's control socket [default: the same as for `onramp tc`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let Args { filter, sort, delay, batch, tables, once, json, limit, socket } = args;
    if !(0.1..=86_400.0).contains(&delay) {
        return Err(usage(format!("--delay {delay}: expected 0.1 to 86400 seconds")));
    }
    let batch = batch || once || json || tables.is_some() || limit.is_some();
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !batch && !is_terminal {
        return Err(usage("input or output is not a terminal: print tables with -b or --once"));
    }
    let sort = Sort::named(&sort).unwrap_or_default();
    let filter = filter.join(" ");
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds")]
    let interval_ms = (delay * 1000.0).round() as u64;
    let socket = socket.unwrap_or_else(find_path);
    if !batch {
        // A signal must not leave the terminal as the table needs it.
        let signals = Signals::listen()?;
        let mut feed = Remote::connect(&socket, interval_ms)?;
        let shown = top::run(&mut feed, sort, &filter, || signals.check().is_err());
        signals.check()?;
        return Ok(shown?);
    }
    let mut feed = Remote::connect(&socket, interval_ms)?;
    let filter = Some(filter).filter(|filter| !filter.is_empty());
    let query = Query { filter, sort, limit, ..Query::default() };
    let tables = if once { Some(1) } else { tables };
    Ok(top::print(&mut feed, &Batch { tables, json, query }, &mut io::stdout().lock())?)
}
