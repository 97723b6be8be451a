//! Qdiscs whose work is charged: around each real qdisc, a qdisc of the same behaviour that charges
//! the simulated machine for local work and for the memory that an enqueue and a dequeue touch.

use onramp_core::qdisc::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Verdict};
use onramp_core::{Instant, Kinds, params};
use onramp_machine::hook;
use onramp_queue::{Packet, PacketList};

use params::{Default, Param, Unit};

const ENQUEUE: Param = Param::new("enqueue", Unit::Packets, Default::Number(0), "ps of local work");
const DEQUEUE: Param = Param::new("dequeue", Unit::Packets, Default::Number(0), "ps of local work");
const LINES: Param = Param::new("lines", Unit::Packets, Default::Number(2), "lines of its own");
const FLOW: Param = Param::new("flow-lines", Unit::Packets, Default::Number(1), "lines of a flow");

macro_rules! charged {
    ($($name:ident $charged:literal $inner:literal,)*) => {
        $(
            static $name: Kind = Kind::new(
                $charged,
                "is charged to the simulated machine",
                &[ENQUEUE, DEQUEUE, LINES, FLOW],
                |values| {
                    let spec = Kinds::default().spec($inner).expect("a built-in kind");
                    let lines = |lines: u64| usize::try_from(lines).unwrap_or(0);
                    Box::new(Charged {
                        inner: spec.build(1_514),
                        enqueue_ps: values.number("enqueue"),
                        dequeue_ps: values.number("dequeue"),
                        own_lines: lines(values.number("lines")),
                        flow_lines: lines(values.number("flow-lines")),
                    })
                },
            );
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
/// Number of lines of a flow at most; beyond, flows share lines.
const FLOW_MAX: usize = 4;

#[derive(Debug)]
struct Charged {
    inner: Box<dyn Qdisc>,
    enqueue_ps: u64,
    dequeue_ps: u64,
    own_lines: usize,
    flow_lines: usize,
}

/// Returns the charged form of a built-in kind as a line of `tc`: what an enqueue and a dequeue
/// cost locally, picoseconds, and the lines of the qdisc and of a flow that each touches.
pub(crate) fn line(kind: &str, enqueue: u64, dequeue: u64, lines: u32, flow_lines: u32) -> String {
    format!(
        "charged-{kind} enqueue {enqueue} dequeue {dequeue} lines {lines} flow-lines {flow_lines}"
    )
}

impl Charged {
    /// Charges what one enqueue or dequeue of a packet costs: local work, the lines of the qdisc,
    /// and those of the packet's flow.
    fn charge(&self, ps: u64, flow: u64) {
        hook::work_ps(ps);
        let own = std::ptr::from_ref(&*self.inner).cast::<u8>();
        let change = |from: *const u8, lines: usize| {
            (0..lines).for_each(|line| hook::change(from.wrapping_byte_add(line * LINE), 1));
        };
        change(own, self.own_lines);
        // The lines of flows lie at addresses of their own, beyond all real memory: the high half
        // says whose they are.
        let place =
            (own.addr() << 20) ^ usize::try_from(flow).unwrap_or(0).wrapping_mul(FLOW_MAX * LINE);
        change(std::ptr::without_provenance::<u8>(place | 1 << 63), self.flow_lines);
    }
}

impl Qdisc for Charged {
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.charge(self.enqueue_ps, pkt.flow);
        self.inner.enqueue(pkt, cx)
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let answer = self.inner.dequeue(cx);
        if let Dequeue::Ready(pkt) = &answer {
            self.charge(self.dequeue_ps, pkt.flow);
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

    fn can_bypass(&self) -> bool {
        self.inner.can_bypass()
    }

    fn lets_pass(&self, pkt: &Packet, now: Instant) -> bool {
        self.inner.lets_pass(pkt, now)
    }

    fn passed(&mut self) {
        self.inner.passed();
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.inner.reset(cx);
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
}
