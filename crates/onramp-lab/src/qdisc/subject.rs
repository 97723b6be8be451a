//! The subjects that the experiment measures, and their configurations, which avoid drops and
//! delays that a qdisc's options would cause.

use onramp_core::qdisc::{ClassKind, Kind};
use onramp_core::{Setup, Tree};

use super::{LEN, PACKET_NS, ROOT, check_stop};
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
/// Largest limit of `choke`, packets.
const CHOKE_MAX: u32 = 131_071;
/// Memory that Linux charges for a packet of [`LEN`] bytes, bytes.
const MEMORY: u32 = 2_304;
/// Largest queue of a flow of `sfq`, packets.
const SFQ_DEPTH: u32 = 127;
/// Packets for each flow that `sfq` holds even if several flows share a queue by chance, and the
/// number of flows up to which this holds.
const SFQ_SHARE: (u32, u32) = (16, 16_384);
/// Average number of packets in a class from which on a class may, by chance, get more packets than
/// the 1,000 that its default `pfifo` holds. A tree has at most 32,766 qdiscs, so ten million
/// packets must not need a `pfifo` for each of more classes.
const CLASS_SHARE_MAX: u32 = 320;

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

    /// Returns the largest backlog of `flows` flows that the subject can hold without drops,
    /// packets. Some kinds count bytes, or the memory of packets, in 32 bits; `choke` and `sfq`
    /// hold few packets in Linux, too.
    #[must_use]
    pub fn backlog_max(&self, flows: u32) -> u32 {
        match self.name() {
            "bfifo" | "tbf" => u32::MAX / LEN,
            "fq_codel" | "fq_pie" | "cake" | "dualpi2" => u32::MAX / MEMORY,
            "red" => (RED_MAX - RED_SPAN_MAX) / LEN - 1,
            "choke" => CHOKE_MAX - 2,
            "sfq" => SFQ_DEPTH.max(SFQ_SHARE.0 * flows.min(SFQ_SHARE.1)),
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
            check_stop()?;
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
                "limit {room} flows {} target 1000s interval 2000s memory_limit {}b",
                flows.clamp(1_024, 65_536),
                u32::MAX
            ),
            "sfq" => format!("limit {room} depth {SFQ_DEPTH} divisor 65536 flows 65408"),
            "pie" | "dualpi2" => format!("limit {room} target 1000s"),
            "fq_pie" => format!("limit {room} target 1000s memory_limit {}b", u32::MAX),
            "red" | "choke" => red(self.name(), room),
            "tbf" => "rate 200gbit burst 64mb limit 4294967295b".into(),
            "cbs" => "idleslope 199000000 sendslope -1000000 hicredit 1514 locredit -1514 \
                      port_rate 200gbit"
                .into(),
            "prio" | "ets" | "multiq" => "bands 16".into(),
            // Isolate packets by flows, not by hosts. Otherwise a flow gets such a small part of
            // its host's turn that with hundreds of flows each packet costs hundreds of turns, as
            // in Linux.
            "cake" => format!("unlimited besteffort flows memlimit {}b", u32::MAX),
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
        // `multiq` spreads even few flows over all bands.
        let classes = self.bands().or_else(|| self.classes(flows)).unwrap_or(0);
        for minor in 1..=classes {
            if self.bands().is_none() {
                lines.push(format!(
                    "class add dev lab parent {ROOT}: classid {ROOT}:{minor:x} {kind} {class}"
                ));
            }
            // The `pfifo` that a class has by default holds 1,000 packets, which may be too few if
            // there are few classes or many packets.
            if classes < 1_000 || backlog / classes >= CLASS_SHARE_MAX {
                lines.push(format!("qdisc add dev lab parent {ROOT}:{minor:x} pfifo limit {room}"));
            }
        }
        let places = match kind {
            "cbs" => 1,
            "series" => 2,
            _ => 0,
        };
        for place in 1..=places {
            lines.push(format!("qdisc add dev lab parent {ROOT}:{place} pfifo limit {room}"));
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
        _ => {
            let min = room.min(CHOKE_MAX - 2);
            let (max, limit) = ((min * 2).min(CHOKE_MAX - 1), (min * 3).min(CHOKE_MAX));
            format!("limit {limit} min {min} max {max} bandwidth 10gbit")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::peer::{Heap, Sorted};
    use super::super::{Keys, Scheduler, fill, subjects};
    use super::*;
    use onramp_core::Instant;

    #[test]
    fn every_kind_can_be_set_up_for_every_backlog_that_it_holds() {
        for kind in onramp_core::qdisc::KINDS.iter().filter(|kind| Subject::is_measured(kind)) {
            for backlog in [64, 1_000, 10_000, 100_000, 1_500_000, 10_000_000] {
                let backlog = backlog.min(Subject::Kind(kind).backlog_max(20));
                // The number of flows affects only the number of classes, and 20 classes test as
                // much as 65,000.
                let tree = Subject::Kind(kind).tree(20, backlog);
                assert!(tree.is_ok(), "{} with {backlog} packets: {tree:?}", kind.id);
            }
        }
        assert!(Subject::PacedFq.tree(1_000_000, 1_000_000).is_ok());
        assert!(kind("drr").tree(100_000, 10_000_000).is_ok());
    }

    /// The limits of the kinds that hold more than a million packets leave room for the largest
    /// backlog, but for no packet more; a `red` drops nothing while its average is below `min`.
    #[test]
    fn the_largest_backlogs_are_within_the_limits() {
        let checked = [
            ("bfifo", "limit", LEN),
            ("tbf", "limit", LEN),
            ("fq_codel", "memory_limit", MEMORY),
            ("fq_pie", "memory_limit", MEMORY),
            ("cake", "memlimit", MEMORY),
            ("red", "min", LEN),
        ];
        for (id, key, each) in checked {
            let subject = kind(id);
            let most = subject.backlog_max(1);
            let line = subject.lines(1, most).swap_remove(0);
            let mut words = line.split_whitespace().skip_while(|word| *word != key);
            let number = words.nth(1).map(|word| word.trim_end_matches('b').parse::<u32>());
            let room = number.expect("it is given").expect("a number").checked_sub(most * each);
            let most_room = if id == "red" { 2 * LEN } else { each - 1 };
            assert!(room.is_some_and(|room| room <= most_room), "{id}: {room:?}, {line}");
        }
    }

    /// Fills each kind with as many packets as it holds, or with 135,000 if it holds more.
    #[test]
    fn every_kind_holds_its_largest_backlog() {
        let sfq = [2, 1_000, SFQ_SHARE.1, 1_000_000].map(|flows| (kind("sfq"), flows));
        let each = subjects().into_iter().map(|subject| (subject, 1));
        for (subject, flows) in each.chain(sfq) {
            let backlog = subject.backlog_max(flows).min(135_000);
            assert_eq!(held(subject, flows, backlog), backlog, "{} {flows}", subject.name());
        }
    }

    /// Many packets need larger queues in classes than the default, also if there are many classes.
    #[test]
    fn classes_have_room() {
        for (id, backlog, lines) in [("drr", 1_000_000, 2_001), ("drr", 1_000, 1_001)] {
            assert_eq!(kind(id).lines(1_000, backlog).len(), lines, "{id} {backlog}");
        }
    }

    /// The bounds of `choke` and of `sfq` with one flow are exact.
    #[test]
    fn smaller_bounds_are_exact() {
        assert_eq!(held(kind("sfq"), 1, SFQ_DEPTH + 1), SFQ_DEPTH);
        assert!(held(kind("choke"), 1, CHOKE_MAX + 1) < CHOKE_MAX + 1);
    }

    fn held(subject: Subject, flows: u32, backlog: u32) -> u32 {
        let mut keys = Keys::new(subject, flows);
        let mut tree;
        let (mut heap, mut sorted) = (Heap::new(flows), Sorted::new(flows));
        let scheduler: &mut dyn Scheduler = match subject {
            Subject::BinaryHeap => &mut heap,
            Subject::BTreeMap => &mut sorted,
            Subject::Kind(_) | Subject::PacedFq => {
                tree = subject.tree(flows, backlog).expect("it can be set up");
                &mut tree
            }
        };
        fill(scheduler, &mut keys, backlog, Instant(1_000_000_000)).expect("nothing stops it")
    }

    fn kind(id: &str) -> Subject {
        let found = onramp_core::qdisc::KINDS.iter().find(|kind| kind.id == id);
        Subject::Kind(found.expect("a kind"))
    }
}
