//! How `tc` shows expressions.

use std::fmt::Write as _;

use super::{LayerOf, Object, Op, Term, Test, Then, Tree, What};
use crate::base::show::Out;

impl Tree {
    /// Shows the expression on lines of its own. An empty expression is not shown.
    pub(in crate::filter) fn show(&self, out: &mut Out) {
        if self.0.is_empty() {
            return;
        }
        let mut text = String::new();
        self.write(&mut text, 1);
        let line = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        out.string("ematch", &line, format_args!("\n{text}"));
    }

    fn write(&self, text: &mut String, depth: usize) {
        let (mut then, mut line) = (Then::End, true);
        for term in &self.0 {
            let relation = match then {
                Then::And => "AND ",
                Then::Or => "OR ",
                Then::End => "",
            };
            if line {
                text.push_str(&"  ".repeat(depth));
            }
            text.push_str(relation);
            term.write(text, depth);
            // The match after a closing parenthesis is shown on the line of that parenthesis.
            line = !matches!(term.test, Test::Inner(_));
            then = term.then;
        }
    }
}

impl Term {
    fn write(&self, text: &mut String, depth: usize) {
        if self.not {
            text.push_str("NOT ");
        }
        if let Test::Inner(tree) = &self.test {
            text.push_str("(\n");
            tree.write(text, depth + 1);
            text.push_str(&"  ".repeat(depth));
            text.push_str(") ");
            return;
        }
        // Writing to a string cannot fail.
        let _ = self.test.write(text);
        text.push_str(")\n");
    }
}

impl Test {
    fn write(&self, text: &mut String) -> std::fmt::Result {
        match self {
            Self::Inner(_) => Ok(()),
            Self::Compare { value, op, with } => {
                let (bits, at) = (value.bytes * 8, value.offset);
                write!(text, "cmp(u{bits} at {at} layer {} ", value.layer.number())?;
                if let Some(mask) = value.mask.filter(|mask| *mask != 0) {
                    write!(text, "mask 0x{mask:x} ")?;
                }
                write!(text, "{}{} {with}", if value.swap { "trans " } else { "" }, op.name())
            }
            Self::Word(key) => write!(text, "u32({}", key.short()),
            Self::Meta { left, op, right } => {
                write!(text, "meta({} {} {}", left.text(), op.name(), right.text())
            }
            Self::Bytes { layer, offset, needle } => {
                text.push_str("nbyte(");
                for byte in needle {
                    write!(text, "{byte:02x} ")?;
                }
                let is_plain = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
                let plain = |byte: &u8| if is_plain(*byte) { char::from(*byte) } else { '.' };
                let plain: String = needle.iter().map(plain).collect();
                write!(text, "\"{plain}\" at {offset} layer {}", layer.number())
            }
        }
    }
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Self::Equal => "eq",
            Self::Less => "lt",
            Self::Greater => "gt",
        }
    }
}

impl LayerOf {
    fn number(self) -> u8 {
        match self {
            Self::Link => 0,
            Self::Network => 1,
            Self::Transport => 2,
        }
    }
}

impl Object {
    fn text(self) -> String {
        let name = match self.what {
            What::Value(value) => return value.to_string(),
            What::Priority => "priority",
            What::Mark => "nf_mark",
            What::Protocol => "protocol",
            What::Length => "pkt_len",
            What::Vlan => "vlan",
            What::Zero(name) => name,
        };
        let shift = if self.shift > 0 { format!(" shift {}", self.shift) } else { String::new() };
        let mask = if self.mask > 0 { format!(" mask 0x{:08x}", self.mask) } else { String::new() };
        format!("{name}{shift}{mask}")
    }
}
