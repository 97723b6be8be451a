//! Messages: datagrams with what may differ between two messages of one flow.

use onramp_core::Instant;

use super::Sender;
use crate::{Flow, SendError, TrySendError};

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
        let mut packet = self.packet(flow, message.payload)?;
        packet.gso_size = message.segment;
        if let Some(ecn) = message.ecn {
            assert!(ecn < 4, "an ECN code point has two bits");
            packet.ecn = ecn;
        }
        packet.txtime_ns = message.txtime.map_or(0, |at| at.0);
        packet.cookie = message.cookie;
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
}
