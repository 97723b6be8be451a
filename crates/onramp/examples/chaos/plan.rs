//! The plan of a world (the test run of one link), computed from the world's seed.

use std::time::Duration;

use fastrand::Rng;
use onramp::Mode;

use crate::counts::Met;

pub(crate) const QDISCS: &[&str] = &[
    "fq",
    "fq maxrate 40mbit",
    "fq limit 60 flow_limit 9",
    "pfifo",
    "pfifo limit 20",
    "bfifo limit 20kb",
    "pfifo_fast",
    "fq_codel",
    "sfq",
    "netem delay 3ms",
];
/// A qdisc that creates packets: it duplicates some of those that it gets.
pub(crate) const COPIES: &str = "netem duplicate 20%";

/// How a world ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Receivers go on reading, and all packets are sent; then the link is closed.
    Sent,
    /// All handles of the link are dropped after all packets were sent.
    Dropped,
    /// All handles of the link are dropped while packets are in flight.
    Abandoned,
    /// Another thread closes the link at a random time.
    ClosedEarly,
    /// The link is closed while senders wait for receivers that never read again.
    Closed,
    /// All ports die while senders wait for receivers that never read again.
    Dead,
}

/// The ways in which worlds end, with the event that is counted for each. No two of the lengths of
/// `ENDS`, `MODES` and `CROWDS` (10, 3 and 11) have a common divisor, so consecutive seeds go
/// through all combinations of entries of these tables.
const ENDS: [(End, Met); 10] = [
    (End::Sent, Met::Sent),
    (End::Closed, Met::Closed),
    (End::Dropped, Met::Dropped),
    (End::ClosedEarly, Met::ClosedEarly),
    (End::Dead, Met::Dead),
    (End::Sent, Met::Sent),
    (End::ClosedEarly, Met::ClosedEarly),
    (End::Abandoned, Met::Abandoned),
    (End::Closed, Met::Closed),
    (End::ClosedEarly, Met::ClosedEarly),
];
const MODES: [Mode; 3] = [Mode::Hybrid, Mode::Inline, Mode::Dedicated];
/// Number of sending threads in a world, and whether they all share one processor.
const CROWDS: [(usize, bool); 11] = [
    (8, false),
    (240, true),
    (2, false),
    (8, true),
    (32, false),
    (8, false),
    (240, false),
    (2, true),
    (8, false),
    (32, true),
    (8, false),
];
/// Which worlds have forks: the first `FORKS.1` of every `FORKS.0` consecutive worlds.
const FORKS: (u64, u64) = (7, 2);
/// Which worlds have devices that block for seconds: the first `HARD.1` of every `HARD.0`
/// consecutive worlds.
const HARD: (u64, u64) = (13, 2);
/// Seconds by which any call may take longer in worlds whose devices block for seconds. This holds
/// even for a call with a timeout: the call may work, one after another, at two devices that block.
const HARD_SECS: u64 = 8;

/// A fault that a world commits on purpose, to test that the watchdog or the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Sleeps,
    Burns,
    Books,
    WakesItself,
    Forgets,
    Overtakes,
}

impl Fault {
    /// Returns a part of the message with which this fault is reported.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Sleeps => "HANGS in Send (77)",
            Self::Burns => "in WaitRoom (77)",
            Self::WakesItself => "WOKE ITSELF",
            Self::Books => "the COUNTERS are wrong",
            Self::Forgets => "a flush returned too early",
            Self::Overtakes => "was OVERTAKEN",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) end: End,
    pub(crate) threads: usize,
    pub(crate) mode: Mode,
    pub(crate) runners: usize,
    pub(crate) one_cpu: bool,
    pub(crate) qdisc: &'static str,
    /// Whether some qdiscs create packets, by duplicating some of those that they get.
    pub(crate) copies: bool,
    /// Number of devices that discard their packets, and number of devices that pass their packets
    /// to receivers.
    pub(crate) sinks: usize,
    pub(crate) queues: usize,
    pub(crate) receivers: usize,
    pub(crate) capacity: u16,
    /// Time after which receivers stop reading and never read again, milliseconds.
    pub(crate) mute_ms: Option<u64>,
    pub(crate) mortal: bool,
    /// Whether devices block for seconds, and each of them once more when the link closes.
    pub(crate) hard: bool,
    pub(crate) credits: u32,
    pub(crate) burst: u16,
    pub(crate) rate: Option<u64>,
    pub(crate) meddles: bool,
    pub(crate) panics: bool,
    /// Whether wakers of tasks change the link, such as its ports and qdiscs.
    pub(crate) controls: bool,
    pub(crate) forks: bool,
    pub(crate) life_ms: u64,
    pub(crate) slower: u64,
    pub(crate) fault: Option<Fault>,
}

