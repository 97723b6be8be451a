//! The description of a tree: the qdiscs, classes and filters that `tc` commands have added.

use std::collections::BTreeMap;

mod added;
mod class;
mod front;
mod lines;
mod order;
mod qdisc;
mod settle;

use self::added::Added;
pub(crate) use self::added::ClassSpec;
pub use self::lines::BurstOption;
use self::order::QdiscOrder;
use crate::base::handle::FIRST_OWN_HANDLE;
use crate::base::params::{Param, Site, Values};
use crate::base::{ConfigError, Errno, Handle, Instant};
use crate::filter::{FilterSpec, Head, How, Reader, Table};
use crate::qdisc::pfifo_fast::default_pfifo_fast;
use crate::sched::{ClassKind, Cx, FilterPlaces, Kind, Qdisc};
use crate::tc::Spec;
use crate::tc::cmd::{self, INGRESS_MAJOR, OBJECTS, Verb, unshorten};
use crate::tc::kinds::Kinds;
use crate::tc::spec::Words;

use onramp_queue::PacketList;

/// A `Setup` stores the filters for incoming packets (of an `ingress` or `clsact`) under the first
/// of these handles, and those for outgoing packets (of a `clsact`) under the second.
pub(crate) const INGRESS_FILTERS: Handle = Handle::new(INGRESS_MAJOR, 0xFFF2);
pub(crate) const EGRESS_FILTERS: Handle = Handle::new(INGRESS_MAJOR, 0xFFF3);

/// The reason for refusing a `mqprio` in front of a link, for error messages.
const NO_CHOICE: &str = "the transmit queues of a link are its ports, and a flow stays on its \
    port, so a qdisc cannot choose the queue; use mq, with prio or ets below its classes";

/// The description of a tree of qdiscs. Each command line is checked when it is applied, so
/// building the qdiscs of the tree cannot fail.
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
    /// The kinds of qdiscs that lines may name.
    kinds: Kinds,
    /// The device that the first command named.
    device: Option<String>,
    /// The qdiscs, by their major numbers.
    qdiscs: BTreeMap<u16, Node>,
    root: Option<u16>,
    /// The major number of the qdisc below each class. The root qdisc is stored under the key
    /// `None`.
    places: BTreeMap<Option<Handle>, u16>,
    filters: Table,
    /// No automatic handle below this one is free. Automatic handles are those from 8001: on, for
    /// qdiscs whose command gives no handle.
    free: u16,
    /// The qdiscs that stand below other qdiscs, in the order in which Linux lists them.
    order: QdiscOrder,
    /// What is known of the device in front of which the tree stands.
    facts: Facts,
    /// The device's new default qdisc, if the default qdisc that stands at the root is an older
    /// one. It becomes the default as soon as a command adds a root.
    next_fallback: Option<Spec>,
    /// The `ingress` or `clsact`, if there is one. It has the filters for incoming packets; a
    /// `clsact` also has those for outgoing packets.
    ingress: Option<Box<Node>>,
    /// Whether the device has an `ingress` or `clsact`, or has had one.
    had_ingress: bool,
    /// The parent as given by the command that last added a filter at an `ingress`.
    ingress_called: Option<Handle>,
    /// The qdiscs that the last change removed.
    taken: Vec<Taken>,
    /// Whether the last line changed something with the verb `adjust`.
    keeps_bytes: bool,
    /// Whether a running tree was built from this description, which must then keep a root.
    is_running: bool,
}

/// A qdisc that a change has removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Handle of the qdisc.
    pub handle: Handle,
    /// Name of the qdisc's kind.
    pub kind: &'static str,
    /// Class below which the qdisc stood, or `None` if it was the root.
    pub parent: Option<Handle>,
}

