//! Writes the file that states the licences in a package of compiled code: Onramp's own, and those
//! of the crates that are linked into it. The format is the one that Debian's policy describes.

pub(crate) mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use self::parts::{Name, Part};
use crate::shell::root;
use crate::{Failure, Outcome};

const FORMAT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Onramp
";

/// The beginnings of the names of files that state a licence.
const TEXTS: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];

/// A package whose licences are stated.
pub(crate) struct Package {
    /// What contains the crates, as the subject of a sentence with a plural verb.
    pub(crate) holder: &'static str,
    /// Where its users find the text of the Apache License, which is not repeated.
    pub(crate) apache: &'static str,
}

/// Crates with the same licence in the same words.
#[derive(Debug, Default)]
struct Group {
    names: Vec<String>,
    holders: BTreeSet<String>,
    text: String,
}

/// Returns the statement of the licences of a package that contains these crates.
///
/// # Errors
///
/// Names a crate whose package does not have the text of its licence.
pub(crate) fn statement(
    package: &Package,
    parts: &BTreeMap<Name, Part>,
) -> Result<String, Failure> {
    let apache = format!("The Apache License, version 2.0, is in {}.", package.apache);
    let mut groups: BTreeMap<(String, String), Group> = BTreeMap::new();
    for ((name, version), part) in parts {
        if part.checksum.is_none() {
            continue; // Onramp's own
        }
        let files = texts(part, &apache)?;
        let (mut holders, text) = split(&files);
        if text.is_empty() {
            let why = format!("the package of {name} {version} has no text of its licence");
            return Err(Failure::Failed(why));
        }
        if holders.is_empty() {
            holders.extend(part.authors.iter().cloned());
        }
        if holders.is_empty() {
            holders.insert(format!("the contributors of {name}"));
        }
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let group = groups.entry((part.licence.clone(), words)).or_default();
        group.names.push(format!("{name}-{version}/*"));
        group.holders.extend(holders);
        group.text = text;
    }
    let mit = read(&root().join("LICENSE-MIT"))?;
    let (holders, text) = split(&[mit, apache.clone()]);
    let own = Group { names: vec!["*".to_owned()], holders, text };
    let mut all = format!(
        "{FORMAT}Comment: {} contain crates (https://crates.io) and Rust's standard\n library. The \
         stanzas below have the names and versions of these crates as names of folders.\n",
        package.holder
    );
    all += &stanza("MIT OR Apache-2.0", &own);
    let _ = write!(
        all,
        "\nFiles: rust-std/*\nCopyright: The Rust Project contributors\n\
         License: MIT or Apache-2.0\n {apache}\n\
         Comment: Rust's standard library. Its parts and their licences are listed in\n \
         https://doc.rust-lang.org/stable/COPYRIGHT-library.html.\n"
    );
    for ((licence, _), group) in &groups {
        all += &stanza(licence, group);
    }
    Ok(all)
}

/// Returns the texts of a crate's licences. `apache` stands for the Apache License: the users have
/// its text, and where it is one of several licences, a crate may come without any.
fn texts(part: &Part, apache: &str) -> Result<Vec<String>, Failure> {
    let mut files = Vec::new();
    collect(&part.folder, &mut files)?;
    files.retain(|text| !(text.contains("Apache License") && text.contains("January 2004")));
    files.sort();
    let choices = part.licence.replace(['(', ')'], " ");
    if choices.split(" OR ").any(|choice| choice.trim() == "Apache-2.0") {
        files.push(apache.to_owned());
    }
    Ok(files)
}

/// Collects the files that state a licence, also of parts that a crate took from elsewhere, such as
/// fonts, which have folders of their own.
fn collect(folder: &Path, files: &mut Vec<String>) -> Outcome {
    for entry in fs::read_dir(folder).map_err(|error| unable(folder, &error))?.flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().to_lowercase());
        if path.is_dir() {
            collect(&path, files)?;
        } else if TEXTS.iter().any(|text| name.starts_with(text)) && !name.ends_with(".rs") {
            files.push(read(&path)?);
        }
    }
    Ok(())
}

/// Takes the lines that name the holders of the copyright out of texts, because the format has a
/// field of its own for them. A line whose sentence goes on in the next one stays in the text, too.
fn split(files: &[String]) -> (BTreeSet<String>, String) {
    let mut holders = BTreeSet::new();
    let mut texts = Vec::new();
    for file in files {
        let mut lines = file.lines().map(str::trim_end).peekable();
        let mut kept = Vec::new();
        while let Some(line) = lines.next() {
            let holds = names_holder(line);
            if holds {
                holders.insert(line.trim().to_owned());
            }
            let goes_on = lines.peek().is_some_and(|next| !next.is_empty() && !names_holder(next));
            if !holds || goes_on {
                kept.push(line);
            }
        }
        texts.push(kept.join("\n").trim().to_owned());
    }
    (holders, texts.join("\n\n").trim().to_owned())
}

/// Whether a line is a notice such as `Copyright (c) 2020 NAME`, not a sentence about copyrights.
fn names_holder(line: &str) -> bool {
    let Some(rest) = line.trim_start().strip_prefix("Copyright ") else {
        return false;
    };
    let digit = |first: char| first.is_ascii_digit();
    ["(", "©", "the "].iter().any(|start| rest.starts_with(start)) || rest.starts_with(digit)
}

fn read(path: &Path) -> Result<String, Failure> {
    let bytes = fs::read(path).map_err(|error| unable(path, &error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn unable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Unable(format!("{}: {error}", path.display()))
}

fn stanza(licence: &str, group: &Group) -> String {
    let mut text = format!("\nFiles: {}\nCopyright:", group.names.join("\n "));
    for holder in &group.holders {
        let _ = write!(text, "\n {holder}");
    }
    let licence = licence.replace(" OR ", " or ").replace(" AND ", " and ");
    let _ = writeln!(text, "\nLicense: {licence}");
    let mut empty = false;
    for line in group.text.lines().map(str::trim_end) {
        if !(line.is_empty() && empty) {
            let _ = writeln!(text, " {}", if line.is_empty() { "." } else { line });
        }
        empty = line.is_empty();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_of_the_copyright_are_taken_out_of_the_texts() {
        let file = "MIT License\n\nCopyright (c) 2020 A. Person\nCopyright 2021 B\n\nYou may.\n\
            Copyright notices shall stay.\nCopyright 2022 C. D is\na trademark.\n";
        let (holders, text) = split(&[file.to_owned(), "more".to_owned()]);
        let expected =
            ["Copyright (c) 2020 A. Person", "Copyright 2021 B", "Copyright 2022 C. D is"];
        assert_eq!(holders.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        let kept = "Copyright notices shall stay.\nCopyright 2022 C. D is\na trademark.";
        assert_eq!(text, format!("MIT License\n\n\nYou may.\n{kept}\n\nmore"));
        let text = "MIT License\n\n\nYou may.".to_owned();
        let group = Group { names: vec!["a-1/*".to_owned(), "b-2/*".to_owned()], holders, text };
        let expected = "\nFiles: a-1/*\n b-2/*\nCopyright:\n Copyright (c) 2020 A. Person\n \
            Copyright 2021 B\n Copyright 2022 C. D is\nLicense: MIT or Apache-2.0\n MIT License\n \
            .\n You may.\n";
        assert_eq!(stanza("MIT OR Apache-2.0", &group), expected);
    }
}
