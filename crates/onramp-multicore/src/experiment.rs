//! Published measurements, repeated on the simulated machine, with parameters that come from other
//! sources: the designs of the laboratory under the load of the measurement, and for measurements
//! that are older than these designs the programs of [`history`].

use std::collections::BTreeMap;

use onramp_core::Kinds;
use onramp_lab::contention::simulated::{Cell, Outcome, run};
use onramp_lab::contention::{Design, Load, Manners};
use onramp_lab::lockstat::LockRow;
use onramp_machine::{Setup, simulate};

use crate::charged::{charged, line};
use crate::history;
use crate::machines::{Description, Unknown};
use crate::parameter::Draw;
use crate::software::Parameters;

/// What a published text says of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// The figure is this value, or about this value.
    Value,
    /// The figure is more than this value.
    More,
    /// The figure is less than this value.
    Less,
}

impl Says {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::More => "more",
            Self::Less => "less",
        }
    }
}

/// A figure that was published, and the name of the same figure of the simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// The name of the figure, which ends in its unit.
    pub name: &'static str,
    /// The value that was published.
    pub value: f64,
    /// What the text says of the value.
    pub says: Says,
}

const fn value(name: &'static str, value: f64) -> Published {
    Published { name, value, says: Says::Value }
}

const fn more(name: &'static str, value: f64) -> Published {
    Published { name, value, says: Says::More }
}

const fn less(name: &'static str, value: f64) -> Published {
    Published { name, value, says: Says::Less }
}

