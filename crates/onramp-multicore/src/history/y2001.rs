//! The measurement of 2001: an HTTP server with Linux 2.4.10, without and with a patch of the
//! softirqs.
//!
//! Source: "softirq performance fixes, cleanups, 2.4.10", linux-kernel, September 2001 (I. Molnar):
//! 39,299 context switches a second without the patch and 35,552 with it, HTTP faster by 2 %, and
//! the processors idle for a part of the time. Without the patch, ksoftirqd ran frequently, with it
//! almost never. The text names neither the machine nor the load.
//!
//! ```text
//! answer     the packets of a request
//! software   what each step costs and the load, drawn from the parameters
//! state      processors, processes, cards, clients, events
//! server     what processors do: interrupts, softirqs, ksoftirqd, the scheduler
//! http       what clients, cards and processes do
//! ```
//!
//! The figures count switches between threads and not cache lines. Interrupts, softirqs and the
//! scheduler decide about these, and the simulated machine has none of the three: nothing
//! interrupts its threads. So this is a simulation of events in virtual time, of which only the
//! parameters and the seed decide the order. The lines behind the lock around the run queue have
//! their price on the simulated machine's bus; nobody waits for that lock.
//!
//! What happens:
//!
//! ```text
//! client      opens a connection, asks, acknowledges every second packet, closes, opens the next
//!             one as soon as it has the whole answer
//! card        interrupts a processor, each as likely, for a share of the packets that it has
//!             received or sent. The others wait for the next interrupt, or for a timer. There are
//!             as many cards as processors
//! interrupt   takes from the card what it has, raises NET_RX for packets that were received and
//!             NET_TX for those that were sent, and on its way out handles softirqs
//! softirq     one pass over all kinds that are pending; again if a kind is pending that has had
//!             fewer passes in this call than the kernel allows. If something is left, it wakes the
//!             processor's ksoftirqd; if nothing is left, the kernel with the patch takes a
//!             ksoftirqd that was woken and has not run off the run queue
//! process     sleeps until there is a connection, and again if the request is not there yet;
//!             works, sends the answer, works and sleeps. After each step it handles pending
//!             softirqs, and sometimes raises one itself: without the patch this wakes ksoftirqd,
//!             with it the softirq runs at once
//! ksoftirqd   runs when no process wants its processor. If it has waited for as long as the
//!             parameters say, it goes before other processes when the present one sleeps. It
//!             handles softirqs until none is pending
//! scheduler   a woken process gets the processor on which it ran last if that is idle, otherwise
//!             the one that is idle longest, otherwise one that ksoftirqd has, otherwise it waits
//! ```
//!
//! Each change of a processor from one of idle, ksoftirqd and process to another counts as a
//! switch.
//!
//! # Parameters that are not used
//!
//! - `reraised_share`: follows from the interrupts that come while a pass runs. It is among the
//!   figures.
//! - `ksoftirqd_nice`: the program does what it says.
//! - `tick_hz`: no process and no pass works for as long as a tick, so no slice ends. For the same
//!   reason all processes have the same goodness, but for the processor on which they ran last.
//! - The machine's `context_switch`, `interrupt`, `wake` and `wake_call`: `schedule_fixed`,
//!   `interrupt_rx` and `wake_ipi` say the same of this kernel, and `softirq_rx_packet` contains
//!   the waking of a process.
//!
//! `raise_outside_share` is a share of single raises: a packet that was received raises once, and
//! so does one that was sent, when it is freed.

mod answer;
mod http;
mod server;
mod software;
mod state;

use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use self::software::{Kernel, Software};
use self::state::{Card, Client, Counts, Cpu, Process, Server};
use super::window::{Varied, Window};
use crate::machines::Unknown;
use crate::parameter::Draw;

/// Simulated time before the measurement and of the measurement, picoseconds.
const WARM_UP_PS: u64 = 200_000_000_000;
const WINDOW_PS: u64 = 2_000_000_000_000;
/// The span in which clients begin, picoseconds.
const STAGGER_PS: u64 = 10_000_000_000;
/// By when all requests have been answered after the measurement, picoseconds.
const LIMIT_PS: u64 = 10_000_000_000_000;

/// One run: a kernel under the load.
#[derive(Clone, Copy, Debug)]
struct Run {
    software: Software,
    kernel: Kernel,
    warm_up_ps: u64,
    window_ps: u64,
    seed: u64,
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    counts: Counts,
    window: Window,
    cpus: usize,
}

impl Outcome {
    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.window.seconds()
    }

    /// The share of the processors' time in which they had nothing to do.
    fn idle_share(&self) -> f64 {
        self.counts.idle_ps as f64 / 1e12 / self.window.seconds() / self.cpus as f64
    }

    /// The share of calls that found a kind of softirq pending again after a pass over it.
    fn again_share(&self) -> f64 {
        self.counts.calls_again as f64 / self.counts.calls.max(1) as f64
    }
}

