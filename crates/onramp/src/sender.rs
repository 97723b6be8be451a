//! A thread's end of a link.

mod push;
mod room;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use onramp_core::{Clock, Instant, QUOTA};
use onramp_dev::ThreadWaker;
use onramp_queue::{Completion, DropReason, PAYLOAD_MAX, Packet, PacketList, Pool};

use crate::link::Handle;
use crate::shared::Shared;
use crate::stats::{SenderCounters, SenderEnd};
use crate::{Flow, Mapping, Rejected, SendError, TrySendError};

pub use room::Ready;

/// [`Sender::SLICE`] in nanoseconds.
const SLICE_NS: u64 = 300_000;

/// One thread's end of a link: `Send`, not `Sync`. Holds the thread's packets and credits.
pub struct Sender {
    handle: Arc<Handle>,
    pool: Pool,
    end: Arc<SenderEnd>,
    waker: ThreadWaker,
    /// Packets of each port that a cork holds back; empty when there is no cork.
    corked: Vec<PacketList>,
    /// Where it goes on to look for ports to work at.
    helps_from: usize,
    /// The port of flows that are mapped by processor.
    cpu_port: usize,
    /// When the thread last gave way to others.
    slice_start: Instant,
    /// It has sent for long since.
    slice_over: bool,
    /// The last call found no credit, and said so.
    told_full: bool,
    on_complete: Option<Box<dyn FnMut(Completion) + Send>>,
}

impl Sender {
    /// How long a sender sends before it gives way to other threads, if the link has more senders
    /// than there are processors: see [`give_way`](Self::give_way). Well below the time slices of
    /// Linux (2.8 ms and more).
    pub const SLICE: Duration = Duration::from_nanos(SLICE_NS);

    pub(crate) fn new(handle: Arc<Handle>) -> Self {
        let mut pool = Pool::new(handle.shared.credits);
        let bell = pool.bell().unwrap_or_else(|| unreachable!("nobody else has the pool"));
        let end = Arc::new(SenderEnd { counters: SenderCounters::default(), bell });
        handle.shared.add_sender(end.clone());
        let (waker, corked) = (ThreadWaker::default(), Vec::new());
        let slice_start = Instant(0);
        Self {
            handle,
            pool,
            end,
            waker,
            corked,
            helps_from: 0,
            cpu_port: 0,
            slice_start,
            slice_over: false,
            told_full: false,
            on_complete: None,
        }
    }

    /// A new flow to `dest`; `None`: to where the link's socket is connected.
    ///
    /// Every call makes another flow, on the next port in turn. Packets of one flow, sent by one
    /// sender, keep their order; with two exceptions under `fq`, as in Linux. A packet that has a
    /// departure time (`txtime_ns`) leaves at that time; it may hold up packets that come after it,
    /// and later ones may overtake these: give such packets a flow of their own. And one without a
    /// pacing rate may overtake paced ones that wait for theirs ([`Flow::set_pacing_rate`]).
    #[must_use]
    pub fn flow(&self, dest: impl Into<Option<SocketAddr>>) -> Flow {
        self.flow_with(dest, Mapping::Turn)
    }

    /// As [`flow`](Self::flow), on a port of the caller's choice.
    ///
    /// # Panics
    ///
    /// Panics when [`Mapping::Port`] names a port that the link does not have.
    #[must_use]
    pub fn flow_with(&self, dest: impl Into<Option<SocketAddr>>, mapping: Mapping) -> Flow {
        let shared = self.shared();
        let key = shared.new_key();
        let (key, port) = match mapping {
            Mapping::Turn | Mapping::Cpu => (key, shared.spread(key)),
            // Not among the numbers of the others.
            Mapping::Hash(hash) => (hash | 1 << 63, shared.spread(hash)),
            Mapping::Port(port) => {
                assert!(port < shared.ports(), "port {port}: the link has {}", shared.ports());
                (key, port)
            }
        };
        let mut flow = Flow::new(shared.id, key, port, dest.into());
        flow.by_cpu = mapping == Mapping::Cpu;
        flow
    }

