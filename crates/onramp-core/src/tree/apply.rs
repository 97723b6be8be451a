//! Applies `tc` commands to a running tree.

use onramp_queue::PacketList;

use super::{Edit, RootQdisc, Totals, Tree};
use crate::base::{ConfigError, Handle, Instant};
use crate::filter::FilterSpec;
use crate::sched::Cx;
use crate::tc::setup::Change;
use crate::tc::{Setup, Spec};

/// The description of a tree, from which it was built. Each change of the tree also changes the
/// description.
#[derive(Debug)]
pub(super) struct BuiltFrom {
    pub(super) setup: Setup,
    /// Size of the largest packet in bytes, including the link header.
    pub(super) mtu: u32,
    /// Seed of the random choices of the tree's qdiscs.
    seed: u64,
}

impl BuiltFrom {
    /// Creates the description of a tree of one qdisc.
    pub(super) fn spec(spec: &Spec, mtu: u32) -> Self {
        Self { setup: Setup::of(spec.clone()).for_tree(), mtu, seed: 0 }
    }
}

impl Tree {
    /// Builds the tree that `setup` describes, for packets of at most `mtu` bytes, or returns
    /// `None` if `setup` describes no root. The same `seed` gives the same random choices.
    #[must_use]
    pub fn of(setup: &Setup, mtu: u32, seed: u64) -> Option<Self> {
        let root = RootQdisc::new(setup.build(mtu, seed)?);
        let built_from = BuiltFrom { setup: setup.clone().for_tree(), mtu, seed };
        Some(Self { root, built_from, drops: PacketList::new(), totals: Totals::ZERO })
    }

    /// Applies a command line of `tc` to the tree: see [`Setup::apply`](crate::Setup::apply).
    ///
    /// As in Linux, a qdisc that is replaced or deleted drops all its packets (`purged`), and a
    /// qdisc that is changed keeps the packets that its new limits allow.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the wrong word and what would be right. The tree is
    /// unchanged then.
    pub fn apply(&mut self, now: Instant, line: &str) -> Result<(), ConfigError> {
        self.change(now, line).map(|_| ())
    }

    /// Applies a command line of `tc` as [`apply`](Self::apply) does, and returns what has changed.
    ///
    /// # Errors
    ///
    /// The errors of [`apply`](Self::apply). The tree is unchanged then.
    pub fn change(&mut self, now: Instant, line: &str) -> Result<Change, ConfigError> {
        let BuiltFrom { setup, mtu, seed } = &mut self.built_from;
        let change = setup.change(line.split('#').next().unwrap_or_default())?;
        if let Some(edit) = Edit::new(setup, &change, None, *mtu, *seed) {
            let mut drops = PacketList::new();
            let mut cx = Cx::new(now, &mut drops);
            self.root.edit(edit, &mut cx);
            let made = cx.made;
            self.settle(made, drops);
        }
        Ok(change)
    }

    /// Returns the description of the tree, which every change of the tree also changes.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.built_from.setup
    }

    /// Returns the size of the largest packet for which the tree was built, in bytes, including the
    /// link header.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.built_from.mtu
    }

    /// Returns the filters at the qdisc or class `place`, in the order in which they are asked,
    /// with their counters. Returns none if the tree has no such qdisc.
    pub fn filters(&mut self, now: Instant, place: Handle) -> Vec<FilterSpec> {
        if self.built_from.setup.spec(place.major).is_none() {
            return Vec::new();
        }
        let path = self.built_from.setup.path(place.major);
        self.call(now, |root, cx| root.filters(&path, place.minor, cx))
    }
}
