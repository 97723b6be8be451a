//! What one direction of a wire or of a bridge has carried and dropped.

use onramp_core::Totals;
use onramp_queue::DropReason;
use onramp_wire::Direction;
use serde_json::{Map, Value, json};

/// Returns the counts as JSON for programs.
pub(crate) fn json(way: &Direction) -> Value {
    let totals = &way.qdiscs;
    let drops = drops(totals).map(|(reason, count)| (reason.to_owned(), json!(count)));
    json!({
        "packets": totals.enqueued_packets,
        "made": totals.made_packets,
        "sent": way.carried(),
        "sent_bytes": totals.sent_bytes,
        "drops": drops.collect::<Map<_, _>>(),
        "refused": way.refused,
        "lost": way.lost,
        "discarded": way.discarded,
        "missed": way.missed,
        "queued": way.held(),
    })
}

/// Returns the counts as text for people.
pub(crate) fn text(name: &str, way: &Direction) -> String {
    let totals = &way.qdiscs;
    let mut text = format!("{name}: {} packets carried", way.carried());
    let reasons: Vec<_> =
        drops(totals).map(|(reason, count)| format!("{reason} {count}")).collect();
    if !reasons.is_empty() {
        text += &format!(", {} dropped ({})", totals.dropped_packets(), reasons.join(", "));
    }
    let rest = [
        (way.refused, "refused by the other end"),
        (way.lost, "lost while the link was down"),
        (way.discarded, "malformed and discarded"),
        (way.missed, "not received in time"),
        (way.held(), "still on the way"),
    ];
    for (count, what) in rest.into_iter().filter(|(count, _)| *count > 0) {
        text += &format!(", {count} {what}");
    }
    text
}

fn drops(totals: &Totals) -> impl Iterator<Item = (&'static str, u64)> {
    let count = |reason: &DropReason| (reason.name(), totals.dropped(*reason));
    DropReason::ALL.iter().map(count).filter(|(_, count)| *count > 0)
}
