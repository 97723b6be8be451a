//! The hidden command `onramp sim draw`: simulates one scenario with one draw of all parameters.
//!
//! `onramp sim run` and `onramp sim sweep` start one process for each draw. A process of its own
//! has memory of its own, in which the same things lie at the same places of a cache line every
//! time, so the same seed gives the same result; and draws run on several processors at a time.

use std::collections::BTreeMap;
use std::io::{self, Read};

use anyhow::{Context as _, Result, anyhow};
use hdrhistogram::Histogram;
use onramp_multicore::{
    Changes, DesignOutcome, Experiment, LockRow, Outcome, Pacing, Report, Scenario, fields, place,
};
use serde_json::{Value, json};

use crate::cmd::values::seed;
use crate::output;
use crate::report::json::number;

/// Number of places in the source and of fields that a result lists: those that processors waited
/// longest for.
const SITES: usize = 10;

/// Simulates the scenario that stands on standard input, with one draw of all parameters
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp sim draw --seed 1 < my-load.toml")]
pub(crate) struct Args {
    /// Seed of the draw; 0 takes the middle of each interval
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = seed)]
    seed: u64,
    /// Send through this design of the laboratory instead of a link
    #[arg(long, value_name = "NAME", conflicts_with = "experiment")]
    design: Option<String>,
    /// Repeat this published measurement instead of a scenario
    #[arg(long, value_name = "NAME")]
    experiment: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(name) = &args.experiment {
        let figures = Experiment::named(name)?.simulate(args.seed);
        let figures = figures.map_err(|why| anyhow!("{name}: {why}"))?;
        return output::print(&format!("{}\n", json!(figures)));
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).context("cannot read the scenario")?;
    let scenario = Scenario::read(&text).map_err(|why| anyhow!("the scenario: {why}"))?;
    let document = match &args.design {
        None => {
            let load = scenario.draw(args.seed)?;
            let outcome = load.simulate().map_err(|why| anyhow!("{why}"))?;
            json(&scenario, args.seed, &Figures::of_link(&outcome))
        }
        Some(design) => {
            let outcome = scenario.simulate_design(design, args.seed)?;
            json(&scenario, args.seed, &Figures::of_design(&outcome))
        }
    };
    output::print(&format!("{document}\n"))
}

/// What happened in the measured time, whichever design sent.
struct Figures<'a> {
    sent: u64,
    accepted: u64,
    /// `None` if it was not counted.
    refused: Option<u64>,
    dropped: u64,
    report: &'a Report,
    locks: &'a [LockRow],
    send_ns: Value,
    /// `None` if it was not measured.
    send_work_max_ns: Option<u64>,
    /// `None` without pacing, and without commands.
    gaps: Option<&'a Histogram<u64>>,
    changes: Option<&'a Changes>,
    /// How many calls took at least so many nanoseconds, and less than twice as many.
    octaves: BTreeMap<u64, u64>,
}

impl<'a> Figures<'a> {
    fn of_link(outcome: &'a Outcome) -> Self {
        let sends = &outcome.sends;
        let mut octaves = BTreeMap::new();
        for value in sends.iter_recorded() {
            let from = 1_u64 << value.value_iterated_to().max(1).ilog2();
            *octaves.entry(from).or_insert(0) += value.count_at_value();
        }
        Self {
            sent: outcome.sent,
            accepted: outcome.accepted(),
            refused: Some(outcome.refused),
            dropped: outcome.dropped,
            report: &outcome.report,
            locks: &[],
            send_ns: percentiles(sends),
            send_work_max_ns: Some(outcome.longest_work_ns),
            gaps: outcome.gaps.as_ref(),
            changes: outcome.changes.as_ref(),
            octaves,
        }
    }

    fn of_design(outcome: &'a DesignOutcome) -> Self {
        let send_ns = outcome.send.percentiles().map_or(Value::Null, |send| {
            json!({
                "p50": send.p50,
                "p99": send.p99,
                "p999": send.p999,
                "max": send.max,
                "samples": send.samples,
            })
        });
        let octaves = outcome.send.octaves().buckets();
        Self {
            sent: outcome.sent,
            accepted: outcome.send.samples(),
            refused: None,
            dropped: outcome.dropped.values().sum(),
            report: &outcome.report,
            locks: &outcome.locks,
            send_ns,
            send_work_max_ns: None,
            gaps: None,
            changes: None,
            octaves: octaves.map(|(from, _, count)| (from, count)).collect(),
        }
    }
}

fn percentiles(times: &Histogram<u64>) -> Value {
    json!({
        "p50": times.value_at_quantile(0.5),
        "p99": times.value_at_quantile(0.99),
        "p999": times.value_at_quantile(0.999),
        "max": times.max(),
        "samples": times.len(),
    })
}

