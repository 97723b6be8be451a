//! Reads the list of mutants that no test can find, because the program behaves the same with and
//! without them.
//!
//! A line without indent names a mutant in the form that `cargo xtask mutants --keys` prints. The
//! indented lines below it say why the mutant is equivalent. Lines that begin with `#` are
//! comments.

use std::collections::{BTreeMap, HashSet};

use super::plan::Mutant;

/// The reason why each mutant is equivalent, by the mutant's key.
pub(super) type Equivalent = BTreeMap<String, String>;

/// Reads the list. The error message names everything that is wrong with the list.
pub(super) fn parse(text: &str) -> Result<Equivalent, Vec<String>> {
    let (mut out, mut wrong) = (Equivalent::new(), Vec::new());
    let mut current: Option<String> = None;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with(char::is_whitespace) {
            match current.as_ref().and_then(|key| out.get_mut(key)) {
                Some(reason) => {
                    let gap = if reason.is_empty() { "" } else { " " };
                    *reason += &format!("{gap}{}", line.trim());
                }
                None => wrong.push(format!("line {number}: a reason without a mutant above it")),
            }
        } else {
            let key = line.trim_end().to_owned();
            if out.insert(key.clone(), String::new()).is_some() {
                wrong.push(format!("line {number}: this mutant is listed twice: {key}"));
            }
            current = Some(key);
        }
    }
    let bare = out.iter().filter(|(_, reason)| reason.is_empty());
    wrong.extend(bare.map(|(key, _)| format!("no reason why it is equivalent: {key}")));
    if wrong.is_empty() { Ok(out) } else { Err(wrong) }
}

/// Returns a message for each entry of `list` that names none of `mutants`.
pub(super) fn stale(list: &Equivalent, mutants: &[Mutant]) -> Vec<String> {
    let keys: HashSet<String> = mutants.iter().map(Mutant::key).collect();
    let gone = list.keys().filter(|key| !keys.contains(*key));
    gone.map(|key| format!("there is no such mutant; remove or correct its line: {key}")).collect()
}
