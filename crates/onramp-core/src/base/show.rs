//! Listings of `tc`, as text or as JSON, from one description.
//!
//! Source: behaviour of iproute2 6.1 (`tc -j`, `tc -p -j`), compared word by word.
//! Differs: nothing is coloured.

mod json;

use std::fmt::{self, Write as _};

use crate::base::Rate;

pub(crate) use self::json::General;
pub use self::json::Json;

/// What a listing contains and how it looks, as chosen by the options of `tc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// `-s`: includes statistics.
    pub stats: bool,
    /// `-d`: includes details that are left out without this option.
    pub details: bool,
    /// `-j`: writes JSON instead of text.
    pub json: bool,
    /// `-p`: writes JSON on many lines, and filters in readable words.
    pub pretty: bool,
    /// `-i`: writes rates in powers of 1,024.
    pub iec: bool,
}

impl Style {
    /// Formats a rate, given in bytes per second, for a text listing, with the prefixes of powers
    /// of 1,000 or of 1,024 as this style says.
    pub(crate) fn rate(self, rate: u64) -> impl fmt::Display {
        let rate = Rate::bytes_per_second(rate);
        fmt::from_fn(move |f| if self.iec { write!(f, "{rate:#}") } else { write!(f, "{rate}") })
    }
}

/// A listing that is being written.
///
/// For each item, the caller gives the JSON key and value and also the words of a text listing.
/// Only one of the two is written. The words must contain their own spaces and line ends.
#[derive(Debug)]
pub struct Out {
    /// The style in which the listing is written.
    pub style: Style,
    text: String,
    json: Json,
}

impl Out {
    /// Creates an empty listing. For JSON, the array that contains the whole listing is opened.
    #[must_use]
    pub fn new(style: Style) -> Self {
        let mut json = Json::new(style.pretty);
        if style.json {
            json.open_array(None);
        }
        Self { style, text: String::new(), json }
    }

    /// Returns what was written. A JSON listing without items is an empty array.
    #[must_use]
    pub fn finish(mut self) -> String {
        if self.style.json {
            self.json.close_array();
            self.json.finish()
        } else {
            self.text
        }
    }

    /// Whether the listing is written as JSON.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.style.json
    }

    /// Writes the words `text` in a text listing, and nothing in JSON.
    pub fn text(&mut self, text: fmt::Arguments<'_>) {
        if !self.style.json {
            // Writing to a string cannot fail.
            let _ = self.text.write_fmt(text);
        }
    }

    /// Writes a number. In JSON, this is a member with the name `key` and the value `number`; in a
    /// text listing, the words `text`.
    pub fn uint(&mut self, key: &str, number: u64, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.raw(Some(key), format_args!("{number}"));
        } else {
            self.text(text);
        }
    }

    /// Writes a number that may be negative. In JSON, this is a member with the name `key` and the
    /// value `number`; in a text listing, the words `text`.
    pub fn int(&mut self, key: &str, number: i64, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.raw(Some(key), format_args!("{number}"));
        } else {
            self.text(text);
        }
    }

    /// Writes a number with a fraction. In JSON, this is a member with the name `key` and the value
    /// `number`; in a text listing, the words `text`.
    pub fn float(&mut self, key: &str, number: f64, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.float(Some(key), number);
        } else {
            self.text(text);
        }
    }

    /// Writes a word. In JSON, this is a member with the name `key` whose value is the string
    /// `word`; in a text listing, the words `text`.
    pub fn string(&mut self, key: &str, word: &str, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.string(Some(key), word);
        } else {
            self.text(text);
        }
    }

    /// Writes a truth value. In JSON, this is a member with the name `key` and the value `so`; in a
    /// text listing, the words `text`.
    pub fn flag(&mut self, key: &str, so: bool, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.raw(Some(key), format_args!("{so}"));
        } else {
            self.text(text);
        }
    }

    /// Writes a flag. In JSON, this is a member with the name `key` and the value `null`; in a text
    /// listing, the words `text`.
    pub fn null(&mut self, key: &str, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.raw(Some(key), format_args!("null"));
        } else {
            self.text(text);
        }
    }

    /// Calls `write` if the listing is JSON, and does nothing if it is text.
    pub fn json(&mut self, write: impl FnOnce(&mut Json)) {
        if self.style.json {
            write(&mut self.json);
        }
    }

    /// Begins a JSON object: the value of the member `key`, or an element of an array if `key` is
    /// `None`. Writes nothing in a text listing.
    pub fn open(&mut self, key: Option<&str>) {
        self.json(|json| json.open_object(key));
    }

    /// Ends a JSON object. Writes nothing in a text listing.
    pub fn close(&mut self) {
        self.json(Json::close_object);
    }
}

#[cfg(test)]
mod tests;
