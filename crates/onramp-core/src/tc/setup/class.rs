//! Applies `tc class add | replace | change | del` to the description of a tree, as Linux does.
//!
//! Source: behaviour of Linux 7.2 `net/sched/sch_api.c` (`tc_ctl_tclass`), `sch_htb.c`,
//! `sch_hfsc.c`, `sch_drr.c`, `sch_qfq.c`, `sch_ets.c`, compared case by case.

use super::{Change, Node, Setup};
use crate::base::params::{Param, Site, Value, Values, merged};
use crate::base::{ConfigError, Errno, Handle};
use crate::sched::{ClassKind, ClassOption, Kind};
use crate::tc::cmd::{ClassHead, ROOT, Verb, class_of};
use crate::tc::kinds::Kinds;
use crate::tc::spec::{Words, check, complete, read_options};

fn refused(at: &str, errno: Errno, said: &'static str, why: impl Into<String>) -> ConfigError {
    ConfigError::new(at, "", "", why).kernel(errno, said)
}

/// The values of a class's options that a command gives.
type Given = Vec<Option<Value>>;

impl Setup {
    pub(super) fn class(
        &mut self,
        verb: Verb,
        mut words: Words<'_>,
    ) -> Result<Change, ConfigError> {
        let head = ClassHead::read(&mut words)?;
        let options = head.kind.map(|id| read_class(&self.kinds, id, &mut words)).transpose()?;
        let device = self.named("class", head.device)?;
        let (class, parent) = self.class_numbers(head)?;
        let at = format!("class {class}");
        let node = self.qdiscs.get(&class.major).ok_or_else(|| {
            refused(&at, Errno::NoEntry, "", format!("there is no qdisc {}", class.qdisc()))
        })?;
        if let ClassKind::None = node.spec.kind().classes {
            let why = format!("{} has no classes", node.spec.kind().id);
            return Err(refused(&at, Errno::Invalid, "", why));
        }
        if class == class_of(ROOT) && verb != Verb::Delete {
            let said = "Cannot create traffic class with classid TC_H_ROOT";
            return Err(refused(&at, Errno::Invalid, said, "this number is reserved for the root"));
        }
        // As in Linux, a line without `classid` names the class 0 only if it says `root`.
        let named = head.class.is_some_and(|class| class != 0) || head.parent == Some(ROOT);
        let there = (named || class.minor != 0) && node.has_class(class.minor);
        let change = match (verb, there) {
            (Verb::Delete, true) => self.delete_class(&at, class),
            (Verb::Delete, false) => {
                Err(refused(&at, Errno::NoEntry, "", "there is no such class"))
            }
            (Verb::Change | Verb::Link, false) => {
                Err(refused(&at, Errno::NoEntry, "", "there is no such class; use add"))
            }
            (Verb::Add, true) => {
                let why = "the class exists already; use change or replace";
                Err(refused(&at, Errno::Exists, "", why))
            }
            (_, there) => {
                let options = head.kind.zip(options);
                self.set_class(&at, class, parent, (there, named), options)
            }
        }?;
        self.name(device);
        Ok(change)
    }

    /// Returns the handle of the class that a command names, and its parent, or `None` in place of
    /// the parent if the command does not name one.
    fn class_numbers(&self, head: ClassHead<'_>) -> Result<(Handle, Option<Handle>), ConfigError> {
        let (parent, class) = (head.parent.unwrap_or(0), class_of(head.class.unwrap_or(0)));
        let root = self.root.unwrap_or(0);
        let above = class_of(parent);
        let major = match (class.major, above.major) {
            (0, _) if parent == ROOT => root,
            (major, _) if parent == ROOT => major,
            (0, 0) => root,
            (0, major) | (major, 0) => major,
            (major, other) if major == other => major,
            _ => {
                let why = format!("expected a parent that belongs to qdisc {}", class.qdisc());
                let error = ConfigError::new("class", "parent", &above.to_string(), why);
                return Err(error.kernel(Errno::Invalid, ""));
            }
        };
        let parent = match parent {
            0 => None,
            ROOT => Some(above),
            _ => Some(Handle::new(major, above.minor)),
        };
        Ok((Handle::new(major, class.minor), parent))
    }

