//! The packets of a request and its answer.

/// The packets that every request has: three of the handshake, the request, the client's end of the
/// connection and the answer to it. The server's end is in the last packet of the answer.
const FIXED: u32 = 6;

/// The packets of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Packets of the answer itself, and acknowledgements of the client.
    pub(super) data: u32,
    acks: u32,
}

impl Answer {
    /// Divides the packets of a request: a client acknowledges every second packet.
    pub(super) fn new(packets: u32) -> Self {
        let rest = packets.saturating_sub(FIXED).max(1);
        let data = (rest * 2 + 1) / 3;
        Self { data, acks: rest - data }
    }

    /// Returns the number of packets in both directions.
    pub(super) fn packets(self) -> u32 {
        FIXED + self.data + self.acks
    }

    /// Returns the number of packets that the server receives.
    pub(super) fn received(self) -> u64 {
        u64::from(FIXED - 2 + self.acks)
    }

    /// Returns the number of packets that the server sends.
    pub(super) fn sent(self) -> u64 {
        u64::from(2 + self.data)
    }

    /// Returns the number of steps of a process that handles a request: one for each packet of the
    /// answer, and three parts of work.
    pub(super) fn steps(self) -> u32 {
        self.data + 3
    }

    /// Whether the client acknowledges packet `number` of the answer, which begin at 1: the
    /// acknowledgements are spread evenly.
    pub(super) fn is_acknowledged(self, number: u32) -> bool {
        number * self.acks / self.data > (number - 1) * self.acks / self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packets_of_a_request_add_up() {
        for packets in 7..=16 {
            let answer = Answer::new(packets);
            assert_eq!(answer.packets(), packets);
            assert_eq!(answer.received() + answer.sent(), packets.into());
            assert!((1..=7).contains(&answer.data), "{answer:?}");
            let acks = (1..=answer.data).filter(|number| answer.is_acknowledged(*number));
            assert_eq!(acks.count(), answer.acks as usize);
        }
    }
}
