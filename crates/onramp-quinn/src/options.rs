//! Options of a socket.

use std::io;

use onramp::Credits;

/// Options of an [`OnrampSocket`](crate::OnrampSocket).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How much may be in flight to each peer: accepted from quinn, and neither sent nor dropped by
    /// the link. A batch of datagrams that quinn sends together is one packet. Whatever the number
    /// of bytes, one batch may always be in flight. The range is 1 to 32,768 packets.
    ///
    /// The bytes bound the delay that the connection makes for itself: 16 KiB (the default, beside
    /// 64 packets) are a queue of 6.6 ms at 20 Mbit/s. quinn keeps what does not fit, and so sends
    /// new data and acknowledgements without that delay. Raise the bytes if a qdisc with a rate
    /// runs empty before quinn's task runs again (16 KiB last 131 us at 1 Gbit/s), and to the rate
    /// times the delay if a qdisc delays packets (`netem delay`), because delayed packets are in
    /// flight. If the rate is not known, raise the bytes and build the link with
    /// [`credit_time`](onramp::LinkBuilder::credit_time), which bounds the same delay at any rate;
    /// two batches may always be in flight then.
    ///
    /// Each peer keeps these credits if the link was built with
    /// [`credits`](onramp::LinkBuilder::credits), of whatever number, and without
    /// [`credits_per_port`](onramp::LinkBuilder::credits_per_port). Otherwise all peers that the
    /// socket remembers, idle ones too, share the credits of the port, 8,192 packets by default.
    pub credits: Credits,
    /// Number of peers, that is, of pairs of a destination and a local address, that the socket
    /// remembers. Default: 4,096. At least 1.
    ///
    /// Each peer has a flow of its own in the qdisc, credits of its own, and the memory of its
    /// packets, some 20 kB. If more peers come, the socket forgets those to which nothing was sent
    /// for longest. A forgotten peer that comes back gets new credits, so its packets in flight do
    /// not count. Set the number above that of the connections that send at the same time.
    pub peers: usize,
    /// Most datagrams in a batch, which passes the qdisc as one packet, unless the qdisc cuts it.
    /// Default: 10, the most that quinn 0.11 sends. At least 1.
    ///
    /// Lower it where a rate is so low that a batch makes others wait: at 5 Mbit/s, 10 datagrams of
    /// 1,452 bytes take 23 ms. `tbf`, `cake` and some others cut batches by themselves.
    pub segments: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { credits: Credits { packets: 64, bytes: 16 << 10 }, peers: 4_096, segments: 10 }
    }
}

impl Options {
    /// Checks that all numbers are in their ranges.
    pub(crate) fn check(&self) -> io::Result<()> {
        let most = Credits::PACKETS_MAX as usize;
        for (name, value, range) in [
            ("credits.packets", self.credits.packets as usize, 1..=most),
            ("peers", self.peers, 1..=usize::MAX),
            ("segments", self.segments, 1..=usize::MAX),
        ] {
            if !range.contains(&value) {
                let least = "at least 1, and of credits.packets at most 32768";
                let why = format!("the option {name} of the socket is {value}; expected {least}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        }
        Ok(())
    }
}
