//! What commands of `tc` change and list.

use std::fmt;
use std::sync::Arc;

use onramp::{Changing, Link, PortError};
use onramp_core::filter::FilterSpec;
use onramp_core::view::QdiscView;
use onramp_core::{Change, Handle, Instant, Lease, Setup};

/// A running tree of qdiscs that commands of `tc` change and list.
pub(crate) trait Configured: fmt::Debug {
    /// Returns the description of the tree.
    fn setup(&self) -> Arc<Setup>;
    /// Returns the counters and backlogs of all qdiscs and classes.
    fn tree_views(&self) -> Vec<QdiscView>;
    /// Returns the filters at the qdisc or class `place`, with their counters.
    fn filters(&self, place: Handle) -> Vec<FilterSpec>;
    /// Carries out a line of `tc` that changes the tree, as [`Link::begin_change`] does. `None`:
    /// there is nothing to wait for.
    fn begin_change(&self, line: &str) -> Result<(Change, Option<Changing>), PortError>;
    /// Gives a qdisc or class other values of options until `end`, and then `after`, as
    /// [`Link::begin_lease`] does. `None`: this has not happened.
    fn lend(
        &self,
        _place: Handle,
        _edits: &[(&str, &str)],
        _end: Instant,
        _after: &[(&str, &str)],
    ) -> Option<Lease> {
        None
    }
}

impl Configured for Link {
    fn setup(&self) -> Arc<Setup> {
        Self::setup(self)
    }

    fn tree_views(&self) -> Vec<QdiscView> {
        Self::tree_views(self)
    }

    fn filters(&self, place: Handle) -> Vec<FilterSpec> {
        Self::filters(self, place)
    }

    fn begin_change(&self, line: &str) -> Result<(Change, Option<Changing>), PortError> {
        let (change, changing) = Self::begin_change(self, line)?;
        Ok((change, Some(changing)))
    }

    fn lend(
        &self,
        place: Handle,
        edits: &[(&str, &str)],
        end: Instant,
        after: &[(&str, &str)],
    ) -> Option<Lease> {
        // The ports make the change even if nobody waits for them.
        self.begin_lease(place, edits, end, after).ok().flatten().map(|(lease, _)| lease)
    }
}
