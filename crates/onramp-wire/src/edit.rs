//! Changes of a direction's qdiscs by a word and a value, such as `rate 1mbit`.

use std::fmt;

use onramp_core::{Setup, Spec};

use crate::profile::{self, BUFFER_MIN};
use crate::series;

/// The qdisc of a direction that nobody has asked to be something else.
pub const PLAIN: &str = "pfifo limit 1000";
/// How long a buffer that is added with a rate takes to empty, as a part of a second.
const BUFFER_PARTS: u64 = 10;
/// Options of `netem`: a value ends before the next of them.
const NETEM: [&str; 13] = [
    "limit",
    "delay",
    "distribution",
    "reorder",
    "gap",
    "loss",
    "ecn",
    "duplicate",
    "corrupt",
    "rate",
    "slot",
    "packets",
    "seed",
];

/// A new value for one property of a direction.
///
/// It changes the qdisc that has the property: a rate is that of the first `tbf`, `cake` with
/// `bandwidth`, or `netem` with `rate`; delay, jitter and loss are those of the first `netem`. If
/// there is none, one is added: a `tbf` in front of the others, with a buffer of 100 ms, but at
/// least 32,000 bytes; a `netem` behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    word: Word,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Rate,
    Delay,
    Jitter,
    Loss,
}

impl Word {
    const ALL: [Self; 4] = [Self::Rate, Self::Delay, Self::Jitter, Self::Loss];

    const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Delay => "delay",
            Self::Jitter => "jitter",
            Self::Loss => "loss",
        }
    }
}

