//! What is measured, and how it is set up so that it neither drops nor holds back what it need not.

use onramp_core::qdisc::{ClassKind, Kind};
use onramp_core::{Setup, Tree};

use super::{LEN, PACKET_NS, ROOT};
use crate::Error;

/// Largest packet of the device, link header included.
const MTU: u32 = 1514;
/// Classes that a qdisc is given at most.
const CLASSES_MAX: u32 = 65_000;

/// A kind, or what it is compared to.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    /// A qdisc.
    Kind(&'static Kind),
    /// `fq` with a rate for each flow, such that all together send one packet every 100 ns.
    PacedFq,
    /// A `BinaryHeap`, and a `HashMap` of flows.
    BinaryHeap,
    /// A `BTreeMap`, and a `HashMap` of flows.
    BTreeMap,
}

impl Subject {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kind(kind) => kind.id,
            Self::PacedFq => "fq-paced",
            Self::BinaryHeap => "binary-heap",
            Self::BTreeMap => "btree-map",
        }
    }

    /// Whether it lets packets out that have no departure time, and nobody asks to; and does not
    /// stand for the queues of a device.
    pub(super) fn is_measured(kind: &Kind) -> bool {
        !kind.quirks.stands_at_root
            && !matches!(kind.id, "noqueue" | "blackhole" | "noop" | "plug" | "etf")
    }

    /// Classes that the packets of so many flows go to.
    pub(super) fn classes(&self, flows: u32) -> Option<u32> {
        let Self::Kind(kind) = self else { return None };
        match kind.classes {
            ClassKind::Added { .. } => Some(flows.min(CLASSES_MAX)),
            // One class is a place for a child, not a choice.
            ClassKind::Fixed(_) => self.bands().map(|bands| bands.min(flows)),
            ClassKind::None => None,
        }
    }

    /// Bands of a qdisc that chooses between them.
    fn bands(&self) -> Option<u32> {
        matches!(self.name(), "prio" | "ets" | "multiq").then_some(16)
    }

    /// The tree to measure.
    pub(super) fn tree(&self, flows: u32, backlog: u32) -> Result<Tree, Error> {
        let mut setup = Setup::default();
        for line in self.lines(flows, backlog) {
            setup.apply(&line).map_err(|error| Error::Setup(line, error.to_string()))?;
        }
        Tree::of(&setup, MTU, 1)
            .ok_or_else(|| Error::Setup(self.name().into(), "it has no root".into()))
    }

    /// Lines of `tc`. Limits leave room for everything, rates are far above what is sent, and who
    /// drops by waiting time has patience.
    fn lines(&self, flows: u32, backlog: u32) -> Vec<String> {
        let room = backlog.saturating_mul(2).max(1_000);
        let options = match self.name() {
            "pfifo" | "pfifo_head_drop" | "skbprio" | "netem" => format!("limit {room}"),
            "bfifo" => format!("limit {}", u64::from(room) * u64::from(LEN)),
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
            // Linux holds 127 packets of a flow at most.
            "sfq" => format!("limit {room} depth 127 divisor 65536 flows 65408"),
            "pie" | "dualpi2" => format!("limit {room} target 1000s"),
            "fq_pie" => format!("limit {room} target 1000s memory_limit 2gb"),
            "red" | "choke" => red(self.name(), room),
            "tbf" => "rate 200gbit burst 64mb limit 4294967295b".into(),
            "cbs" => "idleslope 199000000 sendslope -1000000 hicredit 1514 locredit -1514 \
                      port_rate 200gbit"
                .into(),
            "prio" | "ets" | "multiq" => "bands 16".into(),
            // By flows, not by hosts: a flow gets so small a part of its host's turn that hundreds
            // of them cost hundreds of turns for each packet, as in Linux.
            "cake" => "unlimited besteffort flows memlimit 2gb".into(),
            _ => String::new(),
        };
        let kind = if let Self::PacedFq = self { "fq" } else { self.name() };
        let mut lines = vec![format!("qdisc add dev lab root handle {ROOT}: {kind} {options}")];
        let class = match kind {
            // All packets may be of one class.
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
            // The pfifo that a class has by itself holds 1,000.
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

/// Thresholds that a standing queue stays below.
fn red(kind: &str, room: u32) -> String {
    let bytes = u64::from(room) * u64::from(LEN);
    match kind {
        "red" => {
            // A probability of 2 %, the usual one, cannot be spread over more than 42 MB; nor can
            // an average be taken over more than a million packets, so they seem larger.
            let (max, average) = (bytes + bytes.min(40_000_000), LEN * 100);
            let burst = bytes.div_ceil(average.into());
            format!(
                "limit {max} min {bytes} max {max} avpkt {average} burst {burst} bandwidth 10gbit"
            )
        }
        // At most 131,071: from 40,000 packets on it drops.
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
    fn every_kind_can_be_set_up_for_the_usual_backlogs() {
        for kind in onramp_core::qdisc::KINDS.iter().filter(|kind| Subject::is_measured(kind)) {
            for backlog in [256, 1_000, 10_000, 100_000] {
                // What depends on flows are classes, and 20 of them are as good as 65,000 here.
                let tree = Subject::Kind(kind).tree(20, backlog);
                assert!(tree.is_ok(), "{} with {backlog} packets: {tree:?}", kind.id);
            }
        }
        assert!(Subject::PacedFq.tree(1_000_000, 1_000_000).is_ok());
    }
}
