//! The classes that somebody added to a qdisc.

use std::collections::BTreeMap;

use super::order::ClassOrder;
use crate::base::Handle;
use crate::base::params::Value;

#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) minor: u16,
    /// 0 = the qdisc.
    pub(super) parent: u16,
    pub(super) given: Vec<Option<Value>>,
    /// How many classes there are from it up to the qdisc.
    pub(super) depth: usize,
    /// How many stand right below it.
    children: u32,
}

/// Classes that were added.
#[derive(Clone, Debug, Default)]
pub(super) struct Added {
    /// In the order they came.
    pub(super) rows: Vec<Class>,
    /// By minor number.
    places: BTreeMap<u16, usize>,
    /// As Linux lists them.
    pub(super) order: ClassOrder,
}

impl Added {
    pub(super) fn get(&self, minor: u16) -> Option<&Class> {
        self.places.get(&minor).map(|place| &self.rows[*place])
    }

    /// Whether classes stand below this one.
    pub(super) fn is_inner(&self, minor: u16) -> bool {
        self.get(minor).is_some_and(|class| class.children > 0)
    }

    /// Adds a class, or gives one other parameters.
    pub(super) fn set(&mut self, class: Handle, parent: u16, given: Vec<Option<Value>>) {
        let minor = class.minor;
        if let Some(place) = self.places.get(&minor) {
            self.rows[*place].given = given;
            return;
        }
        let above = self.places.get(&parent).map(|place| &mut self.rows[*place]);
        let depth = above.map_or(1, |above| {
            above.children += 1;
            above.depth + 1
        });
        self.order.add(class.major, minor);
        self.places.insert(minor, self.rows.len());
        self.rows.push(Class { minor, parent, given, depth, children: 0 });
    }

    pub(super) fn remove(&mut self, class: Handle) {
        let Some(gone) = self.places.remove(&class.minor) else { return };
        self.order.remove(class.major, class.minor);
        let above = self.rows.remove(gone).parent;
        self.places.values_mut().filter(|place| **place > gone).for_each(|place| *place -= 1);
        if let Some(place) = self.places.get(&above) {
            self.rows[*place].children -= 1;
        }
    }
}
