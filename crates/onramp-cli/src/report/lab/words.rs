//! Labels that people see for the keys of JSON, and the texts for figures.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::report::chart::Words;
use crate::report::table::dash;

/// Returns the label that people see for the figure at `key` of the experiment `kind`.
pub(super) fn label_in(kind: &str, key: &str) -> String {
    let own = OWN_LABELS.iter().find(|(one, known, _)| (*one, *known) == (kind, key));
    own.map_or_else(|| label(key), |(.., label)| (*label).to_owned())
}

/// Returns the label that people see for the figure at `key`. `key` may be a path of keys joined by
/// dots.
pub(super) fn label(key: &str) -> String {
    let known = LABELS.iter().find(|(known, _)| *known == key).map(|(_, label)| *label);
    if let Some(label) = known {
        return label.to_owned();
    }
    if let Some((group, part)) = key.rsplit_once('.') {
        return format!("{}, {}", label(group), label(part));
    }
    let plain = key.strip_suffix("_ns").unwrap_or(key);
    let plain = plain
        .strip_suffix("_per_second")
        .map_or_else(|| plain.replace("_ns_per_", " per "), |count| format!("{count} a second"));
    plain.replace("_per_", " per ").replace('_', " ")
}

/// Returns the function that formats figures at `key` as text, with their unit if they have one.
pub(super) fn words(key: &str) -> Words {
    unit(key).unwrap_or(plain)
}

/// Returns the function that formats figures in the unit that the name `key` contains; `None` if
/// the name contains no unit.
fn unit(key: &str) -> Option<Words> {
    // The unit of a percentile is not in its own key but in that of the group of percentiles.
    let group = key.split('.').next().unwrap_or(key);
    if group.ends_with("_ns") || group.contains("_ns_per_") {
        Some(nanoseconds)
    } else if group.ends_with("_per_second") {
        Some(rate)
    } else if group.ends_with("_share") || group == "utilisation" {
        Some(percent)
    } else if group.ends_with("_bytes") {
        Some(bytes)
    } else {
        None
    }
}

/// Returns the text for a value of the JSON, whether the value is a number or something else.
pub(super) fn value(key: &str, value: &Value) -> String {
    match value {
        Value::Null => dash(),
        Value::String(text) => text.clone(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Number(_) if key == "started_unix" => {
            let since = value.as_u64().map(Duration::from_secs);
            let when = since.and_then(|since| UNIX_EPOCH.checked_add(since));
            when.map_or_else(
                || value.to_string(),
                |when| humantime::format_rfc3339_seconds(when).to_string(),
            )
        }
        // Whole numbers without a unit are counts, which are shown with all their digits.
        Value::Number(number) if !number.is_f64() && unit(key).is_none() => number.to_string(),
        Value::Number(number) => words(key)(number.as_f64().unwrap_or(f64::NAN)),
        Value::Array(all) => {
            all.iter().map(|one| self::value(key, one)).collect::<Vec<_>>().join(", ")
        }
        Value::Object(map) => {
            let entry =
                |(key, one): (&String, &Value)| format!("{} {}", label(key), self::value(key, one));
            map.iter().map(entry).collect::<Vec<_>>().join(", ")
        }
    }
}

/// Returns the entries of an object (parameters, or facts about the machine): the label and the
/// text of each.
pub(super) fn entries(map: &Map<String, Value>) -> Vec<(String, String)> {
    map.iter().map(|(key, one)| (label(key), value(key, one))).collect()
}

/// Returns the text for a number on the axis, with the word for what it counts, such as "16
/// threads".
pub(super) fn count(at: u64, axis: &str) -> String {
    let one = axis.strip_suffix('s').unwrap_or(axis);
    match axis {
        "rate" => format!("{at} packets a second"),
        // A duration below 2^53 ns is exact; a longer one is shown to three digits anyway.
        _ if axis.ends_with("_ns") => format!("{} {}", label(axis), nanoseconds(at as f64)),
        "cpus" => format!("{at} {}", if at == 1 { "CPU" } else { "CPUs" }),
        _ => format!("{at} {}", if at == 1 { one } else { axis }),
    }
}

pub(super) fn nanoseconds(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    // Rounded to three digits, 999.6 ns would be "1000 ns". So the next larger unit is used from
    // 0.9995 of that unit on, and the text is "1 µs".
    let unit = units.into_iter().find(|(unit, _)| ns.abs() >= unit * 0.9995);
    let (unit, name) = unit.unwrap_or((1.0, "ns"));
    format!("{} {name}", plain(ns / unit))
}

pub(super) fn rate(per_second: f64) -> String {
    let units = [(1e9, " G/s"), (1e6, " M/s"), (1e3, " k/s")];
    let unit = units.into_iter().find(|(unit, _)| per_second.abs() >= unit * 0.9995);
    let (unit, name) = unit.unwrap_or((1.0, " /s"));
    format!("{}{name}", plain(per_second / unit))
}

pub(super) fn percent(share: f64) -> String {
    format!("{} %", plain(100.0 * share))
}

fn bytes(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= GIB => format!("{} GiB", plain(bytes / GIB)),
        bytes => format!("{} bytes", plain(bytes)),
    }
}

