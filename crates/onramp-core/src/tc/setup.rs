//! A tree as `tc` describes it: qdiscs, classes and filters, line by line.

use std::collections::BTreeMap;

mod added;
mod class;
mod lines;
mod order;
mod qdisc;

use self::added::Added;
use self::order::QdiscOrder;
use crate::base::handle::FIRST_OWN_HANDLE;
use crate::base::params::{Param, Site, Values};
use crate::base::{ConfigError, Errno, Handle, Instant};
use crate::filter::{FilterSpec, Head, How, Reader, Table};
use crate::qdisc::pfifo_fast::default_pfifo_fast;
use crate::sched::{ClassKind, Cx, FilterPlaces, Kind, Qdisc};
use crate::tc::Spec;
use crate::tc::cmd::{self, INGRESS_MAJOR, OBJECTS, Verb, unshorten};
use crate::tc::spec::Words;

use onramp_queue::PacketList;

/// Where filters look at packets that come in, and, of a `clsact`, at those that go out.
const INGRESS_FILTERS: Handle = Handle::new(INGRESS_MAJOR, 0xFFF2);
const EGRESS_FILTERS: Handle = Handle::new(INGRESS_MAJOR, 0xFFF3);

/// Why `mqprio` does not stand in front of a link.
const NO_CHOICE: &str = "a link's ports are its queues, and a flow stays on its port; use mq, and \
    prio or ets below its classes";

/// A tree of qdiscs, checked line by line. Building it cannot fail.
///
/// ```
/// use onramp_core::Setup;
/// let mut setup = Setup::default();
/// for line in [
///     "tc qdisc add dev eth0 root handle 1: pfifo limit 100",
///     "tc qdisc replace dev eth0 root handle 2: fq",
/// ] {
///     setup.apply(line)?;
/// }
/// let root = setup.build(1514, 0).expect("there is a root");
/// assert_eq!(root.backlog().packets, 0);
/// # Ok::<(), onramp_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The device that the first line named.
    device: Option<String>,
    /// By major number.
    qdiscs: BTreeMap<u16, Node>,
    root: Option<u16>,
    /// The qdisc below each class, and the root below none.
    places: BTreeMap<Option<Handle>, u16>,
    filters: Table,
    /// All own handles below this one are taken.
    free: u16,
    /// The qdiscs below others, as Linux lists them.
    order: QdiscOrder,
    /// What the device is.
    facts: Facts,
    /// What looks at packets that come in, and, if it is a `clsact`, go out.
    ingress: Option<Box<Node>>,
    /// There was one, now or before.
    had_ingress: bool,
    /// What the last filter that was added at an `ingress` called it.
    ingress_called: Option<Handle>,
    /// The qdiscs that the last change took away: handle, kind, and where they stood.
    taken: Vec<Taken>,
}

/// A qdisc that went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its handle.
    pub handle: Handle,
    /// Its kind.
    pub kind: &'static str,
    /// The class it stood below; none: it was the root.
    pub parent: Option<Handle>,
}

/// What a tree knows of its device.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// What stands at the root when nobody has put a qdisc there, with a handle of zero; none: a
    /// tree without a root is no tree.
    pub fallback: Option<Spec>,
    /// Its transmit queues; zero: nobody knows.
    pub queues: u16,
    /// Packets that `pfifo` and its like hold by default; zero: 1,000.
    pub txqueuelen: u32,
    /// Its largest packet, link header included, bytes; zero: nobody knows.
    pub mtu: u32,
    /// It was never up: what stands there by itself is not listed.
    pub dormant: bool,
    /// Its transmit queues are the ports of a link, on which flows stay: nothing chooses among
    /// them.
    pub ports: bool,
}

/// A qdisc of the tree.
#[derive(Clone, Debug)]
struct Node {
    /// The class it stands below; none: the device.
    parent: Option<Handle>,
    /// What was typed for it, where any number means the one place there is.
    typed: Option<Handle>,
    spec: Spec,
    classes: Added,
}

/// What a line changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Nothing,
    /// A qdisc is new.
    Qdisc(u16),
    /// The qdisc below a class has gone.
    Gone(Handle),
    /// The root has gone; what a device has by itself stands there.
    RootGone,
    /// What looks at packets that come in is new, or has gone.
    Ingress,
    /// A qdisc has other parameters.
    Parameters(u16),
    /// A class is new, or has other parameters.
    Class(Handle),
    /// A class has gone.
    ClassGone(Handle),
    /// Filters at a qdisc or class are other ones.
    Filters(Handle),
}

