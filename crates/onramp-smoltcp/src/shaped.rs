//! A device with a tree in front of it.

use std::fmt;

use onramp_core::Setup;
use onramp_queue::Packet;
use smoltcp::iface::{Interface, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, PacketMeta, RxToken as _, TxToken};
use smoltcp::time::{Duration, Instant};

use crate::direction::Direction;
use crate::error::Error;
use crate::token::{Arrived, Received};

/// After this time, frames are offered again to an inner device that had no room.
const RETRY: Duration = Duration::from_millis(1);

/// Number of frames that one call of `receive` takes from the inner device into the ingress tree.
const BATCH: usize = 64;

/// A device in front of which stands a tree of qdiscs: the stack sends into the tree, and the tree
/// decides when each frame goes to the inner device, in which order, and which is dropped. Received
/// frames may pass a tree too ([`with_ingress`](Self::with_ingress)).
///
/// # When frames move
///
/// The tree has no thread and no clock. Frames move when the stack is polled, and in
/// [`poll_at`](Self::poll_at), which also says when the next may move. So use the `poll_at` of the
/// device in place of that of the interface.
///
/// # Backpressure
///
/// The stack always gets a token to send. Whether a tree takes a frame depends on the frame, its
/// flow and its class, and the token is asked for before there is a frame; a refusal would stop all
/// sockets, and the acknowledgements, because of one full flow. TCP also needs the drops of the
/// qdisc: they are the signal by which it finds its rate. So a full tree drops, as in Linux, and
/// counts the drop. If the inner device has no room, frames stay in the tree.
///
/// # Capabilities
///
/// Medium, MTU, burst size and checksums are those of the inner device. Segmentation offload is
/// switched off: the tree handles each segment by itself. Metadata of frames reaches the inner
/// device, and from it the sockets.
///
/// # Panics
///
/// A frame of more than 65,535 bytes does not fit a packet. The MTU, which is checked, allows none;
/// if an inner device gives one all the same, [`with_ingress`](Self::with_ingress) makes
/// `receive` panic.
#[derive(Debug)]
pub struct Shaped<D> {
    inner: D,
    egress: Direction,
    ingress: Option<Direction>,
    /// Whether the inner device may have more frames than were taken last.
    more: bool,
}

impl<D: Device> Shaped<D> {
    /// Puts the tree that `egress` describes in front of a device. The same `seed` gives the same
    /// random choices; where others can choose addresses and ports, use a random one.
    ///
    /// # Errors
    ///
    /// [`Error`] if the description has no root, or the medium or MTU of the device does not suit
    /// qdiscs.
    ///
    /// ```
    /// use onramp_smoltcp::{Shaped, setup};
    /// use smoltcp::phy::{Loopback, Medium};
    ///
    /// let device = Shaped::new(Loopback::new(Medium::Ip), &setup("fq_codel")?, 7)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(inner: D, egress: &Setup, seed: u64) -> Result<Self, Error> {
        let egress = direction(&inner, egress, seed)?;
        Ok(Self { inner, egress, ingress: None, more: false })
    }

    /// Puts a tree between the received frames and the stack, for example to emulate a slow
    /// downlink. Without this call, received frames come directly and without a copy.
    ///
    /// # Errors
    ///
    /// [`Error`] if the description has no root.
    pub fn with_ingress(mut self, ingress: &Setup, seed: u64) -> Result<Self, Error> {
        self.ingress = Some(direction(&self.inner, ingress, seed)?);
        Ok(self)
    }

    /// Returns when to poll the interface next, if nothing is received before: at the deadline of a
    /// socket, or when a tree may let its next frame go. A time that is not after `now` means at
    /// once, `None` that only a received frame or the program gives it something to do.
    ///
    /// Gives the frames that are due to the inner device. If that has no room, the result is at
    /// most 1 ms after `now`.
    pub fn poll_at(
        &mut self,
        now: Instant,
        interface: &mut Interface,
        sockets: &SocketSet<'_>,
    ) -> Option<Instant> {
        [interface.poll_at(now, sockets), self.next_frame_at(now)].into_iter().flatten().min()
    }

    /// Returns when a tree may let its next frame go; otherwise like [`poll_at`](Self::poll_at).
    pub fn next_frame_at(&mut self, now: Instant) -> Option<Instant> {
        flush(&mut self.inner, &mut self.egress, now);
        let out = self.egress.due(now).map(|at| if at <= now { now + RETRY } else { at });
        let come = self.ingress.as_mut().and_then(|ingress| ingress.due(now));
        let more = self.more.then_some(now);
        [out, come, more].into_iter().flatten().min()
    }

    /// Returns the direction from the stack to the inner device.
    #[must_use]
    pub const fn egress(&self) -> &Direction {
        &self.egress
    }

    /// Returns the direction from the stack to the inner device, to change its tree.
    #[must_use]
    pub const fn egress_mut(&mut self) -> &mut Direction {
        &mut self.egress
    }

    /// Returns the direction from the inner device to the stack, if it has a tree.
    #[must_use]
    pub const fn ingress(&self) -> Option<&Direction> {
        self.ingress.as_ref()
    }

    /// Returns the direction from the inner device to the stack, to change its tree.
    #[must_use]
    pub const fn ingress_mut(&mut self) -> Option<&mut Direction> {
        self.ingress.as_mut()
    }

    /// Returns the inner device, for example to wait for its descriptor.
    #[must_use]
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// Returns the inner device. Frames that are sent through it directly pass no tree.
    #[must_use]
    pub const fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }
}

