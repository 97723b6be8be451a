//! Messages: datagrams with what may differ between two messages of one flow, and how a large
//! message leaves without a copy.

use onramp_core::{Clock, Instant};
use onramp_queue::{PAYLOAD_MAX, Packet, PacketList};

use super::{Sender, charge_all, is_over};
use crate::{Flow, SendError, TrySendError};

/// Size in bytes from which on a message is lent to an idle port. Copying a smaller one costs less
/// than asking the port.
pub(super) const LENT_MIN: usize = 4_096;

/// One datagram of a flow, or several of equal size that are sent together, and what applies to
/// them alone.
///
/// A protocol that sends its data in equal datagrams, such as QUIC, gives many of them in one call:
/// the link copies them once, its qdiscs see one packet of several segments (as Linux does with UDP
/// GSO), and the kernel cuts it. A qdisc that limits a rate cuts the packet itself where it has to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a> {
    /// The data of the datagrams, one after another, at most 65,507 bytes.
    pub payload: &'a [u8],
    /// Size of each datagram in bytes; the last one may be shorter. 0: the payload is one datagram.
    pub segment: u16,
    /// ECN code point: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE. `None`: that of the flow.
    pub ecn: Option<u8>,
    /// Time on the link's clock ([`Link::now`](crate::Link::now)) before which the message does not
    /// leave, for qdiscs such as `fq` and `etf`. `None`: at once.
    pub txtime: Option<Instant>,
    /// A number of the caller's, which comes back in [`Completion::cookie`].
    ///
    /// [`Completion::cookie`]: crate::Completion::cookie
    pub cookie: u64,
}

impl Message<'_> {
    /// Gives `packet` what the message asks for.
    pub(super) fn label(&self, packet: &mut Packet) {
        packet.gso_size = self.segment;
        if let Some(ecn) = self.ecn {
            assert!(ecn < 4, "an ECN code point has two bits");
            packet.ecn = ecn;
        }
        packet.txtime_ns = self.txtime.map_or(0, |at| at.0);
        packet.cookie = self.cookie;
    }
}

impl Sender {
    /// Stages one message, as [`try_send`](Self::try_send) stages a datagram. All its datagrams
    /// together take one credit, and count in qdiscs with the headers of each.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    ///
    /// # Panics
    ///
    /// Panics when another link made `flow`, and when an ECN code point has more than two bits.
    pub fn try_send_message(
        &mut self,
        flow: &Flow,
        message: &Message<'_>,
    ) -> Result<(), TrySendError> {
        if message.payload.len() >= LENT_MIN && self.lend(flow, message) {
            return Ok(());
        }
        let mut packet = self.packet(flow, message.payload)?;
        message.label(&mut packet);
        self.submit(flow, packet).map_err(|rejected| {
            self.pool.take_back(rejected.packet);
            rejected.why
        })
    }

    /// Stages one message, as [`send`](Self::send) stages a datagram. If there is no room, blocks
    /// until there is.
    ///
    /// ```
    /// use onramp::{Link, Message};
    ///
    /// let receiver = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let link = Link::udp("127.0.0.1:0").build()?;
    /// let mut sender = link.sender();
    /// let flow = sender.flow(receiver.local_addr()?);
    /// let message = Message { payload: &[7; 2_500], segment: 1_200, ..Message::default() };
    /// sender.send_message(&flow, &message)?;
    /// let mut buffer = [0; 2_048];
    /// let sizes = [(); 3].map(|()| receiver.recv(&mut buffer).expect("a datagram"));
    /// assert_eq!(sizes, [1_200, 1_200, 100]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    ///
    /// # Panics
    ///
    /// As [`try_send_message`](Self::try_send_message).
    pub fn send_message(&mut self, flow: &Flow, message: &Message<'_>) -> Result<(), SendError> {
        loop {
            let Err(why) = self.try_send_message(flow, message) else {
                self.give_way();
                return Ok(());
            };
            why.lasting().map_or(Ok(()), Err)?;
            self.wait_room(flow, message.payload.len());
        }
    }

    /// Stages as many of these messages of one flow as there is room for, and returns their number,
    /// as [`try_send_batch`](Self::try_send_batch) does with datagrams.
    ///
    /// # Errors
    ///
    /// Returns a [`TrySendError`] if no message was staged.
    ///
    /// # Panics
    ///
    /// As [`try_send_message`](Self::try_send_message).
    pub fn try_send_messages<'a>(
        &mut self,
        flow: &Flow,
        messages: impl IntoIterator<Item = Message<'a>>,
    ) -> Result<usize, TrySendError> {
        self.stage_all(flow, messages, |sender, message| {
            let mut packet = sender.packet(flow, message.payload)?;
            message.label(&mut packet);
            if packet.gso_size > 0 {
                charge_all(&mut packet, message.payload.len(), flow.overhead);
            }
            Ok(packet)
        })
    }

    /// Sends a message without a copy of its payload, if nothing makes it wait: its port is idle,
    /// the qdisc is empty and would let the message through at once, and the device takes it.
    /// Returns false if the message was not sent; the caller then stages a copy.
    pub(super) fn lend(&mut self, flow: &Flow, message: &Message<'_>) -> bool {
        assert_eq!(flow.link, self.shared().id, "a flow belongs to the link that made it");
        let payload = message.payload;
        let is_plain = self.corked.is_empty() && self.shared().is_open();
        if !is_plain || payload.len() > PAYLOAD_MAX - 28 {
            return false;
        }
        let port = self.port_of(flow);
        if !self.shared().slot(port).port.may_lend() {
            return false;
        }
        self.pool.allow(self.fair_credits());
        let mut taken = self.pool.take_bare(payload.len());
        if taken.is_none() {
            self.reclaim();
            taken = self.pool.take_bare(payload.len());
        }
        let Some(mut packet) = taken else { return false };
        let Self { handle, pool, end, watched, .. } = self;
        let shared = &*handle.shared;
        let slot = shared.slot(port);
        flow.label(&mut packet, payload.len());
        message.label(&mut packet);
        if packet.gso_size > 0 {
            charge_all(&mut packet, payload.len(), flow.overhead);
        }
        let mut list = PacketList::from_iter([packet]);
        let now = shared.clock.now();
        pool.submit(&mut list, now.0);
        watched.submit(pool, &mut list);
        let packet = list.pop_front().unwrap_or_else(|| unreachable!("it was one packet"));
        match slot.port.xmit_lent(packet, payload, now, &shared.waker(slot)) {
            Ok(ran) => {
                end.counters.submitted.add(1);
                self.slice_over = is_over(self.slice_start, now);
                shared.follow_up(slot, ran);
                true
            }
            Err((packet, ran)) => {
                if let Some(ran) = ran {
                    self.slice_over = is_over(self.slice_start, now);
                    shared.follow_up(slot, ran);
                }
                let mut list = PacketList::from_iter([packet]);
                watched.revoke(pool, &mut list);
                pool.revoke(&mut list);
                list.for_each(|packet| pool.take_back(packet));
                false
            }
        }
    }
}
