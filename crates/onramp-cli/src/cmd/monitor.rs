//! The command `onramp monitor`: prints the events of the daemon's devices.

use std::io::{self, BufReader};
use std::path::PathBuf;

use anyhow::Result;
use onramp_daemon::monitor::Options;
use onramp_daemon::{feed, find_path, monitor};

use crate::error::usage;

/// Print what happens to the daemon's devices, one line for each event
///
/// Events are: a device, qdisc, class or filter was added, changed or deleted; a device went up or
/// down; packets were dropped (the line says where, and the reason). If the lines are read too
/// slowly, the oldest events are lost, and a line says how many.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp monitor
  onramp monitor dev d0 dropped
  onramp monitor -j qdisc class")]
pub(crate) struct Args {
    /// Print only events of the device NAME (`dev NAME`), only these events (added, changed,
    /// deleted, up, down, dropped), or only events of these objects (qdisc, class, filter, link)
    #[arg(value_name = "WHAT")]
    words: Vec<String>,
    /// Print JSON, one object per line (docs/json.md: events)
    #[arg(short, long)]
    json: bool,
    /// Print the time of each event in front of its line
    #[arg(short, long)]
    timestamp: bool,
    /// The daemon's control socket [default: the same as for `onramp tc`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let Args { words, json, timestamp, socket } = args;
    let mut options = Options { json, timestamp, ..Options::default() };
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word == "dev" {
            let name = words.next().ok_or_else(|| usage("dev: the name of a device is missing"))?;
            if options.device.replace(name).is_some() {
                return Err(usage("dev: name one device"));
            }
        } else if Options::EVENTS.contains(&word.as_str()) {
            options.events.push(word);
        } else {
            let known = Options::EVENTS.join(", ");
            return Err(usage(format!("{word}: expected dev NAME, or one of {known}")));
        }
    }
    let path = socket.unwrap_or_else(find_path);
    let stream = feed::watch(&path, "events", &serde_json::json!({}))?;
    let lines = BufReader::with_capacity(1 << 16, stream);
    Ok(monitor::run(lines, &mut io::stdout().lock(), &options)?)
}
