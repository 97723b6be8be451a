//! The command `onramp save`: prints the configuration of the daemon's devices.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use onramp_daemon::client::Client;
use onramp_daemon::{find_path, wire};

use crate::error::usage;
use crate::output;

/// Print the commands that make the daemon's devices again, with their qdiscs, classes and filters
///
/// The output is a configuration for `onramp daemon --config`; each line is a command of `onramp
/// ip` or `onramp tc`. Counters and waiting packets are not saved, and neither are hardware
/// addresses that no command gave, because they are random. A device that writes a capture (`type
/// pcap file FILE`) cannot be made again while FILE exists: move FILE away, or write `replace`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp save > onramp.conf
  onramp daemon --config onramp.conf
  onramp save dev d0")]
pub(crate) struct Args {
    /// Print only the commands for the device NAME (`dev NAME`), and for the other end of its pair
    #[arg(value_name = "WHAT")]
    words: Vec<String>,
    /// The daemon's control socket [default: the same as for `onramp tc`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let mut argv = vec![wire::SAVE.to_owned()];
    match args.words.as_slice() {
        [] => {}
        [dev, _] if dev == "dev" => argv.extend(args.words),
        _ => return Err(usage("save: expected nothing, or dev NAME")),
    }
    let path = args.socket.unwrap_or_else(find_path);
    let reply = Client::connect(&path)?.exec(&argv, "/")?;
    if reply.code != 0 {
        return Err(anyhow!("{}", wire::plain(&reply.err)));
    }
    output::print(&reply.out)
}
