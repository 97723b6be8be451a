//! Token bucket filter (`tbf`): a token bucket in front of a queue limits the rate, and how much
//! may be sent at once after a pause.
//!
//! A packet leaves when the bucket has tokens for its bytes. With `peakrate`, a second bucket,
//! which is `mtu` bytes deep and fills at that rate, must have tokens for the packet, too. The
//! child is a `bfifo` of `limit` bytes until a user attaches another qdisc to class 1. A packet of
//! several datagrams (GSO) that is larger than the bucket is split, if each of its datagrams fits
//! the bucket.
//!
//! Source: `tc-tbf(8)`; behaviour of Linux 7.2 `net/sched/sch_tbf.c`.
//! Differs: a packet that has become too large because of a smaller `burst` or `mtu` is dropped
//! when its turn comes; in Linux, such a packet blocks all packets behind it for ever.
//! Invariant: between any two packets, no more bytes leave than `rate` allows in the time between
//! the two packets, plus `burst`.

use onramp_queue::{DropReason, Packet};

use super::{Backlog, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict, peek_by_dequeue};
use crate::base::error::Clash;
use crate::base::params::{Default, Param, Unit, Values};
use crate::base::{Counters, Fault, Instant, Rate};
use crate::law::bucket::Bucket;
use crate::law::cost::{Cost, Framing, LINKLAYER, MPU, OVERHEAD};
use crate::sched::{Child, Classes, Shown, segments};

mod show;

pub(super) const TBF: Kind = Kind {
    id: "tbf",
    about: "limits the rate by a token bucket",
    params: &[
        Param::new("rate", Unit::Rate, Default::Needed, "long-term rate")
            .at_least(1)
            .refused(Fault::Usage)
            .reset()
            .single(),
        Param::new("burst", Unit::Burst, Default::Needed, "bytes that may be sent at once")
            .or(&["buffer", "maxburst"])
            .at_least(1)
            .refused(Fault::Usage)
            .reset()
            .single()
            .short(),
        Param::new("limit", Unit::Size, Default::Off, "bytes held at most")
            .at_least(1)
            .refused(Fault::Usage)
            .reset()
            .single()
            .short(),
        Param::new(
            "latency",
            Unit::Usecs,
            Default::Off,
            "replaces `limit`: the longest waiting time",
        )
        .at_least(1_000)
        .refused(Fault::Usage)
        .reset()
        .single()
        .short(),
        Param::new("peakrate", Unit::Rate, Default::Off, "highest rate during a burst")
            .at_least(1)
            .refused(Fault::Usage)
            .reset()
            .single()
            .short(),
        Param::new(
            "mtu",
            Unit::Burst,
            Default::Off,
            "bytes that may be sent at once at `peakrate`",
        )
        .or(&["minburst"])
        .at_least(1)
        .refused(Fault::Usage)
        .reset()
        .single(),
        OVERHEAD.single(),
        MPU.single(),
        LINKLAYER,
    ],
    check,
    classes: ClassKind::Fixed(|_| 1),
    build: |values| Box::new(Tbf::new(values)),
    shown: Shown { options: show::options, ..Shown::TABLE },
    quirks: Quirks {
        limit_below: Some(limit),
        bfifo_below: Some(limit),
        default_child: Some(|values| Some(child(values))),
        ..Quirks::ONE_PLACE
    },
    ..Kind::LEAF
};

fn check(values: &Values<'_>) -> Result<(), Clash> {
    let given = |key| values.is_given(key);
    match (given("limit"), given("latency")) {
        (false, false) => {
            let why = "it is missing: tbf needs `limit BYTES` or `latency TIME`, at least 1b";
            return Err(Clash::usage("limit", why));
        }
        (true, true) => {
            return Err(Clash::usage("latency", "it replaces `limit`: use only one of them"));
        }
        _ => {}
    }
    if !given("peakrate") {
        return Ok(());
    }
    if !given("mtu") {
        let why = "it is missing: `peakrate` needs `mtu SIZE`, the largest packet or more";
        return Err(Clash::usage("mtu", why));
    }
    let rate = values.number("rate");
    if values.number("peakrate") <= rate {
        let why = format!("expected more than `rate`, which is {}", Rate::bytes_per_second(rate));
        return Err(("peakrate", why).into());
    }
    Ok(())
}

