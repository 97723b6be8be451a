//! Results of `onramp lab aqm` for programs.

use onramp_sim::Histogram;
use onramp_sim::aqm::{Measurement, Plan, Role, Scenario, Subject};
use serde_json::{Map, Value, json};

use crate::report::json::number;

/// The percentiles of the delays that the results contain, in thousandths: 500 is the median.
const SHARES: [u32; 15] =
    [10, 50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 950, 990, 999, 1000];

pub(super) fn parameters(plan: &Plan, scenarios: &[Scenario], subjects: &[Subject]) -> Value {
    let lines = |marks| {
        let line = |subject: &Subject| {
            (subject.name().to_owned(), Value::from(subject.line(marks, plan.rate)))
        };
        subjects.iter().map(line).collect::<Map<_, _>>()
    };
    json!({
        "kinds": subjects.iter().map(Subject::name).collect::<Vec<_>>(),
        "scenarios": scenarios.iter().map(|scenario| scenario.name()).collect::<Vec<_>>(),
        "rate_bits_per_second": plan.rate.as_bytes_per_second() * 8,
        "seconds": plan.seconds,
        "warm_up_seconds": plan.warm_up_seconds(),
        "seed": plan.seed,
        "qdiscs": lines(false),
        "qdiscs_with_marks": lines(true),
    })
}

pub(super) fn row(cell: &Measurement) -> Value {
    let optional = |figure: Option<f64>| figure.map_or(Value::Null, number);
    let bulk = cell.flows().iter().filter(|flow| flow.role == Role::Bulk);
    let bulk = bulk.map(|flow| {
        json!({
            "trip_ns": flow.trip_ns,
            "bits_per_second": number(cell.bits_per_second(flow)),
            "packets": flow.packets,
            "dropped": flow.dropped,
            "marked": flow.marked,
        })
    });
    let quantile =
        |share| json!({"share": f64::from(share) / 1e3, "ns": cell.delays().per_mille(share)});
    json!({
        "design": cell.subject.name(),
        "scenario": cell.scenario.name(),
        "goodput_bits_per_second": number(cell.goodput()),
        "utilisation": number(cell.utilisation()),
        "sojourn_ns": percentiles(Some(cell.delays())),
        "dropped_share": number(cell.dropped_share()),
        "marked_share": number(cell.marked_share()),
        "jain": optional(cell.jain()),
        "share_of_fair": optional(cell.share_of_fair()),
        "completion_ns": percentiles(cell.completions()),
        "voice_sojourn_ns": percentiles(cell.voice_delays()),
        "video_dropped_share": optional(cell.video_dropped_share()),
        "bulk_flows": bulk.collect::<Vec<_>>(),
        "sojourn_quantiles": SHARES.map(quantile),
        "sojourn_parts": {
            "width_seconds": number(cell.part_seconds()),
            "mean_ns": cell.parts().map(optional).collect::<Vec<_>>(),
        },
    })
}

fn percentiles(all: Option<&Histogram>) -> Value {
    let Some(all) = all.filter(|all| all.count() > 0) else { return Value::Null };
    json!({
        "p50": all.per_mille(500),
        "p95": all.per_mille(950),
        "p99": all.per_mille(990),
        "p999": all.per_mille(999),
        "max": all.most(),
        "samples": all.count(),
    })
}
