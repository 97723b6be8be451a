//! Applies `tc` commands to a running tree.

use std::sync::Arc;

use onramp_queue::PacketList;

use super::{Edit, Tree};
use crate::base::{ConfigError, Handle, Instant};
use crate::filter::FilterSpec;
use crate::sched::Cx;
use crate::tc::Setup;

impl Tree {
    /// Runs a command line of `tc` on the tree: see [`Setup::apply`](crate::Setup::apply).
    ///
    /// As in Linux, a qdisc that is replaced or deleted drops all its packets (`purged`), and a
    /// qdisc that is changed keeps the packets that its new limits allow.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the wrong word and what would be right. The tree is
    /// unchanged then.
    pub fn apply(&mut self, now: Instant, line: &str) -> Result<(), ConfigError> {
        let mut setup = Setup::clone(&self.setup);
        let change = setup.change(line.split('#').next().unwrap_or_default())?;
        if setup.root().is_none() && setup.facts().fallback.is_none() {
            let why = "a tree has a root; replace it";
            return Err(ConfigError::new("qdisc", "root", "", why));
        }
        self.setup = Arc::new(setup);
        if let Some(edit) = Edit::new(&self.setup, &change, None, self.mtu, self.seed) {
            let mut drops = PacketList::new();
            let mut cx = Cx::new(now, &mut drops);
            self.root.edit(edit, &mut cx);
            let made = cx.made;
            self.settle(made, drops);
        }
        Ok(())
    }

    /// Returns the filters at the qdisc or class `place`, in the order in which they are asked,
    /// with their counters.
    pub fn filters(&mut self, now: Instant, place: Handle) -> Vec<FilterSpec> {
        let path = self.setup.path(place.major);
        self.call(now, |root, cx| root.filters(&path, place.minor, cx))
    }
}
