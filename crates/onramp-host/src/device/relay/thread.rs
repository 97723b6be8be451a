//! The thread of a relay: it moves datagrams from clients to the server and back.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use onramp_core::{Clock as _, Instant};
use onramp_dev::{MonotonicClock, Udp, socket_memory};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::super::link_end::Source;
use super::super::socket::enlarge;
use super::Listener;
use super::clients::{Client, Clients};
use super::counts::{Counts, Refused};
use super::descriptors::Descriptors;
use super::forgotten::Forgotten;
use super::heard::{self, Heard};
use super::share::SharedSender;
use onramp::{Flow, Link, Mapping};

/// Size of the largest datagram, bytes.
const DATAGRAM_MAX: usize = 65_535;
/// The room of a client's socket, bytes: less than that of the listening socket, because there may
/// be thousands.
const CLIENT_ROOM: usize = 1 << 20;
/// How long the thread sleeps after an error that may come again at once.
const PAUSE: Duration = Duration::from_millis(10);
/// The most datagrams that the thread takes from one socket before it looks at the others.
const BATCH: usize = 64;
/// The most datagrams that the thread discards at a socket before it does something else: more than
/// the room of a socket holds.
const DISCARDED_MAX: u64 = 1 << 16;
/// The most sockets that the thread learns of in one system call.
const EVENTS: usize = 64;

/// The numbers by which the thread knows its sockets: that at which clients arrive, that which
/// wakes the thread, and from `QUEUES` on those of the device's transmit queues. The socket of a
/// client has the client's key, whose highest bit is set.
const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const QUEUES: u64 = 2;

/// The state of the thread.
pub(super) struct Mover {
    listener: Listener,
    clients: Clients<Served>,
    forgotten: Forgotten<Served>,
    /// The sockets for packets that belong to no client, one of each transmit queue.
    queues: Vec<Watched>,
    /// Sends the clients' datagrams to the server.
    sender: SharedSender,
    /// Sends the answers to the clients; `None`: they go out directly.
    back: Option<Back>,
    source: Arc<Source>,
    counts: Arc<Counts>,
    /// What the kernel has dropped at the listening socket.
    missed: Missed,
    /// Names the sockets at which something has arrived.
    ready: OwnedFd,
    /// Wakes the thread so that it looks whether it shall end.
    wake: Arc<OwnedFd>,
    hash: RandomState,
}

/// The way of answers that pass the qdiscs of a device.
struct Back {
    sender: SharedSender,
    source: Arc<Source>,
}

/// What the thread has of each client.
struct Served {
    /// The socket at which the server's answers arrive.
    upstream: Watched,
    flow: Flow,
    back: Option<Flow>,
    _descriptors: Descriptors,
}

/// A socket to the server, and what the kernel has dropped there.
struct Watched {
    socket: Arc<UdpSocket>,
    missed: Missed,
}

impl Watched {
    fn new(socket: Arc<UdpSocket>) -> Self {
        Self { missed: Missed::of(&socket), socket }
    }
}