/// Returns how many bytes the child may hold: `limit`, or the bytes that leave within `latency`
/// plus a burst.
pub(super) fn limit(values: &Values<'_>) -> u64 {
    if values.is_given("limit") {
        return values.number("limit");
    }
    let micros = values.number("latency") / 1000;
    let held = |rate, burst| {
        let bytes = u128::from(values.number(rate)) * u128::from(micros) / 1_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).saturating_add(values.number(burst))
    };
    let mut limit = held("rate", "burst");
    if values.is_given("peakrate") {
        limit = limit.min(held("peakrate", "mtu"));
    }
    limit.min(u64::from(u32::MAX))
}

/// Returns the qdisc that holds the packets until a user attaches another one.
fn child(values: &Values<'_>) -> Box<dyn Qdisc> {
    super::fifo::bfifo(limit(values), values.site.mtu)
}

#[derive(Debug)]
struct Tbf {
    bucket: Bucket,
    peak: Option<Bucket>,
    /// The time up to which the tokens in the buckets have been counted.
    looked_at: Instant,
    /// Size in bytes of the largest packet that the buckets can ever pay for.
    largest: u32,
    child: Child,
    /// Packets and bytes that `child` holds.
    held: Backlog,
    /// A packet that was dequeued because the parent called `peek`, and whose tokens are already
    /// paid; `held` does not count this packet.
    peeked: Option<Packet>,
    /// How often a packet had to wait for tokens.
    overlimits: u64,
}

impl Tbf {
    fn new(values: &Values<'_>) -> Self {
        let framing = Framing::of(values);
        let full = |rate, burst| {
            let cost = Cost::new(values.number(rate), framing);
            Bucket::full(cost, cost.ns(values.number32(burst)))
        };
        let peak = values.is_given("peakrate").then(|| full("peakrate", "mtu"));
        let most = if peak.is_some() { values.number32("mtu") } else { u32::MAX };
        Self {
            bucket: full("rate", "burst"),
            peak,
            looked_at: Instant(0),
            largest: values.number32("burst").min(most),
            child: Child::new(child(values)),
            held: Backlog::default(),
            peeked: None,
            overlimits: 0,
        }
    }

    /// Returns the tokens, in nanoseconds, that would be left in the first and in the second bucket
    /// if a packet of `len` bytes left at `now`.
    #[inline]
    fn left_ns(&self, now: Instant, len: u32) -> (i64, i64) {
        let elapsed_ns = now.since(self.looked_at).min(self.bucket.depth_ns.cast_unsigned());
        let elapsed_ns = elapsed_ns.cast_signed();
        let peak_ns = self.peak.as_ref().map_or(0, |peak| peak.left_ns(elapsed_ns, len));
        (self.bucket.left_ns(elapsed_ns, len), peak_ns)
    }

    /// Takes the tokens for a packet of `len` bytes. If there are too few tokens, takes none, and
    /// returns as the error the time at which there will be enough.
    #[inline]
    fn pay(&mut self, now: Instant, len: u32) -> Result<(), Instant> {
        let (tokens_ns, peak_ns) = self.left_ns(now, len);
        let short_ns = tokens_ns.min(peak_ns);
        if short_ns < 0 {
            self.overlimits += 1;
            return Err(now.after(short_ns.unsigned_abs()));
        }
        self.looked_at = now;
        self.bucket.tokens_ns = tokens_ns;
        if let Some(peak) = &mut self.peak {
            peak.tokens_ns = peak_ns;
        }
        Ok(())
    }

