//! The names of the fields that processors waited for, by the places in the source that accessed
//! them. The text of the source names the field: `self.word.0.load(…)` in `impl Intake` is an
//! access to `Intake.word`.

use std::panic::Location;

use onramp_machine::{HotSite, Report, Transfers};

/// The sources that the simulated machine runs. Each begins with a line that is the character 1 and
/// its path.
const SOURCES: &str = include_str!(concat!(env!("OUT_DIR"), "/sources.txt"));

/// What the accesses to one field cost, in all places of one file together.
#[derive(Clone, Debug)]
pub struct HotField {
    /// The field, as the source names it: `Intake.word`, or `pkt.cookie` for a field of a value
    /// whose type the place does not name. An access by another function has that function's name,
    /// such as `Node::next()`.
    pub field: String,
    /// The file and line of the place that waited longest.
    pub place: String,
    /// Number of accesses.
    pub accesses: u64,
    /// Number of accesses for which a line had to be transferred.
    pub transfers: Transfers,
    /// Number of transfers that waited for other transfers of the same line.
    pub contended: u64,
    /// How long they waited, picoseconds.
    pub waited: u64,
    /// How long processors waited for lines that were not in the first-level cache, picoseconds.
    pub stalled: u64,
}

/// Returns the fields that the machine accessed; the one that processors waited longest for comes
/// first. Fields whose lines were never transferred are left out.
#[must_use]
pub fn fields(report: &Report) -> Vec<HotField> {
    let mut all: Vec<HotField> = Vec::new();
    // The place that waited longest comes first, and stands for its field.
    for site in &report.sites {
        let (field, place) = (field(site.location), place(site.location));
        // A name that begins with a type means the same in all files.
        let is_typed = field.starts_with(char::is_uppercase);
        let file = |place: &str| place.split(':').next().map(str::to_owned);
        let same = |other: &&mut HotField| {
            other.field == field && (is_typed || file(&other.place) == file(&place))
        };
        match all.iter_mut().find(same) {
            Some(known) => known.add(site),
            None => {
                let mut new = HotField::new(field, place);
                new.add(site);
                all.push(new);
            }
        }
    }
    all.retain(|field| field.transfers.all() > 0);
    all.sort_by_key(|field| std::cmp::Reverse((field.stalled, field.transfers.all())));
    all
}

impl HotField {
    fn new(field: String, place: String) -> Self {
        let transfers = Transfers::default();
        Self { field, place, accesses: 0, transfers, contended: 0, waited: 0, stalled: 0 }
    }

    fn add(&mut self, site: &HotSite) {
        self.transfers.add(&site.transfers);
        self.accesses += site.accesses;
        self.contended += site.contended;
        self.waited += site.waited;
        self.stalled += site.stalled;
    }
}

/// Returns a place in the source as crate, file and line: `queue/intake.rs:187`.
#[must_use]
pub fn place(location: &Location<'_>) -> String {
    let file = location.file();
    let short = file.rsplit_once("twins/").map(|(_, place)| place.replacen("/src", "", 1));
    format!("{}:{}", short.as_deref().unwrap_or(file), location.line())
}

/// Returns the name of the field that this place accesses; the place itself if its source is not
/// known.
fn field(location: &Location<'_>) -> String {
    let file = location.file();
    let begin = ["twins/", "crates/"].iter().find_map(|folder| file.rfind(folder)).unwrap_or(0);
    let text = source(&file[begin..]);
    let name = text.and_then(|text| name(text, location.line(), location.column()));
    name.unwrap_or_else(|| place(location))
}

fn source(file: &str) -> Option<&'static str> {
    let (_, text) = SOURCES.split_once(&format!("\u{1}{file}\n"))?;
    text.split('\u{1}').next()
}