/// A measurement that was published.
#[derive(Debug)]
pub struct Experiment {
    /// A name for the command line.
    pub name: &'static str,
    /// The year of the publication.
    pub source: &'static str,
    /// What distinguishes the measurement from the others of that source.
    pub title: &'static str,
    /// The figures that were published and that the simulation has, too.
    pub published: &'static [Published],
    /// The figures that were published, but that are not predicted: the simulation does not have
    /// what they count, or their unit is in doubt.
    pub unpredicted: &'static [Published],
    program: Program,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
enum Program {
    /// An HTTP server with and without a patch, with Linux 2.4.10.
    Http2001,
    /// N senders to N receivers, with Linux 2.4.
    Loopback2004,
    /// Senders through one queue, with Linux 2.6.29.
    Udp2009,
    /// A design of the laboratory.
    Lab(Lab),
}

/// A design of the laboratory under the load of 2025.
#[derive(Clone, Copy, Debug)]
struct Lab {
    design: Design,
    is_pinned: bool,
}

const fn lab(design: Design, is_pinned: bool) -> Program {
    Program::Lab(Lab { design, is_pinned })
}

/// The measurements that can be repeated.
///
/// Sources: Ingo Molnar: "softirq performance fixes, cleanups, 2.4.10" (linux-kernel, September
/// 2001). Arthur Kepner: "lockless loopback" (netdev, May 2004), the table of the transmit lock and
/// the text below it. Vernon Mauery and others: "High contention on the sk_buff_head.lock"
/// (netdev, March 2009). Eric Dumazet: "net: dev_queue_xmit() llist adoption" (netdev, October
/// 2025), 240 netperf senders of 120 bytes on 480 hardware threads, 30 queues with fq.
///
/// The figures of 2025 that are sums or means: those of `vmstat` are the means of its four samples
/// of two seconds (its first line counts from the start of the machine). The lock tables have a
/// line for each place that takes a lock, and the figures here are those of all places that take
/// the same lock: before, the place `dev_hard_start_xmit` takes the busylock, and every other place
/// the root lock, as `data/software/README.md` infers; after, all take the root lock, but for the
/// slab allocator. Two things blur the comparison: a sender that has the busylock takes the root
/// lock at the same place, and the kernel does not count the first in line at a lock.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "2001-http",
        source: "2001",
        title: "HTTP",
        published: &[
            value("switches after divided by before, ratio", 0.905),
            value("before, switches_per_second", 39_299.0),
            value("after, switches_per_second", 35_552.0),
            less("ksoftirqd after divided by before, ratio", 1.0),
            value("requests after divided by before, ratio", 1.02),
            more("after, idle_share", 0.0),
        ],
        unpredicted: &[value("object code after divided by before, ratio", 0.92)],
        program: Program::Http2001,
    },
    Experiment {
        name: "2004-loopback",
        source: "2004",
        title: "loopback",
        published: &[
            value("2 processors, utilisation_share", 0.060),
            value("8 processors, utilisation_share", 0.170),
            value("31 processors, utilisation_share", 0.722),
            value("64 processors, utilisation_share", 0.747),
            value("2 processors, contended_share", 0.039),
            value("8 processors, contended_share", 0.193),
            value("31 processors, contended_share", 0.884),
            value("64 processors, contended_share", 0.899),
            value("2 processors, waiting_share", 0.0018),
            value("8 processors, waiting_share", 0.025),
            value("31 processors, waiting_share", 0.397),
            value("64 processors, waiting_share", 0.315),
            value("greatest rate at, processors", 16.0),
            less("31 processors divided by 16, ratio", 1.0),
            less("64 processors divided by 16, ratio", 1.0),
        ],
        // The columns HOLD and WAIT, which do not fit the others.
        unpredicted: &[
            value("2 processors, hold_mean_ns", 48e3),
            value("2 processors, hold_max_ns", 1_397e3),
            value("2 processors, wait_mean_ns", 74e3),
            value("2 processors, wait_max_ns", 1_172e3),
            value("8 processors, hold_mean_ns", 137e3),
            value("8 processors, hold_max_ns", 117e6),
            value("8 processors, wait_mean_ns", 841e3),
            value("8 processors, wait_max_ns", 118e6),
            value("31 processors, hold_mean_ns", 1_262e3),
            value("31 processors, hold_max_ns", 73e6),
            value("31 processors, wait_mean_ns", 25e6),
            value("31 processors, wait_max_ns", 814e6),
            value("64 processors, hold_mean_ns", 2_814e3),
            value("64 processors, hold_max_ns", 1_068e6),
            value("64 processors, wait_mean_ns", 85e6),
            value("64 processors, wait_max_ns", 4_925e6),
        ],
        program: Program::Loopback2004,
    },
    Experiment {
        name: "2009-udp",
        source: "2009",
        title: "UDP, one queue",
        published: &[
            more("2 senders divided by 1, ratio", 1.0),
            less("4 senders divided by 2, ratio", 1.0),
            less("8 senders divided by 4, ratio", 1.0),
            value("8 senders divided by 1, ratio", 0.5),
            value("best of 1 to 8 senders, bits_per_second", 6e9),
        ],
        unpredicted: &[
            value("real-time kernel, bits_per_second", 1.2e9),
            value("one flow of TCP, bits_per_second", 5.5e9),
            value("contentions with reordered fields, ratio", 0.9),
            more("queue per processor divided by one, ratio", 1.06),
            less("queue per processor divided by one, ratio", 1.25),
        ],
        program: Program::Udp2009,
    },
    Experiment {
        name: "2025-before-free",
        source: "2025",
        title: "before, not pinned",
        published: &[
            value("packets_per_second", 16e6),
            value("busy_share", 0.52),
            value("running_threads", 244.0),
            value("send_mode_ns", 8_192.0),
            value("256 to 511 ns, send_share", 21.0 / SENDS_BEFORE),
            value("512 to 1023 ns, send_share", 631.0 / SENDS_BEFORE),
            value("1024 to 2047 ns, send_share", 27_328.0 / SENDS_BEFORE),
            value("2048 to 4095 ns, send_share", 265_392.0 / SENDS_BEFORE),
            value("4096 to 8191 ns, send_share", 417_543.0 / SENDS_BEFORE),
            value("8192 to 16383 ns, send_share", 826_292.0 / SENDS_BEFORE),
            value("16384 to 32767 ns, send_share", 733_822.0 / SENDS_BEFORE),
            value("32768 to 65535 ns, send_share", 19_055.0 / SENDS_BEFORE),
            value("65536 to 131071 ns, send_share", 17_240.0 / SENDS_BEFORE),
            value("131072 to 262143 ns, send_share", 25_633.0 / SENDS_BEFORE),
            value("262144 to 524287 ns, send_share", 4.0 / SENDS_BEFORE),
            value("busylock, contended_per_second", 442_111.0),
            value("busylock, wait_ns_per_second", 6.79e9),
            value("busylock, wait_mean_ns", 15_350.0),
            value("busylock, wait_max_ns", 162.47e6),
            value("root lock, contended_per_second", 5_961.0 + 244.0 + 13.0),
            value("root lock, wait_ns_per_second", 9.57e6 + 560_630.0 + 25_090.0),
            value("root lock, wait_mean_ns", 1_633.0),
            value("root lock, wait_max_ns", 8_120.0),
        ],
        unpredicted: &[
            value("switches_per_second", (14_718.0 + 46_033.0 + 12_107.0 + 10_110.0) / 4.0),
            value("interrupts_per_second", (487_745.0 + 503_067.0 + 494_807.0 + 492_845.0) / 4.0),
        ],
        program: lab(Design::BusylockQueued, false),
    },
    Experiment {
        name: "2025-before-pinned",
        source: "2025",
        title: "before, pinned",
        published: &[
            value("packets_per_second", 41e6),
            value("busylock, contended_per_second", 964_508.0),
            value("busylock, wait_ns_per_second", 7.1e9),
            value("busylock, wait_mean_ns", 7_360.0),
            value("busylock, wait_max_ns", 147.25e6),
            value("root lock, contended_per_second", 201.0 + 12.0),
            value("root lock, wait_ns_per_second", 268_050.0 + 26_050.0),
            value("root lock, wait_mean_ns", 1_381.0),
            value("root lock, wait_max_ns", 4_650.0),
        ],
        unpredicted: &[],
        program: lab(Design::BusylockQueued, true),
    },
    Experiment {
        name: "2025-after-free",
        source: "2025",
        title: "after, not pinned",
        published: &[
            value("packets_per_second", 29e6),
            value("busy_share", 0.23),
            value("running_threads", (75.0 + 104.0 + 86.0 + 90.0) / 4.0),
            value("send_mode_ns", 256.0),
            value("128 to 255 ns, send_share", 1_539_830.0 / SENDS_AFTER),
            value("256 to 511 ns, send_share", 2_299_558.0 / SENDS_AFTER),
            value("512 to 1023 ns, send_share", 483_936.0 / SENDS_AFTER),
            value("1024 to 2047 ns, send_share", 265_345.0 / SENDS_AFTER),
            value("2048 to 4095 ns, send_share", 145_463.0 / SENDS_AFTER),
            value("4096 to 8191 ns, send_share", 54_571.0 / SENDS_AFTER),
            value("8192 to 16383 ns, send_share", 10_270.0 / SENDS_AFTER),
            value("16384 to 32767 ns, send_share", 9_385.0 / SENDS_AFTER),
            value("32768 to 65535 ns, send_share", 7_749.0 / SENDS_AFTER),
            value("65536 to 131071 ns, send_share", 26_799.0 / SENDS_AFTER),
            value("131072 to 262143 ns, send_share", 2_665.0 / SENDS_AFTER),
            value("262144 to 524287 ns, send_share", 665.0 / SENDS_AFTER),
            value("root lock, contended_per_second", 2_524.0 + 5_821.0 + 121.0 + 6.0),
            value("root lock, wait_ns_per_second", 116.15e6 + 107.18e6 + 3.42e6 + 564_330.0),
            value("root lock, wait_mean_ns", 26_831.0),
            value("root lock, wait_max_ns", 486_610.0),
        ],
        unpredicted: &[
            value("switches_per_second", (280_199.0 + 298_247.0 + 291_865.0 + 278_672.0) / 4.0),
            value("interrupts_per_second", (425_713.0 + 430_238.0 + 428_019.0 + 422_498.0) / 4.0),
            value("slab allocator, contended_per_second", 2_377.0 + 923.0),
            value("slab allocator, wait_ns_per_second", 9.73e6 + 5.74e6),
            value("slab allocator, wait_mean_ns", 4_688.0),
            value("slab allocator, wait_max_ns", 35_860.0),
        ],
        program: lab(Design::LlistQueued, false),
    },
    Experiment {
        name: "2025-after-pinned",
        source: "2025",
        title: "after, pinned",
        published: &[
            value("packets_per_second", 57e6),
            value("locks sampled, packets_per_second", 54e6),
            value("root lock, contended_per_second", 32_907.0 + 4_507.0 + 233.0 + 153.0),
            value("root lock, wait_ns_per_second", 316.98e6 + 61.83e6 + 9.09e6 + 930_660.0),
            value("root lock, wait_mean_ns", 10_287.0),
            value("root lock, wait_max_ns", 215_700.0),
        ],
        unpredicted: &[
            value("slab allocator, contended_per_second", 2_781.0 + 3_554.0 + 84.0 + 140.0),
            value("slab allocator, wait_ns_per_second", 23.53e6 + 18.94e6 + 331_100.0 + 323_710.0),
            value("slab allocator, wait_mean_ns", 6_575.0),
            value("slab allocator, wait_max_ns", 40_030.0),
        ],
        program: lab(Design::LlistQueued, true),
    },
];

