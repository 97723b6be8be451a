//! Results in JSON, for programs. `docs/json.md` documents every key. Later versions of the program
//! only add keys.

use serde_json::{Map, Value, json};

use crate::bench::{
    Checked, MethodSummary, Percentiles, Ratios, Results, Round, Spread, summarize,
};

/// The version number of every schema that this module writes.
const VERSION: u32 = 1;

/// Returns the results of `onramp bench udp` and `onramp demo` as JSON.
pub(crate) fn bench_udp(results: &Results, kinds: &[crate::bench::Kind]) -> String {
    let (methods, ratios) = summarize(kinds, &results.rounds);
    let ratios: Map<String, Value> =
        ratios.iter().map(|ratio| (ratio.kind.name().to_owned(), ratios_of(ratio))).collect();
    let mut document = Map::new();
    let whole = json!({
        "schema": "onramp.bench.udp",
        "version": VERSION,
        "machine": results.machine,
        "parameters": results.parameters,
        "methods": methods.iter().map(method).collect::<Vec<_>>(),
        "ratios_to_send": ratios,
    });
    document.extend(whole.as_object().cloned().unwrap_or_default());
    results.outcome.insert(&mut document);
    pretty(&Value::Object(document))
}

/// Returns the JSON document as text that ends with a line end.
pub(crate) fn pretty(document: &Value) -> String {
    format!("{document:#}\n")
}

fn method(method: &MethodSummary<'_>) -> Value {
    let mut map = Map::new();
    map.insert("name".into(), method.kind.name().into());
    insert(&mut map, "packets_per_second", Some(method.packets_per_second));
    insert(&mut map, "delivered_per_second", method.delivered_per_second);
    insert(&mut map, "cpu_ns_per_packet", method.cpu_ns_per_packet);
    insert(&mut map, "machine_cpu_ns_per_packet", method.machine_cpu_ns_per_packet);
    map.insert("send_ns".into(), percentiles(method.send_ns));
    map.insert("accept_ns".into(), percentiles(method.accept_ns));
    map.insert("wait_ns".into(), percentiles(method.wait_ns));
    let per_second = |count: fn(&Round) -> u64| {
        number(method.median(|round| count(round) as f64 / round.seconds))
    };
    map.insert("waits_per_second".into(), per_second(|round| round.refused));
    let switches = json!({
        "voluntary_per_second": per_second(|round| round.usage.voluntary),
        "involuntary_per_second": per_second(|round| round.usage.involuntary),
    });
    map.insert("context_switches".into(), switches);
    let median = |figure: fn(&Round) -> f64| number(method.median(figure));
    map.insert("datagrams_per_message".into(), median(|round| round.per_message));
    map.insert("datagrams_per_system_call".into(), median(|round| round.per_call));
    map.insert("drops".into(), json!(method.drops));
    insert(&mut map, "jain", Some(method.jain));
    map.insert("verify".into(), method.checked().map_or(Value::Null, verify));
    map.insert("rounds".into(), method.rounds.iter().map(|one| round(one)).collect());
    Value::Object(map)
}

fn round(round: &Round) -> Value {
    json!({
        "seconds": number(round.seconds),
        "submitted": round.submitted,
        "delivered": round.delivered,
        "packets_per_second": number(round.packets_per_second()),
        "delivered_per_second": round.delivered_per_second().map(number),
        "cpu_ns_per_packet": round.cpu_ns_per_packet().map(number),
        "machine_cpu_ns_per_packet": round.machine_cpu_ns_per_packet().map(number),
        "drops": round.drops,
        "jain": number(round.jain),
    })
}

fn verify(checked: &Checked) -> Value {
    let pace = &checked.pace;
    let [min, median, max] = pace.flow_wire_bits_per_second.map(number);
    let gaps: Vec<Value> = pace
        .gaps
        .filled()
        .map(|(from, below, count)| json!({"from_ns": from, "below_ns": below, "count": count}))
        .collect();
    json!({
        "passed": checked.failures.is_empty(),
        "failures": checked.failures,
        "submitted": checked.submitted,
        "delivered": checked.delivered,
        "foreign": checked.foreign,
        "receiver": {
            "wire_bits_per_second": number(pace.wire_bits_per_second),
            "payload_bits_per_second": number(pace.payload_bits_per_second),
            "flow_wire_bits_per_second": {"min": min, "median": median, "max": max},
            "gaps": gaps,
        },
    })
}

fn percentiles(ns: Option<Percentiles>) -> Value {
    ns.map_or(Value::Null, |ns| {
        json!({"p50": ns.p50, "p99": ns.p99, "p999": ns.p999, "max": ns.max, "samples": ns.samples})
    })
}

fn ratios_of(ratios: &Ratios) -> Value {
    let mut map = Map::new();
    insert(&mut map, "packets_per_second", ratios.packets_per_second);
    insert(&mut map, "delivered_per_second", ratios.delivered_per_second);
    insert(&mut map, "cpu_ns_per_packet", ratios.cpu_ns_per_packet);
    insert(&mut map, "machine_cpu_ns_per_packet", ratios.machine_cpu_ns_per_packet);
    map.insert("send_p50".into(), ratios.send_p50.map_or(Value::Null, number));
    Value::Object(map)
}

/// Inserts the median under `name`, and the least and the greatest value under names derived from
/// `name`.
fn insert(map: &mut Map<String, Value>, name: &str, spread: Option<Spread>) {
    let value = |figure: fn(Spread) -> f64| spread.map_or(Value::Null, |s| number(figure(s)));
    map.insert(name.into(), value(|s| s.median));
    map.insert(format!("{name}_min"), value(|s| s.min));
    map.insert(format!("{name}_max"), value(|s| s.max));
}

/// Returns the number with six significant digits, because further digits are noise.
pub(crate) fn number(value: f64) -> Value {
    if value == 0.0 || !value.is_finite() {
        return json!(0.0);
    }
    let rounded: f64 = format!("{value:.5e}").parse().unwrap_or(value);
    json!(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_and_never_null() {
        assert_eq!(number(1_234_567.8).to_string(), "1234570.0");
        assert_eq!(number(0.000_123_456_78).to_string(), "0.000123457");
        assert_eq!(number(f64::NAN).to_string(), "0.0");
    }
}
