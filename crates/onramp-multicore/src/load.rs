//! A load: threads that send through one link on a simulated machine, and what they saw.

mod command;
mod error;
mod paced;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use onramp::{Link, Mapping, TrySendError};
use onramp_core::Device;
use onramp_machine::{Machine, Report, Setup, hook, simulate, thread};
use serde::{Deserialize, Serialize};

use crate::card::{Card, Sent};
use crate::charged::{charged, line};

pub use command::Changes;
pub use error::LoadError;
pub use paced::Pacing;

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
    /// The driver's work for a packet, and what it costs to free the packet.
    pub transmit_ps: u64,
    /// The driver's work for a burst.
    pub doorbell_ps: u64,
    /// Onramp's work for an owner's run.
    pub run_ps: u64,
    /// The work of the thread that gives a command, beside what it shares with other threads.
    pub command_ps: u64,
}

impl Software {
    /// Returns the charged form of the built-in qdisc `kind` as a line of `tc`.
    pub(crate) fn qdisc(&self, kind: &str) -> String {
        line(kind, self.enqueue_ps, self.dequeue_ps, self.qdisc_lines, self.flow_lines)
    }
}

/// Threads that send through one link, each as fast as it can or as its pacing rate lets it.
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
    /// The pacing of each sender's flow; `None` if flows have no rate.
    pub pacing: Option<Pacing>,
    /// How often one more thread changes the limit of the qdiscs in a second, by `qdisc change`;
    /// `None` if no thread does.
    pub changes_per_second: Option<u32>,
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
    /// The longest that such a call worked: its time, less that in which another thread had the
    /// processor.
    pub longest_work_ns: u64,
    /// Number of calls that refused a packet because the sender had no credit left.
    pub refused: u64,
    /// Number of packets that the link dropped in the whole run.
    pub dropped: u64,
    /// Gaps between the packets of each flow, as the card sent them, nanoseconds; `None` without
    /// pacing.
    pub gaps: Option<Histogram<u64>>,
    /// What the thread saw that gives commands; `None` without one.
    pub changes: Option<Changes>,
}

impl Outcome {
    /// Returns the number of packets that the link accepted in the measured time. If it is far from
    /// the number of packets sent, the queues were filling or draining: the load was not steady.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.sends.len() - self.refused
    }
}

/// What one sending thread saw in the measured time.
struct Seen {
    sends: Histogram<u64>,
    longest_work_ns: u64,
    refused: u64,
}

impl Seen {
    fn new() -> Self {
        // Three digits, up to a second.
        let sends = Histogram::new_with_bounds(1, 1_000_000_000, 3).expect("bounds in order");
        Self { sends, longest_work_ns: 0, refused: 0 }
    }

    /// Records a call that took `ns`, in `displaced_ns` of which another thread had the processor.
    fn record(&mut self, ns: u64, displaced_ns: u64) {
        self.sends.saturating_record(ns);
        self.longest_work_ns = self.longest_work_ns.max(ns.saturating_sub(displaced_ns));
    }

    fn add(&mut self, other: &Self) {
        self.sends.add(&other.sends).expect("the same bounds");
        self.longest_work_ns = self.longest_work_ns.max(other.longest_work_ns);
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

/// What the card, the link and the threads counted.
struct Counted {
    /// In the measured time.
    sent: u64,
    seen: Seen,
    dropped: u64,
    gaps: Option<Histogram<u64>>,
    changes: Option<Changes>,
}

/// How long a link may take to send what it holds when all senders have ended, nanoseconds.
const CLOSE_NS: u64 = 1_000_000_000;
/// Most bytes of a payload that a link takes: a UDP datagram.
const PAYLOAD_MAX: usize = 65_507;

/// The time of the simulation, nanoseconds.
fn now_ns() -> u64 {
    hook::time_ps().expect("inside a simulation") / 1_000
}

fn displaced_ns() -> u64 {
    hook::displaced_ps().expect("inside a simulation") / 1_000
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
        // At the end, senders wait for their next packet, and the link for the last ones.
        let gap_ns = self.pacing.map_or(0, |pacing| pacing.gap_ns(self.payload));
        let setup = Setup {
            machine: self.machine,
            limit_ns: until + 2 * CLOSE_NS + 200 * gap_ns,
            measure_ns: from..until,
        };
        let load = self.clone();
        let (counted, report) =
            simulate(&setup, move || load.run(times)).map_err(LoadError::Failed)?;
        let Counted { sent, seen, dropped, gaps, changes } = counted?;
        let Seen { sends, longest_work_ns, refused } = seen;
        Ok(Outcome { sent, report, sends, longest_work_ns, refused, dropped, gaps, changes })
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
        if self.payload > PAYLOAD_MAX {
            let what = format!("payload {}: expected at most {PAYLOAD_MAX} bytes", self.payload);
            return Err(LoadError::Range(what));
        }
        if let Some(pacing) = self.pacing {
            pacing.check(self).map_err(LoadError::Range)?;
        }
        command::check(self.changes_per_second).map_err(LoadError::Range)
    }

    /// Runs as the first thread of the simulated machine.
    fn run(&self, times: Times) -> Result<Counted, LoadError> {
        let sent = Sent::new(times.from..times.until);
        let sent = Arc::new(if self.pacing.is_some() { sent.with_gaps() } else { sent });
        let link = Arc::new(self.link(&sent));
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
        let commands = self.commands(&link, times);
        for handle in handles {
            handle.join().expect("a sender that panics ends the simulation");
        }
        let changes = commands.map(|thread| thread.join().expect("as for a sender")).transpose()?;
        if let Some(changes) = &changes {
            changes.check(&link)?;
        }
        let _ = link.close(Duration::from_nanos(CLOSE_NS));
        let stats = link.stats();
        let (submitted, dropped) = (stats.submitted, stats.dropped_total());
        conserved(submitted, sent.all(), dropped)?;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = std::mem::replace(&mut *seen, Seen::new());
        Ok(Counted { sent: sent.measured(), seen, dropped, gaps: sent.gaps(), changes })
    }

    fn link(&self, sent: &Arc<Sent>) -> Link {
        let Software { transmit_ps, doorbell_ps, run_ps, .. } = self.software;
        // An owner rings the doorbell once in a run, mostly.
        let burst_ps = doorbell_ps + run_ps;
        let card = |_| Box::new(Card::new(transmit_ps, burst_ps, sent)) as Box<dyn Device>;
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
        let (mut seen, mut flow) = (Seen::new(), sender.flow_with(None, mapping));
        if let Some(pacing) = self.pacing {
            flow.set_pacing_rate(pacing.rate());
        }
        let payload = vec![0; self.payload];
        loop {
            if now_ns() >= times.until {
                return seen;
            }
            hook::work_ps(self.software.program_ps);
            loop {
                let (begins, displaced) = (now_ns(), displaced_ns());
                hook::work_ps(self.software.send_ps);
                let result = sender.try_send(&flow, &payload);
                if begins >= times.from {
                    seen.record(now_ns() - begins, displaced_ns() - displaced);
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