/// Returns the name of what the expression at this line and column, both counted from 1, accesses.
fn name(text: &str, line: u32, column: u32) -> Option<String> {
    let line = usize::try_from(line).ok()?.checked_sub(1)?;
    let column = usize::try_from(column).ok()?.checked_sub(1)?;
    let begin: usize = text.split_inclusive('\n').take(line).map(str::len).sum();
    let (before, after) = text.split_at_checked(begin + column)?;
    let after = after.trim_start_matches(['*', '&', '(']).trim_start_matches("mut ");
    let after = after.trim_start_matches(['*', '(']);
    let path = after.split(|c: char| !(is_word(c) || c == ':')).next().unwrap_or_default();
    let rest = &after[path.len()..];
    let receiver = before.trim_end().strip_suffix('.').filter(|it| !it.ends_with('.'));
    if let Some(receiver) = receiver {
        let chain = Chain::ending(receiver);
        let name = chain.name(receiver)?;
        return Some(if is_access(path) { name } else { format!("{name}.{path}()") });
    }
    if let Some(arguments) = rest.strip_prefix('(') {
        let of_type = path.rsplit_once("::").filter(|(owner, _)| {
            owner.rsplit("::").next().is_some_and(|name| name.starts_with(char::is_uppercase))
        });
        if of_type.is_some() {
            return Some(format!("{path}()"));
        }
        let end = arguments.find([',', ')']).unwrap_or(arguments.len());
        let argument = &arguments[..end];
        let argument = ["&raw const ", "&raw mut ", "&mut ", "&"]
            .iter()
            .find_map(|sign| argument.strip_prefix(sign))
            .unwrap_or(argument);
        return Chain::ending(argument).name(before);
    }
    // An access through a pointer such as a packet: the name of the field or method follows.
    let rest = rest.strip_prefix('.').unwrap_or_default();
    let field = rest.split(|c| !is_word(c)).next().unwrap_or_default();
    let call = if rest[field.len()..].starts_with('(') { "()" } else { "" };
    match (path, field) {
        ("", _) => None,
        (_, "") => Some(path.to_owned()),
        _ => Some(format!("{path}.{field}{call}")),
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether a method with this name accesses its receiver alone, as the methods of atomic types,
/// cells and locks do.
fn is_access(method: &str) -> bool {
    let exact = ["load", "store", "swap", "swap_part", "flip_by_store", "with", "with_mut"];
    exact.contains(&method)
        || ["compare_exchange", "fetch_", "lock", "try_lock"].iter().any(|m| method.starts_with(m))
}

/// The parts of an expression such as `self.home().word.0`, in order. A call has brackets.
#[derive(Debug, PartialEq, Eq)]
struct Chain(Vec<String>);

impl Chain {
    /// Reads the expression that ends where `text` ends.
    fn ending(text: &str) -> Self {
        let (mut rest, mut parts) = (text.trim_end(), Vec::new());
        loop {
            rest = rest.trim_end().trim_end_matches('?');
            let mut is_call = false;
            while rest.ends_with([')', ']']) {
                is_call |= rest.ends_with(')');
                rest = opened(rest);
            }
            let begin = rest.rfind(|c| !is_word(c)).map_or(0, |at| at + 1);
            let word = &rest[begin..];
            if word.is_empty() {
                break;
            }
            parts.push(if is_call { format!("{word}()") } else { word.to_owned() });
            match rest[..begin].trim_end().strip_suffix('.') {
                Some(more) => rest = more,
                None => break,
            }
        }
        parts.reverse();
        Self(parts)
    }

    /// Names the last field of the expression and what has that field: `Intake.word`. `before` is
    /// the source up to the expression; its last `impl` tells the type of `self`.
    fn name(&self, before: &str) -> Option<String> {
        let is_number = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
        let mut parts: Vec<&str> = self.0.iter().map(String::as_str).collect();
        while parts.last().is_some_and(|part| is_number(part)) {
            parts.pop();
        }
        let plain = |part: &str| part.trim_end_matches("()").to_owned();
        let whose = |part: &str| match part {
            "self" | "this" => implemented(before).unwrap_or("self").to_owned(),
            part => plain(part),
        };
        match parts[..] {
            [] => None,
            [only] => Some(meant(before, only).unwrap_or_else(|| whose(only))),
            [.., owner, last] => {
                let last = plain(last);
                Some(format!("{}.{last}", typed(whose(owner), &last)))
            }
        }
    }
}

/// Returns what a variable stands for that is a short name of a field: `word`, if the source has
/// `let word = &self.intake.word.0;`.
fn meant(before: &str, variable: &str) -> Option<String> {
    let (before, rest) = before.rsplit_once(&format!("let {variable} = &"))?;
    let (field, _) = rest.split_once(';')?;
    let is_path = !field.contains(|c| !(is_word(c) || matches!(c, '.' | '(' | ')' | '[' | ']')));
    if is_path { Chain::ending(field).name(before) } else { None }
}

/// Returns the name of the type for a variable that has the name of a type with this field:
/// `Intake` for `intake`, if the sources have `struct Intake` with such a field. Returns another
/// name as it is.
fn typed(owner: String, field: &str) -> String {
    let mut letters = owner.chars();
    let Some(first) = letters.next().filter(char::is_ascii_lowercase) else { return owner };
    let name = format!("{}{}", first.to_ascii_uppercase(), letters.as_str());
    let has_field = |rest: &str| {
        let body = rest.split("\n}").next().filter(|body| !body.starts_with(is_word));
        body.is_some_and(|body| body.contains(&format!(" {field}:")))
    };
    let is_type = SOURCES.split(&format!("struct {name}")).skip(1).any(has_field);
    if is_type { name } else { owner }
}

/// Returns the part of `text`, which ends with a closing bracket, before the bracket that it
/// closes.
fn opened(text: &str) -> &str {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices().rev() {
        match c {
            ')' | ']' => depth += 1,
            '(' | '[' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return &text[..at];
        }
    }
    ""
}

/// Returns the name of the type to which the last `impl` in `before` belongs.
fn implemented(before: &str) -> Option<&str> {
    let (_, rest) = before.rsplit_once("\nimpl")?;
    let header = rest.split('{').next()?.split("where").next()?;
    let of = header.rsplit(" for ").next()?.trim_start();
    // The parameters of the `impl` itself stand in front.
    let of = if of.starts_with('<') { &of[of.find("> ")? + 2..] } else { of };
    let path = of.split(['<', ' ', '\n']).next()?;
    let name = path.rsplit("::").next()?;
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the name of what happens at the sign `@` in a text.
    fn named(text: &str) -> Option<String> {
        let (before, after) = text.split_once('@').expect("a place");
        let line = u32::try_from(before.matches('\n').count()).unwrap() + 1;
        let column =
            u32::try_from(before.len() - before.rfind('\n').map_or(0, |at| at + 1)).unwrap();
        name(&format!("{before}{after}"), line, column + 1)
    }

    #[test]
    fn the_source_names_the_field() {
        for (text, want) in [
            ("\nimpl Intake {\n  self.word.0.@load(Relaxed)", "Intake.word"),
            ("\nimpl<'a, T> Drop for Held<'a, T> {\n  self.0.0.@store(1)", "Held"),
            ("\nimpl Marks {\n self.0[place / 64].@fetch_or(1)", "Marks"),
            (
                "\nimpl Owner<'_> {\n self.home()\n   .word\n   .0\n   .@compare_exchange(",
                "Home.word",
            ),
            ("impl X {\n shared.word.0.@load(", "Shared.word"),
            ("let w = word.@swap(1)", "word"),
            ("let word = &self.intake.word.0;\n word.@load(", "Intake.word"),
            ("let word = &some + more;\n word.@load(", "word"),
            ("\nimpl Home {\n this.word.0.@load(", "Home.word"),
            ("place(before).next.@store(number)", "Place.next"),
            ("place(before).@store(number)", "place"),
            ("\nimpl List {\n self.inbox.@front()", "List.inbox.front()"),
            ("unsafe { @Node::next(node) }", "Node::next()"),
            ("@changes(&raw const line.0, 8)", "line"),
            ("@onramp_queue::prefetch_write(&mine.next)", "mine.next"),
            ("\nimpl Queued {\n @store_part(&self.0, PENDING)", "Queued"),
            ("if @pkt.txtime_ns != 0", "pkt.txtime_ns"),
            ("let meta = &mut @**packet;", "packet"),
            ("let ends = @&mut *guard;", "guard"),
            ("@root.set_now(now)", "root.set_now()"),
        ] {
            assert_eq!(named(text).as_deref(), Some(want), "{text}");
        }
        assert_eq!(named("let x = @;"), None);
        assert_eq!(name("one line", 7, 1), None);
        assert_eq!(name("one line", 1, 70), None);
    }

    #[test]
    fn a_place_without_a_source_keeps_its_name() {
        let here = Location::caller();
        assert_eq!(field(here), place(here), "the sources have no tests");
    }

    /// Each place that a simulated load waits at has a source, so its field has a name.
    #[test]
    fn all_places_of_a_load_have_names() {
        let scenario = "name = 'small'\ntitle = 'small'\nmachine = 'desktop-amd'\nthreads = 6\n\
                        placement = 'pinned'\nports = 2\nqdisc = 'fq'\npayload = 120\n\
                        warm_up_us = 100\nmeasure_us = 200\n";
        let scenario = crate::Scenario::read(scenario).unwrap();
        let link = scenario.draw(0).unwrap().simulate().unwrap().report;
        let design = scenario.simulate_design("llist-queued", 0).unwrap().report;
        for (report, want) in [(link, "Intake.word"), (design, "Queued")] {
            let hot = fields(&report);
            let unnamed: Vec<_> = hot.iter().filter(|hot| hot.field == hot.place).collect();
            assert!(unnamed.is_empty(), "{unnamed:?}");
            assert!(hot.iter().any(|hot| hot.field == want), "{want}: {hot:?}");
            let all = |count: fn(&HotSite) -> u64| report.sites.iter().map(count).sum::<u64>();
            assert_eq!(
                hot.iter().map(|hot| hot.transfers.all()).sum::<u64>(),
                all(|site| site.transfers.all())
            );
            assert!(hot.is_sorted_by_key(|hot| std::cmp::Reverse(hot.stalled)));
        }
    }
}
