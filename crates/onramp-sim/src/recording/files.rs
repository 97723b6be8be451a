//! The files of a case.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::CaseError;

/// The files of a case: the name and the text of each, and where they come from, for error
/// messages.
pub(super) struct Files {
    place: String,
    texts: BTreeMap<String, String>,
}

impl Files {
    const NAMES: [&str; 7] =
        ["opts", "tc.txt", "changes.csv", "flows.csv", "workload.csv", "kernel.csv", "stats.txt"];
    /// The text that stands before the name of each file if one text contains all files.
    const HEAD: &str = "== ";

    /// Returns the files in a folder. A file that is missing is an error only when its text is
    /// asked for.
    pub(super) fn of_folder(folder: &Path) -> Self {
        let read =
            |name: &str| Some((name.to_owned(), fs::read_to_string(folder.join(name)).ok()?));
        let texts = Self::NAMES.iter().filter_map(|name| read(name)).collect();
        Self { place: format!("{}/", folder.display()), texts }
    }

    /// Reads all files from one text, in which each file begins with a line `== NAME`. Lines before
    /// the first such line are remarks.
    pub(super) fn of_text(place: &str, text: &str) -> Self {
        let mut texts = BTreeMap::<String, String>::new();
        let mut name = None;
        for line in text.lines() {
            if let Some(next) = line.strip_prefix(Self::HEAD) {
                let next = next.trim().to_owned();
                texts.entry(next.clone()).or_default();
                name = Some(next);
            } else if let Some(name) = &name {
                *texts.entry(name.clone()).or_default() += &format!("{line}\n");
            }
        }
        Self { place: format!("{place}:"), texts }
    }

    /// Replaces the text of the file `name`.
    pub(super) fn with(mut self, name: &str, text: String) -> Self {
        self.texts.insert(name.to_owned(), text);
        self
    }

    /// Returns where the file `name` is, for error messages.
    pub(super) fn at(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    pub(super) fn text(&self, name: &str) -> Result<&str, CaseError> {
        self.texts.get(name).map(String::as_str).ok_or_else(|| CaseError::Broken {
            at: self.at(name),
            why: "there is no such file, or it cannot be read".into(),
        })
    }
}
