//! A link: a device with one or more ports, what all its senders share.

mod control;
mod ports;

use std::sync::Arc;
use std::time::Duration;

use onramp_core::{Clock, Device, Instant};
use onramp_dev::MonotonicClock;
#[cfg(feature = "udp")]
use onramp_dev::UdpStats;

use crate::runner::{StartError, ThreadGroup};
use crate::shared::{BoxDevice, Setup, Shared};
use crate::stats::LinkStats;
use crate::{LinkBuilder, Sender};

pub use ports::PortError;

/// A device with one or more ports (transmit queues), each with a qdisc in front. Cheap to clone.
///
/// When the last handle and the last [`Sender`] are gone, the link closes without waiting: what is
/// still held is dropped. Call [`Link::close`] to give it time. A device that blocks keeps the
/// thread that drops the last of them for a second at most.
#[derive(Clone, Debug)]
pub struct Link {
    pub(crate) handle: Arc<Handle>,
}

/// Owned by links and senders, not by the runners: its drop ends them.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
}

/// What became of a link that [`Link::close`] has closed, or of a port that [`Link::remove_port`]
/// has removed.
///
/// Of several closes of a link, each tells what was lost since the first of them began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseReport {
    /// Devices took all packets before the deadline, but for those that qdiscs dropped: none was
    /// lost to closing, and none to the death of a port.
    pub flushed: bool,
    /// Packets dropped by closing so far, counted as `purged`. Not those that a cork holds back:
    /// see [`Sender::uncork`].
    pub purged: u64,
    /// Ports that could not be closed within a second after the deadline, because their devices
    /// keep the thread that is with them, a runner or a sender. What they hold is purged, and
    /// counted, when that thread is back.
    pub blocked: usize,
}

impl Link {
    /// A link over UDP sockets that it binds itself to `local`, one for each port.
    ///
    /// With more than one port, `local` must leave the port number open (`0.0.0.0:0`).
    #[cfg(feature = "udp")]
    pub fn udp(local: impl std::net::ToSocketAddrs) -> LinkBuilder {
        LinkBuilder::udp(local)
    }

    /// A link over UDP sockets of yours: each becomes a port.
    #[cfg(feature = "udp")]
    pub fn sockets(sockets: impl IntoIterator<Item = std::net::UdpSocket>) -> LinkBuilder {
        LinkBuilder::sockets(sockets)
    }

    /// A link over devices of any kind: each becomes a port.
    pub fn devices(devices: impl IntoIterator<Item = Box<dyn Device>>) -> LinkBuilder {
        LinkBuilder::devices(devices)
    }

    /// Starts a link over `devices`, whose runners are on the processors `cpus`, in turn.
    pub(crate) fn start(
        setup: Setup,
        devices: Vec<BoxDevice>,
        cpus: &[usize],
    ) -> Result<Self, StartError> {
        let shared = Arc::new(Shared::new(setup));
        if let Some(plan) = shared.plan() {
            for device in devices {
                let added = shared.add_port(device, &plan);
                debug_assert!(added.is_some(), "there is room for all that are given");
            }
        }
        shared.share_out(0);
        // From here on its drop ends the threads that were started.
        let handle = Arc::new(Handle { shared: shared.clone() });
        for me in 0..shared.rig.runners.len() {
            let cpu = cpus.get(me % cpus.len().max(1)).copied();
            ThreadGroup::start(&shared, me, cpu, MonotonicClock)?;
        }
        if shared.ports() > 1 && shared.slots.iter().any(|slot| slot.known.may_block) {
            ThreadGroup::start_watch(&shared, MonotonicClock)?;
        }
        Ok(Self { handle })
    }

    /// Makes a sender, for one thread.
    #[must_use]
    pub fn sender(&self) -> Sender {
        Sender::new(self.handle.clone())
    }

