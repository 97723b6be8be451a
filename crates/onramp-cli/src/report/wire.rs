//! The summary of `onramp wire`.

use onramp_wire::Carried;
use serde_json::{Value, json};

use super::direction;

/// Returns the summary as JSON for programs. `exit_code` is the client's.
pub(crate) fn json(carried: &Carried, exit_code: u8) -> Value {
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
