//! The command `onramp lab layout`: compares layouts of a port's fields on cache lines.

use anyhow::Result;
use onramp_lab::layout::{self, Design, Measurement, PREPARATION, Plan, Round, WORK};
use serde_json::{Map, Value, json};

use super::common::{
    self, Column, Common, Figure, LoadArgs, Run, counts, insert_all, latencies, percentiles,
};
use crate::cmd::values::whole;
use crate::limits;
use crate::report::json::number;

/// Experiment of 2009: a port's hot fields grouped by writer on cache lines, against side by side
///
/// Threads push numbers into an intake by Onramp's protocol; a thread that finds the intake idle
/// becomes its owner and works for all threads. There are no packets, no qdisc and no device: the
/// layouts differ only in the cache lines on which the fields lie. The compiler checks that
/// Onramp's own fields are grouped.
///
/// With --load rr, a thread that has pushed a burst reads the fields again and again until the
/// whole burst has left.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp lab layout
  onramp lab layout --threads 2 --pin
  onramp lab layout --threads 2,4 --pin --load rr --burst 5
  onramp lab layout --threads 2,4,8 --pin --seconds 2 --rounds 7 --json layout.json")]
pub(crate) struct Args {
    /// Numbers of threads
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4",
          value_parser = whole::<u32>(1..=10_000))]
    threads: Vec<u32>,
    /// Bind threads to processors, in turn
    #[arg(long)]
    pin: bool,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    common: Common,
}

const FIGURES: [Figure<Round>; 6] = [
    Figure::new("packets_per_second", "Mpps", (1e6, 2), |round| Some(round.packets_per_second)),
    Figure::new("cpu_ns_per_packet", "CPU ns/packet", (1.0, 1), |r| Some(r.cpu_ns_per_packet)),
    Figure::new("transactions_per_second", "bursts/s", (1.0, 0), |r| r.transactions_per_second),
    Figure::new("retries_per_packet", "retries", (1.0, 4), |r| Some(r.retries_per_packet)),
    Figure::new("owned_share", "owned %", (0.01, 1), |round| Some(round.owned_share)),
    Figure::new("refused_per_packet", "refused", (1.0, 4), |r| Some(r.refused_per_packet)),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let threads = counts(&args.threads);
    let (rounds, load) = (args.common.rounds as usize, args.load.load()?);
    let plan = Plan { threads, window: args.common.seconds, rounds, pin: args.pin, load };
    let run = Run::new(&args.common, plan.threads.len() * Design::ALL.len() * rounds)?;
    limits::check(plan.threads.iter().copied().max().unwrap_or(0), 0)?;
    measured(run, &plan)
}

/// Measures, and writes and prints the results.
fn measured(mut run: Run, plan: &Plan) -> Result<()> {
    let load = plan.load;
    let cells = run.measure(|steps| layout::run(plan, steps))??;
    let mut results = Map::new();
    results.insert("rows".into(), cells.iter().map(|cell| json(cell, &cells)).collect());
    let parameters = json!({
        "threads": plan.threads,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": plan.rounds,
        "pin": plan.pin,
        "load": load.name(),
        "burst": load.burst(),
        "work": WORK,
        "preparation": PREPARATION,
    });
    run.conclude("layout", parameters, results, &table(&cells))
}

/// Returns the measurement of the layout that groups the fields by writer, with as many threads as
/// the measurement `cell`.
fn grouped<'a>(cells: &'a [Measurement], cell: &Measurement) -> Option<&'a Measurement> {
    let grouped = (Design::Grouped, cell.threads);
    cells.iter().find(|other| (other.design, other.threads) == grouped)
}

fn json(cell: &Measurement, cells: &[Measurement]) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), cell.design.name().into());
    map.insert("threads".into(), cell.threads.into());
    map.insert("bytes".into(), cell.design.bytes().into());
    insert_all(&mut map, &FIGURES, |figure| figure.spread(cell));
    map.insert("latency_ns".into(), percentiles(cell.latency.percentiles()));
    map.insert("packets".into(), cell.packets.into());
    let mut ratios = Map::new();
    insert_all(&mut ratios, &FIGURES[..2], |figure| figure.ratio(cell, grouped(cells, cell)?));
    map.insert("ratios_to_grouped".into(), ratios.into());
    Value::Object(map)
}

fn table(cells: &[Measurement]) -> String {
    let mut columns = vec![
        Column::new("layout", |cell: &Measurement| cell.design.name().to_owned()),
        Column::new("threads", |cell: &Measurement| cell.threads.to_string()),
    ];
    columns.extend(FIGURES.iter().map(Figure::column));
    columns.extend(latencies(|cell: &Measurement| &cell.latency));
    columns.push(FIGURES[1].ratio_column("CPU to grouped", |cell| grouped(cells, cell)));
    let mut text = common::table(cells, &columns);
    text.push_str(
        "\nretries: failed compare-and-swap operations for each packet; refused: pushes for each \
         packet that were refused because too many numbers waited.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use onramp_lab::Load;

    use super::*;

    /// So many threads cannot be listed.
    #[test]
    fn a_failed_cell_leaves_the_rest() {
        let window = Duration::from_millis(20);
        let plan = Plan {
            threads: vec![usize::MAX, 1],
            window,
            rounds: 2,
            pin: false,
            load: Load::Stream,
        };
        let document = Run::failed(|run| measured(run, &plan));
        let failures = document["failures"].as_array().expect("failures");
        let cells: Vec<_> = failures.iter().map(|failure| failure["cell"].as_str()).collect();
        let all = usize::MAX;
        let want = ["grouped", "mixed"].map(|name| format!("{name}, {all} threads"));
        assert_eq!(cells, want.each_ref().map(|cell| Some(cell.as_str())));
        assert_eq!(document["interrupted"], false);
        let rows = document["rows"].as_array().expect("rows");
        let designs: Vec<_> = rows.iter().map(|row| row["design"].as_str()).collect();
        assert_eq!(designs, ["grouped", "mixed"].map(Some));
    }
}