/// Number of sends in each histogram of 2025.
const SENDS_BEFORE: f64 = 2_332_961.0;
const SENDS_AFTER: f64 = 4_846_236.0;
/// Number of processors on which locks were sampled in 2025, for a second.
const SAMPLED: u16 = 8;

/// Number of senders and of queues.
const SENDERS: u16 = 240;
const QUEUES: u16 = 30;
/// Number of cores of the machine, which has two threads on each.
const CORES: u16 = 240;
/// Simulated time before the measurement and of the measurement, nanoseconds.
const WARM_UP_NS: u64 = 300_000;
const WINDOW_NS: u64 = 500_000;

impl Experiment {
    /// Returns the measurement with this name.
    ///
    /// # Errors
    ///
    /// [`Unknown`] names the measurements that there are.
    pub fn named(name: &str) -> Result<&'static Self, Unknown> {
        EXPERIMENTS.iter().find(|this| this.name == name).ok_or_else(|| {
            let names: Vec<_> = EXPERIMENTS.iter().map(|this| this.name).collect();
            let names = names.join(", ");
            Unknown::new(format!("there is no measurement {name:?}: there are {names}"))
        })
    }

    /// Simulates the measurement with values drawn from the intervals of all parameters, and
    /// returns its figures by name. `seed` 0 takes the middle of each interval.
    ///
    /// # Errors
    ///
    /// [`Unknown`] says what went wrong.
    pub fn simulate(&self, seed: u64) -> Result<BTreeMap<String, f64>, Unknown> {
        match self.program {
            Program::Http2001 => history::http_2001(seed),
            Program::Loopback2004 => history::loopback_2004(seed),
            Program::Udp2009 => history::udp_2009(seed),
            Program::Lab(lab) => lab.simulate(seed),
        }
    }
}

