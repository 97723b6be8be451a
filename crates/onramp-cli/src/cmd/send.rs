//! The command `onramp send`: sends a capture or lines of text through a qdisc.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use onramp::Spec;

use super::rate_with_unit;
use crate::capture::{self, Beginning, Blocks};
use crate::cmd::values::whole;
use crate::error::usage;
use crate::host::Host;
use crate::output::{self, Output};
use crate::report::{json, sent};
use crate::send::{ADVICE, Counts, Outbox, TEXT_FLOW, read_capture, read_lines};
use crate::signals::{Heedful, Signals};

/// The name of standard input (the input `-`) in messages and reports.
const STDIN: &str = "standard input";

/// Send the UDP payloads of a capture, or lines of text, as fast as a qdisc lets them go
///
/// Each flow of the capture (addresses and ports) becomes a flow of the qdisc. All datagrams go to
/// one destination. The times in the capture do not matter: the qdisc sets the pace. If standard
/// input is text, each line becomes a datagram, without its line end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp send udp://127.0.0.1:4000 --from examples/voice.pcapng --rate 10mbit
  onramp send udp://host.example:514 --from - < messages.txt
  zcat voice.pcap.gz | onramp send udp://127.0.0.1:4000 --from -
  onramp send udp://127.0.0.1:4000 --from burst.pcap --qdisc 'pfifo limit 100' --loop 10")]
pub(crate) struct Args {
    /// The destination: udp://HOST:PORT
    #[arg(value_name = "URL", value_parser = url)]
    to: Host,
    /// A capture (pcap or pcapng), or - for standard input: a capture, or lines of text
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// The qdisc, in the syntax of tc [default: fq]
    #[arg(long, value_name = "QDISC")]
    qdisc: Option<String>,
    /// Largest rate of each flow on the wire, such as 10mbit: the maxrate of fq. Each flow pauses
    /// after each packet; with --qdisc fq, only after each quantum, as in Linux
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// Send the capture N times
    #[arg(long = "loop", value_name = "N", default_value_t = 1,
          value_parser = whole::<u32>(1..=4_294_967_295))]
    loops: u32,
    /// Write the summary as JSON (docs/json.md says what each key means); - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let report = args.json.as_deref().map(Output::new).transpose()?;
    let stdin = args.from == Path::new("-");
    if !stdin && report.as_ref().is_some_and(|report| report.is_file(&args.from)) {
        return Err(usage("--json and --from name the same file: the summary would replace it"));
    }
    if stdin && args.loops > 1 {
        return Err(usage("--loop: standard input can be read only once; give a file"));
    }
    let qdisc = qdisc(args.qdisc.as_deref(), args.rate.as_deref())?;
    let to = args.to.resolve()?;
    let signals = Signals::listen()?;
    let mut outbox = Outbox::open(to, &qdisc, &signals)?;

    let mut counts = Counts::default();
    let mut read = Ok(());
    for _ in 0..args.loops {
        read = if stdin {
            read_stdin(&signals, &mut counts, &mut outbox)
        } else {
            let blocks = Blocks::open(&args.from, ADVICE, &signals);
            blocks.and_then(|blocks| read_capture(blocks, &mut counts, &mut outbox))
        };
        if read.is_err() {
            // If a signal ended the reading, that is the error.
            read = outbox.heed().and(read);
            break;
        }
    }
    let from = if stdin { STDIN.into() } else { args.from.display().to_string() };
    let (mut summary, sent) = outbox.close(from, &qdisc, args.loops, counts);
    // From here on, a signal ends the program.
    drop(signals);
    let mut failed = output::all([sent, read]);
    summary.error = failed.as_ref().err().map(|error| format!("{error:#}"));
    // If sending failed before the first datagram was read, the error message says everything, so
    // no summary is written.
    if failed.is_err() && summary.counts.read == 0 {
        return failed;
    }
    if let Some(why) = sent::nothing(&summary) {
        summary.error = Some(why.clone());
        failed = Err(anyhow!(why));
    }
    let mut done = vec![failed];
    if !report.as_ref().is_some_and(Output::is_stdout) {
        done.push(output::print(&sent::text(&summary)));
    }
    if let Some(output) = &report {
        done.push(output.write(&json::pretty(&sent::json(&summary))));
    }
    output::all(done)
}

