//! The command `onramp lab pacing`: measures how exactly packets leave a shaper, and what that
//! costs.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use onramp_lab::lockstat::time;
use onramp_lab::measure::Percentiles;
use onramp_lab::pacing::{
    self, BURST, Found, Measurement, PACKET, Path, Plan, RATES, Round, Shaper, Slack,
};
use serde_json::{Map, Value, json};

use super::common::{self, Column, Common, Figure, Run, insert_all, once, percentiles};
use super::kernel::prepare_namespaces;
use crate::report::json::number;
use crate::report::table::dash;

/// How exactly packets leave a shaper, and what that costs, with several slacks and spin budgets
///
/// One thread sends as fast as it may through a shaper, so packets always wait. The shaper releases
/// them at its rate, and the error of a packet is the time from the instant at which the shaper
/// released it until the device got it. A slack is how late the link's runner may come on purpose,
/// so that one wake-up serves several packets; a spin budget is how long the runner spins before
/// each instant, so that it comes on time. A measurement fails if packets are lost or duplicated.
/// The path busy shows what the machine itself contributes: a thread reads the clock without end,
/// and its error is the time from each instant of the same rate until it sees that this has passed.
/// (Pages of --html leave it out.)
///
/// Beside this (path onramp), datagrams of the same size go to a socket in another network
/// namespace: through the same shapers of this kernel (path kernel), and through links with the
/// same shapers (path onramp-udp). There, the error is the time from the instant that follows from
/// the rate until the datagram arrived, by the kernel's clock. This needs root or user namespaces,
/// and iproute2; without them, and with --without-kernel, only the paths busy and onramp are
/// measured.
///
/// One difference remains between the paths kernel and onramp-udp: a link hands all packets that
/// are due to its socket in one call, and packets of one size as one message (UDP GSO); on the path
/// kernel, a call sends one packet.
///
/// A run without options takes about five minutes (two without the kernel), and half as long with
/// one rate.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns:
  packets/s     packets that left, per second
  CPU ns/packet CPU time of the process for each packet: of the runner and of the sender
  sender ns     the sender's part of it
  irq ns/packet time of all processors in interrupts and softirqs for each packet, where the
                kernel's shapers work; other programs' interrupts are in it
  idle irq ns   what of it the processors also spent while nothing was sent
  total ns      CPU ns/packet, and the time in interrupts above idle: compare paths by this.
                Softirqs that ran within a thread of the process are in it twice, unless the kernel
                has CONFIG_IRQ_TIME_ACCOUNTING
  wakeups       number of times that the runner woke, for each packet
  lost %        share of the time that the path could not make up for: a link more than 5 ms and
                its slack, the kernel's tbf more than the time of one packet, htb of two, fq of half
                a packet, cake 5 ms
  error ...     time from the instant of a packet until it left, or until it arrived
  dropped       packets that the shaper dropped
  overflowed    packets that arrived but found the receive buffer full; their errors are unknown

Examples:
  onramp lab pacing
  onramp lab pacing --kinds tbf --rates 10k --slack 0,1ms --spin 0,50us --without-kernel
  onramp lab pacing --kinds fq --rates 100mbit,400mbit --rounds 5 --json pacing.json

19 minutes:
  onramp lab pacing --rates 1k,10k,100k,100mbit,400mbit --slack 0,100us,1ms --spin 0,20us,50us")]
pub(crate) struct Args {
    /// Kinds of shapers
    #[arg(long, value_name = "KIND,...", value_delimiter = ',', default_value = "tbf,htb,cake,fq")]
    kinds: Vec<KindName>,
    /// Rates: packets per second such as 1k, or the bits per second of packets of 1000 bytes such
    /// as 100mbit; 10 to 1000k packets per second
    #[arg(long, value_name = "RATE,...", value_delimiter = ',',
          default_value = "10k,400mbit", value_parser = rate)]
    rates: Vec<u64>,
    /// Slacks: how late the runner may come on purpose, such as 500us; 0 to 1s; or `default`, at
    /// most once in 90us, and for packets that are closer together than that in up to 400us
    #[arg(long, value_name = "TIME,...", value_delimiter = ',', default_value = "default,1ms",
          value_parser = slack)]
    slack: Vec<Slack>,
    /// Spin budgets: how long the runner spins before each instant, such as 50us; 0 to 1ms; links
    /// over sockets are measured with the first
    #[arg(long, value_name = "TIME,...", value_delimiter = ',', default_value = "0,50us",
          value_parser = spin)]
    spin: Vec<Duration>,
    /// Do not measure the kernel's shapers, nor links over sockets beside them
    #[arg(long)]
    without_kernel: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindName {
    /// The token bucket filter
    Tbf,
    /// The hierarchical token bucket, with one class
    Htb,
    /// Common applications kept enhanced, with a bandwidth
    Cake,
    /// Fair queueing, with a greatest rate for each flow
    Fq,
}

