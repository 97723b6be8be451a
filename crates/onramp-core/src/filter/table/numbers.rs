//! Numbers of actions: each action has a unique number among the actions of its kind.

use std::collections::BTreeSet;

use super::super::action;
use super::super::read::FilterSpec;
use super::refused;
use crate::base::ConfigError;
use crate::base::error::Errno;

/// For each kind of action, the numbers that actions have.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers([Taken; action::KINDS]);

#[derive(Clone, Debug, Default)]
struct Taken {
    numbers: BTreeSet<u32>,
    /// All numbers from 1 to below this one are taken.
    free: u32,
}

impl Taken {
    /// Returns the lowest number that is free.
    fn next(&mut self) -> u32 {
        let mut free = self.free.max(1);
        while self.numbers.contains(&free) {
            free += 1;
        }
        self.free = free;
        free
    }
}

/// Whether a filter has an action of this kind with this number.
fn has(filter: &FilterSpec, name: (usize, u32)) -> bool {
    filter.actions.iter().any(|action| (action.kind(), action.index) == name)
}

impl Numbers {
    pub(super) fn give_back(&mut self, filter: &FilterSpec, but: Option<&FilterSpec>) {
        for action in &filter.actions {
            if but.is_some_and(|but| has(but, (action.kind(), action.index))) {
                continue;
            }
            let taken = &mut self.0[action.kind()];
            taken.numbers.remove(&action.index);
            taken.free = taken.free.min(action.index);
        }
    }

    /// Returns an error if an action of the filter has a number that another action already has.
    /// Actions of `there`, the filter to be replaced, do not count.
    pub(super) fn check(
        &self,
        filter: &FilterSpec,
        there: Option<&FilterSpec>,
    ) -> Result<(), ConfigError> {
        let own = |name| there.is_some_and(|there| has(there, name));
        let mut seen = BTreeSet::new();
        for action in filter.actions.iter().filter(|action| action.index > 0) {
            let name = (action.kind(), action.index);
            let taken = self.0[name.0].numbers.contains(&name.1) && !own(name);
            if !seen.insert(name) || taken {
                let why = "filters cannot share an action in Onramp: give each filter its own";
                return Err(refused("index", action.index).by(Errno::NotSupported, "", why));
            }
        }
        Ok(())
    }

    pub(super) fn give_out(&mut self, filter: &mut FilterSpec) {
        for action in filter.actions.iter().filter(|action| action.index > 0) {
            self.0[action.kind()].numbers.insert(action.index);
        }
        for action in filter.actions.iter_mut().filter(|action| action.index == 0) {
            let taken = &mut self.0[action.kind()];
            action.index = taken.next();
            taken.numbers.insert(action.index);
        }
    }
}
