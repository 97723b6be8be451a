//! The listings of `tc qdisc show` and `tc class show`.
//!
//! Source: behaviour of iproute2 6.1, compared for trees of every kind. The JSON of classes is that
//! of later versions, since only those print classes as JSON.
//! Differs: qdiscs without a handle are listed before those with a handle, where Linux mixes some
//! of them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use crate::base::params::{Site, Value, Values};
use crate::base::show::Out;
use crate::base::units::Size;
use crate::base::{Counters, Extra, Handle};
use crate::sched::front::PLACE;
use crate::sched::{Backlog, ClassKind, ClassView, QdiscView};
use crate::tc::cmd::{INGRESS, ROOT, class_of};
use crate::tc::{Setup, Spec};

/// Which qdiscs or classes a listing contains. By default, it contains all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Lists only qdiscs or classes below this parent, which is given as the kernel's 32-bit
    /// number.
    pub parent: Option<u32>,
    /// Lists only the qdisc with this major number, or only the class with this 32-bit number.
    pub handle: Option<u32>,
    /// Whether to list the default qdiscs below classes too, which Linux hides.
    pub invisible: bool,
    /// Whether classes are listed by their minor numbers, as `tc` does if it is asked for those of
    /// one qdisc.
    pub minors: bool,
}

impl Query {
    /// Returns how a class and its parent are called in the listing.
    fn names(self, class: Handle, parent: Option<Handle>) -> (String, Option<String>) {
        let major = |class: Handle| if self.minors { 0 } else { class.major };
        let name = |class: Handle| class_name(Handle::new(major(class), class.minor));
        (name(class), parent.map(name))
    }
}

/// A device and its tree of qdiscs, which is to be listed.
#[derive(Debug)]
pub struct Listed<'a> {
    /// Name of the device, or `None` if the lines of the listing are not to contain it.
    pub device: Option<&'a str>,
    /// Description of the device's tree.
    pub setup: &'a Setup,
    /// Size of the device's largest packet in bytes, including the link header.
    pub mtu: u32,
    views: HashMap<Option<Handle>, &'a QdiscView>,
    classes: HashMap<Handle, &'a ClassView>,
}

/// The empty list of statistics, for a qdisc or class of which no counters are known.
static NOTHING: Extra = Extra(Vec::new());

/// A qdisc in the listing.
struct Line<'a> {
    spec: Cow<'a, Spec>,
    /// Major number of the qdisc, or zero if no command named the qdisc.
    major: u16,
    parent: u32,
    refcnt: u32,
    view: Option<&'a QdiscView>,
}

impl<'a> Listed<'a> {
    /// Prepares a listing of the tree that `setup` describes. `views` contains the counters of a
    /// running tree; a qdisc that is missing in `views` is listed with counters of zero.
    pub fn new(
        device: Option<&'a str>,
        setup: &'a Setup,
        mtu: u32,
        views: impl IntoIterator<Item = &'a QdiscView>,
    ) -> Self {
        let views: HashMap<_, _> = views.into_iter().map(|view| (view.parent, view)).collect();
        let classes = views.values().flat_map(|view| &view.classes);
        let classes = classes.map(|class| (class.handle, class)).collect();
        Self { device, setup, mtu, views, classes }
    }

    /// Returns what the defaults of options follow from.
    fn site(&self) -> Site {
        let txqueuelen = self.setup.facts().txqueuelen;
        Site { mtu: self.mtu, txqueuelen, ..Site::default() }
    }

    /// Prints the listing of `tc qdisc show`.
    pub fn qdiscs(&self, query: Query, out: &mut Out) {
        let lines = match query.handle.filter(|handle| *handle != 0) {
            Some(major) => self.lines_of(major).collect(),
            None => self.lines(query.invisible),
        };
        for line in lines {
            let parent = query.parent.is_none_or(|parent| parent == line.parent);
            if parent && query.handle.is_none_or(|handle| handle == u32::from(line.major)) {
                self.qdisc(&line, out);
            }
        }
    }

