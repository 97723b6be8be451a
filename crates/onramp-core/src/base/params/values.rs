//! The values of a qdisc's options: those that were given, and the defaults of the others.

use super::{Param, Value};
use crate::base::Handle;
use crate::base::show::Out;

/// The values of a qdisc's options, with which it is built or changed: those that were given, and
/// the defaults of the others.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    pub(crate) params: &'static [Param],
    pub(crate) given: &'a [Option<Value>],
    /// What is known of the device, and the qdisc's random seed and handle. Some defaults follow
    /// from them.
    pub site: Site,
}

/// The options of a qdisc after a change, which [`Quirks::change`](crate::qdisc::Quirks::change)
/// may change further.
#[derive(Debug)]
pub struct Options<'a> {
    pub(crate) params: &'static [Param],
    pub(crate) given: &'a mut [Option<Value>],
}

impl Options<'_> {
    /// Returns the values of the options, without regard to a device.
    pub(crate) fn values(&self) -> Values<'_> {
        Values { params: self.params, given: self.given, site: Site::default() }
    }

    /// Sets the value of the option `key`. With `None`, removes the value, so that the default
    /// applies.
    ///
    /// # Panics
    ///
    /// Panics if the table has no option `key`.
    pub fn set(&mut self, key: &str, value: Option<Value>) {
        let place = self.params.iter().position(|param| param.key == key);
        self.given[place.expect("a qdisc asks for the parameters of its own table")] = value;
    }
}

/// What a qdisc is told when it is built, besides the values of its options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Size of the device's largest packet in bytes, including the link header.
    pub mtu: u32,
    /// Length of the device's transmit queue in packets, or zero for the usual 1,000.
    pub txqueuelen: u32,
    /// Seed of the qdisc's random numbers. The same seed gives the same random numbers.
    pub seed: u64,
    /// Handle of the qdisc, such as `1:`, or zero if the qdisc has no handle.
    pub handle: Handle,
    /// For a change: whether token buckets keep the bytes that they hold or owe. Otherwise a change
    /// fills them or keeps their nanoseconds, as Linux does.
    pub keeps_bytes: bool,
    /// For a change: the options that the command names, a bit for each, by their places in the
    /// table. See [`Values::is_said`].
    pub said: u64,
}

impl Site {
    /// The length of the transmit queue that Linux gives to a device by default, in packets.
    const QUEUE_LEN: u32 = 1000;

    /// Returns the length of the device's transmit queue in packets.
    #[must_use]
    pub const fn queue_len(&self) -> u32 {
        if self.txqueuelen == 0 { Self::QUEUE_LEN } else { self.txqueuelen }
    }
}

impl Values<'_> {
    /// Prints every option that has a value, as `tc qdisc show` does, each followed by a space.
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
    /// Panics if the qdisc has no option `key`.
    #[must_use]
    pub fn is_given(&self, key: &str) -> bool {
        self.given[self.place(key)].is_some()
    }

    /// Whether the command that changes the qdisc names the option `key`. An option that is given,
    /// but that the command does not name, keeps the value that an earlier command gave.
    ///
    /// # Panics
    ///
    /// Panics if the qdisc has no option `key`.
    #[must_use]
    pub fn is_said(&self, key: &str) -> bool {
        self.site.said >> self.place(key) & 1 == 1
    }

    /// Returns a bit for each option that is given, for [`Site::said`].
    pub(crate) fn said(&self) -> u64 {
        let bit = |(place, value): (usize, &Option<Value>)| u64::from(value.is_some()) << place;
        self.given.iter().enumerate().map(bit).sum()
    }

    /// Whether the qdisc has an option `key`.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.params.iter().any(|param| param.key == key)
    }

    fn place(&self, key: &str) -> usize {
        let place = self.params.iter().position(|param| param.key == key);
        place.expect("a qdisc asks for the parameters of its own table")
    }

    /// Returns the value of the option `key`, or `None` if the option was not given and its default
    /// is [`Default::Off`](super::Default::Off).
    ///
    /// # Panics
    ///
    /// Panics if the qdisc has no option `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Value> {
        let place = self.place(key);
        self.given[place].clone().or_else(|| self.params[place].default(self.site))
    }

    /// Returns the number that the option `key` has, or zero if the option was not given and its
    /// default is [`Default::Off`](super::Default::Off).
    ///
    /// # Panics
    ///
    /// Panics if the qdisc has no option `key`, or if the value of the option is a list.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        match self.get(key) {
            Some(Value::Number(n)) => n,
            None => 0,
            Some(Value::List(_)) => unreachable!("{key} is a list"),
        }
    }

    /// Returns the same as [`Values::number`], as 32 bits, for an option whose range fits into 32
    /// bits.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`Values::number`].
    #[must_use]
    pub fn number32(&self, key: &str) -> u32 {
        u32::try_from(self.number(key)).unwrap_or(u32::MAX)
    }

    /// Returns the list of numbers that the option `key` has. The list is empty if the option was
    /// not given and its default is [`Default::Off`](super::Default::Off).
    ///
    /// # Panics
    ///
    /// Panics if the qdisc has no option `key`.
    #[must_use]
    pub fn list(&self, key: &str) -> Vec<u64> {
        match self.get(key) {
            Some(Value::List(list)) => list,
            Some(Value::Number(n)) => vec![n],
            None => Vec::new(),
        }
    }
}
