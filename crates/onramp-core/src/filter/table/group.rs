//! The filters of one chain and preference, which form a group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::edit::Changed;
use super::super::flower::{Key, Mask};
use super::super::head::Head;
use super::super::read::{FilterSpec, Rank};
use super::super::{Matcher, protocol};
use super::refused;
use crate::base::ConfigError;
use crate::base::error::Errno;

/// The filters of one chain and preference. All of them have the same kind and the same protocol.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) kind: &'static str,
    pub(super) protocol: u16,
    /// The filters in the order in which they are asked.
    filters: BTreeMap<Rank, Arc<FilterSpec>>,
    handles: BTreeMap<u32, Rank>,
    /// All handles from 1 to below this number are taken.
    free: u32,
    /// Number of filters that have been stored in the group so far.
    count: u64,
    /// For `flower` filters: the mask, values and port ranges of each filter, so that no two
    /// filters match the same.
    flowers: BTreeSet<Key>,
    /// For `flower` filters: for each mask, the rank of the first filter that had it, and how many
    /// filters have it now.
    masks: BTreeMap<Mask, (u64, usize)>,
    /// Number of `u32` hash tables among the filters.
    tables: usize,
}

fn is_table(filter: &FilterSpec) -> bool {
    matches!(filter.matcher, Matcher::Table(_))
}

impl Group {
    /// Creates an empty group for filters of the kind and protocol of `filter`.
    pub(super) fn of(filter: &FilterSpec) -> Self {
        Self {
            kind: filter.kind,
            protocol: filter.protocol,
            filters: BTreeMap::new(),
            handles: BTreeMap::new(),
            free: 1,
            count: 0,
            flowers: BTreeSet::new(),
            masks: BTreeMap::new(),
            tables: 0,
        }
    }

    /// Returns an error if the protocol or the kind that a line gives is not that of this group.
    pub(super) fn agrees(&self, head: &Head, kind: Option<&str>) -> Result<(), ConfigError> {
        if let Some(other) = head.protocol.filter(|other| *other != self.protocol) {
            let said = "Protocol mismatch for filter with specified priority";
            let why = format!(
                "the filters with this preference are for protocol {}",
                protocol::name(self.protocol)
            );
            let name = protocol::name(other);
            return Err(refused("protocol", name).by(Errno::Invalid, said, &why));
        }
        if let Some(other) = kind.filter(|other| *other != self.kind) {
            let said = "Specified filter kind does not match existing one";
            let why = format!("the filters with this preference are of the kind {}", self.kind);
            return Err(refused("", other).by(Errno::Invalid, said, &why));
        }
        Ok(())
    }

    pub(super) fn specs(&self) -> impl Iterator<Item = &FilterSpec> {
        self.filters.values().map(|filter| &**filter)
    }

    /// Returns all filters of the group, which is removed.
    pub(super) fn into_filters(self) -> impl Iterator<Item = Arc<FilterSpec>> {
        self.filters.into_values()
    }

    /// Returns the filters in an order in which lines can add them again with the same result. If
    /// filters of this kind that were added last are asked first, this is the reverse of the order
    /// in which they are asked.
    pub(super) fn to_add(&self) -> Vec<&FilterSpec> {
        let mut filters: Vec<_> = self.specs().collect();
        if matches!(self.kind, "fw" | "basic" | "bpf") {
            filters.reverse();
        }
        filters
    }

    pub(super) fn get(&self, handle: u32) -> Option<Arc<FilterSpec>> {
        // As in Linux, handle 0 names no `fw` filter, although the `fw` filter that takes the class
        // from the packet's mark is stored under handle 0.
        let rank = self.handles.get(&handle).filter(|_| handle != 0 || self.kind != "fw")?;
        self.filters.get(rank).cloned()
    }

    pub(super) fn insert(&mut self, filter: Arc<FilterSpec>, changed: &mut Changed) {
        if let Matcher::Flower(flower) = &filter.matcher {
            self.masks.entry(flower.mask()).or_insert((filter.rank.0, 0)).1 += 1;
            self.flowers.insert(flower.key());
        }
        self.tables += usize::from(is_table(&filter));
        self.handles.entry(filter.handle).or_insert(filter.rank);
        changed.new.push(filter.clone());
        changed.gone.extend(self.filters.insert(filter.rank, filter));
        self.count += 1;
    }

    /// Removes the filter with this rank.
    fn take(&mut self, rank: Rank, changed: &mut Changed) {
        let Some(gone) = self.filters.remove(&rank) else { return };
        changed.gone.push(gone.clone());
        self.tables -= usize::from(is_table(&gone));
        let Matcher::Flower(flower) = &gone.matcher else { return };
        self.flowers.remove(&flower.key());
        let mask = flower.mask();
        if let Some((_, count)) = self.masks.get_mut(&mask) {
            *count -= 1;
            if *count == 0 {
                self.masks.remove(&mask);
            }
        }
    }

