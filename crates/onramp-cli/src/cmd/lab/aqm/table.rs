//! Results of `onramp lab aqm` for people.

use std::fmt::Write;

use onramp_sim::Histogram;
use onramp_sim::aqm::{Measurement, Plan, Scenario, Subject, TRIPS_MS};

use crate::cmd::lab::common::{self, Column};
use crate::report::table::dash;

/// Returns a table for each scenario, after the settings that all of them share.
pub(super) fn all(
    plan: &Plan,
    scenarios: &[Scenario],
    subjects: &[Subject],
    cells: &[Measurement],
) -> String {
    let mut text = format!(
        "{}, {} s after {} s of warm-up, seed {}\n\n",
        plan.rate,
        plan.seconds,
        plan.warm_up_seconds(),
        plan.seed
    );
    // List each qdisc with its parameters. Include the parameter that turns ECN on only if the
    // scenario `ecn` is the only one that ran.
    for subject in subjects {
        let _ = writeln!(text, "{}", subject.line(scenarios == [Scenario::Ecn], plan.rate));
    }
    for scenario in scenarios {
        let cells: Vec<_> = cells.iter().filter(|cell| cell.scenario == *scenario).collect();
        if !cells.is_empty() {
            let _ = write!(text, "\n{}: {}\n{}", scenario.name(), scenario.about(), one(&cells));
        }
    }
    text
}

/// Returns the table of one scenario.
fn one(cells: &[&Measurement]) -> String {
    let percent = |share: f64, digits: usize| format!("{:.digits$}", share * 100.0);
    let optional = |text: Option<String>| text.unwrap_or_else(dash);
    let mut columns = vec![
        Column::new("qdisc", |cell: &&Measurement| cell.subject.name().to_owned()),
        Column::new("goodput Mbit/s", |cell: &&Measurement| format!("{:.2}", cell.goodput() / 1e6)),
        Column::new("link %", move |cell: &&Measurement| percent(cell.utilisation(), 1)),
        Column::new("delay ms p50", |cell: &&Measurement| ms(cell.delays(), 500)),
        Column::new("p95", |cell: &&Measurement| ms(cell.delays(), 950)),
        Column::new("p99", |cell: &&Measurement| ms(cell.delays(), 990)),
        Column::new("dropped %", move |cell: &&Measurement| percent(cell.dropped_share(), 2)),
        Column::new("marked %", move |cell: &&Measurement| {
            optional(cell.scenario.marks().then(|| percent(cell.marked_share(), 2)))
        }),
        Column::new("Jain", move |cell: &&Measurement| {
            optional(cell.jain().map(|jain| format!("{jain:.3}")))
        }),
        Column::new("of fair %", move |cell: &&Measurement| {
            optional(cell.share_of_fair().map(|share| percent(share, 1)))
        }),
        Column::new("short flow ms p50", |cell: &&Measurement| later(cell.completions(), 500)),
        Column::new("p95", |cell: &&Measurement| later(cell.completions(), 950)),
        Column::new("call ms p99", |cell: &&Measurement| later(cell.voice_delays(), 990)),
        Column::new("video dropped %", move |cell: &&Measurement| {
            optional(cell.video_dropped_share().map(|share| percent(share, 2)))
        }),
    ];
    columns.extend(TRIPS_MS.iter().enumerate().map(|(place, trip)| {
        Column::new(format!("{trip} ms"), move |cell: &&Measurement| {
            let flow = cell.flows().get(place).filter(|_| cell.scenario == Scenario::RttMix);
            optional(flow.map(|flow| format!("{:.2}", cell.bits_per_second(flow) / 1e6)))
        })
    }));
    common::table(cells, &columns)
}

fn ms(all: &Histogram, part: u32) -> String {
    all.per_mille(part).map_or_else(dash, |ns| format!("{:.1}", ns as f64 / 1e6))
}

fn later(all: Option<&Histogram>, part: u32) -> String {
    all.map_or_else(dash, |all| ms(all, part))
}