impl<D: Device> Device for Shaped<D> {
    type RxToken<'a>
        = Received<D::RxToken<'a>>
    where
        D: 'a;
    type TxToken<'a>
        = Sending<'a, D>
    where
        D: 'a;

    fn receive(&mut self, now: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        let Self { inner, egress, ingress, more } = self;
        flush(inner, egress, now);
        let meta = PacketMeta::default();
        let Some(ingress) = ingress else {
            let (token, _) = inner.receive(now)?;
            // The token has borrowed the inner device, so an answer leaves the tree only later.
            return Some((Received::Direct(token), Sending { inner: None, egress, now, meta }));
        };
        // Bounded, so that a peer that sends without a pause does not keep the stack from its
        // other work.
        let mut taken = 0;
        while taken < BATCH
            && let Some((token, _)) = inner.receive(now)
        {
            let meta = token.meta();
            ingress.submit(now, meta, token.consume(Packet::with_payload));
            taken += 1;
        }
        *more = taken == BATCH;
        let (packet, of_packet) = ingress.next(now)?;
        let arrived = Arrived { packet, meta: of_packet };
        Some((Received::Arrived(arrived), Sending { inner: Some(inner), egress, now, meta }))
    }

    fn transmit(&mut self, now: Instant) -> Option<Self::TxToken<'_>> {
        let Self { inner, egress, .. } = self;
        Some(Sending { inner: Some(inner), egress, now, meta: PacketMeta::default() })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        // Capabilities that are not copied are off.
        let (mut capabilities, inner) = (DeviceCapabilities::default(), self.inner.capabilities());
        capabilities.medium = inner.medium;
        capabilities.max_transmission_unit = inner.max_transmission_unit;
        capabilities.max_burst_size = inner.max_burst_size;
        capabilities.checksum = inner.checksum;
        capabilities
    }
}

/// A frame that the stack may send into the tree of a [`Shaped`] device.
pub struct Sending<'a, D> {
    /// The inner device, unless a received frame still has it.
    inner: Option<&'a mut D>,
    egress: &'a mut Direction,
    now: Instant,
    meta: PacketMeta,
}

impl<D> fmt::Debug for Sending<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").field("now", &self.now).finish_non_exhaustive()
    }
}

impl<D: Device> TxToken for Sending<'_, D> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let result = self.egress.write(self.now, self.meta, len, write);
        if let Some(inner) = self.inner {
            flush(inner, self.egress, self.now);
        }
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.meta = meta;
    }
}

/// Makes the direction that goes to or comes from a device.
fn direction(inner: &impl Device, setup: &Setup, seed: u64) -> Result<Direction, Error> {
    let capabilities = inner.capabilities();
    Direction::new(setup, capabilities.medium, capabilities.max_transmission_unit, seed)
}

/// Gives frames to the inner device as long as one is due and the device has room.
fn flush(inner: &mut impl Device, egress: &mut Direction, now: Instant) {
    while egress.due(now).is_some_and(|at| at <= now)
        && let Some(mut token) = inner.transmit(now)
        && let Some((packet, meta)) = egress.next(now)
    {
        token.set_meta(meta);
        let frame = packet.payload();
        token.consume(frame.len(), |buffer| buffer.copy_from_slice(frame));
    }
}
