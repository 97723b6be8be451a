//! The command `onramp exec`: runs a program whose UDP datagrams pass qdiscs before they leave.

mod folder;
mod library;
mod program;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nix::sys::signal::{SigSet, Signal};
use onramp_core::Setup;
use onramp_dev::exec::{Order, Process, VARIABLE};

use crate::cmd::values::seed;
use crate::error::{Ended, NotRun, tell};
use crate::output::{self, Output};
use crate::report::{exec as report, json};
use crate::setup;
use crate::signals::{Signals, code};
use folder::Folder;

/// Run a program whose UDP datagrams pass a qdisc before they leave, without root
///
/// The program runs in this machine's network and is not changed: a library is loaded into it
/// (LD_PRELOAD) that takes the place of the functions with which it sends. All UDP sockets of a
/// process share one qdisc; each child process has one of its own. At the end, the command says
/// what was sent and dropped, in all and for each flow. TCP and what the program receives stay as
/// they are. Static programs, programs in Go and setuid programs do not load the library and are
/// refused: `onramp wire` runs them. The exit code is the program's; 127 if there is no such
/// program, 126 if it may not be run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp exec --qdisc 'tbf rate 10mbit burst 64kb latency 50ms' -- iperf3 -u -b 0 -c 192.0.2.2
  onramp exec --qdisc 'netem delay 20ms loss 1%' --json sent.json -- python3 client.py
  onramp exec --setup tree.tc -- node server.js")]
pub(crate) struct Args {
    /// The qdisc, in the syntax of tc
    #[arg(long, value_name = "QDISC", conflicts_with = "setup", default_value = onramp_wire::PLAIN)]
    qdisc: String,
    /// A further qdisc behind the one before: first a rate, then a delay. May be given several
    /// times
    #[arg(long, value_name = "QDISC", conflicts_with = "setup")]
    then: Vec<String>,
    /// A file with lines of tc, such as `qdisc add dev eth0 root fq`
    #[arg(long, value_name = "FILE")]
    setup: Option<PathBuf>,
    /// Seed of everything random, such as losses
    #[arg(long, value_name = "N", value_parser = seed)]
    seed: Option<u64>,
    /// How long a process that ends waits for its datagrams to leave, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    drain: f64,
    /// Write what was sent and dropped as JSON (docs/json.md: onramp.exec); - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Do not print what was sent and dropped
    #[arg(long)]
    quiet: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What a command says that another one runs.
const NESTED: &str = "another `onramp exec` runs this one: the datagrams of the program pass only \
                      the qdisc of this one, which alone counts them; name both qdiscs in one \
                      command, that of the other one behind --then";

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    // A write beyond the limit on the size of files (`ulimit -f`) would end the command, which
    // could not remove its folder, nor say why. `tie_child` lets the program have the signal.
    SigSet::from(Signal::SIGXFSZ).thread_block()?;
    let output = args.json.as_deref().map(Output::new).transpose()?;
    let order = order(args)?;
    let library = library::find()?;
    program::check(&args.command[0])?;
    if let Some(outer) = env::var_os(VARIABLE)
        && Order::read(Path::new(&outer)).is_ok()
    {
        tell(NESTED);
    }
    let folder = Folder::new()?;
    write(&order, folder.path())?;
    // The program decides what a signal does; this command ends with the program.
    let signals = Signals::listen()?;
    let mut child = start(&args.command, &library, folder.path())?;
    let code = code(signals.wait(&mut child)?);
    if output.as_ref().is_some_and(Output::may_stall) {
        signals.end();
    }
    let mut done = Vec::new();
    match Process::read_all(folder.path()) {
        Ok(mut processes) => {
            processes.retain(|process| process.counts.datagrams + process.around > 0);
            if !args.quiet && !output.as_ref().is_some_and(Output::is_stdout) {
                report::lines(&processes).iter().for_each(|line| tell(line));
            }
            if let Some(output) = &output {
                done.push(output.write(&json::pretty(&report::json(&processes, code))));
            }
        }
        Err(error) => done.push(Err(anyhow!("cannot read what the processes counted: {error}"))),
    }
    let done = output::all(done);
    if code == 0 {
        return done;
    }
    // The program's failure decides the exit code.
    if let Err(error) = done {
        let _ = crate::error::report(&error);
    }
    Err(anyhow!(Ended(code)))
}

/// Returns what the library is to do.
fn order(args: &Args) -> Result<Order> {
    let tree = match &args.setup {
        Some(path) => {
            let (tree, _) = setup::read(path)?;
            tree.root_id().map(|_| tree).ok_or_else(|| setup::rootless(path))?
        }
        None => {
            let then = args.then.iter().map(|then| (&**then, "--then"));
            setup::stages(&[(&*args.qdisc, "--qdisc")].into_iter().chain(then).collect::<Vec<_>>())?
        }
    };
    let lines = tree.lines();
    // The processes read the tree as lines.
    let mut again = Setup::default();
    for line in &lines {
        let read = again.change(line);
        read.with_context(|| format!("--setup: this line cannot be handed on: {line}"))?;
    }
    let seed = args.seed.unwrap_or_else(|| onramp_wire::Options::default().seed);
    Ok(Order { lines, seed, drain: Duration::from_secs_f64(args.drain) })
}

/// Writes the order into the folder.
fn write(order: &Order, folder: &Path) -> Result<()> {
    order.write(folder).with_context(|| {
        let folder = folder.display();
        format!(
            "cannot write into {folder}; name a folder with room in TMPDIR, and let the limit on \
             the size of files (`ulimit -f`) be more than 2 MiB"
        )
    })
}

fn start(words: &[OsString], library: &Path, folder: &Path) -> Result<Child> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env(VARIABLE, folder);
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload);
    onramp_dev::tie_child(&mut command);
    command.spawn().map_err(|error| anyhow!(NotRun::because(&error, words[0].display())))
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3_600.0).contains(&seconds) => Ok(seconds),
        _ => Err("it is no number of seconds from 0 to 3600".to_owned()),
    }
}
