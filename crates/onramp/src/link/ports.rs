//! Ports that come and go, qdiscs and rates that change, while others send.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onramp_core::Setup;
use onramp_core::Spec;
use onramp_core::{Clock, ConfigError, Device, Edit, PortWaker, Rate};
use onramp_dev::MonotonicClock;

use super::{CloseReport, Link};
use crate::runner::{StartError, ThreadGroup};

/// How long the flows of a port that went wait at least for a packet that was on its way into it.
const LATE_PATIENCE: Duration = Duration::from_secs(1);

/// Why a change of ports was not made, or not of all ports.
#[derive(Debug)]
#[non_exhaustive]
pub enum PortError {
    /// The link is closed.
    Closed,
    /// It has had as many ports as it was made for
    /// ([`LinkBuilder::ports_max`](crate::LinkBuilder::ports_max)); the number.
    TooMany(usize),
    /// There is no such port, or it was removed; its number.
    Unknown(usize),
    /// It is the last one, or the one in front of which a root serves all ports, and the flows need
    /// it; its number. Close the link instead.
    Last(usize),
    /// The text of a qdisc or of a line is wrong, or what it asks for cannot be done.
    Config(ConfigError),
    /// The owner of one port is still with its device; the port's number. The change is made there
    /// when the owner is back; at all other ports, it is made.
    Late(usize),
    /// The device of one port blocks, and so many changes wait for it already that the port takes
    /// no more; its number. The port stays as it is; at all other ports, the change is made.
    Blocked(usize),
    /// It died: see [`Link::deaths`]; its number.
    Dead(usize),
    /// The link has no rate of its own ([`LinkBuilder::rate`](crate::LinkBuilder::rate)).
    NoRate,
    /// A waker has called this while a port of the link was just being added or removed, maybe by
    /// the thread that calls the waker.
    Nested,
    /// The thread that watches devices which may block could not be started.
    Thread(std::io::Error),
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "the link is closed"),
            Self::TooMany(max) => {
                write!(f, "the link was made for {max} ports at most; raise `ports_max`")
            }
            Self::Unknown(port) => write!(f, "there is no port {port}, or it was removed"),
            Self::Last(port) => {
                write!(f, "port {port} serves all that is left; close the link instead")
            }
            Self::Config(error) => error.fmt(f),
            Self::Late(port) => {
                write!(f, "port {port} is with its device, and does it when it is back")
            }
            Self::Blocked(port) => {
                write!(f, "the device of port {port} blocks; try again when it is back")
            }
            Self::Dead(port) => write!(f, "port {port} is dead; `Link::deaths` says why"),
            Self::Nested => {
                write!(f, "a waker cannot change ports while others are changed; have a task do it")
            }
            Self::Thread(error) => write!(
                f,
                "cannot start the thread that watches devices: {error}; look at the limits on \
                 threads (`ulimit -u`)"
            ),
            Self::NoRate => write!(f, "the link was made without a rate; give one to the builder"),
        }
    }
}

impl std::error::Error for PortError {}

impl Link {
    /// Adds a port over `device`, with the link's qdisc, for flows made from now on. Gives its
    /// number.
    ///
    /// # Errors
    ///
    /// [`PortError::TooMany`], [`PortError::Closed`], [`PortError::Nested`], [`PortError::Thread`].
    pub fn add_port(&self, device: impl Device + 'static) -> Result<usize, PortError> {
        let shared = self.shared();
        let _changing = shared.changing()?;
        if shared.ports() >= shared.slots.capacity() {
            return Err(PortError::TooMany(shared.slots.capacity()));
        }
        if device.info().may_block || shared.slots.iter().any(|slot| slot.known.may_block) {
            let watched = ThreadGroup::start_watch(&self.handle.shared, MonotonicClock);
            watched.map_err(|error| match error {
                _ if shared.is_closed() => PortError::Closed,
                StartError::Spawn(error) | StartError::Pin(_, error) => PortError::Thread(error),
            })?;
        }
        // In one step: a change that comes later finds the port, one that came before, the plan.
        let port = shared.add_port(Box::new(device), &*shared.plan().ok_or(PortError::Closed)?);
        let port = port.ok_or_else(|| PortError::TooMany(shared.slots.capacity()))?;
        shared.share_out(0);
        if shared.rig.gate.has_closed_since() {
            let slot = shared.slot(port);
            shared.close_ports(std::iter::once(slot), shared.owners_deadline());
            return Err(PortError::Closed);
        }
        Ok(port)
    }