    /// Whether a packet that is too large for the buckets consists of several datagrams, each of
    /// which is small enough.
    fn fits_in_parts(&self, pkt: &Packet) -> bool {
        segments::longest(pkt) <= self.largest
    }

    /// Splits a packet that is too large for the buckets and enqueues its datagrams; drops the
    /// packet if that is not possible.
    #[cold]
    fn enqueue_parts(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if !self.fits_in_parts(&pkt) {
            cx.drop(pkt, DropReason::TooBig);
            return Verdict::Dropped;
        }
        segments::each(pkt, cx, |part, cx| self.child.enqueue(part, cx, &mut self.held))
    }

    /// Drops the next packet, which came when the buckets were larger and is now too large. Returns
    /// whether there was a packet.
    #[cold]
    fn drop_head(&mut self, cx: &mut Cx<'_>) -> bool {
        let Dequeue::Ready(pkt) = self.child.dequeue(cx, &mut self.held) else { return false };
        cx.drop(pkt, DropReason::TooBig);
        true
    }
}

impl Qdisc for Tbf {
    #[inline]
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if pkt.len > self.largest {
            return self.enqueue_parts(pkt, cx);
        }
        self.child.enqueue(pkt, cx, &mut self.held)
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        loop {
            return match self.child.peek(cx, &mut self.held) {
                Peek::Ready(len) => match self.pay(cx.now, len) {
                    Ok(()) => self.child.dequeue(cx, &mut self.held),
                    Err(_) if len > self.largest && self.drop_head(cx) => continue,
                    Err(then) => Dequeue::NotBefore(then),
                },
                Peek::NotBefore(then) => Dequeue::NotBefore(then),
                Peek::Empty => Dequeue::Empty,
            };
        }
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.held;
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    #[inline]
    fn accepts(&self, pkt: &Packet) -> bool {
        (pkt.len <= self.largest || self.fits_in_parts(pkt)) && self.child.accepts(pkt)
    }

    /// Sets new parameters, fills the buckets (unless they keep their bytes), and keeps all
    /// packets. As in Linux, a child that is a fifo gets the new limit.
    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        let mut new = Self::new(values);
        if values.site.keeps_bytes {
            let elapsed_ns = cx.now.since(self.looked_at).min(i64::MAX as u64 / 4).cast_signed();
            new.bucket = new.bucket.with_bytes_of(&self.bucket, elapsed_ns);
            new.peak = new.peak.map(|peak| match &self.peak {
                Some(before) => peak.with_bytes_of(before, elapsed_ns),
                None => peak,
            });
            self.looked_at = cx.now;
        }
        (self.bucket, self.peak, self.largest) = (new.bucket, new.peak, new.largest);
        self.child.qdisc().limit_fifo(limit(values));
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.child.reset(cx, &mut self.held);
        cx.purge_one(&mut self.peeked);
        self.looked_at = cx.now;
        for bucket in std::iter::once(&mut self.bucket).chain(&mut self.peak) {
            bucket.tokens_ns = bucket.depth_ns;
        }
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }

    fn overlimits(&self) -> u64 {
        self.overlimits
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("overlimits", self.overlimits);
    }
}

impl Classes for Tbf {
    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        (minor == 1).then_some(&mut self.child)
    }

    fn graft(&mut self, _minor: u16, qdisc: Box<dyn Qdisc>, cx: &mut Cx<'_>) {
        self.child.reset(cx, &mut self.held);
        self.child = Child::new(qdisc);
        self.held = self.child.held();
    }

    /// Returns zeros: as in Linux, the class of this qdisc counts nothing.
    fn counters(&mut self, _minor: u16) -> (Counters, Backlog) {
        (Counters::default(), Backlog::default())
    }

    fn recount(&mut self, _minor: u16) {
        self.child.recount(&mut self.held);
    }
}
