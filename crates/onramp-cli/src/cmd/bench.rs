//! The command `onramp bench udp`.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use onramp::Spec;
use onramp::dev::Udp;

use crate::bench::{self, BATCH, Kind, Plan, Results, STAMP_LEN, SinkKind, payload_max};
use crate::cmd::values::whole;
use crate::error::{died, usage};
use crate::host::{self, Host};
use crate::limits;
use crate::output::{self, Output};
use crate::report::{html, json, meaning, table};

/// Largest UDP payload that fits the MTU of 1500 of a veth pair, in bytes.
const VETH_MAX: usize = 1_500 - 20 - 8;
/// The port that is used if the user gives an address without a port: discard (RFC 863).
const DISCARD: u16 = 9;

/// Measure UDP senders: many threads, small datagrams, all methods interleaved in one run
///
/// Every method sends to the same sinks: one socket per flow. No program reads these sockets, so
/// the kernel counts the datagrams that arrive and discards them. Rates are medians over the
/// rounds, with the extremes. CPU is the time of the whole process for each datagram delivered.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp bench udp --threads 240 --size 120 --rounds 5 --json out.json
  onramp bench udp --threads 16 --methods send,gso --html report.html
  onramp bench udp --threads 16 --to receiver.example:4000
  onramp bench udp --verify --threads 240 --seconds 5 --stall 1
  onramp bench udp --verify --threads 1 --seconds 5 --qdisc 'fq maxrate 8mbit'")]
pub(crate) struct Args {
    /// Number of sending threads
    #[arg(long, value_name = "N", default_value_t = 240,
          value_parser = whole::<u32>(1..=1_000_000))]
    threads: u32,
    /// Payload of a datagram, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 120,
          value_parser = whole::<u32>(1..=65_507))]
    size: u32,
    /// Length of each measurement in seconds, after a warm-up of a fifth of that
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// Number of flows of each thread
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = whole::<u32>(1..=100_000))]
    flows_per_thread: u32,
    /// Number of ports (transmit queues) of the link, for the onramp methods [default: the link
    /// decides]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1_024))]
    queues: Option<u32>,
    /// The link's qdisc, in the syntax of tc, for the onramp methods [default: fq]
    #[arg(long, value_name = "QDISC")]
    qdisc: Option<String>,
    /// Ways of sending [default: send,sendmmsg,gso,onramp; with --verify: onramp]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    methods: Vec<Kind>,
    /// Datagrams that the onramp methods submit in one call [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1_024))]
    batch: Option<u32>,
    /// Send to HOST or HOST:PORT; the benchmark cannot know what arrives there [default port: 9,
    /// discard]
    #[arg(long, value_name = "HOST", value_parser = address, conflicts_with = "sink")]
    to: Option<Host>,
    /// The sinks that datagrams are sent to
    #[arg(long, value_enum, default_value = "loopback")]
    sink: SinkName,
    /// Read and check every datagram: each must arrive in order, or be dropped with a reason
    #[arg(long, conflicts_with = "to")]
    verify: bool,
    /// Seconds for which the receivers stop reading in the middle of the measurement
    #[arg(long, value_name = "S", value_parser = seconds, requires = "verify")]
    stall: Option<Duration>,
    /// Number of rounds; the methods take turns in each round [default: 3; with --verify: 1]
    #[arg(long, value_name = "R", value_parser = whole::<u32>(1..=1_000))]
    rounds: Option<u32>,
    /// Write the results as JSON (docs/json.md says what each key means); - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write an HTML page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The sinks on this machine that a benchmark can send to.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SinkName {
    /// Sockets on 127.0.0.1
    Loopback,
    /// Sockets behind a veth pair, in private network namespaces (root)
    Veth,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<()> {
    let json = args.json.as_deref().map(Output::new).transpose()?;
    let html = args.html.as_deref().map(Output::new).transpose()?;
    output::distinct(&[("--json", json.as_ref()), ("--html", html.as_ref())])?;
    let plan = plan(args)?;
    check(&plan)?;
    let results = bench::run(&plan)?;
    conclude(&results, &plan.methods, json.as_ref(), html.as_ref())
}