impl Edit {
    /// The words that name properties.
    pub const WORDS: [&'static str; 4] = ["rate", "delay", "jitter", "loss"];

    /// Reads a property (`rate`, `delay`, `jitter` or `loss`) and its value with a unit (`1mbit`,
    /// `20ms`, `2%`).
    ///
    /// # Errors
    ///
    /// [`EditError`] says what is wrong with the word or the value.
    pub fn new(word: &str, value: &str) -> Result<Self, EditError> {
        let Some(word) = Word::ALL.into_iter().find(|known| known.name() == word) else {
            let known = Self::WORDS.join(", ");
            let why = format!(
                "`{word}` is not a word for a change: expected one of {known}, link, qdisc, and in \
                 front of them up, down or both"
            );
            return Err(EditError(why));
        };
        let name = word.name();
        if value.is_empty() || value.contains(char::is_whitespace) {
            return Err(EditError(format!("{name}: expected one value")));
        }
        let tried = match word {
            Word::Rate => format!("tbf rate {value} burst 1514 limit 32000"),
            Word::Delay => format!("netem delay {value}"),
            Word::Jitter => format!("netem delay 1ms {value}"),
            Word::Loss => format!("netem loss {value}"),
        };
        Spec::with_units(&tried).map_err(|error| EditError(format!("{name} {value}: {error}")))?;
        Ok(Self { word, value: value.to_owned() })
    }

    /// Returns the tree with the new value. `mtu` is the largest packet in bytes, Ethernet header
    /// included. `has_rate` says that something else decides the rate.
    pub(crate) fn apply(
        &self,
        setup: &Setup,
        mtu: u32,
        has_rate: bool,
    ) -> Result<Setup, EditError> {
        if self.word == Word::Rate && has_rate {
            return Err(self.error("the trace decides the rate of this direction"));
        }
        let mut changed = setup.clone();
        for line in setup.lines() {
            let Some((place, qdisc)) = qdisc(&line) else { continue };
            if let Some(qdisc) = self.changed(qdisc, mtu) {
                let applied = changed.apply(&format!("qdisc change {place} {qdisc}"));
                return applied.map(|()| changed).map_err(|error| self.error(error));
            }
        }
        let mut stages = stages(setup).ok_or_else(|| {
            let (kind, word) = (if self.word == Word::Rate { "tbf" } else { "netem" }, self.word);
            self.error(format!(
                "the tree has no {kind} with a {}, and none can be added to a tree with classes or \
                 filters: put it into the tree",
                word.name()
            ))
        })?;
        if !has_rate {
            stages.retain(|stage| stage != PLAIN);
        }
        let value = &self.value;
        match self.word {
            Word::Rate => {
                let limit = buffer(value, mtu);
                stages.insert(0, format!("tbf rate {value} burst {mtu} limit {limit}"));
            }
            Word::Delay => stages.push(format!("netem delay {value} limit 1000000")),
            Word::Jitter => stages.push(format!("netem delay 0ms {value} limit 1000000")),
            Word::Loss => stages.push(format!("netem loss {value} limit 1000000")),
        }
        series(&stages).map_err(|error| self.error(error))
    }

    /// Returns the qdisc with the new value, or `None` if the property is not one of this qdisc.
    fn changed(&self, qdisc: &str, mtu: u32) -> Option<String> {
        let mut words: Vec<&str> = qdisc.split_ascii_whitespace().collect();
        let value = &*self.value;
        let has = |words: &[&str], word: &str| words.contains(&word);
        match (self.word, *words.first()?) {
            (Word::Rate, "tbf") => {
                put(&mut words, "rate", &[value], &[]);
                // As in tc, the beginning of the word is enough.
                let at = words.iter().position(|word| "limit".starts_with(word));
                let spec = Spec::with_units(qdisc).ok();
                let limit = spec.map(|spec| spec.values(mtu).number("limit"));
                let grown = buffer(value, mtu);
                let text = grown.to_string();
                if let (Some(at), Some(limit)) = (at, limit)
                    && limit < grown
                    && at + 1 < words.len()
                {
                    words[at + 1] = &text;
                }
                return Some(words.join(" "));
            }
            (Word::Rate, "cake") if has(&words, "bandwidth") => {
                return Some(format!("cake bandwidth {value}"));
            }
            (Word::Rate, "netem") if has(&words, "rate") => {
                let old = values(&words, "rate", &NETEM);
                let new: Vec<_> = [value].into_iter().chain(old.into_iter().skip(1)).collect();
                put(&mut words, "rate", &new, &NETEM);
            }
            (Word::Delay, "netem") => {
                let old = values(&words, "delay", &NETEM);
                let new: Vec<_> = [value].into_iter().chain(old.into_iter().skip(1)).collect();
                put(&mut words, "delay", &new, &NETEM);
            }
            (Word::Jitter, "netem") => {
                let old = values(&words, "delay", &NETEM);
                let first = *old.first().unwrap_or(&"0ms");
                let new: Vec<_> =
                    [first, value].into_iter().chain(old.into_iter().skip(2)).collect();
                put(&mut words, "delay", &new, &NETEM);
            }
            (Word::Loss, "netem") => put(&mut words, "loss", &[value], &NETEM),
            _ => return None,
        }
        // The seed, given again, would begin the random numbers again.
        if let Some(at) = words.iter().position(|word| *word == "seed") {
            words.drain(at..(at + 2).min(words.len()));
        }
        Some(words.join(" "))
    }

    fn error(&self, why: impl fmt::Display) -> EditError {
        EditError(format!("{} {}: {why}", self.word.name(), self.value))
    }
}

/// Returns the bytes of a buffer for a rate. It holds at least two of the largest packets, which
/// have `mtu` bytes.
fn buffer(rate: &str, mtu: u32) -> u64 {
    let spec = Spec::with_units(&format!("tbf rate {rate} burst 1514 limit 32000"));
    let bytes = spec.map_or(0, |spec| spec.values(1_514).number("rate"));
    (bytes / BUFFER_PARTS).max(BUFFER_MIN.into()).max(2 * u64::from(mtu)).min(u32::MAX.into())
}

/// Splits a line of `Setup::lines` that adds a qdisc into its device, place and handle, and the
/// qdisc.
fn qdisc(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("qdisc add ")?;
    let at = rest.find(" handle ")? + " handle ".len();
    let end = at + rest[at..].find(' ')?;
    Some((&rest[..end], rest[end..].trim_start()))
}

/// Returns the qdiscs that stand one behind the other in a tree that [`series`] has made, or `None`
/// if the tree is another.
pub(crate) fn stages(setup: &Setup) -> Option<Vec<String>> {
    let lines = setup.lines();
    let qdiscs: Vec<_> = lines.iter().filter_map(|line| qdisc(line)).collect();
    let (root, below) = qdiscs.split_first().filter(|_| qdiscs.len() == lines.len())?;
    if below.is_empty() {
        return Some(vec![root.1.to_owned()]);
    }
    let is_series = root.1.split(' ').next() == Some("series");
    let stands = |place: &str, minor: usize| {
        let parent = place.split(' ').skip_while(|word| *word != "parent").nth(1);
        let class = parent.and_then(|parent| parent.split(':').nth(1));
        class.and_then(|class| usize::from_str_radix(class, 16).ok()) == Some(minor)
    };
    let in_order = (1..).zip(below).all(|(minor, (place, _))| stands(place, minor));
    let count = root.1.split(' ').next_back().and_then(|count| count.parse().ok());
    let all = is_series && in_order && count.unwrap_or(2) == below.len();
    all.then(|| below.iter().map(|(_, qdisc)| (*qdisc).to_owned()).collect())
}

/// Returns where the values of an option stand: behind its name, up to the next of `names`.
fn span(words: &[&str], name: &str, names: &[&str]) -> Option<std::ops::Range<usize>> {
    let at = words.iter().position(|word| *word == name)? + 1;
    let len = match names {
        [] => 1,
        _ => words[at..].iter().take_while(|word| !names.contains(word)).count(),
    };
    Some(at..(at + len).min(words.len()))
}

fn values<'w>(words: &[&'w str], name: &str, names: &[&str]) -> Vec<&'w str> {
    span(words, name, names).map_or_else(Vec::new, |span| words[span].to_vec())
}

