//! `onramp lab softirq`.

use std::fmt::Write;

use anyhow::Result;
use onramp_lab::lockstat::time;
use onramp_lab::measure::Rounds as _;
use onramp_lab::softirq::{self, Cell, Design, PACKETS_MAX, PAYLOAD, Plan, QDISC, Round};
use serde_json::{Map, Value, json};

use super::common::{Common, Run, figure, insert, percentiles};
use crate::error::usage;
use crate::limits;
use crate::report::json::number;

/// 2001: a helper thread woken each time against work done in place, restarted, then left to it
///
/// Clients send a burst of requests, servers answer each, and a client goes on when all answers
/// are there. All packets pass one queue. wake-always: each submission wakes a helper thread, which
/// does one quota of 64 packets at a time. in-place: who submits does the work, up to ten quotas in
/// a row, and wakes the helper only for what is left then. onramp: the link, with its runner;
/// onramp-flush: the same, and each submission ends with a flush that does not wait.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp lab softirq
  onramp lab softirq --clients 1 --burst 1
  onramp lab softirq --clients 4 --burst 64 --seconds 2 --rounds 5 --json softirq.json")]
pub(crate) struct Args {
    /// Clients, and as many servers
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clients: u32,
    /// Requests that a client sends at once
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=4_096))]
    burst: u32,
    #[command(flatten)]
    common: Common,
}

/// A figure of a round, and its key.
type Figure = (&'static str, fn(&Round) -> f64);

const FIGURES: [Figure; 5] = [
    ("transactions_per_second", |round| round.transactions_per_second),
    ("context_switches_per_second", |round| round.switches_per_second),
    ("wakeups_per_second", |round| round.wakeups_per_second),
    ("restarts_per_second", |round| round.restarts_per_second),
    ("cpu_ns_per_request", |round| round.cpu_ns_per_request),
];

/// Context switches for each burst that was answered.
fn switches(round: &Round) -> f64 {
    round.switches_per_second / round.transactions_per_second
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (clients, burst) = (args.clients as usize, args.burst as usize);
    if 2 * clients * burst > PACKETS_MAX {
        return Err(usage(format!(
            "--clients {clients} --burst {burst}: {} packets may be on their way, and the queue \
             holds {PACKETS_MAX}; use fewer clients or a smaller burst",
            2 * clients * burst
        )));
    }
    let rounds = args.common.rounds as usize;
    let plan = Plan { clients, burst, window: args.common.seconds, rounds };
    let mut run = Run::new(&args.common, Design::ALL.len() * rounds)?;
    limits::check(2 * clients + 2, 0)?;
    let cells = softirq::run(&plan, |text| run.show(text))?;
    let mut results = Map::new();
    results.insert("rows".into(), cells.iter().map(|cell| json(cell, &cells[0])).collect());
    let parameters = json!({
        "clients": clients,
        "burst": burst,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": rounds,
        "payload": PAYLOAD,
        "qdisc": QDISC,
    });
    run.conclude("softirq", parameters, results, &table(&cells, &plan))
}

fn json(cell: &Cell, base: &Cell) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), cell.design.name().into());
    for (name, of) in FIGURES {
        insert(&mut map, name, cell.spread(of));
    }
    let undone = cell.spread(|round| round.undone_per_second.unwrap_or(f64::NAN));
    insert(&mut map, "undone_per_second", undone.filter(|spread| !spread.max.is_nan()));
    insert(&mut map, "context_switches_per_transaction", cell.spread(switches));
    map.insert("latency_ns".into(), percentiles(cell.latency.percentiles()));
    map.insert("requests".into(), cell.requests.into());
    let mut ratios = Map::new();
    for (name, of) in [FIGURES[0], FIGURES[1], FIGURES[4]] {
        insert(&mut ratios, name, cell.ratio(base, of));
    }
    insert(&mut ratios, "context_switches_per_transaction", cell.ratio(base, switches));
    map.insert("ratios_to_wake_always".into(), ratios.into());
    Value::Object(map)
}

fn table(cells: &[Cell], plan: &Plan) -> String {
    let Plan { clients, burst, .. } = plan;
    let mut text = format!("{clients} clients, {clients} servers, bursts of {burst}\n\n");
    let median = |cell: &Cell, of: fn(&Round) -> f64| {
        cell.spread(of).map_or_else(|| "-".to_owned(), |spread| format!("{:.0}", spread.median))
    };
    // Writing into a string cannot fail.
    let _ = writeln!(
        text,
        "{:<12} {:>22} {:>12} {:>10} {:>10} {:>11} {:>14} {:>9} {:>9} {:>9}",
        "design",
        "bursts/s",
        "switches/s",
        "per burst",
        "wake-ups/s",
        "undone/s",
        "CPU ns/request",
        "p50",
        "p99",
        "p99.9"
    );
    for cell in cells {
        let undone = cell.rounds.iter().all(|round| round.undone_per_second.is_some());
        let undone = if undone {
            median(cell, |round| round.undone_per_second.unwrap_or(0.0))
        } else {
            "-".to_owned()
        };
        let [p50, p99, p999] = cell.latency.percentiles().map_or_else(
            || std::array::from_fn(|_| "-".to_owned()),
            |ns| [ns.p50, ns.p99, ns.p999].map(|ns| time(ns as f64)),
        );
        let per_burst = cell.spread(switches);
        let _ = writeln!(
            text,
            "{:<12} {:>22} {:>12} {:>10} {:>10} {:>11} {:>14} {:>9} {:>9} {:>9}",
            cell.design.name(),
            figure(cell.spread(FIGURES[0].1), 1.0, 0),
            median(cell, FIGURES[1].1),
            per_burst.map_or_else(String::new, |spread| format!("{:.2}", spread.median)),
            median(cell, FIGURES[2].1),
            undone,
            median(cell, FIGURES[4].1),
            p50,
            p99,
            p999
        );
    }
    text.push_str("\nTo wake-always, in the same round:\n");
    for cell in &cells[1..] {
        let of = |of: fn(&Round) -> f64| figure(cell.ratio(&cells[0], of), 1.0, 2);
        let _ = writeln!(
            text,
            "{:<12} bursts/s {}, switches per burst {}, CPU {}",
            cell.design.name(),
            of(FIGURES[0].1),
            of(switches),
            of(FIGURES[4].1)
        );
    }
    text
}
