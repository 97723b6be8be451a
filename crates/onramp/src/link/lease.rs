//! Changes of a link's tree that hold for a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use onramp_core::{Change, Edit, Handle, Instant, Lease};

use super::{Changing, Link};
use crate::PortError;

impl Link {
    /// Gives a qdisc (`M:0`) or class other values of options, `edits`, until `end` (by
    /// [`now`](Self::now)), and afterwards the values `after`: the ports change to these by
    /// themselves, before their qdiscs release the next packet, even if no thread of the program
    /// comes to run. Each list has names and values of options, as
    /// [`Setup::line`](crate::Setup::line) takes them; all other options stay as they are. Returns
    /// `None` if there is no such qdisc or class. The call waits for no device, as
    /// [`begin_change`](Self::begin_change).
    ///
    /// [`Lease::renew`] moves the end, without work for the ports. The description
    /// ([`setup`](Self::setup)) has the values `edits` until something changes it, also after the
    /// end. Another change of the same qdisc or class, or one that replaces or deletes it or what
    /// is above it, ends the lease, and then `after` is not made. Nor is it in a port that is added
    /// later or gets its whole tree anew: then give the lease again. A lease that is over in one
    /// port is over for all.
    ///
    /// Bytes and debts of `tbf` and `htb` stay, as at the verb `adjust`: see
    /// [`Setup::apply`](crate::Setup::apply).
    ///
    /// # Errors
    ///
    /// [`PortError::Config`]: a value is wrong, and nothing has changed. [`PortError::Closed`].
    pub fn begin_lease(
        &self,
        place: Handle,
        edits: &[(&str, &str)],
        end: Instant,
        after: &[(&str, &str)],
    ) -> Result<Option<(Lease, Changing)>, PortError> {
        let shared = self.shared();
        let mut plan = shared.open_plan().ok_or(PortError::Closed)?;
        let lease = Lease::new(end);
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
        let hold = |port| Some((lease.pending(), held.remove(&port)?));
        let changing = self.spread(plan, &change, hold);
        if changing.asks_nobody() {
            // No port holds the lease, and none would end it.
            drop(lease.pending());
        }
        Ok(Some((lease, changing)))
    }
}
