//! Applies `tc qdisc add | replace | change | link | del` to the description of a tree, as Linux
//! does.
//!
//! Source: behaviour of Linux 7.2 `net/sched/sch_api.c` (`tc_modify_qdisc`, `tc_get_qdisc`),
//! compared case by case.
//! Differs: when a qdisc below a class is deleted, the default qdisc of the class takes its place,
//! also below `mq`.

use super::{Change, NO_CHOICE, Node, Setup};
use crate::base::handle::FIRST_OWN_HANDLE;
use crate::base::params::Value;
use crate::base::{ConfigError, Errno, Handle};
use crate::sched::{ClassKind, Kind};
use crate::tc::Spec;
use crate::tc::cmd::{INGRESS, INGRESS_MAJOR, QdiscHead, ROOT, Verb, class_of};
use crate::tc::spec::Words;

/// Which qdisc a command is about: the one at a place (the root or a class), or the one with a
/// handle.
enum Target {
    /// The place of the qdisc, at the root (`None`) or below a class; and the major number of the
    /// qdisc that is there, or `None` if no command added one.
    Place(Option<Handle>, Option<u16>),
    /// The qdisc with this major number, wherever it is.
    Named(u16),
}

/// Returns the error for a command about a qdisc that the kernel, and not `tc`, refuses: with the
/// error number `errno`, the kernel's message `said` (empty if it sends none), and the reason `why`
/// the value `value` of the option `key` is wrong.
fn refused(errno: Errno, said: &'static str, key: &str, value: &str, why: &str) -> ConfigError {
    ConfigError::new("qdisc", key, value, why).kernel(errno, said)
}

impl Setup {
    pub(super) fn qdisc(
        &mut self,
        verb: Verb,
        mut words: Words<'_>,
    ) -> Result<Change, ConfigError> {
        let head = QdiscHead::read(&mut words)?;
        if head.parent == Some(INGRESS) {
            let device = self.named("qdisc", head.device)?;
            return self.ingress_line(verb, head, words).inspect(|_| self.name(device));
        }
        // A command that deletes a qdisc may give any word as the kind, even one that is no kind.
        let named = verb == Verb::Delete && words.clone().next().is_none();
        let kind = head.kind.filter(|_| !named);
        let read = |kind| Spec::read_kind(&self.kinds, kind, &mut words, false);
        let spec = kind.map(read).transpose()?;
        let device = self.named("qdisc", head.device)?;
        let change = match verb {
            Verb::Delete => self.delete_qdisc(head),
            _ => self.modify_qdisc(verb, head, spec),
        }?;
        if let (Change::Qdisc(major), Some(parent)) = (&change, head.parent)
            && let Some(node) = self.qdiscs.get_mut(major).filter(|node| node.parent.is_some())
        {
            node.typed = Some(class_of(parent));
        }
        self.name(device);
        Ok(change)
    }

