//! What operators say about limits.

use std::collections::BTreeMap;
use std::fmt;

use crate::burst::Bursts;
use crate::host::Joined;
use crate::ledger::{Place, Terms};

/// The largest number of hosts that share one ledger; a limit with more hosts has groups.
pub const GROUP_MAX: u32 = 64;
/// The number of hosts in a group for which the number of groups is chosen. Hosts fall into groups
/// by their names, so some groups have more.
const GROUP: u32 = 48;

/// A limit, as an operator set it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Definition {
    /// The limit, in bytes per second.
    pub rate: u64,
    /// The limit's weight among the limits of its parent, at least 1.
    pub weight: u32,
    /// What is guaranteed to the limit when the limits of its parent want more than there is, in
    /// bytes per second.
    pub guaranteed: u64,
    /// The largest number of hosts.
    pub hosts: u32,
    /// The guaranteed rate of each host, in bytes per second. Ledgers count hosts by their floors:
    /// if this is 0, nobody sees to it that there are no more than `hosts`.
    pub floor: u64,
    /// The bytes that all hosts together may send at once, at least 1. `None`: each host's qdisc
    /// has a burst of its own, and nobody limits the sum. See [`Bursts`].
    pub burst: Option<u32>,
    /// The limit that this one is a part of.
    pub parent: Option<String>,
}

/// Error: a definition that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DefinitionError {
    /// The name is empty, too long, or has other characters than letters, digits, `.`, `_`, `-`.
    Name(String),
    /// A number that must be at least 1 is 0: the field's name.
    Zero(&'static str),
    /// The guaranteed rates of all hosts together exceed the limit.
    Floors {
        /// The guaranteed rates of all hosts together, in bytes per second.
        floors: u128,
        /// The limit, in bytes per second.
        rate: u64,
    },
    /// The limit's guarantee is larger than the limit.
    Guaranteed,
    /// There is no such parent.
    NoParent(String),
    /// A limit would be a part of itself.
    Circle(String),
    /// A limit that is a parent may have no hosts of its own, and one with hosts no parts.
    Parent(String),
    /// What is set aside for the guarantees of the parent's parts exceeds the parent's rate.
    Aside {
        /// The parent.
        parent: String,
        /// What its parts set aside, in bytes per second.
        reserve: u128,
        /// The parent's rate, in bytes per second.
        rate: u64,
    },
    /// Other limits are parts of the limit, so it cannot be deleted.
    HasParts(String),
    /// There is no such limit.
    Unknown(String),
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => {
                write!(f, "limit name {name:?}: expected 1 to 64 letters, digits, '.', '_' or '-'")
            }
            Self::Zero(field) => write!(f, "{field}: expected at least 1"),
            Self::Floors { floors, rate } => write!(
                f,
                "the guaranteed rates of all hosts together are {floors} bytes/s, more than the \
                 limit of {rate} bytes/s: give fewer hosts or a smaller floor"
            ),
            Self::Guaranteed => f.write_str(
                "the guaranteed rate (--min) is more than the limit's rate: give a smaller one",
            ),
            Self::NoParent(name) => write!(f, "parent: there is no limit {name:?}"),
            Self::Circle(name) => write!(f, "parent: limit {name:?} would be a part of itself"),
            Self::Parent(name) => write!(
                f,
                "limit {name:?} cannot have both hosts and parts: set its hosts to 0, or delete \
                 its parts"
            ),
            Self::Aside { parent, reserve, rate } => write!(
                f,
                "the parts of limit {parent:?} set {reserve} bytes/s aside for their hosts, more \
                 than its {rate} bytes/s"
            ),
            Self::HasParts(name) => write!(f, "limit {name:?} has parts: delete these first"),
            Self::Unknown(name) => write!(f, "there is no limit {name:?}"),
        }
    }
}

impl std::error::Error for DefinitionError {}

/// All limits of a fleet, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definitions(BTreeMap<String, Definition>);

