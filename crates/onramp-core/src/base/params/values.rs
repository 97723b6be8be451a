//! Values of parameters: the given values, and the defaults of all others.

use super::{Param, Value};
use crate::base::Handle;
use crate::base::show::Out;

/// The values with which to build or change a qdisc: the given values, and the defaults of all
/// others.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    pub(crate) params: &'static [Param],
    pub(crate) given: &'a [Option<Value>],
    /// The place of the qdisc in its tree.
    pub site: Site,
}

/// The given options of a table of parameters, for changing them.
#[derive(Debug)]
pub struct Options<'a> {
    pub(crate) params: &'static [Param],
    pub(crate) given: &'a mut [Option<Value>],
}

impl Options<'_> {
    /// Sets the value of `key`, or removes it with `None`, so that the default applies.
    ///
    /// # Panics
    ///
    /// Panics if the table has no such parameter.
    pub fn set(&mut self, key: &str, value: Option<Value>) {
        let place = self.params.iter().position(|param| param.key == key);
        self.given[place.expect("a qdisc asks for the parameters of its own table")] = value;
    }
}

/// The place of a qdisc, and the values that it takes from its surroundings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Size of the device's largest packet in bytes, including the link header.
    pub mtu: u32,
    /// Seed of the qdisc's random numbers. The same seed gives the same packets.
    pub seed: u64,
    /// Handle of the qdisc, such as `1:`, or zero if it has none.
    pub handle: Handle,
}

impl Values<'_> {
    /// Prints every parameter that has a value, as `tc qdisc show` does, each followed by a space.
    pub fn show(&self, out: &mut Out) {
        for param in self.params {
            if let Some(value) = self.get(param.key) {
                param.show(&value, out);
            }
        }
    }

    /// Whether the option `key` was given.
    ///
    /// # Panics
    ///
    /// Panics if the qdisc has no such parameter.
    #[must_use]
    pub fn is_given(&self, key: &str) -> bool {
        self.given[self.place(key)].is_some()
    }

    /// Whether the table has the parameter `key`.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.params.iter().any(|param| param.key == key)
    }

    fn place(&self, key: &str) -> usize {
        let place = self.params.iter().position(|param| param.key == key);
        place.expect("a qdisc asks for the parameters of its own table")
    }

    /// Returns the value of `key`, or `None` if its default is
    /// [`Default::Off`](super::Default::Off) and it was not given.
    ///
    /// # Panics
    ///
    /// Panics if the qdisc has no such parameter.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Value> {
        let place = self.place(key);
        self.given[place].clone().or_else(|| self.params[place].default(self.site.mtu))
    }

    /// Returns the number that `key` has, or zero if its default is
    /// [`Default::Off`](super::Default::Off) and it was not given.
    ///
    /// # Panics
    ///
    /// Panics if the qdisc has no such parameter, or if the value is a list.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        match self.get(key) {
            Some(Value::Number(n)) => n,
            None => 0,
            Some(Value::List(_)) => unreachable!("{key} is a list"),
        }
    }

    /// Returns the same as [`Values::number`], for a parameter whose range fits into 32 bits.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`Values::number`].
    #[must_use]
    pub fn number32(&self, key: &str) -> u32 {
        u32::try_from(self.number(key)).unwrap_or(u32::MAX)
    }

    /// Returns the numbers that `key` has, or none if its default is
    /// [`Default::Off`](super::Default::Off) and it was not given.
    ///
    /// # Panics
    ///
    /// Panics if the qdisc has no such parameter.
    #[must_use]
    pub fn list(&self, key: &str) -> Vec<u64> {
        match self.get(key) {
            Some(Value::List(list)) => list,
            Some(Value::Number(n)) => vec![n],
            None => Vec::new(),
        }
    }
}