    fn lines(&self, invisible: bool) -> Vec<Line<'a>> {
        let setup = self.setup;
        let mut lines = Vec::new();
        if let Some(root) = self.root() {
            let (at_root, major) = (root.spec.kind().quirks.stands_at_root, root.major);
            lines.push(root);
            // As in Linux, qdiscs without a handle are listed in descending order of their parents'
            // numbers.
            lines.extend(self.made());
            if at_root {
                lines.extend(self.queues(major));
            }
        }
        if invisible {
            lines.extend(self.hidden());
        }
        lines.extend(setup.listed().filter_map(|major| self.named(major)));
        lines.extend(self.ingress());
        lines
    }

    /// Returns the lines of the qdiscs with this major number, which is not zero. An `ingress` and
    /// a qdisc that a command named may have the same number.
    fn lines_of(&self, major: u32) -> impl Iterator<Item = Line<'a>> {
        let named = u16::try_from(major).ok().and_then(|major| self.named(major));
        let lines = [self.root(), named, self.ingress()].into_iter().flatten();
        lines.filter(move |line| u32::from(line.major) == major)
    }

    fn root(&self) -> Option<Line<'a>> {
        let (setup, facts) = (self.setup, self.setup.facts());
        let (major, spec) = match setup.root() {
            Some(major) => (major, setup.spec(major)?),
            None if facts.dormant => return None,
            None => (0, facts.fallback.as_ref()?),
        };
        let refcnt = match spec.kind().quirks.stands_at_root {
            true => 1,
            false if major == 0 => 2,
            false => u32::from(facts.queues.max(1)) + 1,
        };
        let (spec, view) = (Cow::Borrowed(spec), self.view(None));
        Some(Line { spec, major, parent: ROOT, refcnt, view })
    }

    /// Returns the line of a qdisc that stands below another one, and that a command named.
    fn named(&self, major: u16) -> Option<Line<'a>> {
        let spec = Cow::Borrowed(self.setup.spec(major)?);
        Some(self.below(spec, major, self.setup.parent(major)?))
    }

    fn ingress(&self) -> Option<Line<'a>> {
        let spec = Cow::Borrowed(self.setup.ingress_spec()?);
        Some(Line { spec, major: 0xFFFF, parent: INGRESS, refcnt: 1, view: self.view(Some(PLACE)) })
    }

    fn below(&self, spec: Cow<'a, Spec>, major: u16, parent: Handle) -> Line<'a> {
        let typed = self.setup.typed_parent(major).unwrap_or(parent);
        let number = u32::from(typed.major) << 16 | u32::from(typed.minor);
        Line { spec, major, parent: number, refcnt: 1, view: self.view(Some(parent)) }
    }

    /// Returns the lines of the default qdiscs in front of transmit queues for which no command
    /// added a qdisc, beginning with the last queue.
    fn queues(&self, root: u16) -> impl Iterator<Item = Line<'a>> {
        let classes = (1..=self.setup.facts().queues).rev().map(move |n| Handle::new(root, n));
        let free = classes.filter(|class| self.setup.qdisc_below(*class).is_none());
        free.map(|class| self.below(Cow::Borrowed(Spec::queue_default()), 0, class))
    }

    /// Returns the lines of the child qdiscs that kinds with exactly one child (`cbs`) have created
    /// themselves. They are listed like qdiscs that a command added.
    fn made(&self) -> impl Iterator<Item = Line<'a>> {
        let setup = self.setup;
        let majors = self.last_first().into_iter();
        let makes = |spec: &Spec| {
            let quirks = &spec.kind().quirks;
            quirks.has_one_place && quirks.shown_below.is_some()
        };
        let makers = majors.filter(move |major| setup.spec(*major).is_some_and(makes));
        let free = makers.filter(|major| setup.qdisc_below(Handle::new(*major, 1)).is_none());
        let default = || Cow::Borrowed(Spec::class_default());
        free.map(move |major| self.below(default(), 0, Handle::new(major, 0)))
    }

    /// Returns the lines of the default qdiscs below classes, which have no handle. Those below the
    /// qdisc with the greatest handle come first; below one qdisc, those of the class that was
    /// added last. This is Linux's order if each qdisc that a command added has a greater handle
    /// than those added before it.
    fn hidden(&self) -> Vec<Line<'a>> {
        let below = |major| self.hidden_below(major).into_iter().rev();
        self.last_first().into_iter().flat_map(below).collect()
    }

    /// Returns the major numbers of the qdiscs in the tree, the largest first.
    fn last_first(&self) -> Vec<u16> {
        let mut majors: Vec<u16> =
            self.setup.root().into_iter().chain(self.setup.listed()).collect();
        majors.sort_unstable_by_key(|major| std::cmp::Reverse(*major));
        majors
    }

    fn hidden_below(&self, major: u16) -> Vec<Line<'a>> {
        let setup = self.setup;
        let Some(spec) = setup.spec(major) else { return Vec::new() };
        let quirks = &spec.kind().quirks;
        let bfifo =
            quirks.bfifo_below.map(|limit| Spec::bfifo(limit(&spec.values_at(self.site()))));
        let minors: Vec<u16> = match spec.kind().classes {
            // If a kind of qdisc creates its child itself, `made` lists the child, so it is not
            // among the hidden default qdiscs.
            _ if bfifo.is_none() && (quirks.has_one_place || quirks.shown_below.is_some()) => {
                Vec::new()
            }
            ClassKind::None => Vec::new(),
            ClassKind::Fixed(_) => (1..=setup.fixed_classes(spec)).collect(),
            // In `hfsc`, whose root is a class too, each class has a default qdisc, even classes
            // with child classes and the class with the number 0.
            ClassKind::Added { .. } if quirks.added.root_is_class => {
                std::iter::once(0).chain(setup.class_rows(major).map(|(minor, _)| minor)).collect()
            }
            ClassKind::Added { .. } => {
                let leaf = |minor: &u16| setup.is_leaf(Handle::new(major, *minor));
                setup.class_rows(major).map(|(minor, _)| minor).filter(leaf).collect()
            }
        };
        let places = minors.into_iter().map(|minor| Handle::new(major, minor));
        let free = places.filter(|place| setup.qdisc_below(*place).is_none());
        let class_default = || Cow::Borrowed(Spec::class_default());
        let default = || bfifo.clone().map_or_else(class_default, Cow::Owned);
        free.map(|place| self.below(default(), 0, place)).collect()
    }

    fn view(&self, place: Option<Handle>) -> Option<&'a QdiscView> {
        self.views.get(&place).copied()
    }

    fn qdisc(&self, line: &Line<'_>, out: &mut Out) {
        let kind = line.spec.kind();
        out.open(None);
        out.string("kind", kind.id, format_args!("qdisc {} ", kind.id));
        let handle = format!("{:x}:", line.major);
        out.string("handle", &handle, format_args!("{handle} "));
        if let Some(device) = self.device {
            out.string("dev", device, format_args!("dev {device} "));
        }
        if line.parent == ROOT {
            out.flag("root", true, format_args!("root "));
        } else {
            let parent = class_name(class_of(line.parent));
            out.string("parent", &parent, format_args!("parent {parent} "));
        }
        if line.refcnt != 1 {
            out.uint("refcnt", line.refcnt.into(), format_args!("refcnt {} ", line.refcnt));
        }
        let (counters, backlog, extra) = match line.view {
            Some(view) => (view.counters, view.backlog, &view.extra),
            None => (Counters::default(), Backlog::default(), &NOTHING),
        };
        out.open(Some("options"));
        (kind.shown.options)(&line.spec.values_at(self.site()), extra, out);
        out.close();
        out.text(format_args!("\n"));
        if out.style.stats {
            counters.show(true, backlog, out);
            (kind.shown.extra)(extra, out);
        }
        out.close();
    }

    /// Prints the listing of `tc class show`.
    pub fn classes(&self, query: Query, out: &mut Out) {
        let setup = self.setup;
        let named = |major| Some((major, setup.spec(major)?));
        let fallback = setup.facts().fallback.as_ref().map(|spec| (0, spec));
        let root = setup.root().and_then(named).or(fallback);
        let show = |(major, spec)| self.classes_of(major, spec, query, out);
        match query.parent.map(|parent| class_of(parent).major) {
            None => root.into_iter().chain(setup.listed().filter_map(named)).for_each(show),
            Some(major) => {
                let its = root.filter(|(root, _)| *root == major).or_else(|| named(major));
                its.into_iter().for_each(show);
            }
        }
    }

    fn classes_of(&self, major: u16, spec: &Spec, query: Query, out: &mut Out) {
        let setup = self.setup;
        let kind = spec.kind();
        let site = self.site();
        let meant = |class: Handle| {
            let number = u32::from(class.major) << 16 | u32::from(class.minor);
            query.handle.is_none_or(|handle| handle == number)
        };
        match kind.classes {
            ClassKind::None => {
                for view in self.flows(major).filter(|view| meant(view.handle)) {
                    let values = Values { params: &[], given: &[], site };
                    let names = query.names(view.handle, Some(Handle::new(major, 0)));
                    self.class(spec, view.handle, names, &values, out);
                }
            }
            ClassKind::Fixed(_) => {
                let parent = (!kind.quirks.classes_at_root).then_some(Handle::new(major, 0));
                for minor in 1..=setup.fixed_classes(spec) {
                    let class = Handle::new(major, minor);
                    let shows_empty = !kind.quirks.hides_empty_place;
                    let there = shows_empty || setup.qdisc_below(class).is_some();
                    if there && meant(class) {
                        let values = Values { params: &[], given: &[], site };
                        self.class(spec, class, query.names(class, parent), &values, out);
                    }
                }
            }
            ClassKind::Added { params, .. } => {
                let nothing = vec![None; params.len()];
                let show = |(minor, above): (u16, Option<u16>)| {
                    let class = Handle::new(major, minor);
                    let parent = above.map(|above| Handle::new(major, above));
                    let none = Values { params, given: &nothing, site };
                    let values = setup.class_values(class, site).map_or(none, |(_, values)| values);
                    self.class(spec, class, query.names(class, parent), &values, out);
                };
                match query.handle.map(class_of) {
                    None => setup.added_classes(major).for_each(show),
                    Some(class) if class.major == major => {
                        setup.added_class(class).into_iter().for_each(show);
                    }
                    Some(_) => {}
                }
            }
        }
    }

    /// Returns the flows that a qdisc without classes lists like classes, with their counters.
    fn flows(&self, major: u16) -> impl Iterator<Item = &'a ClassView> {
        let place = self.setup.parent(major);
        let named = self.setup.root() == Some(major) || place.is_some();
        let view = if named { self.view(place) } else { None };
        view.into_iter().flat_map(|view| &view.classes)
    }

    fn class(
        &self,
        spec: &Spec,
        class: Handle,
        (name, parent): (String, Option<String>),
        values: &Values<'_>,
        out: &mut Out,
    ) {
        let kind = spec.kind();
        let view = self.classes.get(&class).copied();
        out.open(None);
        out.string("class", kind.id, format_args!("class {} ", kind.id));
        out.string("handle", &name, format_args!("{name} "));
        if let Some(device) = self.device {
            out.string("dev", device, format_args!("dev {device} "));
        }
        match parent {
            None => out.flag("root", true, format_args!("root ")),
            Some(parent) => out.string("parent", &parent, format_args!("parent {parent} ")),
        }
        if let Some(leaf) = self.setup.qdisc_below(class) {
            let leaf = format!("{leaf:x}:");
            out.string("leaf", &leaf, format_args!("leaf {leaf} "));
        }
        let (counters, backlog, extra) = match view {
            Some(view) => (view.counters, view.backlog, &view.extra),
            None => (Counters::default(), Backlog::default(), &NOTHING),
        };
        out.open(Some("options"));
        (kind.shown.class)(values, extra, out);
        out.close();
        out.text(format_args!("\n"));
        if out.style.stats && kind.quirks.has_one_place {
            // Linux has no counters for the class of a qdisc with exactly one child, so `tc` prints
            // an empty line.
            out.text(format_args!("\n"));
        } else if out.style.stats {
            counters.show(!matches!(kind.classes, ClassKind::None), backlog, out);
            (kind.shown.class_extra)(extra, out);
        }
        out.close();
    }
}

