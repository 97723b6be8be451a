//! What stands where packets come in: places for filters, which hold no packets.
//!
//! They are no qdiscs of the table: no tree is built of them.
//!
//! Source: `tc(8)`; behaviour of Linux 7.2 `net/sched/sch_ingress.c`.
//! Differs: nothing asks their filters yet: they are kept, and listed.
//! Invariant: no packet is ever in one.

use super::{FilterPlaces, Kind, Quirks};
use crate::sched::Shown;

/// The kinds of it.
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        id: "ingress",
        about: "filters for packets that come in",
        // `tc` writes them where other qdiscs have options.
        shown: Shown {
            options: |_, _, out| out.text(format_args!("---------------- ")),
            ..Shown::TABLE
        },
        quirks: Quirks { filters_only: Some(FilterPlaces::In), ..Quirks::NONE },
        ..Kind::LEAF
    },
    Kind {
        id: "clsact",
        about: "filters for packets that come in and go out",
        quirks: Quirks { filters_only: Some(FilterPlaces::InAndOut), ..Quirks::NONE },
        ..Kind::LEAF
    },
];
