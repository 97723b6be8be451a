//! What stands where packets come in: places for filters, which hold no packets.
//!
//! They are no qdiscs of the table: no tree is built of them.
//!
//! Source: `tc(8)`; behaviour of Linux 7.2 `net/sched/sch_ingress.c`.
//! Differs: nothing asks their filters yet: they are kept, and listed.
//! Invariant: no packet is ever in one.

use super::Kind;

/// The kinds of it.
pub(crate) const KINDS: &[Kind] = &[
    Kind { id: "ingress", about: "filters for packets that come in", ..Kind::LEAF },
    Kind { id: "clsact", about: "filters for packets that come in and go out", ..Kind::LEAF },
];
