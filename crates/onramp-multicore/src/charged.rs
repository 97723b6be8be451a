//! Qdiscs whose work is charged: around each real qdisc, a qdisc of the same behaviour that charges
//! the simulated machine for local work and for the memory that an enqueue and a dequeue touch.

use onramp_core::qdisc::{Backlog, Changes, Cx, Dequeue, Kind, Peek, Qdisc, Verdict};
use onramp_core::{Instant, Kinds, Spec, params};
use onramp_machine::hook;
use onramp_queue::{Packet, PacketList};

use params::{Default, Param, Unit, Values};

const ENQUEUE: Param = Param::new("enqueue", Unit::Packets, Default::Number(0), "ps of local work");
const DEQUEUE: Param = Param::new("dequeue", Unit::Packets, Default::Number(0), "ps of local work");
const LINES: Param = Param::new("lines", Unit::Packets, Default::Number(2), "lines of its own");
const FLOW: Param = Param::new("flow-lines", Unit::Packets, Default::Number(1), "lines of a flow");
const LIMIT: Param =
    Param::new("limit", Unit::Packets, Default::Number(0), "packets held; 0: the kind's default");

macro_rules! charged {
    ($($name:ident $charged:literal $inner:literal,)*) => {
        $(
            static $name: Kind = Kind {
                changes: Changes::Yes,
                ..Kind::new(
                    $charged,
                    "is charged to the simulated machine",
                    &[ENQUEUE, DEQUEUE, LINES, FLOW, LIMIT],
                    |values| Box::new(Charged::new($inner, values)),
                )
            };
        )*

        /// Returns the charged kind of a built-in kind, by the name of the built-in kind; `None` if
        /// there is none.
        pub(crate) fn charged(name: &str) -> Option<&'static Kind> {
            match name {
                $($inner => Some(&$name),)*
                _ => None,
            }
        }

        /// The names of the built-in kinds that can be charged.
        pub const QDISCS: &[&str] = &[$($inner),*];
    };
}

charged! {
    PFIFO "charged-pfifo" "pfifo",
    FQ "charged-fq" "fq",
    FQ_CODEL "charged-fq_codel" "fq_codel",
}

/// Distance of lines in memory, bytes: as large as the lines of every machine, so that two lines
/// are two on every machine.
const LINE: usize = 128;
/// The statistics of a charged qdisc: how often a command has changed it, and its present limit.
pub(crate) const CHANGES: &str = "changes";
pub(crate) const HELD_MOST: &str = "limit";
/// Number of lines of a flow at most; beyond, flows share lines.
const FLOW_MAX: usize = 4;

/// The size of the largest packet with which the qdiscs are built, bytes, the link header included.
const MTU: u32 = 1_514;

/// What the options of a charged qdisc say.
#[derive(Clone, Copy, Debug)]
struct Charges {
    enqueue_ps: u64,
    dequeue_ps: u64,
    own_lines: usize,
    flow_lines: usize,
    limit: u64,
}

impl Charges {
    fn new(values: &Values<'_>) -> Self {
        let lines = |name: &str| usize::try_from(values.number(name)).unwrap_or(0);
        Self {
            enqueue_ps: values.number("enqueue"),
            dequeue_ps: values.number("dequeue"),
            own_lines: lines("lines"),
            flow_lines: lines("flow-lines"),
            limit: values.number("limit"),
        }
    }

    /// Returns the description of the built-in qdisc inside. `fq` is the default qdisc of a link:
    /// a flow with a pacing rate of up to 100 Mbit/s pauses after each packet.
    fn inner(&self, kind: &str) -> Spec {
        let options = if kind == "fq" { " low_rate_threshold 100mbit" } else { "" };
        let limit = if self.limit == 0 { String::new() } else { format!(" limit {}", self.limit) };
        Kinds::default().spec(&format!("{kind}{options}{limit}")).expect("a built-in kind")
    }
}

#[derive(Debug)]
struct Charged {
    kind: &'static str,
    inner: Box<dyn Qdisc>,
    charges: Charges,
    /// How often a command has changed the qdisc.
    changes: u64,
}

/// Returns the charged form of a built-in kind as a line of `tc`: what an enqueue and a dequeue
/// cost locally, picoseconds, and the lines of the qdisc and of a flow that each touches.
pub(crate) fn line(kind: &str, enqueue: u64, dequeue: u64, lines: u32, flow_lines: u32) -> String {
    format!(
        "charged-{kind} enqueue {enqueue} dequeue {dequeue} lines {lines} flow-lines {flow_lines}"
    )
}

impl Charged {
    fn new(kind: &'static str, values: &Values<'_>) -> Self {
        let charges = Charges::new(values);
        Self { kind, inner: charges.inner(kind).build(MTU), charges, changes: 0 }
    }

