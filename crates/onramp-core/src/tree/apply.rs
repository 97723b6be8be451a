//! Commands to a running tree.

use std::sync::Arc;

use onramp_queue::PacketList;

use super::{Edit, RootQdisc, Totals, Tree};
use crate::base::{ConfigError, Handle, Instant};
use crate::filter::FilterSpec;
use crate::sched::Cx;
use crate::tc::{Setup, Spec};

/// The description that a tree was built from, and changes with.
#[derive(Debug)]
pub(super) struct BuiltFrom {
    pub(super) setup: Arc<Setup>,
    /// Largest packet, link header included, bytes.
    pub(super) mtu: u32,
    /// Where chance begins.
    seed: u64,
}

impl BuiltFrom {
    /// One qdisc at the root.
    pub(super) fn spec(spec: &Spec, mtu: u32) -> Self {
        Self { setup: Arc::new(Setup::of(spec.clone())), mtu, seed: 0 }
    }
}

impl Tree {
    /// Builds a whole tree; `None` if `setup` has no root. The same `seed` makes the same choices.
    #[must_use]
    pub fn of(setup: &Setup, mtu: u32, seed: u64) -> Option<Self> {
        let root = RootQdisc::new(setup.build(mtu, seed)?);
        let built_from = BuiltFrom { setup: Arc::new(setup.clone()), mtu, seed };
        Some(Self { root, built_from, drops: PacketList::new(), totals: Totals::ZERO })
    }

    /// Does what a line of `tc` says: see [`Setup::apply`](crate::Setup::apply).
    ///
    /// As in Linux, a qdisc that is replaced or deleted drops what it holds (`purged`); one that is
    /// changed keeps what its new limits allow.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the word that is wrong, and what would be right. The tree is as it was.
    pub fn apply(&mut self, now: Instant, line: &str) -> Result<(), ConfigError> {
        let BuiltFrom { setup, mtu, seed } = &mut self.built_from;
        let mut next = Setup::clone(setup);
        let change = next.change(line.split('#').next().unwrap_or_default())?;
        if next.root().is_none() && next.facts().fallback.is_none() {
            let why = "a tree has a root; replace it";
            return Err(ConfigError::new("qdisc", "root", "", why));
        }
        *setup = Arc::new(next);
        if let Some(edit) = Edit::new(setup, &change, None, *mtu, *seed) {
            let mut drops = PacketList::new();
            let mut cx = Cx::new(now, &mut drops);
            self.root.edit(edit, &mut cx);
            let made = cx.made;
            self.settle(made, drops);
        }
        Ok(())
    }

    /// The filters at a qdisc or class as they are asked, with what they have counted.
    pub fn filters(&mut self, now: Instant, place: Handle) -> Vec<FilterSpec> {
        let path = self.built_from.setup.path(place.major);
        self.call(now, |root, cx| root.filters(&path, place.minor, cx))
    }
}