impl Definitions {
    /// Makes an empty set of limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a limit: adds it, or replaces it if it exists.
    ///
    /// # Errors
    ///
    /// [`DefinitionError`]; then nothing has changed.
    pub fn set(&mut self, name: &str, definition: Definition) -> Result<(), DefinitionError> {
        if !is_name(name) {
            return Err(DefinitionError::Name(name.to_owned()));
        }
        let mut after = self.clone();
        after.0.insert(name.to_owned(), definition);
        after.check(name)?;
        *self = after;
        Ok(())
    }

    fn check(&self, name: &str) -> Result<(), DefinitionError> {
        let definition = &self.0[name];
        let burst = definition.burst.map_or(1, u64::from);
        for (field, number) in
            [("rate", definition.rate), ("weight", definition.weight.into()), ("burst", burst)]
        {
            if number == 0 {
                return Err(DefinitionError::Zero(field));
            }
        }
        let floors = u128::from(definition.floor) * u128::from(definition.hosts);
        if floors > u128::from(definition.rate) {
            return Err(DefinitionError::Floors { floors, rate: definition.rate });
        }
        if definition.guaranteed > definition.rate {
            return Err(DefinitionError::Guaranteed);
        }
        // Before this change there was no circle, so a circle leads through `name`.
        let mut at = name;
        while let Some(parent) = self.0[at].parent.as_deref() {
            if parent == name {
                return Err(DefinitionError::Circle(name.to_owned()));
            }
            if !self.0.contains_key(parent) {
                return Err(DefinitionError::NoParent(parent.to_owned()));
            }
            at = parent;
        }
        if definition.hosts > 0 && self.parts(name).next().is_some() {
            return Err(DefinitionError::Parent(name.to_owned()));
        }
        let mut next = Some(name);
        while let Some(at) = next {
            let above = &self.0[at];
            if at != name && above.hosts > 0 {
                return Err(DefinitionError::Parent(at.to_owned()));
            }
            let reserve = self.reserve(at);
            if reserve > u128::from(above.rate) {
                let (parent, rate) = (at.to_owned(), above.rate);
                return Err(DefinitionError::Aside { parent, reserve, rate });
            }
            next = above.parent.as_deref();
        }
        Ok(())
    }

    /// Deletes a limit.
    ///
    /// # Errors
    ///
    /// [`DefinitionError::Unknown`], [`DefinitionError::HasParts`].
    pub fn delete(&mut self, name: &str) -> Result<Definition, DefinitionError> {
        if self.parts(name).next().is_some() {
            return Err(DefinitionError::HasParts(name.to_owned()));
        }
        self.0.remove(name).ok_or_else(|| DefinitionError::Unknown(name.to_owned()))
    }

