//! What the processors of 2009 do with packets: senders, the owner of the queue, and the processor
//! that serves the card's interrupt.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onramp_machine::hook;
use onramp_machine::sync::atomic::{AtomicU32, Ordering};
use onramp_machine::thread::{self, Thread};

use super::super::lock::Ticket;
use super::super::memory::{Apart, Lines, Memory};
use super::super::window::{Halves, Varied, Window, now};
use super::software::Software;

/// How often a processor that has nothing to do looks for interrupts, nanoseconds.
const IDLE_NS: u64 = 500;
/// How often a softirq that cannot go on is tried again before the processor does something else.
const RESTARTS: usize = 10;

/// The bits of the queue's state.
const RUNNING: u32 = 1;
const SCHEDULED: u32 = 2;

/// A packet: the number of its socket, and its memory.
#[derive(Clone, Copy, Debug)]
struct Packet {
    socket: usize,
    lines: Lines,
}

/// The socket of a sender.
struct Socket {
    /// The packets in flight.
    in_flight: Apart<AtomicU32>,
    /// The processor's own part of the memory allocator.
    allocator: Lines,
    free: Mutex<Vec<Lines>>,
    /// The sender, while it sleeps.
    sleeper: Mutex<Option<Thread>>,
}

/// The card: packets on their way to the wire, with the time at which each has left.
#[derive(Debug, Default)]
struct Card {
    leaving: VecDeque<(u64, Packet)>,
    free_at: u64,
    /// Whether a processor completes packets, so that the card asks for no interrupt.
    is_polled: bool,
    sent: u64,
    completed: u64,
    measured: Halves,
}

/// What all processors share.
pub(super) struct Shared {
    software: Software,
    window: Window,
    memory: Mutex<Memory>,
    sockets: Vec<Socket>,
    /// The counter of the one route.
    route: Apart<AtomicU32>,
    /// The root lock. The lengths of the queue lie beside it.
    root: Ticket,
    state: Apart<AtomicU32>,
    bands: Lines,
    queue: Mutex<VecDeque<Packet>>,
    /// The transmit lock. Its owner's number lies beside it.
    transmit: Ticket,
    transmitted: Lines,
    card: Mutex<Card>,
    /// Senders that have ended.
    ended: Mutex<usize>,
}

impl Shared {
    /// Makes an empty queue, and as many sockets as there are senders.
    pub(super) fn new(software: Software, senders: u16, window: Window) -> Self {
        let mut memory = Memory::default();
        let socket = |memory: &mut Memory| Socket {
            in_flight: Apart::default(),
            allocator: memory.lines(1),
            free: Mutex::default(),
            sleeper: Mutex::default(),
        };
        let sockets = (0..senders).map(|_| socket(&mut memory)).collect();
        Self {
            software,
            window,
            sockets,
            route: Apart::default(),
            root: Ticket::default(),
            state: Apart::default(),
            bands: memory.lines(software.has_band_line.into()),
            queue: Mutex::default(),
            transmit: Ticket::default(),
            transmitted: memory.lines(software.reads_transmit_line.into()),
            card: Mutex::default(),
            ended: Mutex::default(),
            memory: Mutex::new(memory),
        }
    }

    /// Returns how many packets the card has sent, and which of them in the window.
    pub(super) fn sent(&self) -> (u64, Halves) {
        // Relaxed: all other threads have ended.
        assert_eq!(self.route.load(Ordering::Relaxed), 0, "all packets are freed");
        let Card { sent, measured, .. } = *open(&self.card);
        (sent, measured)
    }
}

/// Locks what only the simulation itself reads, or what a simulated lock protects: nobody waits
/// here, because all simulated threads run in one real thread.
fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A processor that sends, completes, or both.
pub(super) struct Processor {
    shared: Arc<Shared>,
    varied: Varied,
    pub(super) serves_interrupts: bool,
    /// Whether the softirq that sends is pending here.
    is_scheduled: bool,
    pub(super) submitted: u64,
    pub(super) taken: u64,
    pub(super) contended: u64,
}

impl Processor {
    pub(super) fn new(shared: &Arc<Shared>, seed: u64, serves_interrupts: bool) -> Self {
        Self {
            shared: shared.clone(),
            varied: Varied::new(seed),
            serves_interrupts,
            is_scheduled: false,
            submitted: 0,
            taken: 0,
            contended: 0,
        }
    }

