//! The command `onramp wire`: runs a client, and a server if asked, at the two ends of a link that
//! behaves as its qdiscs say.

mod trace;

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use onramp_core::{Clock as _, Setup};
use onramp_dev::MonotonicClock;
use onramp_wire::{
    CLIENT, CLIENT6, Options, PLAIN, PROFILES, Profile, SERVER, SERVER6, Space, Wire, series,
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::error::{Ended, usage};
use crate::output::{self, Output};
use crate::report::{json, wire as report};
use crate::signals::Signals;
use crate::{error, setup};

/// Run a program behind a link with a given delay, rate and loss, without root
///
/// The client runs in a network namespace of its own. Its only link, wire0 (192.0.2.1,
/// 2001:db8::1), leads to another namespace, 192.0.2.2 and 2001:db8::2, where the server runs; if
/// there is no server, that end still answers ping. Client and server find the address of the other
/// end in the environment variables ONRAMP_PEER and ONRAMP_PEER6. The client starts when the server
/// listens for TCP or UDP, or after five seconds. The programs reach nothing outside the two
/// namespaces. The command ends with the client, and with its exit code; then it ends the server.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp wire --profile lte -- sh
  onramp wire --qdisc 'netem delay 20ms rate 10mbit' -- ping -c 3 192.0.2.2
  onramp wire --qdisc 'netem loss 2%' -- iperf3 -c 192.0.2.2 -- iperf3 -s
  onramp wire --trace tunnel.trace -- ping -c 30 192.0.2.2
  onramp wire --up 'cake bandwidth 5mbit' --down 'cake bandwidth 50mbit' \\
      --then 'netem delay 15ms' -- sh")]
pub(crate) struct Args {
    /// The qdisc in both directions, in the syntax of tc [default: pfifo limit 1000]
    #[arg(long, value_name = "QDISC", conflicts_with = "setup")]
    qdisc: Option<String>,
    /// The qdisc from the client to the server, instead of --qdisc
    #[arg(long, value_name = "QDISC", conflicts_with = "setup")]
    up: Option<String>,
    /// The qdisc from the server to the client, instead of --qdisc
    #[arg(long, value_name = "QDISC", conflicts_with = "setup")]
    down: Option<String>,
    /// A further qdisc in both directions, behind the one before: first a rate, then a delay. May
    /// be given several times
    #[arg(long, value_name = "QDISC", conflicts_with = "setup")]
    then: Vec<String>,
    /// A link by name, such as lte, instead of qdiscs: `onramp wire --profiles` lists all, with
    /// rates, delays, losses and their source
    #[arg(long, value_name = "NAME", value_parser = profile,
          conflicts_with_all = ["qdisc", "up", "down", "then", "setup"])]
    profile: Option<&'static Profile>,
    /// List the profiles
    #[arg(long, exclusive = true)]
    profiles: bool,
    /// A file with lines of tc, for both directions, such as `qdisc add dev wire root fq`
    #[arg(long, value_name = "FILE")]
    setup: Option<PathBuf>,
    #[command(flatten)]
    traces: trace::Traces,
    /// Largest packet in bytes, without the Ethernet header, 1280 to 65521
    #[arg(long, value_name = "BYTES", default_value_t = 1_500,
          value_parser = clap::value_parser!(u32).range(1_280..=65_521))]
    mtu: u32,
    /// Seed of everything random, such as losses
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Let the ends cut large packets into segments and compute checksums themselves, as behind a
    /// plain network card: for exact counts of packets; slower
    #[arg(long)]
    no_offload: bool,
    /// What the two ends are [default: tap, or packet where /dev/net/tun is missing or closed]
    #[arg(long, value_name = "KIND")]
    device: Option<Ends>,
    /// Write what was carried and dropped as JSON (docs/json.md: onramp.wire); - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Do not print what was carried and dropped
    #[arg(long)]
    quiet: bool,
    /// The client's command; after another --, the server's
    #[arg(last = true, required_unless_present = "profiles", value_name = "COMMAND")]
    commands: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<()> {
    if args.profiles {
        return output::print(&profiles());
    }
    if args.qdisc.is_some() && args.up.is_some() && args.down.is_some() {
        return Err(usage("--qdisc has no effect beside --up and --down: leave one of them out"));
    }
    let output = args.json.as_deref().map(Output::new).transpose()?;
    let (client, server) = commands(&args.commands)?;
    let options = options(&args)?;
    onramp_wire::enter()?;
    // The client decides what a signal does; this program ends with the client.
    let signals = Signals::listen()?;
    let wire = Wire::lay(options)?;
    if let Some(why) = wire.fallback().filter(|_| !args.quiet) {
        error::tell(&format!("{why}; the ends are veth pairs with packet sockets instead of TAPs"));
    }
    let mut server = server.map(|words| start(wire.server(), words, End::Server)).transpose()?;
    if let Some(server) = &mut server {
        await_listener(wire.server(), server, &signals)?;
    }
    signals.check()?;
    wire.begin();
    let mut client = start(wire.client(), client, End::Client)?;
    let status = signals.wait(&mut client.child)?;
    // The server ends before the count is made.
    drop((client, server));
    let broken = wire.error();
    let carried = wire.cut();
    let mut done = Vec::new();
    if !args.quiet && !output.as_ref().is_some_and(Output::is_stdout) {
        error::tell(&report::text(&carried));
    }
    if let Some(output) = &output {
        done.push(output.write(&json::pretty(&report::json(&carried, code(status)))));
    }
    if let Some(why) = broken {
        done.push(Err(anyhow!("the wire broke: {why}")));
    }
    output::all(done)?;
    if status.success() { Ok(()) } else { Err(anyhow!(Ended(code(status)))) }
}