impl KindName {
    fn shaper(self) -> Shaper {
        match self {
            Self::Tbf => Shaper::Tbf,
            Self::Htb => Shaper::Htb,
            Self::Cake => Shaper::Cake,
            Self::Fq => Shaper::Fq,
        }
    }
}

const FIGURES: [Figure<Round>; 8] = [
    Figure::new("packets_per_second", "packets/s", (1.0, 0), |r| Some(r.packets_per_second)),
    Figure::new("cpu_ns_per_packet", "CPU ns/packet", (1.0, 0), |r| r.cpu_ns_per_packet),
    Figure::new("sender_cpu_ns_per_packet", "sender ns", (1.0, 0), |round| {
        round.sender_cpu_ns_per_packet
    }),
    Figure::new("interrupt_ns_per_packet", "irq ns/packet", (1.0, 0), |round| {
        round.interrupt_ns_per_packet
    }),
    Figure::new("idle_interrupt_ns_per_packet", "idle irq ns", (1.0, 0), |round| {
        round.idle_interrupt_ns_per_packet
    }),
    Figure::new("total_ns_per_packet", "total ns", (1.0, 0), |round| round.total_ns_per_packet),
    Figure::new("wakeups_per_packet", "wakeups", (1.0, 3), |round| round.wakeups_per_packet),
    Figure::new("lost_share", "lost %", (0.01, 2), |round| Some(round.lost_share)),
];

/// Parses a rate: packets per second, with an optional `k`, or bits per second with a unit.
fn rate(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let units = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000), ("bit", 1)];
    let bits = units.into_iter().find_map(|(unit, times)| Some((lower.strip_suffix(unit)?, times)));
    let each = u64::from(PACKET) * 8;
    let wrong = || {
        format!(
            "expected {} to {} packets per second such as 10k, or such a rate in bits such as \
             100mbit, a multiple of {each} bit per second",
            RATES.start(),
            RATES.end()
        )
    };
    let whole = |digits: &str, times: u64| digits.parse::<u64>().ok()?.checked_mul(times);
    let packets = match (bits, lower.strip_suffix('k')) {
        (Some((digits, times)), _) => {
            whole(digits, times).filter(|bits| bits.is_multiple_of(each)).map(|bits| bits / each)
        }
        (None, Some(digits)) => whole(digits, 1_000),
        (None, None) => whole(&lower, 1),
    };
    packets.filter(|packets| RATES.contains(packets)).ok_or_else(wrong)
}

fn slack(text: &str) -> Result<Slack, String> {
    if text == "default" {
        return Ok(Slack::Default);
    }
    let slack = duration(text, Duration::from_secs(1)).map(Slack::Fixed);
    slack.ok_or_else(|| "expected `default`, or 0 to 1s, such as 500us".into())
}

fn spin(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(1)).ok_or_else(|| "expected 0 to 1ms, such as 50us".into())
}

fn duration(text: &str, most: Duration) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    humantime::parse_duration(text).ok().filter(|time| *time <= most)
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.without_kernel {
        prepare_namespaces();
    }
    let plan = args.plan();
    let steps = plan.cells().len() * plan.rounds;
    measured(Run::expecting(&args.common.reports, steps, expected(&plan))?, &plan)
}

impl Args {
    fn plan(&self) -> Plan {
        Plan {
            shapers: once(self.kinds.iter().map(|kind| kind.shaper())),
            rates: once(self.rates.iter().copied()),
            slacks: once(self.slack.iter().copied()),
            spins: once(self.spin.iter().copied()),
            kernel: !self.without_kernel,
            window: self.common.seconds,
            rounds: self.common.rounds as usize,
        }
    }
}

/// Time that a measurement takes besides what is measured, such as for starting threads.
const OVERHEAD: Duration = Duration::from_millis(20);