/// What the description of a tree must know of its device.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The qdisc that stands at the root while no command has added one; its handle is zero. `None`
    /// means that the tree cannot be built until a command adds a root.
    /// [`Setup::device_changed`] says when a new one comes into force.
    pub fallback: Option<Spec>,
    /// Number of transmit queues of the device, or zero if unknown.
    pub queues: u16,
    /// Length of the device's transmit queue in packets, or zero for 1,000. `pfifo` and similar
    /// kinds have this limit by default.
    pub txqueuelen: u32,
    /// Size of the largest packet in bytes, including the link header, or zero if unknown.
    pub mtu: u32,
    /// Whether the device has never been up, so that its default qdiscs are not listed.
    pub dormant: bool,
    /// Whether the transmit queues are the ports of a link. Since each flow stays on one port, no
    /// qdisc may then choose the transmit queue of a packet.
    pub ports: bool,
}

/// A qdisc in the description of a tree.
#[derive(Clone, Debug)]
struct Node {
    /// The class below which the qdisc stands, or `None` for the root.
    parent: Option<Handle>,
    /// The parent as the command gave it. Below a qdisc with exactly one child, any class number
    /// means that child's place.
    typed: Option<Handle>,
    spec: Spec,
    /// The options that the last command about the qdisc named: see [`Values::is_said`].
    said: u64,
    classes: Added,
}

/// What a command has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The command changed nothing.
    Nothing,
    /// The qdisc with this major number is new.
    Qdisc(u16),
    /// The qdisc below this class was removed, and the default qdisc of the class took its place.
    Gone(Handle),
    /// The root was removed, and the default root qdisc of the device took its place.
    RootGone,
    /// The `ingress` or `clsact` is new or was removed.
    Ingress,
    /// The qdisc with this major number has new parameters.
    Parameters(u16),
    /// This class is new or has new parameters.
    Class(Handle),
    /// This class was removed.
    ClassGone(Handle),
    /// The filters at this qdisc or class have changed.
    Filters(Handle),
}

impl Node {
    fn new(parent: Option<Handle>, spec: Spec) -> Self {
        Self { parent, typed: parent, spec, said: 0, classes: Added::default() }
    }

    /// Returns why filters cannot be at `parent` (this qdisc, or a class of it), or `None` if they
    /// can. The result is Linux's error number and error text, and a reason in other words.
    fn why_no_filters(&self, parent: Handle) -> Option<(Errno, &'static str, String)> {
        let kind = self.spec.kind();
        let nested = matches!(kind.classes, ClassKind::Added { nested: true, .. });
        let there = self.has_class(parent.minor);
        if kind.quirks.filters_only.is_some() {
            if [INGRESS_FILTERS, EGRESS_FILTERS].contains(&parent) {
                return None;
            }
            let why =
                "expected ffff:fff2 (incoming packets) or ffff:fff3 (outgoing packets)".to_owned();
            return Some(match parent.minor {
                0 => (Errno::Invalid, "", why),
                _ => (Errno::NoEntry, "Specified class doesn't exist", why),
            });
        }
        if self.spec.build_at(Site::default()).filters(0).is_none() {
            let why = format!("{} does not use filters", kind.id);
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
            let why = format!("{} uses only the filters of {}", kind.id, parent.qdisc());
            Some((Errno::Invalid, kind.quirks.added.filters_at_class, why))
        } else {
            None
        }
    }
}

impl Setup {
    /// Creates an empty description, whose lines may name these kinds. The lines of a description
    /// made in another way may name the built-in kinds, and the kind of the qdisc with which it was
    /// [made](Self::of).
    #[must_use]
    pub fn with_kinds(kinds: Kinds) -> Self {
        Self { kinds, ..Self::default() }
    }

    /// Lets later lines name these kinds too.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] if two different kinds have the same name. The description is
    /// unchanged then.
    pub fn add_kinds(&mut self, kinds: &Kinds) -> Result<(), ConfigError> {
        self.kinds.join(kinds)
    }

    /// Returns the kinds of qdiscs that lines may name.
    #[must_use]
    pub fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// Creates the description of a tree of one qdisc.
    #[must_use]
    pub fn of(spec: Spec) -> Self {
        let mut setup = Self::with_kinds(Kinds::with(spec.kind()));
        setup.insert(None, FIRST_OWN_HANDLE, spec);
        setup
    }

