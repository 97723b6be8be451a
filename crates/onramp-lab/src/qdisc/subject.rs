//! The subjects that the experiment measures, and their configurations, which avoid drops and
//! delays that a qdisc's options would cause.

use onramp_core::qdisc::{ClassKind, Kind};
use onramp_core::{Setup, Tree};

use super::{LEN, PACKET_NS, ROOT};
use crate::Error;

/// Largest packet of the device for which the qdiscs are built, bytes, link header included.
const MTU: u32 = 1514;
/// Largest number of classes that a subject gets.
const CLASSES_MAX: u32 = 65_000;
/// Largest distance of the thresholds of `red`, bytes. `red` refuses its usual probability of 2 %
/// if they are more than 42 MB apart.
const RED_SPAN_MAX: u32 = 40_000_000;
/// Largest threshold of `red`, bytes: it stores averages times 2 in 31 bits.
const RED_MAX: u32 = (1 << 30) - 1;

/// A subject of the experiment: a kind of qdisc, or a scheduler to compare it with.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    /// A kind of qdisc with options that suit the experiment.
    Kind(&'static Kind),
    /// `fq` with a rate for each flow, so that all flows together send one packet every 100 ns.
    PacedFq,
    /// Packets in a `BinaryHeap`, and the departure times of flows in a `HashMap`.
    BinaryHeap,
    /// Packets in a `BTreeMap`, and the departure times of flows in a `HashMap`.
    BTreeMap,
}

impl Subject {
    /// Returns the name of the subject in reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kind(kind) => kind.id,
            Self::PacedFq => "fq-paced",
            Self::BinaryHeap => "binary-heap",
            Self::BTreeMap => "btree-map",
        }
    }

    /// Returns the largest backlog that the subject can hold without drops, packets: `bfifo` and
    /// `red` count bytes in 32 bits.
    #[must_use]
    pub fn backlog_max(&self) -> u32 {
        match self.name() {
            "bfifo" => u32::MAX / LEN,
            "red" => (RED_MAX - RED_SPAN_MAX) / LEN - 1,
            _ => u32::MAX,
        }
    }

    /// Whether this kind of qdisc is measured. The experiment leaves out kinds that keep no packets
    /// (such as `noop`), that send packets only after a command (`plug`) or only at departure times
    /// (`etf`), or whose classes are the queues of a device (such as `mq`).
    pub(super) fn is_measured(kind: &Kind) -> bool {
        !kind.quirks.stands_at_root
            && !matches!(kind.id, "noqueue" | "blackhole" | "noop" | "plug" | "etf")
    }

    /// Returns the number of classes among which packets of `flows` flows are divided; `None` if
    /// the subject has no classes.
    pub(super) fn classes(&self, flows: u32) -> Option<u32> {
        let Self::Kind(kind) = self else { return None };
        match kind.classes {
            ClassKind::Added { .. } => Some(flows.min(CLASSES_MAX)),
            // A qdisc with one class (the place of its child) does not divide packets, so only
            // kinds with bands have classes here.
            ClassKind::Fixed(_) => self.bands().map(|bands| bands.min(flows)),
            ClassKind::None => None,
        }
    }

    /// Returns the number of bands of a kind of qdisc that divides packets among bands; `None` for
    /// other kinds.
    fn bands(&self) -> Option<u32> {
        matches!(self.name(), "prio" | "ets" | "multiq").then_some(16)
    }

    /// Builds the tree of qdiscs that is measured.
    pub(super) fn tree(&self, flows: u32, backlog: u32) -> Result<Tree, Error> {
        let mut setup = Setup::default();
        for line in self.lines(flows, backlog) {
            setup.apply(&line).map_err(|error| Error::Setup(line, error.to_string()))?;
        }
        Tree::of(&setup, MTU, 1)
            .ok_or_else(|| Error::Setup(self.name().into(), "it has no root".into()))
    }

    /// Returns the `tc` commands that set up the subject. Limits leave room for all packets, rates
    /// are far above the traffic, and qdiscs that drop packets because of their waiting time get
    /// very long targets.
    fn lines(&self, flows: u32, backlog: u32) -> Vec<String> {
        let room = backlog.saturating_mul(2).max(1_000);
        let options = match self.name() {
            "pfifo" | "pfifo_head_drop" | "skbprio" | "netem" => format!("limit {room}"),
            "bfifo" => format!("limit {}", room.saturating_mul(LEN)),
            "pfifo_fast" => format!("txqueuelen {room}"),
            "fq" => format!("limit {room} flow_limit {room}"),
            "fq-paced" => {
                let rate = (u64::from(LEN) * 1_000_000_000 / PACKET_NS / u64::from(flows)).max(1);
                format!(
                    "limit {room} flow_limit {room} quantum {LEN} maxrate {rate}bps timer_slack 0"
                )
            }
            "codel" => format!("limit {room} target 1000s interval 2000s"),
            "fq_codel" => format!(
                "limit {room} flows {} target 1000s interval 2000s memory_limit 2gb",
                flows.clamp(1_024, 65_536)
            ),
            // Linux's `sfq` holds at most 127 packets per flow.
            "sfq" => format!("limit {room} depth 127 divisor 65536 flows 65408"),
            "pie" | "dualpi2" => format!("limit {room} target 1000s"),
            "fq_pie" => format!("limit {room} target 1000s memory_limit 2gb"),
            "red" | "choke" => red(self.name(), room),
            "tbf" => "rate 200gbit burst 64mb limit 4294967295b".into(),
            "cbs" => "idleslope 199000000 sendslope -1000000 hicredit 1514 locredit -1514 \
                      port_rate 200gbit"
                .into(),
            "prio" | "ets" | "multiq" => "bands 16".into(),
            // Isolate packets by flows, not by hosts. Otherwise a flow gets such a small part of
            // its host's turn that with hundreds of flows each packet costs hundreds of turns, as
            // in Linux.
            "cake" => "unlimited besteffort flows memlimit 2gb".into(),
            _ => String::new(),
        };
        let kind = if let Self::PacedFq = self { "fq" } else { self.name() };
        let mut lines = vec![format!("qdisc add dev lab root handle {ROOT}: {kind} {options}")];
        let class = match kind {
            // All packets may belong to one class, so the rate of each class is far above the whole
            // traffic.
            "htb" => "rate 200gbit burst 1mb cburst 1mb quantum 1514",
            "hfsc" => "ls rate 1gbit",
            _ => "",
        };
        let classes = self.classes(flows).unwrap_or(0);
        for minor in 1..=classes {
            if self.bands().is_none() {
                lines.push(format!(
                    "class add dev lab parent {ROOT}: classid {ROOT}:{minor:x} {kind} {class}"
                ));
            }
            // The `pfifo` that a class has by default holds 1,000 packets, which may be too few if
            // there are few classes.
            if classes < 1_000 {
                lines.push(format!("qdisc add dev lab parent {ROOT}:{minor:x} pfifo limit {room}"));
            }
        }
        if kind == "cbs" {
            lines.push(format!("qdisc add dev lab parent {ROOT}:1 pfifo limit {room}"));
        }
        lines
    }
}

