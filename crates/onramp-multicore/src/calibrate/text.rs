//! Descriptions as text: the form of the files in `data/machines` and `data/software`.

use std::fmt::Write as _;

use crate::machines::Description;
use crate::parameter::Parameter;

impl Description {
    /// Returns the text of a file from which [`read`](Self::read) makes this description again.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let strings = [("name", &self.name), ("title", &self.title)];
        let counts = [
            ("sockets", u32::from(self.sockets)),
            ("clusters", u32::from(self.clusters)),
            ("cores", u32::from(self.cores)),
            ("threads", u32::from(self.threads)),
            ("l1_lines", self.l1_lines),
            ("l2_lines", self.l2_lines),
            ("llc_lines", self.llc_lines),
            ("line_bytes", self.line_bytes),
        ];
        for (name, value) in strings {
            let _ = writeln!(text, "{name} = {}", quoted(value));
        }
        for (name, value) in counts {
            let _ = writeln!(text, "{name} = {value}");
        }
        text + &tables(&[
            ("l1", &self.l1),
            ("l2", &self.l2),
            ("sibling", &self.sibling),
            ("llc", &self.llc),
            ("near", &self.near),
            ("far", &self.far),
            ("remote", &self.remote),
            ("remote_clean", &self.remote_clean),
            ("memory", &self.memory),
            ("memory_remote", &self.memory_remote),
            ("atomic", &self.atomic),
            ("fence", &self.fence),
            ("pause", &self.pause),
            ("clock", &self.clock),
            ("context_switch", &self.context_switch),
            ("wake", &self.wake),
            ("wake_call", &self.wake_call),
            ("interrupt", &self.interrupt),
            ("smt", &self.smt),
            ("smt_spin", &self.smt_spin),
            ("slice_ms", &self.slice_ms),
        ])
    }
}

/// Returns parameters as the tables of a file.
pub(super) fn tables(parameters: &[(&str, &Parameter)]) -> String {
    let mut text = String::new();
    for (name, parameter) in parameters {
        let Parameter { low, high, unit, source, how, note } = parameter;
        let _ = writeln!(text, "\n[{name}]\nlow = {low:?}\nhigh = {high:?}");
        let strings = [("unit", unit.as_ref()), ("source", Some(source))];
        for (key, value) in strings.into_iter().chain([("how", Some(how)), ("note", Some(note))]) {
            if let Some(value) = value {
                let _ = writeln!(text, "{key} = {}", quoted(value));
            }
        }
    }
    text
}

/// Returns a basic string of TOML.
fn quoted(value: &str) -> String {
    let mut text = String::from("\"");
    for char in value.chars() {
        match char {
            '"' | '\\' => text.extend(['\\', char]),
            char if char.is_control() => {
                let _ = write!(text, "\\u{:04x}", u32::from(char));
            }
            char => text.push(char),
        }
    }
    text + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::MACHINES;

    #[test]
    fn what_is_written_is_read_again() {
        for (name, _) in MACHINES {
            let mut machine = Description::named(name).expect("described");
            assert_eq!(Description::read(&machine.text()), Ok(machine.clone()), "{name}");
            machine.title = "a \"title\" \\ with\ta tab, a\nline and \u{7f}, ü".into();
            machine.near.unit = Some("ns".into());
            (machine.near.low, machine.near.high) = (1e-7, 1.5e17);
            assert_eq!(Description::read(&machine.text()), Ok(machine), "{name}");
        }
    }
}
