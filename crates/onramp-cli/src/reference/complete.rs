//! Finds the words that may come next on a command line of `tc` or `ip`: words from the tables, and
//! names that the daemon knows.

use onramp_core::cmd::is_short_for;
use onramp_core::filter::reference::{ACTIONS, COMMON, Entry, FILTERS, Opt};
use onramp_core::params::{Param, Unit};
use onramp_core::qdisc::Kind;
use onramp_host::reference::{Object, PROGRAMS, Program, Takes, Then, Verb, Word, device_types};
use serde_json::Value;

use super::{class_params, kinds};

/// A word that may come next, and a short text about what it means.
pub(crate) type Candidate = (String, String);

/// A function that sends a command to the daemon and returns the daemon's output; `None` if the
/// daemon does not answer or the command fails.
pub(crate) type Ask<'a> = &'a mut dyn FnMut(&[&str]) -> Option<String>;

/// Returns the words with which the last of `words`, which the user has begun to type, may be
/// completed.
pub(crate) fn candidates(program: &str, words: &[&str], ask: Ask<'_>) -> Vec<Candidate> {
    let Some(program) = PROGRAMS.iter().find(|it| it.name == program) else { return Vec::new() };
    let (begun, before) = words.split_last().map_or(("", words), |(last, rest)| (*last, rest));
    let mut found = Line { program, ask, device: device_in(before) }.next(before);
    found.retain(|(word, _)| word.starts_with(begun));
    found.sort();
    found.dedup_by(|a, b| a.0 == b.0);
    found
}

/// Returns the name of the device in a command line: the word after `dev`.
fn device_in(words: &[&str]) -> Option<String> {
    let place = words.iter().position(|word| *word == "dev")?;
    words.get(place + 1).map(|word| (*word).to_owned())
}

fn plain(word: &str, help: &str) -> Candidate {
    (word.to_owned(), help.to_owned())
}

fn of_words<'w>(words: impl IntoIterator<Item = &'w Word>) -> Vec<Candidate> {
    words.into_iter().map(|word| plain(word.name, word.help)).collect()
}

struct Line<'a> {
    program: &'static Program,
    ask: Ask<'a>,
    device: Option<String>,
}