impl Lab {
    fn simulate(self, seed: u64) -> Result<BTreeMap<String, f64>, Unknown> {
        let mut draw = Draw::new(seed);
        let machine = Description::named("xeon-6985p")?.draw(&mut draw);
        let parameters = Parameters::linux_2025()?;
        let cell = self.cell(&parameters, &mut draw, seed)?;
        let most = parameters.draw(&mut draw, "nic_pps_max")? * 1e6;
        let setup = Setup { machine, limit_ns: 10_000_000_000, measure_ns: 0..0 };
        let (outcome, _) = simulate(&setup, move || run(&cell))
            .map_err(|why| Unknown::new(format!("the simulation failed: {why}")))?;
        let outcome = outcome.map_err(|why| Unknown::new(why.to_string()))?;
        Ok(figures(&outcome, most))
    }

    fn cell(self, parameters: &Parameters, draw: &mut Draw, seed: u64) -> Result<Cell, Unknown> {
        let ps = |draw: &mut Draw, name: &str| parameters.picoseconds(draw, name);
        let (enqueue, dequeue) = (ps(draw, "enqueue_fq")?, ps(draw, "dequeue_fq")?);
        // Half of the lines that an enqueue touches are the qdisc's, the others the flow's.
        let lines = parameters.count(draw, "qdisc_lines_enqueue")?;
        // Of these, `fq` charges one line of the flow itself.
        let (own, flow) = (lines - lines / 2, (lines / 2).saturating_sub(1));
        let text = line("fq", enqueue, dequeue, own, flow);
        let kind = charged("fq").ok_or_else(|| Unknown::new("there is no fq".to_owned()))?;
        let wrong = |why: onramp_core::ConfigError| Unknown::new(why.to_string());
        let qdisc = Kinds::new([kind]).and_then(|kinds| kinds.spec(&text)).map_err(wrong)?;
        // The middle of the interval, 0.39, stands for senders without neighbours: the text does
        // not say that XPS was set up.
        let has_xps = parameters.draw(draw, "neighbours_pinned")? > 0.4;
        // The middle stands for the low end, which the note calls the most likely.
        let siblings = parameters.draw(draw, "sibling_busy_pinned")? > 0.5;
        let used = u16::try_from(parameters.either(draw, "queues_used_pinned")?);
        let queues = if self.is_pinned { used.unwrap_or(QUEUES) } else { QUEUES };
        // Fewer queues are in use only with XPS, which gives each a block of neighbours.
        let neighbours = has_xps || queues < QUEUES;
        let place = |n| place(n, queues, neighbours, siblings);
        let senders = (0..SENDERS).map(|n| self.is_pinned.then(|| place(n))).collect();
        let ns = |draw: &mut Draw, name: &str| Ok(parameters.picoseconds(draw, name)? / 1_000);
        Ok(Cell {
            design: self.design,
            manners: Manners::Linux,
            senders,
            load: Load::Stream,
            queues: queues.into(),
            qdisc,
            credits: Some(parameters.count(draw, "sndbuf_packets")?),
            payload: 120,
            local_ns: ns(draw, "syscall_and_udp")?,
            packet_ns: ns(draw, "driver_xmit")?,
            burst_ns: ns(draw, "doorbell")?,
            warm_up_ns: WARM_UP_NS,
            window_ns: WINDOW_NS,
            seed,
        })
    }
}

