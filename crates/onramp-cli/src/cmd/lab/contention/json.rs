//! Results of `onramp lab contention` for programs: `onramp.lab.contention` in `docs/json.md`.

use onramp_lab::contention::{Design, Plan, Ratio, Row};
use onramp_lab::lockstat::LockRow;
use onramp_lab::measure::Octaves;
use onramp_lab::memory::MemoryNotes;
use serde_json::{Map, Value, json};

use super::super::common::{insert, percentiles};
use super::Results;
use crate::report::json::number;

/// Returns the rows of results, and their ratios to the rows of the designs `busylock` and
/// `onramp`.
pub(super) fn results(results: &Results) -> Map<String, Value> {
    let Results { plan, rows, .. } = results;
    let ratios = |ratios: Vec<Ratio>| ratios.iter().map(ratio).collect();
    let mut map = Map::new();
    map.insert("rows".into(), rows.iter().map(|one| row(one, plan)).collect());
    map.insert("ratios_to_busylock".into(), ratios(Ratio::to_base(rows)));
    map.insert("ratios_to_onramp".into(), ratios(Ratio::to_onramp(rows)));
    map
}

/// Returns the settings that the user asked for.
pub(super) fn parameters(plan: &Plan) -> Value {
    // If all designs are bare queues, none of them has a qdisc or a device.
    let is_bare = plan.designs.iter().all(|design| design.is_peer());
    let of_paths = |value: Value| if is_bare { Value::Null } else { value };
    let names = |designs: &[Design]| designs.iter().map(|d| d.name()).collect::<Vec<_>>();
    json!({
        "designs": names(&plan.designs),
        "manners": plan.manners.iter().map(|manners| manners.name()).collect::<Vec<_>>(),
        "threads": plan.threads,
        "queues": of_paths(plan.queues.into()),
        "qdisc": of_paths(plan.qdisc.to_string().into()),
        "device": of_paths("null".into()),
        "device_ns": of_paths(plan.device_ns.into()),
        "pin": plan.pin,
        "seconds": number(plan.window.as_secs_f64()),
        "warm_up_seconds": number(plan.warm_up().as_secs_f64()),
        "rounds": plan.rounds,
        "load": plan.load.name(),
        "burst": plan.load.burst(),
        "memory": plan.memory.iter().map(|memory| memory.name()).collect::<Vec<_>>(),
        "credits": plan.credits.iter().flatten().collect::<Vec<_>>(),
    })
}

fn row(row: &Row, plan: &Plan) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), row.design.name().into());
    map.insert("manners".into(), row.manners.name().into());
    map.insert("threads".into(), row.threads.into());
    map.insert("credits".into(), json!(row.credits));
    map.insert("memory".into(), row.memory.name().into());
    // A bare queue has no qdisc.
    let qdisc = (!row.design.is_peer()).then(|| plan.qdisc.to_string());
    map.insert("qdisc".into(), json!(qdisc));
    insert(&mut map, "packets_per_second", row.packets_per_second());
    insert(&mut map, "cpu_ns_per_packet", row.cpu_ns_per_packet());
    insert(&mut map, "cpus", row.cpus());
    insert(&mut map, "context_switches_per_second", row.context_switches_per_second());
    insert(&mut map, "waits_per_second", row.waits_per_second());
    insert(&mut map, "transactions_per_second", row.transactions_per_second());
    insert(&mut map, "jain", row.jain());
    map.insert("send_ns".into(), percentiles(row.send.percentiles()));
    map.insert("accept_ns".into(), percentiles(row.accept.percentiles()));
    insert(&mut map, "accept_p50_ns", row.accept_by_round(|ns| ns.p50));
    insert(&mut map, "accept_p99_ns", row.accept_by_round(|ns| ns.p99));
    insert(&mut map, "accept_p999_ns", row.accept_by_round(|ns| ns.p999));
    map.insert("wait_ns".into(), percentiles(row.wait.percentiles()));
    map.insert("latency_ns".into(), percentiles(row.transaction.percentiles()));
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
    map.insert("packet_memory".into(), packet_memory(&row.packets));
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

fn packet_memory(notes: &MemoryNotes) -> Value {
    json!({
        "taken": notes.taken,
        "allocated": notes.allocated,
        "freed": notes.freed,
        "freed_by_others": notes.foreign,
        "batches": notes.batches,
        "packets_per_batch": notes.packets_per_batch().map(number),
        "contended": notes.repeated,
        "take_ns": percentiles(notes.take.percentiles()),
        "give_ns": percentiles(notes.give.percentiles()),
    })
}

fn ratio(ratio: &Ratio) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), ratio.design.name().into());
    map.insert("manners".into(), ratio.manners.name().into());
    map.insert("threads".into(), ratio.threads.into());
    map.insert("credits".into(), json!(ratio.credits));
    map.insert("memory".into(), ratio.memory.name().into());
    insert(&mut map, "packets_per_second", ratio.packets_per_second);
    insert(&mut map, "cpu_ns_per_packet", ratio.cpu_ns_per_packet);
    insert(&mut map, "accept_p999_ns", ratio.accept_p999);
    Value::Object(map)
}

fn octaves(octaves: &Octaves) -> Value {
    let bucket = |(from, below, count)| json!({"from": from, "below": below, "count": count});
    octaves.buckets().map(bucket).collect()
}