/// Formats the handle of a class as `tc` does, also for classes of a qdisc without a handle.
pub(super) fn class_name(class: Handle) -> String {
    match (class.major, class.minor) {
        (0, 0) => "none".into(),
        (0, minor) => format!(":{minor:x}"),
        _ => class.to_string(),
    }
}

impl Counters {
    /// Prints the statistics that all kinds have. `sent` is false for flows, which do not count the
    /// packets that they sent.
    pub(crate) fn show(&self, sent: bool, backlog: Backlog, out: &mut Out) {
        if sent {
            out.uint("bytes", self.bytes, format_args!(" Sent {} bytes", self.bytes));
            out.uint("packets", self.packets, format_args!(" {} pkt", self.packets));
        }
        out.uint("drops", self.drops, format_args!(" (dropped {}", self.drops));
        out.uint("overlimits", self.overlimits, format_args!(", overlimits {}", self.overlimits));
        out.uint("requeues", self.requeues, format_args!(" requeues {}) \n", self.requeues));
        out.uint("backlog", backlog.bytes, format_args!(" backlog {}", Size(backlog.bytes)));
        let packets = backlog.packets;
        out.uint("qlen", packets.into(), format_args!(" {packets}p requeues {}\n", self.requeues));
    }
}

impl Spec {
    /// Returns the qdisc that stands in front of a transmit queue by default.
    pub(crate) fn queue_default() -> &'static Self {
        static DEFAULT: LazyLock<Spec> = LazyLock::new(|| Spec::named("pfifo_fast"));
        &DEFAULT
    }

    /// Returns a `bfifo` with this limit in bytes.
    fn bfifo(limit: u64) -> Self {
        let mut spec = Self::named("bfifo");
        spec.give("limit", Value::Number(limit));
        spec
    }

    /// Returns the qdisc that stands below a class by default.
    pub(crate) fn class_default() -> &'static Self {
        static DEFAULT: LazyLock<Spec> = LazyLock::new(|| Spec::named("pfifo"));
        &DEFAULT
    }
}
