//! The text format of Prometheus, version 0.0.4.

use std::fmt::{Display, Write as _};

/// Type of a metric family.
#[derive(Clone, Copy, Debug)]
pub(super) enum Type {
    Counter,
    Gauge,
    Histogram,
}

/// Labels of a series, in the form in which they are written between the braces.
#[derive(Clone, Debug, Default)]
pub(super) struct Labels(String);

impl Labels {
    /// Adds a label.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        push_label(&mut self.0, name, value);
        self
    }
}

/// A document in the Prometheus text format while it is being written.
#[derive(Debug, Default)]
pub(super) struct Text(String);

impl Text {
    /// Begins a family. All of its samples must follow before the next family begins.
    pub(super) fn family(&mut self, name: &str, is: Type, about: &str) {
        let is = match is {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        };
        let about = about.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {about}\n# TYPE {name} {is}");
    }

    /// Writes a sample.
    pub(super) fn sample(&mut self, name: &str, labels: &Labels, value: impl Display) {
        self.begin(name, labels);
        self.end(value);
    }

    /// Writes a sample that has one label in addition to `labels`.
    pub(super) fn labelled(
        &mut self,
        name: &str,
        labels: &Labels,
        (label, text): (&str, &str),
        value: impl Display,
    ) {
        self.begin(name, labels);
        self.0.push(',');
        push_label(&mut self.0, label, text);
        self.end(value);
    }

    fn begin(&mut self, name: &str, labels: &Labels) {
        self.0.push_str(name);
        self.0.push('{');
        self.0.push_str(&labels.0);
    }

    fn end(&mut self, value: impl Display) {
        let _ = writeln!(self.0, "}} {value}");
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

fn push_label(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str("=\"");
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
    text.push('"');
}
