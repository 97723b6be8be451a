//! A load: threads that send through one link on a simulated machine, and what they saw.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use onramp::{Link, Mapping, TrySendError};
use onramp_core::Device;
use onramp_machine::{Failed, Machine, Report, Setup, hook, simulate, thread};
use serde::{Deserialize, Serialize};

use crate::card::{Card, Sent};
use crate::charged::{charged, line};

/// Which processors the sending threads use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Thread `n` stays on processor `n`: first one thread on each core.
    Pinned,
    /// The scheduler places and moves the threads.
    Free,
}

/// How flows are spread over the ports of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// Each new flow goes to the next port in turn ([`Mapping::Turn`]).
    #[default]
    Turn,
    /// Each packet goes to the port of its sender's processor ([`Mapping::Cpu`]).
    Cpu,
    /// Each sender's flow goes to the port that its neighbours use, too ([`Mapping::Port`]): the
    /// cores are divided into as many groups as there are ports, each of neighbouring cores.
    Near,
}

/// What the software costs: local work in picoseconds, and lines of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Software {
    /// What the program does for a packet before it sends it.
    pub program_ps: u64,
    /// The sender's own part of a send.
    pub send_ps: u64,
    /// The qdisc's work for an enqueue.
    pub enqueue_ps: u64,
    /// The qdisc's work for a dequeue.
    pub dequeue_ps: u64,
    /// Lines of the qdisc that each enqueue and each dequeue touch.
    pub qdisc_lines: u32,
    /// Lines of a flow that each enqueue and each dequeue of one of its packets touch.
    pub flow_lines: u32,
    /// The driver's work for a packet.
    pub transmit_ps: u64,
    /// The driver's work for a burst.
    pub doorbell_ps: u64,
}

impl Software {
    /// Returns the charged form of the built-in qdisc `kind` as a line of `tc`.
    pub(crate) fn qdisc(&self, kind: &str) -> String {
        line(kind, self.enqueue_ps, self.dequeue_ps, self.qdisc_lines, self.flow_lines)
    }
}

/// Threads that send through one link, each as fast as it can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The machine.
    pub machine: Machine,
    /// What the software costs.
    pub software: Software,
    /// Number of sending threads.
    pub threads: u16,
    /// Which processors they use.
    pub placement: Placement,
    /// Number of ports of the link.
    pub ports: usize,
    /// How flows are spread over the ports.
    pub spread: Spread,
    /// The qdisc of each port: a name of [`QDISCS`](crate::QDISCS).
    pub qdisc: String,
    /// Bytes of a payload.
    pub payload: usize,
    /// Simulated time before the measurement, microseconds.
    pub warm_up_us: u64,
    /// Simulated time of the measurement, microseconds.
    pub measure_us: u64,
}

/// What a load did in the measured time.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Number of packets that the card sent.
    pub sent: u64,
    /// How the machine spent the time, and where it waited for memory.
    pub report: Report,
    /// Times of the calls that accepted or refused a packet, nanoseconds.
    pub sends: Histogram<u64>,
    /// Number of calls that refused a packet because the sender had no credit left.
    pub refused: u64,
}

impl Outcome {
    /// Returns the number of packets that the link accepted in the measured time. If it is far from
    /// the number of packets sent, the queues were filling or draining: the load was not steady.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.sends.len() - self.refused
    }
}

/// Why a load could not be simulated.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// A value of the load is out of range.
    Range(String),
    /// The simulation did not come to its end.
    Failed(Failed),
    /// Packets were lost or made: the numbers that were accepted, sent and dropped.
    Conservation {
        /// Accepted by the link.
        submitted: u64,
        /// Sent by the card.
        sent: u64,
        /// Dropped by the link.
        dropped: u64,
    },
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Range(what) => f.write_str(what),
            Self::Failed(why) => write!(f, "the simulation failed: {why}"),
            Self::Conservation { submitted, sent, dropped } => write!(
                f,
                "packets are not conserved: {submitted} accepted, {sent} sent, {dropped} dropped"
            ),
        }
    }
}

impl std::error::Error for LoadError {}

/// What one sending thread saw in the measured time.
struct Seen {
    sends: Histogram<u64>,
    refused: u64,
}

impl Seen {
    fn new() -> Self {
        // Three digits, up to a second.
        let sends = Histogram::new_with_bounds(1, 1_000_000_000, 3).expect("bounds in order");
        Self { sends, refused: 0 }
    }

