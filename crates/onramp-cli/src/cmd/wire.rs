//! The command `onramp wire`: runs a client, and a server if asked, at the two ends of a link that
//! behaves as its qdiscs say.

mod control;
mod flows;
mod forward;
mod pcap;
mod programs;
mod relay;
mod set;
mod talk;
mod trace;

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::thread;

use anyhow::{Result, anyhow};
use onramp_core::Setup;
use onramp_wire::{Change, Entry, Options, PLAIN, PROFILES, Profile, Wire, series};
use serde_json::Value;

use self::control::Socket;
use self::forward::{Door, Forward};
use self::pcap::Capture;
use self::programs::{End, await_listener};
use crate::cmd::values::{seed, whole};
use crate::error::{Ended, usage};
use crate::output::{self, Output};
use crate::report::table::dash;
use crate::report::{json, wire as report};
use crate::signals::{Signals, code};
use crate::{error, setup};

/// Run a program behind a link with a given delay, rate and loss, without root
///
/// The client runs in a network namespace of its own. Its only link, wire0 (192.0.2.1,
/// 2001:db8::1), leads to another namespace, 192.0.2.2 and 2001:db8::2, where the server runs; if
/// there is no server, that end still answers ping. Client and server find the address of the other
/// end in the environment variables ONRAMP_PEER and ONRAMP_PEER6. While they run, `onramp wire set`
/// changes the link. The client starts when the server listens for TCP or UDP, when the server has
/// ended, or after five seconds. The programs reach nothing outside the two namespaces. The command
/// ends the server when the client has ended, and then ends with the client's exit code, or with 1
/// if the client succeeded but a report or a capture could not be written; with 127 if there is no
/// such program, 126 if it may not be run.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  onramp wire --profile lte --set 'loss 1%' -- sh
  onramp wire --qdisc 'netem delay 20ms rate 10mbit' -- ping -c 3 192.0.2.2
  onramp wire --qdisc 'netem loss 2%' -- iperf3 -c 192.0.2.2 -- iperf3 -s
  onramp wire --profile lte --relay 127.0.0.1:8080=127.0.0.1:80 -- curl http://127.0.0.1:8080
  onramp wire --trace tunnel.trace -- ping -c 30 192.0.2.2
  onramp wire --up 'cake bandwidth 5mbit' --down 'cake bandwidth 50mbit' \\
      --then 'netem delay 15ms' -- sh")]
pub(crate) struct Args {
    #[command(subcommand)]
    other: Option<Other>,
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
    /// Another value for a property of the link, in the words of `onramp wire set`, such as `rate
    /// 1mbit` or `down loss 2%`. May be given several times
    #[arg(long, value_name = "CHANGE")]
    set: Vec<String>,
    #[command(flatten)]
    traces: trace::Traces,
    /// A port of this machine's loopback that leads through the wire to the server's end, TCP or
    /// UDP: 8080:80 connects 127.0.0.1:8080 with port 80. May be given several times
    #[arg(long, value_name = "[HOST-PORT:]PORT[/udp]")]
    forward: Vec<Forward>,
    /// An address of this machine that leads through the link to a host and port, without any
    /// namespace: for TCP and UDP, or one of them. The client runs in this machine's network and
    /// finds the address in ONRAMP_RELAY; without a client, the relay runs until Ctrl-C. May be
    /// given several times
    #[arg(long, value_name = "[udp:|tcp:]LISTEN=TARGET",
          conflicts_with_all = ["forward", "device", "no_offload", "pcap"])]
    relay: Vec<Entry>,
    /// Largest packet in bytes, without the Ethernet header, 1280 to 65521
    #[arg(long, value_name = "BYTES", default_value_t = 1_500,
          value_parser = whole::<u32>(1_280..=65_521))]
    mtu: u32,
    /// Seed of everything random, such as losses
    #[arg(long, value_name = "N", value_parser = seed)]
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
    /// Write every frame that enters or leaves the wire into a file in the format pcapng, for
    /// Wireshark and tcpdump; - is standard output
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Do not print what was carried and dropped
    #[arg(long)]
    quiet: bool,
    /// The client's command; after another --, the server's
    #[arg(last = true, required_unless_present_any = ["profiles", "relay"], value_name = "COMMAND")]
    commands: Vec<OsString>,
}

