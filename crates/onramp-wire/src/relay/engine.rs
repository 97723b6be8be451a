//! The thread of a relay: its sockets, and the two lines that all connections and datagrams pass.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use onramp_core::{Clock as _, Instant};
use onramp_dev::MonotonicClock;
use onramp_queue::Packet;

use super::counts::Counts;
use super::entry::{Door, enlarge, ip_len};
use super::message::{self, Content, Segment};
use super::stream::End;
use super::tcp::{self, Conn, Reached, token};
use crate::bridge::Carrier;
use crate::change::Change;
use crate::edit::EditError;
use crate::lane::Lane;
use crate::way::{Direction, Watch};

/// Most datagrams of a socket, connections of a door, and events, that are taken in one turn.
const BATCH: usize = 64;
/// A client without a datagram in either direction for this time is forgotten.
const IDLE_NS: u64 = 120_000_000_000;
/// How long connections wait if the program has no descriptors left.
const PAUSE_NS: u64 = 100_000_000;
/// Room for any datagram, and for what is read of a connection at once.
const BUFFER: usize = 1 << 16;

/// A client that sends datagrams.
#[derive(Debug)]
struct Client {
    door: usize,
    address: SocketAddr,
    far: UdpSocket,
    last: Instant,
    is_readable: bool,
}

/// What the thread of a relay carries.
#[derive(Debug)]
pub(crate) struct Engine {
    epoll: Epoll,
    lanes: [Lane; 2],
    /// Packets that left a line and that nobody took.
    refused: [u64; 2],
    /// Datagrams that did not fit a packet.
    too_large: [u64; 2],
    /// Datagrams that the kernel dropped at the sockets of clients that are forgotten.
    missed_before: u64,
    doors: Vec<Door>,
    /// The number of the next connection or client; those of the doors come first.
    next_id: u64,
    conns: HashMap<u64, Conn>,
    clients: HashMap<u64, Client>,
    /// The clients by their doors and addresses.
    known: HashMap<(usize, SocketAddr), u64>,
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    /// The connections and clients that have something to do.
    busy: Vec<u64>,
    /// The doors at which somebody may wait, and when to look at them again after an error.
    knocks: Vec<bool>,
    retry: Option<Instant>,
    /// See [`IDLE_NS`].
    idle_ns: u64,
    mtu: u32,
    buffer: Vec<u8>,
    counts: Counts,
    shared: Arc<Mutex<Counts>>,
}