/// Compares the packets of paced flows with what their rate lets them send.
fn paced(scenario: &Scenario, figures: &Figures<'_>) -> Option<Value> {
    let (gaps, bits_per_second) = figures.gaps.zip(scenario.pacing_bits_per_second)?;
    let gap_ns = Pacing { bits_per_second }.gap_ns(scenario.payload.into());
    let allowed = f64::from(scenario.threads) * 1e9 / gap_ns.max(1) as f64;
    let sent = figures.sent as f64 / (f64::from(scenario.measure_us) / 1e6);
    Some(json!({
        "packets_per_second": number(allowed),
        "share": number(sent / allowed),
        "gap_ns": gap_ns,
        "gaps_ns": percentiles(gaps),
        "gap_mean_ns": number(gaps.mean()),
    }))
}

fn changes(scenario: &Scenario, changes: &Changes) -> Value {
    let seconds = f64::from(scenario.measure_us) / 1e6;
    json!({
        "all": changes.all,
        "per_second": number(changes.times.len() as f64 / seconds),
        "change_ns": percentiles(&changes.times),
    })
}

/// Describes a lock in the columns of `perf lock contention` and of lockmeter.
fn lock(row: &LockRow) -> Value {
    let counts = &row.counts;
    json!({
        "name": row.name,
        "kind": row.kind,
        "acquired": counts.acquired,
        "contended": counts.contended,
        "wait_total_ns": counts.wait_total_ns,
        "wait_max_ns": counts.wait_max_ns,
        "wait_avg_ns": number(row.wait_avg_ns()),
        "hold_mean_ns": number(row.hold_mean_ns()),
        "hold_max_ns": counts.hold_max_ns,
        "utilisation": number(row.utilisation()),
    })
}

fn json(scenario: &Scenario, seed: u64, figures: &Figures<'_>) -> Value {
    let Figures { sent, accepted, refused, dropped, report, locks, send_ns, octaves, .. } = figures;
    let packets = (*sent).max(1) as f64;
    let per_packet = |count: u64| number(count as f64 / packets);
    let ns_per_packet = |ps: u64| number(ps as f64 / 1e3 / packets);
    let times = &report.times;
    let share = |ps: u64| number(ps as f64 / times.all().max(1) as f64);
    let contended: u64 = report.sites.iter().map(|site| site.contended).sum();
    let transfers: u64 = report.sites.iter().map(|site| site.transfers.all()).sum();
    let sites = report.sites.iter().take(SITES).map(|site| {
        let transfers = &site.transfers;
        json!({
            "place": place(site.location),
            "accesses_per_packet": per_packet(site.accesses),
            "transfers_per_packet": per_packet(transfers.all()),
            "remote_per_packet": per_packet(transfers.remote),
            "contended_per_packet": per_packet(site.contended),
            "stalled_ns_per_packet": ns_per_packet(site.stalled),
            "waited_ns_per_packet": ns_per_packet(site.waited),
        })
    });
    let fields = fields(report).into_iter().take(SITES).map(|hot| {
        json!({
            "field": hot.field,
            "place": hot.place,
            "accesses_per_packet": per_packet(hot.accesses),
            "transfers_per_packet": per_packet(hot.transfers.all()),
            "remote_per_packet": per_packet(hot.transfers.remote),
            "contended_per_packet": per_packet(hot.contended),
            "stalled_ns_per_packet": ns_per_packet(hot.stalled),
            "waited_ns_per_packet": ns_per_packet(hot.waited),
        })
    });
    let fields: Vec<_> = fields.collect();
    let sites: Vec<_> = sites.collect();
    let seconds = f64::from(scenario.measure_us) / 1e6;
    json!({
        "seed": seed,
        "packets_per_second": number(*sent as f64 / seconds),
        "packets": sent,
        "accepted": accepted,
        "refused": refused,
        "dropped": dropped,
        "time_share": {
            "useful": share(times.useful),
            "stalled": share(times.stalled),
            "spinning": share(times.spinning),
            "scheduling": share(times.scheduling),
            "idle": share(times.idle),
        },
        "transfers_per_packet": per_packet(transfers),
        "contended_transfers_per_packet": per_packet(contended),
        "send_ns": send_ns,
        "send_work_max_ns": figures.send_work_max_ns,
        "send_ns_octaves": octaves,
        "switches_per_second": number(report.switches as f64 / seconds),
        "wakeups_per_second": number(report.wakeups as f64 / seconds),
        "timers_per_second": number(report.timers as f64 / seconds),
        "migrations_per_second": number(report.migrations as f64 / seconds),
        "locks": locks.iter().map(lock).collect::<Vec<_>>(),
        "sites": sites,
        "fields": fields,
        "paced": paced(scenario, figures),
        "changes": figures.changes.map(|changes_made| changes(scenario, changes_made)),
    })
}