/// Gives an option these values.
fn put<'w>(words: &mut Vec<&'w str>, name: &'w str, new: &[&'w str], names: &[&str]) {
    match span(words, name, names) {
        Some(span) => drop(words.splice(span, new.iter().copied())),
        None => {
            words.push(name);
            words.extend(new);
        }
    }
}

/// Error: a change of a direction cannot be understood or made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditError(pub(crate) String);

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EditError {}

impl From<profile::StageError> for EditError {
    fn from(error: profile::StageError) -> Self {
        Self(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(stages: &[&str], edits: &[(&str, &str)]) -> Vec<String> {
        let mut setup = series(stages).expect("qdiscs");
        for (word, value) in edits {
            let edit = Edit::new(word, value).expect("a value");
            setup = edit.apply(&setup, 1_514, false).expect("it can change");
        }
        super::stages(&setup).expect("a series")
    }

    #[test]
    fn a_value_changes_the_qdisc_that_has_it() {
        let link = ["tbf rate 1mbit burst 1514 limit 32000", "netem delay 20ms 5ms limit 1000"];
        let changed = edited(&link, &[("rate", "2mbit"), ("delay", "30ms"), ("loss", "1%")]);
        let expected =
            ["tbf rate 2mbit burst 1514b limit 32000b", "netem limit 1000 delay 30ms 5ms loss 1%"];
        let as_spec = |text: &str| text.parse::<Spec>().expect("a qdisc");
        let specs = |texts: &[String]| texts.iter().map(|text| as_spec(text)).collect::<Vec<_>>();
        assert_eq!(specs(&changed), expected.map(as_spec));
        let again = edited(&link, &[("jitter", "1ms"), ("loss", "3%"), ("loss", "0%")]);
        assert_eq!(as_spec(&again[1]), as_spec("netem limit 1000 delay 20ms 1ms loss 0%"));
        // The buffer grows with the rate.
        let fast = edited(&link, &[("rate", "100mbit"), ("rate", "1mbit")]);
        assert_eq!(as_spec(&fast[0]), as_spec("tbf rate 1mbit burst 1514 limit 1250000"));
        for limit in ["limit 64kb", "lim 512kbit"] {
            let tbf = format!("tbf rate 1mbit burst 5kb {limit}");
            let spec = |text: &str| Spec::with_units(text).expect("a qdisc");
            let fast = edited(&[&tbf], &[("rate", "100mbit")]);
            assert_eq!(spec(&fast[0]), spec("tbf rate 100mbit burst 5kb limit 1250000"), "{limit}");
            let slow = edited(&[&tbf], &[("rate", "2mbit")]);
            assert_eq!(spec(&slow[0]), spec("tbf rate 2mbit burst 5kb limit 64kb"), "{limit}");
        }
        let cake =
            edited(&["cake bandwidth 5mbit besteffort", "netem delay 9ms"], &[("rate", "1mbit")]);
        assert_eq!(as_spec(&cake[0]), as_spec("cake bandwidth 1mbit besteffort"));
        let netem = edited(&["netem rate 1mbit 10 seed 7"], &[("rate", "2mbit")]);
        assert_eq!(as_spec(&netem[0]), as_spec("netem rate 2mbit 10 seed 7"));
    }

    #[test]
    fn what_is_missing_is_added() {
        let link = edited(&[PLAIN], &[("loss", "1%"), ("rate", "1mbit"), ("delay", "5ms")]);
        assert!(link.len() == 2 && link[0].starts_with("tbf rate 1mbit"), "{link:?}");
        assert!(link[1].starts_with("netem limit 1000000 delay 5ms"), "{link:?}");
        let link = edited(&["fq_codel"], &[("rate", "1mbit"), ("jitter", "2ms")]);
        assert!(link[1] == "fq_codel" && link[2].contains("delay 0us 2ms"), "{link:?}");
    }

    /// The buffer has room for two of the largest packets, however low the rate is.
    #[test]
    fn large_packets_pass_a_slow_rate() {
        let setup = series(&[PLAIN]).expect("qdiscs");
        let edit = Edit::new("rate", "100kbit").expect("a value");
        let changed = edit.apply(&setup, 65_535, false).expect("it can change");
        let link = stages(&changed).expect("a series");
        let spec = link[0].parse::<Spec>().expect("a qdisc");
        assert_eq!(spec.values(65_535).number("limit"), 131_070);
        let profile = profile::Profile::find("3g-chrome").expect("it is listed");
        let [up, down] = profile.stages(65_521).map(|stages| stages[0].clone());
        assert!([up, down].iter().all(|tbf| tbf.ends_with(" limit 131070")));
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (word, value, why) in [
            ("rat", "1mbit", "rate, delay"),
            ("rate", "1", "unit"),
            ("rate", "0mbit", "0mbit"),
            ("delay", "20", "unit"),
            ("jitter", "5", "unit"),
            ("loss", "200%", "200%"),
            ("loss", "", "one value"),
        ] {
            let error = Edit::new(word, value).expect_err(value).to_string();
            assert!(error.contains(why), "{word} {value}: {error}");
        }
        let mut tree = Setup::default();
        for line in [
            "qdisc add dev d root handle 1: htb",
            "class add dev d parent 1: classid 1:1 htb rate 1mbit",
        ] {
            tree.apply(line).expect(line);
        }
        let edit = Edit::new("delay", "1ms").expect("a value");
        let error = edit.apply(&tree, 1_514, false).expect_err("classes").to_string();
        assert!(error.contains("no netem"), "{error}");
        let edit = Edit::new("rate", "1mbit").expect("a value");
        edit.apply(&series(&[PLAIN]).expect("a qdisc"), 1_514, true).expect_err("a trace");
    }
}