impl Engine {
    pub(crate) fn new(
        doors: Vec<Door>,
        lanes: [Lane; 2],
        mtu: u32,
        shared: Arc<Mutex<Counts>>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (id, door) in (0..).zip(&doors) {
            let event =
                |end| EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, token(id, end));
            if let Some(tcp) = &door.tcp {
                epoll.add(tcp, event(End::Near))?;
            }
            if let Some(udp) = &door.udp {
                epoll.add(udp, event(End::Near))?;
            }
        }
        Ok(Self {
            epoll,
            lanes,
            refused: [0; 2],
            too_large: [0; 2],
            missed_before: 0,
            next_id: doors.len() as u64,
            knocks: vec![true; doors.len()],
            doors,
            conns: HashMap::new(),
            clients: HashMap::new(),
            known: HashMap::new(),
            timers: BinaryHeap::new(),
            busy: Vec::new(),
            retry: None,
            idle_ns: IDLE_NS,
            mtu,
            buffer: vec![0; BUFFER],
            counts: Counts::default(),
            shared,
        })
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Takes what `epoll` tells.
    fn hear(&mut self) -> io::Result<bool> {
        let mut events = [EpollEvent::empty(); BATCH];
        let count = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Err(nix::errno::Errno::EINTR) => 0,
            counted => counted?,
        };
        for event in &events[..count] {
            let (id, far) = (event.data() / 2, event.data() % 2 == 1);
            if let Some(knocks) = usize::try_from(id).ok().and_then(|id| self.knocks.get_mut(id)) {
                *knocks = true;
            } else if let Some(conn) = self.conns.get_mut(&id) {
                conn.happened(if far { End::Far } else { End::Near });
                self.busy.push(id);
            } else if let Some(client) = self.clients.get_mut(&id) {
                client.is_readable = true;
                self.busy.push(id);
            }
        }
        Ok(count == BATCH)
    }

    /// Accepts connections and takes datagrams at the doors at which somebody waits. Gives
    /// `entered` the packets of datagrams.
    fn open_doors(&mut self, now: Instant, entered: &mut Vec<(usize, Packet)>) {
        if self.retry.is_some_and(|at| at <= now) {
            self.retry = None;
            self.knocks.fill(true);
        }
        for door in 0..self.doors.len() {
            if self.knocks[door] {
                // Connections wait while there are no descriptors; datagrams do not.
                let more = self.retry.is_none() && self.accept(door, now);
                self.knocks[door] = self.take_datagrams(door, now, entered) || more;
            }
        }
    }

    /// Accepts connections. Returns whether more may wait.
    fn accept(&mut self, door: usize, now: Instant) -> bool {
        for _ in 0..BATCH {
            let here = &mut self.doors[door];
            let Some(listener) = &here.tcp else { return false };
            // A connection needs a second descriptor, to the target. It is taken first, so that the
            // connections of many clients do not take what all of them need.
            let spare = here.spare.take();
            let far = spare.map_or_else(|| tcp::socket(here.targets[0]), Ok);
            let accepted = far.and_then(|far| match listener.accept() {
                Ok((client, _)) => Ok((client, far)),
                Err(error) => {
                    here.spare = Some(far);
                    Err(error)
                }
            });
            let (client, far) = match accepted {
                Ok(both) => both,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    // The program has no descriptors left; they may come back.
                    self.counts.waits += 1;
                    self.counts.fail(format!("cannot accept a connection yet: {error}"));
                    self.retry = Some(now.after(PAUSE_NS));
                    return false;
                }
            };
            let id = self.id();
            let mss = self.mtu - ip_len(self.doors[door].address) - message::TCP;
            self.counts.connections += 1;
            match Conn::new(&self.epoll, id, door, (client, far), mss, now) {
                Ok(conn) => {
                    self.conns.insert(id, conn);
                    self.busy.push(id);
                }
                Err(error) => {
                    self.counts.reset += 1;
                    self.counts.fail(format!("cannot keep a connection: {error}"));
                }
            }
        }
        true
    }

    /// Takes datagrams of clients. Returns whether more may wait.
    fn take_datagrams(
        &mut self,
        door: usize,
        now: Instant,
        entered: &mut Vec<(usize, Packet)>,
    ) -> bool {
        for _ in 0..BATCH {
            let Some(socket) = &self.doors[door].udp else { return false };
            let (count, sender) = match socket.recv_from(&mut self.buffer) {
                Ok(taken) => taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                // An earlier datagram could not be delivered.
                Err(_) => continue,
            };
            match self.client(door, sender, now) {
                Ok(id) => {
                    let ip = ip_len(self.doors[door].address);
                    match message::datagram(id, &self.buffer[..count], ip) {
                        Some(packet) => entered.push((0, packet)),
                        None => self.too_large[0] += 1,
                    }
                }
                Err(error) => {
                    self.counts.no_socket += 1;
                    self.counts.fail(format!("cannot make a socket for a client: {error}"));
                }
            }
        }
        true
    }

    /// Returns the number of the client with this address, which may be new.
    fn client(&mut self, door: usize, address: SocketAddr, now: Instant) -> io::Result<u64> {
        if let Some(id) = self.known.get(&(door, address)) {
            if let Some(client) = self.clients.get_mut(id) {
                client.last = now;
            }
            return Ok(*id);
        }
        let target = self.doors[door].targets[0];
        let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let far = UdpSocket::bind(any)?;
        far.connect(target)?;
        far.set_nonblocking(true)?;
        enlarge(&far)?;
        let id = self.id();
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, token(id, End::Far));
        self.epoll.add(&far, event)?;
        self.counts.clients += 1;
        self.known.insert((door, address), id);
        self.clients.insert(id, Client { door, address, far, last: now, is_readable: false });
        self.timers.push(Reverse((now.after(self.idle_ns), id)));
        Ok(id)
    }

    /// Reads the sockets of those that have something to do.
    fn read(&mut self, now: Instant, entered: &mut Vec<(usize, Packet)>) {
        self.busy.sort_unstable();
        self.busy.dedup();
        for id in &self.busy {
            if let Some(conn) = self.conns.get_mut(id) {
                conn.read(&mut self.buffer, now);
            }
            let Some(client) = self.clients.get_mut(id) else { continue };
            for _ in 0..BATCH {
                match client.far.recv(&mut self.buffer) {
                    Ok(count) => {
                        client.last = now;
                        let ip = ip_len(self.doors[client.door].address);
                        match message::datagram(*id, &self.buffer[..count], ip) {
                            Some(packet) => entered.push((1, packet)),
                            None => self.too_large[1] += 1,
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        client.is_readable = false;
                        break;
                    }
                    Err(error) => self.counts.unreachable(&error),
                }
            }
        }
    }

    /// Takes what leaves a line, and gives it to its connection or socket.
    fn deliver(&mut self, way: usize, now: Instant) -> io::Result<()> {
        while let Some((_, packet)) = self.lanes[way].take(now).map_err(io::Error::other)? {
            match message::read(packet.payload()) {
                Some((id, Content::Segment(segment))) => {
                    // A connection that is over misses nothing.
                    let Some(conn) = self.conns.get_mut(&id) else { continue };
                    let end = if way == 0 { End::Far } else { End::Near };
                    conn.stream.arrive(end, segment, packet.ecn == 3, now);
                    self.busy.push(id);
                }
                Some((id, Content::Datagram(bytes))) => {
                    let sent = self.clients.get(&id).map(|client| match way {
                        0 => client.far.send(bytes),
                        _ => match &self.doors[client.door].udp {
                            Some(socket) => socket.send_to(bytes, client.address),
                            None => Err(ErrorKind::NotConnected.into()),
                        },
                    });
                    match sent {
                        Some(Ok(_)) => {}
                        Some(Err(error)) => {
                            self.refused[way] += 1;
                            if way == 0 && error.kind() != ErrorKind::WouldBlock {
                                self.counts.unreachable(&error);
                            }
                        }
                        None => self.refused[way] += 1,
                    }
                }
                None => self.refused[way] += 1,
            }
        }
        Ok(())
    }

    /// Lets the connections that have something to do, or whose time has come, send.
    fn send(&mut self, now: Instant, entered: &mut Vec<(usize, Packet)>) {
        while let Some(Reverse((at, id))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            if self.conns.contains_key(&id) {
                self.busy.push(id);
            } else {
                self.forget(id, now);
            }
        }
        self.busy.sort_unstable();
        self.busy.dedup();
        for id in &self.busy {
            let Some(conn) = self.conns.get_mut(id) else { continue };
            let door = &self.doors[conn.door];
            match conn.reach(&self.epoll, *id, &door.targets, now) {
                Reached::Waits => {}
                Reached::Lacks(error) => {
                    self.counts.waits += 1;
                    self.counts.fail(format!("cannot connect to a target yet: {error}"));
                    self.timers.push(Reverse((now.after(PAUSE_NS), *id)));
                }
                Reached::Refused(target, error) => {
                    self.counts.connections_refused += 1;
                    self.counts.fail(format!("the target {target} refused a connection: {error}"));
                }
            }
            let (ip, before) = (ip_len(door.address), conn.stream.resent());
            conn.stream.run(now, |end, segment: Segment| {
                entered.push((end as usize, segment.packet(*id, ip)));
            });
            self.counts.retransmitted += conn.stream.resent() - before;
        }
    }

    /// Forgets a client that was idle for long.
    fn forget(&mut self, id: u64, now: Instant) {
        let Some(client) = self.clients.get(&id) else { return };
        if now.since(client.last) < self.idle_ns {
            self.timers.push(Reverse((client.last.after(self.idle_ns), id)));
            return;
        }
        self.known.remove(&(client.door, client.address));
        self.missed_before += missed(&client.far);
        self.clients.remove(&id);
        self.counts.forgotten += 1;
    }

    /// Writes what has arrived to the sockets of connections, and ends those that are over. Returns
    /// whether there is more to do at once.
    fn write(&mut self, ids: Vec<u64>, now: Instant) -> bool {
        for id in ids {
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.write();
                if conn.stream.is_over() {
                    let conn = self.conns.remove(&id).expect("it was there");
                    let is_reset = conn.stream.broken().is_some() && !conn.is_refused;
                    self.counts.reset += u64::from(is_reset);
                    conn.close();
                    continue;
                }
                let due = conn.stream.due();
                if let Some(due) =
                    due.filter(|due| conn.noted.is_none_or(|at| *due < at || at <= now))
                {
                    conn.noted = Some(due);
                    self.timers.push(Reverse((due, id)));
                }
                if conn.may_read() {
                    self.busy.push(id);
                }
            } else if self.clients.get(&id).is_some_and(|client| client.is_readable) {
                self.busy.push(id);
            }
        }
        !self.busy.is_empty()
    }
}

