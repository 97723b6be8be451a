//! The measurement of 2004: as many senders and receivers as processors, over the loopback device,
//! with Linux 2.4 on a machine of up to 64 processors.
//!
//! Source: "lockless loopback", netdev, May 2004 (A. Kepner), a table of the loopback device's
//! transmit lock on 2, 8, 31 and 64 processors. The times of its columns HOLD and WAIT do not fit
//! the rest of it (see the notes in `data/software`), so only shares are compared.
//!
//! What each processor does for a packet, again and again:
//!
//! ```text
//! sender      works above the device; counts the route as used
//! device      queue lock, for a few instructions; transmit lock: writes the owner's number, gives
//!             the packet its receiver, counts it, counts the device as used, appends the packet to
//!             the processor's own list; unlock
//! softirq     on the same processor, after the unlock: the protocol's receiving side; the device
//!             and the route count as used once less; the receiver is woken and reads
//! ```
//!
//! Each processor has one sender and the receiver of that sender. As all processors are busy, a
//! woken receiver runs where it was woken.
//!
//! # Parameters that are not used
//!
//! - `payload_bytes`: `send_protocol` and `receive_protocol` contain the copying, and the payload
//!   stays on its processor.
//! - `lock_kind`, `softirq_after_unlock`: the program does what they say.
//! - `lock_handover_per_waiter`: follows from the simulated memory.
//! - `backlog`: the softirq runs after each packet, so the list never has more than two.
//! - `sndbuf_packets`: over loopback, a sender of UDP gets its room back inside its own send.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use onramp_machine::sync::atomic::{AtomicU32, Ordering};
use onramp_machine::{Machine, Setup, hook, simulate, thread};

use super::lock::TestAndSet;
use super::memory::{Apart, Lines, Memory};
use super::window::{Halves, Varied, Window, now};
use crate::machines::{Description, Unknown};
use crate::parameter::Draw;
use crate::software::Parameters;

/// The numbers of processors: those that were published, and some between, to see where the rate
/// is greatest. 31 stand for 32, as one of the machine's was down.
const PROCESSORS: [u16; 6] = [2, 4, 8, 16, 31, 64];
/// Simulated time before the measurement and of the measurement, nanoseconds: many times as long
/// as one packet takes when all processors wait for each other.
const WARM_UP_NS: u64 = 30_000_000;
const WINDOW_NS: u64 = 60_000_000;
/// When the senders begin, nanoseconds, and within what span.
const BEGIN_NS: u64 = 1_000_000;
const STAGGER_NS: u64 = 200_000;

/// What the software costs.
#[derive(Clone, Copy, Debug)]
struct Software {
    send_ps: u64,
    receive_ps: u64,
    /// Lines that the queue lock moves, besides its own.
    queue_lines: u32,
    /// Local work inside the transmit lock.
    lock_ps: u64,
    /// Lines that are written inside it, besides its own and the device's counter.
    lock_lines: u32,
    /// Lines that are written outside, besides the device's counter and the route's.
    outside_lines: u32,
    tick_ps: u64,
    tick_work_ps: u64,
    /// Acknowledgements for each packet, and wake-ups of a receiver.
    acks: f64,
    wakeups: f64,
    switch_ps: u64,
}

impl Software {
    fn draw(machine: &Machine, draw: &mut Draw) -> Result<Self, Unknown> {
        let all = Parameters::linux_2004()?;
        let ps = |draw: &mut Draw, name: &str| all.picoseconds(draw, name);
        Ok(Self {
            send_ps: ps(draw, "send_protocol")?,
            receive_ps: ps(draw, "receive_protocol")?,
            queue_lines: all.count(draw, "queue_lock_lines")? - 1,
            lock_ps: ps(draw, "lock_local_work")?,
            lock_lines: all.count(draw, "lock_shared_lines")? - 2,
            outside_lines: all.count(draw, "outside_shared_lines")? - 2,
            tick_ps: all.period_ps(draw, "tick_hz", 1.0)?,
            tick_work_ps: ps(draw, "tick_work")?,
            acks: all.draw(draw, "ack_packets")?,
            wakeups: all.draw(draw, "wakeups_per_packet")?,
            switch_ps: machine.costs.context_switch,
        })
    }
}

