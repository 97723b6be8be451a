//! The tree of a process, the datagrams that wait in it, and the sockets that they are to leave
//! from. Nothing here makes a system call or reads a clock.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::net::SocketAddr;

use libc::c_int;
use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, REST_NS, Tree, Wakes};
use onramp_dev::exec::{Count, Tally};
use onramp_queue::{DropReason, Packet};
use rustix::io::Errno;

use crate::room::cost;

/// How far behind the clock the tree may be: if the thread has come late by up to this time, it
/// asks the tree at the instants that were due, so that a rate is kept. Time beyond it is lost.
const CATCH_UP_NS: u64 = 5_000_000;

/// After this time, a datagram is offered again to a socket that had no room for it.
const RETRY_NS: u64 = 1_000_000;

/// Most bytes, as [`cost`] counts them, that wait for room of one socket behind the tree, if they
/// take no room from it: what Linux lets wait for the address of one neighbour, and the default of
/// `SO_SNDBUF`. Otherwise, `SO_SNDBUF` is the limit.
const REFUSED_MAX: u64 = 212_992;

/// Most routes that are known at a time. When there are as many, those are forgotten of which no
/// datagram waits.
const ROUTES_MAX: usize = 65_536;

/// The sockets of the process. Each has a number of the kernel (`SO_COOKIE`), which stays the same
/// for all its descriptors and is never used again.
pub(crate) trait Sockets {
    /// Sends a datagram with this ECN code point at once. `EAGAIN` says that the socket has no
    /// room.
    fn send(&mut self, route: &Route, ecn: u8, payload: &[u8]) -> Result<(), Errno>;

    /// Keeps a descriptor of the socket, so that datagrams can leave from it after the program has
    /// closed its own. If none can be kept, `send` will fail.
    fn keep(&mut self, socket: u64);

    /// Closes the descriptor that is kept.
    fn release(&mut self, socket: u64);
}

/// From where and how datagrams leave.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    /// The number of the socket.
    pub(crate) socket: u64,
    /// The address, as the kernel's `sockaddr`.
    pub(crate) name: Vec<u8>,
    /// Control messages.
    pub(crate) control: Vec<u8>,
    /// Flags of `sendmsg`.
    pub(crate) flags: c_int,
    /// The ECN code point that the program has chosen (RFC 3168).
    pub(crate) ecn: u8,
}

/// A datagram on its way into the tree.
#[derive(Clone, Debug)]
pub(crate) struct Datagram<'d> {
    pub(crate) route: &'d Route,
    pub(crate) payload: &'d [u8],
    /// The address of the socket; only asked for at the first datagram of a flow.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    /// The priority of the message or its socket, and `SO_MARK` of the socket.
    pub(crate) priority: u32,
    pub(crate) mark: u32,
}

/// What became of a datagram, when the program's call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It was sent, or it waits.
    Taken,
    /// A qdisc dropped it, and a program that asks for it (`IP_RECVERR`) learns it.
    Dropped,
}

/// A socket from which datagrams have to leave, or that has an error to tell.
#[derive(Debug, Default)]
struct Socket {
    /// Number of datagrams that wait.
    held: u64,
    /// What the waiting datagrams cost the socket, in bytes.
    charged: u64,
    /// What the kernel said of a datagram that has waited, and that its program has to learn.
    error: Option<Errno>,
}

/// Datagrams that have left the tree, and for which their socket has no room, in their order.
#[derive(Debug, Default)]
struct Refused {
    packets: VecDeque<Packet>,
    /// What they cost, as [`cost`] counts it.
    bytes: u64,
}

/// The tree with all that waits.
#[derive(Debug)]
pub(crate) struct State {
    tree: Tree,
    /// When the tree has to be asked again, and the time of the tree, which never runs backwards.
    due: Option<Instant>,
    clock: Instant,
    wakes: Wakes,
    /// What waits behind the tree, of each socket without room: it is the kernel's room for that
    /// one socket, so no other one waits for it.
    refused: BTreeMap<u64, Refused>,
    /// When to offer them again, if there are any.
    retry_at: Option<Instant>,
    routes: Vec<(Route, usize)>,
    /// How many datagrams of each route wait.
    waiting: Vec<u64>,
    /// The numbers of routes that are forgotten.
    free: Vec<u32>,
    known: HashMap<Route, u32>,
    /// The numbers of the flows in the tally.
    flows: HashMap<(u64, Vec<u8>), usize>,
    hasher: RandomState,
    sockets: HashMap<u64, Socket>,
    /// The number of the latest datagram.
    serial: u32,
    /// Whether waiting datagrams cost their socket something.
    charges: bool,
    /// Whether a socket has got room since [`State::take_freed`].
    freed: bool,
    tally: Tally,
}