impl Drop for Engine {
    /// Resets the connections that are not over: their ends must not take what they have got for
    /// all of it.
    fn drop(&mut self) {
        self.counts.cut = self.conns.len() as u64;
        self.conns.drain().for_each(|(_, conn)| conn.cut());
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.clone_from(&self.counts);
    }
}

impl Carrier for Engine {
    fn run(&mut self) -> io::Result<bool> {
        let mut entered = Vec::new();
        let before = MonotonicClock.now();
        let mut more = self.hear()?;
        self.open_doors(before, &mut entered);
        self.read(before, &mut entered);
        // The clock is read again: what came after it was read would leave too early.
        let now = MonotonicClock.now();
        for way in 0..2 {
            self.lanes[way].wake(now);
            self.deliver(way, now)?;
        }
        self.send(now, &mut entered);
        let mut has_entered = [false; 2];
        for (way, packet) in entered {
            self.lanes[way].line.enqueue(packet, now);
            has_entered[way] = true;
        }
        let served = std::mem::take(&mut self.busy);
        for way in (0..2).filter(|way| has_entered[*way]) {
            self.lanes[way].look(now);
            self.deliver(way, now)?;
        }
        more |= self.write(served, now);
        self.lanes.iter_mut().for_each(|lane| lane.line.forget_drops());
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if *shared != self.counts {
            shared.clone_from(&self.counts);
        }
        drop(shared);
        Ok(more || self.knocks.contains(&true))
    }

