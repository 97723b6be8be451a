//! A tree as `tc` describes it: qdiscs, classes and filters, line by line.

use std::collections::BTreeMap;

use crate::filter::{FilterSpec, Head, How, Reader, Table};
use crate::params::{Param, Site, Value, Values};
use crate::qdisc::{ClassKind, Cx, Qdisc, Spec, default_pfifo_fast};
use crate::spec::{Words, check, read_options};
use crate::{ConfigError, Errno, Handle, Instant};

use onramp_queue::PacketList;

/// Handles that nobody chose are numbered from here on, as in Linux.
pub(crate) const FIRST_OWN_HANDLE: u16 = 0x8001;

/// A tree of qdiscs, checked line by line. Building it cannot fail.
///
/// ```
/// use onramp_core::Setup;
/// let mut setup = Setup::default();
/// for line in [
///     "tc qdisc add dev eth0 root handle 1: pfifo limit 100",
///     "tc qdisc replace dev eth0 root handle 1: fq",
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
}

/// A qdisc of the tree.
#[derive(Clone, Debug)]
struct Node {
    /// The class it stands below; none: the device.
    parent: Option<Handle>,
    spec: Spec,
    classes: Added,
}

#[derive(Clone, Debug)]
struct Class {
    minor: u16,
    /// 0 = the qdisc.
    parent: u16,
    given: Vec<Option<Value>>,
    /// How many classes there are from it up to the qdisc.
    depth: usize,
    /// How many stand right below it.
    children: u32,
}

/// Classes that were added.
#[derive(Clone, Debug, Default)]
struct Added {
    /// In the order they came.
    rows: Vec<Class>,
    /// By minor number.
    places: BTreeMap<u16, usize>,
}

impl Added {
    fn get(&self, minor: u16) -> Option<&Class> {
        self.places.get(&minor).map(|place| &self.rows[*place])
    }

    /// Whether classes stand below this one.
    fn is_inner(&self, minor: u16) -> bool {
        self.get(minor).is_some_and(|class| class.children > 0)
    }

    /// Adds a class, or gives one other parameters.
    fn set(&mut self, minor: u16, parent: u16, given: Vec<Option<Value>>) {
        if let Some(place) = self.places.get(&minor) {
            self.rows[*place].given = given;
            return;
        }
        let above = self.places.get(&parent).map(|place| &mut self.rows[*place]);
        let depth = above.map_or(1, |above| {
            above.children += 1;
            above.depth + 1
        });
        self.places.insert(minor, self.rows.len());
        self.rows.push(Class { minor, parent, given, depth, children: 0 });
    }

    fn remove(&mut self, minor: u16) {
        let Some(gone) = self.places.remove(&minor) else { return };
        let above = self.rows.remove(gone).parent;
        self.places.values_mut().filter(|place| **place > gone).for_each(|place| *place -= 1);
        if let Some(place) = self.places.get(&above) {
            self.rows[*place].children -= 1;
        }
    }
}

/// What a line changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    /// A qdisc is new.
    Qdisc(u16),
    /// The qdisc below a class has gone.
    Gone(Handle),
    /// A qdisc has other parameters.
    Parameters(u16),
    /// A class is new, or has other parameters.
    Class(Handle),
    ClassGone(Handle),
    /// Filters at a qdisc or class are other ones.
    Filters(Handle),
}

/// What a command does with the thing it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Add,
    Replace,
    Change,
    Delete,
}

impl Node {
    /// What keeps `class` from standing below `parent`.
    fn why_not_below(&self, parent: Handle, class: Handle, nested: bool) -> Option<String> {
        let id = self.spec.kind().id;
        let (above, there) = (self.classes.get(parent.minor), self.classes.get(class.minor));
        let deepest = self.spec.kind().deepest();
        if parent == class {
            Some("a class cannot be its own parent".into())
        } else if parent.major != class.major {
            Some(format!("it has to belong to {}", class.qdisc()))
        } else if parent.minor != 0 && !nested {
            Some(format!("classes of {id} stand below {} alone", class.qdisc()))
        } else if parent.minor != 0 && above.is_none() {
            Some("there is no such class".into())
        } else if there.is_none() && above.is_some_and(|above| above.depth >= deepest) {
            Some(format!("{id} has at most {deepest} classes below one another"))
        } else if there.is_some_and(|there| there.parent != parent.minor) {
            Some("a class cannot move; delete it first".into())
        } else {
            None
        }
    }
}

