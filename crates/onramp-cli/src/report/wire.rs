//! The summary of `onramp wire`.

use onramp_core::Totals;
use onramp_queue::DropReason;
use onramp_wire::Carried;
use serde_json::{Map, Value, json};

/// Returns the summary as JSON for programs. `exit_code` is the client's.
pub(crate) fn json(carried: &Carried, exit_code: u8) -> Value {
    let way = |totals: &Totals| {
        let drops = drops(totals).map(|(reason, count)| (reason.to_owned(), json!(count)));
        json!({
            "packets": totals.enqueued_packets,
            "made": totals.made_packets,
            "sent": totals.sent_packets,
            "sent_bytes": totals.sent_bytes,
            "drops": drops.collect::<Map<_, _>>(),
            "queued": queued(totals),
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
    let way = |name: &str, totals: &Totals| {
        let mut text =
            format!("{name}: {} packets, {} bytes carried", totals.sent_packets, totals.sent_bytes);
        let reasons: Vec<_> =
            drops(totals).map(|(reason, count)| format!("{reason} {count}")).collect();
        if !reasons.is_empty() {
            text += &format!(", {} dropped ({})", totals.dropped_packets(), reasons.join(", "));
        }
        if queued(totals) > 0 {
            text += &format!(", {} still in the wire", queued(totals));
        }
        text
    };
    format!("{}; {}", way("up", &carried.up), way("down", &carried.down))
}

fn drops(totals: &Totals) -> impl Iterator<Item = (&'static str, u64)> {
    let count = |reason: &DropReason| (reason.name(), totals.dropped(*reason));
    DropReason::ALL.iter().map(count).filter(|(_, count)| *count > 0)
}

fn queued(totals: &Totals) -> u64 {
    totals.enqueued_packets - totals.sent_packets - totals.dropped_packets()
}
