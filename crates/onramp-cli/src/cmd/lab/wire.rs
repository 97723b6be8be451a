//! The command `onramp lab wire`: measures what it costs to forward frames between two interfaces,
//! through Onramp and through the kernel.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use onramp_lab::wire::{
    self, EQUAL_LOAD, Found, Measurement, Path, Plan, RATE_BITS, Round, Shaper, Traffic,
};
use serde_json::{Map, Value, json};

use super::common::percentiles;
use super::common::{self, Column, Common, Figure, Run, insert, insert_all, latencies, once};
use super::kernel::prepare_namespaces;
use crate::error::usage;
use crate::report::json::number;

/// Compare the bridge of `onramp shape` with the kernel's bridge: rates, CPU, loss, latency
///
/// Two hosts in network namespaces of their own are joined by a pair of devices alone (`direct`,
/// the floor of all costs), by the kernel's bridge between two pairs, or by Onramp's bridge there,
/// by packet sockets or AF_XDP; each bridge also with the same shaper of 100 Mbit/s. Without a
/// shaper, datagrams are sent as fast as the sender can, and then at 20,000 a second, where the
/// processor time of the paths can be compared; with a shaper, at 120 % of its rate. The processor
/// time is that of the whole machine, sender and receiver included, so let nothing else run. Needs
/// root or user namespaces, and iproute2.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns:
  sent/s        datagrams that were sent, per second
  packets/s     packets that arrived, per second; of TCP, segments of 1448 bytes
  Mbit/s        data that arrived, headers not included
  CPU ns/packet time that all processors worked, for each packet that arrived
  at 20k/s      the same at 20,000 datagrams a second
  lost %        share of the datagrams that did not arrive
  p50 ...       time from the sender to the receiver at 1,000 datagrams a second
  rate, CPU ... packets/s, CPU ns/packet and that at 20,000 a second, divided by those of the
                kernel's bridge in the same round

Examples:
  onramp lab wire
  onramp lab wire --traffic tcp --shapers none,tbf --rounds 5
  onramp lab wire --paths bridge,onramp --traffic 64 --json wire.json")]
pub(crate) struct Args {
    /// What joins the hosts
    #[arg(
        long,
        value_name = "PATH,...",
        value_delimiter = ',',
        default_value = "direct,bridge,onramp,onramp-xdp"
    )]
    paths: Vec<PathName>,
    /// What is sent
    #[arg(long, value_name = "KIND,...", value_delimiter = ',', default_value = "64,1500,tcp")]
    traffic: Vec<TrafficName>,
    /// Shapers of 100 Mbit/s, the kernel's and Onramp's
    #[arg(long, value_name = "KIND,...", value_delimiter = ',', default_value = "none,tbf,htb")]
    shapers: Vec<ShaperName>,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PathName {
    /// A pair of devices, and nothing else
    Direct,
    /// The kernel's bridge
    Bridge,
    /// Onramp's bridge by packet sockets
    Onramp,
    /// Onramp's bridge by AF_XDP
    OnrampXdp,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TrafficName {
    /// Datagrams in frames of 64 bytes
    #[value(name = "64")]
    Small,
    /// Datagrams in packets of 1,500 bytes
    #[value(name = "1500")]
    Large,
    /// A TCP connection
    Tcp,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ShaperName {
    /// No shaper
    None,
    /// The token bucket filter
    Tbf,
    /// The hierarchical token bucket, with one class
    Htb,
    /// Common applications kept enhanced, with a bandwidth
    Cake,
    /// Fair queueing, with a greatest rate for each flow
    Fq,
}

const RATE: Figure<Round> =
    Figure::new("packets_per_second", "packets/s", (1.0, 0), |r| Some(r.packets_per_second));
const GOODPUT: Figure<Round> =
    Figure::new("goodput_bits_per_second", "Mbit/s", (1e6, 1), |r| Some(r.goodput_bits_per_second));
const CPU: Figure<Round> =
    Figure::new("cpu_ns_per_packet", "CPU ns/packet", (1.0, 0), |r| r.cpu_ns_per_packet);
const SENT: Figure<Round> =
    Figure::new("sent_per_second", "sent/s", (1.0, 0), |r| r.sent_per_second);
const EQUAL: Figure<Round> =
    Figure::new("equal_load_cpu_ns_per_packet", "at 20k/s", (1.0, 0), |round| {
        round.equal_load_cpu_ns_per_packet
    });
const LOST: Figure<Round> = Figure::new("lost_share", "lost %", (0.01, 2), |r| r.lost_share);
const FIGURES: [Figure<Round>; 6] = [SENT, RATE, GOODPUT, CPU, EQUAL, LOST];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    prepare_namespaces();
    let plan = args.plan();
    if plan.cells().is_empty() {
        return Err(usage("nothing would be measured: the path `direct` has no shaper"));
    }
    let steps = plan.cells().len() * plan.rounds;
    let mut run = Run::expecting(&args.common.reports, steps, expected(&plan))?;
    let found = run.measure(|steps| wire::run(&plan, steps))??;
    let lacking = found.lacking.iter().map(|(what, why)| json!({"what": what, "why": why}));
    let mut results = Map::new();
    results.insert("lacking".into(), lacking.collect());
    results.insert("rows".into(), found.cells.iter().map(|row| json(&found, row)).collect());
    let shaper = |shaper: &Option<Shaper>| shaper.map_or(Value::Null, |it| it.name().into());
    let parameters = json!({
        "paths": plan.paths.iter().map(|path| path.name()).collect::<Vec<_>>(),
        "traffic": plan.traffic.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
        "shapers": plan.shapers.iter().map(shaper).collect::<Vec<_>>(),
        "rate_bits_per_second": RATE_BITS,
        "equal_load_packets_per_second": EQUAL_LOAD,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": plan.rounds,
    });
    run.conclude("wire", parameters, results, &table(&found))
}

impl Args {
    fn plan(&self) -> Plan {
        let path = |name: &PathName| match name {
            PathName::Direct => Path::Direct,
            PathName::Bridge => Path::Bridge,
            PathName::Onramp => Path::Onramp,
            PathName::OnrampXdp => Path::OnrampXdp,
        };
        let traffic = |name: &TrafficName| match name {
            TrafficName::Small => Traffic::Small,
            TrafficName::Large => Traffic::Large,
            TrafficName::Tcp => Traffic::Tcp,
        };
        let shaper = |name: &ShaperName| match name {
            ShaperName::None => None,
            ShaperName::Tbf => Some(Shaper::Tbf),
            ShaperName::Htb => Some(Shaper::Htb),
            ShaperName::Cake => Some(Shaper::Cake),
            ShaperName::Fq => Some(Shaper::Fq),
        };
        Plan {
            paths: once(self.paths.iter().map(path)),
            traffic: once(self.traffic.iter().map(traffic)),
            shapers: once(self.shapers.iter().map(shaper)),
            window: self.common.seconds,
            rounds: self.common.rounds as usize,
        }
    }
}

/// Time that a measurement takes besides what is measured: to join the hosts, and to wait for the
/// last packets.
const OVERHEAD: Duration = Duration::from_millis(300);

/// Returns how long the measurements of `plan` take.
fn expected(plan: &Plan) -> Duration {
    let rounds = u32::try_from(plan.rounds).unwrap_or(u32::MAX);
    let each = |cell: &wire::Cell| {
        let halves = match (cell.traffic, cell.shaper) {
            (Traffic::Tcp, _) => 0,
            (_, Some(_)) => 1,
            (_, None) => 2,
        };
        (plan.window + plan.window / 2 * halves) * 6 / 5 + OVERHEAD
    };
    let cells = plan.cells();
    cells.iter().map(each).sum::<Duration>().saturating_mul(rounds)
}

/// Returns the measurement of the kernel's bridge with the same settings; `None` for itself.
fn base<'a>(found: &'a Found, row: &Measurement) -> Option<&'a Measurement> {
    let same = |other: &&Measurement| {
        other.cell.path == Path::Bridge
            && row.cell.path != Path::Bridge
            && (other.cell.traffic, other.cell.shaper) == (row.cell.traffic, row.cell.shaper)
    };
    found.cells.iter().find(same)
}

