//! Lines of `tc` from Rust: what they name is typed, what they say is `tc`'s.

use std::fmt;
use std::time::Duration;

use crate::base::{Handle, Rate};

/// A qdisc, and what is to be done with it.
///
/// ```
/// use onramp_core::cmd::Qdisc;
/// use onramp_core::{Handle, Rate, Setup};
///
/// let mut setup = Setup::default();
/// let root = Qdisc::add("htb").root().handle(1).option("default", "20");
/// setup.apply(&root.on("eth0"))?;
/// let class = onramp_core::cmd::Class::add("htb", Handle::new(1, 0x20));
/// setup.apply(&class.option("rate", Rate(1_000_000)).on("eth0"))?;
/// let leaf = Qdisc::add("fq").parent(Handle::new(1, 0x20)).option("flow_limit", 20_u32);
/// assert_eq!(leaf.on("eth0"), "qdisc add dev eth0 parent 1:20 fq flow_limit 20");
/// setup.apply(&leaf.on("eth0"))?;
/// # Ok::<(), onramp_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a command does nothing until it is applied"]
pub struct Qdisc(Command);

/// A class, and what is to be done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a command does nothing until it is applied"]
pub struct Class(Command);

/// A filter, and what is to be done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a command does nothing until it is applied"]
pub struct Filter(Command);

/// A line of `tc`, but for the name of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// `qdisc add`
    verb: String,
    /// `root handle 1:`
    place: String,
    /// `fq limit 100`
    options: String,
}

/// What may stand behind an option.
pub trait Operand {
    /// Writes it as `tc` reads it, exactly.
    ///
    /// # Errors
    ///
    /// Only those of `out`.
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
        // As above.
        let _ = value.write(&mut self.options);
        self
    }

    fn flag(mut self, key: &str) -> Self {
        self.options.push_str(&word(key));
        self
    }

    /// The line for a device.
    #[must_use]
    pub fn on(&self, device: &str) -> String {
        format!("{} dev {device}{}{}", self.verb, self.place, self.options)
    }
}

/// A word with a space before it.
fn word(word: &str) -> String {
    if word.is_empty() { String::new() } else { format!(" {word}") }
}

/// What the three have in common.
macro_rules! commands {
    ($($name:ident)*) => {$(
        impl $name {
            /// Gives an option a value.
            pub fn option(self, key: &str, value: impl Operand) -> Self {
                Self(self.0.option(key, value))
            }

            /// Gives an option that takes no value.
            pub fn flag(self, key: &str) -> Self {
                Self(self.0.flag(key))
            }

            /// The line of `tc` for a device.
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
    /// One that is not there yet.
    pub fn add(kind: &str) -> Self {
        Self(Command::new("qdisc add", kind))
    }

    /// One in the place of whatever is there.
    pub fn replace(kind: &str) -> Self {
        Self(Command::new("qdisc replace", kind))
    }

    /// Other parameters for one that is there; what is not given stays.
    pub fn change(kind: &str) -> Self {
        Self(Command::new("qdisc change", kind))
    }

    /// One that shall go.
    pub fn delete() -> Self {
        Self(Command::new("qdisc del", ""))
    }

    /// At the root.
    pub fn root(self) -> Self {
        Self(self.0.place(format_args!(" root")))
    }

    /// Below a class.
    pub fn parent(self, class: Handle) -> Self {
        Self(self.0.place(format_args!(" parent {class}")))
    }

    /// Of this major number.
    pub fn handle(self, major: u16) -> Self {
        Self(self.0.place(format_args!(" handle {major:x}:")))
    }
}

impl Class {
    /// One that is not there yet.
    pub fn add(kind: &str, class: Handle) -> Self {
        Self(Command::new("class add", kind)).named(class)
    }

    /// One, there or not.
    pub fn replace(kind: &str, class: Handle) -> Self {
        Self(Command::new("class replace", kind)).named(class)
    }

    /// Other parameters for one that is there.
    pub fn change(kind: &str, class: Handle) -> Self {
        Self(Command::new("class change", kind)).named(class)
    }

    /// One that shall go.
    pub fn delete(class: Handle) -> Self {
        Self(Command::new("class del", "")).named(class)
    }

    fn named(self, class: Handle) -> Self {
        Self(self.0.place(format_args!(" classid {class}")))
    }

    /// Below a class. Without it, below the qdisc.
    pub fn parent(self, class: Handle) -> Self {
        Self(self.0.place(format_args!(" parent {class}")))
    }
}

impl Filter {
    /// One that is not there yet.
    pub fn add(kind: &str) -> Self {
        Self(Command::new("filter add", kind))
    }

    /// One, there or not.
    pub fn replace(kind: &str) -> Self {
        Self(Command::new("filter replace", kind))
    }

    /// Those of a preference; of a place, if none is named.
    pub fn delete() -> Self {
        Self(Command::new("filter del", ""))
    }

    /// Asked at a qdisc, or a class. Without it, at the root.
    pub fn parent(self, place: Handle) -> Self {
        Self(self.0.place(format_args!(" parent {place}")))
    }

    /// Smaller ones are asked first.
    pub fn pref(self, pref: u16) -> Self {
        Self(self.0.place(format_args!(" pref {pref}")))
    }

    /// For packets of this protocol: `ip`, `ipv6`, `all`.
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
            Class::add("htb", Handle::new(1, 1)).option("rate", Rate(123_457)).into(),
            Class::add("htb", Handle::new(1, 2))
                .parent(Handle::new(1, 1))
                .option("rate", Rate(1_000))
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
