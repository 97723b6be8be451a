//! Commands of `tc` for a link: lines of text, or values made of typed parts.

use std::borrow::Cow;

use onramp_core::cmd::{Class, Command, Filter, Qdisc};

/// A command of `tc` that adds, changes or deletes something: a line of text, or typed parts
/// ([`cmd::Qdisc`](Qdisc), [`cmd::Class`](Class), [`cmd::Filter`](Filter)).
#[derive(Clone, Debug)]
pub struct Line(Typed);

#[derive(Clone, Debug)]
enum Typed {
    Text(String),
    /// A command that is made of typed parts, in which the name of the device is missing. The link
    /// adds the name.
    Parts(Command),
}

impl From<&str> for Line {
    fn from(line: &str) -> Self {
        Self(Typed::Text(line.to_owned()))
    }
}

impl From<String> for Line {
    fn from(line: String) -> Self {
        Self(Typed::Text(line))
    }
}

/// Implements `From` for [`Line`] for each type of command that is made of typed parts.
macro_rules! lines {
    ($($name:ident)*) => {$(
        impl From<$name> for Line {
            fn from(command: $name) -> Self {
                Self(Typed::Parts(command.into()))
            }
        }
    )*};
}

lines! { Qdisc Class Filter Command }

impl Line {
    /// Returns the text of this line for a device called `device`: without a leading `tc`, and with
    /// `dev DEVICE` if the line names no device. A line that names an object (such as `qdisc`) but
    /// no verb lists the objects. One space stands between two words, and spaces between quotes
    /// stay as they are, because they are part of a string.
    #[must_use]
    pub fn on(&self, device: &str) -> String {
        let line = match &self.0 {
            Typed::Text(line) => Cow::Borrowed(&**line),
            Typed::Parts(command) => Cow::Owned(command.on(device)),
        };
        let mut words = words(&line);
        if words.first() == Some(&"tc") {
            words.remove(0);
        }
        let object = words.iter().position(|word| !word.starts_with('-'));
        let named = words.iter().any(|word| matches!(*word, "dev" | "help"));
        if let Some(object) = object.filter(|_| !named) {
            if words.len() == object + 1 {
                words.push("show");
            }
            words.splice(object + 2..object + 2, ["dev", device]);
        }
        words.join(" ")
    }
}

/// Returns the words of a line. Spaces between quotes part no words. If a backslash stands in front
/// of the first quote of a string, one stands in front of its last quote, too.
fn words(line: &str) -> Vec<&str> {
    // Whether a backslash stands in front of the quote that began the present string.
    let (mut string, mut escaped) = (None, false);
    let parts = |c: char| {
        if c == '"' && string.is_none_or(|began| began == escaped) {
            string = if string.is_none() { Some(escaped) } else { None };
        }
        escaped = c == '\\' && !escaped;
        string.is_none() && c.is_ascii_whitespace()
    };
    line.split(parts).filter(|word| !word.is_empty()).collect()
}
