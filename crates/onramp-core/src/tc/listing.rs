//! The listings of `tc filter show` and `tc filter get`, for the tree that a `Setup` describes.

use std::borrow::Cow;

use crate::base::show::Out;
use crate::base::{ConfigError, Handle};
use crate::filter::{FilterSpec, Head, Query, Reader, show_filter, show_filters};
use crate::tc::Setup;

impl Setup {
    /// Prints the filters that a line asks for. `line` contains the words after `tc filter show`,
    /// such as `dev e0 parent 1:`. Without a parent, the filters at the root are printed. All
    /// counters are zero, because a description counts no packets.
    ///
    /// ```
    /// use onramp_core::Setup;
    /// use onramp_core::show::{Out, Style};
    /// let mut setup = Setup::default();
    /// setup.apply("qdisc add dev e0 root handle 1: prio")?;
    /// setup.apply("filter add dev e0 parent 1: handle 5 fw classid 1:2")?;
    /// let mut out = Out::new(Style::default());
    /// setup.show_filters("dev e0 pref 49152", &mut out)?;
    /// let lines = "filter parent 1: protocol all fw chain 0 \n\
    ///     filter parent 1: protocol all fw chain 0 handle 0x5 classid 1:2 \n";
    /// assert_eq!(out.finish(), lines);
    /// # Ok::<(), onramp_core::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the wrong word.
    pub fn show_filters(&self, line: &str, out: &mut Out) -> Result<(), ConfigError> {
        let (place, query) = self.filter_query(line)?;
        show_filters(self.filters().at(place), self.filter_place_called(place), &query, out);
        Ok(())
    }

    /// Prints filters as [`show_filters`](Self::show_filters) does, but with the counters of a
    /// running tree. `counted` contains the filters of the qdisc or class with their counters,
    /// summed over all transmit queues.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the wrong word.
    pub fn show_counted(
        &self,
        line: &str,
        counted: &[FilterSpec],
        out: &mut Out,
    ) -> Result<(), ConfigError> {
        let (place, query) = self.filter_query(line)?;
        let find = |filter: &FilterSpec| counted.iter().find(|other| other.is_same(filter));
        let filters = self.filters().at(place);
        let filters: Vec<_> = filters
            .map(|it| {
                find(it).map_or(Cow::Borrowed(it), |there| Cow::Owned(it.with_counters(there)))
            })
            .collect();
        show_filters(
            filters.iter().map(|filter| &**filter),
            self.filter_place_called(place),
            &query,
            out,
        );
        Ok(())
    }

    /// Reads the words after `tc filter show`, and returns the qdisc or class whose filters are
    /// meant, and which of its filters to show. In a running tree,
    /// [`Filters`](crate::filter::Filters) has these filters with their counters.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the wrong word.
    pub fn filter_query(&self, line: &str) -> Result<(Handle, Query), ConfigError> {
        let head = Head::read_query(&mut Reader::new(line))?;
        Ok((self.filter_place(&head), head.query()))
    }

    /// Prints one filter. `line` contains the words after `tc filter get`, which must give the
    /// filter's parent, protocol, preference, handle and kind.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the missing or wrong word, or a value that no filter
    /// has, such as an unknown preference.
    pub fn get_filter(&self, line: &str, out: &mut Out) -> Result<(), ConfigError> {
        let mut words = Reader::new(line);
        let head = Head::read(&mut words)?;
        let Some(parent) = head.parent else {
            return Err(words.wrong("parent", "", "`get` needs it").argument());
        };
        let filter = self.filters().get(self.filter_place(&head), &head, &mut words)?;
        show_filter(&filter, parent, &Query::default(), out);
        Ok(())
    }

    fn filter_place(&self, head: &Head) -> Handle {
        let root = || Handle::new(self.root().unwrap_or(0), 0);
        self.filter_place_of(head.parent.unwrap_or_else(root))
    }
}
