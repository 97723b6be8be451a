//! The command `onramp replay`: plays a capture through a tree of qdiscs.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::Result;
use onramp_core::Spec;
use onramp_core::{Rate, Setup, Tree};
use onramp_dev::capture::{Advice, Blocks};

use crate::capture;
use crate::cmd::values::{rate, seed};
use crate::error::{Stalled, tell, usage};
use crate::output::{self, Output};
use crate::progress::Line;
use crate::replay::{self, MTU, Plan, Player, Results, Streams};
use crate::report::{json, replayed};
use crate::setup;
use crate::signals::{Heedful, Signals};

/// The name of standard input (the input `-`) in messages and reports.
const STDIN: &str = "standard input";
/// The name of the device in lines of `tc` that this command generates.
const DEVICE: &str = "link";
/// A capture with fewer bytes than this is read so fast that no progress line is shown.
const LONG: u64 = 16 << 20;

/// Play a capture through a tree of qdiscs, in virtual time, in front of a link of a given rate
///
/// Each packet arrives at its time in the capture. The replay waits for no clock, and the same
/// command always writes the same bytes. The flow of a packet is given by its addresses, protocol
/// and ports. Its priority is the one that Linux gives to packets with its type of service (DSCP).
/// Its ECN code point is that of its IP header.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("tree").required(true)))]
#[command(after_help = "\
Examples:
  onramp replay examples/uplink.pcap --qdisc fq --rate 10mbit --html report.html
  onramp replay uplink.pcapng --qdisc 'prio bands 4' --filter 'matchall classid 1:4' --rate 1mbit
  onramp replay uplink.pcap --setup shaper.tc --out shaped.pcapng --csv packets.csv
  zcat uplink.pcap.gz | onramp replay - --qdisc 'pfifo limit 50' --rate 2mbit --json -")]