impl Mover {
    pub(super) fn new(
        listener: Listener,
        link: &Link,
        back: Option<&Link>,
        counts: Arc<Counts>,
        wake: Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&ready, &listener.socket, LISTENER)?;
        watch(&ready, &*wake, WAKE)?;
        let queues: Vec<_> = listener.queues.iter().cloned().map(Watched::new).collect();
        for (number, queue) in (QUEUES..).zip(&queues) {
            watch(&ready, &queue.socket, number)?;
        }
        let back = back.zip(listener.back.as_ref());
        let back =
            back.map(|(link, end)| Back { sender: SharedSender::new(link), source: end.source() });
        Ok(Self {
            missed: Missed::of(&listener.socket),
            clients: Clients::new(listener.limits),
            forgotten: Forgotten::new(listener.limits),
            queues,
            sender: SharedSender::new(link),
            back,
            source: listener.end.source(),
            counts,
            ready,
            wake,
            hash: RandomState::new(),
            listener,
        })
    }

    pub(super) fn run(mut self, end: &AtomicBool) {
        let mut buffer = vec![0; DATAGRAM_MAX].into_boxed_slice();
        let mut events = Vec::with_capacity(EVENTS);
        // Relaxed: the thread that sets `end` then wakes this thread, which reads `end` again.
        while !end.load(Ordering::Relaxed) {
            self.forget(MonotonicClock.now());
            self.wait(&mut events);
            let now = MonotonicClock.now();
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.requests(&mut buffer, now),
                    // Without this read, `ready` would name `wake` again at once.
                    WAKE => drop(rustix::io::read(&*self.wake, &mut [0; 8])),
                    key => match self.clients.get(key) {
                        Some(_) => self.answers(key, &mut buffer, now),
                        None => self.late(key),
                    },
                }
            }
        }
    }

    /// Waits until something arrives at a socket, or a client has been idle for too long, or the
    /// socket of a client that was forgotten has been kept long enough.
    fn wait(&self, events: &mut Vec<epoll::Event>) {
        let at = self.clients.forget_at().into_iter().chain(self.forgotten.end_at()).min();
        let left = at.map(|at| at.since(MonotonicClock.now()));
        // One more millisecond, because the kernel may cut off the part below a millisecond.
        let left = left.map(|left| Duration::from_nanos(left) + Duration::from_millis(1));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match epoll::wait(&self.ready, spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => self.failed(&error.into()),
        }
    }

    fn forget(&mut self, now: Instant) {
        for (key, client) in self.clients.forget(now) {
            self.counts.forgotten.add(1);
            self.keep(key, client.served, now);
        }
        self.counts.clients.set(self.clients.len() as u64);
        while let Some(old) = self.forgotten.end(now) {
            self.close(old);
        }
    }

    /// Keeps the socket of a client that is forgotten, so that answers that come late are counted,
    /// and no new client gets them. Closes the oldest socket if there are too many.
    fn keep(&mut self, key: u64, mut served: Served, now: Instant) {
        let missed = served.upstream.missed.more(&served.upstream.socket);
        self.refuse_answers(Refused::Missed, missed);
        if let (Some(_), Some(queue)) = (self.listener.shared(), self.queues.first_mut()) {
            // If that fails, the thread learns of the answers by the key, and counts them likewise.
            let _ = rename(&self.ready, &served.upstream.socket, QUEUES);
            *queue = served.upstream;
            return;
        }
        self.listener.upstreams.remove(key);
        let closed = match Descriptors::are_plenty() {
            true => self.forgotten.add(key, served, now),
            false => Some(served),
        };
        closed.into_iter().for_each(|old| self.close(old));
    }

    /// Closes the socket of a client that was forgotten, and counts the answers that wait there.
    fn close(&self, mut old: Served) {
        self.count_discarded(discard(&mut old.upstream), Refused::Late);
        // A transmit queue may still have the socket, so closing it here would not end the watch.
        // There is nothing to do if that fails: the thread closes no socket twice.
        let _ = epoll::delete(&self.ready, &old.upstream.socket);
    }

    /// Discards and counts the answers that have come to a socket that belongs to no client:
    /// `number` is that of a transmit queue, or the key of a client that was forgotten.
    fn late(&mut self, number: u64) {
        if let Some(old) = self.forgotten.get_mut(number) {
            let discarded = discard(&mut old.upstream);
            return self.count_discarded(discarded, Refused::Late);
        }
        let is_shared = self.listener.shared().is_some();
        let (place, why) = match is_shared {
            true => (0, Refused::Late),
            false => (number - QUEUES, Refused::Stray),
        };
        let queue = usize::try_from(place).ok().and_then(|place| self.queues.get_mut(place));
        if let Some(discarded) = queue.map(discard) {
            self.count_discarded(discarded, why);
        }
    }

    fn count_discarded(&self, discarded: Discarded, why: Refused) {
        self.refuse_answers(why, discarded.taken);
        self.refuse_answers(Refused::Missed, discarded.missed);
        discarded.error.iter().for_each(|error| self.failed(error));
    }

    fn refuse_answers(&self, why: Refused, count: u64) {
        self.counts.answers_refused.add_many(why, count);
        self.back.iter().for_each(|back| back.source.dropped.add(count));
    }

    /// Counts an error of a socket. If it may come again at once, sleeps, so that the thread keeps
    /// no processor busy.
    fn failed(&self, error: &io::Error) {
        self.counts.errors.add(1);
        if !is_reported_once(error) {
            thread::sleep(PAUSE);
        }
    }

    /// Takes the datagrams that clients sent, and counts those for which the socket had no room.
    fn requests(&mut self, buffer: &mut [u8], now: Instant) {
        self.take_requests(buffer, now);
        let missed = self.missed.more(&self.listener.socket);
        self.counts.refused.add_many(Refused::Missed, missed);
        self.source.dropped.add(missed);
    }

    fn take_requests(&mut self, buffer: &mut [u8], now: Instant) {
        for _ in 0..BATCH {
            match self.listener.socket.recv_from(buffer) {
                Ok((len, from)) => self.request(&buffer[..len], from, now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.source.dropped.add(1);
                    return self.failed(&error);
                }
            }
        }
    }

    fn request(&mut self, payload: &[u8], from: SocketAddr, now: Instant) {
        match self.forward(payload, from, now) {
            Ok(()) => count(&self.source, wire_len(payload, from)),
            Err(why) => {
                self.source.dropped.add(1);
                self.counts.refused.add(why);
            }
        }
    }

    fn forward(&mut self, payload: &[u8], from: SocketAddr, now: Instant) -> Result<(), Refused> {
        if !self.listener.end.is_up() {
            return Err(Refused::Down);
        }
        let ends = || Some([from, self.listener.socket.local_addr().ok()?]);
        let like = match heard::ask(&self.source, payload, ends, now) {
            Heard::Unasked => None,
            Heard::Passed(packet) => Some(packet),
            // As in Linux, the device has received the datagram all the same.
            Heard::Dropped => return Ok(()),
        };
        let key = match self.clients.key(from) {
            Some(key) => key,
            None => self.welcome(from, now)?,
        };
        let client = self.clients.touch(key, now).ok_or(Refused::Socket)?;
        self.sender.send(&client.served.flow, payload, like.as_ref())
    }

    /// Makes room for a new client, and returns the client's key.
    fn welcome(&mut self, from: SocketAddr, now: Instant) -> Result<u64, Refused> {
        if !self.clients.has_room() {
            return Err(Refused::Clients);
        }
        let descriptors = self.descriptors().ok_or(Refused::Socket)?;
        let mapping = Mapping::Hash(self.hash.hash_one(from));
        let flow = self.sender.flow_with(self.listener.upstream.remote, mapping);
        let back = self.back.as_ref().map(|back| back.sender.flow_with(from, mapping));
        let key = flow.key();
        let upstream = self.open(key).map_err(|_| Refused::Socket)?;
        let served = Served { upstream, flow, back, _descriptors: descriptors };
        self.clients.add(from, key, served, now);
        self.counts.clients.set(self.clients.len() as u64);
        Ok(key)
    }

    /// Takes the descriptor of a new client, if necessary from clients that were forgotten.
    fn descriptors(&mut self) -> Option<Descriptors> {
        loop {
            if let Some(taken) = Descriptors::take(1) {
                return Some(taken);
            }
            let oldest = self.forgotten.pop()?;
            self.close(oldest);
        }
    }

    /// Opens the socket of a client, and has the device send the client's packets through it.
    fn open(&mut self, key: u64) -> io::Result<Watched> {
        if let Some(shared) = self.listener.shared().cloned() {
            shared.set_nonblocking(true)?;
            enlarge(&shared, CLIENT_ROOM);
            // What has arrived is for an earlier client.
            self.late(QUEUES);
            rename(&self.ready, &shared, key)?;
            return Ok(Watched::new(shared));
        }
        let udp = self.listener.upstream.open().map_err(|refusal| io::Error::other(refusal.why))?;
        let socket = udp.socket().clone();
        socket.set_nonblocking(true)?;
        enlarge(&socket, CLIENT_ROOM);
        watch(&self.ready, &socket, key)?;
        self.listener.upstreams.add(key, udp);
        Ok(Watched::new(socket))
    }

    /// Takes the answers that arrived for the client with this key, and counts those for which its
    /// socket had no room.
    fn answers(&mut self, key: u64, buffer: &mut [u8], now: Instant) {
        self.take_answers(key, buffer, now);
        let Some(client) = self.clients.get_mut(key) else { return };
        let Watched { socket, missed } = &mut client.served.upstream;
        let missed = missed.more(socket);
        self.refuse_answers(Refused::Missed, missed);
    }

    fn take_answers(&mut self, key: u64, buffer: &mut [u8], now: Instant) {
        for _ in 0..BATCH {
            let Some(client) = self.clients.get(key) else { return };
            match client.served.upstream.socket.recv(buffer) {
                Ok(len) => self.answer(key, &buffer[..len], now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => return self.failed(&error),
            }
        }
    }

    fn answer(&mut self, key: u64, payload: &[u8], now: Instant) {
        let Some(client) = self.clients.touch(key, now) else { return };
        let bytes = wire_len(payload, client.address);
        let source = self.back.as_ref().map(|back| back.source.clone());
        let done = give(&self.listener, &mut self.back, client, payload, now);
        match done {
            Ok(()) => {
                self.counts.answers.add(1);
                self.counts.answer_bytes.add(bytes);
                source.iter().for_each(|source| count(source, bytes));
            }
            Err(why) => {
                self.counts.answers_refused.add(why);
                source.iter().for_each(|source| source.dropped.add(1));
            }
        }
    }
}

