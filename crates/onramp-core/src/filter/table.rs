//! Keeps the filters of a tree as users described them: which filters exist, their handles and
//! numbers, and the order in which they are asked.
//!
//! Source: behaviour of Linux 7.2 `net/sched/cls_api.c` and of the kinds of filters, compared
//! command by command.
//! Differs: filters do not share actions.
//! Invariant: adding, changing or deleting one of n filters takes about log n steps.

mod again;
mod group;
mod numbers;
mod place;
mod tables;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use self::group::Group;
use self::numbers::Numbers;
use self::place::Place;
use super::edit::{Changed, FilterEdit};
use super::head::Head;
use super::lines::Line;
use super::read::{FilterSpec, is_sent, read_handle, read_kind};
use super::reader::Reader;
use crate::base::error::Errno;
use crate::base::{ConfigError, Handle};

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
    books: Books,
    /// For each class that filters at its qdisc, or at classes of its qdisc, name: how many do.
    named: BTreeMap<Handle, usize>,
}

/// What filters at all qdiscs and classes have in common.
#[derive(Clone, Debug, Default)]
struct Books {
    numbers: Numbers,
    /// The serial number that the last filter got.
    serial: u64,
    /// The filters that the last line removed and added.
    changed: Changed,
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
        self.forget_edit();
        let done = match how {
            How::Delete => self.delete(at, head, &mut words),
            _ => self.put(at, how, head, &words),
        };
        match done {
            Ok(()) => self.count_named(at),
            Err(_) => self.forget_edit(),
        }
        done
    }

    /// Forgets which filters the last line changed.
    pub(crate) fn forget_edit(&mut self) {
        self.books.changed = Changed::default();
    }

    /// Returns the filters that the last line added and removed, for a running qdisc.
    pub(crate) fn last_edit(&self) -> FilterEdit {
        FilterEdit::from(&self.books.changed)
    }

    /// Returns the device that the filter which the last line added or changed names with `indev`.
    pub(crate) fn indev_of_edit(&self) -> Option<&str> {
        self.books.changed.new.iter().find_map(|filter| filter.indev.as_deref())
    }

    /// Notes that the device `old` is called `new` now.
    pub(crate) fn rename_indev(&mut self, old: &str, new: &str) {
        for group in self.places.values_mut().flat_map(|place| place.groups.values_mut()) {
            group.rename_indev(old, new);
        }
    }

    /// Removes the filters whose `indev` is a device that is not there.
    pub(crate) fn forget_indevs(&mut self, is_there: impl Fn(&str) -> bool) {
        let is_gone =
            |filter: &FilterSpec| filter.indev.as_deref().is_some_and(|name| !is_there(name));
        for at in self.places.keys().copied().collect::<Vec<_>>() {
            self.forget_edit();
            let Some(place) = self.places.get_mut(&at) else { continue };
            let filters = place.groups.values().flat_map(Group::specs);
            for filter in filters.filter(|it| is_gone(it)).cloned().collect::<Vec<_>>() {
                // Only a hash table that nodes refer to cannot be removed, and it has no `indev`.
                let _ = place.remove(&filter, &mut self.books);
            }
            if place.groups.is_empty() {
                self.places.remove(&at);
            }
            self.count_named(at);
        }
        self.forget_edit();
    }

    /// Counts the classes that the filters at `at` name which the last line added or removed.
    fn count_named(&mut self, at: Handle) {
        let own = |filter: &Arc<FilterSpec>| filter.class.filter(|class| class.major == at.major);
        let Changed { gone, new } = &self.books.changed;
        for class in new.iter().filter_map(own) {
            *self.named.entry(class).or_default() += 1;
        }
        for class in gone.iter().filter_map(own) {
            if let Entry::Occupied(mut count) = self.named.entry(class) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
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
        let done = place.put(filter, there.as_deref(), &mut self.books);
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
        let there = match group {
            Some(group) => place.and_then(|place| place.find(group, handle)),
            // As in Linux, all preferences together have one set of `u32` hash tables, so the line
            // may name a table or node of another preference, even if its own preference is new.
            None if kind == "u32" && how != How::Change => {
                place.and_then(|place| place.find_u32(handle))
            }
            None => None,
        };
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
            place.remove(&there, &mut self.books)?;
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
        let there = place.find(group, handle).ok_or_else(|| no_handle(word))?;
        // A table or node of another group is shown as one of the preference that the line names.
        let own = group.specs().next();
        Ok(own.map_or_else(|| there.clone(), |own| Arc::new(there.seen_from(own))))
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

    /// Returns the lines that make the filters at the qdisc or class `at` again.
    pub(crate) fn lines(&self, at: Handle) -> Vec<Line> {
        self.places.get(&at).map(Place::lines).unwrap_or_default()
    }

    /// Returns where filters exist at a qdisc and its classes: the minor numbers of these classes,
    /// or 0 for the qdisc itself.
    pub(crate) fn places(&self, major: u16) -> impl Iterator<Item = u16> {
        let all = Handle::new(major, 0)..=Handle::new(major, u16::MAX);
        self.places.range(all).map(|(place, _)| place.minor)
    }

    /// Whether a filter at the qdisc of this class, or at a class of that qdisc, names the class.
    pub(crate) fn names(&self, class: Handle) -> bool {
        self.named.contains_key(&class)
    }

    /// Whether such a filter stands at the qdisc itself (the minor number 0), or at a class for
    /// whose minor number `counts` returns true.
    pub(crate) fn names_from(&self, class: Handle, counts: impl Fn(u16) -> bool) -> bool {
        let names = |minor| {
            let mut filters = self.at(Handle::new(class.major, minor));
            filters.any(|filter| filter.class == Some(class))
        };
        self.names(class)
            && self.places(class.major).any(|minor| (minor == 0 || counts(minor)) && names(minor))
    }

    /// Removes all filters at a class.
    pub(crate) fn remove_class(&mut self, class: Handle) {
        self.forget_edit();
        self.remove_names(class, (0, 0), (u32::MAX, u16::MAX));
        self.count_named(class);
        self.forget_edit();
    }

    /// Removes all filters at a qdisc and its classes.
    pub(crate) fn remove_qdisc(&mut self, major: u16) {
        self.forget_edit();
        let places: Vec<u16> = self.places(major).collect();
        places.into_iter().for_each(|minor| self.remove_class(Handle::new(major, minor)));
    }

    /// Removes the filters at `at` whose chain and preference lie between `first` and `last`.
    fn remove_names(&mut self, at: Handle, first: Name, last: Name) {
        let Some(place) = self.places.get_mut(&at) else { return };
        let names: Vec<_> = place.groups.range(first..=last).map(|(name, _)| *name).collect();
        for name in names {
            place.remove_group(name, &mut self.books);
        }
        place.forget_shared(&mut self.books);
        if place.groups.is_empty() {
            self.places.remove(&at);
        }
    }
}
