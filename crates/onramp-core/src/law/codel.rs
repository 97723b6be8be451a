//! The law of CoDel: drop at the head, ever more often, while packets wait too long.
//!
//! A queue is bad when even its shortest wait in an `interval` exceeds `target`. Then packets are
//! dropped (or marked), the n-th one `interval / sqrt(n)` behind the one before it, until a packet
//! has waited less than `target`. A queue that turns bad again soon goes on where it stopped.
//!
//! Source: RFC 8289; arithmetic as in Linux 7.2 `include/net/codel_impl.h`: time counts in units of
//! 1,024 ns in 32 bits, and `1 / sqrt(n)` is a fraction of 16 bits that takes one step of Newton's
//! method for each drop.

use onramp_queue::Packet;

use crate::base::params::{Default, Param, U32_MAX, Unit, Value, Values, look};
use crate::base::show::Out;
use crate::base::shown::micros;
use crate::base::{Extra, Instant, ecn};

/// What Linux counts; `tc` takes a zero for "not given".
const US_MIN: u64 = 1_000;
const US_MAX: u64 = U32_MAX * 1_000;

pub(crate) const TARGET: Param =
    Param::new("target", Unit::Usecs, Default::Number(5_000_000), "waiting time to keep below")
        .within(US_MIN, US_MAX)
        .zero_is_unsaid()
        .shown(show_time);

pub(crate) const INTERVAL: Param = Param::new(
    "interval",
    Unit::Usecs,
    Default::Number(100_000_000),
    "how long packets may wait longer; the largest usual round trip",
)
.within(US_MIN, US_MAX)
.zero_is_unsaid()
.shown(show_time);

pub(crate) const CE_THRESHOLD: Param =
    Param::new("ce_threshold", Unit::Usecs, Default::Off, "waiting time from which all are marked")
        .shown(show_time);

pub(crate) const CE_THRESHOLD_SELECTOR: Param = Param::new(
    "ce_threshold_selector",
    Unit::Masked,
    Default::Off,
    "of the ECN bits of packets that ce_threshold marks",
)
.shown(show_selector);

/// Linux keeps times in units, which cuts 5 ms to 4,999 us. The greatest one means none.
fn show_time(param: &Param, value: &Value, out: &mut Out) {
    let Value::Number(ns) = value else { return };
    if *ns != US_MAX || param.default != Default::Off {
        let us = (u64::from(units(*ns)) << 10) / 1_000;
        look::as_number(param, us * 1_000, out);
    }
}

/// In JSON, there are two of it.
fn show_selector(param: &Param, value: &Value, out: &mut Out) {
    let Value::Number(masked) = value else { return };
    let (bits, mask) = (masked & 0xFF, masked >> 8);
    let hex = |n: u64| if n == 0 { "0".to_owned() } else { format!("{n:#x}") };
    out.uint(param.key, bits, format_args!("{} {}/{} ", param.key, hex(bits), hex(mask)));
    out.uint("ce_threshold_mask", mask, format_args!(""));
}

/// What `tc -s` shows of a queue.
pub(crate) fn show_state(extra: &Extra, out: &mut Out) {
    extra.show(out, "  ", "count");
    extra.show(out, " ", "lastcount");
    let us = |name| extra.count(name) / 1_000;
    let (waited, next) = (us("ldelay_ns"), us("drop_next_ns"));
    out.uint("ldelay", waited, format_args!(" ldelay {}", micros(waited)));
    if extra.count("dropping") > 0 {
        out.flag("dropping", true, format_args!(" dropping"));
    }
    out.uint("drop_next", next, format_args!(" drop_next {}\n", micros(next)));
}

/// A queue that went bad again within so many intervals goes on at its former pace.
const MEMORY_INTERVALS: u32 = 16;

/// Packets that are dropped at most before one leaves, once the queue is bad, as in Linux 7.2:
/// where packets leave seldom, a bad queue could else be dropped as a whole at once.
const DROPS_MAX: u32 = 256;

/// The largest fraction, as good as one.
const ONE: u16 = u16::MAX;

/// Time in units of 1,024 ns; wraps around after 73 minutes.
type Units = u32;

#[inline]
fn units(ns: u64) -> Units {
    #[expect(clippy::cast_possible_truncation, reason = "wraps around")]
    let units = (ns >> 10) as Units;
    units
}

/// Whether `a` is later than `b`; both lie within half a turn of each other.
#[inline]
fn is_after(a: Units, b: Units) -> bool {
    a.wrapping_sub(b).wrapping_sub(1) < (1 << 31) - 1
}

