//! What people read of the tables of words and parameters: the tables of `docs/tc-reference.md`,
//! manual pages, completion.

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

/// All kinds of qdiscs by their names, with what stands where packets come in.
pub(crate) fn kinds() -> Vec<&'static Kind> {
    let mut kinds: Vec<_> = KINDS.iter().chain(INGRESS).collect();
    kinds.sort_by_key(|kind| kind.id);
    kinds
}

/// The options of a kind's classes; `None`: nobody adds classes to it.
pub(crate) fn class_params(kind: &Kind) -> Option<&'static [Param]> {
    match kind.classes {
        ClassKind::Added { params, .. } => Some(params),
        _ => None,
    }
}

/// What a change does to an option that it does not give.
#[cfg(test)]
fn on_change(param: &Param) -> &'static str {
    match (param.fixed, param.resets) {
        (Some(_), _) => "never",
        (None, true) => "reset",
        (None, false) => "kept",
    }
}

/// The other names of an option, in brackets.
fn aliases(param: &Param) -> String {
    let named = param.names();
    let other = param.aliases.iter().filter(|alias| !named.contains(alias));
    let other: Vec<&str> = other.copied().collect();
    if other.is_empty() { String::new() } else { format!("; also {}", other.join(", ")) }
}

/// What may stand behind an option's name, if that is not in its usage already.
fn range(param: &Param) -> Option<String> {
    match param.unit {
        Unit::Words(_) | Unit::Choice(_) | Unit::Row(..) | Unit::Forms(_) => None,
        _ => Some(param.expected()),
    }
}
