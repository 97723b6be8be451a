//! Generates trees of qdiscs and classes, and the `tc` lines that change them during the run.

use super::line;
use crate::draw::Draw;
use crate::kinds::{self, Below, KINDS, Kind, Place, Site};
use crate::plan::{Line, Opt, Plan};

/// The largest number of qdiscs in a tree, and of classes in a qdisc.
const QDISCS_MAX: u16 = 12;
const CLASSES_MAX: u16 = 20;
/// The largest number of classes above a leaf class. For `htb`, Linux allows eight levels.
const DEPTH_MAX: u32 = 7;
/// Length, in nanoseconds, of the pause that begins with each change. No packet arrives in the
/// pause, so that the result does not depend on the exact instant of the change.
const QUIET_NS: u64 = 250_000;
/// Time, in nanoseconds, within which the machine on which the kernel runs has completed a change.
const BUSY_NS: u64 = 70_000;

/// A tree of qdiscs and classes under construction.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    draw: &'a mut Draw,
    rate: u64,
    strict: bool,
    pub(super) lines: Vec<Line>,
    /// Major and minor numbers of the classes that packets may select by their priority.
    pub(super) classes: Vec<(u16, u16)>,
    /// Major numbers of the qdiscs that can have filters, each with the minor numbers of its
    /// classes.
    pub(super) majors: Vec<(u16, Vec<u16>)>,
    next: u16,
}

impl<'a> Tree<'a> {
    pub(super) fn new(draw: &'a mut Draw, rate: u64, strict: bool) -> Self {
        let (lines, classes, majors) = Default::default();
        Self { draw, rate, strict, lines, classes, majors, next: 1 }
    }

    pub(super) fn root(&mut self, kind: &'static Kind) {
        self.qdisc("root", kind, self.rate, 0);
    }

    fn site(&mut self, rate: u64, root: bool) -> Site<'_> {
        let (draw, strict) = (&mut *self.draw, self.strict);
        Site { draw, rate, root, changing: false, strict, bands: 3, options: Vec::new() }
    }

    /// Adds a qdisc at `place`, and the classes and qdiscs below it.
    fn qdisc(&mut self, place: &str, kind: &'static Kind, rate: u64, depth: u32) {
        let major = self.next;
        self.next += 1;
        let mut site = self.site(rate, place == "root");
        (kind.options)(&mut site);
        let (bands, options) = (site.bands, site.options);
        let place = format!("{place} handle {major:x}:");
        self.lines.push(line("qdisc", "add", &place, kind, options));
        match kind.below {
            Below::Nothing => {}
            // The only class of a qdisc with a single child is class 1.
            Below::One => self.child(kind, major, 1, rate, depth, 50),
            Below::Bands => {
                let bands: Vec<u16> = (1..=bands).collect();
                self.classes.extend(bands.iter().map(|minor| (major, *minor)));
                self.majors.push((major, bands.clone()));
                let share = rate / (bands.len() as u64).max(1);
                for minor in bands {
                    self.child(kind, major, minor, share, depth, 40);
                }
            }
            Below::Classes => self.classes_of(kind, major, rate, depth),
        }
    }

    /// With a probability of `percent`, adds a qdisc below a class.
    fn child(&mut self, above: &Kind, major: u16, minor: u16, rate: u64, depth: u32, percent: u64) {
        if depth >= 2 || self.next > QDISCS_MAX || !self.draw.likely(percent) {
            return;
        }
        // Linux's schedulers other than these four stop if a child that holds packets returns none
        // from a dequeue.
        let patient = ["prio", "tbf", "netem", "htb"].contains(&above.id);
        let fits = |kind: &&Kind| match kind.place {
            Place::Any => true,
            Place::Holds => patient && kind.id != "netem" || above.id == "prio",
            Place::Root => false,
        };
        let fitting: Vec<&'static Kind> = KINDS.iter().filter(fits).collect();
        let leaves: Vec<&'static Kind> =
            fitting.iter().copied().filter(|kind| kind.below == Below::Nothing).collect();
        let kind =
            if self.draw.likely(70) { self.draw.pick(&leaves) } else { self.draw.pick(&fitting) };
        self.qdisc(&format!("parent {major:x}:{minor:x}"), kind, rate, depth + 1);
    }

    /// Adds the classes of a qdisc: a random tree of classes if the kind allows nesting, else a
    /// flat list.
    fn classes_of(&mut self, kind: &'static Kind, major: u16, rate: u64, depth: u32) {
        let nested = ["htb", "hfsc"].contains(&kind.id);
        let mut minors = Vec::new();
        let mut next = 0x10;
        if nested && self.draw.likely(70) {
            let deep = self.draw.between(1, u64::from(DEPTH_MAX));
            let top = (0, rate, u32::try_from(deep).unwrap_or(1));
            self.inner(kind, major, top, &mut next, &mut minors);
        } else {
            for _ in 0..self.draw.between(1, 5) {
                let rate = self.draw.between(rate / 10, rate / 2);
                self.class(kind, major, (0, next), rate, true);
                minors.push(next);
                next += 1;
            }
        }
        self.classes.extend(minors.iter().map(|minor| (major, *minor)));
        self.majors.push((major, minors.clone()));
        let share = rate / (minors.len() as u64).max(1);
        for minor in minors {
            self.child(kind, major, minor, share, depth, 40);
        }
    }

    /// Adds a class and up to `levels` levels of classes below it. Appends the minor numbers of the
    /// leaf classes to `minors`.
    fn inner(
        &mut self,
        kind: &'static Kind,
        major: u16,
        (parent, rate, levels): (u16, u64, u32),
        next: &mut u16,
        minors: &mut Vec<u16>,
    ) {
        let id = *next;
        *next += 1;
        let leaf = levels == 0 || *next >= 0x10 + CLASSES_MAX;
        self.class(kind, major, (parent, id), rate, leaf);
        if leaf {
            minors.push(id);
            return;
        }
        let count = if levels > 3 { self.draw.between(1, 2) } else { self.draw.between(1, 4) };
        for at in 0..count {
            let part = self.draw.between(rate / (2 * count), rate / count);
            // The first child of each class goes down all levels, so that the tree gets the
            // intended depth. Other children end at any level.
            let down = if at == 0 {
                u64::from(levels - 1)
            } else {
                self.draw.between(0, u64::from(levels - 1))
            };
            let below = (id, part, u32::try_from(down).unwrap_or(0));
            self.inner(kind, major, below, next, minors);
        }
    }

    fn class(
        &mut self,
        kind: &'static Kind,
        major: u16,
        (parent, minor): (u16, u16),
        rate: u64,
        leaf: bool,
    ) {
        let mut site = self.site(rate, false);
        class_options(kind.id, &mut site, leaf);
        let options = site.options;
        let parent = if parent == 0 { String::new() } else { format!("{parent:x}") };
        let place = format!("parent {major:x}:{parent} classid {major:x}:{minor:x}");
        self.lines.push(line("class", "add", &place, kind, options));
    }
}

