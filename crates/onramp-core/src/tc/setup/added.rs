//! The classes of one qdisc that commands have added.

use std::collections::BTreeMap;

use super::order::ClassOrder;
use crate::base::Handle;
use crate::base::params::Value;

#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) minor: u16,
    /// Minor number of the parent class; 0 for the qdisc.
    pub(super) parent: u16,
    pub(super) given: Vec<Option<Value>>,
    /// Number of classes on the way from the qdisc to this class, including this class.
    pub(super) depth: usize,
    /// Number of child classes.
    children: u32,
}

/// All classes of one qdisc that commands have added.
#[derive(Clone, Debug, Default)]
pub(super) struct Added {
    /// The classes, in the order in which they were added.
    pub(super) rows: Vec<Class>,
    /// The index of each class in `rows`, by minor number.
    places: BTreeMap<u16, usize>,
    /// The classes in the order in which Linux lists them.
    pub(super) order: ClassOrder,
}

impl Added {
    pub(super) fn get(&self, minor: u16) -> Option<&Class> {
        self.places.get(&minor).map(|place| &self.rows[*place])
    }

    /// Whether the class `minor` has child classes.
    pub(super) fn is_inner(&self, minor: u16) -> bool {
        self.get(minor).is_some_and(|class| class.children > 0)
    }

    /// Adds a class, or gives an existing class new parameters.
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