fn json(found: &Found, row: &Measurement) -> Value {
    let mut map = Map::new();
    map.insert("path".into(), row.cell.path.name().into());
    map.insert("traffic".into(), row.cell.traffic.name().into());
    map.insert("shaper".into(), row.cell.shaper.map_or(Value::Null, |it| it.name().into()));
    insert_all(&mut map, &FIGURES, |figure| figure.spread(row));
    map.insert("idle_ns".into(), percentiles(row.idle.percentiles()));
    let base = base(found, row);
    let ratio = |figure: &Figure<Round>| base.and_then(|base| figure.ratio(row, base));
    insert(&mut map, "rate_to_bridge", ratio(&RATE));
    insert(&mut map, "cpu_to_bridge", ratio(&CPU));
    insert(&mut map, "equal_load_cpu_to_bridge", ratio(&EQUAL));
    Value::Object(map)
}

fn table(found: &Found) -> String {
    let mut columns = vec![
        Column::new("path", |row: &Measurement| row.cell.path.name().to_owned()),
        Column::new("traffic", |row: &Measurement| row.cell.traffic.name().to_owned()),
        Column::new("shaper", |row: &Measurement| {
            row.cell.shaper.map_or("none", Shaper::name).to_owned()
        }),
    ];
    columns.extend(FIGURES.iter().map(Figure::column));
    columns.extend(latencies(|row: &Measurement| &row.idle));
    columns.push(RATE.ratio_column("rate", |row| base(found, row)));
    columns.push(CPU.ratio_column("CPU", |row| base(found, row)));
    columns.push(EQUAL.ratio_column("CPU at 20k/s", |row| base(found, row)));
    let mut text = common::table(&found.cells, &columns);
    for (what, why) in &found.lacking {
        // The result is ignored, because writing into a string cannot fail.
        let _ = writeln!(text, "\nthis kernel lacks {what}: {why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use onramp_lab::measure::Latency;
    use onramp_lab::wire::Cell;

    use super::*;

    /// A path is compared with the kernel's bridge that carried the same traffic with the same
    /// shaper.
    #[test]
    fn a_path_is_compared_with_the_bridge_beside_it() {
        let row = |path, traffic, shaper| {
            let cell = Cell { path, traffic, shaper };
            Measurement { cell, rounds: Vec::new(), idle: Latency::default() }
        };
        let found = Found {
            cells: vec![
                row(Path::Direct, Traffic::Tcp, None),
                row(Path::Bridge, Traffic::Tcp, Some(Shaper::Tbf)),
                row(Path::Bridge, Traffic::Tcp, None),
                row(Path::Onramp, Traffic::Tcp, None),
                row(Path::Onramp, Traffic::Small, None),
            ],
            lacking: vec![("htb", "no such qdisc".into())],
        };
        let bases = found.cells.iter().map(|row| base(&found, row).map(|base| base.cell));
        let bridge = Some(found.cells[2].cell);
        assert_eq!(bases.collect::<Vec<_>>(), [bridge, None, None, bridge, None]);
        assert!(table(&found).contains("this kernel lacks htb: no such qdisc"));
    }
}
