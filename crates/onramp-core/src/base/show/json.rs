//! JSON in the layout of iproute2.

use std::fmt::{self, Write as _};

/// A JSON document that is being written: on one line, or with a line for each member if `pretty`.
#[derive(Debug, Default)]
pub struct Json {
    out: String,
    pretty: bool,
    depth: usize,
    /// Whether the object or array that is open has an element already, so that the next element
    /// needs a comma before it.
    follows: bool,
}

impl Json {
    /// Creates an empty document.
    #[must_use]
    pub fn new(pretty: bool) -> Self {
        Self { pretty, ..Self::default() }
    }

    /// Returns the document, with a line end.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.out.push('\n');
        self.out
    }

    /// Begins an array: as the value of `key`, or as an element of an array if `key` is `None`.
    pub fn open_array(&mut self, key: Option<&str>) {
        self.member(key);
        self.out.push('[');
        self.enter();
        if self.pretty {
            self.out.push(' ');
        }
    }

    /// Ends the array that was opened last.
    pub fn close_array(&mut self) {
        if self.pretty && self.follows {
            self.out.push(' ');
        }
        self.depth -= 1;
        self.out.push(']');
        self.follows = true;
    }

    /// Begins an object: as the value of `key`, or as an element of an array if `key` is `None`.
    pub fn open_object(&mut self, key: Option<&str>) {
        self.member(key);
        self.out.push('{');
        self.enter();
    }

    /// Ends the object that was opened last.
    pub fn close_object(&mut self) {
        self.depth -= 1;
        if self.follows {
            self.line();
        }
        self.out.push('}');
        self.follows = true;
    }

    /// Writes `value` without quotes.
    pub fn raw(&mut self, key: Option<&str>, value: fmt::Arguments<'_>) {
        self.member(key);
        // Writing to a string cannot fail.
        let _ = self.out.write_fmt(value);
    }

    /// Writes a number with a fraction, in six significant digits, as C's `%g` does.
    pub fn float(&mut self, key: Option<&str>, number: f64) {
        self.raw(key, format_args!("{}", General(number)));
    }

    /// Writes a string, in quotes.
    pub fn string(&mut self, key: Option<&str>, value: &str) {
        self.member(key);
        self.quote(value);
    }

    fn enter(&mut self) {
        self.depth += 1;
        self.follows = false;
    }

    /// Begins a member of an object (with `key`) or an element of an array (without `key`).
    fn member(&mut self, key: Option<&str>) {
        if self.follows {
            self.out.push(',');
        }
        self.follows = true;
        let Some(key) = key else { return };
        self.line();
        self.quote(key);
        self.out.push(':');
        if self.pretty {
            self.out.push(' ');
        }
    }

    fn line(&mut self) {
        if self.pretty {
            self.out.push('\n');
            for _ in 0..self.depth {
                self.out.push_str("    ");
            }
        }
    }

    fn quote(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\t' => self.out.push_str("\\t"),
                '\r' => self.out.push_str("\\r"),
                c if c < ' ' => {
                    let _ = write!(self.out, "\\u{:04x}", u32::from(c));
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A number that is printed as C's `%g` prints it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct General(pub(crate) f64);

impl fmt::Display for General {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = format!("{:.5e}", self.0);
        let (digits, exponent) = exact.split_once('e').unwrap_or((&exact, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        if !(-4..6).contains(&exponent) {
            let digits = digits.trim_end_matches('0').trim_end_matches('.');
            let sign = if exponent < 0 { '-' } else { '+' };
            return write!(f, "{digits}e{sign}{:02}", exponent.abs());
        }
        let places = usize::try_from(5 - exponent).unwrap_or(0);
        let plain = format!("{:.places$}", self.0);
        if plain.contains('.') {
            f.write_str(plain.trim_end_matches('0').trim_end_matches('.'))
        } else {
            f.write_str(&plain)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(pretty: bool) -> String {
        let mut json = Json::new(pretty);
        json.open_array(None);
        json.open_object(None);
        json.string(Some("kind"), "noqueue");
        json.raw(Some("root"), format_args!("true"));
        json.open_object(Some("options"));
        json.close_object();
        json.open_array(Some("map"));
        json.raw(None, format_args!("1"));
        json.raw(None, format_args!("2"));
        json.close_array();
        json.close_object();
        json.close_array();
        json.finish()
    }

    #[test]
    fn it_looks_as_iproute2_writes_it() {
        let line = r#"[{"kind":"noqueue","root":true,"options":{},"map":[1,2]}]"#;
        assert_eq!(sample(false), format!("{line}\n"));
        let pretty = "[ {\n        \"kind\": \"noqueue\",\n        \"root\": true,\n        \
            \"options\": {},\n        \"map\": [ 1,2 ]\n    } ]\n";
        assert_eq!(sample(true), pretty);
    }

    #[test]
    fn numbers_look_as_c_writes_them() {
        let cases = [
            (0.0, "0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (0.333_333_333, "0.333333"),
            (123_456.0, "123456"),
            (1_234_567.0, "1.23457e+06"),
            (999_999.9, "1e+06"),
            (0.02, "0.02"),
        ];
        for (number, text) in cases {
            assert_eq!(General(number).to_string(), text);
        }
    }
}