    /// Applies a command line of `tc` to the description: `qdisc`, `class` or `filter`, with `add`,
    /// `replace`, `change` or `delete`. Empty lines and comments do nothing.
    ///
    /// One verb is not one of `tc`: `adjust` changes a qdisc or class as `change` does, but the
    /// token buckets of `tbf` and `htb` keep the bytes that they hold or owe. Use it for rates that
    /// change often: `change` fills a `tbf`'s bucket each time, and in `htb` a debt lasts as long
    /// as it does at the old rate, as in Linux.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the wrong word and what would be right. The tree is
    /// unchanged then.
    pub fn apply(&mut self, line: &str) -> Result<(), ConfigError> {
        self.change(line.split('#').next().unwrap_or_default()).map(|_| ())
    }

    /// Applies a command line as [`apply`](Self::apply) does, and returns what the command has
    /// changed.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`apply`](Self::apply).
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
        let word = words.next();
        let verb = cmd::verb(object, word)?;
        self.keeps_bytes = word == Some(cmd::ADJUST);
        self.taken.clear();
        self.filters.forget_edit();
        match object {
            "qdisc" => self.qdisc(verb, words),
            "class" => self.class(verb, words),
            _ => self.filter(verb, behind(line, words)),
        }
    }

    /// Returns the description for a running tree: it refuses a line after which the tree would
    /// have no root.
    pub(crate) fn for_tree(self) -> Self {
        Self { is_running: true, ..self }
    }

    /// Sets the name of the device in front of which the tree stands, and what is known of the
    /// device.
    pub fn of_device(&mut self, name: &str, facts: Facts) {
        self.device = Some(name.to_owned());
        self.facts = facts;
        self.next_fallback = None;
    }

    /// Returns the device that the filter which the last line added or changed names with `indev`.
    /// A description does not know which devices exist, so it accepts every name.
    #[must_use]
    pub fn indev_of_change(&self) -> Option<&str> {
        self.filters.indev_of_edit()
    }

    /// Returns the devices that filters name with `indev`.
    pub fn indevs(&self) -> impl Iterator<Item = &str> {
        self.all_filters().filter_map(FilterSpec::indev)
    }

    /// Notes that a device that filters name with `indev`, which may be the tree's own, has the new
    /// name `new` in place of `old`. As in Linux, these filters still mean the same device.
    pub fn rename_indev(&mut self, old: &str, new: &str) {
        self.filters.rename_indev(old, new);
    }

    /// Removes the filters whose `indev` names a device for which `is_there` returns false. Such a
    /// filter matches no packet, and a line cannot add it again where the device is not there.
    pub fn forget_indevs(&mut self, is_there: impl Fn(&str) -> bool) {
        self.filters.forget_indevs(is_there);
    }

    /// Returns the device's name, if it has one.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Returns the name of the kind of the qdisc with this major number, or `None` if there is no
    /// such qdisc.
    #[must_use]
    pub fn kind_of(&self, major: u16) -> Option<&'static str> {
        self.qdiscs.get(&major).map(|node| node.spec.kind().id)
    }

    /// Returns the qdiscs that the last change removed.
    #[must_use]
    pub fn taken(&self) -> &[Taken] {
        &self.taken
    }

    /// Whether `class` exists and was added by a command.
    #[must_use]
    pub fn has_class(&self, class: Handle) -> bool {
        self.qdiscs.get(&class.major).is_some_and(|node| node.classes.get(class.minor).is_some())
    }

    /// Returns what is known of the device in front of which the tree stands.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Builds the qdiscs of the tree, for packets of at most `mtu` bytes, including the link
    /// header. Returns the root, or `None` if the tree has none. The same `seed` gives the same
    /// random choices.
    #[must_use]
    pub fn build(&self, mtu: u32, seed: u64) -> Option<Box<dyn Qdisc>> {
        let fallback = || {
            let site = self.site(0, mtu, seed);
            self.facts.fallback.as_ref().map(|spec| spec.build_at(site))
        };
        self.root.map(|root| self.build_node(root, mtu, seed)).or_else(fallback)
    }

    /// Builds the qdiscs in front of transmit queue `queue` of a device that has several transmit
    /// queues. Without an `mq` at the root, that is the whole tree. With an `mq`, that is the qdisc
    /// below the `mq`'s class `queue + 1`, or a `pfifo_fast` if the description has no qdisc there.
    #[must_use]
    pub fn build_port(&self, queue: usize, mtu: u32, seed: u64) -> Option<Box<dyn Qdisc>> {
        if !self.is_mq() {
            return self.build(mtu, seed);
        }
        let class = self.root.zip(u16::try_from(queue + 1).ok());
        let below = class.and_then(|(root, minor)| self.below(Some(Handle::new(root, minor))));
        let default = || default_pfifo_fast(self.site(0, mtu, seed));
        Some(below.map_or_else(default, |major| self.build_node(major, mtu, seed)))
    }

    /// Builds the qdiscs in front of transmit queue `queue`, or the whole tree if `queue` is
    /// `None`. Returns the topmost of these qdiscs.
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

    /// Returns the minor numbers of the classes on the way down to the qdisc `major`. The way
    /// begins at the topmost qdisc in front of transmit queue `queue`, or at the root if `queue` is
    /// `None`. Returns `None` if the qdisc stands in front of another queue, or above all queues.
    pub(crate) fn path_in(&self, major: u16, queue: Option<usize>) -> Option<Vec<u16>> {
        let mut path = self.path(major);
        let Some(queue) = queue.filter(|_| self.is_mq()) else { return Some(path) };
        let is_its = path.first().is_some_and(|first| usize::from(*first) == queue + 1);
        is_its.then(|| path.split_off(1))
    }

    /// Returns this tree if it can stand in front of a device that has several transmit queues.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] if the tree has no root, or if its root chooses the transmit queue
    /// itself (`mqprio`).
    pub fn for_ports(&self) -> Result<&Self, ConfigError> {
        let root = self.with_root()?.root.and_then(|root| self.spec(root));
        if let Some(kind) = root.map(Spec::kind).filter(|kind| kind.quirks.chooses_queue) {
            return Err(ConfigError::new("qdisc", "", kind.id, NO_CHOICE));
        }
        Ok(self)
    }

    /// Returns the name of the root's kind, or `None` if there is no root.
    #[must_use]
    pub fn root_id(&self) -> Option<&'static str> {
        Some(self.qdiscs.get(&self.root?)?.spec.kind().id)
    }

    /// Returns the descriptions of all qdiscs of the tree.
    pub fn specs(&self) -> impl Iterator<Item = &Spec> {
        self.qdiscs.values().map(|node| &node.spec)
    }

    /// Returns this tree if it has a root.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] if the tree has no root, so that it cannot be built.
    pub fn with_root(&self) -> Result<&Self, ConfigError> {
        match (self.root, &self.facts.fallback) {
            (Some(_), _) | (_, Some(_)) => Ok(self),
            (None, None) => {
                let why = "the tree has no root; add one: `qdisc add dev NAME root KIND`";
                Err(ConfigError::new("qdisc", "", "", why))
            }
        }
    }

    /// Returns the major numbers of the qdiscs below other qdiscs, in the order in which Linux
    /// lists them.
    pub(crate) fn listed(&self) -> impl Iterator<Item = u16> {
        self.order.iter()
    }

    /// Returns the kind and options of the `ingress` or `clsact`, or `None` if there is none.
    pub(crate) fn ingress_spec(&self) -> Option<&Spec> {
        self.ingress.as_ref().map(|node| &node.spec)
    }

    /// Returns the number of classes of a qdisc whose classes follow from its parameters (for `mq`:
    /// from the device's transmit queues, if their number is known), and 0 for all other qdiscs.
    pub(crate) fn fixed_classes(&self, spec: &Spec) -> u16 {
        let of_queues = spec.kind().quirks.has_queue_trees;
        match (spec.kind().classes, self.facts.queues) {
            (ClassKind::Fixed(_), queues @ 1..) if of_queues => queues,
            (ClassKind::Fixed(count), _) => count(&spec.values_anywhere()),
            _ => 0,
        }
    }

    /// Returns the major number of the root, or `None` if no command added one.
    pub(crate) fn root(&self) -> Option<u16> {
        self.root
    }

    /// Returns the class below which a qdisc stands, or `None` for the root.
    pub(crate) fn parent(&self, major: u16) -> Option<Handle> {
        self.qdiscs.get(&major)?.parent
    }

    /// Returns the parent of a qdisc as the command gave it.
    pub(crate) fn typed_parent(&self, major: u16) -> Option<Handle> {
        self.qdiscs.get(&major)?.typed
    }

    /// Returns the minor numbers of the classes on the way from the root down to the qdisc `major`.
    pub(crate) fn path(&self, major: u16) -> Vec<u16> {
        let parents = std::iter::successors(self.parent(major), |class| self.parent(class.major));
        let mut path: Vec<u16> = parents.map(|class| class.minor).collect();
        path.reverse();
        path
    }

    /// Returns the kind and options of a qdisc, or `None` if there is no such qdisc.
    pub(crate) fn spec(&self, major: u16) -> Option<&Spec> {
        self.qdiscs.get(&major).map(|node| &node.spec)
    }

    /// Returns what the qdisc `major` must know besides its options: its handle, the size of the
    /// largest packet, the length of the transmit queue, and a random seed that no other qdisc of
    /// the tree has.
    pub(crate) fn site(&self, major: u16, mtu: u32, seed: u64) -> Site {
        Site {
            mtu,
            txqueuelen: self.facts.txqueuelen,
            seed: seed ^ u64::from(major) << 48,
            handle: Handle::new(major, 0),
            keeps_bytes: self.keeps_bytes,
            said: self.qdiscs.get(&major).map_or(0, |node| node.said),
        }
    }

    /// Returns the minor number of a class's parent (0 for the qdisc) and the values of the class's
    /// options, or `None` if there is no such class.
    pub(crate) fn class_values(&self, class: Handle, site: Site) -> Option<(u16, Values<'_>)> {
        let node = self.qdiscs.get(&class.major)?;
        let row = node.classes.get(class.minor)?;
        Some((row.parent, Values { params: class_params(&node.spec), given: &row.given, site }))
    }

    /// Returns all filters of the tree.
    pub(crate) fn filters(&self) -> &Table {
        &self.filters
    }

    /// Builds a qdisc, with its classes and filters, and all qdiscs below it.
    pub(crate) fn build_node(&self, major: u16, mtu: u32, seed: u64) -> Box<dyn Qdisc> {
        let (node, site) = (&self.qdiscs[&major], self.site(major, mtu, seed));
        let mut qdisc = node.spec.build_at(site);
        let mut drops = PacketList::new();
        let mut cx = Cx::new(Instant::default(), &mut drops);
        if let Some(classes) = qdisc.classes() {
            let params = class_params(&node.spec);
            for class in node.classes.rows() {
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

    /// Returns the handle under which filters with the parent `parent` are stored. All filters of
    /// an `ingress` are stored under one handle, whatever parent the commands give.
    pub(crate) fn filter_place_of(&self, parent: Handle) -> Handle {
        if parent.major == INGRESS_MAJOR && self.has_one_filter_place() {
            return INGRESS_FILTERS;
        }
        parent
    }

    /// Returns the parent that Linux lists for the filters stored under `place`. For an `ingress`,
    /// that is the parent in the command that last added a filter.
    pub(crate) fn filter_place_called(&self, place: Handle) -> Handle {
        if place == INGRESS_FILTERS && self.has_one_filter_place() {
            return self.ingress_called.unwrap_or(place);
        }
        place
    }

    /// Whether the device has an `ingress`, whose filters are stored under one handle, whatever
    /// parent the commands give.
    fn has_one_filter_place(&self) -> bool {
        let places = self.ingress.as_ref().and_then(|node| node.spec.kind().quirks.filters_only);
        places == Some(FilterPlaces::In)
    }

    fn filter(&mut self, verb: Verb, options: &str) -> Result<Change, ConfigError> {
        let mut words = Reader::new(options);
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
        // An error names the parent only if the line does.
        let wrong = |why| match head.parent {
            Some(_) => ConfigError::new("filter", "parent", &parent.to_string(), why),
            None => ConfigError::new("filter", "", words.peek().unwrap_or_default(), why),
        };
        let Some(node) = node else {
            let why = match head.parent {
                Some(_) => format!("there is no qdisc {}", parent.qdisc()),
                None => "there is no root qdisc".to_owned(),
            };
            return Err(wrong(why).kernel(Errno::Invalid, "Parent Qdisc doesn't exists"));
        };
        if let Some((errno, said, why)) = node.why_no_filters(parent) {
            return Err(wrong(why).kernel(errno, said));
        }
        self.filters.apply(parent, how, &head, words)?;
        if called.major == INGRESS_MAJOR && how != How::Delete {
            self.ingress_called = Some(called);
        }
        self.name(&device);
        Ok(Change::Filters(parent))
    }

    /// Returns the major number of the qdisc below `parent` (`None`: the root), or `None` if no
    /// command added one.
    fn below(&self, parent: Option<Handle>) -> Option<u16> {
        self.places.get(&parent).copied()
    }

    /// Returns the major number of the qdisc that a command added below a class, or `None` if no
    /// command did.
    pub(crate) fn qdisc_below(&self, class: Handle) -> Option<u16> {
        self.below(Some(class))
    }

    /// Whether each transmit queue of the device has its own tree, because an `mq` is at the root
    /// by a command or by the device's default.
    pub(crate) fn is_mq(&self) -> bool {
        self.root_kind().is_some_and(|root| root.quirks.has_queue_trees)
    }

    /// Returns the kind of the root qdisc, which may be the device's default.
    fn root_kind(&self) -> Option<&'static Kind> {
        let root = self.root.map_or(self.facts.fallback.as_ref(), |root| self.spec(root));
        root.map(Spec::kind)
    }

    /// Whether one qdisc serves all transmit queues of the device. That is the qdisc at the root,
    /// unless each queue has its own tree (`mq`) or the qdisc holds no packets back (`noqueue`).
    #[must_use]
    pub fn has_one_root(&self) -> bool {
        let quirks = self.root_kind().map(|root| &root.quirks);
        quirks.is_some_and(|quirks| !quirks.has_queue_trees && !quirks.holds_nothing)
    }

    /// Returns the minor numbers of the classes that were added to a qdisc, each with the minor
    /// number of its parent class, or `None` if it stands below the qdisc itself.
    pub(crate) fn class_rows(&self, major: u16) -> impl Iterator<Item = (u16, Option<u16>)> {
        let rows = self.qdiscs.get(&major).into_iter().flat_map(|node| node.classes.rows());
        rows.map(|class| (class.minor, class.is_below.then_some(class.parent)))
    }

    /// Returns the qdiscs below the classes of a qdisc: the minor number of each such class, and
    /// the major number of the qdisc below it.
    pub(crate) fn children(&self, major: u16) -> impl Iterator<Item = (u16, u16)> {
        let classes = Some(Handle::new(major, 0))..=Some(Handle::new(major, u16::MAX));
        let below = self.places.range(classes);
        below.filter_map(|(parent, child)| parent.map(|parent| (parent.minor, *child)))
    }

    /// Removes a qdisc and all qdiscs below it, with their filters.
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

/// Returns the part of a line that begins with the first of `words`, the last words of the line.
/// Unlike the words, it has all spaces of a string in quotes.
fn behind<'a>(line: &'a str, words: Words<'a>) -> &'a str {
    let before = line.split_ascii_whitespace().count() - words.count();
    let mut rest = line.trim_ascii_start();
    for _ in 0..before {
        let end = rest.find(|c: char| c.is_ascii_whitespace()).unwrap_or(rest.len());
        rest = rest[end..].trim_ascii_start();
    }
    rest
}

fn class_params(spec: &Spec) -> &'static [Param] {
    match spec.kind().classes {
        ClassKind::Added { params, .. } => params,
        _ => &[],
    }
}

#[cfg(test)]
mod tests;
