//! What is below a link: whether it is up, what it hands on, what was received.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_dev::{Loopback, Network, Receiver};
use onramp_queue::{Counter, DropReason, PacketList};

/// Packets that wait for a reader.
const INBOX: u16 = 4_096;

/// A device without its link and its name.
#[derive(Debug, Default)]
pub(crate) struct LinkEnd {
    up: AtomicBool,
    /// What each source of packets brought.
    sources: Mutex<Vec<Arc<Source>>>,
    /// Where a reader takes what arrives.
    inbox: Option<Network>,
}

/// What one queue, or one thread, brought. It alone writes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Source {
    pub(crate) packets: Counter,
    pub(crate) bytes: Counter,
    pub(crate) dropped: Counter,
}

/// What passed one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) dropped: u64,
}

impl LinkEnd {
    /// One that packets arrive at, and may be read from.
    pub(crate) fn with_inbox() -> Self {
        Self { inbox: Some(Network::new(1, INBOX)), ..Self::default() }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed) // Relaxed: it orders nothing, and may be late.
    }

    pub(crate) fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Relaxed); // Relaxed: as above.
    }

    /// What arrives from now on, if nobody else reads.
    pub(crate) fn receiver(&self) -> Option<Receiver> {
        self.inbox.as_ref()?.receiver(0)
    }

    /// One more that brings packets.
    pub(crate) fn source(&self) -> Arc<Source> {
        let source = Arc::<Source>::default();
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).push(source.clone());
        source
    }

    /// What all of them brought.
    pub(crate) fn received(&self) -> Carried {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let add = |sum: Carried, source: &Arc<Source>| Carried {
            packets: sum.packets + source.packets.get(),
            bytes: sum.bytes + source.bytes.get(),
            dropped: sum.dropped + source.dropped.get(),
        };
        sources.iter().fold(Carried::default(), add)
    }
}

/// A queue that drops while its device is down.
#[derive(Debug)]
pub(crate) struct Switched<D> {
    end: Arc<LinkEnd>,
    device: D,
}

impl<D: Device> Switched<D> {
    pub(crate) const fn new(end: Arc<LinkEnd>, device: D) -> Self {
        Self { end, device }
    }
}

impl<D: Device> Device for Switched<D> {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        if self.end.is_up() {
            self.device.transmit(burst, done, now)
        } else {
            drop_all(burst, done)
        }
    }
}

/// There is no way: `ENETDOWN`.
fn drop_all(burst: &mut PacketList, done: &mut PacketList) -> Transmitted {
    burst.metas_mut().for_each(|meta| meta.drop_reason = Some(DropReason::Unreachable));
    done.append(burst);
    Transmitted::default()
}

/// A queue whose packets arrive at a device of the same host.
#[derive(Debug)]
pub(crate) struct Wire {
    info: DeviceInfo,
    queue: Loopback,
    /// Where they arrive.
    to: Arc<LinkEnd>,
    brought: Arc<Source>,
}

impl Wire {
    /// `None`: nothing can arrive there.
    pub(crate) fn new(info: DeviceInfo, to: &Arc<LinkEnd>) -> Option<Self> {
        let queue = to.inbox.as_ref()?.queue();
        Some(Self { info, queue, to: to.clone(), brought: to.source() })
    }
}

impl Device for Wire {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        if !self.to.is_up() {
            return drop_all(burst, done);
        }
        let (packets, bytes) = (burst.len(), burst.bytes());
        let mut unread = PacketList::new();
        let out = self.queue.transmit(burst, &mut unread, now);
        // Nobody reads: they arrived, and are done with.
        unread.metas_mut().for_each(|meta| meta.drop_reason = None);
        done.append(&mut unread);
        let arrived = packets - burst.len();
        self.brought.packets.add(arrived.into());
        self.brought.bytes.add(bytes - burst.bytes());
        Transmitted { messages: arrived, ..out }
    }
}
