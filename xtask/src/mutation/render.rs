//! Writes a source file in which every mutant is a branch that is chosen when the program runs.
//!
//! Places may be nested. In the branch with the original code of a place, the places nested in it
//! are rewritten too. In the branches of its mutants, they are not, because only one mutant is
//! active at a time. So the rewritten text grows linearly with the depth of nesting, not
//! exponentially.

use std::ops::Range;

use super::find::{Shape, Site};

/// A place with the number of its first mutant. The place's other mutants have the numbers that
/// follow.
#[derive(Clone, Debug)]
pub(super) struct Numbered {
    pub site: Site,
    pub base: u32,
    /// For each mutant of the place, whether it compiles.
    pub viable: Vec<bool>,
}

impl Numbered {
    fn count(&self) -> u32 {
        u32::try_from(self.viable.len()).expect("a place has few mutants")
    }

    /// Returns the numbers of all mutants of this place.
    pub(super) fn ids(&self) -> Range<u32> {
        self.base..self.base + self.count()
    }
}

/// A range of bytes in the rewritten text. If the compiler reports an error in that range,
/// `mutants` are taken not to compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub bytes: Range<usize>,
    pub mutants: Range<u32>,
}

/// The rewritten text, and the regions by which a compiler error is traced to mutants.
#[derive(Debug, Default)]
pub(super) struct Rendered {
    pub text: String,
    pub regions: Vec<Region>,
}

impl Rendered {
    /// Returns the mutants of the smallest region that contains all of `bytes`.
    pub(super) fn guilty(&self, bytes: &Range<usize>) -> Option<Range<u32>> {
        let holds =
            |at: &Range<usize>| at.start <= bytes.start && bytes.end <= at.end && !at.is_empty();
        let around = self.regions.iter().filter(|region| holds(&region.bytes));
        around.min_by_key(|region| region.bytes.len()).map(|region| region.mutants.clone())
    }
}

/// Rewrites `source`. `sites` are the places, sorted, outer places first. `functions` are the
/// ranges of the bodies of functions.
pub(super) fn render(source: &str, sites: &[Numbered], functions: &[Range<usize>]) -> Rendered {
    let mut writer = Writer { source, out: Rendered::default(), moves: Vec::new() };
    let alive: Vec<&Numbered> =
        sites.iter().filter(|site| site.viable.iter().any(|&viable| viable)).collect();
    writer.span(0..source.len(), &alive);
    let Writer { mut out, moves, .. } = writer;
    // Make a region of each function's body: if a compiler error is in the body but outside of
    // every place, all mutants of the function are taken not to compile.
    for body in functions {
        let within =
            |site: &&Numbered| body.start < site.site.range.start && site.site.range.end < body.end;
        let mut inside = sites.iter().filter(within);
        let Some(first) = inside.next() else { continue };
        let mutants = first.base..inside.next_back().unwrap_or(first).ids().end;
        let bytes = moved(&moves, body.start)..moved(&moves, body.end);
        out.regions.push(Region { bytes, mutants });
    }
    out
}

/// Converts a position in the source to the position in the rewritten text. `moves` has, for each
/// copied piece of the source, its old and its new start, in order.
fn moved(moves: &[(usize, usize)], at: usize) -> usize {
    let next = moves.partition_point(|(old, _)| *old <= at);
    let (old, new) = next.checked_sub(1).map_or((0, 0), |index| moves[index]);
    new + (at - old)
}

struct Writer<'a> {
    source: &'a str,
    out: Rendered,
    /// For each piece of the original that was copied: its start in the source and in the rewritten
    /// text.
    moves: Vec<(usize, usize)>,
}

impl Writer<'_> {
    fn copy(&mut self, range: Range<usize>) {
        self.moves.push((range.start, self.out.text.len()));
        self.out.text += &self.source[range];
    }

    /// Writes the original text of `range`, but rewrites the places `sites`, which lie in the
    /// range.
    fn span(&mut self, range: Range<usize>, sites: &[&Numbered]) {
        let mut at = range.start;
        let mut rest = sites;
        while let Some((first, behind)) = rest.split_first() {
            let whole = first.site.range.clone();
            let within = behind
                .iter()
                .take_while(|site| {
                    site.site.range.start < whole.end && site.site.range.end <= whole.end
                })
                .count();
            let (within, behind) = behind.split_at(within);
            self.copy(at..whole.start);
            self.site(first, within);
            at = whole.end;
            rest = behind;
        }
        self.copy(at..range.end);
    }

    fn site(&mut self, numbered: &Numbered, within: &[&Numbered]) {
        let start = self.out.text.len();
        let call = format!("::mutant_switch::at({}, {})", numbered.base, numbered.count());
        let range = numbered.site.range.clone();
        match numbered.site.shape {
            Shape::Arm => self.out.text += &format!(" if {call} == 0"),
            Shape::Body => {
                self.out.text += &format!(" match {call} {{ 0 => {{}}");
                self.mutants(numbered);
                self.out.text += " }";
            }
            Shape::Statement => {
                self.out.text += &format!("match {call} {{ 0 => {{ ");
                self.span(range, within);
                self.out.text += " } _ => {} }";
            }
            Shape::Expression => {
                self.out.text += &format!("(match {call} {{ 0 => ");
                self.span(range, within);
                self.mutants(numbered);
                self.out.text += " })";
            }
        }
        let bytes = start..self.out.text.len();
        self.out.regions.push(Region { bytes, mutants: numbered.ids() });
    }

    /// Writes a match arm for each mutant of the place that compiles. The last arm has the pattern
    /// `_`, so that the `match` is exhaustive.
    fn mutants(&mut self, numbered: &Numbered) {
        let viable = |&(place, _): &(usize, _)| numbered.viable[place];
        let mut changes = numbered.site.changes.iter().enumerate().filter(viable).peekable();
        while let Some((place, change)) = changes.next() {
            self.out.text += ", ";
            let start = self.out.text.len();
            match changes.peek() {
                Some(_) => self.out.text += &format!("{} => ", place + 1),
                None => self.out.text += "_ => ",
            }
            self.out.text += &change.text;
            let id = numbered.base + u32::try_from(place).expect("a place has few mutants");
            let bytes = start..self.out.text.len();
            self.out.regions.push(Region { bytes, mutants: id..id + 1 });
        }
    }
}