/// Returns how long the measurements of `plan` take.
fn expected(plan: &Plan) -> Duration {
    let rounds = u32::try_from(plan.rounds).unwrap_or(u32::MAX);
    let cells = plan.cells();
    let socket = |path| matches!(path, Path::OnrampUdp | Path::Kernel);
    let idle = |path| if socket(path) { plan.window / 2 } else { Duration::ZERO };
    let each = cells.iter().map(|cell| plan.window + plan.window / 5 + idle(cell.path) + OVERHEAD);
    each.sum::<Duration>().saturating_mul(rounds)
}

/// Measures, and writes and prints the results.
fn measured(mut run: Run, plan: &Plan) -> Result<()> {
    let found = run.measure(|steps| pacing::run(plan, steps))??;
    let lacking = found.lacking.iter();
    let lacking = lacking.map(|(shaper, why)| json!({"kind": shaper.name(), "why": why}));
    let mut results = Map::new();
    results.insert("why_no_kernel".into(), json!(found.why_no_kernel));
    results.insert("lacking".into(), lacking.collect());
    results.insert("rows".into(), found.cells.iter().map(json).collect());
    let all_ns = |times: &[Duration]| times.iter().map(|time| ns(*time)).collect::<Value>();
    let parameters = json!({
        "kinds": plan.shapers.iter().map(|shaper| shaper.name()).collect::<Vec<_>>(),
        "rate": plan.rates,
        "slack_ns": plan.slacks.iter().map(|it| time_ns(it.fixed())).collect::<Value>(),
        "spin_ns": all_ns(&plan.spins),
        "kernel": plan.kernel,
        "packet": PACKET,
        "burst_bytes": BURST,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": plan.rounds,
    });
    run.conclude("pacing", parameters, results, &table(&found))
}

fn time_ns(time: Option<Duration>) -> Value {
    time.map_or(Value::Null, ns)
}

fn ns(time: Duration) -> Value {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).into()
}

fn json(row: &Measurement) -> Value {
    let mut map = Map::new();
    map.insert("path".into(), row.cell.path.name().into());
    map.insert("kind".into(), row.cell.shaper.name().into());
    map.insert("rate".into(), row.cell.rate.into());
    map.insert("slack_ns".into(), time_ns(row.cell.slack.and_then(Slack::fixed)));
    map.insert("spin_ns".into(), time_ns(row.cell.spin));
    insert_all(&mut map, &FIGURES, |figure| figure.spread(row));
    map.insert("error_ns".into(), percentiles(row.error.percentiles()));
    map.insert("packets".into(), row.packets.into());
    map.insert("dropped".into(), row.dropped.into());
    map.insert("overflowed".into(), row.overflowed.into());
    Value::Object(map)
}

fn table(found: &Found) -> String {
    let mut columns = vec![
        Column::new("path", |row: &Measurement| row.cell.path.name().to_owned()),
        Column::new("kind", |row: &Measurement| row.cell.shaper.name().to_owned()),
        Column::new("rate", |row: &Measurement| row.cell.rate.to_string()),
        Column::new("slack", |row: &Measurement| match row.cell.slack {
            Some(Slack::Default) => "default".to_owned(),
            slack => short(slack.and_then(Slack::fixed)),
        }),
        Column::new("spin", |row: &Measurement| short(row.cell.spin)),
    ];
    columns.extend(FIGURES.iter().map(Figure::column));
    let error = |name: &str, part: fn(Percentiles) -> u64| {
        Column::new(format!("error {name}"), move |row: &Measurement| {
            row.error.percentiles().map_or_else(dash, |ns| time(part(ns) as f64))
        })
    };
    columns.push(error("p50", |ns| ns.p50));
    columns.push(error("p99", |ns| ns.p99));
    columns.push(error("max", |ns| ns.max));
    columns.push(Column::new("dropped", |row: &Measurement| row.dropped.to_string()));
    columns.push(Column::new("overflowed", |row: &Measurement| match row.overflowed {
        0 => dash(),
        some => some.to_string(),
    }));
    let mut text = common::table(&found.cells, &columns);
    // The results of `writeln!` are ignored, because writing into a string cannot fail.
    if let Some(why) = &found.why_no_kernel {
        let _ = writeln!(text, "\nthe kernel's side is missing: {why}");
    }
    let overflowed: u64 = found.cells.iter().map(|row| row.overflowed).sum();
    if overflowed > 0 {
        let _ = writeln!(
            text,
            "\n{overflowed} packets found the receive buffer full, so their errors are unknown, \
             and the errors in their rows are those of the others: run as root, raise \
             net.core.rmem_max, or measure while the machine is idle"
        );
    }
    for (shaper, why) in &found.lacking {
        let _ = writeln!(text, "\nthis kernel lacks {}: {why}", shaper.name());
    }
    text
}