impl State {
    /// Makes the state of a process that counts in `tally`. If `charges`, the datagrams that wait
    /// take room from their sockets.
    pub(crate) fn new(mut tree: Tree, charges: bool, tally: Tally) -> Self {
        tree.note_copies();
        Self {
            tree,
            due: None,
            clock: Instant(0),
            wakes: Wakes::new(0, REST_NS),
            refused: BTreeMap::new(),
            retry_at: None,
            routes: Vec::new(),
            waiting: Vec::new(),
            free: Vec::new(),
            known: HashMap::new(),
            flows: HashMap::new(),
            hasher: RandomState::new(),
            sockets: HashMap::new(),
            serial: 0,
            charges,
            freed: false,
            tally,
        }
    }

    /// Returns what the datagrams of a socket that wait cost it, in bytes.
    pub(crate) fn charged(&self, socket: u64) -> u64 {
        self.sockets.get(&socket).map_or(0, |socket| socket.charged)
    }

    /// Returns what the kernel has said of a datagram that left the socket late, once.
    pub(crate) fn take_error(&mut self, socket: u64) -> Option<Errno> {
        let known = self.sockets.get_mut(&socket)?;
        let error = known.error.take();
        if known.held == 0 {
            self.sockets.remove(&socket);
        }
        error
    }

    /// Returns whether a socket has got room since the last call.
    pub(crate) fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Whether the flow of the datagrams of a route has been counted before.
    pub(crate) fn knows_flow(&self, route: &Route) -> bool {
        self.known.contains_key(route)
    }