    /// Stages one datagram. Never blocks; as owner of the port it sends up to a quota.
    ///
    /// # Errors
    ///
    /// [`TrySendError`]: nothing was staged. `Full` is said at once, though packets may lie in the
    /// port that nobody sends just now: to wait for room sends them, and so does a call that comes
    /// again, if the port is free then. Who would drop the datagram should try once more, or have
    /// more [credits](crate::LinkBuilder::credits) than its bursts are long.
    ///
    /// # Panics
    ///
    /// Panics when another link made `flow`.
    #[inline]
    pub fn try_send(&mut self, flow: &Flow, payload: &[u8]) -> Result<(), TrySendError> {
        let packet = self.packet(flow, payload)?;
        self.submit(flow, packet).map_err(|rejected| {
            self.pool.take_back(rejected.packet);
            rejected.why
        })
    }

    /// Stages one datagram, after waiting for room if there is none.
    ///
    /// # Errors
    ///
    /// [`SendError`]: it never will be.
    #[inline]
    pub fn send(&mut self, flow: &Flow, payload: &[u8]) -> Result<(), SendError> {
        loop {
            match self.try_send(flow, payload) {
                Ok(()) => {
                    self.give_way();
                    return Ok(());
                }
                Err(TrySendError::Full) => self.wait_room(flow, payload.len()),
                Err(TrySendError::TooLarge) => return Err(SendError::TooLarge),
                Err(TrySendError::Closed) => return Err(SendError::Closed),
                Err(TrySendError::PortDead) => return Err(SendError::PortDead),
            }
        }
    }

    /// Stages datagrams of one flow, as many as there is room for, with one push for up to
    /// [`QUOTA`] of them. Gives their number.
    ///
    /// # Errors
    ///
    /// [`TrySendError`]: nothing was staged.
    ///
    /// # Panics
    ///
    /// Panics when another link made `flow`.
    pub fn try_send_batch<P: AsRef<[u8]>>(
        &mut self,
        flow: &Flow,
        payloads: impl IntoIterator<Item = P>,
    ) -> Result<usize, TrySendError> {
        assert_eq!(flow.link, self.shared().id, "a flow belongs to the link that made it");
        let (mut staged, mut list) = (0, PacketList::new());
        let mut verdict = Ok(());
        for payload in payloads {
            match self.packet(flow, payload.as_ref()) {
                Ok(packet) => list.push_back(packet),
                Err(why) => {
                    verdict = Err(why);
                    break;
                }
            }
            if list.len() == QUOTA {
                let (n, left) = self.submit_list(flow, &mut list);
                staged += n;
                if left > 0 {
                    verdict = Err(TrySendError::Full);
                    break;
                }
            }
        }
        let (n, left) = self.submit_list(flow, &mut list);
        staged += n;
        if left > 0 {
            verdict = Err(TrySendError::Full);
        }
        match verdict {
            Err(why) if staged == 0 => Err(why),
            _ => Ok(staged),
        }
    }

    /// Stages all of `payloads`, waiting for room as often as it takes.
    ///
    /// # Errors
    ///
    /// [`SendError`]: those before the one it is about are staged.
    pub fn send_batch<P: AsRef<[u8]>>(
        &mut self,
        flow: &Flow,
        payloads: &[P],
    ) -> Result<(), SendError> {
        let mut rest = payloads;
        while let Some(first) = rest.first() {
            match self.try_send_batch(flow, rest) {
                Ok(n) => {
                    rest = &rest[n..];
                    self.give_way();
                }
                Err(TrySendError::Full) => self.wait_room(flow, first.as_ref().len()),
                Err(TrySendError::TooLarge) => return Err(SendError::TooLarge),
                Err(TrySendError::Closed) => return Err(SendError::Closed),
                Err(TrySendError::PortDead) => return Err(SendError::PortDead),
            }
        }
        Ok(())
    }

    /// Makes a packet of this sender's for `flow`, to be changed and [submitted](Self::submit).
    ///
    /// # Errors
    ///
    /// [`TrySendError`], `Full` when no credit is left.
    ///
    /// # Panics
    ///
    /// Panics when another link made `flow`.
    #[inline]
    pub fn packet(&mut self, flow: &Flow, payload: &[u8]) -> Result<Packet, TrySendError> {
        assert_eq!(flow.link, self.shared().id, "a flow belongs to the link that made it");
        if !self.shared().is_open()
            && let Some(why) = self.refusal(flow)
        {
            return Err(why);
        }
        if payload.len() > PAYLOAD_MAX - 28 {
            return Err(TrySendError::TooLarge);
        }
        self.pool.allow(self.handle.shared.fair_credits());
        let mut pkt = match self.pool.take(payload.len()) {
            Some(pkt) => pkt,
            None => self.take_slowly(flow, payload.len()).ok_or(TrySendError::Full)?,
        };
        pkt.set_payload(payload);
        pkt.set_dest(flow.dest);
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        let len = payload.len() as u32 + flow.overhead;
        let meta = &mut *pkt;
        (meta.flow, meta.len, meta.pacing_rate) = (flow.key, len, flow.pacing_rate);
        (meta.priority, meta.mark, meta.ecn) = (flow.priority, flow.mark, flow.ecn);
        (meta.txtime_ns, meta.cookie, meta.gso_size) = (0, 0, 0);
        Ok(pkt)
    }

