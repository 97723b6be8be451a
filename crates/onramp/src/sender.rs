//! Senders: the part of a link that one thread owns and sends with.

mod cancel;
mod credit_time;
mod flush;
mod message;
mod push;
mod room;
mod watch;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use onramp_core::{Clock, Instant, QUOTA};
use onramp_dev::ThreadWaker;
use onramp_queue::{
    Completion, Credits, DropReason, Layer, NEVER, PAYLOAD_MAX, Packet, PacketList, Pool,
};

use self::credit_time::CreditTime;
use self::message::LENT_MIN;
use self::watch::Watched;
use crate::shared::{Handle, Shared};
use crate::stats::{SenderCounters, SenderEnd};
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::sync::thread;
use crate::{Flow, Mapping, Rejected, SendError, TrySendError};

pub use flush::Flushed;
pub use message::Message;
pub use room::Ready;
pub use watch::FlowStats;

/// [`Sender::SLICE`] in nanoseconds.
const SLICE_NS: u64 = 300_000;

/// Sends packets through a link, for one thread. A sender holds the thread's packets and credits. A
/// `Sender` is `Send` but not `Sync`: it may move to another thread, but two threads cannot share
/// it.
///
/// [`Link::sender`](crate::Link::sender) makes a sender. When a sender is dropped, it submits the
/// packets that a cork held back, and may wait for room to do so.
pub struct Sender {
    handle: Arc<Handle>,
    pool: Pool,
    end: Arc<SenderEnd>,
    waker: ThreadWaker,
    /// Packets that a cork holds back, by port. The list is empty when the sender is not corked.
    corked: Vec<PacketList>,
    /// Number of the port at which [`help`](Self::help) continues to look for packets that no other
    /// thread is sending.
    helps_from: usize,
    /// Port to which this sender sends the packets of flows that are mapped by processor.
    cpu_port: usize,
    /// Time at which the thread last yielded its processor to other threads.
    slice_start: Instant,
    /// Whether the thread has sent for longer than a slice since `slice_start`.
    slice_over: bool,
    /// Whether the last call that takes a packet found no credit and returned `Full`.
    told_full: bool,
    /// So many packets the sender may have in flight even if its part of the credits of the ports
    /// is less.
    kept: u32,
    /// Since when the sender's task waits for room and no packet has come home.
    waits_since: Option<Instant>,
    watched: Watched,
    /// Bounds what is in flight by a time; `None`: only the credits bound it.
    credit_time: Option<CreditTime>,
    on_complete: Option<Box<dyn FnMut(Completion) + Send>>,
}

impl Sender {
    /// How long a sender sends before it yields its processor, if the link has more senders than
    /// there are processors: see [`give_way`](Self::give_way). The time is well below the time
    /// slices of Linux (2.8 ms and more).
    pub const SLICE: Duration = Duration::from_nanos(SLICE_NS);

    /// Makes a sender with these credits, which may always have `kept` of their packets in flight.
    pub(crate) fn new(handle: Arc<Handle>, credits: Credits, kept: u32) -> Self {
        let mut pool = Pool::new(credits);
        let bell = pool.bell().unwrap_or_else(|| unreachable!("nobody else has the pool"));
        let end = Arc::new(SenderEnd {
            counters: SenderCounters::default(),
            bell: Arc::new(bell),
            lacks_with: AtomicU32::new(0),
            looks_at: AtomicU64::new(NEVER),
        });
        handle.shared.add_sender(end.clone());
        let (waker, corked) = (ThreadWaker::default(), Vec::new());
        let slice_start = Instant(0);
        let credit_time = handle.shared.credit_time;
        let mut this = Self {
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
            kept,
            waits_since: None,
            watched: Watched::default(),
            credit_time: None,
            on_complete: None,
        };
        this.set_credit_time(credit_time);
        this
    }