    /// Returns a limit.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Definition> {
        self.0.get(name)
    }

    /// Returns all limits, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Definition)> {
        self.0.iter().map(|(name, definition)| (name.as_str(), definition))
    }

    /// Returns the terms of a limit: what its ledger may give out and what it sets aside.
    #[must_use]
    pub fn terms(&self, name: &str) -> Option<Terms> {
        let rate = self.0.get(name)?.rate;
        Some(Terms { rate, reserve: u64::try_from(self.reserve(name)).unwrap_or(u64::MAX) })
    }

    /// Returns what the host `host` has to know when it joins a limit, with its weight among the
    /// limit's hosts; `None` if there is no such limit or the limit has no hosts.
    #[must_use]
    pub fn joined(&self, limit: &str, host: &str, weight: u32) -> Option<Joined> {
        let definition = self.0.get(limit).filter(|definition| definition.hosts > 0)?;
        let (mut way, mut claims) = (Vec::new(), Vec::new());
        for name in groups(limit, host, definition.hosts) {
            way.push(Place { name, remembered: Terms::default(), is_limit: false });
            claims.push((1, 0));
        }
        let mut bursts = Bursts::default();
        let mut next = Some(limit);
        while let Some((name, here)) = next.and_then(|name| self.0.get_key_value(name)) {
            if let Some(bytes) = here.burst {
                bursts.add(bytes, here.rate);
            }
            let remembered = self.terms(name)?;
            way.push(Place { name: name.clone(), remembered, is_limit: true });
            claims.push((here.weight, here.guaranteed));
            next = here.parent.as_deref();
        }
        Some(Joined { way, claims, weight: weight.max(1), floor: definition.floor, bursts })
    }

    /// Returns the names of the ledgers in which the members of a limit are: its own ledger, or
    /// those of its smallest groups. None if there is no such limit.
    #[must_use]
    pub fn ledgers(&self, limit: &str) -> Vec<String> {
        match self.0.get(limit).map(|definition| definition.hosts) {
            None => Vec::new(),
            Some(..=GROUP_MAX) => vec![limit.to_owned()],
            Some(hosts) => {
                (0..hosts.div_ceil(GROUP)).map(|index| group(limit, 1, index.into())).collect()
            }
        }
    }

    fn parts(&self, name: &str) -> impl Iterator<Item = &String> {
        let of = move |part: &&String| self.0[*part].parent.as_deref() == Some(name);
        self.0.keys().filter(of)
    }

    fn reserve(&self, name: &str) -> u128 {
        let within = self.0.iter().filter(|(part, _)| self.is_within(part, name));
        within.map(|(_, part)| u128::from(part.floor) * u128::from(part.hosts)).sum()
    }

    /// Whether `part` is the limit `name` or a part of it, at any depth.
    fn is_within(&self, part: &str, name: &str) -> bool {
        let mut next = Some(part);
        while let Some(at) = next.filter(|at| *at != name) {
            next = self.0.get(at).and_then(|limit| limit.parent.as_deref());
        }
        next.is_some()
    }
}

/// Whether a limit or a host may have this name: 1 to 64 letters, digits, `.`, `_` or `-`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    (1..=64).contains(&name.len()) && name.chars().all(fits)
}

/// Returns the names of the host's groups in a limit, the smallest first; none if the limit has so
/// few hosts that one ledger is enough.
fn groups(limit: &str, host: &str, hosts: u32) -> Vec<String> {
    let mut names = Vec::new();
    let mut index = hash(host);
    let mut members = hosts;
    let mut level = 1;
    while members > GROUP_MAX {
        members = members.div_ceil(GROUP);
        index %= u64::from(members);
        names.push(group(limit, level, index));
        level += 1;
    }
    names
}

/// Returns the name of a group. No limit's name has a `#`.
fn group(limit: &str, level: u32, index: u64) -> String {
    format!("{limit}#{level}.{index}")
}