pub(crate) struct Args {
    /// The capture (pcap or pcapng); - is standard input
    #[arg(value_name = "CAPTURE")]
    capture: PathBuf,
    /// The qdisc at the root, in the syntax of tc; its handle is 1:
    #[arg(long, value_name = "QDISC", group = "tree")]
    qdisc: Option<String>,
    /// A file that describes the tree in lines of tc (qdisc, class and filter add)
    #[arg(long, value_name = "FILE", group = "tree")]
    setup: Option<PathBuf>,
    /// A filter: the words that follow `tc filter add dev DEV`. It belongs to the root qdisc unless
    /// it names a `parent`. May be given more than once
    #[arg(long, value_name = "FILTER")]
    filter: Vec<String>,
    /// The link's rate, such as 10mbit [default: infinitely fast]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<Rate>,
    /// Seed of the random numbers that qdiscs draw
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = seed)]
    seed: u64,
    /// Write a pcapng capture of the packets that left, with the times at which they left
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write a CSV file with a row for each packet
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the summary as JSON (docs/json.md says what each key means)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write an HTML page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The files that the user asked for, each with the name of its option.
struct Outputs([(&'static str, Option<Output>); 4]);

impl Outputs {
    fn new(args: &Args) -> Result<Self> {
        let paths = [
            ("--out", &args.out),
            ("--csv", &args.csv),
            ("--json", &args.json),
            ("--html", &args.html),
        ];
        let read = [("the capture", Some(&args.capture)), ("--setup", args.setup.as_ref())];
        let mut outputs = [const { ("", None) }; 4];
        for (output, (option, path)) in outputs.iter_mut().zip(paths) {
            *output = (option, path.as_deref().map(Output::new).transpose()?);
            for (what, path) in read.iter().filter_map(|(what, path)| Some((what, (*path)?))) {
                if output.1.as_ref().is_some_and(|output| output.is_file(path)) {
                    let why = "the input would be replaced";
                    return Err(usage(format!("{option} and {what} name the same file: {why}")));
                }
            }
        }
        output::distinct(&outputs.each_ref().map(|(name, output)| (*name, output.as_ref())))?;
        Ok(Self(outputs))
    }

    fn streams<'s>(&self, signals: &'s Signals) -> Result<Streams<'s>> {
        let stream = |place: usize| {
            let output = self.0[place].1.as_ref();
            output.map(|output| output.stream(Some(signals))).transpose()
        };
        Ok(Streams { capture: stream(0)?, rows: stream(1)? })
    }

    /// Writes the reports with the results, and prints the summary unless an output goes to
    /// standard output.
    fn conclude(&self, results: &Results) -> Vec<Result<()>> {
        let mut done = Vec::new();
        let [.., (_, json), (_, html)] = &self.0;
        if !self.0.iter().flat_map(|(_, output)| output).any(Output::is_stdout) {
            done.push(output::print(&replayed::text(results)));
        }
        if let Some(output) = json {
            done.push(output.write(&json::pretty(&replayed::json(results))));
        }
        if let Some(output) = html {
            done.push(output.write(&replayed::html(results)));
        }
        done
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let outputs = Outputs::new(args)?;
    let (setup, lines) = tree(args)?;
    let stdin = args.capture == Path::new("-");
    let from = if stdin { STDIN.into() } else { args.capture.display().to_string() };
    let Some(tree) = Tree::of(&setup, MTU, args.seed) else {
        return Err(setup::rootless(args.setup.as_deref().unwrap_or_else(|| Path::new(""))));
    };
    let plan = Plan { from, tree: lines, rate: args.rate, seed: args.seed };
    let signals = Signals::listen()?;
    let (results, read) = match play(args, plan, tree, &outputs, &signals) {
        Ok(played) => played,
        Err(error) => {
            let Err(signal) = signals.check() else { return Err(error) };
            let stalled = error.downcast_ref().map(|Stalled(why)| format!(": {why}"));
            tell(&format!("{signal}{}", stalled.unwrap_or_default()));
            signals.obey(&signal);
            return Err(signal);
        }
    };
    drop(signals);
    // If reading failed before the first packet, the error message says everything, so no summary
    // is written.
    if read.is_err() && results.read.packets == 0 {
        return read;
    }
    if results.read.packets == 0 {
        tell(&format!("{} holds no packets", results.plan.from));
    }
    let mut done = vec![read];
    done.extend(outputs.conclude(&results));
    output::all(done)
}

/// Plays the capture until its end or until a signal comes.
fn play(
    args: &Args,
    plan: Plan,
    tree: Tree,
    outputs: &Outputs,
    signals: &Signals,
) -> Result<(Results, Result<()>)> {
    let advice = Advice { compressed: "name the capture -", other: "" };
    let (blocks, size) = match args.capture == Path::new("-") {
        true => {
            // Standard input is read without the buffer of `Stdin`, because `poll` does not know
            // what is in that buffer and would wait for more.
            let input = fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
            (Blocks::new(Heedful { input, signals }, STDIN, advice)?, 0)
        }
        false => {
            let size = fs::metadata(&args.capture).map_or(0, |metadata| metadata.len());
            (capture::open(&args.capture, advice, signals)?, size)
        }
    };
    let long = size == 0 || size >= LONG;
    let mut progress = Line::new(long);
    let mut watch = |read: u64| {
        progress.show(&match size {
            0 => format!("{} MB", read / 1_000_000),
            size => format!("{} % of {} MB", read * 100 / size, size / 1_000_000),
        });
        signals.check()
    };
    replay::run(plan, tree, Player::new(blocks), outputs.streams(signals)?, &mut watch)
}

/// Returns the tree of qdiscs that the user asked for, and the lines of `tc` that describe it.
fn tree(args: &Args) -> Result<(Setup, Vec<String>)> {
    let mut setup = Setup::default();
    let mut lines = Vec::new();
    let mut device = DEVICE.to_owned();
    if let Some(qdisc) = &args.qdisc {
        let wrong = |error| usage(format!("--qdisc: {error}"));
        Spec::with_units(qdisc).map_err(wrong)?;
        let line = format!("qdisc add dev {DEVICE} root handle 1: {qdisc}");
        setup.apply(&line).map_err(wrong)?;
        lines.push(line);
    }
    if let Some(path) = &args.setup {
        (setup, lines) = setup::read(path)?;
        let mut words = lines.iter().flat_map(|line| line.split_ascii_whitespace());
        if words.any(|word| word == "dev") {
            device = words.next().unwrap_or(DEVICE).to_owned();
        }
    }
    for filter in &args.filter {
        let line = format!("filter add dev {device} {filter}");
        setup::apply(&mut setup, &line).map_err(|error| usage(format!("--filter: {error}")))?;
        lines.push(line);
    }
    Ok((setup, lines))
}
