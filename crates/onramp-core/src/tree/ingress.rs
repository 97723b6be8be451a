//! The filters that packets meet when they come in at a device.

use onramp_queue::Packet;

use crate::base::Instant;
use crate::filter::{FilterSpec, Way};
use crate::sched::QdiscView;
use crate::sched::front::Front;
use crate::tc::Setup;
use crate::tc::setup::{Change, INGRESS_FILTERS};

/// The filters of an `ingress` or `clsact` for packets that come in at a device. A [`Tree`] has the
/// filters of a `clsact` for packets that leave.
///
/// Use it where your program receives packets: it decides which of them go on, and changes their
/// priority, mark or queue, before anything else sees them. An `Ingress` starts no thread, reads no
/// clock and takes no lock.
///
/// As in Linux, each packet that meets a filter counts in the `ingress` or `clsact`, without its
/// link header; a packet that is dropped counts there too, with the reason
/// [`Filter`](onramp_queue::DropReason::Filter). A packet that no filter matches passes.
///
/// Source: `tc(8)`; behaviour of Linux 7.2 `net/core/dev.c` (`sch_handle_ingress`).
///
/// ```
/// use onramp_core::{Ingress, Instant, Setup, Tree};
/// use onramp_queue::Packet;
///
/// let mut setup = Setup::default();
/// for line in [
///     "qdisc add dev e0 root pfifo",
///     "qdisc add dev e0 ingress",
///     "filter add dev e0 ingress protocol ip u32 match ip dport 53 0xffff action drop",
/// ] {
///     setup.apply(line)?;
/// }
/// let (mut ingress, now) = (Ingress::of(&setup), Instant(1_000_000_000));
///
/// let mut packets = ["10.0.0.1:80", "10.0.0.2:53"].map(|dest| {
///     let mut packet = Packet::with_payload(b"hello");
///     packet.set_dest(dest.parse().ok());
///     packet
/// });
/// assert_eq!(packets.each_mut().map(|packet| ingress.passes(now, packet)), [true, false]);
///
/// // A line changes the filters; those that it does not name keep their counters.
/// let mut tree = Tree::of(&setup, 1514, 0).expect("there is a root");
/// let line = "filter add dev e0 ingress pref 1 matchall action skbedit priority 7";
/// let change = tree.change(now, line)?;
/// ingress.follow(tree.setup(), &change);
/// assert!(ingress.passes(now, &mut packets[0]));
/// assert_eq!(packets[0].priority, 7);
/// # Ok::<(), onramp_core::ConfigError>(())
/// ```
///
/// [`Tree`]: crate::Tree
#[derive(Debug)]
pub struct Ingress(Front);

impl Ingress {
    /// Builds the filters that `setup` describes. Without an `ingress` or `clsact`, there are none,
    /// and all packets pass.
    #[must_use]
    pub fn of(setup: &Setup) -> Self {
        let filters =
            setup.is_ingress(INGRESS_FILTERS).then(|| setup.filters().at(INGRESS_FILTERS));
        Self(Front::new(Way::In, filters.into_iter().flatten()))
    }

    /// Whether a packet would meet any filter. If not, [`passes`](Self::passes) returns true for
    /// every packet, and counts nothing.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.0.is_met()
    }

    /// Asks the filters about a packet that comes in at the time `now`. Returns true if the packet
    /// may go on. Otherwise the packet carries the drop reason; what happens to it then is up to
    /// the caller.
    #[must_use]
    pub fn passes(&mut self, now: Instant, pkt: &mut Packet) -> bool {
        self.0.passes(pkt, now)
    }

    /// Makes a change that a line has made to the description `setup`, which must have been the one
    /// of these filters before. Call it for each change, in order. Filters that the line did not
    /// name keep their counters and the state of their actions, such as the tokens of a policer.
    pub fn follow(&mut self, setup: &Setup, change: &Change) {
        match *change {
            // An `ingress` or `clsact` that is new has no filters, and counts anew.
            Change::Ingress => *self = Self::of(setup),
            Change::Filters(place) if setup.is_ingress(place) => {
                self.0.edit(setup.filters().last_edit());
            }
            _ => {}
        }
    }

    /// Replaces the filters by those that `setup` describes. If they are the same, they keep their
    /// counters and the state of their actions.
    pub fn set(&mut self, setup: &Setup) {
        let new = Self::of(setup);
        if !self.0.is_like(&new.0) {
            *self = new;
        }
    }

    /// Returns the filters, in the order in which they are asked, with their counters.
    pub fn filters(&self) -> impl Iterator<Item = &FilterSpec> {
        self.0.specs()
    }

    /// Adds what was counted here to the view of the `ingress` or `clsact` among `views`, which are
    /// those of the tree that `setup` describes, and appends this view if it is missing. Without an
    /// `ingress` or `clsact`, does nothing.
    pub fn add_to(&self, setup: &Setup, views: &mut Vec<QdiscView>) {
        if let Some(spec) = setup.ingress_spec() {
            self.0.add_to(spec.kind(), views);
        }
    }
}
