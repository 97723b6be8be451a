//! The list of mutants that no test can find, since the program does the same with them.
//!
//! A line without indent names a mutant as `--keys` shows it; the indented lines below say why it
//! is equivalent. Lines that begin with `#` are for the reader.

use std::collections::{BTreeMap, HashSet};

use super::plan::Mutant;

/// Reasons by mutant.
pub(super) type Equivalent = BTreeMap<String, String>;

/// Reads the list; gives what is wrong with it.
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
                wrong.push(format!("line {number}: stands there twice: {key}"));
            }
            current = Some(key);
        }
    }
    let bare = out.iter().filter(|(_, reason)| reason.is_empty());
    wrong.extend(bare.map(|(key, _)| format!("no reason why it is equivalent: {key}")));
    if wrong.is_empty() { Ok(out) } else { Err(wrong) }
}

/// Entries that name none of these mutants.
pub(super) fn stale(list: &Equivalent, mutants: &[Mutant]) -> Vec<String> {
    let keys: HashSet<String> = mutants.iter().map(Mutant::key).collect();
    let gone = list.keys().filter(|key| !keys.contains(*key));
    gone.map(|key| format!("no such mutant, so its line must go or change: {key}")).collect()
}
