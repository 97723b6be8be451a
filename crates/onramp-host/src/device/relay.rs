//! A relay: it receives datagrams of other programs on a socket and sends them through a link. With
//! a relay, programs that cannot shape their traffic have it shaped by the link's qdiscs.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{
    self,
    ErrorKind::{Interrupted, TimedOut, WouldBlock},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use onramp_dev::Udp;

use super::link_end::{LinkEnd, Source};
use super::{Refusal, refusal};
use onramp::{Flow, Link, Mapping, Sender};

/// Size of the largest datagram, bytes.
const DATAGRAM_MAX: usize = 65_535;
/// Longest time until a relay's thread notices that it shall end, if the datagram that should wake
/// the thread is lost.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long a relay's thread sleeps after an error of its socket.
const PAUSE: Duration = Duration::from_millis(10);
/// Greatest number of source addresses whose flows a relay remembers. If one more comes, the relay
/// forgets all flows and learns them again.
const FLOWS_MAX: usize = 4_096;

/// A socket whose received datagrams shall be sent through a link.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UdpSocket,
    end: Arc<LinkEnd>,
}

impl Listener {
    pub(crate) fn bind(address: SocketAddr, end: &Arc<LinkEnd>) -> Result<Self, Refusal> {
        let refused = |error: io::Error| refusal("listen at", address, &error);
        let socket = UdpSocket::bind(address).map_err(refused)?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(refused)?;
        Ok(Self { socket, end: end.clone() })
    }
}

/// A thread that receives datagrams and sends them through a link. Dropping the relay ends the
/// thread.
#[derive(Debug)]
pub(crate) struct Relay {
    end: Arc<AtomicBool>,
    /// The relay's own socket. When the relay is dropped, it sends itself a datagram from this
    /// socket to wake the thread.
    socket: UdpSocket,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a thread that sends the datagrams that `listener` receives through `link`. The
    /// datagrams of each source address are a flow.
    pub(crate) fn start(listener: Listener, link: &Link) -> io::Result<Self> {
        let end = Arc::<AtomicBool>::default();
        let socket = listener.socket.try_clone()?;
        let source = listener.end.source();
        let inbound = Inbound {
            flows: Flows { known: HashMap::new(), hash: RandomState::new() },
            sender: link.sender(),
            listener,
            source,
        };
        let theirs = end.clone();
        let thread = thread::Builder::new()
            .name("onramp-relay".to_owned())
            .spawn(move || inbound.run(&theirs))?;
        Ok(Self { end, socket, thread: Some(thread) })
    }

    /// Returns the address at which the relay listens.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed); // Relaxed: the thread may read `end` late.
        if let Some(mut own) = self.address() {
            if own.ip().is_unspecified() {
                own.set_ip(match own {
                    SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                    SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
                });
            }
            // A datagram to the relay's own socket wakes the thread. If the datagram is lost, the
            // thread soon wakes by its timeout.
            let _ = self.socket.send_to(&[], own);
        }
        if let Some(thread) = self.thread.take() {
            // An error of `join` means that the thread panicked; the panic hook has already printed
            // the panic.
            let _ = thread.join();
        }
    }
}

/// The state of the relay's thread.
struct Inbound {
    listener: Listener,
    source: Arc<Source>,
    sender: Sender,
    flows: Flows,
}

/// The flow of each source address from which datagrams came.
struct Flows {
    known: HashMap<SocketAddr, Flow>,
    hash: RandomState,
}

impl Flows {
    fn get(&mut self, from: SocketAddr, sender: &Sender) -> &Flow {
        if self.known.len() >= FLOWS_MAX && !self.known.contains_key(&from) {
            self.known.clear();
        }
        let hash = self.hash.hash_one(from);
        self.known.entry(from).or_insert_with(|| sender.flow_with(None, Mapping::Hash(hash)))
    }
}

