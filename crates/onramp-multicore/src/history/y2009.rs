//! The measurement of 2009: one, two, four and eight senders of UDP through the one queue of a
//! network card of 10 Gbit/s, on eight processors, with Linux 2.6.29.
//!
//! Source: the thread "High contention on the sk_buff_head.lock", netdev, March 2009 (V. Mauery):
//! the rate rose from one sender to two, and fell with four and with eight, which sent about half
//! of what one did. That was said of a real-time kernel, whose locks put waiting threads to sleep;
//! of the ordinary kernel the thread says that it sends nearly 6000 Mbit/s at most, that the same
//! lock is its most contended one, and that the effect is weaker there. This program is the
//! ordinary kernel's.
//!
//! ```text
//! software   what each step costs, drawn from the parameters
//! path       what processors do
//! ```
//!
//! What each processor does:
//!
//! ```text
//! sender      waits until its socket has room (asleep), builds the packets of one datagram, hands
//!             one after another to the queue
//! queue       root lock; enqueue; sets the bit RUNNING; unlock. Who set it is the owner:
//! owner       dequeue; unlock; transmit lock; driver and doorbell; unlock; root lock again, behind
//!             all that wait for it; until the queue is empty or the clock has ticked
//! interrupt   one processor completes packets: frees their memory, gives the socket its room back,
//!             wakes its sender. A sender that runs there does it whenever it enables softirqs
//! ```
//!
//! # Parameters that are not used
//!
//! - `nic_pps_small`: all frames are full. A test that was not told a size sends full frames, and
//!   so does one that is after Mbit/s, which is how the thread counts.
//! - `lock_kind_linear`, `bulk_max`, `run_limit`: the program does what they say. An owner stops at
//!   a tick of the clock, whose rate is drawn (`tick_hz`).
//! - `lock_handover_per_waiter`: follows from the simulated memory.
//! - `completions_where`: follows from the processor that serves the interrupt. It is drawn from
//!   all eight; the middle of all draws is the last one to which a sender comes.
//! - `tx_queue_len`, and the length of the card's ring: eight full sockets hold hardly more packets
//!   than either has room for, and most of these are not in the queue.
//! - `sndbuf_bytes`: `sndbuf_packets` says the same in packets.
//! - `migrations_per_second`: at most one move in a measured time this short. Each sender stays on
//!   its processor.
//!
//! The card asks for one interrupt for each completion that finds nobody completing: there is no
//! parameter for a card that waits for several.

mod path;
mod software;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onramp_machine::{Machine, Setup, simulate, thread};

use self::path::{Processor, Shared};
use self::software::Software;
use super::window::{Halves, Window, now};
use crate::machines::{Description, Unknown};
use crate::parameter::Draw;

/// The numbers of senders.
const SENDERS: [u16; 4] = [1, 2, 4, 8];
/// The processors to which senders come, one after another: the scheduler spreads them over the
/// sockets, then over the dies.
const PROCESSORS: [u16; 8] = [0, 4, 2, 6, 1, 5, 3, 7];
/// Simulated time before the measurement and of the measurement, nanoseconds. Both are longer than
/// a tick of the clock, at which owners change.
const WARM_UP_NS: u64 = 5_000_000;
const WINDOW_NS: u64 = 16_000_000;
/// When the senders begin, nanoseconds, and within what span.
const BEGIN_NS: u64 = 200_000;
const STAGGER_NS: u64 = 20_000;

/// One run: a number of senders.
#[derive(Clone, Copy, Debug)]
struct Run {
    machine: Machine,
    software: Software,
    senders: u16,
    /// The processor that serves the card's interrupt.
    interrupts: u16,
    warm_up_ns: u64,
    window_ns: u64,
    seed: u64,
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    /// Packets that left the card in the window.
    measured: Halves,
    seconds: f64,
    /// Packets in the whole run.
    submitted: u64,
    sent: u64,
    /// How often the root lock was taken in the window, and how often it was waited for.
    taken: u64,
    contended: u64,
}

impl Outcome {
    fn packets_per_second(&self) -> f64 {
        self.measured.all() as f64 / self.seconds
    }
}

impl Run {
    fn simulate(self) -> Result<Outcome, Unknown> {
        let until_ns = BEGIN_NS + STAGGER_NS + self.warm_up_ns + self.window_ns;
        let limit_ns = until_ns + 1_000_000_000;
        let setup = Setup { machine: self.machine, limit_ns, measure_ns: 0..0 };
        let (outcome, _) = simulate(&setup, move || self.run(until_ns))
            .map_err(|why| Unknown::new(format!("the simulation failed: {why}")))?;
        let Outcome { submitted, sent, .. } = outcome;
        if submitted == sent {
            Ok(outcome)
        } else {
            let why = format!("packets are not conserved: {submitted} submitted, {sent} sent");
            Err(Unknown::new(why))
        }
    }