impl Node {
    fn new(parent: Option<Handle>, spec: Spec) -> Self {
        Self { parent, typed: parent, spec, classes: Added::default() }
    }

    /// What keeps filters from being asked at `parent`, the qdisc itself or a class of it: what
    /// Linux says, and why.
    fn why_no_filters(&self, parent: Handle) -> Option<(Errno, &'static str, String)> {
        let kind = self.spec.kind();
        let nested = matches!(kind.classes, ClassKind::Added { nested: true, .. });
        let there = self.has_class(parent.minor);
        if kind.quirks.filters_only.is_some() {
            if [INGRESS_FILTERS, EGRESS_FILTERS].contains(&parent) {
                return None;
            }
            let why = "expected ffff:fff2, where packets come in, or ffff:fff3".to_owned();
            return Some(match parent.minor {
                0 => (Errno::Invalid, "", why),
                _ => (Errno::NoEntry, "Specified class doesn't exist", why),
            });
        }
        if self.spec.build_at(Site::default()).filters(0).is_none() {
            let why = format!("{} asks no filters", kind.id);
            Some(match kind.classes {
                ClassKind::None => (Errno::Invalid, "Qdisc not classful", why),
                _ => (Errno::NotSupported, "Class doesn't support blocks", why),
            })
        } else if parent.minor == 0 {
            None
        } else if !there {
            let why = "there is no such class".into();
            Some((Errno::NoEntry, "Specified class doesn't exist", why))
        } else if !nested {
            let why = format!("{} asks filters at {} alone", kind.id, parent.qdisc());
            Some((Errno::Invalid, kind.quirks.added.filters_at_class, why))
        } else {
            None
        }
    }
}

impl Setup {
    /// A tree of one qdisc.
    #[must_use]
    pub fn of(spec: Spec) -> Self {
        let mut setup = Self::default();
        setup.insert(None, FIRST_OWN_HANDLE, spec);
        setup
    }

    /// Does what a line of `tc` says: `qdisc`, `class` or `filter`, with `add`, `replace`, `change`
    /// or `delete`. Empty lines and comments do nothing.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the word that is wrong, and what would be right. Nothing has changed then.
    pub fn apply(&mut self, line: &str) -> Result<(), ConfigError> {
        self.change(line.split('#').next().unwrap_or_default()).map(|_| ())
    }

    /// The same; says what is different now.
    ///
    /// # Errors
    ///
    /// As of [`apply`](Self::apply).
    #[doc(hidden)]
    pub fn change(&mut self, line: &str) -> Result<Change, ConfigError> {
        let mut words = line.split_ascii_whitespace();
        if words.clone().next() == Some("tc") {
            words.next();
        }
        let Some(word) = words.next() else { return Ok(Change::Nothing) };
        let Some(object) = unshorten(word, OBJECTS) else {
            let why = "expected qdisc, class or filter";
            return Err(ConfigError::new("tc", "", word, why).argument());
        };
        let verb = cmd::verb(object, words.next())?;
        self.taken.clear();
        match object {
            "qdisc" => self.qdisc(verb, words),
            "class" => self.class(verb, words),
            _ => self.filter(verb, words),
        }
    }

    /// Has this name from now on, and is for a device of this kind.
    pub fn of_device(&mut self, name: &str, facts: Facts) {
        self.device = Some(name.to_owned());
        self.facts = facts;
    }

