//! Earliest transmission time first (`etf`): each packet asks for a time to leave; packets leave in
//! the order of these times, and a packet that is late is dropped.
//!
//! Source: `tc-etf(8)`; behaviour of Linux 7.2 `net/sched/sch_etf.c`.
//! Differs: the departure times of packets refer to the link's clock, the only one, so that only a
//! `tc` command must give `clockid`. No hardware sends packets at their times. Nobody checks
//! whether a packet's socket has asked for departure times: a packet without a time is dropped,
//! with or without `skip_sock_check`, as in Linux.
//! Invariant: packets leave in the order of their times; each packet leaves within `delta` before
//! its time, or, with `deadline_mode`, at any time before it.

use onramp_queue::{DropReason, Packet};

use super::time_queue::TimeQueue;
use super::{Backlog, Changes, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict};
use crate::base::error::Clash;
use crate::base::params::{Default, Param, Unit, Values};
use crate::base::show::Out;
use crate::base::{Errno, Extra, Fault, Instant};
use crate::sched::Shown;

pub(super) const ETF: Kind = Kind {
    id: "etf",
    about: "sends packets at the departure times they carry, or drops them",
    params: &[
        Param::new(
            "clockid",
            Unit::Choice(CLOCKS),
            Default::Number(0),
            "the clock of the departure times",
        )
        .within(0, 1)
        .refused(Fault::Kernel(Errno::Invalid, Some("Invalid clockid. CLOCK_TAI must be used")))
        .single()
        .short(),
        Param::new(
            "offload",
            Unit::Words(&["offload"]),
            Default::Off,
            "leaves the timing to the device; not supported",
        )
        .single()
        .short(),
        Param::new(
            "deadline_mode",
            Unit::Words(&["deadline_mode"]),
            Default::Off,
            "sends packets as soon as possible, but before their time",
        )
        .single()
        .short(),
        Param::new(
            "delta",
            Unit::Signed,
            Default::Number(0),
            "how many nanoseconds before its time a packet may leave",
        )
        .within(0, i32::MAX as u64)
        .refused(Fault::Kernel(Errno::Invalid, Some("Delta must be positive")))
        .single()
        .short(),
        Param::new(
            "skip_sock_check",
            Unit::Words(&["skip_sock_check"]),
            Default::Off,
            "accepts packets of sockets without SO_TXTIME",
        )
        .single(),
    ],
    changes: Changes::No,
    check: |values| match values.is_given("offload") {
        true => {
            let clash = Clash::from(("offload", "no device of Onramp can do it; leave it out"));
            Err(clash.said(Errno::NotSupported, "Specified device does not support ETF offload"))
        }
        false => Ok(()),
    },
    build: |values| {
        Box::new(Etf {
            delta_ns: values.number("delta"),
            deadlines: values.is_given("deadline_mode"),
            last_ns: 0,
            queue: TimeQueue::default(),
            held: Backlog::default(),
            overlimits: 0,
        })
    },
    shown: Shown { options: show, ..Shown::TABLE },
    quirks: Quirks {
        check_new: |values| {
            if values.is_given("clockid") {
                return Ok(());
            }
            let said = "Dynamic clockids are not supported";
            Err(Clash::from(("clockid", "expected `clockid TAI`")).said(Errno::Invalid, said))
        },
        ..Quirks::NONE
    },
    ..Kind::LEAF
};

/// The words that the parser accepts after `clockid`. The last three also name clocks that Linux
/// knows, but as in Linux, this qdisc refuses all but the first two.
const CLOCKS: &[&str] =
    &["TAI", "CLOCK_TAI", "CLOCK_REALTIME", "CLOCK_MONOTONIC", "CLOCK_BOOTTIME"];

fn show(values: &Values<'_>, _: &Extra, out: &mut Out) {
    let delta = values.number("delta");
    out.string("clockid", "TAI", format_args!("clockid TAI"));
    out.uint("delta", delta, format_args!(" delta {delta}"));
    for key in ["offload", "deadline_mode", "skip_sock_check"] {
        let on = if values.is_given(key) { "on" } else { "off" };
        out.string(key, on, format_args!(" {key} {on}"));
    }
}

#[derive(Debug)]
struct Etf {
    delta_ns: u64,
    deadlines: bool,
    /// The departure time of the packet that left last, in nanoseconds; a new packet with an
    /// earlier departure time is dropped.
    last_ns: u64,
    queue: TimeQueue,
    held: Backlog,
    /// Number of packets that were late when their turn came.
    overlimits: u64,
}

impl Etf {
    fn pop(&mut self) -> Option<Packet> {
        let pkt = self.queue.pop()?;
        self.held.sub(&pkt);
        Some(pkt)
    }

    /// Drops late packets. Returns `Ok` if the first packet may leave; otherwise returns as an
    /// error when the first packet may leave, or `None` if there is no packet.
    fn due(&mut self, cx: &mut Cx<'_>) -> Result<(), Option<Instant>> {
        let now_ns = cx.now.0;
        let late = self.queue.first_ns().is_some_and(|first_ns| first_ns < now_ns);
        if late {
            // As in Linux, as soon as one packet is late, a packet that is due exactly now is
            // dropped as well.
            while self.queue.first_ns().is_some_and(|first_ns| first_ns <= now_ns)
                && let Some(pkt) = self.pop()
            {
                self.overlimits += 1;
                cx.drop(pkt, DropReason::Late);
            }
        }
        let first_ns = self.queue.first_ns().ok_or(None)?;
        let timer_ns = first_ns.saturating_sub(self.delta_ns);
        let at_ns = if self.deadlines { timer_ns } else { timer_ns.saturating_add(1) };
        if late {
            // As in Linux, no packet leaves in a call that dropped late packets: even a packet that
            // is due waits for the next call.
            Err(Some(Instant(at_ns.max(now_ns.saturating_add(1)))))
        } else if self.deadlines || at_ns <= now_ns {
            Ok(())
        } else {
            Err(Some(Instant(at_ns)))
        }
    }
}

impl Qdisc for Etf {
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let at_ns = pkt.txtime_ns;
        if at_ns == 0 || at_ns < cx.now.0.max(self.last_ns) {
            cx.drop(pkt, DropReason::Late);
            return Verdict::Dropped;
        }
        self.held.add(&pkt);
        self.queue.push(at_ns, pkt);
        Verdict::Queued
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if let Err(wait) = self.due(cx) {
            return wait.map_or(Dequeue::Empty, Dequeue::NotBefore);
        }
        let Some(mut pkt) = self.pop() else { return Dequeue::Empty };
        self.last_ns = pkt.txtime_ns;
        if self.deadlines {
            pkt.txtime_ns = cx.now.0;
        }
        Dequeue::Ready(pkt)
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        match self.due(cx) {
            Ok(()) => Peek::at(self.queue.first()),
            Err(wait) => wait.map_or(Peek::Empty, Peek::NotBefore),
        }
    }

    fn backlog(&self) -> Backlog {
        self.held
    }

    fn overlimits(&self) -> u64 {
        self.overlimits
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        while let Some(pkt) = self.pop() {
            cx.drop(pkt, DropReason::Purged);
        }
        self.last_ns = 0;
    }
}
