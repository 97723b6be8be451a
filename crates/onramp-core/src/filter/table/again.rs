//! The lines that make the filters of a qdisc or class again, so that they are listed as before.
//!
//! Differs: Linux chooses the number of the first hash table of a preference by what was added and
//! deleted before. No line for Linux can choose this number, so a line that has to (`handle 805:
//! u32`, without options) is one for Onramp only.
//! Invariant: listings of the filters that are made again are the same, but for the order of the
//! hash tables of one preference where another chain that has only `u32` filters is older.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Matcher;
use super::super::lines::{Home, Line};
use super::super::read::FilterSpec;
use super::super::words::{SHARED, TABLE_BITS};
use super::Name;
use super::group::Group;
use super::place::Place;
use super::tables::next_table;

/// The lines so far, and what they have made.
struct Again<'a> {
    place: &'a Place,
    lines: Vec<Line>,
    /// The handles of the hash tables that have been made.
    made: BTreeSet<u32>,
    /// The number of the next table, as [`next_table`] counts it.
    next: u32,
    /// For each preference that has hash tables and is not there (yet): the chain and the protocol
    /// under which the lines make them.
    lent: BTreeMap<u16, Home>,
}

impl Place {
    /// Returns the lines that make these filters again.
    pub(super) fn lines(&self) -> Vec<Line> {
        let (made, lent) = (BTreeSet::new(), BTreeMap::new());
        let mut again = Again { place: self, lines: Vec::new(), made, next: 0, lent };
        // Chains are listed in the order in which they got their first filters.
        let mut chains: Vec<_> = self.chains.iter().map(|(chain, born)| (*born, *chain)).collect();
        chains.sort_unstable();
        for (_, chain) in chains {
            again.begin(chain);
        }
        // A node refers to tables, also to those of other preferences, so all tables come first.
        let is_table = |filter: &&FilterSpec| matches!(filter.matcher, Matcher::Table(_));
        let mut tables: Vec<_> =
            self.groups.values().flat_map(Group::specs).filter(is_table).collect();
        tables.sort_unstable_by_key(|table| table.rank);
        tables.into_iter().for_each(|table| again.table(table));
        again.nodes();
        again.give_back();
        again.lines
    }
}

impl Again<'_> {
    /// Adds the filters of a chain that are not of the kind `u32`. If there are none, adds the
    /// chain's first hash table, so that the chain is there before later ones.
    fn begin(&mut self, chain: u32) {
        let groups = || self.place.groups.range((chain, 0)..=(chain, u16::MAX));
        let mut others = groups().filter(|(_, group)| group.kind != "u32").peekable();
        if others.peek().is_some() {
            for (name, group) in others {
                let home = home(*name, group);
                let lines = group.to_add().into_iter().flat_map(|it| it.lines(home, false));
                self.lines.extend(lines);
            }
            return;
        }
        let roots = groups().filter_map(|(_, group)| group.specs().next());
        if let Some(root) = roots.min_by_key(|root| root.rank) {
            self.table(root);
        }
    }

    /// Adds a hash table, if it is not there yet.
    fn table(&mut self, table: &FilterSpec) {
        if self.made.contains(&table.handle) {
            return;
        }
        let is_root = table.chain != SHARED;
        let home = match is_root {
            true => Home { chain: table.chain, pref: table.pref, protocol: table.protocol },
            false => self.home_of(table),
        };
        let mut number = !is_root;
        if is_root {
            let mut next = self.next;
            number =
                next_table(&mut next, |table| self.made.contains(&table)) != Some(table.handle);
            if !number {
                self.next = next;
            }
        }
        self.lines.extend(table.lines(home, number));
        self.made.insert(table.handle);
    }

    /// Returns under which name lines can add `filter`, a table that all preferences share, or a
    /// node of such a table.
    fn home_of(&mut self, filter: &FilterSpec) -> Home {
        let pref = filter.pref;
        let is_there = |(name, group): &(&Name, &Group)| {
            let root = group.specs().next().filter(|_| name.0 != SHARED && name.1 == pref);
            root.is_some_and(|root| self.made.contains(&root.handle))
        };
        if let Some((name, group)) = self.place.groups.iter().find(is_there) {
            return home(*name, group);
        }
        if let Some(home) = self.lent.get(&pref) {
            return *home;
        }
        self.lend(filter)
    }

    /// Adds the preference of `filter` under a chain where it is free: a line can add a table only
    /// to a preference that is there. Later, `give_back` deletes it.
    fn lend(&mut self, filter: &FilterSpec) -> Home {
        let (pref, protocol) = (filter.pref, filter.protocol);
        let is_free = |chain: &u32| !self.place.groups.contains_key(&(*chain, pref));
        let home = Home { chain: (0..).find(is_free).unwrap_or(0), pref, protocol };
        let is_used = |handle: u32| self.place.has_table(handle) || self.made.contains(&handle);
        let number = (1..0xfff).rev().find(|number| !is_used(number << TABLE_BITS)).unwrap_or(1);
        self.made.insert(number << TABLE_BITS);
        let root = filter.table(number << TABLE_BITS, (0, 0), 0);
        let root = FilterSpec { chain: home.chain, ..root };
        self.lines.extend(root.lines(home, true));
        self.lent.insert(pref, home);
        home
    }

    /// Adds the nodes of all hash tables, and the rest of what is of the kind `u32`.
    fn nodes(&mut self) {
        for (name, group) in self.place.groups.iter().filter(|(_, group)| group.kind == "u32") {
            for node in group.specs().filter(|it| matches!(it.matcher, Matcher::U32(_))) {
                let home = match name.0 {
                    SHARED => self.home_of(node),
                    _ => home(*name, group),
                };
                self.lines.extend(node.lines(home, false));
            }
        }
    }

    /// Deletes the preferences that were added only for their tables.
    fn give_back(&mut self) {
        for home in std::mem::take(&mut self.lent).into_values() {
            self.lines.push(("del", home.words()));
        }
    }
}

fn home((chain, pref): Name, group: &Group) -> Home {
    Home { chain, pref, protocol: group.protocol }
}
