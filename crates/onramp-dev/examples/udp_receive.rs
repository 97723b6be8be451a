//! Measures the processor time that a received UDP datagram costs: with a `UdpReceiver`, and with a
//! loop of `recvmmsg` that only reads. Both with datagrams that the kernel joins (`UDP_GRO`), and
//! without.
//!
//! ```text
//! cargo run --release -p onramp-dev --example udp_receive
//! ```
//!
//! A round sends 100 datagrams of 1,200 bytes over the loopback to each reader in turn. Only the
//! reading is measured; the result is the median of the rounds.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::sockopt::UdpGroSegment;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, setsockopt};
use onramp_core::{Clock, Device, Instant};
use onramp_dev::{MonotonicClock, Receive, Udp, UdpReceiver, UdpReceiverOptions};
use onramp_queue::{Packet, PacketList};

/// Number of datagrams in a round.
const DATAGRAMS: usize = 100;
/// Bytes of data in a datagram.
const SIZE: usize = 1_200;
/// Number of rounds.
const ROUNDS: usize = 3_000;
/// Number of messages that a call of `recvmmsg` reads, as `UdpReceiver` does.
const BATCH: usize = 32;

/// Reads all datagrams that wait at a socket.
trait Reader {
    fn addr(&self) -> io::Result<SocketAddr>;
    /// Returns the number of bytes of data that it has read.
    fn drain(&mut self) -> io::Result<usize>;
}

/// A loop of `recvmmsg` into buffers.
struct Bare {
    socket: UdpSocket,
    headers: MultiHeaders<SockaddrIn>,
    buffers: Vec<Vec<u8>>,
}

impl Bare {
    fn new(gro: bool) -> io::Result<Self> {
        let socket = bound()?;
        if gro {
            setsockopt(&socket, UdpGroSegment, &true)?;
        }
        let headers = MultiHeaders::preallocate(BATCH, None);
        let buffers = vec![vec![0; if gro { 65_535 } else { 1_500 }]; BATCH];
        Ok(Self { socket, headers, buffers })
    }
}

impl Reader for Bare {
    fn addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn drain(&mut self) -> io::Result<usize> {
        let mut bytes = 0;
        loop {
            let parts = self.buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]);
            let mut parts: Vec<_> = parts.collect();
            let fd = self.socket.as_raw_fd();
            let flags = MsgFlags::MSG_DONTWAIT;
            let (mut count, messages) =
                (0, recvmmsg(fd, &mut self.headers, &mut parts, flags, None));
            match messages {
                Ok(messages) => messages.for_each(|message| {
                    (count, bytes) = (count + 1, bytes + message.bytes);
                }),
                Err(Errno::EAGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
            if count < BATCH {
                return Ok(bytes);
            }
        }
    }
}

/// A `UdpReceiver` whose packets are used again.
struct Ours {
    receiver: UdpReceiver,
    pool: Vec<Packet>,
    large: Vec<Packet>,
    received: PacketList,
}

impl Ours {
    fn new(gro: bool, usual: u16) -> io::Result<Self> {
        let options = UdpReceiverOptions { gro, usual, ..UdpReceiverOptions::default() };
        Ok(Self {
            receiver: UdpReceiver::new(bound()?, options)?,
            pool: (0..2 * DATAGRAMS).map(|_| Packet::with_capacity(usual)).collect(),
            large: (0..2 * DATAGRAMS).map(|_| Packet::with_capacity(u16::MAX)).collect(),
            received: PacketList::new(),
        })
    }
}

impl Reader for Ours {
    fn addr(&self) -> io::Result<SocketAddr> {
        self.receiver.socket().local_addr()
    }

    fn drain(&mut self) -> io::Result<usize> {
        let before = self.receiver.stats().bytes.get();
        loop {
            let (pool, large) = (&mut self.pool, &mut self.large);
            let usual = pool.last().map_or(0, Packet::capacity);
            let mut make = |size| if size > usual { large.pop() } else { pool.pop() };
            let count = self.receiver.receive(BATCH, &mut make, &mut self.received)?;
            for packet in self.received.by_ref() {
                if packet.capacity() > usual { large.push(packet) } else { pool.push(packet) }
            }
            if count < BATCH {
                let bytes = self.receiver.stats().bytes.get() - before;
                return Ok(usize::try_from(bytes).unwrap_or(usize::MAX));
            }
        }
    }
}

fn bound() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket2::SockRef::from(&socket).set_recv_buffer_size(1 << 20)?;
    Ok(socket)
}

/// Returns the nanoseconds that it takes `reader` to read the datagrams of a round.
fn round(sender: &mut Udp, reader: &mut dyn Reader) -> io::Result<u64> {
    let to = reader.addr()?;
    let packet = |_| {
        let mut packet = Packet::with_payload(&[7; SIZE]);
        packet.set_dest(Some(to));
        packet
    };
    let mut burst: PacketList = (0..DATAGRAMS).map(packet).collect();
    sender.transmit(&mut burst, &mut PacketList::new(), Instant(1));
    let begin = MonotonicClock.now();
    let bytes = reader.drain()?;
    let end = MonotonicClock.now();
    if bytes != DATAGRAMS * SIZE {
        let why = format!("{bytes} bytes were read of {}", DATAGRAMS * SIZE);
        return Err(io::Error::other(why));
    }
    Ok(end.0 - begin.0)
}

fn main() -> io::Result<()> {
    let mut sender = Udp::bind(SocketAddr::from(([127, 0, 0, 1], 0))).map_err(io::Error::other)?;
    let mut rows: Vec<(&str, [Box<dyn Reader>; 2])> = vec![
        ("recvmmsg into buffers", [Box::new(Bare::new(false)?), Box::new(Bare::new(true)?)]),
        (
            "UdpReceiver, packets of 1,500 bytes",
            [Box::new(Ours::new(false, 1_500)?), Box::new(Ours::new(true, 1_500)?)],
        ),
        (
            "UdpReceiver, packets of 65,535 bytes",
            [Box::new(Ours::new(false, u16::MAX)?), Box::new(Ours::new(true, u16::MAX)?)],
        ),
    ];
    let mut times = vec![[Vec::new(), Vec::new()]; rows.len()];
    for _ in 0..ROUNDS {
        for ((_, readers), times) in rows.iter_mut().zip(&mut times) {
            for (reader, times) in readers.iter_mut().zip(times) {
                times.push(round(&mut sender, &mut **reader)?);
            }
        }
    }
    println!("nanoseconds a datagram                  without GRO   with GRO");
    for ((name, _), mut times) in rows.iter().zip(times) {
        let [without, with] = times.each_mut().map(|times| {
            times.sort_unstable();
            times[ROUNDS / 2] / DATAGRAMS as u64
        });
        println!("{name:<40}{without:>11}{with:>11}");
    }
    Ok(())
}
