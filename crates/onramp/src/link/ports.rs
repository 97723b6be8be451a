//! Adding and removing ports, and changing qdiscs and rates, while other threads send.

use std::sync::Arc;
use std::time::Duration;

use onramp_core::qdisc::Cx;
use onramp_core::{Clock, Device, Edit, Facts, PortWaker, Rate, RootQdisc, Setup};
use onramp_dev::MonotonicClock;

use super::Link;
use crate::runner::{StartError, ThreadGroup};
use crate::shared::{Described, LinkConfig, Shared};
use crate::{CloseReport, PortError};

/// If a packet was on its way into a port when the port was removed, that port's flows move to
/// another port as soon as the packet has arrived. If it does not arrive, the flows move without
/// it, but not before this time has passed.
const LATE_PATIENCE: Duration = Duration::from_secs(1);

impl Link {
    /// Adds a port over `device`, with the link's qdisc. Flows that are made from now on may use
    /// the port. Returns the number of the port.
    ///
    /// # Errors
    ///
    /// [`PortError::TooMany`], [`PortError::Closed`], [`PortError::Nested`], [`PortError::Thread`].
    pub fn add_port(&self, device: impl Device + 'static) -> Result<usize, PortError> {
        let shared = self.shared();
        let device = Described::new(Box::new(device));
        let _changing = shared.changing()?;
        if shared.ports() >= shared.slots.capacity() {
            return Err(PortError::TooMany(shared.slots.capacity()));
        }
        if device.may_block || shared.slots.iter().any(|slot| slot.known.may_block) {
            let watched = ThreadGroup::start_watch(&self.handle.shared, MonotonicClock);
            watched.map_err(|error| match error {
                _ if shared.is_closed() => PortError::Closed,
                StartError::Spawn(error)
                | StartError::Pin(_, error)
                | StartError::Rank(_, error) => PortError::Thread(error),
            })?;
        }
        // While the configuration is locked here, no other thread can change it. So a change that
        // comes later finds the new port, and the port is built with every change that came
        // earlier.
        let port = shared.add_port(device, &*shared.plan().ok_or(PortError::Closed)?);
        let port = port.ok_or_else(|| PortError::TooMany(shared.slots.capacity()))?;
        shared.share_out(0);
        if shared.rig.gate.has_closed_since() {
            let slot = shared.slot(port);
            shared.close_ports(std::iter::once(slot), shared.owners_deadline());
            return Err(PortError::Closed);
        }
        Ok(port)
    }

    /// Removes a port. The flows of the port wait until it has sent the packets that it holds, or
    /// until `timeout` has passed and the remaining packets were dropped (counted as
    /// [`purged`](onramp_queue::DropReason::Purged)). Then the flows continue at the other ports,
    /// so the packets of a flow keep their order. There is one exception: a packet that another
    /// thread was just pushing into the port may be overtaken if the port keeps it for longer than
    /// a second and longer than `timeout`.
    ///
    /// If the port's device blocks, the call returns at most a second after `timeout`, see
    /// [`CloseReport::blocked`]. One thread at a time adds or removes ports; others wait until that
    /// thread is done.
    ///
    /// The port's device is not dropped before the link is. The number of a removed port is not
    /// used again.
    ///
    /// # Errors
    ///
    /// [`PortError::Unknown`], [`PortError::Last`], [`PortError::Closed`], [`PortError::Nested`].
    pub fn remove_port(&self, port: usize, timeout: Duration) -> Result<CloseReport, PortError> {
        let shared = self.shared();
        let mut changing = shared.changing()?;
        let slot = shared.slots.get(port).filter(|slot| slot.is_open());
        let slot = slot.ok_or(PortError::Unknown(port))?;
        // While this thread holds the lock on the configuration, no other thread can install a root
        // that needs this port.
        let plan = shared.plan();
        let successors: Box<[usize]> = shared.slots.open().filter(|open| *open != port).collect();
        if successors.is_empty() || shared.rig.gate.is_one() && port == 0 {
            return Err(PortError::Last(port));
        }
        let live = |successor: &&usize| shared.slot(**successor).port.death().is_none();
        let living: Box<[usize]> = successors.iter().filter(live).copied().collect();
        let successors = if living.is_empty() { successors } else { living };
        let (deadline, before) = (shared.clock.now() + timeout, slot.lost());
        slot.known.succession.leave();
        drop(plan);
        shared.rig.gate.note_change();
        let flushed = shared.flush(timeout, |this| this == port);
        let mut blocked = 0;
        if !flushed {
            blocked = shared.close_ports(std::iter::once(slot), shared.owners_deadline());
        }
        // If the flush succeeded, the port stays able to send packets that other threads were just
        // pushing into it. So these packets are sent, too, and later packets of their flows wait
        // for them.
        let patience = deadline.max(shared.clock.now() + LATE_PATIENCE).0;
        slot.known.succession.go(&successors, if flushed { patience } else { 0 });
        shared.note_gone(port, &mut changing);
        shared.share_out(0);
        drop(changing);
        // Wake the senders that waited for the removed port, so that they continue at its
        // successors.
        shared.ring_all();
        Ok(slot.lost().since(before, flushed, blocked))
    }