    fn add(&mut self, other: &Self) {
        self.sends.add(&other.sends).expect("the same bounds");
        self.refused += other.refused;
    }
}

/// When threads begin to send, and from when until when is measured, nanoseconds of simulated time.
#[derive(Clone, Copy, Debug)]
struct Times {
    begin: u64,
    from: u64,
    until: u64,
}

/// What the card and the senders counted in the measured time.
struct Counted {
    sent: u64,
    seen: Seen,
}

/// The time of the simulation, nanoseconds.
fn now_ns() -> u64 {
    hook::time_ps().expect("inside a simulation") / 1_000
}

impl Load {
    /// Simulates the load.
    ///
    /// # Errors
    ///
    /// [`LoadError`] says what is wrong with the load, or with what happened.
    pub fn simulate(&self) -> Result<Outcome, LoadError> {
        self.check()?;
        // All threads exist before the first packet is sent, as in a program that is up.
        let begin = 100_000 + u64::from(self.threads) * self.machine.costs.wake_call / 500;
        let from = begin + self.warm_up_us * 1_000;
        let until = from + self.measure_us * 1_000;
        let times = Times { begin, from, until };
        let setup = Setup {
            machine: self.machine,
            limit_ns: until + 1_000_000_000,
            measure_ns: from..until,
        };
        let load = self.clone();
        let (counted, report) =
            simulate(&setup, move || load.run(times)).map_err(LoadError::Failed)?;
        let Counted { sent, seen } = counted?;
        Ok(Outcome { sent, report, sends: seen.sends, refused: seen.refused })
    }

    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let processors = self.machine.topology.processors();
        if charged(&self.qdisc).is_none() {
            let known = crate::QDISCS.join(", ");
            let what = format!("there is no qdisc {:?} here: {known}", self.qdisc);
            return Err(LoadError::Range(what));
        }
        if self.placement == Placement::Pinned && self.threads > processors {
            let what = format!("{} pinned threads, {processors} processors", self.threads);
            return Err(LoadError::Range(what));
        }
        Ok(())
    }

    /// Runs as the first thread of the simulated machine.
    fn run(&self, times: Times) -> Result<Counted, LoadError> {
        let sent = Arc::new(Sent::new(times.from..times.until));
        let link = self.link(&sent);
        let seen = Arc::new(Mutex::new(Seen::new()));
        let handles: Vec<_> = (0..self.threads)
            .map(|number| {
                let (sender, load, seen) = (link.sender(), self.clone(), seen.clone());
                let mut builder = thread::Builder::new().name(format!("sender {number}"));
                if self.placement == Placement::Pinned {
                    builder = builder.on(number);
                }
                let spawned = builder.spawn(move || {
                    thread::sleep(Duration::from_nanos(times.begin.saturating_sub(now_ns())));
                    let mine = load.send(sender, times);
                    seen.lock().unwrap_or_else(PoisonError::into_inner).add(&mine);
                });
                spawned.expect("simulated threads need no resources")
            })
            .collect();
        for handle in handles {
            handle.join().expect("a sender that panics ends the simulation");
        }
        let _ = link.close(Duration::from_secs(1));
        let stats = link.stats();
        let (submitted, dropped) = (stats.submitted, stats.dropped_total());
        conserved(submitted, sent.all(), dropped)?;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Counted { sent: sent.measured(), seen: std::mem::replace(&mut seen, Seen::new()) })
    }

    fn link(&self, sent: &Arc<Sent>) -> Link {
        let Software { transmit_ps, doorbell_ps, .. } = self.software;
        let card = |_| Box::new(Card::new(transmit_ps, doorbell_ps, sent)) as Box<dyn Device>;
        let kind = charged(&self.qdisc).expect("checked before");
        let devices = (0..self.ports).map(card);
        let builder = Link::devices(devices).kind(kind).qdisc(&self.software.qdisc(&self.qdisc));
        builder.build().expect("a link over cards that take everything")
    }

    /// Sends until the end, and returns what happened in the time of the measurement.
    fn send(&self, mut sender: onramp::Sender, times: Times) -> Seen {
        let mapping = match self.spread {
            Spread::Turn => Mapping::Turn,
            Spread::Cpu => Mapping::Cpu,
            Spread::Near => {
                let topology = self.machine.topology;
                let core = topology.core(hook::processor().expect("inside a simulation"));
                let (core, cores) = (usize::from(core), usize::from(topology.all_cores()));
                Mapping::Port(core * self.ports / cores)
            }
        };
        let (mut seen, flow) = (Seen::new(), sender.flow_with(None, mapping));
        let payload = vec![0; self.payload];
        loop {
            if now_ns() >= times.until {
                return seen;
            }
            hook::work_ps(self.software.program_ps);
            loop {
                let begins = now_ns();
                hook::work_ps(self.software.send_ps);
                let result = sender.try_send(&flow, &payload);
                if begins >= times.from {
                    seen.sends.saturating_record(now_ns() - begins);
                }
                match result {
                    Ok(()) => break,
                    Err(TrySendError::Full) => {
                        seen.refused += u64::from(begins >= times.from);
                        sender.wait_room(&flow, payload.len());
                    }
                    Err(why) => unreachable!("the link is open: {why}"),
                }
            }
            sender.give_way();
        }
    }
}