    fn set_class(
        &mut self,
        at: &str,
        class: Handle,
        parent: Option<Handle>,
        (there, named): (bool, bool),
        options: Option<(&str, Given)>,
    ) -> Result<Change, ConfigError> {
        let Some(node) = self.qdiscs.get_mut(&class.major) else { return Ok(Change::Nothing) };
        let kind = node.spec.kind();
        let quirks = &kind.quirks.added;
        if let Some(option) = &kind.quirks.class_option {
            match &options {
                Some((id, given)) if *id == kind.id => {
                    return self.set_option(at, class, option, given);
                }
                Some(_) => {}
                None => {
                    let why = format!("expected the kind {} after the class", kind.id);
                    return Err(refused(at, Errno::Invalid, option.missing, why));
                }
            }
        }
        let ClassKind::Added { params, check: agree, nested } = kind.classes else {
            let why = format!(
                "classes of {} cannot be added or deleted, because its parameters determine them",
                kind.id
            );
            return Err(refused(at, Errno::NotSupported, "", why));
        };
        if class.minor == 0 && (!named || quirks.root_is_class) {
            let why = "expected `classid MAJOR:MINOR`";
            return Err(ConfigError::new("class", "classid", "", why).kernel(Errno::Invalid, ""));
        }
        let given = match options {
            Some((id, given)) if id == kind.id => given,
            None => {
                let why = format!("expected the kind {} after the class", kind.id);
                return Err(refused(at, Errno::Invalid, quirks.options_missing, why));
            }
            Some((id, _)) => {
                let why =
                    format!("expected {}, which is the kind of qdisc {}", kind.id, class.qdisc());
                return Err(ConfigError::new(at, "", id, why).kernel(Errno::Invalid, ""));
            }
        };
        let parent = node.class_parent(at, kind, class, parent, nested)?;
        let before = if there { node.classes.get(class.minor) } else { None };
        let mut given = merged(at, params, before.map(|row| &row.given[..]), given)?;
        if let Some(before) = before.filter(|_| node.is_inner(class.minor)) {
            for (at, param) in params.iter().enumerate() {
                if quirks.of_leaves.contains(&param.key) {
                    given[at].clone_from(&before.given[at]);
                }
            }
        }
        check(at, agree, &Values { params, given: &given, site: Site::default() })?;
        node.classes.set(class, parent, nested, given);
        let inner = self.below(Some(Handle::new(class.major, parent)));
        if let Some(gone) = inner.filter(|_| quirks.inner_has_no_qdisc) {
            self.remove(gone);
        }
        Ok(Change::Class(class))
    }

    /// Sets an option of a class whose qdisc keeps that option as a parameter of its own, such as
    /// the quantum of an `ets` class, by changing the qdisc.
    fn set_option(
        &mut self,
        at: &str,
        class: Handle,
        option: &ClassOption,
        given: &[Option<Value>],
    ) -> Result<Change, ConfigError> {
        let site = self.site(class.major, self.facts.mtu, 0);
        let Some(node) = self.qdiscs.get_mut(&class.major) else { return Ok(Change::Nothing) };
        if !node.has_class(class.minor) {
            let why = "the qdisc has no such class; change its bands instead";
            return Err(refused(at, Errno::NotSupported, option.no_class, why));
        }
        let [Some(Value::Number(number))] = given else { return Ok(Change::Nothing) };
        let (key, value) =
            (option.set)(&node.spec.values_at(site), class.minor, *number).map_err(|clash| {
                ConfigError { fault: clash.fault, ..ConfigError::new(at, clash.key, "", clash.why) }
            })?;
        node.spec.give(key, value);
        Ok(Change::Parameters(class.major))
    }

    fn delete_class(&mut self, at: &str, class: Handle) -> Result<Change, ConfigError> {
        let below = self.below(Some(class));
        let Some(node) = self.qdiscs.get_mut(&class.major) else { return Ok(Change::Nothing) };
        let kind = node.spec.kind();
        let ClassKind::Added { .. } = kind.classes else {
            let why = format!(
                "classes of {} cannot be added or deleted, because its parameters determine them",
                kind.id
            );
            return Err(refused(at, Errno::NotSupported, "", why));
        };
        let in_use = kind.quirks.added.in_use;
        let is_root = class.minor == 0 && kind.quirks.added.root_is_class;
        if is_root || node.classes.is_inner(class.minor) {
            return Err(refused(
                at,
                Errno::Busy,
                in_use,
                "the class has child classes, or is the root",
            ));
        }
        // As in Linux, a filter at a class of an `hfsc` holds only classes of a lower level, and a
        // class without child classes has the lowest.
        let holds = |minor| !kind.quirks.added.root_is_class || node.classes.is_inner(minor);
        if self.filters.names_from(class, holds) {
            return Err(refused(at, Errno::Busy, in_use, "filters refer to the class"));
        }
        node.classes.remove(class);
        self.filters.remove_class(class);
        if let Some(below) = below {
            self.remove(below);
        }
        Ok(Change::ClassGone(class))
    }
}

impl Node {
    /// Whether the qdisc has the class `minor`.
    pub(super) fn has_class(&self, minor: u16) -> bool {
        match self.spec.kind().classes {
            ClassKind::None => false,
            ClassKind::Fixed(count) => (1..=count(&self.spec.values_anywhere())).contains(&minor),
            ClassKind::Added { .. } => {
                let is_root = minor == 0 && self.spec.kind().quirks.added.root_is_class;
                is_root || self.classes.get(minor).is_some()
            }
        }
    }

