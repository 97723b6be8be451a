//! The table a qdisc keeps of its parameters. Parser, printer and help all read it.

mod curve;
pub(crate) mod look;
mod read;
mod reference;
#[cfg(test)]
mod tests;
mod unit;
mod values;

use std::fmt::Write as _;

pub use self::look::Look;
use self::read::{parse_burst, parse_masked, parse_range, parse_signed, parse_time_or_packets};
pub use self::unit::{Form, Unit};
pub use self::values::{Options, Site, Values};

use crate::base::show::Style;
use crate::base::units::{
    Size, Time, exact_fraction, exact_size, exact_time, parse_count, parse_fraction, parse_scaled,
    parse_size, parse_time,
};
use crate::base::{ConfigError, Errno, Fault, Handle, Rate, rate};

/// What holds when the option is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// This number.
    Number(u64),
    /// So many times the device's largest packet.
    Mtus(u64),
    /// These numbers.
    List(&'static [u64]),
    /// Nothing: the option has to be given.
    Needed,
    /// Nothing: the mechanism is off, and not shown. Of [`Unit::Words`]: the first, not shown.
    Off,
}

/// See [`Param::folds`].
pub type Fold = fn(&[Param], &mut [Option<Value>], u64);

/// One parameter of a qdisc.
#[derive(Debug)]
pub struct Param {
    /// The option's name.
    pub key: &'static str,
    /// Other names that it has.
    pub aliases: &'static [&'static str],
    /// What it counts.
    pub unit: Unit,
    /// What holds when it is not given.
    pub default: Default,
    /// Smallest value, in the unit of [`Value`].
    pub min: u64,
    /// Largest value, in the unit of [`Value`].
    pub max: u64,
    /// One line for people.
    pub help: &'static str,
    /// Whether a change that does not give it sets it back to its default: `tc` sends it as a part
    /// of a whole. Others keep their value, as netlink attributes do.
    pub resets: bool,
    /// Who refuses what is out of range.
    pub bounds: Fault,
    /// What it says of other options, as a word that stands for several does: it gets the table,
    /// what was given so far, and its own value, and puts there what holds from then on.
    pub folds: Option<Fold>,
    /// Says no to a change that gives it: it is chosen once.
    pub fixed: Option<Fault>,
    /// Whether zero means that it is not given.
    pub unsaid: bool,
    /// What it is brought within: Linux takes the nearest value instead of refusing one.
    pub clamp: Option<(u64, u64)>,
    /// Whether `tc` refuses to read it twice in a line; else the last one holds.
    pub single: bool,
    /// Whether the first letters of its names suffice.
    pub short: bool,
    /// How it is shown.
    pub look: Look,
}

/// The value of a parameter: packets, bytes, bytes per second or nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of every unit but [`Unit::List`].
    Number(u64),
    /// Of [`Unit::List`], [`Unit::Many`], [`Unit::Row`], [`Unit::Forms`] and [`Unit::Curve`].
    List(Vec<u64>),
}

impl Value {
    /// Itself, given behind `before`: of values in a row, those it does not name stay.
    pub(crate) fn over(self, before: Option<Self>, unit: Unit) -> Self {
        match (self, before, unit) {
            (Self::List(mut list), Some(Self::List(before)), Unit::Row(..)) => {
                list.extend(before.into_iter().skip(list.len()));
                Self::List(list)
            }
            (value, ..) => value,
        }
    }
}

/// Linux keeps most numbers in 32 bits.
pub(crate) const U32_MAX: u64 = u32::MAX as u64;
/// Far beyond any device, and exact in a floating point number.
const RATE_MAX: u64 = 1_000_000_000_000_000;

