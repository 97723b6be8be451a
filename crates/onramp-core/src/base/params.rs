//! The table of the options of a qdisc kind. The parser, the printer and the help all use this
//! table.

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
use self::read::{
    parse_burst, parse_masked, parse_range, parse_signed, parse_time_or_packets, without_zeros,
};
pub use self::unit::{Form, Unit};
pub use self::values::{Options, Site, Values};

use crate::base::show::Style;
use crate::base::units::{
    Size, Time, exact_percent, exact_probability, exact_size, exact_time, parse_count,
    parse_percent, parse_probability, parse_scaled, parse_size, parse_time,
};
use crate::base::{ConfigError, Errno, Fault, Handle, Rate, rate};

/// What applies if a command does not give an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// The default is this number.
    Number(u64),
    /// The default is this many times the size in bytes of the device's largest packet.
    Mtus(u64),
    /// The default is the length of the device's transmit queue in packets (`txqueuelen`).
    QueueLen,
    /// The default is the size in bytes of a full transmit queue of the largest packets.
    QueueBytes,
    /// The default is this list of numbers.
    List(&'static [u64]),
    /// There is no default: the option must be given.
    Needed,
    /// Without the option, the feature that the option controls is off, and listings do not show
    /// the option. For [`Unit::Words`], the default is the first word, which listings do not show
    /// either.
    Off,
}

/// A function that changes other options: see [`Param::folds`].
pub type Fold = fn(&[Param], &mut [Option<Value>], u64);

/// One parameter of a qdisc or class.
#[derive(Debug)]
pub struct Param {
    /// Name of the option.
    pub key: &'static str,
    /// Other names of the option.
    pub aliases: &'static [&'static str],
    /// Whether users may shorten the other names of the option, too, if they may shorten its name.
    pub short_aliases: bool,
    /// Whether a number is decimal even if it begins with `0`, as `tc` reads some options. Other
    /// options take `010` for an octal and `0x10` for a hexadecimal number.
    pub decimal: bool,
    /// Unit of the option's value.
    pub unit: Unit,
    /// What applies when the option is not given.
    pub default: Default,
    /// Smallest value that the option allows, in the unit of [`Value`].
    pub min: u64,
    /// Largest value that the option allows, in the unit of [`Value`].
    pub max: u64,
    /// Description in one line, for users.
    pub help: &'static str,
    /// Whether a command that changes a qdisc but does not give this option sets the option back to
    /// its default, because `tc` always sends the option, as part of a larger structure. All other
    /// options keep their value, because `tc` sends each of them only if it is given.
    pub resets: bool,
    /// Which program (`tc` or the kernel) refuses a value that is out of range.
    pub bounds: Fault,
    /// Set for an option that stands for several other options: the function that sets these. The
    /// function gets the table, the options given so far (which it changes), and the value of this
    /// option.
    pub folds: Option<Fold>,
    /// `None` if the option can be changed later. Otherwise the option can only be given when the
    /// qdisc is added, and a later change that gives the option is refused with this fault.
    pub fixed: Option<Fault>,
    /// Whether a value of zero means the same as not giving the option.
    pub unsaid: bool,
    /// If set, values outside this range are replaced by the nearest value in the range, as Linux
    /// does, and are not refused.
    pub clamp: Option<(u64, u64)>,
    /// Whether `tc` refuses a command line that gives the option twice. If false, the last value
    /// applies.
    pub single: bool,
    /// Whether users may shorten the option's name to its first letters.
    pub short: bool,
    /// The function that prints the option in listings.
    pub look: Look,
}

/// The value of an option, in packets, bytes, bytes per second or nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The value of an option with any unit that is not listed at [`Value::List`].
    Number(u64),
    /// The value of an option with the unit [`Unit::List`], [`Unit::Many`], [`Unit::Row`],
    /// [`Unit::Forms`] or [`Unit::Curve`].
    List(Vec<u64>),
}

