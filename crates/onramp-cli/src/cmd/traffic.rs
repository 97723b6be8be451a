//! The command `onramp traffic`: has the daemon send packets into one of its devices.

use std::io::{BufRead as _, BufReader};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use onramp_daemon::find_path;
use onramp_daemon::traffic::{self, Ended, Options, Report};

use super::rate_with_unit;
use super::values::{number, whole};
use crate::error::usage;
use crate::output::{self, Output};
use crate::report::{json, traffic as report};
use crate::signals::{Heedful, Signals};

/// How long the command waits for the report after a signal. The daemon needs about a second at
/// most.
const PATIENCE: Duration = Duration::from_secs(5);

/// Have the daemon send packets of several flows into one of its devices
///
/// The packets pass the device's qdiscs like those of any program. For a `udp` device they are
/// datagrams to the address of `remote`; for other devices they are frames with Ethernet, IPv4 and
/// UDP headers: flow K comes from port 10000+K of 198.18.0.1 and goes to 198.18.1.1. Ctrl-C ends
/// the traffic; then, too, the command prints what was sent and what was dropped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp traffic d0
  onramp traffic d0 --rate 20mbit --flows 100 --size 1514 --seconds 5
  onramp traffic d0 --port 53 --rate 1mbit    # for a filter that matches the port
  onramp traffic d0 --rate max --json -")]
pub(crate) struct Args {
    /// The device
    #[arg(value_name = "DEV")]
    dev: String,
    /// Number of flows, 1 to 65536; their packets take turns
    #[arg(long, value_name = "N", default_value_t = Options::default().flows,
          value_parser = whole::<u32>(1..=65_536))]
    flows: u32,
    /// Rate of all flows together, headers included, such as 10mbit; or max: as fast as the device
    /// takes packets, without filling its qdisc to the limit
    #[arg(long, value_name = "RATE", default_value = "10mbit")]
    rate: String,
    /// Size of each packet, bytes, with the headers of Ethernet, IP and UDP
    #[arg(long, value_name = "BYTES", default_value_t = Options::default().size,
          value_parser = whole::<u32>(1..=4_294_967_295))]
    size: u32,
    /// How long to send, seconds, 0.001 to 86400
    #[arg(long, value_name = "S", default_value_t = Options::default().seconds,
          value_parser = number)]
    seconds: f64,
    /// Destination port in the packets [default: 9; for a udp device that of its remote]
    #[arg(long, value_name = "PORT", value_parser = whole::<u16>(0..=65_535))]
    port: Option<u16>,
    /// Number of threads that send, 1 to 16
    #[arg(long, value_name = "N", default_value_t = Options::default().threads,
          value_parser = whole::<u32>(1..=16))]
    threads: u32,
    /// Write the summary as JSON (docs/json.md: onramp.traffic); - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The daemon's control socket [default: the same as for `onramp tc`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<()> {
    let output = args.json.as_deref().map(Output::new).transpose()?;
    let options = Options {
        bytes_per_second: rate(&args.rate)?,
        dev: args.dev,
        flows: args.flows,
        size: args.size,
        seconds: args.seconds,
        port: args.port,
        threads: args.threads,
    };
    options.check().map_err(|why| usage(format!("--{why}")))?;
    let sent = wait(traffic::ask(&args.socket.unwrap_or_else(find_path), &options)?)?;
    let mut done = Vec::new();
    if !output.as_ref().is_some_and(Output::is_stdout) {
        done.push(output::print(&report::text(&sent)));
    }
    if let Some(output) = &output {
        done.push(output.write(&json::pretty(&report::json(&sent))));
    }
    done.push(cut_short(&sent));
    output::all(done)
}

/// Waits for the report. A signal ends the traffic, and the report follows soon. Until then,
/// further signals are ignored.
fn wait(stream: UnixStream) -> Result<Report> {
    let signals = Signals::listen()?;
    let mut line = String::new();
    let mut input = BufReader::new(Heedful { input: stream, signals: &signals });
    let read = input.read_line(&mut line);
    if signals.check().is_ok() {
        read?;
        return Ok(traffic::read(&line)?);
    }
    let stream = input.into_inner().input;
    // The daemon takes the end of the input as the wish to end the traffic. If the connection is
    // broken, the following read fails, too.
    let _ = stream.shutdown(Shutdown::Write);
    stream.set_read_timeout(Some(PATIENCE))?;
    let read = BufReader::new(stream).read_line(&mut line);
    read.map_err(|error| {
        anyhow!("interrupted, and the daemon does not say what it sent: {error}")
    })?;
    Ok(traffic::read(&line)?)
}

/// Returns an error if the traffic ended for a reason that the user of this command did not cause.
fn cut_short(sent: &Report) -> Result<()> {
    match sent.ended {
        Ended::Time | Ended::Stopped => Ok(()),
        Ended::Deleted => Err(anyhow!("the traffic ended early: {} was deleted", sent.device)),
        Ended::Daemon => Err(anyhow!("the traffic ended early: the daemon ended")),
        Ended::Died => Err(anyhow!(
            "the traffic ended early: the qdisc or the device of {} panicked, which is a bug; the \
             daemon's log has the message",
            sent.device
        )),
    }
}

/// Reads a rate with its unit; `None` is `max`.
fn rate(word: &str) -> Result<Option<u64>> {
    if word == "max" {
        return Ok(None);
    }
    let rate = rate_with_unit("--rate", word);
    let rate = rate.map_err(|error| usage(format!("{error}, or max")))?;
    Ok(Some(rate.as_bytes_per_second()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_a_unit() {
        assert_eq!(
            rate("10mbit").expect("a rate"),
            Some(Options::default().bytes_per_second.unwrap())
        );
        assert_eq!(rate("max").expect("a rate"), None);
        for wrong in ["10", "fast", "", "-1mbit"] {
            let error = rate(wrong).expect_err("wrong");
            assert!(error.downcast_ref::<crate::error::Usage>().is_some(), "{error}");
        }
    }
}
