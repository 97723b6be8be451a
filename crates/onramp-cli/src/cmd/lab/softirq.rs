//! The command `onramp lab softirq`: compares a helper thread with work done in place.

use anyhow::Result;
use onramp_lab::softirq::{self, Design, Measurement, PACKETS_MAX, PAYLOAD, Plan, QDISC, Round};
use serde_json::{Map, Value, json};

use super::common::{self, Column, Common, Figure, Run, insert_all, latencies, percentiles};
use crate::cmd::values::whole;
use crate::error::usage;
use crate::limits;
use crate::report::json::number;

/// Experiment of 2001: a helper thread that every submission wakes, against work done in place
///
/// A client sends a burst of requests, servers answer each request, and the client sends its next
/// burst when all answers have arrived. All packets pass one queue.
///
/// wake-always: each submission calls a helper thread, which does one quota of 64 packets at a
/// time. in-place: the thread that submits does the work, up to ten quotas in a row, and calls the
/// helper only for the work that is left after that. onramp: the link in its default mode, hybrid.
/// onramp-flush: the same, but each submission ends with a flush that does not wait. onramp-inline
/// and onramp-dedicated: the link in its other modes.
///
/// There is no --load stream, because a stream would keep the helper awake, and the experiment is
/// about a helper that is woken for little work now and then. `onramp lab contention` has streams.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns:
  bursts/s      bursts answered; p50, p99, p99.9: time from first request to last answer of a burst
  switches/s    context switches of the process; per burst: for each burst answered
  called        calls of the helper or the runner. wake-always: each submission calls the helper;
                in-place: a submission that becomes owner and may leave work; the link: a port
  undone        calls that woke no thread, because the work was done in place, or the helper or
                the runner was awake or about to run in time
  notified      the other calls: they woke the thread; also calls of a runner about to sleep again
  woke          times that the helper or the runner woke, also by a timer; idle: for nothing to do
  restarts      quotas, or rounds of the runner, that were followed by another one at once

Examples:
  onramp lab softirq
  onramp lab softirq --clients 1 --burst 1
  onramp lab softirq --clients 4 --burst 64 --seconds 2 --rounds 5 --json softirq.json")]
pub(crate) struct Args {
    /// Number of clients; there are as many servers
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = whole::<u32>(1..=1_000))]
    clients: u32,
    /// Requests that a client sends at once
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = whole::<u32>(1..=4_096))]
    burst: u32,
    #[command(flatten)]
    common: Common,
}

/// The unit and the number of decimals of a figure that a table shows as a whole number.
const WHOLE: (f64, usize) = (1.0, 0);

const FIGURES: [Figure<Round>; 4] = [
    Figure::new("transactions_per_second", "bursts/s", WHOLE, |r| Some(r.transactions_per_second)),
    Figure::new("context_switches_per_second", "switches/s", WHOLE, |round| {
        Some(round.switches_per_second)
    }),
    Figure::new("context_switches_per_transaction", "per burst", (1.0, 2), |round| {
        Some(round.switches_per_second / round.transactions_per_second)
    }),
    Figure::new("cpu_ns_per_request", "CPU ns/request", WHOLE, |r| Some(r.cpu_ns_per_request)),
];

/// Figures about the helper thread or the runner.
const HELPER: [Figure<Round>; 6] = [
    Figure::new("calls_per_second", "called", WHOLE, |round| Some(round.calls_per_second)),
    Figure::new("undone_per_second", "undone", WHOLE, |round| Some(round.undone_per_second)),
    Figure::new("notifies_per_second", "notified", WHOLE, |round| Some(round.notifies_per_second)),
    Figure::new("wakeups_per_second", "woke", WHOLE, |round| Some(round.wakeups_per_second)),
    Figure::new("idle_wakeups_per_second", "idle", WHOLE, |round| {
        Some(round.idle_wakeups_per_second)
    }),
    Figure::new("restarts_per_second", "restarts", WHOLE, |round| Some(round.restarts_per_second)),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (clients, burst) = (args.clients as usize, args.burst as usize);
    if 2 * clients * burst > PACKETS_MAX {
        return Err(usage(format!(
            "--clients {clients} --burst {burst}: up to {} packets would be in flight, but the \
             queue holds {PACKETS_MAX}; use fewer clients or a smaller burst",
            2 * clients * burst
        )));
    }
    let rounds = args.common.rounds as usize;
    let plan = Plan { clients, burst, window: args.common.seconds, rounds };
    let run = Run::new(&args.common, Design::ALL.len() * rounds)?;
    limits::check(2 * clients + 2, 0)?;
    measured(run, &plan)
}

/// Measures, and writes and prints the results.
fn measured(mut run: Run, plan: &Plan) -> Result<()> {
    let cells = run.measure(|steps| softirq::run(plan, steps))?;
    let mut results = Map::new();
    results.insert("rows".into(), cells.iter().map(|cell| json(cell, base(&cells))).collect());
    let parameters = json!({
        "clients": plan.clients,
        "burst": plan.burst,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": plan.rounds,
        "payload": PAYLOAD,
        "qdisc": QDISC,
    });
    run.conclude("softirq", parameters, results, &table(&cells, plan))
}

/// Returns the measurement of the design with which all others are compared.
fn base(cells: &[Measurement]) -> Option<&Measurement> {
    cells.iter().find(|cell| cell.design == Design::WakeAlways)
}

fn json(cell: &Measurement, base: Option<&Measurement>) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), cell.design.name().into());
    insert_all(&mut map, FIGURES.iter().chain(&HELPER), |figure| figure.spread(cell));
    map.insert("latency_ns".into(), percentiles(cell.latency.percentiles()));
    map.insert("requests".into(), cell.requests.into());
    let mut ratios = Map::new();
    insert_all(&mut ratios, &FIGURES, |figure| figure.ratio(cell, base?));
    map.insert("ratios_to_wake_always".into(), ratios.into());
    Value::Object(map)
}

fn table(cells: &[Measurement], plan: &Plan) -> String {
    let Plan { clients, burst, .. } = plan;
    let with_design = |columns: &mut dyn Iterator<Item = Column<'_, Measurement>>| {
        let design = Column::new("design", |cell: &Measurement| cell.design.name().to_owned());
        common::table(cells, &[design].into_iter().chain(columns).collect::<Vec<_>>())
    };
    let latencies = latencies(|cell: &Measurement| &cell.latency);
    let figures = with_design(&mut FIGURES.iter().map(Figure::column).chain(latencies));
    let helper = with_design(&mut HELPER.iter().map(Figure::column));
    let ratio = |figure: &'static Figure<Round>| {
        figure.ratio_column(figure.header(), |_: &Measurement| base(cells))
    };
    let ratios = with_design(&mut FIGURES.iter().map(ratio));
    format!(
        "{clients} clients, {clients} servers, bursts of {burst}\n\n{figures}\n\
         Divided by the figures of wake-always in the same round:\n\n{ratios}\n\
         Events of the helper or the runner, per second:\n\n{helper}"
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A network without room for a packet cannot be made, so that even the design is missing by
    /// which the others are divided.
    #[test]
    fn all_cells_may_fail() {
        let window = Duration::from_millis(20);
        let plan = Plan { clients: 1, burst: 0, window, rounds: 2 };
        let document = Run::failed(|run| measured(run, &plan));
        let failures = document["failures"].as_array().expect("failures");
        let cells = failures.iter().map(|failure| failure["cell"].as_str());
        assert!(cells.eq(Design::ALL.map(|design| Some(design.name()))), "{failures:?}");
        assert_eq!(document["rows"].as_array().map(Vec::len), Some(0));
    }
}
