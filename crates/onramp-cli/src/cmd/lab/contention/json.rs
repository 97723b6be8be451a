//! Results for programs: `onramp.lab.contention` in `docs/json.md`.

use onramp_lab::contention::{Design, Load, Plan, Ratio, Row};
use onramp_lab::lockstat::LockRow;
use onramp_lab::measure::{Octaves, Percentiles, Spread};
use serde_json::{Map, Value, json};

use super::Results;
use crate::report::json::{number, pretty};

const VERSION: u32 = 1;

/// The whole document.
pub(super) fn contention(results: &Results) -> String {
    let Results { machine, plan, rows } = results;
    let ratios = Ratio::of(rows, Design::BASE);
    pretty(&json!({
        "schema": "onramp.lab.contention",
        "version": VERSION,
        "machine": machine,
        "parameters": parameters(plan),
        "rows": rows.iter().map(|one| row(one, plan)).collect::<Vec<_>>(),
        "ratios_to_busylock": ratios.iter().map(ratio).collect::<Vec<_>>(),
    }))
}

fn parameters(plan: &Plan) -> Value {
    let names = |designs: &[Design]| designs.iter().map(|d| d.name()).collect::<Vec<_>>();
    let (load, burst) = match plan.load {
        Load::Stream => ("stream", None),
        Load::Rr(burst) => ("rr", Some(burst)),
    };
    json!({
        "designs": names(&plan.designs),
        "threads": plan.threads,
        "queues": plan.queues,
        "qdisc": plan.qdisc.to_string(),
        "device": "null",
        "device_ns": plan.device_ns,
        "pin": plan.pin,
        "seconds": number(plan.window.as_secs_f64()),
        "warm_up_seconds": number(plan.warm_up().as_secs_f64()),
        "rounds": plan.rounds,
        "load": load,
        "burst": burst,
    })
}

fn row(row: &Row, plan: &Plan) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), row.design.name().into());
    map.insert("threads".into(), row.threads.into());
    map.insert("qdisc".into(), plan.qdisc.to_string().into());
    insert(&mut map, "packets_per_second", row.packets_per_second());
    insert(&mut map, "cpu_ns_per_packet", row.cpu_ns_per_packet());
    insert(&mut map, "cpus", row.cpus());
    insert(&mut map, "context_switches_per_second", row.context_switches_per_second());
    insert(&mut map, "waits_per_second", row.waits_per_second());
    insert(&mut map, "jain", row.jain());
    map.insert("send_ns".into(), percentiles(row.send.percentiles()));
    map.insert("wait_ns".into(), percentiles(row.wait.percentiles()));
    map.insert("staging_ns".into(), percentiles(row.staging()));
    map.insert("delay_ns".into(), percentiles(row.delay.percentiles()));
    map.insert("drops".into(), json!(row.drops));
    let batch = json!({
        "intake_mean": row.batches.mean().map(number),
        "device_mean": row.bursts.mean().map(number),
        "device_histogram": octaves(&row.bursts),
    });
    map.insert("batch".into(), batch);
    map.insert("send_histogram".into(), octaves(row.send.octaves()));
    map.insert("locks".into(), row.locks.iter().map(lock).collect());
    Value::Object(map)
}

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
        "contended_share": number(row.contended_share()),
        "watched_ns": row.window_ns,
    })
}

fn ratio(ratio: &Ratio) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), ratio.design.name().into());
    map.insert("threads".into(), ratio.threads.into());
    insert(&mut map, "packets_per_second", ratio.packets_per_second);
    insert(&mut map, "cpu_ns_per_packet", ratio.cpu_ns_per_packet);
    Value::Object(map)
}

fn octaves(octaves: &Octaves) -> Value {
    let bucket = |(from, below, count)| json!({"from": from, "below": below, "count": count});
    octaves.buckets().map(bucket).collect()
}

fn percentiles(ns: Option<Percentiles>) -> Value {
    ns.map_or(Value::Null, |ns| {
        json!({"p50": ns.p50, "p99": ns.p99, "p999": ns.p999, "max": ns.max, "samples": ns.samples})
    })
}

/// The median under the plain name, the extremes beside it.
fn insert(map: &mut Map<String, Value>, name: &str, spread: Option<Spread>) {
    let value = |figure: fn(Spread) -> f64| spread.map_or(Value::Null, |s| number(figure(s)));
    map.insert(name.into(), value(|s| s.median));
    map.insert(format!("{name}_min"), value(|s| s.min));
    map.insert(format!("{name}_max"), value(|s| s.max));
}
