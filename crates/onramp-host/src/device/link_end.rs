//! The part of a device below its link: whether the device is up, where the packets go that it
//! sends, and counters of the packets that it received.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use onramp::{HeldIngress, Link, LinkIngress};
use onramp_core::{Device, DeviceInfo, DeviceWaker, Instant, Transmitted};
use onramp_dev::capture::{CaptureStart, CaptureStats, PlayStats};
use onramp_dev::{Loopback, Network, Receiver, Switch, Udp, UdpStats};
use onramp_queue::{Counter, DropReason, PacketList};

/// Greatest number of packets that wait at a device until a receiver takes them.
const INBOX: u16 = 4_096;
/// The drop reason that a packet carries when it has passed the filters and waits for room: the one
/// that it then has if its port dies with it.
const PASSED: DropReason = DropReason::Purged;
/// How long a queue waits for the filters at the ingress of the other end while a command uses
/// them.
const BUSY_NS: u64 = 50_000;

/// The part of a device below its link that all of its queues share.
#[derive(Debug, Default)]
pub(crate) struct LinkEnd {
    up: AtomicBool,
    /// Whether the kernel's interface from which packets came is gone.
    gone: AtomicBool,
    /// Leads packets to this device only while it is up.
    switch: Option<Switch>,
    /// The capture files of the device, if it has some.
    files: Option<Files>,
    /// Counters of the sockets through which the device sends, if it sends through sockets.
    sockets: Vec<Arc<UdpStats>>,
    /// Counters of received packets: one entry for each thread or queue that brings packets to this
    /// device.
    sources: Mutex<Vec<Arc<Source>>>,
    /// The place from which a receiver takes packets that arrive. `None`: nothing arrives at this
    /// device.
    inbox: Option<Network>,
}

/// The capture files of a device.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) written: Arc<CaptureStats>,
    /// The file that is played, and its start: the time at which the device is first up.
    pub(crate) read: Option<(CaptureStart, Arc<PlayStats>)>,
}

/// What one queue or one thread has that brings packets to a device: the filters at the device's
/// ingress, and counters. Only that queue or thread writes the counters, so that no two threads
/// write to the same ones.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Source {
    /// The filters, once the device has a link.
    ingress: OnceLock<LinkIngress>,
    pub(crate) packets: Counter,
    pub(crate) bytes: Counter,
    pub(crate) dropped: Counter,
}

/// Counters of the packets that a device received, or of those that it sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) dropped: u64,
}

impl Source {
    /// Returns the filters at the device's ingress if a packet would meet any.
    #[inline]
    fn ingress(&self) -> Option<&LinkIngress> {
        self.ingress.get().filter(|ingress| ingress.is_met())
    }

    /// Locks the filters at the device's ingress for a batch of packets. Returns `None` if no
    /// packet would meet any.
    #[inline]
    pub(crate) fn hold(&self) -> Option<HeldIngress<'_>> {
        self.ingress().map(LinkIngress::hold)
    }
}

impl LinkEnd {
    /// Makes the shared part of a device to which `switch` leads packets.
    pub(crate) fn switching(switch: Switch) -> Self {
        Self { switch: Some(switch), ..Self::default() }
    }

    /// Makes the shared part of a device with capture files.
    pub(crate) fn with_files(files: Files) -> Self {
        Self { files: Some(files), ..Self::default() }
    }

