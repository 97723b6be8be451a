//! Keeps the filters of a tree as users described them: which filters exist, their handles and
//! numbers, and the order in which they are asked.
//!
//! Source: behaviour of Linux 7.2 `net/sched/cls_api.c` and of the kinds of filters, compared
//! command by command.
//! Differs: filters do not share actions.
//! Invariant: adding, changing or deleting one of n filters takes about log n steps.

mod group;
mod numbers;
mod tables;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::group::Group;
use self::numbers::Numbers;
use self::tables::Tables;
use super::Matcher;
use super::head::Head;
use super::read::{FilterSpec, Rank, is_sent, read_handle, read_kind};
use super::reader::Reader;
use crate::base::error::Errno;
use crate::base::{ConfigError, Handle};

/// The preferences that are assigned automatically: from `PREF_OWN` downwards to `PREF_OWN_MIN`.
const PREF_OWN: u16 = 0xc000;
const PREF_OWN_MIN: u16 = 0x8000;
const CHAIN_MAX: u32 = 0x0fff_ffff;

/// A chain and a preference, which together name a group of filters.
type Name = (u32, u16);

/// What a `tc filter` line does with the filter that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Add,
    Replace,
    Change,
    Delete,
}

/// All filters of a tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// The filters by the qdisc or class to which they are attached.
    places: BTreeMap<Handle, Place>,
    numbers: Numbers,
    serial: u64,
}

/// The filters at one qdisc or class.
#[derive(Clone, Debug, Default)]
struct Place {
    /// The filters by chain and preference.
    groups: BTreeMap<Name, Group>,
    /// For each chain that has filters: how many filters had been added to this qdisc or class
    /// (`born`) when the chain got its first filter.
    chains: BTreeMap<u32, u64>,
    born: u64,
    tables: Tables,
}

/// Builds errors with the messages that the kernel sends.
struct Refused<'a> {
    at: &'a str,
    key: &'static str,
    value: String,
}

impl Refused<'_> {
    fn by(&self, errno: Errno, said: &'static str, why: &str) -> ConfigError {
        ConfigError::new(self.at, self.key, &self.value, why).kernel(errno, said)
    }
}

