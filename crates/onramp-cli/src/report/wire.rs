//! The summary of `onramp wire`.

use onramp_wire::{Carried, Counts};
use serde_json::{Value, json};

use super::direction;

/// Returns the summary as JSON for programs. `exit_code` is the client's, if there was one.
pub(crate) fn json(carried: &Carried, exit_code: Option<u8>) -> Value {
    json!({
        "schema": "onramp.wire",
        "version": 1,
        "exit_code": exit_code,
        "up": direction::json(&carried.up),
        "down": direction::json(&carried.down),
    })
}

/// Returns the summary as text for people.
pub(crate) fn text(carried: &Carried) -> String {
    let (up, down) = (direction::text("up", &carried.up), direction::text("down", &carried.down));
    format!("{up}; {down}")
}

/// Returns the summary of a relay as JSON for programs.
pub(crate) fn relay_json(
    carried: &Carried,
    addresses: &[String],
    counts: &Counts,
    exit_code: Option<u8>,
) -> Value {
    let mut whole = json(carried, exit_code);
    whole["relay"] = json!({
        "addresses": addresses,
        "connections": counts.connections,
        "connections_refused": counts.connections_refused,
        "reset": counts.reset,
        "cut": counts.cut,
        "retransmitted": counts.retransmitted,
        "clients": counts.clients,
        "forgotten": counts.forgotten,
        "no_socket": counts.no_socket,
        "waits": counts.waits,
        "unreachable": counts.unreachable,
        "failure": counts.failure,
    });
    whole
}

/// Returns the summary of a relay as text for people.
pub(crate) fn relay_text(carried: &Carried, counts: &Counts) -> String {
    let mut whole = format!("{}; relay: {} TCP connections", text(carried), counts.connections);
    let rest = [
        (counts.connections_refused, "refused by the target"),
        (counts.reset, "reset"),
        (counts.cut, "cut off at the end"),
        (counts.retransmitted, "segments sent again"),
        (counts.clients, "UDP clients"),
        (counts.forgotten, "of them forgotten"),
        (counts.no_socket, "datagrams discarded for want of a socket"),
        (counts.waits, "waits of connections for want of a file descriptor"),
        (counts.unreachable, "datagrams for which the target's machine said that nobody is there"),
    ];
    for (count, what) in rest.into_iter().filter(|(count, _)| *count > 0) {
        whole += &format!(", {count} {what}");
    }
    if let Some(why) = &counts.failure {
        whole += &format!("; first error: {why}");
    }
    whole
}
