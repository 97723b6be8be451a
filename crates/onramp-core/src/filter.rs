//! Filters: which class a packet belongs to.
//!
//! Source: `tc(8)`, section "CLASSIFIERS"; behaviour of Linux 7.2 `net/sched/cls_api.c`.

use onramp_queue::Packet;

use crate::params::{Default as Absent, Param, Unit};
use crate::spec::{Words, read_options};
use crate::{ConfigError, Handle, Instant};

/// What filters say of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// None has matched.
    Unknown,
    /// It belongs to this class.
    Class(Handle),
    /// An action said so.
    Drop,
}

/// The filters of a qdisc or of a class, by preference.
#[derive(Debug, Default)]
pub struct Filters {
    filters: Vec<FilterSpec>,
}

impl Filters {
    /// Adds a filter behind those of the same preference.
    pub(crate) fn add(&mut self, filter: FilterSpec) {
        let place = self.filters.partition_point(|other| other.pref <= filter.pref);
        self.filters.insert(place, filter);
    }

    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Asks the filters, in order, until one has matched.
    #[inline]
    pub(crate) fn classify(&mut self, pkt: &mut Packet, _now: Instant) -> Decision {
        if self.filters.is_empty() {
            return Decision::Unknown;
        }
        let first = self.filters.iter().find(|filter| match &filter.kind {
            FilterKind::Matchall => true,
            FilterKind::Fw(mark) => *mark == pkt.mark,
        });
        first.map_or(Decision::Unknown, |filter| Decision::Class(filter.class))
    }
}

/// A filter as described by its user, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterSpec {
    /// Smaller ones are asked first.
    pref: u64,
    kind: FilterKind,
    class: Handle,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FilterKind {
    Matchall,
    Fw(u32),
}

const COMMON: &[Param] =
    &[Param::new("pref", Unit::Count, Absent::Number(49_152), "smaller ones are asked first")
        .or(&["prio", "preference", "priority"])
        .within(1, 65_535)];

impl FilterSpec {
    /// The class it names.
    pub(crate) fn class(&self) -> Option<Handle> {
        Some(self.class)
    }

    /// Reads what stands behind `parent H` in `tc filter add`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the word that is wrong, and what would be right.
    pub(crate) fn read(words: &mut Words<'_>) -> Result<Self, ConfigError> {
        let common = read_options("filter", COMMON, words, false, true)?;
        let mut handle = None;
        if words.clone().next() == Some("handle") {
            words.next();
            handle = words.next();
        }
        let pref = common[0].as_ref().map_or(49_152, crate::params::Value::number);
        let kind = match words.next() {
            Some("matchall") => FilterKind::Matchall,
            Some("fw") => {
                let mark = handle.and_then(crate::units::parse_count);
                let mark = mark.and_then(|mark| u32::try_from(mark).ok()).ok_or_else(|| {
                    let why = "expected `handle MARK` before it, 0 to 4294967295";
                    ConfigError::new("filter fw", "handle", handle.unwrap_or_default(), why)
                })?;
                FilterKind::Fw(mark)
            }
            other => {
                let why = "expected a filter: matchall, fw";
                return Err(ConfigError::new("filter", "", other.unwrap_or_default(), why));
            }
        };
        match (words.next(), words.next()) {
            (Some("classid" | "flowid"), Some(class)) => {
                Ok(Self { pref, kind, class: class.parse()? })
            }
            (word, _) => {
                let why = "expected `classid MAJOR:MINOR`";
                Err(ConfigError::new("filter", "", word.unwrap_or_default(), why))
            }
        }
    }
}