    /// Puts a datagram into the tree, and sends what may leave. Returns the kernel's error if it
    /// refused this very datagram.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        datagram: &Datagram<'_>,
        out: &mut impl Sockets,
    ) -> Result<Pushed, Errno> {
        let _ = self.drain(now, out, None);
        let route = self.route(datagram).ok_or(Errno::NOBUFS)?;
        let socket = datagram.route.socket;
        self.serial = self.serial.wrapping_add(1);
        let (serial, flow) = (self.serial, self.routes[route as usize].1);
        let mut packet = Packet::with_payload(datagram.payload);
        packet.cookie = u64::from(serial) << 32 | u64::from(route);
        packet.flow = self.hasher.hash_one((socket, &datagram.route.name));
        packet.enqueued_ns = now.0;
        packet.priority = datagram.priority;
        packet.mark = datagram.mark;
        packet.ecn = datagram.route.ecn;
        packet.set_dest(datagram.remote);
        packet.len = wire_len(datagram);
        let cost = self.cost(&packet);
        self.tally.add(flow, Count::Datagrams, 1);
        self.waiting[route as usize] += 1;
        let known = self.sockets.entry(socket).or_default();
        known.held += 1;
        known.charged += cost;
        let verdict = self.tree.enqueue(now, packet);
        self.count_copies();
        let why = self.count_drops(Some(serial), out);
        (self.clock, self.due) = (now, Some(now));
        self.drain(now, out, Some(serial))?;
        if self.sockets.get(&socket).is_some_and(|socket| socket.held > 0) {
            out.keep(socket);
        }
        // In Linux, these drops are a success for the sender (`__NET_XMIT_BYPASS`).
        let is_silent = matches!(
            why,
            Some(
                DropReason::Impaired
                    | DropReason::Blackhole
                    | DropReason::Unclassified
                    | DropReason::Filter
            )
        );
        let is_told = verdict == Verdict::Dropped && !is_silent;
        Ok(if is_told { Pushed::Dropped } else { Pushed::Taken })
    }

    /// Sends all datagrams that may leave. Returns the kernel's error if it refused the datagram
    /// `own`, of the program that calls.
    pub(crate) fn drain(
        &mut self,
        now: Instant,
        out: &mut impl Sockets,
        own: Option<u32>,
    ) -> Result<(), Errno> {
        if let Some(due) = self.due.filter(|due| *due <= now) {
            self.wakes.serve(due, now);
        }
        self.retry(now, out);
        let mut result = Ok(());
        while let Some(packet) = self.next_packet(now) {
            // What comes later must not overtake what its socket has no room for.
            if self.refused.contains_key(&self.socket_of(&packet)) {
                self.hold(now, packet, out);
                continue;
            }
            let is_own = own == Some(serial_of(&packet));
            match self.send(packet, is_own, out) {
                Ok(Some(packet)) => self.hold(now, packet, out),
                Ok(None) => {}
                Err(error) => result = Err(error),
            }
        }
        self.count_drops(None, out);
        result
    }

    /// Returns when `drain` has something to do, if nothing comes before.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        let due = self.due.map(|due| self.wakes.ask(due));
        due.into_iter().chain(self.retry_at).min()
    }

    /// Offers the datagrams that wait behind the tree to their sockets again, if it is time.
    fn retry(&mut self, now: Instant, out: &mut impl Sockets) {
        if self.retry_at.is_none_or(|at| now < at) {
            return;
        }
        self.retry_at = None;
        for (socket, mut refused) in std::mem::take(&mut self.refused) {
            while let Some(packet) = refused.packets.pop_front() {
                let size = size(&packet);
                if let Ok(Some(packet)) = self.send(packet, false, out) {
                    refused.packets.push_front(packet);
                    self.refused.insert(socket, refused);
                    self.retry_at = Some(now.after(RETRY_NS));
                    break;
                }
                refused.bytes -= size;
            }
        }
    }

    /// Lets a datagram that has left the tree wait until its socket has room.
    fn hold(&mut self, now: Instant, packet: Packet, out: &mut impl Sockets) {
        let (size, socket) = (size(&packet), self.socket_of(&packet));
        let refused = self.refused.entry(socket).or_default();
        if !self.charges && refused.bytes + size > REFUSED_MAX {
            let flow = self.routes[route_of(&packet)].1;
            self.tally.dropped(flow, DropReason::NoBuffers);
            self.refund(&packet, out);
            return;
        }
        refused.bytes += size;
        refused.packets.push_back(packet);
        self.retry_at.get_or_insert_with(|| now.after(RETRY_NS));
    }

    fn socket_of(&self, packet: &Packet) -> u64 {
        self.routes[route_of(packet)].0.socket
    }

    /// Returns the next datagram that leaves the tree.
    fn next_packet(&mut self, now: Instant) -> Option<Packet> {
        while let Some(due) = self.due.filter(|due| *due <= now) {
            let behind_ns = CATCH_UP_NS.saturating_add(self.wakes.longest_ns());
            let earliest = Instant(now.0.saturating_sub(behind_ns));
            self.clock = self.clock.max(due).max(earliest);
            let answer = self.tree.dequeue(self.clock);
            self.count_copies();
            match answer {
                Dequeue::Ready(packet) => return Some(packet),
                // A tree that names a time that is over must not keep this loop for ever.
                Dequeue::NotBefore(at) => self.due = Some(at.max(self.clock.after(1))),
                Dequeue::Empty => self.due = None,
            }
        }
        None
    }

    /// Sends a datagram that has left the tree. Returns it if its socket has no room.
    fn send(
        &mut self,
        packet: Packet,
        is_own: bool,
        out: &mut impl Sockets,
    ) -> Result<Option<Packet>, Errno> {
        let (route, flow) = &self.routes[route_of(&packet)];
        let (socket, flow, marked) = (route.socket, *flow, packet.ecn != route.ecn);
        let mut sent = out.send(route, packet.ecn, packet.payload());
        if let Err(error) = sent
            && !is_own
            && !matches!(error, Errno::AGAIN | Errno::NOBUFS)
        {
            // The error may be about an earlier datagram, and the kernel has told it instead of
            // sending this one. Its program learns it by its next call.
            sent = out.send(route, packet.ecn, packet.payload());
            if sent.is_ok() || sent == Err(Errno::AGAIN) {
                self.sockets.entry(socket).or_default().error = Some(error);
            }
        }
        match sent {
            Err(Errno::AGAIN) => return Ok(Some(packet)),
            Ok(()) => {
                self.tally.add(flow, Count::Sent, 1);
                self.tally.add(flow, Count::SentBytes, packet.len.into());
                self.tally.add(flow, Count::Marked, marked.into());
            }
            Err(error) => self.tally.dropped(flow, reason(error)),
        }
        self.refund(&packet, out);
        match sent {
            Err(error) if is_own => Err(error),
            _ => Ok(None),
        }
    }

    /// Counts the copies that qdiscs have made of datagrams, also while one was taken out of them.
    fn count_copies(&mut self) {
        for cookie in self.tree.take_copies() {
            let number = route_in(cookie);
            let (route, flow) = &self.routes[number];
            self.tally.add(*flow, Count::Made, 1);
            self.sockets.entry(route.socket).or_default().held += 1;
            self.waiting[number] += 1;
        }
    }

    /// Counts what the tree has dropped. Returns why it dropped the datagram `own`, if it did.
    fn count_drops(&mut self, own: Option<u32>, out: &mut impl Sockets) -> Option<DropReason> {
        let mut why = None;
        for packet in self.tree.drops() {
            let flow = self.routes[route_of(&packet)].1;
            let reason = packet.drop_reason.unwrap_or(DropReason::Purged);
            if own == Some(serial_of(&packet)) {
                why = Some(reason);
            }
            self.tally.dropped(flow, reason);
            self.refund(&packet, out);
        }
        why
    }

    /// Gives a socket back the room of a datagram that does not wait any more.
    fn refund(&mut self, packet: &Packet, out: &mut impl Sockets) {
        let (cost, socket) = (self.cost(packet), self.socket_of(packet));
        let waiting = &mut self.waiting[route_of(packet)];
        *waiting = waiting.saturating_sub(1);
        let Some(known) = self.sockets.get_mut(&socket) else { return };
        known.held = known.held.saturating_sub(1);
        known.charged = known.charged.saturating_sub(cost);
        self.freed = true;
        if known.held == 0 {
            out.release(socket);
            if known.error.is_none() {
                self.sockets.remove(&socket);
            }
        }
    }

    fn cost(&self, packet: &Packet) -> u64 {
        if self.charges { size(packet) } else { 0 }
    }

    /// Returns the number of a datagram's route; `None` if datagrams of too many routes wait.
    fn route(&mut self, datagram: &Datagram<'_>) -> Option<u32> {
        let route = datagram.route;
        if let Some(number) = self.known.get(route) {
            return Some(*number);
        }
        if self.routes.len() >= ROUTES_MAX && self.free.is_empty() {
            let idle = (0_u32..).zip(&self.waiting).filter(|(_, waiting)| **waiting == 0);
            self.free.extend(idle.map(|(number, _)| number));
            for number in &self.free {
                self.known.remove(&self.routes[*number as usize].0);
            }
            if self.free.is_empty() {
                return None;
            }
        }
        let flow = (route.socket, route.name.clone());
        // A socket that ends leaves its flows here, until there are too many.
        if self.flows.len() >= ROUTES_MAX {
            self.flows.clear();
        }
        let flow = *self
            .flows
            .entry(flow)
            .or_insert_with(|| self.tally.flow(datagram.local, datagram.remote));
        let number = if let Some(number) = self.free.pop() {
            self.routes[number as usize] = (route.clone(), flow);
            number
        } else {
            self.routes.push((route.clone(), flow));
            self.waiting.push(0);
            u32::try_from(self.routes.len() - 1).ok()?
        };
        self.known.insert(route.clone(), number);
        Some(number)
    }
}