    /// Whether the class `minor` has child classes. All added classes stand below the class that
    /// the qdisc itself counts as, if it counts as one.
    pub(super) fn is_inner(&self, minor: u16) -> bool {
        let is_root = minor == 0 && self.spec.kind().quirks.added.root_is_class;
        self.classes.is_inner(minor) || is_root && self.classes.rows().next().is_some()
    }

    /// Returns the minor number of the parent class that Linux lists for a class, which may be the
    /// class that the qdisc itself counts as.
    fn listed_parent(&self, minor: u16) -> Option<u16> {
        let root = || Some(0).filter(|_| minor != 0 && self.spec.kind().quirks.added.root_is_class);
        self.classes.parent(minor).or_else(root)
    }

    /// Returns the minor number of the class below which `class` is to stand, or 0 if it is to
    /// stand below the qdisc itself.
    fn class_parent(
        &self,
        at: &str,
        kind: &Kind,
        class: Handle,
        parent: Option<Handle>,
        nested: bool,
    ) -> Result<u16, ConfigError> {
        let wrong = |errno, said, why: String| {
            let name = parent.map(|parent| parent.to_string()).unwrap_or_default();
            Err(ConfigError::new(at, "parent", &name, why).kernel(errno, said))
        };
        let quirks = &kind.quirks.added;
        let there = self.classes.get(class.minor).map(|row| row.parent);
        let Some(parent) = parent else { return Ok(there.unwrap_or(0)) };
        // As in Linux, the parent is ignored for kinds whose classes cannot stand below other
        // classes.
        if !nested {
            return Ok(0);
        }
        let minor = Some(parent.minor).filter(|_| parent != class_of(ROOT));
        if let Some(there) = there {
            if quirks.any_parent || minor == Some(there) {
                return Ok(there);
            }
            let why = "a class cannot move; delete it first".to_owned();
            return wrong(Errno::Invalid, "", why);
        }
        let minor = match minor {
            None if quirks.root_is_class => {
                let why = format!(
                    "the root class of {} exists already; expected a parent class",
                    kind.id
                );
                return wrong(Errno::Exists, "", why);
            }
            None if class.minor != 0 && self.classes.get(0).is_some() => {
                let name = class.qdisc();
                let why = format!(
                    "Onramp cannot add a class beside the class {name}; expected `parent {name}` \
                     or another class"
                );
                return wrong(Errno::NotSupported, "", why);
            }
            None => return Ok(0),
            Some(0) if class.minor == 0 || self.classes.get(0).is_none() => return Ok(0),
            Some(minor) => minor,
        };
        let Some(above) = self.classes.get(minor) else {
            if quirks.any_parent {
                return Ok(0);
            }
            return wrong(Errno::NoEntry, "", "there is no such class".into());
        };
        let (deepest, said) = quirks.deepest;
        if above.depth >= deepest {
            let why = format!("{} allows at most {deepest} levels of classes", kind.id);
            return wrong(Errno::Invalid, said, why);
        }
        Ok(minor)
    }
}

/// Reads the options of a class of the kind with the name `id`, one of `kinds`.
fn read_class(kinds: &Kinds, id: &str, words: &mut Words<'_>) -> Result<Given, ConfigError> {
    let kind = kinds.find(id);
    let params: Option<&'static [Param]> = kind.and_then(|kind| match kind.classes {
        ClassKind::Added { params, .. } => Some(params),
        _ => kind.quirks.class_option.map(|option| option.params),
    });
    let Some(params) = params else {
        let ids = kinds.iter().filter(|kind| matches!(kind.classes, ClassKind::Added { .. }));
        let ids = ids.map(|kind| kind.id).collect::<Vec<_>>().join(", ");
        let why = format!("classes can be added only to qdiscs of the kinds {ids}");
        return Err(ConfigError::new("class", "", id, why));
    };
    let at = format!("class {id}");
    let given = read_options(&at, params, words, false, false)?;
    complete(&at, params, &given)?;
    Ok(given)
}

impl Setup {
    /// Whether the class has no child classes.
    pub(crate) fn is_leaf(&self, class: Handle) -> bool {
        let node = self.qdiscs.get(&class.major);
        node.is_some_and(|node| !node.is_inner(class.minor))
    }

    /// Returns the minor numbers of the classes that were added to a qdisc, in the order in which
    /// Linux lists them, each with the minor number of the parent class that Linux lists, if any.
    pub(crate) fn added_classes(&self, major: u16) -> impl Iterator<Item = (u16, Option<u16>)> {
        let node = self.qdiscs.get(&major);
        node.into_iter().flat_map(|node| {
            node.classes.order.iter().map(move |minor| (minor, node.listed_parent(minor)))
        })
    }

    /// Returns the minor numbers of one of these classes and of its parent class, or `None` if
    /// there is no such class.
    pub(crate) fn added_class(&self, class: Handle) -> Option<(u16, Option<u16>)> {
        let node = self.qdiscs.get(&class.major)?;
        node.has_class(class.minor).then(|| (class.minor, node.listed_parent(class.minor)))
    }
}