/// The kinds of ends that a user may name.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Ends {
    /// TAPs
    Tap,
    /// veth pairs with packet sockets, which need no /dev/net/tun
    Packet,
}

impl Ends {
    const fn of(self) -> onramp_wire::Ends {
        match self {
            Self::Tap => onramp_wire::Ends::Tap,
            Self::Packet => onramp_wire::Ends::Packet,
        }
    }
}

/// How long the client waits for the server to listen, and how often the command looks.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);
/// How long a program has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Client,
    Server,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Client { "the client" } else { "the server" })
    }
}

/// A program at an end of the wire. Dropping the value ends the program: it has some time after a
/// SIGTERM, and is killed then. The programs that a server has started end with it.
struct Running {
    child: Child,
    end: End,
}

impl Running {
    fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Sends a signal to the program. An error would mean that the program has just ended.
    fn tell(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        let _ = match self.end {
            End::Client => kill_process(pid, signal),
            End::Server => kill_process_group(pid, signal),
        };
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.tell(Signal::TERM);
            let mut waited = Duration::ZERO;
            while waited < GRACE && !self.has_ended() {
                thread::sleep(LOOK);
                waited += LOOK;
            }
        }
        if self.end == End::Server || !self.has_ended() {
            self.tell(Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Splits the words behind the options into the client's command and the server's.
fn commands(words: &[OsString]) -> Result<(&[OsString], Option<&[OsString]>)> {
    let Some(at) = words.iter().position(|word| word == "--") else { return Ok((words, None)) };
    match (&words[..at], &words[at + 1..]) {
        ([], _) => Err(usage("the client's command is missing before the second --")),
        (_, []) => Err(usage("the server's command is missing behind the second --")),
        (client, server) => Ok((client, Some(server))),
    }
}

fn options(args: &Args) -> Result<Options> {
    let (up, down) = trees(args)?;
    let [up_trace, down_trace] = args.traces.read([&up, &down], args.mtu)?;
    let fresh = Options::default();
    Ok(Options {
        up,
        down,
        up_trace,
        down_trace,
        mtu: args.mtu,
        offload: !args.no_offload,
        ends: args.device.map_or(fresh.ends, Ends::of),
        seed: args.seed.unwrap_or(fresh.seed),
    })
}

/// Returns the trees from the client and to the client.
fn trees(args: &Args) -> Result<(Setup, Setup)> {
    if let Some(path) = &args.setup {
        let (tree, _) = setup::read(path)?;
        let tree = tree.root_id().map(|_| tree).ok_or_else(|| setup::rootless(path))?;
        return Ok((tree.clone(), tree));
    }
    if let Some(profile) = &args.profile {
        let [up, down] = profile.stages(args.mtu);
        let tree = |stages: &[String]| {
            series(stages).map_err(|error| usage(format!("--profile: {}", error.error)))
        };
        return Ok((tree(&up)?, tree(&down)?));
    }
    let tree = |own: Option<&str>, option: &'static str| {
        let both = || (args.qdisc.as_deref().unwrap_or(PLAIN), "--qdisc");
        let then = args.then.iter().map(|then| (&**then, "--then"));
        let first = own.map_or_else(both, |own| (own, option));
        setup::stages(&[first].into_iter().chain(then).collect::<Vec<_>>())
    };
    Ok((tree(args.up.as_deref(), "--up")?, tree(args.down.as_deref(), "--down")?))
}

/// Finds the profile that the user names. The error lists all.
fn profile(name: &str) -> Result<&'static Profile, String> {
    Profile::find(name).ok_or_else(|| {
        let names: Vec<_> = PROFILES.iter().map(|profile| profile.name).collect();
        format!("there is no such profile; there are {}", names.join(", "))
    })
}

/// Returns the table of all profiles.
fn profiles() -> String {
    let mut text =
        "name                 down, kbit  up, kbit  delay, ms one way  loss, %  source\n"
            .to_owned();
    for profile in PROFILES {
        let kbit = |of: fn((u32, u32)) -> u32| {
            profile.kbit.map_or_else(|| "-".to_owned(), |both| of(both).to_string())
        };
        let (down, up) = profile.delay_ms;
        let mut delay = if (down - up).abs() > f32::EPSILON {
            format!("{down} down, {up} up")
        } else {
            down.to_string()
        };
        if profile.jitter_ms > 0.0 {
            let _ = write!(delay, " +-{}", profile.jitter_ms);
        }
        let (loss, source) = (profile.loss, profile.source);
        let _ = writeln!(
            text,
            "{:20} {:>10}  {:>8}  {delay:>17}  {loss:>7}  {source}",
            profile.name,
            kbit(|both| both.0),
            kbit(|both| both.1),
        );
    }
    text
}

/// Starts a command at one end of the wire.
fn start(space: &Space, words: &[OsString], end: End) -> Result<Running> {
    let [first, rest @ ..] = words else { return Err(usage("a command is missing")) };
    let mut command = Command::new(first);
    let peer = match end {
        End::Client => (SERVER, SERVER6),
        End::Server => (CLIENT, CLIENT6),
    };
    command.args(rest).env("ONRAMP_PEER", peer.0.to_string());
    command.env("ONRAMP_PEER6", peer.1.to_string());
    if end == End::Server {
        // The terminal belongs to the client: its input, and Ctrl-C.
        command.stdin(Stdio::null()).process_group(0);
    }
    let spawned = space.spawn(command).map(|child| Running { child, end });
    spawned.with_context(|| format!("{end}: cannot run {}", first.display()))
}

/// Waits until the server listens, at most [`PATIENCE`], and says so if it does not.
fn await_listener(space: &Space, server: &mut Running, signals: &Signals) -> Result<()> {
    let end = MonotonicClock.now() + PATIENCE;
    while !space.has_listener() {
        if let Some(status) = server.child.try_wait()? {
            if !status.success() {
                let code = code(status);
                error::tell(&format!(
                    "the server ended with exit code {code} before the client started"
                ));
            }
            return Ok(());
        }
        if MonotonicClock.now() > end {
            let seconds = PATIENCE.as_secs();
            error::tell(&format!(
                "the server does not listen after {seconds} s; the client starts all the same"
            ));
            return Ok(());
        }
        signals.check()?;
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Returns the exit code with which a shell reports how a program ended.
fn code(status: ExitStatus) -> u8 {
    let signal = || 128 + status.signal().unwrap_or_default();
    u8::try_from(status.code().unwrap_or_else(signal)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn two_commands_are_split() {
        let line = words("ping -c 3 192.0.2.2");
        assert_eq!(commands(&line).expect("one command"), (&line[..], None));
        let line = words("iperf3 -c x -- iperf3 -s -- y");
        let (client, server) = commands(&line).expect("two commands");
        assert_eq!((client, server), (&line[..3], Some(&line[4..])));
        for wrong in ["-- server", "client --"] {
            commands(&words(wrong)).expect_err(wrong);
        }
    }

    #[test]
    fn all_profiles_are_listed() {
        let text = profiles();
        assert_eq!(text.lines().count(), PROFILES.len() + 1);
        assert!(text.contains("400 down, 440 up"), "{text}");
        assert!(profile("5g").is_err_and(|why| why.contains("3g-chrome, slow-4g-chrome")));
    }
}
