//! The hash tables of `u32` at a qdisc or class: in which group each table is, and which numbers of
//! tables and of nodes (filters in a table) are taken.
//!
//! The first table of a preference is in the group of its preference, and is deleted with it. As in
//! Linux, all preferences share the tables that a `divisor` makes: these are in groups of their own
//! (`SHARED`), which are deleted with the last preference of kind `u32`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::Matcher;
use super::super::read::{FilterSpec, Rank};
use super::super::words::{COUNT_BITS, NODE, SHARED, TABLE, TABLE_BITS, handle_name};
use super::group::Group;
use super::{Name, refused};
use crate::base::ConfigError;
use crate::base::error::Errno;

/// The lowest number that a table or a node gets automatically.
const OWN: u32 = 0x800;
const OWN_TABLES: u32 = 0x800;

/// Returns the node number that is tried at this index, when numbers are assigned automatically:
/// first 800 to fff, then from 1 on. Returns `None` after the last number.
fn node_at(place: u32) -> Option<u32> {
    match place {
        0..OWN => Some(OWN + place),
        OWN..NODE => Some(place - OWN + 1),
        _ => None,
    }
}

/// Returns the handle that a hash table gets automatically, and counts `next` up, which is the
/// number of the next table to try, as an offset from the lowest such number.
pub(super) fn next_table(next: &mut u32, is_taken: impl Fn(u32) -> bool) -> Option<u32> {
    let mut tables = (0..OWN_TABLES).map(|_| {
        let table = (OWN + *next % OWN_TABLES) << TABLE_BITS;
        *next += 1;
        table
    });
    tables.find(|table| !is_taken(*table))
}

/// All hash tables at a qdisc or class, by their handles.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    owned: BTreeMap<u32, Owned>,
    /// Number of tables that have been created so far.
    born: u64,
    /// The next table number to try, as an offset from the lowest automatic number.
    next: u32,
    /// For each bucket of a table: a number n such that the first n node numbers that `node_at`
    /// returns are all taken. The search for a free number begins after these.
    taken: BTreeMap<u32, u32>,
    /// For each table to which nodes link: the number of these nodes.
    links: BTreeMap<u32, usize>,
    /// Number of nodes that have been created so far.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Owned {
    by: Name,
    born: u64,
    divisor: u32,
    root: bool,
}

fn wrong(key: &'static str, handle: u32, said: &'static str, why: &str) -> ConfigError {
    refused(key, handle_name(handle)).by(Errno::Invalid, said, why)
}

const ABSENT: &str = "there is no such table; add it with divisor";

fn full(bucket: u32) -> ConfigError {
    let why = "all 4,095 numbers of this bucket are taken; delete a filter, or use another bucket";
    let said = "cls_u32: Hash table node ID pool exhausted";
    let name = format!("{:x}:{:x}:", bucket >> TABLE_BITS, bucket >> 12 & 0xff);
    refused("handle", name).by(Errno::NoSpace, said, why)
}

impl Tables {
    fn own(&mut self) -> Result<u32, ConfigError> {
        next_table(&mut self.next, |table| self.owned.contains_key(&table)).ok_or_else(|| {
            let why = "a qdisc or class has at most 2048 hash tables with automatic numbers";
            refused("u32", "").by(Errno::NoSpace, "", why)
        })
    }

    /// Creates the first hash table of a preference, when the preference gets `filter` as its first
    /// filter.
    pub(super) fn root(
        &mut self,
        filter: &FilterSpec,
        serial: u64,
    ) -> Result<Arc<FilterSpec>, ConfigError> {
        let by = (filter.chain, filter.pref);
        let handle = match (&filter.matcher, filter.handle) {
            (Matcher::Root, handle @ 1..) => handle,
            _ => self.own()?,
        };
        self.born += 1;
        let born = self.born;
        self.owned.insert(handle, Owned { by, born, divisor: 1, root: true });
        Ok(Arc::new(filter.table(handle, (born, 0), serial)))
    }

