//! What `tc` prints, as text or as JSON, from one description.
//!
//! Source: behaviour of iproute2 6.1 (`tc -j`, `tc -p -j`), tried word by word.
//! Differs: nothing is coloured.

mod json;

use std::fmt::{self, Write as _};

use crate::base::Rate;

pub(crate) use self::json::General;
pub use self::json::Json;

/// What a listing shall contain, and how it looks: the options of `tc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// `-s`: what was counted.
    pub stats: bool,
    /// `-d`: what is otherwise left out.
    pub details: bool,
    /// `-j`: JSON.
    pub json: bool,
    /// `-p`: JSON on many lines; filters in readable words.
    pub pretty: bool,
    /// `-i`: rates with powers of 1,024.
    pub iec: bool,
}

impl Style {
    /// A rate, bytes per second, in a text.
    pub(crate) fn rate(self, rate: u64) -> impl fmt::Display {
        let rate = Rate(rate);
        fmt::from_fn(move |f| if self.iec { write!(f, "{rate:#}") } else { write!(f, "{rate}") })
    }
}

/// A listing that is being written.
///
/// Each call names the JSON key and the text; only one of the two is written. Texts contain their
/// own spaces and line ends.
#[derive(Debug)]
pub struct Out {
    /// How it looks.
    pub style: Style,
    text: String,
    json: Json,
}

impl Out {
    /// An empty listing; as JSON, an array is open.
    #[must_use]
    pub fn new(style: Style) -> Self {
        let mut json = Json::new(style.pretty);
        if style.json {
            json.open_array(None);
        }
        Self { style, text: String::new(), json }
    }

    /// The listing. An empty array is one as well.
    #[must_use]
    pub fn finish(mut self) -> String {
        if self.style.json {
            self.json.close_array();
            self.json.finish()
        } else {
            self.text
        }
    }

    /// Whether JSON is written.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.style.json
    }

    /// Text alone.
    pub fn text(&mut self, text: fmt::Arguments<'_>) {
        if !self.style.json {
            // Writing to a string cannot fail.
            let _ = self.text.write_fmt(text);
        }
    }

    /// A number, and how the text says it.
    pub fn uint(&mut self, key: &str, number: u64, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.raw(Some(key), format_args!("{number}"));
        } else {
            self.text(text);
        }
    }

    /// A number that may be negative, and how the text says it.
    pub fn int(&mut self, key: &str, number: i64, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.raw(Some(key), format_args!("{number}"));
        } else {
            self.text(text);
        }
    }

    /// A number with a fraction, and how the text says it.
    pub fn float(&mut self, key: &str, number: f64, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.float(Some(key), number);
        } else {
            self.text(text);
        }
    }

    /// A word, and how the text says it.
    pub fn string(&mut self, key: &str, word: &str, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.string(Some(key), word);
        } else {
            self.text(text);
        }
    }

    /// Whether something is so, and how the text says it.
    pub fn flag(&mut self, key: &str, so: bool, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.raw(Some(key), format_args!("{so}"));
        } else {
            self.text(text);
        }
    }

    /// A key without a value (`null`), and how the text says it.
    pub fn null(&mut self, key: &str, text: fmt::Arguments<'_>) {
        if self.style.json {
            self.json.raw(Some(key), format_args!("null"));
        } else {
            self.text(text);
        }
    }

    /// What only JSON gets.
    pub fn json(&mut self, write: impl FnOnce(&mut Json)) {
        if self.style.json {
            write(&mut self.json);
        }
    }

    /// JSON: begins an object, in an array (`None`) or under a key.
    pub fn open(&mut self, key: Option<&str>) {
        self.json(|json| json.open_object(key));
    }

    /// JSON: ends an object.
    pub fn close(&mut self) {
        self.json(Json::close_object);
    }
}

#[cfg(test)]
mod tests;
