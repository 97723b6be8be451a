//! Where the `ingress` or `clsact` of a description has filters.

use super::{Change, EGRESS_FILTERS, INGRESS_FILTERS, Setup};
use crate::base::{ConfigError, Handle};
use crate::filter::Way;
use crate::sched::FilterPlaces;
use crate::sched::front::Front;

impl Setup {
    /// Whether `place` is where an `ingress` or `clsact` of this tree has filters. (Otherwise, it
    /// may be a class with the same number.)
    pub(crate) fn has_front(&self, place: Handle) -> bool {
        let places = self.ingress_spec().and_then(|spec| spec.kind().quirks.filters_only);
        match place {
            INGRESS_FILTERS => places.is_some(),
            EGRESS_FILTERS => places == Some(FilterPlaces::InAndOut),
            _ => false,
        }
    }

    /// Whether `place` is where an `ingress` or `clsact` of this tree has the filters for packets
    /// that come in at the device ([`Ingress`](crate::Ingress)).
    #[must_use]
    pub fn is_ingress(&self, place: Handle) -> bool {
        place == INGRESS_FILTERS && self.has_front(place)
    }

    /// Applies a command line as [`apply`](Self::apply) does, where packets only leave through the
    /// tree: refuses filters for packets that come in, because no packet would meet them.
    ///
    /// # Errors
    ///
    /// Those of [`apply`](Self::apply), and one for such a filter. After that one, the description
    /// has the filter, so do not use it any more.
    pub fn apply_leaving(&mut self, line: &str) -> Result<(), ConfigError> {
        let why = "nothing comes in where this tree stands, because packets only leave through it; \
                   use clsact, and egress in place of ingress";
        match self.change(line.split('#').next().unwrap_or_default())? {
            Change::Filters(place) if self.is_ingress(place) => {
                Err(ConfigError::new("filter", "", "", why))
            }
            _ => Ok(()),
        }
    }

    /// Builds the filters in front of the root, or returns `None` if no `clsact` has a place for
    /// them.
    pub(crate) fn build_front(&self) -> Option<Box<Front>> {
        let front = || Box::new(Front::new(Way::Out, self.filters.at(EGRESS_FILTERS)));
        self.has_front(EGRESS_FILTERS).then(front)
    }
}
