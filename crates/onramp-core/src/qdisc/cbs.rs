//! Credit-based shaper: reserves a share of a link for one class of traffic. The class earns
//! credits (a number of bytes, which may be negative) at the rate `idleslope` while it waits, and
//! loses credits at the rate `sendslope` while it sends. These credits of the shaper have nothing
//! to do with the credits of a sender.
//!
//! Source: IEEE 802.1Q-2018, section 8.6.8.2 and annex L; `tc-cbs(8)`; behaviour of Linux 7.2
//! `net/sched/sch_cbs.c`, in software (`offload 0`).
//! Differs: `port_rate` gives the speed of the link; Linux asks the driver, and assumes 10 Mbit/s
//! if the driver does not know. Parameters with which the qdisc could stop sending for ever are
//! refused: a negative `sendslope` without an `idleslope`, and a negative `hicredit` or
//! `idleslope`. A change to an `idleslope` of 0 forgives missing credits, for the same reason.
//! Invariant: a packet leaves only when the last packet has passed the link and the shaper's
//! credits are not negative.

use onramp_queue::Packet;

use super::{Backlog, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict, peek_by_dequeue};
use crate::base::params::{Default, Param, Unit, Values, signed};
use crate::base::{Counters, Errno, Fault, Instant};
use crate::qdisc::pfifo_child;
use crate::sched::{Child, Classes};

pub(super) const CBS: Kind = Kind {
    id: "cbs",
    about: "limits the rate by credits that grow while packets wait",
    params: &[
        signed_param("hicredit", "the most credits that can be saved, bytes").within(0, I32_MAX),
        signed_param("locredit", "the fewest credits, bytes; a negative number"),
        signed_param("sendslope", "credits gained while sending, kbit/s; a negative number"),
        signed_param("idleslope", "credits gained while waiting, kbit/s").within(0, I32_MAX),
        Param::new(
            "offload",
            Unit::Count,
            Default::Number(0),
            "leaves the shaping to the device; only 0 is accepted",
        )
        .within(0, 0)
        .refused(NO_OFFLOAD)
        .reset()
        .short(),
        Param::new("port_rate", Unit::Rate, Default::Off, "the speed of the link").at_least(1),
    ],
    check: |values| {
        if signed(values.number("sendslope")) < 0 && values.number("idleslope") == 0 {
            let why =
                "it is missing: `sendslope` takes credits, and only `idleslope` gives them back";
            return Err(("idleslope", why).into());
        }
        Ok(())
    },
    classes: ClassKind::Fixed(|_| 1),
    build: |values| {
        Box::new(Cbs {
            config: Config::new(values),
            credits: 0,
            last: Instant(0),
            unasked: None,
            child: pfifo_child(values.site),
            held: Backlog::default(),
            peeked: None,
        })
    },
    quirks: Quirks { shown_below: Some("pfifo"), ..Quirks::ONE_PLACE },
    ..Kind::LEAF
};

/// Defines a parameter that may be negative. `tc` always sends all parameters of this qdisc, so if
/// a command leaves out such a parameter, the parameter gets its default again.
const fn signed_param(key: &'static str, help: &'static str) -> Param {
    Param::new(key, Unit::Signed, Default::Number(0), help).reset().single().short()
}

const NO_OFFLOAD: Fault =
    Fault::Kernel(Errno::NotSupported, Some("Specified device does not support cbs offload"));
const I32_MAX: u64 = i32::MAX as u64;
const NS_PER_SEC: i64 = 1_000_000_000;
/// Number of bytes per second in 1 kbit/s.
const KBIT: i64 = 125;
/// The speed that Linux assumes for a link whose driver does not know it, in bytes per second.
const UNKNOWN_RATE: i64 = 10_000 * KBIT;

/// The parameters, converted to bytes and to bytes per second.
#[derive(Debug)]
struct Config {
    high: i64,
    low: i64,
    send_slope: i64,
    idle_slope: i64,
    port_rate: i64,
}

impl Config {
    fn new(values: &Values<'_>) -> Self {
        let number = |key| i64::from(signed(values.number(key)));
        Self {
            high: number("hicredit"),
            low: number("locredit"),
            send_slope: number("sendslope") * KBIT,
            idle_slope: number("idleslope") * KBIT,
            port_rate: if values.is_given("port_rate") {
                values.number("port_rate").cast_signed()
            } else {
                UNKNOWN_RATE
            },
        }
    }
}

#[derive(Debug)]
struct Cbs {
    config: Config,
    /// The present credits of the shaper, in bytes.
    credits: i64,
    /// The time at which credits that the shaper has earned were last added, or, if that is later,
    /// the time at which the last packet will have passed the link.
    last: Instant,
    /// If the qdisc holds nothing but Linux would have set its timer: the time at which the timer
    /// would fire. Linux adds the credits that the shaper has earned at that time, so `catch_up`
    /// does the same.
    unasked: Option<Instant>,
    child: Child,
    /// Packets and bytes that `child` holds.
    held: Backlog,
    /// A packet that was dequeued because the parent called `peek`, and for which the shaper has
    /// already paid the credits; `held` does not count this packet.
    peeked: Option<Packet>,
}

