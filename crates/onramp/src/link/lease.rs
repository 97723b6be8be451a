//! Changes of a link's tree that hold for a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onramp_core::{Change, Clock, Edit, Handle, Lease};

use super::{Changing, Link};
use crate::PortError;

impl Link {
    /// Gives a qdisc (`M:0`) or class other values of options, `edits`, for a time, and afterwards
    /// the values `after`: the ports change to these by themselves, before they send the next
    /// packet, even if no thread of the program comes to run. Each list has names and values of
    /// options, as [`Setup::line`] takes them; all other options stay as they are. Returns `None`
    /// if there is no such qdisc or class. The call waits for no device, as
    /// [`begin_change`](Self::begin_change).
    ///
    /// [`renew`](Self::renew) moves the end, without work for the ports. The description
    /// ([`setup`](Self::setup)) has the values `edits` until something changes it, also after the
    /// end. Any other change of the same qdisc or class ends the lease, and then `after` is not
    /// made; so does one that adds, replaces or deletes qdiscs or deletes classes.
    ///
    /// Bytes and debts of `tbf` and `htb` stay, as at the verb `adjust`: see
    /// [`Setup::apply`].
    ///
    /// # Errors
    ///
    /// [`PortError::Config`]: a value is wrong, and nothing has changed. [`PortError::Closed`].
    pub fn begin_lease(
        &self,
        place: Handle,
        edits: &[(&str, &str)],
        lasts: Duration,
        after: &[(&str, &str)],
    ) -> Result<Option<(Lease, Changing)>, PortError> {
        let shared = self.shared();
        let mut plan = shared.open_plan().ok_or(PortError::Closed)?;
        let lease = Lease::new(shared.clock.now() + lasts);
        let tree = Arc::make_mut(&mut plan.tree);
        let line = |edits| tree.line("adjust", place, edits);
        let (Some(edits), Some(after), Some(before)) = (line(edits), line(after), line(&[])) else {
            return Ok(None);
        };
        // What comes later is prepared first, because the description is to say what holds now.
        tree.change(&after).map_err(PortError::Config)?;
        let change = match place.minor {
            0 => Change::Parameters(place.major),
            _ => Change::Class(place),
        };
        let slots = shared.slots.len();
        let mut held: BTreeMap<usize, Edit> = (0..slots)
            .filter_map(|port| {
                let (mtu, seed) = (plan.mtu(shared.slot(port).known.mtu), plan.seed(port));
                Some((port, Edit::new(&plan.tree, &change, Some(port), mtu, seed)?))
            })
            .collect();
        let tree = Arc::make_mut(&mut plan.tree);
        if let Err(error) = tree.change(&edits) {
            // The values are those that the description had.
            let _ = tree.change(&before);
            return Err(PortError::Config(error));
        }
        let hold = |port| Some((lease.clone(), held.remove(&port)?));
        let changing = self.spread(plan, &change, hold);
        Ok(Some((lease, changing)))
    }

    /// Lets a lease last from now on. Returns false if it is over: see [`Lease::renew`].
    #[must_use]
    pub fn renew(&self, lease: &Lease, lasts: Duration) -> bool {
        lease.renew(self.shared().clock.now() + lasts)
    }
}