    /// Returns an error unless `handle` can be the handle of the first hash table of a preference.
    /// `new` says whether the preference is new.
    pub(super) fn check_root(&self, handle: u32, new: bool) -> Result<(), ConfigError> {
        let is_table = handle & !TABLE == 0 && handle != TABLE;
        if new && is_table && !self.owned.contains_key(&handle) {
            return Ok(());
        }
        let said = "cls_u32: Filter handle requires options";
        let why = "without options, a line can only give the first table of a new preference a \
                   number that is free, such as 805:";
        Err(wrong("handle", handle, said, why))
    }

    /// Returns the name of the group of the table in which `handle` is, or `None` if there is no
    /// such table.
    pub(super) fn owner(&self, handle: u32) -> Option<Name> {
        self.owned.get(&(handle & TABLE)).map(|table| table.by)
    }

    /// Assigns a handle to a table or a node. Returns the chain and preference and the rank under
    /// which the table or node is to be stored.
    pub(super) fn settle(
        &mut self,
        filter: &mut FilterSpec,
        there: Option<&FilterSpec>,
        groups: &BTreeMap<Name, Group>,
    ) -> Result<(Name, Rank), ConfigError> {
        let name = (filter.chain, filter.pref);
        let (table, link) = match &filter.matcher {
            Matcher::Table(divisor) => {
                return self.settle_table(filter, there, *divisor, name.1);
            }
            Matcher::U32(node) => (node.table, node.link),
            _ => (None, None),
        };
        if let Some(link) = link {
            match self.owned.get(&(link & TABLE)) {
                None => {
                    let said = "cls_u32: Link hash table not found";
                    return Err(wrong("link", link, said, ABSENT));
                }
                Some(table) if table.root => {
                    let said = "cls_u32: Not linking to root node";
                    let why = "filters cannot link to the first table of a preference";
                    return Err(wrong("link", link, said, why));
                }
                Some(_) => {}
            }
        }
        if let Some(there) = there {
            if let Matcher::Table(_) = there.matcher {
                let said = "cls_u32: Key node id cannot be zero";
                let why = "this is a table, which cannot be replaced by a filter: name a filter in \
                           it, such as 2::800";
                return Err(wrong("handle", there.handle, said, why));
            }
            filter.handle = there.handle;
            return Ok(((there.chain, there.pref), there.rank));
        }
        self.settle_node(filter, table.unwrap_or(0), name, groups)
    }

    fn settle_table(
        &mut self,
        filter: &mut FilterSpec,
        there: Option<&FilterSpec>,
        divisor: u32,
        pref: u16,
    ) -> Result<(Name, Rank), ConfigError> {
        if let Some(there) = there {
            let said = "cls_u32: Key node id cannot be zero";
            let why = match there.matcher {
                Matcher::Table(_) => {
                    "this table is there, and a table cannot be replaced or changed: delete it \
                     first, or leave out this line"
                }
                _ => "this is a filter, and not a table: name a table, such as 2:",
            };
            return Err(wrong("handle", there.handle, said, why));
        }
        filter.handle = match filter.handle & TABLE {
            0 => self.own()?,
            table => table,
        };
        self.born += 1;
        let by = (SHARED, pref);
        self.owned.insert(filter.handle, Owned { by, born: self.born, divisor, root: false });
        Ok((by, (self.born, 0)))
    }

