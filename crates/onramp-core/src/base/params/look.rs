//! How `tc qdisc show` writes parameters, as text and as JSON.
//!
//! Source: behaviour of iproute2 6.1, tried kind by kind.

use super::{Param, Unit, Value, at, signed};
use crate::base::show::Out;

/// Writes a parameter that has a value; text ends with a space.
pub type Look = fn(&Param, &Value, &mut Out);

impl Param {
    /// The same, shown like this.
    #[must_use]
    pub const fn shown(mut self, look: Look) -> Self {
        self.look = look;
        self
    }

    /// Writes the option as `tc qdisc show` does, as text or as JSON.
    pub(crate) fn show(&self, value: &Value, out: &mut Out) {
        (self.look)(self, value, out);
    }

    /// The word that a value of [`Unit::Words`] or [`Unit::Choice`] stands for.
    pub(crate) fn word(&self, value: &Value) -> &'static str {
        match (self.unit, value) {
            (Unit::Words(names) | Unit::Choice(names), Value::Number(place)) => {
                at(names, *place).copied().unwrap_or(self.key)
            }
            _ => self.key,
        }
    }
}

/// As its unit says.
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
        // As iproute2 does: times in microseconds, rates in bytes per second.
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

/// Not at all.
pub(crate) fn never(_: &Param, _: &Value, _: &mut Out) {}

/// Unless it has its default, which `tc` does not know yet.
pub(crate) fn unusual(param: &Param, value: &Value, out: &mut Out) {
    if param.default(0).as_ref() != Some(value) {
        plain(param, value, out);
    }
}

/// A mechanism that is on or off: shown while it is on, which is the word that is the option's
/// name.
pub(crate) fn flag(param: &Param, value: &Value, out: &mut Out) {
    if param.word(value) == param.key {
        out.flag(param.key, true, format_args!("{} ", param.key));
    }
}

/// A word, which in JSON is a key with `null`.
pub(crate) fn null(param: &Param, value: &Value, out: &mut Out) {
    let word = param.word(value);
    out.null(word, format_args!("{word} "));
}

/// Unless it is zero.
pub(crate) fn nonzero(param: &Param, value: &Value, out: &mut Out) {
    if *value != Value::Number(0) {
        plain(param, value, out);
    }
}

/// As something else, which is what Linux makes of it.
pub(crate) fn as_number(param: &Param, number: u64, out: &mut Out) {
    plain(param, &Value::Number(number), out);
}