    /// Sends through a socket until the window ends.
    pub(super) fn send(&mut self, socket: usize) {
        let shared = self.shared.clone();
        let mut packets = Vec::new();
        while now() < shared.window.until {
            self.wait_for_room(&shared.sockets[socket]);
            hook::work_ps(self.varied.time(shared.software.send_ps));
            for number in 0..shared.software.packets {
                if number > 0 {
                    hook::work_ps(self.varied.time(shared.software.fragment_ps));
                }
                packets.push(self.build(socket));
            }
            self.softirqs();
            for packet in packets.drain(..) {
                self.submitted += 1;
                self.enqueue(packet);
                self.softirqs();
            }
        }
        while self.is_scheduled {
            hook::work(IDLE_NS);
            self.softirqs();
        }
        *open(&shared.ended) += 1;
    }

    /// Returns a new packet, whose memory and route count as used.
    fn build(&self, number: usize) -> Packet {
        let shared = &*self.shared;
        let Software { owner_lines, completion_lines, .. } = shared.software;
        let socket = &shared.sockets[number];
        socket.allocator.change();
        let free = open(&socket.free).pop();
        let count = owner_lines.max(completion_lines);
        let lines = free.unwrap_or_else(|| open(&shared.memory).lines(count));
        lines.write();
        // Relaxed: the counters publish no other data.
        socket.in_flight.fetch_add(1, Ordering::Relaxed);
        shared.route.fetch_add(1, Ordering::Relaxed); // Relaxed, as above.
        Packet { socket: number, lines }
    }

    /// Sleeps while the socket is full, until enough of its packets have left.
    fn wait_for_room(&mut self, socket: &Socket) {
        let Software { room, wakes_at, switch_ps, .. } = self.shared.software;
        // Relaxed: the counter publishes no other data.
        let in_flight = || socket.in_flight.load(Ordering::Relaxed);
        if in_flight() < room {
            return;
        }
        if self.serves_interrupts {
            // The processor idles meanwhile, and completes what interrupts announce.
            while in_flight() > wakes_at {
                hook::work(IDLE_NS);
                self.softirqs();
            }
            hook::work_ps(switch_ps);
            return;
        }
        loop {
            *open(&socket.sleeper) = Some(thread::current());
            if in_flight() <= wakes_at {
                break;
            }
            thread::park();
        }
        *open(&socket.sleeper) = None;
    }

    fn lock_root(&mut self) {
        let waited = self.shared.root.acquire();
        self.note(waited);
    }

    fn note(&mut self, waited: bool) {
        let is_measured = self.shared.window.has(now());
        self.taken += u64::from(is_measured);
        self.contended += u64::from(is_measured && waited);
    }

    /// Hands a packet to the queue, and runs the queue if nobody does.
    fn enqueue(&mut self, packet: Packet) {
        let shared = self.shared.clone();
        if shared.software.reads_transmit_line {
            shared.transmitted.read();
        }
        self.lock_root();
        hook::work_ps(shared.software.enqueue_ps);
        shared.root.change_beside();
        shared.bands.change();
        let last = open(&shared.queue).back().copied();
        if let Some(last) = last {
            // The list is linked through its packets.
            last.lines.up_to(1).change();
        }
        open(&shared.queue).push_back(packet);
        self.run_queue(&shared);
        shared.root.release();
    }

    /// Becomes the owner of the queue, unless there is one. The caller holds the root lock.
    fn run_queue(&mut self, shared: &Shared) {
        // Acquire and release: pairs with the same at the end of the last owner's turn.
        let state = shared.state.fetch_or(RUNNING, Ordering::AcqRel);
        if state & RUNNING != 0 {
            return;
        }
        let tick = shared.software.tick(now());
        while let Some(packet) = dequeue(shared) {
            shared.root.release();
            transmit(shared, packet);
            self.lock_root();
            let is_empty = open(&shared.queue).is_empty();
            if !is_empty && shared.software.tick(now()) != tick {
                self.schedule(shared);
                break;
            }
        }
        // Acquire and release: as above.
        shared.state.fetch_and(!RUNNING, Ordering::AcqRel);
    }