/// Returns the options of `red` or `choke`. Their thresholds lie above the standing backlog.
fn red(kind: &str, room: u32) -> String {
    match kind {
        "red" => {
            let min = room.saturating_mul(LEN).min(RED_MAX - RED_SPAN_MAX);
            // `red` refuses an average over more than a million packets (`min` / `avpkt`), so
            // `avpkt` is 100 times a packet.
            let (max, average) = (min + min.min(RED_SPAN_MAX), LEN * 100);
            let burst = min.div_ceil(average);
            format!(
                "limit {max} min {min} max {max} avpkt {average} burst {burst} bandwidth 10gbit"
            )
        }
        // The limit of `choke` may be at most 131,071 packets, so `choke` drops packets if the
        // backlog is 40,000 packets or more.
        _ => {
            let min = room.min(40_000);
            format!("limit {} min {min} max {} bandwidth 10gbit", min * 3, min * 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_can_be_set_up_for_every_backlog_that_it_holds() {
        for kind in onramp_core::qdisc::KINDS.iter().filter(|kind| Subject::is_measured(kind)) {
            for backlog in [64, 1_000, 10_000, 100_000, 1_500_000, 10_000_000] {
                let backlog = backlog.min(Subject::Kind(kind).backlog_max());
                // The number of flows affects only the number of classes, and 20 classes test as
                // much as 65,000.
                let tree = Subject::Kind(kind).tree(20, backlog);
                assert!(tree.is_ok(), "{} with {backlog} packets: {tree:?}", kind.id);
            }
        }
        assert!(Subject::PacedFq.tree(1_000_000, 1_000_000).is_ok());
    }

    /// A `bfifo` with the largest backlog that it can hold has no room for one packet more, and a
    /// `red` drops nothing while its average is below `min`.
    #[test]
    fn the_largest_backlogs_are_within_the_limits() {
        let number = |id: &str, key: &str| -> u32 {
            let kind = onramp_core::qdisc::KINDS.iter().find(|kind| kind.id == id);
            let subject = Subject::Kind(kind.expect("a kind"));
            let line = subject.lines(1, subject.backlog_max()).swap_remove(0);
            let mut words = line.split_whitespace().skip_while(|word| *word != key);
            let bytes: u32 = words.nth(1).and_then(|word| word.parse().ok()).expect("a number");
            bytes.checked_sub(subject.backlog_max() * LEN).expect("it has room")
        };
        assert!(number("bfifo", "limit") < LEN);
        assert!((1..=2 * LEN).contains(&number("red", "min")));
    }
}