impl Node {
    /// What keeps filters from being asked at `parent`, the qdisc itself or a class of it: what
    /// Linux says, and why.
    fn why_no_filters(&self, parent: Handle) -> Option<(Errno, &'static str, String)> {
        let kind = self.spec.kind();
        let nested = matches!(kind.classes, ClassKind::Added { nested: true, .. });
        let there = match kind.classes {
            ClassKind::None => false,
            ClassKind::Fixed(count) => (1..=count(&self.spec.values(0))).contains(&parent.minor),
            ClassKind::Added { .. } => self.classes.get(parent.minor).is_some(),
        };
        if self.spec.build(1514).filters(0).is_none() {
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
            Some((Errno::Invalid, "", why))
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
        self.change(line).map(|_| ())
    }

    /// The same; says what is different now.
    pub(crate) fn change(&mut self, line: &str) -> Result<Change, ConfigError> {
        let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
        if words.clone().next() == Some("tc") {
            words.next();
        }
        let Some(object) = words.next() else { return Ok(Change::Nothing) };
        if !matches!(object, "qdisc" | "class" | "filter") {
            let why = "expected qdisc, class or filter";
            return Err(ConfigError::new("tc", "", object, why));
        }
        let verb = words.next();
        let verb = match verb {
            Some("add") => Verb::Add,
            Some("replace") => Verb::Replace,
            Some("change") => Verb::Change,
            Some("del" | "delete") => Verb::Delete,
            _ => {
                let why = "expected add, replace, change or delete";
                return Err(ConfigError::new(object, "", verb.unwrap_or_default(), why));
            }
        };
        let device = self.device(object, &mut words)?;
        let change = match object {
            "qdisc" => self.qdisc(verb, words),
            "class" => self.class(verb, words),
            _ => self.filter(verb, words),
        }?;
        self.device.get_or_insert_with(|| device.to_owned());
        Ok(change)
    }

    /// Builds the tree for packets of at most `mtu` bytes, link header included; none, if it has no
    /// root. The same `seed` makes the same choices.
    #[must_use]
    pub fn build(&self, mtu: u32, seed: u64) -> Option<Box<dyn Qdisc>> {
        self.root.map(|root| self.build_node(root, mtu, seed))
    }

    /// Builds what stands in front of transmit queue `queue` of a device that has several, each
    /// with a wire of its own: the whole tree, or, of an `mq`, what stands below its class
    /// `queue + 1`, where nothing does, a `pfifo_fast`.
    #[must_use]
    pub fn build_port(&self, queue: usize, mtu: u32, seed: u64) -> Option<Box<dyn Qdisc>> {
        let root = self.root?;
        if self.qdiscs[&root].spec.kind().id != "mq" {
            return self.build(mtu, seed);
        }
        let class = u16::try_from(queue + 1).ok().map(|minor| Handle::new(root, minor));
        let below = class.and_then(|class| self.below(Some(class)));
        Some(below.map_or_else(default_pfifo_fast, |major| self.build_node(major, mtu, seed)))
    }

    /// Itself, if it can stand in front of a device that has several transmit queues.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: it has no root, or one that chooses among queues itself (`mqprio`).
    pub fn for_ports(&self) -> Result<&Self, ConfigError> {
        let root = self.with_root()?.root.and_then(|root| self.spec(root));
        if root.is_some_and(|spec| spec.kind().id == "mqprio") {
            let why = "a link's ports are its queues, and a flow stays on its port; use mq, and \
                prio or ets below its classes";
            return Err(ConfigError::new("qdisc", "", "mqprio", why));
        }
        Ok(self)
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
        match self.root {
            Some(_) => Ok(self),
            None => {
                let why = "the tree has no root; add one: `qdisc add dev NAME root KIND`";
                Err(ConfigError::new("qdisc", "", "", why))
            }
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
        let mut cx = Cx::new(Instant(0), &mut drops);
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

    /// Reads `dev NAME`. All lines name the same device.
    fn device<'w>(&self, at: &str, words: &mut Words<'w>) -> Result<&'w str, ConfigError> {
        let (key, name) = (words.next(), words.next());
        let (Some("dev"), Some(name)) = (key, name) else {
            let why = "expected `dev NAME`";
            return Err(ConfigError::new(at, "", key.unwrap_or_default(), why));
        };
        match &self.device {
            Some(device) if device != name => {
                let why = format!("there is one device, and lines before named it {device}");
                Err(ConfigError::new(at, "dev", name, why))
            }
            _ => Ok(name),
        }
    }

    fn qdisc(&mut self, verb: Verb, mut words: Words<'_>) -> Result<Change, ConfigError> {
        let (mut parent, mut handle) = (None, None);
        while let Some(word) = words.clone().next() {
            match word {
                "root" | "parent" if parent.is_some() => {
                    let why = "expected one place, root or a parent";
                    return Err(ConfigError::new("qdisc", word, "", why));
                }
                "handle" if handle.is_some() => return Err(twice("qdisc", word)),
                "root" => parent = Some(None),
                "parent" => {
                    words.next();
                    parent = Some(Some(self.class_named("qdisc", words.next())?));
                    continue;
                }
                "handle" => {
                    words.next();
                    handle = Some(qdisc_handle(words.next())?);
                    continue;
                }
                _ => break,
            }
            words.next();
        }
        let Some(parent) = parent else {
            let why = "expected `root` or `parent MAJOR:MINOR`";
            return Err(ConfigError::new("qdisc", "", words.next().unwrap_or_default(), why));
        };
        let there = self.below(parent);
        match (verb, there) {
            (Verb::Add, Some(there)) => {
                let why = format!("{} is there already; use replace", Handle::new(there, 0));
                Err(ConfigError::new("qdisc", &place(parent), "", why))
            }
            (Verb::Change | Verb::Delete, None) => {
                let why = "no qdisc is there; use add";
                Err(ConfigError::new("qdisc", &place(parent), "", why))
            }
            (Verb::Delete, Some(there)) => {
                self.remove(there);
                Ok(parent.map_or(Change::Nothing, Change::Gone))
            }
            _ => self.put(parent, there, handle, verb, &mut words),
        }
    }

    /// Puts a qdisc below `parent`, where `there` stood.
    fn put(
        &mut self,
        parent: Option<Handle>,
        there: Option<u16>,
        handle: Option<u16>,
        verb: Verb,
        words: &mut Words<'_>,
    ) -> Result<Change, ConfigError> {
        let spec = Spec::read_words(words, false)?;
        let id = spec.kind().id;
        if spec.kind().stands_at_root()
            && let Some(parent) = parent
        {
            let why = format!("{id} stands at the root alone: its classes are transmit queues");
            return Err(ConfigError::new("qdisc", "parent", &parent.to_string(), why));
        }
        let major = match (handle, there) {
            (Some(major), there) if there == Some(major) => major,
            (Some(major), _) => match self.qdiscs.contains_key(&major) {
                false => major,
                true => {
                    let why = "a qdisc of the tree has this handle already";
                    let handle = Handle::new(major, 0).to_string();
                    return Err(ConfigError::new("qdisc", "handle", &handle, why));
                }
            },
            (None, Some(there)) if verb == Verb::Change => there,
            (None, _) => {
                let major = self.free_handle()?;
                self.free = major + 1;
                major
            }
        };
        let same = there.filter(|there| self.qdiscs[there].spec.kind().id == spec.kind().id);
        if let (Verb::Change, None) = (verb, same) {
            let why = "a qdisc cannot change its kind; use replace";
            return Err(ConfigError::new("qdisc", spec.kind().id, "", why));
        }
        // What is of the same kind, and keeps its handle, keeps its classes.
        if let Some(there) = same.filter(|there| *there == major) {
            if let Some(node) = self.qdiscs.get_mut(&there) {
                node.spec = spec;
            }
            return Ok(Change::Parameters(there));
        }
        if let Some(there) = there {
            self.remove(there);
        }
        self.insert(parent, major, spec);
        Ok(Change::Qdisc(major))
    }

    fn insert(&mut self, parent: Option<Handle>, major: u16, spec: Spec) {
        let node = Node { parent, spec, classes: Added::default() };
        self.qdiscs.insert(major, node);
        self.places.insert(parent, major);
        if parent.is_none() {
            self.root = Some(major);
        }
    }

    fn class(&mut self, verb: Verb, mut words: Words<'_>) -> Result<Change, ConfigError> {
        let (parent, class) = self.class_place(&mut words)?;
        let at = format!("class {class}");
        let wrong = |key: &str, value: &str, why: String| ConfigError::new(&at, key, value, why);
        if verb == Verb::Delete {
            return self.delete_class(&at, class);
        }
        let Some(node) = self.qdiscs.get_mut(&class.major) else {
            let why = format!("there is no qdisc {}", class.qdisc());
            return Err(wrong("classid", &class.to_string(), why));
        };
        let kind = node.spec.kind();
        let ClassKind::Added { params, check: agree, nested } = kind.classes else {
            let why = match kind.classes {
                ClassKind::None => format!("{} has no classes", kind.id),
                _ => format!("the classes of {} follow from its parameters", kind.id),
            };
            return Err(wrong("classid", &class.to_string(), why));
        };
        let there = node.classes.get(class.minor);
        let parent = match (verb, parent, there) {
            (Verb::Add, _, Some(_)) => {
                return Err(wrong("", "", "it is there already; use change or replace".into()));
            }
            (Verb::Change, _, None) => {
                return Err(wrong("", "", "there is no such class; use add".into()));
            }
            (_, None, there) => there.map_or(0, |there| there.parent),
            (_, Some(parent), _) => {
                let why = node.why_not_below(parent, class, nested);
                if let Some(why) = why {
                    return Err(wrong("parent", &parent.to_string(), why));
                }
                parent.minor
            }
        };
        match words.next() {
            Some(id) if id == kind.id => {}
            other => {
                let why = format!("expected {}: {} is of that kind", kind.id, class.qdisc());
                return Err(wrong("", other.unwrap_or_default(), why));
            }
        }
        let given = read_options(&at, params, &mut words, false, false)?;
        check(&at, agree, &Values { params, given: &given, site: Site::default() })?;
        node.classes.set(class.minor, parent, given);
        Ok(Change::Class(class))
    }

    /// Reads `parent` and `classid`, in any order.
    fn class_place(&self, words: &mut Words<'_>) -> Result<(Option<Handle>, Handle), ConfigError> {
        let (mut parent, mut class) = (None, None);
        while let Some(key @ ("parent" | "classid" | "root")) = words.clone().next() {
            words.next();
            if if key == "classid" { class.is_some() } else { parent.is_some() } {
                return Err(twice("class", key));
            }
            if key == "root" {
                parent = self.root.map(|root| Handle::new(root, 0));
                continue;
            }
            let handle = handle_of("class", key, words.next())?;
            *(if key == "parent" { &mut parent } else { &mut class }) = Some(handle);
        }
        let class = class.filter(|class| class.minor != 0).ok_or_else(|| {
            ConfigError::new("class", "classid", "", "expected `classid MAJOR:MINOR`")
        })?;
        Ok((parent, class))
    }

    fn delete_class(&mut self, at: &str, class: Handle) -> Result<Change, ConfigError> {
        let below = self.below(Some(class));
        let Some(node) = self.qdiscs.get_mut(&class.major) else {
            let why = format!("there is no qdisc {}", class.qdisc());
            return Err(ConfigError::new(at, "", "", why));
        };
        if node.classes.get(class.minor).is_none() {
            return Err(ConfigError::new(at, "", "", "there is no such class"));
        }
        if node.classes.is_inner(class.minor) {
            return Err(ConfigError::new(at, "", "", "classes stand below it"));
        }
        if self.filters.needs(class) {
            return Err(ConfigError::new(at, "", "", "filters name it"));
        }
        node.classes.remove(class.minor);
        if let Some(below) = below {
            self.remove(below);
        }
        Ok(Change::ClassGone(class))
    }

    fn filter(&mut self, verb: Verb, words: Words<'_>) -> Result<Change, ConfigError> {
        let mut words = Reader::new(words);
        let head = Head::read(&mut words)?;
        let parent = head.parent.unwrap_or_else(|| Handle::new(self.root.unwrap_or(0), 0));
        let how = match verb {
            Verb::Add => How::Add,
            Verb::Replace => How::Replace,
            Verb::Change => How::Change,
            Verb::Delete => How::Delete,
        };
        Table::check(how, &head, &words, parent)?;
        let Some(node) = self.qdiscs.get_mut(&parent.major) else {
            let why = format!("there is no qdisc {}", parent.qdisc());
            let error = ConfigError::new("filter", "parent", &parent.to_string(), why);
            return Err(error.kernel(Errno::Invalid, "Parent Qdisc doesn't exists"));
        };
        if let Some((errno, said, why)) = node.why_no_filters(parent) {
            let error = ConfigError::new("filter", "parent", &parent.to_string(), why);
            return Err(error.kernel(errno, said));
        }
        self.filters.apply(parent, how, &head, words)?;
        Ok(Change::Filters(parent))
    }

    /// The qdisc that stands below `parent`.
    fn below(&self, parent: Option<Handle>) -> Option<u16> {
        self.places.get(&parent).copied()
    }

    /// The qdiscs below the classes of one, and their minor numbers.
    fn children(&self, major: u16) -> impl Iterator<Item = (u16, u16)> {
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
                self.places.remove(&node.parent);
                self.filters.remove_qdisc(major);
            }
            self.free = self.free.min(major);
            if self.root == Some(major) {
                self.root = None;
            }
        }
    }

    /// Reads a class that a qdisc can stand below.
    fn class_named(&self, at: &str, word: Option<&str>) -> Result<Handle, ConfigError> {
        let parent = handle_of(at, "parent", word)?;
        let word = word.unwrap_or_default();
        let wrong = |why: String| ConfigError::new(at, "parent", word, why);
        let Some(node) = self.qdiscs.get(&parent.major) else {
            return Err(wrong(format!("there is no qdisc {}", parent.qdisc())));
        };
        let kind = node.spec.kind();
        match kind.classes {
            ClassKind::None => Err(wrong(format!("{} has no classes", kind.id))),
            ClassKind::Fixed(count) => {
                // As in Linux, a place for one child is found by any number, also by none.
                if kind.has_one_place() {
                    return Ok(Handle::new(parent.major, 1));
                }
                let most = count(&node.spec.values(0));
                if (1..=most).contains(&parent.minor) {
                    return Ok(parent);
                }
                let last = Handle::new(parent.major, most);
                Err(wrong(format!("its classes are {:x}:1 to {last}", parent.major)))
            }
            ClassKind::Added { .. } => {
                if node.classes.get(parent.minor).is_none() {
                    return Err(wrong("there is no such class".into()));
                }
                if node.classes.is_inner(parent.minor) {
                    return Err(wrong("classes stand below it: it is no leaf".into()));
                }
                Ok(parent)
            }
        }
    }

    fn free_handle(&self) -> Result<u16, ConfigError> {
        let mut own = self.free.max(FIRST_OWN_HANDLE)..u16::MAX;
        own.find(|major| !self.qdiscs.contains_key(major)).ok_or_else(|| {
            ConfigError::new("qdisc", "", "", "no handle is left: the tree has 32,766 qdiscs")
        })
    }
}

fn class_params(spec: &Spec) -> &'static [Param] {
    match spec.kind().classes {
        ClassKind::Added { params, .. } => params,
        _ => &[],
    }
}

fn twice(at: &str, key: &str) -> ConfigError {
    ConfigError::new(at, key, "", "given twice")
}

fn place(parent: Option<Handle>) -> String {
    parent.map_or_else(|| "root".into(), |parent| format!("parent {parent}"))
}

fn handle_of(at: &str, key: &str, word: Option<&str>) -> Result<Handle, ConfigError> {
    let read = word.unwrap_or_default().parse::<Handle>();
    read.map_err(|error| ConfigError { at: at.into(), key: key.into(), ..error })
}

fn qdisc_handle(word: Option<&str>) -> Result<u16, ConfigError> {
    let word = word.unwrap_or_default();
    let handle = word.parse::<Handle>().ok().filter(|h| h.minor == 0 && h.major != 0);
    handle.map(|handle| handle.major).ok_or_else(|| {
        let why = "expected a qdisc's handle such as 1:, hexadecimal, 1: to ffff:";
        ConfigError::new("qdisc", "handle", word, why)
    })
}