    /// Lets the softirq go on with the queue, on this processor, unless it is pending somewhere.
    fn schedule(&mut self, shared: &Shared) {
        // Relaxed: the root lock orders the packets.
        let state = shared.state.fetch_or(SCHEDULED, Ordering::Relaxed);
        self.is_scheduled |= state & SCHEDULED == 0;
    }

    /// Does what is pending on this processor, as when it enables softirqs.
    fn softirqs(&mut self) {
        let shared = self.shared.clone();
        for _ in 0..RESTARTS {
            if !self.is_scheduled {
                break;
            }
            if shared.root.try_acquire() {
                self.note(false);
                self.is_scheduled = false;
                // Relaxed: the root lock orders the packets.
                shared.state.fetch_and(!SCHEDULED, Ordering::Relaxed);
                self.run_queue(&shared);
                shared.root.release();
            }
        }
        if self.serves_interrupts {
            poll(&shared);
        }
    }

    /// Completes packets until all senders have ended and nothing is in flight.
    pub(super) fn complete_all(&mut self) {
        let shared = self.shared.clone();
        let is_over = || {
            let card = open(&shared.card);
            *open(&shared.ended) == shared.sockets.len() && card.completed == card.sent
        };
        while !is_over() {
            hook::work(IDLE_NS);
            self.softirqs();
        }
    }
}

/// Takes the first packet from the queue. The caller holds the root lock and is the owner.
fn dequeue(shared: &Shared) -> Option<Packet> {
    let packet = open(&shared.queue).pop_front()?;
    hook::work_ps(shared.software.dequeue_ps);
    shared.root.change_beside();
    shared.bands.change();
    packet.lines.up_to(1).change();
    let next = open(&shared.queue).front().copied();
    if let Some(next) = next {
        next.lines.up_to(1).change();
    }
    Some(packet)
}

/// Gives a packet to the card.
fn transmit(shared: &Shared, packet: Packet) {
    let Software { owner_lines, driver_ps, doorbell_ps, wire_ps, .. } = shared.software;
    shared.transmit.acquire();
    shared.transmit.change_beside();
    packet.lines.up_to(owner_lines).read();
    // Relaxed: the driver reads the route, whose counter lies there.
    shared.route.load(Ordering::Relaxed);
    hook::work_ps(driver_ps);
    hook::work_ps(doorbell_ps);
    shared.transmitted.change();
    let mut card = open(&shared.card);
    card.free_at = card.free_at.max(now()) + wire_ps;
    let leaves = card.free_at;
    card.leaving.push_back((leaves, packet));
    card.sent += 1;
    card.measured.count(shared.window, leaves);
    drop(card);
    shared.transmit.release();
}

/// Completes the packets that have left, if there are any: takes the interrupt, and goes on without
/// one as long as there are enough.
fn poll(shared: &Shared) {
    let Software { weight, interrupt_ps, .. } = shared.software;
    for _ in 0..RESTARTS {
        let mut card = open(&shared.card);
        let now = now();
        let many = card.leaving.iter().take_while(|(leaves, _)| *leaves <= now).count();
        let many = many.min(weight as usize);
        let interrupts = many > 0 && !card.is_polled;
        let batch: Vec<_> = card.leaving.drain(..many).collect();
        card.is_polled = many == weight as usize;
        drop(card);
        if interrupts {
            hook::work_ps(interrupt_ps);
        }
        for (_, packet) in &batch {
            complete(shared, *packet);
        }
        if many < weight as usize {
            return;
        }
    }
}

/// Frees a packet that has left.
fn complete(shared: &Shared, packet: Packet) {
    let Software { completion_ps, completion_lines, wakes_at, .. } = shared.software;
    let socket = &shared.sockets[packet.socket];
    hook::work_ps(completion_ps);
    packet.lines.up_to(completion_lines).change();
    // Relaxed: the counters publish no other data.
    shared.route.fetch_sub(1, Ordering::Relaxed);
    let left = socket.in_flight.fetch_sub(1, Ordering::Relaxed) - 1; // Relaxed, as above.
    socket.allocator.change();
    open(&socket.free).push(packet.lines);
    open(&shared.card).completed += 1;
    let sleeper = open(&socket.sleeper).take_if(|_| left <= wakes_at);
    if let Some(sleeper) = sleeper {
        sleeper.unpark();
    }
}
