//! The command `onramp traffic`: has the daemon send packets into one of its devices.

use std::io::{BufRead as _, BufReader};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use onramp_daemon::find_path;
use onramp_daemon::traffic::{self, Ended, Options, Report};
use onramp_queue::DropReason;

use super::rate_with_unit;
use super::values::{number, whole};
use crate::error::{Interrupted, Several, tell, usage};
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
/// UDP headers: flow K, counted from 0, comes from port 10000+K of 198.18.0.1 and goes to
/// 198.18.1.1; flow 50000+K comes from port 10000+K of 198.18.0.2. Ctrl-C ends the traffic; then,
/// too, the command prints what was sent and what was dropped, and exits with 130 (after SIGTERM:
/// 143). Otherwise, if no packet has left the device, the command says why and exits with 1.
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
    /// takes packets, with at most 256 packets in it at a time
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
    let signals = Signals::listen()?;
    let stream = traffic::ask(&args.socket.unwrap_or_else(find_path), &options)?;
    let waited = wait(&signals, stream);
    // Signals that have come until now were meant for the traffic, so they do not end the command
    // before it has printed the report.
    signals.end();
    let (sent, interrupted) = waited?;
    let mut done = vec![interrupted.map_or(Ok(()), |signal| Err(signal.into()))];
    if !output.as_ref().is_some_and(Output::is_stdout) {
        done.push(output::print(&report::text(&sent)));
    }
    if let Some(output) = &output {
        done.push(output.write(&json::pretty(&report::json(&sent))));
    }
    done.push(verdict(&sent));
    output::all(done)
}

/// Waits for the report. A signal ends the traffic, and the report follows soon. Until then,
/// further signals are ignored. Returns the report, and the signal that ended the traffic.
fn wait(signals: &Signals, stream: UnixStream) -> Result<(Report, Option<Interrupted>)> {
    let mut line = String::new();
    let mut input = BufReader::new(Heedful { input: stream, signals });
    let read = input.read_line(&mut line);
    let interrupted = match signals.check() {
        Err(error) if !line.ends_with('\n') => error.downcast::<Interrupted>()?,
        _ => {
            read?;
            return Ok((traffic::read(&line)?, None));
        }
    };
    let signal = interrupted.0;
    tell(&format!(
        "{signal}: ends the traffic; packets that are still in the device get at most a second"
    ));
    let stream = input.into_inner().input;
    // The daemon takes the end of the input as the wish to end the traffic. If the connection is
    // broken, the following read fails, too.
    let _ = stream.shutdown(Shutdown::Write);
    stream.set_read_timeout(Some(PATIENCE))?;
    let read = BufReader::new(stream).read_line(&mut line);
    let report = read.map_err(anyhow::Error::from).and_then(|_| Ok(traffic::read(&line)?));
    match report {
        Ok(report) => Ok((report, Some(interrupted))),
        Err(error) => {
            let first = interrupted.into();
            let silent = anyhow!("the daemon does not say what it sent: {error}");
            Err(Several { first, more: vec![silent] }.into())
        }
    }
}

/// Returns an error if the traffic ended for a reason that the user of this command did not cause,
/// or if no packet left the device.
fn verdict(sent: &Report) -> Result<()> {
    match sent.ended {
        Ended::Time | Ended::Stopped => nothing(sent).map_or(Ok(()), |why| Err(anyhow!(why))),
        Ended::Deleted => Err(anyhow!("the traffic ended early: {} was deleted", sent.device)),
        Ended::Daemon => Err(anyhow!("the traffic ended early: the daemon ended")),
        Ended::Died => Err(anyhow!(
            "the traffic ended early: the qdisc or the device of {} panicked, which is a bug; the \
             daemon's log has the message",
            sent.device
        )),
    }
}

/// Returns a sentence that says why no packet left the device; `None` if one did.
fn nothing(sent: &Report) -> Option<String> {
    let Report { device, submitted, drops, queued, .. } = sent;
    if sent.sent > 0 {
        return None;
    }
    let most = drops.iter().max_by_key(|(_, count)| **count);
    let why = match most {
        Some((name, count)) => {
            let reason = DropReason::ALL.iter().find(|reason| reason.name() == name);
            let about = reason.map_or(String::new(), |reason| format!(": {}", reason.about()));
            format!("of {submitted} packets {count} were dropped as {name}{about}")
        }
        None if *queued > 0 => format!("all {queued} packets are still in the device"),
        None => "the traffic ended before the first packet was due".to_owned(),
    };
    Some(format!("nothing left {device}: {why}"))
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
    fn traffic_of_which_nothing_leaves_is_a_failure() {
        let report = Report { device: "d0".into(), submitted: 9, ..Report::default() };
        let told = |report: &Report| verdict(report).expect_err("nothing left").to_string();
        let dropped = Report {
            drops: [("filter".into(), 2), ("too_big".into(), 6)].into(),
            queued: 1,
            ..report.clone()
        };
        assert_eq!(
            told(&dropped),
            "nothing left d0: of 9 packets 6 were dropped as too_big: The packet is larger than \
             the token bucket of the qdisc."
        );
        let waiting = Report { queued: 9, ..report.clone() };
        assert_eq!(told(&waiting), "nothing left d0: all 9 packets are still in the device");
        let none = Report { submitted: 0, ..report };
        assert_eq!(
            told(&none),
            "nothing left d0: the traffic ended before the first packet was due"
        );
        let deleted = Report { ended: Ended::Deleted, ..none };
        assert_eq!(told(&deleted), "the traffic ended early: d0 was deleted");
        verdict(&Report { sent: 1, ..dropped }).expect("one left");
    }

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
