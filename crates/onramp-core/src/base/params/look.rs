//! How `tc qdisc show` writes options, as text and as JSON.
//!
//! Source: behaviour of iproute2 6.1, tried for each kind of qdisc.

use super::{Param, Site, Unit, Value, at, signed};
use crate::base::show::Out;

/// A function that prints an option and its value. If it prints text, the text ends with a space.
pub type Look = fn(&Param, &Value, &mut Out);

impl Param {
    /// Sets the function that prints the option.
    #[must_use]
    pub const fn shown(mut self, look: Look) -> Self {
        self.look = look;
        self
    }

    /// Prints the option as `tc qdisc show` does, as text or as JSON.
    pub(crate) fn show(&self, value: &Value, out: &mut Out) {
        (self.look)(self, value, out);
    }

    /// Returns the word that the value of an option with [`Unit::Words`] or [`Unit::Choice`] stands
    /// for.
    pub(crate) fn word(&self, value: &Value) -> &'static str {
        match (self.unit, value) {
            (Unit::Words(names) | Unit::Choice(names), Value::Number(place)) => {
                at(names, *place).copied().unwrap_or(self.key)
            }
            _ => self.key,
        }
    }
}

/// Prints the option in the usual way for its unit.
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
        // As in iproute2, JSON shows times in microseconds and rates in bytes per second.
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

/// Never prints the option.
pub(crate) fn never(_: &Param, _: &Value, _: &mut Out) {}

/// Prints the option unless its value is the default.
pub(crate) fn unusual(param: &Param, value: &Value, out: &mut Out) {
    if param.default(Site::default()).as_ref() != Some(value) {
        plain(param, value, out);
    }
}

/// Prints the option's name if the option is on. The option is on if the word that was given is the
/// option's name.
pub(crate) fn flag(param: &Param, value: &Value, out: &mut Out) {
    if param.word(value) == param.key {
        out.flag(param.key, true, format_args!("{} ", param.key));
    }
}

/// Prints the word that was given. In JSON, the word becomes a key with the value `null`.
pub(crate) fn null(param: &Param, value: &Value, out: &mut Out) {
    let word = param.word(value);
    out.null(word, format_args!("{word} "));
}

/// Prints the option unless its value is zero.
pub(crate) fn nonzero(param: &Param, value: &Value, out: &mut Out) {
    if *value != Value::Number(0) {
        plain(param, value, out);
    }
}

/// Prints the option with the value `number` instead of the value that was given, for options of
/// which Linux keeps a different number, such as a rounded one.
pub(crate) fn as_number(param: &Param, number: u64, out: &mut Out) {
    plain(param, &Value::Number(number), out);
}