impl Value {
    /// Returns the value that an option has after a change from `before` to this value. If the unit
    /// is [`Unit::Row`] and this value has fewer numbers than `before`, the last numbers of
    /// `before` stay.
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

/// The largest value of 32 bits, in which Linux keeps most numbers.
pub(crate) const U32_MAX: u64 = u32::MAX as u64;
/// The largest rate in bytes per second: far beyond any device, and exact as a floating point
/// number.
const RATE_MAX: u64 = 1_000_000_000_000_000;

impl Param {
    /// Creates an option that allows every value that Linux can keep.
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
            short_aliases: false,
            decimal: false,
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

    /// Sets the smallest and the largest value that the option allows.
    #[must_use]
    pub const fn within(mut self, min: u64, max: u64) -> Self {
        (self.min, self.max) = (min, max);
        self
    }

    /// Sets the smallest value that the option allows.
    #[must_use]
    pub const fn at_least(mut self, min: u64) -> Self {
        self.min = min;
        self
    }

    /// Adds other names of the option.
    #[must_use]
    pub const fn or(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// Marks the option as one that a change sets back to its default if the change does not give
    /// it: see [`Param::resets`].
    #[must_use]
    pub const fn reset(mut self) -> Self {
        self.resets = true;
        self
    }

    /// Marks the option as one that can only be given when the qdisc is added: a change that gives
    /// the option is refused with `fault`.
    #[must_use]
    pub const fn once(mut self, fault: Fault) -> Self {
        self.fixed = Some(fault);
        self
    }

    /// Marks zero as a value that means the same as not giving the option: `tc` does not send the
    /// option then.
    #[must_use]
    pub const fn zero_is_unsaid(mut self) -> Self {
        self.unsaid = true;
        self
    }

    /// Replaces values outside this range by the nearest value in the range, instead of refusing
    /// them.
    #[must_use]
    pub const fn clamped(mut self, min: u64, max: u64) -> Self {
        self.clamp = Some((min, max));
        self
    }

    /// Marks the option as one that `tc` refuses if a command line gives it twice.
    #[must_use]
    pub const fn single(mut self) -> Self {
        self.single = true;
        self
    }

    /// Whether `value` means the same as not giving the option.
    pub(crate) fn is_unsaid(&self, value: &Value) -> bool {
        self.unsaid && *value == Value::Number(0)
    }

    /// Sets the function that changes other options when this option is given.
    #[must_use]
    pub const fn folding(mut self, fold: Fold) -> Self {
        self.folds = Some(fold);
        self
    }

    /// Sets which program refuses values that are out of range.
    #[must_use]
    pub const fn refused(mut self, bounds: Fault) -> Self {
        self.bounds = bounds;
        self
    }

    /// Takes numbers that begin with `0` for decimal ones: see [`decimal`](Self::decimal).
    #[must_use]
    pub const fn decimal(mut self) -> Self {
        self.decimal = true;
        self
    }

    /// Lets users shorten the option's name to its first letters.
    #[must_use]
    pub const fn short(mut self) -> Self {
        self.short = true;
        self
    }

    /// Lets users shorten the option's name and its other names to their first letters.
    #[must_use]
    pub const fn all_short(mut self) -> Self {
        (self.short, self.short_aliases) = (true, true);
        self
    }

    /// Whether `word` names this option.
    pub(crate) fn is_named(&self, word: &str) -> bool {
        let is = |names: &[&str], short| {
            names.iter().any(|name| *name == word || short && name.starts_with(word))
        };
        is(self.names(), self.short) || is(self.aliases, self.short && self.short_aliases)
    }

    /// Returns the option's name. For an option with [`Unit::Words`], returns the words of which
    /// one stands in place of the name. Aliases are not included.
    #[must_use]
    pub fn names(&self) -> &[&'static str] {
        match self.unit {
            Unit::Words(names) => names,
            _ => std::slice::from_ref(&self.key),
        }
    }

    /// Reads the value of the option after the word `name`, which has just been read and names the
    /// option.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is missing, is not of the parameter's unit, or is out of
    /// range.
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

    /// Whether the option may be given without numbers, because all its numbers have a default.
    fn may_be_bare(&self) -> bool {
        matches!((self.unit, self.default), (Unit::Many(_), Default::List(_)))
    }

    /// Reads values in a row, the first `must` of which are required, and appends them to `list`.
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

    /// Refuses a number other than zero without a unit if `tc` would assume a unit for it. `words`
    /// are the words that follow the name of the option.
    pub(crate) fn check_units<'a>(
        &self,
        at: &str,
        key: &str,
        words: impl Iterator<Item = &'a str>,
    ) -> Result<(), ConfigError> {
        let units = match &self.unit {
            Unit::Row(_, units) => units,
            Unit::Forms(forms) => forms[0].units,
            unit => std::slice::from_ref(unit),
        };
        for (unit, word) in units.iter().zip(words) {
            let guessed = matches!(
                unit,
                Unit::Rate | Unit::RateOr(_) | Unit::Usecs | Unit::Nsecs | Unit::Named(_)
            );
            if guessed && word.parse::<f64>().is_ok_and(|number| number != 0.0) {
                let why = format!("the unit is missing: expected {}", self.expected());
                return Err(ConfigError::new(at, key, word, why));
            }
            // The other values of a row may be missing.
            if self.number(*unit, word).is_none() {
                break;
            }
        }
        Ok(())
    }