/// Notes in a packet when it came, if nobody has.
#[inline]
pub(crate) fn stamp(pkt: &mut Packet, now: Instant) {
    if pkt.enqueued_ns == 0 {
        pkt.enqueued_ns = now.0;
    }
}

/// What the user said, and what `tc -s` shows of all queues under it.
#[derive(Debug)]
pub(crate) struct Law {
    target: Units,
    interval: Units,
    ce_threshold: Option<Units>,
    /// Only packets whose ECN bits, as far as the mask goes, are these are marked for it.
    selector: u8,
    mask: u8,
    ecn: bool,
    /// So many bytes may always stay.
    mtu: u64,
    /// Largest packet that was judged, bytes.
    pub(crate) max_packet: u32,
    /// Packets marked instead of dropped.
    pub(crate) ecn_mark: u64,
    /// Packets marked at `ce_threshold`.
    pub(crate) ce_mark: u64,
}

impl Law {
    /// Reads [`TARGET`], [`INTERVAL`] and [`CE_THRESHOLD`].
    pub(crate) fn new(values: &Values<'_>, ecn: bool) -> Self {
        let read = |key| units(values.number(key));
        Self {
            target: read("target"),
            interval: read("interval"),
            ce_threshold: values.get("ce_threshold").map(|_| read("ce_threshold")),
            selector: 0,
            mask: 0,
            ecn,
            mtu: values.site.mtu.into(),
            max_packet: 0,
            ecn_mark: 0,
            ce_mark: 0,
        }
    }

    /// The same, with a value of [`CE_THRESHOLD_SELECTOR`].
    pub(crate) fn select(mut self, selector: u64) -> Self {
        [self.selector, self.mask, ..] = selector.to_le_bytes();
        self
    }

    /// Other parameters; what was counted stays.
    pub(crate) fn change(&mut self, new: Self) {
        let Self { max_packet, ecn_mark, ce_mark, .. } = *self;
        *self = Self { max_packet, ecn_mark, ce_mark, ..new };
    }

    /// Marks a packet instead of dropping it, if that can be.
    fn mark(&mut self, pkt: &mut Packet) -> bool {
        let marked = self.ecn && ecn::mark(pkt);
        self.ecn_mark += u64::from(marked);
        marked
    }

    #[inline]
    fn mark_late(&mut self, pkt: &mut Packet, waited: Units) {
        if self.ce_threshold.is_some_and(|threshold| is_after(waited, threshold))
            && (pkt.ecn & self.mask == self.selector || self.mask == 0)
        {
            self.ce_mark += u64::from(ecn::mark(pkt));
        }
    }
}

/// The queue the law works on.
pub(crate) trait Source {
    /// Takes the packet at the head.
    fn pop(&mut self) -> Option<Packet>;
    /// Bytes left, in all queues that share the link.
    fn bytes(&self) -> u64;
    /// Gives up a packet.
    fn drop(&mut self, pkt: Packet);
}

/// The state of one queue.
#[derive(Clone, Copy, Debug, std::default::Default)]
pub(crate) struct Codel {
    /// Drops since the queue went bad, which set the pace.
    pub(crate) count: u32,
    /// The same, when it last went bad.
    last_count: u32,
    /// When waits have been too long for an interval; 0 = the last one was fine.
    bad_at: Units,
    /// When to drop next.
    drop_next: Units,
    /// What the last packet waited.
    waited: Units,
    /// 1 / sqrt(count), in units of 2^-16.
    inv_sqrt: u16,
    dropping: bool,
}

impl Codel {
    /// Lets the next packet out, and drops or marks those the law says.
    #[inline]
    pub(crate) fn dequeue(
        &mut self,
        law: &mut Law,
        now: Instant,
        source: &mut impl Source,
    ) -> Option<Packet> {
        let now = units(now.0);
        let Some(mut pkt) = source.pop() else {
            self.dropping = false;
            self.bad_at = 0;
            return None;
        };
        let bad = self.judge(Some(&pkt), law, now, source);
        if self.dropping {
            self.dropping = bad;
            if bad && !is_after(self.drop_next, now) {
                pkt = self.go_on(pkt, law, now, source)?;
            }
        } else if bad {
            pkt = self.begin(pkt, law, now, source)?;
        }
        law.mark_late(&mut pkt, self.waited);
        Some(pkt)
    }