/// Returns the text with its first letter in upper case.
pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Returns the text for a number with three significant digits.
pub(super) fn plain(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let size = value.abs();
    let digits = match size {
        _ if size >= 99.95 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.9995 => 2,
        _ if size >= 0.001 => 3,
        _ => return format!("{value:.1e}"),
    };
    let text = format!("{value:.digits$}");
    if digits == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

/// Returns the text for a number that may be very large, such as a ratio.
pub(super) fn large(value: f64) -> String {
    let names = [(1e9, "billion"), (1e6, "million"), (1e4, "thousand")];
    let name = names.into_iter().find(|(least, _)| value.abs() >= least * 0.9995);
    match name {
        Some((1e4, name)) => format!("{} {name}", plain(value / 1e3)),
        Some((unit, name)) => format!("{} {name}", plain(value / unit)),
        None => plain(value),
    }
}

const GIB: f64 = (1_u64 << 30) as f64;

/// Labels of figures that have another meaning in each experiment: the experiment, the key and the
/// label.
const OWN_LABELS: [(&str, &str, &str); 2] = [
    ("pacing", "lost_share", "time lost by late runners"),
    ("wire", "lost_share", "datagrams that did not arrive"),
];

const LABELS: [(&str, &str); 51] = [
    ("error_ns", "error of the departure"),
    ("equal_load_cpu_ns_per_packet", "CPU per packet at the same load"),
    ("slack_ns", "slack"),
    ("spin_ns", "spin"),
    ("operation_ns", "a reading or a change"),
    ("operations_per_second", "readings or changes a second"),
    ("stall_max_ns", "longest stall"),
    ("own_ns", "own work of a call"),
    ("own_max_ns", "most own work of a call in a round"),
    ("long_per_cpu_second", "calls of more than 20 us for each second of CPU time"),
    ("took_ns", "time of a call"),
    ("readings_cpu_ns", "own work of reading the clocks"),
    ("readings_took_ns", "time of reading the clocks"),
    ("packets_per_second", "packets a second"),
    ("ns_per_packet", "nanoseconds per packet"),
    ("sojourn_ns", "delay"),
    ("cpu_ns_per_packet", "CPU per packet"),
    ("cpu_ns_per_request", "CPU per request"),
    ("above_floor_ns", "CPU per packet above the floor"),
    ("context_switches_per_transaction", "context switches per burst"),
    ("transactions_per_second", "bursts a second"),
    ("wakeups_per_second", "wake-ups a second"),
    ("undone_per_second", "calls that woke no thread, a second"),
    ("cpus", "CPUs"),
    ("jain", "fairness (Jain)"),
    ("send_ns", "send call"),
    ("wait_ns", "wait for room"),
    ("staging_ns", "send call to qdisc"),
    ("delay_ns", "send call to device"),
    ("latency_ns", "burst to last answer"),
    ("send_histogram", "send call"),
    ("batch.intake_mean", "batch into qdisc"),
    ("batch.device_mean", "batch into device"),
    ("batch.device_histogram", "batch into device"),
    ("drops", "dropped"),
    ("p50", "p50"),
    ("p999", "p99.9"),
    ("device_ns", "device time per packet"),
    ("cpu", "processor"),
    ("memory_bytes", "memory"),
    ("load_1m", "load in the minute before"),
    ("onramp", "Onramp"),
    ("optimised", "built with optimisation"),
    ("started_unix", "started"),
    ("goodput_bits_per_second", "goodput, bits a second"),
    ("completion_ns", "short flow"),
    ("voice_sojourn_ns", "a call's delay"),
    ("share_of_fair", "of the fair share"),
    ("video_dropped_share", "dropped of the video"),
    ("trip_ns", "round trip"),
    ("scaling", "rate divided by that of the first number"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        let ns = [0.0, 12.3456, 683.4, 999.7, 12_345.0, 7.9e6, 2.5e9].map(nanoseconds);
        assert_eq!(ns, ["0 ns", "12.3 ns", "683 ns", "1 µs", "12.3 µs", "7.9 ms", "2.5 s"]);
        let rates = [0.0, 9.5, 214.962, 2_472_150.0].map(rate);
        assert_eq!(rates, ["0 /s", "9.5 /s", "215 /s", "2.47 M/s"]);
        assert_eq!([0.5, 0.00123, 1e-9].map(percent), ["50 %", "0.123 %", "1.0e-7 %"]);
        assert_eq!([1.0, 99.96, 100.4, 12345.6].map(plain), ["1", "100", "100", "12346"]);
        let large = [0.5, 9_500.0, 85_795.0, 3_409_833.0, 2e9].map(large);
        assert_eq!(large, ["0.5", "9500", "85.8 thousand", "3.41 million", "2 billion"]);
    }

    #[test]
    fn keys_nobody_knows_have_labels_and_units_too() {
        assert_eq!(label("cpu_ns_per_batch"), "cpu per batch");
        assert_eq!(label("frobs_per_second"), "frobs a second");
        assert_eq!(label("send_ns.p999"), "send call, p99.9");
        assert_eq!(words("cpu_ns_per_batch")(1_500.0), "1.5 µs");
        assert_eq!(words("rtt_ns.p50")(20.0), "20 ns");
        assert_eq!(words("owned_share")(0.25), "25 %");
    }

    #[test]
    fn values_of_all_kinds() {
        assert_eq!(value("started_unix", &0.into()), "1970-01-01T00:00:00Z");
        assert_eq!(value("pin", &true.into()), "yes");
        assert_eq!(value("threads", &serde_json::json!([1, 2, 240])), "1, 2, 240");
        assert_eq!(value("burst", &Value::Null), "-");
        assert_eq!(value("packets", &1_234_567.into()), "1234567");
    }
}
