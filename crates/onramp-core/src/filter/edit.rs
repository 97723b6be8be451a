//! How the filters of a running qdisc follow their description: each line adds and removes single
//! filters, and all others stay as they are.

use std::ops::Range;
use std::sync::Arc;

use super::read::{FilterSpec, Place};
use super::words::{COUNT_BITS, TABLE};
use super::{Filters, Matcher, Nodes};

/// The filters that a line has removed and added, in the description of a tree. A line that
/// replaces a filter removes the old filter and adds the new one.
#[derive(Clone, Debug, Default)]
pub(super) struct Changed {
    pub(super) gone: Vec<Arc<FilterSpec>>,
    pub(super) new: Vec<Arc<FilterSpec>>,
}

/// The same change, prepared for a running qdisc.
#[derive(Debug)]
pub(crate) struct FilterEdit {
    /// The places of the filters to be removed, sorted.
    gone: Vec<Place>,
    #[expect(clippy::vec_box, reason = "the running qdisc keeps the boxes")]
    new: Vec<Box<FilterSpec>>,
}

impl From<&Changed> for FilterEdit {
    fn from(changed: &Changed) -> Self {
        let mut gone: Vec<Place> = changed.gone.iter().map(|filter| filter.place()).collect();
        gone.sort_unstable();
        Self { gone, new: changed.new.iter().map(|filter| Box::new((**filter).clone())).collect() }
    }
}

impl Filters {
    /// Replaces the filters by `filters`, which are in the order in which they are asked.
    pub(crate) fn set<'a>(&mut self, filters: impl Iterator<Item = &'a FilterSpec>) {
        self.filters = filters.cloned().map(Box::new).collect();
        self.tables = self.filters.iter().filter_map(|filter| Nodes::below(filter)).collect();
    }

    /// Removes and adds filters. All others keep their counters and the state of their actions.
    pub(crate) fn edit(&mut self, edit: FilterEdit) {
        let FilterEdit { gone, new } = edit;
        let span = self.span(&gone);
        let is_gone = |filter: &FilterSpec| gone.binary_search(&filter.place()).is_ok();
        for at in span.clone() {
            if is_gone(&self.filters[at]) {
                self.forget_table(at);
            }
        }
        self.filters.extract_if(span, |filter| is_gone(filter)).for_each(drop);
        for filter in new {
            let place = filter.place();
            let at = self.filters.partition_point(|before| before.place() < place);
            self.tables.extend(Nodes::below(&filter));
            self.filters.insert(at, filter);
        }
    }

    /// Returns where the filters with these places, which are sorted, are among all filters. Those
    /// of a chain or a preference stand beside each other, so no others are there.
    pub(super) fn span(&self, places: &[Place]) -> Range<usize> {
        let (Some(first), Some(last)) = (places.first(), places.last()) else { return 0..0 };
        let from = self.filters.partition_point(|filter| filter.place() < *first);
        let rest = &self.filters[from..];
        from..from + rest.partition_point(|filter| filter.place() <= *last)
    }

    fn forget_table(&mut self, at: usize) {
        if let Matcher::Table(_) = self.filters[at].matcher {
            self.tables.remove(&self.filters[at].handle);
        }
    }
}

impl Nodes {
    /// Returns the handle of `filter`, and where its nodes are, if it is a `u32` hash table.
    fn below(filter: &FilterSpec) -> Option<(u32, Self)> {
        let Matcher::Table(divisor) = filter.matcher else { return None };
        let (chain, pref, (born, _)) = filter.place();
        Some((filter.handle, Self { chain, pref, born, divisor }))
    }

    /// Returns a place that is not behind the first node of the bucket `bucket` (the handle bits of
    /// table and bucket), but behind the table and all nodes of the buckets before.
    pub(super) fn first(self, bucket: u32) -> Place {
        // The table itself has the rank with a zero as its second part.
        let rank = (self.born, (u64::from(bucket & !TABLE) << COUNT_BITS).max(1));
        (self.chain, self.pref, rank)
    }
}