/// Returns the length of a datagram in an Ethernet frame, as one packet also if it is larger than
/// the network's packets.
fn wire_len(datagram: &Datagram<'_>) -> u32 {
    const ETHERNET: u32 = 14;
    const UDP: u32 = 8;
    let ip = match datagram.remote {
        Some(SocketAddr::V6(_)) => 40,
        _ => 20,
    };
    ETHERNET + ip + UDP + u32::try_from(datagram.payload.len()).unwrap_or(u32::MAX / 2)
}

fn route_of(packet: &Packet) -> usize {
    route_in(packet.cookie)
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is a route's number")]
fn route_in(cookie: u64) -> usize {
    cookie as u32 as usize
}

fn size(packet: &Packet) -> u64 {
    cost(packet.payload().len(), packet.dest().is_some_and(|dest| dest.is_ipv6()))
}

fn serial_of(packet: &Packet) -> u32 {
    u32::try_from(packet.cookie >> 32).unwrap_or_default()
}

/// Returns the reason for which a datagram was dropped that the kernel did not take.
fn reason(error: Errno) -> DropReason {
    match error {
        Errno::MSGSIZE => DropReason::MessageSize,
        Errno::CONNREFUSED => DropReason::Refused,
        Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::HOSTDOWN => {
            DropReason::Unreachable
        }
        Errno::NOBUFS | Errno::NOMEM => DropReason::NoBuffers,
        Errno::PERM | Errno::ACCESS => DropReason::NoPermission,
        _ => DropReason::DeviceError,
    }
}

#[cfg(test)]
mod tests;
