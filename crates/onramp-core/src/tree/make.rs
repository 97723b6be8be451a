//! Makes prepared changes to a running tree, now or when a lease ends.

use super::edit::{Edit, What};
use super::lease::Pending;
use super::root_qdisc::RootQdisc;
use crate::base::Handle;
use crate::filter::FilterSpec;
use crate::sched::{Cx, Qdisc};
use crate::tc::Setup;
use crate::tc::setup::EGRESS_FILTERS;

impl RootQdisc {
    /// Makes a prepared change. As in Linux, a qdisc that is replaced or deleted drops all its
    /// packets (`purged`), and a qdisc that is changed keeps the packets that its new limits allow.
    ///
    /// # Panics
    ///
    /// Panics if a qdisc refuses new parameters although the [`Changes`](crate::qdisc::Changes) of
    /// its kind allow a change.
    pub fn edit(&mut self, edit: Edit, cx: &mut Cx<'_>) {
        self.leases_mut().let_go(edit.reach());
        self.make(edit, cx);
    }

    /// Makes the change `after`, by itself, when the lease ends. The tree lets go of a lease that
    /// it holds when another edit gives new parameters to the same qdisc or class, or replaces or
    /// deletes it or what is above it, or gives parameters to a qdisc above it whose classes follow
    /// from its options, such as `prio`: then [`Lease::renew`](super::Lease::renew) says that it is
    /// over, and `after` is not made.
    ///
    /// A port keeps to this. In a [`Tree`](super::Tree) without a port, nothing looks at leases.
    pub fn hold(&mut self, lease: Pending, after: Edit) {
        self.leases_mut().hold(lease, after);
    }

    /// Makes a prepared change, and keeps all leases.
    pub(super) fn make(&mut self, edit: Edit, cx: &mut Cx<'_>) {
        match edit.0 {
            What::Root(built) => self.renew(built, cx),
            What::Graft(path, minor, built) => self.at(&path, cx, |qdisc, cx| {
                if let Some(classes) = qdisc.classes() {
                    classes.graft(minor, built, cx);
                }
            }),
            What::Ungraft(path, minor) => self.at(&path, cx, |qdisc, cx| {
                if let Some(classes) = qdisc.classes() {
                    classes.ungraft(minor, cx);
                }
            }),
            What::Parameters(path, spec, site) => self.at(&path, cx, |qdisc, cx| {
                let changed = qdisc.change(&spec.values_at(site), cx);
                let id = spec.kind().id;
                assert!(changed, "`Changes` of {id} allows a change, and its qdisc refuses it");
            }),
            What::Class(path, minor, class) => self.at(&path, cx, |qdisc, cx| {
                if let Some(classes) = qdisc.classes() {
                    classes.set(minor, class.parent, &class.values(), cx.now);
                }
            }),
            What::ClassGone(path, minor) => self.at(&path, cx, |qdisc, cx| {
                if let Some(classes) = qdisc.classes() {
                    classes.remove(minor, cx);
                }
            }),
            What::Filters(path, minor, edit) => self.at(&path, cx, |qdisc, _cx| {
                if let Some(filters) = qdisc.filters(minor) {
                    filters.edit(edit);
                }
            }),
            What::Front(front) => self.set_front(front),
            What::FrontFilters(edit) => {
                if let Some(front) = self.front_mut() {
                    front.edit(edit);
                }
            }
            What::All(built, front) => {
                self.renew(built, cx);
                self.set_front(front);
            }
        }
    }

    /// Drops the packets of the root qdisc and replaces it by `built`.
    fn renew(&mut self, built: Box<dyn Qdisc>, cx: &mut Cx<'_>) {
        self.qdisc_mut().reset(cx);
        self.put(built);
    }

    /// Returns the filters at the qdisc or class `place`, with their counters. `queue` is the index
    /// of the transmit queue whose tree this is, or `None` if this is the whole tree. The result is
    /// empty if `place` is not in this tree.
    pub fn filters_at(
        &mut self,
        setup: &Setup,
        place: Handle,
        queue: Option<usize>,
        cx: &mut Cx<'_>,
    ) -> Vec<FilterSpec> {
        if setup.has_front(place) {
            let front = self.front_mut().filter(|_| place == EGRESS_FILTERS);
            return front.into_iter().flat_map(|front| front.specs()).cloned().collect();
        }
        let known = setup.spec(place.major).is_some();
        let path = setup.path_in(place.major, queue).filter(|_| known);
        path.map_or_else(Vec::new, |path| self.filters(&path, place.minor, cx))
    }

    /// Returns the filters at class `minor` (0 means at the qdisc itself) of the qdisc at the end
    /// of `path`, with their counters.
    pub(crate) fn filters(&mut self, path: &[u16], minor: u16, cx: &mut Cx<'_>) -> Vec<FilterSpec> {
        let mut specs = Vec::new();
        self.at(path, cx, |qdisc, _| {
            if let Some(filters) = qdisc.filters(minor) {
                specs.extend(filters.specs().cloned());
            }
        });
        specs
    }

    /// Calls `f` with the qdisc at the end of `path`. The parents of that qdisc then update their
    /// backlog, and count the packets that `f` dropped below them.
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
