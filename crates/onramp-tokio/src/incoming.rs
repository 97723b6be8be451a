//! The receive side of a socket.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use onramp::dev::{Receive as _, UdpReceiver, UdpReceiverOptions};
use onramp::frame::Datagram;
use onramp::{Packet, PacketList};

/// Most messages, of one datagram or several that the kernel has joined, that one system call takes
/// from the kernel.
const MESSAGES: usize = 32;

/// A datagram that was received: all that came with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Number of bytes that were written to the buffer. What did not fit is lost.
    pub len: usize,
    /// Address and port of the sender, without scope.
    pub source: SocketAddr,
    /// Address and port to which the datagram was sent: where answers should come from.
    pub destination: SocketAddr,
    /// ECN code point: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    pub ecn: u8,
}

/// Receives many datagrams with one system call, and gives them out one by one.
#[derive(Debug)]
pub(crate) struct Incoming {
    receiver: UdpReceiver,
    /// Packets of one or more datagrams each.
    packets: PacketList,
    /// Number of datagrams of the first packet that were given out.
    given: usize,
}

impl Incoming {
    pub(crate) fn new(socket: UdpSocket) -> io::Result<Self> {
        let receiver = UdpReceiver::new(socket, UdpReceiverOptions::default())?;
        Ok(Self { receiver, packets: PacketList::new(), given: 0 })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Takes datagrams from the kernel. If it took only messages that it had to discard, there may
    /// be none, and the caller asks again.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the kernel has none, and its other errors.
    pub(crate) fn fill(&mut self) -> io::Result<()> {
        let mut make = |bytes: usize| Some(Packet::with_capacity(bytes.try_into().ok()?));
        let before = self.without_datagram();
        let took = self.receiver.receive(MESSAGES, &mut make, &mut self.packets)?;
        if took == 0 && self.without_datagram() == before {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(())
    }

    /// Returns how many messages and errors the receiver took that were no datagrams for a caller.
    fn without_datagram(&self) -> u64 {
        self.receiver.discarded() + self.receiver.stats().icmp_errors.get()
    }

    /// Copies the next datagram into `buffer`. `None` if there is none.
    pub(crate) fn next(&mut self, buffer: &mut [u8]) -> Option<Received> {
        loop {
            let datagram = Datagram::of(self.packets.front()?);
            let received = datagram.and_then(|datagram| {
                let mut rest = datagram.datagrams().skip(self.given);
                let data = rest.next()?;
                let len = data.len().min(buffer.len());
                buffer[..len].copy_from_slice(&data[..len]);
                let Datagram { source, destination, ecn, .. } = datagram;
                Some((Received { len, source, destination, ecn }, rest.next().is_some()))
            });
            self.given += 1;
            if !received.is_some_and(|(_, is_followed)| is_followed) {
                // All datagrams of the packet were given out.
                self.packets.pop_front();
                self.given = 0;
            }
            if let Some((received, _)) = received {
                return Some(received);
            }
        }
    }
}