impl Line<'_> {
    fn next(&mut self, mut words: &[&str]) -> Vec<Candidate> {
        let switches = self.program.switches;
        while let Some((switch, rest)) = words.split_first().filter(|(it, _)| it.starts_with('-')) {
            let takes = switches.iter().find(|it| it.name == *switch).map(|it| it.takes);
            match (takes, rest) {
                (Some(Takes::Value(_)), []) => return Vec::new(),
                (Some(Takes::Value(_)), [_, rest @ ..]) => words = rest,
                _ => words = rest,
            }
        }
        let Some((object, words)) = words.split_first() else {
            let objects = self.program.objects.iter().map(|it| plain(it.name, it.about));
            return objects.chain(of_words(switches)).collect();
        };
        let named = |it: &&Object| is_short_for(object, it.name);
        let Some(object) = self.program.objects.iter().find(named) else { return Vec::new() };
        let Some((verb, words)) = words.split_first() else {
            return object.verbs.iter().map(|it| plain(it.name, it.about)).collect();
        };
        let list = |it: &&Verb| it.name == "show" && matches!(*verb, "list" | "ls" | "lst");
        let named = |it: &&Verb| is_short_for(verb, it.name) || list(it);
        object.verbs.iter().find(named).map_or_else(Vec::new, |verb| self.of_verb(verb, words))
    }

    /// Returns the words that may come next after a verb and the `words` that follow it.
    fn of_verb(&mut self, verb: &Verb, words: &[&str]) -> Vec<Candidate> {
        let mut left: Vec<&Word> = verb.words.iter().collect();
        let mut rest = words;
        while let Some((word, behind)) = rest.split_first() {
            let Some(place) = left.iter().position(|it| it.name == *word) else {
                match verb.then {
                    Then::Qdisc | Then::Class | Then::Filter => {
                        return self.of_kind(verb.then, word, behind);
                    }
                    // A word that the verb does not know is the name of a device: the user may
                    // leave out `dev`.
                    Then::Type | Then::End => {
                        left.retain(|it| it.name != "dev");
                        rest = behind;
                        continue;
                    }
                }
            };
            let known = left.remove(place);
            rest = match (known.takes, behind) {
                (Takes::Nothing, _) => behind,
                (takes, []) => return self.values(takes),
                (Takes::Type, [kind, behind @ ..]) if verb.then == Then::Type => {
                    return of_type(verb, kind, behind);
                }
                (_, [_, behind @ ..]) => behind,
            };
        }
        let mut found = of_words(left.iter().copied());
        if verb.then == Then::End && left.iter().any(|it| it.name == "dev") && words.is_empty() {
            found.extend(self.values(Takes::Device));
        }
        found.extend(first_of(verb.then));
        found
    }

    fn of_kind(&mut self, then: Then, id: &str, words: &[&str]) -> Vec<Candidate> {
        if then == Then::Filter {
            let Some(entry) = FILTERS.iter().find(|it| it.id == id) else { return Vec::new() };
            return self.of_filter(entry, words);
        }
        let Some(kind) = kinds().into_iter().find(|it| it.id == id) else { return Vec::new() };
        let params = if then == Then::Class { class_params(kind) } else { Some(kind.params) };
        params.map_or_else(Vec::new, |params| options(params, words))
    }

    fn of_filter(&mut self, entry: &Entry, words: &[&str]) -> Vec<Candidate> {
        let common = if entry.id == "flow" { &COMMON[2..] } else { COMMON };
        let mut known: Vec<&Opt> = entry.options.iter().chain(common).collect();
        // After an action, options of the action or of the filter may come next.
        if let Some(place) = words.iter().rposition(|word| *word == "action") {
            let Some(id) = words.get(place + 1) else { return actions() };
            let acts = ACTIONS.iter().filter(|it| it.id == *id);
            known.extend(acts.flat_map(|it| it.options));
        }
        if let Some(last) = words.last() {
            if matches!(*last, "classid" | "flowid") {
                return self.values(Takes::Class);
            }
            if let Some(option) = known.iter().find(|it| it.key == *last && !it.operand.is_empty())
            {
                return option.words.iter().map(|word| plain(word, "")).collect();
            }
        }
        let first = |option: &&Opt| option.key.split(' ').next().unwrap_or_default().to_owned();
        known.iter().map(|option| (first(option), option.help.to_owned())).collect()
    }

    /// Returns the values that may follow a word. `takes` says which sort of value the word takes.
    fn values(&mut self, takes: Takes) -> Vec<Candidate> {
        match takes {
            Takes::Nothing | Takes::Value(_) => Vec::new(),
            Takes::OneOf(words) => words.iter().map(|word| plain(word, "")).collect(),
            Takes::Type => device_types().iter().map(|it| plain(it.name, it.help)).collect(),
            Takes::Device => {
                let devices = self.listed(&["ip", "-j", "link", "show"]);
                devices.iter().filter_map(|it| named(it, "ifname", "link_type")).collect()
            }
            Takes::Handle => self.names("qdisc", "kind"),
            Takes::Class => {
                let mut names = self.names("qdisc", "kind");
                names.extend(self.names("class", "class"));
                names
            }
        }
    }

    /// Returns the handles of the qdiscs or classes on the device that the command line names.
    fn names(&mut self, object: &str, kind: &str) -> Vec<Candidate> {
        let Some(device) = self.device.clone() else { return Vec::new() };
        let listed = self.listed(&["tc", "-j", object, "show", "dev", &device]);
        listed.iter().filter_map(|it| named(it, "handle", kind)).collect()
    }

    fn listed(&mut self, words: &[&str]) -> Vec<Value> {
        let text = (self.ask)(words).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }
}

