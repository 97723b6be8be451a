//! The summary of `onramp shape`, and its line while it runs.

use std::time::Duration;

use onramp_wire::Direction;
use serde_json::{Value, json};

use super::direction;

/// The counters of both directions: of frames that leave through the first interface, and of those
/// that arrive at it; `None` for a direction that is not shaped.
pub(crate) type Both = [Option<Direction>; 2];

const NAMES: [&str; 2] = ["egress", "ingress"];

/// Returns the summary as JSON for programs, of the interfaces with these names and devices, after
/// this time.
pub(crate) fn json(names: &[&str], devices: &[&str], seconds: f64, both: &Both) -> Value {
    let [egress, ingress] = both.each_ref().map(|way| way.as_ref().map(direction::json));
    json!({
        "schema": "onramp.shape",
        "version": 1,
        "interfaces": names,
        "devices": devices,
        "seconds": seconds,
        "egress": egress,
        "ingress": ingress,
    })
}

/// Returns the summary as text for people.
pub(crate) fn text(both: &Both) -> String {
    let texts = NAMES
        .iter()
        .zip(both)
        .filter_map(|(name, way)| way.as_ref().map(|way| direction::text(name, way)));
    texts.collect::<Vec<_>>().join("; ")
}

/// Returns the line that is shown while the command runs: the rates between two readings, and what
/// waits at the second.
pub(crate) fn line(before: &Both, now: &Both, apart: Duration) -> String {
    let way = |name: &str, before: &Direction, now: &Direction| {
        let seconds = apart.as_secs_f64();
        let of = |counter: fn(&Direction) -> u64| (counter(now) - counter(before)) as f64;
        let mbit = of(|way| way.qdiscs.sent_bytes) * 8.0 / 1e6 / seconds;
        let packets = of(Direction::carried) / seconds;
        let dropped = of(|way| way.qdiscs.dropped_packets()) / seconds;
        let held = now.held();
        format!("{name} {mbit:.1} Mbit/s, {packets:.0} pps, {dropped:.0} drops, {held} wait")
    };
    let both = NAMES
        .iter()
        .zip(before.iter().zip(now))
        .filter_map(|(name, (before, now))| Some(way(name, before.as_ref()?, now.as_ref()?)));
    both.collect::<Vec<_>>().join(" | ")
}