/// What all processors share.
struct Shared {
    software: Software,
    window: Window,
    queue_lock: TestAndSet,
    queue_lines: Lines,
    transmit_lock: TestAndSet,
    lock_lines: Lines,
    /// Packets that the device has counted, without atomic operations: the lock protects it.
    counted: AtomicU64,
    /// The uses of the device and of the route.
    device: Apart<AtomicU32>,
    route: Apart<AtomicU32>,
    outside_lines: Lines,
    run_queue: Lines,
}

/// What a processor saw of the transmit lock in the window, and of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    taken: u64,
    contended: u64,
    held_ps: u64,
    waited_ps: u64,
    received: Halves,
    /// Packets in the whole run, with acknowledgements.
    sent: u64,
    taken_off: u64,
}

/// A processor with its sender and receiver.
struct Processor {
    shared: Arc<Shared>,
    varied: Varied,
    next_tick: u64,
    /// The parts of an acknowledgement and of a wake-up that are due.
    ack: f64,
    wakeup: f64,
    backlog: VecDeque<()>,
    seen: Seen,
}

impl Processor {
    /// Works for `ps` picoseconds, and longer if the clock ticks meanwhile.
    fn work(&mut self, ps: u64) {
        hook::work_ps(ps);
        if now() >= self.next_tick {
            hook::work_ps(self.shared.software.tick_work_ps);
            self.skip_ticks();
        }
    }

    /// Forgets ticks that came while the processor waited, when it had nothing better to do.
    fn skip_ticks(&mut self) {
        let (now, period) = (now(), self.shared.software.tick_ps);
        let late = now.saturating_sub(self.next_tick) / period + 1;
        self.next_tick += if now >= self.next_tick { late * period } else { 0 };
    }

    /// Sends and receives packets until the window ends.
    fn run(&mut self) {
        let shared = self.shared.clone();
        let Software { send_ps, acks, .. } = shared.software;
        while now() < shared.window.until {
            let takes = self.varied.time(send_ps);
            self.work(takes);
            self.pass(&shared);
            self.receive(&shared);
            self.seen.received.count(shared.window, now());
            self.ack += acks;
            while self.ack >= 1.0 {
                self.ack -= 1.0;
                self.pass(&shared);
                self.softirq(&shared);
            }
        }
    }

    /// Sends a packet through the device.
    fn pass(&mut self, shared: &Shared) {
        let Software { lock_ps, .. } = shared.software;
        // Relaxed: the counter publishes no other data.
        shared.route.fetch_add(1, Ordering::Relaxed);
        shared.outside_lines.change();
        shared.queue_lock.acquire();
        shared.queue_lines.change();
        shared.queue_lock.release();

        let asks = now();
        let waited = shared.transmit_lock.acquire();
        let takes = now();
        self.skip_ticks();
        // Relaxed: the lock orders the accesses, and all simulated threads run in one real thread.
        let counted = shared.counted.load(Ordering::Relaxed);
        shared.lock_lines.up_to(1).change();
        self.work(lock_ps);
        shared.lock_lines.change();
        // Relaxed: the counter publishes no other data.
        shared.device.fetch_add(1, Ordering::Relaxed);
        self.backlog.push_back(());
        shared.counted.store(counted + 1, Ordering::Relaxed); // Relaxed: as above.
        let gives = now();
        shared.transmit_lock.release();

        self.seen.sent += 1;
        self.seen.held_ps += shared.window.part(takes, gives);
        self.seen.waited_ps += if waited { shared.window.part(asks, takes) } else { 0 };
        let is_measured = shared.window.has(takes);
        self.seen.taken += u64::from(is_measured);
        self.seen.contended += u64::from(is_measured && waited);
    }

    /// Takes the packets off the processor's list.
    fn softirq(&mut self, shared: &Shared) {
        while self.backlog.pop_front().is_some() {
            // Relaxed: the counters publish no other data.
            shared.device.fetch_sub(1, Ordering::Relaxed);
            shared.route.fetch_sub(1, Ordering::Relaxed); // Relaxed, as above.
            self.seen.taken_off += 1;
        }
    }

    /// Receives what was sent, and lets the receiver read it.
    fn receive(&mut self, shared: &Shared) {
        let Software { receive_ps, wakeups, switch_ps, .. } = shared.software;
        self.softirq(shared);
        let takes = self.varied.time(receive_ps);
        self.work(takes);
        self.wakeup += wakeups;
        if self.wakeup >= 1.0 {
            self.wakeup -= 1.0;
            // To the receiver, and back to the sender.
            shared.run_queue.change();
            self.work(2 * switch_ps);
        }
    }
}

