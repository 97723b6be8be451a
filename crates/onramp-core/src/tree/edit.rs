//! Prepares changes to a running tree.

use crate::base::Handle;
use crate::base::params::Site;
use crate::filter::FilterEdit;
use crate::qdisc::default_pfifo;
use crate::qdisc::pfifo_fast::default_pfifo_fast;
use crate::sched::front::Front;
use crate::sched::{ClassKind, Qdisc};
use crate::tc::setup::{Change, ClassSpec, EGRESS_FILTERS};
use crate::tc::{Setup, Spec};

/// A prepared change to a running tree. The thread that requests the change builds all new qdiscs
/// and filters beforehand, so that the change delays senders only for the time it takes to put them
/// in place. An edit holds no reference to the description of the tree, so that the description can
/// change again, without a copy, before the edit is made.
#[derive(Debug)]
pub struct Edit(pub(super) What);

#[derive(Debug)]
pub(super) enum What {
    /// Replaces the root qdisc by the given one.
    Root(Box<dyn Qdisc>),
    /// Replaces the qdisc below a class by the given one. The path leads to the qdisc that has the
    /// class; the number is the minor number of the class.
    Graft(Path, u16, Box<dyn Qdisc>),
    /// Removes the qdisc below a class that then has none. The path and the number are those of
    /// `Graft`.
    Ungraft(Path, u16),
    /// Gives new parameters to the qdisc at the end of the path.
    Parameters(Path, Spec, Site),
    /// Adds a class to the qdisc at the end of the path, or gives the class new parameters. The
    /// number is the minor number of the class.
    Class(Path, u16, ClassSpec),
    ClassGone(Path, u16),
    /// Adds and removes filters at the qdisc at the end of the path (0), or at the class of that
    /// qdisc with this minor number.
    Filters(Path, u16, FilterEdit),
    /// Replaces the filters in front of the root, unless they are like the given ones already.
    Front(Option<Box<Front>>),
    /// Adds and removes filters in front of the root.
    FrontFilters(FilterEdit),
    /// Replaces the root qdisc, and what stands in front of it.
    All(Box<dyn Qdisc>, Option<Box<Front>>),
}

/// The way from the root to a qdisc: the minor numbers of the classes on that way.
pub(super) type Path = Vec<u16>;

