//! Flows: to which port the packets of a flow go, and how qdiscs schedule these packets.

use std::net::SocketAddr;
use std::num::NonZero;

use onramp_core::Rate;
use onramp_queue::Packet;

/// Bytes that a packet counts in a qdisc of Linux besides its payload: the headers of UDP, IPv4 or
/// IPv6, and Ethernet.
const OVERHEAD_V4: u32 = 8 + 20 + 14;
const OVERHEAD_V6: u32 = 8 + 40 + 14;

/// How the port (transmit queue) of a flow is chosen. If one qdisc serves all ports of a device of
/// a host (crate `onramp-host`), the choice has no effect: all flows go through the first port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mapping {
    /// A new flow gets the next port in turn, and stays on that port. Suits most programs.
    #[default]
    Turn,
    /// The port with this number.
    Port(usize),
    /// The port that this hash selects. The caller computes the hash from the flow. Qdiscs treat
    /// flows of equal hashes as one flow, unless ports were added or removed after the first of
    /// these flows was made and before the last. If only some of these flows are paced, packets of
    /// the unpaced flows may overtake packets of the paced flows: see [`Flow::set_pacing_rate`].
    Hash(u64),
    /// The port that belongs to the processor on which the sender runs (Linux: XPS). When a sender
    /// moves to another processor, it changes its port only after all packets that it has in flight
    /// came home, so its packets keep their order. If the port dies, the sender changes to a living
    /// port, once no cork holds back packets for the dead port.
    Cpu,
}

/// The destination of packets, and how qdiscs schedule them. Cheap to clone.
///
/// A flow belongs to the link that made it. Every sender of that link may use the flow; a sender of
/// another link panics if it is given the flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Identity of the link that made this flow.
    pub(crate) link: u64,
    pub(crate) key: u64,
    pub(crate) port: usize,
    /// Whether packets take the port of the sender's processor instead of `port`.
    pub(crate) by_cpu: bool,
    pub(crate) dest: Option<SocketAddr>,
    /// The number of the [`Source`](onramp_dev::Source) from which packets leave.
    pub(crate) source: Option<NonZero<u16>>,
    pub(crate) overhead: u32,
    pub(crate) pacing_rate: u64,
    pub(crate) priority: u32,
    pub(crate) mark: u32,
    pub(crate) ecn: u8,
}

impl Flow {
    pub(crate) fn new(link: u64, key: u64, port: usize, dest: Option<SocketAddr>) -> Self {
        let overhead = match dest {
            Some(SocketAddr::V6(_)) => OVERHEAD_V6,
            _ => OVERHEAD_V4,
        };
        Self {
            link,
            key,
            port,
            by_cpu: false,
            dest,
            source: None,
            overhead,
            pacing_rate: 0,
            priority: 0,
            mark: 0,
            ecn: 0,
        }
    }

    /// Gives a packet of this flow, with a payload of `payload` bytes, what the flow asks for.
    #[inline]
    pub(crate) fn label(&self, packet: &mut Packet, payload: usize) {
        packet.set_dest(self.dest);
        packet.set_source(self.source);
        let meta = &mut **packet;
        // A payload has at most `PAYLOAD_MAX` bytes.
        meta.len = u32::try_from(payload).unwrap_or(u32::MAX).saturating_add(self.overhead);
        (meta.flow, meta.pacing_rate) = (self.key, self.pacing_rate);
        (meta.priority, meta.mark, meta.ecn) = (self.priority, self.mark, self.ecn);
        (meta.txtime_ns, meta.cookie, meta.gso_size) = (0, 0, 0);
    }

    /// Returns the flow with its packets paced to `rate`, in bytes on the wire, headers included
    /// (`SO_MAX_PACING_RATE`). Only the qdisc `fq` paces packets. How evenly it does depends on its
    /// options: see [`LinkBuilder::qdisc`](crate::LinkBuilder::qdisc).
    #[must_use]
    pub fn with_pacing_rate(mut self, rate: Rate) -> Self {
        self.set_pacing_rate(rate);
        self
    }

    /// Sets the pacing rate of packets that are sent from now on. The rate counts bytes on the
    /// wire, headers included.
    ///
    /// A packet keeps the rate that its flow had when the packet was sent. If the flow then stops
    /// being paced, its later packets, which have no rate, may overtake earlier packets that still
    /// wait for their time under `fq`: `fq` sends packets that need not wait at once, as Linux's
    /// does (`fq_fastpath_check`, `net/sched/sch_fq.c`, 7.2). A sender that needs the order may
    /// lower and raise the rate, but should [flush](crate::Sender::flush) before it removes the
    /// rate.
    pub fn set_pacing_rate(&mut self, rate: Rate) {
        self.pacing_rate = rate.as_bytes_per_second();
    }

    /// Returns the flow with its packets leaving from this local address and interface, in place of
    /// those that the routing table chooses. Use it in a server that has several addresses and
    /// whose socket is bound to none of them, so that it answers from the address that it was asked
    /// on. It applies to links over UDP sockets; other devices send the packets as they are.
    ///
    /// ```
    /// use onramp::dev::Source;
    /// use onramp::{Link, Mapping};
    ///
    /// let server = Link::udp("0.0.0.0:0").ports(1).build()?;
    /// let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let mut sender = server.sender();
    /// // The client asked 127.0.0.9, so this is where the answer has to come from.
    /// let source = Source::new([127, 0, 0, 9].into(), 0)?;
    /// let flow = sender.flow(client.local_addr()?).with_source(source);
    /// sender.send(&flow, b"an answer")?;
    /// let (_, from) = client.recv_from(&mut [0; 16])?;
    /// assert_eq!(from.ip().to_string(), "127.0.0.9");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "udp")]
    #[must_use]
    pub fn with_source(mut self, source: onramp_dev::Source) -> Self {
        self.source = Some(source.number());
        self
    }

    /// Returns the flow with this priority (`SO_PRIORITY`). Qdiscs such as `prio` choose a band by
    /// it.
    #[must_use]
    pub fn with_priority(mut self, priority: u32) -> Self {
        self.priority = priority;
        self
    }

    /// Returns the flow with this mark (`SO_MARK`). The filters `fw`, `basic`, `u32` and `bpf` and
    /// the option `fwmark` of `cake` read it, as can devices and qdiscs that the program provides.
    #[must_use]
    pub fn with_mark(mut self, mark: u32) -> Self {
        self.mark = mark;
        self
    }

    /// Returns the flow with this ECN code point: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    ///
    /// # Panics
    ///
    /// Panics when `ecn` has more than two bits.
    #[must_use]
    pub fn with_ecn(mut self, ecn: u8) -> Self {
        assert!(ecn < 4, "an ECN code point has two bits");
        self.ecn = ecn;
        self
    }

    /// Returns the key by which qdiscs tell this flow from others.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Returns the number of the port that was chosen when the flow was made. Packets go to another
    /// port if that port was removed since, if one qdisc serves all ports, or if the flow is mapped
    /// by processor ([`Mapping::Cpu`]).
    #[must_use]
    pub fn port(&self) -> usize {
        self.port
    }
}