    pub(super) fn remove(&mut self, filter: &FilterSpec, changed: &mut Changed) {
        self.handles.remove(&filter.handle);
        self.take(filter.rank, changed);
        self.free = self.free.min(filter.handle);
    }

    /// Notes that the device `old` is called `new` now.
    pub(super) fn rename_indev(&mut self, old: &str, new: &str) {
        for filter in self.filters.values_mut().filter(|it| it.indev.as_deref() == Some(old)) {
            Arc::make_mut(filter).indev = Some(new.into());
        }
    }

    /// Whether the group contains only `u32` hash tables, without nodes.
    pub(super) fn is_bare(&self) -> bool {
        self.filters.len() == self.tables
    }

    /// Returns the nodes in the `u32` hash table `table`.
    pub(super) fn nodes(&self, table: u32) -> Vec<Arc<FilterSpec>> {
        let nodes = self.handles.range(table + 1..=table | 0xf_ffff);
        nodes.filter_map(|(_, rank)| self.filters.get(rank).cloned()).collect()
    }

    /// Returns the lowest handle that is free.
    fn own_handle(&mut self) -> u32 {
        while self.handles.contains_key(&self.free) {
            self.free += 1;
        }
        self.free
    }

    /// Assigns a handle to a filter if it has none, and returns its rank, which decides when the
    /// filter is asked. Returns an error if the filter contradicts another filter of this group,
    /// such as a second `matchall` filter.
    pub(super) fn settle(
        &mut self,
        filter: &mut FilterSpec,
        there: Option<&FilterSpec>,
        changed: &mut Changed,
    ) -> Result<Rank, ConfigError> {
        self.may_stand(filter, there, changed)?;
        if filter.handle == 0 && self.kind != "fw" {
            filter.handle = self.own_handle();
        }
        let (count, last) = (self.count, u64::MAX - self.count);
        // A filter that replaces another takes over the rank of that filter.
        let inside = |new: Rank| there.map_or(new, |there| there.rank);
        Ok(match &filter.matcher {
            Matcher::MarkIsClass(_) => (0, 0),
            // As in Linux, `fw` filters are asked in the order of their hash buckets. In a bucket,
            // the filter that was added last is asked first.
            Matcher::Mark(mark, _) => {
                let hash = mark ^ mark >> 16;
                inside((1 + u64::from((hash ^ hash >> 8) & 0xff), last))
            }
            // Of `basic` and `bpf` filters, the filter that was added last is asked first.
            Matcher::Basic(_) | Matcher::Bpf(..) | Matcher::Ebpf(..) => inside((0, last)),
            // A `flower` filter is asked after the filters with the same mask that were added
            // before.
            Matcher::Flower(flower) => {
                let mask = self.masks.get(&flower.mask());
                (mask.map_or(count, |(came, _)| *came), count)
            }
            _ => inside((0, count)),
        })
    }

    fn may_stand(
        &mut self,
        filter: &FilterSpec,
        there: Option<&FilterSpec>,
        changed: &mut Changed,
    ) -> Result<(), ConfigError> {
        let wrong = |errno, why: &str| Err(refused("pref", filter.pref).by(errno, "", why));
        match &filter.matcher {
            Matcher::Matchall if !self.filters.is_empty() => wrong(
                Errno::Exists,
                "a preference has at most one matchall filter; delete the existing one first",
            ),
            Matcher::MarkIsClass(_) if self.specs().any(|other| other.handle != 0) => wrong(
                Errno::Invalid,
                "another filter with this preference has a mark; expected `handle MARK`",
            ),
            Matcher::Mark(_, mask) => {
                let differs = |other: &FilterSpec| match &other.matcher {
                    Matcher::Mark(_, other) => other != mask,
                    _ => false,
                };
                if self.specs().next().is_some_and(differs) {
                    return wrong(
                        Errno::Invalid,
                        "the fw filters of one preference must have the same mask",
                    );
                }
                if self.handles.remove(&0).is_some() {
                    self.take((0, 0), changed);
                }
                Ok(())
            }
            Matcher::Flower(flower)
                if there.is_some_and(|there| match &there.matcher {
                    Matcher::Flower(there) => there.mask() != flower.mask(),
                    _ => false,
                }) =>
            {
                wrong(
                    Errno::Invalid,
                    "it matches other fields than the existing filter; delete that one first",
                )
            }
            Matcher::Flower(flower) if self.flowers.contains(&flower.key()) => {
                let there = there.map(|there| &there.matcher);
                if matches!(there, Some(Matcher::Flower(there)) if there.key() == flower.key()) {
                    return Ok(());
                }
                wrong(Errno::Exists, "another filter with this preference matches the same packets")
            }
            _ => Ok(()),
        }
    }
}
