//! Reads the counters of a running tree.

use super::{RootQdisc, Tree};
use crate::base::{Counters, Extra, Handle};
use crate::qdisc::KINDS;
use crate::sched::qdisc_counters::QdiscCounters;
use crate::sched::{ClassKind, ClassView, Classes, FlowView, Kind, Qdisc, QdiscView};
use crate::tc::{Setup, Spec};

/// Where a qdisc is in the tree, what kind it has, and its requeues (packets that the device did
/// not take).
struct Place {
    /// The major number of the qdisc, or 0 if no command named it.
    major: u16,
    parent: Option<Handle>,
    kind: &'static Kind,
    /// Number of packets that the device did not take and that were put back.
    requeues: u64,
}

impl Tree {
    /// Returns the view of every qdisc of the tree, with its counters and its backlog, parents
    /// first.
    pub fn views(&mut self) -> Vec<QdiscView> {
        self.root.views(&self.built_from.setup, None)
    }
}

impl RootQdisc {
    /// Returns the views of all qdiscs in front of transmit queue `queue`, parents first. If
    /// `queue` is `None`, returns the views of all qdiscs in the tree that `setup` describes. A
    /// `clsact` comes last, with what its filters have counted of the packets that leave.
    pub fn views(&mut self, setup: &Setup, queue: Option<usize>) -> Vec<QdiscView> {
        let (major, parent, kind) = setup.first(queue);
        let mut views = Vec::new();
        let (qdisc, counters, requeues) = self.with_counters();
        let place = Place { major, parent, kind, requeues };
        view_below(qdisc, counters, &place, setup, &mut views);
        if let (Some(front), Some(spec)) = (self.front_mut(), setup.ingress_spec()) {
            front.add_to(spec.kind(), &mut views);
        }
        views
    }
}

impl Setup {
    /// Returns the first qdisc in front of transmit queue `queue`, or the root if `queue` is
    /// `None`: its major number (0 if no command named it), its parent class, and its kind.
    fn first(&self, queue: Option<usize>) -> (u16, Option<Handle>, &'static Kind) {
        let default = Spec::queue_default().kind();
        let fallback = self.facts().fallback.as_ref().map_or(default, Spec::kind);
        let kind = |major| self.spec(major).map_or(default, Spec::kind);
        let root = self.root().map_or((0, None, fallback), |root| (root, None, kind(root)));
        let queue = queue.and_then(|queue| u16::try_from(queue + 1).ok());
        let Some(minor) = queue.filter(|_| root.2.quirks.has_queue_trees) else { return root };
        let class = Handle::new(root.0, minor);
        match self.qdisc_below(class) {
            Some(child) => (child, Some(class), kind(child)),
            None => (0, Some(class), default),
        }
    }
}

fn kind_named(id: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.id == id)
}

/// Appends the view of a qdisc to `views`, then the views of all qdiscs below it.
fn view_below(
    qdisc: &mut dyn Qdisc,
    counted: &QdiscCounters,
    place: &Place,
    setup: &Setup,
    views: &mut Vec<QdiscView>,
) {
    let total = counted.qdisc();
    let counters = Counters {
        drops: total.drops.saturating_sub(qdisc.uncounted()),
        overlimits: qdisc.overlimits(),
        requeues: place.requeues + qdisc.requeues(),
        ..total
    };
    let mut extra = Extra::default();
    qdisc.stats(&mut |name, value| extra.0.push((name, i64::try_from(value).unwrap_or(i64::MAX))));
    let at = views.len();
    views.push(QdiscView {
        handle: Handle::new(place.major, 0),
        parent: place.parent,
        kind: place.kind,
        counters,
        backlog: qdisc.backlog(),
        drops: counted.drops(),
        sojourn_ns: counted.sojourn_ns(),
        extra,
        classes: Vec::new(),
    });
    qdisc.flows(&mut |flow| views[at].classes.push(flow_view(flow, place.major)));
    // If no command named the qdisc, it has created its classes itself, and these are not shown.
    let Some(classes) = qdisc.classes().filter(|_| place.major != 0) else { return };
    let rows = rows(classes, place, setup);
    views[at].classes = rows.iter().map(|row| class_view(classes, row, place.major)).collect();
    for row in &rows {
        let Some((qdisc, counted)) = classes.child(row.minor).map(|child| child.with_counters())
        else {
            continue;
        };
        let Some((major, kind)) = row.below(place.kind, setup) else { continue };
        // If a kind has exactly one child, and no command named the child, the child is shown below
        // the qdisc itself and not below a class.
        let minor = if major == 0 && place.kind.quirks.has_one_place { 0 } else { row.minor };
        let parent = Some(Handle::new(place.major, minor));
        view_below(qdisc, counted, &Place { major, parent, kind, requeues: 0 }, setup, views);
    }
}

/// A class of a qdisc that is being viewed.
struct Row {
    minor: u16,
    /// Minor number of the parent class, or `None` if the parent is the qdisc.
    parent: Option<u16>,
    /// Major number of the qdisc below the class, or 0 if no command named that qdisc.
    leaf: u16,
}

impl Row {
    /// Returns the major number (0 if no command named it) and the kind of the qdisc below the
    /// class, or `None` if that qdisc is not shown. Of the qdiscs that no command named, only those
    /// of a few kinds are shown.
    fn below(&self, parent: &Kind, setup: &Setup) -> Option<(u16, &'static Kind)> {
        match self.leaf {
            0 => Some((0, kind_named(parent.quirks.shown_below?)?)),
            leaf => Some((leaf, setup.spec(leaf)?.kind())),
        }
    }
}

/// Returns the classes of a qdisc. Classes that commands added are in the order in which they were
/// added.
fn rows(classes: &mut dyn Classes, place: &Place, setup: &Setup) -> Vec<Row> {
    let mut rows: Vec<Row> = match place.kind.classes {
        ClassKind::None => Vec::new(),
        ClassKind::Added { .. } => {
            let root = classes.has_root().then_some((0, None));
            let all = root.into_iter().chain(setup.class_rows(place.major));
            all.map(|(minor, parent)| Row { minor, parent, leaf: 0 }).collect()
        }
        ClassKind::Fixed(_) => (1..=u16::MAX)
            .take_while(|minor| classes.child(*minor).is_some())
            .map(|minor| Row { minor, parent: None, leaf: 0 })
            .collect(),
    };
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| rows[*row].minor);
    for (minor, child) in setup.children(place.major) {
        if let Ok(found) = order.binary_search_by_key(&minor, |row| rows[*row].minor) {
            rows[order[found]].leaf = child;
        }
    }
    rows
}

fn class_view(classes: &mut dyn Classes, row: &Row, major: u16) -> ClassView {
    let (counters, backlog) = classes.counters(row.minor);
    let mut extra = Extra::default();
    classes.stats(row.minor, &mut |name, value| extra.0.push((name, value)));
    ClassView {
        handle: Handle::new(major, row.minor),
        parent: row.parent.map(|parent| Handle::new(major, parent)),
        leaf: (row.leaf != 0).then_some(row.leaf),
        counters,
        backlog,
        extra,
    }
}

fn flow_view(flow: FlowView<'_>, major: u16) -> ClassView {
    let FlowView { minor, backlog, drops, overlimits, extra } = flow;
    ClassView {
        handle: Handle::new(major, minor),
        parent: None,
        leaf: None,
        counters: Counters { drops, overlimits, ..Counters::default() },
        backlog,
        extra: Extra(extra.to_vec()),
    }
}
