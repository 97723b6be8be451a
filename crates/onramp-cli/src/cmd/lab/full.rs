//! The command `onramp lab full`: measures a call of `try_send` that a full link refuses.

use anyhow::Result;
use onramp_lab::full::{self, BUSY_TURNS, CREDITS, Measurement, PAYLOAD, Plan, QDISC, Round};
use onramp_lab::lockstat::time;
use onramp_lab::measure::Percentiles;
use serde_json::{Map, Value, json};

use super::common::{self, Column, Common, Figure, Run, counts, insert_all, percentiles};
use crate::cmd::values::whole;
use crate::error::usage;
use crate::report::json::number;

/// What try_send costs when the link is full and refuses the call
///
/// Every port holds packets that may not leave for a long time, so every port has asked the runner
/// for a visit. One sender has used up its credits and calls try_send again and again (try-send).
/// Each call is measured by the monotonic clock and by the thread's CPU clock. The CPU clock also
/// counts interrupts. To show their part, a fixed computation of about half a microsecond is
/// measured in the same way after each call (busy): if it takes longer at times, the machine is the
/// cause. The longer a call, the more interrupts fall into it, so calls of more than 20 us are
/// counted per second of CPU time. A measurement fails if a call is not refused, if a packet
/// leaves, or if the packet counts do not add up.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns:
  calls         number of calls, or of computations, in all rounds
  own ...       CPU time of the thread in one call, less that of an empty pair of clock readings
  max/round us  the longest own time in each round
  >20us/s       calls of more than 20 us of CPU time, for each second of CPU time
  took ...      time by the monotonic clock, including its readings and whatever else ran meanwhile
  ports/call    number of ports for which one call did work
  readings      median CPU time, and median elapsed time, of an empty pair of clock readings

Examples:
  onramp lab full
  onramp lab full --ports 1,4096 --seconds 10 --rounds 5
  onramp lab full --ports 1,16,256 --json full.json --html full.html")]
pub(crate) struct Args {
    /// Numbers of ports; each port holds packets
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,16,256,4096",
          value_parser = whole::<u32>(1..=16_384))]
    ports: Vec<u32>,
    #[command(flatten)]
    common: Common,
}

const FIGURES: [Figure<Round>; 3] = [
    Figure::new("own_max_ns", "max/round us", (1e3, 2), |round| Some(round.own_max_ns)),
    Figure::new("long_per_cpu_second", ">20us/s", (1.0, 0), |round| {
        Some(round.long_per_cpu_second)
    }),
    Figure::new("ports_per_call", "ports/call", (1.0, 1), |round| round.ports_per_call),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (rounds, window) = (args.common.rounds as usize, args.common.seconds);
    if window > full::WINDOW_MAX {
        return Err(usage(format!(
            "--seconds {}: at most {}, because later packets begin to leave; use more rounds",
            window.as_secs_f64(),
            full::WINDOW_MAX.as_secs()
        )));
    }
    let plan = Plan { ports: counts(&args.ports), window, rounds };
    let run = Run::new(&args.common, plan.ports.len() * rounds)?;
    measured(run, &plan)
}

/// Measures, and writes and prints the results.
fn measured(mut run: Run, plan: &Plan) -> Result<()> {
    let cells = run.measure(|steps| full::run(plan, steps))?;
    let mut results = Map::new();
    results.insert("rows".into(), cells.iter().map(json).collect());
    let parameters = json!({
        "ports": plan.ports,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": plan.rounds,
        "qdisc": QDISC,
        "payload": PAYLOAD,
        "credits": CREDITS,
        "busy_turns": BUSY_TURNS,
    });
    run.conclude("full", parameters, results, &table(&cells))
}

fn json(cell: &Measurement) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), cell.design.name().into());
    map.insert("ports".into(), cell.ports.into());
    map.insert("calls".into(), cell.calls.took.samples().into());
    map.insert("refused".into(), cell.refused.map_or(Value::Null, Value::from));
    map.insert("own_ns".into(), percentiles(cell.own()));
    map.insert("took_ns".into(), percentiles(cell.calls.took.percentiles()));
    insert_all(&mut map, &FIGURES, |figure| figure.spread(cell));
    map.insert("readings_cpu_ns".into(), cell.readings_cpu_ns().into());
    map.insert("readings_took_ns".into(), cell.readings_took_ns().into());
    Value::Object(map)
}

fn table(cells: &[Measurement]) -> String {
    let mut columns = vec![
        Column::new("design", |cell: &Measurement| cell.design.name().to_owned()),
        Column::new("ports", |cell: &Measurement| cell.ports.to_string()),
        Column::new("calls", |cell: &Measurement| cell.calls.took.samples().to_string()),
    ];
    columns.extend(durations("own", Measurement::own));
    columns.extend(FIGURES[..2].iter().map(Figure::column));
    columns.extend(durations("took", |cell| cell.calls.took.percentiles()));
    columns.push(FIGURES[2].column());
    columns.push(Column::new("readings", |cell: &Measurement| {
        let [cpu, took] =
            [cell.readings_cpu_ns(), cell.readings_took_ns()].map(|ns| time(ns as f64));
        format!("{cpu}, {took}")
    }));
    common::table(cells, &columns)
}

/// Returns columns with percentiles. The header of each column begins with `what`, the name of the
/// measured time.
fn durations(
    what: &str,
    of: fn(&Measurement) -> Option<Percentiles>,
) -> impl Iterator<Item = Column<'static, Measurement>> {
    let column = |name: &str, part: fn(Percentiles) -> u64| {
        Column::new(format!("{what} {name}"), move |cell| {
            of(cell).map_or_else(String::new, |ns| time(part(ns) as f64))
        })
    };
    let columns = [
        column("p50", |ns| ns.p50),
        column("p99", |ns| ns.p99),
        column("p99.9", |ns| ns.p999),
        column("max", |ns| ns.max),
    ];
    columns.into_iter()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A link without ports cannot be made.
    #[test]
    fn a_failed_cell_leaves_the_rest() {
        let window = Duration::from_millis(20);
        let plan = Plan { ports: vec![0, 1], window, rounds: 2 };
        let document = Run::failed(|run| measured(run, &plan));
        let failures = document["failures"].as_array().expect("failures");
        let cells: Vec<_> = failures.iter().map(|failure| failure["cell"].as_str()).collect();
        assert_eq!(cells, ["0 port(s)"].map(Some));
        assert_eq!(document["interrupted"], false);
        let rows = document["rows"].as_array().expect("rows");
        let designs: Vec<_> = rows.iter().map(|row| row["design"].as_str()).collect();
        assert_eq!(designs, ["try-send", "busy"].map(Some));
    }
}