    fn number(&self, unit: Unit, word: &str) -> Option<u64> {
        let fits = |n: &u64| (self.min..=self.max).contains(n) || (self.unsaid && *n == 0);
        let number = self.read(unit, word).filter(fits)?;
        Some(
            self.clamp
                .filter(|_| !self.unsaid || number > 0)
                .map_or(number, |(min, max)| number.clamp(min, max)),
        )
    }

    /// Returns which program (`tc` or the kernel) refuses the value `word`. The kernel refuses a
    /// number that is out of range, but `tc` refuses it if `tc` reads this unit into 32 bits and
    /// the number does not fit.
    fn fault(&self, unit: Unit, word: &str) -> Fault {
        let long = |n| n > U32_MAX && unit.is_short();
        match self.read(unit, word) {
            Some(n) if !long(n) => self.bounds,
            _ => Fault::Usage,
        }
    }

    fn read(&self, unit: Unit, word: &str) -> Option<u64> {
        let plain;
        let word = if self.decimal {
            plain = without_zeros(word);
            plain.as_str()
        } else {
            word
        };
        match unit {
            Unit::Count | Unit::Packets | Unit::Bytes => parse_count(word),
            Unit::ScaledPackets | Unit::Size => parse_size(word),
            Unit::Burst => parse_burst(word),
            Unit::Rate | Unit::RateOr(_) => {
                Rate::parse(word).map(|rate| rate.as_bytes_per_second())
            }
            Unit::Usecs | Unit::Named(_) => parse_time(word, 1_000),
            Unit::Nsecs => parse_time(word, 1),
            Unit::Minor => Handle::parse_minor(word).map(u64::from),
            Unit::Masked => parse_masked(word),
            Unit::Fraction => parse_probability(word),
            Unit::Percent => parse_percent(word.strip_suffix('%').unwrap_or(word)),
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

    /// Describes what a value of the option must look like, for error messages.
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
                format!(
                    "{}, {zero}{} to {}",
                    rate::LOOK,
                    Rate::bytes_per_second(min.max(1)),
                    Rate::bytes_per_second(max)
                )
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

    /// Returns the option's default value for a qdisc at `site`, or `None` if there is none.
    pub(crate) fn default(&self, site: Site) -> Option<Value> {
        match self.default {
            Default::Number(n) => Some(Value::Number(n)),
            Default::List(list) => Some(Value::List(list.to_vec())),
            Default::Needed | Default::Off => None,
            _ => self.device_default(site),
        }
    }

    /// Returns the option's default value if it follows from the device, and otherwise `None`.
    pub(crate) fn device_default(&self, site: Site) -> Option<Value> {
        let (mtu, packets) = (u64::from(site.mtu), u64::from(site.queue_len()));
        let number = match self.default {
            Default::Mtus(n) => n * mtu,
            Default::QueueLen => packets,
            Default::QueueBytes => packets * mtu,
            _ => return None,
        };
        let (min, max) = self.clamp.unwrap_or((self.min, self.max));
        Some(Value::Number(number.clamp(min, max)))
    }

    /// Appends to `line` a space and the option with `value`, written so that it reads back as
    /// exactly the same value.
    pub(crate) fn write_exact(&self, line: &mut String, value: &Value) {
        self.write(line, value, |unit, n| match unit {
            Unit::Size | Unit::Burst => exact_size(n),
            Unit::Rate | Unit::RateOr(_) => Rate::bytes_per_second(n).exact(),
            Unit::Usecs | Unit::Nsecs | Unit::Named(_) => exact_time(n),
            Unit::Minor => format!("{n:x}"),
            Unit::Signed => signed(n).to_string(),
            Unit::Masked => format!("{:#x}/{:#x}", n & 0xFF, n >> 8),
            Unit::Fraction => exact_probability(n),
            Unit::Percent => format!("{}%", exact_percent(n)),
            Unit::TimeOrPackets if n % 2 == 0 => exact_time(n / 2),
            _ => plain(unit, n),
        });
    }

    /// Appends to `line` a space and the option with `value`, written as `tc qdisc show` writes it
    /// in this style.
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
            Unit::Fraction => exact_probability(n),
            Unit::Percent => format!("{}%", exact_percent(n)),
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

/// Returns the element of `row` at the index `place`, or `None` if the row is shorter.
fn at<T>(row: &[T], place: u64) -> Option<&T> {
    row.get(usize::try_from(place).ok()?)
}

/// Whether `word` equals `name` without regard to case. False if `name` is not written in capitals.
fn is_in_capitals(name: &str, word: &str) -> bool {
    !name.contains(|c: char| c.is_ascii_lowercase()) && name.eq_ignore_ascii_case(word)
}

/// Formats a number that is printed without a unit. If the number is an index into a list of words,
/// formats the word.
fn plain(unit: Unit, n: u64) -> String {
    match unit {
        Unit::Choice(names) => at(names, n).copied().unwrap_or_default().to_owned(),
        Unit::Gain => exact_gain(n),
        Unit::TimeOrPackets => format!("{}p", n / 2),
        _ => n.to_string(),
    }
}

/// Formats `n`, a number of 256ths, as a decimal number.
#[expect(clippy::cast_precision_loss, reason = "a gain has 32 bits")]
fn exact_gain(n: u64) -> String {
    (n as f64 / 256.0).to_string()
}

/// Describes the values of a row for users: the names of their units, in brackets if a value may be
/// left out.
fn row_usage(must: usize, units: &[Unit]) -> String {
    let name = |(i, unit): (usize, &Unit)| {
        let name = unit.metavariable();
        if i < must { name.to_owned() } else { format!("[{name}]") }
    };
    units.iter().enumerate().map(name).collect::<Vec<_>>().join(" ")
}

/// Returns the number that the stored value of an option with [`Unit::Signed`] stands for.
#[expect(clippy::cast_possible_truncation, reason = "these are the bits that count")]
pub(crate) fn signed(number: u64) -> i32 {
    (number as u32).cast_signed()
}

/// Lists the names of all options in a table, for error messages.
pub(crate) fn options(id: &str, params: &[Param]) -> String {
    let names: Vec<&str> = params.iter().flat_map(Param::names).copied().collect();
    if names.is_empty() {
        return format!("{id} takes no options");
    }
    format!("{id} takes {}", names.join(", "))
}

/// Gives those options of `given` their defaults that are not given and follow from the device.
pub(crate) fn fill_in(params: &[Param], given: &mut [Option<Value>], site: Site) {
    for (param, given) in params.iter().zip(given) {
        *given = given.take().or_else(|| param.device_default(site));
    }
}

/// Returns the options of a qdisc after a change: those that the change gives, and those of
/// `before` that the change leaves as they are.
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
                let why = "it is fixed when the qdisc is added; add a new qdisc instead";
                return Err(ConfigError { fault, ..ConfigError::new(at, param.key, "", why) });
            }
            (None, _) if !param.resets => given.clone_from(before),
            _ => {}
        }
    }
    Ok(given)
}
