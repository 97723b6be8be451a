//! Applies `tc` commands to a running tree.

use onramp_queue::PacketList;

use super::{Edit, RootQdisc, Totals, Tree};
use crate::base::{ConfigError, Handle, Instant};
use crate::filter::FilterSpec;
use crate::sched::Cx;
use crate::tc::setup::Change;
use crate::tc::{Setup, Spec};

/// The description of a tree, from which it was built. Each change of the tree also changes the
/// description.
#[derive(Debug)]
pub(super) struct BuiltFrom {
    pub(super) setup: Setup,
    /// Size of the largest packet in bytes, including the link header.
    pub(super) mtu: u32,
    /// Seed of the random choices of the tree's qdiscs.
    seed: u64,
}

impl BuiltFrom {
    /// Creates the description of a tree of one qdisc.
    pub(super) fn spec(spec: &Spec, mtu: u32) -> Self {
        Self { setup: Setup::of(spec.clone()).for_tree(), mtu, seed: 0 }
    }
}

impl Tree {
    /// Builds the tree that `setup` describes, for packets of at most `mtu` bytes, or returns
    /// `None` if `setup` describes no root. The same `seed` gives the same random choices.
    #[must_use]
    pub fn of(setup: &Setup, mtu: u32, seed: u64) -> Option<Self> {
        let mut root = RootQdisc::new(setup.build(mtu, seed)?);
        root.set_front(setup.build_front());
        let built_from = BuiltFrom { setup: setup.clone().for_tree(), mtu, seed };
        let (drops, totals) = (PacketList::new(), Totals::ZERO);
        Some(Self { root, built_from, drops, totals, copied: None })
    }

    /// Applies a command line of `tc` to the tree: see [`Setup::apply`](crate::Setup::apply).
    ///
    /// As in Linux, a qdisc that is replaced or deleted drops all its packets (`purged`), and a
    /// qdisc that is changed keeps the packets that its new limits allow.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that names the wrong word and what would be right. The tree is
    /// unchanged then.
    pub fn apply(&mut self, now: Instant, line: &str) -> Result<(), ConfigError> {
        self.change(now, line).map(|_| ())
    }

    /// Applies a command line of `tc` as [`apply`](Self::apply) does, and returns what has changed.
    ///
    /// # Errors
    ///
    /// The errors of [`apply`](Self::apply). The tree is unchanged then.
    pub fn change(&mut self, now: Instant, line: &str) -> Result<Change, ConfigError> {
        let BuiltFrom { setup, mtu, seed } = &mut self.built_from;
        let change = setup.change(line.split('#').next().unwrap_or_default())?;
        if let Some(edit) = Edit::new(setup, &change, None, *mtu, *seed) {
            let mut drops = PacketList::new();
            let mut cx = Cx::new(now, &mut drops);
            cx.copied = self.copied.as_mut();
            self.root.edit(edit, &mut cx);
            let made = cx.made;
            self.settle(made, drops);
        }
        Ok(change)
    }

    /// Makes this tree the one that `setup` describes. If the two differ only in parameters that
    /// can be changed ([`Setup::changes_to`]), they are changed, and the packets that wait stay
    /// where they are. Otherwise all qdiscs are built anew, and the packets move to them at once,
    /// in the order in which they would have left; a new qdisc may delay or drop them again, and
    /// packets that the old qdiscs never let go are dropped (`purged`).
    ///
    /// Use it to change a link while packets pass; [`apply`](Self::apply) replaces as Linux does,
    /// which drops the packets of a qdisc that is replaced. The totals go on.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] if `setup` has no root. The tree is unchanged then.
    pub fn set(&mut self, now: Instant, setup: &Setup) -> Result<(), ConfigError> {
        let there = &self.built_from.setup;
        let mut tried = there.clone();
        let changes = there.changes_to(setup).filter(|lines| {
            // A line that is refused in the middle must not leave half of the changes.
            lines.iter().all(|line| tried.apply(line).is_ok())
        });
        if let Some(lines) = changes {
            return lines.iter().try_for_each(|line| self.apply(now, line));
        }
        let BuiltFrom { mtu, seed, .. } = self.built_from;
        let Some(root) = setup.with_root()?.build(mtu, seed) else { return Ok(()) };
        self.built_from = BuiltFrom { setup: setup.clone().for_tree(), mtu, seed };
        let mut drops = PacketList::new();
        let mut cx = self.root.call(now, &mut drops);
        cx.copied = self.copied.as_mut();
        self.root.succeed(root, &mut cx);
        self.root.set_front(setup.build_front());
        let made = cx.made;
        self.settle(made, drops);
        Ok(())
    }