    /// Charges what one enqueue or dequeue of a packet costs: local work, the lines of the qdisc,
    /// and those of the packet's flow.
    fn charge(&self, ps: u64, flow: u64) {
        hook::work_ps(ps);
        let qdisc = std::ptr::from_ref(&*self.inner).cast::<u8>();
        for line in 0..self.charges.own_lines {
            let qdisc_line = qdisc.wrapping_byte_add(line * LINE);
            hook::change(qdisc_line, 1);
        }
        // The lines of flows lie at addresses of their own, beyond all real memory: the high half
        // says whose they are.
        let place =
            (qdisc.addr() << 20) ^ usize::try_from(flow).unwrap_or(0).wrapping_mul(FLOW_MAX * LINE);
        let flow = std::ptr::without_provenance::<u8>(place | 1 << 63);
        for line in 0..self.charges.flow_lines {
            let flow_line = flow.wrapping_byte_add(line * LINE);
            hook::change(flow_line, 1);
        }
    }
}

impl Qdisc for Charged {
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.charge(self.charges.enqueue_ps, pkt.flow);
        self.inner.enqueue(pkt, cx)
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let answer = self.inner.dequeue(cx);
        if let Dequeue::Ready(pkt) = &answer {
            self.charge(self.charges.dequeue_ps, pkt.flow);
        }
        answer
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        self.inner.peek(cx)
    }

    fn backlog(&self) -> Backlog {
        self.inner.backlog()
    }

    fn accepts(&self, pkt: &Packet) -> bool {
        self.inner.accepts(pkt)
    }

    fn prefetch_flows(&self, coming: &PacketList, most: u32) {
        self.inner.prefetch_flows(coming, most);
    }

    fn prefetch_next(&self, most: u32) {
        self.inner.prefetch_next(most);
    }

    fn can_bypass(&self) -> bool {
        self.inner.can_bypass()
    }

    fn lets_pass(&self, pkt: &Packet, now: Instant) -> bool {
        self.inner.lets_pass(pkt, now)
    }

    fn passed(&mut self) {
        self.inner.passed();
    }

    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        self.charges = Charges::new(values);
        self.changes += 1;
        self.inner.change(&self.charges.inner(self.kind).values(MTU), cx)
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.inner.reset(cx);
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out(CHANGES, self.changes);
        out(HELD_MOST, self.charges.limit);
        self.inner.stats(out);
    }
}

#[cfg(test)]
mod tests {
    use onramp_machine::{Setup, simulate};

    use super::*;
    use crate::{Description, Draw};

    /// An enqueue touches as many lines as its parameters say, whatever the size of a line is.
    #[test]
    fn lines_are_counted_once() {
        for line_bytes in [32, 64, 128] {
            let mut machine = Description::named("desktop-amd").unwrap().draw(&mut Draw::new(0));
            machine.caches.line_bytes = line_bytes;
            let setup = Setup { machine, limit_ns: 1_000_000, measure_ns: 0..0 };
            let (accesses, _) = simulate(&setup, || {
                let kinds = Kinds::new(charged("pfifo")).unwrap();
                let text = "charged-pfifo lines 3 flow-lines 2";
                let mut qdisc = kinds.spec(text).unwrap().build(1_514);
                let (mut drops, pkt) = (PacketList::new(), Packet::new(100));
                hook::measure();
                let _ = qdisc.enqueue(pkt, &mut Cx::new(Instant(0), &mut drops));
                let report = hook::report();
                let here = report.sites.iter().filter(|site| site.location.file() == file!());
                here.map(|site| site.accesses).sum::<u64>()
            })
            .unwrap();
            // Five lines, and the packet's own, which tells the flow.
            assert_eq!(accesses, 6, "lines of {line_bytes} bytes");
        }
    }

    /// A change keeps the packets, and the qdisc inside has the new limit.
    #[test]
    fn a_change_reaches_the_qdisc_inside() {
        for kind in QDISCS {
            let kinds = Kinds::new(charged(kind)).unwrap();
            let spec = |limit: u32| kinds.spec(&format!("charged-{kind} limit {limit}")).unwrap();
            let (mut drops, mut qdisc) = (PacketList::new(), spec(9).build(MTU));
            let mut cx = Cx::new(Instant(0), &mut drops);
            let fill = |qdisc: &mut dyn Qdisc, cx: &mut Cx<'_>| {
                loop {
                    // A packet without a rate could take the fast path of fq, beyond the limit.
                    let mut packet = Packet::new(100);
                    packet.pacing_rate = 1;
                    if qdisc.backlog().packets >= 20 || !qdisc.accepts(&packet) {
                        break;
                    }
                    let _ = qdisc.enqueue(packet, cx);
                }
                qdisc.backlog().packets
            };
            assert_eq!(fill(&mut *qdisc, &mut cx), 9, "{kind}");
            assert!(qdisc.change(&spec(12).values(MTU), &mut cx), "{kind}");
            assert_eq!(qdisc.backlog().packets, 9, "{kind} keeps its packets");
            assert_eq!(fill(&mut *qdisc, &mut cx), 12, "{kind}");
            let mut stats = Vec::new();
            qdisc.stats(&mut |name, value| stats.push((name, value)));
            assert_eq!(stats[..2], [(CHANGES, 1), (HELD_MOST, 12)], "{kind}");
        }
    }
}
