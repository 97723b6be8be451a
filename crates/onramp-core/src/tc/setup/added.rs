//! The classes of one qdisc that commands have added.

use std::collections::BTreeMap;

use super::Setup;
use super::order::ClassOrder;
use crate::base::Handle;
use crate::base::params::{Param, Site, Value, Values};

#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) minor: u16,
    /// Minor number of the parent as the command gave it. 0 stands for the qdisc, and for the class
    /// 0 if that class existed before this one.
    pub(super) parent: u16,
    /// Whether the parent is a class.
    pub(super) is_below: bool,
    pub(super) given: Vec<Option<Value>>,
    /// Number of classes on the way from the qdisc to this class, including this class.
    pub(super) depth: usize,
    /// Number of child classes.
    children: u32,
}

/// All classes of one qdisc that commands have added.
#[derive(Clone, Debug, Default)]
pub(super) struct Added {
    /// The classes by their places, in the order in which they were added.
    rows: BTreeMap<usize, Class>,
    /// The place of each class in `rows`, by minor number.
    places: BTreeMap<u16, usize>,
    /// The classes in the order in which Linux lists them.
    pub(super) order: ClassOrder,
}

impl Added {
    pub(super) fn get(&self, minor: u16) -> Option<&Class> {
        self.rows.get(self.places.get(&minor)?)
    }

    fn get_mut(&mut self, minor: u16) -> Option<&mut Class> {
        self.rows.get_mut(self.places.get(&minor)?)
    }

    /// Returns the minor number of the parent class of the class `minor`, or `None` if the class
    /// stands below the qdisc itself.
    pub(super) fn parent(&self, minor: u16) -> Option<u16> {
        self.get(minor).filter(|class| class.is_below).map(|class| class.parent)
    }

    /// Returns the classes, in the order in which they were added.
    pub(super) fn rows(&self) -> impl Iterator<Item = &Class> {
        self.rows.values()
    }

    pub(super) fn rows_mut(&mut self) -> impl Iterator<Item = &mut Class> {
        self.rows.values_mut()
    }

    /// Whether the class `minor` has child classes.
    pub(super) fn is_inner(&self, minor: u16) -> bool {
        self.get(minor).is_some_and(|class| class.children > 0)
    }

    /// Adds a class, or gives an existing class new parameters. Classes stand below other classes
    /// only if `nested` is true.
    pub(super) fn set(
        &mut self,
        class: Handle,
        parent: u16,
        nested: bool,
        given: Vec<Option<Value>>,
    ) {
        let minor = class.minor;
        if let Some(there) = self.get_mut(minor) {
            there.given = given;
            return;
        }
        let above = if nested { self.get_mut(parent) } else { None };
        let is_below = above.is_some();
        let depth = above.map_or(1, |above| {
            above.children += 1;
            above.depth + 1
        });
        let place = self.rows.last_key_value().map_or(0, |(last, _)| last + 1);
        self.order.add(class.major, minor);
        self.places.insert(minor, place);
        self.rows.insert(place, Class { minor, parent, is_below, given, depth, children: 0 });
    }

    pub(super) fn remove(&mut self, class: Handle) {
        let place = self.places.remove(&class.minor);
        let Some(gone) = place.and_then(|place| self.rows.remove(&place)) else { return };
        self.order.remove(class.major, class.minor);
        if let Some(above) = self.get_mut(gone.parent).filter(|_| gone.is_below) {
            above.children -= 1;
        }
    }
}

/// A class with the values of its options, apart from the description of its tree.
#[derive(Debug)]
pub(crate) struct ClassSpec {
    /// Minor number of the parent class; 0 for the qdisc.
    pub(crate) parent: u16,
    params: &'static [Param],
    given: Vec<Option<Value>>,
    site: Site,
}

impl ClassSpec {
    pub(crate) fn values(&self) -> Values<'_> {
        Values { params: self.params, given: &self.given, site: self.site }
    }
}

impl Setup {
    /// Returns the parent and the values of the options of a class, or `None` if there is no such
    /// class.
    pub(crate) fn class_spec(&self, class: Handle, site: Site) -> Option<ClassSpec> {
        let (parent, Values { params, given, site }) = self.class_values(class, site)?;
        Some(ClassSpec { parent, params, given: given.to_vec(), site })
    }
}
