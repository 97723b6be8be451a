//! The datagrams that the program puts together from several messages (`MSG_MORE`, `UDP_CORK`). The
//! kernel holds such a datagram at its socket, and glues to it whatever is sent from the socket
//! before it ends.

use std::collections::HashMap;

/// Most sockets of which something is known.
const SOCKETS_MAX: usize = 65_536;

/// What a call did to the datagram of its socket, when it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The kernel took a part, and waits for more.
    Begun,
    /// The kernel took the last part.
    Ended,
    /// The call failed, or had nothing to send.
    Nothing,
}

/// What is known of the datagram of a socket.
#[derive(Debug, Default)]
struct Joined {
    /// Number of calls with a part that have not returned.
    calls: u32,
    /// Whether a message with `MSG_MORE` has begun it, and no message without has ended it.
    is_begun: bool,
    /// Whether the socket was corked. The end of that is not seen, because it is an option.
    is_corked: bool,
}

/// The sockets for which the kernel may hold a datagram.
#[derive(Debug, Default)]
pub(crate) struct AllJoined(HashMap<u64, Joined>);

impl AllJoined {
    /// Returns whether a message belongs to a datagram of several messages: `begins` says that more
    /// will come (`MSG_MORE`), `is_corked` that the socket is corked, and `holds` whether the
    /// kernel has something of the socket. If so, the message is noted, before the kernel gets it;
    /// [`returned`](Self::returned) has to follow.
    pub(crate) fn call(
        &mut self,
        socket: u64,
        begins: bool,
        is_corked: bool,
        holds: impl FnOnce() -> bool,
    ) -> bool {
        let is_begun = self.0.get(&socket).is_some_and(|joined| {
            // A message that the kernel refused, unseen here, may have cost it what there was.
            joined.is_begun && (joined.calls > 0 || holds())
        });
        if !(begins || is_corked || is_begun) {
            return false;
        }
        if self.0.len() >= SOCKETS_MAX {
            self.0.retain(|_, joined| joined.calls > 0);
        }
        let joined = self.0.entry(socket).or_default();
        joined.calls += 1;
        joined.is_begun |= begins;
        joined.is_corked |= is_corked;
        true
    }

    /// Notes that the call for a message returned. `holds` is as for [`call`](Self::call).
    pub(crate) fn returned(&mut self, socket: u64, outcome: Outcome, holds: impl FnOnce() -> bool) {
        let Some(joined) = self.0.get_mut(&socket) else { return };
        joined.calls = joined.calls.saturating_sub(1);
        // A call that failed may have begun nothing, or may have lost what there was.
        if outcome == Outcome::Ended || (outcome == Outcome::Nothing && !holds()) {
            joined.is_begun = false;
        }
        if joined.calls == 0 && !joined.is_begun && !joined.is_corked {
            self.0.remove(&socket);
        }
    }

    /// Returns whether a datagram would be glued to another one if it left its socket now. `holds`
    /// is as for [`call`](Self::call). The socket is not corked.
    pub(crate) fn is_open(&mut self, socket: u64, holds: impl FnOnce() -> bool) -> bool {
        let Some(joined) = self.0.get(&socket) else { return false };
        // A call may be just before the kernel, which then has nothing yet.
        if joined.calls > 0 || holds() {
            return true;
        }
        self.0.remove(&socket);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_message_that_ends_a_datagram_ends_it() {
        let mut all = AllJoined::default();
        assert!(!all.call(1, false, false, || true) && !all.is_open(1, || true));
        assert!(all.call(1, true, false, || true));
        // The kernel has nothing yet, but may have it before a datagram comes there.
        assert!(all.is_open(1, || false));
        all.returned(1, Outcome::Begun, || true);
        assert!(all.is_open(1, || true) && !all.is_open(2, || true));
        // A message that ends nothing.
        assert!(all.call(1, false, false, || true));
        all.returned(1, Outcome::Nothing, || true);
        assert!(all.is_open(1, || true));
        assert!(all.call(1, false, false, || true) && !all.call(2, false, false, || true));
        all.returned(1, Outcome::Ended, || true);
        assert!(!all.is_open(1, || true) && !all.call(1, false, false, || true));
    }

    #[test]
    fn a_call_that_fails_may_leave_nothing() {
        let mut all = AllJoined::default();
        assert!(all.call(1, true, false, || true));
        all.returned(1, Outcome::Nothing, || false);
        assert!(!all.call(1, false, false, || true) && all.0.is_empty());
        // What the kernel has lost unseen.
        assert!(all.call(1, true, false, || true));
        all.returned(1, Outcome::Begun, || true);
        assert!(!all.call(1, false, false, || false));
        assert!(!all.is_open(1, || false) && all.0.is_empty());
    }

    /// The kernel ends the datagram a moment after the socket says that it is not corked any more.
    #[test]
    fn what_was_corked_ends_when_the_kernel_has_nothing() {
        let mut all = AllJoined::default();
        assert!(all.call(1, false, true, || true));
        all.returned(1, Outcome::Ended, || true);
        assert!(all.is_open(1, || true) && !all.call(1, false, false, || true));
        assert!(!all.is_open(1, || false) && all.0.is_empty());
    }

    #[test]
    fn few_sockets_are_known() {
        let mut all = AllJoined::default();
        for socket in 0..SOCKETS_MAX as u64 + 10 {
            assert!(all.call(socket, true, false, || true));
            if socket > 0 {
                all.returned(socket, Outcome::Begun, || true);
            }
        }
        assert!(all.0.len() <= SOCKETS_MAX && all.is_open(0, || false));
    }
}
