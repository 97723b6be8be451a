//! Builds `tc` command lines in Rust programs: handles and rates are Rust values, and options have
//! the names that they have in `tc`.

use std::fmt;
use std::time::Duration;

use crate::base::{Handle, Rate};

/// A command about a qdisc.
///
/// ```
/// use onramp_core::cmd::Qdisc;
/// use onramp_core::{Handle, Rate, Setup};
///
/// let mut setup = Setup::default();
/// let root = Qdisc::add("htb").root().handle(1).option("default", "20");
/// setup.apply(&root.on("eth0"))?;
/// let class = onramp_core::cmd::Class::add("htb", Handle::new(1, 0x20));
/// setup.apply(&class.option("rate", Rate::bytes_per_second(1_000_000)).on("eth0"))?;
/// let leaf = Qdisc::add("fq").parent(Handle::new(1, 0x20)).option("flow_limit", 20_u32);
/// assert_eq!(leaf.on("eth0"), "qdisc add dev eth0 parent 1:20 fq flow_limit 20");
/// setup.apply(&leaf.on("eth0"))?;
/// # Ok::<(), onramp_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a command does nothing until it is applied"]
pub struct Qdisc(Command);

/// A command about a class.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a command does nothing until it is applied"]
pub struct Class(Command);

/// A command about a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a command does nothing until it is applied"]
pub struct Filter(Command);

/// A `tc` command line, still without the name of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The object and the verb of the command, such as `qdisc add`.
    verb: String,
    /// The words that say where the object is, such as `root handle 1:`.
    place: String,
    /// The kind and its options, such as `fq limit 100`.
    options: String,
}

/// A Rust value that can stand after an option's name.
pub trait Operand {
    /// Writes the value as `tc` reads it, without rounding.
    ///
    /// # Errors
    ///
    /// Returns an error only if `out` returns one.
    fn write(&self, out: &mut dyn fmt::Write) -> fmt::Result;
}

impl Operand for &str {
    fn write(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(self)
    }
}