/// One run: a number of processors.
#[derive(Clone, Copy, Debug)]
struct Run {
    machine: Machine,
    software: Software,
    processors: u16,
    warm_up_ns: u64,
    window_ns: u64,
    seed: u64,
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    seen: Seen,
    processors: u16,
    seconds: f64,
}

impl Outcome {
    fn packets_per_second(&self) -> f64 {
        self.seen.received.all() as f64 / self.seconds
    }

    /// The share of the time in which somebody held the transmit lock.
    fn utilisation(&self) -> f64 {
        self.seen.held_ps as f64 / 1e12 / self.seconds
    }

    /// The share of all takings of the lock that found it held.
    fn contended(&self) -> f64 {
        self.seen.contended as f64 / self.seen.taken.max(1) as f64
    }

    /// The share of the processors' time that they waited for the lock.
    fn waiting(&self) -> f64 {
        self.seen.waited_ps as f64 / 1e12 / self.seconds / f64::from(self.processors)
    }
}

impl Run {
    /// Draws a run. With the same seed, all numbers of processors have the same machine and
    /// software.
    fn draw(seed: u64, processors: u16) -> Result<Self, Unknown> {
        let mut draw = Draw::new(seed);
        let machine = Description::named("altix-2004")?.draw(&mut draw);
        let software = Software::draw(&machine, &mut draw)?;
        let (warm_up_ns, window_ns) = (WARM_UP_NS, WINDOW_NS);
        Ok(Self { machine, software, processors, warm_up_ns, window_ns, seed })
    }

    fn simulate(self) -> Result<Outcome, Unknown> {
        let until_ns = BEGIN_NS + STAGGER_NS + self.warm_up_ns + self.window_ns;
        let limit_ns = until_ns + 10_000_000_000;
        let setup = Setup { machine: self.machine, limit_ns, measure_ns: 0..0 };
        let (outcome, _) = simulate(&setup, move || self.run(until_ns))
            .map_err(|why| Unknown::new(format!("the simulation failed: {why}")))?;
        outcome
    }

    /// Runs as the first thread of the simulated machine.
    fn run(self, until_ns: u64) -> Result<Outcome, Unknown> {
        let until = until_ns * 1_000;
        let window = Window { from: until - self.window_ns * 1_000, until };
        let shared = Arc::new(self.shared(window));
        let mut random = fastrand::Rng::with_seed(self.seed);
        // The scheduler has no choice: there are as many senders as processors.
        let threads = (0..self.processors).map(|at| {
            let begin_ns = BEGIN_NS + random.u64(0..STAGGER_NS);
            let next_tick = BEGIN_NS * 1_000 + random.u64(0..self.software.tick_ps);
            let (ack, wakeup) = (random.f64(), random.f64());
            let (shared, backlog, seen) = (shared.clone(), VecDeque::new(), Seen::default());
            let varied = Varied::new(random.u64(..));
            let mut processor = Processor { shared, varied, next_tick, ack, wakeup, backlog, seen };
            let body = move || {
                thread::sleep(Duration::from_nanos(begin_ns.saturating_sub(now() / 1_000)));
                processor.skip_ticks();
                processor.run();
                processor.seen
            };
            let name = format!("processor {at}");
            let spawned = thread::Builder::new().name(name).on(at).spawn(body);
            spawned.expect("simulated threads need no resources")
        });
        let threads: Vec<_> = threads.collect();
        let mut seen = Seen::default();
        for thread in threads {
            seen.add(&thread.join().expect("a thread that panics ends the simulation"));
        }
        // Relaxed: all other threads have ended.
        let uses = [&shared.device, &shared.route].map(|uses| uses.load(Ordering::Relaxed));
        let counted = shared.counted.load(Ordering::Relaxed); // Relaxed, as above.
        let Seen { sent, taken_off, .. } = seen;
        if uses != [0, 0] || (sent, sent) != (taken_off, counted) {
            let why =
                format!("{sent} sent, {counted} counted, {taken_off} received, {uses:?} used");
            return Err(Unknown::new(format!("packets are not conserved: {why}")));
        }
        Ok(Outcome { seen, processors: self.processors, seconds: window.seconds() })
    }