impl Plan {
    pub(crate) fn new(seed: u64, slower: u64, forks: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let turn = |count: usize| usize::try_from(seed % count as u64).unwrap_or(0);
        let end = ENDS[turn(ENDS.len())].0;
        let (threads, one_cpu) = CROWDS[turn(CROWDS.len())];
        let mute = matches!(end, End::ClosedEarly | End::Closed | End::Dead);
        let copies = rng.u32(0..8) == 0;
        // Few credits for many threads, because all packets that are in flight when the senders
        // stop have to leave within seconds.
        let credits_max = if threads > 100 { 40 } else { 200 };
        let life_ms = rng.u64(300..2_000);
        Self {
            seed,
            end,
            threads,
            mode: MODES[turn(MODES.len())],
            runners: rng.usize(1..=3),
            one_cpu,
            qdisc: QDISCS[rng.usize(0..QDISCS.len())],
            copies,
            sinks: if end == End::Dead { 0 } else { rng.usize(0..3) },
            queues: rng.usize(1..4),
            receivers: rng.usize(1..4),
            capacity: rng.u16(8..200),
            mute_ms: mute.then(|| rng.u64(0..life_ms)),
            mortal: end == End::Dead || rng.bool(),
            hard: seed % HARD.0 < HARD.1,
            credits: if rng.bool() { rng.u32(1..12) } else { rng.u32(12..credits_max) },
            burst: if rng.bool() { rng.u16(1..100) } else { rng.u16(100..20_000) },
            rate: rng.bool().then(|| rng.u64(30_000_000..200_000_000)),
            meddles: end != End::Dead && rng.u32(0..4) > 0,
            panics: rng.bool(),
            controls: end != End::Dead && rng.bool(),
            forks: forks && seed % FORKS.0 < FORKS.1,
            life_ms,
            slower,
            fault: None,
        }
    }

    /// Makes the plan of a small world in which nothing goes wrong except `fault`.
    pub(crate) fn small(seed: u64, fault: Option<Fault>) -> Self {
        // The watchdog has to find a thread that uses a processor without reason even while many
        // other threads move packets.
        let busy = matches!(fault, Some(Fault::Burns | Fault::WakesItself));
        // These two faults are committed when the world ends. A world with another fault ends as
        // soon as the fault is found.
        let at_end = matches!(fault, None | Some(Fault::Books | Fault::Forgets));
        Self {
            end: End::Sent,
            threads: if busy { 8 } else { 2 },
            one_cpu: false,
            qdisc: "pfifo",
            copies: false,
            sinks: 2,
            queues: 0,
            mortal: false,
            hard: false,
            credits: 50,
            meddles: false,
            panics: false,
            controls: false,
            life_ms: if at_end { 150 } else { 60_000 },
            fault,
            ..Self::new(seed, 1, false)
        }
    }

    /// Counts the kinds of events that the plan contains. Called when its world is run.
    pub(crate) fn note(&self) {
        match self.mode {
            Mode::Hybrid => Met::Hybrid.note(),
            Mode::Inline => Met::Inline.note(),
            Mode::Dedicated => Met::Dedicated.note(),
        }
        match self.threads {
            2 => Met::Few.note(),
            8 => Met::Eight.note(),
            32 => Met::Some.note(),
            _ => Met::Many.note(),
        }
        if self.one_cpu {
            Met::OneCpu.note();
            if self.threads > 100 {
                Met::ManyOneCpu.note();
            }
        }
        if let Some((_, met)) = ENDS.iter().find(|(end, _)| *end == self.end) {
            met.note();
        }
    }

    /// Returns by how many seconds threads may be late because more than 100 threads compete for
    /// the processors.
    fn crowd(&self) -> u64 {
        match (self.threads > 100, self.one_cpu) {
            (true, true) => 8,
            (true, false) => 4,
            (false, _) => 0,
        }
    }

    fn hard_secs(&self) -> u64 {
        if self.hard { HARD_SECS } else { 0 }
    }

    /// Returns by how much a call may exceed its allowed time, because other threads use the
    /// processors.
    pub(crate) fn slack(&self) -> Duration {
        let slack = Duration::from_secs((2 + self.crowd()) * self.slower + self.hard_secs());
        if self.fault.is_some() { Duration::from_millis(300) } else { slack }
    }

    /// Returns the longest time allowed for a call that does not wait.
    pub(crate) fn at_once(&self) -> Duration {
        if self.fault.is_some() { Duration::from_millis(300) } else { Duration::from_secs(3) }
    }

    /// Returns the longest time allowed for a call that waits until devices return, receivers read,
    /// or the link is closed.
    pub(crate) fn patience(&self) -> Duration {
        let patience =
            Duration::from_secs(8 * self.slower.min(3) + 2 * self.crowd() + 2 * self.hard_secs());
        if self.fault.is_some() { Duration::from_millis(500) } else { patience }
    }

    /// Returns the longest time allowed until all packets in flight have left, once no thread sends
    /// any more.
    pub(crate) fn rest(&self) -> Duration {
        Duration::from_secs(10 * self.slower + 2 * self.crowd() + 2 * self.hard_secs())
    }
}