/// Prints and writes the results, even if a check failed, and then returns the failure if there is
/// one. That a method delivered nothing is a failure, too. If the run was interrupted before it had
/// a result, prints and writes nothing.
fn conclude(
    results: &Results,
    kinds: &[Kind],
    json: Option<&Output>,
    html: Option<&Output>,
) -> Result<()> {
    results.outcome.has_results(results.rounds.len())?;
    let mut done = failures(results, kinds);
    done.push(write(results, kinds, json, html));
    output::all(done)
}

/// Returns what was wrong with a run, as errors among results that are none: what could not be
/// measured, a check that failed, a port that died, and methods that delivered nothing.
pub(crate) fn failures(results: &Results, kinds: &[Kind]) -> Vec<Result<()>> {
    let nothing = meaning::nothing_delivered(results, kinds).into_iter();
    let measured = [results.outcome.verdict(), verdict(results)];
    measured.into_iter().chain(nothing.map(|why| Err(anyhow!(why)))).collect()
}

/// Prints the table, unless a report goes to standard output, and writes the reports that the user
/// asked for. It tries each report, even if another fails.
fn write(
    results: &Results,
    kinds: &[Kind],
    json: Option<&Output>,
    html: Option<&Output>,
) -> Result<()> {
    let mut done = Vec::new();
    if ![json, html].into_iter().flatten().any(Output::is_stdout) {
        let table = table::bench_udp(results, kinds);
        let meaning = meaning::paragraphs(results, kinds);
        done.push(output::print(&format!("{table}\n{meaning}")));
    }
    if let Some(json) = json {
        done.push(json.write(&json::bench_udp(results, kinds)));
    }
    if let Some(html) = html {
        done.push(html.write(&html::bench_udp(results, kinds)));
    }
    output::all(done)
}

/// Returns an error if the check of a round failed or a port died.
fn verdict(results: &Results) -> Result<()> {
    for round in &results.rounds {
        if let Some(death) = died(&round.deaths) {
            return Err(death.context(format!("method {}", round.kind.name())));
        }
        let failures = round.checked.iter().flat_map(|checked| &checked.failures);
        if let Some(failure) = failures.clone().next() {
            let more = failures.count() - 1;
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            bail!("method {}: verification failed: {failure}{more}", round.kind.name());
        }
    }
    Ok(())
}

fn plan(args: Args) -> Result<Plan> {
    let stall = args.stall.unwrap_or_default();
    if stall >= args.seconds {
        return Err(usage(format!(
            "--stall {}: the receivers must stall for less than --seconds {}",
            stall.as_secs_f64(),
            args.seconds.as_secs_f64()
        )));
    }
    if let Some(Err(error)) = args.qdisc.as_deref().map(Spec::with_units) {
        return Err(usage(format!("--qdisc: {error}")));
    }
    let (qdisc, queues, batch) =
        (args.qdisc.is_some(), args.queues.is_some(), args.batch.is_some());
    let size = args.size as usize;
    if args.verify && size < STAMP_LEN {
        return Err(usage(format!(
            "--size {size}: --verify needs {STAMP_LEN} bytes in each datagram, for its flow and \
             sequence number"
        )));
    }
    let methods = match (args.methods.is_empty(), args.verify) {
        (false, _) => deduplicated(args.methods),
        (true, true) => vec![Kind::OURS],
        (true, false) => Kind::DEFAULT.to_vec(),
    };
    let of_links = [("--qdisc", qdisc), ("--queues", queues), ("--batch", batch)];
    let given = of_links.iter().find(|(_, given)| *given);
    if let (Some((option, _)), false) = (given, methods.iter().any(|kind| kind.has_link())) {
        return Err(usage(format!(
            "{option}: it belongs to a link, and none of --methods has one: add the method onramp"
        )));
    }
    // The destination's name is resolved last, because that may need the network.
    let sink = match (args.to, args.sink) {
        (Some(to), _) => SinkKind::External(to.resolve().context("--to")?.addr),
        (None, SinkName::Loopback) => SinkKind::Loopback,
        (None, SinkName::Veth) => SinkKind::Veth,
    };
    Ok(Plan {
        threads: args.threads as usize,
        flows_per_thread: args.flows_per_thread as usize,
        size,
        window: args.seconds,
        rounds: args.rounds.unwrap_or(if args.verify { 1 } else { 3 }) as usize,
        methods,
        queues: args.queues.map(|queues| queues as usize),
        qdisc: args.qdisc.unwrap_or_else(|| "fq".to_owned()),
        batch: args.batch.unwrap_or(1) as usize,
        sink,
        verify: args.verify,
        stall,
    })
}