impl Inbound {
    fn run(mut self, end: &AtomicBool) {
        let mut buffer = vec![0; DATAGRAM_MAX].into_boxed_slice();
        // Relaxed: the thread may read the flag `end` late, because a datagram or, soon, the
        // timeout wakes the thread to read the flag again.
        while !end.load(Ordering::Relaxed) {
            match self.listener.socket.recv_from(&mut buffer) {
                // Relaxed: the flag `end` may be read late. An empty datagram after the flag was
                // set comes from the thread that drops the relay.
                Ok((0, _)) if end.load(Ordering::Relaxed) => break,
                Ok((len, from)) => self.forward(&buffer[..len], from),
                Err(error) if matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => {}
                // The error either belongs to an earlier packet (reported by ICMP) or is permanent.
                // The thread cannot tell which, so it counts the error, sleeps and receives again.
                Err(_) => {
                    self.source.dropped.add(1);
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    fn forward(&mut self, payload: &[u8], from: SocketAddr) {
        let flow = self.flows.get(from, &self.sender);
        let up = self.listener.end.is_up();
        // If `try_send` fails, call it once more: it may lack credit, and only the second call
        // first sends staged packets, which frees credit.
        let mut taken = up && self.sender.try_send(flow, payload).is_ok();
        if up && !taken {
            taken = self.sender.try_send(flow, payload).is_ok();
        }
        if taken {
            self.source.packets.add(1);
            let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            self.source.bytes.add(Udp::wire_len(len, from.is_ipv6()).into());
        } else {
            self.source.dropped.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use onramp_dev::Null;

    use super::*;

    #[test]
    fn an_error_that_lasts_is_counted_and_keeps_no_processor_busy() {
        let link = Link::devices([Box::new(Null::new(1500)) as Box<dyn onramp_core::Device>]);
        let link = link.build().expect("a link");
        let end = Arc::<LinkEnd>::default();
        // The "socket" of this listener is an open file, so receiving from it always fails.
        let socket = OwnedFd::from(File::open("/dev/null").expect("it is there")).into();
        let listener = Listener { socket, end: end.clone() };
        let begun = link.now();
        let relay = Relay::start(listener, &link).expect("it starts");
        // If the relay's thread did not sleep after errors, it would count thousands of errors at
        // once.
        let counted = (0..6_000).any(|_| {
            thread::sleep(PAUSE);
            end.received().dropped >= 5
        });
        assert!(counted, "errors are counted");
        drop(relay);
        let (errors, took) = (end.received().dropped, link.now().since(begun));
        let rests = took / u64::try_from(PAUSE.as_nanos()).expect("it is short");
        assert!(errors <= rests + 1, "{errors} errors in {took} ns");
        let _ = link.close(Duration::ZERO);
    }

    fn link() -> Link {
        let device = Box::new(Null::new(1500)) as Box<dyn onramp_core::Device>;
        Link::devices([device]).build().expect("a link")
    }

    /// The relay remembers the flows of 4096 source addresses. When one more comes, it forgets all
    /// flows and learns them again.
    #[test]
    fn flows_of_four_thousand_senders_are_known() {
        let (link, from) = (link(), |port| SocketAddr::from(([127, 0, 0, 1], port)));
        let sender = link.sender();
        let mut flows = Flows { known: HashMap::new(), hash: RandomState::new() };
        let keys: Vec<u64> = (1..=4_096).map(|port| flows.get(from(port), &sender).key()).collect();
        assert_eq!(flows.known.len(), 4_096);
        let again = |flows: &mut Flows| {
            (1..=4_096).map(|port| flows.get(from(port), &sender).key()).collect::<Vec<_>>()
        };
        assert_eq!(again(&mut flows), keys, "who is known keeps its flow");
        assert_eq!(flows.known.len(), 4_096);
        let _ = flows.get(from(4_097), &sender);
        assert_eq!(flows.known.len(), 1, "beyond, all are learned again");
        assert_eq!(again(&mut flows)[..4_095], keys[..4_095], "and have the same hash");
    }

    /// After a relay was dropped, its thread has ended and no longer uses the part of the device
    /// below the link.
    #[test]
    fn a_relay_that_goes_has_ended() {
        for address in ["127.0.0.1:0", "0.0.0.0:0"] {
            let (link, end) = (link(), Arc::<LinkEnd>::default());
            let address = address.parse().expect("an address");
            let listener = Listener::bind(address, &end).expect("a port");
            let relay = Relay::start(listener, &link).expect("it starts");
            let at = relay.address().expect("it has one");
            assert!(at.port() > 0 && at.ip() == address.ip());
            assert_eq!(Arc::strong_count(&end), 2, "the thread listens for it");
            drop(relay);
            assert_eq!(Arc::strong_count(&end), 1);
            UdpSocket::bind(at).expect("the address is free again");
        }
    }
}