impl Operand for u32 {
    fn write(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl Operand for Rate {
    fn write(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(&self.exact())
    }
}

impl Operand for Duration {
    fn write(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{}ns", self.as_nanos())
    }
}

impl Operand for Handle {
    fn write(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl Command {
    fn new(verb: &str, kind: &str) -> Self {
        Self { verb: verb.into(), place: String::new(), options: word(kind) }
    }

    fn place(mut self, text: fmt::Arguments<'_>) -> Self {
        // Writing to a string cannot fail.
        let _ = fmt::Write::write_fmt(&mut self.place, text);
        self
    }

    fn option(mut self, key: &str, value: impl Operand) -> Self {
        self.options.push_str(&word(key));
        self.options.push(' ');
        // Writing to a string cannot fail.
        let _ = value.write(&mut self.options);
        self
    }

    fn flag(mut self, key: &str) -> Self {
        self.options.push_str(&word(key));
        self
    }

    /// Returns the command line for the device with the name `device`.
    #[must_use]
    pub fn on(&self, device: &str) -> String {
        format!("{} dev {device}{}{}", self.verb, self.place, self.options)
    }
}

/// Returns `word` with a space before it, or an empty text if `word` is empty.
fn word(word: &str) -> String {
    if word.is_empty() { String::new() } else { format!(" {word}") }
}

/// Defines the methods that all three types (`Qdisc`, `Class` and `Filter`) have.
macro_rules! commands {
    ($($name:ident)*) => {$(
        impl $name {
            /// Adds an option and its value.
            pub fn option(self, key: &str, value: impl Operand) -> Self {
                Self(self.0.option(key, value))
            }

            /// Adds an option that takes no value.
            pub fn flag(self, key: &str) -> Self {
                Self(self.0.flag(key))
            }

            /// Returns the `tc` command line for the device with the name `device`.
            #[must_use]
            pub fn on(&self, device: &str) -> String {
                self.0.on(device)
            }
        }

        impl From<$name> for Command {
            fn from(command: $name) -> Self {
                command.0
            }
        }
    )*};
}

commands! { Qdisc Class Filter }

impl Qdisc {
    /// Creates a command that adds a qdisc. The command fails if there already is a qdisc at the
    /// root, or below the class, where the new one is to stand; but a command without a handle
    /// replaces a qdisc of another kind.
    pub fn add(kind: &str) -> Self {
        Self(Command::new("qdisc add", kind))
    }

    /// Creates a command that adds a qdisc, or replaces the qdisc that already is at the root, or
    /// below the class, where the new one is to stand.
    pub fn replace(kind: &str) -> Self {
        Self(Command::new("qdisc replace", kind))
    }

    /// Creates a command that changes parameters of an existing qdisc. Parameters that the command
    /// does not give stay as they are.
    pub fn change(kind: &str) -> Self {
        Self(Command::new("qdisc change", kind))
    }

    /// Creates a command that deletes a qdisc.
    pub fn delete() -> Self {
        Self(Command::new("qdisc del", ""))
    }

    /// Says that the qdisc is the root of the device.
    pub fn root(self) -> Self {
        Self(self.0.place(format_args!(" root")))
    }

    /// Says that the qdisc is below the class `class`.
    pub fn parent(self, class: Handle) -> Self {
        Self(self.0.place(format_args!(" parent {class}")))
    }

    /// Sets the major number of the qdisc.
    pub fn handle(self, major: u16) -> Self {
        Self(self.0.place(format_args!(" handle {major:x}:")))
    }
}

impl Class {
    /// Creates a command that adds a class. The command fails if the class exists.
    pub fn add(kind: &str, class: Handle) -> Self {
        Self(Command::new("class add", kind)).named(class)
    }

    /// Creates a command that adds a class, or changes the class if it exists.
    pub fn replace(kind: &str, class: Handle) -> Self {
        Self(Command::new("class replace", kind)).named(class)
    }

    /// Creates a command that changes parameters of an existing class.
    pub fn change(kind: &str, class: Handle) -> Self {
        Self(Command::new("class change", kind)).named(class)
    }

    /// Creates a command that deletes a class.
    pub fn delete(class: Handle) -> Self {
        Self(Command::new("class del", "")).named(class)
    }

    fn named(self, class: Handle) -> Self {
        Self(self.0.place(format_args!(" classid {class}")))
    }

    /// Sets the parent class. Without `parent`, the class stands below the qdisc itself.
    pub fn parent(self, class: Handle) -> Self {
        Self(self.0.place(format_args!(" parent {class}")))
    }
}

impl Filter {
    /// Creates a command that adds a filter. The command fails if the filter exists.
    pub fn add(kind: &str) -> Self {
        Self(Command::new("filter add", kind))
    }

    /// Creates a command that adds a filter, or replaces the filter if it exists.
    pub fn replace(kind: &str) -> Self {
        Self(Command::new("filter replace", kind))
    }

    /// Creates a command that deletes all filters with the preference that [`pref`](Self::pref)
    /// sets. Without `pref`, the command deletes all filters of the qdisc or class.
    pub fn delete() -> Self {
        Self(Command::new("filter del", ""))
    }

    /// Says at which qdisc or class the filter is. Without `parent`, the filter is at the root
    /// qdisc.
    pub fn parent(self, place: Handle) -> Self {
        Self(self.0.place(format_args!(" parent {place}")))
    }

    /// Sets the preference of the filter. Filters with smaller numbers are asked first.
    pub fn pref(self, pref: u16) -> Self {
        Self(self.0.place(format_args!(" pref {pref}")))
    }

    /// Restricts the filter to packets of a protocol, such as `ip`, `ipv6` or `all`.
    pub fn protocol(self, protocol: &str) -> Self {
        Self(self.0.place(format_args!(" protocol {protocol}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tc::Setup;

    #[test]
    fn what_is_built_is_read_and_means_what_it_says() {
        let mut setup = Setup::default();
        let lines = [
            Qdisc::add("htb").root().handle(1).into(),
            Class::add("htb", Handle::new(1, 1))
                .option("rate", Rate::bytes_per_second(123_457))
                .into(),
            Class::add("htb", Handle::new(1, 2))
                .parent(Handle::new(1, 1))
                .option("rate", Rate::bytes_per_second(1_000))
                .into(),
            Qdisc::add("codel")
                .parent(Handle::new(1, 2))
                .handle(0x20)
                .option("target", Duration::from_micros(7_500))
                .flag("ecn")
                .into(),
            Filter::add("matchall")
                .parent(Handle::new(1, 0))
                .pref(3)
                .protocol("ip")
                .option("classid", Handle::new(1, 2))
                .into(),
            Qdisc::change("codel").parent(Handle::new(1, 2)).option("limit", 7_u32).into(),
        ];
        for line in lines {
            let line: Command = line;
            setup.apply(&line.on("d0")).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        }
        let codel = setup.specs().find(|spec| spec.kind().id == "codel").expect("it was added");
        assert_eq!(codel.to_string(), "codel limit 7 target 7500us ecn");
        let gone: Command = Qdisc::delete().root().into();
        assert_eq!(gone.on("d0"), "qdisc del dev d0 root");
        setup.apply(&gone.on("d0")).expect("it was there");
    }
}
