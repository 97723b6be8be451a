//! Ingress qdiscs (`ingress`, `clsact`): they stand where packets come in to a device, offer places
//! for filters, and hold no packets. [`Ingress`](crate::Ingress) asks the filters for packets that
//! come in; the tree asks those of a `clsact` for packets that leave, before a packet enters the
//! root.
//!
//! These kinds are not in the table [`KINDS`](super::KINDS), and a tree of qdiscs never contains
//! them.
//!
//! Source: `tc(8)`; behaviour of Linux 7.2 `net/sched/sch_ingress.c`.
//! Differs: the class of a packet has no effect (Linux writes it to a field that no qdisc here
//! reads).
//! Invariant: these qdiscs never hold a packet.

use super::{FilterPlaces, Kind, Quirks};
use crate::sched::Shown;

/// The kinds of ingress qdiscs.
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