    /// Returns a new flow to `dest`. With `None`, packets go to the address to which the link's
    /// socket is connected.
    ///
    /// Every call makes another flow, on the next port in turn. The packets that one sender sends
    /// on one flow keep their order, with two exceptions under `fq`, as in Linux. First, a packet
    /// that has a departure time (`txtime_ns`) leaves at that time. It may delay the packets that
    /// come directly after it, and packets that come still later may overtake all of these, so give
    /// packets with departure times a flow of their own. Second, a packet without a pacing rate may
    /// overtake paced packets that still wait for their time ([`Flow::set_pacing_rate`]).
    #[must_use]
    pub fn flow(&self, dest: impl Into<Option<SocketAddr>>) -> Flow {
        self.flow_with(dest, Mapping::Turn)
    }

    /// Returns a new flow as [`flow`](Self::flow) does, on a port that `mapping` chooses. Use it to
    /// keep a flow on a certain port, or to select ports by a hash or by processor.
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
            // Keys of flows that are mapped by hash have the highest bit set, so that they differ
            // from the keys of all other flows.
            Mapping::Hash(hash) => (hash | 1 << 63, shared.spread(hash)),
            Mapping::Port(port) => {
                assert!(
                    port < shared.ports(),
                    "there is no port {port}: the link has {} ports",
                    shared.ports()
                );
                (key, port)
            }
        };
        let mut flow = Flow::new(shared.id, key, port, dest.into());
        flow.by_cpu = mapping == Mapping::Cpu;
        flow
    }

    /// Stages one datagram: pushes it into the intake of the flow's port. Never blocks. If this
    /// thread thereby becomes the owner of the port, it also sends packets from the port, up to a
    /// quota.
    ///
    /// Use this call where the thread must not wait, and [`send`](Self::send) where it may.
    ///
    /// # Errors
    ///
    /// Returns a [`TrySendError`], and stages nothing. `Full` is returned immediately, even if
    /// sending staged packets would free credit. Calls that wait for room send staged packets, and
    /// so does a second call of this method, if no other thread owns the port. So a caller that
    /// would drop the datagram should try once more, or have more
    /// [credits](crate::LinkBuilder::credits) than the packets of its longest burst.
    ///
    /// # Panics
    ///
    /// Panics when another link made `flow`.
    #[inline]
    pub fn try_send(&mut self, flow: &Flow, payload: &[u8]) -> Result<(), TrySendError> {
        if payload.len() >= LENT_MIN && self.lend(flow, &Message { payload, ..Message::default() })
        {
            return Ok(());
        }
        let packet = self.packet(flow, payload)?;
        self.submit(flow, packet).map_err(|rejected| {
            self.pool.take_back(rejected.packet);
            rejected.why
        })
    }

    /// Stages one datagram. If there is no room, blocks until there is.
    ///
    /// # Errors
    ///
    /// Returns a [`SendError`] if the link will never accept the datagram.
    ///
    /// # Panics
    ///
    /// Panics when another link made `flow`.
    #[inline]
    pub fn send(&mut self, flow: &Flow, payload: &[u8]) -> Result<(), SendError> {
        loop {
            let Err(why) = self.try_send(flow, payload) else {
                self.give_way();
                return Ok(());
            };
            why.lasting().map_or(Ok(()), Err)?;
            self.wait_room(flow, payload.len());
        }
    }

    /// Stages as many of these datagrams of one flow as there is room for, and returns their
    /// number. Never blocks. One push stages up to [`QUOTA`] datagrams, so this call costs less
    /// than as many calls of [`try_send`](Self::try_send).
    ///
    /// # Errors
    ///
    /// Returns a [`TrySendError`] if no datagram was staged.
    ///
    /// # Panics
    ///
    /// Panics when another link made `flow`.
    pub fn try_send_batch<P: AsRef<[u8]>>(
        &mut self,
        flow: &Flow,
        payloads: impl IntoIterator<Item = P>,
    ) -> Result<usize, TrySendError> {
        self.stage_all(flow, payloads, |sender, payload| sender.packet(flow, payload.as_ref()))
    }

    /// Stages the packets that `make` makes of `items`, as many as there is room for, and returns
    /// their number. Returns an error if it staged none.
    fn stage_all<T>(
        &mut self,
        flow: &Flow,
        items: impl IntoIterator<Item = T>,
        mut make: impl FnMut(&mut Self, T) -> Result<Packet, TrySendError>,
    ) -> Result<usize, TrySendError> {
        assert_eq!(flow.link, self.shared().id, "a flow belongs to the link that made it");
        let (mut staged, mut list) = (0, PacketList::new());
        let mut verdict = Ok(());
        for item in items {
            match make(self, item) {
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

    /// Stages all of `payloads`. Blocks as often as there is no room.
    ///
    /// # Errors
    ///
    /// Returns a [`SendError`] for the first datagram that the link will never accept. All
    /// datagrams before that one are staged.
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
                Err(why) => {
                    why.lasting().map_or(Ok(()), Err)?;
                    self.wait_room(flow, first.as_ref().len());
                }
            }
        }
        Ok(())
    }

    /// Returns a packet of this sender for `flow`, which the caller may change and then
    /// [submits](Self::submit). Use it to set fields that a flow does not have, such as a departure
    /// time (`txtime_ns`) or a cookie.
    ///
    /// # Errors
    ///
    /// Returns a [`TrySendError`], which is `Full` when no credit is left.
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
        self.pool.allow(self.fair_credits());
        let mut pkt = match self.pool.take(payload.len()) {
            Some(pkt) => pkt,
            None => self.take_slowly(flow, payload.len()).ok_or(TrySendError::Full)?,
        };
        pkt.set_payload(payload);
        flow.label(&mut pkt, payload.len());
        Ok(pkt)
    }

    /// Takes back the credits of packets that were sent or dropped, and then takes a packet from
    /// the pool. If there is still no credit, and the previous call found none either and the
    /// caller has not waited since then, first sends packets that are staged at ports, in order to
    /// free credit.
    #[cold]
    fn take_slowly(&mut self, flow: &Flow, payload: usize) -> Option<Packet> {
        self.reclaim();
        let mut taken = self.take_in_time(payload);
        if taken.is_none() && self.told_full && self.help(self.served_by(flow), room::HELPED_AGAIN)
        {
            self.reclaim();
            taken = self.take_in_time(payload);
        }
        self.told_full = taken.is_none();
        taken
    }

    /// Submits a packet that this or another sender has [made](Self::packet): stages it in the
    /// intake of the flow's port. Never blocks.
    ///
    /// A packet that holds several datagrams ([`gso_size`](onramp_queue::Meta::gso_size)) counts
    /// with the headers of each datagram, unless the caller has changed the packet's length.
    ///
    /// On a closed link or a dead port, the packet is accepted and dropped at once (drop reason
    /// `purged` or `port_dead`). The same happens to a packet that is being sent at the moment when
    /// the link closes or the port dies.
    ///
    /// # Errors
    ///
    /// Gives the packet back in the error: with `Full` when the port's intake is at its cap, with
    /// `Closed` in a child of `fork`.
    ///
    /// # Panics
    ///
    /// Panics when another link made `flow`.
    #[inline]
    pub fn submit(&mut self, flow: &Flow, mut packet: Packet) -> Result<(), Rejected> {
        assert_eq!(flow.link, self.shared().id, "a flow belongs to the link that made it");
        if packet.gso_size > 0 {
            let payload = packet.payload().len();
            charge_all(&mut packet, payload, flow.overhead);
        }
        let mut list = PacketList::new();
        list.push_back(packet);
        let port = self.port_of(flow);
        let is_plain = self.corked.is_empty() && self.shared().is_open();
        let pushed = if is_plain {
            self.push(port, &mut list)
        } else {
            self.push_specially(port, &mut list)
        };
        if pushed {
            return Ok(());
        }
        self.end.counters.refused.add(1);
        let packet = list.pop_front().unwrap_or_else(|| unreachable!("it was one packet"));
        // In a forked child, the link is a copy that accepts no packet, even if the link in the
        // parent is still open.
        let closed = self.shared().is_copy();
        Err(Rejected {
            packet,
            why: if closed { TrySendError::Closed } else { TrySendError::Full },
        })
    }

    /// Returns why packets of `flow` are refused for good, or `None` if they are not. If `flow` is
    /// mapped by processor and its port is dead, first chooses another port for it.
    #[cold]
    fn refusal(&mut self, flow: &Flow) -> Option<TrySendError> {
        let port = if flow.by_cpu { self.cpu_port } else { flow.port };
        let why = self.shared().refusal(port, flow.key)?;
        if !flow.by_cpu || why != TrySendError::PortDead {
            return Some(why);
        }
        // A cork holds back packets for the dead port. If that port is removed, its successor gets
        // these packets when the cork ends, which would be after newer packets. So newer packets go
        // to the dead port as well.
        if self.corked.get(self.cpu_port).is_some_and(|held| !held.is_empty()) {
            return None;
        }
        // A dead port drops the packets that it held, so packets on the new port overtake none.
        self.cpu_port = self.shared().spread(self.cpu_port as u64);
        self.shared().refusal(self.cpu_port, flow.key)
    }

    /// Starts a cork: packets are held back until [`uncork`](Self::uncork), so that they enter
    /// their ports together (`MSG_MORE`, `xmit_more`). Use a cork when several flows send a burst
    /// and the qdisc should schedule all of the burst at once. Corked packets use credits.
    pub fn cork(&mut self) {
        let ports = self.shared().ports();
        self.corked.resize_with(ports, PacketList::new);
    }

    /// Submits the packets that a cork held back, and ends the cork. If the link is closed, packets
    /// that their port does not accept are dropped and counted as
    /// [`purged`](onramp_queue::DropReason::Purged).
    ///
    /// # Errors
    ///
    /// Returns `Full` if some of the packets did not fit. The cork goes on holding these packets
    /// back: call [`uncork_timeout`](Self::uncork_timeout), or wait for room and call this method
    /// again.
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

    /// Handles packets in `list`, which a cork held back until the link was closed: gives them the
    /// drop reason `purged`, and counts them as submitted and purged, because the sender had
    /// accepted them. When the caller drops the list, the completions of the packets are reported
    /// as usual.
    #[cold]
    fn purge(&mut self, list: &mut PacketList) {
        self.end.counters.purged.add(list.len().into());
        self.discard(list, DropReason::Purged);
    }

    /// Gives packets that a cork held back the drop reason `reason`, and counts them as submitted,
    /// because the sender had accepted them.
    fn discard(&mut self, list: &mut PacketList, reason: DropReason) {
        self.end.counters.submitted.add(list.len().into());
        let now_ns = self.handle.shared.clock.now().0;
        self.pool.submit(list, now_ns);
        self.watched.submit(&self.pool, list);
        for meta in list.metas_mut() {
            (meta.drop_reason, meta.txtime_ns) = (Some(reason), now_ns);
        }
    }

    /// Yields the processor if this thread has sent for longer than [`SLICE`](Self::SLICE) and the
    /// link has more senders than there are processors. Returns how long other threads ran
    /// meanwhile; zero if this thread did not yield. [`send`](Self::send) and the waiting calls
    /// yield by themselves; a loop of `try_send` that never sleeps should call this method.
    ///
    /// If the thread never yielded, the kernel would take its processor away after a few
    /// milliseconds, most likely while the thread owns a port and sends; all other senders would
    /// then wait for that owner. During this call, the thread owns no port.
    #[inline]
    pub fn give_way(&mut self) -> Duration {
        if !self.slice_over {
            return Duration::ZERO;
        }
        self.slice_over = false;
        let clock = self.shared().clock;
        let started = clock.now();
        self.slice_start = started;
        if !self.shared().crowded() {
            return Duration::ZERO;
        }
        thread::yield_now();
        self.slice_start = clock.now();
        Duration::from_nanos(self.slice_start.since(started))
    }

    /// Registers `f`, which is called with the fate of every packet of this sender: sent, or
    /// dropped and why, and when ([`Completion`]). The calls are made in no particular order, in
    /// the sender's thread, from any method of this sender that takes credits back. A later
    /// registration replaces an earlier one.
    ///
    /// The fate of each packet is reported to the sender that made it, even if another sender
    /// submitted it. The fates of packets that were allocated on the heap are reported to nobody.
    /// If `f` panics, the sender stays usable, and its next call reports the fates that were left
    /// over.
    pub fn on_complete(&mut self, f: impl FnMut(Completion) + Send + 'static) {
        self.on_complete = Some(Box::new(f));
    }

    /// Takes back the credits of packets that were sent or dropped, and returns the number of these
    /// packets. Other methods do so by themselves when credit runs out; call this method to have
    /// completions reported earlier.
    pub fn reclaim(&mut self) -> u32 {
        let Self { pool, watched, on_complete, credit_time, .. } = self;
        let report = |completion, tag| {
            watched.complete(&completion, tag);
            if let Some(f) = on_complete {
                f(completion);
            }
        };
        let count = match credit_time {
            None => pool.reclaim_tagged(report),
            Some(credit_time) => credit_time.reclaim(pool, report),
        };
        watched.end_cancels(pool);
        count
    }

    /// Returns how many packets this sender may have in flight at present, if its own credits do
    /// not bound it more tightly.
    #[inline]
    fn fair_credits(&self) -> u32 {
        self.handle.shared.fair_credits().max(self.kept)
    }

    /// Returns the credits that this sender has at present: those that it was made with, or its
    /// part of the [credits of the ports](crate::LinkBuilder::credits_per_port) if that bounds it
    /// and is fewer packets. The part changes as senders and ports come and go. With a
    /// [time](Self::set_credit_time), the bytes are those of the present rate.
    #[must_use]
    pub fn credits(&self) -> Credits {
        let Credits { packets, bytes } = self.pool.credits();
        let bytes = self.credit_time.as_ref().map_or(bytes, |bound| bytes.min(bound.limit));
        Credits { packets: packets.min(self.fair_credits()), bytes }
    }

    /// Returns the number of this sender's packets that use its credits. Counted are packets that
    /// this sender submitted and has not yet seen sent or dropped, packets that a cork holds back,
    /// and packets that the caller has [made](Self::packet) and still holds or gave away.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.pool.out()
    }

    /// Returns how often a thread that freed a packet of this sender met another thread doing the
    /// same, and had to try again. The number shows contention on the memory of packets.
    #[must_use]
    pub fn memory_repeated(&self) -> u64 {
        self.pool.repeated()
    }

    /// Returns the number of the port to which `flow` leads. The port may have been removed; then
    /// the caller has to look up the port's successor.
    #[inline]
    fn port_of(&mut self, flow: &Flow) -> usize {
        if flow.by_cpu { self.port_by_cpu() } else { flow.port }
    }

    fn port_by_cpu(&mut self) -> usize {
        if self.pool.below() <= self.pool.returned() {
            self.reclaim();
            // A packet that was made and never submitted also comes home, so check now that none in
            // flight is left. Besides, packets of other senders that this sender submitted may be
            // in flight, and a cork may hold packets for the old port. Only without any of these
            // does the sender change its port.
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

/// Whether a slice that began at `start` is over at the time `now`.
fn is_over(start: Instant, now: Instant) -> bool {
    now.since(start) > SLICE_NS
}

/// Makes a packet of `payload` bytes that holds several datagrams count with the headers of each
/// datagram. So far, its length includes the headers of one datagram. The length of a frame already
/// counts all headers.
#[cold]
fn charge_all(packet: &mut Packet, payload: usize, overhead: u32) {
    if packet.layer() != Layer::Datagram {
        return;
    }
    let datagrams = packet.datagrams_in(payload);
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    if packet.len == count(payload).saturating_add(overhead) {
        packet.len = count(payload).saturating_add(count(datagrams).saturating_mul(overhead));
    }
}

impl Drop for Sender {
    /// Submits the packets that a cork held back, and waits for room in the intake if necessary.
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
