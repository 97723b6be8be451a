//! Two devices joined by a link, in virtual time.

use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

use onramp_core::Setup;
use smoltcp::iface::{Interface, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, PacketMeta, TxToken};
use smoltcp::time::Instant;

use crate::direction::Direction;
use crate::error::Error;
use crate::token::Arrived;

/// Makes two devices that are joined: the frames that the first sends reach the second through the
/// tree that the first description describes, and those of the second reach the first through the
/// other. The time is what the program passes to [`Interface::poll`], so a run takes no longer than
/// its work, and the same run with the same `seed` gives the same frames at the same times.
///
/// `mtu` is the largest frame in bytes, with the Ethernet header if the medium is
/// [`Medium::Ethernet`].
///
/// # Errors
///
/// [`Error`] if a description has no root, or if the medium or the MTU does not suit qdiscs.
///
/// ```
/// use onramp_smoltcp::{pair, setup};
/// use smoltcp::phy::{Device as _, Medium, RxToken as _, TxToken as _};
/// use smoltcp::time::Instant;
///
/// let (up, down) = (setup("netem delay 20ms")?, setup("pfifo")?);
/// let [mut a, mut b] = pair(Medium::Ip, 1_500, [&up, &down], 1)?;
/// let start = Instant::ZERO;
/// a.transmit(start).expect("always").consume(5, |frame| frame.copy_from_slice(b"hello"));
/// assert_eq!(b.next_frame_at(start), Some(Instant::from_millis(20)));
/// assert!(b.receive(start).is_none());
/// let (frame, _) = b.receive(Instant::from_millis(20)).expect("20 ms later");
/// frame.consume(|frame| assert_eq!(frame, b"hello"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn pair(
    medium: Medium,
    mtu: usize,
    [there, back]: [&Setup; 2],
    seed: u64,
) -> Result<[End; 2], Error> {
    let there = Rc::new(RefCell::new(Direction::new(there, medium, mtu, seed)?));
    let back = Rc::new(RefCell::new(Direction::new(back, medium, mtu, seed.wrapping_add(1))?));
    let first = End { sends: Rc::clone(&there), receives: Rc::clone(&back), medium, mtu };
    Ok([first, End { sends: back, receives: there, medium, mtu }])
}

/// One of two joined devices: see [`pair`].
#[derive(Debug)]
pub struct End {
    sends: Rc<RefCell<Direction>>,
    receives: Rc<RefCell<Direction>>,
    medium: Medium,
    mtu: usize,
}

impl End {
    /// Returns when to poll the interface of this end next: at the deadline of a socket, or when a
    /// frame arrives. A time that is not after `now` means at once. `None` means that nothing
    /// happens at this end before the other end, or the program, does something.
    ///
    /// The next event of the whole link is the earlier one of both ends.
    pub fn poll_at(
        &self,
        now: Instant,
        interface: &mut Interface,
        sockets: &SocketSet<'_>,
    ) -> Option<Instant> {
        [interface.poll_at(now, sockets), self.next_frame_at(now)].into_iter().flatten().min()
    }

    /// Returns when the next frame arrives at this end; a time that is not after `now` means that
    /// one is there. `None`: no frame is on its way to this end.
    #[must_use]
    pub fn next_frame_at(&self, now: Instant) -> Option<Instant> {
        self.receives.borrow_mut().due(now)
    }

    /// Returns the direction from this end to the other.
    ///
    /// While the value that it returns lives, do not poll either end: [`End::next_frame_at`],
    /// [`End::poll_at`] and the calls of smoltcp's `Interface` on the other end panic, and those on
    /// this end panic when they send.
    #[must_use]
    pub fn sends(&self) -> Ref<'_, Direction> {
        self.sends.borrow()
    }

    /// Returns the direction from this end to the other, to change its tree. As with
    /// [`End::sends`], poll no end while the value that it returns lives.
    ///
    /// # Panics
    ///
    /// Panics if a value that [`End::sends`] returned for this direction lives.
    #[must_use]
    pub fn sends_mut(&self) -> RefMut<'_, Direction> {
        self.sends.borrow_mut()
    }
}

impl Device for End {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Crossing<'a>;

    fn receive(&mut self, now: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        let (packet, meta) = self.receives.borrow_mut().next(now)?;
        Some((Arrived { packet, meta }, Crossing::new(&self.sends, now)))
    }

    fn transmit(&mut self, now: Instant) -> Option<Self::TxToken<'_>> {
        Some(Crossing::new(&self.sends, now))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        (capabilities.medium, capabilities.max_transmission_unit) = (self.medium, self.mtu);
        capabilities
    }
}

/// A frame that an [`End`] may send to the other.
#[derive(Debug)]
pub struct Crossing<'a> {
    sends: &'a RefCell<Direction>,
    now: Instant,
    meta: PacketMeta,
}

impl<'a> Crossing<'a> {
    fn new(sends: &'a RefCell<Direction>, now: Instant) -> Self {
        Self { sends, now, meta: PacketMeta::default() }
    }
}

impl TxToken for Crossing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        self.sends.borrow_mut().write(self.now, self.meta, len, write)
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.meta = meta;
    }
}