/// Returns the processor of a sender. The next sender uses the next queue, so if the senders of one
/// queue are neighbours (as with XPS), they lie side by side on the processors, and otherwise the
/// senders of neighbouring queues do. If `siblings` is true, two senders share a core, on half of
/// the cores; otherwise each has one of its own.
fn place(sender: u16, queues: u16, neighbours: bool, siblings: bool) -> u16 {
    let each = SENDERS / queues;
    let at = if neighbours { sender % queues * each + sender / queues } else { sender };
    match siblings {
        // As Linux numbers them: the first threads of all cores, then the second ones.
        true => at / 2 + at % 2 * CORES,
        false => at,
    }
}

/// Returns the figures of a simulation. The card sends at most `most` packets a second.
fn figures(outcome: &Outcome, most: f64) -> BTreeMap<String, f64> {
    let times = &outcome.report.times;
    let busy = 1.0 - times.idle as f64 / times.all().max(1) as f64;
    let octaves = outcome.send.octaves();
    let mode = octaves.buckets().max_by_key(|(_, _, count)| *count);
    let mode_ns = mode.map_or(0.0, |(from, ..)| from as f64);
    let rate = outcome.packets_per_second().min(most);
    let mut figures = BTreeMap::from([
        ("packets_per_second".to_owned(), rate),
        // To count the waits for locks takes no simulated time.
        ("locks sampled, packets_per_second".to_owned(), rate),
        ("busy_share".to_owned(), busy),
        ("running_threads".to_owned(), busy * f64::from(2 * CORES)),
        ("send_mode_ns".to_owned(), mode_ns),
    ]);
    let sends: BTreeMap<_, _> = octaves.buckets().map(|(from, _, count)| (from, count)).collect();
    for from in (7..=18).map(|bit| 1_u64 << bit) {
        let count = sends.get(&from).copied().unwrap_or(0);
        let name = format!("{from} to {} ns, send_share", 2 * from - 1);
        figures.insert(name, count as f64 / octaves.total().max(1) as f64);
    }
    outcome.locks.iter().for_each(|row| figures.extend(waits(row, outcome.window_ns)));
    figures
}