    /// Whether the queue is bad at the packet that would leave next.
    #[inline]
    fn judge(
        &mut self,
        pkt: Option<&Packet>,
        law: &mut Law,
        now: Units,
        source: &impl Source,
    ) -> bool {
        let Some(pkt) = pkt else {
            self.bad_at = 0;
            return false;
        };
        self.waited = now.wrapping_sub(units(pkt.enqueued_ns));
        law.max_packet = law.max_packet.max(pkt.len);
        if is_after(law.target, self.waited) || source.bytes() <= law.mtu {
            self.bad_at = 0;
            return false;
        }
        if self.bad_at == 0 {
            self.bad_at = now.wrapping_add(law.interval);
            return false;
        }
        is_after(now, self.bad_at)
    }

    /// The queue went bad: drops or marks one packet, and sets the pace.
    #[cold]
    fn begin(
        &mut self,
        mut pkt: Packet,
        law: &mut Law,
        now: Units,
        source: &mut impl Source,
    ) -> Option<Packet> {
        let next = if law.mark(&mut pkt) {
            Some(pkt)
        } else {
            source.drop(pkt);
            let next = source.pop();
            self.judge(next.as_ref(), law, now, source);
            next
        };
        self.dropping = true;
        let pace = self.count.wrapping_sub(self.last_count);
        let memory = law.interval.wrapping_mul(MEMORY_INTERVALS);
        if pace > 1 && is_after(memory, now.wrapping_sub(self.drop_next)) {
            self.count = pace;
            self.improve();
        } else {
            self.count = 1;
            self.inv_sqrt = ONE;
        }
        self.last_count = self.count;
        self.drop_next = self.after(now, law.interval);
        next
    }

    /// The queue is still bad: drops or marks what is due, but no more than [`DROPS_MAX`].
    #[cold]
    fn go_on(
        &mut self,
        mut pkt: Packet,
        law: &mut Law,
        now: Units,
        source: &mut impl Source,
    ) -> Option<Packet> {
        let mut left = DROPS_MAX;
        while self.dropping && !is_after(self.drop_next, now) {
            if left == 0 {
                // What else was due is forgiven: the pace goes on from now.
                self.drop_next = self.after(now, law.interval);
                break;
            }
            left -= 1;
            self.count = self.count.wrapping_add(1);
            self.improve();
            if law.mark(&mut pkt) {
                self.drop_next = self.after(self.drop_next, law.interval);
                break;
            }
            source.drop(pkt);
            let next = source.pop();
            self.dropping = self.judge(next.as_ref(), law, now, source);
            if self.dropping {
                self.drop_next = self.after(self.drop_next, law.interval);
            }
            pkt = next?;
        }
        Some(pkt)
    }

    /// `interval / sqrt(count)` after `then`.
    #[inline]
    fn after(&self, then: Units, interval: Units) -> Units {
        #[expect(clippy::cast_possible_truncation, reason = "a fraction of 32 bits")]
        let gap = ((u64::from(interval) * u64::from(self.inv_sqrt)) >> 16) as Units;
        then.wrapping_add(gap)
    }

    /// A step of Newton's method: x becomes x (3 - count x^2) / 2. Far from the root it overflows
    /// as in Linux, which the next steps mend.
    fn improve(&mut self) {
        let x = u64::from(self.inv_sqrt) << 16;
        let square = (x * x) >> 32;
        let rest = (3_u64 << 32).wrapping_sub(u64::from(self.count).wrapping_mul(square));
        let next = (rest >> 2).wrapping_mul(x) >> 31;
        self.inv_sqrt = (next >> 16) as u16;
    }

    /// What `tc -s` shows of the state.
    pub(crate) fn stats(&self, now: Instant, out: &mut dyn FnMut(&'static str, u64)) {
        let ns = |units: Units| u64::from(units) << 10;
        out("count", self.count.into());
        out("lastcount", self.last_count.into());
        out("ldelay_ns", ns(self.waited));
        out("dropping", self.dropping.into());
        let left = self.drop_next.wrapping_sub(units(now.0));
        let waits = self.dropping && left < 1 << 31;
        out("drop_next_ns", if waits { ns(left) } else { 0 });
    }
}

impl Codel {
    /// What `tc -s class show` shows of a flow; the time to the next drop may be past.
    pub(crate) fn of_flow(&self, deficit: i32, now: Instant) -> [(&'static str, i64); 6] {
        let left = self.drop_next.wrapping_sub(units(now.0)).cast_signed();
        [
            ("deficit", deficit.into()),
            ("count", self.count.into()),
            ("lastcount", self.last_count.into()),
            ("ldelay_ns", i64::from(self.waited) << 10),
            ("dropping", self.dropping.into()),
            ("drop_next_ns", i64::from(left) << 10),
        ]
    }
}

#[cfg(test)]
mod tests;