impl Run {
    /// Draws the runs of both kernels, which have everything else in common.
    fn draw_both(seed: u64) -> Result<[Self; 2], Unknown> {
        let software = Software::draw(&mut Draw::new(seed))?;
        let (warm_up_ps, window_ps) = (WARM_UP_PS, WINDOW_PS);
        Ok(Kernel::both()?.map(|kernel| Self { software, kernel, warm_up_ps, window_ps, seed }))
    }

    fn simulate(self) -> Result<Outcome, Unknown> {
        let mut server = self.server();
        for client in 0..self.software.clients {
            let after_ps = server.random.u64(0..STAGGER_PS);
            server.open(client, after_ps);
        }
        let limit = server.window.until + LIMIT_PS;
        while server.step() {
            if server.now > limit {
                return Err(Unknown::new("the simulation does not end".to_owned()));
            }
        }
        let (counts, window) = (server.counts, server.window);
        let Counts { begun, answered, arrived, received, .. } = counts;
        let sleeps = server.runnable.is_empty()
            && server.accepting.len() == server.processes.len()
            && server.cpus.iter().all(Cpu::is_at_rest);
        if sleeps && (begun, arrived) == (answered, received) {
            return Ok(Outcome { counts, window, cpus: self.software.cpus });
        }
        let why = format!("{begun} and {answered} requests, {arrived} and {received} packets");
        Err(Unknown::new(format!("requests and packets are not conserved: {why}")))
    }

    fn server(&self) -> Server {
        let Self { software, kernel, seed, .. } = *self;
        let until = STAGGER_PS + self.warm_up_ps + self.window_ps;
        let mut random = fastrand::Rng::with_seed(seed);
        let varied = Varied::new(random.u64(..));
        let mut cards = Vec::new();
        cards.resize_with(software.cpus, Card::default);
        Server {
            software,
            kernel,
            window: Window { from: until - self.window_ps, until },
            now: 0,
            random,
            varied,
            events: BinaryHeap::new(),
            scheduled: 0,
            cpus: (0..software.cpus).map(|_| Cpu::new()).collect(),
            processes: (0..software.clients).map(|n| Process::new(n % software.cpus)).collect(),
            runnable: VecDeque::new(),
            accepting: (0..software.clients).collect(),
            clients: vec![Client::default(); software.clients],
            cards,
            counts: Counts::default(),
        }
    }
}