    /// The device's name, if it has one.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// The kind of a qdisc, by its major number.
    #[must_use]
    pub fn kind_of(&self, major: u16) -> Option<&'static str> {
        self.qdiscs.get(&major).map(|node| node.spec.kind().id)
    }

    /// The qdiscs that the last change took away.
    #[must_use]
    pub fn taken(&self) -> &[Taken] {
        &self.taken
    }

    /// Whether there is such a class, one that somebody added.
    #[must_use]
    pub fn has_class(&self, class: Handle) -> bool {
        self.qdiscs.get(&class.major).is_some_and(|node| node.classes.get(class.minor).is_some())
    }

    /// What the device is.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Builds the tree for packets of at most `mtu` bytes, link header included; none, if it has no
    /// root. The same `seed` makes the same choices.
    #[must_use]
    pub fn build(&self, mtu: u32, seed: u64) -> Option<Box<dyn Qdisc>> {
        let fallback = || {
            let site = Site { mtu, seed, ..Site::default() };
            self.facts.fallback.as_ref().map(|spec| spec.build_at(site))
        };
        self.root.map(|root| self.build_node(root, mtu, seed)).or_else(fallback)
    }

    /// Builds what stands in front of transmit queue `queue` of a device that has several, each
    /// with a wire of its own: the whole tree, or, of an `mq`, what stands below its class
    /// `queue + 1`, where nothing does, a `pfifo_fast`.
    #[must_use]
    pub fn build_port(&self, queue: usize, mtu: u32, seed: u64) -> Option<Box<dyn Qdisc>> {
        if !self.is_mq() {
            return self.build(mtu, seed);
        }
        let class = self.root.zip(u16::try_from(queue + 1).ok());
        let below = class.and_then(|(root, minor)| self.below(Some(Handle::new(root, minor))));
        Some(below.map_or_else(default_pfifo_fast, |major| self.build_node(major, mtu, seed)))
    }

    /// Builds what stands in front of a transmit queue, or, without one, the whole tree.
    pub(crate) fn build_queue(
        &self,
        queue: Option<usize>,
        mtu: u32,
        seed: u64,
    ) -> Option<Box<dyn Qdisc>> {
        match queue {
            Some(queue) => self.build_port(queue, mtu, seed),
            None => self.build(mtu, seed),
        }
    }

    /// The classes on the way to a qdisc from what stands in front of a transmit queue, or, without
    /// one, from the root; `None`: it stands in front of another queue, or of all.
    pub(crate) fn path_in(&self, major: u16, queue: Option<usize>) -> Option<Vec<u16>> {
        let mut path = self.path(major);
        let Some(queue) = queue.filter(|_| self.is_mq()) else { return Some(path) };
        let is_its = path.first().is_some_and(|first| usize::from(*first) == queue + 1);
        is_its.then(|| path.split_off(1))
    }

    /// Itself, if it can stand in front of a device that has several transmit queues.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: it has no root, or one that chooses among queues itself (`mqprio`).
    pub fn for_ports(&self) -> Result<&Self, ConfigError> {
        let root = self.with_root()?.root.and_then(|root| self.spec(root));
        if let Some(kind) = root.map(Spec::kind).filter(|kind| kind.quirks.chooses_queue) {
            return Err(ConfigError::new("qdisc", "", kind.id, NO_CHOICE));
        }
        Ok(self)
    }

    /// The name of the root's kind; `None`: there is no root.
    #[must_use]
    pub fn root_id(&self) -> Option<&'static str> {
        Some(self.qdiscs.get(&self.root?)?.spec.kind().id)
    }

    /// The qdiscs of the tree.
    pub fn specs(&self) -> impl Iterator<Item = &Spec> {
        self.qdiscs.values().map(|node| &node.spec)
    }

    /// Itself, if it has a root.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: it has none, and cannot be built.
    pub fn with_root(&self) -> Result<&Self, ConfigError> {
        match (self.root, &self.facts.fallback) {
            (Some(_), _) | (_, Some(_)) => Ok(self),
            (None, None) => {
                let why = "the tree has no root; add one: `qdisc add dev NAME root KIND`";
                Err(ConfigError::new("qdisc", "", "", why))
            }
        }
    }

    /// The qdiscs below others, in the order in which Linux lists them.
    pub(crate) fn listed(&self) -> impl Iterator<Item = u16> {
        self.order.iter()
    }

    /// What stands where packets come in.
    pub(crate) fn ingress_spec(&self) -> Option<&Spec> {
        self.ingress.as_ref().map(|node| &node.spec)
    }

    /// The qdisc below a class.
    pub(crate) fn qdisc_below(&self, class: Handle) -> Option<u16> {
        self.below(Some(class))
    }

    /// How many classes a qdisc has whose parameters say so.
    pub(crate) fn fixed_classes(&self, spec: &Spec) -> u16 {
        let of_queues = spec.kind().quirks.has_queue_trees;
        match (spec.kind().classes, self.facts.queues) {
            (ClassKind::Fixed(_), queues @ 1..) if of_queues => queues,
            (ClassKind::Fixed(count), _) => count(&spec.values_anywhere()),
            _ => 0,
        }
    }

    /// The root's major number.
    pub(crate) fn root(&self) -> Option<u16> {
        self.root
    }

    /// The class that a qdisc stands below; none: it is the root.
    pub(crate) fn parent(&self, major: u16) -> Option<Handle> {
        self.qdiscs.get(&major)?.parent
    }

    /// The same, as it was typed.
    pub(crate) fn typed_parent(&self, major: u16) -> Option<Handle> {
        self.qdiscs.get(&major)?.typed
    }

    /// The classes on the way from the root to a qdisc, by their minor numbers.
    pub(crate) fn path(&self, major: u16) -> Vec<u16> {
        let parents = std::iter::successors(self.parent(major), |class| self.parent(class.major));
        let mut path: Vec<u16> = parents.map(|class| class.minor).collect();
        path.reverse();
        path
    }

    /// A qdisc's kind and parameters.
    pub(crate) fn spec(&self, major: u16) -> Option<&Spec> {
        self.qdiscs.get(&major).map(|node| &node.spec)
    }

    /// Where a qdisc stands.
    pub(crate) fn site(&self, major: u16, mtu: u32, seed: u64) -> Site {
        Site { mtu, seed: seed ^ u64::from(major) << 48, handle: Handle::new(major, 0) }
    }

    /// The class above a class, and its parameters.
    pub(crate) fn class_values(&self, class: Handle, site: Site) -> Option<(u16, Values<'_>)> {
        let node = self.qdiscs.get(&class.major)?;
        let row = node.classes.get(class.minor)?;
        Some((row.parent, Values { params: class_params(&node.spec), given: &row.given, site }))
    }

    /// The filters that are asked at a qdisc or class.
    pub(crate) fn filters_at(&self, place: Handle) -> impl Iterator<Item = &FilterSpec> {
        self.filters.at(place)
    }

    /// All filters.
    pub(crate) fn filters(&self) -> &Table {
        &self.filters
    }

    /// Builds a qdisc and all that stands below it.
    pub(crate) fn build_node(&self, major: u16, mtu: u32, seed: u64) -> Box<dyn Qdisc> {
        let (node, site) = (&self.qdiscs[&major], self.site(major, mtu, seed));
        let mut qdisc = node.spec.build_at(site);
        let mut drops = PacketList::new();
        let mut cx = Cx::new(Instant::default(), &mut drops);
        if let Some(classes) = qdisc.classes() {
            let params = class_params(&node.spec);
            for class in &node.classes.rows {
                let values = Values { params, given: &class.given, site };
                classes.set(class.minor, class.parent, &values, cx.now);
            }
            for (minor, child) in self.children(major) {
                classes.graft(minor, self.build_node(child, mtu, seed), &mut cx);
            }
        }
        for minor in self.filters.places(major) {
            if let Some(filters) = qdisc.filters(minor) {
                filters.set(self.filters.at(Handle::new(major, minor)));
            }
        }
        qdisc
    }

    /// Where filters stand that are said to be asked at `parent`: an `ingress` has one place for
    /// them, whatever it is called.
    pub(crate) fn filter_place_of(&self, parent: Handle) -> Handle {
        if parent.major == INGRESS_MAJOR && self.has_one_filter_place() {
            return INGRESS_FILTERS;
        }
        parent
    }

    /// What Linux says filters are asked at: of an `ingress`, what it was called by the filter that
    /// came last.
    pub(crate) fn filter_place_called(&self, place: Handle) -> Handle {
        if place == INGRESS_FILTERS && self.has_one_filter_place() {
            return self.ingress_called.unwrap_or(place);
        }
        place
    }

    /// Whether filters of packets that come in have one place, whatever a line calls it.
    fn has_one_filter_place(&self) -> bool {
        let places = self.ingress.as_ref().and_then(|node| node.spec.kind().quirks.filters_only);
        places == Some(FilterPlaces::In)
    }

    fn filter(&mut self, verb: Verb, words: Words<'_>) -> Result<Change, ConfigError> {
        let mut words = Reader::new(words);
        let head = Head::read(&mut words)?;
        let parent = head.parent.unwrap_or_else(|| Handle::new(self.root.unwrap_or(0), 0));
        let called = parent;
        let parent = self.filter_place_of(called);
        let how = match verb {
            Verb::Add => How::Add,
            Verb::Replace => How::Replace,
            Verb::Change | Verb::Link => How::Change,
            Verb::Delete => How::Delete,
        };
        Table::check(how, &head, &words, parent)?;
        let device = self.named("filter", head.device.as_deref())?.to_owned();
        let node = match &self.ingress {
            Some(node) if parent.major == INGRESS_MAJOR => Some(&**node),
            _ => self.qdiscs.get(&parent.major),
        };
        let Some(node) = node else {
            let why = format!("there is no qdisc {}", parent.qdisc());
            let error = ConfigError::new("filter", "parent", &parent.to_string(), why);
            return Err(error.kernel(Errno::Invalid, "Parent Qdisc doesn't exists"));
        };
        if let Some((errno, said, why)) = node.why_no_filters(parent) {
            let error = ConfigError::new("filter", "parent", &parent.to_string(), why);
            return Err(error.kernel(errno, said));
        }
        self.filters.apply(parent, how, &head, words)?;
        if called.major == INGRESS_MAJOR && how != How::Delete {
            self.ingress_called = Some(called);
        }
        self.name(&device);
        Ok(Change::Filters(parent))
    }

    /// The qdisc that stands below `parent`.
    fn below(&self, parent: Option<Handle>) -> Option<u16> {
        self.places.get(&parent).copied()
    }

    /// The qdisc that somebody put below a class.
    pub(crate) fn child_at(&self, class: Handle) -> Option<u16> {
        self.below(Some(class))
    }

    /// Whether a device's transmit queues have a qdisc each (`mq`), by the device's own choice or
    /// somebody's.
    pub(crate) fn is_mq(&self) -> bool {
        self.root_kind().is_some_and(|root| root.quirks.has_queue_trees)
    }

    /// The kind of the root, also of one that nobody put there.
    fn root_kind(&self) -> Option<&'static Kind> {
        let root = self.root.map_or(self.facts.fallback.as_ref(), |root| self.spec(root));
        root.map(Spec::kind)
    }

    /// Whether one qdisc serves all transmit queues of a device: that at the root, unless each
    /// queue has a tree of its own (`mq`), or it holds nothing back (`noqueue`).
    #[must_use]
    pub fn has_one_root(&self) -> bool {
        let quirks = self.root_kind().map(|root| &root.quirks);
        quirks.is_some_and(|quirks| !quirks.has_queue_trees && !quirks.holds_nothing)
    }

    /// The classes that were added to a qdisc, and the classes above them; 0: the qdisc.
    pub(crate) fn class_rows(&self, major: u16) -> impl Iterator<Item = (u16, u16)> {
        let rows = self.qdiscs.get(&major).map_or(&[][..], |node| &node.classes.rows);
        rows.iter().map(|class| (class.minor, class.parent))
    }

    /// The qdiscs below the classes of one, and their minor numbers.
    pub(crate) fn children(&self, major: u16) -> impl Iterator<Item = (u16, u16)> {
        let classes = Some(Handle::new(major, 0))..=Some(Handle::new(major, u16::MAX));
        let below = self.places.range(classes);
        below.filter_map(|(parent, child)| parent.map(|parent| (parent.minor, *child)))
    }

    /// Removes a qdisc and all that stands below it.
    fn remove(&mut self, major: u16) {
        let mut gone = vec![major];
        while let Some(major) = gone.pop() {
            gone.extend(self.children(major).map(|(_, child)| child));
            if let Some(node) = self.qdiscs.remove(&major) {
                let (handle, kind) = (Handle::new(major, 0), node.spec.kind().id);
                self.taken.push(Taken { handle, kind, parent: node.parent });
                self.places.remove(&node.parent);
                if node.parent.is_some() {
                    self.order.remove(major);
                }
                self.filters.remove_qdisc(major);
            }
            self.free = self.free.min(major);
            if self.root == Some(major) {
                self.root = None;
            }
        }
    }
}

fn class_params(spec: &Spec) -> &'static [Param] {
    match spec.kind().classes {
        ClassKind::Added { params, .. } => params,
        _ => &[],
    }
}

#[cfg(test)]
mod tests;