    /// Takes a packet when credit has run out. Who was told so once and comes again without having
    /// waited works for it.
    #[cold]
    fn take_slowly(&mut self, flow: &Flow, payload: usize) -> Option<Packet> {
        self.reclaim();
        let mut taken = self.pool.take(payload);
        if taken.is_none() && self.told_full && self.help(self.served_by(flow), room::HELPED_AGAIN)
        {
            self.reclaim();
            taken = self.pool.take(payload);
        }
        self.told_full = taken.is_none();
        taken
    }

    /// Stages a packet.
    ///
    /// One of several datagrams ([`gso_size`](onramp_queue::Meta::gso_size)) counts with the
    /// headers of each, if its length is that of one datagram still.
    ///
    /// On a link that is closed, and at a port that is dead, the packet is taken and dropped at
    /// once (`purged`, `port_dead`), as one would be that was on its way just then.
    ///
    /// # Errors
    ///
    /// Gives the packet back, `Full` when the port's intake is at its cap.
    ///
    /// # Panics
    ///
    /// Panics when another link made `flow`.
    #[inline]
    pub fn submit(&mut self, flow: &Flow, mut packet: Packet) -> Result<(), Rejected> {
        assert_eq!(flow.link, self.shared().id, "a flow belongs to the link that made it");
        if packet.gso_size > 0 {
            charge_all(&mut packet, flow.overhead);
        }
        let mut list = PacketList::new();
        list.push_back(packet);
        let port = self.port_of(flow);
        if self.push(port, &mut list) {
            return Ok(());
        }
        self.end.counters.refused.add(1);
        let packet = list.pop_front().unwrap_or_else(|| unreachable!("it was one packet"));
        // A copy of the link takes none, and closed it may be, too.
        let closed = self.shared().is_copy();
        Err(Rejected {
            packet,
            why: if closed { TrySendError::Closed } else { TrySendError::Full },
        })
    }

    /// Why packets of `flow` are refused for good, if they are. One that goes by processor finds
    /// another port if its own is dead.
    #[cold]
    fn refusal(&mut self, flow: &Flow) -> Option<TrySendError> {
        let port = if flow.by_cpu { self.cpu_port } else { flow.port };
        let why = self.shared().refusal(port, flow.key)?;
        if !flow.by_cpu || why != TrySendError::PortDead {
            return Some(why);
        }
        // What a cork holds back for the dead port would come after what is sent from now on, if
        // the port is removed meanwhile and has a successor: so the rest goes there, too.
        if self.corked.get(self.cpu_port).is_some_and(|held| !held.is_empty()) {
            return None;
        }
        // What a dead port held is dropped: nothing is overtaken.
        self.cpu_port = self.shared().spread(self.cpu_port as u64);
        self.shared().refusal(self.cpu_port, flow.key)
    }

    /// Holds packets back until [`uncork`](Self::uncork), so that they enter their ports in one
    /// piece (`MSG_MORE`, `xmit_more`).
    pub fn cork(&mut self) {
        let ports = self.shared().ports();
        self.corked.resize_with(ports, PacketList::new);
    }

    /// Submits what a cork held back, and ends the cork. On a link that is closed, what finds no
    /// place in its port is dropped, and counted as [`purged`](onramp_queue::DropReason::Purged).
    ///
    /// # Errors
    ///
    /// `Full`: part of it is still held back, the cork stays; wait for room and try again.
    pub fn uncork(&mut self) -> Result<(), TrySendError> {
        let mut corked = std::mem::take(&mut self.corked);
        for port in 0..corked.len() {
            if !self.push_parts(port, &mut corked[port]) {
                if self.shared().is_closed() {
                    self.purge(&mut corked[port]);
                    continue;
                }
                self.corked = corked;
                return Err(TrySendError::Full);
            }
        }
        Ok(())
    }