    fn next(&mut self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let lanes = self.lanes.iter_mut().filter_map(Lane::next);
        lanes.chain(timer).chain(self.retry).min()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.epoll.0.as_fd()]
    }

    fn change(&mut self, way: usize, changes: &[Change]) -> io::Result<Result<(), EditError>> {
        let now = MonotonicClock.now();
        self.deliver(way, now)?;
        let changed = self.lanes[way].line.change(now, changes);
        self.lanes[way].look(now);
        Ok(changed)
    }

    fn begin(&mut self) -> io::Result<()> {
        let now = MonotonicClock.now();
        for way in 0..2 {
            self.deliver(way, now)?;
            self.lanes[way].line.begin(now);
            self.lanes[way].look(now);
        }
        Ok(())
    }

    fn watch(&mut self, _: Vec<Box<dyn Watch>>) {}

    fn lines(&self) -> Vec<Vec<String>> {
        self.lanes.iter().map(|lane| lane.line.setup().lines()).collect()
    }

    fn carried(&self) -> Vec<Direction> {
        let doors = self.doors.iter().filter_map(|door| door.udp.as_ref());
        let clients = self.clients.values().map(|client| &client.far);
        let missed =
            [doors.map(missed).sum(), self.missed_before + clients.map(missed).sum::<u64>()];
        let both = self.lanes.iter().zip(self.refused).zip(self.too_large).zip(missed);
        both.map(|(((lane, refused), discarded), missed)| Direction {
            qdiscs: lane.line.totals(),
            refused,
            lost: lane.line.lost(),
            discarded,
            missed,
            queued: lane.line.held(),
            waiting: 0,
        })
        .collect()
    }
}

/// Returns how many datagrams the kernel has dropped at a socket because they were not taken in
/// time. (Its number wraps after 2^32.)
fn missed(socket: &UdpSocket) -> u64 {
    onramp_dev::socket_memory(socket.as_fd()).map_or(0, |memory| memory.drops.into())
}

#[cfg(test)]
mod tests;
