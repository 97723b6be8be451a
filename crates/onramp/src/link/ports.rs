//! Ports that come and go, qdiscs and rates that change, while others send.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use onramp_core::Setup;
use onramp_core::qdisc::Spec;
use onramp_core::{Clock, ConfigError, Device, Edit, Instant, Keeper, Rate};

use super::{CloseReport, Link};

/// Why ports could not be changed. Nothing was.
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
    /// The qdisc's text is wrong.
    Qdisc(ConfigError),
    /// Its owner is still with the device; the port's number. What was asked is going to be done
    /// when it is back.
    Late(usize),
    /// Its device blocks, and so much waits already that no more is taken; its number.
    Blocked(usize),
    /// It died: see [`Link::deaths`]; its number.
    Dead(usize),
    /// The link has no rate of its own ([`LinkBuilder::rate`](crate::LinkBuilder::rate)).
    NoRate,
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
            Self::Qdisc(error) => error.fmt(f),
            Self::Late(port) => {
                write!(f, "port {port} is with its device, and does it when it is back")
            }
            Self::Blocked(port) => write!(f, "the device of port {port} blocks"),
            Self::Dead(port) => write!(f, "port {port} is dead; `Link::deaths` says why"),
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
    /// [`PortError::TooMany`], [`PortError::Closed`].
    pub fn add_port(&self, device: impl Device + 'static) -> Result<usize, PortError> {
        let shared = self.shared();
        let _changing = shared.changing();
        if shared.gate.is_closed() {
            return Err(PortError::Closed);
        }
        // In one step: a change that comes later finds the port, one that came before, the plan.
        let port = shared.add_port(Box::new(device), &shared.plan());
        let port = port.ok_or_else(|| PortError::TooMany(shared.slots.capacity()))?;
        shared.share_out(0);
        // SeqCst: pairs with that of `Handle::close`.
        fence(Ordering::SeqCst);
        if shared.gate.is_closed() {
            shared.close_port(shared.slot(port));
            return Err(PortError::Closed);
        }
        Ok(port)
    }

    /// Removes a port: its flows wait until it has sent what it holds, or `timeout` has passed and
    /// the rest was dropped (counted as [`purged`](onramp_queue::DropReason::Purged)), and go on
    /// at the other ports. So packets of a flow keep their order.
    ///
    /// The device lives, unused, as long as the link. A port's number is not used again.
    ///
    /// # Errors
    ///
    /// [`PortError::Unknown`], [`PortError::Last`], [`PortError::Closed`].
    pub fn remove_port(&self, port: usize, timeout: Duration) -> Result<CloseReport, PortError> {
        let shared = self.shared();
        let changing = shared.changing();
        if shared.gate.is_closed() {
            return Err(PortError::Closed);
        }
        let slot = shared.slots.get(port).filter(|slot| slot.is_open());
        let slot = slot.ok_or(PortError::Unknown(port))?;
        // Until it takes nothing more, no root comes that needs it.
        let plan = shared.plan();
        let heirs: Box<[usize]> = shared.slots.open().filter(|open| *open != port).collect();
        if heirs.is_empty() || shared.gate.is_one() && port == 0 {
            return Err(PortError::Last(port));
        }
        let live = |heir: &&usize| shared.slot(**heir).port.death().is_none();
        let living: Box<[usize]> = heirs.iter().filter(live).copied().collect();
        let heirs = if living.is_empty() { heirs } else { living };
        let deadline = shared.clock.now() + timeout;
        slot.leave();
        drop(plan);
        shared.gate.note_change();
        let flushed = shared.flush(timeout, |this| this == port);
        let before = shared.purged();
        if !flushed {
            shared.close_port(slot);
        }
        // Otherwise it stays open for a packet that was on its way in: that is sent, too, and those
        // that come behind it wait.
        slot.go(heirs, if flushed { deadline } else { Instant(0) });
        shared.share_out(0);
        drop(changing);
        Ok(CloseReport { flushed, purged: shared.purged() - before })
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
    /// [`PortError::Qdisc`], [`PortError::Closed`], [`PortError::Blocked`].
    pub fn set_qdisc(&self, qdisc: &str) -> Result<(), PortError> {
        let spec = Spec::with_units(qdisc).map_err(PortError::Qdisc)?;
        self.set_tree(&Setup::of(spec))
    }

    /// The same with a tree of qdiscs, classes and filters.
    ///
    /// # Errors
    ///
    /// [`PortError::Qdisc`]: it has no root. [`PortError::Closed`]. [`PortError::Blocked`]: one
    /// port keeps what it has, until the next change.
    pub fn set_tree(&self, tree: &Setup) -> Result<(), PortError> {
        let tree = tree.for_ports().map_err(PortError::Qdisc)?;
        let shared = self.shared();
        let mut plan = shared.plan();
        if shared.gate.is_closed() {
            return Err(PortError::Closed);
        }
        plan.tree = Arc::new(tree.clone());
        let moves = shared.follow(&plan);
        let mut blocked = None;
        for (port, slot) in shared.slots.iter().enumerate() {
            let (now, keep) = (shared.clock.now(), shared.keep(slot));
            let taken = if moves {
                let (mtu, seed) = (plan.mtu(slot.mtu), plan.seed(port));
                let edit = Edit::root(&plan.tree, Some(port), mtu, seed);
                edit.map(|edit| {
                    slot.port.with(Box::new(|trunk, cx| trunk.edit(edit, cx)), now, &keep)
                })
            } else {
                let built = plan.build(port, slot.mtu);
                built.map(|built| slot.port.replace(built, now, &keep))
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
    /// [`PortError::NoRate`]: the link was made without.
    pub fn set_rate(&self, rate: Rate) -> Result<(), PortError> {
        let shared = self.shared();
        shared.rate.as_ref().ok_or(PortError::NoRate)?.set(rate);
        // Those that wait have to count their time again.
        for slot in shared.slots.iter() {
            shared.keep(slot).keep(shared.clock.now());
        }
        Ok(())
    }
}