    /// Has packets that the cork of a closed link held back dropped with the list: they were
    /// accepted, so their fate is told and counted.
    #[cold]
    fn purge(&mut self, list: &mut PacketList) {
        let counters = &self.end.counters;
        counters.submitted.add(list.len().into());
        counters.purged.add(list.len().into());
        self.pool.submit(list, self.handle.shared.clock.now().0);
        list.metas_mut().for_each(|meta| meta.drop_reason = Some(DropReason::Purged));
    }

    /// Lets other threads run if this one has sent for long and there are more senders than
    /// processors; says for how long. [`send`](Self::send) and the waiting calls do it by
    /// themselves; a loop of `try_send` that never leaves its processor should.
    ///
    /// Otherwise the kernel takes the processor away after a few milliseconds, most likely in the
    /// middle of a run, and then all others wait for the owner. Here the thread owns nothing.
    #[inline]
    pub fn give_way(&mut self) -> Duration {
        if !self.slice_over {
            return Duration::ZERO;
        }
        self.slice_over = false;
        let clock = self.shared().clock;
        let started = clock.now();
        if self.shared().crowded() {
            thread::yield_now();
        }
        self.slice_start = clock.now();
        Duration::from_nanos(self.slice_start.since(started))
    }

    /// Calls `f` with the fate of every packet of this sender's, in this thread, when the sender
    /// takes its credits back: in any call of this sender. In no particular order.
    ///
    /// Packets of the heap, and of other senders, are not its own: their fate is told to nobody, or
    /// to those. One of its own that another sender submitted is told here. Should `f` panic, the
    /// sender is as good as before, and its next call tells the fates that came along.
    pub fn on_complete(&mut self, f: impl FnMut(Completion) + Send + 'static) {
        self.on_complete = Some(Box::new(f));
    }

    /// Takes back credits of packets that were sent or dropped; gives their number.
    pub fn reclaim(&mut self) -> u32 {
        let on_complete = &mut self.on_complete;
        self.pool.reclaim(|completion| {
            if let Some(f) = on_complete {
                f(completion);
            }
        })
    }

    /// Packets of this sender that use its credits: those that it submitted and that, as far as it
    /// has looked, are neither sent nor dropped; those that a cork holds back; and those that the
    /// caller has [made](Self::packet) and holds, or gave to others.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.pool.out()
    }

    /// Times that a thread which freed a packet of this sender met another doing so, and had to
    /// try again: contention at the memory of packets.
    #[must_use]
    pub fn memory_repeated(&self) -> u64 {
        self.pool.repeated()
    }

    /// The port for the next packets of `flow`, as it was made.
    #[inline]
    fn port_of(&mut self, flow: &Flow) -> usize {
        if flow.by_cpu { self.port_by_cpu() } else { flow.port }
    }

    fn port_by_cpu(&mut self) -> usize {
        if self.pool.below() <= self.pool.returned() {
            self.reclaim();
            // What came home may not be what was below, and a cork holds packets for the old port.
            let moves = self.pool.below() == 0
                && !self.pool.has_guests()
                && self.corked.iter().all(PacketList::is_empty);
            if moves && let Some(cpu) = onramp_dev::current_cpu() {
                self.cpu_port = self.shared().spread(cpu as u64);
            }
        }
        self.cpu_port
    }

    fn shared(&self) -> &Shared {
        &self.handle.shared
    }
}

/// Whether a slice that began at `start` is over.
fn is_over(start: Instant, now: Instant) -> bool {
    now.since(start) > SLICE_NS
}

/// Counts the headers of each datagram of a packet, of which those of one were counted.
#[cold]
fn charge_all(packet: &mut Packet, overhead: u32) {
    let payload = packet.payload().len();
    let datagrams = payload.div_ceil(packet.gso_size.into()).max(1);
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    if packet.len == count(payload).saturating_add(overhead) {
        packet.len = count(payload).saturating_add(count(datagrams).saturating_mul(overhead));
    }
}

impl Drop for Sender {
    /// Submits what a cork held back, and waits for room in the intake if it must.
    fn drop(&mut self) {
        self.uncork_by(Instant::MAX);
        self.shared().remove_sender(&self.end);
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
