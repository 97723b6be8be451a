//! Documentation that is generated from the tables of words and parameters: the tables of
//! `docs/tc-reference.md`, the manual pages, and the completion.

pub(crate) mod complete;
pub(crate) mod man;
#[cfg(test)]
mod markdown;
#[cfg(test)]
mod shown;
#[cfg(test)]
mod tests;

use onramp_core::params::{Param, Unit};
use onramp_core::qdisc::{ClassKind, INGRESS, KINDS, Kind};

/// Returns all kinds of qdiscs, sorted by name, including those for packets that come in.
pub(crate) fn kinds() -> Vec<&'static Kind> {
    let mut kinds: Vec<_> = KINDS.iter().chain(INGRESS).collect();
    kinds.sort_by_key(|kind| kind.id);
    kinds
}

/// Returns the options of a kind's classes; `None` if users cannot add classes to this kind.
pub(crate) fn class_params(kind: &Kind) -> Option<&'static [Param]> {
    match kind.classes {
        ClassKind::Added { params, .. } => Some(params),
        _ => None,
    }
}

/// Returns what happens to an option if a change does not give it.
#[cfg(test)]
fn on_change(param: &Param) -> &'static str {
    match (param.fixed, param.resets) {
        (Some(_), _) => "never",
        (None, true) => "reset",
        (None, false) => "kept",
    }
}

/// Returns the other names of an option, as text to append to its description.
fn aliases(param: &Param) -> String {
    let named = param.names();
    let other = param.aliases.iter().filter(|alias| !named.contains(alias));
    let other: Vec<&str> = other.copied().collect();
    if other.is_empty() { String::new() } else { format!("; also {}", other.join(", ")) }
}

/// Returns the valid values of an option; `None` if the option's usage already says them.
fn range(param: &Param) -> Option<String> {
    match param.unit {
        Unit::Words(_) | Unit::Choice(_) | Unit::Row(..) | Unit::Forms(_) => None,
        _ => Some(param.expected()),
    }
}