fn refused(key: &'static str, value: impl ToString) -> Refused<'static> {
    Refused { at: "filter", key, value: value.to_string() }
}

fn no_chain(chain: u32) -> ConfigError {
    let why = "there are no filters in this chain";
    refused("chain", chain).by(Errno::Invalid, "Cannot find specified filter chain", why)
}

fn no_pref(pref: u16) -> ConfigError {
    let said = "Filter with specified priority/protocol not found";
    refused("pref", pref).by(Errno::NoEntry, said, "there are no filters with this preference")
}

fn no_handle(handle: &str) -> ConfigError {
    let said = "Specified filter handle not found";
    refused("handle", handle).by(Errno::NoEntry, said, "there is no such filter")
}

impl Table {
    /// Returns an error if `tc` itself would refuse the line. `tc` finds such errors before the
    /// kernel finds out whether the qdisc or class exists.
    pub(crate) fn check(
        how: How,
        head: &Head,
        words: &Reader<'_>,
        at: Handle,
    ) -> Result<(), ConfigError> {
        if how == How::Delete {
            return Ok(());
        }
        match FilterSpec::read(head, &mut words.clone(), at.major, None) {
            Err(error) if !is_sent(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Adds, changes or deletes filters at the qdisc or class `at`, as a `tc filter` line says.
    pub(crate) fn apply(
        &mut self,
        at: Handle,
        how: How,
        head: &Head,
        mut words: Reader<'_>,
    ) -> Result<(), ConfigError> {
        match how {
            How::Delete => self.delete(at, head, &mut words),
            _ => self.put(at, how, head, &words),
        }
    }

    /// Adds or changes the filter that a line describes. `head` is the part of the line before the
    /// kind of the filter.
    fn put(
        &mut self,
        at: Handle,
        how: How,
        head: &Head,
        words: &Reader<'_>,
    ) -> Result<(), ConfigError> {
        Self::check(how, head, words, at)?;
        if how == How::Change && head.pref().is_none() {
            let said = "Invalid filter command with priority of zero";
            let why = "expected the preference of the filter to change";
            return Err(refused("pref", "").by(Errno::NoEntry, said, why));
        }
        if head.chain() > CHAIN_MAX {
            let said = "Specified chain index exceeds upper limit";
            let why = "expected 0 to 268435455";
            return Err(refused("chain", head.chain()).by(Errno::Invalid, said, why));
        }
        let kind = read_kind(&mut words.clone())?;
        let handle = match &head.handle {
            Some(word) => read_handle(kind, word, words)?,
            None => 0,
        };
        let there = self.there(at, how, head, kind, handle)?;
        let filter = FilterSpec::read(head, &mut words.clone(), at.major, there.as_deref())?;
        let place = self.places.entry(at).or_default();
        let done = place.put(filter, there.as_deref(), &mut self.numbers, &mut self.serial);
        if self.places.get(&at).is_some_and(|place| place.groups.is_empty()) {
            self.places.remove(&at);
        }
        done
    }

    /// Returns the filter that a line names, or `None` if there is no such filter. Returns an error
    /// if the line adds (`How::Add`) a filter that exists, or changes (`How::Change`) one that does
    /// not.
    fn there(
        &self,
        at: Handle,
        how: How,
        head: &Head,
        kind: &str,
        handle: u32,
    ) -> Result<Option<Arc<FilterSpec>>, ConfigError> {
        let place = self.places.get(&at);
        let group = head.pref().and_then(|pref| place?.groups.get(&(head.chain(), pref)));
        if let Some(group) = group {
            group.agrees(head, Some(kind))?;
        } else if how == How::Change && head.protocol.is_none() {
            let said = "Filter kind and protocol must be specified";
            let why = "there is no such filter; use add";
            return Err(refused("protocol", "").by(Errno::NoEntry, said, why));
        }
        let there = group.and_then(|group| place?.find(group, handle));
        match (how, &there) {
            (How::Add, Some(_)) => {
                let why = "use change or replace";
                let handle = head.handle.as_deref().unwrap_or_default();
                Err(refused("handle", handle).by(Errno::Exists, "Filter already exists", why))
            }
            (How::Change, None) => {
                let said = "Need both RTM_NEWTFILTER and NLM_F_CREATE to create a new filter";
                let why = "there is no such filter; use add";
                Err(refused("handle", "").by(Errno::NoEntry, said, why))
            }
            _ => Ok(there),
        }
    }

    /// Deletes the filters that a line names: all filters of a chain, all filters of a preference,
    /// or one filter by its handle.
    fn delete(
        &mut self,
        at: Handle,
        head: &Head,
        words: &mut Reader<'_>,
    ) -> Result<(), ConfigError> {
        let kind = words.next();
        if let Some(word) = words.peek() {
            let why = "expected the end: a filter is deleted by its preference and handle";
            return Err(words.wrong("", word, why).argument());
        }
        if head.handle.is_some() && kind.is_none() {
            let why = "expected the kind of the filter after the handle";
            return Err(words.wrong("handle", "", why).argument());
        }
        if head.pref().is_none() {
            if head.protocol.is_some() || head.handle.is_some() || kind.is_some() {
                let said = "Cannot flush filters with protocol, handle or kind set";
                let why = "expected a preference, too, or neither protocol, handle nor kind";
                return Err(refused("", "").by(Errno::NoEntry, said, why));
            }
            self.remove_names(at, (head.chain(), 0), (head.chain(), u16::MAX));
            return Ok(());
        }
        let (place, group) = self.group(at, head, kind)?;
        if let (Some(word), Some(kind)) = (&head.handle, kind) {
            let handle = read_handle(kind, word, words)?;
            let there = place.find(group, handle).ok_or_else(|| no_handle(word))?;
            let place = self.places.entry(at).or_default();
            place.remove(&there, &mut self.numbers)?;
            if place.groups.is_empty() {
                self.places.remove(&at);
            }
            return Ok(());
        }
        let name = (head.chain(), head.pref().unwrap_or(0));
        self.remove_names(at, name, name);
        Ok(())
    }

    /// Returns the filter that a `tc filter get` line names by preference, protocol, kind and
    /// handle.
    pub(crate) fn get(
        &self,
        at: Handle,
        head: &Head,
        words: &mut Reader<'_>,
    ) -> Result<Arc<FilterSpec>, ConfigError> {
        let kind = words.next();
        if let Some(word) = words.peek() {
            return Err(words.wrong("", word, "expected the end").argument());
        }
        let missing = |key: &str| Err(words.wrong(key, "", "`get` needs it").argument());
        let (Some(kind), Some(word)) = (kind, &head.handle) else {
            return missing(match (head.protocol, head.pref(), kind) {
                (None, ..) => "protocol",
                (_, None, _) => "pref",
                (.., None) => "kind",
                _ => "handle",
            });
        };
        if head.protocol.is_none() || head.pref().is_none() {
            return missing(if head.protocol.is_none() { "protocol" } else { "pref" });
        }
        let (place, group) = self.group(at, head, Some(kind))?;
        let handle = read_handle(kind, word, words)?;
        place.find(group, handle).ok_or_else(|| no_handle(word))
    }

    /// Returns the group of filters that have the chain and the preference of a line.
    fn group(
        &self,
        at: Handle,
        head: &Head,
        kind: Option<&str>,
    ) -> Result<(&Place, &Group), ConfigError> {
        let (chain, pref) = (head.chain(), head.pref().unwrap_or(0));
        let place = self.places.get(&at).filter(|place| place.chains.contains_key(&chain));
        let place = place.ok_or_else(|| no_chain(chain))?;
        let group = place.groups.get(&(chain, pref)).ok_or_else(|| no_pref(pref))?;
        group.agrees(head, kind)?;
        Ok((place, group))
    }

    /// Returns the filters at the qdisc or class `at`, in the order in which they are asked.
    pub(crate) fn at(&self, at: Handle) -> impl Iterator<Item = &FilterSpec> {
        let groups = self.places.get(&at).into_iter().flat_map(|place| place.groups.values());
        groups.flat_map(Group::specs)
    }

    /// Returns the filters at the qdisc or class `at` in an order in which lines can add them again
    /// with the same result.
    pub(crate) fn to_add(&self, at: Handle) -> Vec<&FilterSpec> {
        let groups = self.places.get(&at).into_iter().flat_map(|place| place.groups.values());
        let mut filters: Vec<_> = groups.flat_map(Group::to_add).collect();
        // A node of `u32` refers to hash tables, possibly of another preference, so all tables must
        // be added before the nodes.
        filters.sort_by_key(|filter| !matches!(filter.matcher, Matcher::Table(_)));
        filters
    }

    /// Returns where filters exist at a qdisc and its classes: the minor numbers of these classes,
    /// or 0 for the qdisc itself.
    pub(crate) fn places(&self, major: u16) -> impl Iterator<Item = u16> {
        let all = Handle::new(major, 0)..=Handle::new(major, u16::MAX);
        self.places.range(all).map(|(place, _)| place.minor)
    }

    /// Whether filters need the class: there are filters at the class, or a filter at its qdisc or
    /// at a class of the qdisc names the class.
    pub(crate) fn needs(&self, class: Handle) -> bool {
        let mut places = self.places(class.major);
        places.any(|minor| {
            let at = Handle::new(class.major, minor);
            minor == class.minor || self.at(at).any(|filter| filter.class() == Some(class))
        })
    }

    /// Removes all filters at a qdisc and its classes.
    pub(crate) fn remove_qdisc(&mut self, major: u16) {
        let places: Vec<u16> = self.places(major).collect();
        for minor in places {
            self.remove_names(Handle::new(major, minor), (0, 0), (u32::MAX, u16::MAX));
        }
    }

    /// Removes the filters at `at` whose chain and preference lie between `first` and `last`.
    fn remove_names(&mut self, at: Handle, first: Name, last: Name) {
        let Some(place) = self.places.get_mut(&at) else { return };
        let names: Vec<_> = place.groups.range(first..=last).map(|(name, _)| *name).collect();
        for name in names {
            if let Some(group) = place.groups.remove(&name) {
                group.specs().for_each(|filter| self.numbers.give_back(filter, None));
                place.tables.forget(name);
            }
        }
        place.tidy();
        if place.groups.is_empty() {
            self.places.remove(&at);
        }
    }
}

impl Place {
    /// Returns the filter of a group with the handle `handle`, or `None` if there is none.
    fn find(&self, group: &Group, handle: u32) -> Option<Arc<FilterSpec>> {
        if group.kind != "u32" {
            return group.get(handle);
        }
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
    fn put(
        &mut self,
        mut filter: FilterSpec,
        there: Option<&FilterSpec>,
        numbers: &mut Numbers,
        serial: &mut u64,
    ) -> Result<(), ConfigError> {
        numbers.check(&filter, there)?;
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
                *serial += 1;
                group.insert(self.tables.root(&filter, *serial)?);
            }
            self.groups.insert(name, group);
            self.chains.insert(filter.chain, born);
        }
        let done = self.settle(&mut filter, there).map(|owner| {
            // As in Linux, the numbers of the old filter's actions become free only after the new
            // filter's actions have got theirs.
            numbers.give_out(&mut filter);
            if let Some(there) = there {
                numbers.give_back(there, Some(&filter));
                let before = self.groups.get_mut(&(there.chain, there.pref));
                before.into_iter().for_each(|group| group.remove(there));
            }
            *serial += 1;
            filter.serial = *serial;
            let Some((name, rank)) = owner else { return };
            (filter.chain, filter.pref, filter.rank) = (name.0, name.1, rank);
            if let Some(group) = self.groups.get_mut(&name) {
                group.insert(Arc::new(filter));
            }
        });
        if done.is_err() && new {
            self.groups.remove(&name);
            self.tables.forget(name);
            self.tidy();
        }
        done
    }

    /// Assigns a handle to the filter if it has none yet. Returns the chain and preference and the
    /// rank under which the filter is to be stored. Returns `None` for a `u32` filter without keys,
    /// which only creates the first hash table of its preference.
    fn settle(
        &mut self,
        filter: &mut FilterSpec,
        there: Option<&FilterSpec>,
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
        Ok(Some((name, group.settle(filter, there)?)))
    }

    /// Removes a filter. Also removes its group and its chain if they become empty.
    fn remove(&mut self, filter: &FilterSpec, numbers: &mut Numbers) -> Result<(), ConfigError> {
        let name = (filter.chain, filter.pref);
        self.tables.check_delete(filter, &self.groups)?;
        let Some(group) = self.groups.get_mut(&name) else { return Ok(()) };
        if let Matcher::Table(_) = filter.matcher {
            for node in group.nodes(filter.handle) {
                numbers.give_back(&node, None);
                group.remove(&node);
            }
            self.tables.remove(filter.handle);
        }
        numbers.give_back(filter, None);
        group.remove(filter);
        self.tables.free(filter);
        // If several preferences have `u32` filters, nodes of one may refer to tables of another,
        // so the tables stay even if only tables are left.
        let alone = group.kind != "u32" || Tables::are_alone(&self.groups);
        if alone && self.groups.get(&name).is_some_and(Group::is_bare) {
            self.groups.remove(&name);
            self.tables.forget(name);
        }
        self.tidy();
        Ok(())
    }

    /// Forgets chains without filters.
    fn tidy(&mut self) {
        let groups = &self.groups;
        self.chains
            .retain(|chain, _| groups.range((*chain, 0)..=(*chain, u16::MAX)).next().is_some());
    }
}
