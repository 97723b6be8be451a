//! Changes to a running tree.

use std::sync::Arc;

use super::RootQdisc;
use crate::base::Handle;
use crate::filter::FilterSpec;
use crate::qdisc::default_pfifo;
use crate::qdisc::pfifo_fast::default_pfifo_fast;
use crate::sched::{Cx, Qdisc};
use crate::tc::Setup;
use crate::tc::setup::Change;

/// A change to a running tree, made ready by whoever wants it: what has to be built is built, so
/// that it takes those who send no longer than it takes to put it there.
#[derive(Debug)]
pub struct Edit {
    /// The tree as it shall be.
    setup: Arc<Setup>,
    mtu: u32,
    seed: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    /// Another qdisc stands at the root.
    Root(Box<dyn Qdisc>),
    /// Another qdisc stands below a class of the qdisc that this is the way to.
    Graft(Path, u16, Box<dyn Qdisc>),
    /// This qdisc has other parameters.
    Parameters(Path, u16),
    /// This class is new, or has other parameters.
    Class(Path, Handle),
    ClassGone(Path, u16),
    /// Other filters are asked at this place.
    Filters(Path, Handle),
}

/// The classes on the way from the root to a qdisc.
type Path = Vec<u16>;

impl Edit {
    /// The one transmit queue that `change`, which led to `setup`, means something for; `None`: all
    /// of them.
    #[must_use]
    pub fn queue(setup: &Setup, change: &Change) -> Option<usize> {
        if !setup.is_mq() {
            return None;
        }
        let path = match *change {
            Change::Nothing | Change::Ingress | Change::RootGone => return None,
            Change::Qdisc(major) | Change::Parameters(major) => setup.path(major),
            Change::Class(place) | Change::ClassGone(place) | Change::Filters(place) => {
                setup.path(place.major)
            }
            Change::Gone(class) => {
                let mut path = setup.path(class.major);
                path.push(class.minor);
                path
            }
        };
        path.first().and_then(|minor| usize::from(*minor).checked_sub(1))
    }

    /// What `change`, which led to `setup`, means for transmit queue `queue` of a device that has
    /// several, or, without one, for the whole tree. `None`: nothing. `mtu` and `seed` are those
    /// that the tree is built with.
    #[must_use]
    pub fn new(
        setup: &Arc<Setup>,
        change: &Change,
        queue: Option<usize>,
        mtu: u32,
        seed: u64,
    ) -> Option<Self> {
        let place = |major| setup.path_in(major, queue);
        let what = match *change {
            Change::Nothing | Change::Ingress => return None,
            Change::RootGone => return Self::root(setup, queue, mtu, seed),
            Change::Qdisc(major) => {
                let Some(class) = setup.parent(major) else {
                    return Self::root(setup, queue, mtu, seed);
                };
                let build = || setup.build_node(major, mtu, seed);
                Self::below(setup, class, queue, build)?
            }
            Change::Gone(class) => {
                let is_queue = queue.is_some() && setup.is_mq();
                let default = if is_queue && setup.root() == Some(class.major) {
                    default_pfifo_fast
                } else {
                    default_pfifo
                };
                Self::below(setup, class, queue, default)?
            }
            Change::Parameters(major) => What::Parameters(place(major)?, major),
            Change::Class(class) => What::Class(place(class.major)?, class),
            Change::ClassGone(class) => What::ClassGone(place(class.major)?, class.minor),
            Change::Filters(at) => What::Filters(place(at.major)?, at),
        };
        Some(Self { setup: setup.clone(), mtu, seed, what })
    }

    /// The whole tree anew, as `setup` describes it. The rest is as in [`new`](Self::new).
    #[must_use]
    pub fn root(setup: &Arc<Setup>, queue: Option<usize>, mtu: u32, seed: u64) -> Option<Self> {
        let what = What::Root(setup.build_queue(queue, mtu, seed)?);
        Some(Self { setup: setup.clone(), mtu, seed, what })
    }