/// How many datagrams the kernel had dropped at a socket when they were last counted. The kernel's
/// number wraps after 2^32.
#[derive(Debug)]
struct Missed(u32);

impl Missed {
    fn of(socket: &UdpSocket) -> Self {
        Self(socket_memory(socket.as_fd()).map_or(0, |memory| memory.drops))
    }

    /// Returns how many more the kernel has dropped since the last call.
    fn more(&mut self, socket: &UdpSocket) -> u64 {
        let Ok(memory) = socket_memory(socket.as_fd()) else { return 0 };
        let more = memory.drops.wrapping_sub(self.0);
        self.0 = memory.drops;
        more.into()
    }
}

/// What [`discard`] found at a socket.
struct Discarded {
    /// Number of datagrams that it discarded.
    taken: u64,
    /// Number of further datagrams that the kernel dropped, for want of room.
    missed: u64,
    /// The first error that the socket reported.
    error: Option<io::Error>,
}

/// Discards the datagrams that have arrived at a socket, which may be one that blocks. Stops at the
/// second error, or when it has discarded very many, and leaves the others to the next call.
fn discard(watched: &mut Watched) -> Discarded {
    let Watched { socket, missed } = watched;
    let mut discarded = Discarded { taken: 0, missed: 0, error: None };
    while discarded.taken < DISCARDED_MAX {
        match recv(&*socket, &mut [0; 1], RecvFlags::DONTWAIT) {
            Ok(_) => discarded.taken += 1,
            Err(Errno::AGAIN) => break,
            // An error may be that of a datagram that was sent earlier, and then says nothing of
            // those that have arrived.
            Err(error) if discarded.error.is_none() => discarded.error = Some(error.into()),
            Err(_) => break,
        }
    }
    discarded.missed = missed.more(socket);
    discarded
}