    /// Gives every port a new qdisc, as `tc qdisc replace` does, except that the packets that the
    /// old qdisc holds move to the new one, in order, as far as its limits allow. The remaining
    /// packets are dropped and counted. All held packets are dropped if the change installs or
    /// removes a root that serves all ports of a device of a host (crate `onramp-host`) together.
    ///
    /// The call waits for no other thread. If a port has an owner at the moment, the port gets the
    /// qdisc as soon as that owner returns from the device.
    ///
    /// # Errors
    ///
    /// [`PortError::Config`], [`PortError::Closed`], [`PortError::Blocked`].
    pub fn set_qdisc(&self, qdisc: &str) -> Result<(), PortError> {
        let kinds = self.shared().plan().ok_or(PortError::Closed)?.tree.kinds().clone();
        let spec = kinds.spec_with_units(qdisc).map_err(PortError::Config)?;
        self.set_tree(&Setup::of(spec))
    }

    /// Gives every port a new tree of qdiscs, classes and filters, as
    /// [`set_qdisc`](Self::set_qdisc) does with a single qdisc. Later lines may name the kinds of
    /// the tree ([`Setup::with_kinds`]) and those that the link knew before.
    ///
    /// # Errors
    ///
    /// [`PortError::Config`]: the tree has no root, or one of its own kinds has the name of another
    /// kind that the link knows. [`PortError::Closed`]. [`PortError::Blocked`]: the named port
    /// keeps its old tree until the next change.
    pub fn set_tree(&self, tree: &Setup) -> Result<(), PortError> {
        let mut tree = tree.for_ports().map_err(PortError::Config)?.clone();
        let shared = self.shared();
        let mut plan = shared.open_plan().ok_or(PortError::Closed)?;
        tree.add_kinds(plan.tree.kinds()).map_err(PortError::Config)?;
        // What the tree does not say of a device stays as it was.
        let (own, known) = (tree.facts(), plan.tree.facts());
        let or = |own: u32, known| if own == 0 { known } else { own };
        let facts = Facts {
            fallback: own.fallback.clone().or_else(|| known.fallback.clone()),
            txqueuelen: or(own.txqueuelen, known.txqueuelen),
            mtu: or(own.mtu, known.mtu),
            ..known.clone()
        };
        let name = tree.device().or_else(|| plan.tree.device()).unwrap_or("link").to_owned();
        tree.of_device(&name, facts);
        plan.tree = Arc::new(tree);
        plan.ingresses.iter().for_each(|ingress| ingress.set(&plan.tree));
        if shared.follow(&mut plan) {
            return shared.rebuild(&mut plan);
        }
        let mut blocked = None;
        for (port, slot) in shared.slots.iter().enumerate() {
            let Some(built) = plan.build(port, slot.known.mtu) else { continue };
            let front = Edit::front(&plan.tree);
            let job = |root: &mut RootQdisc, cx: &mut Cx<'_>| {
                root.succeed(built, cx);
                root.edit(front, cx);
            };
            let taken = shared.give(slot, Box::new(job));
            plan.set_stale(port, taken.is_err());
            blocked = blocked.or_else(|| taken.is_err().then_some(port));
        }
        blocked.map_or(Ok(()), |port| Err(PortError::Blocked(port)))
    }

    /// Changes the rate that all ports of the link share, in bytes on the wire per second, for
    /// packets from now on. `Rate(0)` means no limit.
    ///
    /// # Errors
    ///
    /// [`PortError::NoRate`]: the link was built without a rate. [`PortError::Closed`]: this is a
    /// copy of the link in a child of `fork`.
    pub fn set_rate(&self, rate: Rate) -> Result<(), PortError> {
        let shared = self.shared();
        if shared.is_copy() {
            return Err(PortError::Closed);
        }
        shared.rate.as_ref().ok_or(PortError::NoRate)?.set(rate);
        // Ports that wait for the time at which the old rate allows the next packet have to compute
        // that time again.
        for slot in shared.slots.iter() {
            shared.waker(slot).visit_by(shared.clock.now());
        }
        Ok(())
    }
}

impl Shared {
    /// Builds the trees of all ports anew, without the packets that they hold, because flows have
    /// moved to other ports ([`follow`](Self::follow)): newer packets could overtake those packets.
    ///
    /// # Errors
    ///
    /// [`PortError::Blocked`]: the named port keeps its old tree until the next change.
    pub(super) fn rebuild(&self, plan: &mut LinkConfig) -> Result<(), PortError> {
        let mut blocked = None;
        for (port, slot) in self.slots.iter().enumerate() {
            let (mtu, seed) = (plan.mtu(slot.known.mtu), plan.seed(port));
            let Some(edit) = Edit::root(&plan.tree, Some(port), mtu, seed) else { continue };
            let taken = self.give(slot, Box::new(|root, cx| root.edit(edit, cx)));
            plan.set_stale(port, taken.is_err());
            blocked = blocked.or_else(|| taken.is_err().then_some(port));
        }
        blocked.map_or(Ok(()), |port| Err(PortError::Blocked(port)))
    }
}