/// Checks that each accepted packet was sent or dropped, once.
fn conserved(submitted: u64, sent: u64, dropped: u64) -> Result<(), LoadError> {
    if submitted == sent + dropped {
        Ok(())
    } else {
        Err(LoadError::Conservation { submitted, sent, dropped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Description, Draw};

    fn load() -> Load {
        Load {
            machine: Description::named("desktop-amd").unwrap().draw(&mut Draw::new(0)),
            software: Software {
                program_ps: 300_000,
                send_ps: 30_000,
                enqueue_ps: 20_000,
                dequeue_ps: 20_000,
                qdisc_lines: 2,
                flow_lines: 1,
                transmit_ps: 60_000,
                doorbell_ps: 100_000,
            },
            threads: 6,
            placement: Placement::Pinned,
            ports: 2,
            spread: Spread::Turn,
            qdisc: "fq".to_owned(),
            payload: 120,
            warm_up_us: 100,
            measure_us: 400,
        }
    }

    #[test]
    fn the_time_of_all_processors_is_accounted_for() {
        let Outcome { sent, report, sends, .. } = load().simulate().unwrap();
        assert!(sent > 100 && sends.len() > sent / 2, "{sent}");
        assert_eq!(report.duration, 400_000_000);
        // A processor may be a step ahead of the end or behind it.
        let all = 32 * report.duration;
        let part = report.times.all() as f64 / all as f64;
        assert!((0.99..1.01).contains(&part), "{part}: {:?}", report.times);
    }

    #[test]
    fn slower_parts_make_a_slower_load() {
        let sent = |change: &dyn Fn(&mut Load)| {
            let mut load = load();
            change(&mut load);
            load.simulate().unwrap().sent
        };
        let base = sent(&|_| ());
        assert!(sent(&|load| load.software.transmit_ps *= 20) < base, "the driver");
        assert!(sent(&|load| load.software.dequeue_ps *= 50) < base, "the qdisc");
        assert!(sent(&|load| load.machine.costs.near *= 10) < base, "the memory");
        assert!(sent(&|load| load.software.program_ps *= 20) < base, "the program");
    }

    #[test]
    fn a_free_placement_and_all_qdiscs_work() {
        for qdisc in crate::QDISCS {
            let (placement, qdisc) = (Placement::Free, (*qdisc).to_owned());
            for spread in [Spread::Turn, Spread::Cpu, Spread::Near] {
                let load = Load { placement, qdisc: qdisc.clone(), spread, ..load() };
                assert!(load.simulate().unwrap().sent > 100, "{qdisc} {spread:?}");
            }
        }
    }

    /// Senders that all begin at the same time fill the port within a millisecond. The thread that
    /// owns the port then finds thousands of packets, and must not work on them for as long as they
    /// take: no send lasts longer than an owner may work, and a burst.
    #[test]
    fn no_send_takes_much_longer_than_an_owner_may_work() {
        let machine = Description::named("xeon-6985p").unwrap().draw(&mut Draw::new(0));
        let load = Load { machine, threads: 100, ports: 1, warm_up_us: 0, ..load() };
        let load = Load { measure_us: 1_500, ..load };
        let outcome = load.simulate().unwrap();
        let longest = outcome.sends.max();
        assert!(outcome.accepted() > 2 * outcome.sent, "the queues fill: {}", outcome.sent);
        assert!(longest < 150_000, "{longest} ns");
    }

    #[test]
    fn lost_packets_are_found() {
        conserved(5, 3, 2).unwrap();
        let lost = conserved(5, 3, 1).unwrap_err().to_string();
        assert_eq!(lost, "packets are not conserved: 5 accepted, 3 sent, 1 dropped");
        assert!(conserved(5, 6, 0).is_err());
    }
}