/// The commands that lay no wire: those for wires that run, and the list of profiles.
#[derive(Debug, clap::Subcommand)]
enum Other {
    Set(set::Args),
    List(set::ListArgs),
    /// List the profiles, as `onramp wire --profiles` does
    #[command(after_help = "Examples:\n  onramp wire profiles\n  onramp wire --profile lte -- sh")]
    Profiles,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<()> {
    match &args.other {
        Some(Other::Set(args)) => return set::run(args),
        Some(Other::List(args)) => return set::list(args),
        Some(Other::Profiles) => return output::print(&profiles()),
        None => {}
    }
    if args.profiles {
        return output::print(&profiles());
    }
    if args.qdisc.is_some() && args.up.is_some() && args.down.is_some() {
        return Err(usage("--qdisc has no effect beside --up and --down: leave one of them out"));
    }
    let output = args.json.as_deref().map(Output::new).transpose()?;
    let pcap = args.pcap.as_deref().map(Output::new).transpose()?;
    output::distinct(&[("--json", output.as_ref()), ("--pcap", pcap.as_ref())])?;
    let (client, server) = commands(&args.commands)?;
    let [up, down] = set::at_start(&args.set)?;
    let options = options(&args, [&up, &down])?;
    if !args.relay.is_empty() {
        if server.is_some() {
            return Err(usage(
                "--relay has no far end in which a server could run: start the server beside it, \
                 and name its address as the target",
            ));
        }
        return relay::run(&args, client, options, [up, down], output.as_ref());
    }
    let doors = args.forward.iter().map(|forward| Door::open(*forward));
    let doors = doors.collect::<Result<Vec<_>>>()?;
    // In the namespace, the user has another number.
    let folders = control::folders();
    // A pipe's reader may never read what is left at the end.
    let may_stall = [&pcap, &output].into_iter().flatten().any(Output::may_stall);
    let pcap = pcap.as_ref().map(|output| output.stream(None)).transpose()?;
    onramp_wire::enter().map_err(|error| {
        anyhow!("{error}; or name the server with --relay LISTEN=TARGET, which makes no namespaces")
    })?;
    // The client decides what a signal does; this program ends with the client.
    let signals = Signals::listen()?;
    let wire = Wire::lay(options)?;
    if let Some(why) = wire.fallback().filter(|_| !args.quiet) {
        error::tell(&format!("{why}; the ends are veth pairs with packet sockets instead of TAPs"));
    }
    wire.change(up, down).map_err(|error| usage(format!("--set: {error}")))?;
    let capture = pcap.map(Capture::start).transpose()?;
    let capture = capture.map(|(capture, [up, down])| {
        wire.watch(Box::new(up), Box::new(down));
        capture
    });
    let status = carry(&wire, [client, server.unwrap_or_default()], &doors, &folders, &signals);
    if may_stall {
        signals.end();
    }
    let broken = wire.error();
    let carried = wire.cut();
    let captured = capture.map(Capture::finish);
    let code = code(status?);
    let done = captured.into_iter().collect();
    let ending =
        Ending { quiet: args.quiet, output: output.as_ref(), broken, done, code: Some(code) };
    ending.tell(|| report::text(&carried), || report::json(&carried, Some(code)))
}

/// How a wire has ended.
struct Ending<'o> {
    quiet: bool,
    output: Option<&'o Output>,
    /// Why the wire broke before its end, if it did.
    broken: Option<String>,
    /// What went well or not beside the wire.
    done: Vec<Result<()>>,
    /// The client's exit code; `None` without a client.
    code: Option<u8>,
}

impl Ending<'_> {
    /// Writes the summary as the user wants it, and returns the errors.
    fn tell(self, text: impl FnOnce() -> String, value: impl FnOnce() -> Value) -> Result<()> {
        let Self { quiet, output, broken, mut done, code } = self;
        if !quiet && !output.is_some_and(Output::is_stdout) {
            error::tell(&text());
        }
        if let Some(output) = output {
            done.push(output.write(&json::pretty(&value())));
        }
        if let Some(why) = broken {
            done.push(Err(anyhow!("the wire broke: {why}")));
        }
        let done = output::all(done);
        let Some(code) = code.filter(|code| *code != 0) else { return done };
        // The client's failure decides the exit code.
        if let Err(error) = done {
            let _ = error::report(&error);
        }
        Err(anyhow!(Ended(code)))
    }
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

/// Runs the client and, if its command is not empty, the server at the ends of the wire. Meanwhile,
/// lets other commands change the wire, and forwards ports. Returns how the client ended.
fn carry(
    wire: &Wire,
    [client, server]: [&[OsString]; 2],
    doors: &[Door],
    folders: &[PathBuf],
    signals: &Signals,
) -> Result<ExitStatus> {
    let socket = Socket::open_or_tell(folders);
    let path = socket.as_ref().map(Socket::path);
    let about = client.join(OsStr::new(" ")).to_string_lossy().into_owned();
    let (stop, stopped) = UnixStream::pair()?;
    thread::scope(|scope| {
        let stopped = &stopped;
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        if let Some(socket) = &socket {
            let serve = || socket.serve(wire, &about, stopped);
            named("control").spawn_scoped(scope, serve)?;
        }
        let start = |space, words, end| programs::start(space, words, end, path);
        let server = Some(server).filter(|words| !words.is_empty());
        let server = server.map(|words| start(wire.server(), words, End::Server));
        let mut server = server.transpose()?;
        if let Some(server) = &mut server {
            await_listener(wire.server(), server, signals)?;
        }
        signals.check()?;
        for door in doors {
            let serve = || door.serve(wire.client(), stopped);
            named("forward").spawn_scoped(scope, serve)?;
        }
        wire.begin();
        let mut client = start(wire.client(), client, End::Client)?;
        let status = signals.wait(&mut client.child)?;
        // The server ends before the count is made.
        drop((client, server, stop));
        Ok(status)
    })
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

fn options(args: &Args, changes: [&[Change]; 2]) -> Result<Options> {
    let (up, down) = trees(args)?;
    let [up_trace, down_trace] = args.traces.read([&up, &down], changes, args.mtu)?;
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
        "name                 down, kbit  up, kbit  buffer, bytes down/up  delay, ms one way  \
         loss, %  source\n"
            .to_owned();
    for profile in PROFILES {
        let kbit =
            |of: fn((u32, u32)) -> u32| profile.kbit.map_or_else(dash, |both| of(both).to_string());
        let buffer = profile.kbit.map_or_else(dash, |(down, up)| {
            format!("{}/{}", profile.buffer_bytes(down), profile.buffer_bytes(up))
        });
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
            "{:20} {:>10}  {:>8}  {buffer:>21}  {delay:>17}  {loss:>7}  {source}",
            profile.name,
            kbit(|both| both.0),
            kbit(|both| both.1),
        );
    }
    text
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
        assert!(text.contains(" 3750000/750000 "), "{text}");
        assert!(text.contains(" 37850/37850 "), "{text}");
        assert!(profile("5g").is_err_and(|why| why.contains("3g-chrome, slow-4g-chrome")));
    }
}