/// Simulates the measurement with values drawn from the intervals of all parameters, and returns
/// its figures by name.
///
/// # Errors
///
/// [`Unknown`] says what went wrong.
pub(crate) fn figures(seed: u64) -> Result<BTreeMap<String, f64>, Unknown> {
    let [before, after] = Run::draw_both(seed)?;
    let [before, after] = [before.simulate()?, after.simulate()?];
    let mut figures = BTreeMap::new();
    for (kernel, outcome) in [("before", before), ("after", after)] {
        let counts = outcome.counts;
        let mut figure = |name: &str, value: f64| {
            figures.insert(format!("{kernel}, {name}"), value);
        };
        figure("switches_per_second", outcome.per_second(counts.switches));
        figure("ksoftirqd_runs_per_second", outcome.per_second(counts.ksoftirqd_runs));
        figure("requests_per_second", outcome.per_second(counts.requests.all()));
        figure("idle_share", outcome.idle_share());
        figure("reraised_share", outcome.again_share());
    }
    let mut ratio = |what: &str, count: fn(&Counts) -> u64| {
        let [before, after] = [before, after].map(|outcome| count(&outcome.counts) as f64);
        figures.insert(format!("{what} after divided by before, ratio"), after / before.max(1.0));
    };
    ratio("switches", |counts| counts.switches);
    ratio("ksoftirqd", |counts| counts.ksoftirqd_runs);
    ratio("requests", |counts| counts.requests.all());
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short runs of both kernels, long enough for some hundreds of requests.
    fn short(seed: u64) -> [Run; 2] {
        let (warm_up_ps, window_ps) = (20_000_000_000, 200_000_000_000);
        Run::draw_both(seed).unwrap().map(|run| Run { warm_up_ps, window_ps, ..run })
    }

    #[test]
    fn the_same_seed_gives_the_same_figures() {
        for seed in [0, 5] {
            let [before, after] = short(seed);
            assert_eq!(before.simulate().unwrap(), before.simulate().unwrap());
            assert_eq!(after.simulate().unwrap(), after.simulate().unwrap());
        }
        let different = short(5)[0].simulate().unwrap() != short(6)[0].simulate().unwrap();
        assert!(different, "the seed decides");
    }

    #[test]
    fn requests_and_packets_are_conserved() {
        for seed in 0..30 {
            for run in short(seed) {
                let counts = run.simulate().unwrap().counts;
                let (answered, answer) = (counts.answered, run.software.answer);
                assert!(counts.requests.all() > 50, "{seed}");
                assert_eq!(counts.received, answered * answer.received(), "{seed}");
                let (raised, packets) = (counts.raised_inside, u64::from(answer.packets()));
                assert_eq!(raised, answered * packets, "{seed}: each packet raises once");
            }
        }
    }

    #[test]
    fn without_the_patch_raises_wake_ksoftirqd() {
        let [before, after] = short(0);
        let counts = before.simulate().unwrap().counts;
        assert!(counts.raised_outside > 0 && counts.ksoftirqd_wakeups > 0);
        assert!(counts.ksoftirqd_runs > 0 && counts.unwakeups == 0);
        let patched = after.simulate().unwrap().counts;
        assert!(patched.raised_outside > 0);
        assert!(patched.ksoftirqd_runs < counts.ksoftirqd_runs, "{patched:?}");
        // Nothing raises outside, and no interrupt comes while a softirq runs.
        let mut quiet = before;
        (quiet.software.raises, quiet.software.clients) = (0.0, 1);
        quiet.software.collect_ps = 1_000;
        (quiet.software.receive_ps, quiet.software.send_ps) = (2, 2);
        let counts = quiet.simulate().unwrap().counts;
        assert_eq!((counts.ksoftirqd_wakeups, counts.ksoftirqd_runs), (0, 0));
        assert!(counts.requests.all() > 50);
    }

    #[test]
    fn a_ksoftirqd_with_nothing_to_do_is_taken_off_the_run_queue() {
        let [before, _] = short(0);
        let unwakes = Run { kernel: Kernel { unwakes: true, ..before.kernel }, ..before };
        let [with, without] = [unwakes, before].map(|run| run.simulate().unwrap().counts);
        assert!(with.unwakeups > 0 && with.ksoftirqd_runs < without.ksoftirqd_runs);
        assert!(with.ksoftirqd_wakeups >= with.unwakeups);
    }

    #[test]
    fn nothing_but_the_patch_distinguishes_the_kernels() {
        for seed in [0, 3] {
            let [before, after] = short(seed);
            let outcome = |kernel: Kernel, raises: f64| {
                let software = Software { raises, ..before.software };
                Run { software, kernel, ..after }.simulate().unwrap()
            };
            let unpatched = Kernel { passes: 1, unwakes: false, ..after.kernel };
            assert_eq!(outcome(unpatched, 0.0), outcome(before.kernel, 0.0), "no raises outside");
            let raises = before.software.raises;
            assert_ne!(outcome(unpatched, raises), outcome(before.kernel, raises), "raises");
            let passes = Kernel { passes: 10, ..before.kernel };
            assert_ne!(outcome(passes, 0.0), outcome(before.kernel, 0.0), "passes");
        }
    }

    #[test]
    fn slower_parts_leave_less_idle_time() {
        let idle = |change: &dyn Fn(&mut Software)| {
            let [mut run, _] = short(0);
            change(&mut run.software);
            run.simulate().unwrap().idle_share()
        };
        let base = idle(&|_| ());
        assert!(base > 0.0 && base < 1.0, "{base}");
        assert!(idle(&|software| software.receive_ps *= 3) < base, "receiving");
        assert!(idle(&|software| software.part_ps *= 3) < base, "the server's work");
        assert!(idle(&|software| software.switch_ps *= 10) < base, "switches");
        assert!(idle(&|software| software.client_ps *= 4) > base, "the clients");
    }

    #[test]
    fn a_late_ksoftirqd_goes_before_processes() {
        let runs = |delay_ps: u64| {
            let [mut run, _] = short(0);
            run.software.delay_ps = delay_ps;
            run.software.clients *= 10;
            run.simulate().unwrap().counts.ksoftirqd_runs
        };
        assert!(runs(50_000_000) > runs(60_000_000_000), "busy processors");
    }

    #[test]
    fn ksoftirqd_interrupts_no_process() {
        let outcome = |delay_ps: u64| {
            let [mut run, _] = short(0);
            // One process at a time: the next request comes when the last one has been closed.
            (run.software.cpus, run.software.clients) = (1, 1);
            run.software.client_ps *= 10;
            run.software.delay_ps = delay_ps;
            run.simulate().unwrap()
        };
        let late = outcome(1);
        assert!(late.counts.ksoftirqd_runs > 0);
        assert_eq!(late, outcome(60_000_000_000));
    }

    #[test]
    fn a_run_is_steady() {
        let [run, _] = short(0);
        let halves = Run { window_ps: WINDOW_PS, ..run }.simulate().unwrap().counts.requests;
        assert!(halves.difference() < 0.1, "{halves:?}");
    }
}