/// Returns the name of one entry of a listing; the entry's kind serves as the meaning of the word.
fn named(entry: &Value, name: &str, kind: &str) -> Option<Candidate> {
    let kind = entry[kind].as_str().unwrap_or_default();
    entry[name].as_str().map(|name| plain(name, kind))
}

/// Returns the words that may come where the name of a kind or type is expected.
fn first_of(then: Then) -> Vec<Candidate> {
    match then {
        Then::Qdisc => kinds().iter().map(|kind| plain(kind.id, kind.about)).collect(),
        Then::Class => {
            let with_classes = |kind: &&&Kind| class_params(kind).is_some();
            kinds().iter().filter(with_classes).map(|kind| plain(kind.id, kind.about)).collect()
        }
        Then::Filter => FILTERS.iter().map(|entry| plain(entry.id, entry.about)).collect(),
        Then::End | Then::Type => Vec::new(),
    }
}

fn actions() -> Vec<Candidate> {
    let first = |id: &'static str| id.split(' ').next().unwrap_or_default();
    ACTIONS.iter().map(|entry| plain(first(entry.id), entry.about)).collect()
}

/// Returns those options of a device type that the command line does not have yet.
fn of_type(verb: &Verb, id: &str, words: &[&str]) -> Vec<Candidate> {
    let types = device_types();
    let Some(kind) = types.iter().find(|it| it.name == id) else { return Vec::new() };
    // After `peer`, the other end of a pair takes the same options as a device.
    if let Some(place) = words.iter().position(|word| *word == "peer") {
        let behind = &words[place + 1..];
        if let Some(Takes::Value(_)) = behind.last().and_then(|last| takes(verb, last)) {
            return Vec::new();
        }
        let other = |it: &&Word| !matches!(it.name, "dev" | "type") && !behind.contains(&it.name);
        let mut found = of_words(verb.words.iter().filter(other));
        if behind.is_empty() {
            found.push(plain("name", "name of the other end"));
        }
        return found;
    }
    if kind.options.iter().any(|option| Some(&option.key) == words.last()) {
        return Vec::new();
    }
    let left = kind.options.iter().filter(|option| !words.contains(&option.key));
    left.map(|option| plain(option.key, option.help)).collect()
}

fn takes(verb: &Verb, word: &str) -> Option<Takes> {
    if word == "name" {
        return Some(Takes::Value("NAME"));
    }
    verb.words.iter().find(|it| it.name == word).map(|it| it.takes)
}

/// Returns those options of a kind that may come next, after `words`.
fn options(params: &'static [Param], words: &[&str]) -> Vec<Candidate> {
    let param_of = |word: &str| {
        let is = |it: &&Param| it.names().contains(&word) || it.aliases.contains(&word);
        params.iter().find(is)
    };
    let last = words.iter().rposition(|word| param_of(word).is_some());
    let mut found = Vec::new();
    if let Some(place) = last
        && let Some(param) = param_of(words[place]).filter(|it| it.takes_value())
        && param.key == words[place]
    {
        let behind = param.words_behind();
        let more = &words[place + 1..];
        match more.last() {
            None => return behind.iter().map(|word| plain(word, "")).collect(),
            Some(word) if behind.contains(word) && param.unit == Unit::Curve => return Vec::new(),
            Some(_) if param.unit == Unit::Curve => {
                let left = behind.iter().filter(|word| !more.contains(word));
                found.extend(left.map(|word| plain(word, "")));
            }
            Some(_) => {}
        }
    }
    let given =
        |param: &&Param| param.names().iter().chain(param.aliases).any(|name| words.contains(name));
    for param in params.iter().filter(|param| !given(param)) {
        found.extend(param.names().iter().map(|name| plain(name, param.help)));
    }
    if words.is_empty() {
        found.push(plain("help", "show the options"));
    }
    found
}
