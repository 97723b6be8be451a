//! A device that delivers into a bounded queue of the same process.

use std::net::SocketAddr;
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::time::Duration;

use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::{DropReason, Packet, PacketList};

use crate::backoff::Backoff;

/// Makes a device and the receiver of what it sends, with room for `capacity` packets in between.
///
/// When there is no room, the device is full: packets stay in the burst. When the receiver is
/// gone, they are dropped as `Refused`. Every packet delivered is a copy, and allocates: this is
/// for tests and examples.
///
/// # Panics
///
/// Panics when `capacity` is zero: nothing could ever be delivered.
///
/// # Examples
///
/// ```
/// use onramp_core::{Device, Instant};
/// use onramp_queue::{Packet, PacketList};
///
/// let (mut device, receiver) = onramp_dev::loopback(16);
/// let mut burst: PacketList = [Packet::with_payload(b"hello")].into_iter().collect();
/// device.transmit(&mut burst, &mut PacketList::new(), Instant(0));
/// assert_eq!(receiver.try_recv().unwrap().payload, b"hello");
/// ```
#[must_use]
pub fn loopback(capacity: usize) -> (Loopback, Receiver) {
    assert!(capacity > 0, "a loopback holds at least one packet");
    let (sender, receiver) = mpsc::sync_channel(capacity);
    let info = DeviceInfo::new("loopback".to_owned(), Loopback::MTU);
    (Loopback { info, sender, backoff: Backoff::new() }, Receiver(receiver))
}

/// The sending end: a device.
#[derive(Debug)]
pub struct Loopback {
    info: DeviceInfo,
    sender: SyncSender<Received>,
    backoff: Backoff,
}

/// The receiving end.
#[derive(Debug)]
pub struct Receiver(mpsc::Receiver<Received>);

/// A packet that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Its bytes.
    pub payload: Vec<u8>,
    /// Bytes of payload in each datagram, if it is several; 0 = one datagram.
    pub gso_size: u16,
    /// Where to.
    pub dest: Option<SocketAddr>,
    /// Key of its flow.
    pub flow: u64,
    /// The sender's own word.
    pub cookie: u64,
    /// ECN code point.
    pub ecn: u8,
    /// Length on the wire, bytes.
    pub len: u32,
    /// When it was sent, nanoseconds on the sender's clock.
    pub sent_ns: u64,
}

impl Loopback {
    /// As Linux's `lo`: 65,536 bytes and an Ethernet header.
    const MTU: u32 = 65_536 + 14;
}

impl Receiver {
    /// The next packet, if one is there.
    #[must_use]
    pub fn try_recv(&self) -> Option<Received> {
        self.0.try_recv().ok()
    }

    /// Waits for the next packet; `None` after `timeout`, or when the device is gone and
    /// everything was received.
    #[must_use]
    pub fn recv_timeout(&self, timeout: Duration) -> Option<Received> {
        self.0.recv_timeout(timeout).ok()
    }
}

impl Received {
    fn copy(pkt: &Packet, now: Instant) -> Self {
        Self {
            payload: pkt.payload().to_vec(),
            gso_size: pkt.gso_size,
            dest: pkt.dest(),
            flow: pkt.flow,
            cookie: pkt.cookie,
            ecn: pkt.ecn,
            len: pkt.len,
            sent_ns: now.0,
        }
    }

    /// The payloads of its datagrams, in order.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let size = match self.gso_size {
            0 => self.payload.len(),
            size => size.into(),
        };
        // An empty payload is one empty datagram.
        let empty = self.payload.is_empty().then_some(&[][..]);
        self.payload.chunks(size.max(1)).chain(empty)
    }
}

impl Device for Loopback {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let mut out = Transmitted { calls: 1, ..Transmitted::default() };
        while let Some(mut pkt) = burst.pop_front() {
            match self.sender.try_send(Received::copy(&pkt, now)) {
                Ok(()) => {
                    out.messages += 1;
                    self.backoff.reset();
                }
                Err(TrySendError::Full(_)) => {
                    burst.push_front(pkt);
                    out.retry_at = Some(self.backoff.wait(now));
                    break;
                }
                Err(TrySendError::Disconnected(_)) => pkt.drop_reason = Some(DropReason::Refused),
            }
            done.push_back(pkt);
        }
        out
    }
}
