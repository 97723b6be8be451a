//! How `tc qdisc show` writes parameters, as text and as JSON.
//!
//! Source: behaviour of iproute2 6.1, tried kind by kind.

use super::{Param, Unit, Value, at, signed};
use crate::base::show::Out;

/// A function that prints a parameter that has a value. As text, it ends with a space.
pub type Look = fn(&Param, &Value, &mut Out);

impl Param {
    /// Sets how the parameter is shown.
    #[must_use]
    pub const fn shown(mut self, look: Look) -> Self {
        self.look = look;
        self
    }

    /// Prints the option as `tc qdisc show` does, as text or as JSON.
    pub(crate) fn show(&self, value: &Value, out: &mut Out) {
        (self.look)(self, value, out);
    }

    /// Returns the word that a value of [`Unit::Words`] or [`Unit::Choice`] stands for.
    pub(crate) fn word(&self, value: &Value) -> &'static str {
        match (self.unit, value) {
            (Unit::Words(names) | Unit::Choice(names), Value::Number(place)) => {
                at(names, *place).copied().unwrap_or(self.key)
            }
            _ => self.key,
        }
    }
}

/// Prints the parameter in the usual way of its unit.
pub(crate) fn plain(param: &Param, value: &Value, out: &mut Out) {
    let mut line = String::new();
    param.write_shown(&mut line, value, out.style);
    out.text(format_args!("{} ", line.trim_start()));
    out.json(|json| match (param.unit, value) {
        (Unit::Words(_), _) => json.raw(Some(param.key), format_args!("true")),
        (Unit::Choice(_), _) => json.string(Some(param.key), param.word(value)),
        (Unit::Signed, Value::Number(n)) => {
            json.raw(Some(param.key), format_args!("{}", signed(*n)));
        }
        // As in iproute2, JSON has times in microseconds and rates in bytes per second.
        (Unit::Usecs | Unit::Named(_), Value::Number(n)) => {
            json.raw(Some(param.key), format_args!("{}", n / 1_000));
        }
        (_, Value::Number(n)) => json.raw(Some(param.key), format_args!("{n}")),
        (_, Value::List(list)) => {
            json.open_array(Some(param.key));
            for n in list {
                json.raw(None, format_args!("{n}"));
            }
            json.close_array();
        }
    });
}

/// Prints nothing.
pub(crate) fn never(_: &Param, _: &Value, _: &mut Out) {}

/// Prints the parameter unless the value is the default. A default that depends on the device's
/// packet size counts as zero here, because `tc` does not know that size.
pub(crate) fn unusual(param: &Param, value: &Value, out: &mut Out) {
    if param.default(0).as_ref() != Some(value) {
        plain(param, value, out);
    }
}

/// Prints a mechanism only while it is on. The mechanism is on if the given word is the name of the
/// option.
pub(crate) fn flag(param: &Param, value: &Value, out: &mut Out) {
    if param.word(value) == param.key {
        out.flag(param.key, true, format_args!("{} ", param.key));
    }
}

/// Prints a word. In JSON, the word becomes a key with the value `null`.
pub(crate) fn null(param: &Param, value: &Value, out: &mut Out) {
    let word = param.word(value);
    out.null(word, format_args!("{word} "));
}

/// Prints the parameter unless the value is zero.
pub(crate) fn nonzero(param: &Param, value: &Value, out: &mut Out) {
    if *value != Value::Number(0) {
        plain(param, value, out);
    }
}

/// Prints `number` in place of the given value, because Linux keeps a different number.
pub(crate) fn as_number(param: &Param, number: u64, out: &mut Out) {
    plain(param, &Value::Number(number), out);
}
