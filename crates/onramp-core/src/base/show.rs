//! Listings of `tc`, as text or as JSON, from one description.
//!
//! Source: behaviour of iproute2 6.1 (`tc -j`, `tc -p -j`), tried word by word.
//! Differs: nothing is coloured.

mod json;

use std::fmt::{self, Write as _};

use crate::base::Rate;

pub(crate) use self::json::General;
pub use self::json::Json;

/// What a listing contains and how it looks: the options of `tc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// `-s`: includes statistics.
    pub stats: bool,
    /// `-d`: includes details that are otherwise left out.
    pub details: bool,
    /// `-j`: JSON.
    pub json: bool,
    /// `-p`: JSON on many lines, and filters in readable words.
    pub pretty: bool,
    /// `-i`: rates in powers of 1,024.
    pub iec: bool,
}

impl Style {
    /// Formats a rate in bytes per second, for text.
    pub(crate) fn rate(self, rate: u64) -> impl fmt::Display {
        let rate = Rate::bytes_per_second(rate);
        fmt::from_fn(move |f| if self.iec { write!(f, "{rate:#}") } else { write!(f, "{rate}") })
    }
}

/// A listing that is being written.
///
/// Each call gives both the JSON key and the text, and only one of the two is written. Texts
/// contain their own spaces and line ends.
#[derive(Debug)]
pub struct Out {
    /// How the listing looks.
    pub style: Style,
    text: String,
    json: Json,
}

impl Out {
    /// Creates an empty listing. For JSON, an array is opened.
    #[must_use]
    pub fn new(style: Style) -> Self {
        let mut json = Json::new(style.pretty);
        if style.json {
            json.open_array(None);
        }
        Self { style, text: String::new(), json }
    }

    /// Returns the listing. For JSON, that may be an empty array.
    #[must_use]
    pub fn finish(mut self) -> String {
        if self.style.json {
            self.json.close_array();
            self.json.finish()
        } else {
            self.text
        }
    }

    /// Whether the listing is JSON.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.style.json
    }

    /// Writes text, only if the listing is text.
    pub fn text(&mut self, text: fmt::Arguments<'_>) {
        if !self.style.json {
            // Writing to a string cannot fail.
            let _ = self.text.write_fmt(text);
        }
    }

    /// Writes a number: under `key` in JSON, as `text` in text.
    pub fn uint(&mut self, key: &str, number: u64, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.raw(Some(key), format_args!("{number}"));
        } else {
            self.text(text);
        }
    }

    /// Writes a number that may be negative: under `key` in JSON, as `text` in text.
    pub fn int(&mut self, key: &str, number: i64, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.raw(Some(key), format_args!("{number}"));
        } else {
            self.text(text);
        }
    }

    /// Writes a number with a fraction: under `key` in JSON, as `text` in text.
    pub fn float(&mut self, key: &str, number: f64, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.float(Some(key), number);
        } else {
            self.text(text);
        }
    }

    /// Writes a word: under `key` in JSON, as `text` in text.
    pub fn string(&mut self, key: &str, word: &str, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.string(Some(key), word);
        } else {
            self.text(text);
        }
    }

    /// Writes whether something is true: `so` under `key` in JSON, as `text` in text.
    pub fn flag(&mut self, key: &str, so: bool, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.raw(Some(key), format_args!("{so}"));
        } else {
            self.text(text);
        }
    }

    /// Writes a key without a value (`null`) in JSON, or `text` in text.
    pub fn null(&mut self, key: &str, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.raw(Some(key), format_args!("null"));
        } else {
            self.text(text);
        }
    }

    /// Calls `write`, only if the listing is JSON.
    pub fn json(&mut self, write: impl FnOnce(&mut Json)) {
        if self.style.json {
            write(&mut self.json);
        }
    }

    /// Begins a JSON object, in an array (`None`) or under a key. Writes nothing in text.
    pub fn open(&mut self, key: Option<&str>) {
        self.json(|json| json.open_object(key));
    }

    /// Ends a JSON object. Writes nothing in text.
    pub fn close(&mut self) {
        self.json(Json::close_object);
    }
}

#[cfg(test)]
mod tests;