fn deduplicated(mut methods: Vec<Kind>) -> Vec<Kind> {
    let mut seen = Vec::new();
    methods.retain(|kind| {
        let new = !seen.contains(kind);
        seen.push(*kind);
        new
    });
    methods
}

/// Checks, before the first thread starts, that the machine's limits allow the benchmark and that
/// the path carries datagrams of the size that the user gave.
pub(crate) fn check(plan: &Plan) -> Result<()> {
    let sinks = if matches!(plan.sink, SinkKind::External(_)) { 0 } else { plan.flows() };
    // If datagrams are read, every sink has a second file descriptor, for the thread that reads it.
    let sinks = if plan.verify { 2 * sinks } else { sinks };
    let files = plan.methods.iter().map(|kind| kind.files(plan)).max().unwrap_or(0);
    limits::check(plan.threads, sinks + files)?;
    let payloads = plan.threads * if plan.verify { plan.flows_per_thread } else { 1 };
    limits::check_memory(payloads as u64 * (plan.size * plan.batch.max(BATCH)) as u64)?;
    match plan.sink {
        SinkKind::Loopback => Ok(()),
        SinkKind::Veth if plan.size > VETH_MAX => {
            let size = plan.size;
            bail!("--size {size}: the path over veth takes {VETH_MAX} bytes unfragmented")
        }
        SinkKind::Veth => Ok(()),
        SinkKind::External(to) => check_path(plan, to),
    }
}

/// Sends one datagram to `to`, so that a wrong address is reported before the measurement.
fn check_path(plan: &Plan, to: SocketAddr) -> Result<()> {
    let allowed = payload_max(to.ip());
    if plan.size > allowed {
        return Err(usage(format!("--size {}: UDP to {to} allows {allowed} bytes", plan.size)));
    }
    let headers = if to.is_ipv4() { 20 + 8 } else { 40 + 8 };
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0))?;
    let told = |error: io::Error| anyhow!("--to {to}: {error}; {}", host::advice(&error));
    socket.connect(to).map_err(told)?;
    let fits = Udp::path_mtu(to).map(|mtu| (mtu as usize).saturating_sub(headers));
    if let Some(fits) = fits.filter(|fits| plan.size > *fits) {
        bail!("--size {}: the path to {to} takes {fits} bytes unfragmented", plan.size);
    }
    let sent = socket.send(&vec![0; plan.size]).and_then(|_| {
        // If nobody listens at the destination, its machine answers with an ICMP error. Over a
        // short path, the answer comes within these 50 ms.
        std::thread::sleep(Duration::from_millis(50));
        socket.take_error().map(|error| error.map_or(Ok(()), Err))?
    });
    sent.map_err(told)
}