/// Sends the data on standard input: a capture, or else lines of text.
fn read_stdin(signals: &Signals, counts: &mut Counts, outbox: &mut Outbox<'_>) -> Result<()> {
    // Standard input is read without the buffer of `Stdin`, because `poll` does not know what is in
    // that buffer and would wait for more.
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut stdin = Heedful { input, signals };
    let (head, beginning) =
        capture::begins(&mut stdin).with_context(|| format!("cannot read {STDIN}"))?;
    let head = Cursor::new(head);
    if beginning != Beginning::Other {
        // Compressed data are refused there.
        let blocks = Blocks::new(head.chain(stdin), STDIN, ADVICE)?;
        return read_capture(blocks, counts, outbox);
    }
    let longest = outbox.longest();
    read_lines(head.chain(BufReader::new(stdin)), longest, counts, |text| {
        outbox.send(TEXT_FLOW, text)
    })
}

/// Returns the link's qdisc in the syntax of `tc`: the qdisc that the user gave, to which the
/// `--rate` option is added. If the user gave none, each flow pauses after each packet, and not
/// only after each quantum, as `fq` does by default.
fn qdisc(given: Option<&str>, rate: Option<&str>) -> Result<String> {
    let text = given.unwrap_or("fq");
    let spec = Spec::with_units(text).map_err(|error| usage(format!("--qdisc: {error}")))?;
    let Some(rate) = rate else { return Ok(text.to_owned()) };
    rate_with_unit("--rate", rate)?;
    if spec.kind().id != "fq" {
        return Err(usage(format!(
            "--rate: it sets the maxrate of fq, but --qdisc names {}: leave out one of the two",
            spec.kind().id
        )));
    }
    let evenly =
        if given.is_none() { format!(" low_rate_threshold {rate}") } else { String::new() };
    let paced = format!("{text} maxrate {rate}{evenly}");
    match Spec::with_units(&paced) {
        Ok(_) => Ok(paced),
        Err(_) => Err(usage("--rate: --qdisc has a maxrate already: leave out one of the two")),
    }
}

/// Parses `udp://HOST:PORT`.
fn url(text: &str) -> Result<Host, String> {
    let form = "give udp://HOST:PORT, such as udp://127.0.0.1:4000 or udp://[::1]:4000";
    let Some(rest) = text.strip_prefix("udp://") else { return Err(form.to_owned()) };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    Host::parse(rest, None).map_err(|why| format!("{why}: {form}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for text in ["udp://127.0.0.1:4000", "udp://[::1]:4000/", "udp://host.example:9"] {
            assert!(url(text).is_ok(), "{text}");
        }
        let wrong = [
            "127.0.0.1:4000",
            "tcp://127.0.0.1:4000",
            "udp://127.0.0.1",
            "udp://127.0.0.1:",
            "udp://127.0.0.1:0",
            "udp://127.0.0.1:70000",
            "udp://:4000",
            "udp://[::1]",
            "udp://",
            "",
        ];
        for text in wrong {
            assert!(url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_is_the_maxrate_of_fq() {
        let ok = |given, rate| qdisc(given, rate).expect("a qdisc");
        assert_eq!(ok(None, None), "fq");
        assert_eq!(ok(None, Some("10mbit")), "fq maxrate 10mbit low_rate_threshold 10mbit");
        assert_eq!(ok(Some("fq limit 50"), Some("1mbit")), "fq limit 50 maxrate 1mbit");
        assert_eq!(ok(Some("pfifo limit 5"), None), "pfifo limit 5");
        let wrong = [
            (Some("pfifo"), Some("1mbit")),
            (Some("fq maxrate 1mbit"), Some("1mbit")),
            (None, Some("fast")),
            (None, Some("0mbit")),
            (None, Some("1mbit limit 5")),
            (Some("wfq"), None),
            (Some(""), None),
        ];
        for (given, rate) in wrong {
            let error = qdisc(given, rate).expect_err("wrong");
            assert!(error.downcast_ref::<crate::error::Usage>().is_some(), "{error}");
        }
    }
}
