//! What several draws of one scenario say together.

use serde_json::{Value, json};

use crate::report::json::number;

/// The figures that are summed up: key, heading of the table, and the unit and digits in it.
const FIGURES: &[(&str, &str, (f64, usize))] = &[
    ("packets_per_second", "Mpps", (1e6, 2)),
    ("time_share/useful", "useful %", (0.01, 1)),
    ("time_share/stalled", "stalled %", (0.01, 1)),
    ("time_share/spinning", "spinning %", (0.01, 1)),
    ("time_share/scheduling", "scheduling %", (0.01, 1)),
    ("time_share/idle", "idle %", (0.01, 1)),
    ("transfers_per_packet", "transfers/packet", (1.0, 2)),
    ("contended_transfers_per_packet", "contended/packet", (1.0, 3)),
    ("send_ns/p50", "send p50 ns", (1.0, 0)),
    ("send_ns/p999", "send p99.9 us", (1e3, 1)),
    ("send_ns/max", "send max us", (1e3, 1)),
    ("send_work_max_ns", "work max us", (1e3, 1)),
    ("wakeups_per_second", "wake-ups/s", (1.0, 0)),
    ("timers_per_second", "timers/s", (1.0, 0)),
    ("paced/share", "of pacing rate %", (0.01, 1)),
    ("paced/gap_mean_ns", "gap mean us", (1e3, 1)),
    ("paced/gaps_ns/p50", "gap p50 us", (1e3, 1)),
    ("paced/gaps_ns/p99", "gap p99 us", (1e3, 1)),
    ("changes/per_second", "changes/s", (1.0, 0)),
    ("changes/change_ns/p50", "change p50 us", (1e3, 1)),
    ("changes/change_ns/max", "change max us", (1e3, 1)),
];

/// The middle of some draws, and an interval that at least nine tenths of them lie in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Returns the spread of the figure `key` over the draws; `None` if no draw has it. The ends of the
/// interval are draws: it leaves out a twentieth of the draws, rounded down, on each side. So up to
/// 19 draws, it reaches from the least to the greatest.
pub(crate) fn spread(draws: &[Value], key: &str) -> Option<Spread> {
    let pointer = format!("/{key}");
    let mut values: Vec<f64> =
        draws.iter().filter_map(|draw| draw.pointer(&pointer)?.as_f64()).collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let median = (values[last / 2] + values[last.div_ceil(2)]) / 2.0;
    let outside = values.len() / 20;
    Some(Spread { median, low: values[outside], high: values[last - outside] })
}

/// Returns the median of each figure over the draws, with the interval of at least nine tenths of
/// them.
pub(crate) fn json(draws: &[Value]) -> Value {
    let figures = FIGURES.iter().filter_map(|(key, ..)| {
        let Spread { median, low, high } = spread(draws, key)?;
        let value = json!({
            "median": number(median),
            "low": number(low),
            "high": number(high),
        });
        Some((key.replace('/', "_"), value))
    });
    Value::Object(figures.collect())
}

/// Returns the figures that the draws have: the heading of each, and its cell in a table.
pub(crate) fn cells(draws: &[Value]) -> impl Iterator<Item = (&'static str, String)> {
    FIGURES.iter().filter_map(move |(key, heading, (unit, digits))| {
        let Spread { median, low, high } = spread(draws, key)?;
        let say = |value: f64| format!("{:.*}", *digits, value / unit);
        let cell = match draws.len() {
            1 => say(median),
            _ => format!("{} ({}-{})", say(median), say(low), say(high)),
        };
        Some((*heading, cell))
    })
}

/// Returns a warning if the load was not steady in the measured time of the first draw: queues were
/// filling or draining, as they do when all senders begin.
pub(crate) fn unsteady(draws: &[Value]) -> String {
    let figure = |key| draws.first().and_then(|draw| draw[key].as_f64()).unwrap_or_default();
    let (accepted, sent) = (figure("accepted"), figure("packets"));
    // The queues of paced flows are always full, and their senders fill them up now and then.
    if draws.first().is_some_and(|draw| draw["paced"].is_object()) {
        return String::new();
    }
    if (accepted - sent).abs() <= accepted.max(sent) / 4.0 {
        return String::new();
    }
    format!(
        "  NOT STEADY: in the measured time, {accepted} packets were accepted and {sent} sent. \
         Raise the scenario's warm_up_us, or read the figures as those of a start\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_summed_up() {
        let draws: Vec<_> = (0..=20)
            .rev()
            .map(|n| json!({ "packets_per_second": 1e6 * f64::from(n), "send_ns": { "p50": n } }))
            .collect();
        let summary = json(&draws);
        let expected = json!({ "median": 10e6, "low": 1e6, "high": 19e6 });
        assert_eq!(summary["packets_per_second"], expected);
        assert_eq!(summary["send_ns_p50"]["median"], 10.0);
        assert_eq!(summary.get("send_ns_max"), None, "no draw has it");
        let cells: Vec<_> = cells(&draws).collect();
        let want = [("Mpps", "10.00 (1.00-19.00)"), ("send p50 ns", "10 (1-19)")];
        assert_eq!(cells, want.map(|(heading, cell)| (heading, cell.to_owned())), "no others");
        assert_eq!(spread(&[], "packets_per_second"), None);
    }

    /// At least nine tenths of the draws lie in the interval, however few there are, and no more
    /// than that needs.
    #[test]
    fn the_interval_has_nine_tenths_of_the_draws() {
        let ends = [(1, (1, 1)), (2, (1, 2)), (3, (1, 3)), (5, (1, 5)), (9, (1, 9)), (19, (1, 19))];
        let more = [(20, (2, 19)), (21, (2, 20)), (39, (2, 38)), (40, (3, 38)), (100, (6, 95))];
        for (count, (low, high)) in ends.into_iter().chain(more) {
            let draws: Vec<_> = (1..=count).map(|n| json!({ "figure": n })).collect();
            let found = spread(&draws, "figure").expect("draws have it");
            assert_eq!((found.low, found.high), (f64::from(low), f64::from(high)), "of {count}");
            assert_eq!(found.median, f64::from(count + 1) / 2.0, "of {count}");
            assert!(10 * (high - low + 1) >= 9 * count, "of {count}");
        }
    }

    #[test]
    fn only_a_load_that_fills_queues_is_unsteady() {
        let draw =
            |accepted: u32, packets: u32| json!({ "accepted": accepted, "packets": packets });
        for (accepted, packets, warns) in
            [(100, 100, false), (100, 80, false), (100, 70, true), (70, 100, true), (9, 0, true)]
        {
            let said = unsteady(&[draw(accepted, packets)]);
            assert_eq!(said.contains("NOT STEADY"), warns, "{accepted} {packets}");
        }
        assert_eq!(unsteady(&[]), "");
        let paced = json!({ "accepted": 4, "packets": 92, "paced": { "share": 1.0 } });
        assert_eq!(unsteady(&[paced]), "");
    }
}