    fn shared(&self, window: Window) -> Shared {
        let mut memory = Memory::default();
        let Software { queue_lines, lock_lines, outside_lines, .. } = self.software;
        Shared {
            software: self.software,
            window,
            queue_lock: TestAndSet::default(),
            queue_lines: memory.lines(queue_lines),
            transmit_lock: TestAndSet::default(),
            lock_lines: memory.lines(lock_lines),
            counted: AtomicU64::new(0),
            device: Apart::default(),
            route: Apart::default(),
            outside_lines: memory.lines(outside_lines),
            run_queue: memory.lines(1),
        }
    }
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.taken += other.taken;
        self.contended += other.contended;
        self.held_ps += other.held_ps;
        self.waited_ps += other.waited_ps;
        self.received.add(other.received);
        self.sent += other.sent;
        self.taken_off += other.taken_off;
    }
}

/// Simulates the measurement with values drawn from the intervals of all parameters, and returns
/// its figures by name.
///
/// # Errors
///
/// [`Unknown`] says what went wrong.
pub(crate) fn figures(seed: u64) -> Result<BTreeMap<String, f64>, Unknown> {
    let (mut figures, mut rates) = (BTreeMap::new(), BTreeMap::new());
    for processors in PROCESSORS {
        let outcome = Run::draw(seed, processors)?.simulate()?;
        let mut figure = |name: &str, value: f64| {
            figures.insert(format!("{processors} processors, {name}"), value);
        };
        let rate = outcome.packets_per_second();
        figure("utilisation_share", outcome.utilisation());
        figure("contended_share", outcome.contended());
        figure("waiting_share", outcome.waiting());
        figure("packets_per_second", rate);
        rates.insert(processors, rate);
    }
    let best = rates.iter().max_by(|one, other| one.1.total_cmp(other.1));
    let best = best.map_or(0.0, |(processors, _)| f64::from(*processors));
    figures.insert("greatest rate at, processors".to_owned(), best);
    for processors in [31, 64] {
        let name = format!("{processors} processors divided by 16, ratio");
        figures.insert(name, rates[&processors] / rates[&16]);
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run, long enough to be steady with few processors.
    fn short(seed: u64, processors: u16) -> Run {
        let run = Run::draw(seed, processors).unwrap();
        Run { warm_up_ns: 1_000_000, window_ns: 4_000_000, ..run }
    }

    #[test]
    fn the_same_seed_gives_the_same_figures() {
        for seed in [0, 5] {
            let run = short(seed, 8);
            assert_eq!(run.simulate().unwrap(), run.simulate().unwrap());
        }
        let different = short(5, 4).simulate().unwrap() != short(6, 4).simulate().unwrap();
        assert!(different, "the seed decides");
    }

    #[test]
    fn packets_are_conserved() {
        for processors in [1, 3, 31] {
            for seed in [0, 1, 2] {
                let Seen { sent, received, .. } = short(seed, processors).simulate().unwrap().seen;
                assert!(received.all() > 50 && sent > received.all());
            }
        }
    }

    #[test]
    fn a_lock_of_one_processor_is_never_contended() {
        let outcome = short(0, 1).simulate().unwrap();
        assert!(outcome.seen.taken > 100);
        assert_eq!((outcome.seen.contended, outcome.seen.waited_ps), (0, 0));
        assert!(outcome.utilisation() > 0.0 && outcome.waiting() == 0.0);
        let two = short(0, 2).simulate().unwrap();
        assert!(two.contended() > 0.0 && two.waiting() > 0.0);
    }

    #[test]
    fn slower_parts_make_a_slower_rate() {
        let rate = |change: &dyn Fn(&mut Run)| {
            let mut run = short(0, 8);
            change(&mut run);
            run.simulate().unwrap().packets_per_second()
        };
        let base = rate(&|_| ());
        let memory = |run: &mut Run| {
            let costs = &mut run.machine.costs;
            (costs.near, costs.far, costs.remote) = (9_000_000, 9_000_000, 9_000_000);
        };
        assert!(rate(&memory) < base, "the memory");
        assert!(rate(&|run| run.software.send_ps *= 4) < base, "the sender");
        assert!(rate(&|run| run.software.lock_ps *= 40) < base, "the work inside the lock");
        assert!(rate(&|run| run.software.tick_work_ps *= 20) < base, "the clock's ticks");
        assert!(rate(&|run| run.software.acks = 4.0) < base, "acknowledgements");
    }

    #[test]
    fn a_run_is_steady() {
        let halves = short(0, 8).simulate().unwrap().seen.received;
        assert!(halves.difference() < 0.1, "{halves:?}");
    }
}
