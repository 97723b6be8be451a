//! Changes to a running tree.

use super::Tree;
use crate::filter::FilterSpec;
use crate::qdisc::{Cx, Qdisc};
use crate::setup::Change;
use crate::{ConfigError, Handle, Instant};

impl Tree {
    /// Does what a line of `tc` says: see [`Setup::apply`](crate::Setup::apply).
    ///
    /// As in Linux, a qdisc that is replaced or deleted drops what it holds (`purged`); one that is
    /// changed keeps it, if its kind can change in place.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the word that is wrong, and what would be right. The tree is as it was.
    pub fn apply(&mut self, now: Instant, line: &str) -> Result<(), ConfigError> {
        let mut setup = self.setup.clone();
        let change = setup.change(line)?;
        if setup.root().is_none() {
            let why = "a tree has a root; replace it";
            return Err(ConfigError::new("qdisc", "root", "", why));
        }
        self.setup = setup;
        match change {
            Change::Nothing => {}
            Change::Qdisc(major) => self.renew(now, major),
            Change::Gone(parent) => self.at(now, parent.major, |qdisc, cx| {
                if let Some(classes) = qdisc.classes() {
                    classes.graft(parent.minor, crate::qdisc::default_pfifo(), cx);
                }
            }),
            Change::Parameters(major) => self.change(now, major),
            Change::Class(class) => self.set_class(now, class),
            Change::ClassGone(class) => self.at(now, class.major, |qdisc, cx| {
                if let Some(classes) = qdisc.classes() {
                    classes.remove(class.minor, cx);
                }
            }),
            Change::Filters(place) => self.set_filters(now, place),
        }
        Ok(())
    }

    /// Builds qdisc `major` and what is below it, in the place of what was there.
    fn renew(&mut self, now: Instant, major: u16) {
        let built = self.setup.build_node(major, self.mtu, self.seed);
        match self.setup.parent(major) {
            None => {
                self.call(now, |root, cx| root.reset(cx));
                self.root = built;
            }
            Some(parent) => {
                let mut built = Some(built);
                self.at(now, parent.major, |qdisc, cx| {
                    if let (Some(classes), Some(built)) = (qdisc.classes(), built.take()) {
                        classes.graft(parent.minor, built, cx);
                    }
                });
            }
        }
    }

    /// Gives qdisc `major` its new parameters, or builds it anew if it cannot take them.
    fn change(&mut self, now: Instant, major: u16) {
        let (setup, site) = (self.setup.clone(), self.setup.site(major, self.mtu, self.seed));
        let mut changed = false;
        self.at(now, major, |qdisc, cx| {
            changed = setup.spec(major).is_some_and(|spec| qdisc.change(&spec.values_at(site), cx));
        });
        if !changed {
            self.renew(now, major);
        }
    }

    fn set_class(&mut self, now: Instant, class: Handle) {
        let (setup, site) = (self.setup.clone(), self.setup.site(class.major, self.mtu, self.seed));
        self.at(now, class.major, |qdisc, cx| {
            if let (Some(classes), Some((parent, values))) =
                (qdisc.classes(), setup.class_values(class, site))
            {
                classes.set(class.minor, parent, &values, cx.now);
            }
        });
    }

    /// Puts the filters of a place there, in the place of those there were.
    fn set_filters(&mut self, now: Instant, place: Handle) {
        let setup = self.setup.clone();
        self.at(now, place.major, |qdisc, _cx| {
            if let Some(filters) = qdisc.filters(place.minor) {
                filters.set(setup.filters_at(place));
            }
        });
    }

    /// The filters at a qdisc or class as they are asked, with what they have counted.
    pub fn filters(&mut self, now: Instant, place: Handle) -> Vec<FilterSpec> {
        let mut specs = Vec::new();
        self.at(now, place.major, |qdisc, _cx| {
            if let Some(filters) = qdisc.filters(place.minor) {
                specs.extend(filters.specs().cloned());
            }
        });
        specs
    }

    /// Calls `f` with qdisc `major`, on the way through its parents, which count anew.
    fn at(&mut self, now: Instant, major: u16, mut f: impl FnMut(&mut dyn Qdisc, &mut Cx<'_>)) {
        let path = self.setup.path(major);
        self.call(now, |root, cx| descend(root, &path, cx, &mut f));
    }
}

fn descend(
    qdisc: &mut dyn Qdisc,
    path: &[u16],
    cx: &mut Cx<'_>,
    f: &mut dyn FnMut(&mut dyn Qdisc, &mut Cx<'_>),
) {
    let [minor, rest @ ..] = path else { return f(qdisc, cx) };
    let Some(classes) = qdisc.classes() else { return };
    if let Some(child) = classes.child(*minor) {
        descend(child.qdisc(), rest, cx, f);
    }
    classes.recount(*minor);
}
