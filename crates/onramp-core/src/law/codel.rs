//! The CoDel law: drop packets at the head, more and more often, while packets wait too long.
//!
//! A queue of packets is bad when even the shortest wait within an `interval` exceeds `target`.
//! Packets are then dropped (or marked) until a packet has waited less than `target`. The n-th drop
//! comes `interval / sqrt(n)` after the drop before. If a queue turns bad again soon, the drops
//! continue about as fast as before.
//!
//! Source: RFC 8289; arithmetic as in Linux 7.2 `include/net/codel_impl.h`: time is counted in
//! units of 1,024 ns in 32 bits, and `1 / sqrt(n)` is a fraction of 16 bits, improved by one step
//! of Newton's method for each drop.

use onramp_queue::Packet;

use crate::base::params::{Default, Param, U32_MAX, Unit, Value, Values, look};
use crate::base::show::Out;
use crate::base::shown::micros;
use crate::base::{Extra, Instant, ecn};

/// The range of times that Linux accepts, in nanoseconds. `tc` treats a zero as an option that is
/// not given.
const US_MIN: u64 = 1_000;
const US_MAX: u64 = U32_MAX * 1_000;

pub(crate) const TARGET: Param = Param::new(
    "target",
    Unit::Usecs,
    Default::Number(5_000_000),
    "the waiting time that packets should stay below",
)
.within(US_MIN, US_MAX)
.zero_is_unsaid()
.shown(show_time);

pub(crate) const INTERVAL: Param = Param::new(
    "interval",
    Unit::Usecs,
    Default::Number(100_000_000),
    "how long waits may exceed `target` before drops begin; about the longest round trip",
)
.within(US_MIN, US_MAX)
.zero_is_unsaid()
.shown(show_time);

pub(crate) const CE_THRESHOLD: Param = Param::new(
    "ce_threshold",
    Unit::Usecs,
    Default::Off,
    "waiting time above which all packets are marked",
)
.shown(show_time);

pub(crate) const CE_THRESHOLD_SELECTOR: Param = Param::new(
    "ce_threshold_selector",
    Unit::Masked,
    Default::Off,
    "restricts ce_threshold to packets whose ECN bits match these bits under this mask",
)
.shown(show_selector);

/// Prints the time that an option gives in microseconds, as Linux keeps it: in units of 1,024 ns,
/// so that 5 ms become 4,999 us. An option without a default is not printed if its time is the
/// greatest, which means "none".
fn show_time(param: &Param, value: &Value, out: &mut Out) {
    let Value::Number(ns) = value else { return };
    if *ns != US_MAX || param.default != Default::Off {
        let us = (u64::from(units(*ns)) << 10) / 1_000;
        look::as_number(param, us * 1_000, out);
    }
}

/// Prints the option `ce_threshold_selector`. JSON has two fields for it: the bits and the mask.
fn show_selector(param: &Param, value: &Value, out: &mut Out) {
    let Value::Number(masked) = value else { return };
    let (bits, mask) = (masked & 0xFF, masked >> 8);
    let hex = |n: u64| if n == 0 { "0".to_owned() } else { format!("{n:#x}") };
    out.uint(param.key, bits, format_args!("{} {}/{} ", param.key, hex(bits), hex(mask)));
    out.uint("ce_threshold_mask", mask, format_args!(""));
}

/// Prints the state of a CoDel queue as `tc -s` does.
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

/// If a queue turns bad again within this many intervals, the drops continue about as fast as
/// before.
const MEMORY_INTERVALS: u32 = 16;

/// The largest number of packets that are dropped before one packet leaves a bad queue, as in Linux
/// 7.2. If packets leave a bad queue only rarely, many drops are due at a time; without this limit,
/// the whole queue could be dropped at once.
const DROPS_MAX: u32 = 256;

/// The largest fraction that 16 bits can store. It stands for 1.
const ONE: u16 = u16::MAX;

/// A time in units of 1,024 ns, in 32 bits, so that it wraps around after 73 minutes.
type Units = u32;

#[inline]
fn units(ns: u64) -> Units {
    #[expect(clippy::cast_possible_truncation, reason = "wraps around")]
    let units = (ns >> 10) as Units;
    units
}

/// Whether `a` is later than `b`. The result is right if the two times are less than half of the
/// range of 32 bits apart.
#[inline]
fn is_after(a: Units, b: Units) -> bool {
    a.wrapping_sub(b).wrapping_sub(1) < (1 << 31) - 1
}

/// Sets the arrival time of a packet to `now`, unless the packet already has an arrival time.
#[inline]
pub(crate) fn stamp(pkt: &mut Packet, now: Instant) {
    if pkt.enqueued_ns == 0 {
        pkt.enqueued_ns = now.0;
    }
}

