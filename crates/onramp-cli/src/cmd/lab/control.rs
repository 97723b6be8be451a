//! The command `onramp lab control`: measures what a sender loses while another thread reads or
//! changes its qdiscs.

use anyhow::Result;
use onramp_lab::control::{self, Measurement, PAYLOAD, Plan, Round};
use serde_json::{Map, Value, json};

use super::common::{self, Column, Common, Figure, Run, insert_all, latencies, percentiles};
use crate::cmd::values::whole;
use crate::report::json::number;

/// What it costs a sender that another thread reads the counters of its qdiscs, or changes them
///
/// One thread sends as fast as it can. queues: it sends through one of many queues. queues-read:
/// meanwhile another thread reads the counters of all qdiscs of the link, again and again.
/// queues-elsewhere: the other thread reads the counters of another link, through which no thread
/// sends, to show what its processor time alone costs the sender. tree: the sender sends through
/// htb and fq. tree-changed: meanwhile another thread changes limits and rates, and replaces a
/// qdisc by another kind and back, --changes times a second. A measurement fails if a packet is
/// neither sent nor counted as dropped by a qdisc that was replaced.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns:
  packets/s     packets that the sender submitted, per second
  dropped %     share of these packets that a qdisc held when it was replaced
  stall us      the longest time that the sender needed for one packet
  times/s       readings of all queues, or changes, per second; p50, p99, p99.9: how long one takes
  x undisturbed packets/s divided by that of the design without a second thread
  x elsewhere   packets/s of queues-read divided by that of queues-elsewhere

Examples:
  onramp lab control
  onramp lab control --queues 10000 --readings 1 --changes 1000 --seconds 10
  onramp lab control --queues 100 --rounds 5 --json control.json")]
pub(crate) struct Args {
    /// Number of queues of the link whose counters are read
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = whole::<u32>(1..=65_535))]
    queues: u32,
    /// Limit on the readings of all queues per second; 0: one after another without a pause
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = whole::<u32>(0..=4_294_967_295))]
    readings: u32,
    /// Changes per second
    #[arg(long, value_name = "N", default_value_t = 1_000,
          value_parser = whole::<u32>(1..=1_000_000))]
    changes: u32,
    #[command(flatten)]
    common: Common,
}

const FIGURES: [Figure<Round>; 4] = [
    Figure::new("packets_per_second", "packets/s", (1.0, 0), |r| Some(r.packets_per_second)),
    Figure::new("dropped_share", "dropped %", (0.01, 3), |round| Some(round.dropped_share)),
    Figure::new("stall_max_ns", "stall us", (1e3, 0), |round| Some(round.stall_max_ns)),
    Figure::new("operations_per_second", "times/s", (1.0, 0), |r| r.operations_per_second),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let rounds = args.common.rounds as usize;
    let (queues, readings, changes) = (args.queues as usize, args.readings, args.changes);
    let plan = Plan { queues, readings, changes, window: args.common.seconds, rounds };
    let run = Run::new(&args.common, control::Design::ALL.len() * rounds)?;
    measured(run, &plan)
}

/// Measures, and writes and prints the results.
fn measured(mut run: Run, plan: &Plan) -> Result<()> {
    let cells = run.measure(|steps| control::run(plan, steps))?;
    let mut results = Map::new();
    results.insert("rows".into(), cells.iter().map(|cell| json(cell, &cells)).collect());
    let parameters = json!({
        "queues": plan.queues,
        "readings": plan.readings,
        "changes": plan.changes,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": plan.rounds,
        "payload": PAYLOAD,
    });
    run.conclude("control", parameters, results, &table(&cells))
}

/// Returns the measurement in which one thread sent as in the measurement `cell`, while no other
/// thread read or changed qdiscs.
fn base<'a>(cells: &'a [Measurement], cell: &Measurement) -> Option<&'a Measurement> {
    cells.iter().find(|other| other.design == cell.design.undisturbed())
}

/// If, in the measurement `cell`, another thread read the counters of the sender's link, returns
/// the measurement in which that thread read the counters of another link; otherwise `None`.
fn elsewhere<'a>(cells: &'a [Measurement], cell: &Measurement) -> Option<&'a Measurement> {
    cells.iter().find(|other| Some(other.design) == cell.design.elsewhere())
}

fn json(cell: &Measurement, cells: &[Measurement]) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), cell.design.name().into());
    insert_all(&mut map, &FIGURES, |figure| figure.spread(cell));
    map.insert("operation_ns".into(), percentiles(cell.operation.percentiles()));
    map.insert("packets".into(), cell.packets.into());
    let mut ratios = Map::new();
    insert_all(&mut ratios, &FIGURES[..1], |figure| figure.ratio(cell, base(cells, cell)?));
    map.insert("ratios_to_undisturbed".into(), ratios.into());
    let mut ratios = Map::new();
    insert_all(&mut ratios, &FIGURES[..1], |figure| figure.ratio(cell, elsewhere(cells, cell)?));
    map.insert("ratios_to_elsewhere".into(), ratios.into());
    Value::Object(map)
}

fn table(cells: &[Measurement]) -> String {
    let mut columns =
        vec![Column::new("design", |cell: &Measurement| cell.design.name().to_owned())];
    columns.extend(FIGURES.iter().map(Figure::column));
    columns.extend(latencies(|cell: &Measurement| &cell.operation));
    columns.push(FIGURES[0].ratio_column("x undisturbed", |cell| base(cells, cell)));
    columns.push(FIGURES[0].ratio_column("x elsewhere", |cell| elsewhere(cells, cell)));
    common::table(cells, &columns)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A link without queues cannot be made.
    #[test]
    fn a_failed_cell_leaves_the_rest() {
        let window = Duration::from_millis(20);
        let plan = Plan { queues: 0, readings: 0, changes: 100, window, rounds: 2 };
        let document = Run::failed(|run| measured(run, &plan));
        let failures = document["failures"].as_array().expect("failures");
        let cells: Vec<_> = failures.iter().map(|failure| failure["cell"].as_str()).collect();
        assert_eq!(cells, ["queues", "queues-elsewhere", "queues-read"].map(Some));
        assert_eq!(document["interrupted"], false);
        let rows = document["rows"].as_array().expect("rows");
        let designs: Vec<_> = rows.iter().map(|row| row["design"].as_str()).collect();
        assert_eq!(designs, ["tree", "tree-changed"].map(Some));
        assert!(rows[1]["ratios_to_undisturbed"]["packets_per_second"].is_number(), "{rows:?}");
    }
}