    /// Ports (transmit queues) that it has or had: those that were removed keep their numbers.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.shared().slots.len()
    }

    /// The present on the link's clock, on which `txtime` counts.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared().clock.now()
    }

    /// What happened so far. Cells are read one after another: exact when nobody sends.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        let shared = self.shared();
        // The sent side first, so that a packet in between counts as held, not as negative.
        let ports = shared.slots.iter().map(|slot| slot.port.snapshot()).collect();
        let mut stats = LinkStats::new(ports, shared.sender_totals());
        for runner in &shared.rig.runners {
            stats.add_runner(&runner.stats);
        }
        for slot in shared.slots.iter() {
            stats.add_calls(slot.calls());
        }
        stats
    }

    /// What the UDP socket of each port counts that the builder made; empty for a link over other
    /// devices. (A device that is added later has statistics of its own.)
    #[cfg(feature = "udp")]
    #[must_use]
    pub fn udp_stats(&self) -> &[Arc<UdpStats>] {
        &self.shared().udp
    }

    /// The ports that are dead, by their number, and what their qdisc or device said as it
    /// panicked. Other ports go on; a dead one drops what it held and whatever still comes, as
    /// [`port_dead`](onramp_queue::DropReason::PortDead).
    #[must_use]
    pub fn deaths(&self) -> Vec<(usize, String)> {
        let slots = self.shared().slots.iter().enumerate();
        slots.filter_map(|(port, slot)| Some((port, slot.port.death()?.to_owned()))).collect()
    }

    /// Waits until nothing is held, at most `timeout`. True if so.
    ///
    /// While others go on sending, that may never be. A close by another thread ends it as that
    /// close comes to its end; true if nothing is held then. What a cork holds back is not in the
    /// link yet.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.shared().flush(timeout, |_| true)
    }

    /// Refuses new packets, waits until nothing is held or `timeout` has passed, drops the rest
    /// (counted as [`purged`](onramp_queue::DropReason::Purged)) and ends the link's threads.
    ///
    /// Whoever waits for the link is woken: [`send`](Sender::send) and
    /// [`ready`](Sender::ready) as soon as it refuses, [`flush`](Sender::flush) when it holds
    /// nothing any more. A device that blocks keeps the call for a second more at most, see
    /// [`CloseReport::blocked`]. Wakers run in this thread, too, so one that waits keeps the call.
    ///
    /// Several threads may close a link at the same time. The shortest `timeout` counts for all.
    ///
    /// In a child of `fork`, the link is a copy without threads, and closed; this does nothing.
    pub fn close(&self, timeout: Duration) -> CloseReport {
        self.shared().close(timeout)
    }

    fn shared(&self) -> &Shared {
        &self.handle.shared
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use onramp_dev::Null;

    use super::*;

    fn link(ports: usize) -> Link {
        let devices = (0..ports).map(|_| Box::new(Null::default()) as BoxDevice);
        Link::devices(devices).build().expect("a link")
    }

    #[test]
    fn credits_are_shared_out_to_the_packet() {
        for ports in [1_u32, 2, 3, 7] {
            let link = link(ports as usize);
            let share = |count: u32| (8_192 * ports / count.max(1)).max(4);
            let mut senders = Vec::new();
            let most = 2_100 * ports;
            for count in 1..=most {
                senders.push(link.sender());
                assert_eq!(link.shared().fair_credits(), share(count), "{count} senders");
            }
            assert_eq!(link.shared().fair_credits(), 4, "never less");
            for count in (0..most).rev() {
                senders.pop();
                assert_eq!(link.shared().fair_credits(), share(count), "{count} senders");
            }
        }
    }

    #[test]
    fn credits_are_shared_out_though_senders_come_at_once() {
        let link = link(1);
        let keep: Vec<_> = (0..100).map(|_| link.sender()).collect();
        for round in 0..2_000 {
            let barrier = std::sync::Barrier::new(2);
            let made: Vec<_> = thread::scope(|scope| {
                let make = || {
                    barrier.wait();
                    (0..4).map(|_| link.sender()).collect::<Vec<_>>()
                };
                [scope.spawn(make), scope.spawn(make)].map(|made| made.join().unwrap()).into()
            });
            assert_eq!(link.shared().fair_credits(), 8_192 / 108, "round {round}");
            drop(made);
        }
        drop(keep);
    }

    #[test]
    fn more_senders_than_processors_are_a_crowd() {
        let link = link(1);
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let mut senders: Vec<_> = (0..processors).map(|_| link.sender()).collect();
        assert!(!link.shared().crowded());
        senders.push(link.sender());
        assert!(link.shared().crowded());
        senders.pop();
        assert!(!link.shared().crowded());
    }
}
