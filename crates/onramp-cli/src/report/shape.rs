//! The summary of `onramp shape`, and its line while it runs.

use std::time::Duration;

use onramp_wire::Direction;
use serde_json::{Value, json};

use super::direction;

/// Returns the summary as JSON for programs: of the interfaces with these names, after this time,
/// the frames that left through the first and those that arrived at it.
pub(crate) fn json(names: [&str; 2], seconds: f64, [egress, ingress]: &[Direction; 2]) -> Value {
    json!({
        "schema": "onramp.shape",
        "version": 1,
        "interfaces": names,
        "seconds": seconds,
        "egress": direction::json(egress),
        "ingress": direction::json(ingress),
    })
}

/// Returns the summary as text for people.
pub(crate) fn text([egress, ingress]: &[Direction; 2]) -> String {
    format!("{}; {}", direction::text("egress", egress), direction::text("ingress", ingress))
}

/// Returns the line that is shown while the bridge runs: the rates between two readings, and what
/// waits at the second.
pub(crate) fn line(before: &[Direction; 2], now: &[Direction; 2], apart: Duration) -> String {
    let way = |name: &str, before: &Direction, now: &Direction| {
        let seconds = apart.as_secs_f64();
        let of = |counter: fn(&Direction) -> u64| (counter(now) - counter(before)) as f64;
        let mbit = of(|way| way.qdiscs.sent_bytes) * 8.0 / 1e6 / seconds;
        let packets = of(Direction::carried) / seconds;
        let dropped = of(|way| way.qdiscs.dropped_packets()) / seconds;
        let held = now.held();
        format!("{name} {mbit:.1} Mbit/s, {packets:.0} pps, {dropped:.0} drops, {held} wait")
    };
    let [egress, ingress] =
        [("egress", 0), ("ingress", 1)].map(|(name, at)| way(name, &before[at], &now[at]));
    format!("{egress} | {ingress}")
}
