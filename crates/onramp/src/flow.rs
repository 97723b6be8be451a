//! A flow: where packets go, and how they are scheduled.

use std::net::SocketAddr;

use onramp_core::Rate;

/// Bytes of UDP, IPv4 or IPv6, and Ethernet headers, as Linux counts them in a qdisc.
const OVERHEAD_V4: u32 = 8 + 20 + 14;
const OVERHEAD_V6: u32 = 8 + 40 + 14;

/// Which port (transmit queue) a flow goes through, unless one qdisc serves all those of a
/// [`Host`](crate::Host)'s device: then all flows go through the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mapping {
    /// The next one in turn; the flow stays there.
    #[default]
    Turn,
    /// This one.
    Port(usize),
    /// By this hash of the flow, made by the caller. Flows of equal hashes are one to the qdiscs,
    /// unless ports came or went between their making. If only some of them are paced, packets of
    /// the others may overtake theirs: see [`Flow::set_pacing_rate`].
    Hash(u64),
    /// That of the processor the sender is on (Linux: XPS). A sender that moved to another
    /// processor goes to another port only when everything it has below came home: so its packets
    /// keep their order. If its port dies, it goes to another one that lives, once a cork holds
    /// nothing back for the dead one.
    Cpu,
}

/// Where packets go, and how they are scheduled. Cheap to clone; belongs to the link that made it:
/// any sender of that link may use it, and those of another panic.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The link that made it.
    pub(crate) link: u64,
    pub(crate) key: u64,
    pub(crate) port: usize,
    /// The port is that of the sender's processor, instead.
    pub(crate) by_cpu: bool,
    pub(crate) dest: Option<SocketAddr>,
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
            overhead,
            pacing_rate: 0,
            priority: 0,
            mark: 0,
            ecn: 0,
        }
    }

    /// Paces the flow to `rate` on the wire, headers included (`SO_MAX_PACING_RATE`); needs `fq`.
    #[must_use]
    pub fn with_pacing_rate(mut self, rate: Rate) -> Self {
        self.set_pacing_rate(rate);
        self
    }

    /// Sets the pacing rate of packets sent from now on.
    ///
    /// Packets keep the rate that they were sent with. Those that wait for their time under `fq`
    /// may be overtaken by later ones of the same flow that have no rate any more: these need not
    /// wait, and `fq` sends what need not wait at once, as Linux's does (`fq_fastpath_check`,
    /// `net/sched/sch_fq.c`, 7.2). A sender that needs the order lowers and raises rates but does
    /// not lift them, or [flushes](crate::Sender::flush) before it does.
    pub fn set_pacing_rate(&mut self, rate: Rate) {
        self.pacing_rate = rate.0;
    }

    /// Sets the priority (`SO_PRIORITY`), by which qdiscs choose a band.
    #[must_use]
    pub fn with_priority(mut self, priority: u32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the mark (`SO_MARK`): for devices and qdiscs of yours; none of ours reads it.
    #[must_use]
    pub fn with_mark(mut self, mark: u32) -> Self {
        self.mark = mark;
        self
    }

    /// Sets the ECN code point: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
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

    /// The key by which qdiscs know the flow.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The port its packets go through, unless that was removed since, one qdisc serves all ports,
    /// or they are mapped by processor.
    #[must_use]
    pub fn port(&self) -> usize {
        self.port
    }
}
