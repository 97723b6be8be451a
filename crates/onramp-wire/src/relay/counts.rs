//! What a relay counts beside its two directions.

use std::io;

/// What has become of the connections and clients of a relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of TCP connections that clients have made.
    pub connections: u64,
    /// Number of those that the target has refused.
    pub connections_refused: u64,
    /// Number of those that ended by a reset for another reason: a side has reset the connection,
    /// or nothing has come through the line for too long.
    pub reset: u64,
    /// Number of those that were not over when the relay ended, and were reset then: bytes that the
    /// relay still held are lost. Counted when the relay has [stopped](crate::Relay::stop).
    pub cut: u64,
    /// Number of segments that were sent again, because they had been lost or came too late.
    pub retransmitted: u64,
    /// Number of addresses from which datagrams have come.
    pub clients: u64,
    /// Number of those that were forgotten because they were idle for 120 seconds.
    pub forgotten: u64,
    /// Number of datagrams that were discarded before the line, because there was no socket for a
    /// new client.
    pub no_socket: u64,
    /// How often connections had to wait, 100 ms each time, because there was no file descriptor
    /// left for another.
    pub waits: u64,
    /// How often the target's machine has said that a datagram could not be delivered, for example
    /// because nobody has its port.
    pub unreachable: u64,
    /// The first error that a connection or a client has met, as a line of text.
    pub failure: Option<String>,
}

impl Counts {
    /// Notes an error, if it is the first.
    pub(crate) fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    /// The target cannot be reached by datagrams.
    pub(crate) fn unreachable(&mut self, error: &io::Error) {
        self.unreachable += 1;
        self.fail(format!("a datagram did not reach the target: {error}"));
    }
}
