//! Results of `onramp lab contention` for people at a terminal.

use std::fmt::Write;

use onramp_lab::contention::{Design, Manners, Plan, Ratio, Row};
use onramp_lab::lockstat::{LockRow, lockmeter_table, perf_table};
use onramp_lab::measure::{Percentiles, Spread};
use onramp_lab::memory::Memory;

use super::Results;
use crate::report::table::{align, dash, duration};

/// The note under a table with more threads than processors.
const CROWDED: &str = "\
More threads than CPUs: a kernel never preempts a thread that holds a spinlock, but here such a
thread can be preempted at any time.
";

/// Returns the report. For each number of threads and each kind of manners, it has tables of
/// figures, locks and packet memory, and histograms if `histograms` is true.
pub(super) fn contention(results: &Results, histograms: bool) -> String {
    let Results { cpus, plan, rows } = results;
    let mut text = String::new();
    text.push_str(&heading(plan));
    let ratios = [Ratio::to_onramp(rows), Ratio::to_base(rows)];
    let tables = plan.threads.iter().flat_map(|n| plan.manners.iter().map(move |m| (*n, *m)));
    for (threads, manners) in tables {
        let here = |row: &&Row| (row.threads, row.manners) == (threads, manners);
        let rows: Vec<&Row> = rows.iter().filter(here).collect();
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{threads} thread(s), {}", manner(manners));
        text.push_str(&figures(&rows, &ratios));
        if threads > *cpus {
            text.push_str(CROWDED);
        }
        text.push_str(&locks(&rows, *cpus));
        text.push_str(&packet_memory(&rows));
        if histograms {
            for row in rows {
                let name = name(row);
                let _ = writeln!(text, "\n@send_ns[{name}, {threads} threads], 1 call in 16:");
                text.push_str(&row.send.octaves().render());
            }
        }
    }
    text
}

/// Returns what all tables have in common, and which designs have neither the qdisc nor the device.
fn heading(plan: &Plan) -> String {
    let (bare, paths): (Vec<Design>, Vec<Design>) =
        plan.designs.iter().partition(|design| design.is_peer());
    let behind = if paths.is_empty() {
        "no qdisc, no device".to_owned()
    } else {
        let Plan { qdisc, queues, device_ns, .. } = plan;
        format!("qdisc {qdisc}, {queues} queue(s), null device, {device_ns} ns a packet")
    };
    let (rounds, seconds) = (plan.rounds, plan.window.as_secs_f64());
    let mut text = format!("{rounds} x {seconds} s each, {behind}: median (min - max)\n");
    if !paths.is_empty() && !bare.is_empty() {
        let names: Vec<_> = bare.iter().map(|design| design.name()).collect();
        let _ = writeln!(text, "bare queues, without qdisc and device: {}", names.join(", "));
    }
    text
}

fn manner(manners: Manners) -> &'static str {
    match manners {
        Manners::Linux => "each design as it originally was",
        Manners::Equal => "all designs with the manners of Onramp",
    }
}

fn figures(rows: &[&Row], ratios: &[Vec<Ratio>; 2]) -> String {
    let header = [
        "design",
        "Mpps",
        "CPU ns/packet",
        "x onramp",
        "x busylock",
        "CPUs",
        "switches/s",
        "send p50",
        "p99",
        "p99.9",
        "max",
        "accept p50",
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

fn line(row: &Row, ratios: &[Vec<Ratio>; 2]) -> Vec<String> {
    let [to_onramp, to_busylock] = ratios.each_ref().map(|ratios| {
        ratios.iter().find(|ratio| ratio.is_of(row)).and_then(|ratio| ratio.cpu_ns_per_packet)
    });
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
    let [accept, accept_p99, accept_p999, accept_max] = latencies(row.accept.percentiles());
    let [staged, staged_p99, ..] = latencies(row.staging());
    let [delay, delay_p99, ..] = latencies(row.delay.percentiles());
    let drops: u64 = row.drops.values().sum();
    vec![
        name(row),
        spread(row.packets_per_second(), 1e6, 3),
        spread(row.cpu_ns_per_packet(), 1.0, 0),
        spread(to_onramp, 1.0, 2),
        median(to_busylock, 3),
        median(row.cpus(), 2),
        median(row.context_switches_per_second(), 0),
        p50,
        p99,
        p999,
        max,
        accept,
        accept_p99,
        accept_p999,
        accept_max,
        staged,
        staged_p99,
        delay,
        delay_p99,
        mean(row.bursts.mean()),
        median(row.jain(), 2),
        if drops == 0 { "0".to_owned() } else { drops.to_string() },
    ]
}

/// Returns the name of a row: the name of the design, followed by the settings of the row that are
/// not the default.
fn name(row: &Row) -> String {
    let mut name = row.design.name().to_owned();
    if let Some(credits) = row.credits {
        let _ = write!(name, ", {credits} credits");
    }
    if row.memory != Memory::Pool {
        let _ = write!(name, ", {}", row.memory.name());
    }
    name
}

fn latencies(ns: Option<Percentiles>) -> [String; 4] {
    ns.map_or_else(
        || std::array::from_fn(|_| dash()),
        |ns| [ns.p50, ns.p99, ns.p999, ns.max].map(duration),
    )
}

/// Returns the table about packet memory: where packets were allocated, and which threads freed
/// them.
fn packet_memory(rows: &[&Row]) -> String {
    let header = [
        "packet memory",
        "taken",
        "own cache %",
        "freed by others %",
        "batches",
        "packets/batch",
        "contended",
        "% of batches",
        "take p50",
        "p99",
        "give p50",
        "p99",
    ];
    let mut cells = vec![header.map(str::to_owned).to_vec()];
    cells.extend(rows.iter().map(|row| {
        let notes = &row.packets;
        let share = |part: u64, of: u64| {
            if of == 0 { dash() } else { format!("{:.2}", 100.0 * part as f64 / of as f64) }
        };
        let contended = notes.repeated;
        let [take, take_p99, ..] = latencies(notes.take.percentiles());
        let [give, give_p99, ..] = latencies(notes.give.percentiles());
        vec![
            name(row),
            notes.taken.to_string(),
            share(notes.taken.saturating_sub(notes.allocated), notes.taken),
            share(notes.foreign, notes.freed),
            notes.batches.to_string(),
            notes.packets_per_batch().map_or_else(dash, |packets| format!("{packets:.1}")),
            contended.map_or_else(dash, |times| times.to_string()),
            contended.map_or_else(dash, |times| share(times, notes.batches)),
            take,
            take_p99,
            give,
            give_p99,
        ]
    }));
    format!("\n{}", align(&cells))
}

/// Returns the two tables about locks, with all locks of all designs. The name of each lock begins
/// with the name of its design.
fn locks(rows: &[&Row], cpus: usize) -> String {
    let locks = |row: &&Row| {
        let design = name(row);
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