/// Returns the waits for a lock, as a sample of some processors for a second has them. Each sender
/// keeps a processor of its own, so the sample sees as many senders as processors. The longest wait
/// is that of all senders in the measured time, which is much shorter than a second.
fn waits(row: &LockRow, window_ns: u64) -> impl Iterator<Item = (String, f64)> {
    let name = if row.name == "root" { "root lock" } else { &row.name };
    let counts = &row.counts;
    let sampled =
        |sum: u64| sum as f64 * f64::from(SAMPLED) / f64::from(SENDERS) * 1e9 / window_ns as f64;
    let figures = [
        ("contended_per_second", sampled(counts.contended)),
        ("wait_ns_per_second", sampled(counts.wait_total_ns)),
        ("wait_mean_ns", row.wait_avg_ns()),
        ("wait_max_ns", counts.wait_max_ns as f64),
    ];
    figures.map(|(figure, value)| (format!("{name}, {figure}"), value)).into_iter()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use onramp_lab::lockstat::LockCounts;
    use onramp_lab::measure::Latency;

    use super::*;

    /// Of quick measurements, and of those with the same program: a figure that is not simulated
    /// would have no row.
    #[test]
    fn what_was_published_is_simulated() {
        for name in ["2001-http", "2025-before-free"] {
            let experiment = Experiment::named(name).unwrap();
            let figures = experiment.simulate(0).unwrap();
            let alike = EXPERIMENTS.iter().filter(|other| other.source == experiment.source);
            for published in alike.flat_map(|experiment| experiment.published) {
                let figure = figures.get(published.name);
                assert!(figure.is_some_and(|it| it.is_finite()), "{name}: {published:?}");
            }
            for published in experiment.unpredicted {
                assert_eq!(figures.get(published.name), None, "{name}: {published:?}");
            }
        }
    }

    /// Half of the senders wait for a lock, each once for a microsecond in a tenth of a second, and
    /// a send takes 300 ns or 1,000.
    #[test]
    fn waits_and_sends_are_those_of_the_published_sample() {
        let mut outcome = Outcome { sent: 1_000, window_ns: 100_000_000, ..nothing() };
        for ns in [300, 300, 300, 1_000] {
            outcome.send.record(ns);
        }
        let counts = LockCounts {
            acquired: 1_000,
            contended: 120,
            wait_total_ns: 120_000,
            wait_max_ns: 5_000,
            ..LockCounts::default()
        };
        let (name, window_ns) = ("root".to_owned(), 30 * outcome.window_ns);
        outcome.locks.push(LockRow { name, kind: "queued", counts, window_ns });
        let figures = figures(&outcome, 9_000.0);
        for (name, value) in [
            ("packets_per_second", 9_000.0),
            ("locks sampled, packets_per_second", 9_000.0),
            // Eight of 240 senders, ten times as long.
            ("root lock, contended_per_second", 40.0),
            ("root lock, wait_ns_per_second", 40_000.0),
            ("root lock, wait_mean_ns", 1_000.0),
            ("root lock, wait_max_ns", 5_000.0),
            ("256 to 511 ns, send_share", 0.75),
            ("512 to 1023 ns, send_share", 0.25),
            ("1024 to 2047 ns, send_share", 0.0),
            ("send_mode_ns", 256.0),
        ] {
            assert!((figures[name] - value).abs() < 1e-6, "{name}: {figures:?}");
        }
        assert!(!figures.contains_key("busylock, wait_mean_ns"), "there is none");
    }

    fn nothing() -> Outcome {
        Outcome {
            sent: 0,
            window_ns: 0,
            submitted: Vec::new(),
            dropped: BTreeMap::new(),
            waits: 0,
            send: Latency::default(),
            accept: Latency::default(),
            locks: Vec::new(),
            report: onramp_machine::Report::default(),
        }
    }

    #[test]
    fn published_shares_of_sends_are_of_all_sends() {
        for name in ["2025-before-free", "2025-after-free"] {
            let published = Experiment::named(name).unwrap().published.iter();
            let shares = published.filter(|published| published.name.ends_with("send_share"));
            let sum: f64 = shares.map(|published| published.value).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{name}: {sum}");
        }
    }

    /// What the text does not tell of pinned senders is drawn: their queues, their neighbours, and
    /// whether they share cores.
    #[test]
    fn pinned_senders_are_placed_in_several_ways() {
        let parameters = Parameters::linux_2025().unwrap();
        let lab = Lab { design: Design::LlistQueued, is_pinned: true };
        let cell = |seed| lab.cell(&parameters, &mut Draw::new(seed), seed).unwrap();
        let ways = (0..200).map(|seed| {
            let cell = cell(seed);
            let places: BTreeSet<_> = cell.senders.iter().flatten().copied().collect();
            assert_eq!(places.len(), usize::from(SENDERS), "each sender has its own processor");
            let is_paired = places.last() >= Some(&CORES);
            // The next sender of the first queue.
            let is_near = cell.senders[cell.queues] == Some(if is_paired { CORES } else { 1 });
            (cell.queues, is_paired, is_near)
        });
        let ways: BTreeSet<_> = ways.collect();
        let all = [false, true].map(|is_paired| {
            [(15, is_paired, true), (30, is_paired, true), (30, is_paired, false)]
        });
        assert_eq!(ways, all.into_iter().flatten().collect());
        assert_eq!(cell(0).queues, 30);
        assert_eq!(cell(0).senders.last(), Some(&Some(SENDERS - 1)), "a core for each");
    }

    #[test]
    fn measurements_are_found_by_their_names() {
        for experiment in EXPERIMENTS {
            assert_eq!(Experiment::named(experiment.name).unwrap().title, experiment.title);
            let year = experiment.name.split('-').next();
            assert_eq!(year, Some(experiment.source));
        }
        let why = Experiment::named("1999").unwrap_err().to_string();
        assert!(why.contains("\"1999\"") && why.contains("2009-udp"), "{why}");
    }
}
