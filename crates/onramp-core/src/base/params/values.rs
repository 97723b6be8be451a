//! The values of parameters: those given, and the defaults of the rest.

use super::{Param, Value};
use crate::base::Handle;
use crate::base::show::Out;

/// The values to build a qdisc with: those given, and the defaults of the rest.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    pub(crate) params: &'static [Param],
    pub(crate) given: &'a [Option<Value>],
    /// Where the qdisc stands.
    pub site: Site,
}

/// The options that were given of a table of parameters, to be changed.
#[derive(Debug)]
pub struct Options<'a> {
    pub(crate) params: &'static [Param],
    pub(crate) given: &'a mut [Option<Value>],
}

impl Options<'_> {
    /// Gives `key` another value, or, with `None`, its default.
    ///
    /// # Panics
    ///
    /// Panics when the table has no such parameter.
    pub fn set(&mut self, key: &str, value: Option<Value>) {
        let place = self.params.iter().position(|param| param.key == key);
        self.given[place.expect("a qdisc asks for the parameters of its own table")] = value;
    }
}

/// Where a qdisc stands, and what it begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The device's largest packet, bytes, link header included.
    pub mtu: u32,
    /// Where chance begins: the same seed gives the same packets.
    pub seed: u64,
    /// The qdisc's own handle, `1:`; zero if it has none.
    pub handle: Handle,
}

impl Values<'_> {
    /// Writes every parameter that has a value as `tc qdisc show` does, with a space behind each.
    pub fn show(&self, out: &mut Out) {
        for param in self.params {
            if let Some(value) = self.get(param.key) {
                param.show(&value, out);
            }
        }
    }

    /// Whether `key` was given.
    ///
    /// # Panics
    ///
    /// Panics when the qdisc has no such parameter.
    #[must_use]
    pub fn is_given(&self, key: &str) -> bool {
        self.given[self.place(key)].is_some()
    }

    /// Whether there is such a parameter.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.params.iter().any(|param| param.key == key)
    }

    fn place(&self, key: &str) -> usize {
        let place = self.params.iter().position(|param| param.key == key);
        place.expect("a qdisc asks for the parameters of its own table")
    }

    /// The value of `key`; `None` where it is [`Default::Off`](super::Default::Off) and was not
    /// given.
    ///
    /// # Panics
    ///
    /// Panics when the qdisc has no such parameter.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Value> {
        let place = self.place(key);
        self.given[place].clone().or_else(|| self.params[place].default(self.site.mtu))
    }

    /// The number `key` has; zero where it is [`Default::Off`](super::Default::Off).
    ///
    /// # Panics
    ///
    /// Panics when the qdisc has no such parameter, or it is a list.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        match self.get(key) {
            Some(Value::Number(n)) => n,
            None => 0,
            Some(Value::List(_)) => unreachable!("{key} is a list"),
        }
    }

    /// As [`Values::number`], for a parameter whose range fits 32 bits.
    ///
    /// # Panics
    ///
    /// As [`Values::number`].
    #[must_use]
    pub fn number32(&self, key: &str) -> u32 {
        u32::try_from(self.number(key)).unwrap_or(u32::MAX)
    }

    /// The numbers `key` has; none where it is [`Default::Off`](super::Default::Off).
    ///
    /// # Panics
    ///
    /// Panics when the qdisc has no such parameter.
    #[must_use]
    pub fn list(&self, key: &str) -> Vec<u64> {
        match self.get(key) {
            Some(Value::List(list)) => list,
            Some(Value::Number(n)) => vec![n],
            None => Vec::new(),
        }
    }
}