/// Parses a time in seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give seconds, such as 5 or 0.5".to_owned())?;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err("must lie between 0.01 and 86400 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Parses `HOST` or `HOST:PORT`, with or without `udp://` in front.
fn address(text: &str) -> Result<Host, String> {
    let form = "give a host with or without a port, such as 192.0.2.7:4000 or [2001:db8::7]:9";
    let host = text.strip_prefix("udp://").unwrap_or(text);
    Host::parse(host, Some(DISCARD)).map_err(|why| format!("{why}: {form}"))
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use super::*;
    use crate::bench::{Checked, planted};
    use crate::error;
    use crate::machine::Machine;
    use crate::watch::Outcome;

    /// Ends a run of one method whose rounds gave the results `checks`. Returns the outcome
    /// and the report that was written.
    fn concluded(checks: Vec<Checked>) -> (Result<()>, serde_json::Value) {
        let rounds = checks.into_iter().map(|checked| bench::Round {
            checked: Some(checked),
            ..planted::round(Kind::OURS, 8, 1)
        });
        let results = Results {
            machine: Machine::here(),
            parameters: planted::plan().parameters(),
            rounds: rounds.collect(),
            outcome: Outcome::default(),
        };
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("out.json");
        let output = Output::new(&file).expect("a file that can be written");
        let done = conclude(&results, &[Kind::OURS], Some(&output), None);
        let text = std::fs::read(&file).expect("the report");
        (done, serde_json::from_slice(&text).expect("JSON"))
    }

    /// Asserts that a bad round after a good one fails with exit code 1, and that the message
    /// contains all of `parts`.
    fn assert_fails(bad: Checked, parts: &[&str]) {
        let good = planted::checked([2, 2], [&[0, 1], &[0, 1]]);
        let (done, report) = concluded(vec![good, bad]);
        assert_eq!(report["methods"][0]["verify"]["passed"], false);
        let error = done.expect_err("the check failed");
        let message = format!("{error:#}");
        for part in parts {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
        assert_eq!(error::report(&error), ExitCode::FAILURE);
    }

    #[test]
    fn a_round_without_failures_concludes_well() {
        let (done, report) = concluded(vec![planted::checked([2, 3], [&[0, 1], &[0, 1, 2]])]);
        assert_eq!(report["methods"][0]["verify"]["passed"], true);
        done.expect("nothing was wrong");
    }

    #[test]
    fn a_reordered_flow_fails_and_is_named() {
        let bad = planted::checked([2, 3], [&[0, 1], &[0, 2, 1]]);
        let said = ["onramp: verification failed", "flow 1 (thread 1)", "1 arrived after 2"];
        assert_fails(bad, &said);
    }

    #[test]
    fn a_lost_datagram_without_a_reason_fails_and_its_flow_is_named() {
        let bad = planted::checked([2, 3], [&[0, 1], &[0, 2]]);
        assert_fails(bad, &["5 submitted, but 4 delivered", "flow 1 (thread 1) lacks the most"]);
    }

    #[test]
    fn a_port_that_died_fails() {
        let round = bench::Round {
            deaths: vec![(3, "it has had enough".to_owned())],
            ..planted::round(Kind::OURS, 8, 1)
        };
        let (machine, parameters) = (Machine::here(), planted::plan().parameters());
        let results =
            Results { machine, parameters, rounds: vec![round], outcome: Outcome::default() };
        let error = conclude(&results, &[Kind::OURS], None, None).expect_err("it died");
        let message = format!("{error:#}");
        assert!(message.starts_with("method onramp: port 3 of the link died"), "{message}");
        assert!(message.contains("it has had enough"), "{message}");
        assert_eq!(error::report(&error), ExitCode::FAILURE);
    }

    /// A method whose link cannot be made leaves the other methods.
    #[test]
    fn a_failed_method_leaves_the_rest() {
        let plan = Plan {
            methods: vec![Kind::Send, Kind::OURS],
            qdisc: "nosuch".to_owned(),
            window: Duration::from_millis(50),
            verify: false,
            ..planted::plan()
        };
        let results = bench::run(&plan).expect("a method is left");
        let folder = tempfile::tempdir().expect("a folder");
        let outputs = ["out.json", "out.html"]
            .map(|name| Output::new(&folder.path().join(name)).expect("it can be written"));
        let [json, html] = outputs.each_ref();
        let error = conclude(&results, &plan.methods, Some(json), Some(html));
        let error = error.expect_err("a method failed");
        assert!(error.to_string().starts_with("1 of 2 cells failed: onramp: "), "{error}");
        assert_eq!(error::report(&error), ExitCode::FAILURE);
        let text = std::fs::read(folder.path().join("out.json")).expect("the report");
        let report: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(report["failures"][0]["cell"], "onramp");
        assert_eq!(report["methods"].as_array().map(Vec::len), Some(1));
        assert_eq!(report["methods"][0]["name"], "send");
        let page = std::fs::read_to_string(folder.path().join("out.html")).expect("the page");
        assert!(page.contains("Failed: onramp: "), "{page}");
    }

    #[test]
    fn addresses() {
        let resolved = |text: &str| address(text).expect("a host").resolve().expect("known").addr;
        assert_eq!(resolved("192.0.2.7"), ([192, 0, 2, 7], 9).into());
        assert_eq!(resolved("udp://192.0.2.7:80"), ([192, 0, 2, 7], 80).into());
        assert!(resolved("localhost:80").ip().is_loopback());
        assert!(address("192.0.2.7:0").is_err() && address("tcp://192.0.2.7:80").is_err());
    }

    #[test]
    fn spans() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(["0", "-1", "NaN", "inf", "5s", ""].iter().all(|text| seconds(text).is_err()));
    }
}
