//! A planned case: a tree of qdiscs, changes during the run, a link, and the packets that arrive.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use onramp_sim::recording::Case;

/// How exactly our result of a case has to equal the kernel's. A case takes the loosest level that
/// any of its kinds and options asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compared {
    /// Order, times, marks and drops have to be equal, to the nanosecond.
    Exact,
    /// As `Exact`, but the result depends on which flows share a bucket of a hash with a secret
    /// key. The kernel runs the case several times with different keys. If one result equals ours,
    /// the case agrees; otherwise it is compared as for `Chance`.
    Hash,
    /// Results are compared by distribution, over several runs of the kernel and of ours.
    Chance,
}

impl Compared {
    /// Returns the word that the command line uses for this level.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Hash => "hash",
            Self::Chance => "chance",
        }
    }
}

/// An option of a `tc` command of the plan, such as `limit 100`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opt {
    /// The option as it is typed.
    pub text: String,
    /// Whether the option must not be removed to make the case smaller, because the line is invalid
    /// without it, or because Onramp is documented to differ from Linux without it.
    pub needed: bool,
    /// The most exact comparison with the kernel that this option allows.
    pub compared: Compared,
}

/// A line of `tc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The `tc` line up to the name of the kind.
    pub head: String,
    /// The kind of the qdisc or class; `filter` for lines about filters.
    pub kind: &'static str,
    /// The most exact comparison with the kernel that the kind allows, whatever its options are.
    pub compared: Compared,
    /// The options after the kind.
    pub options: Vec<Opt>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.head)?;
        self.options.iter().try_for_each(|option| write!(f, " {}", option.text))
    }
}

/// A packet that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Arrival time, in nanoseconds from the beginning of the case.
    pub time_ns: u64,
    /// The number of the packet's flow.
    pub flow: u64,
    /// Size in bytes, link header included.
    pub bytes: u32,
    /// The priority of the packet, or the handle of the class that the packet selects.
    pub priority: u32,
    /// The type-of-service byte, whose last two bits are those of ECN.
    pub tos: u8,
    /// The earliest departure time, in nanoseconds from the beginning of the case. `None` if the
    /// packet has no such time.
    pub txtime_ns: Option<u64>,
}

/// A whole case: the tree, its changes, the link and the packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The number (seed) from which the case was generated.
    pub seed: u64,
    /// Rate of the link in bits per second. 0 means infinitely fast.
    pub link_bps: u64,
    /// Whether packets bypass a qdisc that is empty.
    pub bypass: bool,
    /// Whether the packets' transmit times use CLOCK_TAI. Otherwise they use the monotonic clock.
    pub tai: bool,
    /// The `tc` lines that build the tree before the run.
    pub lines: Vec<Line>,
    /// The `tc` lines that change the tree during the run, with their times in nanoseconds from the
    /// beginning of the case.
    pub changes: Vec<(u64, Line)>,
    /// The packets that arrive, in the order of time.
    pub rows: Vec<Row>,
    /// Pacing rates of flows in bytes per second, by the number of the flow. Flows without an entry
    /// have no rate limit of their own.
    pub pacing: BTreeMap<u64, u64>,
}

impl Plan {
    /// Returns how exactly our results of this case have to equal the kernel's.
    #[must_use]
    pub fn compared(&self) -> Compared {
        let lines = self.lines.iter().chain(self.changes.iter().map(|(_, line)| line));
        let of = |line: &Line| {
            line.options.iter().map(|option| option.compared).max().max(Some(line.compared))
        };
        lines.filter_map(of).max().unwrap_or(Compared::Exact)
    }

    /// Returns the kinds of the tree's qdiscs, each once.
    #[must_use]
    pub fn kinds(&self) -> Vec<&'static str> {
        let qdiscs = self.lines.iter().filter(|line| line.head.starts_with("tc qdisc"));
        let mut kinds: Vec<_> = qdiscs.map(|line| line.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Whether the kernel's clock has to tick all the time, even on an idle machine, where Linux
    /// stops the ticks. Without ticks, two kinds of timers would fire at unpredictable times:
    /// timers with slack (`fq`) and deferrable timers, which do not wake an idle processor
    /// (`perturb`).
    #[must_use]
    pub fn ticks(&self) -> bool {
        self.kinds().contains(&"fq")
            || self.lines.iter().any(|line| line.to_string().contains(" perturb "))
    }

    /// Returns the content of the file `opts`, which tells the oracle how to run the case.
    #[must_use]
    pub fn opts(&self) -> String {
        let clock = if self.tai { "TXCLOCK=11\n" } else { "" };
        let ticks = if self.ticks() { "TICKS=1\n" } else { "" };
        let bypass = u8::from(!self.bypass);
        format!("LINK={}\nNOBYPASS={bypass}\nMAXWAIT=600\n{clock}{ticks}", self.link_bps)
    }

    /// Returns the content of the file `workload.csv`, which tells the oracle which packets arrive.
    #[must_use]
    pub fn workload(&self) -> String {
        let timed = self.rows.iter().any(|row| row.txtime_ns.is_some());
        let mut text = String::from("time_ns,flow_id,size_bytes,priority,ecn");
        text += if timed { ",txtime_ns\n" } else { "\n" };
        for row in &self.rows {
            let Row { time_ns, flow, bytes, priority, tos, txtime_ns } = row;
            let _ = write!(text, "{time_ns},{flow},{bytes},{priority:#x},{tos}");
            match txtime_ns {
                Some(at) if timed => drop(write!(text, ",{at}")),
                None if timed => text += ",-1",
                _ => {}
            }
            text += "\n";
        }
        text
    }

    /// Returns the case as one text, with `kernel` as the kernel's answer. `changes` has the time
    /// at which each change began and ended, in nanoseconds. The caller may append the final `tc`
    /// listing below a line `== stats.txt`.
    #[must_use]
    pub fn text(&self, tc: &str, changes: &[(u64, u64)], kernel: &str) -> String {
        let mut text = format!("== opts\n{}== tc.txt\n{tc}", self.opts());
        if !changes.is_empty() {
            text += "== changes.csv\nfrom_ns,to_ns,line\n";
        }
        for ((_, line), (from_ns, to_ns)) in self.changes.iter().zip(changes) {
            let _ = writeln!(text, "{from_ns},{to_ns},{line}");
        }
        if !self.pacing.is_empty() {
            let _ = write!(text, "== flows.csv\n{}", self.flows());
        }
        let _ = write!(text, "== workload.csv\n{}== kernel.csv\n{kernel}", self.workload());
        text
    }

    /// Runs the case on our qdiscs. Returns the times at which packets leave, in nanoseconds from
    /// the beginning of the case. Returns `None` if a line of the tree is refused.
    #[must_use]
    pub fn departures(&self) -> Option<Vec<u64>> {
        let tc: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
        let changes: Vec<_> = self.changes.iter().map(|(at, _)| (*at, *at)).collect();
        let text = self.text(&tc, &changes, "event,time_ns,idx,ecn,reason\n");
        let case = Case::parse("planned", &text).ok()?;
        Some(case.play(1).departures().collect())
    }

    /// Returns the content of the file `flows.csv`, which tells the oracle the pacing rates of
    /// flows. Empty if no flow has a pacing rate.
    #[must_use]
    pub fn flows(&self) -> String {
        self.pacing.iter().map(|(flow, rate)| format!("{flow},{rate}\n")).collect()
    }
}