    /// Makes the shared part of a device that sends through these sockets.
    pub(crate) fn with_sockets<'a>(sockets: impl IntoIterator<Item = &'a Udp>) -> Self {
        Self { sockets: sockets.into_iter().map(Udp::stats).collect(), ..Self::default() }
    }

    /// Returns the number of errors of which the kernel has told the device only after it had taken
    /// the packets, for example because no program listens at their destination.
    pub(crate) fn errors(&self) -> u64 {
        self.sockets.iter().map(|socket| socket.earlier_errors.get()).sum()
    }

    /// Returns what a user wants to know about the device's files, each with its key: how the file
    /// that is played has ended, and the last error of writing.
    pub(crate) fn notes(&self) -> Vec<(&'static str, String)> {
        let Some(files) = &self.files else { return Vec::new() };
        let ended = files.read.as_ref().and_then(|(_, stats)| stats.ended());
        let ended = ended.map(|how| ("read_ended", how));
        let failed = files.written.last_error().map(|why| ("write_error", why));
        ended.into_iter().chain(failed).collect()
    }

    /// Makes the shared part of a device at which packets arrive and wait until a receiver takes
    /// them.
    pub(crate) fn with_inbox() -> Self {
        Self { inbox: Some(Network::new(1, INBOX)), ..Self::default() }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed) // Relaxed: `up` orders nothing, and may be read late.
    }

    pub(crate) fn set_up(&self, up: bool) {
        let switched = self.switch.iter().try_for_each(|switch| switch.set(up));
        if switched.is_err() {
            self.set_gone();
        }
        // A device that goes down gets no packets before it begins to drop them.
        self.up.store(up, Ordering::Relaxed); // Relaxed: `up` orders no other memory access.
        // The queues that wait for room here drop their packets now.
        if let Some(inbox) = self.inbox.as_ref().filter(|_| !up) {
            inbox.wake_queues();
        }
        // A file begins after the device has begun to take packets.
        let start = self.files.as_ref().and_then(|files| files.read.as_ref());
        if up && start.is_some_and(|(start, _)| start.start().is_err()) {
            self.set_gone();
        }
    }

    /// Notes that the kernel's interface from which packets came is gone.
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed); // Relaxed: as for `up`.
    }

    /// Whether the kernel's interface from which packets came is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed) // Relaxed: as for `up`.
    }

    /// Returns a receiver of the packets that arrive at this device from now on, or `None` if there
    /// is a receiver already.
    pub(crate) fn receiver(&self) -> Option<Receiver> {
        self.inbox.as_ref()?.receiver(0)
    }

    /// Adds counters for one more queue or thread that brings packets to this device, and returns
    /// these counters.
    pub(crate) fn source(&self) -> Arc<Source> {
        let source = Arc::<Source>::default();
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).push(source.clone());
        source
    }

    /// Lets packets that come in at this device meet the filters at the ingress of its link.
    pub(crate) fn filter_by(&self, link: &Link) {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        for source in sources.iter() {
            source.ingress.get_or_init(|| link.ingress());
        }
    }

    /// Whether any queue or thread brings packets to this device.
    pub(crate) fn receives(&self) -> bool {
        !self.sources.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Returns the counters of received packets, summed over all queues and threads that bring
    /// packets to this device.
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

/// A transmit queue that drops its packets while its device is down.
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

    fn attach(&mut self, waker: DeviceWaker) {
        self.device.attach(waker);
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

/// Drops all packets of the burst and marks them as unreachable, as Linux does for `ENETDOWN`.
fn drop_all(burst: &mut PacketList, done: &mut PacketList) -> Transmitted {
    burst.metas_mut().for_each(|meta| meta.drop_reason = Some(DropReason::Unreachable));
    done.append(burst);
    Transmitted::default()
}

/// Asks the filters at the ingress of a device about the packets of `burst`, and moves those that
/// they drop to `stopped`. As in Linux, the device has received all of them.
fn filter(
    mut ingress: HeldIngress<'_>,
    burst: &mut PacketList,
    stopped: &mut PacketList,
    now: Instant,
) {
    let mut passed = PacketList::new();
    for mut packet in burst.by_ref() {
        // Each packet on its way to a device carries the drop reason `PortDead`, in case its port
        // dies with it. One with another reason has passed the filters in an earlier call, in which
        // the receiver had no room.
        let is_new = packet.drop_reason != Some(PASSED);
        if is_new && !ingress.passes(now, &mut packet) {
            stopped.push_back(packet);
        } else {
            packet.drop_reason = Some(PASSED);
            passed.push_back(packet);
        }
    }
    *burst = passed;
}

/// A transmit queue whose packets arrive at a device of the same host.
#[derive(Debug)]
pub(crate) struct Wire {
    info: DeviceInfo,
    queue: Loopback,
    /// The device at which the packets arrive.
    to: Arc<LinkEnd>,
    brought: Arc<Source>,
}

impl Wire {
    /// Makes a transmit queue whose packets arrive at the device `to`. Returns `None` if no packet
    /// can arrive at that device.
    pub(crate) fn new(info: DeviceInfo, to: &Arc<LinkEnd>) -> Option<Self> {
        let queue = to.inbox.as_ref()?.queue();
        Some(Self { info, queue, to: to.clone(), brought: to.source() })
    }
}

impl Device for Wire {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn attach(&mut self, waker: DeviceWaker) {
        self.queue.attach(waker);
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
        if let Some(ingress) = self.brought.ingress() {
            let Some(held) = ingress.try_hold() else {
                // A command is changing or reading the filters at this moment.
                return Transmitted {
                    retry_at: Some(now.after(BUSY_NS)),
                    ..Transmitted::default()
                };
            };
            filter(held, burst, &mut unread, now);
        }
        let out = self.queue.transmit(burst, &mut unread, now);
        // If the device has no receiver, its packets still count as arrived, and are freed.
        unread.metas_mut().for_each(|meta| meta.drop_reason = None);
        done.append(&mut unread);
        let arrived = packets - burst.len();
        self.brought.packets.add(arrived.into());
        self.brought.bytes.add(bytes - burst.bytes());
        let out = Transmitted { messages: arrived, ..out };
        if out.retry_at.is_some() && !self.to.is_up() {
            // The device has gone down meanwhile, and may have woken the queues that wait before
            // this one was among them. (If so, the lock of their list makes the change visible
            // here; if not, it wakes this one.)
            drop_all(burst, done);
            return Transmitted { retry_at: None, ..out };
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Wake};

    use onramp_queue::Packet;

    use super::*;

    /// The waker of a receiver, which sets the device down.
    struct Down(Arc<LinkEnd>);

    impl Wake for Down {
        fn wake(self: Arc<Self>) {
            self.0.set_up(false);
        }
    }

    /// A queue finds no room at a device that goes down while the queue brings it packets: the
    /// first of them wakes the receiver, which sets the device down. The queue drops the packets
    /// that found no room, and does not wait.
    #[test]
    fn a_queue_that_fills_a_device_that_goes_down_does_not_wait() {
        let end = Arc::new(LinkEnd::with_inbox());
        end.set_up(true);
        let mut receiver = end.receiver().expect("nobody has it");
        let info = DeviceInfo::new("wire".into(), 1_514);
        let mut wire = Wire::new(info, &end).expect("an inbox");
        let down = Arc::new(Down(end.clone())).into();
        assert!(receiver.poll_recv(&mut Context::from_waker(&down)).is_pending());
        let mut burst: PacketList = (0..INBOX + 9).map(|_| Packet::new(1)).collect();
        let mut done = PacketList::new();
        let out = wire.transmit(&mut burst, &mut done, Instant(1));
        assert!(!end.is_up());
        assert_eq!((burst.len(), out.retry_at), (0, None));
        let unreachable = |packet: &Packet| packet.drop_reason == Some(DropReason::Unreachable);
        assert_eq!(done.filter(unreachable).count(), 9);
    }
}
