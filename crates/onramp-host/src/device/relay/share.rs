//! A sender whose credits the clients of a relay share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onramp_queue::{Credits, Packet};

use super::counts::Refused;
use onramp::{Flow, Link, Mapping, Sender, TrySendError};

/// Credits of a relay: the number of packets that all its clients may have in flight. The number is
/// so large that the qdisc's limit is reached first, so that the qdisc decides which packets are
/// dropped.
pub(crate) const CREDITS: Credits = Credits { packets: Credits::PACKETS_MAX, bytes: 64 << 20 };

/// A sender for the datagrams of all clients of a relay. A client may have at most half as many
/// packets, and bytes, in flight as there are free credits. So a client whose packets wait in a
/// slow class never holds more than a third of the credits, and leaves credits to the others.
#[derive(Debug)]
pub(super) struct SharedSender {
    sender: Sender,
    shares: Arc<Mutex<Shares>>,
}

impl SharedSender {
    /// Makes a sender of `link`, whose senders have [`CREDITS`].
    pub(super) fn new(link: &Link) -> Self {
        let (mut sender, shares) = (link.sender(), Arc::<Mutex<Shares>>::default());
        let theirs = shares.clone();
        sender.on_complete(move |done| lock(&theirs).end(done.flow, done.cookie));
        Self { sender, shares }
    }

    /// Returns a new flow: see [`Sender::flow_with`]. Each client has a flow of its own.
    pub(super) fn flow_with(
        &self,
        dest: impl Into<Option<std::net::SocketAddr>>,
        mapping: Mapping,
    ) -> Flow {
        self.sender.flow_with(dest, mapping)
    }

    /// Sends a datagram of the client with this flow. If the sender finds no room, it tries once
    /// more: it may lack credit, and only the second attempt first sends staged packets, which
    /// frees credit. The datagram gets the priority, the mark and the queue of `like`.
    pub(super) fn send(
        &mut self,
        flow: &Flow,
        payload: &[u8],
        like: Option<&Packet>,
    ) -> Result<(), Refused> {
        if !self.has_share(flow.key(), payload.len() as u64) {
            return Err(Refused::Share);
        }
        let mut done = self.try_send(flow, payload, like);
        if done == Err(TrySendError::Full) {
            done = self.try_send(flow, payload, like);
        }
        done.map_err(|error| match error {
            TrySendError::Full => Refused::Full,
            TrySendError::TooLarge => Refused::Size,
            _ => Refused::Down,
        })
    }

    fn try_send(
        &mut self,
        flow: &Flow,
        payload: &[u8],
        like: Option<&Packet>,
    ) -> Result<(), TrySendError> {
        let (key, bytes) = (flow.key(), payload.len() as u64);
        let mut packet = self.sender.packet(flow, payload)?;
        packet.cookie = bytes;
        if let Some(like) = like {
            (packet.priority, packet.mark) = (like.priority, like.mark);
            like.chosen_queue().into_iter().for_each(|queue| packet.set_queue(queue));
        }
        lock(&self.shares).begin(key, bytes);
        self.sender.submit(flow, packet).map_err(|rejected| {
            lock(&self.shares).end(key, bytes);
            rejected.why
        })
    }

    /// Whether the client with this key may send a packet of so many bytes. Counts the packets that
    /// have come back only if the client could not send otherwise.
    fn has_share(&mut self, key: u64, bytes: u64) -> bool {
        if lock(&self.shares).has_room(key, bytes) {
            return true;
        }
        self.sender.reclaim();
        lock(&self.shares).has_room(key, bytes)
    }
}

fn lock(shares: &Mutex<Shares>) -> MutexGuard<'_, Shares> {
    // Ignore a poisoned lock: the counts are valid at every moment.
    shares.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Packets in flight, and the bytes of their payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct InFlight {
    packets: u64,
    bytes: u64,
}

impl InFlight {
    const fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }

    const fn remove(&mut self, bytes: u64) {
        self.packets -= 1;
        self.bytes -= bytes;
    }
}

/// What the clients have in flight.
#[derive(Debug, Default)]
struct Shares {
    all: InFlight,
    /// The clients that have packets in flight, by the keys of their flows.
    clients: HashMap<u64, InFlight>,
}

impl Shares {
    /// Whether the client with this key may have another packet of so many bytes in flight. A
    /// client that has none may always have one.
    fn has_room(&self, key: u64, bytes: u64) -> bool {
        let Some(held) = self.clients.get(&key) else { return true };
        2 * held.packets + self.all.packets < CREDITS.packets.into()
            && 2 * (held.bytes + bytes) + self.all.bytes <= CREDITS.bytes.into()
    }

    fn begin(&mut self, key: u64, bytes: u64) {
        self.all.add(bytes);
        self.clients.entry(key).or_default().add(bytes);
    }

    fn end(&mut self, key: u64, bytes: u64) {
        let Some(held) = self.clients.get_mut(&key) else { return };
        held.remove(bytes);
        self.all.remove(bytes);
        if held.packets == 0 {
            self.clients.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the client `key` have as many packets of `bytes` bytes in flight as it may, and returns
    /// their number.
    fn fill(shares: &mut Shares, key: u64, bytes: u64) -> u64 {
        let mut count = 0;
        while shares.has_room(key, bytes) && shares.all.packets < CREDITS.packets.into() {
            shares.begin(key, bytes);
            count += 1;
        }
        count
    }

    #[test]
    fn a_client_alone_has_a_third_and_leaves_a_third_of_the_rest_to_each_other() {
        let mut shares = Shares::default();
        let counts = [1, 2, 3].map(|key| fill(&mut shares, key, 100));
        assert_eq!(counts, [10_923, 7_282, 4_855]);
        // The packets of the first client leave, and the others may have more.
        (0..counts[0]).for_each(|_| shares.end(1, 100));
        assert!(!shares.clients.contains_key(&1));
        assert!(fill(&mut shares, 2, 100) > 0 && fill(&mut shares, 1, 100) > 0);
    }

    #[test]
    fn large_packets_are_shared_by_their_bytes() {
        let mut shares = Shares::default();
        let most = u64::from(CREDITS.bytes) / 3 / 65_000;
        assert_eq!(fill(&mut shares, 1, 65_000), most);
        assert!(fill(&mut shares, 2, 65_000) > most / 2);
    }

    #[test]
    fn a_client_without_packets_may_have_one() {
        let mut shares = Shares::default();
        for key in 0..u64::from(CREDITS.packets) - 1 {
            assert!(shares.has_room(key, 65_000), "client {key}");
            shares.begin(key, 1);
        }
        assert!(!shares.has_room(0, 1));
    }

    #[test]
    fn counts_come_back_to_zero() {
        let mut shares = Shares::default();
        shares.begin(7, 10);
        shares.begin(7, 20);
        shares.end(7, 10);
        assert_eq!(shares.clients[&7], InFlight { packets: 1, bytes: 20 });
        shares.end(7, 20);
        assert_eq!((shares.all, shares.clients.len()), (InFlight::default(), 0));
    }
}
