//! The filters at one qdisc or class.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::Matcher;
use super::super::edit::Changed;
use super::super::read::{FilterSpec, Rank};
use super::super::words::SHARED;
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
    /// Whether there is a `u32` hash table with this handle.
    pub(super) fn has_table(&self, handle: u32) -> bool {
        self.tables.owner(handle).is_some()
    }
}

impl Place {
    /// Returns the filter of a group with the handle `handle`, or `None` if there is none.
    pub(super) fn find(&self, group: &Group, handle: u32) -> Option<Arc<FilterSpec>> {
        if group.kind == "u32" { self.find_u32(handle) } else { group.get(handle) }
    }

    /// Returns the `u32` hash table or node with the handle `handle`, or `None` if there is none.
    pub(super) fn find_u32(&self, handle: u32) -> Option<Arc<FilterSpec>> {
        // The nodes of a `u32` hash table are stored in the group of the table.
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
        if let (Matcher::Root, handle @ 1..) = (&filter.matcher, filter.handle) {
            self.tables.check_root(handle, new)?;
        }
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
        if let Ok(Some((name, _))) = &done {
            self.go_to(&mut filter, *name);
        }
        let done = done.map(|owner| self.store(filter, there, owner, books));
        if done.is_err() && new {
            self.forget_group(name);
        }
        done
    }

    /// Prepares a filter for the group `name`, in which it is to be stored. A node of `u32` may be
    /// added to a table of another group; it then has the protocol of that group.
    fn go_to(&mut self, filter: &mut FilterSpec, name: Name) {
        if name.0 == SHARED {
            self.groups.entry(name).or_insert_with(|| Group::of(filter));
        } else if let Some(group) = self.groups.get(&name) {
            filter.protocol = group.protocol;
            filter.chain_born = self.chains.get(&name.0).copied().unwrap_or(filter.chain_born);
        }
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
        let (is_u32, is_empty) = (group.kind == "u32", group.specs().next().is_none());
        if is_empty {
            self.forget_group(name);
        }
        if is_u32 {
            self.forget_last_u32(books);
        }
        Ok(())
    }

    /// Forgets the only preference with filters of kind `u32` if no node is left. If several
    /// preferences have `u32` filters, all of them stay, even if only tables are left.
    fn forget_last_u32(&mut self, books: &mut Books) {
        let of_u32 = || self.groups.iter().filter(|(_, group)| group.kind == "u32");
        let mut own = of_u32().map(|(name, _)| *name).filter(|name| name.0 != SHARED);
        if let (Some(name), None) = (own.next(), own.next())
            && of_u32().all(|(_, group)| group.is_bare())
        {
            self.remove_group(name, books);
            self.forget_shared(books);
        }
    }

    /// Forgets the tables that all preferences share, if no preference has filters of kind `u32`
    /// any more.
    pub(super) fn forget_shared(&mut self, books: &mut Books) {
        let shared: Vec<_> = self.groups.range((SHARED, 0)..).map(|(name, _)| *name).collect();
        // Mostly there are none, and then no filter is looked at: there may be thousands.
        let mut others = self.groups.iter().filter(|(name, _)| name.0 != SHARED);
        if !shared.is_empty() && !others.any(|(_, group)| group.kind == "u32") {
            shared.into_iter().for_each(|name| self.remove_group(name, books));
        }
    }

    /// Removes a group with all of its filters, which count as removed by the line.
    pub(super) fn remove_group(&mut self, name: Name, books: &mut Books) {
        let Some(group) = self.forget_group(name) else { return };
        for filter in group.into_filters() {
            books.numbers.give_back(&filter, None);
            books.changed.gone.push(filter);
        }
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
