//! The options of a filter as a user wrote them, from which the lines are written that make the
//! filter again: they stay readable.

use std::ops::Range;
use std::sync::Arc;

use super::action::Action;
use super::reader::Reader;
use super::words;

/// Stands in the options of a filter where an action's number, which the user did not give, is to
/// be written.
pub(super) const NUMBER: &str = "\u{1}";

/// The options of a filter, as a user wrote them: the kind, and then first those options that a
/// later change of the filter keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text {
    all: Arc<str>,
    /// Length of the part that a change keeps, with the kind. A change of a filter that keeps
    /// nothing replaces all options, so the length does not matter then.
    kept: usize,
}

/// Which words of a line are options that a later change keeps, and which are to be left out, by
/// their positions.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) kept: Vec<Range<usize>>,
    pub(super) left_out: Vec<Range<usize>>,
}

impl Text {
    /// Returns the text of a filter of this kind that has no options.
    pub(super) fn bare(kind: &str) -> Self {
        Self { all: kind.into(), kept: kind.len() }
    }

    /// Returns the text of the words from the position `from` on, which describe these actions.
    pub(super) fn of(
        kind: &str,
        words: &Reader<'_>,
        from: usize,
        marks: &Marks,
        actions: &[Action],
    ) -> Self {
        let has = |ranges: &[Range<usize>], at| ranges.iter().any(|range| range.contains(&at));
        let (mut kept, mut rest) = (kind.to_owned(), String::new());
        for at in from..=words.len() {
            if actions.iter().any(|action| action.number_at == Some(at)) {
                rest += &format!(" {NUMBER}");
            }
            if at == words.len() || has(&marks.left_out, at) {
                continue;
            }
            let part = if has(&marks.kept, at) { &mut kept } else { &mut rest };
            *part += " ";
            *part += &words.again(at);
        }
        Self { kept: kept.len(), all: (kept + &rest).into() }
    }

    /// Returns this text, which a line gives that changes a filter, with `kept`, the kind and the
    /// options that the filter then has, in place of those that the line gives. Adds `indev` if the
    /// filter has one and the line does not give it.
    pub(super) fn with_kept(&self, kept: &str, indev: Option<&str>) -> Self {
        let mut all = format!("{kept}{}", &self.all[self.kept..]);
        if let Some(name) = indev
            && !all.split(' ').any(|word| word == "indev")
        {
            all += &format!(" indev {name}");
        }
        Self { all: all.into(), kept: kept.len() }
    }

    pub(super) fn all(&self) -> &str {
        &self.all
    }

    /// Returns the kind and the options that a change keeps.
    pub(super) fn kept(&self) -> &str {
        &self.all[..self.kept]
    }
}

/// Returns the options `text` with `link` as the only link.
pub(super) fn with_link(text: &str, link: u32) -> String {
    let mut words = text.split(' ');
    let mut kept = String::new();
    while let Some(word) = words.next() {
        if word == "link" {
            words.next();
        } else {
            kept += word;
            kept += " ";
        }
    }
    format!("{kept}link {:x}:", link >> words::TABLE_BITS)
}
