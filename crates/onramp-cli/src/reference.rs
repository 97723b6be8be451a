//! Documentation and completion that are generated from the tables of words and parameters: the
//! tables in `docs/tc-reference.md`, the manual pages, and the words that shells offer.

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

/// Returns all kinds of qdiscs, sorted by name, including those that a device uses for the packets
/// that it receives.
pub(crate) fn kinds() -> Vec<&'static Kind> {
    let mut kinds: Vec<_> = KINDS.iter().chain(INGRESS).collect();
    kinds.sort_by_key(|kind| kind.id);
    kinds
}

/// Returns the options of the classes of a qdisc kind; `None` if users cannot add classes to this
/// kind.
pub(crate) fn class_params(kind: &Kind) -> Option<&'static [Param]> {
    match kind.classes {
        ClassKind::Added { params, .. } => Some(params),
        _ => None,
    }
}

/// Returns what a `tc ... change` that does not give this option does with the option's value:
/// `never` means that the option cannot be changed, `reset` that it becomes the default again,
/// `kept` that it stays.
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

/// Returns the text that says which values of an option are valid; `None` if the option's usage
/// text already says it.
fn range(param: &Param) -> Option<String> {
    match param.unit {
        Unit::Words(_) | Unit::Choice(_) | Unit::Row(..) | Unit::Forms(_) => None,
        _ => Some(param.expected()),
    }
}