/// What all queues of a qdisc share: the parameters that the user gave, and the counters that
/// `tc -s` shows.
#[derive(Debug)]
pub(crate) struct Law {
    target: Units,
    interval: Units,
    ce_threshold: Option<Units>,
    /// Which packets are marked for waiting longer than `ce_threshold`: only those whose ECN bits
    /// under `mask` equal `selector`, or all if `mask` is zero.
    selector: u8,
    mask: u8,
    ecn: bool,
    /// A queue with at most this many bytes is never bad, however long its packets wait.
    mtu: u64,
    /// Size of the largest packet that has reached the head of a queue, in bytes.
    pub(crate) max_packet: u32,
    /// Number of packets that were marked when the law would otherwise have dropped them.
    pub(crate) ecn_mark: u64,
    /// Number of packets that were marked for waiting longer than `ce_threshold`.
    pub(crate) ce_mark: u64,
}

impl Law {
    /// Creates the law from the values of the options [`TARGET`], [`INTERVAL`] and
    /// [`CE_THRESHOLD`].
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

    /// Returns the law with another `selector` and `mask`, from the value of the option
    /// [`CE_THRESHOLD_SELECTOR`].
    pub(crate) fn select(mut self, selector: u64) -> Self {
        [self.selector, self.mask, ..] = selector.to_le_bytes();
        self
    }

    /// Takes over the parameters of `new` and keeps the counters.
    pub(crate) fn change(&mut self, new: Self) {
        let Self { max_packet, ecn_mark, ce_mark, .. } = *self;
        *self = Self { max_packet, ecn_mark, ce_mark, ..new };
    }

    /// Marks a packet that is to be dropped, so that it can be sent instead. Returns false if the
    /// packet cannot be marked and must be dropped.
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

/// The queue from which the law takes packets.
pub(crate) trait Source {
    /// Removes and returns the packet at the head of the queue.
    fn pop(&mut self) -> Option<Packet>;
    /// Returns the bytes left in all queues that share the link with this queue.
    fn bytes(&self) -> u64;
    /// Drops a packet that the law has chosen.
    fn drop(&mut self, pkt: Packet);
}

/// The state of CoDel for one queue.
#[derive(Clone, Copy, Debug, std::default::Default)]
pub(crate) struct Codel {
    /// Number of drops and marks since the queue turned bad. If the queue turns bad again soon, the
    /// count does not begin at 1. The higher it is, the sooner the next drop follows.
    pub(crate) count: u32,
    /// Value of `count` when dropping began last.
    last_count: u32,
    /// Time at which the queue turns bad unless a packet that waited less than `target` comes
    /// before: one interval after the first packet that waited too long. 0 if the last packet did
    /// not wait too long.
    bad_at: Units,
    /// Time at which the next drop is due.
    drop_next: Units,
    /// Time for which the last packet that reached the head of the queue had waited.
    waited: Units,
    /// 1 divided by the square root of `count`, in units of 2^-16.
    inv_sqrt: u16,
    dropping: bool,
}

impl Codel {
    /// Returns the next packet to send, and drops or marks the packets that the law chooses.
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

    /// Whether the queue is bad, judged by how long `pkt`, the packet that would leave next, has
    /// waited. Also updates the state by that wait.
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

    /// Starts dropping when the queue turns bad: drops or marks `pkt`, and computes when the next
    /// drop is due. Returns the packet to send.
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

    /// Continues dropping in a bad queue: drops or marks the packets whose drop is due, but drops
    /// at most [`DROPS_MAX`] packets. Returns the packet to send.
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
                // Skip the other drops that were due: the next drop is due one gap after `now`.
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

    /// Returns the time of the drop after a drop at `then`: `interval / sqrt(count)` later.
    #[inline]
    fn after(&self, then: Units, interval: Units) -> Units {
        #[expect(clippy::cast_possible_truncation, reason = "a fraction of 32 bits")]
        let gap = ((u64::from(interval) * u64::from(self.inv_sqrt)) >> 16) as Units;
        then.wrapping_add(gap)
    }

    /// Improves `inv_sqrt` by a step of Newton's method: x becomes x (3 - count x^2) / 2. If x is
    /// far from the root, the step overflows as in Linux, and the following steps correct the
    /// error.
    fn improve(&mut self) {
        let x = u64::from(self.inv_sqrt) << 16;
        let square = (x * x) >> 32;
        let rest = (3_u64 << 32).wrapping_sub(u64::from(self.count).wrapping_mul(square));
        let next = (rest >> 2).wrapping_mul(x) >> 31;
        self.inv_sqrt = (next >> 16) as u16;
    }

    /// Calls `out` with the name and the value of each part of the state that `tc -s` shows.
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
    /// Returns the values that `tc -s class show` shows of a flow. The time to the next drop is
    /// negative if that time has passed.
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
