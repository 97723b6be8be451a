//! Qdiscs that stand where packets come in: they have places for filters and hold no packets.
//!
//! These kinds are not in the table of qdiscs, and no tree contains them.
//!
//! Source: `tc(8)`; behaviour of Linux 7.2 `net/sched/sch_ingress.c`.
//! Differs: their filters are stored and listed, but no packet is classified by them yet.
//! Invariant: these qdiscs never hold a packet.

use super::{FilterPlaces, Kind, Quirks};
use crate::sched::Shown;

/// The kinds of qdiscs that stand where packets come in.
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        id: "ingress",
        about: "holds filters for incoming packets",
        // `tc` prints these dashes where other qdiscs have options.
        shown: Shown {
            options: |_, _, out| out.text(format_args!("---------------- ")),
            ..Shown::TABLE
        },
        quirks: Quirks { filters_only: Some(FilterPlaces::In), ..Quirks::NONE },
        ..Kind::LEAF
    },
    Kind {
        id: "clsact",
        about: "holds filters for incoming and outgoing packets",
        quirks: Quirks { filters_only: Some(FilterPlaces::InAndOut), ..Quirks::NONE },
        ..Kind::LEAF
    },
];