    /// Removes a port: its flows wait until it has sent what it holds, or `timeout` has passed and
    /// the rest was dropped (counted as [`purged`](onramp_queue::DropReason::Purged)), and go on
    /// at the other ports. So packets of a flow keep their order. (A packet that was on its way
    /// into the port just then may be overtaken if the port wakers it for longer than a second, and
    /// longer than `timeout`.)
    ///
    /// A device that blocks wakers the call for a second more at most, see
    /// [`CloseReport::blocked`]. One thread at a time adds or removes ports; others wait until it
    /// is done.
    ///
    /// The device lives, unused, as long as the link. A port's number is not used again.
    ///
    /// # Errors
    ///
    /// [`PortError::Unknown`], [`PortError::Last`], [`PortError::Closed`], [`PortError::Nested`].
    pub fn remove_port(&self, port: usize, timeout: Duration) -> Result<CloseReport, PortError> {
        let shared = self.shared();
        let mut changing = shared.changing()?;
        let slot = shared.slots.get(port).filter(|slot| slot.is_open());
        let slot = slot.ok_or(PortError::Unknown(port))?;
        // Until it takes nothing more, no root comes that needs it.
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
        // Otherwise it stays open for a packet that was on its way in: that is sent, too, and those
        // that come behind it wait.
        let patience = deadline.max(shared.clock.now() + LATE_PATIENCE).0;
        slot.known.succession.go(&successors, if flushed { patience } else { 0 });
        shared.note_gone(port, &mut changing);
        shared.share_out(0);
        drop(changing);
        // Those who waited for it go on at its successors.
        shared.ring_all();
        Ok(slot.lost().since(before, flushed, blocked))
    }

    /// Gives every port a new qdisc, as `tc qdisc replace` does, but for what is held: that moves
    /// over, in order, as far as the new one's limits allow. What does not is dropped and counted.
    /// So is all that is held where a root that serves all ports of a [`Host`](crate::Host)'s
    /// device comes or goes.
    ///
    /// A port that somebody works on gets it as soon as that one comes by; this waits for nobody.
    ///
    /// # Errors
    ///
    /// [`PortError::Config`], [`PortError::Closed`], [`PortError::Blocked`].
    pub fn set_qdisc(&self, qdisc: &str) -> Result<(), PortError> {
        let spec = Spec::with_units(qdisc).map_err(PortError::Config)?;
        self.set_tree(&Setup::of(spec))
    }

    /// The same with a tree of qdiscs, classes and filters.
    ///
    /// # Errors
    ///
    /// [`PortError::Config`]: it has no root. [`PortError::Closed`]. [`PortError::Blocked`]: one
    /// port wakers what it has, until the next change.
    pub fn set_tree(&self, tree: &Setup) -> Result<(), PortError> {
        let tree = tree.for_ports().map_err(PortError::Config)?;
        let shared = self.shared();
        let mut plan = shared.open_plan().ok_or(PortError::Closed)?;
        plan.tree = Arc::new(tree.clone());
        let moves = shared.follow(&plan);
        let mut blocked = None;
        for (port, slot) in shared.slots.iter().enumerate() {
            let (now, waker) = (shared.clock.now(), shared.waker(slot));
            let taken = if moves {
                let (mtu, seed) = (plan.mtu(slot.known.mtu), plan.seed(port));
                let edit = Edit::root(&plan.tree, Some(port), mtu, seed);
                edit.map(|edit| {
                    slot.port.with(Box::new(|root, cx| root.edit(edit, cx)), now, &waker)
                })
            } else {
                let built = plan.build(port, slot.known.mtu);
                built.map(|built| slot.port.replace(built, now, &waker))
            };
            if let Some(taken) = taken {
                slot.set_stale(taken.is_err());
                blocked = blocked.or_else(|| taken.is_err().then_some(port));
            }
        }
        blocked.map_or(Ok(()), |port| Err(PortError::Blocked(port)))
    }

    /// Changes the rate that all ports share, for packets from now on; `Rate(0)`: no limit.
    ///
    /// # Errors
    ///
    /// [`PortError::NoRate`]: the link was made without. [`PortError::Closed`]: this is a copy in a
    /// child of `fork`.
    pub fn set_rate(&self, rate: Rate) -> Result<(), PortError> {
        let shared = self.shared();
        if shared.is_copy() {
            return Err(PortError::Closed);
        }
        shared.rate.as_ref().ok_or(PortError::NoRate)?.set(rate);
        // Those that wait have to count their time again.
        for slot in shared.slots.iter() {
            shared.waker(slot).visit_by(shared.clock.now());
        }
        Ok(())
    }
}