    /// Runs as the first thread of the simulated machine.
    fn run(self, until_ns: u64) -> Outcome {
        let until = until_ns * 1_000;
        let window = Window { from: until - self.window_ns * 1_000, until };
        let shared = Arc::new(Shared::new(self.software, self.senders, window));
        let mut random = fastrand::Rng::with_seed(self.seed);
        let sends = PROCESSORS.iter().take(self.senders.into()).enumerate();
        let mut jobs: Vec<_> = sends.map(|(socket, at)| (*at, Some(socket))).collect();
        if jobs.iter().all(|(at, _)| *at != self.interrupts) {
            jobs.push((self.interrupts, None));
        }
        let threads = jobs.into_iter().map(|(at, socket)| {
            let mut processor = Processor::new(&shared, random.u64(..), at == self.interrupts);
            let begin_ns = BEGIN_NS + random.u64(0..STAGGER_NS);
            let body = move || {
                thread::sleep(Duration::from_nanos(begin_ns.saturating_sub(now() / 1_000)));
                socket.into_iter().for_each(|socket| processor.send(socket));
                if processor.serves_interrupts {
                    processor.complete_all();
                }
                (processor.submitted, processor.taken, processor.contended)
            };
            let name = format!("processor {at}");
            let spawned = thread::Builder::new().name(name).on(at).spawn(body);
            spawned.expect("simulated threads need no resources")
        });
        let threads: Vec<_> = threads.collect();
        let (mut submitted, mut taken, mut contended) = (0, 0, 0);
        for thread in threads {
            let counted = thread.join().expect("a thread that panics ends the simulation");
            submitted += counted.0;
            taken += counted.1;
            contended += counted.2;
        }
        let (sent, measured) = shared.sent();
        let seconds = window.seconds();
        Outcome { measured, seconds, submitted, sent, taken, contended }
    }
}

/// Simulates the measurement with values drawn from the intervals of all parameters, and returns
/// its figures by name.
///
/// # Errors
///
/// [`Unknown`] says what went wrong.
pub(crate) fn figures(seed: u64) -> Result<BTreeMap<String, f64>, Unknown> {
    let mut rates = BTreeMap::new();
    let mut payload_bits = 0.0;
    for senders in SENDERS {
        let run = Run::draw(seed, senders)?;
        payload_bits = run.software.payload_bits();
        rates.insert(senders, run.simulate()?.packets_per_second());
    }
    let ratio = |one: u16, other: u16| {
        (format!("{one} senders divided by {other}, ratio"), rates[&one] / rates[&other])
    };
    let best = rates.values().copied().fold(0.0, f64::max) * payload_bits;
    let mut figures = BTreeMap::from([ratio(2, 1), ratio(4, 2), ratio(8, 4), ratio(8, 1)]);
    figures.insert("best of 1 to 8 senders, bits_per_second".to_owned(), best);
    for (senders, rate) in &rates {
        figures.insert(format!("{senders} senders, packets_per_second"), *rate);
    }
    Ok(figures)
}

impl Run {
    /// Draws a run. With the same seed, all numbers of senders have the same machine and software.
    fn draw(seed: u64, senders: u16) -> Result<Self, Unknown> {
        let mut draw = Draw::new(seed);
        let description = Description::named("xeon-2009")?;
        let machine = description.draw(&mut draw);
        let software = Software::draw(&machine, &description, &mut draw)?;
        let interrupts = match &mut draw {
            Draw::Middle => PROCESSORS[7],
            Draw::Random(random) => PROCESSORS[random.usize(0..8)],
        };
        let (warm_up_ns, window_ns) = (WARM_UP_NS, WINDOW_NS);
        Ok(Self { machine, software, senders, interrupts, warm_up_ns, window_ns, seed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run, long enough to be steady.
    fn short(seed: u64, senders: u16) -> Run {
        let run = Run::draw(seed, senders).unwrap();
        Run { warm_up_ns: 300_000, window_ns: 500_000, ..run }
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
    fn packets_are_conserved_wherever_interrupts_are_served() {
        for (senders, interrupts) in [(1, 0), (1, 7), (4, 4), (4, 3), (8, 3)] {
            for seed in [0, 1, 2] {
                let outcome = Run { interrupts, ..short(seed, senders) }.simulate().unwrap();
                assert!(outcome.submitted == outcome.sent && outcome.measured.all() > 50);
            }
        }
    }

    #[test]
    fn a_lone_sender_never_waits_for_the_lock() {
        let alone = short(0, 1).simulate().unwrap();
        assert!(alone.taken > 100);
        assert_eq!(alone.contended, 0);
        let two = short(0, 2).simulate().unwrap();
        assert!(two.contended > 0);
    }

    #[test]
    fn slower_parts_make_a_slower_rate() {
        let rate = |change: &dyn Fn(&mut Run)| {
            let mut run = short(0, 4);
            change(&mut run);
            run.simulate().unwrap().packets_per_second()
        };
        let base = rate(&|_| ());
        let memory = |run: &mut Run| {
            let costs = &mut run.machine.costs;
            (costs.near, costs.far, costs.remote) = (900_000, 900_000, 900_000);
        };
        assert!(rate(&memory) < base, "the memory");
        assert!(rate(&|run| run.software.driver_ps *= 20) < base, "the driver");
        assert!(rate(&|run| run.software.wire_ps *= 4) < base / 2.0, "the card");
    }

    #[test]
    fn an_owner_stops_at_a_tick_and_goes_on() {
        let mut run = short(0, 4);
        run.software.tick_ps = 20_000_000;
        let outcome = run.simulate().unwrap();
        assert!(outcome.measured.all() > 100, "{outcome:?}");
    }

    #[test]
    fn a_run_is_steady() {
        let run = short(0, 4);
        let halves = Run { window_ns: 2_000_000, ..run }.simulate().unwrap().measured;
        assert!(halves.difference() < 0.1, "{halves:?}");
    }
}
