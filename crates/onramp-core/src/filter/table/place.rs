//! The filters at one qdisc or class.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::Matcher;
use super::super::edit::Changed;
use super::super::read::{FilterSpec, Rank};
use super::group::Group;
use super::tables::Tables;
use super::{Books, Name, refused};
use crate::base::ConfigError;
use crate::base::error::Errno;

/// The preferences that are assigned automatically: from `PREF_OWN` downwards to `PREF_OWN_MIN`.
const PREF_OWN: u16 = 0xc000;
const PREF_OWN_MIN: u16 = 0x8000;

/// The filters at one qdisc or class.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// The filters by chain and preference.
    pub(super) groups: BTreeMap<Name, Group>,
    /// For each chain that has filters: how many filters had been added to this qdisc or class
    /// (`born`) when the chain got its first filter.
    pub(super) chains: BTreeMap<u32, u64>,
    born: u64,
    tables: Tables,
}

impl Place {
    /// Returns the filter of a group with the handle `handle`, or `None` if there is none.
    pub(super) fn find(&self, group: &Group, handle: u32) -> Option<Arc<FilterSpec>> {
        if group.kind == "u32" { self.find_u32(handle) } else { group.get(handle) }
    }

    /// Returns the `u32` hash table or node with the handle `handle`, or `None` if there is none.
    pub(super) fn find_u32(&self, handle: u32) -> Option<Arc<FilterSpec>> {
        // The nodes of a `u32` hash table are stored in the group (chain and preference) that
        // created the table.
        let owner = self.tables.owner(handle)?;
        self.groups.get(&owner)?.get(handle)
    }

    /// Returns the preference for a filter in this chain that is added without one.
    fn own_pref(&self, chain: u32) -> Result<u16, ConfigError> {
        let mut own = self.groups.range((chain, PREF_OWN_MIN)..=(chain, u16::MAX));
        let pref = own.next().map_or(PREF_OWN, |((_, first), _)| first - 1);
        if pref < PREF_OWN_MIN {
            let said = "Lowest ID from auto-alloc range already in use";
            let why = "no automatic preference is left: the lowest one, 32768, is taken";
            return Err(refused("pref", "").by(Errno::NoSpace, said, why));
        }
        Ok(pref)
    }

    /// Stores a filter, and removes `there`, the filter that it replaces.
    pub(super) fn put(
        &mut self,
        mut filter: FilterSpec,
        there: Option<&FilterSpec>,
        books: &mut Books,
    ) -> Result<(), ConfigError> {
        books.numbers.check(&filter, there)?;
        if filter.pref == 0 {
            filter.pref = self.own_pref(filter.chain)?;
        }
        let name = (filter.chain, filter.pref);
        self.born += 1;
        let born = *self.chains.get(&filter.chain).unwrap_or(&self.born);
        filter.chain_born = born;
        let new = !self.groups.contains_key(&name);
        if new {
            let mut group = Group::of(&filter);
            if filter.kind == "u32" {
                books.serial += 1;
                group.insert(self.tables.root(&filter, books.serial)?, &mut books.changed);
            }
            self.groups.insert(name, group);
            self.chains.insert(filter.chain, born);
        }
        let done = self.settle(&mut filter, there, &mut books.changed);
        let done = done.map(|owner| self.store(filter, there, owner, books));
        if done.is_err() && new {
            self.forget_group(name);
        }
        done
    }

    /// Stores a filter under the chain, preference and rank `owner`, if it has one, and removes
    /// `there`, the filter that it replaces.
    fn store(
        &mut self,
        mut filter: FilterSpec,
        there: Option<&FilterSpec>,
        owner: Option<(Name, Rank)>,
        books: &mut Books,
    ) {
        // As in Linux, the numbers of the old filter's actions become free only after the new
        // filter's actions have got theirs.
        books.numbers.give_out(&mut filter);
        if let Some(there) = there {
            books.numbers.give_back(there, Some(&filter));
            let before = self.groups.get_mut(&(there.chain, there.pref));
            before.into_iter().for_each(|group| group.remove(there, &mut books.changed));
            self.tables.count_link(there, false);
        }
        books.serial += 1;
        filter.serial = books.serial;
        let Some((name, rank)) = owner else { return };
        (filter.chain, filter.pref, filter.rank) = (name.0, name.1, rank);
        self.tables.count_link(&filter, true);
        if let Some(group) = self.groups.get_mut(&name) {
            group.insert(Arc::new(filter), &mut books.changed);
        }
    }

    /// Assigns a handle to the filter if it has none yet. Returns the chain and preference and the
    /// rank under which the filter is to be stored. Returns `None` for a `u32` filter without keys,
    /// which only creates the first hash table of its preference.
    fn settle(
        &mut self,
        filter: &mut FilterSpec,
        there: Option<&FilterSpec>,
        changed: &mut Changed,
    ) -> Result<Option<(Name, Rank)>, ConfigError> {
        let name = (filter.chain, filter.pref);
        match &filter.matcher {
            Matcher::Root => return Ok(None),
            Matcher::Table(_) | Matcher::U32(_) => {
                let place = self.tables.settle(filter, there, &self.groups)?;
                return Ok(Some(place));
            }
            _ => {}
        }
        let Some(group) = self.groups.get_mut(&name) else { return Ok(None) };
        Ok(Some((name, group.settle(filter, there, changed)?)))
    }

    /// Removes a filter. Also removes its group and its chain if they become empty.
    pub(super) fn remove(
        &mut self,
        filter: &FilterSpec,
        books: &mut Books,
    ) -> Result<(), ConfigError> {
        let name = (filter.chain, filter.pref);
        self.tables.check_delete(filter)?;
        let Some(group) = self.groups.get_mut(&name) else { return Ok(()) };
        if let Matcher::Table(_) = filter.matcher {
            for node in group.nodes(filter.handle) {
                books.numbers.give_back(&node, None);
                group.remove(&node, &mut books.changed);
                self.tables.count_link(&node, false);
            }
            self.tables.remove(filter.handle);
        }
        books.numbers.give_back(filter, None);
        group.remove(filter, &mut books.changed);
        self.tables.count_link(filter, false);
        self.tables.free(filter);
        // If several preferences have `u32` filters, nodes of one may refer to tables of another,
        // so the tables stay even if only tables are left.
        let is_bare = group.is_bare();
        if is_bare && (group.kind != "u32" || Tables::are_alone(&self.groups)) {
            let left = self.forget_group(name);
            books.changed.gone.extend(left.into_iter().flat_map(Group::into_filters));
        }
        Ok(())
    }

    /// Removes a group, and its chain if no other group is in it. Returns the group.
    pub(super) fn forget_group(&mut self, name: Name) -> Option<Group> {
        let group = self.groups.remove(&name)?;
        group.specs().for_each(|filter| self.tables.count_link(filter, false));
        let tables = group.specs().filter(|it| matches!(it.matcher, Matcher::Table(_)));
        self.tables.forget(tables.map(|table| table.handle));
        let chain = name.0;
        if self.groups.range((chain, 0)..=(chain, u16::MAX)).next().is_none() {
            self.chains.remove(&chain);
        }
        Some(group)
    }
}