/// Returns `a * b / c`, rounded towards zero; `c` must be positive.
#[inline]
fn scale(a: i64, b: i64, c: i64) -> i64 {
    a.checked_mul(b).map_or_else(
        || i64::try_from(i128::from(a) * i128::from(b) / i128::from(c)).unwrap_or(i64::MAX),
        |product| product / c,
    )
}

impl Cbs {
    /// Adds the credits (bytes) that the shaper has earned until `now`. Returns `None` if the qdisc
    /// may send, else the time from which the qdisc may send.
    #[inline]
    fn earn(&mut self, now: Instant) -> Option<Instant> {
        if now < self.last {
            return Some(self.last);
        }
        if self.credits >= 0 {
            return None;
        }
        let slope = self.config.idle_slope;
        let waited_ns = now.since(self.last).min(i64::MAX.cast_unsigned()).cast_signed();
        let earned = scale(waited_ns, slope, NS_PER_SEC);
        self.credits = self.credits.saturating_add(earned).min(self.config.high);
        if self.credits >= 0 {
            return None;
        }
        self.last = now;
        let delay_ns = scale(-self.credits, NS_PER_SEC, slope.max(1));
        // If the shaper earns the missing credits (bytes) in less than a nanosecond, the delay is
        // rounded down to zero, and Linux's timer fires at once. Wait for a nanosecond instead.
        Some(now.after(delay_ns.max(1).unsigned_abs()))
    }

    /// Adds the credits (bytes) that the shaper earned while the qdisc held nothing, in the same
    /// steps as Linux. There, whenever the qdisc's timer fires, the credits earned since the last
    /// time are rounded down to whole bytes and added. So it matters how often the timer fires.
    /// Once the credits suffice to send, Linux calls `dequeue` of the empty child. This call
    /// changes the state of some kinds of qdisc, so `catch_up` makes it too.
    fn catch_up(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        while let Some(wake) = self.unasked.filter(|wake| *wake <= now) {
            self.unasked = self.earn(wake);
            let Some(then) = self.unasked else { return self.ask_in_vain(cx, wake) };
            let period_ns = then.since(wake);
            if scale(period_ns.cast_signed(), self.config.idle_slope, NS_PER_SEC) == 0 {
                // The credits earned between two firings of Linux's timer are less than a byte,
                // which is rounded down to zero. So skip to the last firing until now.
                self.last = wake.after(now.since(wake) / period_ns * period_ns);
                self.unasked = Some(self.last.after(period_ns));
            }
        }
    }

    /// Calls the child's `dequeue` as if the time were `then`, if the child holds nothing: Linux's
    /// timer would have made this call at that time (see `catch_up`).
    fn ask_in_vain(&mut self, cx: &mut Cx<'_>, then: Instant) {
        if self.held.packets > 0 {
            return;
        }
        let now = std::mem::replace(&mut cx.now, then);
        let answer = self.child.dequeue(cx, &mut self.held);
        debug_assert!(!matches!(answer, Dequeue::Ready(_)), "it holds nothing");
        cx.now = now;
    }

    /// Subtracts the shaper's credits that a packet of `len` bytes costs, and notes until when the
    /// packet occupies the link.
    #[inline]
    fn pay(&mut self, len: u32, now: Instant) {
        let config = &self.config;
        let rate = config.port_rate;
        let credits = scale(i64::from(len), config.send_slope, rate);
        self.credits = self.credits.saturating_add(credits).max(config.low);
        self.last = now.after(scale(i64::from(len), NS_PER_SEC, rate).unsigned_abs());
    }
}

impl Qdisc for Cbs {
    #[inline]
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.catch_up(cx);
        if self.credits > 0 && self.backlog().packets == 0 {
            // Positive credits of the shaper are lost once the qdisc has become empty.
            self.credits = 0;
            self.last = cx.now;
        }
        self.child.enqueue(pkt, cx, &mut self.held)
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        self.catch_up(cx);
        self.unasked = None;
        if let Some(then) = self.earn(cx.now) {
            if self.held.packets == 0 {
                self.unasked = Some(then);
                return Dequeue::Empty;
            }
            return Dequeue::NotBefore(then);
        }
        let answer = self.child.dequeue(cx, &mut self.held);
        if let Dequeue::Ready(pkt) = &answer {
            self.pay(pkt.len, cx.now);
        }
        answer
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.held;
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    fn accepts(&self, pkt: &Packet) -> bool {
        self.child.accepts(pkt)
    }

    fn change(&mut self, values: &Values<'_>, _cx: &mut Cx<'_>) -> bool {
        self.config = Config::new(values);
        if self.config.idle_slope == 0 {
            // Nothing would give missing credits back.
            self.credits = self.credits.max(0);
        }
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.child.reset(cx, &mut self.held);
        cx.purge_one(&mut self.peeked);
    }

    /// Returns the number of packets that the child dropped at enqueue; Linux does not count these
    /// drops for this qdisc.
    fn uncounted(&self) -> u64 {
        self.child.class_counters().0.drops
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }
}

impl Classes for Cbs {
    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        (minor == 1).then_some(&mut self.child)
    }

    /// Returns zeros: as in Linux, the class of this qdisc counts nothing.
    fn counters(&mut self, _minor: u16) -> (Counters, Backlog) {
        (Counters::default(), Backlog::default())
    }

    fn recount(&mut self, _minor: u16) {
        self.child.recount(&mut self.held);
    }
}
