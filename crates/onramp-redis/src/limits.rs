//! Limits as the engine keeps them.

use std::collections::BTreeMap;

use onramp_fleet::{Definition, Definitions};

/// Key of the hash with all limits by name. Its field with the empty name has a version, which is
/// another one after each change.
pub(crate) const LIMITS: &str = "onramp:limits";

/// What stands in place of a limit that an operator deleted: a limit of nothing. Without it, the
/// ledger and the hosts could not tell a deleted limit from one that the engine has lost, and would
/// go on with what they remember.
pub(crate) const DELETED: &str = "0 0";

/// Rates are below this number, in bytes per second: the rates of `tc` end there, and those of the
/// ledger's script are exact below 2^53.
pub(crate) const RATE_END: u64 = 1_000_000_000_000_001;

/// What stands in an entry before the limit's burst in bytes, if the limit has one.
const BURST: &str = "burst=";

/// A limit as the engine keeps it: the definition and what else hosts need of the tree around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) definition: Definition,
    pub(crate) reserve: u64,
    pub(crate) root: String,
}

impl Entry {
    /// Reads an entry; `None` if the limit was deleted or the text is no entry.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let ([rate, reserve, weight, guaranteed, hosts, floor, root], rest) =
            words.split_first_chunk()?;
        // No name has a `=`. A daemon passes over a word that only a later version knows.
        let (named, parent): (Vec<&str>, Vec<&str>) =
            rest.iter().partition(|word| word.contains('='));
        let burst = named.iter().find_map(|word| word.strip_prefix(BURST));
        let definition = Definition {
            rate: rate.parse().ok()?,
            weight: weight.parse().ok()?,
            guaranteed: guaranteed.parse().ok()?,
            hosts: hosts.parse().ok()?,
            floor: floor.parse().ok()?,
            burst: burst.map(str::parse).transpose().ok()?,
            parent: parent.first().map(|name| (*name).to_owned()),
        };
        Some(Self { definition, reserve: reserve.parse().ok()?, root: (*root).to_owned() })
    }

    /// Writes the entry. The first two numbers are what the ledger's script reads.
    pub(crate) fn text(&self) -> String {
        let Definition { rate, weight, guaranteed, hosts, floor, burst, parent } = &self.definition;
        let Self { reserve, root, .. } = self;
        let parent = parent.as_ref().map_or_else(String::new, |parent| format!(" {parent}"));
        let burst = burst.map_or_else(String::new, |burst| format!(" {BURST}{burst}"));
        format!("{rate} {reserve} {weight} {guaranteed} {hosts} {floor} {root}{parent}{burst}")
    }
}

/// Returns the key of a limit's terms, which only operators write.
pub(crate) fn terms_key(root: &str, name: &str) -> String {
    format!("onramp:{{{root}}}:limit:{name}")
}

/// Returns the key of a ledger, which hosts write. All keys of a tree have the tree's root in
/// braces, so a Redis Cluster keeps them on one node.
pub(crate) fn ledger_key(root: &str, name: &str) -> String {
    format!("onramp:{{{root}}}:ledger:{name}")
}

/// Returns the entries of all limits, by name.
pub(crate) fn entries(definitions: &Definitions) -> BTreeMap<String, Entry> {
    let entry = |(name, definition): (&str, &Definition)| {
        let reserve = definitions.terms(name)?.reserve;
        let mut root = name;
        while let Some(parent) = &definitions.get(root)?.parent {
            root = parent;
        }
        Some((
            name.to_owned(),
            Entry { definition: definition.clone(), reserve, root: root.to_owned() },
        ))
    };
    definitions.iter().filter_map(entry).collect()
}

/// Makes definitions of entries, parents first. Returns the name of a limit that does not fit if
/// there is one.
pub(crate) fn definitions(mut entries: BTreeMap<String, Entry>) -> Result<Definitions, String> {
    let mut all = Definitions::new();
    while !entries.is_empty() {
        let before = entries.len();
        entries.retain(|name, entry| all.set(name, entry.definition.clone()).is_err());
        if entries.len() == before {
            return Err(entries.into_keys().next().expect("not empty"));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(rate: u64, hosts: u32, parent: Option<&str>) -> Definition {
        let parent = parent.map(str::to_owned);
        Definition { rate, weight: 3, guaranteed: 7, hosts, floor: 2, burst: None, parent }
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        let mut all = Definitions::new();
        all.set("z", definition(1_000, 0, None)).expect("sound");
        all.set("m", definition(500, 0, Some("z"))).expect("sound");
        all.set("a", definition(100, 5, Some("m"))).expect("sound");
        all.set("-", definition(100, 6, None)).expect("sound");
        let burst = Some(9_000);
        all.set("b", Definition { burst, ..definition(90, 0, Some("m")) }).expect("sound");
        all.set("c", Definition { burst, ..definition(80, 4, None) }).expect("sound");
        let written = entries(&all);
        assert_eq!(written["a"].text(), "100 10 3 7 5 2 z m");
        assert_eq!(written["b"].text(), "90 0 3 7 0 2 z m burst=9000");
        assert_eq!(written["c"].text(), "80 8 3 7 4 2 c burst=9000");
        assert_eq!(written["z"].text(), "1000 10 3 7 0 2 z");
        for (name, entry) in &written {
            assert_eq!(Entry::from_text(&entry.text()).as_ref(), Some(entry), "{name}");
        }
        assert_eq!(definitions(written), Ok(all));
    }

    /// Reading many limits takes no time that grows with the cube of their number: 2,000 of one
    /// parent would need minutes.
    #[test]
    fn many_parts_are_read() {
        let mut written = BTreeMap::new();
        let entry = |definition, reserve| Entry { definition, reserve, root: "z".to_owned() };
        written.insert("z".to_owned(), entry(definition(1 << 40, 0, None), 4_000));
        for part in 0..2_000 {
            written.insert(format!("part-{part}"), entry(definition(100, 1, Some("z")), 2));
        }
        let read = definitions(written.clone()).expect("sound");
        assert_eq!(entries(&read), written);
    }

    #[test]
    fn words_of_later_versions_are_passed_over() {
        let entry = Entry::from_text("9 2 3 7 1 2 a later=x burst=5 b").expect("an entry");
        assert_eq!((entry.definition.burst, entry.definition.parent), (Some(5), Some("b".into())));
    }

    #[test]
    fn other_texts_are_no_entries() {
        for text in [
            "",
            DELETED,
            "1 2 3 4 5 6",
            "1 2 3 4 5 x root",
            "-1 2 3 4 5 6 root",
            "1 2 3 4 5 6 root burst=4294967296",
        ] {
            assert_eq!(Entry::from_text(text), None, "{text}");
        }
    }

    #[test]
    fn limits_without_their_parent_do_not_fit() {
        let mut all = Definitions::new();
        all.set("z", definition(1_000, 0, None)).expect("sound");
        all.set("a", definition(100, 5, Some("z"))).expect("sound");
        let mut written = entries(&all);
        written.remove("z");
        assert_eq!(definitions(written), Err("a".to_owned()));
    }
}