/// Returns a number that depends on all letters of `name` and is the same in all versions.
///
/// Source: FNV-1a, with 64 bits (Fowler, Noll, Vo), and the last step of MurmurHash3, because the
/// low bits of FNV-1a alone follow the last letter.
fn hash(name: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325;
    let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.bytes().fold(start, mix);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(rate: u64, hosts: u32, floor: u64, parent: Option<&str>) -> Definition {
        let parent = parent.map(str::to_owned);
        Definition { rate, weight: 1, guaranteed: 0, hosts, floor, burst: None, parent }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut all = Definitions::new();
        all.set("company", definition(1_000, 0, 0, None)).expect("sound");
        all.set("tenant", definition(800, 4, 100, Some("company"))).expect("sound");
        let before = all.clone();
        let long = "n".repeat(65);
        let cases = [
            ("", definition(1, 0, 0, None), "expected 1 to 64 letters"),
            (&*long, definition(1, 0, 0, None), "expected 1 to 64 letters"),
            ("a b", definition(1, 0, 0, None), "expected 1 to 64 letters"),
            ("a#1.0", definition(1, 0, 0, None), "expected 1 to 64 letters"),
            ("a", definition(0, 1, 0, None), "rate: expected at least 1"),
            ("a", Definition { weight: 0, ..definition(9, 1, 0, None) }, "weight: expected at"),
            ("a", Definition { burst: Some(0), ..definition(9, 1, 0, None) }, "burst: expected at"),
            ("a", definition(99, 10, 10, None), "together are 100 bytes/s, more than the limit"),
            ("a", Definition { guaranteed: 10, ..definition(9, 1, 0, None) }, "(--min) is more"),
            ("a", definition(9, 1, 0, Some("b")), "there is no limit \"b\""),
            ("a", definition(9, 0, 0, Some("a")), "\"a\" would be a part of itself"),
            ("a", definition(9, 1, 0, Some("a")), "\"a\" would be a part of itself"),
            ("company", definition(1_000, 0, 0, Some("tenant")), "would be a part of itself"),
            (
                "a",
                definition(9, 1, 0, Some("tenant")),
                "\"tenant\" cannot have both hosts and parts",
            ),
            (
                "company",
                definition(1_000, 1, 0, None),
                "\"company\" cannot have both hosts and parts",
            ),
            ("a", definition(999, 1, 601, Some("company")), "set 1001 bytes/s aside"),
            ("company", definition(300, 0, 0, None), "set 400 bytes/s aside"),
        ];
        for (name, definition, why) in cases {
            let error = all.set(name, definition).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
            assert_eq!(all, before);
        }
        assert_eq!(all.delete("company"), Err(DefinitionError::HasParts("company".to_owned())));
        assert_eq!(all.delete("b"), Err(DefinitionError::Unknown("b".to_owned())));
        all.delete("tenant").expect("it has no parts");
        all.delete("company").expect("it has no parts any more");
    }

    #[test]
    fn a_circle_is_refused() {
        let mut all = Definitions::new();
        all.set("a", definition(9, 0, 0, None)).expect("sound");
        all.set("b", definition(9, 0, 0, Some("a"))).expect("sound");
        let error = all.set("a", definition(9, 0, 0, Some("b"))).expect_err("a circle");
        assert_eq!(error, DefinitionError::Circle("a".to_owned()));
    }

    #[test]
    fn a_host_knows_the_bursts_of_all_limits_above() {
        let mut all = Definitions::new();
        let with = |burst, definition| Definition { burst, ..definition };
        all.set("company", with(Some(500), definition(1_000, 0, 0, None))).expect("sound");
        all.set("region", definition(800, 0, 0, Some("company"))).expect("sound");
        all.set("tenant", with(Some(900), definition(600, 100, 1, Some("region")))).expect("sound");
        let bursts = |all: &Definitions| all.joined("tenant", "h", 1).expect("it has hosts").bursts;
        // The company allows 500 of 1,000 bytes, and the tenant 900 of 600.
        assert_eq!(bursts(&all).of(600), Some(300));
        all.set("tenant", with(Some(60), definition(600, 100, 1, Some("region")))).expect("sound");
        assert_eq!(bursts(&all).of(600), Some(60));
        all.set("company", definition(1_000, 0, 0, None)).expect("sound");
        all.set("tenant", definition(600, 100, 1, Some("region"))).expect("sound");
        assert_eq!(bursts(&all).of(600), None);
    }

    #[test]
    fn hosts_of_a_large_limit_are_in_groups() {
        let mut all = Definitions::new();
        all.set("small", definition(1_000, GROUP_MAX, 0, None)).expect("sound");
        all.set("large", definition(1_000, 10_000, 0, None)).expect("sound");
        assert_eq!(all.ledgers("small"), ["small"]);
        assert_eq!(all.joined("small", "h", 1).expect("it has hosts").way.len(), 1);
        assert!(all.ledgers("none").is_empty() && all.joined("none", "h", 1).is_none());
        let ledgers = all.ledgers("large");
        assert_eq!(ledgers.len(), 209);
        let mut sizes = BTreeMap::<String, usize>::new();
        for host in 0..10_000 {
            let way = all.joined("large", &format!("host-{host}"), 1).expect("it has hosts").way;
            assert_eq!(way.len(), 3);
            assert!(ledgers.contains(&way[0].name) && way[1].name.starts_with("large#2."));
            *sizes.entry(way[0].name.clone()).or_default() += 1;
        }
        let most = sizes.values().max().expect("there are groups");
        assert!(sizes.len() == 209 && *most < 96, "{most}");
    }
}
