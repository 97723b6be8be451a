//! Results for people at a terminal.

use std::fmt::Write;

use onramp_lab::contention::{Design, Ratio, Row};
use onramp_lab::lockstat::{LockRow, lockmeter_table, perf_table};
use onramp_lab::measure::{Percentiles, Spread};

use super::Results;
use crate::report::table::{align, duration};

/// Tables by number of threads, then locks, then histograms if wanted.
pub(super) fn contention(results: &Results, histograms: bool) -> String {
    let Results { machine, plan, rows } = results;
    let mut text = format!("{}\n", machine.summary());
    if let Some(warning) = machine.was_busy() {
        let _ = writeln!(text, "{warning}");
    }
    let _ = writeln!(
        text,
        "{} x {} s each, qdisc {}, {} queue(s), null device, {} ns a packet: median (min - max)",
        plan.rounds,
        plan.window.as_secs_f64(),
        plan.qdisc,
        plan.queues,
        plan.device_ns,
    );
    let ratios = Ratio::of(rows, Design::BASE);
    for threads in &plan.threads {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.threads == *threads).collect();
        let _ = writeln!(text, "\n{threads} thread(s)");
        text.push_str(&figures(&rows, &ratios));
        text.push_str(&locks(&rows, machine.cpus));
        if histograms {
            for row in rows {
                let name = row.design.name();
                let _ = writeln!(text, "\n@send_ns[{name}, {threads} threads], 1 call in 16:");
                text.push_str(&row.send.octaves().render());
            }
        }
    }
    text
}

fn figures(rows: &[&Row], ratios: &[Ratio]) -> String {
    let header = [
        "design",
        "Mpps",
        "CPU ns/packet",
        "x busylock",
        "CPUs",
        "switches/s",
        "send p50",
        "p99",
        "p99.9",
        "max",
        "staged p50",
        "p99",
        "to device p50",
        "p99",
        "batch",
        "fairness",
        "drops",
    ];
    let mut cells = vec![header.map(str::to_owned).to_vec()];
    cells.extend(rows.iter().map(|row| line(row, ratios)));
    align(&cells)
}

fn line(row: &Row, ratios: &[Ratio]) -> Vec<String> {
    let ratio = ratios.iter().find(|r| r.design == row.design && r.threads == row.threads);
    let ratio = ratio.and_then(|ratio| ratio.cpu_ns_per_packet);
    let spread = |spread: Option<Spread>, unit: f64, digits: usize| {
        spread.map_or_else(dash, |s| {
            let [median, min, max] = [s.median, s.min, s.max].map(|value| value / unit);
            format!("{median:.digits$} ({min:.digits$} - {max:.digits$})")
        })
    };
    let median = |spread: Option<Spread>, digits: usize| {
        spread.map_or_else(dash, |s| format!("{:.digits$}", s.median))
    };
    let mean = |mean: Option<f64>| mean.map_or_else(dash, |mean| format!("{mean:.1}"));
    let [p50, p99, p999, max] = latencies(row.send.percentiles());
    let [staged, staged_p99, ..] = latencies(row.staging());
    let [delay, delay_p99, ..] = latencies(row.delay.percentiles());
    let drops: u64 = row.drops.values().sum();
    vec![
        row.design.name().to_owned(),
        spread(row.packets_per_second(), 1e6, 3),
        spread(row.cpu_ns_per_packet(), 1.0, 0),
        median(ratio, 3),
        median(row.cpus(), 2),
        median(row.context_switches_per_second(), 0),
        p50,
        p99,
        p999,
        max,
        staged,
        staged_p99,
        delay,
        delay_p99,
        mean(row.bursts.mean()),
        median(row.jain(), 2),
        if drops == 0 { "0".to_owned() } else { drops.to_string() },
    ]
}

fn latencies(ns: Option<Percentiles>) -> [String; 4] {
    ns.map_or_else(
        || std::array::from_fn(|_| dash()),
        |ns| [ns.p50, ns.p99, ns.p999, ns.max].map(duration),
    )
}

fn dash() -> String {
    "-".to_owned()
}

/// Both tables of all locks, named after their designs.
fn locks(rows: &[&Row], cpus: usize) -> String {
    let locks = |row: &&Row| {
        let design = row.design.name();
        let named =
            |lock: &LockRow| LockRow { name: format!("{design}: {}", lock.name), ..lock.clone() };
        row.locks.iter().map(named).collect::<Vec<_>>()
    };
    let locks: Vec<LockRow> = rows.iter().flat_map(locks).collect();
    if locks.is_empty() {
        return String::new();
    }
    format!("\n{}\n{}", perf_table(&locks), lockmeter_table(&locks, cpus))
}