/// Returns a duration as the options take it.
fn short(time: Option<Duration>) -> String {
    let Some(time) = time else { return dash() };
    if time.is_zero() { "0".to_owned() } else { humantime::format_duration(time).to_string() }
}

#[cfg(test)]
mod tests {
    use onramp_lab::measure::Latency;

    use super::*;

    #[test]
    fn rates_are_packets_or_bits() {
        let rates = [("10", 10), ("1k", 1_000), ("100mbit", 12_500), ("80Kbit", 10)];
        for (text, packets) in rates {
            assert_eq!(rate(text), Ok(packets), "{text}");
        }
        for wrong in ["", "9", "1001k", "1.5k", "k", "100mbps", "80001bit", "99999999999gbit"] {
            let why = rate(wrong).expect_err(wrong);
            assert!(why.contains("packets per second such as 10k"), "{why}");
        }
    }

    #[test]
    fn times_have_ranges() {
        assert_eq!(slack("default"), Ok(Slack::Default));
        assert_eq!(slack("0"), Ok(Slack::Fixed(Duration::ZERO)));
        assert_eq!(slack("1s"), Ok(Slack::Fixed(Duration::from_secs(1))));
        assert_eq!(spin("50us"), Ok(Duration::from_micros(50)));
        assert!(slack("1001ms").is_err() && slack("fast").is_err() && slack("-1us").is_err());
        assert!(spin("1001us").is_err());
    }

    /// A run without options takes as long as the help says.
    #[test]
    fn the_default_run_is_short() {
        let parsed = |options: &[&str]| {
            let command = <Args as clap::Args>::augment_args(clap::Command::new("pacing"));
            let matches = command.try_get_matches_from(["pacing"].iter().chain(options));
            <Args as clap::FromArgMatches>::from_arg_matches(&matches.expect("good options"))
        };
        let minutes = |options: &[&str]| {
            expected(&parsed(options).expect("good options").plan()).as_secs_f64() / 60.0
        };
        let full = "--rates 1k,10k,100k,100mbit,400mbit --slack 0,100us,1ms --spin 0,20us,50us";
        let full: Vec<&str> = full.split(' ').collect();
        let found = [&[][..], &["--without-kernel"], &["--rates", "10k"], &full].map(minutes);
        assert_eq!(found.map(f64::round), [5.0, 2.0, 2.0, 19.0], "{found:?}");
    }

    /// Packets that found the receive buffer full are told below the table and in their row.
    #[test]
    fn overflows_are_told() {
        let cell = Plan { rates: vec![1_000], ..small() }.cells()[1];
        let row = |overflowed| Measurement {
            cell,
            rounds: Vec::new(),
            error: Latency::default(),
            packets: 9,
            dropped: 0,
            overflowed,
        };
        let found = |rows: &[u64]| Found {
            cells: rows.iter().copied().map(row).collect(),
            why_no_kernel: None,
            lacking: Vec::new(),
        };
        let text = table(&found(&[0, 7]));
        assert!(text.contains("overflowed") && text.contains("\n7 packets found"), "{text}");
        assert_eq!(json(&row(7))["overflowed"], 7);
        assert!(!table(&found(&[0, 0])).contains("overflowed"));
    }

    fn small() -> Plan {
        Plan {
            shapers: vec![Shaper::Tbf],
            rates: vec![0, 1_000],
            slacks: vec![Slack::Fixed(Duration::ZERO)],
            spins: vec![Duration::ZERO],
            kernel: false,
            window: Duration::from_millis(50),
            rounds: 2,
        }
    }

    /// The link of a rate out of range cannot be made, and its cell fails alone.
    #[test]
    fn a_failed_cell_leaves_the_rest() {
        let document = Run::failed(|run| measured(run, &small()));
        let failures = document["failures"].as_array().expect("failures");
        let cells: Vec<_> = failures.iter().map(|failure| failure["cell"].as_str()).collect();
        assert_eq!(cells, ["onramp tbf at 0 packets/s, slack 0ns, spin 0ns"].map(Some));
        let rows = document["rows"].as_array().expect("rows");
        let measured: Vec<_> = rows.iter().map(|row| json!([row["path"], row["rate"]])).collect();
        let want = [json!(["busy", 0]), json!(["busy", 1_000]), json!(["onramp", 1_000])];
        assert_eq!(measured, want);
    }
}
