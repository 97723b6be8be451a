//! What becomes of the defaults that qdiscs and classes have from their device when the device
//! changes.
//!
//! Source: behaviour of Linux 7.2, whose qdiscs compute defaults from `psched_mtu` and
//! `tx_queue_len` when they are added; `dev_qdisc_change_tx_queue_len` and
//! `attach_default_qdiscs` of `net/sched/sch_generic.c`.

use super::{Facts, Setup, class_params};
use crate::base::Handle;
use crate::base::params::{Site, fill_in};
use crate::tc::Spec;

impl Setup {
    /// Notes that the device has changed: it is called `name`, and `facts` is what is known of it.
    /// As in Linux, the qdiscs and classes keep the defaults that the device gave them when they
    /// were added, such as the quantum of an `fq`. From now on, the description has these defaults
    /// as explicit options.
    ///
    /// Also as in Linux, once the device has been up, a default qdisc at the root stays there: a
    /// new [`fallback`](Facts::fallback) stands at the root only after a command has added another
    /// root and a later one has deleted it. Returns whether another default qdisc stands at the
    /// root now, so that a running tree must be built anew.
    pub fn device_changed(&mut self, name: &str, mut facts: Facts) -> bool {
        let of_device = |facts: &Facts| (facts.mtu, facts.txqueuelen);
        if self.facts.mtu != 0 && of_device(&facts) != of_device(&self.facts) {
            self.settle();
        }
        let before = self.facts.fallback.take();
        let is_other = self.root.is_none() && before != facts.fallback;
        let stays = is_other && before.is_some() && !self.facts.dormant;
        let next = if stays { std::mem::replace(&mut facts.fallback, before) } else { None };
        self.of_device(name, facts);
        self.next_fallback = next;
        is_other && !stays
    }

    /// Makes explicit the options of all qdiscs and classes that follow from the device.
    fn settle(&mut self) {
        for major in self.qdiscs.keys().copied().collect::<Vec<_>>() {
            let site = self.site(major, self.facts.mtu, 0);
            let is_front = self.is_front(major);
            let Some(node) = self.qdiscs.get_mut(&major) else { continue };
            if !(is_front && node.spec.kind().quirks.follows_txqueuelen) {
                node.spec.settle(site);
            }
            let params = class_params(&node.spec);
            node.classes.rows_mut().for_each(|class| fill_in(params, &mut class.given, site));
        }
    }

    /// Whether the qdisc `major` stands in front of a transmit queue: at the root, or below an
    /// `mq` at the root.
    fn is_front(&self, major: u16) -> bool {
        self.parent(major).is_none_or(|class| self.is_mq() && self.root == Some(class.major))
    }

    /// Returns the qdisc in front of transmit queue `queue`, or the root if `queue` is `None`, and
    /// what it is told of the device. Returns `None` if this qdisc takes no new `txqueuelen` over.
    pub(crate) fn front(&self, queue: Option<usize>, mtu: u32, seed: u64) -> Option<(Spec, Site)> {
        let below = |queue: usize| {
            let class = u16::try_from(queue + 1).ok().map(|minor| (self.root, minor));
            let class = class.and_then(|(root, minor)| Some(Handle::new(root?, minor)));
            class.and_then(|class| self.below(Some(class)))
        };
        let (major, spec) = match queue.filter(|_| self.is_mq()).map(below) {
            Some(None) => (0, Spec::queue_default().clone()),
            Some(Some(major)) => (major, self.spec(major)?.clone()),
            None => match self.root {
                Some(root) => (root, self.spec(root)?.clone()),
                None => (0, self.facts.fallback.clone()?),
            },
        };
        let follows = spec.kind().quirks.follows_txqueuelen;
        follows.then(|| (spec, self.site(major, mtu, seed)))
    }
}
