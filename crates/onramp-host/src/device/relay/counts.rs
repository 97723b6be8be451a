//! The counters of a relay.

use onramp_queue::Counter;

/// Why a relay refused a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The device is down or is being deleted.
    Down,
    /// There are as many clients as the relay may have, and the datagram is from another one.
    Clients,
    /// No socket could be opened for a new client.
    Socket,
    /// The client has its share of the relay's credits in flight.
    Share,
    /// The device or the listening socket had no room.
    Full,
    /// The datagram is too large for the device.
    Size,
    /// The kernel refused to send the answer.
    Unsent,
    /// The answer was for a client that the relay has forgotten.
    Late,
    /// The answer came to the socket for packets that belong to no client.
    Stray,
    /// The datagram came while the socket had no room for more, so the kernel dropped it.
    Missed,
}

impl Refused {
    const ALL: [(Self, &'static str); 10] = [
        (Self::Down, "down"),
        (Self::Clients, "clients"),
        (Self::Socket, "socket"),
        (Self::Share, "share"),
        (Self::Full, "full"),
        (Self::Size, "size"),
        (Self::Unsent, "unsent"),
        (Self::Late, "late"),
        (Self::Stray, "stray"),
        (Self::Missed, "missed"),
    ];
}

/// Numbers of refused datagrams, by reason.
#[derive(Debug, Default)]
pub(super) struct Refusals([Counter; Refused::ALL.len()]);

impl Refusals {
    pub(super) fn add(&self, why: Refused) {
        self.add_many(why, 1);
    }

    pub(super) fn add_many(&self, why: Refused, count: u64) {
        self.0[why as usize].add(count);
    }

    fn view(&self) -> Vec<(&'static str, u64)> {
        let counts = Refused::ALL.iter().map(|(why, name)| (*name, self.0[*why as usize].get()));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

/// Counters of a relay, which only the relay's thread writes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counts {
    pub(super) clients: Counter,
    pub(super) forgotten: Counter,
    pub(super) errors: Counter,
    pub(super) refused: Refusals,
    pub(super) answers: Counter,
    pub(super) answer_bytes: Counter,
    pub(super) answers_refused: Refusals,
}

/// What the relay of a `udp` device with `listen` has done so far.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayView {
    /// Number of clients at present.
    pub clients: u64,
    /// Greatest number of clients that there may be at a time.
    pub clients_max: u64,
    /// Number of clients that were forgotten because they were idle.
    pub forgotten: u64,
    /// Number of errors that sockets reported, for example because no server listens.
    pub errors: u64,
    /// Number of datagrams of clients that were refused, for each reason that occurred.
    pub refused: Vec<(&'static str, u64)>,
    /// Number of answers that were given to clients, or to the device that sends them to clients.
    pub answers: u64,
    /// Size of these answers together, bytes on the wire.
    pub answer_bytes: u64,
    /// Number of answers that were refused, for each reason that occurred.
    pub answers_refused: Vec<(&'static str, u64)>,
}

impl Counts {
    pub(super) fn view(&self, clients_max: u32) -> RelayView {
        RelayView {
            clients: self.clients.get(),
            clients_max: clients_max.into(),
            forgotten: self.forgotten.get(),
            errors: self.errors.get(),
            refused: self.refused.view(),
            answers: self.answers.get(),
            answer_bytes: self.answer_bytes.get(),
            answers_refused: self.answers_refused.view(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each reason has a counter of its own and its own name, and reasons that did not occur are
    /// left out.
    #[test]
    fn refusals_are_counted_by_reason() {
        for (why, name) in Refused::ALL {
            let refusals = Refusals::default();
            assert_eq!(refusals.view(), []);
            refusals.add(why);
            refusals.add(why);
            assert_eq!(refusals.view(), [(name, 2)]);
        }
    }
}