/// What an edit reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach<'e> {
    /// The parameters of a qdisc, by its path. If its classes follow from its options, there may be
    /// others afterwards, with other qdiscs below them.
    Qdisc { path: &'e [u16], renumbers: bool },
    /// The parameters of a class.
    Class(&'e [u16], u16),
    /// The qdiscs below a class.
    Below(&'e [u16], u16),
    /// A class, and the qdiscs below it.
    ClassAndBelow(&'e [u16], u16),
    /// All qdiscs.
    All,
    /// Filters only.
    Filters,
}

impl Reach<'_> {
    /// Whether this reaches the qdisc or class of which `other` changes the parameters.
    pub(super) fn includes(self, other: Reach<'_>) -> bool {
        let (at, class) = match other {
            Reach::Qdisc { path, .. } => (path, None),
            Reach::Class(path, minor) => (path, Some(minor)),
            _ => return false,
        };
        let is_below = |path: &[u16], minor: u16| {
            at.strip_prefix(path).is_some_and(|rest| rest.first() == Some(&minor))
        };
        match self {
            Reach::Qdisc { path, renumbers } => {
                at == path && class.is_none() || renumbers && at != path && at.starts_with(path)
            }
            Reach::Class(path, minor) => at == path && class == Some(minor),
            Reach::Below(path, minor) => is_below(path, minor),
            Reach::ClassAndBelow(path, minor) => {
                at == path && class == Some(minor) || is_below(path, minor)
            }
            Reach::All => true,
            Reach::Filters => false,
        }
    }
}

impl Edit {
    /// If `change` affects only the tree of one transmit queue, returns the index of the queue, and
    /// otherwise `None`. `setup` is the description after `change`.
    #[must_use]
    pub fn queue(setup: &Setup, change: &Change) -> Option<usize> {
        if !setup.is_mq() {
            return None;
        }
        let path = match *change {
            Change::Nothing | Change::Ingress | Change::RootGone => return None,
            Change::Filters(place) if setup.has_front(place) => return None,
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

    /// Prepares `change` for the tree of transmit queue `queue` of a device that has several, or
    /// for the whole tree if `queue` is `None`. Returns `None` if `change` does not affect that
    /// tree. `setup` is the description directly after `change`; `mtu` (size of the largest packet
    /// in bytes) and `seed` are the values with which the tree is built.
    #[must_use]
    pub fn new(
        setup: &Setup,
        change: &Change,
        queue: Option<usize>,
        mtu: u32,
        seed: u64,
    ) -> Option<Self> {
        let place = |major| setup.path_in(major, queue);
        let what = match *change {
            Change::Nothing => return None,
            Change::Ingress => return Some(Self::front(setup)),
            Change::RootGone => return Self::root(setup, queue, mtu, seed),
            Change::Qdisc(major) => {
                let Some(class) = setup.parent(major) else {
                    return Self::root(setup, queue, mtu, seed);
                };
                let build = || setup.build_node(major, mtu, seed);
                Self::below(setup, class, queue, build)?
            }
            Change::Gone(class) => {
                let site = setup.site(class.major, mtu, seed);
                let is_queue = queue.is_some() && setup.is_mq();
                let spec = setup.spec(class.major)?;
                let default = match spec.kind().quirks.default_child {
                    _ if is_queue && setup.root() == Some(class.major) => {
                        Some(default_pfifo_fast(site))
                    }
                    Some(build) => build(&spec.values_at(site)),
                    None => Some(default_pfifo(site)),
                };
                match default {
                    Some(default) => Self::below(setup, class, queue, || default)?,
                    None => What::Ungraft(place(class.major)?, class.minor),
                }
            }
            Change::Parameters(major) => {
                let spec = setup.spec(major)?.clone();
                What::Parameters(place(major)?, spec, setup.site(major, mtu, seed))
            }
            Change::Class(class) => {
                let site = setup.site(class.major, mtu, seed);
                What::Class(place(class.major)?, class.minor, setup.class_spec(class, site)?)
            }
            Change::ClassGone(class) => What::ClassGone(place(class.major)?, class.minor),
            Change::Filters(at) => {
                if setup.has_front(at) {
                    // No tree has the filters for packets that come in: see `Ingress`.
                    let edit = || Self(What::FrontFilters(setup.filters().last_edit()));
                    return (at == EGRESS_FILTERS).then(edit);
                }
                setup.spec(at.major)?;
                What::Filters(place(at.major)?, at.minor, setup.filters().last_edit())
            }
        };
        Some(Self(what))
    }

    /// Prepares the replacement of all qdiscs, and of the filters of a `clsact` in front of them,
    /// by those that `setup` describes. Filters that are there already keep their counters. The
    /// other arguments are those of [`new`](Self::new).
    #[must_use]
    pub fn root(setup: &Setup, queue: Option<usize>, mtu: u32, seed: u64) -> Option<Self> {
        let root = setup.build_queue(queue, mtu, seed)?;
        Some(Self(What::All(root, setup.build_front())))
    }

    /// Prepares the replacement of the filters of a `clsact` in front of the root by those that
    /// `setup` describes. If the same filters are there already, they keep their counters.
    #[must_use]
    pub fn front(setup: &Setup) -> Self {
        Self(What::Front(setup.build_front()))
    }

    /// Prepares what a change of the device's `txqueuelen` changes in a tree: as in Linux, a
    /// `pfifo_fast` in front of a transmit queue gets the new length, and all other qdiscs stay as
    /// they are. `setup` is the description after the change. The other arguments are those of
    /// [`new`](Self::new). Returns `None` if nothing changes in the tree.
    #[must_use]
    pub fn txqueuelen(setup: &Setup, queue: Option<usize>, mtu: u32, seed: u64) -> Option<Self> {
        let (spec, site) = setup.front(queue, mtu, seed)?;
        Some(Self(What::Parameters(Path::new(), spec, site)))
    }

    pub(super) fn reach(&self) -> Reach<'_> {
        match &self.0 {
            What::Parameters(path, spec, _) => {
                let kind = spec.kind();
                let renumbers =
                    matches!(kind.classes, ClassKind::Fixed(_)) && !kind.quirks.has_one_place;
                Reach::Qdisc { path, renumbers }
            }
            What::Class(path, minor, _) => Reach::Class(path, *minor),
            What::Graft(path, minor, _) | What::Ungraft(path, minor) => Reach::Below(path, *minor),
            What::ClassGone(path, minor) => Reach::ClassAndBelow(path, *minor),
            What::Root(_) | What::All(..) => Reach::All,
            What::Filters(..) | What::Front(_) | What::FrontFilters(_) => Reach::Filters,
        }
    }

    /// Prepares the replacement of the qdisc below `class`. If `class` belongs to an `mq`, it is a
    /// transmit queue, and the qdisc below it is the root of that queue's tree.
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