impl Param {
    /// A parameter of which every value is fine that Linux can keep.
    #[must_use]
    pub const fn new(key: &'static str, unit: Unit, default: Default, help: &'static str) -> Self {
        let max = match unit {
            Unit::Usecs => U32_MAX * 1_000,
            Unit::Rate | Unit::RateOr(_) | Unit::Row(..) | Unit::Forms(_) => RATE_MAX,
            Unit::Minor | Unit::Masked => u16::MAX as u64,
            _ => U32_MAX,
        };
        let bounds = Fault::Kernel(Errno::Invalid, None);
        Self {
            key,
            aliases: &[],
            unit,
            default,
            min: 0,
            max,
            help,
            resets: false,
            bounds,
            fixed: None,
            folds: None,
            unsaid: false,
            clamp: None,
            single: false,
            short: false,
            look: look::plain,
        }
    }

    /// The same, within these bounds.
    #[must_use]
    pub const fn within(mut self, min: u64, max: u64) -> Self {
        (self.min, self.max) = (min, max);
        self
    }

    /// The same, with this as the smallest value.
    #[must_use]
    pub const fn at_least(mut self, min: u64) -> Self {
        self.min = min;
        self
    }

    /// The same, by these other names, too.
    #[must_use]
    pub const fn or(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// The same, set back to its default by a change that does not give it.
    #[must_use]
    pub const fn reset(mut self) -> Self {
        self.resets = true;
        self
    }

    /// The same, chosen once: to give it again is refused so.
    #[must_use]
    pub const fn once(mut self, fault: Fault) -> Self {
        self.fixed = Some(fault);
        self
    }

    /// The same, not given where it is zero: `tc` does not send it then.
    #[must_use]
    pub const fn zero_is_unsaid(mut self) -> Self {
        self.unsaid = true;
        self
    }

    /// The same, brought within these bounds.
    #[must_use]
    pub const fn clamped(mut self, min: u64, max: u64) -> Self {
        self.clamp = Some((min, max));
        self
    }

    /// The same, once in a line at most.
    #[must_use]
    pub const fn single(mut self) -> Self {
        self.single = true;
        self
    }

    /// Whether `value` is as good as none.
    pub(crate) fn is_unsaid(&self, value: &Value) -> bool {
        self.unsaid && *value == Value::Number(0)
    }

    /// The same, which says something of other options.
    #[must_use]
    pub const fn folding(mut self, fold: Fold) -> Self {
        self.folds = Some(fold);
        self
    }

    /// The same, with what is out of range refused so.
    #[must_use]
    pub const fn refused(mut self, bounds: Fault) -> Self {
        self.bounds = bounds;
        self
    }

    /// The same, also by the first letters of its names.
    #[must_use]
    pub const fn short(mut self) -> Self {
        self.short = true;
        self
    }

    /// Whether `word` begins this option.
    pub(crate) fn is_named(&self, word: &str) -> bool {
        let mut names = self.names().iter().chain(self.aliases);
        names.any(|name| *name == word || self.short && name.starts_with(word))
    }

    /// The words that begin this option.
    #[must_use]
    pub fn names(&self) -> &[&'static str] {
        match self.unit {
            Unit::Words(names) => names,
            _ => std::slice::from_ref(&self.key),
        }
    }

    /// Reads the value of the option that `name` has begun.
    ///
    /// # Errors
    ///
    /// The value is missing, is no such number, or is out of range.
    pub(crate) fn parse<'w>(
        &self,
        at: &str,
        name: &str,
        words: &mut (impl Iterator<Item = &'w str> + Clone),
    ) -> Result<Value, ConfigError> {
        let wrong =
            |word| ConfigError::new(at, self.key, word, format!("expected {}", self.expected()));
        if let Unit::Named(list) = self.unit
            && let Some((_, number)) = list.iter().find(|(other, _)| *other == name)
        {
            return Ok(Value::Number(*number));
        }
        if matches!(self.unit, Unit::RateOr(zero) if name == zero) {
            return Ok(Value::Number(0));
        }
        if self.may_be_bare()
            && words.clone().next().is_none_or(|word| word.starts_with(char::is_alphabetic))
        {
            return Ok(Value::List(Vec::new()));
        }
        let mut one = |unit| match words.next() {
            None => {
                let why = format!("the value is missing: expected {}", self.expected());
                Err(ConfigError::new(at, self.key, "", why).argument())
            }
            Some(word) => self
                .number(unit, word)
                .ok_or_else(|| ConfigError { fault: self.fault(unit, word), ..wrong(word) }),
        };
        match self.unit {
            Unit::Words(names) => {
                Ok(Value::Number(names.iter().take_while(|n| **n != name).count() as u64))
            }
            Unit::List(len) => {
                (0..len).map(|_| one(Unit::Count)).collect::<Result<_, _>>().map(Value::List)
            }
            Unit::Many(most) => {
                let mut list = vec![one(Unit::Count)?];
                while let Some(word) = words.clone().next()
                    && word.starts_with(|c: char| c.is_ascii_digit())
                {
                    words.next();
                    list.push(self.number(Unit::Count, word).ok_or_else(|| wrong(word))?);
                    if list.len() > most {
                        return Err(wrong(word));
                    }
                }
                Ok(Value::List(list))
            }
            Unit::Ranges(most) => {
                let mut list = Vec::new();
                while let Some(word) = words.clone().next().filter(|word| word.contains('@')) {
                    words.next();
                    list.push(parse_range(word).ok_or_else(|| wrong(word))?);
                }
                let fault = Fault::Argument;
                match list.len() {
                    0 => Err(ConfigError { fault, ..wrong(words.next().unwrap_or_default()) }),
                    len if len > most => Err(wrong("")),
                    _ => Ok(Value::List(list)),
                }
            }
            Unit::Row(must, units) => self.row(at, must, units, Vec::new(), words),
            Unit::Forms(forms) => {
                let named = words.clone().next();
                let place = forms.iter().position(|form| Some(form.word) == named);
                if place.is_some() {
                    words.next();
                }
                let place = place.unwrap_or(0);
                self.row(at, forms[place].must, forms[place].units, vec![place as u64], words)
            }
            Unit::Curve => curve::parse(self, at, words).map(Value::List),
            unit => one(unit).map(Value::Number),
        }
    }

    /// Whether none of its numbers has to be named: each has a default.
    fn may_be_bare(&self) -> bool {
        matches!((self.unit, self.default), (Unit::Many(_), Default::List(_)))
    }

    /// Reads values in a row behind those in `list`.
    fn row<'w>(
        &self,
        at: &str,
        must: usize,
        units: &[Unit],
        mut list: Vec<u64>,
        words: &mut (impl Iterator<Item = &'w str> + Clone),
    ) -> Result<Value, ConfigError> {
        for (place, unit) in units.iter().enumerate() {
            let word = words.clone().next();
            let Some(number) = word.and_then(|word| self.number(*unit, word)) else {
                if place >= must {
                    break;
                }
                let missing = if word.is_none() { "the value is missing: " } else { "" };
                let why = format!("{missing}expected {}", self.expected());
                let fault = word.map_or(Fault::Argument, |word| self.fault(*unit, word));
                let word = word.unwrap_or_default();
                return Err(ConfigError { fault, ..ConfigError::new(at, self.key, word, why) });
            };
            words.next();
            list.push(number);
        }
        Ok(Value::List(list))
    }

    /// Refuses a bare number, other than zero, where `tc` would guess its unit.
    pub(crate) fn check_unit(&self, at: &str, key: &str, word: &str) -> Result<(), ConfigError> {
        let unit = match self.unit {
            Unit::Row(_, units) => units[0],
            Unit::Forms(forms) => forms[0].units[0],
            unit => unit,
        };
        let guessed = matches!(
            unit,
            Unit::Rate | Unit::RateOr(_) | Unit::Usecs | Unit::Nsecs | Unit::Named(_)
        );
        if guessed && word.parse::<f64>().is_ok_and(|number| number != 0.0) {
            let why = format!("the unit is missing: expected {}", self.expected());
            return Err(ConfigError::new(at, key, word, why));
        }
        Ok(())
    }

    fn number(&self, unit: Unit, word: &str) -> Option<u64> {
        let fits = |n: &u64| (self.min..=self.max).contains(n) || (self.unsaid && *n == 0);
        let number = Self::read(unit, word).filter(fits)?;
        Some(
            self.clamp
                .filter(|_| !self.unsaid || number > 0)
                .map_or(number, |(min, max)| number.clamp(min, max)),
        )
    }

    /// Who refuses `word`: a number out of range is one that `tc` can read, if it has 32 bits.
    fn fault(&self, unit: Unit, word: &str) -> Fault {
        let long = |n| n > U32_MAX && unit.is_short();
        match Self::read(unit, word) {
            Some(n) if !long(n) => self.bounds,
            _ => Fault::Usage,
        }
    }

    fn read(unit: Unit, word: &str) -> Option<u64> {
        match unit {
            Unit::Count | Unit::Packets | Unit::Bytes => parse_count(word),
            Unit::ScaledPackets | Unit::Size => parse_size(word),
            Unit::Burst => parse_burst(word),
            Unit::Rate | Unit::RateOr(_) => Rate::parse(word).map(|rate| rate.0),
            Unit::Usecs | Unit::Named(_) => parse_time(word, 1_000),
            Unit::Nsecs => parse_time(word, 1),
            Unit::Minor => Handle::parse_minor(word).map(u64::from),
            Unit::Masked => parse_masked(word),
            Unit::Fraction => parse_fraction(word, 1.0),
            Unit::Percent => parse_fraction(word.strip_suffix('%').unwrap_or(word), 100.0),
            Unit::Choice(names) => {
                let is = |name: &&str| *name == word || is_in_capitals(name, word);
                names.iter().position(is).map(|place| place as u64)
            }
            Unit::Gain => parse_scaled(word, 256.0, &[]),
            Unit::TimeOrPackets => parse_time_or_packets(word),
            Unit::Signed => parse_signed(word),
            Unit::Words(_) | Unit::List(_) | Unit::Many(_) | Unit::Row(..) => None,
            Unit::Forms(_) | Unit::Curve | Unit::Ranges(_) => None,
        }
    }

    /// What a value has to look like, for messages.
    #[must_use]
    pub fn expected(&self) -> String {
        let (min, max) = (self.min, self.max);
        match self.unit {
            Unit::Count => format!("a whole number, {min} to {max}"),
            Unit::Packets => format!("a whole number, {min} to {max} packets"),
            Unit::ScaledPackets => format!("a number such as 100 or 1k, {min} to {max} packets"),
            Unit::Bytes => format!("a whole number, {min} to {max} bytes"),
            Unit::Size | Unit::Burst => {
                format!("a size such as 1514 or 15kb, {min} to {max} bytes")
            }
            Unit::Rate | Unit::RateOr(_) => {
                let zero = if min == 0 { "0bit, or " } else { "" };
                format!("{}, {zero}{} to {}", rate::LOOK, Rate(min.max(1)), Rate(max))
            }
            Unit::Usecs | Unit::Named(_) => {
                let (min, max) = (exact_time(min), exact_time(max));
                format!("a time such as 10ms or 40us, {min} to {max}")
            }
            Unit::Nsecs => {
                let (min, max) = (exact_time(min), exact_time(max));
                format!("a time such as 10us or 500ns, {min} to {max}")
            }
            Unit::List(len) => format!("{len} whole numbers, each {min} to {max}"),
            Unit::Many(most) => {
                format!("whole numbers, at most {most}, each {min} to {max}")
            }
            Unit::Row(must, units) => {
                let mut usage = row_usage(must, units);
                if units.contains(&Unit::Usecs) {
                    let _ = write!(usage, ", times up to {}", exact_time(max));
                }
                usage
            }
            Unit::Forms(forms) => {
                let usage = |(place, form): (usize, &Form)| {
                    let row = row_usage(form.must, form.units);
                    match (place, form.word) {
                        (_, "") => row,
                        (0, word) => format!("[{word}] {row}"),
                        (_, word) => format!("{word} {row}"),
                    }
                };
                forms.iter().enumerate().map(usage).collect::<Vec<_>>().join(" | ")
            }
            Unit::Ranges(most) => format!("COUNT@FIRST such as 2@0, at most {most} of them"),
            Unit::Curve => curve::EXPECTED.into(),
            Unit::Signed if max < U32_MAX => format!("a whole number, {min} to {max}"),
            Unit::Signed => "a whole number, -2147483648 to 2147483647".into(),
            Unit::Masked => "bits and their mask, such as 0x1/0x3, each 0 to 0xff".into(),
            Unit::Minor => "a minor number, hexadecimal, such as 20".into(),
            Unit::Fraction => "a probability such as 0.02, 0 to 1".into(),
            Unit::Percent => "a percentage such as 5%, 0% to 100%".into(),
            Unit::Gain => {
                format!("a number such as 0.16, {} to {}", exact_gain(min), exact_gain(max))
            }
            Unit::TimeOrPackets => {
                "a time such as 1ms, up to 4294967us, or packets such as 5p".into()
            }
            Unit::Choice(names) => {
                let names = names.iter().zip(0..=max).map(|(name, _)| *name);
                names.collect::<Vec<_>>().join(" or ")
            }
            Unit::Words(names) => names.join(" or "),
        }
    }

    /// The default on a device with this largest packet.
    pub(crate) fn default(&self, mtu: u32) -> Option<Value> {
        match self.default {
            Default::Number(n) => Some(Value::Number(n)),
            Default::Mtus(n) => {
                let (min, max) = self.clamp.unwrap_or((self.min, self.max));
                Some(Value::Number((n * u64::from(mtu)).clamp(min, max)))
            }
            Default::List(list) => Some(Value::List(list.to_vec())),
            Default::Needed | Default::Off => None,
        }
    }

    /// Appends the option as a word that reads back, with a space before it.
    pub(crate) fn write_exact(&self, line: &mut String, value: &Value) {
        self.write(line, value, |unit, n| match unit {
            Unit::Size | Unit::Burst => exact_size(n),
            Unit::Rate | Unit::RateOr(_) => Rate(n).exact(),
            Unit::Usecs | Unit::Nsecs | Unit::Named(_) => exact_time(n),
            Unit::Minor => format!("{n:x}"),
            Unit::Signed => signed(n).to_string(),
            Unit::Masked => format!("{:#x}/{:#x}", n & 0xFF, n >> 8),
            Unit::Fraction => exact_fraction(n, 1.0),
            Unit::Percent => format!("{}%", exact_fraction(n, 100.0)),
            Unit::TimeOrPackets if n % 2 == 0 => exact_time(n / 2),
            _ => plain(unit, n),
        });
    }

    /// Appends the option as `tc qdisc show` writes it in this style, with a space before it.
    pub(crate) fn write_shown(&self, line: &mut String, value: &Value, style: Style) {
        self.write(line, value, |unit, n| match unit {
            Unit::Packets | Unit::ScaledPackets => format!("{n}p"),
            Unit::Bytes | Unit::Size | Unit::Burst => Size(n).to_string(),
            Unit::Rate | Unit::RateOr(_) => style.rate(n).to_string(),
            Unit::Usecs if n == 0 => "0us".into(),
            Unit::Usecs | Unit::Nsecs | Unit::Named(_) => Time(n).to_string(),
            Unit::Minor => format!("{n:#x}"),
            Unit::Signed => signed(n).to_string(),
            Unit::Masked => format!("{:#x}/{:#x}", n & 0xFF, n >> 8),
            Unit::Fraction => exact_fraction(n, 1.0),
            Unit::Percent => format!("{}%", exact_fraction(n, 100.0)),
            Unit::TimeOrPackets if n % 2 == 0 => Time(n / 2).to_string(),
            _ => plain(unit, n),
        });
    }

    fn write(&self, line: &mut String, value: &Value, word: impl Fn(Unit, u64) -> String) {
        let name = match (self.unit, value) {
            (Unit::Words(names), Value::Number(n)) => at(names, *n).copied().unwrap_or(self.key),
            _ => self.key,
        };
        let _ = write!(line, " {name}");
        match value {
            Value::Number(_) if matches!(self.unit, Unit::Words(_)) => {}
            Value::Number(n) => {
                let _ = write!(line, " {}", word(self.unit, *n));
            }
            Value::List(list) => {
                let (units, list) = match (self.unit, &list[..]) {
                    (Unit::Row(_, units), list) => (units, list),
                    (Unit::Forms(forms), [place, list @ ..]) => {
                        let Some(form) = at(forms, *place) else { return };
                        if *place > 0 {
                            let _ = write!(line, " {}", form.word);
                        }
                        (form.units, list)
                    }
                    (Unit::Curve, list) => return curve::write(line, list, word),
                    (Unit::Ranges(_), list) => {
                        for n in list {
                            let _ = write!(line, " {}@{}", n >> 16, n & 0xFFFF);
                        }
                        return;
                    }
                    (_, list) => (&[Unit::Count][..], list),
                };
                for (i, n) in list.iter().enumerate() {
                    let unit = units[i.min(units.len() - 1)];
                    let _ = write!(line, " {}", word(unit, *n));
                }
            }
        }
    }
}

/// What stands at a place of a row.
fn at<T>(row: &[T], place: u64) -> Option<&T> {
    row.get(usize::try_from(place).ok()?)
}

/// Names in capitals are read in any case.
fn is_in_capitals(name: &str, word: &str) -> bool {
    !name.contains(|c: char| c.is_ascii_lowercase()) && name.eq_ignore_ascii_case(word)
}

/// A number that has no unit, or a word.
fn plain(unit: Unit, n: u64) -> String {
    match unit {
        Unit::Choice(names) => at(names, n).copied().unwrap_or_default().to_owned(),
        Unit::Gain => exact_gain(n),
        Unit::TimeOrPackets => format!("{}p", n / 2),
        _ => n.to_string(),
    }
}

/// Parts of 256 as a decimal number.
#[expect(clippy::cast_precision_loss, reason = "a gain has 32 bits")]
fn exact_gain(n: u64) -> String {
    (n as f64 / 256.0).to_string()
}

/// Values in a row, for people.
fn row_usage(must: usize, units: &[Unit]) -> String {
    let name = |(i, unit): (usize, &Unit)| {
        let name = unit.metavariable();
        if i < must { name.to_owned() } else { format!("[{name}]") }
    };
    units.iter().enumerate().map(name).collect::<Vec<_>>().join(" ")
}

/// What [`Unit::Signed`] means.
#[expect(clippy::cast_possible_truncation, reason = "these are the bits that count")]
pub(crate) fn signed(number: u64) -> i32 {
    (number as u32).cast_signed()
}

/// The options of a table, for messages.
pub(crate) fn options(id: &str, params: &[Param]) -> String {
    let names: Vec<&str> = params.iter().flat_map(Param::names).copied().collect();
    if names.is_empty() {
        return format!("{id} takes no options");
    }
    format!("{id} takes {}", names.join(", "))
}

/// What holds after a change: what it gives, and of what was there `before`, what it leaves.
pub(crate) fn merged(
    at: &str,
    params: &[Param],
    before: Option<&[Option<Value>]>,
    mut given: Vec<Option<Value>>,
) -> Result<Vec<Option<Value>>, ConfigError> {
    let Some(before) = before else { return Ok(given) };
    for ((param, given), before) in params.iter().zip(&mut given).zip(before) {
        match (&given, param.fixed) {
            (Some(_), Some(fault)) => {
                let why = "it is chosen once, when the qdisc is added; add another";
                return Err(ConfigError { fault, ..ConfigError::new(at, param.key, "", why) });
            }
            (None, _) if !param.resets => given.clone_from(before),
            _ => {}
        }
    }
    Ok(given)
}