    /// Another qdisc below `class`; that of an `mq` is the queue.
    fn below(
        setup: &Setup,
        class: Handle,
        queue: Option<usize>,
        build: impl FnOnce() -> Box<dyn Qdisc>,
    ) -> Option<What> {
        match setup.path_in(class.major, queue) {
            Some(path) => Some(What::Graft(path, class.minor, build())),
            None => {
                let is_its = setup.parent(class.major).is_none()
                    && queue.is_some_and(|queue| queue + 1 == usize::from(class.minor));
                is_its.then(|| What::Root(build()))
            }
        }
    }
}

impl RootQdisc {
    /// Carries a change out. As in Linux, a qdisc that is replaced or deleted drops what it holds
    /// (`purged`); one that is changed keeps what its new limits allow.
    pub fn edit(&mut self, edit: Edit, cx: &mut Cx<'_>) {
        let Edit { setup, mtu, seed, what } = edit;
        match what {
            What::Root(built) => self.renew(built, cx),
            What::Graft(path, minor, built) => self.graft(&path, minor, built, cx),
            What::Parameters(path, major) => {
                let (spec, site) = (setup.spec(major), setup.site(major, mtu, seed));
                self.at(&path, cx, |qdisc, cx| {
                    let changed = spec.is_none_or(|spec| qdisc.change(&spec.values_at(site), cx));
                    debug_assert!(changed, "every kind that may change can");
                });
            }
            What::Class(path, class) => {
                let values = setup.class_values(class, setup.site(class.major, mtu, seed));
                self.at(&path, cx, |qdisc, cx| {
                    if let (Some(classes), Some((parent, values))) = (qdisc.classes(), values) {
                        classes.set(class.minor, parent, &values, cx.now);
                    }
                });
            }
            What::ClassGone(path, minor) => self.at(&path, cx, |qdisc, cx| {
                if let Some(classes) = qdisc.classes() {
                    classes.remove(minor, cx);
                }
            }),
            What::Filters(path, place) => self.at(&path, cx, |qdisc, _cx| {
                if let Some(filters) = qdisc.filters(place.minor) {
                    filters.set(setup.filters_at(place));
                }
            }),
        }
    }

    /// Puts another qdisc there, and drops what the one there is holds.
    fn renew(&mut self, built: Box<dyn Qdisc>, cx: &mut Cx<'_>) {
        self.qdisc_mut().reset(cx);
        self.put(built);
    }

    fn graft(&mut self, path: &[u16], minor: u16, built: Box<dyn Qdisc>, cx: &mut Cx<'_>) {
        self.at(path, cx, |qdisc, cx| {
            if let Some(classes) = qdisc.classes() {
                classes.graft(minor, built, cx);
            }
        });
    }

    /// The filters at a qdisc or class that stands in front of transmit queue `queue`, or, without
    /// one, anywhere in the tree that `setup` describes, with what they have counted.
    pub fn filters_at(
        &mut self,
        setup: &Setup,
        place: Handle,
        queue: Option<usize>,
        cx: &mut Cx<'_>,
    ) -> Vec<FilterSpec> {
        let known = setup.spec(place.major).is_some();
        let path = setup.path_in(place.major, queue).filter(|_| known);
        path.map_or_else(Vec::new, |path| self.filters(&path, place.minor, cx))
    }

    /// The filters at class `minor` of the qdisc that `path` leads to, with what they have counted.
    pub(crate) fn filters(&mut self, path: &[u16], minor: u16, cx: &mut Cx<'_>) -> Vec<FilterSpec> {
        let mut specs = Vec::new();
        self.at(path, cx, |qdisc, _| {
            if let Some(filters) = qdisc.filters(minor) {
                specs.extend(filters.specs().cloned());
            }
        });
        specs
    }

    /// Calls `f` with the qdisc that `path` leads to, through its parents, which count anew, and
    /// what is dropped below them.
    fn at(&mut self, path: &[u16], cx: &mut Cx<'_>, f: impl FnOnce(&mut dyn Qdisc, &mut Cx<'_>)) {
        let (before, mut f) = (cx.drops.len(), Some(f));
        descend(self.qdisc_mut(), path, cx, &mut |qdisc, cx| {
            if let Some(f) = f.take() {
                f(qdisc, cx);
            }
        });
        self.count_dropped(before, cx);
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
        child.visit(cx, |qdisc, cx| descend(qdisc, rest, cx, f));
    }
    classes.recount(*minor);
}