    /// Returns the description of the tree, which every change of the tree also changes.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.built_from.setup
    }

    /// Returns the size of the largest packet for which the tree was built, in bytes, including the
    /// link header.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.built_from.mtu
    }

    /// Returns the filters at the qdisc or class `place`, in the order in which they are asked,
    /// with their counters. Returns none if the tree has no such qdisc.
    pub fn filters(&mut self, now: Instant, place: Handle) -> Vec<FilterSpec> {
        let mut drops = PacketList::new();
        let mut cx = self.root.call(now, &mut drops);
        self.root.filters_at(&self.built_from.setup, place, None, &mut cx)
    }
}

#[cfg(test)]
mod tests {
    use onramp_queue::Packet;

    use super::*;
    use crate::sched::Dequeue;

    fn setup(lines: &[&str]) -> Setup {
        let mut setup = Setup::default();
        lines.iter().for_each(|line| setup.apply(line).expect(line));
        setup
    }

    /// Takes packets until none is left. Returns the times, in milliseconds, and the cookies.
    fn drain(tree: &mut Tree, mut now: Instant) -> Vec<(u64, u64)> {
        let mut left = Vec::new();
        loop {
            match tree.dequeue(now) {
                Dequeue::Ready(pkt) => left.push((now.0 / 1_000_000, pkt.cookie)),
                Dequeue::NotBefore(at) => now = at,
                Dequeue::Empty => return left,
            }
        }
    }

    fn packet(cookie: u64) -> Packet {
        let mut packet = Packet::new(1_000);
        packet.cookie = cookie;
        packet
    }

    #[test]
    fn other_parameters_keep_what_waits_and_other_kinds_get_it() {
        const MS: u64 = 1_000_000;
        let slow = setup(&["qdisc add dev d root handle 1: netem delay 100ms loss 0%"]);
        let mut tree = Tree::of(&slow, 1_514, 1).expect("a root");
        for cookie in 0..3 {
            let _ = tree.enqueue(Instant(0), packet(cookie));
        }
        let fast = setup(&["qdisc add dev d root handle 1: netem delay 10ms"]);
        tree.set(Instant(MS), &fast).expect("a root");
        let _ = tree.enqueue(Instant(MS), packet(3));
        // What waited keeps its time; what comes later has the new delay.
        assert_eq!(drain(&mut tree, Instant(MS)), [(11, 3), (100, 0), (100, 1), (100, 2)]);
        for cookie in 0..5 {
            let _ = tree.enqueue(Instant(200 * MS), packet(cookie));
        }
        let fifo = setup(&["qdisc add dev d root handle 2: pfifo limit 4"]);
        tree.set(Instant(201 * MS), &fifo).expect("a root");
        assert_eq!(tree.backlog().packets, 4);
        let left = drain(&mut tree, Instant(201 * MS));
        assert_eq!(left, [(201, 0), (201, 1), (201, 2), (201, 3)]);
        let totals = tree.totals();
        assert_eq!((totals.enqueued_packets, totals.sent_packets), (9, 8));
        assert_eq!(totals.dropped_packets(), 1);
        assert_eq!(tree.setup().lines(), fifo.lines());
        tree.set(Instant(202 * MS), &Setup::default()).expect_err("no root");
        assert_eq!(tree.setup().lines(), fifo.lines());
    }
}