fn class_options(kind: &str, site: &mut Site<'_>, leaf: bool) {
    match kind {
        "htb" => kinds::htb_class(site),
        "hfsc" => kinds::hfsc_class(site, leaf),
        "drr" => kinds::drr_class(site),
        _ => kinds::qfq_class(site),
    }
}

/// Adds up to three `tc` lines that change qdiscs and classes of the plan during the run.
pub(super) fn changes(plan: &mut Plan, draw: &mut Draw, rate: u64) {
    let Some(end_ns) = plan.rows.last().map(|row| row.time_ns) else { return };
    let plug = plan.lines.iter().any(|line| line.kind == "plug");
    let count = draw.between(1, 3);
    let mut from_ns = end_ns / 10;
    for at in 1..=count {
        // Each change comes some random time after the previous one.
        from_ns = draw.between(from_ns, (end_ns * 9 / 10).max(from_ns));
        let Some(time_ns) = quiet(plan, from_ns) else { break };
        let last = at == count;
        let line =
            if plug && last { Some(release(&plan.lines[0])) } else { change(plan, draw, rate) };
        let Some(line) = line else { break };
        plan.rows.retain(|row| !(time_ns..time_ns + QUIET_NS).contains(&row.time_ns));
        plan.changes.push((time_ns, line));
        from_ns = time_ns + 2 * QUIET_NS;
    }
}

/// Returns the next time after `from_ns` that is followed by a pause in which our simulation sends
/// no packet. On the kernel's machine, a packet that is due while a change is made leaves late. So
/// a change at a time without such a pause would disturb the comparison.
fn quiet(plan: &Plan, from_ns: u64) -> Option<u64> {
    let departures = plan.departures()?;
    let end_ns = plan.rows.last()?.time_ns;
    let mut at_ns = from_ns;
    for departure in departures.into_iter().filter(|at| *at >= from_ns) {
        if departure > at_ns + BUSY_NS {
            break;
        }
        at_ns = departure + 1_000;
    }
    (at_ns + BUSY_NS < end_ns).then_some(at_ns)
}

/// Returns a `tc` line that makes a `plug` release all packets that it holds and all packets that
/// arrive later.
fn release(line: &Line) -> Line {
    let options =
        vec![Opt { text: "release_indefinite".into(), needed: true, compared: line.compared }];
    Line { head: line.head.replace(" add ", " change "), options, ..line.clone() }
}

/// Returns a line that gives new options to a random qdisc of the tree, or to a random class of
/// `htb`, `drr` or `qfq`. Returns `None` if nothing in the tree may change.
fn change(plan: &Plan, draw: &mut Draw, rate: u64) -> Option<Line> {
    let may = |line: &&Line| match line.head.split_whitespace().nth(1) {
        Some("qdisc") => kinds::kind(line.kind).is_some_and(|kind| kind.changes),
        Some("class") => ["htb", "drr", "qfq"].contains(&line.kind),
        _ => false,
    };
    let lines: Vec<&Line> = plan.lines.iter().filter(may).collect();
    if lines.is_empty() {
        return None;
    }
    let line = draw.pick(&lines);
    let bands = line.options.iter().find_map(|option| option.text.strip_prefix("bands "));
    let bands = bands.and_then(|bands| bands.parse().ok()).unwrap_or(3);
    let root = line.head.contains(" root ");
    let mut site =
        Site { draw, rate, root, changing: true, strict: true, bands, options: Vec::new() };
    if line.head.starts_with("tc class") {
        site.rate = site.draw.spread(rate / 10, rate);
        class_options(line.kind, &mut site, true);
    } else {
        (kinds::kind(line.kind)?.options)(&mut site);
    }
    let options = site.options;
    Some(Line { head: line.head.replace(" add ", " change "), options, ..line.clone() })
}
