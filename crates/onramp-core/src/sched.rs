//! The contract between a qdisc, its caller and its children, and the parts of which several kinds
//! of qdisc are built.

pub(crate) mod buckets;
pub(crate) mod call;
pub(crate) mod classes;
pub(crate) mod counted;
pub(crate) mod flows;
#[cfg(feature = "tc")]
pub(crate) mod front;
pub(crate) mod kind;
pub(crate) mod qdisc;
pub(crate) mod qdisc_counters;
pub(crate) mod rounds;
pub(crate) mod scouts;
pub(crate) mod segments;
pub(crate) mod time_queue;
pub(crate) mod turns;
pub(crate) mod view;

pub use self::call::{Backlog, Cx, Dequeue, Peek, Verdict};
pub use self::counted::Counted;
pub use self::kind::{
    AddedQuirks, BuildChild, Changes, Check, ClassKind, ClassOption, FilterPlaces, Kind, Quirks,
    SetOption, Shown,
};
pub(crate) use self::qdisc::peek_by_dequeue;
pub use self::qdisc::{Child, Classes, FlowView, Qdisc};
pub use self::view::{ClassView, QdiscView};
