//! The summary of `onramp wire`.

use onramp_core::Totals;
use onramp_queue::DropReason;
use onramp_wire::{Carried, Direction};
use serde_json::{Map, Value, json};

/// Returns the summary as JSON for programs. `exit_code` is the client's.
pub(crate) fn json(carried: &Carried, exit_code: u8) -> Value {
    let way = |way: &Direction| {
        let totals = &way.qdiscs;
        let drops = drops(totals).map(|(reason, count)| (reason.to_owned(), json!(count)));
        json!({
            "packets": totals.enqueued_packets,
            "made": totals.made_packets,
            "sent": way.carried(),
            "sent_bytes": totals.sent_bytes,
            "drops": drops.collect::<Map<_, _>>(),
            "refused": way.refused,
            "discarded": way.discarded,
            "queued": way.held(),
        })
    };
    json!({
        "schema": "onramp.wire",
        "version": 1,
        "exit_code": exit_code,
        "up": way(&carried.up),
        "down": way(&carried.down),
    })
}

/// Returns the summary as text for people.
pub(crate) fn text(carried: &Carried) -> String {
    let way = |name: &str, way: &Direction| {
        let totals = &way.qdiscs;
        let mut text = format!("{name}: {} packets carried", way.carried());
        let reasons: Vec<_> =
            drops(totals).map(|(reason, count)| format!("{reason} {count}")).collect();
        if !reasons.is_empty() {
            text += &format!(", {} dropped ({})", totals.dropped_packets(), reasons.join(", "));
        }
        if way.refused > 0 {
            text += &format!(", {} refused by the other end", way.refused);
        }
        if way.discarded > 0 {
            text += &format!(", {} malformed and discarded", way.discarded);
        }
        if way.held() > 0 {
            text += &format!(", {} still in the wire", way.held());
        }
        text
    };
    format!("{}; {}", way("up", &carried.up), way("down", &carried.down))
}

fn drops(totals: &Totals) -> impl Iterator<Item = (&'static str, u64)> {
    let count = |reason: &DropReason| (reason.name(), totals.dropped(*reason));
    DropReason::ALL.iter().map(count).filter(|(_, count)| *count > 0)
}