    /// Returns the device that a command names. All commands must name the device that the first
    /// command named.
    pub(super) fn named<'w>(
        &self,
        at: &str,
        device: Option<&'w str>,
    ) -> Result<&'w str, ConfigError> {
        match (device, &self.device) {
            (None, _) => {
                let why = "expected `dev NAME`";
                Err(ConfigError::new(at, "dev", "", why).kernel(Errno::NoDevice, ""))
            }
            (Some(name), Some(device)) if device != name => {
                let why =
                    format!("expected {device}, the only device, as named in an earlier line");
                Err(ConfigError::new(at, "dev", name, why))
            }
            (Some(name), _) => Ok(name),
        }
    }

    pub(super) fn name(&mut self, device: &str) {
        self.device.get_or_insert_with(|| device.to_owned());
    }

    /// Returns which qdisc a command is about.
    fn target(&self, head: QdiscHead<'_>, missing: &'static str) -> Result<Target, ConfigError> {
        let Some(parent) = head.parent.filter(|parent| *parent != 0) else {
            return Ok(Target::Named(head.handle.unwrap_or(0)));
        };
        if parent == ROOT {
            return Ok(Target::Place(None, self.root));
        }
        let class = class_of(parent);
        let class = self.leaf_place(class, missing)?;
        Ok(Target::Place(Some(class), self.below(Some(class))))
    }

    /// Returns the class as a place below which a qdisc can stand, or an error if no qdisc can
    /// stand there. If the parent qdisc has exactly one child, any class that the command names
    /// means class 1.
    fn leaf_place(&self, class: Handle, missing: &'static str) -> Result<Handle, ConfigError> {
        let name = class.to_string();
        let wrong = |errno, said, why: &str| Err(refused(errno, said, "parent", &name, why));
        let Some(node) = self.qdiscs.get(&class.major) else {
            let why = format!("there is no qdisc {}", class.qdisc());
            return wrong(Errno::NoEntry, missing, &why);
        };
        let kind = node.spec.kind();
        const NO_CLASS: &str = "Specified class not found";
        match kind.classes {
            ClassKind::None => {
                let why = format!("{} has no classes", kind.id);
                wrong(Errno::NotSupported, "Parent qdisc is not classful", &why)
            }
            ClassKind::Fixed(_) if kind.quirks.has_one_place => Ok(Handle::new(class.major, 1)),
            ClassKind::Fixed(_) => {
                let most = self.fixed_classes(&node.spec);
                if (1..=most).contains(&class.minor) {
                    return Ok(class);
                }
                let last = Handle::new(class.major, most);
                let why = format!("its classes are {:x}:1 to {last}", class.major);
                wrong(Errno::NoEntry, NO_CLASS, &why)
            }
            ClassKind::Added { .. } if !node.has_class(class.minor) => {
                wrong(Errno::NoEntry, NO_CLASS, "there is no such class")
            }
            ClassKind::Added { .. } => Ok(class),
        }
    }

    fn delete_qdisc(&mut self, head: QdiscHead<'_>) -> Result<Change, ConfigError> {
        let (place, there) =
            match self.target(head, "Failed to find qdisc with specified classid")? {
                Target::Named(major) => {
                    if self.qdiscs.contains_key(&major) {
                        let why = "expected the place of the qdisc: root or parent CLASS";
                        let said = "Classid cannot be zero";
                        return Err(refused(Errno::Invalid, said, "parent", "", why));
                    }
                    let (said, why) =
                        ("Failed to find qdisc with specified handle", "there is no such qdisc");
                    return Err(refused(Errno::NoEntry, said, "handle", &handle(major), why));
                }
                Target::Place(place, there) => (place, there),
            };
        let at = place_name(place);
        if let Some(given) = head.handle.filter(|given| *given != 0 && there != Some(*given)) {
            let why = there.map_or_else(
                || "no qdisc was added there".into(),
                |there| format!("the qdisc there is {}", handle(there)),
            );
            return Err(refused(Errno::Invalid, "Invalid handle", &at, &handle(given), &why));
        }
        let kind = self.kind_at(place, there);
        if let (Some(named), Some(kind)) = (head.kind, kind)
            && named != kind.id
        {
            return Err(other_kind(&at, named, kind));
        }
        let Some(there) = there else {
            let (said, why) =
                ("Cannot delete qdisc with handle of zero", "there is no qdisc to delete");
            return Err(refused(Errno::NoEntry, said, &at, "", why));
        };
        if place.is_none() && self.is_running && self.facts.fallback.is_none() {
            let why = "a tree needs a root; replace it instead";
            return Err(ConfigError::new("qdisc", "root", "", why));
        }
        self.remove(there);
        Ok(place.map_or(Change::RootGone, Change::Gone))
    }

    /// Returns the kind of the qdisc at the root or below a class (`place`). At the root, it may be
    /// the kind of the device's default qdisc.
    fn kind_at(&self, place: Option<Handle>, there: Option<u16>) -> Option<&'static Kind> {
        match (there, place) {
            (Some(there), _) => self.spec(there).map(Spec::kind),
            (None, None) => self.facts.fallback.as_ref().map(Spec::kind),
            (None, Some(_)) => None,
        }
    }

    fn modify_qdisc(
        &mut self,
        verb: Verb,
        head: QdiscHead<'_>,
        spec: Option<Spec>,
    ) -> Result<Change, ConfigError> {
        let given = head.handle.filter(|handle| *handle != 0);
        if let (Some(parent), Some(_)) = (head.parent, &self.ingress)
            && parent != ROOT
            && class_of(parent).major == INGRESS_MAJOR
        {
            let said = "Cannot add children to ingress/clsact qdisc";
            let (name, why) = (class_of(parent).to_string(), "only filters can be added there");
            return Err(refused(Errno::NotSupported, said, "parent", &name, why));
        }
        let (place, there) = match self.target(head, "Failed to find specified qdisc")? {
            Target::Named(0) => {
                let why = "expected `root` or `parent MAJOR:MINOR`, or the handle of a qdisc";
                let said = "Handle cannot be zero";
                return Err(refused(Errno::Invalid, said, "", "", why));
            }
            Target::Named(major) => return self.change_qdisc(verb, Some(major), spec),
            Target::Place(place, there) => (place, there),
        };
        let at = place_name(place);
        match (there, given) {
            // The command gives the handle of the qdisc that is already at the root or below the
            // parent class, so it changes that qdisc.
            (Some(there), Some(given)) if there == given => {}
            (Some(there), Some(given)) if !verb.replaces() => {
                let why = format!("{} is there already; use replace", handle(there));
                let said = "NLM_F_REPLACE needed to override";
                return Err(refused(Errno::Exists, said, &at, &handle(given), &why));
            }
            (_, Some(given)) if !self.qdiscs.contains_key(&given) => {
                return self.create(verb, place, there, given, spec);
            }
            (_, Some(given)) => {
                let why = "this qdisc is elsewhere; delete it, and add a new one here";
                let said = "Cannot move an existing qdisc to a different parent";
                return Err(refused(Errno::Invalid, said, "handle", &handle(given), why));
            }
            (None, None) => {
                let own = self.free_handle()?;
                return self.create(verb, place, None, own, spec);
            }
            // If the command gives no handle, and another kind than that of the qdisc at the root
            // or below the parent class, it replaces that qdisc by a new one, even with `add` and
            // `change`.
            (Some(there), None) if self.is_other(there, spec.as_ref()) => {
                let own = self.free_handle()?;
                return self.create(Verb::Replace, place, Some(there), own, spec);
            }
            (Some(_), None) => {}
        }
        self.change_qdisc(verb, there, spec)
    }

    fn is_other(&self, there: u16, spec: Option<&Spec>) -> bool {
        let kind = self.spec(there).map(|spec| spec.kind().id);
        spec.is_some_and(|spec| Some(spec.kind().id) != kind)
    }

    /// Gives the qdisc `there` new parameters.
    fn change_qdisc(
        &mut self,
        verb: Verb,
        there: Option<u16>,
        spec: Option<Spec>,
    ) -> Result<Change, ConfigError> {
        let node = there.and_then(|there| self.qdiscs.get_mut(&there));
        let (Some(there), Some(node)) = (there, node) else {
            let why = "there is no such qdisc; use add";
            let said = "Specified qdisc not found";
            return Err(refused(Errno::NoEntry, said, "", "", why));
        };
        let at = place_name(node.parent);
        if verb.excludes() {
            let why = format!("{} is there already; use replace", handle(there));
            let said = "Exclusivity flag on, cannot modify";
            return Err(refused(Errno::Exists, said, &at, "", &why));
        }
        let Some(spec) = spec else { return Ok(Change::Nothing) };
        if spec.kind().id != node.spec.kind().id {
            return Err(other_kind(&at, spec.kind().id, node.spec.kind()));
        }
        if !spec.may_change() {
            let why = format!(
                "a {} cannot be changed after it was added; add a new one with another handle",
                spec.kind().id
            );
            let said = "Change operation not supported by specified qdisc";
            return Err(refused(Errno::Invalid, said, &at, "", &why));
        }
        node.spec = node.spec.changed_by(&spec)?;
        node.said = spec.values(0).said();
        let node = &self.qdiscs[&there];
        let anew = node.spec.kind().quirks.renews_child;
        let gone = self.children(there).filter(|&(minor, _)| anew || !node.has_class(minor));
        for child in gone.map(|(_, child)| child).collect::<Vec<_>>() {
            self.remove(child);
        }
        self.limit_fifo_below(there);
        Ok(Change::Parameters(there))
    }

    /// After a change of the qdisc `parent`, sets the limit of a fifo below it, if Linux does so
    /// for the kind of `parent` (`tbf`).
    fn limit_fifo_below(&mut self, parent: u16) {
        let Some(limit) = self.spec(parent).and_then(Spec::limit_below) else { return };
        for child in self.children(parent).map(|(_, child)| child).collect::<Vec<_>>() {
            let fifo = self.qdiscs.get_mut(&child).filter(|node| node.spec.kind().quirks.fifo);
            fifo.into_iter().for_each(|node| node.spec.give("limit", Value::Number(limit)));
        }
    }

    /// Sets the number of bands to the number of the device's transmit queues, if the command does
    /// not give a number of bands and the kind of the qdisc does so by default (`multiq`).
    fn bands_of_queues(&self, at: &str, spec: &mut Spec) -> Result<(), ConfigError> {
        let (queues, kind) = (self.facts.queues, spec.kind());
        let Some(bands) = kind.quirks.bands_of_queues else { return Ok(()) };
        if queues == 0 || spec.is_given(bands) {
            return Ok(());
        }
        if queues == 1 {
            let why = "the device has one transmit queue; expected the number of bands";
            return Err(refused(Errno::NotSupported, "", at, kind.id, why));
        }
        spec.give(bands, Value::Number(queues.into()));
        Ok(())
    }

    /// Creates a new qdisc at the root or below a class, and removes the qdisc that was there, if
    /// any.
    fn create(
        &mut self,
        verb: Verb,
        place: Option<Handle>,
        there: Option<u16>,
        major: u16,
        spec: Option<Spec>,
    ) -> Result<Change, ConfigError> {
        let at = place_name(place);
        if !verb.creates() {
            let why = "no qdisc is there; use add";
            let said = "Qdisc not found. To create specify NLM_F_CREATE flag";
            return Err(refused(Errno::NoEntry, said, &at, "", why));
        }
        let Some(mut spec) = spec else {
            return Err(Spec::unknown(&self.kinds, ""));
        };
        spec.check_new(&at)?;
        self.bands_of_queues(&at, &mut spec)?;
        let kind = spec.kind();
        if let (true, Some(_)) = (kind.quirks.stands_at_root, place) {
            let why = format!(
                "{} can only be the root, because its classes are transmit queues",
                kind.id
            );
            return Err(refused(Errno::NotSupported, "", &at, kind.id, &why));
        }
        if self.facts.ports && kind.quirks.chooses_queue {
            return Err(refused(Errno::NotSupported, "", &at, kind.id, NO_CHOICE));
        }
        if let (true, 1) = (kind.quirks.stands_at_root, self.facts.queues) {
            let why = format!("the device has one transmit queue, and {} needs several", kind.id);
            return Err(refused(Errno::NotSupported, "", &at, kind.id, &why));
        }
        if let Some(class) = place
            && self.qdiscs.get(&class.major).is_some_and(|node| node.is_inner(class.minor))
        {
            let why = "the class has child classes, so no qdisc can be added below it";
            return Err(refused(Errno::Invalid, "", "parent", &class.to_string(), why));
        }
        if let Some(there) = there {
            self.remove(there);
        }
        if major == self.first_free() {
            self.free = major.saturating_add(1);
        }
        self.insert(place, major, spec);
        Ok(Change::Qdisc(major))
    }

    pub(super) fn insert(&mut self, parent: Option<Handle>, major: u16, spec: Spec) {
        let mut node = Node::new(parent, spec);
        if node.spec.kind().quirks.added.root_is_class {
            node.classes.order.add(major, 0);
        }
        self.qdiscs.insert(major, node);
        self.places.insert(parent, major);
        if parent.is_none() {
            self.root = Some(major);
            self.facts.fallback = self.next_fallback.take().or_else(|| self.facts.fallback.take());
        } else {
            self.order.add(major);
        }
    }

    /// Returns the handle at which `free_handle` begins to search: no automatic handle (8001: and
    /// above) below it is free.
    fn first_free(&self) -> u16 {
        self.free.max(FIRST_OWN_HANDLE)
    }

    fn free_handle(&self) -> Result<u16, ConfigError> {
        let mut own = self.first_free()..u16::MAX;
        own.find(|major| !self.qdiscs.contains_key(major)).ok_or_else(|| {
            let why = "no handle is left: the tree has 32,766 qdiscs";
            refused(Errno::NoSpace, "", "", "", why)
        })
    }

    /// Applies a command about an `ingress` or `clsact`, which have filters but hold no packets.
    fn ingress_line(
        &mut self,
        verb: Verb,
        head: QdiscHead<'_>,
        mut words: Words<'_>,
    ) -> Result<Change, ConfigError> {
        let id = head.kind.unwrap_or_default();
        if let Some(word) = words.next() {
            return Err(ConfigError::new("qdisc", "", word, format!("{id} takes no options")));
        }
        let there = self.ingress.as_ref().map(|node| node.spec.kind().id);
        let at = "parent ffff:fff1";
        match (verb, there) {
            (Verb::Delete, None) if self.had_ingress => {
                return Err(refused(
                    Errno::Invalid,
                    "Invalid handle",
                    at,
                    "",
                    "the qdisc was deleted before",
                ));
            }
            (Verb::Delete, None) => {
                let said = "Cannot find specified qdisc on specified device";
                return Err(refused(Errno::NoEntry, said, at, "", "there is none"));
            }
            (Verb::Delete, Some(there)) if !id.is_empty() && there != id => {
                let said = "Invalid qdisc name: must match existing qdisc";
                return Err(refused(
                    Errno::Invalid,
                    said,
                    at,
                    id,
                    &format!("the qdisc there is {there}"),
                ));
            }
            (Verb::Delete, Some(_)) => {
                self.ingress = None;
                self.filters.remove_qdisc(INGRESS_MAJOR);
            }
            (Verb::Add, Some(there)) => {
                let said = "Exclusivity flag on, cannot modify";
                return Err(refused(
                    Errno::Exists,
                    said,
                    at,
                    id,
                    &format!("the qdisc there is {there}"),
                ));
            }
            (_, Some(there)) if there == id || id.is_empty() => return Ok(Change::Nothing),
            (_, Some(there)) => {
                let said = "Invalid qdisc name: must match existing qdisc";
                return Err(refused(
                    Errno::Invalid,
                    said,
                    at,
                    id,
                    &format!("the qdisc there is {there}"),
                ));
            }
            (Verb::Change | Verb::Link, None) => {
                let said = "Qdisc not found. To create specify NLM_F_CREATE flag";
                return Err(refused(Errno::NoEntry, said, at, id, "there is none; use add"));
            }
            (_, None) => {
                let spec = Spec::ingress(id).ok_or_else(|| Spec::unknown(&self.kinds, id))?;
                self.ingress = Some(Box::new(Node::new(None, spec)));
                (self.had_ingress, self.ingress_called) = (true, None);
            }
        }
        Ok(Change::Ingress)
    }
}

fn other_kind(at: &str, wanted: &str, there: &Kind) -> ConfigError {
    let why = format!("a {} is there; use replace with another handle", there.id);
    let said = "Invalid qdisc name: must match existing qdisc";
    refused(Errno::Invalid, said, at, wanted, &why)
}

fn handle(major: u16) -> String {
    Handle::new(major, 0).to_string()
}

pub(super) fn place_name(parent: Option<Handle>) -> String {
    parent.map_or_else(|| "root".into(), |parent| format!("parent {parent}"))
}
