//! The transmit queue of a device that relays: each client's packets leave through the client's own
//! socket, so that the server's answers to each client arrive at a socket of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_dev::Udp;
use onramp_queue::PacketList;

/// The sockets of a relay's clients, by the key of the client's flow. All transmit queues of the
/// device and the relay's thread share them.
#[derive(Debug, Default)]
pub(crate) struct Upstreams(Mutex<HashMap<u64, Arc<Mutex<Udp>>>>);

impl Upstreams {
    pub(super) fn add(&self, key: u64, socket: Udp) {
        self.with(|sockets| sockets.insert(key, Arc::new(Mutex::new(socket))));
    }

    pub(super) fn remove(&self, key: u64) {
        self.with(|sockets| sockets.remove(&key));
    }

    fn get(&self, key: u64) -> Option<Arc<Mutex<Udp>>> {
        self.with(|sockets| sockets.get(&key).cloned())
    }

    fn with<T>(&self, act: impl FnOnce(&mut HashMap<u64, Arc<Mutex<Udp>>>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A transmit queue that sends each packet through the socket of the packet's client.
#[derive(Debug)]
pub(crate) struct Fan {
    /// The socket for packets of flows that belong to no client. The relay's thread counts what
    /// arrives there.
    own: Udp,
    upstreams: Arc<Upstreams>,
}

impl Fan {
    pub(crate) const fn new(own: Udp, upstreams: Arc<Upstreams>) -> Self {
        Self { own, upstreams }
    }

    /// Sends the packets of `run`, which belong to one flow.
    fn send(&mut self, run: &mut PacketList, done: &mut PacketList, now: Instant) -> Transmitted {
        let key = run.front().map_or(0, |packet| packet.flow);
        match self.upstreams.get(key) {
            None => self.own.transmit(run, done, now),
            Some(socket) => {
                socket.lock().unwrap_or_else(PoisonError::into_inner).transmit(run, done, now)
            }
        }
    }
}

impl Device for Fan {
    fn info(&self) -> &DeviceInfo {
        self.own.info()
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let mut sum = Transmitted::default();
        while let Some(key) = burst.front().map(|packet| packet.flow) {
            let mut run = PacketList::new();
            while burst.front().is_some_and(|packet| packet.flow == key) {
                run.extend(burst.pop_front());
            }
            let out = self.send(&mut run, done, now);
            sum.calls += out.calls;
            sum.messages += out.messages;
            if !run.is_empty() {
                run.append(burst);
                *burst = run;
                sum.retry_at = out.retry_at;
                break;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use onramp_queue::Packet;

    use super::*;

    fn pair() -> (Udp, UdpSocket) {
        let sink = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        sink.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(sink.local_addr().expect("an address")).expect("it is local");
        (Udp::new(socket, onramp_dev::UdpOptions::default()).expect("a device"), sink)
    }

    /// The packets of a burst leave through the sockets of their flows, in order; those of a flow
    /// that no client has, or no longer has, leave through the queue's own socket.
    #[test]
    fn each_flow_has_its_socket() {
        let [own, first, second] = [pair(), pair(), pair()];
        let upstreams = Arc::<Upstreams>::default();
        upstreams.add(1, first.0);
        upstreams.add(2, second.0);
        let mut fan = Fan::new(own.0, upstreams.clone());
        let mut send = |flows: &[u64]| {
            let (mut burst, mut done) = (PacketList::new(), PacketList::new());
            for (place, flow) in flows.iter().enumerate() {
                let mut packet = Packet::with_payload(&[u8::try_from(place).expect("few")]);
                packet.flow = *flow;
                burst.push_back(packet);
            }
            let out = fan.transmit(&mut burst, &mut done, Instant(0));
            assert!(burst.is_empty() && done.metas().all(|meta| meta.drop_reason.is_none()));
            assert_eq!((done.len() as usize, out.retry_at), (flows.len(), None));
        };
        let got = |sink: &UdpSocket, count: usize| -> Vec<u8> {
            let mut buffer = [0; 8];
            let one = |_| sink.recv(&mut buffer).map(|_| buffer[0]).expect("it arrives");
            (0..count).map(one).collect()
        };
        send(&[1, 2, 2, 1, 3, 0]);
        assert_eq!(got(&first.1, 2), [0, 3]);
        assert_eq!(got(&second.1, 2), [1, 2]);
        assert_eq!(got(&own.1, 2), [4, 5]);
        upstreams.remove(2);
        send(&[2, 1]);
        assert_eq!((got(&own.1, 1), got(&first.1, 1)), (vec![0], vec![1]));
    }
}