    fn settle_node(
        &mut self,
        filter: &mut FilterSpec,
        table: u32,
        name: Name,
        groups: &BTreeMap<Name, Group>,
    ) -> Result<(Name, Rank), ConfigError> {
        let bucket = table >> 12 & 0xff;
        let given = match table & TABLE {
            // The first table of a preference is also the first filter in it.
            0 | TABLE => {
                let first = groups.get(&name).and_then(|group| group.specs().next());
                let first = first.and_then(|first| self.owned.get_key_value(&first.handle));
                first.filter(|(_, table)| table.root)
            }
            named => self.owned.get_key_value(&named),
        };
        let Some((&table, owned)) = given else {
            let said = "cls_u32: Specified hash table not found";
            return Err(wrong("ht", table & TABLE, said, ABSENT));
        };
        if bucket >= owned.divisor {
            let said = "cls_u32: Specified hash table buckets exceed configured value";
            let why = format!("the buckets of this table are 0 to {:x}", owned.divisor - 1);
            return Err(wrong("ht", table | bucket << 12, said, &why));
        }
        let handle = filter.handle;
        if handle & TABLE != 0 && (handle ^ table) & TABLE != 0 {
            let said = "cls_u32: Handle specified hash table address mismatch";
            let why = format!("the filter is added to the table {}", handle_name(table));
            return Err(wrong("handle", handle, said, &why));
        }
        let first = table | bucket << 12;
        let group = groups.get(&owned.by);
        let taken = |node: u32| group.is_some_and(|group| group.get(first | node).is_some());
        let mut place = self.taken.get(&first).copied().unwrap_or(0);
        let node = match handle & NODE {
            0 => {
                while node_at(place).is_some_and(taken) {
                    place += 1;
                }
                self.taken.insert(first, place);
                node_at(place).ok_or_else(|| full(first))?
            }
            node if taken(node) => {
                let why = "a filter in this bucket has this number: give another, or none";
                let name = handle_name(first | handle & NODE);
                return Err(refused("handle", name).by(Errno::NoSpace, "", why));
            }
            node => node,
        };
        filter.handle = first | node;
        let (by, born) = (owned.by, owned.born);
        self.count += 1;
        let rank = (born, u64::from(filter.handle & !TABLE) << COUNT_BITS | self.count);
        Ok((by, rank))
    }

    /// Marks the number of a deleted node as free.
    pub(super) fn free(&mut self, filter: &FilterSpec) {
        if let Some(place) = self.taken.get_mut(&(filter.handle & !NODE)) {
            let node = filter.handle & NODE;
            *place = (*place).min(if node < OWN { node + OWN - 1 } else { node - OWN });
        }
    }

    /// Returns an error if `filter` is a hash table that Linux does not delete: the first of its
    /// preference, or one that nodes refer to.
    pub(super) fn check_delete(&self, filter: &FilterSpec) -> Result<(), ConfigError> {
        let Matcher::Table(_) = filter.matcher else { return Ok(()) };
        let wrong = |said, why| Err(refused("handle", "").by(Errno::Invalid, said, why));
        if self.owned.get(&filter.handle).is_some_and(|table| table.root) {
            let why = "the first table of a preference can be deleted only with the preference";
            return wrong("cls_u32: Not allowed to delete root node", why);
        }
        if self.links.contains_key(&filter.handle) {
            let why = "other filters link to this table";
            return wrong("cls_u32: Can not delete in-use filter", why);
        }
        Ok(())
    }

    /// Counts the link of `filter` to a table, if it has one: `filter` is new, or was removed.
    pub(super) fn count_link(&mut self, filter: &FilterSpec, is_new: bool) {
        let Matcher::U32(node) = &filter.matcher else { return };
        let Some(table) = node.link else { return };
        let count = self.links.entry(table).or_default();
        *count = if is_new { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.links.remove(&table);
        }
    }

    /// Forgets a hash table and its nodes.
    pub(super) fn remove(&mut self, table: u32) {
        self.owned.remove(&table);
        let buckets = self.taken.range(table..=table | !TABLE).map(|(bucket, _)| *bucket);
        for bucket in buckets.collect::<Vec<_>>() {
            self.taken.remove(&bucket);
        }
    }

    /// Forgets these hash tables, which are those of a preference, and their nodes.
    pub(super) fn forget(&mut self, tables: impl Iterator<Item = u32>) {
        tables.for_each(|table| self.remove(table));
        if self.owned.is_empty() {
            self.next = 0;
        }
    }
}