/// Sends an answer to a client.
fn give(
    listener: &Listener,
    back: &mut Option<Back>,
    client: &Client<Served>,
    payload: &[u8],
    now: Instant,
) -> Result<(), Refused> {
    let end = listener.back.as_ref().unwrap_or(&listener.end);
    if !end.is_up() {
        return Err(Refused::Down);
    }
    if let (Some(back), Some(flow)) = (back, &client.served.back) {
        let ends =
            || Some([listener.upstream.remote, client.served.upstream.socket.local_addr().ok()?]);
        let like = match heard::ask(&back.source, payload, ends, now) {
            Heard::Unasked => None,
            Heard::Passed(packet) => Some(packet),
            Heard::Dropped => return Ok(()),
        };
        return back.sender.send(flow, payload, like.as_ref());
    }
    let sent = listener.socket.send_to(payload, client.address);
    sent.map(drop).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::OutOfMemory => Refused::Full,
        _ => Refused::Unsent,
    })
}

fn watch(ready: &OwnedFd, socket: impl std::os::fd::AsFd, number: u64) -> io::Result<()> {
    let data = epoll::EventData::new_u64(number);
    Ok(epoll::add(ready, socket, data, epoll::EventFlags::IN)?)
}

/// Gives a socket that the thread watches another number.
fn rename(ready: &OwnedFd, socket: &UdpSocket, number: u64) -> io::Result<()> {
    let data = epoll::EventData::new_u64(number);
    Ok(epoll::modify(ready, socket, data, epoll::EventFlags::IN)?)
}

fn count(source: &Source, bytes: u64) {
    source.packets.add(1);
    source.bytes.add(bytes);
}

/// Returns the size of a datagram on the wire at the client with this address, bytes.
fn wire_len(payload: &[u8], client: SocketAddr) -> u64 {
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    Udp::wire_len(len, client.is_ipv6()).into()
}

/// Whether a socket reports this error once, because of a datagram that it sent earlier (ICMP).
fn is_reported_once(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::Interrupted
    )
}
