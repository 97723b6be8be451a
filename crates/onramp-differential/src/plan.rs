//! A case as it is planned: a tree, changes under way, a wire, and what comes.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use onramp_sim::recording::Case;

/// How much of a case has to be equal: the greatest of what its kinds and options say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compared {
    /// Sequence, times, marks and drops, to the nanosecond.
    Exact,
    /// The same, where no two flows share a bucket of a hash with a secret key: of several answers
    /// of the kernel, which differ in that key, one has to be ours. Else by distribution.
    Hash,
    /// By distribution, over several draws of the kernel and of ours.
    Chance,
}

impl Compared {
    /// In a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Hash => "hash",
            Self::Chance => "chance",
        }
    }
}

/// An option of a line, such as `limit 100`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opt {
    /// As it is typed.
    pub text: String,
    /// The line makes no sense without it, or means something that is documented to differ.
    pub needed: bool,
    /// What it makes of the case.
    pub compared: Compared,
}

/// A line of `tc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Up to the kind.
    pub head: String,
    /// The kind of qdisc, or of class; `filter` for filters.
    pub kind: &'static str,
    /// What the kind makes of the case.
    pub compared: Compared,
    /// Behind it.
    pub options: Vec<Opt>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.head)?;
        self.options.iter().try_for_each(|option| write!(f, " {}", option.text))
    }
}

/// A packet that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Nanoseconds from the beginning.
    pub time_ns: u64,
    /// Its flow.
    pub flow: u64,
    /// Bytes, link header included.
    pub bytes: u32,
    /// Its priority, or a class.
    pub priority: u32,
    /// The type of service, whose last two bits are those of ECN.
    pub tos: u8,
    /// When it may leave, nanoseconds from the beginning.
    pub txtime_ns: Option<u64>,
}

/// A whole case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its number, from which it was made.
    pub seed: u64,
    /// Bits per second of the wire; 0: infinitely fast.
    pub link_bps: u64,
    /// Packets pass an empty qdisc by.
    pub bypass: bool,
    /// The clock of the packets' times is TAI, not the monotonic one.
    pub tai: bool,
    /// The tree.
    pub lines: Vec<Line>,
    /// Lines under way, and when, nanoseconds from the beginning.
    pub changes: Vec<(u64, Line)>,
    /// What comes, in order.
    pub rows: Vec<Row>,
    /// Bytes per second at most of flows that have such a bound.
    pub pacing: BTreeMap<u64, u64>,
}

impl Plan {
    /// How much of it has to be equal.
    #[must_use]
    pub fn compared(&self) -> Compared {
        let lines = self.lines.iter().chain(self.changes.iter().map(|(_, line)| line));
        let of = |line: &Line| {
            line.options.iter().map(|option| option.compared).max().max(Some(line.compared))
        };
        lines.filter_map(of).max().unwrap_or(Compared::Exact)
    }

    /// The kinds of its qdiscs, each once.
    #[must_use]
    pub fn kinds(&self) -> Vec<&'static str> {
        let qdiscs = self.lines.iter().filter(|line| line.head.starts_with("tc qdisc"));
        let mut kinds: Vec<_> = qdiscs.map(|line| line.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Whether the kernel's clock has to tick all the time. Where nothing goes on it stops, and
    /// ticks for reasons of the kernel's own; but timers with slack (`fq`) run with any tick, and
    /// those that wait for a processor to be awake (`perturb`) with ticks alone.
    #[must_use]
    pub fn ticks(&self) -> bool {
        self.kinds().contains(&"fq")
            || self.lines.iter().any(|line| line.to_string().contains(" perturb "))
    }

    /// The file `opts`.
    #[must_use]
    pub fn opts(&self) -> String {
        let clock = if self.tai { "TXCLOCK=11\n" } else { "" };
        let ticks = if self.ticks() { "TICKS=1\n" } else { "" };
        let bypass = u8::from(!self.bypass);
        format!("LINK={}\nNOBYPASS={bypass}\nMAXWAIT=600\n{clock}{ticks}", self.link_bps)
    }

    /// The file `workload.csv`.
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

    /// The case as one text, as if the kernel had answered this; changes are made at these times,
    /// begun and ended. What the kernel showed in the end may be added behind it, below a line
    /// `== stats.txt`.
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

    /// When our packets leave, nanoseconds from the beginning; nothing, if the lines are not all
    /// taken.
    #[must_use]
    pub fn departures(&self) -> Option<Vec<u64>> {
        let tc: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
        let changes: Vec<_> = self.changes.iter().map(|(at, _)| (*at, *at)).collect();
        let text = self.text(&tc, &changes, "event,time_ns,idx,ecn,reason\n");
        let case = Case::parse("planned", &text).ok()?;
        Some(case.play(1).departures().collect())
    }

    /// The file `flows.csv`; empty, if no flow has a rate.
    #[must_use]
    pub fn flows(&self) -> String {
        self.pacing.iter().map(|(flow, rate)| format!("{flow},{rate}\n")).collect()
    }
}
